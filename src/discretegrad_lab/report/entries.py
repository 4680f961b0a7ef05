"""The numbers behind the tables: one entry for each metric, setting and estimator."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..tasks.base import Cell, Metric
from ..tasks.evidence import DASH, DROPPED, STATES, Results, Row, arrival, final
from ..tasks.statistics import Comparison, Summary, compare, summarise
from .document import printable
from .reading import TUNED, Look, Reading
from .results import significant, to_csv


@dataclass(frozen=True)
class Entry:
    """One estimator in one setting."""

    metric: Metric
    setting: Mapping[str, Any]
    estimator: str
    states: Mapping[str, int]
    """How many runs are in each state."""
    failed: int | None
    """How many of the finished ones failed to train, by the first metric of the report; None if
    that is not known of any."""
    ours: Summary
    median: float
    """Of the finished runs: what a few that failed do not move. NaN without any."""
    cell: Cell | None
    """The published number."""
    optimum: float
    """NaN where it is not known."""
    steps: Summary
    """Steps (or epochs) until the metric is near the optimum, over the runs that come there."""
    tuned: Mapping[str, str]
    """The fields of ``TUNED`` in words."""
    unit: str
    """What ``steps`` counts: "steps", or "epochs" if the configuration has no steps."""

    @property
    def planned(self) -> int:
        """How many runs there should be."""
        return sum(self.states.values())

    @property
    def comparison(self) -> Comparison:
        """Ours less the published one."""
        return compare(self.ours, self.cell.summary if self.cell else Summary(0))

    @property
    def verdict(self) -> str:
        """Whether the difference lies within its 95 % interval around 0."""
        if self.cell is None:
            return ""
        if self.ours.count < 2:
            return "too few runs" if self.ours.count else "no runs"
        return {0: "within", 1: "above", -1: "below"}[self.comparison.sign]


def entries(reading: Reading, results: Results) -> list[Entry]:
    """All cells of the tables of a reading."""
    keys = results.estimators()
    settings = results.settings((*reading.panels, *reading.rows, *reading.variants))
    parts = [(setting, results.part(**setting)) for setting in settings]
    cells = [(setting, part, key) for setting, part in parts for key in keys]
    if reading.variants:
        # those of an estimator side by side, and none that nobody trains
        cells = [(x, part, key) for x, part, key in cells if part.where(estimator=key)]
        cells.sort(key=lambda cell: keys.index(cell[2]))
    return [
        _entry(reading, part, metric, setting, estimator)
        for metric in reading.metrics
        for setting, part, estimator in cells
    ]


def _entry(
    reading: Reading, results: Results, metric: Metric, setting: Mapping[str, Any], estimator: str
) -> Entry:
    own, by = results.part(estimator=estimator), reading.metrics[0]
    rows = list(own.rows)
    table = reading.published.get(metric.name)
    optimum, steps = math.nan, Summary(0)
    if rows and metric.optimum is not None:
        optimum = metric.optimum(rows[0].config)
        epochs = [(arrival(results, row, metric), row) for row in rows]
        steps = summarise([n * steps_per_epoch(row) for n, row in epochs if n is not None])
    return Entry(
        metric,
        setting,
        estimator,
        own.counts(),
        len(own.failed(by)) if any(own.first(row, by.name) is not None for row in rows) else None,
        final(rows, metric.name),
        median(
            [row.metrics[metric.name] for row in rows if metric.name in row.metrics] or [math.nan]
        ),
        table.cells.get(estimator) if table else None,
        optimum,
        steps,
        {name: _words(name, reading.look(estimator), rows) for name in TUNED},
        unit_of(results.rows),
    )


def steps_per_epoch(row: Row) -> float:
    """What turns epochs into steps; 1 if the configuration does not say it."""
    return float(row.config.get("steps_per_epoch") or 1)


def unit_of(rows: Sequence[Row]) -> str:
    """What training is counted in."""
    return "steps" if rows and rows[0].config.get("steps_per_epoch") else "epochs"


def _words(field: str, look: Look, rows: list[Row]) -> str:
    """The values of a field in the runs of an entry."""
    if not rows or (field == "tau" and not look.has_tau):
        return DASH
    values = sorted({row.config[field] for row in rows})
    texts = [x if isinstance(x, str) else f"{x:g}" for x in values]
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def entries_csv(cells: list[Entry]) -> str:
    """The entries as comma-separated values."""
    lines = []
    dropped = any(DROPPED in entry.states for entry in cells)
    states = [state for state in STATES if state != DROPPED or dropped]
    for entry in cells:
        cell, versus = entry.cell, entry.comparison
        lines.append(
            {
                "metric": entry.metric.name,
                **{
                    name: "" if value is None else str(value)
                    for name, value in entry.setting.items()
                },
                "estimator": entry.estimator,
                **{
                    name: "" if text == DASH else text
                    for name, text in entry.tuned.items()
                    if name not in entry.setting
                },
                "published": significant(cell.value if cell else None),
                "published_deviation": significant(cell.deviation if cell else None),
                "published_runs": str(cell.runs) if cell else "",
                "ours": significant(entry.ours.mean),
                "median": significant(entry.median),
                "half_interval": _short(entry.ours.half),
                "deviation": _short(entry.ours.deviation),
                "runs": str(entry.ours.count),
                "difference": _short(versus.difference),
                "joint_half_interval": _short(versus.half),
                "p": versus.chance,
                "verdict": entry.verdict,
                "optimum": significant(entry.optimum),
                "steps_to_near": _short(entry.steps.mean, 4),
                "runs_near": str(entry.steps.count),
                **{state: str(entry.states.get(state, 0)) for state in states},
                "failed": "" if entry.failed is None else str(entry.failed),
            }
        )
    heading = list(lines[0]) if lines else ["metric", "estimator"]
    return printable(to_csv([heading, *(list(cells.values()) for cells in lines)]))


def _short(value: float, digits: int = 3) -> str:
    return format(value, f".{digits}g") if math.isfinite(value) else ""
