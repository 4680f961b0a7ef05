"""Time stacks of training runs on a GPU, against a plain loop of one run and against its memory.

  polynomial   128 latents, batch 256, p = 2: run-steps per second of stacks
  overhead     what metrics, checkpoints and progress add to whole runs: of one estimator, and of
               Figure 1 as "discretegrad run polynomial-curves" trains it
  vae          the MNIST-VAE of the ReinMax paper, 8 categories x 4 latents, batch 100: time of a
               run-step in stacks of 1 to 320 members; at 160 also with five estimators

A run-step is one step of one member. Beside every stack, in the same rounds, runs the released
algorithm in plain PyTorch: one run, modules of torch.nn, ReinMax with stopped gradients as the
paper prints it, torch.optim.Adam, images that lie on the device, one step after the other. A round
is an epoch of the stack and a block of steps of the plain loop in an order that is shuffled anew;
a speedup is formed within each round; reported are medians and 20th and 80th percentiles over
rounds. All times are on the wall clock, with the device idle at both ends. An epoch of a stack
contains all that training does: the order of the images, the random numbers, the mean loss. Before
a stack is timed it must have learned as much as the plain loop: a speedup is never reported on a
red gate.

The floor of the VAE is the time to move the bytes that a step of one run needs at least, at the
bandwidth of a plain copy that is measured in the same call. With P parameters, of which W are
weights of layers after the first one, these are 36 P + 4 W:

  28 P  the update reads parameter, gradient and two moments, and writes all but the gradient
   4 P  backward writes the gradient
   4 P  forward reads the parameters
   4 W  backward reads the weights; the images need no gradient

The CSV is written after each section and keeps the stored rows of the others; the page
docs/stack-benchmarks.md follows from it (python benchmarks/stacks_table.py).

On a machine with a GPU, where DATA holds the folder mnist with its four files (--synthetic in place
of --data DATA if it does not). No stack is begun later than 150 seconds (--limit) after the start,
the least important ones come last, and --only in a second call measures a section again:

  PYTHONPATH=src python benchmarks/stacks.py --data DATA --commit HASH --output FOLDER
  PYTHONPATH=src python benchmarks/stacks.py --data DATA --commit HASH --output FOLDER --only vae

Without a GPU, in seconds, to see whether it runs:

  PYTHONPATH=src python benchmarks/stacks.py --device cpu --quick --synthetic
"""

import argparse
import io
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest import mock

import torch
from kernels import (
    RedGate,
    Setup,
    Unavailable,
    about_run,
    attempt,
    block_seconds,
    copy_bandwidth,
    is_red,
    plain_reinmax,
    release,
)
from measure import (
    QUICK_OUTPUT,
    STORED,
    Promise,
    add_commit_argument,
    add_sections_argument,
    merged,
    spread,
    write_csv,
)
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from discretegrad_lab import recipes
from discretegrad_lab.config import Polynomial, Run, Vae
from discretegrad_lab.data import DataError, Images, load_mnist
from discretegrad_lab.display import Board, Together
from discretegrad_lab.execute import Listener, execute
from discretegrad_lab.store import Store
from discretegrad_lab.tasks import vae
from discretegrad_lab.trainer import Stack

RESULTS = "stacks.csv"
FIGURE = "polynomial-curves"
PLAIN, STACK, FIVE = "plain loop", "stack", "stack of five estimators"
SLOW_SECONDS = 1.0  # a stack whose epoch takes longer ...
SLOW_ROUNDS = 3  # ... is timed in this many rounds
# how far a stack may be from the plain loop: in its loss, and in how far that has fallen
TOLERANCE = {"vae": 0.15, "polynomial": 0.3}
LIMIT_SECONDS = 150.0
TIME_OVER = "not measured: the time was over"
_EXAMPLES = """examples:
  python benchmarks/stacks.py --data DATA                everything on a GPU
  python benchmarks/stacks.py --synthetic --only vae     random pixels cost as much as digits
  python benchmarks/stacks.py --device cpu --quick --synthetic
                                                         does it run? seconds, without a GPU
"""

Row = dict[str, Any]


# what is trained


