"""Time a training step with every estimator, and measure the memory it needs.

One problem for all: 200 Bernoulli variables for each of 100 images, a decoder 200-200-784, and f
the cross-entropy of 784 pixels. A step is the mean of f by `discretegrad.expectation`, and its
backward to the logits and to the decoder. Every estimator gets the same number of evaluations of
f, so those that need several for a sample draw fewer samples. Beside them run steps that compute
f alone, which is what every estimator has to do at least.

What counts are ratios of times that were taken within moments of each other:

  - a block is a few steps after a warm-up step; its result is the median time of a step
  - a round is one block of every estimator, in an order that is shuffled anew each round
  - a ratio is formed within each round; reported are its median and its 20th and 80th percentile

Before anything is timed, every estimator must give right gradients: a time is never reported on a
red gate. Then the rows of this device are replaced in the CSV, which is written in one piece, and
docs/estimator-costs.md follows from it.
"""

import argparse
import contextlib
import copy
import datetime
import gc
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import steps_table
import torch
from measure import (
    QUICK_OUTPUT,
    about_commit,
    add_commit_argument,
    peak_bytes_on_cpu,
    provenance,
    read_csv,
    spread,
    write_csv,
)
from pages import relative
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from steps_table import BASELINE, F_ALONE
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import discretegrad
from discretegrad import ESTIMATORS, Estimator

EVALUATIONS = 6  # of f in a step, by every estimator
BLOCK_SECONDS = 0.25  # a block ends early once it has taken this long
SLOW_SECONDS = 0.25  # an estimator whose step takes longer ...
SLOW_ROUNDS = 5  # ... is timed in this many rounds, one step each
RUN_SECONDS = 150.0  # on a busy machine all get fewer rounds rather than more time ...
FEWEST_ROUNDS = 5  # ... but at least this many
# relative to the largest entry in float32; standard errors of a mean
TOLERANCE = {"gradient": 1e-3, "standard errors": 6.0}
_EXAMPLES = """examples:
  python benchmarks/steps.py                    the full run on a CPU, about four minutes
  python benchmarks/steps.py --device cuda      on a GPU; keeps the stored rows of the CPU
  python benchmarks/steps.py --quick            does it run? seconds; writes under output/
  python benchmarks/steps.py --render           only the page again, from the stored CSV
"""

Row = dict[str, str | int | float]


class Sizes(NamedTuple):
    """Of a problem."""

    batch: int
    latents: int
    hidden: int
    pixels: int


FULL = Sizes(100, 200, 200, 784)
QUICK = Sizes(10, 20, 20, 30)
TINY = Sizes(4000, 3, 4, 5)


class Pace(NamedTuple):
    """How many steps make a block, after how many to warm up, and how many blocks a median."""

    steps: int
    warmups: int
    rounds: int


FULL_PACE = Pace(steps=5, warmups=1, rounds=25)
QUICK_PACE = Pace(steps=2, warmups=1, rounds=2)


