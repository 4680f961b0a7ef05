"""Random cases of the library: every row of the registry on both backends, against float64."""

import inspect
import itertools
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis
import pytest
import torch
from hypothesis import strategies
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

import cases as samplers
import discretegrad
import kernel_cases
import test_index_form as index_form
import test_linear_select as layers
import test_properties as properties
import test_unbiased as proofs
from discretegrad import testing
from discretegrad.testing import normal, seeded
from score_oracles import Problem

from .kinds import Unsuitable, kind

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {"float64": 1e-7, "float32": 1e-3, "bfloat16": 2e-2, "float16": 2e-3}
"""Of the largest entry of a row, however small that is: tails count as much as anything else."""

DTYPES = ("float64", "float32", "bfloat16", "float16")
SEEDS = range(100_000)
GAPS = (0, 1, 5, 15, 17, 25, 40, 80)
TAUS = (1.0, 0.7, 0.3, 2.5, "rows")
SIZES = (3, 2, 1, 5, 33, 64, 65, 130)
BACKENDS = ("torch", "triton")
SHAPES = ("2x2", "1x3", "2x3", "3x3", "1x5", "2x4")
BATCHES = ("3", "1", "2x3", "4x1x2", "17")
AXES = ("last", "first", "middle")
STRIDES = ("plain", "transposed", "spread", "expanded")

EXAMPLES = 10
"""Of hypothesis for each case."""
_STRATEGIES = {"data": strategies.data(), "seed": strategies.integers(0, 2**32 - 1)}

CASES = {str(case): case for case in samplers.CASES}
KERNELS = {str(case): case for case in kernel_cases.CASES}
CATEGORICAL = tuple(str(case) for case in kernel_cases.CATEGORICAL)
TESTS = tuple(name for name, x in vars(properties).items() if hasattr(x, "hypothesis"))
# compiling takes long
TRANSFORMS = ("func.grad", "vmap", "jacrev", "checkpoint", "is_grads_batched") * 8 + ("compile",)
SETTINGS = tuple(
    f"{name}/{label}/{count}/{family}"
    for name, rows in proofs.SETTINGS.items()
    for label, counts, _ in rows
    for count in counts
    for family in proofs.SCORE[name].families
)
PLACES: dict[str, Any] = {"batch": BATCHES, "n": SIZES, "mask": (False, True)}
library = partial(kind, "library")


# inputs


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def shape_of(c: SimpleNamespace) -> tuple[int, ...]:
    """Categories, or the last axis of bits, at the end."""
    return (*map(int, c.batch.split("x")), c.n)


