"""A report as one HTML file that opens from disk: curves to explore, tables and verdicts.

The page asks for nothing: style, script and data are inside, and its own policy forbids requests.
A script draws the curves; without JavaScript there are the last values, tables and verdicts.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby

from .document import (
    LARGEST,
    Curve,
    Drawing,
    Figure,
    Page,
    Section,
    TextTable,
    Verdict,
    printable,
    usable,
)

# the page's backgrounds, also in page.html; lines keep a contrast of 3 to 1 to them
LIGHT, DARK = "#ffffff", "#14171b"
_CONTRAST = 3.0

# shapes around the point 0 0
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",  # circle
    "M-3.5 -3.5H3.5V3.5H-3.5Z",  # square
    "M0 -4.8L4.6 3.2H-4.6Z",  # triangle
    "M0 -5L5 0L0 5L-5 0Z",  # diamond
    "M0 4.8L4.6 -3.2H-4.6Z",  # triangle that points down
    "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",  # plus
    "M-4.5 -2.5L-2.5 -4.5L0 -2L2.5 -4.5L4.5 -2.5L2 0L4.5 2.5L2.5 4.5L0 2L-2.5 4.5L-4.5 2.5L-2 0Z",
    "M0 -4.8L4.6 -1.5L2.8 3.9H-2.8L-4.6 -1.5Z",  # pentagon
    "M0 -5.5L1.3 -1.8H5.2L2.1 .6L3.2 4.4L0 2.1L-3.2 4.4L-2.1 .6L-5.2 -1.8H-1.3Z",  # star
    "M-4.8 0L3.2 -4.6V4.6Z",  # triangle that points left
    "M4.8 0L-3.2 -4.6V4.6Z",  # triangle that points right
)
_GROUPS = {
    Figure: ("div", "figures"),
    TextTable: ("div", "tables"),
    Drawing: ("div", "tables"),
    Verdict: ("ul", "verdicts"),
}
"""The element around items of a kind, and its class."""


def to_html(page: Page) -> str:
    """The page as HTML, the same text each time."""
    figures: list[Figure] = []
    sections = [_section(n, section, figures) for n, section in enumerate(page.sections, 1)]
    parts = {
        "title": escape(page.title),
        "introduction": _paragraphs(page.introduction),
        "sections": "\n".join(sections),
        # JSON that cannot end the script element around it
        "figures": json.dumps([_data(x) for x in figures], allow_nan=False, separators=(",", ":"))
        .replace("<", r"\u003c")
        .replace(">", r"\u003e")
        .replace("&", r"\u0026"),
    }
    template = files(__package__).joinpath("page.html").read_text("utf-8")
    # in one pass: what is put in is not searched again
    return printable(re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template))


def _section(number: int, section: Section, figures: list[Figure]) -> str:
    """The section; its figures are appended to ``figures``, whose order the script relies on."""
    place = f"section-{number}"
    parts = [
        f'<section id="{place}" aria-labelledby="{place}-heading">',
        f'<h2 id="{place}-heading">{escape(section.heading)}</h2>',
        _paragraphs(section.text),
    ]
    for kind, items in groupby(section.items, key=type):
        inside = []
        for item in items:
            if isinstance(item, Figure):
                figures.append(item)
                inside.append(_figure(item, f"figure-{len(figures)}"))
            elif isinstance(item, Drawing):
                inside.append(_scrolling("drawing", item.title, item.caption, item.svg))
            else:
                inside.append(_table(item) if isinstance(item, TextTable) else _verdict(item))
        if kind is Verdict:
            parts += ["<h3>Claims</h3>", f'<div class="rule">{_paragraphs(section.rule)}</div>']
        tag, name = _GROUPS[kind]
        parts += [f'<{tag} class="{name}">', *inside, f"</{tag}>"]
    return "\n".join([*parts, "</section>"])


def _paragraphs(text: str) -> str:
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    return "\n".join(f"<p>{_inline(part)}</p>" for part in paragraphs if part)


def _inline(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _verdict(verdict: Verdict) -> str:
    sign = {True: "✓", False: "✗", None: "?"}[verdict.holds]
    return (
        f'<li class="{verdict.word.split()[0]}"><p class="verdict"><span aria-hidden="true">{sign}'
        f"</span> {verdict.word}</p><div><p>{_inline(verdict.text)} <cite>{escape(verdict.place)}"
        f'</cite></p><p class="evidence">{_inline(verdict.evidence)}</p></div></li>'
    )


def _table(table: TextTable) -> str:
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
    shown = (
        f'<table aria-label="{escape(table.title)}"><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table>"
    )
    after = f'\n<ul class="notes">{notes}</ul>' if notes else ""
    return _scrolling("table", table.title, table.caption, shown, after)


def _scrolling(kind: str, title: str, caption: str, content: str, after: str = "") -> str:
    """What scrolls by itself where it is too wide, also with the keyboard; the script shows the cue
    only there."""
    return "\n".join(
        [
            f'<div class="table"><div class="caption"><h3>{_inline(title)}</h3>'
            f"{_paragraphs(caption)}</div>",
            f'<p class="cue" hidden>This {kind} is wider than the screen: scroll it sideways →</p>',
            f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">',
            f"{content}</div>{after}</div>",
        ]
    )


def _numeric(cells: Sequence[str]) -> bool:
    """Whether a column looks like numbers, so that it is set flush right."""
    return any(map(str.strip, cells)) and all(re.match(r"\s*\W?\s*(\d|$)", cell) for cell in cells)


def _figure(figure: Figure, name: str) -> str:
    end = max((x for curve in figure.curves for x in curve.x if usable(x)), default=math.nan)
    last = [_last(curve, end) for curve in figure.curves]
    legend = "".join(_entry(figure.curves[n], *texts) for n, texts in enumerate(last))
    summary = "; ".join(f"{figure.curves[n].name} {value}" for n, (value, _) in enumerate(last))
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
            f'<div class="plot"><svg role="img" aria-label="{escape(label)}"></svg></div>',
            '<p class="at">last value</p>',
            f'<ul class="legend">{legend}</ul>',
            '<p class="spoken" aria-live="polite"></p>',
            "</figure>",
        ]
    )


def _entry(curve: Curve, value: str, interval: str) -> str:
    """One line of the legend; the script makes it a switch."""
    dashes = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
    return (
        f'<li><button type="button" aria-pressed="true" disabled style="{ink(curve)}">'
        '<svg class="swatch" width="34" height="12" aria-hidden="true">'
        f'<path class="curve" d="M1 6H33"{dashes}/>'
        f'<path class="mark" d="{mark(curve)}" transform="translate(17 6)"/></svg>'
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
            parts.append(f"{low:#.5g} to {high:#.5g}")
    return f"{curve.y[at]:#.5g}", ": ".join(parts)


def _data(figure: Figure) -> dict[str, object]:
    """What the script draws from."""
    return {
        "x": figure.x_label,
        "y": figure.y_label,
        "log": figure.log_y,
        "reference": _rounded(figure.reference),
        "referenceName": figure.reference_name,
        "order": figure.drawn,
        "curves": [
            {
                "name": curve.name,
                "style": ink(curve),
                "dash": curve.dash,
                "shape": mark(curve),
                "marks": figure.marks(number),
                **{
                    name: [_rounded(v) for v in values]
                    for name in ("x", "y", "low", "high")
                    if (values := getattr(curve, name)) is not None
                },
            }
            for number, curve in enumerate(figure.curves)
        ],
    }


def _rounded(value: float | None) -> float | None:
    """A number with seven digits, which are more than a screen shows; None for a gap."""
    if value is None or not usable(value):
        return None
    return float(f"{value:.7g}") if abs(value) * LARGEST > 1 else 0.0


def mark(curve: Curve) -> str:
    """The shape that tells a curve from its neighbours, whatever its colour."""
    return MARKS[curve.mark % len(MARKS)]


def ink(curve: Curve) -> str:
    """The colour of a curve on either background, as a style."""
    return f"--ink:light-dark({visible(curve.colour, LIGHT)},{visible(curve.colour, DARK)})"


def visible(colour: str, background: str) -> str:
    """The colour, moved away from the background until their contrast is that of WCAG."""
    mixed, ground = rgb(colour), rgb(background)
    target = 0.0 if luminance(ground) > 0.5 else 255.0
    for percent in range(0, 101, 5):
        mixed = [c + (target - c) * percent / 100 for c in rgb(colour)]
        dark, light = sorted((luminance(mixed), luminance(ground)))
        if (light + 0.05) / (dark + 0.05) >= _CONTRAST:
            break
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def rgb(colour: str) -> list[float]:
    """Red, green and blue from 0 to 255."""
    return [float(int(colour[i : i + 2], 16)) for i in (1, 3, 5)]


def luminance(colour: Iterable[float]) -> float:
    """How bright red, green and blue are together, from 0 to 1, by WCAG."""
    linear = [c / 3294.6 if c <= 10.31 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
