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
_PLACES = ((20.0, 60.0), (85.0, 18.0), (125.0, 102.0), (190.0, 60.0))
"""Of the nodes of a cell."""
_LABEL_AT = (0.42, 0.42, 0.74, 0.22, 0.5, 0.65)
"""How far along each edge its label stands, such that no two of them meet."""
_WIDTH, _HEIGHT, _HEAD = 215.0, 150.0, 22.0
_PANEL, _PANEL_HEIGHT, _GAP = 130.0, 70.0, 10.0
_POINTS = 25
"""Of a curve, about."""
Curve = list[tuple[int, float]]
"""Epochs with probabilities."""


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(label)}" '
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
        parts.append(_text(4, top + 14, line(key).label, ' font-size="13" font-weight="bold"'))
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
    parts = [f"<title>{escape(to_text(cell))}</title>"]
    for operation, (end, start), share in zip(cell, EDGES, _LABEL_AT, strict=True):
        (x1, y1), (x2, y2) = _PLACES[start], _PLACES[end]
        x, y = x1 + (x2 - x1) * share, y1 + (y2 - y1) * share
        style = ' stroke-dasharray="1 4"' if operation == NONE else ""
        parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{_COLOURS[operation]}" '
            f'stroke-width="2" fill="none"{style}/>'
        )
        if operation != NONE:
            parts.append(_text(x, y - 3, LABELS[operation], ' text-anchor="middle" font-size="9"'))
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
        highest = _highest(curves)
        label = f"{line(key).label}: from 0 to {highest:g}"
        parts.append(_text(4, top + 14, label, ' font-size="13" font-weight="bold"'))
        top += _HEAD
        for edge, (end, start) in enumerate(EDGES):
            place = f"translate({edge * (_PANEL + _GAP):g} {top:g})"
            panel = _panel(curves, edge, highest)
            parts.append(f'<g transform="{place}">{panel}{_text(4, 10, f"{end} ← {start}")}</g>')
        top += _PANEL_HEIGHT + _GAP
    width = len(EDGES) * (_PANEL + _GAP)
    return Exhibit(
        "The architecture over time",
        "The probability of each operation over the epochs: a panel for each edge, and in it a "
        "line for each seed and operation. The panels of an estimator go from 0 to the number "
        "beside its name; five operations that are equally probable have 0.2 each.",
        drawing=_svg(width, top, parts, "Probabilities of operations over the epochs"),
        file="probabilities.svg",
    )


def _highest(curves: Sequence[Mapping[str, Curve]]) -> float:
    """Where panels end: the largest probability, rounded up to a multiple of 0.05.

    It is at least 0.25, so that five operations that are equally probable are not at the edge.
    """
    largest = max((p for own in curves for curve in own.values() for _, p in curve), default=1.0)
    return max(0.25, min(1.0, math.ceil(20 * largest) / 20))


def _panel(curves: Sequence[Mapping[str, Curve]], edge: int, highest: float) -> str:
    parts = [
        f'<rect width="{_PANEL:g}" height="{_PANEL_HEIGHT:g}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.3"/>'
    ]
    names = PROBABILITIES[edge * len(LABELS) : (edge + 1) * len(LABELS)]
    for own in curves:
        for name, colour in zip(names, _COLOURS, strict=True):
            curve = own[name]
            last = max(curve[-1][0], 1) if curve else 1
            points = " ".join(
                f"{_PANEL * epoch / last:.1f},{_PANEL_HEIGHT * (1 - p / highest):.1f}"
                for epoch, p in curve
            )
            if points:
                parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    return "".join(parts)


def _thinned(curve: Curve) -> Curve:
    """So few points that a file with all curves stays small, the last one among them."""
    stride = max(1, len(curve) // _POINTS)
    return curve[::-1][::stride][::-1]
