"""A report as one HTML file that opens from disk: tables, claims and curves to explore.

The page asks for nothing: style, script and data are inside, and its own policy forbids requests.
Without JavaScript it shows the same curves as still drawings.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import TypeAlias

# the page's backgrounds, also in page.html; lines keep a contrast of 3 to 1 to them
LIGHT, DARK = "#ffffff", "#14171b"
_CONTRAST = 3.0

# larger numbers would overflow where axes are laid out, so they are gaps like infinities
_LARGEST = 1e100


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

    @property
    def empty(self) -> bool:
        """Whether there is no point to draw."""
        return not any(usable(y) for curve in self.curves for y in curve.y)


@dataclass(frozen=True)
class Table:
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
class Claim:
    """A statement of the paper, and what the runs say about it."""

    text: str
    place: str
    """Where the paper makes it."""
    holds: bool | None
    """None where the runs cannot tell."""
    evidence: str


Item: TypeAlias = Figure | Table | Claim


@dataclass(frozen=True)
class Section:
    """A part of the page under its own heading."""

    heading: str
    text: str
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole report. In texts, an empty line separates paragraphs and `this` is code."""

    title: str
    introduction: str
    sections: tuple[Section, ...]


def render(page: Page) -> str:
    """The page as HTML, the same text each time."""
    figures: list[Figure] = []
    sections = [_section(n, section, figures) for n, section in enumerate(page.sections, 1)]
    parts = {
        "title": escape(page.title),
        "introduction": _paragraphs(page.introduction),
        "contents": _contents(page.sections),
        "sections": "\n".join(sections),
        "figures": _json([_data(figure) for figure in figures]),
    }
    template = files(__package__).joinpath("page.html").read_text("utf-8")
    # in one pass: what is put in is not searched again
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _contents(sections: Sequence[Section]) -> str:
    if len(sections) < 2:
        return ""
    entries = "".join(
        f'<li><a href="#section-{n}">{escape(section.heading)}</a></li>'
        for n, section in enumerate(sections, 1)
    )
    return f'<nav aria-label="Contents"><ul>{entries}</ul></nav>'


def _section(number: int, section: Section, figures: list[Figure]) -> str:
    """The section; its figures are appended to ``figures``, whose order the script relies on."""
    name = f"section-{number}"
    parts = [
        f'<section id="{name}" aria-labelledby="{name}-heading">',
        f'<h2 id="{name}-heading">{escape(section.heading)}</h2>',
        _paragraphs(section.text),
    ]
    for kind, items in groupby(section.items, key=type):
        inside = []
        for item in items:
            if isinstance(item, Figure):
                figures.append(item)
                inside.append(_figure(item, f"figure-{len(figures)}"))
            elif isinstance(item, Table):
                inside.append(_table(item))
            else:
                inside.append(_claim(item))
        tag = "ul" if kind is Claim else "div"
        parts += [f'<{tag} class="{kind.__name__.lower()}s">', *inside, f"</{tag}>"]
    return "\n".join([*parts, "</section>"])


def _paragraphs(text: str) -> str:
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    return "\n".join(f"<p>{_inline(part)}</p>" for part in paragraphs if part)


def _inline(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


_VERDICTS = {True: ("holds", "✓"), False: ("does not hold", "✗"), None: ("undecided", "?")}


def _claim(claim: Claim) -> str:
    word, sign = _VERDICTS[claim.holds]
    return (
        f'<li class="{word.split()[0]}"><p class="verdict"><span aria-hidden="true">{sign}</span> '
        f"{word}</p><div><p>{_inline(claim.text)} "
        f'<cite>{escape(claim.place)}</cite></p><p class="evidence">{_inline(claim.evidence)}</p>'
        "</div></li>"
    )


def _table(table: Table) -> str:
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.headings)
    kinds = [' class="number"' if _numeric(column) else "" for column in columns]
    head = "".join(
        f'<th scope="col"{kind}>{_inline(cell)}</th>'
        for cell, kind in zip(table.headings, kinds, strict=True)
    )
    body = []
    for row in table.rows:
        first, *rest = (f"{kind}>{_inline(cell)}</" for cell, kind in zip(row, kinds, strict=True))
        cells = "".join(f"<td{cell}td>" for cell in rest)
        body.append(f'<tr><th scope="row"{first}th>{cells}</tr>')
    notes = "".join(f"<li>{_inline(note)}</li>" for note in table.notes)
    # the wide ones scroll by themselves, also with the keyboard
    return "\n".join(
        [
            f'<div class="table"><div class="scroll" role="region" tabindex="0" '
            f'aria-label="{escape(table.title)}"><table>',
            f'<caption><div class="caption"><h3>{_inline(table.title)}</h3>'
            f"{_paragraphs(table.caption)}</div></caption>",
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody></table></div>",
            f'<ul class="notes">{notes}</ul></div>' if notes else "</div>",
        ]
    )


def _numeric(cells: Sequence[str]) -> bool:
    """Whether a column looks like numbers, so that it is set flush right."""
    return any(map(str.strip, cells)) and all(re.match(r"\s*\W?\s*(\d|$)", cell) for cell in cells)


