"""What ``discretegrad run --dry-run`` says: stacks, memory and time."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from ..watch.words import duration, many, size
from . import common
from .selection import find_device

if TYPE_CHECKING:
    from ..runs.plan import Estimate
    from ..stack.config import Run
    from ..watch.json_lines import JsonLines
    from .run import Wanted


_EVERY = 2.0
"""Seconds between two lines on how many runs have been looked at."""


def announced(runs: "Sequence[Run]") -> "Iterator[Run]":
    """The runs; where going through them takes long, lines on stderr say how far it is."""
    said = time.monotonic()
    for number, run in enumerate(runs):
        if time.monotonic() - said >= _EVERY:
            said = time.monotonic()
            # somebody may have closed it
            with contextlib.suppress(OSError, ValueError, AttributeError):
                typer.echo(f"looked at {number:,} of {many(len(runs), 'run')}", err=True)
        yield run


def show_plan(
    wanted: "Wanted", events: "JsonLines | None", quiet: bool, processes: int | None = None
) -> None:
    """Say what ``run`` would do, in this process or in several."""
    from ..runs.plan import estimate_side_by_side
    from ..runs.search import next_runs
    from ..tasks.data import DataError

    device = wanted.options["device"]
    device = find_device("auto") if device == "auto" else device
    with common.checking_input():
        largest = wanted.options["stacks"].largest_stack
        runs, until = wanted.runs, None
        if wanted.searches:
            ahead = next_runs(wanted.parts, wanted.store, wanted.rows)
            runs, until = ahead.runs, ahead.until
        looked_at = runs if quiet or events else announced(runs)
        count = min(processes or 1, max(len(set(runs)), 1))
        plan = estimate_side_by_side(
            looked_at,
            wanted.store,
            count,
            sharing=count,
            device=device,
            largest_stack=largest,
            until=until,
        )
        if wanted.searches:
            plan = replace(plan, done=plan.done + ahead.done, dropped=ahead.dropped)
    seconds, notes = time_of(wanted, plan, device)
    if count > 1 and seconds is not None:
        notes.append(
            f"That is the time of one stack after the other; {count} processes train them side by "
            "side."
        )
    if until is not None:
        notes.append(
            f"This is a search: the plan goes as far as epoch {until}, where the best are chosen."
        )
    try:
        wanted.check_data()
    except DataError as error:
        notes.append(str(error))
    if events is not None:
        events.event("estimate", device=device, **_fields(plan), seconds=seconds, notes=notes)
        return
    firsts = {stack.runs[0].stack_key: stack.runs[0] for stack in plan.stacks}
    labels = {key: _label(run) for key, run in firsts.items()}
    rows = Counter(
        (
            labels[stack.runs[0].stack_key],
            f"{len(stack.runs):,}",
            f"{stack.epoch}",
            f"{stack.steps:,}",
            size(stack.bytes),
            "?" if stack.seconds is None else duration(stack.seconds),
        )
        for stack in plan.stacks
    )
    if rows:
        # those that read the same are one row
        headings = ("stack", "how many", "members", "from epoch", "steps", "memory", "time")
        cells = [(row[0], f"{count:,}", *row[1:]) for row, count in rows.items()]
        common.print_table(headings, cells, left=1)
    time_left = "unknown" if seconds is None else f"about {duration(seconds)}"
    dropped = f"{len(plan.dropped)} dropped at a rung, " if plan.dropped else ""
    of_what = "the largest stack" if count == 1 else f"{count} stacks of the largest size"
    lines = [
        f"{wanted.name} on {device}: {many(plan.members, 'run')} to train in "
        f"{many(len(plan.stacks), 'stack')}, {dropped}{len(plan.done)} done before, "
        f"{len(plan.damaged)} damaged.",
        f"Memory: {size(plan.bytes)} for {of_what}. Time: {time_left}. Nothing was changed.",
        *notes,
        *plan.damaged.values(),
    ]
    for line in lines:
        Console().print(Text(line), soft_wrap=True)


def time_of(wanted: "Wanted", plan: "Estimate", device: str) -> tuple[float | None, list[str]]:
    """How long it will take, as far as known, and where that is known from."""
    measured = sum(stack.seconds is not None for stack in plan.stacks)
    seconds = scaled_seconds(plan)
    if seconds is not None:
        note = f"The time is measured for {many(measured, 'stack')} and scaled for the others."
        return seconds, [] if measured == len(plan.stacks) else [note]
    seconds, where = _by_cost(wanted, plan, device)
    if seconds is not None:
        return seconds, [
            f"No runs like these were trained on {device} yet; the time is that of {where}, "
            "where the recipe was trained before."
        ]
    notes = [
        f"No runs like these were trained on {device} yet, so their speed is not known. Train for "
        f"a minute with `discretegrad run {wanted.words} --budget 1m`, "
        "which loses no whole epoch, and ask again."
    ]
    return None, notes + ([f"They would take about {where}."] if where else [])


def _by_cost(wanted: "Wanted", plan: "Estimate", device: str) -> tuple[float | None, str]:
    """The time that the recipes say, for the runs that are left; None for another device.

    Then the text says what it was elsewhere, if that is known.
    """
    from ..tasks import recipes

    total, where, devices = 0.0, "", set()
    not_left = {*plan.done, *plan.dropped, *plan.damaged}
    for recipe, runs in wanted.parts:
        whole = recipe
        while whole.cost is not None and whole.cost.of is not None:
            whole = recipes()[whole.cost.of]
        if whole.cost is None:
            return None, ""
        share = sum(run not in not_left for run in runs) / len(whole.runs())
        total += share * whole.cost.seconds
        where = whole.cost.where
        devices.add(whole.cost.device)
    if devices == {device.partition(":")[0]}:
        return total, where
    return None, f"{duration(total)} of {where}"


def scaled_seconds(plan: "Estimate") -> float | None:
    """Of all stacks, as far as known; others by their size, if one of the same task is known."""
    work: dict[str, float] = {}
    known: dict[str, tuple[float, float]] = {}
    for stack in plan.stacks:
        task, amount = stack.runs[0].task, float(stack.steps * stack.bytes)
        work[task] = work.get(task, 0.0) + amount
        if stack.seconds is not None:
            seconds, done = known.get(task, (0.0, 0.0))
            known[task] = seconds + stack.seconds, done + amount
    if work.keys() - known.keys():
        return None
    return sum(known[task][0] / known[task][1] * amount for task, amount in work.items())


def _fields(plan: "Estimate") -> dict[str, object]:
    return {
        "stacks": [
            {
                "runs": [run.identity for run in stack.runs],
                "epoch": stack.epoch,
                "steps": stack.steps,
                "bytes": stack.bytes,
                "seconds": stack.seconds,
            }
            for stack in plan.stacks
        ],
        "done": [run.identity for run in plan.done],
        "dropped": [run.identity for run in plan.dropped],
        "damaged": {run.identity: reason for run, reason in plan.damaged.items()},
        "members": plan.members,
        "steps": plan.steps,
        "bytes": plan.bytes,
    }


def _label(run: "Run") -> str:
    """The task of a stack, and the fields of its runs that are not as they are by default."""
    changed = [
        f"{field.name.replace('_', ' ')} {value}"
        for field in fields(run)
        # member_fields call it line
        if field.name not in (*run.member_fields, "own_line")
        and (value := getattr(run, field.name)) != field.default
    ]
    return ", ".join([run.task, *changed])
