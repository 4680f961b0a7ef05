"""Time stacks of training runs on a GPU, against a plain loop of one run and against its memory.

  polynomial   128 latents, batch 256, p = 2: run-steps per second of stacks
  overhead     what metrics, checkpoints and progress add to whole runs: of one estimator, and of
               Figure 1 as "discretegrad run polynomial-curves" trains it
  vae          the MNIST-VAE of the ReinMax paper, 8 categories x 4 latents, batch 100: time of a
               run-step in stacks of 1 to 320 members; at 160 also with five estimators
  bernoulli    the VAE with 200 Bernoulli variables, batch 100, binarised at every step: ReinMax
               and RODEO with two evaluations of the loss, RELAX with three

A run-step is one step of one member. Beside every stack, in the same rounds, runs the released
algorithm in plain PyTorch: one run, modules of torch.nn, ReinMax with stopped gradients as the
paper prints it, torch.optim.Adam, images that lie on the device, one step after the other; where a
stack has RODEO or RELAX, with the objects Rodeo and Relax of the library. All
times are on the wall clock, with the device idle at both ends. An epoch of a stack contains all
that training does: the order of the images, the random numbers, the mean loss. Before a stack is
timed it must have learned as much as the plain loop: a speedup is never reported on a red gate.

The CSV is written after each section and keeps the stored rows of the others; the page
docs/stack-benchmarks.md follows from it (python benchmarks/table.py). No stack is begun later than
150 seconds (--limit) after the start, the least important ones come last, and --only in a second
call measures a section again. DATA holds the folder mnist with its four files.

examples:
  PYTHONPATH=src python benchmarks/stacks.py --data DATA --commit HASH --output FOLDER
  PYTHONPATH=src python benchmarks/stacks.py --data DATA --only overhead --limit 260
  PYTHONPATH=src python benchmarks/stacks.py --synthetic --only vae     random pixels cost as much
  PYTHONPATH=src python benchmarks/stacks.py --device cpu --quick --synthetic     does it run?
"""

import argparse
import io
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import measure
import pages
import plain
import torch
from measure import Benchmark, Entry, File, Pace, RedGate, Row, Setup, Unavailable
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import discretegrad
from discretegrad_lab import Listener, Run, Stack, Store, execute, recipe, stack_of_task
from discretegrad_lab.report.document import Curve, Figure
from discretegrad_lab.runs.listener import Together
from discretegrad_lab.stack.lines import Line
from discretegrad_lab.tasks.bernoulli_vae import model as bernoulli
from discretegrad_lab.tasks.bernoulli_vae.config import BernoulliVae
from discretegrad_lab.tasks.bernoulli_vae.images import Split
from discretegrad_lab.tasks.data import DataError, Images, load_mnist
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.config import Vae
from discretegrad_lab.watch.board import Board

FIGURE = "polynomial-curves"
PLAIN, STACK, FIVE = "plain loop", "stack", "stack of five estimators"
# how far a stack may be from the plain loop: in its loss, and in how far that has fallen
TOLERANCE = {"vae": 0.15, "polynomial": 0.3, "bernoulli": 0.15}
# the five methods that the paper trains it with
FIVE_TAUS = {"reinmax": 1.3, "st": 1.4, "stgs": 0.5, "gst-1.0": 0.5, "gr-mck": 0.5}


# what is trained


