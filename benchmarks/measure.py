"""From cases to rows: a case holds providers that are compared with each other.

Each has a gate that its numbers must pass before it is timed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from files import Row
from machine import RedGate, Setup, Unavailable, attempt, release
from memory import peak_bytes_on_cpu, peak_memory
from profiles import names_on_gpu
from timing import CALLS, WALL, Entry, Pace, block_seconds, compared, race, rounded, spread
from torch import Tensor

# of the logits' size: read logits, write sample; read logits, read gradient, write gradient
PASSES = 5


@dataclass(frozen=True)
class Work:
    """One provider, ready to be called."""

    provider: str
    forward: Callable[[], Any]
    backward: Callable[[Any], Sequence[Tensor]] = lambda output: ()
    gate: Callable[[], list[str]] = list
    """What is wrong with its numbers; empty if nothing is."""
    before: Callable[[], object] = bool
    """Runs before every call and is not timed."""
    ours: bool = True
    against: Mapping[str, str] = field(default_factory=dict)
    """Columns with the provider that they compare with; the name of a column says how."""
    about: Row = field(default_factory=dict)
    """Columns that say what it is."""
    derived: Callable[[Row], Row] = lambda row: {}
    """More columns from those that were measured."""

    def call(self) -> tuple[Any, ...]:
        """Forward and backward: the output and all gradients."""
        output = self.forward()
        return (output, *self.backward(output))


@dataclass(frozen=True)
class Case:
    """Providers that are compared with each other."""

    about: Row
    """Columns that say what it is."""
    works: Sequence[Work]
    pace: Pace
    clock: str = CALLS
    copies: int = 0
    """Of forward and backward in one CUDA graph; 0 without a graph."""
    tensor_bytes: int = 0
    """Of the logits."""
    has_floor: bool = False
    counts_launches: bool = False


def measured(cases: Iterable[Case], setup: Setup) -> Iterator[Row]:
    """The rows of cases that are made one at a time, so that their memory is free for the next."""
    for case in cases:
        yield from measure(case, setup)
        del case
        release()


def measure(case: Case, setup: Setup) -> list[Row]:
    """A row for every provider of a case."""
    status: dict[str, str] = {}
    entries: dict[str, Entry] = {}
    for work in case.works:
        entry, status[work.provider] = attempt(partial(prepare, work, case, setup))
        if entry is not None:
            entries[work.provider] = entry
    times = race(list(entries.values()), case.pace, setup, case.clock)
    peaks: dict[str, tuple[int, int]] = {}
    launches: dict[str, Row] = {}
    # after the timing, which they would disturb
    for work in (work for work in case.works if work.provider in entries):
        for results, function in (
            (peaks, partial(peak_bytes, work, setup) if not case.copies else None),
            (launches, partial(count_launches, work) if case.counts_launches else None),
        ):
            value, problem = attempt(function) if function else (None, "ok")
            if value is not None:
                results[work.provider] = value
            elif problem != "ok":
                print(f"  {work.provider}: {problem}", flush=True)
    return [
        result(case, work, status[work.provider], times, peaks, setup.bandwidth)
        | launches.get(work.provider, {})
        for work in case.works
    ]


def prepare(work: Work, case: Case, setup: Setup) -> Entry:
    """Check the numbers, warm up, and see how long a call takes."""
    setup.check_time()
    if faults := work.gate():
        raise RedGate("; ".join(faults))
    call = captured(work, case.copies) if case.copies else work.call
    pace, clock = case.pace, CALLS if case.clock == CALLS else WALL
    seconds = partial(block_seconds, call, setup=setup, clock=clock, before=work.before)
    seconds(calls=1)
    estimate = seconds(calls=1)
    if estimate < pace.seconds:
        estimate = min(estimate, seconds(calls=3))
    block = max(1, min(pace.calls, round(pace.seconds / estimate)))
    slow = estimate > pace.slow_seconds
    return Entry(
        work.provider, call, block, max(case.copies, 1), pace.warmups, work.before, is_slow=slow
    )


def captured(work: Work, copies: int) -> Callable[[], None]:
    """A CUDA graph of some forward and backward passes, to be replayed."""
    # a capture that breaks off leaves the generator and the allocator of torch in disorder, so
    # what cannot be captured is found out before
    torch.cuda.set_sync_debug_mode("error")
    try:
        work.call()
    except RuntimeError as error:
        raise Unavailable("no graph: it waits for the GPU") from error
    finally:
        torch.cuda.set_sync_debug_mode("default")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work.call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            work.call()
    return graph.replay


def peak_bytes(work: Work, setup: Setup) -> tuple[int, int]:
    """Most memory alive at once beyond the inputs, and of that the output and its gradients."""
    work.before()
    named = sum(tensor.nbytes for tensor in work.call())
    work.before()
    if not setup.on_gpu:
        return peak_bytes_on_cpu(work.call), named
    with peak_memory(setup) as peak:
        work.call()
    return int(peak[0]), named


def count_launches(work: Work) -> Row:
    """What the GPU is asked to do, forward and backward: kernels, and copies or fills apart."""
    output = work.forward()
    names_on_gpu(work.forward)  # the first profile of a process may miss events
    counts = {}
    for part, function in (("forward", work.forward), ("backward", partial(work.backward, output))):
        names = names_on_gpu(function)
        copies = sum(name.startswith(("Memcpy", "Memset")) for name in names)
        counts |= {f"launches_{part}": len(names) - copies, f"copies_{part}": copies}
        print(f"    {work.provider}, {part}: {', '.join(names)[:400]}", flush=True)
    return counts


def result(
    case: Case,
    work: Work,
    status: str,
    times: Mapping[str, Sequence[float]],
    peaks: Mapping[str, tuple[int, int]],
    bandwidth: float = math.nan,
) -> Row:
    """One row; a column that was not measured is missing."""
    row = case.about | {"provider": work.provider, "status": status} | work.about
    row |= {"ours": "yes" if work.ours else "no", "tensor_bytes": case.tensor_bytes or ""}
    if work.provider not in times:
        return row
    seconds = times[work.provider]
    row |= {"rounds": len(seconds), **spread("seconds", seconds)}
    if case.has_floor:
        row["times_floor"] = rounded(row["seconds"] * bandwidth / (PASSES * case.tensor_bytes), 3)
    peak, named = peaks.get(work.provider, (None, 0))
    if peak is not None:
        row |= {"peak_extra_bytes": peak, "beyond_bytes": max(peak - named, 0)}
        row["peak_mib"] = rounded(peak / 2**20)
        if case.tensor_bytes:
            row["peak_extra_tensors"] = rounded(peak / case.tensor_bytes)
    for column, baseline in work.against.items():
        if column.startswith("memory"):
            if peak is not None and baseline in peaks:
                row[column] = rounded(peak / peaks[baseline][0])
        elif baseline in times:
            row |= spread(column, compared(column, seconds, times[baseline]))
    return row | work.derived(row)
