"""Time the samplers side by side on a CPU, and measure the memory they need.

One run measures forward plus backward of every sampler in benchmarks/cases.py, in float32:
reinmax at two temperatures, torch.nn.functional.gumbel_softmax, PyPI reinmax, and the other
samplers of the library. Times on one machine say little about another, so what counts are ratios
of times that were taken within moments of each other:

  - a block is a few calls after warm-up calls; its result is the median time of a call
  - a round is one block of every sampler, in an order that is shuffled anew each round
  - a ratio is formed within each round; reported are its median and its 20th and 80th percentile

Before anything is timed, every sampler must give right numbers at every shape: a speedup is never
reported on a red gate. Then the CSV is written in one piece, and docs/benchmarks.md and the README
follow from it.
"""

import argparse
import datetime
import gc
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import table
import torch
from measure import QUICK_OUTPUT, peak_bytes_on_cpu, provenance, spread, write_csv
from pages import ratio, relative
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import cases as cases_module
import discretegrad
from cases import CASES, PROVIDERS, PYPI, TORCH, Case, Inputs, Provider, forward_backward

BLOCK_SECONDS = 0.25  # a block ends early once it has taken this long
SLOW_SECONDS = 1.0  # a sampler that takes longer a call ...
SLOW_ROUNDS = 3  # ... is timed in this many rounds, one call each
CASE_SECONDS = 40.0  # on a busy machine a shape gets fewer rounds rather than more time ...
FEWEST_ROUNDS = 5  # ... but at least this many
_EXAMPLES = """examples:
  python benchmarks/run.py                      the full run, about three minutes on two cores
  python benchmarks/run.py --quick              does it run? seconds; writes under output/
  python benchmarks/run.py --shapes 400x8       one shape; writes under output/
  python benchmarks/run.py --render             only the pages again, from the stored CSV
"""

Row = dict[str, str | int | float]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console()
    if options.render:
        for path in table.write_all():
            console.print(f"written: {relative(path)}")
        return 0
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    chosen = [case for case in CASES if case.name in options.shapes]
    if options.quick:
        chosen = [Case(case.shape, calls=2, warmups=1, rounds=2) for case in chosen]

    faults = gate_all(chosen, console)
    if faults:
        console.print("[red]The gate is red, so nothing was timed and nothing was written:[/red]")
        for fault in faults:
            console.print(f"  {fault}")
        return 1

    rows = measure_all(chosen, options, console)
    write_csv(options.output, rows)
    for shown in summary(rows):
        console.print(shown)
    console.print(
        "times as fast as the baseline, median and 20th to 80th percentile; memory in "
        "tensors of the logits' size beyond the inputs"
    )
    console.print(f"written: {relative(options.output)}")
    if options.output == table.RESULTS:
        for path in table.write_all():
            console.print(f"written: {relative(path)}")
    else:
        console.print("The pages show benchmarks/results.csv, so they stay as they are.")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [case.name for case in CASES]
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=names,
        default=names,
        metavar="ROWSxCATEGORIES",
        help=f"shapes to measure, of {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds of two calls at the small shapes: a smoke test, not a measurement",
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads that torch may use (default: 2)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="the CSV to write (default: benchmarks/results.csv for a full run, from which the "
        "pages are made; output/benchmarks/results.csv for a partial one)",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="measure nothing; write docs/benchmarks.md and the README's tables again from what "
        "is stored",
    )
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error(f"expected --threads of at least 1, got {options.threads}")
    if options.quick and options.shapes == names:
        options.shapes = [case.name for case in CASES if case.shape[0] * case.shape[1] < 10**5]
    if options.output is None:
        full = options.shapes == names and not options.quick
        options.output = table.RESULTS if full else QUICK_OUTPUT / "results.csv"
    options.output = options.output.resolve()
    options.command = " ".join(
        ["python benchmarks/run.py", *(sys.argv[1:] if arguments is None else arguments)]
    )
    return options


def gate_all(chosen: Sequence[Case], console: Console) -> list[str]:
    """Every fault of every sampler at every shape."""
    faults = []
    for case in chosen:
        inputs = cases_module.make_inputs(case.shape)
        for provider in PROVIDERS:
            found = cases_module.gate(provider, inputs)
            faults += [f"{provider.name} at {case.name}: {fault}" for fault in found]
    if not faults:
        console.print("gate: every sampler gives right numbers at every shape")
    return faults


