"""Time architecture searches on a GPU: several processes of the lab beside a plain loop.

  step      the supernet of NATS-Bench (16 channels, 5 cells a stage, batch 64): time of a run-step
            with some numbers of processes, with both gradients of the architecture
  profile   what a step of one search does on a GPU: kernels by the time that they take

A run-step is one step of one search: an update of the weights, then one of the architecture. The
plain loop is one search as anybody would write it, after the released code: modules of torch.nn,
the chosen operation times its weight plus the weights of the others, the index of each edge asked
from the device where it is needed, torch.optim.SGD and Adam, float32 throughout. Both train on
random pixels, which cost as much as images. The time of the lab is that of epochs that begin when
all processes train and end before the first one is done, divided by the run-steps that all of them
take meanwhile. The plain loop is timed before and after each of them, on an idle GPU. Before
anything is timed, the lab's network must give the loss and the gradients of the plain one: a
speedup is never reported on a red gate.

The CSV is written after each section and keeps the stored rows of the others; the tables of
docs/architecture-search.md follow from it (python benchmarks/table.py).

examples:
  PYTHONPATH=src python benchmarks/search.py --commit HASH --output FOLDER
  PYTHONPATH=src python benchmarks/search.py --only profile
  PYTHONPATH=src python benchmarks/search.py --device cpu --quick              does it run?
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pages
import torch
from contest import beside_plain
from files import MADE, File, Row, with_spread
from machine import RedGate, Setup, Unavailable, attempt
from plain_search import PlainSearch
from profiles import ON_THE_CLOCK, by_kernel, kernel_rows, kernels_table
from script import Benchmark
from timing import block_seconds, rounded, spread
from torch import nn

from discretegrad_lab import Listener, Run, Stack, load_recipes
from discretegrad_lab.runs import mps
from discretegrad_lab.runs.processes import execute
from discretegrad_lab.tasks.nas.network import Samples, Supernet

SWEEP = Path(__file__).with_name("search_sweep.py")
LAB = "lab"
TOLERANCE = 1e-6  # how far a loss or gradient of the lab may be from those of the plain loop
CELL = (3, 2, 1, 4, 3, 0)  # one with all operations, which the gate compares
NEVER = "the processes never trained at the same time"


# what is trained


class Plan(NamedTuple):
    """How large everything is; a rehearsal has other numbers."""

    cases: tuple[tuple[int, str], ...] = ((12, "gdas"), (12, "full"), (5, "gdas"), (1, "gdas"))
    """Processes and the form of the gradient, the important ones first."""
    fields: Mapping[str, Any] = {"images": 50 * 64, "epochs": 8}
    """Of the runs: short epochs, so that many lie in the time of all processes."""
    plain_steps: int = 10
    """Of the plain loop, before and after."""


FULL = Plan()
QUICK = Plan(
    cases=((2, "gdas"), (2, "full")),
    fields={"channels": 2, "cells": 1, "images": 16, "batch": 8, "epochs": 15},
    plain_steps=2,
)


def plan_of(setup: Setup) -> Plan:
    return QUICK if setup.quick else FULL


def runs_of(count: int, gradient: str, plan: Plan) -> list[Any]:
    """Searches of random pixels, each with its own seed."""
    (recipe,) = load_recipes(SWEEP)
    runs = recipe.runs(seeds=range(count))
    return [replace(run, **{"gradient": gradient, **plan.fields}) for run in runs]


# the gate, and the time of the plain loop


def checked(run: Any, device: torch.device) -> None:
    """In float64: so deep a network magnifies what float32 rounds."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check(PlainSearch(run, device), run)
    finally:
        torch.set_default_dtype(default)


def check(loop: PlainSearch, run: Any) -> None:
    """The lab's network must have the loss and the gradients of the plain one."""
    device, dtype = loop.images.device, loop.images.dtype
    network = Supernet(run.channels, run.cells)
    flat = torch.zeros(1, network.size, device=device, dtype=dtype)
    plain = loop.named_weights()
    with torch.no_grad():
        for name, x in network.weights(flat, CELL, every=True).items():
            x.copy_(plain[name])
    flat.requires_grad_()
    one_hot = nn.functional.one_hot(torch.tensor(CELL, device=device), 5).to(dtype)
    z, own_z = one_hot.clone().requires_grad_(), one_hot.clone().requires_grad_()
    weights = network.weights(flat, CELL)
    logits = network(loop.images, weights, CELL, Samples(own_z))
    loss = nn.functional.cross_entropy(logits, loop.labels)
    plain_loss = loop.loss(z)
    names = ("head.linear", "stage0.cell0.1<-0.nor_conv_3x3.kernel", "stem.kernel")
    gradients = torch.autograd.grad(loss, [own_z, *(weights[name] for name in names)])
    expected = torch.autograd.grad(plain_loss, [z, *(plain[name] for name in names)])
    faults = []
    for name, x, y in zip(
        ("loss", "samples", *names), (loss, *gradients), (plain_loss, *expected), strict=True
    ):
        error = ((x - y).abs().max() / y.abs().max().clamp_min(1e-12)).item()
        if not error <= TOLERANCE:
            faults.append(f"{name} is off by {error:.2g}")
    if faults:
        raise RedGate("; ".join(faults))


def plain_seconds(loop: PlainSearch, steps: int, setup: Setup) -> list[float]:
    """Of each step."""
    loop.step()
    return [block_seconds(loop.step, 1, setup) for _ in range(steps)]


# the lab


