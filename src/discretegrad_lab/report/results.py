"""Stored runs as small text files that can be committed, and back.

``runs.csv`` has a line for each run of a recipe, whatever became of it. ``curves.csv`` has a line
for each run and metric, with a column for each epoch that is written.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runs.files import write_whole
from ..runs.store import Store
from ..stack.config import Run
from ..tasks.evidence import STATES, Results, Row

RUNS, CURVES = "runs.csv", "curves.csv"
_DONE = ("finished", "diverged")
# numbers in all of a file of curves, about 8 bytes each
_CURVE_NUMBERS = 60_000
_FINAL, _FIRST = "final_", "first_recorded_"
_PROVENANCE = ("commit", "source", "device", "torch")
_OUTCOME = ("state", "epoch", "diverged_step", "seconds", *_PROVENANCE)


def collect(
    name: str, runs: Iterable[Run], store: Store, curves_of: Sequence[str], damaged: list[str]
) -> Results:
    """What a store has of some runs; those that it has not are rows too.

    Args:
        name: Of the recipe.
        runs: Which.
        store: Where they are.
        curves_of: Metrics whose curves are wanted.
        damaged: Takes the reasons why runs cannot be read.
    """
    rows, curves = [], {}
    for run in runs:
        row, metrics = _row(run, store, damaged)
        rows.append(row)
        for metric in curves_of:
            curve = {
                int(values["epoch"]): values[metric]
                for values in metrics
                if math.isfinite(values.get(metric, math.nan))
            }
            if curve:
                curves[row.identity, metric] = curve
    return Results(name, tuple(rows), curves)


def merge(stored: Results, store: Store, before: Results, all_runs: Sequence[Run]) -> Results:
    """What was collected, and of what was known before whatever the store cannot replace.

    These are runs that the store has not, or not to their end, also if they were not collected:
    who asks for a few of them must not lose the others. ``all_runs`` give the order.
    """
    rows, curves = {row.identity: row for row in stored.rows}, dict(stored.curves)
    for row in before.rows:
        if row.state not in _DONE:
            continue
        if row.identity in rows:
            keep = rows[row.identity].state not in _DONE
        else:
            keep = not store.is_done(row.config["task"], row.identity)
        if keep:
            rows[row.identity] = row
            curves |= {key: x for key, x in before.curves.items() if key[0] == row.identity}
    order = {run.identity: number for number, run in enumerate(all_runs)}
    ordered = sorted(rows.values(), key=lambda row: order.get(row.identity, len(order)))
    return replace(stored, rows=tuple(ordered), curves=curves)


def _row(run: Run, store: Store, damaged: list[str]) -> tuple[Row, Sequence[Mapping[str, float]]]:
    config = configuration(run)
    status = store.status(run)
    if status.state in ("new", "damaged"):
        if status.reason:
            # it names a place on this machine, so it stays out of the row
            damaged.append(status.reason)
        return Row(run.identity, config, "missing" if status.state == "new" else "damaged"), []
    metrics = store.metrics(run)
    # the start that ended it; all starts stay in the store
    environment = store.environment(run)[-1]
    end = metrics[-1] if metrics and status.state == "finished" else {}
    row = Row(
        run.identity,
        config,
        status.state,
        status.epoch,
        {name: value for name, value in end.items() if name != "epoch"},
        status.diverged_step,
        status.seconds,
        _commit(environment),
        *(str(environment.get(name) or "unknown") for name in ("source", "device", "torch")),
        first=_first(metrics) if end else {},
    )
    return row, metrics


def _first(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The first value of each metric that has several."""
    first = {}
    for name in metrics[0]:
        values = [row[name] for row in metrics if math.isfinite(row[name])]
        if len(values) > 1 and name != "epoch":
            first[name] = values[0]
    return first


def configuration(run: Run) -> dict[str, Any]:
    """The fields of a run as a row has them: numbers and texts."""
    fields = {name: value for name, value in run.document().items() if name != "version"}
    return {
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
        for name, value in fields.items()
    }


def _commit(environment: Mapping[str, Any]) -> str:
    commit = str(environment.get("commit") or "unknown")[:12]
    return commit + " and changes" * bool(environment.get("changed_since_commit"))


def write(results: Results, folder: Path) -> None:
    """Write ``runs.csv`` and ``curves.csv``."""
    write_whole(folder / RUNS, _runs_text(results))
    write_whole(folder / CURVES, _curves_text(results))


