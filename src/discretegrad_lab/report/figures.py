"""Figures of a report: metrics over time, and at the end over a field that was searched."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..stack.lines import LINES
from ..tasks.base import Metric
from ..tasks.evidence import Results, final
from ..tasks.statistics import Summary, summarise
from .document import Curve, Figure, Tried
from .entries import unit_of
from .reading import Look, Reading

_SEARCHED = {"tau": "τ", "learning_rate": "learning rate"}
"""Fields that a figure can be drawn over, with the labels of their axes."""
# of further variants of an estimator
_COLOURS = ("#882255", "#44AA99", "#999933", "#332288", "#AA4499", "#117733", "#CC6677", "#6699CC")
_REFERENCE = "#777777"
_DASHES = ("1 3", "8 3", "3 3 8 3")


def figures(reading: Reading, results: Results) -> Iterator[Figure]:
    """First over the field that was searched, if one was, then over time."""
    searched = reading.rows[0] if len(reading.rows) == 1 and reading.rows[0] in _SEARCHED else None
    keys = results.estimators()
    over = next((metric for metric in reading.metrics if metric.name == reading.over), None)
    for metric in reading.metrics:
        if metric.minor:
            continue
        if searched:
            for setting in results.settings(reading.panels):
                part = results.part(**setting)
                yield _figure(reading, part, metric, setting, _Axis(keys, searched))
        if reading.curves:
            for setting in results.settings((*reading.panels, *reading.rows)):
                part = results.part(**setting)
                yield _figure(reading, part, metric, setting, _Axis(keys))
                if over is not None:
                    yield _figure(reading, part, metric, setting, _Axis(keys, over=over))


class _Axis(NamedTuple):
    """What the figures of a report share."""

    keys: list[str]
    """All estimators; each has the same mark in every figure."""
    searched: str | None = None
    """The field that the horizontal axis shows; time if there is none."""
    over: Metric | None = None
    """A metric that it shows in place of time."""


def _figure(
    reading: Reading, results: Results, metric: Metric, setting: Mapping[str, Any], axis: _Axis
) -> Figure:
    curves: list[Curve] = []
    # tables count failed runs by the first metric, whichever they show
    searched, by = axis.searched, reading.metrics[0]
    known = list(dict.fromkeys([*LINES, *axis.keys]))
    own_colours = [reading.look(key).colour for key in axis.keys]
    for key in axis.keys:
        own = results.part(estimator=key)
        for number, variant in enumerate(own.settings(reading.variants)):
            part, look, mark = own.part(**variant), reading.look(key), known.index(key)
            if number:
                used = Counter([*own_colours, *(curve.colour for curve in curves)])
                look = look._replace(colour=min(_COLOURS, key=used.__getitem__))
                mark = len(known) + len(curves)
            points = (
                _over(part, metric.name, searched) if searched else _over_time(part, metric.name)
            )
            if axis.over is not None:
                reached = _over_time(part, axis.over.name)
                points = {reached[x].mean: y for x, y in points.items() if x in reached}
            if points:
                named = look._replace(label=reading.label(key, variant))
                curve = _curve(named, mark, points)
                if searched:
                    failed = Counter(row.config[searched] for row in part.failed(by))
                    curve = Tried(**vars(curve), failed=tuple(failed[x] for x in points))
                curves.append(curve)
    curves += _references(metric, curves, len(known) + len(curves))
    text = reading.describe(setting)
    if text and len(reading.metrics) > 1:
        text = f"{metric.label}, {text}"
    first = results.rows[0]
    return Figure(
        title=text or metric.label,
        caption="",
        x_label=_x_label(results, axis),
        y_label=metric.label,
        curves=tuple(curves),
        reference=metric.optimum(first.config) if metric.optimum else None,
        reference_name="optimum",
        searched=searched is not None,
        better=metric.direction,
    )


def _references(metric: Metric, curves: list[Curve], mark: int) -> list[Curve]:
    """Constants that a metric is held against, as long as the curves; their first mark is given."""
    across = sorted({x for curve in curves for x in curve.x})
    return [
        Curve(
            name,
            _REFERENCE,
            across,
            [value] * len(across),
            dash=_DASHES[number % len(_DASHES)],
            mark=mark + number,
        )
        for number, (name, value) in enumerate(metric.references if across else ())
    ]


def _x_label(results: Results, axis: _Axis) -> str:
    if axis.over is not None:
        return axis.over.label
    return _SEARCHED[axis.searched] if axis.searched else unit_of(results.rows).removesuffix("s")


def _over_time(results: Results, metric: str) -> dict[float, Summary]:
    curves = [dict(results.curve(row, metric)) for row in results.rows]
    scale = results.rows[0].config.get("steps_per_epoch") or 1 if results.rows else 1
    return {
        scale * epoch: summarise([curve[epoch] for curve in curves if epoch in curve])
        for epoch in sorted({epoch for curve in curves for epoch in curve})
    }


def _over(results: Results, metric: str, field: str) -> dict[float, Summary]:
    points = {
        setting[field]: final(results.where(**setting), metric)
        for setting in results.settings((field,))
    }
    return {x: point for x, point in points.items() if point.count}


def _curve(look: Look, mark: int, points: Mapping[float, Summary]) -> Curve:
    middle = tuple(point.mean for point in points.values())
    halves = [point.half for point in points.values()]
    low = high = None
    if any(map(math.isfinite, halves)):
        low = tuple(mean - half for mean, half in zip(middle, halves, strict=True))
        high = tuple(mean + half for mean, half in zip(middle, halves, strict=True))
    return Curve(look.label, look.colour, tuple(points), middle, low, high, look.dash, mark)