class Plan(NamedTuple):
    """How large everything is; a rehearsal has other numbers."""

    pace: Pace = Pace(rounds=5, seconds=0.0, calls=1, slow_seconds=1.0, slow_rounds=3)
    steps: int = 50
    """Of the plain loop in a round."""
    vae: tuple[int, ...] = (160, 1, 320, 40, 10, 80)
    """Members of stacks, the important ones first, should the time run out."""
    polynomial: tuple[int, ...] = (256, 64, 1024)
    bernoulli: tuple[int, ...] = (75, 15)
    bernoulli_fields: Mapping[str, Any] = {}
    """Of the Bernoulli runs."""
    images: tuple[int, int] = (60_000, 10_000)
    """For training and for the test."""
    draws: int = 1000
    """Of GR-MCK."""
    fields: Mapping[str, Any] = {}
    """Of the polynomial runs."""
    whole: Mapping[str, tuple[int, int]] = {"vae": (10, 160), "polynomial": (64, 40)}
    """Members and epochs of the whole runs of one estimator: as many epochs as in the paper."""
    figure: Mapping[str, Sequence[Any]] = {}
    """Which of the runs of Figure 1; all of them if it does not say."""
    repeats_seconds: float = 20.0
    """Whole runs are repeated until they have taken so long, since disks are noisy ..."""
    repeats: int = 6
    """... but not more often than this."""
    bare: int = 8
    """Epochs without anything else, before a whole run and after it."""


FULL = Plan()
QUICK = Plan(
    pace=Pace(rounds=2, seconds=0.0, calls=1),
    steps=1,
    vae=(2, 1),
    polynomial=(3, 2),
    bernoulli=(2,),
    bernoulli_fields={"latents": 8, "batch": 20, "steps_per_epoch": 2},
    images=(200, 50),
    draws=5,
    fields={"latents": 32, "batch": 64, "steps_per_epoch": 40},
    whole={"vae": (2, 2), "polynomial": (3, 3)},
    figure={"seeds": (0,), "estimators": ("reinmax", "st")},
    repeats_seconds=60.0,
    repeats=2,
    bare=2,
)


class Data(NamedTuple):
    """What the sections get besides the setup."""

    plan: Plan
    images: Images | None = None
    """None if no section needs them."""


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


# lines of the section bernoulli, with the evaluations of the loss and where temperatures start
BERNOULLI: Mapping[str, tuple[str | Line, int, float]] = {
    "ReinMax": ("reinmax", 2, 1.1),
    "RODEO": ("rodeo", 2, 1.0),
    "RELAX": (Line("RELAX", "relax"), 3, 0.1),
}


def bernoulli_runs(label: str, members: int, plan: Plan) -> list[BernoulliVae]:
    """As the lab trains it on all its data sets, here on one."""
    line, evaluations, tau = BERNOULLI[label]
    fields: dict[str, Any] = {"data": "mnist", "evaluations": evaluations, "tau": tau, "tf32": True}
    return [
        BernoulliVae(estimator=line, seed=seed, **fields, **plan.bernoulli_fields)  # type: ignore[arg-type]
        for seed in range(members)
    ]


def figure_runs(plan: Plan) -> list[Run]:
    """Figure 1, with all its estimators and powers."""
    fields = {"epochs": plan.whole["polynomial"][1], **plan.fields}
    return [replace(run, **fields) for run in recipe(FIGURE).runs(**plan.figure)]


def whole_cases(plan: Plan) -> dict[str, list[Run]]:
    """What is trained from its beginning to its end, by name."""
    cases: dict[str, list[Run]] = {}
    for task, make in (("vae", vae_runs), ("polynomial", polynomial_runs)):
        members, epochs = plan.whole[task]
        runs = [replace(run, epochs=epochs) for run in make(members, plan)]
        cases[named(runs[0])] = runs
    return cases | {FIGURE: figure_runs(plan)}


def named(run: Run) -> str:
    """What a case is called."""
    if isinstance(run, BernoulliVae):
        return f"Bernoulli VAE, {run.line.label}, K = {run.evaluations}"
    if isinstance(run, Vae):
        return f"VAE {run.categories}x{run.latents}"
    assert isinstance(run, Polynomial)
    return f"polynomial {run.latents}x{run.batch}, p = {run.power:g}"


# the released algorithm in plain PyTorch: one run