class Plan(NamedTuple):
    """How large everything is."""

    rounds: int
    steps: int
    """Of the plain loop in a round."""
    vae: tuple[int, ...]
    """Members of stacks, the important ones first, should the time run out."""
    polynomial: tuple[int, ...]
    images: tuple[int, int]
    """For training and for the test."""
    draws: int
    """Of GR-MCK."""
    fields: Mapping[str, Any]
    """Of the polynomial runs."""
    whole: Mapping[str, tuple[int, int]]
    """Members and epochs of the whole runs of one estimator."""
    figure: Mapping[str, Sequence[Any]]
    """Which of the runs of Figure 1; all of them if it does not say."""
    repeats_seconds: float
    """Whole runs are repeated until they have taken so long, since disks are noisy ..."""
    repeats: int
    """... but not more often than this."""
    bare: int
    """Epochs without anything else, before a whole run and after it."""


FULL = Plan(
    rounds=5,
    steps=50,
    vae=(160, 1, 320, 40, 10, 80),
    polynomial=(256, 64, 1024),
    images=(60_000, 10_000),
    draws=1000,
    fields={},
    # as many epochs as in the paper
    whole={"vae": (10, 160), "polynomial": (64, 40)},
    figure={},
    repeats_seconds=20.0,
    repeats=6,
    bare=8,
)
QUICK = Plan(
    rounds=2,
    steps=1,
    vae=(2, 1),
    polynomial=(3, 2),
    images=(200, 50),
    draws=5,
    fields={"latents": 32, "batch": 64, "steps_per_epoch": 40},
    whole={"vae": (2, 2), "polynomial": (3, 3)},
    figure={"seeds": (0,), "estimators": ("reinmax", "st")},
    repeats_seconds=60.0,
    repeats=2,
    bare=2,
)
# the five methods that the paper trains it with
FIVE_TAUS = {"reinmax": 1.3, "st": 1.4, "stgs": 0.5, "gst-1.0": 0.5, "gr-mck": 0.5}


def vae_runs(members: int, plan: Plan, taus: Mapping[str, float] | None = None) -> list[Vae]:
    """The settings of the paper for ReinMax, or several estimators in turn."""
    taus = taus or {"reinmax": 1.3}
    return [
        Vae(
            estimator=name,
            tau=taus[name],
            learning_rate=5e-4,
            seed=seed,
            categories=8,
            latents=4,
            draws=plan.draws,
            tf32=True,
        )
        for seed, name in enumerate(itertools.islice(itertools.cycle(taus), members))
    ]


def polynomial_runs(members: int, plan: Plan) -> list[Polynomial]:
    return [Polynomial(estimator="reinmax", seed=seed, **plan.fields) for seed in range(members)]


def figure_runs(plan: Plan) -> list[Run]:
    """Figure 1, with all its estimators and powers."""
    fields = {"epochs": plan.whole["polynomial"][1], **plan.fields}
    return [replace(run, **fields) for run in recipes.get(FIGURE).runs(**plan.figure)]


def whole_cases(plan: Plan) -> dict[str, list[Run]]:
    """What is trained from its beginning to its end, by name."""
    found: dict[str, list[Run]] = {}
    for task, make in (("vae", vae_runs), ("polynomial", polynomial_runs)):
        members, epochs = plan.whole[task]
        runs = [replace(run, epochs=epochs) for run in make(members, plan)]
        found[named(runs[0])] = runs
    return found | {FIGURE: figure_runs(plan)}


def named(run: Run) -> str:
    """What a case is called."""
    if isinstance(run, Vae):
        return f"VAE {run.categories}x{run.latents}"
    assert isinstance(run, Polynomial)
    return f"polynomial {run.latents}x{run.batch}, p = {run.power:g}"


@dataclass(frozen=True)
class Target(Promise):
    """A promise about one number of the results."""

    section: str
    case: str
    members: int
    column: str
    limit: float
    says: str
    """The promise in words, with the limit in place of {}."""
    unit: float = 1.0


def _targets() -> Iterator[Target]:
    cases = {"vae": named(vae_runs(1, FULL)[0]), "polynomial": named(polynomial_runs(1, FULL)[0])}
    at = partial(Target, "vae", cases["vae"], 160)
    yield at("seconds", 17.0, "at most {} µs per run-step", 1e-6)
    at = partial(Target, "polynomial", cases["polynomial"], 256)
    yield at("speedup", 50.0, "at least {} times the run-steps per second of a plain loop")
    for case, runs in whole_cases(FULL).items():
        at = partial(Target, "overhead", case, len(runs))
        yield at("overhead", 3.0, "metrics, checkpoints and progress at most {} % of a run", 0.01)