class Problem:
    """Logits, a decoder, images, and f: the cross-entropy of an image given its bits."""

    def __init__(
        self,
        sizes: Sizes,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        same_rows: bool = False,
        steepness: float = 1.0,
    ) -> None:
        self.sizes, self.device, self.dtype = sizes, torch.device(device), dtype
        generator = torch.Generator().manual_seed(0)
        rows = 1 if same_rows else sizes.batch
        logits = torch.randn(rows, sizes.latents, generator=generator, dtype=dtype)
        images = torch.rand(rows, sizes.pixels, generator=generator) < 0.5
        logits = logits.expand(sizes.batch, -1).contiguous().to(self.device)
        self.images = images.to(dtype).expand(sizes.batch, -1).contiguous().to(self.device)
        # the same bits as two categories, for estimators of categories only
        pairs = torch.stack([logits, torch.zeros_like(logits)], -1)
        self.logits = {"bernoulli": logits.requires_grad_(), "categorical": pairs.requires_grad_()}
        self.decoder = nn.Sequential(
            nn.Linear(sizes.latents, sizes.hidden),
            nn.LeakyReLU(0.3),
            nn.Linear(sizes.hidden, sizes.pixels),
        )
        with torch.no_grad():
            for parameter in self.decoder.parameters():
                size = steepness * parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
        self.decoder.to(self.device, dtype)
        shape = (EVALUATIONS, sizes.batch, sizes.latents)
        self.samples = (torch.rand(shape, generator=generator) < 0.5).to(dtype).to(self.device)

    def f(self, bits: Tensor) -> Tensor:
        """One loss per image."""
        pixels = self.decoder(bits)
        return binary_cross_entropy_with_logits(pixels, self.images, reduction="none").sum(-1)

    def f_of_pairs(self, z: Tensor) -> Tensor:
        """The same for bits that are written as two categories."""
        return self.f(z[..., 0])

    def evaluate(self, samples: Tensor, vectorize: bool) -> Tensor:
        """f at samples in a leading axis, without the library."""
        if vectorize:
            return torch.vmap(self.f)(samples)
        return torch.stack([self.f(sample) for sample in samples])

    def forget_gradients(self) -> None:
        """As before the first step."""
        for tensor in (*self.logits.values(), *self.decoder.parameters()):
            tensor.grad = None


def tiny_problem(device: str = "cpu") -> Problem:
    """The same problem many times over; f varies enough that its gradient stands out from noise."""
    return Problem(TINY, device, torch.float64, same_rows=True, steepness=2.0)


class Plan(NamedTuple):
    """What a number of evaluations of f buys."""

    num_samples: int
    evaluations: int
    slopes: int
    """Evaluations of the gradient of f with respect to the sample."""


def plan(row: Estimator, evaluations: int = EVALUATIONS) -> Plan:
    """How many samples an estimator draws if it evaluates f that often."""
    if row.evaluations is None:
        raise ValueError(f"{row.name} evaluates f at all joint outcomes, not at {evaluations}")
    num_samples, left = divmod(evaluations - row.extra_evaluations, row.evaluations)
    if left or num_samples < row.min_samples:
        raise ValueError(f"{row.name} cannot use exactly {evaluations} evaluations of f")
    cost = row.cost(num_samples)
    return Plan(num_samples, *cost)


@dataclass(frozen=True)
class Provider:
    """One way to make a step on a problem."""

    name: str
    step: Callable[[], Tensor]
    """Returns the losses, with everything they need for backward done."""
    plan: Plan
    vectorize: bool
    reference: str
    """The provider that does the same evaluations of f and of its slopes, and nothing else."""
    estimator: str = ""
    """Its row of the registry; none for the references."""
    variant: str = ""
    family: str = "bernoulli"
    modules: Sequence[nn.Module] = field(default=(), repr=False)
    """What it keeps between steps."""

    @property
    def learned(self) -> list[nn.Parameter]:
        """The parameters of the estimator that get a gradient."""
        return [p for module in self.modules for p in module.parameters() if p.requires_grad]

    @property
    def key(self) -> tuple[str, bool]:
        """What tells it from all others."""
        return self.name, self.vectorize


class Learner(NamedTuple):
    """How to make an estimator that learns, and the same one without learning."""

    module: Callable[[int], nn.Module]
    """For so many latent variables."""
    frozen_options: Callable[[Any], dict[str, Any]]
    """Of the function, given the module."""


LEARNERS = {
    "muprop": Learner(lambda _: discretegrad.MuProp(), lambda _: {}),
    "double_cv": Learner(lambda _: discretegrad.bernoulli.DoubleCV(), lambda _: {}),
    # away from zero, where nothing but leave-one-out would be left
    "rodeo": Learner(
        lambda _: discretegrad.bernoulli.Rodeo(alpha=0.5, beta=0.5),
        lambda module: {"control": module.network, "alpha": 0.5, "beta": 0.5},
    ),
    "rebar": Learner(lambda _: discretegrad.Rebar(), lambda _: {}),
    "relax": Learner(
        lambda latents: discretegrad.Relax(discretegrad.ControlNetwork(latents)),
        lambda module: {"control": module.control},
    ),
}


