"""Time the samplers on a GPU, against the copy bandwidth of its memory and against each other.

Every sampler is bound by memory traffic on a GPU. The least possible traffic of forward plus
backward is five passes: read the logits and write the sample; read the logits and the gradient at
the sample, and write the gradient. The time to move these bytes at the bandwidth of a plain copy,
measured in the same run before and after everything else, is the floor.

  large        forward plus backward at sizes that fill a GPU, as a multiple of the floor
  small        at sizes where starting kernels is all that counts: eager and in a CUDA graph
  gumbel_rao   1000 draws of noise on the quadratic problem of the ReinMax paper
  efficiency   the paper's table of time and memory: seven methods on two problems
  index        a codebook lookup by index against the product with a one-hot
  vocabulary   a lookup after a linear layer, without a tensor of rows x categories

Eager calls at small sizes, the graphs of 20 and the section efficiency are timed on the wall clock,
host included; everything else on the stream of the GPU, after a pause in which the host gets ahead.

What counts are ratios of times that were taken within moments of each other: a round is one block
of calls of every provider, in an order that is shuffled anew; a ratio is formed within each round;
reported are medians and 20th and 80th percentiles over rounds. Before a provider is timed it must
give right numbers: a speedup is never reported on a red gate. The CSV files are written after each
section and keep the stored rows of the others; docs/kernel-benchmarks.md follows from them
(python benchmarks/kernels_table.py).
"""

import argparse
import datetime
import gc
import gzip
import itertools
import math
import platform
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import (
    QUICK_OUTPUT,
    STORED,
    Promise,
    about_commit,
    add_commit_argument,
    add_sections_argument,
    merged,
    peak_bytes_on_cpu,
    provenance,
    reinmax_formula,
    spread,
    write_csv,
)
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, gumbel_softmax

import discretegrad
from discretegrad import bernoulli

try:
    import reinmax as pypi
except ImportError:
    pypi = None

RESULTS, EFFICIENCY = "kernels.csv", "efficiency.csv"

# of the logits' size: read logits, write sample; read logits, read gradient, write gradient
PASSES = 5
PAUSE_CYCLES = 2_000_000  # about a millisecond
SLOW_SECONDS = 0.3  # a provider that takes longer a call ...
SLOW_ROUNDS = 2  # ... is timed in this many rounds, one call each
GATE_ROWS = 32  # at either end, compared with float64
# of the largest entry; others than this library may compute in bfloat16 all along
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-3}
SLACK_OF_OTHERS = 10
_EXAMPLES = """examples:
  python benchmarks/kernels.py --mnist train-images-idx3-ubyte.gz
        everything on a GPU, about five minutes
  python benchmarks/kernels.py --only small index
        two sections
  python benchmarks/kernels.py --device cpu --quick --only large small
        does it run? seconds, without a GPU
"""

Row = dict[str, Any]


class Unavailable(Exception):
    """A provider cannot run here; the message says why."""


# what is measured


class Pace(NamedTuple):
    """How many blocks make a median, and how long a block takes."""

    rounds: int
    seconds: float
    most_calls: int


FULL_PACE = Pace(rounds=7, seconds=0.012, most_calls=2000)
QUICK_PACE = Pace(rounds=2, seconds=0.0, most_calls=1)


@dataclass(frozen=True)
class Sampler:
    """A sampler as a user would call it."""

    name: str
    sample: Callable[..., Tensor]
    ours: bool = True
    reinmax_tau: float | None = None
    """The temperature of the ReinMax formula that its gradient must match, if it must."""
    bits: bool = False
    """Whether it is for Bernoulli variables."""
    compiled: bool = False


def pypi_reinmax(logits: Tensor) -> Tensor:
    if pypi is None:
        raise Unavailable("not installed")
    return pypi.reinmax(logits, 1.0)[0]


def torch_path(logits: Tensor) -> Tensor:
    return discretegrad.reinmax(logits, backend="torch")


def straightforward(hidden: Tensor, head: Tensor, table: Tensor) -> Tensor:
    return discretegrad.reinmax(hidden @ head.T) @ table


def by_index(logits: Tensor, table: Tensor) -> Tensor:
    _, handle = discretegrad.reinmax_index(logits)
    return discretegrad.select(handle, table)


TORCH, PYPI, REINMAX = "F.gumbel_softmax(hard=True)", "PyPI reinmax", "reinmax"
TORCH_PATH, COMPILED = 'reinmax backend="torch"', "reinmax, compiled"

CATEGORICAL = (
    Sampler(REINMAX, discretegrad.reinmax, reinmax_tau=1.0),
    Sampler("reinmax tau=1.3", partial(discretegrad.reinmax, tau=1.3), reinmax_tau=1.3),
    Sampler("straight_through", discretegrad.straight_through),
    Sampler("gumbel_softmax", discretegrad.gumbel_softmax),
    Sampler("gapped", discretegrad.gapped),
    Sampler("mean_baseline", discretegrad.mean_baseline),
    Sampler(TORCH_PATH, torch_path, reinmax_tau=1.0),
    Sampler(COMPILED, torch_path, reinmax_tau=1.0, compiled=True),
    Sampler(TORCH, partial(gumbel_softmax, hard=True), ours=False),
    Sampler(PYPI, pypi_reinmax, ours=False, reinmax_tau=1.0),
)
BITS = (
    Sampler("bernoulli.reinmax", bernoulli.reinmax, reinmax_tau=1.0, bits=True),
    Sampler("bernoulli.straight_through", bernoulli.straight_through, bits=True),
    Sampler(
        'bernoulli.reinmax backend="torch"',
        partial(bernoulli.reinmax, backend="torch"),
        reinmax_tau=1.0,
        bits=True,
    ),
)

