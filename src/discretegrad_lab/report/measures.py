"""The table of what was measured of finished models after their training."""

import math
from collections.abc import Iterator, Sequence

from ..tasks.base import Metric
from ..tasks.evidence import Measured, Results, Row, with_half
from ..tasks.statistics import summarise
from .document import TextTable
from .reading import Reading

_CAPTION = "Measured after training, mean ± half the 95 % interval over models."


def measured_tables(reading: Reading, results: Results) -> Iterator[TextTable]:
    """A table for each combination of panels that has models which were measured."""
    for panel in results.settings(reading.panels):
        part = results.part(**panel)
        measured = [row.measured for row in part.rows if row.measured is not None]
        if not measured:
            continue
        known = {metric.name: metric for metric in reading.measures}
        names = dict.fromkeys(name for x in measured for name in x.values)
        for name in reading.unshown:
            names.pop(name, None)
        metrics = [known.get(name) or Metric(name, name.replace("_", " ")) for name in names]
        metrics.sort(key=lambda metric: [*known, *names].index(metric.name))
        where = reading.describe(panel) if panel else ""
        yield TextTable(
            ", ".join(filter(None, ("Finished models", where))),
            " ".join(filter(None, (_CAPTION, reading.measures_note, reading.note))),
            ("", *(metric.label for metric in metrics), "models"),
            tuple(_lines(reading, part, metrics)),
            (_provenance(measured),),
        )


def _lines(
    reading: Reading, results: Results, metrics: Sequence[Metric]
) -> Iterator[tuple[str, ...]]:
    """One for each estimator and setting."""
    for setting in results.settings((*reading.rows, *reading.variants)):
        for estimator in results.estimators():
            rows = [row for row in results.where(estimator=estimator, **setting) if row.measured]
            if rows:
                cells = (_cell(rows, metric) for metric in metrics)
                yield reading.label(estimator, setting), *cells, str(len(rows))


def _cell(rows: Sequence[Row], metric: Metric) -> str:
    values = [row.measured.values.get(metric.name) for row in rows if row.measured]
    summary = summarise([x for x in values if x is not None and math.isfinite(x)])
    return with_half(summary.mean, summary.half, metric.digits)


def _provenance(measured: Sequence[Measured]) -> str:
    about = dict.fromkeys((x.device, x.torch, x.commit) for x in measured)
    texts = [f"{device}, torch {torch}, commit {commit}" for device, torch, commit in about]
    return f"Measured on {'; '.join(texts)}."