def make_providers(problem: Problem, vectorize: bool) -> list[Provider]:
    """Every row of the registry that can run here, its variants, and the references."""
    found: list[Provider] = []
    references: dict[str, Provider] = {}
    for row in ESTIMATORS.values():
        if row.evaluations is None:
            continue
        reference = make_reference(problem, row, vectorize)
        references.setdefault(reference.name, reference)
        for variant, estimator, options in variants(problem, row):
            family = "bernoulli" if "bernoulli" in row.families else "categorical"
            modules = [x for x in (estimator, *options.values()) if isinstance(x, nn.Module)]
            step = partial(
                expectation_step,
                problem,
                family,
                estimator=estimator,
                num_samples=plan(row).num_samples,
                vectorize=vectorize,
                **options,
            )
            found.append(
                Provider(
                    f"{row.name} ({variant})" if variant else row.name,
                    step,
                    plan(row),
                    vectorize,
                    reference.name,
                    row.name,
                    variant,
                    family,
                    modules,
                )
            )
    return [*found, *references.values()]


def variants(problem: Problem, row: Estimator) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The ways to use an estimator: a name, what to give to ``expectation``, and options."""
    if row.name in LEARNERS:
        learner = LEARNERS[row.name]
        torch.manual_seed(0)
        module = learner.module(problem.sizes.latents).to(problem.device, problem.dtype)
        frozen = copy.deepcopy(module).requires_grad_(False)
        yield "frozen", row.name, learner.frozen_options(frozen)
        yield "learning", module, {}
        return
    yield "", row.name, {}
    if row.name == "reinforce":
        running = discretegrad.Reinforce("running").to(problem.device, problem.dtype)
        yield "running baseline", running, {}


def expectation_step(problem: Problem, family: str, **arguments: Any) -> Tensor:
    """A step as a user would write it."""
    f = problem.f if family == "bernoulli" else problem.f_of_pairs
    losses = discretegrad.expectation(problem.logits[family], f, family=family, **arguments)
    losses.mean().backward()
    return losses


def make_reference(problem: Problem, row: Estimator, vectorize: bool) -> Provider:
    """The evaluations of f and of its slopes that an estimator needs, and nothing else."""
    cost = plan(row)
    slopes = f"{cost.slopes} slope{'s' if cost.slopes > 1 else ''}"
    if not cost.slopes:
        name, step = F_ALONE, f_alone_step
    elif row.kind == "sampler":
        name, step = f"f, {slopes} by the same backward", joint_slopes_step
    elif cost.num_samples == cost.evaluations:
        name, step = f"f, {slopes} at the samples", own_slopes_step
    else:
        name, step = f"f, {slopes} at other points", other_slopes_step
    return Provider(name, partial(step, problem, cost, vectorize), cost, vectorize, name)


def f_alone_step(problem: Problem, cost: Plan, vectorize: bool) -> Tensor:
    losses = problem.evaluate(problem.samples[: cost.num_samples], vectorize)
    losses.mean().backward()
    return losses.mean(0)


def joint_slopes_step(problem: Problem, cost: Plan, vectorize: bool) -> Tensor:
    """Slopes from the backward that also serves the decoder, as a sampler gets them."""
    points = problem.samples[: cost.num_samples].detach().requires_grad_()
    losses = problem.evaluate(points, vectorize)
    losses.mean().backward()
    return losses.mean(0)


def own_slopes_step(problem: Problem, cost: Plan, vectorize: bool) -> Tensor:
    """Slopes at the samples from a backward of their own, before that of the decoder."""
    points = problem.samples[: cost.num_samples].detach().requires_grad_()
    losses = problem.evaluate(points, vectorize)
    torch.autograd.grad(losses.sum(), points, retain_graph=True)
    losses.mean().backward(inputs=list(problem.decoder.parameters()))
    return losses.mean(0)


def other_slopes_step(problem: Problem, cost: Plan, vectorize: bool) -> Tensor:
    """Slopes at points that are no samples and give the decoder no gradient."""
    losses = problem.evaluate(problem.samples[: cost.num_samples], vectorize)
    # between the discrete samples, as relaxed ones are
    points = (problem.samples[cost.num_samples : cost.evaluations] / 2 + 0.25).requires_grad_()
    torch.autograd.grad(problem.evaluate(points, vectorize).sum(), points)
    losses.mean().backward()
    return losses.mean(0)


def gate_all(problem: Problem, tiny: Problem, advance=lambda: None) -> list[str]:
    """Every fault of every provider."""
    faults = []
    frozen: dict[str, Tensor] = {}
    pairs = zip(make_providers(problem, False), make_providers(problem, True), strict=True)
    for provider, vectorized in pairs:
        found = gate(provider, problem)
        if not found:
            found = gate_same(provider, vectorized, problem, "with vectorize=True")
        if provider.variant == "frozen":
            frozen[provider.estimator] = logits_gradient(provider, problem)
        elif provider.variant == "learning" and not found:
            found = gate_learning(provider, problem, frozen[provider.estimator])
        faults += [f"{provider.name}: {fault}" for fault in found]
        advance()
    for provider in make_providers(tiny, False):
        if provider.estimator and provider.variant != "learning":
            if ESTIMATORS[provider.estimator].unbiased:
                faults += [f"{provider.name}: {fault}" for fault in gate_mean(provider, tiny)]
        advance()
    return faults


def gate(provider: Provider, problem: Problem) -> list[str]:
    """What is wrong with a step on the problem that will be timed."""
    with inputs_of(problem.decoder) as seen:
        losses = seeded_step(provider, problem)
    faults = []
    if losses.shape != (problem.sizes.batch,) or not losses.isfinite().all():
        faults.append("its losses are not one finite number per image")
    samples = [x for x in seen if ((x == 0) | (x == 1)).all()]
    counts = (len(samples), len(seen))
    if counts != provider.plan[:2]:
        faults.append(f"it evaluated f at {counts[0]} samples of {counts[1]} points")
        return faults
    faults += gate_gradients(provider, problem)

    found = [parameter.grad for parameter in problem.decoder.parameters()]
    problem.forget_gradients()
    problem.evaluate(torch.stack(samples), False).mean().backward()
    for ours, parameter in zip(found, problem.decoder.parameters(), strict=True):
        if ours is None or difference(ours, parameter.grad) > TOLERANCE["gradient"]:
            faults.append("the decoder's gradient is not that of f alone at the same samples")
            break
    problem.forget_gradients()
    return faults


@contextlib.contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Everything a module is called with."""
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    try:
        yield seen
    finally:
        hook.remove()