EAGER, GRAPH, GRAPH_OF_20 = "eager", "graph", "graph of 20"
# copies of forward plus backward in one CUDA graph; 0 without a graph
COPIES = {EAGER: 0, GRAPH: 1, GRAPH_OF_20: 20}


class Sizes(NamedTuple):
    """Where samplers are compared."""

    shape: tuple[int, int]
    samplers: tuple[Sampler, ...] = CATEGORICAL
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    modes: tuple[str, ...] = (EAGER,)


FLOAT32, BFLOAT16 = (torch.float32,), (torch.bfloat16,)
# compiling takes far longer than measuring
UNCOMPILED = tuple(sampler for sampler in CATEGORICAL if not sampler.compiled)
MAIN_SHAPES = ((65536, 1024), (8192, 32768), (2048, 131072))
LARGE = (
    *(Sizes(shape, dtypes=FLOAT32) for shape in MAIN_SHAPES),
    *(Sizes(shape, UNCOMPILED, BFLOAT16) for shape in MAIN_SHAPES),
    # so little to move that starting kernels counts: a graph shows the kernels alone
    Sizes((64, 131072), UNCOMPILED, FLOAT32, modes=(EAGER, GRAPH)),
    Sizes((1_000_000, 10), UNCOMPILED, FLOAT32, modes=(EAGER, GRAPH)),
    Sizes((65536, 1024), BITS),
)
SMALL = (
    Sizes((3000, 10), UNCOMPILED, FLOAT32, modes=(EAGER, GRAPH, GRAPH_OF_20)),
    Sizes((400, 8), UNCOMPILED, FLOAT32, modes=(EAGER, GRAPH, GRAPH_OF_20)),
)


@dataclass(frozen=True)
class Lookup:
    """A product with a sampled one-hot, in one way or another."""

    name: str
    apply: Callable[..., Tensor]
    """Of (logits, table), or of (hidden, head, table)."""
    ours: bool = True
    is_reinmax: bool = True


BY_INDEX, LINEAR_SELECT = "reinmax_index, select", "linear_select"
STRAIGHTFORWARD = "reinmax @ table"
LOOKUPS = {
    "index": (
        Lookup(BY_INDEX, by_index),
        Lookup(STRAIGHTFORWARD, lambda logits, table: discretegrad.reinmax(logits) @ table),
        Lookup(
            TORCH, lambda logits, table: gumbel_softmax(logits, hard=True) @ table, False, False
        ),
        Lookup(PYPI, lambda logits, table: pypi_reinmax(logits) @ table, False),
    ),
    "vocabulary": (
        Lookup(LINEAR_SELECT, lambda *leaves: discretegrad.linear_select(*leaves)),
        Lookup(BY_INDEX, lambda x, head, table: by_index(x @ head.T, table)),
        Lookup(STRAIGHTFORWARD, straightforward),
        Lookup(PYPI, lambda x, head, table: pypi_reinmax(x @ head.T) @ table, ours=False),
    ),
}
# rows, categories, width of the table (and of the hidden layer), dtype
LOOKUP_SIZES = {
    "index": (
        (65536, 1024, 64, torch.float32),
        (8192, 32768, 512, torch.bfloat16),
    ),
    "vocabulary": (
        (8192, 131072, 1024, torch.bfloat16),
        # one tensor of rows x categories has 80 GiB
        (163840, 262144, 1024, torch.bfloat16),
    ),
}


# the plain stop-gradient forms, as the papers print them


def drawn(theta: Tensor) -> Tensor:
    probs = theta.softmax(-1)
    index = torch.multinomial(probs.flatten(0, -2), 1).view(*theta.shape[:-1], 1)
    return torch.zeros_like(probs).scatter_(-1, index, 1.0)


def replaced(value: Tensor, surrogate: Tensor) -> Tensor:
    """The value of one with the gradient of the other."""
    return surrogate - surrogate.detach() + value


def plain_straight_through(theta: Tensor, tau: float = 1.0) -> Tensor:
    return replaced(drawn(theta), (theta / tau).softmax(-1))


def plain_reinmax(theta: Tensor, tau: float = 1.0) -> Tensor:
    sample = drawn(theta)
    pi_1 = (sample + (theta / tau).softmax(-1)) / 2
    pi_1 = ((pi_1.log() - theta).detach() + theta).softmax(-1)
    return replaced(sample, 2 * pi_1 - theta.softmax(-1) / 2)


def plain_gapped(theta: Tensor, tau: float = 1.0) -> Tensor:
    sample, fixed = drawn(theta), theta.detach()
    largest = fixed.max(-1, keepdim=True).values
    up = (largest - fixed) * sample
    down = (fixed - largest + 1.0).clamp(min=0) * (1 - sample)
    return replaced(sample, ((theta + up - down) / tau).softmax(-1))


def plain_gumbel_rao(theta: Tensor, tau: float = 1.0, num_draws: int = 1000) -> Tensor:
    """All draws at once: Gumbel noise given that the sample is the largest."""
    sample, fixed = drawn(theta), theta.detach()
    exponential = theta.new_empty(num_draws, *theta.shape).exponential_()
    own = (exponential * sample).sum(-1, keepdim=True) / fixed.exp().sum(-1, keepdim=True)
    others = -torch.log(exponential * torch.exp(-fixed) + own)
    noise = torch.where(sample.bool(), -torch.log(own), others) - fixed
    return replaced(sample, ((theta + noise) / tau).softmax(-1).mean(0))


