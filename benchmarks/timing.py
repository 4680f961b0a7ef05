"""Providers that are timed by turns, and numbers over the rounds.

A round is one block of calls of every provider, in an order that is shuffled anew; a ratio is
formed within each round; reported are medians and 20th and 80th percentiles over rounds.
"""

import gc
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from files import SPREAD
from machine import Setup

# how a block is timed: the mean on the wall clock with the device idle at both ends; the median of
# its calls; the same on the stream of a GPU, each call after a pause for the host to get ahead
WALL, CALLS, STREAM = "wall", "calls", "stream"
PAUSE_CYCLES = 2_000_000  # about a millisecond


class Pace(NamedTuple):
    """How many rounds there are, and what a block is."""

    rounds: int
    seconds: float
    """A block has as many calls as fit into this time ..."""
    calls: int
    """... but at most this many, ..."""
    warmups: int = 1
    """... after so many to warm up."""
    slow_seconds: float = math.inf
    """A provider that takes longer a call ..."""
    slow_rounds: int = 0
    """... is timed in this many rounds, one call each."""
    limit_seconds: float = math.inf
    """On a busy machine a case gets fewer rounds rather than more time ..."""
    fewest_rounds: int = 5
    """... but at least this many."""


CPU_PACE = Pace(
    rounds=11, seconds=0.25, calls=5, slow_seconds=1.0, slow_rounds=3, limit_seconds=40.0
)
REHEARSAL = Pace(rounds=2, seconds=0.25, calls=2)


@dataclass(frozen=True)
class Entry:
    """A provider that passed its gate, ready for the rounds."""

    provider: str
    call: Callable[[], object]
    calls: int = 1
    """In a block."""
    units: int = 1
    """How many forward and backward passes, or steps, one call stands for."""
    warmups: int = 0
    before: Callable[[], object] = bool
    is_slow: bool = False


def race(
    entries: Sequence[Entry], pace: Pace, setup: Setup, clock: str = WALL
) -> dict[str, list[float]]:
    """Seconds of a call, for each provider and round; a slow one has fewer rounds."""
    rng = random.Random(0)
    times: dict[str, list[float]] = {entry.provider: [] for entry in entries}
    slow = {entry.provider for entry in entries if entry.is_slow}
    begin = time.perf_counter()
    for number in range(pace.rounds):
        if number >= pace.fewest_rounds and time.perf_counter() - begin > pace.limit_seconds:
            break
        for entry in rng.sample(entries, len(entries)):
            if entry.provider in slow and number >= pace.slow_rounds:
                continue
            if len(entries) > 1 and entry.provider not in slow:
                # after another provider the caches and the allocator are not its own
                for _ in range(entry.warmups):
                    entry.before()
                    entry.call()
            seconds = block_seconds(entry.call, entry.calls, setup, clock, entry.before)
            if number == 0 and seconds > pace.slow_seconds:
                slow.add(entry.provider)
            times[entry.provider].append(seconds / entry.units)
        if sys.stderr.isatty():
            print(f"\rround {number + 1} of {pace.rounds} ", end="", file=sys.stderr, flush=True)
    return times


def block_seconds(
    call: Callable[[], object],
    calls: int,
    setup: Setup,
    clock: str = WALL,
    before: Callable[[], object] = bool,
) -> float:
    """Seconds of a call in a row of calls; on the wall clock nothing runs before each."""
    gc.disable()
    try:
        setup.synchronize()
        if clock == WALL:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            setup.synchronize()
            return (time.perf_counter() - start) / calls
        if setup.on_gpu:
            return statistics.median(_seconds_on_stream(call, calls, clock, before))
        seconds = []
        for _ in range(calls):
            before()
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)
    finally:
        gc.enable()


def _seconds_on_stream(
    call: Callable[[], object], calls: int, clock: str, before: Callable[[], object]
) -> list[float]:
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for begin, end in marks:
        before()
        if clock == STREAM:
            # the host gets ahead meanwhile: what counts is the work of the GPU
            torch.cuda._sleep(PAUSE_CYCLES)
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in marks]


def copy_bandwidth(setup: Setup) -> float:
    """Bytes read and written by a second of copying from device to device."""
    source = setup.random(*([2**14] if setup.quick else [2**14, 2**16]))
    target = torch.empty_like(source)
    calls = 3 if setup.quick else 30
    # long enough for the clocks to rise
    for count in (2 * calls, 2 * calls, calls):
        seconds = block_seconds(lambda: target.copy_(source), count, setup, STREAM)
    return rounded(2 * source.nbytes / seconds)


# numbers


def compared(column: str, seconds: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Within each round. A slow provider ran in the first rounds only: those are compared."""
    pairs = zip(seconds, baseline, strict=False)
    if column.startswith("speedup"):
        return [b / s for s, b in pairs]
    if column.startswith("overhead"):
        return [1 - b / s for s, b in pairs]
    return [s / b for s, b in pairs]


def spread(name: str, values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median and 20th and 80th percentile, with so many significant digits."""
    points = torch.tensor(values, dtype=torch.float64)
    return {
        f"{name}{suffix}": rounded(points.quantile(q).item(), digits)
        for suffix, q in SPREAD.items()
    }


def rounded(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")
