"""What became of runs, as plain data, and what the claims of a task read in it."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from ..stack.lines import line
from .statistics import Summary, compare, summarise

if TYPE_CHECKING:
    from .base import Metric

ALPHA = 0.05
"""A comparison with a p below this is taken to be no accident."""
NEAR = 0.01
"""Near the optimum: within this share of it."""
DROPPED = "dropped"
"""Of a run that a search ended at a rung, since others were better there."""
DASH = "\N{EN DASH}"
"""Where a table has no number."""
STATES = ("finished", "diverged", "started", "damaged", "missing", DROPPED)
FINAL, FIRST, REACHED = "final_", "first_recorded_", "at_rung_"
"""What columns of metrics begin with in files: at the end, at first, at the rung of a search."""
PROVENANCE = ("commit", "source", "device", "torch")
"""Columns that say with what code and where."""
OUTCOME = ("state", "epoch", "diverged_step", "seconds", *PROVENANCE)
"""Columns that say what became of a run."""
FIELDS_TAKEN = ("identity", "task", "version", "line", *OUTCOME, FINAL, FIRST, REACHED)
"""What no field of a task's own can be called, since files have it for something else."""
MEASURES_TAKEN = ("identity", *PROVENANCE, FINAL)
"""Likewise what finished models are measured by."""


def is_taken(name: str, taken: Sequence[str]) -> bool:
    """Whether a name is one of these, or begins with one that ends in an underscore."""
    return any(name == x or (x.endswith("_") and name.startswith(x)) for x in taken)


@dataclass(frozen=True)
class Measured:
    """What was found out about a finished model after its training, and with what."""

    values: Mapping[str, float]
    """By the name of a metric; what has no finite number is left out."""
    commit: str = ""
    source: str = ""
    device: str = ""
    torch: str = ""