def measure_all(chosen: Sequence[Case], options: argparse.Namespace, console: Console) -> list[Row]:
    rows = []
    about = about_run(options)
    columns = (
        TextColumn("{task.description}", justify="right"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # drawn between rounds, never while a block is timed
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        for case in chosen:
            task = progress.add_task("", total=case.rounds)

            def show(doing: str, task=task, case=case, **changes: int) -> None:
                progress.update(task, description=f"{case.name}, {doing}", refresh=True, **changes)

            show("rounds")
            inputs = cases_module.make_inputs(case.shape)
            times = time_case(case, inputs, lambda show=show: show("rounds", advance=1))
            show("memory", total=max(map(len, times.values())))
            # after the timing, which the profiler would disturb
            peaks = {p.name: peak_extra_tensors(p, inputs) for p in PROVIDERS}
            show("rounds")
            rows += [row | about for row in case_rows(case, times, peaks)]
    return rows


def time_case(case: Case, inputs: Inputs, advance=lambda: None) -> dict[str, list[float]]:
    """Seconds of one call, for each sampler and round; a slow sampler has fewer rounds."""
    rng = random.Random(0)
    first_call = {provider.name: timed(provider, inputs) for provider in PROVIDERS}
    times: dict[str, list[float]] = {provider.name: [] for provider in PROVIDERS}
    begin = time.perf_counter()
    for number in range(case.rounds):
        if number >= FEWEST_ROUNDS and time.perf_counter() - begin > CASE_SECONDS:
            break
        for provider in rng.sample(PROVIDERS, len(PROVIDERS)):
            slow = first_call[provider.name] > SLOW_SECONDS
            if slow and number >= SLOW_ROUNDS:
                continue
            calls, warmups = (1, 0) if slow else (case.calls, case.warmups)
            times[provider.name].append(time_block(provider, inputs, calls, warmups))
        advance()
    return times


def time_block(provider: Provider, inputs: Inputs, calls: int, warmups: int) -> float:
    """Median seconds of a call, over some calls in a row."""
    gc.disable()
    try:
        if warmups:
            _several(provider, inputs, warmups)
        seconds = _several(provider, inputs, calls)
    finally:
        gc.enable()
    return statistics.median(seconds)


def _several(provider: Provider, inputs: Inputs, calls: int) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < calls and sum(seconds) < BLOCK_SECONDS:
        seconds.append(timed(provider, inputs))
    return seconds


def timed(provider: Provider, inputs: Inputs) -> float:
    begin = time.perf_counter()
    forward_backward(provider, inputs)
    return time.perf_counter() - begin


def peak_extra_tensors(provider: Provider, inputs: Inputs) -> float:
    """Most memory alive at once in forward and backward, beyond the inputs.

    In units of one tensor of the logits' size. The sample and the gradient count.
    """
    peak = peak_bytes_on_cpu(lambda: forward_backward(provider, inputs))
    return peak / (inputs.logits.numel() * inputs.logits.element_size())


def case_rows(case: Case, times: dict[str, list[float]], peaks: dict[str, float]) -> list[Row]:
    rows = []
    for provider in PROVIDERS:
        seconds = times[provider.name]
        row: Row = {
            "provider": provider.name,
            "mode": "forward+backward",
            "shape": case.name,
            "dtype": str(cases_module.DTYPE).removeprefix("torch."),
            "rounds": len(seconds),
            **spread("seconds", seconds, digits=4),
        }
        for short, baseline in (("torch", TORCH), ("pypi", PYPI)):
            # a slow sampler ran in the first rounds only: compare those
            ratios = [b / s for b, s in zip(times[baseline], seconds, strict=False)]
            row |= spread(f"speedup_{short}", ratios, digits=3)
        row["peak_extra_tensors"] = round(peaks[provider.name], 2)
        row["memory_share_pypi"] = round(peaks[provider.name] / peaks[PYPI], 3)
        rows.append(row)
    return rows


def about_run(options: argparse.Namespace) -> Row:
    """Where, with what and how this run was made."""
    return {
        "threads": options.threads,
        "cpu": provenance.cpu_name(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "reinmax": version("reinmax"),
        "discretegrad": discretegrad.__version__,
        "commit": provenance.commit(),
        "uncommitted_changes": "yes" if provenance.has_changes() else "no",
        "date": datetime.date.today().isoformat(),
        "command": options.command,
    }


def summary(rows: Sequence[Row]) -> list[Table]:
    """What was measured, a table for each shape."""
    shown: dict[str, Table] = {}
    for row in rows:
        shape = str(row["shape"])
        if shape not in shown:
            shown[shape] = Table(title=f"{shape}, forward plus backward", title_justify="left")
            shown[shape].add_column("sampler", no_wrap=True)
            for heading in ("vs torch", "vs PyPI", "memory"):
                shown[shape].add_column(heading, justify="right", no_wrap=True)
        shown[shape].add_row(
            str(row["provider"]).removesuffix("(hard=True)"),
            ratio(row, "speedup_torch"),
            ratio(row, "speedup_pypi"),
            f"{float(row['peak_extra_tensors']):.1f}",
        )
    return list(shown.values())


if __name__ == "__main__":
    raise SystemExit(main())
