"""Many runs at once against a plain loop of one run, which takes its turns in the same rounds."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from files import Row
from machine import RedGate, Setup, attempt, release
from memory import peak_memory
from timing import Entry, Pace, compared, race, spread

from discretegrad_lab import Run, Stack

PLAIN, STACK = "plain loop", "stack"

Metrics = Mapping[str, Sequence[float]]
Seconds = list[float]


class Rival(NamedTuple):
    """A plain loop that is warm, and what a stack must do as well as it."""

    entry: Entry
    gate: Callable[[Stack, Metrics], list[str]]
    """What is wrong after the first epoch of a stack, given its metrics; empty if nothing is."""
    peak_bytes: int | str


def contest(
    about: Row,
    stacks: Iterable[tuple[str, Sequence[Run]]],
    make: Callable[[Sequence[Any]], Stack],
    rival: Rival,
    pace: Pace,
    setup: Setup,
) -> Iterator[Row]:
    """A row for each stack, given as a provider with its runs, and one for the plain loop."""
    chosen = (
        (
            {"provider": provider, "members": len(runs)},
            partial(timed_stack, partial(make, runs), rival, pace, setup),
        )
        for provider, runs in stacks
    )
    return beside_plain(about, chosen, {"members": 1, "peak_bytes": rival.peak_bytes})


def beside_plain(
    about: Row,
    cases: Iterable[tuple[Row, Callable[[Seconds], Row]]],
    plain: Row,
    gate: str = "ok",
) -> Iterator[Row]:
    """A row for each case, and one for the plain loop with what it took beside all of them.

    Args:
        about: Columns of all rows.
        cases: Columns that say what is timed, and how: a function that adds the times of the plain
            loop to a list and returns the other columns.
        plain: Columns that say what the plain loop is.
        gate: Why nothing is timed; "ok" if everything is.
    """
    all_plain: Seconds = []
    for columns, timed in cases:
        numbers, status = attempt(partial(timed, all_plain)) if gate == "ok" else (None, gate)
        release()
        yield about | columns | {"status": status} | (numbers or {})
    row = about | {"provider": PLAIN, "status": "not measured"} | plain
    if all_plain:
        row |= {"status": "ok", "rounds": len(all_plain), **spread("seconds", all_plain)}
    yield row


def timed_stack(
    make: Callable[[], Stack], rival: Rival, pace: Pace, setup: Setup, all_plain: Seconds
) -> Row:
    """Time a stack and the plain loop by turns."""
    setup.check_time()
    with peak_memory(setup) as peak:
        begin = time.perf_counter()
        stack = make()
        metrics = stack.advance()
        first = time.perf_counter() - begin
    if faults := rival.gate(stack, metrics):
        raise RedGate("; ".join(faults))
    run_steps = len(stack.runs) * stack.steps_per_epoch
    entries = [Entry(STACK, stack.advance, units=run_steps), rival.entry]
    times = race(entries, pace, setup)
    all_plain += times[PLAIN]
    epoch = statistics.median(times[STACK]) * run_steps
    return {
        "rounds": len(times[STACK]),
        "steps_per_epoch": stack.steps_per_epoch,
        **spread("seconds", times[STACK]),
        **spread("speedup", compared("speedup", times[STACK], times[PLAIN])),
        # building, compiling and capturing, until the stack trains
        "start_seconds": round(max(first - epoch, 0.0), 2),
        "peak_bytes": peak[0],
    }


def loss_faults(
    losses: Sequence[float], middle: float, of_plain: float, tolerance: float
) -> list[str]:
    """What is wrong with the losses of a stack, if that of the plain loop is right."""
    if not all(map(math.isfinite, losses)):
        return ["a loss is not finite"]
    return too_far("its loss", middle, of_plain, tolerance)


def too_far(what: str, value: float, of_plain: float, tolerance: float) -> list[str]:
    if abs(value - of_plain) <= tolerance * abs(of_plain):
        return []
    return [f"{what} is {value:.4g}, that of the plain loop {of_plain:.4g}"]
