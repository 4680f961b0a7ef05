"""Cells as graphs and their probabilities over time, as SVG that a page or a file can hold."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from ...stack.lines import line
from ..base import Exhibit
from ..evidence import Results, Row
from .cells import EDGES, LABELS, NONE, from_number, to_text
from .model import PROBABILITIES

# of the operations, for colour-blind readers too (Okabe and Ito)
_COLOURS = ("#999999", "#E69F00", "#009E73", "#0072B2", "#CC79A7")
_PLACES = ((20.0, 60.0), (95.0, 16.0), (145.0, 104.0), (220.0, 60.0))
"""Of the nodes of a cell."""
_LABEL_AT = (0.5, 0.5, 0.27, 0.35, 0.5, 0.5)
"""How far along each edge its label stands, such that no two of them meet."""
_WIDTH, _HEIGHT, _HEAD = 245.0, 150.0, 22.0
_PANEL, _PANEL_HEIGHT, _GAP = 130.0, 70.0, 10.0
_SMALL = ' style="font-size:10px"'
_TITLE = ' style="font-size:13px;font-weight:bold"'
# on a line, which ends before the letters: the page says which colour is behind them
_ON_A_LINE = (
    ' text-anchor="middle" style="font-size:10px;paint-order:stroke;stroke:var(--page,#fff);'
    'stroke-width:4px;stroke-linejoin:round"'
)
_POINTS = 25
"""Of a curve, about."""
Curve = list[tuple[int, float]]
"""Epochs with probabilities."""


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(label)}" '
            # the ground of the page around it; as a picture of its own its letters are black
            'style="background:var(--page,#fff)" '
            'font-family="sans-serif" font-size="10" fill="currentColor">',
            *parts,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'


def draw_cells(rows: Sequence[Row]) -> Exhibit:
    """Each finished search as a graph: a line of graphs for each estimator."""
    parts, top, widest = [], 0.0, 0
    for key in dict.fromkeys(row.config["estimator"] for row in rows):
        own = [row for row in rows if row.config["estimator"] == key]
        widest = max(widest, len(own))
        parts.append(_text(4, top + 14, line(key).label, _TITLE))
        for column, row in enumerate(own):
            place = f"translate({column * _WIDTH:g} {top + _HEAD:g})"
            parts.append(f'<g transform="{place}">{_graph(row)}</g>')
        top += _HEAD + _HEIGHT
    return Exhibit(
        "Every cell as a graph",
        "Node 0 is the input of a cell and node 3 its output. A node is the sum of what the "
        "operations make of earlier nodes; an edge with none is dotted. Below a cell stand its "
        "accuracies on validation and test images of CIFAR-10, in percent.",
        drawing=_svg(widest * _WIDTH, top, parts, "The cells that the searches found"),
        file="cells.svg",
    )


def _graph(row: Row) -> str:
    cell = from_number(int(row.metrics["cell_number"]))
    parts, labels = [f"<title>{escape(to_text(cell))}</title>"], []
    for operation, (end, start), share in zip(cell, EDGES, _LABEL_AT, strict=True):
        (x1, y1), (x2, y2) = _PLACES[start], _PLACES[end]
        x, y = x1 + (x2 - x1) * share, y1 + (y2 - y1) * share
        style = ' stroke-dasharray="1 4"' if operation == NONE else ""
        parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{_COLOURS[operation]}" '
            f'stroke-width="2" fill="none"{style}/>'
        )
        if operation != NONE:
            labels.append(_text(x, y + 3, LABELS[operation], _ON_A_LINE))
    parts += labels
    for node, (x, y) in enumerate(_PLACES):
        parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="8" stroke="currentColor" fill="#ffffff"/>'
            f'<text x="{x:g}" y="{y + 3.5:g}" text-anchor="middle" fill="#000000">{node}</text>'
        )
    numbers = f"{row.metrics['validation']:.2f} / {row.metrics['test']:.2f}"
    parts.append(_text(20, 130, f"seed {row.config['seed']}: {numbers}"))
    return "".join(parts)


def draw_probabilities(results: Results, rows: Sequence[Row]) -> Exhibit:
    """The probability of each operation over the epochs: a panel for each estimator and edge."""
    keys = list(dict.fromkeys(row.config["estimator"] for row in rows))
    parts = []
    for number, (label, colour) in enumerate(zip(LABELS, _COLOURS, strict=True)):
        x = 4 + 90 * number
        parts.append(f'<path d="M{x} 8H{x + 18}" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(x + 22, 12, label))
    top = _HEAD
    for key in keys:
        own = [row for row in rows if row.config["estimator"] == key]
        curves = [
            {name: _thinned(results.curve(row, name)) for name in PROBABILITIES} for row in own
        ]
        lowest, highest = _ends(curves)
        label = f"{line(key).label}: from {lowest:g} to {highest:g}"
        parts.append(_text(4, top + 14, label, _TITLE))
        top += 1.6 * _HEAD
        for edge, (end, start) in enumerate(EDGES):
            place = f"translate({1 + edge * (_PANEL + _GAP):g} {top:g})"
            panel = _panel(curves, edge, lowest, highest)
            name = _text(3, -4, f"{end} ← {start}", _SMALL)
            parts.append(f'<g transform="{place}">{panel}{name}</g>')
        top += _PANEL_HEIGHT + _GAP
    width = len(EDGES) * (_PANEL + _GAP)
    return Exhibit(
        "The architecture over time",
        "The probability of each operation over the epochs: a panel for each edge, and in it a "
        "line for each seed and operation. The panels of an estimator have the ends that stand "
        "beside its name; dots are at 0.2, which five operations that are equally probable have.",
        drawing=_svg(width, top, parts, "Probabilities of operations over the epochs"),
        file="probabilities.svg",
    )


def _ends(curves: Sequence[Mapping[str, Curve]]) -> tuple[float, float]:
    """Where panels begin and end: the least and the largest probability, to a multiple of 0.02.

    They are at least so far apart as 0.18 and 0.22, so that equal probabilities look equal.
    """
    every = [p for own in curves for curve in own.values() for _, p in curve]
    return (
        min(0.18, math.floor(50 * min(every, default=0.0)) / 50),
        max(0.22, math.ceil(50 * max(every, default=1.0)) / 50),
    )


def _panel(curves: Sequence[Mapping[str, Curve]], edge: int, lowest: float, highest: float) -> str:
    def height(p: float) -> float:
        return _PANEL_HEIGHT * (highest - p) / (highest - lowest)

    parts = [
        f'<rect width="{_PANEL:g}" height="{_PANEL_HEIGHT:g}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.3"/>',
        f'<path d="M0 {height(1 / len(LABELS)):.1f}H{_PANEL:g}" stroke="currentColor" '
        'stroke-dasharray="1 4"/>',
    ]
    names = PROBABILITIES[edge * len(LABELS) : (edge + 1) * len(LABELS)]
    for own in curves:
        for name, colour in zip(names, _COLOURS, strict=True):
            curve = own[name]
            last = max(curve[-1][0], 1) if curve else 1
            points = " ".join(f"{_PANEL * epoch / last:.1f},{height(p):.1f}" for epoch, p in curve)
            if points:
                parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    return "".join(parts)


def _thinned(curve: Curve) -> Curve:
    """So few points that a file with all curves stays small, the last one among them."""
    stride = max(1, len(curve) // _POINTS)
    return curve[::-1][::stride][::-1]