def _figure(figure: Figure, name: str) -> str:
    end = max((x for curve in figure.curves for x in curve.x if usable(x)), default=math.nan)
    legend = "".join(_entry(curve, *_last(curve, end)) for curve in figure.curves)
    summary = "; ".join(f"{curve.name} {_last(curve, end)[0]}" for curve in figure.curves)
    label = (
        f"{figure.title}. {figure.y_label} over {figure.x_label}. Last values: {summary or 'none'}."
    )
    return "\n".join(
        [
            f'<figure id="{name}" aria-labelledby="{name}-title">',
            f'<figcaption><h3 id="{name}-title">{_inline(figure.title)}</h3>',
            f"{_paragraphs(figure.caption)}</figcaption>",
            '<div class="tools" hidden><button type="button" class="log">log scale</button>'
            '<button type="button" class="reset" disabled>reset zoom</button></div>',
            f'<div class="plot">{_drawing(figure, label)}</div>',
            '<p class="at">last value</p>',
            f'<ul class="legend">{legend}</ul>',
            '<p class="spoken" aria-live="polite"></p>',
            "</figure>",
        ]
    )


def _entry(curve: Curve, value: str, interval: str) -> str:
    """One line of the legend; the script makes it a switch."""
    return (
        f'<li><button type="button" aria-pressed="true" disabled style="{_ink(curve)}">'
        '<svg class="swatch" width="28" height="10" aria-hidden="true">'
        f'<path class="curve" d="M1 5H27"{_dash(curve)}/></svg>'
        f'<span class="name">{escape(curve.name)}</span> <span class="value">{value}</span> '
        f'<span class="interval">{interval}</span></button></li>'
    )


def _last(curve: Curve, end: float) -> tuple[str, str]:
    """The last value that there is; where, if not at the end, and its interval."""
    points = enumerate(zip(curve.x, curve.y, strict=True))
    at = max((i for i, (x, y) in points if usable(x) and usable(y)), default=None)
    if at is None:
        return "\N{EN DASH}", ""
    parts = [] if curve.x[at] == end else [f"at {curve.x[at]:.6g}"]
    if curve.low is not None and curve.high is not None:
        low, high = curve.low[at], curve.high[at]
        if usable(low) and usable(high):
            parts.append(f"{_digits(low)} to {_digits(high)}")
    return _digits(curve.y[at]), ": ".join(parts)


def _digits(value: float) -> str:
    return f"{value:#.5g}"


def _ink(curve: Curve) -> str:
    return f"--ink:light-dark({_visible(curve.colour, LIGHT)},{_visible(curve.colour, DARK)})"


def _dash(curve: Curve) -> str:
    return f' stroke-dasharray="{curve.dash}"' if curve.dash else ""


def _visible(colour: str, background: str) -> str:
    """The colour, moved away from the background until their contrast is that of WCAG."""
    mixed, ground = _rgb(colour), _rgb(background)
    target = 0.0 if _luminance(ground) > 0.5 else 255.0
    for percent in range(0, 101, 5):
        mixed = [c + (target - c) * percent / 100 for c in _rgb(colour)]
        dark, light = sorted((_luminance(mixed), _luminance(ground)))
        if (light + 0.05) / (dark + 0.05) >= _CONTRAST:
            break
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def _rgb(colour: str) -> list[float]:
    return [float(int(colour[i : i + 2], 16)) for i in (1, 3, 5)]