def axis_of(c: SimpleNamespace, ndim: int) -> int:
    """Where the categories are."""
    return {"last": -1, "first": 0, "middle": ndim // 2}[c.axis]


def logits_of(c: SimpleNamespace, categorical: bool) -> Tensor:
    """Normal numbers and a gap: one category above the others, or bits that are nearly sure."""
    x = normal(*shape_of(c), seed=c.seed)
    if categorical:
        high = torch.randint(c.n, (*x.shape[:-1], 1), generator=seeded(c.seed + 1))
        x = x.scatter_add(-1, high, torch.full(high.shape, float(c.gap), dtype=x.dtype))
    else:
        x = x + c.gap * normal(*x.shape, seed=c.seed + 1).sign()
    return x.to(dtype_of(c.dtype))


def mask_of(c: SimpleNamespace) -> Tensor | None:
    """Half of all categories, at least one in each row."""
    if not c.mask:
        return None
    mask = torch.rand(shape_of(c), generator=seeded(c.seed + 2)) < 0.5
    keep = torch.randint(c.n, (*mask.shape[:-1], 1), generator=seeded(c.seed + 3))
    return mask.scatter(-1, keep, True)


def tau_of(c: SimpleNamespace, dtype: torch.dtype = torch.float32) -> float | Tensor:
    """A number, or one for each row."""
    if c.tau != "rows":
        return float(c.tau)
    rows = torch.rand((*shape_of(c)[:-1], 1), generator=seeded(c.seed + 4))
    return (0.4 + 1.2 * rows).to(dtype)


def placed(x: Tensor, strides: str) -> Tensor:
    """The same numbers with other strides."""
    if strides == "transposed":
        return x.movedim(-1, 0).contiguous().movedim(0, -1)
    if strides == "spread":
        return kernel_cases.surrounded(x)
    if strides == "expanded":
        return x[:1].expand(x.shape)
    return x.contiguous()


def difference(actual: Tensor, expected: Tensor, scale: Tensor, dtype: str, factor: float) -> None:
    """Raise if entries differ by more than the tolerance times what they are measured by."""
    assert actual.isfinite().all(), f"expected finite numbers, got {actual.tolist()}"
    error = (actual.double() - expected).abs()
    allowed = factor * TOLERANCES[dtype] * scale + torch.finfo(dtype_of(dtype)).tiny
    if dtype == "float16":
        allowed = allowed + 2.0**-24
    worst = (error / allowed).max().item() if error.numel() else 0.0
    assert worst <= 1, (
        f"the error is {worst:.3g} times what is allowed: expected {expected.tolist()}, got "
        f"{actual.tolist()}"
    )


# samplers


@library(
    "the gradient of a sampler, on both backends and in every layout",
    share=2.0, case=tuple(CASES), dtype=DTYPES, backend=BACKENDS, **PLACES, gap=GAPS, tau=TAUS,
    axis=AXES, strides=STRIDES, incoming=STRIDES, seed=SEEDS,
)  # fmt: skip
def sampler(c: SimpleNamespace) -> None:
    """Any backend, dtype, layout and axis against the plain torch path in float64."""
    case = CASES[c.case]
    if c.backend == "triton" and (c.dtype == "float64" or case.row.takes or not case.hard):
        raise Unsuitable
    if c.backend == "triton" and case.row.rule(**case.options).kernel is None:
        raise Unsuitable
    logits, mask, g = logits_of(c, case.categorical), mask_of(c), normal(*shape_of(c), seed=c.seed)
    g = placed(g.roll(1, 0).to(logits.dtype), c.incoming)
    logits = placed(logits, c.strides)
    fixed = logits.double() if mask is None else logits.double().masked_fill(~mask, -math.inf)
    draw = case.draw(fixed, seed=c.seed)
    tau = tau_of(c)
    plain = fixed.clone().requires_grad_()
    z = case.sample(plain, tau.double() if isinstance(tau, Tensor) else tau, **draw)
    expected = torch.autograd.grad(z, plain, g.double())[0]
    if case.row.name == "mean_baseline" and expected.abs().max() > torch.finfo(g.dtype).max / 4:
        raise Unsuitable  # its weight 1/(n p) is unbounded

    dim = axis_of(c, logits.ndim) if case.categorical else -1
    moved = partial(torch.movedim, source=-1, destination=dim)
    arguments: dict[str, Any] = {"given": draw["given"].to(DEVICE), "backend": c.backend}
    if "noise" in draw:
        axis = dim if dim < 0 else dim + draw["noise"].ndim - logits.ndim
        dtype = torch.promote_types(logits.dtype, torch.float32)
        arguments["noise"] = draw["noise"].movedim(-1, axis).to(DEVICE, dtype)
    arguments |= {"dim": dim} if case.categorical else {}
    arguments |= {} if mask is None else {"mask": moved(mask).to(DEVICE)}
    tau = moved(tau).to(DEVICE) if isinstance(tau, Tensor) else tau
    leaf = moved(logits).to(DEVICE).detach().requires_grad_()
    sample = case.sample(leaf, tau, **arguments)
    actual = torch.autograd.grad(sample, leaf, moved(g).to(DEVICE))[0].movedim(dim, -1).cpu()
    if case.hard:
        assert torch.equal(sample.detach().movedim(dim, -1).cpu(), z.detach().to(leaf.dtype))
    assert actual.dtype == leaf.dtype
    excluded = fixed == -math.inf
    assert (actual[excluded] == 0).all(), "what is excluded got a gradient"
    scale = expected.abs()
    if "as_released" in case.options:
        # the released formula cancels what tails need
        scale = torch.maximum(scale, g.double().abs())
    if case.row.name == "reinmax" and not case.categorical:
        # its two terms cancel at one temperature, and near that rounding of the temperature is left
        scale = torch.maximum(scale, (g * fixed.sigmoid() * (-fixed).sigmoid()).abs())
    if case.categorical:
        scale = scale.amax(-1, keepdim=True)
        ends = [g.double().masked_fill(excluded, sign * math.inf) for sign in (1, -1)]
        alike = ends[0].amin(-1, keepdim=True) == ends[1].amax(-1, keepdim=True)
        # then the gradient is 0 but for rounding
        scale = torch.where(alike, g.double().abs().amax(-1, keepdim=True), scale)
    difference(actual, expected, scale, c.dtype, 1.0)


@library(
    "the rules of `discretegrad.testing`",
    case=tuple(CASES), rule=tuple(testing.RULES), seed=SEEDS,
)  # fmt: skip
def rule(c: SimpleNamespace) -> None:
    """A rule of every sampler, on other numbers than the tests have."""
    make = testing.normal

    def shifted(*shape: int, seed: int = 0, **options: Any) -> Tensor:
        return make(*shape, seed=seed + 1000 * c.seed, **options)

    with mock.patch.object(testing, "normal", shifted):
        testing.RULES[c.rule](CASES[c.case])


@library(
    "samplers under `torch.func`, checkpoints, batched gradients and `torch.compile`",
    case=tuple(CASES), transform=TRANSFORMS, dtype=DTYPES[:2], **PLACES, gap=GAPS[:3], tau=TAUS,
    seed=SEEDS,
)  # fmt: skip
def transform(c: SimpleNamespace) -> None:
    """What torch makes of a sampler at a given draw against plain autograd."""
    case = CASES[c.case]
    logits, mask = logits_of(c, case.categorical), mask_of(c)
    fixed = logits if mask is None else logits.masked_fill(~mask, -math.inf)
    draw, tau = case.draw(fixed, seed=c.seed), tau_of(c, logits.dtype)
    weights = normal(*logits.shape, seed=c.seed + 5, dtype=logits.dtype)
    call = partial(case.sample, tau=tau, mask=mask, **draw)

    def loss(x: Tensor) -> Tensor:
        return (call(x) * weights).sum()

    leaf = logits.clone().requires_grad_()
    expected = torch.autograd.grad(loss(leaf), leaf)[0]
    if c.transform == "func.grad":
        actual = grad(loss)(logits)
    elif c.transform == "jacrev":
        actual = torch.tensordot(weights, jacrev(call)(logits), logits.ndim)
    elif c.transform == "vmap":
        copies = torch.stack([logits, logits])
        actual = vmap(grad(loss))(copies)[1]
    elif c.transform == "checkpoint":
        value = (checkpoint(call, leaf, use_reentrant=False) * weights).sum()
        actual = torch.autograd.grad(value, leaf)[0]
    elif c.transform == "is_grads_batched":
        both = torch.stack([weights, weights])
        actual = torch.autograd.grad(call(leaf), leaf, both, is_grads_batched=True)[0][1]
    else:
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        actual = torch.autograd.grad((compiled(leaf) * weights).sum(), leaf)[0]
    scale = expected.abs().amax(-1, keepdim=True) if case.categorical else expected.abs()
    scale = scale.clamp_min(1e-4)  # tails are the subject of the kind "sampler"
    difference(actual, expected.double(), scale.double(), c.dtype, 1.0)


@library(
    "the property tests of samplers on extreme numbers",
    share=1.5, test=TESTS, parameter=range(10_000), seed=SEEDS,
)  # fmt: skip
def property_(c: SimpleNamespace) -> int:
    """A property test on cases that hypothesis has not tried yet."""
    test = getattr(properties, c.test)
    named: dict[str, Any] = {}
    for mark in test.pytestmark:
        if mark.name == "parametrize":
            name, values = mark.args[0], list(mark.args[1])
            named[name] = values[c.parameter // (len(named) * 31 + 1) % len(values)]
    inner = test.hypothesis.inner_test
    free = [name for name in inspect.signature(inner).parameters if name not in named]
    options = hypothesis.settings(
        deadline=None,
        database=None,
        max_examples=EXAMPLES,
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    # the same test, without its fixed choice of cases
    @hypothesis.seed(c.seed)
    @options
    @hypothesis.given(**{name: _STRATEGIES[name] for name in free})
    def anew(**values: Any) -> None:
        inner(**values, **named)

    anew()
    return EXAMPLES


@library(
    "draws, noise and gradients of the Triton kernels",
    share=1.5, case=tuple(KERNELS), dtype=DTYPES[1:], **PLACES, gap=GAPS, tau=TAUS, axis=AXES,
    strides=STRIDES, seed=SEEDS,
)  # fmt: skip
def kernel(c: SimpleNamespace) -> None:
    """A kernel with its own draws and noise against the torch path in float64."""
    case = KERNELS[c.case]
    if c.gap > 15 and case.name == "mean_baseline":
        raise Unsuitable  # what it cancels from is the subject of the kind "sampler"
    least = c.tau if isinstance(c.tau, float) else 0.3
    if c.dtype == "float16" and c.gap / least > 9 and case.name == "mean_baseline":
        raise Unsuitable  # its weight 1/(n p) leaves the range
    x = placed(logits_of(c, case.categorical), c.strides)
    dim = axis_of(c, x.ndim) if case.categorical else -1
    moved = partial(torch.movedim, source=-1, destination=dim)
    mask, tau = mask_of(c), tau_of(c)
    g = normal(*x.shape, seed=c.seed + 5, dtype=x.dtype)
    kernel_cases.check_case(
        case,
        moved(x).to(DEVICE),
        moved(g).to(DEVICE),
        tau if isinstance(tau, float) else moved(tau).to(DEVICE),
        dim,
        None if mask is None else moved(mask).to(DEVICE),
        c.seed,
        given=True,
    )


@library(
    "the index form and `select`, on both backends",
    case=CATEGORICAL, dtype=DTYPES, backend=BACKENDS, **PLACES, gap=GAPS[:3], tau=TAUS, axis=AXES,
    width=(0, 1, 4), seed=SEEDS,
)  # fmt: skip
def index(c: SimpleNamespace) -> None:
    """The index form and ``select`` against the dense product."""
    x, mask, tau = logits_of(c, True), mask_of(c), tau_of(c)
    dim = axis_of(c, x.ndim)
    moved = partial(torch.movedim, source=-1, destination=dim)
    weight = normal(c.n, *([c.width] if c.width else []), seed=c.seed + 6, dtype=x.dtype)
    arguments = {"dim": dim, "mask": None if mask is None else moved(mask)}
    tau = moved(tau) if isinstance(tau, Tensor) else tau
    if c.backend == "triton":
        of_kernel = KERNELS[c.case]
        if c.dtype == "float64" or DEVICE == "cuda":
            raise Unsuitable
        if c.dtype == "float16" and of_kernel.name == "mean_baseline":
            raise Unsuitable  # its weight 1/(n p) is unbounded
        index_form.check_gradients(of_kernel, moved(x), weight, tau, **arguments)
        return
    if c.dtype in ("bfloat16", "float16"):
        raise Unsuitable
    case = testing.Case(
        discretegrad.get(KERNELS[c.case].name), "categorical", KERNELS[c.case].options
    )
    index_form.assert_is_the_dense_product(case, moved(x), weight, tau, **arguments)


@library(
    "`linear_select` in blocks and tiles of any size",
    case=tuple(x for x in CATEGORICAL if not KERNELS[x].noisy), dtype=DTYPES, backend=BACKENDS,
    rows=(1, 2, 5, 10), n=(3, 1, 2, 24, 25, 77, 200), width=(1, 3, 16), out=(1, 5), tau=TAUS[:-1],
    rows_at_once=(3, 1, 100), columns_at_once=(24, 8), seed=SEEDS,
)  # fmt: skip
def layer(c: SimpleNamespace) -> None:
    """``linear_select`` in blocks or tiles of any size against all logits at once."""
    case = KERNELS[c.case]
    # in low precision tiles round the gradient at the one-hot, as that of a dense one is rounded
    if c.backend == "triton" and (c.dtype != "float32" or DEVICE == "cuda"):
        raise Unsuitable
    inputs, g = layers.problem(c.rows, c.n, dtype_of(c.dtype), c.width, c.out)
    with torch.no_grad():
        for x in (*inputs, g):
            x.copy_(normal(*x.shape, seed=c.seed + x.numel()) / (2 if x is inputs[1] else 1))
    with pytest.MonkeyPatch.context() as patch:
        layers.cut(patch, c.rows_at_once, c.columns_at_once, g.itemsize)
        generator = seeded(c.seed)
        selected, drawn, gradients = layers.run(
            inputs, g, case, c.tau, backend=c.backend, generator=generator
        )
    assert torch.equal(selected, inputs[2][drawn])
    wanted = layers.expected(case, inputs, g, drawn, c.tau)
    if max(x.abs().max() for x in wanted) > torch.finfo(g.dtype).max / 4:
        raise Unsuitable  # as for samplers
    if c.n == 1:
        assert all((x.abs() < 1e-5).all() for x in gradients[:2])
        gradients, wanted = gradients[2:], wanted[2:]
    # blocks may round a logit of low precision otherwise, which a low temperature enlarges
    low = torch.finfo(g.dtype).bits == 16
    slack = 1 + (inputs[0] @ inputs[1].T).abs().max().item() / c.tau if low else 1.0
    slack *= 10  # sums over categories cancel
    for actual, reference in zip(gradients, wanted, strict=True):
        layers.assert_close(actual, reference, slack)


# score functions


def problem_of(c: SimpleNamespace, family: str, size: float | None = None) -> Problem:
    """A random problem of the proofs: with a mask, a gap, another f."""
    shape = tuple(map(int, c.shape.split("x")))
    shape = shape if family == "categorical" else (math.prod(shape) // 2 + 1,)
    fields = SimpleNamespace(**{**vars(c), "batch": "x".join(map(str, shape[:-1])) or "1"})
    fields.n, fields.dtype = shape[-1], "float64"
    if size is not None:
        fields.gap = min(fields.gap, size)
    logits = logits_of(fields, family == "categorical").reshape(shape)
    mask = mask_of(fields)
    mask = None if mask is None else mask.reshape(shape)
    problem = Problem(f"case {c.seed}", family, logits, mask)
    weight = 1.3 * normal(logits.numel(), 4, seed=c.seed + 7)
    object.__setattr__(problem, "weight", weight.requires_grad_())
    return problem


def settings_of(c: SimpleNamespace) -> tuple[str, str, int, Any]:
    """The family, name, number of samples and options of a setting of the proofs."""
    name, label, count, family = c.setting.split("/")
    options = next(x for word, _, x in proofs.SETTINGS[name] if word == label)
    return family, name, int(count), options


@library(
    "score functions are unbiased, and the estimators of their papers",
    share=1.5, setting=SETTINGS, shape=SHAPES, mask=(False, True), gap=GAPS[:3], seed=SEEDS,
)  # fmt: skip
def unbiased(c: SimpleNamespace) -> None:
    """The proofs of the tests, by enumeration and draw for draw, on another problem."""
    family, name, count, options = settings_of(c)
    problem = problem_of(c, family, size=8)
    if len(problem.probs) ** (1 if count < 3 else 2) * problem.probs.shape[-1] > 20:
        raise Unsuitable
    case = proofs.Case(name, problem, count, "soak", options)
    if name in proofs.ENUMERABLE:
        proofs.prove_by_enumeration(case)
    if problem.mask is None:
        proofs.test_second_derivation(case)


@library(
    "score functions in every dtype and under transforms, on the same draws",
    share=2.0, setting=SETTINGS, dtype=DTYPES, shape=SHAPES, mask=(False, True), gap=GAPS,
    route=("plain", "func.grad", "vmap", "vectorize", "checkpoint", "writes"), seed=SEEDS,
)  # fmt: skip
def score(c: SimpleNamespace) -> None:
    """A dtype and a transform against float64 on the same draws, which f records."""
    family, name, count, options = settings_of(c)
    problem, row = problem_of(c, family), proofs.SCORE[name]
    case = proofs.Case(name, problem, count, "soak", options)
    if callable(case.options.get("baseline")) and c.dtype in ("float16", "bfloat16"):
        raise Unsuitable  # the baseline of the proofs is the cosine of large logits, as they are
    small = problem.logits.to(dtype_of(c.dtype))
    object.__setattr__(problem, "logits", small.double())
    seen: list[Tensor] = []

    def f(z: Tensor, writes: bool = False) -> Tensor:
        seen.append(z.detach().clone())
        return problem.f(z.mul_(2).double() / 2 if writes else z.double())

    noise = None
    if row.takes:
        shape = (count, 1, *small.shape) if case.options["tied"] else (2, count, 1, *small.shape)
        uniform = torch.rand(shape, generator=seeded(c.seed), dtype=torch.float64).clamp(1e-6)
        noise = uniform.logit(1e-6) if family == "bernoulli" else -uniform.log() + 1e-6
    draws = {"num_samples": count, "mask": problem.mask, "family": family, **case.options}

    def value(x: Tensor, f: Callable[[Tensor], Tensor] = f, **more: Any) -> Tensor:
        if noise is not None and "given" in more:
            more["noise"] = noise.to(torch.promote_types(x.dtype, torch.float32))
        return discretegrad.expectation(x.unsqueeze(0), f, name, **draws, **more).sum()

    with torch.no_grad():
        value(small, generator=seeded(c.seed))
    drawn = torch.stack(seen[:count])
    given = drawn.argmax(-1) if family == "categorical" else drawn
    leaf = problem.logits.clone().requires_grad_()
    expected = torch.autograd.grad(value(leaf, given=given), leaf)[0]
    at = partial(value, given=given)
    actual = _transformed(at, f, small, c.route)
    if actual is None:
        return
    # a control variate subtracts numbers as large as f; what else is small is the score
    residual = (drawn.double() - _mean(problem)).abs()[:, 0]
    scale = torch.maximum(residual.amax(0), expected.abs())
    if family == "categorical":
        scale = scale.amax(-1, keepdim=True)
    if row.takes or row.needs_grad_f:
        scale = scale.clamp_min(1.0)
    difference(actual, expected, scale, c.dtype, 30.0)


def _mean(problem: Problem) -> Tensor:
    probs = problem.probs
    return probs[..., 1] if problem.family == "bernoulli" else probs


def _transformed(at: Callable[..., Tensor], f: Any, x: Tensor, route: str) -> Tensor | None:
    """The gradient along a route; None if a route may refuse, and does."""
    if route == "func.grad":
        return grad(at)(x)
    if route == "vmap":
        return vmap(grad(at), randomness="different")(torch.stack([x, x]))[1]
    leaf = x.clone().requires_grad_()
    if route == "vectorize":
        return torch.autograd.grad(at(leaf, vectorize=True), leaf)[0]
    if route == "checkpoint":
        return torch.autograd.grad(checkpoint(at, leaf, use_reentrant=False), leaf)[0]
    if route == "writes":
        try:
            return torch.autograd.grad(at(leaf, partial(f, writes=True)), leaf)[0]
        except (ValueError, RuntimeError):
            return None
    return torch.autograd.grad(at(leaf), leaf)[0]


@library(
    "`exact_gradient` in every dtype, to the end of the tails",
    share=0.5, family=samplers.FAMILIES, dtype=DTYPES, shape=SHAPES, mask=(False, True), gap=GAPS,
    seed=SEEDS,
)  # fmt: skip
def exact(c: SimpleNamespace) -> None:
    """``exact_gradient`` against a sum over pairs of outcomes, which cancels nothing."""
    problem = problem_of(c, c.family)
    small = problem.logits.to(dtype_of(c.dtype))
    object.__setattr__(problem, "logits", small.double())
    probs = problem.probs
    states = probs.shape[-1]
    outcomes = torch.tensor(list(itertools.product(range(states), repeat=len(probs))))
    values = outcomes.double()
    if c.family == "categorical":
        values = torch.nn.functional.one_hot(outcomes, states).double()
    f = problem.f(values).detach().reshape([states] * len(probs))
    rows = []
    for v, row in enumerate(probs):
        given_v = f.movedim(v, -1)
        for other in reversed([p for u, p in enumerate(probs) if u != v]):
            given_v = torch.tensordot(other, given_v.movedim(-2, 0), 1)
        rows.append(row * ((given_v[:, None] - given_v) * row).sum(-1))
    expected = torch.stack(rows)[..., 1 if c.family == "bernoulli" else slice(None)]
    actual = discretegrad.exact_gradient(
        small, lambda z: problem.f(z.double()), family=c.family, mask=problem.mask
    )
    scale = expected.abs()
    if c.family == "categorical":
        scale = scale.amax(-1, keepdim=True)
    difference(actual, expected, scale, c.dtype, 1.0)
