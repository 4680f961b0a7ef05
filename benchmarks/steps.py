"""Time a training step with every estimator, and measure the memory it needs.

One problem for all: 200 Bernoulli variables for each of 100 images, a decoder 200-200-784, and f
the cross-entropy of 784 pixels. A step is the mean of f by `discretegrad.expectation`, and its
backward to the logits and to the decoder. Every estimator gets the same number of evaluations of
f, so those that need several for a sample draw fewer samples. Beside them run steps that compute
f alone, which is what every estimator has to do at least.

Before it is timed, an estimator must give right gradients: a time is never reported on a red gate,
and nothing is written with one. The rows of this device are replaced in the CSV, and
docs/estimator-costs.md follows from it (python benchmarks/table.py).

examples:
  python benchmarks/steps.py                    the full run on a CPU, about four minutes
  python benchmarks/steps.py --device cuda      on a GPU; keeps the stored rows of the CPU
  python benchmarks/steps.py --quick            does it run? seconds; writes under output/
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import calls
import pages
import torch
from files import MADE, File, Row, with_spread
from machine import Setup
from measure import Case, Work, measured
from script import Benchmark
from timing import REHEARSAL, Pace
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import discretegrad

BASELINE, F_ALONE = "straight_through", "f alone"
EVALUATIONS = 6  # of f in a step, by every estimator
TOLERANCE = 1e-3  # of the largest entry of a gradient in float32


class Sizes(NamedTuple):
    """Of a problem."""

    batch: int
    latents: int
    hidden: int
    pixels: int


FULL = Sizes(100, 200, 200, 784)
QUICK = Sizes(10, 20, 20, 30)
FULL_PACE = Pace(rounds=25, seconds=0.25, calls=5, slow_seconds=0.25, slow_rounds=5,
                 limit_seconds=150.0)  # fmt: skip


class Problem:
    """Logits, a decoder, images, and f: the cross-entropy of an image given its bits."""

    def __init__(self, sizes: Sizes, device: str | torch.device = "cpu") -> None:
        self.sizes, self.device = sizes, torch.device(device)
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(sizes.batch, sizes.latents, generator=generator).to(device)
        images = torch.rand(sizes.batch, sizes.pixels, generator=generator) < 0.5
        self.images = images.float().to(device)
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
                size = parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
        self.decoder.to(device)
        shape = (EVALUATIONS, sizes.batch, sizes.latents)
        self.samples = (torch.rand(shape, generator=generator) < 0.5).float().to(device)

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


class Plan(NamedTuple):
    """What a number of evaluations of f buys."""

    num_samples: int
    evaluations: int
    slopes: int
    """Evaluations of the gradient of f with respect to the sample."""


def plan(row: Any) -> Plan:
    """How many samples an estimator draws with its evaluations of f."""
    num_samples, left = divmod(EVALUATIONS - row.extra_evaluations, row.evaluations)
    if left or num_samples < row.min_samples:
        raise ValueError(f"{row.name} cannot use exactly {EVALUATIONS} evaluations of f")
    return Plan(num_samples, *row.cost(num_samples))


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
    def key(self) -> str:
        """What tells it from all others."""
        return key(self.name, self.vectorize)


def make_providers(problem: Problem, vectorize: bool) -> list[Provider]:
    """Every row of the registry that can run here, its variants, and the references."""
    providers: list[Provider] = []
    references: dict[str, Provider] = {}
    for row in discretegrad.ESTIMATORS.values():
        if row.evaluations is None:
            continue
        reference = make_reference(problem, row, vectorize)
        references.setdefault(reference.name, reference)
        family = "bernoulli" if "bernoulli" in row.families else "categorical"
        for variant, estimator, options in variants(problem, row):
            step = partial(
                expectation_step,
                problem,
                family,
                estimator=estimator,
                num_samples=plan(row).num_samples,
                vectorize=vectorize,
                **options,
            )
            providers.append(
                replace(
                    reference,
                    name=f"{row.name} ({variant})" if variant else row.name,
                    step=step,
                    estimator=row.name,
                    variant=variant,
                    family=family,
                    modules=[x for x in (estimator, *options.values()) if isinstance(x, nn.Module)],
                )
            )
    return [*providers, *references.values()]


def variants(problem: Problem, row: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The ways to use an estimator: a name, what to give to ``expectation``, and options."""
    if row.name in calls.LEARNERS:
        learner = calls.LEARNERS[row.name]
        torch.manual_seed(0)
        module = learner.module(problem.sizes.latents).to(problem.device)
        frozen = copy.deepcopy(module).requires_grad_(False)
        yield "frozen", row.name, learner.frozen_options(frozen)
        yield "learning", module, {}
        return
    yield "", row.name, {}
    if row.name == "reinforce":
        yield "running baseline", calls.running_reinforce().to(problem.device), {}