def plain_bernoulli_gumbel_rao(theta: Tensor, tau: float = 1.0, num_draws: int = 1000) -> Tensor:
    """All draws at once: logistic noise given the sign that it leads to."""
    prob = torch.sigmoid(theta.detach())
    sample = torch.bernoulli(prob)
    uniform = torch.rand(num_draws, *theta.shape, device=theta.device, dtype=theta.dtype)
    uniform = torch.where(sample.bool(), 1 - prob + prob * uniform, (1 - prob) * uniform)
    noise = torch.logit(uniform, eps=1e-6)
    return replaced(sample, torch.sigmoid((theta + noise) / tau).mean(0))


# what the ReinMax paper measured: its names, the temperatures that it found best for 10 categories
# x 30 variables, our function and the plain form
NUM_DRAWS = (100, 300, 1000)


@dataclass(frozen=True)
class Method:
    """A column of the paper's table of efficiency."""

    name: str
    ours: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    tau: float
    options: dict[str, Any] = field(default_factory=dict)


METHODS = (
    Method("ReinMax", discretegrad.reinmax, plain_reinmax, 1.3),
    Method("ST", discretegrad.straight_through, plain_straight_through, 1.4),
    Method("STGS", discretegrad.gumbel_softmax, partial(gumbel_softmax, hard=True), 0.5),
    Method("GST-1.0", discretegrad.gapped, plain_gapped, 0.5),
    *(
        Method(f"GR-MCK {k}", discretegrad.gumbel_rao, plain_gumbel_rao, 1.0, {"num_draws": k})
        for k in NUM_DRAWS
    ),
)
QP, VAE = "QP", "MNIST-VAE"
STEPS_PER_EPOCH = {QP: 200, VAE: 600}
PUBLISHED_SOURCE = "arXiv:2304.08612, table of efficiency, A6000"
# seconds an epoch and bytes, in the order of the methods
PUBLISHED = {
    QP: ((0.2, 6.5e6), (0.2, 5e6), (0.2, 5.5e6), (0.2, 8e6), (0.8, 0.3e9), (2.2, 1e9), (6.6, 3e9)),
    VAE: (*[(5.2, 13e6)] * 4, (5.2, 76e6), (5.2, 0.2e9), (5.4, 0.6e9)),
}


@dataclass(frozen=True)
class Target(Promise):
    """A promise about one number of the results."""

    section: str
    case: str
    dtype: str
    mode: str
    provider: str
    column: str
    limit: float
    says: str
    """The promise in words, with the limit in place of {}, if it is there."""
    unit: float = 1.0


def _targets() -> Iterator[Target]:
    for shape, floor in (("65536x1024", 1.25), ("8192x32768", 1.25), ("2048x131072", 1.6)):
        for dtype in ("float32", "bfloat16"):
            at = partial(Target, "large", shape, dtype, EAGER, REINMAX)
            yield at("times_floor", floor, "at most {} times the floor")
            yield at("speedup_pypi", 7.0, "at least {} times as fast as PyPI `reinmax`")
            yield at("speedup_torch", 4.0, "at least {} times as fast as `F.gumbel_softmax`")
            yield at("peak_extra_tensors", 2.1, "at most {} tensors of extra memory")
    for shape in ("3000x10", "400x8"):
        at = partial(Target, "small", shape, "float32", EAGER, REINMAX)
        yield at("launches_forward", 2.0, "at most {} kernels forward")
        yield at("launches_backward", 2.0, "at most {} kernels backward")
        yield at("speedup_pypi", 4.0, "at least {} times as fast as PyPI `reinmax`")
        yield at("speedup_torch", 1.0, "faster than `F.gumbel_softmax`")
        at = partial(Target, "small", shape, "float32", GRAPH, REINMAX)
        yield at("seconds", 12.0, "at most {} µs in a CUDA graph", 1e-6)
    for section, case, mode, provider in (
        ("gumbel_rao", "512x128x2", EAGER, "gumbel_rao"),
        ("efficiency", QP, "ours", "GR-MCK 1000"),
    ):
        at = partial(Target, section, case, "float32", mode, provider)
        yield at("memory_ratio", 2.0, "at most {} times the memory of `straight_through`")
        yield at("speedup_plain", 20.0, "at least {} times as fast as the plain form")
    at = partial(Target, "vocabulary", "8192x131072x1024", "bfloat16", EAGER, LINEAR_SELECT)
    yield at("beyond_bytes", 256.0, "at most {} MiB beyond inputs, output and gradients", 2**20)
    yield at("speedup_plain", 0.4, "at least {} times as fast as the straightforward form")


TARGETS = tuple(_targets())


# one provider on one case, and the gate before it


@dataclass(frozen=True)
class Work:
    """One provider, ready to be called."""

    provider: str
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], tuple[Tensor, ...]]
    gate: Callable[[], list[str]]
    """What is wrong with its numbers; empty if nothing is."""
    ours: bool = True
    plain: str = ""
    """The provider that does the same in the straightforward way, if it is compared with one."""

    def call(self) -> tuple[Tensor, ...]:
        """Forward and backward: the output and all gradients."""
        output = self.forward()
        return (output, *self.backward(output))


@dataclass(frozen=True)
class Case:
    """Providers that are compared."""

    section: str
    name: str
    dtype: str
    works: Sequence[Work]
    mode: str = EAGER
    by_events: bool = False
    """Time each call on the stream of the GPU, or many calls on the wall clock."""
    tensor_bytes: int = 0
    """Of the logits."""
    has_floor: bool = False
    counts_launches: bool = False
    memory_baseline: str = ""
    resident_bytes: int = 0
    """Of parameters and inputs."""


