"""Time stacks of Tree-LSTMs on ListOps against the released algorithm, one run at a time.

  step      the network of the paper (hidden size 300, batch 16): time of a run-step in stacks with
            the five estimators of the paper, and of RLOO with four parses of an expression
  profile   what a step of the largest stack does on a GPU: kernels by the time that they take, for
            a short and a long width

A run-step is one step of one member. Beside every stack, in the same rounds, runs the released
algorithm in plain PyTorch: one run, modules of torch.nn, after every merge all neighbours composed
anew, ReinMax with stopped gradients, torch.optim.RAdam, clipped gradients, expressions that lie on
the device in batches of similar lengths, padded to the longest of each. Its round takes batches of
all lengths in the proportions of the data. An epoch of a stack contains all that training does; its
two validations are of a few expressions, since nothing is to be learned from them here. All times
are on the wall clock, with the device idle at both ends. Before a stack is timed, the loss of its
first epoch must be that of the plain loop: a speedup is never reported on a red gate.

The expressions are a random part of the training set. Without --data they are generated; so few
of them are shorter than those of the training set, since short ones come first.

The CSV is written after each section and keeps the stored rows of the others; the tables of
docs/listops.md follow from it (python benchmarks/table.py). DATA holds the folder listops.

examples:
  PYTHONPATH=src python benchmarks/listops.py --data DATA --commit HASH --output FOLDER
  PYTHONPATH=src python benchmarks/listops.py --data DATA --only profile
  PYTHONPATH=src python benchmarks/listops.py --device cpu --quick              does it run?
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pages
import torch
from contest import PLAIN, STACK, Metrics, Rival, contest, loss_faults
from files import MADE, ON_GPU, File, Row, with_spread
from machine import Setup
from memory import peak_memory
from plain_tree import PlainLoop
from profiles import by_kernel, kernel_rows, kernels_table
from script import Benchmark
from timing import Entry, Pace

from discretegrad_lab import Stack
from discretegrad_lab.stack.precision import tf32
from discretegrad_lab.tasks.listops.batches import order
from discretegrad_lab.tasks.listops.config import Parsing
from discretegrad_lab.tasks.listops.data import (
    CLASSES,
    VOCABULARY,
    WIDTHS,
    Examples,
    ListOps,
    generate_listops,
    load_listops,
)
from discretegrad_lab.tasks.listops.model import ParsingModel
from discretegrad_lab.tasks.listops.recipes import SCORES, settings
from discretegrad_lab.tasks.listops.scored import ScoredParsing

FIVE, SCORED = f"{STACK} of five estimators", f"{STACK} of {SCORES[1].label}"
TOLERANCE = 0.05  # how far the loss of a stack may be from that of the plain loop


# what is trained


class Plan(NamedTuple):
    """How large everything is; a rehearsal has other numbers."""

    pace: Pace = Pace(rounds=5, seconds=0.0, calls=1)
    members: tuple[int, ...] = (25, 5, 1)
    """Of stacks, the important ones first, should the time run out."""
    scored: int = 5
    """Members of the stack of a score function."""
    steps: int = 200
    """Of an epoch."""
    plain_steps: int = 25
    """Of the plain loop in a round."""
    held_out: int = 8
    """Expressions of the validation, and of the test."""
    longest: int = WIDTHS[-1]
    """Tokens of an expression."""
    fields: Mapping[str, Any] = {}
    """Of the runs, besides those of the recipe."""
    profiled: tuple[int, ...] = (20, 56)
    """Widths."""


FULL = Plan()
QUICK = Plan(
    pace=Pace(rounds=2, seconds=0.0, calls=1),
    members=(2, 1),
    scored=1,
    steps=12,
    plain_steps=6,
    held_out=2,
    longest=20,
    fields={"hidden": 8, "embedding": 6, "batch": 4, "draws": 3},
)


def plan_of(setup: Setup) -> Plan:
    return QUICK if setup.quick else FULL


def runs_of(members: int, plan: Plan, lines: Sequence[Any] = ()) -> list[Parsing]:
    """The settings of the paper, with its estimators in turn."""
    chosen = settings()
    names = itertools.cycle(lines or ("reinmax", *(key for key in chosen if key != "reinmax")))
    runs = []
    for seed, name in zip(range(members), names, strict=False):
        setting = chosen.get(name, chosen["reinmax"])
        fields = {**setting._asdict(), "batch": 16, "tf32": True, **plan.fields}
        runs.append(
            Parsing(
                estimator=name,
                seed=seed,
                data="generated",
                examples=plan.steps * fields["batch"],
                longest=plan.longest,
                epochs=10**4,
                **fields,
            )
        )
    return runs


def expressions_of(plan: Plan, whole: ListOps | None = None) -> ListOps:
    """As many as are needed, of a whole data set or generated."""
    counts = (runs_of(1, plan)[0].train_examples, plan.held_out, plan.held_out)
    if whole is None:
        return generate_listops(0, counts, longest=plan.longest)
    parts = []
    for part, count in zip(whole, counts, strict=False):
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(part.labels), generator=generator)[:count]
        parts.append(Examples(*(x[chosen] for x in part)))
    return ListOps(*parts, parts[-1])


def stack_of(expressions: ListOps, device: torch.device, runs: Sequence[Parsing]) -> Stack:
    kind = ScoredParsing if runs[0].line.kind == "score" else ParsingModel
    return Stack(partial(kind, expressions=expressions), runs, device)


# what a step must do


class Work(NamedTuple):
    """Of one step of one run, at the mean width of the data."""

    width: float
    """The mean number of words that an expression is padded to."""
    multiplications: int
    """Of matrices, each with its addition counted as one more."""
    weight_bytes: int
    """Read for every word or merge again, and by the update of the optimiser."""
    state_bytes: int
    """For the inner products of every merge with every node that is left."""


def work_of(run: Parsing, widths: Sequence[int]) -> Work:
    """By the formulas of docs/listops.md."""
    size, words, batch = run.hidden, run.embedding, run.batch
    leaf, composition = 4 * size * size, 5 * size * 2 * size
    mean = statistics.fmean(widths)
    pairs = statistics.fmean(3 * width - 5 for width in widths)
    merges = mean - 1
    multiplied = batch * (
        # forward, gradient of the input, gradient of the weights
        3 * mean * (4 * size * words + leaf)
        # forward, the scores' gradient, gradient of the weights; chosen pairs go back once more
        + (3 * pairs + merges) * composition
        + 3 * size * (size + CLASSES)
    )
    parameters = 4 * size * (words + size + 2) + 5 * size * (2 * size + 1)
    parameters += size * (size + 1 + CLASSES + 1) + CLASSES + len(VOCABULARY) * words
    loops = 2 * (mean * leaf + merges * composition)
    # parameter, gradient and two moments are read, all but the gradient written; the gradient is
    # written, and read and written when it is clipped
    weights = 4 * (loops + 10 * parameters)
    # of a merge, for each place: the node, the composition and the two directions of its pair, and
    # the gradient, which is read and written
    nodes = statistics.fmean(width * (width - 1) / 2 for width in widths)
    states = 4 * batch * nodes * 2 * size * 6
    return Work(round(mean, 2), round(2 * multiplied), round(weights), round(states))


# the measurement


def step_rows(setup: Setup) -> Iterator[Row]:
    plan = plan_of(setup)
    expressions = expressions_of(plan, setup.data)
    (run,) = runs_of(1, plan)
    widths, _ = order(expressions.train.lengths, run.batch, [0], 0)
    work = work_of(run, widths)
    about = {"section": "step", "case": named(run), **work._asdict()}
    stacks = [(FIVE, runs_of(members, plan)) for members in plan.members]
    stacks.append((SCORED, runs_of(plan.scored, plan, SCORES[1:2])))
    make = partial(stack_of, expressions, setup.device)
    # the plain loop multiplies matrices as the stacks do
    with tf32(True):
        with peak_memory(setup) as peak:
            loop = PlainLoop(run, expressions.train, setup.device)
            loop.steps(range(len(loop.batches)))
        learned = loop.total.item() / len(loop.batches)
        chosen = loop.sample(plan.plain_steps)
        entry = Entry(PLAIN, partial(loop.steps, chosen), units=len(chosen))
        rival = Rival(entry, partial(faults, learned), peak[0])
        yield from contest(about, stacks, make, rival, plan.pace, setup)


def faults(plain_loss: float, stack: Stack, metrics: Metrics) -> list[str]:
    """What is wrong with the losses of a first epoch."""
    losses = metrics["train_loss"]
    return loss_faults(losses, statistics.fmean(losses), plain_loss, TOLERANCE)


def profile_rows(setup: Setup) -> Iterator[Row]:
    """The kernels of a step of the largest stack, by their names."""
    plan = plan_of(setup)
    stack: Any = None
    if setup.on_gpu:
        expressions = expressions_of(plan, setup.data)
        stack = stack_of(expressions, setup.device, runs_of(plan.members[0], plan))
        stack.advance()
    for width in plan.profiled:
        about = {"section": "profile", "case": f"width {width}", "members": plan.members[0]}
        yield from kernel_rows(about, partial(profiled, stack, width), setup)


def profiled(stack: Stack, width: int) -> dict[str, Row]:
    """Launches and seconds of all kernels of a step of a width, and of those that take longest."""
    model = stack.model
    model.begin_epoch(0)
    step = next(n for n in range(1, stack.steps_per_epoch) if model.prepare(n) == width)
    graph = stack._graphs[model.prepare(step)]
    return by_kernel(graph.replay, 12)


def named(run: Parsing) -> str:
    return f"hidden size {run.hidden}, batch {run.batch}"


FILE = File(
    "listops.csv",
    (
        *("section", "case", "provider", "members", "status", "rounds", "steps_per_epoch"),
        *(*with_spread("seconds", "speedup"), "start_seconds", "peak_bytes", "launches"),
        *Work._fields,
        *(*ON_GPU, *MADE, "expressions"),
    ),
)
SECTIONS = {"step": step_rows, "profile": profile_rows}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "the data directory with the folder listops (default: generated expressions)"
    parser.add_argument("--data", type=Path, metavar="DIR", help=text)


def read_arguments(options: argparse.Namespace) -> tuple[ListOps | None, list[str], Row]:
    """The data set, if it is wanted."""
    if options.data is None:
        return None, [], {"expressions": "generated"}
    return load_listops(options.data), ["--data DIR"], {"expressions": "of the training set"}


BENCHMARK = Benchmark(
    "benchmarks/listops.py",
    __doc__,
    SECTIONS,
    FILE,
    limit_seconds=300.0,
    add_arguments=add_arguments,
    read_arguments=read_arguments,
)
TARGETS = (
    pages.Target(
        {"section": "step", "provider": FIVE, "members": "25"},
        "25 members",
        "speedup",
        40.0,
        "at least {} times the run-steps per second of a plain loop",
    ),
)


# the page


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page."""
    return {
        "step": step_table(results.of(section="step")),
        "floor": floor_table(results.of(section="step")),
        "profile": kernels_table(results.of(section="profile")),
    }


