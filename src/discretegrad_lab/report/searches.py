"""Tables of a search: the best candidates beside those of a paper, and who came how far."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from ..tasks.base import Metric
from ..tasks.evidence import DASH, DROPPED, Results, Row, decimal
from ..tasks.halving import Halving
from .document import TextTable
from .reading import TUNED, Reading


class _Candidate(NamedTuple):
    """Runs that differ in their seeds only."""

    setting: Mapping[str, Any]
    """The values of the fields that are searched."""
    rows: Sequence[Row]

    @property
    def epoch(self) -> int:
        """How far all of its runs have come."""
        return min(row.epoch for row in self.rows)

    def mean(self, metric: Metric) -> float:
        """At the end; NaN unless all of its runs are finished."""
        ends = [row.metrics.get(metric.name, math.nan) for row in self.rows]
        return fmean(ends)


def search_tables(reading: Reading, halving: Halving, results: Results) -> Iterator[TextTable]:
    """The best at the end by each metric, and how many candidates came to which rung."""
    fields = [x for x in (*reading.panels, *reading.rows) if x not in halving.fields]
    for setting in results.settings(fields):
        part, where = results.part(**setting), reading.describe(setting)
        candidates = {
            key: _candidates(halving, part.where(estimator=key)) for key in part.estimators()
        }
        for table in (_best, _rungs):
            made = table(reading, halving, candidates)
            yield replace(made, title=", ".join(filter(None, (made.title, where))))


def _candidates(halving: Halving, rows: Sequence[Row]) -> list[_Candidate]:
    by_values: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        values = tuple(row.config.get(name) for name in halving.fields)
        by_values.setdefault(values, []).append(row)
    return [
        _Candidate(dict(zip(halving.fields, values, strict=True)), own)
        for values, own in by_values.items()
    ]


def _best(
    reading: Reading, halving: Halving, candidates: Mapping[str, Sequence[_Candidate]]
) -> TextTable:
    rows = []
    for key, own in candidates.items():
        published = halving.published.get(key)
        for metric in reading.metrics:
            best = _best_of(own, metric)
            rows.append(
                (
                    reading.look(key).label,
                    metric.label,
                    *(_number(best, other) for other in reading.metrics),
                    DASH if best is None else _words(best.setting),
                    DASH if published is None else _words(published),
                    _of_paper(published, own, metric),
                )
            )
    caption = (
        "Of the candidates that trained to the end, the one with the best mean over its seeds, by "
        "each metric, and beside it the setting that the paper found with what that has here. "
        f"Rungs were decided by the {_metric_label(reading, halving)}. "
        "Seeds of the search appear in no other table."
    )
    headings = (
        "",
        "best by",
        *(metric.label for metric in reading.metrics),
        _heading(halving),
        "in the paper",
        "that one here",
    )
    return TextTable(
        "Best settings", " ".join(filter(None, (caption, reading.note))), headings, tuple(rows)
    )


def _best_of(candidates: Sequence[_Candidate], metric: Metric) -> _Candidate | None:
    sign = 1 if metric.direction == "down" else -1
    ended = [x for x in candidates if math.isfinite(x.mean(metric))]
    return min(ended, key=lambda x: sign * x.mean(metric), default=None)


def best_rows(halving: Halving, results: Results, estimator: str, metric: Metric) -> Sequence[Row]:
    """The runs of the candidate that ends best by a metric; none if none has trained to the end."""
    best = _best_of(_candidates(halving, results.where(estimator=estimator)), metric)
    return () if best is None else best.rows


def _heading(halving: Halving) -> str:
    return ", ".join(TUNED.get(name, name.replace("_", " ")) for name in halving.fields)


def _metric_label(reading: Reading, halving: Halving) -> str:
    labels = {metric.name: metric.label for metric in reading.metrics}
    return labels.get(halving.metric, halving.metric.replace("_", " "))


def _words(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in setting.values())


def _number(candidate: _Candidate | None, metric: Metric) -> str:
    mean = math.nan if candidate is None else candidate.mean(metric)
    return decimal(mean, metric.digits) if math.isfinite(mean) else DASH


def _of_paper(
    setting: Mapping[str, Any] | None, candidates: Sequence[_Candidate], metric: Metric
) -> str:
    """What the paper's setting has at the end, or what became of it."""
    if setting is None:
        return DASH
    same = [x for x in candidates if all(x.setting.get(k) == v for k, v in setting.items())]
    if not same:
        return "not in the grid"
    if any(row.state == DROPPED for row in same[0].rows):
        return f"dropped after epoch {same[0].epoch}"
    return _number(same[0], metric)


def _rungs(
    reading: Reading, halving: Halving, candidates: Mapping[str, Sequence[_Candidate]]
) -> TextTable:
    rows = []
    for key, own in candidates.items():
        reached = [sum(x.epoch >= rung.epoch for x in own) for rung in halving.rungs]
        dropped = [
            sum(x.epoch == rung.epoch and x.rows[0].state == DROPPED for x in own)
            for rung in halving.rungs
        ]
        ended = sum(all(row.state in ("finished", "diverged") for row in x.rows) for x in own)
        diverged = sum(any(row.diverged_step is not None for row in x.rows) for x in own)
        pairs = [str(x) for pair in zip(reached, dropped, strict=True) for x in pair]
        label = reading.look(key).label
        rows.append((label, str(len(own)), *pairs, str(ended), str(diverged)))
    pairs = [
        text
        for rung in halving.rungs
        for text in (f"reached epoch {rung.epoch}", f"dropped at {rung.epoch}")
    ]
    shares = ", ".join(f"{100 * x.share:g} % after epoch {x.epoch}" for x in halving.rungs)
    caption = (
        f"Candidates of each estimator, with all their seeds. Of those at a rung these go on: "
        f"{shares}, rounded up; where none was dropped yet, a rung is not decided."
    )
    headings = ("", "candidates", *pairs, "at the end", "diverged")
    return TextTable("How far candidates came", caption, headings, tuple(rows))