class Setup(NamedTuple):
    """Where and how to run."""

    device: torch.device
    quick: bool
    mnist: Path | None = None

    @property
    def on_gpu(self) -> bool:
        """Otherwise everything is a rehearsal."""
        return self.device.type == "cuda"

    def random(self, *shape: int, dtype: torch.dtype = torch.float32, scale=1.0) -> Tensor:
        """Fresh standard normal numbers."""
        return torch.randn(shape, device=self.device, dtype=dtype).mul_(scale)

    def small(self, *shape: int) -> tuple[int, ...]:
        """The shape, or a miniature of it."""
        return (
            tuple(min(n, 16 * 2**place) for place, n in enumerate(shape)) if self.quick else shape
        )


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def sampler_work(sampler: Sampler, logits: Tensor, cotangent: Tensor, **rest: Any) -> Work:
    sample = sampler.sample
    if sampler.compiled:
        sample = torch.compile(sample, fullgraph=True, dynamic=False)

    def backward(output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, logits, cotangent)

    def gate() -> list[str]:
        output = sample(logits)
        return sampler_faults(sampler, logits, cotangent, output, *backward(output))

    return Work(sampler.name, lambda: sample(logits), backward, gate, sampler.ours, **rest)


@torch.no_grad()
def sampler_faults(
    sampler: Sampler, logits: Tensor, cotangent: Tensor, sample: Tensor, gradient: Tensor
) -> list[str]:
    """What is wrong with a sample and a gradient; the rows at both ends against float64."""
    faults = []
    if sampler.ours and not _is_exact(sample, sampler.bits):
        faults.append("its sample is not exactly one-hot")
    if not gradient.isfinite().all():
        return [*faults, "its gradient is not finite"]
    n = logits.shape[-1]
    logits, g, sample, gradient = (
        torch.cat([x.reshape(-1, n)[:GATE_ROWS], x.reshape(-1, n)[-GATE_ROWS:]]).double()
        for x in (logits.detach(), cotangent, sample, gradient)
    )
    tolerance = TOLERANCE[dtype_name(cotangent.dtype)] * (1 if sampler.ours else SLACK_OF_OTHERS)
    scale = max(gradient.abs().max().item(), 1.0)
    if sampler.ours and not sampler.bits and gradient.sum(-1).abs().max() > tolerance * scale:
        faults.append("the rows of its gradient do not sum to zero")
    if sampler.reinmax_tau is not None:
        if sampler.bits:
            expected = g * torch.sigmoid(torch.where(sample > 0, -logits, logits)) / 2
        else:
            expected = reinmax_formula(logits, g, sample, sampler.reinmax_tau)
        error = difference(gradient, expected)
        if not error < tolerance:
            faults.append(f"its gradient is off the float64 formula by {error:.1e} of its size")
    return faults


def _is_exact(sample: Tensor, bits: bool) -> bool:
    if bits:
        return bool(((sample == 0) | (sample == 1)).all())
    one_each = ((sample != 0).sum(-1) == 1).all() and (sample.amax(-1) == 1).all()
    return bool(one_each)


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest entry that was expected."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def lookup_work(lookup: Lookup, leaves: Sequence[Tensor], cotangent: Tensor) -> Work:
    def backward(output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, leaves, cotangent)

    return Work(
        lookup.name,
        lambda: lookup.apply(*leaves),
        backward,
        lambda: lookup_faults(lookup, leaves, cotangent),
        lookup.ours,
        STRAIGHTFORWARD,
    )


def lookup_faults(lookup: Lookup, leaves: Sequence[Tensor], cotangent: Tensor) -> list[str]:
    """What is wrong with the output and all gradients for a few rows, against float64."""
    few = [leaves[0][:GATE_ROWS].detach().requires_grad_(), *leaves[1:]]
    cotangent = cotangent[:GATE_ROWS]
    output = lookup.apply(*few)
    gradients = torch.autograd.grad(output, few, cotangent)
    if not all(gradient.isfinite().all() for gradient in gradients):
        return ["its gradients are not finite"]
    if not lookup.is_reinmax:
        return []
    *before, table = (leaf.detach().double() for leaf in few)
    g = cotangent.double()
    # the row of the table that is nearest
    index = (2 * output.detach().double() @ table.T - table.square().sum(-1)).argmax(-1)
    faults = [] if torch.equal(output, few[-1][index]) else ["its output is no row of the table"]
    logits = before[0] @ before[1].T if len(before) == 2 else before[0]
    z = torch.zeros_like(logits).scatter_(-1, index.unsqueeze(-1), 1.0)
    slope = reinmax_formula(logits, g @ table.T, z, 1.0)
    expected = [slope @ before[1], slope.T @ before[0]] if len(before) == 2 else [slope]
    # all of them round products of matrices, not only the result
    tolerance = SLACK_OF_OTHERS * TOLERANCE[dtype_name(cotangent.dtype)]
    pairs = zip(gradients, [*expected, z.T @ g], strict=True)
    errors = [difference(found.double(), wanted) for found, wanted in pairs]
    if not max(errors) < tolerance:
        shown = ", ".join(f"{error:.1e}" for error in errors)
        faults.append(f"its gradients are off the float64 formula by {shown} of their size")
    return faults


# the sections: each yields cases, one at a time, so that their memory is free for the next


