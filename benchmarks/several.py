"""More samples of each image: what they give at equal steps, and what in equal time."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from pages import markdown

from discretegrad_lab.report.document import Curve, Figure
from discretegrad_lab.report.reading import Reading
from discretegrad_lab.report.tables import with_half
from discretegrad_lab.tasks.evidence import Results, Row, final
from discretegrad_lab.tasks.statistics import Summary, summarise

METRICS = ("train", "test")
# curves begin high, and nothing else could be seen beside that
FIRST_EPOCH = 20


class Variant(NamedTuple):
    """Runs that differ in their seeds only."""

    label: str
    rows: list[Row]
    seconds: float
    """Of the GPU, for a run: the time of its stack, shared by the members of that."""


def variants(reading: Reading, results: Results) -> list[Variant]:
    """Those of each estimator side by side; without a finished run they are left out."""
    members: dict[tuple[Any, ...], int] = {}
    for row in results.rows:
        members[_stack(row)] = members.get(_stack(row), 0) + 1
    listed = []
    for key in results.estimators():
        own = results.part(estimator=key)
        for setting in own.settings(reading.variants):
            rows = [row for row in own.where(**setting) if row.state == "finished"]
            if rows:
                times = [row.seconds / members[_stack(row)] for row in rows]
                listed.append(Variant(reading.label(key, setting), rows, max(times)))
    return listed


def _stack(row: Row) -> tuple[Any, ...]:
    """Equal for runs that were trained together: of those the time is the same."""
    same = (row.config.get(name) for name in ("estimator", "samples"))
    return (*same, row.seconds, row.commit)


def equal_table(reading: Reading, results: Results) -> str:
    """At the end, and where each is when the cheapest has ended."""
    listed = variants(reading, results)
    cheapest = min(variant.seconds for variant in listed)
    lines = []
    for variant in listed:
        epochs = variant.rows[0].epoch
        reached = epochs * cheapest / variant.seconds
        ends = [final(variant.rows, metric) for metric in METRICS]
        then = [_at(results, variant.rows, metric, reached) for metric in METRICS]
        lines.append(
            [
                variant.label,
                *map(_cell, ends),
                f"{variant.seconds:.1f} s",
                f"{reached:.0f} of {epochs}",
                *map(_cell, then),
                str(len(variant.rows)),
            ]
        )
    minus = "\N{MINUS SIGN}"
    headings = ["", f"train {minus}ELBO", f"test {minus}ELBO", "GPU time of a run"]
    headings += ["epochs in equal time", "train then", "test then", "runs"]
    return markdown(headings, lines)


def _cell(summary: Summary) -> str:
    return with_half(summary.mean, summary.half, 2)


def _at(results: Results, rows: list[Row], metric: str, epoch: float) -> Summary:
    values = [value_at(dict(results.curve(row, metric)), epoch) for row in rows]
    return summarise([value for value in values if value is not None])


def value_at(curve: Mapping[int, float], epoch: float) -> float | None:
    """Of a curve at an epoch, along straight lines; None before its first value."""
    points = sorted(curve.items())
    for (start, low), (end, high) in pairwise(points):
        if start <= epoch <= end:
            return low + (high - low) * (epoch - start) / (end - start)
    return points[-1][1] if points and epoch >= points[-1][0] else None


def over_time(reading: Reading, results: Results, figures: list[Figure]) -> list[Figure]:
    """Figures over epochs, with the GPU time of a run as their axis."""
    seconds = {
        variant.label: variant.seconds / variant.rows[0].epoch
        for variant in variants(reading, results)
    }
    return [
        replace(
            figure,
            x_label="GPU seconds of a run",
            curves=tuple(_timed(curve, seconds[curve.name]) for curve in figure.curves),
        )
        for figure in figures
    ]


def _timed(curve: Curve, seconds: float) -> Curve:
    later = [number for number, epoch in enumerate(curve.x) if epoch >= FIRST_EPOCH]
    parts = (curve.y, curve.low, curve.high)
    y, low, high = (None if part is None else [part[n] for n in later] for part in parts)
    return replace(curve, x=[seconds * curve.x[n] for n in later], y=y, low=low, high=high)