def read(folder: Path) -> Results:
    """What was written, with the name of the folder as the recipe; empty where there is none.

    Raises:
        ValueError: If a file is not as it was written.
    """
    if not (folder / RUNS).exists():
        return Results(folder.name)
    try:
        return _read(folder)
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"expected {RUNS} and {CURVES} in {folder} as they were written, got: {error}; put "
            "copies of them back, or move them away and write them again with `discretegrad report "
            f"{folder.name}` where the runs are"
        ) from error


def _read(folder: Path) -> Results:
    rows = [_parse_run(line) for line in _lines(folder / RUNS, ("identity", *_OUTCOME))]
    curves = {}
    if (folder / CURVES).exists():
        for line in _lines(folder / CURVES, ("identity", "metric")):
            key = line.pop("identity"), line.pop("metric")
            curves[key] = {int(epoch): float(text) for epoch, text in line.items() if text}
    return Results(folder.name, tuple(rows), curves)


def _runs_text(results: Results) -> str:
    fields = dict.fromkeys(name for row in results.rows for name in row.config)
    metrics = dict.fromkeys(name for row in results.rows for name in row.metrics)
    first = dict.fromkeys(name for row in results.rows for name in row.first)
    measured = (*(_FIRST + name for name in first), *(_FINAL + name for name in metrics))
    lines = [("identity", *fields, *_OUTCOME[:2], *measured, *_OUTCOME[2:])]
    for row in results.rows:
        lines.append(
            (
                row.identity,
                *(_text(row.config.get(name)) for name in fields),
                row.state,
                str(row.epoch),
                *(significant(row.first.get(name)) for name in first),
                *(significant(row.metrics.get(name)) for name in metrics),
                _text(row.diverged_step),
                format(row.seconds, ".4g"),
                *(getattr(row, name) for name in _PROVENANCE),
            )
        )
    return to_csv(lines)


def _parse_run(line: dict[str, str]) -> Row:
    if line["state"] not in STATES:
        raise ValueError(
            f"the state {line['state']!r} in {RUNS}, which is none of {', '.join(STATES)}"
        )
    config, metrics, first = {}, {}, {}
    for name, text in line.items():
        if name.startswith(_FINAL):
            if text:
                metrics[name.removeprefix(_FINAL)] = float(text)
        elif name.startswith(_FIRST):
            if text:
                first[name.removeprefix(_FIRST)] = float(text)
        elif name != "identity" and name not in _OUTCOME:
            config[name] = _value(text)
    for name in ("estimator", "task"):
        if not config.get(name):
            raise ValueError(f"a run without {name} in {RUNS}")
    return Row(
        line["identity"],
        config,
        line["state"],
        int(line["epoch"]),
        metrics,
        int(line["diverged_step"]) if line["diverged_step"] else None,
        float(line["seconds"]),
        *(line[name] for name in _PROVENANCE),
        first=first,
    )


def _curves_text(results: Results) -> str:
    known = sorted({epoch for curve in results.curves.values() for epoch in curve})
    written = _thinned(known, len(results.curves))
    lines = [("identity", "metric", *map(str, written))]
    for (identity, metric), curve in results.curves.items():
        lines.append((identity, metric, *(significant(curve.get(epoch)) for epoch in written)))
    return to_csv(lines)


def _thinned(epochs: Sequence[int], curves: int) -> list[int]:
    """Evenly many epochs, the first and the last always among them."""
    if not epochs:
        return []
    stride = max(1, math.ceil(len(epochs) * curves / _CURVE_NUMBERS))
    # counted from the end: the last epoch is what tables are about
    return sorted({epochs[0], *epochs[::-1][::stride]})


def significant(value: float | None) -> str:
    """A number with 6 significant digits; nothing for what is no finite number."""
    return "" if value is None or not math.isfinite(value) else format(value, ".6g")


def _lines(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")), strict=True)
    lines = list(reader)
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing or any(None in line or None in line.values() for line in lines):
        what = f"no columns {', '.join(missing)}" if missing else "lines of different lengths"
        raise ValueError(f"{what} in {path.name}")
    return lines


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(text: str) -> Any:
    """The reverse of ``_text``."""
    if text in ("true", "false", ""):
        return {"true": True, "false": False, "": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def to_csv(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells as comma-separated values."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()