def sampler_cases(section: str, sizes: Sequence[Sizes], setup: Setup) -> Iterator[Case]:
    small = section == "small"
    chosen = [size._replace(shape=setup.small(*size.shape)) for size in sizes]
    # miniatures may coincide
    for size in {
        (size.shape, size.samplers is BITS, size.dtypes): size for size in chosen
    }.values():
        for dtype in size.dtypes:
            logits = setup.random(*size.shape, dtype=dtype).requires_grad_()
            cotangent = setup.random(*size.shape, dtype=dtype)
            if setup.on_gpu:
                torch._dynamo.reset()
            works = [
                sampler_work(sampler, logits, cotangent)
                for sampler in size.samplers
                if setup.on_gpu or not sampler.compiled
            ]
            name = "x".join(map(str, size.shape))
            for mode in size.modes if setup.on_gpu else (EAGER,):
                yield Case(
                    section,
                    f"{name} bits" if size.samplers is BITS else name,
                    dtype_name(dtype),
                    works,
                    mode,
                    by_events=mode == GRAPH or (not small and mode == EAGER),
                    tensor_bytes=logits.nbytes,
                    has_floor=not small,
                    counts_launches=small and mode == EAGER and setup.on_gpu,
                )


def gumbel_rao_cases(setup: Setup) -> Iterator[Case]:
    options = {"tau": 0.5, "num_draws": 10 if setup.quick else 1000}
    families = (
        ((512, 128, 2), "", discretegrad, plain_gumbel_rao),
        ((512, 128), "bernoulli.", bernoulli, plain_bernoulli_gumbel_rao),
    )
    for shape, prefix, family, plain in families:
        logits = setup.random(*setup.small(*shape)).requires_grad_()
        cotangent = setup.random(*logits.shape)
        bits = bool(prefix)
        name, plain_name = f"{prefix}gumbel_rao", f"plain {prefix}gumbel_rao"
        gumbel_rao = partial(family.gumbel_rao, **options)
        samplers = (
            Sampler(name, gumbel_rao, bits=bits),
            Sampler(f'{name} backend="torch"', partial(gumbel_rao, backend="torch"), bits=bits),
            Sampler(plain_name, partial(plain, **options), ours=False, bits=bits),
            Sampler(f"{prefix}straight_through", family.straight_through, bits=bits),
        )
        yield Case(
            "gumbel_rao",
            "x".join(map(str, logits.shape)),
            "float32",
            [sampler_work(s, logits, cotangent, plain=plain_name) for s in samplers],
            by_events=True,
            tensor_bytes=logits.nbytes,
            memory_baseline=f"{prefix}straight_through",
        )


def lookup_cases(section: str, setup: Setup) -> Iterator[Case]:
    sizes = dict.fromkeys((setup.small(*size), dtype) for *size, dtype in LOOKUP_SIZES[section])
    for (rows, categories, width), dtype in sizes:
        table = setup.random(categories, width, dtype=dtype)
        leaves = [setup.random(rows, categories, dtype=dtype), table]
        if section == "vocabulary":
            # logits of variance 1
            head = setup.random(categories, width, dtype=dtype, scale=width**-0.5)
            leaves = [setup.random(rows, width, dtype=dtype), head, table]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        cotangent = setup.random(rows, width, dtype=dtype)
        yield Case(
            section,
            f"{rows}x{categories}x{width}",
            dtype_name(dtype),
            [lookup_work(lookup, leaves, cotangent) for lookup in LOOKUPS[section]],
            by_events=True,
            tensor_bytes=rows * categories * table.element_size(),
            memory_baseline=STRAIGHTFORWARD,
        )


def efficiency_cases(setup: Setup) -> Iterator[Case]:
    for make in (quadratic, autoencoder):
        name, categories, parameters, inputs, step = make(setup)
        works = []
        for method in METHODS:
            options = {**method.options, "tau": method.tau}
            if setup.quick:
                options = {key: min(value, 10) for key, value in options.items()}
            for form, function in (("ours", method.ours), ("plain", method.plain)):
                sample = partial(function, **options)
                tau = method.tau if method.name == "ReinMax" else None
                sampler = Sampler(method.name, sample, form == "ours", tau)
                logits = setup.random(2 * GATE_ROWS, categories).requires_grad_()
                gate = sampler_work(sampler, logits, setup.random(*logits.shape)).gate
                works.append(
                    Work(
                        f"{method.name}, {form}",
                        partial(step, sample),
                        partial(torch.autograd.grad, inputs=parameters),
                        gate,
                        form == "ours",
                        f"{method.name}, plain",
                    )
                )
        yield Case(
            "efficiency",
            name,
            "float32",
            works,
            memory_baseline="ST, ours",
            resident_bytes=sum(x.nbytes for x in (*parameters, *inputs)),
        )


class Problem(NamedTuple):
    """What the methods are compared on."""

    name: str
    categories: int
    parameters: list[Tensor]
    inputs: list[Tensor]
    loss: Callable[[Callable[[Tensor], Tensor]], Tensor]
    """For a sampler."""


def quadratic(setup: Setup) -> Problem:
    """The paper's quadratic programming: 128 binary variables, a batch of 512."""
    batch, variables = setup.small(512, 128)
    theta = setup.random(variables, 2, scale=0.01).requires_grad_()

    def loss(sample: Callable[[Tensor], Tensor]) -> Tensor:
        z = sample(theta.expand(batch, -1, -1))
        return (z[..., 0] - 0.45).square().mean()

    return Problem(QP, 2, [theta], [], loss)


