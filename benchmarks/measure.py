"""The harness of all benchmarks: gates, interleaved rounds, memory, and files of results.

A benchmark is a list of sections. A section yields rows, most of them by `measured` from cases: a
case holds the providers that are compared, each with a gate that its numbers must pass before it is
timed. A round is one block of calls of every provider, in an order that is shuffled anew; a ratio
is formed within each round; reported are medians and 20th and 80th percentiles over rounds. The
file of results is written after each section and keeps the stored rows of the others.
"""

import argparse
import csv
import datetime
import gc
import io
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the memory profiler is chatty otherwise

import torch
from torch import Tensor

import discretegrad

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks"
REHEARSED = ROOT / "output" / "benchmarks"

# how a block is timed: the mean on the wall clock with the device idle at both ends; the median of
# its calls; the same on the stream of a GPU, each call after a pause for the host to get ahead
WALL, CALLS, STREAM = "wall", "calls", "stream"
PAUSE_CYCLES = 2_000_000  # about a millisecond
# of the logits' size: read logits, write sample; read logits, read gradient, write gradient
PASSES = 5
TIME_OVER = "not measured: the time was over"
SPREAD = {"": 0.5, "_p20": 0.2, "_p80": 0.8}
# the columns that a line of the log shows, where a row has them
LOGGED = (
    *("vectorize", "members", "seconds", "epoch_seconds", "run_seconds", "times_floor", "speedup"),
    *("speedup_torch", "speedup_pypi", "speedup_plain", "time_ratio", "overhead", "memory_ratio"),
    *("peak_extra_tensors", "beyond_bytes", "launches_forward", "launches_backward"),
)

Row = dict[str, Any]


class Unavailable(Exception):
    """Something cannot run here; the message says why."""


class RedGate(Exception):
    """A provider computes wrong numbers."""


# what is measured


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


class Setup(NamedTuple):
    """Where and how to run."""

    device: torch.device
    quick: bool = False
    """Whether this is a rehearsal in miniature."""
    bandwidth: float = math.nan
    """Of a plain copy, in bytes read and written in a second."""
    deadline: float = math.inf
    """By the clock of ``time.perf_counter``; nothing new begins after it."""
    folder: Path = REHEARSED
    data: Any = None
    """What a benchmark reads from its options, such as images."""

    @property
    def on_gpu(self) -> bool:
        """Whether there are streams, graphs and an allocator to ask."""
        return self.device.type == "cuda"

    def random(self, *shape: int, dtype: torch.dtype = torch.float32, scale=1.0) -> Tensor:
        """Fresh standard normal numbers."""
        return torch.randn(shape, device=self.device, dtype=dtype).mul_(scale)

    def small(self, *shape: int) -> tuple[int, ...]:
        """The shape, or a miniature of it."""
        limits = [16 * 2**place if self.quick else n for place, n in enumerate(shape)]
        return tuple(map(min, shape, limits))

    def check_time(self) -> None:
        """Begin nothing new after the deadline."""
        if time.perf_counter() > self.deadline:
            raise Unavailable(TIME_OVER)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()


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


# from a case to its rows


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


def attempt(function: Callable[[], Any]) -> tuple[Any, str]:
    """What a function returns and "ok", or nothing and what happened."""
    try:
        return function(), "ok"
    except torch.cuda.OutOfMemoryError:
        status = "out of memory"
    except Unavailable as error:
        status = str(error)
    except RedGate as error:
        status = f"red gate: {error}"
    # minutes of a GPU are not lost to one provider that fails
    except Exception as error:
        traceback.print_exc()  # with the error that this one may hide
        first_line = str(error).strip().partition("\n")[0][:200]
        status = f"failed: {type(error).__name__}: {first_line}"
    release()
    return None, status


def is_red(row: Row) -> bool:
    """Whether something failed that should not have."""
    return str(row.get("status", "ok")).startswith(("red gate", "failed"))


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


