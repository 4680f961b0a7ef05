"""Stored runs as small text files that can be committed, and back.

``runs.csv`` has a line for each run of a recipe, whatever became of it. ``curves.csv`` has a line
for each run and metric, with a column for each epoch that is written. ``measures.csv``, if models
were measured after their training, has a line for each of those. ``checksums.json`` says what is in
them, see ``sources``.
"""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runs.files import is_name, is_whole, parse
from ..runs.store import IDENTITY, DamagedRun, Store
from ..stack.config import Run
from ..tasks.evidence import (
    DROPPED,
    FINAL,
    FIRST,
    OUTCOME,
    PROVENANCE,
    REACHED,
    STATES,
    Measured,
    Results,
    Row,
)
from ..tasks.halving import Goal
from .sources import CHECKSUMS, has_file, has_sources, read_sources, write_sources, writer

RUNS, CURVES, MEASURES = "runs.csv", "curves.csv", "measures.csv"
_WORTH = {"finished": 2, "diverged": 2, DROPPED: 1}
"""Of two rows of a run the one that is worth more stays; all other states are worth nothing."""
# numbers in all of a file of curves, about 8 bytes each
_CURVE_NUMBERS = 60_000
_NAMES = ("estimator", "task")


def worth(row: Row | None) -> int:
    """How much is lost with a row: 0 if the run is not known to be done."""
    return 0 if row is None else _WORTH.get(row.state, 0)


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


def mark_dropped(results: Results, goals: Mapping[Run, Goal], store: Store) -> Results:
    """Results in which runs that a search dropped say so, with what they had at their rung."""
    # those with the goal 0 were dropped elsewhere
    ended = {run: goal.epoch for run, goal in goals.items() if goal.dropped and goal.epoch}
    dropped = {run.identity: (run, epoch) for run, epoch in ended.items()}
    rows = []
    for row in results.rows:
        if row.state == "started" and row.identity in dropped:
            run, epoch = dropped[row.identity]
            values = store.metrics(run)[epoch - 1].items()
            reached = {name: x for name, x in values if name != "epoch" and math.isfinite(x)}
            row = replace(row, state=DROPPED, epoch=epoch, reached=reached)
        rows.append(row)
    return replace(results, rows=tuple(rows))


def merge(
    stored: Results,
    store: Store,
    before: Results,
    all_runs: Sequence[Run],
    *,
    keep_all: bool = False,
) -> Results:
    """What was collected, and of what was known before whatever the store cannot replace.

    These are runs that the store has not, or not to their end, and those whose models were
    measured, also if they were not collected: who asks for a few must not lose the others. With
    ``keep_all`` it is whatever was not collected. ``all_runs`` give the order.
    """
    stored = keep_measured(stored, before)
    rows, curves = {row.identity: row for row in stored.rows}, dict(stored.curves)
    for row in before.rows:
        if row.identity in rows:
            keep = worth(row) > worth(rows[row.identity])
        else:
            keep = keep_all or irreplaceable(row, store)
        if keep:
            rows[row.identity] = row
            curves |= {key: x for key, x in before.curves.items() if key[0] == row.identity}
    order = {run.identity: number for number, run in enumerate(all_runs)}
    ordered = sorted(rows.values(), key=lambda row: order.get(row.identity, len(order)))
    return replace(stored, rows=tuple(ordered), curves=curves)


def irreplaceable(row: Row, store: Store) -> bool:
    """Whether what a row says would be lost with it, since a store has it not."""
    if not worth(row):
        return False
    # what was measured is in no store
    return row.measured is not None or not store.is_done(row.config["task"], row.identity)


def keep_measured(results: Results, before: Results) -> Results:
    """Results with what was measured before of the same models.

    A run that was trained again has another model, which its final metrics tell.
    """
    measured = {row.identity: row for row in before.rows if row.measured is not None}
    rows = []
    for row in results.rows:
        other = measured.get(row.identity)
        if row.measured is None and other is not None and _ends(row) == _ends(other):
            row = replace(row, measured=other.measured)
        rows.append(row)
    return replace(results, rows=tuple(rows))


def _ends(row: Row) -> dict[str, str]:
    """The final metrics, as files have them."""
    return {FINAL + name: significant(value) for name, value in row.metrics.items()}


def _row(run: Run, store: Store, damaged: list[str]) -> tuple[Row, Sequence[Mapping[str, float]]]:
    config = configuration(run)
    try:
        saved = store.look(run)
    except DamagedRun as error:
        # it names a place on this machine, so it stays out of the row
        damaged.append(str(error))
        return Row(run.identity, config, "damaged"), []
    if saved is None:
        return Row(run.identity, config, "missing"), []
    status, metrics = saved.status, saved.metrics
    # the start that ended it; all starts stay in the store
    environment = saved.environment[-1]
    end = metrics[-1] if metrics and status.state == "finished" else {}
    row = Row(
        run.identity,
        config,
        status.state,
        status.epoch,
        # a metric may have no value at the end, and then the files have none either
        {name: x for name, x in end.items() if name != "epoch" and math.isfinite(x)},
        status.diverged_step,
        status.seconds,
        *provenance(environment),
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
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict | tuple) else value
        for name, value in fields.items()
    }