def autoencoder(setup: Setup) -> Problem:
    """The paper's VAE: 30 variables of 10 categories, two hidden layers, a batch of 100 images."""
    variables, categories = 30, 10
    images = read_images(setup.mnist, *setup.small(100)).to(setup.device)
    sizes = (784, 512, 256, variables * categories)
    encoder, decoder = (
        nn.Sequential(*[layer for i, o in pairs for layer in (nn.Linear(i, o), nn.ReLU())][:-1])
        for pairs in (itertools.pairwise(sizes), itertools.pairwise(sizes[::-1]))
    )
    encoder, decoder = encoder.to(setup.device), decoder.to(setup.device)

    def loss(sample: Callable[[Tensor], Tensor]) -> Tensor:
        logits = encoder(images).unflatten(-1, (variables, categories))
        q = logits.softmax(-1)
        divergence = (q * torch.log(q + 1e-10)).sum((-2, -1)) + variables * math.log(categories)
        pixels = decoder(sample(logits).flatten(-2))
        reconstruction = binary_cross_entropy_with_logits(pixels, images, reduction="sum")
        return reconstruction / len(images) + divergence.mean()

    return Problem(VAE, categories, [*encoder.parameters(), *decoder.parameters()], [images], loss)


def read_images(path: Path | None, count: int) -> Tensor:
    """The first images of MNIST's file of training images, grey values from 0 to 1."""
    if path is None or not path.is_file():
        raise FileNotFoundError(missing_mnist(path))
    with gzip.open(path) as file:
        head, pixels = file.read(16), file.read(count * 784)
    if head[:4] != b"\0\0\x08\x03" or len(pixels) != count * 784:
        raise ValueError(f"{path.name} is not MNIST's file of training images")
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(count, 784) / 255


def missing_mnist(path: Path | None) -> str:
    found = "it is not given" if path is None else f"there is no file {path}"
    return (
        f"the section efficiency needs MNIST, and {found}: give --mnist with the path of "
        "train-images-idx3-ubyte.gz, or leave the section out with --only"
    )


SECTIONS: dict[str, Callable[[Setup], Iterator[Case]]] = {
    "large": partial(sampler_cases, "large", LARGE),
    "small": partial(sampler_cases, "small", SMALL),
    "gumbel_rao": gumbel_rao_cases,
    "efficiency": efficiency_cases,
    "index": partial(lookup_cases, "index"),
    "vocabulary": partial(lookup_cases, "vocabulary"),
}


# the measurement


class Stopwatch(NamedTuple):
    """A provider that passed the gate, ready to be timed."""

    work: Work
    call: Callable[[], object]
    calls_each: int
    """How many forward and backward passes one call stands for."""
    is_slow: bool
    calls: int
    """In a block."""


def measure(case: Case, setup: Setup, pace: Pace, bandwidth: float) -> list[Row]:
    """A row for every provider of a case."""
    status: dict[str, str] = {}
    ready: list[Stopwatch] = []
    for work in case.works:
        stopwatch, status[work.provider] = attempt(
            lambda work=work: prepare(work, case, setup, pace)
        )
        ready += [stopwatch] if stopwatch else []
    times = race(ready, case, setup, pace)
    peaks: dict[str, tuple[int, int]] = {}
    launched: dict[str, dict[str, int]] = {}
    # after the timing, which they would disturb
    for work in (stopwatch.work for stopwatch in ready):
        if case.mode == EAGER:
            keep(peaks, work.provider, partial(peak_bytes, work, setup))
        if case.counts_launches:
            keep(launched, work.provider, partial(count_launches, work))
    floor = PASSES * case.tensor_bytes / bandwidth if case.has_floor else None
    return [
        result(case, work, status[work.provider], times, peaks, floor)
        | launched.get(work.provider, {})
        for work in case.works
    ]


def keep(found: dict[str, Any], name: str, function: Callable[[], Any]) -> None:
    """Keep what a function returns, or say what happened."""
    value, status = attempt(function)
    if status == "ok":
        found[name] = value
    else:
        print(f"  {name}: {status}", flush=True)


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
        status = f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    release()
    return None, status


class RedGate(Exception):
    """A provider computes wrong numbers."""


def prepare(work: Work, case: Case, setup: Setup, pace: Pace) -> Stopwatch:
    """Check the numbers, warm up, and see how long a call takes."""
    if faults := work.gate():
        raise RedGate("; ".join(faults))
    copies = COPIES[case.mode]
    call = captured(work, copies) if copies else work.call
    block_seconds(call, 1, setup, False)
    estimate = block_seconds(call, 1, setup, False)
    if estimate > SLOW_SECONDS:
        return Stopwatch(work, call, copies or 1, True, 1)
    estimate = min(estimate, block_seconds(call, 3, setup, False))
    calls = max(1, min(pace.most_calls, round(pace.seconds / estimate)))
    return Stopwatch(work, call, copies or 1, False, calls)


def race(
    ready: Sequence[Stopwatch], case: Case, setup: Setup, pace: Pace
) -> dict[str, list[float]]:
    """Seconds of one forward and backward, for each provider and round; a slow one has fewer."""
    rng = random.Random(0)
    times: dict[str, list[float]] = {each.work.provider: [] for each in ready}
    for number in range(pace.rounds):
        for each in rng.sample(ready, len(ready)):
            if each.is_slow and number >= SLOW_ROUNDS:
                continue
            if len(ready) > 1:
                each.call()  # after another provider the caches and the allocator are not its own
            seconds = block_seconds(each.call, each.calls, setup, case.by_events)
            times[each.work.provider].append(seconds / each.calls_each)
    return times