class Clock(Listener):
    """When epochs began and ended, by run."""

    def __init__(self) -> None:
        self.epochs: dict[Run, list[tuple[float, float]]] = {}
        self.present: tuple[Run, ...] = ()

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """The next epochs are of these."""
        self.present = runs

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """Note the time."""
        end = time.perf_counter()
        for run in self.present:
            self.epochs.setdefault(run, []).append((end - seconds, end))

    def together(self) -> list[float]:
        """How long epochs took that lie in the time when all runs were trained."""
        # the first epoch of a run warms up
        begin = max(epochs[0][1] for epochs in self.epochs.values())
        end = min(epochs[-1][1] for epochs in self.epochs.values())
        every = [epoch for epochs in self.epochs.values() for epoch in epochs[1:]]
        return [last - first for first, last in every if begin <= first and last <= end]


def lab_seconds(runs: Sequence[Any], setup: Setup) -> list[float]:
    """Of a run-step, from each epoch while all processes train."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        execute(runs, folder, processes=len(runs), device=setup.device, listener=clock)
    if not (epochs := clock.together()):
        raise Unavailable(NEVER)
    return [seconds / (runs[0].steps_per_epoch * len(runs)) for seconds in epochs]


def step_rows(setup: Setup) -> Iterator[Row]:
    plan = plan_of(setup)
    (run,) = runs_of(1, "gdas", plan)
    precision = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        loop = PlainSearch(run, setup.device)
        gate = attempt(partial(checked, run, setup.device))[1]
        with mps.shared_gpu(str(setup.device)) as why_not:
            service = why_not or ("yes" if setup.on_gpu else "no GPU")
        cases = (
            (
                {"provider": LAB, "processes": processes, "gradient": gradient, "mps": service},
                partial(timed, runs_of(processes, gradient, plan), loop, setup),
            )
            for processes, gradient in plan.cases
        )
        about = {"section": "step", "case": named(run)}
        yield from beside_plain(about, cases, {"processes": 1, "gradient": "gdas"}, gate)
    finally:
        torch.backends.cudnn.allow_tf32 = precision


def timed(runs: Sequence[Any], loop: PlainSearch, setup: Setup, all_plain: list[float]) -> Row:
    """Time the lab between two rounds of the plain loop."""
    setup.check_time()
    steps, begin = plan_of(setup).plain_steps, len(all_plain)
    all_plain += plain_seconds(loop, steps, setup)
    times = lab_seconds(runs, setup)
    all_plain += plain_seconds(loop, steps, setup)
    # by its median: nothing of the two happens at the same time
    plain = statistics.median(all_plain[begin:])
    return {
        "rounds": len(times),
        "steps_per_epoch": runs[0].steps_per_epoch,
        **spread("seconds", times),
        **spread("speedup", [plain / seconds for seconds in times]),
    }


def profile_rows(setup: Setup) -> Iterator[Row]:
    """The kernels of a step, by their names."""
    for gradient in ("gdas", "full"):
        about = {"section": "profile", "case": gradient, "processes": 1, "gradient": gradient}
        yield from kernel_rows(about, partial(profiled, gradient, setup), setup)


def profiled(gradient: str, setup: Setup) -> dict[str, Row]:
    """Launches and seconds of a step: on the clock, of all kernels, and of those that take most."""
    (recipe,) = load_recipes(SWEEP)
    stack = Stack(recipe.task.model, runs_of(1, gradient, plan_of(setup)), setup.device)
    for _ in range(2):
        stack.advance()
    alone = block_seconds(stack.advance, 1, setup) / stack.steps_per_epoch
    return {
        ON_THE_CLOCK: {"seconds": rounded(alone)},
        **by_kernel(stack.advance, 15, stack.steps_per_epoch),
    }


def named(run: Any) -> str:
    return f"{run.channels} channels, {run.cells} cells a stage, batch {run.batch}"


FILE = File(
    "search.csv",
    (
        *("section", "case", "provider", "processes", "gradient", "mps", "status", "rounds"),
        *("steps_per_epoch", *with_spread("seconds", "speedup"), "launches"),
        *("gpu", "cpu", "cores", "threads", "python", "torch", "triton"),
        *MADE,
    ),
)
SECTIONS = {"step": step_rows, "profile": profile_rows}
BENCHMARK = Benchmark("benchmarks/search.py", __doc__, SECTIONS, FILE, limit_seconds=300.0)
TARGETS = (
    pages.Target(
        {"section": "step", "provider": LAB, "processes": "12", "gradient": "gdas"},
        "12 searches",
        "seconds",
        5.0,
        "at most {} ms per run-step",
        1e-3,
        partial(pages.interval, quantity="seconds", unit=1e-3),
    ),
)


# the page


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page."""
    return {
        "step": step_table(results.of(section="step")),
        "profile": kernels_table(results.of(section="profile")),
    }


def step_table(rows: Sequence[Row]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: f"{row['provider']}, {processes(row)}, {row['gradient']}",
        "a run-step": pages.seconds,
        "39,100 steps of all": minutes,
        "vs the plain loop": lambda row: pages.ratio(row, "speedup"),
        "MPS": lambda row: row["mps"],
    }
    return pages.table(rows, "", columns)


def processes(row: Row) -> str:
    return "1 process" if row["processes"] == "1" else f"{row['processes']} processes"


def minutes(row: Row) -> str:
    """How long the searches of all processes take, side by side."""
    return f"{39_100 * float(row['seconds']) * int(row['processes']) / 60:.0f} min"


PAGE = pages.Page(pages.DOCS / "architecture-search.md", (FILE.name,), blocks, TARGETS)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
