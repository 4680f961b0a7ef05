"""What a report consists of: texts, tables, figures and verdicts, before they have a format.

``html``, ``markdown``, ``terminal`` and ``plots`` each write it in one format.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

# what a terminal or an editor acts on instead of showing it: control characters, line separators,
# and marks that reverse the direction of a text; a tab and a line break are neither
_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# larger numbers would overflow where axes are laid out, so they are gaps like infinities
LARGEST = 1e100
_MARKS = 6  # of a line, about


@dataclass(frozen=True)
class Curve:
    """A line with, if known, the interval around it. What is not finite is a gap."""

    name: str
    colour: str
    """As #rrggbb, for a white background; the page adjusts it where it would be hard to see."""
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dash: str = ""
    """Lengths of dashes and gaps in pixels, such as "6 3"; empty for a solid line."""
    mark: int = 0
    """The number of the shape that stands on some of its points."""

    def __post_init__(self) -> None:
        """Refuse what would not be drawn, or not as meant."""
        if not re.fullmatch("#[0-9a-fA-F]{6}", self.colour):
            raise ValueError(f"expected a colour such as #0072b2, got {self.colour!r}")
        if not re.fullmatch(r"(\d+(\.\d+)?( \d+(\.\d+)?)+)?", self.dash):
            raise ValueError(f'expected a dash such as "6 3" or "", got {self.dash!r}')
        if (self.low is None) != (self.high is None):
            raise ValueError(
                f"expected both ends of the interval of {self.name!r}, got one; give low and high"
            )
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(
                    f"expected as many values of {name} as of x in {self.name!r}, "
                    f"got {len(values)} and {len(self.x)}"
                )


@dataclass(frozen=True)
class Tried(Curve):
    """A line over the values of a setting that were tried, which also says where runs failed."""

    failed: Sequence[int] = field(kw_only=True)
    """How many runs of each point failed to train."""


@dataclass(frozen=True)
class Figure:
    """Curves over one axis."""

    title: str
    caption: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_y: bool = False
    """Whether the y axis starts out logarithmic."""
    reference: float | None = None
    """Where to draw a horizontal line."""
    reference_name: str = "reference"
    searched: bool = False
    """Whether the axis is a setting whose values were tried, and not time."""
    better: Literal["down", "up"] = "down"
    """Whether a small value is a good one, or a large one."""

    @property
    def empty(self) -> bool:
        """Whether there is no point to draw."""
        return not any(usable(y) for curve in self.curves for y in curve.y)

    def marks(self, number: int) -> list[int]:
        """The points of the curve of a number that carry its mark.

        Each curve has them elsewhere, so that the marks of lines that hide each other are all seen.
        """
        curve, count = self.curves[number], len(self.curves)
        every = max(count, round(len(curve.x) / _MARKS))
        return [
            place
            # lines with fewer points than there are lines begin anew
            for place in range(number * every // count % max(len(curve.x), 1), len(curve.x), every)
            if usable(curve.x[place]) and usable(curve.y[place])
        ]

    @property
    def drawn(self) -> list[int]:
        """Curves in the order to draw them: dashed ones last, since they hide nothing."""
        return sorted(range(len(self.curves)), key=lambda number: bool(self.curves[number].dash))


@dataclass(frozen=True)
class TextTable:
    """Text in rows; the first column names the row."""

    title: str
    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the headings."""
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(
                    f"expected {len(self.headings)} cells in each row of {self.title!r}, "
                    f"got {len(row)} in {row}"
                )


@dataclass(frozen=True)
class Verdict:
    """A statement of a paper, and whether the runs bear it out."""

    text: str
    place: str
    """Where the paper makes it."""
    holds: bool | None
    """None where the runs cannot tell."""
    evidence: str

    @property
    def word(self) -> str:
        """The outcome in words."""
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]


@dataclass(frozen=True)
class Drawing:
    """A picture that is drawn already."""

    title: str
    caption: str
    svg: str
    """An SVG element, which stands in the page as it is."""
    file: str
    """The name of a file for it beside the report."""


Item: TypeAlias = Figure | TextTable | Drawing | Verdict


@dataclass(frozen=True)
class Section:
    """A part of a page under its own heading."""

    heading: str
    text: str
    items: tuple[Item, ...] = ()
    rule: str = ""
    """How its verdicts were reached."""

    @property
    def figures(self) -> list[Figure]:
        """Its figures alone."""
        return [item for item in self.items if isinstance(item, Figure)]

    @property
    def tables(self) -> list[TextTable]:
        """Its tables alone."""
        return [item for item in self.items if isinstance(item, TextTable)]

    @property
    def drawings(self) -> list[Drawing]:
        """Its drawings alone."""
        return [item for item in self.items if isinstance(item, Drawing)]

    @property
    def verdicts(self) -> list[Verdict]:
        """Its verdicts alone."""
        return [item for item in self.items if isinstance(item, Verdict)]


@dataclass(frozen=True)
class Page:
    """A whole report. In texts, an empty line separates paragraphs and `this` is code."""

    title: str
    introduction: str
    sections: tuple[Section, ...]


def printable(text: str) -> str:
    """A text whose characters are all shown; those that would act are written as \\x1b."""
    return _ACTING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def usable(value: float, log: bool = False) -> bool:
    """Whether a number can be drawn."""
    return abs(value) < LARGEST and (value * LARGEST > 1 or not log)