def gate_gradients(provider: Provider, problem: Problem) -> list[str]:
    gradients = {family: logits.grad for family, logits in problem.logits.items()}
    own = gradients.pop(provider.family) if provider.estimator else None
    if any(gradient is not None for gradient in gradients.values()):
        return ["logits that it should not know got a gradient"]
    if not provider.estimator:
        return []
    if own is None or own.shape != problem.logits[provider.family].shape:
        return ["the logits got no gradient of their shape"]
    if not own.isfinite().all() or not own.any():
        return ["the gradient of the logits is not finite, or zero"]
    return []


def gate_same(provider: Provider, other: Provider, problem: Problem, how: str) -> list[str]:
    """Whether two providers give the same gradients from the same random numbers."""
    gradients = []
    for each in (provider, other):
        seeded_step(each, problem)
        tensors = [*problem.decoder.parameters()]
        tensors += [problem.logits[each.family]] if each.estimator else []
        gradients.append([tensor.grad for tensor in tensors])
    for one, two in zip(*gradients, strict=True):
        if two is None or difference(two, one) > TOLERANCE["gradient"]:
            return [f"{how} it gives other gradients"]
    return []


def gate_learning(provider: Provider, problem: Problem, frozen: Tensor) -> list[str]:
    if difference(logits_gradient(provider, problem), frozen) > TOLERANCE["gradient"]:
        return ["learning changes the gradient of the logits"]
    gradients = [parameter.grad for parameter in provider.learned]
    if not gradients or any(g is None or not g.isfinite().all() for g in gradients):
        return ["what it learns got no finite gradient"]
    return []