TARGETS = tuple(_targets())


# the released algorithm in plain PyTorch


class PlainLoop(Protocol):
    """One run."""

    def step(self) -> None:
        """A step, with its update."""


class PlainVae:
    """The VAE as anybody would write it, with the images on the device."""

    def __init__(self, run: Vae, images: Tensor, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.encoder = perceptron(widths(run)).to(device)
        self.decoder = perceptron(widths(run)[::-1]).to(device)
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=run.learning_rate)
        self.run, self.images = run, images.to(device)
        self.batches: list[Tensor] = []
        # on the device: no step waits for its loss
        self.total = torch.zeros((), device=device)

    def step(self) -> None:
        """A step, with its update."""
        if not self.batches:
            order = torch.randperm(len(self.images), device=self.images.device)
            self.batches = [x for x in order.split(self.run.batch) if len(x) == self.run.batch]
        loss = self.loss(self.images[self.batches.pop()].float() / 255)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.total += loss.detach()

    def loss(self, x: Tensor) -> Tensor:
        """The mean negative ELBO, with one sample for each image."""
        latents, categories = self.run.latents, self.run.categories
        logits = self.encoder(x).unflatten(-1, (latents, categories))
        out = self.decoder(plain_reinmax(logits, self.run.tau).flatten(-2))
        reconstruction = binary_cross_entropy_with_logits(out, x, reduction="sum")
        q = logits.softmax(-1)
        divergence = (q * torch.log(q + 1e-10)).sum()
        return (reconstruction + divergence) / len(x) + latents * math.log(categories)