def expectation_step(problem: Problem, family: str, **arguments: Any) -> Tensor:
    """A step as a user would write it."""
    f = problem.f if family == "bernoulli" else problem.f_of_pairs
    losses = discretegrad.expectation(problem.logits[family], f, family=family, **arguments)
    losses.mean().backward()
    return losses


def make_reference(problem: Problem, row: Any, vectorize: bool) -> Provider:
    """The evaluations of f and of its slopes that an estimator needs, and nothing else."""
    cost = plan(row)
    if not cost.slopes:
        where = ""
    elif row.kind == "sampler":
        where = "by the same backward"
    else:
        where = "at the samples" if cost.num_samples == cost.evaluations else "at other points"
    name = f"f, {pages.plural(cost.slopes, 'slope')} {where}" if where else F_ALONE
    step = partial(reference_step, problem, cost, vectorize, where)
    return Provider(name, step, cost, vectorize, name)


def reference_step(problem: Problem, cost: Plan, vectorize: bool, where: str) -> Tensor:
    """f at samples, with its slopes from one of several backward passes, without the library."""
    points = problem.samples[: cost.num_samples].detach()
    points.requires_grad_(where in ("by the same backward", "at the samples"))
    losses = problem.evaluate(points, vectorize)
    if where == "at other points":
        # between the discrete samples, as relaxed ones are; the decoder gets no gradient there
        between = problem.samples[cost.num_samples : cost.evaluations] / 2 + 0.25
        between.requires_grad_()
        torch.autograd.grad(problem.evaluate(between, vectorize).sum(), between)
    if where == "at the samples":
        torch.autograd.grad(losses.sum(), points, retain_graph=True)
        losses.mean().backward(inputs=list(problem.decoder.parameters()))
    else:
        losses.mean().backward()
    return losses.mean(0)


# the gate


def works_of(problem: Problem) -> list[Work]:
    """A step with every provider, and the gate that it must pass."""
    works, frozen = [], {}
    pairs = zip(make_providers(problem, False), make_providers(problem, True), strict=True)
    for provider, vectorized in pairs:
        if provider.variant == "frozen":
            frozen[provider.estimator] = provider
        twins = {"vectorize=True": vectorized}
        if provider.variant == "learning":
            twins["learning"] = frozen[provider.estimator]
        # what the loop gets wrong is wrong in both
        faults = partial(all_faults, provider, twins, problem)
        works += [work_of(x, problem, faults) for x in (provider, vectorized)]
    return sorted(works, key=lambda work: work.about["vectorize"])


def all_faults(provider: Provider, twins: Mapping[str, Provider], problem: Problem) -> list[str]:
    """What is wrong with a step by itself, and beside those that it should agree with."""
    if faults := gate(provider, problem):
        return faults
    for change, other in twins.items():
        faults += same(other, provider, problem, change)
    if provider.variant == "learning":
        gradients = [parameter.grad for parameter in provider.learned]
        if not gradients or any(x is None or not x.isfinite().all() for x in gradients):
            faults.append("what it learns got no finite gradient")
    return faults


def gate(provider: Provider, problem: Problem) -> list[str]:
    """What is wrong with a step on the problem that will be timed."""
    seen: list[Tensor] = []
    hook = problem.decoder.register_forward_pre_hook(
        lambda _, x: seen.append(x[0].detach().clone())
    )
    losses = seeded_step(provider, problem)
    hook.remove()
    faults = []
    if losses.shape != (problem.sizes.batch,) or not losses.isfinite().all():
        faults.append("its losses are not one finite number per image")
    samples = [x.detach() for x in seen if ((x == 0) | (x == 1)).all()]
    if (len(samples), len(seen)) != provider.plan[:2]:
        return [*faults, f"it evaluated f at {len(samples)} samples of {len(seen)} points"]
    gradients = {family: logits.grad for family, logits in problem.logits.items()}
    if provider.estimator:
        own = gradients.pop(provider.family)
        if own is None or not own.isfinite().all() or not own.any():
            faults.append("the gradient of the logits is missing, not finite, or zero")
    if any(gradient is not None for gradient in gradients.values()):
        faults.append("logits that it should not know got a gradient")
    of_decoder = [parameter.grad for parameter in problem.decoder.parameters()]
    problem.forget_gradients()
    problem.evaluate(torch.stack(samples), False).mean().backward()
    expected = [parameter.grad for parameter in problem.decoder.parameters()]
    if not all(map(is_close, of_decoder, expected)):
        faults.append("the decoder's gradient is not that of f alone at the same samples")
    return faults


def same(provider: Provider, other: Provider, problem: Problem, change: str) -> list[str]:
    """Whether two providers give the same gradients from the same random numbers."""
    gradients = []
    for each in (provider, other):
        seeded_step(each, problem)
        tensors = [*problem.decoder.parameters()]
        tensors += [problem.logits[each.family]] if each.estimator else []
        gradients.append([tensor.grad for tensor in tensors])
    return [] if all(map(is_close, *gradients)) else [f"{change} gives other gradients"]


