"""Tables of a search: the best candidates beside those of a paper, and who came how far."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..tasks.base import Metric
from ..tasks.chosen import Candidate, best_candidate, candidates
from ..tasks.evidence import DASH, DROPPED, Results, decimal
from ..tasks.halving import Halving
from .document import TextTable
from .reading import TUNED, Reading


def search_tables(reading: Reading, halving: Halving, results: Results) -> Iterator[TextTable]:
    """The best at the end by each metric, and how many candidates came to which rung."""
    fields = [x for x in (*reading.panels, *reading.rows) if x not in halving.fields]
    for setting in results.settings(fields):
        part, where = results.part(**setting), reading.describe(setting)
        by_key = {
            key: candidates(halving.fields, part.where(estimator=key)) for key in part.estimators()
        }
        for table in (_best, _rungs):
            made = table(reading, halving, by_key)
            yield replace(made, title=", ".join(filter(None, (made.title, where))))


def _best(
    reading: Reading, halving: Halving, by_key: Mapping[str, Sequence[Candidate]]
) -> TextTable:
    rows = []
    for key, own in by_key.items():
        published = halving.published.get(key)
        for metric in reading.metrics:
            best = best_candidate(own, metric)
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


def _heading(halving: Halving) -> str:
    return ", ".join(TUNED.get(name, name.replace("_", " ")) for name in halving.fields)


def _metric_label(reading: Reading, halving: Halving) -> str:
    labels = {metric.name: metric.label for metric in reading.metrics}
    return labels.get(halving.metric, halving.metric.replace("_", " "))


def _words(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in setting.values())


def _number(candidate: Candidate | None, metric: Metric) -> str:
    mean = math.nan if candidate is None else candidate.mean(metric)
    return decimal(mean, metric.digits) if math.isfinite(mean) else DASH


def _of_paper(setting: Mapping[str, Any] | None, own: Sequence[Candidate], metric: Metric) -> str:
    """What the paper's setting has at the end, or what became of it."""
    if setting is None:
        return DASH
    same = [x for x in own if all(x.setting.get(k) == v for k, v in setting.items())]
    if not same:
        return "not in the grid"
    if any(row.state == DROPPED for row in same[0].rows):
        return f"dropped after epoch {same[0].epoch}"
    return _number(same[0], metric)


def _rungs(
    reading: Reading, halving: Halving, by_key: Mapping[str, Sequence[Candidate]]
) -> TextTable:
    rows = []
    for key, own in by_key.items():
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
