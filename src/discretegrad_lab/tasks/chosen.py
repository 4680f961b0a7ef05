"""The settings that searches found to be best, as a table in the folder of their task.

``discretegrad choose`` writes it from the results of a search; the recipes that train with these
settings read it.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..stack.config import Run
from .base import Metric, Recipe, field_values, read_rows
from .evidence import DROPPED, Results, Row, describe

# states of runs that a search is done with
_ENDED = ("finished", "diverged", DROPPED)
# between the metrics that a candidate is the best by
_SEPARATOR = " "


class NotChosen(ValueError):
    """A recipe trains with what a search finds, and that was not chosen yet."""


class Candidate(NamedTuple):
    """Runs of a search that differ in their seeds only."""

    setting: Mapping[str, Any]
    """The values of the fields that are searched."""
    rows: Sequence[Row]

    @property
    def epoch(self) -> int:
        """How far all of its runs have come."""
        return min(row.epoch for row in self.rows)

    def mean(self, metric: Metric) -> float:
        """At the end; NaN unless all of its runs are finished."""
        return fmean(row.metrics.get(metric.name, math.nan) for row in self.rows)


def candidates(fields: Sequence[str], rows: Sequence[Row]) -> list[Candidate]:
    """The candidates of one estimator in one problem, in the order of the rows."""
    by_values: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_values.setdefault(tuple(row.config.get(name) for name in fields), []).append(row)
    return [
        Candidate(dict(zip(fields, values, strict=True)), own) for values, own in by_values.items()
    ]


def best_candidate(rivals: Sequence[Candidate], metric: Metric) -> Candidate | None:
    """The one with the best mean at the end, if there is any.

    Of equals it is the one whose temperature is nearest to 1, then the first.
    """
    sign = 1 if metric.direction == "down" else -1
    ended = [x for x in rivals if math.isfinite(x.mean(metric))]

    def order(candidate: Candidate) -> tuple[float, float]:
        return sign * candidate.mean(metric), abs(candidate.rows[0].config.get("tau", 1.0) - 1)

    return min(ended, key=order, default=None)


@dataclass(frozen=True)
class Choice:
    """What the searches of a task choose, and the table that keeps it.

    The table has a line for each candidate that trained to its end: its problem, estimator and
    setting, its mean by each metric, over how many runs, and by which metrics it is the best.
    """

    config: type[Run]
    """Of the runs."""
    path: Path
    """Of the table."""
    where: tuple[str, ...]
    """Fields of a run that make a problem: each has settings of its own."""
    fields: tuple[str, ...]
    """Fields that are searched: their values make a candidate."""
    by: tuple[str, ...]
    """Names of metrics: a candidate is chosen by each of them."""

    def setting(self, estimator: str, by: str, *where: Any) -> Mapping[str, Any] | None:
        """What was chosen for an estimator by a metric; None if nothing was.

        Args:
            estimator: Its key.
            by: The name of the metric.
            where: The values of the fields ``where``.
        """
        return _settings(self).get((*where, estimator, by))

    def required(self, search: str, estimator: str, by: str, *where: Any) -> Mapping[str, Any]:
        """The same, of the recipe ``search``.

        Raises:
            NotChosen: If nothing was chosen yet.
        """
        setting = self.setting(estimator, by, *where)
        if setting is None:
            raise NotChosen(
                f"expected settings of {estimator} that the search {search} found best by {by}, "
                "got none: it was not trained and chosen from yet, or all of its candidates "
                f"diverged; give `discretegrad run {search}`, `discretegrad report {search}` and "
                f"`discretegrad choose {search}` first"
            )
        return setting

    def lines(self, search: Recipe, results: Results) -> dict[tuple[str, ...], list[str]]:
        """What the table should say of a search, by problem and estimator.

        Args:
            search: Some of its estimators may not have been searched.
            results: Of its runs.

        Raises:
            ValueError: If nothing of the search is there, or something of it is not at its end.
        """
        rows = {row.identity: row for row in results.rows if row.state != "missing"}
        problems: dict[tuple[str, ...], list[Run]] = {}
        for run in search.runs(estimators=list(search.choosable())):
            key = (*(str(getattr(run, name)) for name in self.where), run.estimator)
            problems.setdefault(key, []).append(run)
        metrics = [search.task.metric(name) for name in self.by]
        lines: dict[tuple[str, ...], list[str]] = {}
        for problem, runs in problems.items():
            own = [rows[run.identity] for run in runs if run.identity in rows]
            ended = sum(row.state in _ENDED for row in own)
            if own and ended < len(runs):
                raise ValueError(
                    f"expected the search {search.name} of {self.describe(search, problem)} at its "
                    f"end, got {ended} of its {len(runs)} runs there; give `discretegrad run "
                    f"{search.name}` and `discretegrad report {search.name}`, then choose again"
                )
            if own:
                lines[problem] = self._lines(problem, candidates(self.fields, own), metrics)
        if not lines:
            raise ValueError(
                f"expected results of the search {search.name}, got none; give `discretegrad run "
                f"{search.name}` and `discretegrad report {search.name}` first"
            )
        return lines

    def describe(self, search: Recipe, problem: Sequence[str]) -> str:
        """An estimator with its problem, in words."""
        *where, key = problem
        values = {
            name: field_values(self.config, name, [value])[0]
            for name, value in zip(self.where, where, strict=True)
        }
        return f"{key}, {describe(values, search.task.words)}"

    def is_chosen(self, lines: Sequence[str]) -> bool:
        """Whether one of the candidates that an estimator has in a problem is the best."""
        place = self._columns.index("chosen_by")
        return any(line.split(",")[place] for line in lines)

    def write(self, lines: Mapping[tuple[str, ...], Sequence[str]]) -> None:
        """Put lines into the table; what it says of other problems and estimators stays."""
        whole = {**self._present(), **lines}
        text = "\n".join([",".join(self._columns), *(x for own in whole.values() for x in own)])
        part = self.path.with_suffix(".part")
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, self.path)
        _settings.cache_clear()

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*self.where, "estimator", *self.fields, *self.by, "runs", "chosen_by", "source")

    def _present(self) -> dict[tuple[str, ...], list[str]]:
        """The lines of the table by problem and estimator."""
        lines: dict[tuple[str, ...], list[str]] = {}
        for row in read_rows(self.path) if self.path.exists() else ():
            problem = tuple(row[name] for name in (*self.where, "estimator"))
            lines.setdefault(problem, []).append(",".join(row.values()))
        return lines

    def _lines(
        self, problem: tuple[str, ...], rivals: Sequence[Candidate], metrics: Sequence[Metric]
    ) -> list[str]:
        """The lines of the candidates that an estimator has in a problem."""
        bests = {metric.name: best_candidate(rivals, metric) for metric in metrics}
        commits = sorted({row.commit for candidate in rivals for row in candidate.rows})
        lines = []
        for candidate in rivals:
            if all(row.state != DROPPED for row in candidate.rows):
                means = [candidate.mean(metric) for metric in metrics]
                chosen_by = [name for name, x in bests.items() if x is candidate]
                cells = (
                    *problem,
                    *map(str, candidate.setting.values()),
                    *(format(x, ".6g") if math.isfinite(x) else "diverged" for x in means),
                    str(len(candidate.rows)),
                    _SEPARATOR.join(chosen_by),
                    f"commit {' and '.join(commits)}",
                )
                lines.append(",".join(cells))
        return lines


@cache
def _settings(choice: Choice) -> dict[tuple[Any, ...], dict[str, Any]]:
    """All that was chosen, by problem, estimator and metric."""

    def values(row: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
        return {name: field_values(choice.config, name, [row[name]])[0] for name in names}

    return {
        (*values(row, choice.where).values(), row["estimator"], by): values(row, choice.fields)
        for row in read_rows(choice.path)
        for by in row["chosen_by"].split(_SEPARATOR)
        if by
    }