def gate_mean(provider: Provider, tiny: Problem) -> list[str]:
    """Whether the mean of many estimates is the exact gradient, up to its standard error."""
    gradient = logits_gradient(provider, tiny) * tiny.sizes.batch  # step averages over the batch
    exact = discretegrad.exact_gradient(
        tiny.logits[provider.family][:1].detach(),
        lambda z: _first_image_loss(tiny, z if provider.family == "bernoulli" else z[..., 0]),
        family=provider.family,
    )[0]
    error = (gradient.mean(0) - exact).abs()
    standard_error = gradient.std(0) / gradient.shape[0] ** 0.5
    worst = (error / standard_error.clamp_min(1e-12)).max().item()
    if not worst < TOLERANCE["standard errors"]:
        return [f"its mean is off the exact gradient by {worst:.1f} standard errors"]
    return []


def _first_image_loss(problem: Problem, bits: Tensor) -> Tensor:
    pixels = problem.decoder(bits)
    return binary_cross_entropy_with_logits(pixels, problem.images[:1], reduction="none").sum(-1)


def seeded_step(provider: Provider, problem: Problem) -> Tensor:
    """The losses of a step that depends on no earlier one."""
    forget(provider, problem)
    for buffer in (buffer for module in provider.modules for buffer in module.buffers()):
        buffer.zero_()
    torch.manual_seed(1)
    return provider.step().detach()


def forget(provider: Provider, problem: Problem) -> None:
    """Drop all gradients, so that a step makes its own instead of adding to them."""
    problem.forget_gradients()
    for parameter in provider.learned:
        parameter.grad = None