@dataclass(frozen=True)
class Row:
    """One run and what became of it."""

    identity: str
    config: Mapping[str, Any]
    """The fields of its configuration and its task."""
    state: str
    """One of ``STATES``."""
    epoch: int = 0
    """Epochs it has done."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """At the end; empty unless it is finished."""
    diverged_step: int | None = None
    seconds: float = 0.0
    """Of training; runs of a stack share the time of all."""
    commit: str = ""
    source: str = ""
    """A hash of the code."""
    device: str = ""
    torch: str = ""
    first: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """The first value of each metric, of a finished run that has several."""
    reached: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """At the rung of a search, of a run that was dropped there."""
    measured: Measured | None = field(default=None, kw_only=True)
    """Of the model that these metrics are of; None if it was not measured."""


@dataclass(frozen=True)
class Results:
    """What is known of the runs of a recipe."""

    recipe: str
    rows: tuple[Row, ...] = ()
    curves: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)
    """Values after epochs, by identity and metric; those that are not known are left out."""

    def where(self, **fields: Any) -> list[Row]:
        """Rows with these values in their configuration."""
        return [row for row in self.rows if all(row.config.get(k) == v for k, v in fields.items())]

    def part(self, **fields: Any) -> "Results":
        """The results of those rows."""
        return replace(self, rows=tuple(self.where(**fields)))

    def settings(self, fields: Sequence[str]) -> list[dict[str, Any]]:
        """The combinations of values of these fields that occur, in order."""
        values = {tuple(row.config.get(name) for name in fields) for row in self.rows}
        return [dict(zip(fields, x, strict=True)) for x in sorted(values, key=_order)]

    def estimators(self) -> list[str]:
        """Their keys, in the order of the rows."""
        return list(dict.fromkeys(row.config["estimator"] for row in self.rows))

    def counts(self) -> dict[str, int]:
        """How many runs are in each state: all are named, dropped only where some are."""
        states = Counter(row.state for row in self.rows)
        named = (state for state in STATES if state != DROPPED or states[state])
        return {state: states[state] for state in named}

    def failed(self, metric: "Metric") -> list[Row]:
        """Finished runs that failed to train, by this metric and as far as that is known."""
        firsts = [(row, self.first(row, metric.name)) for row in self.rows]
        return [
            row
            for row, first in firsts
            if first is not None
            and metric.failed(first, row.metrics.get(metric.name, math.nan), row.config)
        ]

    def first(self, row: Row, metric: str) -> float | None:
        """The first of several values of a metric, if it is known.

        Results that were written without it have it in their curves, if they have any.
        """
        curve = self.curve(row, metric)
        return row.first.get(metric, curve[0][1] if len(curve) > 1 else None)

    def curve(self, row: Row, metric: str) -> list[tuple[int, float]]:
        """Epochs and values of a finished run, at the epochs that are stored; empty for others."""
        if row.state != "finished":
            return []
        return sorted(self.curves.get((row.identity, metric), {}).items())


def _order(values: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
    """Sorts numbers among numbers, texts among texts, and fields that a run lacks first."""
    kinds = [("number" if isinstance(x, int | float) else type(x).__name__) for x in values]
    return tuple(("", 0) if x is None else (kind, x) for kind, x in zip(kinds, values, strict=True))


class Vote(NamedTuple):
    """One comparison that a claim is made of."""

    sign: int
    """1 if it comes out as claimed, -1 if the other way, 0 if it cannot be made."""
    p: float = 0.0
    """The chance of such a difference where there is none."""


class Judgement(NamedTuple):
    """All comparisons of a claim, and their numbers in words."""

    votes: Sequence[Vote]
    evidence: str


def lower(first: Summary, second: Summary) -> Vote:
    """Whether the first mean is the lower one; an infinite one is the higher one for certain."""
    difference = first.mean - second.mean
    if math.isnan(difference):
        return Vote(0)
    p = compare(first, second).p if math.isfinite(difference) else 0.0
    return Vote((difference < 0) - (difference > 0), 0.0 if math.isnan(p) else p)


def lower_in_pairs(first: Mapping[int, float], second: Mapping[int, float]) -> Vote:
    """Whether the first has the lower mean, where both have numbers of the same seeds and what a
    seed decides is much of their spread: by the mean of the differences of each seed."""
    differences = [first[seed] - second[seed] for seed in first if seed in second]
    return lower(summarise(differences), Summary(len(differences), 0.0, 0.0))


def best(
    results: Results,
    metric: str,
    first: str,
    others: Iterable[str],
    published: Mapping[str, Summary],
    *,
    lowest: bool = True,
) -> Judgement:
    """Whether a line has the best mean; the p of the published numbers stands beside ours.

    Args:
        results: All runs.
        metric: What is compared.
        first: The key of the line.
        others: The keys of those that it should be better than.
        published: Of all of them.
        lowest: Whether the lowest mean is the best, or the highest.
    """
    ours = final(results.where(estimator=first), metric)
    votes, texts = [], []
    for key in others:
        theirs = final(results.where(estimator=key), metric)
        votes.append(lower(ours, theirs) if lowest else lower(theirs, ours))
        if theirs.count:
            p = compare(ours, theirs).chance or "unknown"
            paper = compare(published[first], published[key]).chance or "unknown"
            texts.append(f"{line(key).label} {theirs.mean:.2f} (p {p}; in the paper {paper})")
        else:
            texts.append(f"{line(key).label}, of which no run is finished")
    mean = f"{ours.mean:.2f}" if ours.count else "without a finished run"
    text = f"{line(first).label} {mean} against {', '.join(texts) or 'nothing'}"
    return Judgement(votes or [Vote(0)], text)


def plain(as_claimed: bool) -> Vote:
    """A comparison of a mean with a bound, which has no p."""
    return Vote(1 if as_claimed else -1)


def describe(
    setting: Mapping[str, Any], words: Mapping[str, Callable[[Any], str]] | None = None
) -> str:
    """A few fields of a configuration; ``words`` say how those of a task read."""
    texts = []
    for name, value in setting.items():
        if words and name in words:
            texts.append(words[name](value))
        elif name == "tau":
            texts.append(f"τ = {value:g}")
        elif name == "line":
            # of an estimator of a user, whose file has changed
            texts.append(f"source {json.loads(value)['source']}" if value else "of the library")
        else:
            number = f"{value:g}" if isinstance(value, float) else str(value)
            texts.append(f"{name.replace('_', ' ')} {number}")
    # a field may have nothing to say at its default
    return ", ".join(filter(None, texts))


def decimal(value: float, places: int, sign: str = "") -> str:
    """A number with so many decimals, and no minus before what rounds to 0."""
    return f"{round(value, places) + 0.0:{sign}.{places}f}"


def with_half(value: float, half: float, places: int, sign: str = "") -> str:
    """A mean with half its interval, as far as they are known."""
    if not math.isfinite(value):
        return DASH
    text = decimal(value, places, sign)
    return f"{text} ± {decimal(half, places)}" if math.isfinite(half) else text


def percent(share: float) -> str:
    """A share in percent."""
    return decimal(100 * share, 2) + " %"


def final(rows: Iterable[Row], metric: str) -> Summary:
    """A metric at the end of those runs that are finished."""
    return summarise([row.metrics[metric] for row in rows if metric in row.metrics])


def average(results: Results, rows: Iterable[Row], metric: str) -> Summary:
    """A metric averaged over all epochs of a run, also those that are not stored."""
    curves = [results.curve(row, metric) for row in rows]
    return summarise([fmean(every_epoch(curve)) for curve in curves if curve])


def every_epoch(curve: Sequence[tuple[int, float]]) -> list[float]:
    """The values at all epochs from the first that is stored, along straight lines between them."""
    values = [curve[0][1]]
    for (before, start), (epoch, end) in pairwise(curve):
        count = epoch - before
        values += [start + (end - start) * n / count for n in range(1, count + 1)]
    return values


def arrival(results: Results, row: Row, metric: "Metric") -> float | None:
    """Epochs until a metric is near its optimum and stays there; None if it never does.

    Along straight lines between the epochs that are stored.
    """
    assert metric.optimum is not None
    sign = 1 if metric.direction == "down" else -1
    best = metric.optimum(row.config)
    level = sign * best + NEAR * abs(best)
    curve = [(epoch, sign * value) for epoch, value in results.curve(row, metric.name)]
    outside = [number for number, (_, value) in enumerate(curve) if value > level]
    first = outside[-1] + 1 if outside else 0
    if first >= len(curve):
        return None
    epoch, value = curve[first]
    if not first:
        return float(epoch)
    before, above = curve[first - 1]
    return before + (epoch - before) * (above - level) / (above - value)