@contextmanager
def peak_memory(setup: Setup) -> Iterator[list[int | str]]:
    """Most memory of the GPU that is in use at once, beyond what was; unknown on a CPU."""
    peak: list[int | str] = [""]
    if not setup.on_gpu:
        yield peak
        return
    release()  # what is still to be freed would count as well
    setup.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield peak
    setup.synchronize()
    peak[0] = torch.cuda.max_memory_allocated() - before


def peak_bytes_on_cpu(step: Callable[[], object]) -> int:
    """Most memory alive at once while ``step`` runs, beyond what was there.

    Every allocation that torch makes is seen, also those inside an operation.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        outputs = step()
    del outputs
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    live = peak = 0
    for change in changes:
        live += change["args"]["Bytes"]
        peak = max(peak, live)
    return peak


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


def names_on_gpu(function: Callable[[], object]) -> list[str]:
    """Everything that runs on the GPU for a call, by name."""
    return [event.name for event in events_on_gpu(function)]


def events_on_gpu(function: Callable[[], object]) -> list[Any]:
    """The same as events of torch's profiler."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    return [event for event in profile.events() if event.device_type == on_gpu]


def by_kernel(function: Callable[[], object], most: int, steps: int = 1) -> dict[str, Row]:
    """Launches and seconds of a step on the GPU: of all kernels, and of those that take longest.

    Args:
        function: Runs so many steps.
        most: How many kernels are named.
        steps: How many those are.
    """
    seconds, launches = Counter[str](), Counter[str]()
    for event in events_on_gpu(function):
        for name in ("all", short_name(event.name)):
            seconds[name] += event.device_time * 1e-6
            launches[name] += 1
    return {
        name: {"launches": f"{launches[name] / steps:.5g}", "seconds": rounded(spent / steps)}
        for name, spent in seconds.most_common(1 + most)
    }


def kernel_rows(about: Row, profile: Callable[[], dict[str, Row]], setup: Setup) -> Iterator[Row]:
    """A row for each name in a profile, or one that says why there is none."""
    numbers, status = attempt(profile) if setup.on_gpu else (None, "needs a GPU")
    for provider, row in (numbers or {"all": {}}).items():
        yield about | {"provider": provider, "status": status, **row}


def short_name(name: str) -> str:
    """A kernel without its types and arguments."""
    parts = [x for x in name.replace("(", "<").split("<") if x.strip(" >")]
    return " ".join(parts[:1] + [x for x in parts if "Functor" in x or "lambda" in x][:1])[:80]


def copy_bandwidth(setup: Setup) -> float:
    """Bytes read and written by a second of copying from device to device."""
    source = setup.random(*([2**14] if setup.quick else [2**14, 2**16]))
    target = torch.empty_like(source)
    calls = 3 if setup.quick else 30
    # long enough for the clocks to rise
    for count in (2 * calls, 2 * calls, calls):
        seconds = block_seconds(lambda: target.copy_(source), count, setup, STREAM)
    return rounded(2 * source.nbytes / seconds)


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# numbers


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


def with_spread(*names: str) -> tuple[str, ...]:
    """The columns of quantities that have a median and percentiles."""
    return tuple(f"{name}{suffix}" for name in names for suffix in SPREAD)


# files of results


class File(NamedTuple):
    """A CSV; a section replaces the rows that have its name in the column ``part``."""

    name: str
    columns: tuple[str, ...]
    part: str = "section"


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows or none: a run that is cut off leaves the old file whole."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(path.name + ".partial")
    partly.write_text(text.getvalue(), encoding="utf-8", newline="")
    partly.replace(path)


def write_section(
    folder: Path, file: File, order: Sequence[str], section: str, rows: Sequence[Row]
) -> None:
    """The new rows of a section with the stored ones of the others, in the order of sections."""
    path = folder / file.name
    stored = read_csv(path) if path.exists() else []
    others = [row for row in stored if row[file.part] != section]
    places = {name: place for place, name in enumerate(order)}
    ordered = sorted([*others, *rows], key=lambda row: places.get(row[file.part], len(places)))
    write_csv(path, file.columns, ordered)