def step_table(rows: Sequence[Row]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: row["provider"],
        "members": lambda row: row["members"],
        "a run-step": pages.seconds,
        "run-steps per second": lambda row: f"{1 / float(row['seconds']):,.1f}",
        "vs the plain loop": lambda row: pages.ratio(row, "speedup"),
        "memory": lambda row: pages.size(row["peak_bytes"]),
        "start": lambda row: f"{float(row['start_seconds']):.1f} s" if row["start_seconds"] else "",
    }
    return pages.table(rows, "", columns)


def floor_table(rows: Sequence[Row]) -> str:
    """What a run-step must do, and how long that takes at the measured bandwidth."""
    row = next(filter(pages.is_ok, rows), None)
    if row is None:
        return pages.NOT_MEASURED
    bandwidth = float(row["copy_bandwidth"])
    lines = [["matrix work", f"{int(row['multiplications']) / 1e9:.2f} GFLOP", ""]]
    for name, column in (("weights", "weight_bytes"), ("states", "state_bytes")):
        moved = int(row[column])
        lines.append([name, f"{moved / 1e6:.1f} MB", f"{1e6 * moved / bandwidth:.0f} µs"])
    heading = f"at {pages.tera(row['copy_bandwidth'])}"
    return pages.markdown([f"at a mean width of {row['width']}", "", heading], lines)


PAGE = pages.Page(pages.DOCS / "listops.md", (FILE.name,), blocks, TARGETS)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