def is_close(gradient: Tensor | None, expected: Tensor | None) -> bool:
    """Whether they differ little, relative to the largest entry."""
    if gradient is None or expected is None:
        return False
    return bool((gradient - expected).abs().max() <= TOLERANCE * expected.abs().max())


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


# the measurement


def key(name: str, vectorize: bool) -> str:
    return f"{name}, vectorized" if vectorize else name


def work_of(provider: Provider, problem: Problem, faults: Callable[[], list[str]]) -> Work:
    """A step, with what it is compared with."""
    at = partial(key, vectorize=provider.vectorize)
    cost = provider.plan._asdict()
    return Work(
        provider.key,
        provider.step,
        gate=faults,
        before=partial(forget, provider, problem),
        against={
            "time_ratio": at(BASELINE),
            "memory_ratio": at(BASELINE),
            "loop_ratio": provider.name,
            "overhead": at(F_ALONE),
            "overhead_with_slopes": at(provider.reference),
        },
        about={
            "provider": provider.name,
            "estimator": provider.estimator,
            "variant": provider.variant,
            "vectorize": "yes" if provider.vectorize else "no",
            "reference": provider.reference,
            **cost,
        },
    )


def rows_of(setup: Setup) -> Iterator[Row]:
    problem = Problem(QUICK if setup.quick else FULL, setup.device)
    pace = REHEARSAL if setup.quick else FULL_PACE
    return measured([Case(problem.sizes._asdict(), works_of(problem), pace)], setup)


FILE = File(
    "steps.csv",
    (
        *("device", "machine", "cpu", "cores", "threads", "dtype", "python", "torch"),
        *(*MADE, *Sizes._fields),
        *("provider", "estimator", "variant", "vectorize", *Plan._fields, "reference", "rounds"),
        *with_spread("seconds", "time_ratio", "loop_ratio", "overhead", "overhead_with_slopes"),
        *("peak_mib", "memory_ratio"),
    ),
    part="device",
)


BENCHMARK = Benchmark(
    "benchmarks/steps.py",
    __doc__,
    {"cpu": rows_of, "cuda": rows_of},
    FILE,
    devices=("cpu", "cuda"),
    threads=2,
)


# the page

LIMIT = 25  # percent of the step, beyond the evaluations of f


def targets(device: str) -> list[pages.Target]:
    """Estimators that need the values of f and nothing else should cost little beyond them."""
    names = [
        (row.name, variant)
        for row in discretegrad.ESTIMATORS.values()
        if row.kind == "score" and row.evaluations is not None and not row.needs_grad_f
        for variant in ("", *(("running baseline",) if row.name == "reinforce" else ()))
    ]
    return [
        pages.Target(
            {"device": device, "vectorize": "no", "estimator": name, "variant": variant},
            f"`{name}` {variant}".strip(),
            "overhead",
            LIMIT,
            "at most {} % of the step beyond f",
            unit=0.01,
            shown=lambda row: pages.share(row, "overhead"),
        )
        for name, variant in names
    ]


def blocks(results: pages.Results) -> dict[str, str]:
    """The generated parts of the page: the same for each device."""
    return pages.of_devices(results, device_blocks, targets)


def device_blocks(results: pages.Results) -> dict[str, str]:
    loop, vectorized = (results.of(vectorize=x) for x in ("no", "yes"))
    against_loop = {"against the loop": lambda row: pages.ratio(row, "loop_ratio")}
    return {"loop": costs_table(loop), "vectorized": costs_table(vectorized, against_loop)}


def costs_table(rows: Sequence[Row], more: dict[str, Callable[[Row], str]] | None = None) -> str:
    """A line for every step, and what the baseline took in plain units."""
    if not rows:
        return pages.NOT_MEASURED
    baseline = next(row for row in rows if row["provider"] == BASELINE)
    unit = f"For information: {float(baseline['seconds']) * 1000:.3g} milliseconds and "
    unit += f"{float(baseline['peak_mib']):.3g} MiB is 1x."
    columns = {
        "": label,
        "K": lambda row: str(row["num_samples"]),
        "time": lambda row: pages.ratio(row, "time_ratio"),
        "memory": lambda row: f"{pages.short(row['memory_ratio'])}x",
        "beyond f": partial(beyond, "overhead", lambda row: F_ALONE),
        "beyond f and slopes": partial(beyond, "overhead_with_slopes", itemgetter("reference")),
    }
    return f"{pages.table(rows, '', columns | (more or {}))}\n\n{unit}"


def beyond(column: str, reference: Callable[[Row], str], row: Row) -> str:
    """The share of a step beyond its reference; nothing for the reference itself."""
    return "" if row["provider"] == reference(row) else pages.share(row, column)


def label(row: Row) -> str:
    if not row["estimator"]:
        return f"*{row['provider']}*"
    return f"`{row['estimator']}`" + (f" {row['variant']}" if row["variant"] else "")


PAGE = pages.Page(pages.DOCS / "estimator-costs.md", (FILE.name,), blocks)


if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
