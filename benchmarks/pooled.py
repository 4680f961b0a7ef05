"""Ours beside the paper in all sizes at once, where a difference shows that is small in each."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

from pages import markdown

from discretegrad_lab.report.entries import entries
from discretegrad_lab.report.reading import Reading
from discretegrad_lab.stack.lines import line
from discretegrad_lab.tasks.evidence import Results, with_half
from discretegrad_lab.tasks.statistics import LEVEL, Comparison

NORMAL = NormalDist()


class Difference(NamedTuple):
    """Ours less a published number."""

    estimator: str
    comparison: Comparison


def differences(read: Sequence[tuple[Reading, Results]], metric: str) -> list[Difference]:
    """Those of a metric, without published numbers that are in doubt."""
    return [
        Difference(entry.estimator, entry.comparison)
        for reading, results in read
        for entry in entries(reading, results)
        if entry.metric.name == metric
        and entry.comparison.half > 0
        and entry.estimator not in reading.published[metric].doubts
    ]


def pooled(comparisons: Sequence[Comparison]) -> Comparison:
    """The difference that they have in common.

    It is their mean, each weighted by the inverse square of its interval, and taken to be normal.
    """
    weights = [1 / x.half**2 for x in comparisons]
    half = math.fsum(weights) ** -0.5
    mean = half**2 * math.fsum(w * x.difference for w, x in zip(weights, comparisons, strict=True))
    z = abs(mean) / half * NORMAL.inv_cdf((1 + LEVEL) / 2)
    return Comparison(mean, half, 2 * NORMAL.cdf(-z))


def table(read: Sequence[tuple[Reading, Results]], metrics: Sequence[str]) -> str:
    """A row for each line and one for all; the difference in each metric, and its p."""
    by_metric = {metric: differences(read, metric) for metric in metrics}
    lines: dict[str, set[str]] = {
        line(x.estimator).label: {x.estimator} for own in by_metric.values() for x in own
    }
    lines["all together"] = set().union(*lines.values())
    heads, rows = [""], []
    for metric in metrics:
        heads += [f"{metric}: sizes", "ours less published", "p"]
    for label, keys in lines.items():
        row = [label]
        for own in by_metric.values():
            comparisons = [x.comparison for x in own if x.estimator in keys]
            mean = pooled(comparisons)
            row += [str(len(comparisons)), with_half(mean.difference, mean.half, 2, "+")]
            row.append(mean.chance)
        rows.append(row)
    return markdown(heads, rows)
