"""Runs of the small VAE that were useless for a time: how many, which, and what decides it."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median, variance

import stored
from pages import markdown
from reports import if_stored
from stored import reading

from discretegrad_lab.report.entries import entries
from discretegrad_lab.report.tables import with_half
from discretegrad_lab.stack.lines import line as find_line
from discretegrad_lab.tasks.evidence import Results, Row


def collapse_table() -> str:
    """How many runs of the small VAE were useless for a time, and how many at the end."""
    results = stored.read(stored.COLLAPSE)
    lines = []
    for entry in (x for x in entries(reading(results), results) if x.metric.name == "train"):
        fallen = collapses(results, results.where(estimator=entry.estimator))
        collapsed = [row.config["seed"] for row, _ in fallen]
        back = [epoch for _, epoch in fallen if epoch is not None]
        stuck = [row.config["seed"] for row, epoch in fallen if epoch is None]
        interval = rate_interval(len(stuck), entry.ours.count)
        lines.append(
            [
                find_line(entry.estimator).label,
                with_half(entry.ours.mean, entry.ours.half, 2),
                f"{entry.median:.2f}",
                f"{entry.ours.count}",
                _counted("seeds", collapsed),
                _counted("by epoch", back),
                _counted("seeds", stuck),
                interval,
            ]
        )
    heads = ["train \N{MINUS SIGN}ELBO", "mean", "median", "runs", "collapsed after 4 epochs"]
    return markdown([*heads, "came back", "collapsed at the end", "95 % interval"], lines)


def collapses(results: Results, rows: Sequence[Row]) -> list[tuple[Row, int | None]]:
    """Runs that were useless at or after the fourth epoch, with the epoch by which they came back,
    or None.

    The loss of the first epochs is a mean over their steps, so every run begins high.
    """
    (level,) = (x.useless for x in reading(results).metrics if x.useless is not None)
    collapsed: list[tuple[Row, int | None]] = []
    for row in rows:
        curve = [(epoch, loss) for epoch, loss in results.curve(row, "train") if epoch >= 4]
        above = [epoch for epoch, loss in curve if loss >= level]
        if above:
            collapsed.append((row, next((epoch for epoch, _ in curve if epoch > above[-1]), None)))
    return collapsed


def weights_table() -> str:
    """How many runs collapsed for each initial weights, and for each seed of all else."""
    results = stored.read(stored.WEIGHTS)
    if not results.counts()["finished"]:
        return if_stored(stored.WEIGHTS)
    ended = [row for row in results.rows if row.state == "finished"]
    fallen, lines = collapses(results, ended), []
    chance = random.Random(0)
    for words, field in (("initial weights", "weights_seed"), ("batches and samples", "seed")):
        seeds = [row.config[field] for row in ended]
        each = _counts([row.config[field] for row, _ in fallen], seeds)
        others = [
            variance(_counts(chance.sample(seeds, len(fallen)), seeds)) for _ in range(_CHOICES)
        ]
        p = (1 + sum(x >= variance(each) for x in others)) / (1 + _CHOICES)
        collapsed = ", ".join(f"{n} ({each.count(n)} of them)" for n in dict.fromkeys(each))
        lines.append(
            [words, collapsed, f"{variance(each):.2f}", f"{fmean(others):.2f}", f"{p:.2g}"]
        )
    heads = [f"{len(fallen)} of {len(ended)} runs collapsed", "runs that collapsed with the same"]
    return markdown([*heads, "variance of that", "by chance alone", "p"], lines)


def _counts(chosen: Sequence[int], seeds: Sequence[int]) -> list[int]:
    """How many of the chosen have each seed, the most first."""
    counts = Counter(chosen)
    return sorted((counts[seed] for seed in set(seeds)), reverse=True)


_CHOICES = 2_000
"""So often as many runs are chosen at random in place of those that collapsed. The p is the share
of these choices that are as uneven."""


def beginnings_table() -> str:
    """How many runs collapsed at each temperature, and how many of them came back."""
    results = stored.read(stored.FIRST_TEMPERATURES)
    if not results.rows:
        return if_stored(stored.FIRST_TEMPERATURES)
    lines = []
    for setting in results.settings(("estimator", "tau")):
        rows = [row for row in results.where(**setting) if row.state == "finished"]
        if not rows:
            continue
        fallen = collapses(results, rows)
        interval = rate_interval(len(fallen), len(rows))
        lines.append(
            [
                find_line(setting["estimator"]).label,
                f"{setting['tau']:g}",
                f"{len(rows)}",
                f"{len(fallen)}",
                interval,
                f"{sum(epoch is not None for _, epoch in fallen)}",
                f"{median(row.metrics['train'] for row in rows):.2f}",
            ]
        )
    heads = ["", "τ", "runs", "collapsed after 4 epochs", "95 % interval", "came back by epoch 20"]
    return markdown([*heads, "median of train \N{MINUS SIGN}ELBO"], lines)


def rate_interval(count: int, total: int) -> str:
    """Wilson's 95 % interval of a probability, from so many events in so many trials."""
    z = 1.959964
    middle = (count + z * z / 2) / (total + z * z)
    half = z * math.sqrt(count * (total - count) / total + z * z / 4) / (total + z * z)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def _counted(what: str, numbers: Sequence[int]) -> str:
    """How many there are and which, as in ``2 (seeds 3, 5)``."""
    which = f" ({what} {', '.join(map(str, numbers))})" if numbers else ""
    return f"{len(numbers)}{which}"