def provenance(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """What rows say of the code and the machine: commit, source, device and torch."""
    others = (str(environment.get(name) or "unknown") for name in PROVENANCE[1:])
    return _commit(environment), *others


def _commit(environment: Mapping[str, Any]) -> str:
    commit = str(environment.get("commit") or "unknown")[:12]
    return commit + " and changes" * bool(environment.get("changed_since_commit"))


def write(results: Results, folder: Path, more: Mapping[str, str] | None = None) -> None:
    """Write ``runs.csv``, ``curves.csv``, ``measures.csv`` if there is anything for it, and more
    files of these names, all of them or none."""
    contents = {RUNS: _runs_text(results), CURVES: _curves_text(results)}
    if any(row.measured is not None for row in results.rows) or has_file(folder, MEASURES):
        contents[MEASURES] = _measures_text(results)
    write_sources(folder, contents | dict(more or {}))


def read(folder: Path) -> Results:
    """What was written, with the name of the folder as the recipe; empty where there is none.

    Raises:
        ValueError: If a file is not as it was written.
    """
    if not has_sources(folder, RUNS):
        return Results(folder.name)
    try:
        files = read_sources(folder, (RUNS, CURVES, MEASURES))
        results = Results(folder.name, _rows(files), _curves(files))
        return keep_measured(results, Results(folder.name, _measured(files)))
    except (ValueError, KeyError, csv.Error, RecursionError) as error:
        raise ValueError(
            f"expected {RUNS} and {CURVES} in {folder} as they were written, got: {error}; put "
            f"copies of them and of {CHECKSUMS} back, or move all three away and write them again "
            f"with {writer(folder)} where the runs are"
        ) from error


def _rows(files: Mapping[str, bytes]) -> tuple[Row, ...]:
    lines = _lines(RUNS, files, ("identity", *OUTCOME))
    rows = {row.identity: row for row in map(_parse_run, lines)}
    if len(rows) < len(lines):
        raise ValueError(f"a run that occurs twice in {RUNS}")
    return tuple(rows.values())


def _curves(files: Mapping[str, bytes]) -> dict[tuple[str, str], dict[int, float]]:
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for line in _lines(CURVES, files, ("identity", "metric")) if CURVES in files else ():
        key = line.pop("identity"), line.pop("metric")
        curves[key] = {_whole(epoch, 1): _finite(text) for epoch, text in line.items() if text}
    return curves


def _measured(files: Mapping[str, bytes]) -> tuple[Row, ...]:
    """Rows with nothing but final metrics and what was measured of those models."""
    rows: dict[str, Row] = {}
    needed = ("identity", *PROVENANCE)
    for line in _lines(MEASURES, files, needed) if MEASURES in files else ():
        identity, *about = (line.pop(name) for name in needed)
        numbers = {name: _finite(text) for name, text in line.items() if text}
        ends = {x.removeprefix(FINAL): y for x, y in numbers.items() if x.startswith(FINAL)}
        values = {name: y for name, y in numbers.items() if not name.startswith(FINAL)}
        if identity in rows or not IDENTITY.fullmatch(identity):
            raise ValueError(f"{identity!r} in {MEASURES}, which is no run, or occurs twice")
        rows[identity] = Row(
            identity, {}, "finished", metrics=ends, measured=Measured(values, *about)
        )
    return tuple(rows.values())


def _measures_text(results: Results) -> str:
    """With the final metrics of each run, which say of which training its model is."""
    pairs = [(row, row.measured) for row in results.rows if row.measured is not None]
    ends = dict.fromkeys(FINAL + name for row, _ in pairs for name in row.metrics)
    names = dict.fromkeys(name for _, measured in pairs for name in measured.values)
    lines: list[Sequence[str]] = [("identity", *ends, *names, *PROVENANCE)]
    for row, measured in pairs:
        own = _ends(row)
        lines.append(
            (
                row.identity,
                *(own.get(name, "") for name in ends),
                *(significant(measured.values.get(name)) for name in names),
                *(getattr(measured, name) for name in PROVENANCE),
            )
        )
    return to_csv(lines)


def _whole(text: str, least: int) -> int:
    number = int(text)
    if not is_whole(number, least):
        raise ValueError(f"the number {text}, which is not at least {least} and below 2**53")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text}, which is not finite")
    return number