def about_run(options: argparse.Namespace, setup: Setup) -> Row:
    """Where, with what and how this run was made; a file keeps the columns that it knows."""
    gpu = torch.cuda.get_device_properties(setup.device) if setup.on_gpu else None
    commit = options.commit or git("rev-parse", "--short", "HEAD") or "unknown"
    changed = not options.commit and git("status", "--porcelain")
    return {
        "device": setup.device.type,
        "machine": gpu.name if gpu else cpu_name(),
        "gpu": gpu.name if gpu else f"none ({cpu_name()})",
        "l2_bytes": gpu.L2_cache_size if gpu else "",
        "copy_bandwidth": setup.bandwidth,
        "copy_bandwidth_end": "",
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "dtype": "float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "reinmax": version_of("reinmax"),
        "discretegrad": discretegrad.__version__,
        "commit": commit,
        "uncommitted_changes": "unknown" if commit == "unknown" else "yes" if changed else "no",
        "date": datetime.date.today().isoformat(),
        "command": options.command,
    }


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """The processor, as the system calls it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def git(*arguments: str) -> str:
    """What git says about this repository; nothing where there is none."""
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


# a benchmark


@dataclass(frozen=True)
class Benchmark:
    """A script: what it measures, and where that is written."""

    script: str
    description: str
    """With examples at its end."""
    sections: Mapping[str, Callable[[Setup], Iterator[Row]]]
    files: Mapping[str, File]
    """Of each section."""
    devices: tuple[str, ...] = ("cuda", "cpu")
    """The first is the default; if that is a GPU, a CPU only rehearses, with --quick."""
    threads: int | None = None
    """That torch may use; as many as it likes if None."""
    limit_seconds: float = math.inf
    quick_sections: tuple[str, ...] = ()
    """What is small enough for a rehearsal; all if empty."""
    add_arguments: Callable[[argparse.ArgumentParser], object] = bool
    read_arguments: Callable[[argparse.Namespace], tuple[Any, list[str], Row]] | None = None
    """Data of the setup, flags of the recorded command, columns. ValueError: wrong arguments."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Measure the chosen sections; 1 if something is wrong."""
        options = self.parse(arguments)
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(0)
        begin = time.perf_counter()
        setup = Setup(
            torch.device(options.device),
            options.quick,
            deadline=begin + options.limit,
            folder=options.output,
            data=options.data,
        )
        columns = {column for section in options.only for column in self.files[section].columns}
        about = options.about
        if "copy_bandwidth" in columns:
            setup = setup._replace(bandwidth=copy_bandwidth(setup))
            print(f"copy bandwidth: {setup.bandwidth / 1e12:.3f} TB/s", flush=True)
            release()
        about = about_run(options, setup) | about
        done, broken = self.measure(options.only, setup, about)
        if "copy_bandwidth" in columns:
            about["copy_bandwidth_end"] = copy_bandwidth(setup)
            print(f"copy bandwidth at the end: {about['copy_bandwidth_end'] / 1e12:.3f} TB/s")
            for section, rows in done.items():
                self.write(options.output, section, [about | row for row in rows])
        for row in (row for rows in done.values() for row in rows if is_red(row)):
            broken.append(self.line(row))
        print(*broken, f"written: {options.output}, {time.perf_counter() - begin:.0f} s", sep="\n")
        if options.output == STORED:
            if setup.on_gpu:  # a machine with a GPU may lack what draws the pictures
                print("now write the pages: python benchmarks/table.py")
            else:
                subprocess.run([sys.executable, str(STORED / "table.py")], check=True)
        return 1 if broken else 0

    def measure(
        self, sections: Sequence[str], setup: Setup, about: Row
    ) -> tuple[dict[str, list[Row]], list[str]]:
        """The rows of each section, written as soon as it is done, and what broke off."""
        begin, broken = time.perf_counter(), []
        done: dict[str, list[Row]] = {section: [] for section in sections}
        for section, rows in done.items():
            print(f"{section} ({time.perf_counter() - begin:.0f} s)", flush=True)
            try:
                for row in self.sections[section](setup):
                    print(f"  {self.line(row)}", flush=True)
                    rows.append(row)
            except Exception:
                traceback.print_exc()
                broken.append(f"{section} broke off")
            self.write(setup.folder, section, [about | row for row in rows])
        return done, broken

    def line(self, row: Row) -> str:
        """A line of the log: what a row is about, and its numbers or why it has none."""
        where = [str(row[x]) for x in ("case", "shape", "dtype", "mode", "provider") if row.get(x)]
        numbers = [f"{column} {row[column]}" for column in LOGGED if row.get(column, "") != ""]
        is_ok = row.get("status", "ok") == "ok"
        return f"{', '.join(where)}: {', '.join(numbers) if is_ok else row['status']}"

    def write(self, folder: Path, section: str, rows: Sequence[Row]) -> None:
        """Replace the rows of a section; in a file without a status, if none of them is red."""
        file = self.files[section]
        if "status" not in file.columns:
            is_whole = not any(map(is_red, rows))
            rows = [row for row in rows if is_whole and row.get("status", "ok") == "ok"]
        if rows:
            order = [name for name in self.sections if self.files[name] == file]
            write_section(folder, file, order, section, rows)

    @property
    def by_device(self) -> bool:
        """Whether the sections are the devices, so that --device chooses one."""
        return set(self.sections) == set(self.devices)

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The options, and what follows from them."""
        parser = argparse.ArgumentParser(
            description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add, names = parser.add_argument, list(self.sections)
        if not self.by_device:
            text = f"sections to measure, of {', '.join(names)} (default: all)"
            add("--only", nargs="+", choices=names, metavar="SECTION", help=text)
        text = f"where (default: {self.devices[0]})"
        add("--device", choices=self.devices, default=self.devices[0], help=text)
        text = "miniature sizes and two rounds: does it run? not a measurement"
        add("--quick", action="store_true", help=text)
        text = f"begin no case later than that (default: {self.limit_seconds:g})"
        add("--limit", type=float, default=self.limit_seconds, metavar="SECONDS", help=text)
        text = f"that torch may use (default: {self.threads or 'as many as it likes'})"
        add("--threads", type=int, default=self.threads, help=text)
        text = "folder of the CSV (default: benchmarks; for a rehearsal output/benchmarks)"
        add("--output", type=Path, metavar="DIR", help=text)
        text = "the commit that this tree is an exact copy of, for a machine where git cannot tell"
        add("--commit", metavar="HASH", help=text)
        self.add_arguments(parser)
        options = parser.parse_args(arguments)
        gpu_only = self.devices[0] == "cuda"
        if options.threads is not None and options.threads < 1:
            parser.error(f"expected --threads of at least 1, got {options.threads}")
        if gpu_only and options.device == "cpu" and not options.quick:
            parser.error("a CPU would take hours; it only rehearses, with --quick")
        if options.device == "cuda" and not torch.cuda.is_available():
            parser.error("expected a CUDA device, torch finds none; --device cpu --quick rehearses")
        options.output = (options.output or (REHEARSED if options.quick else STORED)).resolve()
        if options.quick and options.output == STORED:
            parser.error("a rehearsal (--quick) is not written to benchmarks")
        chosen = [options.device] if self.by_device else options.only
        if not chosen and options.quick:
            chosen = self.quick_sections
        options.only = [name for name in names if name in (chosen or names)]
        try:
            options.data, flags, options.about = (
                self.read_arguments(options) if self.read_arguments else (None, [], {})
            )
        except ValueError as error:
            parser.error(str(error))
        options.command = self.command(options, flags)
        return options

    def command(self, options: argparse.Namespace, flags: Sequence[str]) -> str:
        """From the options, so that no path of this machine is recorded."""
        parts = [f"python {self.script}", *flags]
        parts += [f"--device {options.device}"] if options.device != self.devices[0] else []
        parts += ["--quick"] if options.quick else []
        if len(options.only) < len(self.sections) and not self.by_device:
            parts.append(f"--only {' '.join(options.only)}")
        parts += [f"--threads {options.threads}"] if options.threads != self.threads else []
        return " ".join(parts)