def block_seconds(call: Callable[[], object], calls: int, setup: Setup, by_events: bool) -> float:
    """Seconds of a call in a row of calls: the median on the stream, the mean on the wall clock."""
    gc.disable()
    try:
        synchronize(setup)
        if by_events and setup.on_gpu:
            marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
            for begin, end in marks:
                # the host gets ahead meanwhile: what counts is the work of the GPU
                torch.cuda._sleep(PAUSE_CYCLES)
                begin.record()
                call()
                end.record()
            synchronize(setup)
            return statistics.median(begin.elapsed_time(end) for begin, end in marks) / 1000
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(setup)
        return (time.perf_counter() - start) / calls
    finally:
        gc.enable()


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
    named = sum(tensor.nbytes for tensor in work.call())
    if not setup.on_gpu:
        return peak_bytes_on_cpu(work.call), named
    gc.collect()  # what is still to be freed would count as the call's own
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work.call()
    synchronize(setup)
    return torch.cuda.max_memory_allocated() - before, named


def count_launches(work: Work) -> dict[str, int]:
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
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    return [event.name for event in profile.events() if event.device_type == on_gpu]


def copy_bandwidth(setup: Setup) -> float:
    """Bytes read and written by a second of copying from device to device."""
    source = setup.random(*([2**14] if setup.quick else [2**14, 2**16]))
    target = torch.empty_like(source)
    calls = 3 if setup.quick else 30

    def copy() -> None:
        target.copy_(source)

    # long enough for the clocks to rise
    for _ in range(2):
        seconds = block_seconds(copy, calls * 2, setup, True)
    seconds = block_seconds(copy, calls, setup, True)
    return float(f"{2 * source.nbytes / seconds:.4g}")


def synchronize(setup: Setup) -> None:
    if setup.on_gpu:
        torch.cuda.synchronize()


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# the results

COLUMNS = (
    "section",
    "case",
    "dtype",
    "mode",
    "provider",
    "status",
    "ours",
    "rounds",
    *(
        f"{name}{suffix}"
        for name in ("seconds", "speedup_torch", "speedup_pypi", "speedup_plain")
        for suffix in ("", "_p20", "_p80")
    ),
    "times_floor",
    "tensor_bytes",
    "peak_extra_bytes",
    "peak_extra_tensors",
    "beyond_bytes",
    "memory_ratio",
    "launches_forward",
    "launches_backward",
    "copies_forward",
    "copies_backward",
)


def result(
    case: Case,
    work: Work,
    status: str,
    times: Mapping[str, Sequence[float]],
    peaks: Mapping[str, tuple[int, int]],
    floor: float | None,
) -> Row:
    """One row; what was not measured stays empty."""
    row: Row = dict.fromkeys(COLUMNS, "") | {
        "section": case.section,
        "case": case.name,
        "dtype": case.dtype,
        "mode": case.mode,
        "provider": work.provider,
        "status": status,
        "ours": "yes" if work.ours else "no",
        "tensor_bytes": case.tensor_bytes or "",
    }
    seconds = times.get(work.provider)
    if seconds is None:
        return row
    row |= {"rounds": len(seconds), **spread("seconds", seconds, digits=4)}
    for short, baseline in (("torch", TORCH), ("pypi", PYPI), ("plain", work.plain)):
        if baseline in times:
            # a slow provider ran in the first rounds only: those are compared
            ratios = [b / s for b, s in zip(times[baseline], seconds, strict=False)]
            row |= spread(f"speedup_{short}", ratios, digits=3)
    if floor:
        row["times_floor"] = float(f"{row['seconds'] / floor:.3g}")
    if work.provider in peaks:
        peak, named = peaks[work.provider]
        row |= {"peak_extra_bytes": peak, "beyond_bytes": max(peak - named, 0)}
        if case.tensor_bytes:
            row["peak_extra_tensors"] = round(peak / case.tensor_bytes, 3)
        if case.memory_baseline in peaks:
            row["memory_ratio"] = round(peak / peaks[case.memory_baseline][0], 3)
    return row


def efficiency_row(row: Row, resident: int) -> Row:
    """The same for the paper's table: a method in one form, with the units of the paper."""
    method, form = row["provider"].split(", ")
    found = {column: row[column] for column in ("section", "case", "dtype")}
    found |= {"mode": form, "provider": method, "status": row["status"], "rounds": row["rounds"]}
    measured = [x for x in COLUMNS if x.startswith(("seconds", "speedup_plain"))]
    found |= {column: row[column] for column in (*measured, "peak_extra_bytes", "memory_ratio")}
    epoch = memory = ""
    if row["status"] == "ok":
        epoch = float(f"{row['seconds'] * STEPS_PER_EPOCH[row['case']]:.4g}")
        memory = row["peak_extra_bytes"] + resident if row["peak_extra_bytes"] else ""
    return found | {"epoch_seconds": epoch, "peak_bytes": memory, "source": "this run"}


def published_rows(like: Row) -> list[Row]:
    """What the paper reports, in the columns of ``like``."""
    return [
        dict.fromkeys(like, "")
        | {
            "section": "efficiency",
            "case": problem,
            "dtype": "float32",
            "status": "ok",
            "mode": "published",
            "provider": method.name,
            "epoch_seconds": seconds,
            "peak_bytes": int(memory),
            "source": PUBLISHED_SOURCE,
        }
        for problem, values in PUBLISHED.items()
        for method, (seconds, memory) in zip(METHODS, values, strict=True)
    ]