def _luminance(rgb: Iterable[float]) -> float:
    linear = [c / 3294.6 if c <= 10.31 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _data(figure: Figure) -> dict[str, object]:
    """What the script draws from."""
    return {
        "x": figure.x_label,
        "y": figure.y_label,
        "log": figure.log_y,
        "reference": _number(figure.reference),
        "referenceName": figure.reference_name,
        "curves": [
            {
                "name": curve.name,
                "style": _ink(curve),
                "dash": curve.dash,
                **{
                    name: [_number(v) for v in values]
                    for name in ("x", "y", "low", "high")
                    if (values := getattr(curve, name)) is not None
                },
            }
            for curve in figure.curves
        ],
    }


def _number(value: float | None) -> float | None:
    if value is None or not usable(value):
        return None
    # seven digits are more than a screen shows, and half the bytes
    return float(f"{value:.7g}") if abs(value) * _LARGEST > 1 else 0.0


def _json(document: object) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def usable(value: float, log: bool = False) -> bool:
    """Whether a point can be drawn."""
    return abs(value) < _LARGEST and (value * _LARGEST > 1 or not log)


def line_pieces(curve: Curve, log: bool) -> list[list[tuple[float, float]]]:
    """The line between its gaps: points x, y."""
    points = zip(curve.x, curve.y, strict=True)
    pieces = groupby(points, key=lambda point: usable(point[0]) and usable(point[1], log))
    return [list(piece) for good, piece in pieces if good]


def band_pieces(curve: Curve, log: bool) -> list[list[tuple[float, float, float]]]:
    """The interval between its gaps: x, low, high; low may lie below a logarithmic axis."""
    if curve.low is None or curve.high is None:
        return []
    points = zip(curve.x, curve.low, curve.high, strict=True)
    pieces = groupby(points, key=lambda p: usable(p[0]) and usable(p[1]) and usable(p[2], log))
    return [list(piece) for good, piece in pieces if good]


def limits(figure: Figure) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ends of both axes: all that can be drawn, with a little space above and below it."""
    xs = [x for curve in figure.curves for x in curve.x]
    ys = [y for curve in figure.curves for s in (curve.y, curve.low, curve.high) for y in s or ()]
    if figure.reference is not None:
        ys.append(figure.reference)
    return _ends(xs, 0.0, False), _ends(ys, 0.05, figure.log_y)


def _ends(values: Iterable[float], share: float, log: bool) -> tuple[float, float]:
    rounded = [_number(v) or 0.0 for v in values if usable(v, log)]
    scaled = [math.log10(v) for v in rounded] if log else rounded
    low, high = min(scaled, default=0.0), max(scaled, default=1.0)
    space = share * (high - low)
    if low == high:
        space = 0.5 if log else 0.05 * abs(high) or 0.5
    low, high = low - space, high + space
    return (10**low, 10**high) if log else (low, high)


def ticks(low: float, high: float, count: int, log: bool = False) -> list[float]:
    """Round numbers between the ends, about ``count`` of them."""
    if log and high / low >= 10:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        every = math.ceil((last - first) / count)
        digits = (1, 2, 5) if 3 * (last - first) <= count + 3 else (1,)
        powers = [d * 10.0**k for k in range(first, last + 1, every) for d in digits]
        return [p for p in powers if low <= p <= high]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= 0.7 * rough)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def labels(numbers: Sequence[float], log: bool) -> list[str]:
    """The numbers as text, with the same number of decimals along a plain axis."""
    texts = [f"{v:.6g}" for v in numbers]
    if (log and numbers[-1] >= 10 * numbers[0]) or any("e" in text for text in texts):
        return texts
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    return [f"{v:.{decimals}f}" for v in numbers]


# of the still drawing, in pixels
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 360, 56, 12, 26, 42


def _drawing(figure: Figure, label: str) -> str:
    """The figure without interaction, as the script would first draw it."""
    (x_low, x_high), (y_low, y_high) = limits(figure)
    log, bottom = figure.log_y, _HEIGHT - _BOTTOM
    f = math.log10 if log else float

    def px(x: float) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * (x - x_low) / (x_high - x_low):.1f}"

    def py(y: float) -> str:
        # what a logarithm does not have lies below: the lower ends of intervals
        part = (f(y) - f(y_low)) / (f(y_high) - f(y_low)) if usable(y, log) else 0.0
        return f"{bottom - (bottom - _TOP) * part:.1f}"

    parts = [
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f'<text class="label" x="2" y="12">{escape(figure.y_label)}</text>',
        f'<text class="label" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{escape(figure.x_label)}</text>',
    ]
    if figure.empty:
        parts.append(
            f'<text x="{_WIDTH / 2}" y="{_HEIGHT / 2}" text-anchor="middle">no data</text>'
        )
    ys = ticks(y_low, y_high, 6, log)
    for y, text in zip(ys, labels(ys, log), strict=True):
        parts.append(f'<path class="grid" d="M{_LEFT} {py(y)}H{_WIDTH - _RIGHT}"/>')
        place = f'x="{_LEFT - 6}" y="{py(y)}" dy=".35em"'
        parts.append(f'<text {place} text-anchor="end">{text}</text>')
    xs = ticks(x_low, x_high, 8)
    for x, text in zip(xs, labels(xs, False), strict=True):
        parts.append(f'<text x="{px(x)}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    if figure.reference is not None and usable(figure.reference, log):
        level = py(figure.reference)
        parts.append(f'<path class="reference" d="M{_LEFT} {level}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text class="label" x="{_LEFT + 6}" y="{level}" dy="-.4em">'
            f"{escape(figure.reference_name)}</text>"
        )
    for curve in figure.curves:
        parts.append(f'<g style="{_ink(curve)}">{_strokes(curve, px, py, log)}</g>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/></svg>')
    return "".join(parts)


def _strokes(
    curve: Curve, px: Callable[[float], str], py: Callable[[float], str], log: bool
) -> str:
    parts = []
    for band in band_pieces(curve, log):
        up = [f"{px(x)} {py(high)}" for x, _, high in band]
        down = [f"{px(x)} {py(low)}" for x, low, _ in reversed(band)]
        parts.append(f'<path class="band" d="M{"L".join(up + down)}Z"/>')
    for line in line_pieces(curve, log):
        places = [f"{px(x)} {py(y)}" for x, y in line]
        if len(places) > 1:
            parts.append(f'<path class="curve" d="M{"L".join(places)}"{_dash(curve)}/>')
        else:
            cx, cy = places[0].split()
            parts.append(f'<circle class="dot" cx="{cx}" cy="{cy}" r="3"/>')
    return "".join(parts)