class PlainPolynomial:
    """Polynomial programming likewise."""

    def __init__(self, run: Polynomial, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.run = run
        self.theta = torch.empty(run.latents, 2, device=device).uniform_(-0.01, 0.01)
        self.optimiser = torch.optim.Adam([self.theta.requires_grad_()], lr=run.learning_rate)

    def step(self) -> None:
        """A step, with its update."""
        z = plain_reinmax(self.theta.expand(self.run.batch, -1, -1), self.run.tau)
        loss = distance(self.run, z[..., 0]).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    @torch.no_grad()
    def expected(self) -> float:
        """The expected loss, exactly."""
        of_one, of_zero = self.theta.softmax(-1).unbind(-1)
        zero, one = distance(self.run, torch.tensor([0.0, 1.0])).tolist()
        return (of_zero * zero + of_one * one).mean().item()


def widths(run: Vae) -> tuple[int, ...]:
    """Of the encoder's layers; the decoder has them in reverse."""
    return (vae.PIXELS, *vae.HIDDEN, run.latents * run.categories)


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    layers = [x for i, o in itertools.pairwise(sizes) for x in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def distance(run: Polynomial, x: Tensor) -> Tensor:
    return (x - 0.45).abs().pow(run.power)


# what a step must move


class Traffic(NamedTuple):
    """Of one step of one run."""

    parameters: int
    floor_bytes: int
    """For parameters, gradients and moments: the formula above."""
    activation_bytes: int
    """For activations besides, if none of them stayed in a cache."""


def traffic(run: Vae) -> Traffic:
    sizes = widths(run)
    layers = [*itertools.pairwise(sizes), *itertools.pairwise(sizes[::-1])]
    parameters = sum((i + 1) * o for i, o in layers)
    weights = sum(i * o for i, o in layers[1:])
    # a layer reads its input forward and again for the gradient of its weights, and writes its
    # output; the gradient at the output is written once, and read for the weights and the input
    activations = sum(2 * i + 4 * o for i, o in layers) - layers[0][1]
    return Traffic(parameters, 36 * parameters + 4 * weights, 4 * run.batch * activations)


# the measurement


class Context(NamedTuple):
    """What all sections need."""

    setup: Setup
    plan: Plan
    bandwidth: float
    deadline: float
    """By the clock of ``time.perf_counter``."""
    images: Images | None
    """None if no section needs them."""
    folder: Path
    """For runs that are stored on the way."""

    @property
    def device(self) -> torch.device:
        """Where everything runs."""
        return self.setup.device

    def check_time(self) -> None:
        """Begin nothing new after the deadline."""
        if time.perf_counter() > self.deadline:
            raise Unavailable(TIME_OVER)


COLUMNS = (
    "section",
    "case",
    "provider",
    "members",
    "status",
    "rounds",
    "steps_per_epoch",
    *(f"{name}{suffix}" for name in ("seconds", "speedup") for suffix in ("", "_p20", "_p80")),
    "start_seconds",
    "peak_bytes",
    "parameters",
    "floor_bytes",
    "activation_bytes",
    "times_floor",
    "epochs",
    *(f"overhead{suffix}" for suffix in ("", "_p20", "_p80")),
    "bare_epoch_seconds",
    "run_seconds",
    "epochs_seconds",
    "checkpoint_seconds",
    "end_seconds",
)


def empty_row(section: str, case: str, provider: str, members: int, status: str) -> Row:
    """What was not measured stays empty."""
    found = (section, case, provider, members, status)
    return dict.fromkeys(COLUMNS, "") | dict(zip(COLUMNS, found, strict=False))


class Rival(NamedTuple):
    """A plain loop that is warm, and what a stack must do as well as it."""

    loop: PlainLoop
    gate: Callable[[Stack, Mapping[str, Sequence[float]]], list[str]]
    """What is wrong after the first epoch of a stack, given its metrics; empty if nothing is."""
    peak_bytes: int | str


class Timed(NamedTuple):
    """What a race found."""

    stack: list[float]
    """Seconds of a run-step, one number for each round."""
    plain: list[float]
    """Likewise of the plain loop."""
    start_seconds: float
    """Until the stack trains: building, compiling, capturing."""
    peak_bytes: int | str
    steps_per_epoch: int


def race(runs: Sequence[Run], rival: Rival, context: Context) -> Timed:
    """Time a stack and the plain loop by turns."""
    context.check_time()
    setup, plan = context.setup, context.plan
    with peak_memory(setup) as peak:
        begin = time.perf_counter()
        stack = Stack(runs, context.device)
        metrics = stack.advance()
        first = time.perf_counter() - begin
    if faults := rival.gate(stack, metrics):
        raise RedGate("; ".join(faults))
    rng = random.Random(0)
    epochs: list[float] = []
    steps: list[float] = []
    rounds = plan.rounds
    while len(epochs) < rounds:
        for turn in rng.sample((STACK, PLAIN), 2):
            if turn == STACK:
                epochs.append(block_seconds(stack.advance, 1, setup, False))
            else:
                rival.loop.step()  # after the stack the caches and the allocator are not its own
                steps.append(block_seconds(rival.loop.step, plan.steps, setup, False))
        if epochs[0] > SLOW_SECONDS:
            rounds = min(rounds, SLOW_ROUNDS)
    work = len(runs) * stack.steps_per_epoch
    return Timed(
        [seconds / work for seconds in epochs],
        steps,
        max(first - statistics.median(epochs), 0.0),
        peak[0],
        stack.steps_per_epoch,
    )


@contextmanager
def peak_memory(setup: Setup) -> Iterator[list[int | str]]:
    """Most memory of the GPU that is in use at once, beyond what was; unknown on a CPU."""
    found: list[int | str] = [""]
    if not setup.on_gpu:
        yield found
        return
    release()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield found
    found[0] = torch.cuda.max_memory_allocated() - before


@contextmanager
def rounded_factors() -> Iterator[None]:
    """The plain loop multiplies matrices as the stacks do: with TF32 on GPUs that can."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


Stacks = Sequence[tuple[str, Sequence[Run]]]
"""Providers with their runs."""


def contest(section: str, case: str, stacks: Stacks, rival: Rival, context: Context) -> list[Row]:
    """A row for each stack, and one for the plain loop with what it took in all rounds."""
    rows, plain = [], []
    for provider, runs in stacks:
        timed, status = attempt(partial(race, runs, rival, context))
        release()
        row = empty_row(section, case, provider, len(runs), status)
        if timed is not None:
            plain += timed.plain
            ratios = [p / s for p, s in zip(timed.plain, timed.stack, strict=True)]
            row |= {
                "rounds": len(timed.stack),
                "steps_per_epoch": timed.steps_per_epoch,
                **spread("seconds", timed.stack, digits=4),
                **spread("speedup", ratios, digits=4),
                "start_seconds": round(timed.start_seconds, 2),
                "peak_bytes": timed.peak_bytes,
            }
        print(shown(row), flush=True)
        rows.append(row)
    row = empty_row(section, case, PLAIN, 1, "ok" if plain else "not measured")
    if plain:
        row |= {"rounds": len(plain), **spread("seconds", plain, digits=4)}
    row["peak_bytes"] = rival.peak_bytes
    print(shown(row), flush=True)
    return sorted([row, *rows], key=lambda row: (row["provider"], row["members"]))


def vae_rows(context: Context) -> list[Row]:
    plan, images = context.plan, context.images
    assert images is not None
    (run,) = vae_runs(1, plan)
    stacks = [(STACK, vae_runs(members, plan)) for members in plan.vae]
    stacks.insert(1, (FIVE, vae_runs(max(plan.vae[0], len(FIVE_TAUS)), plan, FIVE_TAUS)))
    with rounded_factors():
        with peak_memory(context.setup) as peak:
            loop = PlainVae(run, images.train, context.device)
            steps = len(images.train) // run.batch
            for _ in range(steps):
                loop.step()
            learned = loop.total.item() / steps
        rival = Rival(loop, partial(vae_faults, learned), peak[0])
        rows = contest("vae", named(run), stacks, rival, context)
    needed = traffic(run)
    for row in rows:
        row |= needed._asdict()
        if row["status"] == "ok":
            floor = needed.floor_bytes / context.bandwidth
            row["times_floor"] = float(f"{row['seconds'] / floor:.3g}")
    return rows


def vae_faults(plain: float, stack: Stack, metrics: Mapping[str, Sequence[float]]) -> list[str]:
    """What is wrong with the mean losses of a first epoch, if that of the plain loop is right."""
    losses = metrics["train"]
    if not all(map(math.isfinite, losses)):
        return ["a loss is not finite"]
    same = [x for x, run in zip(losses, stack.runs, strict=True) if run.estimator == "reinmax"]
    return too_far("its loss", statistics.median(same), plain, TOLERANCE["vae"])


def polynomial_rows(context: Context) -> list[Row]:
    plan = context.plan
    (run,) = polynomial_runs(1, plan)
    stacks = [(STACK, polynomial_runs(members, plan)) for members in plan.polynomial]
    with peak_memory(context.setup) as peak:
        loop = PlainPolynomial(run, context.device)
        before = loop.expected()
        for _ in range(run.steps_per_epoch):
            loop.step()
        fallen = before - loop.expected()
    rival = Rival(loop, partial(polynomial_faults, before, fallen), peak[0])
    return contest("polynomial", named(run), stacks, rival, context)


def polynomial_faults(
    before: float, fallen: float, stack: Stack, metrics: Mapping[str, Sequence[float]]
) -> list[str]:
    """What is wrong with how far the expected losses have fallen, on average."""
    found = before - statistics.fmean(metrics["expected_loss"])
    return too_far("the fall of its loss", found, fallen, TOLERANCE["polynomial"])


def too_far(what: str, found: float, plain: float, tolerance: float) -> list[str]:
    if abs(found - plain) <= tolerance * abs(plain):
        return []
    return [f"{what} is {found:.4g}, that of the plain loop {plain:.4g}"]


# whole runs


class Timeline(Listener):
    """When the things of a whole run happened."""

    def __init__(self) -> None:
        self.first_epoch = self.trained = self.end = 0.0
        """By the clock, when the first epoch, the last one and everything was done."""
        self.epochs: list[float] = []
        self.checkpoints: list[float] = []

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """The first one also compiles and captures."""
        self.first_epoch = self.first_epoch or time.perf_counter()
        self.epochs.append(seconds)

    def checkpointed(self, epoch: int, seconds: float) -> None:
        """Training has waited for that."""
        self.checkpoints.append(seconds)

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """What is left to do is waiting for the disk."""
        self.trained = time.perf_counter()


def overhead_rows(context: Context) -> list[Row]:
    rows = []
    for case, runs in whole_cases(context.plan).items():
        row = empty_row("overhead", case, STACK, len(runs), "")
        found, row["status"] = attempt(partial(whole_run, runs, context))
        release()
        row |= found or {}
        print(shown(row), flush=True)
        rows.append(row)
    return rows


def whole_run(runs: Sequence[Run], context: Context) -> Row:
    """Train and store runs from their beginning to their end, against epochs of a bare stack."""
    context.check_time()
    # so many that none of those measured is one with a test
    bare_stack = Stack([replace(run, epochs=10**6) for run in runs], context.device)
    bare_stack.advance()
    bare = bare_epochs(bare_stack, context)
    begin, timelines = time.perf_counter(), [stored_run(runs, context)]
    while (
        len(timelines) < context.plan.repeats
        and time.perf_counter() - begin < context.plan.repeats_seconds
    ):
        timelines.append(stored_run(runs, context))
    bare += bare_epochs(bare_stack, context)
    return shares(timelines, bare) | {"steps_per_epoch": bare_stack.steps_per_epoch}


def stored_run(runs: Sequence[Run], context: Context) -> Timeline:
    timeline = Timeline()
    with tempfile.TemporaryDirectory(dir=context.folder) as folder:
        # a terminal that nobody looks at
        console = Console(file=io.StringIO(), force_terminal=True, width=100)
        with Board(console) as board:
            outcome = execute(
                runs,
                Store(Path(folder)),
                device=context.device,
                budget=max(context.deadline - time.perf_counter(), 1.0),
                listener=Together(board, timeline),
            )
            timeline.end = time.perf_counter()
    if outcome.stopped_by == "budget":
        raise Unavailable(TIME_OVER)
    if len(outcome.finished) < len(runs):
        raise RedGate(f"{len(runs) - len(outcome.finished)} runs did not finish")
    return timeline


def bare_epochs(stack: Stack, context: Context) -> list[float]:
    stack.epoch = 1
    return [block_seconds(stack.advance, 1, context.setup, False) for _ in range(context.plan.bare)]


def shares(timelines: Sequence[Timeline], bare: Sequence[float]) -> Row:
    """What a run of so many bare epochs would not have taken, as a share of what it took.

    What comes before its first epoch, and compiling and capturing in it, is left out on both sides.
    Each run is compared with each of the bare epochs; the parts are those of the median run, of two
    the slower one.
    """
    timelines = sorted(timelines, key=lambda x: x.end - x.first_epoch)
    timeline = timelines[len(timelines) // 2]
    epochs, middle = len(timeline.epochs), statistics.median(bare)
    after_first = timeline.end - timeline.first_epoch
    overheads = [
        1 - epochs * seconds / (x.end - x.first_epoch + seconds)
        for x in timelines
        for seconds in bare
    ]
    return {
        "rounds": len(timelines),
        "epochs": epochs,
        **{name: round(x, 5) for name, x in spread("overhead", overheads, digits=6).items()},
        "bare_epoch_seconds": rounded(middle),
        "run_seconds": rounded(after_first + middle),
        "epochs_seconds": rounded(sum(timeline.epochs[1:]) + middle),
        "checkpoint_seconds": rounded(sum(timeline.checkpoints)),
        "end_seconds": rounded(timeline.end - timeline.trained),
    }


def rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


# in this order they run, so that those with few rows come first
SECTIONS: dict[str, Callable[[Context], list[Row]]] = {
    "polynomial": polynomial_rows,
    "overhead": overhead_rows,
    "vae": vae_rows,
}
WITH_IMAGES = ("overhead", "vae")


# the results


def shown(row: Row) -> str:
    """A line of the log."""
    where = f"  {row['case']}: {row['provider']}, {row['members']} members"
    if row["status"] != "ok":
        return f"{where}: {row['status']}"
    if row["section"] == "overhead":
        return f"{where}: {100 * row['overhead']:.2f} % of {row['run_seconds']} s"
    speedup = f", {row['speedup']} x plain" if row["speedup"] != "" else ""
    memory = f", {row['peak_bytes'] / 2**20:.0f} MiB" if row["peak_bytes"] != "" else ""
    start = f", started in {row['start_seconds']} s" if row["start_seconds"] != "" else ""
    return f"{where}: {row['seconds'] * 1e6:.2f} us a run-step{speedup}{memory}{start}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    begin = time.perf_counter()
    setup = Setup(torch.device(options.device), options.quick)
    bandwidth = copy_bandwidth(setup)
    release()
    print(f"copy bandwidth: {bandwidth / 1e12:.3f} TB/s", flush=True)
    about = about_run(options, setup, bandwidth) | {"images": options.images_are}
    del about["reinmax"]  # of no matter here
    plan = QUICK if options.quick else FULL
    options.output.mkdir(parents=True, exist_ok=True)
    context = Context(setup, plan, bandwidth, begin + options.limit, options.images, options.output)
    done: dict[str, list[Row]] = {}
    broken = []
    # read once, not by every stack
    with mock.patch.object(vae, "load_mnist", return_value=options.images):
        for section in options.only:
            print(f"{section} ({time.perf_counter() - begin:.0f} s)", flush=True)
            try:
                done[section] = SECTIONS[section](context)
            except Exception:
                traceback.print_exc()
                broken.append(section)
                continue
            write_section(options.output, section, [row | about for row in done[section]])
    about["copy_bandwidth_end"] = copy_bandwidth(setup)
    for section, rows in done.items():
        write_section(options.output, section, [row | about for row in rows])
    red = [row for rows in done.values() for row in rows if is_red(row)]
    for row in red:
        print(f"{row['section']}, {row['provider']}, {row['members']} members: {row['status']}")
    for section in broken:
        print(f"{section} broke off")
    print(f"written: {RESULTS}, {time.perf_counter() - begin:.0f} s", flush=True)
    return 1 if red or broken else 0


def write_section(folder: Path, section: str, rows: Sequence[Row]) -> None:
    path = folder / RESULTS
    write_csv(path, merged(path, list(SECTIONS), section, rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_sections_argument(parser, SECTIONS)
    pixels = parser.add_mutually_exclusive_group()
    pixels.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the data directory with the folder mnist (default: where the lab looks for it)",
    )
    pixels.add_argument(
        "--synthetic", action="store_true", help="random pixels in place of MNIST, at the same cost"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="a CPU is for rehearsals: no graphs (default: cuda)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="miniature sizes and two rounds: a smoke test, not a measurement",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        metavar="SECONDS",
        help=f"begin no stack later than that (default: {LIMIT_SECONDS:g})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"folder of {RESULTS} (default: benchmarks for a measurement, output/benchmarks for "
        "a rehearsal)",
    )
    add_commit_argument(parser)
    options = parser.parse_args(arguments)
    if options.output is None:
        options.output = QUICK_OUTPUT if options.quick else STORED
    options.output = options.output.resolve()
    if options.quick and options.output == STORED:
        parser.error("a rehearsal (--quick) is not written to benchmarks")
    if options.device == "cpu" and not options.quick:
        parser.error("a CPU would take hours; it only rehearses, with --quick")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA device, torch finds none; --device cpu only rehearses")
    options.only = [section for section in SECTIONS if section in options.only]
    needs_images = any(section in options.only for section in WITH_IMAGES)
    try:
        plan = QUICK if options.quick else FULL
        options.images = pictures(options, plan) if needs_images else None
    except DataError as error:
        parser.error(f"{error}; or measure with --synthetic")
    options.images_are = ("random" if options.synthetic else "mnist") if needs_images else ""
    # from the options, so that no path of this machine is recorded
    flags = ["--synthetic" if options.synthetic else "--data DIR"] if needs_images else []
    flags += ["--device cpu"] if options.device == "cpu" else []
    flags += ["--quick"] if options.quick else []
    flags += [f"--only {' '.join(options.only)}"] if len(options.only) < len(SECTIONS) else []
    options.command = " ".join(["python benchmarks/stacks.py", *flags])
    return options


def pictures(options: argparse.Namespace, plan: Plan) -> Images:
    """As many as are needed."""
    if not options.synthetic:
        return Images(*(x[:n] for x, n in zip(load_mnist(options.data), plan.images, strict=True)))
    generator = torch.Generator().manual_seed(0)
    return Images(
        *(
            torch.randint(256, (n, vae.PIXELS), dtype=torch.uint8, generator=generator)
            for n in plan.images
        )
    )


if __name__ == "__main__":
    sys.exit(main())