def about_run(options: argparse.Namespace, setup: Setup, bandwidth: float) -> Row:
    """Where, with what and how this run was made."""
    gpu = torch.cuda.get_device_properties(setup.device) if setup.on_gpu else None
    return {
        "gpu": gpu.name if gpu else f"none ({provenance.cpu_name()})",
        "l2_bytes": gpu.L2_cache_size if gpu else "",
        "copy_bandwidth": bandwidth,
        "copy_bandwidth_end": "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "reinmax": version_of("reinmax") if pypi else "not installed",
        "discretegrad": discretegrad.__version__,
        **about_commit(options.commit),
        "date": datetime.date.today().isoformat(),
        "command": options.command,
    }


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def shown(row: Row) -> str:
    """A line of the log."""
    where = f"{row['case']} {row['dtype']} {row['mode']}: {row['provider']}"
    if row["status"] != "ok":
        return f"  {where}: {row['status']}"
    numbers = [f"{row['seconds'] * 1e6:.1f} us"]
    for column, text in (
        ("times_floor", "{} x floor"),
        ("speedup_pypi", "{} x PyPI"),
        ("speedup_torch", "{} x torch"),
        ("speedup_plain", "{} x plain"),
        ("peak_extra_tensors", "{} tensors"),
        ("beyond_bytes", "{} bytes beyond"),
        ("launches_forward", "{} kernels forward"),
        ("launches_backward", "{} backward"),
    ):
        numbers += [text.format(row[column])] if row[column] != "" else []
    return f"  {where}: {', '.join(numbers)}"


def run_section(section: str, setup: Setup, pace: Pace, bandwidth: float, rows: list[Row]) -> None:
    """Add all rows of a section, printed as they come."""
    for case in SECTIONS[section](setup):
        found, status = attempt(partial(measure, case, setup, pace, bandwidth))
        found = found or [result(case, work, status, {}, {}, None) for work in case.works]
        for row in found:
            print(shown(row), flush=True)
        if section == "efficiency":
            found = [efficiency_row(row, case.resident_bytes) for row in found]
        rows += found
        del case
        release()
    if section == "efficiency":
        rows += published_rows(rows[0])


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    setup = Setup(torch.device(options.device), options.quick, options.mnist)
    pace = QUICK_PACE if options.quick else FULL_PACE
    torch.manual_seed(0)
    begin = time.perf_counter()
    bandwidth = copy_bandwidth(setup)
    print(f"copy bandwidth: {bandwidth / 1e12:.3f} TB/s", flush=True)
    about = about_run(options, setup, bandwidth)
    done: dict[str, list[Row]] = {section: [] for section in options.only}
    broken = []
    for section, rows in done.items():
        print(f"{section} ({time.perf_counter() - begin:.0f} s)", flush=True)
        try:
            run_section(section, setup, pace, bandwidth, rows)
        except Exception:
            traceback.print_exc()
            broken.append(section)
        write_section(options.output, section, [row | about for row in rows])
    about["copy_bandwidth_end"] = copy_bandwidth(setup)
    print(f"copy bandwidth at the end: {about['copy_bandwidth_end'] / 1e12:.3f} TB/s", flush=True)
    for section, rows in done.items():
        write_section(options.output, section, [row | about for row in rows])
    red = [row for rows in done.values() for row in rows if is_red(row)]
    for row in red:
        print(f"{row['section']}, {row['case']}, {row['provider']}: {row['status']}")
    for section in broken:
        print(f"{section} broke off")
    print(f"written under {options.output}, {time.perf_counter() - begin:.0f} s", flush=True)
    return 1 if red or broken else 0


def write_section(folder: Path, section: str, rows: Sequence[Row]) -> None:
    path = folder / (EFFICIENCY if section == "efficiency" else RESULTS)
    if rows:
        write_csv(path, merged(path, list(SECTIONS), section, rows))


def is_red(row: Row) -> bool:
    """Whether something failed that should not have."""
    return str(row["status"]).startswith(("red gate", "failed"))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_sections_argument(parser, SECTIONS)
    parser.add_argument(
        "--mnist",
        type=Path,
        metavar="FILE",
        help="MNIST's train-images-idx3-ubyte.gz, for the section efficiency",
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="a CPU is for rehearsals: torch path, wall clock, no graphs (default: cuda)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="miniature sizes and two rounds of one call: a smoke test, not a measurement",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of kernels.csv and efficiency.csv (default: benchmarks for a measurement, "
        "output/benchmarks for a rehearsal)",
    )
    add_commit_argument(parser)
    options = parser.parse_args(arguments)
    rehearsal = options.quick or options.device == "cpu"
    if options.output is None:
        options.output = QUICK_OUTPUT if rehearsal else STORED
    options.output = options.output.resolve()
    if rehearsal and options.output == STORED:
        parser.error("a rehearsal (--quick, --device cpu) is not written to benchmarks")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA device, torch finds none; --device cpu only rehearses")
    if "efficiency" in options.only and (options.mnist is None or not options.mnist.is_file()):
        parser.error(missing_mnist(options.mnist))
    options.only = [section for section in SECTIONS if section in options.only]
    # from the options, so that no path of this machine is recorded
    flags = ["--mnist FILE"] if "efficiency" in options.only else []
    flags += ["--device cpu"] if options.device == "cpu" else []
    flags += ["--quick"] if options.quick else []
    flags += [f"--only {' '.join(options.only)}"] if len(options.only) < len(SECTIONS) else []
    options.command = " ".join(["python benchmarks/kernels.py", *flags])
    return options


if __name__ == "__main__":
    sys.exit(main())