def logits_gradient(provider: Provider, problem: Problem) -> Tensor:
    seeded_step(provider, problem)
    gradient = problem.logits[provider.family].grad
    assert gradient is not None
    return gradient.detach().clone()


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest entry that was expected."""
    largest = expected.abs().max().item()
    return (found - expected).abs().max().item() / max(largest, 1e-30)


def measure(
    providers: Sequence[Provider], problem: Problem, pace: Pace, advance=lambda: None
) -> dict[tuple[str, bool], list[float]]:
    """Seconds of one step, for each provider and round; a slow one has fewer rounds."""
    rng = random.Random(0)
    # the first step of all pays for loading code
    for provider in providers:
        time_steps(provider, problem, 1)
    slow = {p.key: time_steps(p, problem, 1)[0] > SLOW_SECONDS for p in providers}
    times: dict[tuple[str, bool], list[float]] = {provider.key: [] for provider in providers}
    begin = time.perf_counter()
    for number in range(pace.rounds):
        if number >= FEWEST_ROUNDS and time.perf_counter() - begin > RUN_SECONDS:
            break
        for provider in rng.sample(providers, len(providers)):
            if slow[provider.key] and number >= SLOW_ROUNDS:
                continue
            steps, warmups = (1, 0) if slow[provider.key] else (pace.steps, pace.warmups)
            times[provider.key].append(time_block(provider, problem, steps, warmups))
        advance()
    return times


def time_block(provider: Provider, problem: Problem, steps: int, warmups: int) -> float:
    """Median seconds of a step, over some steps in a row."""
    gc.disable()
    try:
        time_steps(provider, problem, warmups)
        seconds = time_steps(provider, problem, steps)
    finally:
        gc.enable()
    return statistics.median(seconds)


def time_steps(provider: Provider, problem: Problem, steps: int) -> list[float]:
    if problem.device.type == "cuda":
        return _time_steps_cuda(provider, problem, steps)
    seconds: list[float] = []
    while len(seconds) < steps and sum(seconds) < BLOCK_SECONDS:
        forget(provider, problem)
        begin = time.perf_counter()
        provider.step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _time_steps_cuda(provider: Provider, problem: Problem, steps: int) -> list[float]:
    """By events on the stream: steps follow each other as in training, nobody waits in between."""
    marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    torch.cuda.synchronize(problem.device)
    start = time.perf_counter()
    while len(marks) < steps and time.perf_counter() - start < BLOCK_SECONDS:
        forget(provider, problem)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        provider.step()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize(problem.device)
    return [begin.elapsed_time(end) / 1000 for begin, end in marks]


def peak_bytes(provider: Provider, problem: Problem) -> int:
    """Most memory alive at once in a step, beyond the problem and the estimator.

    The gradients count.
    """
    forget(provider, problem)
    if problem.device.type == "cuda":
        torch.cuda.synchronize(problem.device)
        before = torch.cuda.memory_allocated(problem.device)
        torch.cuda.reset_peak_memory_stats(problem.device)
        provider.step()
        torch.cuda.synchronize(problem.device)
        return torch.cuda.max_memory_allocated(problem.device) - before
    return peak_bytes_on_cpu(provider.step)


def result_rows(
    providers: Sequence[Provider],
    times: Mapping[tuple[str, bool], Sequence[float]],
    peaks: Mapping[tuple[str, bool], int],
) -> list[Row]:
    rows = []
    for provider in providers:
        seconds = times[provider.key]
        baseline, f_alone, reference, loop = (
            times[key]
            for key in (
                (BASELINE, provider.vectorize),
                (F_ALONE, provider.vectorize),
                (provider.reference, provider.vectorize),
                (provider.name, False),
            )
        )
        row: Row = {
            "provider": provider.name,
            "estimator": provider.estimator,
            "variant": provider.variant,
            "vectorize": "yes" if provider.vectorize else "no",
            "num_samples": provider.plan.num_samples,
            "evaluations": provider.plan.evaluations,
            "slopes": provider.plan.slopes,
            "reference": provider.reference,
            "rounds": len(seconds),
            **spread("seconds", seconds, digits=4),
            **spread("time_ratio", ratios(seconds, baseline), digits=4),
            **spread("loop_ratio", ratios(seconds, loop), digits=4),
            **spread("overhead", shares(seconds, f_alone), digits=4),
            **spread("overhead_with_slopes", shares(seconds, reference), digits=4),
            "peak_mib": float(f"{peaks[provider.key] / 2**20:.4g}"),
            "memory_ratio": float(
                f"{peaks[provider.key] / peaks[BASELINE, provider.vectorize]:.4g}"
            ),
        }
        rows.append(row)
    return rows


def ratios(seconds: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Within each round. A slow provider ran in the first rounds only: those are compared."""
    return [s / b for s, b in zip(seconds, baseline, strict=False)]


def shares(seconds: Sequence[float], needed: Sequence[float]) -> list[float]:
    """What share of the step goes beyond what is needed, within each round."""
    return [1 - n / s for s, n in zip(seconds, needed, strict=False)]


def about_run(options: argparse.Namespace) -> Row:
    """Where, with what and how this run was made."""
    is_gpu = options.device == "cuda"
    return {
        "device": options.device,
        "machine": torch.cuda.get_device_name() if is_gpu else provenance.cpu_name(),
        "cpu": provenance.cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": options.threads,
        "dtype": "float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "discretegrad": discretegrad.__version__,
        **about_commit(options.commit),
        "date": datetime.date.today().isoformat(),
        "command": options.command,
    }