def _runs_text(results: Results) -> str:
    fields = dict.fromkeys(name for row in results.rows for name in row.config)
    metrics = dict.fromkeys(name for row in results.rows for name in row.metrics)
    first = dict.fromkeys(name for row in results.rows for name in row.first)
    reached = dict.fromkeys(name for row in results.rows for name in row.reached)
    columns = {FIRST: first, REACHED: reached, FINAL: metrics}
    measured = [prefix + name for prefix, names in columns.items() for name in names]
    lines = [("identity", *fields, *OUTCOME[:2], *measured, *OUTCOME[2:])]
    for row in results.rows:
        lines.append(
            (
                row.identity,
                *(_text(row.config.get(name)) for name in fields),
                row.state,
                str(row.epoch),
                *(significant(row.first.get(name)) for name in first),
                *(significant(row.reached.get(name)) for name in reached),
                *(significant(row.metrics.get(name)) for name in metrics),
                _text(row.diverged_step),
                format(row.seconds, ".4g"),
                *(getattr(row, name) for name in PROVENANCE),
            )
        )
    return to_csv(lines)


def _parse_run(line: dict[str, str]) -> Row:
    if line["state"] not in STATES:
        raise ValueError(
            f"the state {line['state']!r} in {RUNS}, which is none of {', '.join(STATES)}"
        )
    config: dict[str, Any] = {}
    measured: dict[str, dict[str, float]] = {FINAL: {}, FIRST: {}, REACHED: {}}
    for name, text in line.items():
        prefix = next((prefix for prefix in measured if name.startswith(prefix)), None)
        if prefix is not None:
            if text:
                measured[prefix][name.removeprefix(prefix)] = _finite(text)
        elif name != "identity" and name not in OUTCOME:
            value = _value(text)
            # older versions wrote names without quotes
            is_number = name in _NAMES and not isinstance(value, str)
            config[name] = text if is_number else value
    for name in _NAMES:
        if not config.get(name):
            raise ValueError(f"a run without {name} in {RUNS}")
    if not (IDENTITY.fullmatch(line["identity"]) and is_name(config["task"])):
        raise ValueError(f"{line['identity']!r} of {config['task']!r} in {RUNS}, which is no run")
    if config.get("line") is not None and not _is_line(config["line"]):
        raise ValueError(f"{config['line']!r} in {RUNS}, which is no estimator of a user")
    return Row(
        line["identity"],
        config,
        line["state"],
        _whole(line["epoch"], 0),
        measured[FINAL],
        _whole(line["diverged_step"], 1) if line["diverged_step"] else None,
        _finite(line["seconds"]),
        *(line[name] for name in PROVENANCE),
        first=measured[FIRST],
        reached=measured[REACHED],
    )


def _is_line(text: object) -> bool:
    """Whether it is what ``configuration`` makes of the line of a user."""
    document = parse(text.encode()) if isinstance(text, str) else None
    return isinstance(document, dict) and isinstance(document.get("source"), str)


def _curves_text(results: Results) -> str:
    written = _thinned(Counter(epoch for curve in results.curves.values() for epoch in curve))
    lines = [("identity", "metric", *map(str, written))]
    for (identity, metric), curve in results.curves.items():
        lines.append((identity, metric, *(significant(curve.get(epoch)) for epoch in written)))
    return to_csv(lines)


def _thinned(numbers: Mapping[int, int]) -> list[int]:
    """The epochs to write, of those that have so many numbers: the first, the last, and between
    them every one, or those that 2, 4 and so on divide, until the file is small enough.

    Each of these is a part of the one before, so that curves that were thinned once lose nothing
    when others are added to them. Of what a task measures after every tenth epoch the second keeps
    everything.
    """
    stride, kept = 1, sorted(numbers)
    while sum(numbers[epoch] for epoch in kept[1:]) > _CURVE_NUMBERS and stride < max(numbers):
        stride *= 2
        kept = [x for x in kept if x in (min(numbers), max(numbers)) or x % stride == 0]
    return kept


def significant(value: float | None) -> str:
    """A number with 6 significant digits; nothing for what is no finite number."""
    return "" if value is None or not math.isfinite(value) else format(value, ".6g")


def _lines(name: str, files: Mapping[str, bytes], needed: Sequence[str]) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(files[name].decode(), newline=""), strict=True)
    lines = list(reader)
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing or any(None in line or None in line.values() for line in lines):
        what = f"no columns {', '.join(missing)}" if missing else "lines of different lengths"
        raise ValueError(f"{what} in {name}")
    return lines


def _text(value: Any) -> str:
    """A value as a cell: a text is in quotes if it would be read as something else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value if _value(value) == value else json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(text: str) -> Any:
    """The reverse of ``_text``."""
    if text in ("true", "false", ""):
        return {"true": True, "false": False, "": None}[text]
    kinds: tuple[tuple[Callable[[str], Any], Callable[[Any], str]], ...]
    kinds = ((json.loads, json.dumps),) if text[0] == '"' else ((int, str), (float, str))
    for parse_value, write_value in kinds:
        try:
            value = parse_value(text)
        except ValueError:
            continue
        # 10_30 and 1e3 are texts of users, which numbers are not written as
        if write_value(value) == text:
            return value
    return text


def to_csv(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells as comma-separated values."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()
