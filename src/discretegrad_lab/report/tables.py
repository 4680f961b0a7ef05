"""Tables of a report: beside published numbers, with a row or with a column for each estimator."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..tasks.base import Metric
from ..tasks.evidence import DASH, DROPPED, NEAR, with_half
from ..tasks.statistics import compare
from .document import TextTable
from .entries import Entry
from .reading import TUNED, Reading

_MEANINGS = {
    "population": "the root of the mean squared deviation of its runs",
    "error": "the standard error of the mean of its runs",
}
"""What the number behind a published ± may be if it is no standard deviation."""


def tables(reading: Reading, cells: Sequence[Entry]) -> Iterator[TextTable]:
    """A table for each metric and combination of panels."""
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in cells:
        panel = tuple(entry.setting[name] for name in reading.panels)
        groups.setdefault((entry.metric.name, *panel), []).append(entry)
    if reading.overview:
        yield from _overviews(reading, cells)
    for (name, *values), inside in groups.items():
        metric = inside[0].metric
        if metric.minor:
            continue
        parts = [metric.label] if len(reading.metrics) > 1 else []
        parts += (
            [reading.describe(dict(zip(reading.panels, values, strict=True)))] if values else []
        )
        title = ", ".join(parts) or metric.label
        if name in reading.published:
            yield _published(reading, inside)
        elif reading.rows:
            yield _wide(reading, title, inside)
        else:
            yield _tall(reading, title, inside)


def _overviews(reading: Reading, cells: Sequence[Entry]) -> Iterator[TextTable]:
    """For each combination of panels, the estimators as rows and the metrics as columns."""
    panels: dict[tuple[Any, ...], dict[str, list[Entry]]] = {}
    for entry in cells:
        panel = tuple(entry.setting[name] for name in reading.panels)
        panels.setdefault(panel, {}).setdefault(entry.estimator, []).append(entry)
    for panel, lines in panels.items():
        rows = [
            (
                reading.look(key).label,
                *(with_half(x.ours.mean, x.ours.half, x.metric.digits) for x in inside),
                f"{inside[0].ours.count} of {inside[0].planned}",
            )
            for key, inside in lines.items()
        ]
        headings = ("", *(metric.label for metric in reading.metrics), "runs")
        setting = reading.describe(dict(zip(reading.panels, panel, strict=True)))
        caption = " ".join(
            filter(None, ("At the end, mean ± half the 95 % interval.", reading.note))
        )
        yield TextTable(
            f"All metrics, {setting}".removesuffix(", "), caption, headings, tuple(rows)
        )


def _published(reading: Reading, cells: Sequence[Entry]) -> TextTable:
    metric = cells[0].metric
    table = reading.published[metric.name]
    rows = []
    for entry in cells:
        versus, cell = entry.comparison, entry.cell
        rows.append(
            (
                reading.look(entry.estimator).label,
                f"{cell.value:.{metric.digits}f} ± {cell.spread:.{metric.digits}f}"
                if cell
                else DASH,
                with_half(entry.ours.mean, entry.ours.half, metric.digits),
                with_half(entry.median, math.nan, metric.digits),
                f"{entry.ours.count} of {entry.planned}",
                _failed(entry),
                with_half(versus.difference, versus.half, metric.digits, "+"),
                versus.chance or DASH,
                entry.verdict or DASH,
                *entry.tuned.values(),
            )
        )
    judged = [entry.verdict for entry in cells if entry.verdict in ("within", "above", "below")]
    notes = [
        f"{judged.count('within')} of {len(judged)} within the joint 95 % interval; 1 in 20 lies "
        "outside by chance.",
        *_lost(reading, cells),
    ]
    notes += [
        f"The published number of {reading.look(estimator).label} is in doubt: {text}."
        for estimator, text in table.doubts.items()
    ]
    notes += [
        f"The published ± of {reading.look(estimator).label} is {_MEANINGS[cell.meaning]}: their "
        f"standard deviation is {cell.deviation:.{metric.digits}f}."
        for estimator, cell in table.cells.items()
        if cell.meaning in _MEANINGS
    ]
    notes += [table.note] if table.note else []
    counts = " or ".join(map(str, sorted({cell.runs for cell in table.cells.values()})))
    caption = (
        f"Published: Table {table.number} (Section {table.section}), column {table.column}, mean ± "
        f"standard deviation over {counts} runs. Ours: mean ± half the 95 % interval. "
        "Difference: ± half the joint 95 % interval; p by Welch's t-test."
    )
    caption = " ".join(filter(None, (caption, reading.note)))
    ours = "ours", "median", "runs", "failed"
    headings = ("", "published", *ours, "difference", "p", "verdict", *TUNED.values())
    return TextTable(
        f"{metric.label}, {table.column}", caption, headings, tuple(rows), tuple(notes)
    )


def _tall(reading: Reading, title: str, cells: Sequence[Entry]) -> TextTable:
    """The estimators are the rows."""
    metric = cells[0].metric
    known = metric.optimum is not None
    side, digits = _side(metric), metric.digits
    references = [entry for key in reading.against for entry in cells if entry.estimator == key]
    rows = []
    for entry in cells:
        values = [
            with_half(entry.ours.mean, entry.ours.half, digits),
            with_half(entry.median, math.nan, digits),
        ]
        if known:
            arrived = f"{entry.steps.mean:,.0f}" if entry.steps.count else DASH
            if 0 < entry.steps.count < entry.ours.count:
                arrived += f" ({entry.steps.count} of {entry.ours.count} runs)"
            values += [from_optimum(entry), arrived]
        for reference in references:
            versus = compare(entry.ours, reference.ours)
            same = reference is entry
            values.append(DASH if same else with_half(versus.difference, versus.half, digits, "+"))
        runs = f"{entry.ours.count} of {entry.planned}"
        variant = {name: entry.setting[name] for name in reading.variants}
        label, tuned = reading.label(entry.estimator, variant, TUNED), entry.tuned.values()
        rows.append((label, *values, runs, _failed(entry), *tuned))
    caption = f"The {metric.label} at the end, mean ± half the 95 % interval"
    near = f"{100 * NEAR:g} %"
    unit = cells[0].unit
    if known:
        caption += (
            f"; the optimum is {cells[0].optimum:.5f}. {unit.capitalize()} until it is within "
            f"{near} of the optimum and stays there, along straight lines between epochs"
        )
    headings = ["", metric.label, "median"]
    headings += [f"% {side} optimum", f"{unit} to {near}"] if known else []
    headings += [f"less {reading.look(entry.estimator).label}" for entry in references]
    headings += ["runs", "failed", *TUNED.values()]
    if references:
        caption += "; differences with half the joint 95 % interval"
    caption = " ".join(filter(None, (f"{caption}.", reading.note)))
    return TextTable(title, caption, tuple(headings), tuple(rows), tuple(_lost(reading, cells)))


def _wide(reading: Reading, title: str, cells: Sequence[Entry]) -> TextTable:
    """The settings are the rows, with a column for each estimator."""
    metric = cells[0].metric
    rows: dict[str, list[str]] = {}
    tuned: dict[str, dict[str, list[str]]] = {
        name: {} for name in TUNED if name not in (*reading.rows, *reading.panels)
    }
    for entry in cells:
        name = reading.describe({field: entry.setting[field] for field in reading.rows})
        rows.setdefault(name, [name]).append(mean_cell(entry))
        for field, columns in tuned.items():
            columns.setdefault(entry.estimator, []).append(entry.tuned[field])
    counts = sorted({entry.ours.count for entry in cells})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = f"The {metric.label} at the end"
    if metric.optimum is not None:
        what = (
            f"How far the {metric.label} ends {_side(metric)} the optimum, in percent of the "
            "optimum"
        )
        if any(entry.optimum == 0 for entry in cells):
            what += ", or where it ends if the optimum is 0"
    labels = [
        reading.look(estimator).label for estimator in dict.fromkeys(x.estimator for x in cells)
    ]
    body = [tuple(row) for row in rows.values()]
    alike = []
    for field, columns in tuned.items():
        texts = [", ".join(_distinct(column)) for column in columns.values()]
        if len(set(texts)) == 1:
            alike.append(f"{TUNED[field]} {texts[0]}")
        else:
            body.append((TUNED[field], *texts))
    caption = f"{what}: mean ± half the 95 % interval over {number} runs."
    if alike:
        caption += f" All with {', '.join(alike)}."
    caption = " ".join(filter(None, (caption, reading.note)))
    return TextTable(title, caption, ("", *labels), tuple(body), tuple(_lost(reading, cells)))


def _failed(entry: Entry) -> str:
    """How many of the finished runs failed to train."""
    return DASH if entry.failed is None else str(entry.failed)


def _distinct(texts: Sequence[str]) -> list[str]:
    """Without repetitions, and without dashes if there is anything else."""
    return list(dict.fromkeys(text for text in texts if text != DASH)) or [DASH]


def _side(metric: Metric) -> str:
    return "above" if metric.direction == "down" else "below"


def mean_cell(entry: Entry, beside: str = "") -> str:
    """The mean, from the optimum where that is known and not 0; where runs failed to train, which
    a mean hides or suffers from, the median and their number stand beside it.

    Args:
        entry: Whose.
        beside: What else stands in the brackets.
    """
    if entry.metric.optimum is None or entry.optimum == 0:
        text = with_half(entry.ours.mean, entry.ours.half, entry.metric.digits)
        median = with_half(entry.median, math.nan, entry.metric.digits)
    else:
        text, median = from_optimum(entry), _percent_from(entry, entry.median)
    parts = [beside] if beside else []
    if entry.failed:
        parts.append(f"median {median}, {entry.failed} of {entry.ours.count} failed")
    return f"{text} ({'; '.join(parts)})" if parts else text


def from_optimum(entry: Entry) -> str:
    """How far the metric ends from the optimum, in percent of it; a dash where that is 0."""
    return _percent_from(entry, entry.ours.mean, entry.ours.half)


def _percent_from(entry: Entry, value: float, half: float = math.nan) -> str:
    share = 100 / entry.optimum if entry.optimum else math.nan
    sign = 1 if entry.metric.direction == "down" else -1
    return with_half(sign * (share * value - 100), abs(share) * half, 2)


def _lost(reading: Reading, cells: Sequence[Entry]) -> list[str]:
    """A sentence on each cell some of whose runs are not finished, or failed to train."""
    sentences = []
    for entry in cells:
        ended = entry.states["finished"] + entry.states.get(DROPPED, 0)
        if ended < entry.planned or entry.failed:
            parts = reading.look(entry.estimator).label, reading.describe(entry.setting)
            counts = [f"{count} {state}" for state, count in entry.states.items() if count]
            counts += [f"{entry.failed} of them failed to train"] if entry.failed else []
            sentences.append(f"{', '.join(filter(None, parts))}: {', '.join(counts)}.")
    return sentences