def merge(stored: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """The new rows with the stored ones of other devices, the CPU first."""
    device = rows[0]["device"]
    kept = [row for row in stored if row["device"] != device]
    return sorted([*kept, *rows], key=lambda row: row["device"] != "cpu")


def summary(rows: Sequence[Row]) -> list[Table]:
    """What was measured: a table for either way to evaluate f."""
    shown = []
    for vectorize in ("no", "yes"):
        title = f"vectorize={'True' if vectorize == 'yes' else 'False'}"
        table = Table(title=title, title_justify="left")
        table.add_column("step", no_wrap=True)
        for heading in ("time", "memory", "beyond f", "and slopes"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            if row["vectorize"] == vectorize:
                cells = (cell.split(" (")[0] for cell in steps_table.cells(row))
                table.add_row(str(row["provider"]), *cells)
        shown.append(table)
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console()
    if options.render:
        path = steps_table.write_page(steps_table.RESULTS, steps_table.PAGE)
        console.print(f"written: {relative(path)}")
        return 0
    torch.set_num_threads(options.threads)
    problem = Problem(QUICK if options.quick else FULL, options.device)
    tiny = tiny_problem(options.device)
    pace = QUICK_PACE if options.quick else FULL_PACE
    stored = read_csv(options.output) if options.output.exists() else []

    columns = (
        TextColumn("{task.description}", justify="right"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # drawn between rounds, never while a block is timed
    with Progress(*columns, console=console, auto_refresh=False) as progress:

        def task(name: str, total: int) -> Callable[[], None]:
            number = progress.add_task(name, total=total)
            progress.refresh()
            return lambda: progress.update(number, advance=1, refresh=True)

        providers = [*make_providers(problem, False), *make_providers(problem, True)]
        faults = gate_all(problem, tiny, task("gate", len(providers)))
        if not faults:
            times = measure(providers, problem, pace, task("rounds", pace.rounds))
            advance = task("memory", len(providers))
            peaks = {}
            # after the timing, which the profiler would disturb
            for provider in providers:
                peaks[provider.key] = peak_bytes(provider, problem)
                advance()
    if faults:
        console.print("[red]The gate is red, so nothing was timed and nothing was written:[/red]")
        for fault in faults:
            console.print(f"  {fault}")
        return 1

    about = about_run(options) | problem.sizes._asdict()
    rows = [about | row for row in result_rows(providers, times, peaks)]
    write_csv(options.output, merge(stored, rows))
    for shown in summary(rows):
        console.print(shown)
    console.print(
        f"each step evaluates f {EVALUATIONS} times; time and memory are ratios to {BASELINE}, and "
        "the share of the step beyond f (and its slopes) a percentage; medians over rounds"
    )
    page = options.output.with_suffix(".md")
    if options.output == steps_table.RESULTS:
        page = steps_table.PAGE
    steps_table.write_page(options.output, page)
    for path in (options.output, page):
        console.print(f"written: {relative(path)}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds on a small problem: a smoke test, not a measurement",
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads that torch may use (default: 2)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="the CSV to write (default: benchmarks/steps.csv for a full run, from which the page "
        "is made; output/benchmarks/steps.csv for a quick one)",
    )
    add_commit_argument(parser)
    parser.add_argument(
        "--render",
        action="store_true",
        help="measure nothing; write docs/estimator-costs.md again from what is stored",
    )
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error(f"expected --threads of at least 1, got {options.threads}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA device for --device cuda, torch finds none")
    if options.output is None:
        options.output = QUICK_OUTPUT / "steps.csv" if options.quick else steps_table.RESULTS
    options.output = options.output.resolve()
    # from the options, so that no path of this machine is recorded
    flags = ["--device cuda"] if options.device == "cuda" else []
    flags += ["--quick"] if options.quick else []
    flags += (
        [f"--threads {options.threads}"] if options.threads != parser.get_default("threads") else []
    )
    options.command = " ".join(["python benchmarks/steps.py", *flags])
    return options


if __name__ == "__main__":
    raise SystemExit(main())