class PlainVae:
    """The VAE as anybody would write it, with the images on the device."""

    def __init__(self, run: Vae, images: Tensor, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.encoder, self.decoder = (x.to(device) for x in plain.coders(widths(run)))
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
        sample = partial(plain.reinmax, tau=self.run.tau)
        return plain.negative_elbo(self.encoder, self.decoder, x, sample, self.run.categories)


class PlainPolynomial:
    """Polynomial programming likewise."""

    def __init__(self, run: Polynomial, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.run = run
        self.theta = torch.empty(run.latents, 2, device=device).uniform_(-0.01, 0.01)
        self.optimiser = torch.optim.Adam([self.theta.requires_grad_()], lr=run.learning_rate)

    def step(self) -> None:
        """A step, with its update."""
        z = plain.reinmax(self.theta.expand(self.run.batch, -1, -1), self.run.tau)
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


class PlainBernoulli:
    """The Bernoulli VAE likewise; its estimator is ReinMax, or an object of the library."""

    def __init__(self, run: BernoulliVae, images: Tensor, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        sizes = widths(run)
        self.encoder, self.decoder = (x.to(device) for x in plain.coders(sizes, run.slope))
        for layer in (*self.encoder, *self.decoder):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        self.estimator: nn.Module | None = None
        if run.line.row == "rodeo":
            self.estimator = discretegrad.Rodeo().to(device)
        elif run.line.row == "relax":
            self.estimator = discretegrad.Relax(run.latents, tau=run.tau).to(device)
        learned = [] if self.estimator is None else [*self.estimator.parameters()]
        parameters = [*self.encoder.parameters(), *self.decoder.parameters(), *learned]
        self.optimiser = torch.optim.Adam(parameters, lr=run.learning_rate)
        self.run, self.images = run, images.to(device)
        self.total = torch.zeros((), device=device)

    def step(self) -> None:
        """A step, with its update."""
        index = torch.randint(len(self.images), (self.run.batch,), device=self.images.device)
        grey = self.images[index].float() / 255
        x = (torch.rand_like(grey) < grey).float()
        loss = self.loss(x)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.total += loss.detach()

    def loss(self, x: Tensor) -> Tensor:
        """The mean negative ELBO, with a uniform prior."""
        logits = self.encoder(x)

        def f(z: Tensor) -> Tensor:
            pixels = self.decoder(z)
            costs = binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(-1)
            of_q = z * logits.detach() - softplus(logits.detach())
            return costs + of_q.sum(-1) + logits.shape[-1] * math.log(2)

        if self.estimator is not None:
            samples = 1 if self.run.line.row == "relax" else self.run.evaluations
            arguments = {"family": "bernoulli", "num_samples": samples}
            return discretegrad.expectation(logits, f, self.estimator, **arguments).mean()
        two = torch.stack([logits, torch.zeros_like(logits)], -1)
        samples = [plain.reinmax(two, self.run.tau)[..., 0] for _ in range(self.run.evaluations)]
        return torch.stack([f(z) for z in samples]).mean()


def widths(run: Vae | BernoulliVae) -> tuple[int, ...]:
    """Of the encoder's layers; the decoder has them in reverse."""
    if isinstance(run, BernoulliVae):
        return (bernoulli.PIXELS, *bernoulli.HIDDEN, run.latents)
    return (vae.PIXELS, *vae.HIDDEN, run.latents * run.categories)


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


def traffic(run: Vae | BernoulliVae) -> Traffic:
    sizes = widths(run)
    coder, decoder = list(itertools.pairwise(sizes)), list(itertools.pairwise(sizes[::-1]))
    layers = [*coder, *decoder]
    parameters = sum((i + 1) * o for i, o in layers)
    weights = sum(i * o for i, o in layers[1:])
    # a layer reads its input forward and again for the gradient of its weights, and writes its
    # output; the gradient at the output is written once, and read for the weights and the input
    samples = run.evaluations if isinstance(run, BernoulliVae) else 1
    activations = sum(2 * i + 4 * o for i, o in [*coder, *samples * decoder]) - layers[0][1]
    return Traffic(parameters, 36 * parameters + 4 * weights, 4 * run.batch * activations)


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


# stacks against the plain loop


class Rival(NamedTuple):
    """A plain loop that is warm, and what a stack must do as well as it."""

    step: Callable[[], object]
    gate: Callable[[Stack, Mapping[str, Sequence[float]]], list[str]]
    """What is wrong after the first epoch of a stack, given its metrics; empty if nothing is."""
    peak_bytes: int | str


def contest(about: Row, stacks: Stacks, rival: Rival, setup: Setup) -> Iterator[Row]:
    """A row for each stack, and one for the plain loop with what it took in all rounds."""
    all_plain: list[float] = []
    for provider, runs in stacks:
        row = about | {"provider": provider, "members": len(runs)}
        time_it = partial(timed_stack, runs, rival, setup, all_plain)
        numbers, row["status"] = measure.attempt(time_it)
        measure.release()
        yield row | (numbers or {})
    row = about | {"provider": PLAIN, "members": 1, "peak_bytes": rival.peak_bytes}
    if not all_plain:
        yield row | {"status": "not measured"}
        return
    yield row | {"status": "ok", "rounds": len(all_plain), **measure.spread("seconds", all_plain)}


def timed_stack(runs: Sequence[Run], rival: Rival, setup: Setup, all_plain: list[float]) -> Row:
    """Time a stack and the plain loop by turns; the times of the loop are added to a list."""
    setup.check_time()
    plan = setup.data.plan
    with measure.peak_memory(setup) as peak:
        begin = time.perf_counter()
        stack = stack_of_task(runs, setup.device, None)
        metrics = stack.advance()
        first = time.perf_counter() - begin
    if faults := rival.gate(stack, metrics):
        raise RedGate("; ".join(faults))
    run_steps = len(runs) * stack.steps_per_epoch
    entries = [
        Entry(STACK, stack.advance, units=run_steps),
        # after the stack the caches and the allocator are not its own
        Entry(PLAIN, rival.step, plan.steps, warmups=1),
    ]
    times = measure.race(entries, plan.pace, setup)
    all_plain += times[PLAIN]
    epoch = statistics.median(times[STACK]) * run_steps
    return {
        "rounds": len(times[STACK]),
        "steps_per_epoch": stack.steps_per_epoch,
        **measure.spread("seconds", times[STACK]),
        **measure.spread("speedup", measure.compared("speedup", times[STACK], times[PLAIN])),
        # building, compiling and capturing, until the stack trains
        "start_seconds": round(max(first - epoch, 0.0), 2),
        "peak_bytes": peak[0],
    }


def vae_rows(setup: Setup) -> Iterator[Row]:
    plan, images = setup.data
    assert images is not None
    (run,) = vae_runs(1, plan)
    stacks = [(STACK, vae_runs(members, plan)) for members in plan.vae]
    stacks.insert(1, (FIVE, vae_runs(max(plan.vae[0], len(FIVE_TAUS)), plan, FIVE_TAUS)))
    needed = traffic(run)
    about = {"section": "vae", "case": named(run), **needed._asdict()}
    # stacks read the images again for each, the plain loop multiplies with TF32 as they do
    with mock.patch.object(vae, "load_mnist", return_value=images), rounded_factors():
        with measure.peak_memory(setup) as peak:
            loop = PlainVae(run, images.train, setup.device)
            steps = len(images.train) // run.batch
            for _ in range(steps):
                loop.step()
            learned = loop.total.item() / steps
        rival = Rival(loop.step, partial(vae_faults, learned), peak[0])
        for row in contest(about, stacks, rival, setup):
            if row["status"] == "ok":
                floor = needed.floor_bytes / setup.bandwidth
                row["times_floor"] = measure.rounded(row["seconds"] / floor, 3)
            yield row


def vae_faults(
    plain_loss: float, stack: Stack, metrics: Mapping[str, Sequence[float]]
) -> list[str]:
    """What is wrong with the mean losses of a first epoch, if that of the plain loop is right."""
    losses = metrics["train"]
    if not all(map(math.isfinite, losses)):
        return ["a loss is not finite"]
    same = [x for x, run in zip(losses, stack.runs, strict=True) if run.estimator == "reinmax"]
    return too_far("its loss", statistics.median(same), plain_loss, TOLERANCE["vae"])


def bernoulli_rows(setup: Setup) -> Iterator[Row]:
    plan, images = setup.data
    assert images is not None
    split = Split(images.train[:50_000], images.test, images.test)
    with mock.patch.object(bernoulli, "load_split", return_value=split), rounded_factors():
        for label in BERNOULLI:
            (run,) = bernoulli_runs(label, 1, plan)
            needed = traffic(run)
            about = {"section": "bernoulli", "case": named(run), **needed._asdict()}
            stacks = [(STACK, bernoulli_runs(label, members, plan)) for members in plan.bernoulli]
            with measure.peak_memory(setup) as peak:
                loop = PlainBernoulli(run, split.train, setup.device)
                steps = min(run.steps_per_epoch, 300)
                for _ in range(steps):
                    loop.step()
                learned = loop.total.item() / steps
            rival = Rival(loop.step, partial(bernoulli_faults, learned, steps), peak[0])
            for row in contest(about, stacks, rival, setup):
                if row["status"] == "ok":
                    floor = needed.floor_bytes / setup.bandwidth
                    row["times_floor"] = measure.rounded(row["seconds"] / floor, 3)
                yield row


def bernoulli_faults(
    plain_loss: float, steps: int, stack: Stack, metrics: Mapping[str, Sequence[float]]
) -> list[str]:
    """What is wrong with the mean losses of a first epoch, which may be longer than the loop's."""
    losses = metrics["train"]
    if not all(map(math.isfinite, losses)):
        return ["a loss is not finite"]
    middle = statistics.median(losses)
    if steps < stack.steps_per_epoch and middle < plain_loss:
        return []
    return too_far("its loss", middle, plain_loss, TOLERANCE["bernoulli"])


def polynomial_rows(setup: Setup) -> Iterator[Row]:
    plan = setup.data.plan
    (run,) = polynomial_runs(1, plan)
    stacks = [(STACK, polynomial_runs(members, plan)) for members in plan.polynomial]
    with measure.peak_memory(setup) as peak:
        loop = PlainPolynomial(run, setup.device)
        before = loop.expected()
        for _ in range(run.steps_per_epoch):
            loop.step()
        fall = before - loop.expected()
    rival = Rival(loop.step, partial(polynomial_faults, before, fall), peak[0])
    return contest({"section": "polynomial", "case": named(run)}, stacks, rival, setup)


def polynomial_faults(
    before: float, plain_fall: float, stack: Stack, metrics: Mapping[str, Sequence[float]]
) -> list[str]:
    """What is wrong with how far the expected losses have fallen, on average."""
    fall = before - statistics.fmean(metrics["expected_loss"])
    return too_far("the fall of its loss", fall, plain_fall, TOLERANCE["polynomial"])


def too_far(what: str, value: float, of_plain: float, tolerance: float) -> list[str]:
    if abs(value - of_plain) <= tolerance * abs(of_plain):
        return []
    return [f"{what} is {value:.4g}, that of the plain loop {of_plain:.4g}"]


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


def overhead_rows(setup: Setup) -> Iterator[Row]:
    # read once, not by every stack
    with mock.patch.object(vae, "load_mnist", return_value=setup.data.images):
        for case, runs in whole_cases(setup.data.plan).items():
            row = {"section": "overhead", "case": case, "provider": STACK, "members": len(runs)}
            numbers, row["status"] = measure.attempt(partial(whole_run, runs, setup))
            measure.release()
            yield row | (numbers or {})


def whole_run(runs: Sequence[Run], setup: Setup) -> Row:
    """Train and store runs from their beginning to their end, against epochs of a bare stack."""
    setup.check_time()
    plan = setup.data.plan
    # so many that none of those measured is one with a test
    longer = [replace(run, epochs=10**6) for run in runs]
    bare_stack = stack_of_task(longer, setup.device, None)
    bare_stack.advance()
    bare = bare_epochs(bare_stack, setup)
    begin, timelines = time.perf_counter(), [stored_run(runs, setup)]
    while len(timelines) < plan.repeats and time.perf_counter() - begin < plan.repeats_seconds:
        timelines.append(stored_run(runs, setup))
    bare += bare_epochs(bare_stack, setup)
    return shares(timelines, bare) | {"steps_per_epoch": bare_stack.steps_per_epoch}


def stored_run(runs: Sequence[Run], setup: Setup) -> Timeline:
    timeline = Timeline()
    setup.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=setup.folder) as folder:
        # a terminal that nobody looks at
        console = Console(file=io.StringIO(), force_terminal=True, width=100)
        left = setup.deadline - time.perf_counter()
        with Board(console) as board:
            outcome = execute(
                runs,
                Store(Path(folder)),
                device=setup.device,
                budget=max(left, 1.0) if math.isfinite(left) else None,
                listener=Together(board, timeline),
            )
            timeline.end = time.perf_counter()
    if outcome.stopped_by == "budget":
        raise Unavailable(measure.TIME_OVER)
    if len(outcome.finished) < len(runs):
        raise RedGate(f"{len(runs) - len(outcome.finished)} runs did not finish")
    return timeline


def bare_epochs(stack: Stack, setup: Setup) -> list[float]:
    stack.epoch = 1
    return [measure.block_seconds(stack.advance, 1, setup) for _ in range(setup.data.plan.bare)]


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
        **{
            name: round(x, 5) for name, x in measure.spread("overhead", overheads, digits=6).items()
        },
        "bare_epoch_seconds": measure.rounded(middle),
        "run_seconds": measure.rounded(after_first + middle),
        "epochs_seconds": measure.rounded(sum(timeline.epochs[1:]) + middle),
        "checkpoint_seconds": measure.rounded(sum(timeline.checkpoints)),
        "end_seconds": measure.rounded(timeline.end - timeline.trained),
    }


# the benchmark

FILE = File(
    "stacks.csv",
    (
        *("section", "case", "provider", "members", "status", "rounds", "steps_per_epoch"),
        *(
            *measure.with_spread("seconds", "speedup"),
            "start_seconds",
            "peak_bytes",
            *Traffic._fields,
        ),
        *("times_floor", "epochs", *measure.with_spread("overhead"), "bare_epoch_seconds"),
        *("run_seconds", "epochs_seconds", "checkpoint_seconds", "end_seconds"),
        *("gpu", "l2_bytes", "copy_bandwidth", "copy_bandwidth_end", "python", "torch", "triton"),
        *("discretegrad", "commit", "uncommitted_changes", "date", "command", "images"),
    ),
)
# in this order they run, so that those with few rows come first
SECTIONS: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "polynomial": polynomial_rows,
    "overhead": overhead_rows,
    "vae": vae_rows,
    "bernoulli": bernoulli_rows,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pixels = parser.add_mutually_exclusive_group()
    text = "the data directory with the folder mnist (default: where the lab looks for it)"
    pixels.add_argument("--data", type=Path, metavar="DIR", help=text)
    text = "random pixels in place of MNIST, at the same cost"
    pixels.add_argument("--synthetic", action="store_true", help=text)


def read_arguments(options: argparse.Namespace) -> tuple[Data, list[str], Row]:
    """As many images as are needed."""
    plan = QUICK if options.quick else FULL
    if options.only == ["polynomial"]:
        return Data(plan), [], {"images": ""}
    if options.synthetic:
        generator = torch.Generator().manual_seed(0)
        random = partial(torch.randint, 256, dtype=torch.uint8, generator=generator)
        images = [random((count, vae.PIXELS)) for count in plan.images]
        return Data(plan, Images(*images)), ["--synthetic"], {"images": "random"}
    try:
        images = [x[:n] for x, n in zip(load_mnist(options.data), plan.images, strict=True)]
    except DataError as error:
        raise ValueError(f"{error}; or measure with --synthetic") from error
    return Data(plan, Images(*images)), ["--data DIR"], {"images": "mnist"}


BENCHMARK = Benchmark(
    "benchmarks/stacks.py",
    __doc__,
    SECTIONS,
    dict.fromkeys(SECTIONS, FILE),
    limit_seconds=150.0,
    add_arguments=add_arguments,
    read_arguments=read_arguments,
)


def _targets() -> Iterator[pages.Target]:
    def at(
        section: str,
        runs: Sequence[Run],
        *promise: Any,
        case: str = "",
        provider: str = STACK,
        unit: float = 1.0,
    ) -> pages.Target:
        case, members = case or named(runs[0]), str(len(runs))
        where = {"section": section, "case": case, "members": members, "provider": provider}
        label = f"{case}, {provider.replace('stack', f'{members} members')}"
        shown = partial(pages.interval, quantity=promise[0], unit=unit)
        return pages.Target(where, label, *promise, unit=unit, shown=shown)

    says = "at most {} µs per run-step"
    for provider, taus in ((STACK, None), (FIVE, FIVE_TAUS)):
        runs = vae_runs(160, FULL, taus)
        yield at("vae", runs, "seconds", 17.0, says, provider=provider, unit=1e-6)
    for label, most in (("ReinMax", 12.0), ("RODEO", 36.0), ("RELAX", 36.0)):
        yield at("bernoulli", bernoulli_runs(label, 75, FULL), "seconds", most, says, unit=1e-6)
    says = "at least {} times the run-steps per second of a plain loop"
    yield at("polynomial", polynomial_runs(256, FULL), "speedup", 50.0, says)
    says = "metrics, checkpoints and progress at most {} % of a run"
    for case, runs in whole_cases(FULL).items():
        yield at("overhead", runs, "overhead", 3.0, says, case=case, unit=0.01)


TARGETS = tuple(_targets())


# the page

RIVALS = {STACK: (PLAIN,), FIVE: (PLAIN, STACK)}


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page."""
    vae_results = results.of(section="vae")
    return {
        "provenance": pages.provenance(results.rows),
        "targets": pages.targets_table(TARGETS, results.rows),
        "losses": pages.bullets(losses(results))
        or ("Nowhere." if results.rows else pages.NOT_MEASURED),
        "vae": race_table(vae_results),
        "floor": floor_text(vae_results),
        "bernoulli": race_table(results.of(section="bernoulli")),
        "polynomial": race_table(results.of(section="polynomial")),
        "overhead": overhead_table(results.of(section="overhead")),
    }


def losses(results: pages.Results) -> list[str]:
    """Where a stack is slower than the plain loop, or a member larger than a plain run."""
    groups = []
    for section in ("vae", "polynomial", "bernoulli"):
        rows = [row | {"member": of_member(row)} for row in results.of(section=section)]
        for case in pages.cases(rows, "case"):
            loop = [row for row in case if row["provider"] == PLAIN]
            groups += [[*group, *loop] for group in pages.cases(case, "members")]
    return pages.losses(groups, RIVALS, place, "member")


def of_member(row: Row) -> float | str:
    """The memory of a member."""
    return float(row["peak_bytes"]) / int(row["members"]) if row["peak_bytes"] else ""


def place(row: Row) -> str:
    return f"{row['case']}, {pages.plural(row['members'], 'member')}"


def race_table(rows: Sequence[Row]) -> str:
    def of_stacks(cell: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda row: "" if row["provider"] == PLAIN else cell(row)

    several = len({row["case"] for row in rows}) > 1
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: f"{row['case']}: {row['provider']}" if several else row["provider"],
        "members": lambda row: row["members"],
        "a run-step": pages.seconds,
        "run-steps per second": lambda row: f"{1 / float(row['seconds']):,.0f}",
        "vs the plain loop": lambda row: pages.ratio(row, "speedup"),
    }
    if any(row["times_floor"] for row in rows):
        columns["vs the floor"] = of_stacks(lambda row: f"{pages.short(row['times_floor'])}x")
    columns |= {
        "memory": lambda row: pages.size(row["peak_bytes"]),
        "a member's": of_stacks(lambda row: pages.size(of_member(row))),
        "start": of_stacks(lambda row: f"{float(row['start_seconds']):.1f} s"),
    }
    ordered = sorted(
        rows, key=lambda row: (row["case"] if several else "", row["provider"], int(row["members"]))
    )
    return pages.table(ordered, "", columns)


def floor_text(rows: Sequence[Row]) -> str:
    """How many bytes these are, and how long they take."""
    row = next(filter(pages.is_ok, rows), None)
    if row is None:
        return pages.NOT_MEASURED
    parameters, floor, activations = (int(row[name]) for name in Traffic._fields)
    speed, bandwidth = pages.tera(row["copy_bandwidth"]), float(row["copy_bandwidth"])
    return pages.wrapped(
        f"With P = {parameters:,} and W = {(floor - 36 * parameters) // 4:,} these are "
        f"{floor / 1e6:.1f} MB, or {1e6 * floor / bandwidth:.1f} µs at "
        f"{speed}. Activations would add {activations / 1e6:.1f} MB, or "
        f"{1e6 * activations / bandwidth:.1f} µs, if none of them stayed in a cache: the input of "
        "a layer is read twice and its output written once, the gradient at the output is written "
        "once and read twice."
    )


def overhead_table(rows: Sequence[Row]) -> str:
    parts = ("run", "epochs", "checkpoint", "end")

    def part(name: str, row: Row) -> str:
        return f"{float(row[f'{name}_seconds']):.3f} s"

    def rest(row: Row) -> str:
        whole, *known = (float(row[f"{name}_seconds"]) for name in parts)
        return f"{whole - sum(known):.3f} s"

    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: row["case"],
        "members": lambda row: row["members"],
        "epochs": lambda row: row["epochs"],
        "times": lambda row: row["rounds"],
        "overhead": lambda row: f"{pages.interval(row, 'overhead', 0.01)} %",
    }
    headings = ("the run", "training", "waiting to save", "end")
    columns |= {x: partial(part, name) for x, name in zip(headings, parts, strict=True)}
    return pages.table(rows, "", columns | {"all else": rest})


# the picture

COLOURS = {STACK: "#0072b2", FIVE: "#d55e00", PLAIN: "#000000"}


def pictures(results: pages.Results) -> dict[str, list[Figure]]:
    """Time of a run-step over the members; that of the plain loop is a level line."""
    rows = results.of(section="vae", status="ok")
    if not rows:
        return {}
    largest = max(int(row["members"]) for row in rows)
    curves = []
    for mark, (provider, colour) in enumerate(COLOURS.items()):
        chosen = [row for row in rows if row["provider"] == provider]
        if provider == PLAIN:
            chosen += [row | {"members": largest} for row in chosen]
        chosen.sort(key=lambda row: int(row["members"]))
        members = [int(row["members"]) for row in chosen]
        points = ([1e6 * float(row[x]) for row in chosen] for x in measure.with_spread("seconds"))
        curves.append(Curve(provider, colour, members, *points, mark=mark))
    floor = 1e6 * int(rows[0]["floor_bytes"]) / float(rows[0]["copy_bandwidth"])
    words = {"reference": floor, "reference_name": "the floor", "log_y": True}
    figure = Figure(rows[0]["case"], "", "members", "µs per run-step", tuple(curves), **words)
    return {"stack_scaling.png": [figure]}


PAGE = pages.Page(pages.DOCS / "stack-benchmarks.md", (FILE.name,), blocks, pictures)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
