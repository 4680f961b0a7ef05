"""What holds for every estimator whatever the input: shapes, dtypes, masks, extreme numbers.

Hypothesis picks the case; the numbers inside come from a seed it picks. Runs are derandomised, so
every run tries the same cases.
"""

import itertools
import math
import operator
from dataclasses import dataclass

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import discretegrad
import oracles
from cases import BERNOULLI, CASES, CATEGORICAL, DEFAULTS, any_tau, each
from discretegrad import ESTIMATORS
from discretegrad.families import FAMILIES
from discretegrad.testing import assert_discrete, seeded

TOLERANCE = {
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.float32: 1e-5,
    torch.float64: 1e-9,
}
"""Largest error relative to |g| times the estimator's own factor, see ``factor_of``.

Low precisions: one rounding of the result. float32 and float64: a logit of up to 90 (700)
temperatures below the largest still counts, and its rounding enters the exponent.
"""
RAW_RANGE = 600.0
"""The oracles with noise use exp(-logit) as printed, which must not overflow."""
LEAVES_THE_RANGE = {"mean_baseline"}
"""Its weight 1/(n p) is unbounded, so the right answer may exceed the largest number of a dtype."""

EVERY_DTYPE = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
some_cases = settings(deadline=None, derandomize=True, max_examples=30)

pytestmark = any_tau
one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


@dataclass(frozen=True)
class Input:
    """One call: categories last unless ``dim`` says otherwise."""

    logits: Tensor
    draw: Tensor
    noise: Tensor
    tau: float | Tensor
    mask: Tensor | None
    dim: int
    g: Tensor


def extreme_numbers(dtype):
    info = torch.finfo(dtype)
    # the smallest subnormal is the smallest normal times eps
    return [info.max, info.min, info.tiny, -info.tiny, info.tiny * info.eps, 0.0, -math.inf]


@st.composite
def numbers(draw, shape, dtype):
    """Logits of a drawn scale, some of them replaced by extreme ones."""
    generator = seeded(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1.0, 3.0, 10.0, 1e-3, 100.0, 1e4, 0.0]))
    logits = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    share = draw(st.sampled_from([0.0, 0.0, 0.3, 0.9]))
    palette = torch.tensor(extreme_numbers(dtype), dtype=torch.float64)
    chosen = palette[torch.randint(len(palette), shape, generator=generator)]
    logits = torch.where(torch.rand(shape, generator=generator) < share, chosen, logits)
    return logits.to(dtype), generator


temperatures = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)
# hypothesis prefers what comes first; both sides of every switch in the library are there
categories = st.sampled_from([3, 5, 33, 65, 2, 70, 64, 32, 8, 1])
leading_axes = st.lists(st.sampled_from([2, 3, 1, 2, 3, 2, 1, 0]), max_size=4).map(tuple)


@st.composite
def categorical_cases(draw, dtype):
    shape = (*draw(leading_axes), draw(categories))
    logits, generator = draw(numbers(shape, dtype))
    # every row keeps one finite category
    keep = torch.randint(shape[-1], (*shape[:-1], 1), generator=generator)
    dead = (logits.gather(-1, keep) == -math.inf).to(dtype)
    logits = logits.scatter(-1, keep, torch.where(dead.bool(), 0.0, logits.gather(-1, keep)))
    mask = None
    if draw(st.booleans()):
        mask = torch.rand(shape, generator=generator) < 0.5
        mask = mask.scatter(-1, keep, True)
    allowed = logits > -math.inf if mask is None else mask & (logits > -math.inf)
    # a draw that can happen: of the allowed categories one with a probability that is not tiny
    probs = logits.double().masked_fill(~allowed, -math.inf).softmax(-1)
    score = torch.rand(shape, generator=generator).masked_fill(probs < 1e-12, -1)
    noise = torch.empty((5, *shape), dtype=torch.float64).exponential_(generator=generator)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    tau = draw(temperatures)
    if draw(st.booleans()):
        rows = torch.rand((*shape[:-1], 1), generator=generator, dtype=torch.float64)
        tau = (tau * (0.5 + rows)).clamp(1e-3, 1e3).to(compute)
    return Input(
        logits=logits,
        draw=score.argmax(-1),
        noise=noise.clamp_min(1e-6).to(compute),
        tau=tau,
        mask=mask,
        dim=draw(st.integers(-len(shape), len(shape) - 1)),
        g=torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype),
    )


def moved(call):
    """The library's arguments, with the category axis moved to ``dim``."""
    tau = call.tau.movedim(-1, call.dim) if isinstance(call.tau, Tensor) else call.tau
    mask = call.mask if call.mask is None else call.mask.movedim(-1, call.dim)
    noise_dim = call.dim if call.dim < 0 else call.dim + 1
    noise = call.noise.movedim(-1, noise_dim)
    return call.logits.movedim(-1, call.dim).clone().requires_grad_(), noise, tau, mask


def masked(call):
    return call.logits if call.mask is None else call.logits.masked_fill(~call.mask, -math.inf)


def smallest(dtype):
    """The smallest normal number of the dtype that the library computes in."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).tiny


def factor_of(name, row_tau, sample_prob, n, least):
    """How much an estimator multiplies g by, at most."""
    if name == "reinmax":
        return 1.0
    if name == "mean_baseline":
        # below the smallest normal number the library divides by that
        return max(1.0, 1 / (n * sample_prob)) if sample_prob > least else math.inf
    return max(1.0, 1 / row_tau) if name == "blend" else 1 / row_tau


def tolerance(dtype, scale):
    """Relative to the scale, plus the spacing of the smallest numbers of the dtype."""
    return TOLERANCE[dtype] * scale + torch.finfo(dtype).tiny * torch.finfo(dtype).eps


def rows_of(x, n):
    return x.reshape(-1, n)


@EVERY_DTYPE
@each(CATEGORICAL)
@given(data=st.data())
@some_cases
def test_categorical(case, dtype, data):
    call = data.draw(categorical_cases(dtype))
    name, n = case.row.name, call.logits.shape[-1]
    logits, noise, tau, mask = moved(call)
    z = oracles.library_sample(case, logits, call.draw, noise, tau, dim=call.dim, mask=mask)
    assert z.dtype == dtype
    assert z.shape == logits.shape
    (gradient,) = torch.autograd.grad((z * call.g.movedim(-1, call.dim)).sum(), logits)
    z = rows_of(z.detach().movedim(call.dim, -1), n)
    gradient = rows_of(gradient.movedim(call.dim, -1), n)
    allowed, index = rows_of(masked(call) > -math.inf, n), call.draw.reshape(-1)

    if case.hard:
        one_hot = torch.nn.functional.one_hot(index, n).to(dtype)
        assert torch.equal(z, one_hot)
    else:
        assert ((z >= 0) & (z <= 1)).all()
        assert (z.double().sum(-1) - 1).abs().le(n * TOLERANCE[dtype]).all()
    assert (z[~allowed] == 0).all()
    assert (gradient[~allowed] == 0).all()

    g, noise = rows_of(call.g, n).double(), call.noise.double().reshape(5, -1, n)
    flat_logits = rows_of(call.logits, n).double()
    taus = torch.as_tensor(call.tau, dtype=torch.float64)
    taus = taus.expand(*call.logits.shape[:-1], 1).reshape(-1).tolist()
    for r in range(len(z)):
        keep, tau = allowed[r], taus[r]
        theta = flat_logits[r, keep]
        theta = (theta - theta.max()).clamp_min(-1e9).requires_grad_()
        k = keep[: index[r]].sum()
        count = int(keep.sum())
        drawn = (theta.detach() / tau).softmax(-1)[k].item()
        scale = g[r].abs().max().item() * factor_of(name, tau, drawn, count, smallest(dtype))
        if scale > torch.finfo(dtype).max / 4:
            assert name in LEAVES_THE_RANGE
            continue
        assert gradient[r].isfinite().all()
        if not case.options.get("as_released"):
            assert gradient[r].double().sum().abs() <= 2 * n * tolerance(dtype, scale)
        if case.row.takes and theta.min() < -RAW_RANGE:
            continue
        oracle = oracles.oracle_sample(case, theta, k, noise[:, r, keep], tau)
        (expected,) = torch.autograd.grad((oracle * g[r, keep]).sum(), theta)
        assert (gradient[r, keep].double() - expected).abs().max() <= tolerance(dtype, scale)


@st.composite
def bernoulli_cases(draw, dtype):
    shape = draw(leading_axes)
    logits, generator = draw(numbers(shape, dtype))
    certain = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.2]))
    logits = torch.where(certain, torch.full_like(logits, math.inf), logits)
    mask = torch.rand(shape, generator=generator) < 0.7 if draw(st.booleans()) else None
    effective = logits if mask is None else logits.masked_fill(~mask, -math.inf)
    # of the two values one with a probability that is not tiny
    coin = torch.rand(shape, generator=generator) < 0.5
    value = torch.where(effective > 25, True, torch.where(effective < -25, False, coin))
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    uniform = torch.rand((5, *shape), generator=generator, dtype=torch.float64)
    tau = draw(temperatures)
    if draw(st.booleans()):
        spread = torch.rand(shape, generator=generator, dtype=torch.float64)
        tau = (tau * (0.5 + spread)).clamp(1e-3, 1e3).to(compute)
    return Input(
        logits=logits,
        draw=value,
        noise=uniform.logit(eps=1e-6).to(compute),
        tau=tau,
        mask=mask,
        dim=-1,
        g=torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype),
    )


@EVERY_DTYPE
@each(BERNOULLI)
@given(data=st.data())
@some_cases
def test_bernoulli(case, dtype, data):
    call = data.draw(bernoulli_cases(dtype))
    name = case.row.name
    logits = call.logits.clone().requires_grad_()
    b = oracles.library_sample(case, logits, call.draw, call.noise, call.tau, mask=call.mask)
    assert b.dtype == dtype
    assert b.shape == logits.shape
    (gradient,) = torch.autograd.grad((b * call.g).sum(), logits)
    if case.hard:
        assert torch.equal(b, call.draw.to(dtype))
    else:
        assert ((b >= 0) & (b <= 1)).all()
        assert torch.equal(b > 0.5, call.draw & (b != 0.5))

    effective = masked(call)
    certain = effective.isinf()
    assert (gradient[certain] == 0).all()
    theta = effective.double()[~certain].clamp(-1e9, 1e9).requires_grad_()
    tau = torch.as_tensor(call.tau, dtype=torch.float64).expand(certain.shape)[~certain]
    value, g = call.draw[~certain], call.g.double()[~certain]
    drawn = torch.sigmoid(torch.where(value, theta, -theta).detach() / tau)
    scale = g.abs() * torch.tensor(
        [
            factor_of(name, t, p, 2, smallest(dtype))
            for t, p in zip(tau.tolist(), drawn.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )
    in_range = scale <= torch.finfo(dtype).max / 4
    assert in_range.all() or name in LEAVES_THE_RANGE
    assert gradient[~certain][in_range].isfinite().all()
    noise = call.noise.double()[:, ~certain]
    oracle = oracles.oracle_sample(case, theta, value, noise, tau)
    (expected,) = torch.autograd.grad((oracle * g).sum(), theta)
    compared = in_range & (theta.abs() <= RAW_RANGE) if case.row.takes else in_range
    error = (gradient[~certain].double() - expected)[compared].abs()
    assert (error <= tolerance(dtype, scale[compared])).all()


@EVERY_DTYPE
@each(DEFAULTS)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@some_cases
def test_draws(case, dtype, data, seed):
    """Through the random draw: discrete, and never an impossible value."""
    call = data.draw((categorical_cases if case.categorical else bernoulli_cases)(dtype))
    logits, _, tau, mask = moved(call)
    z = case.sample(logits, tau, dim=call.dim, mask=mask, generator=seeded(seed))
    (z * call.g.movedim(-1, call.dim)).sum().backward()
    z = z.detach().movedim(call.dim, -1)
    assert_discrete(z, case.family)
    effective = masked(call).double()
    probs = effective.softmax(-1) if case.categorical else effective.sigmoid()
    assert (probs[z == 1] > 0).all()
    assert (z[probs == 1] == 1).all()
    assert logits.grad.isfinite().all() or case.row.name in LEAVES_THE_RANGE


# --- nearly certain variables

GAPS = [5, 15, 17, 40, 80]
"""How far the largest logit lies above the others. In float32 1 - p is 0 from a gap of 17 on; at 80
p is 2e-35, still a normal number, and a temperature below 1 would take it out of the range."""
TAIL_TOLERANCE = TOLERANCE | {torch.float64: 1e-12}
"""Of the largest entry of a variable's gradient: ``TOLERANCE`` without |g|, which is not small."""


def tail_logits(family, gap, dtype):
    """One variable for each pair of a largest entry and a draw, and the draws."""
    if family == "bernoulli":
        draw = torch.tensor([[0.0], [1.0]]).expand(2, 4)
        return torch.tensor([gap, -gap, gap - 0.125, -gap - 0.25]).to(dtype).expand(2, 4), draw
    n = 5
    logits = -gap + torch.tensor([0.0, 1.5, -0.25, 0.75, 0.5], dtype=torch.float64).expand(n, n, n)
    is_top = torch.eye(n, dtype=torch.bool).unsqueeze(1)
    return logits.masked_fill(is_top, 0).to(dtype), torch.arange(n).expand(n, n)


def assert_in_the_tails(x, expected, dtype, scale=None):
    """Of the largest entry of each last axis, or of ``scale``; of a bit, of itself.

    What is smaller than the smallest number of the dtype may be 0.
    """
    scale = expected.abs().amax(-1, keepdim=True) if scale is None else scale
    error = (x.double() - expected).abs()
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    assert (error <= TAIL_TOLERANCE[dtype] * scale + smallest).all(), (error / scale).max()


@EVERY_DTYPE
@each(CASES)
def test_samplers_in_the_tails(case, dtype):
    """Against float64, on the same draws and noise: relative, not relative to |g|."""
    for gap, tau in itertools.product(GAPS, (1.0, 2.0)):
        logits, draw = tail_logits(case.family, gap, dtype)
        g = torch.tensor([1.5, 4.0, -2.0, 0.5, 3.0])[: logits.shape[-1]].expand(logits.shape)
        noise = 0.2 + torch.rand((3, *logits.shape), generator=seeded(gap))
        gradients = []
        for leaf in (logits, logits.double()):
            leaf = leaf.clone().requires_grad_()
            wide = noise.to(torch.promote_types(leaf.dtype, torch.float32))
            z = oracles.library_sample(case, leaf, draw, wide, tau)
            gradients += torch.autograd.grad(z, leaf, g.to(leaf.dtype))
        assert (gradients[1].abs().amax(-1) > 0).all()
        scale = gradients[1].abs()
        if case.categorical:
            scale = scale.amax(-1, keepdim=True)
        in_range = scale <= torch.finfo(dtype).max / 4
        assert in_range.all() or case.row.name in LEAVES_THE_RANGE
        gradients = [torch.where(in_range, gradient, 0) for gradient in gradients]
        assert_in_the_tails(*gradients, dtype, scale)


SCORES = [
    (name, family, options)
    for name, options in [
        ("reinforce", {}),
        ("leave_one_out", {}),
        ("muprop", {}),
        ("rebar", {}),
        ("rebar", {"tied": False}),
        ("relax", {"control": lambda z: z.flatten(1).tanh().sum(-1), "tied": True}),
        ("disarm", {}),
        ("disarm_tree", {}),
        ("disarm_tree", {"tree": "stick_breaking"}),
        ("arms", {}),
        ("double_cv", {}),
        ("rodeo", {"control": torch.tanh, "alpha": 0.5, "beta": 0.5}),
    ]
    for family in ESTIMATORS[name].families
]


def test_every_score_function_is_tried_in_the_tails():
    rows = {name for name, row in ESTIMATORS.items() if row.kind == "score"}
    assert {name for name, _, _ in SCORES} == rows - {"exact"}


@EVERY_DTYPE
@pytest.mark.parametrize("score", SCORES, ids=lambda score: f"{score[1]}-{score[0]}-{[*score[2]]}")
def test_score_functions_in_the_tails(score, dtype):
    """Relative to f times the score, whose two samples may cancel: twice the likely value of a
    nearly certain variable, once with the unlikely value; another variable is uncertain."""
    name, family, options = score
    for gap, again in itertools.product(GAPS, (True, False)):
        if family == "bernoulli":
            logits = torch.tensor([-gap, 0.5]).to(dtype)
            given = torch.tensor([[0.0, 1.0], [float(not again), 0.0]])
        else:
            logits = tail_logits(family, gap, dtype)[0][1, :2].clone()
            logits[1] = torch.tensor([0.5, 0.0, -1.0, 1.0, 0.25])
            given = torch.tensor([[1, 0], [1 if again else 3, 4]])
        weight = torch.tensor([[0.8, -0.5, 0.3, 1.1, 0.6], [0.4, 0.9, -0.7, 0.2, -0.3]]).double()
        weight = weight[0, :2] if family == "bernoulli" else weight

        def f(z, weight=weight):
            # the same values in every dtype
            total = (z.double() * weight).sum()
            return total.tanh() + 0.3 * total**2 + 2

        gradients = []
        for leaf in (logits, logits.double()):
            leaf = leaf.clone().requires_grad_()
            arguments = dict(options)
            if name in ("rebar", "relax"):
                shape = (2, *logits.shape) if options.get("tied", True) else (2, 2, *logits.shape)
                noise = 0.2 + torch.rand(shape, generator=seeded(gap))
                arguments["noise"] = noise.to(torch.promote_types(leaf.dtype, torch.float32))
            loss = getattr(discretegrad, name)(leaf, f, given=given, family=family, **arguments)
            gradients += torch.autograd.grad(loss, leaf)
        kind = FAMILIES[family]
        drawn = given.unsqueeze(-1) if family == "categorical" else given > 0
        point = logits.double().softmax(-1) if family == "categorical" else logits.double()
        scale = 5 * kind.residual(drawn, point).abs().amax(0)
        if family == "categorical":
            scale = scale.amax(-1, keepdim=True)
        assert_in_the_tails(*gradients, dtype, scale)


@EVERY_DTYPE
@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_enumeration_in_the_tails(family, dtype):
    """The exact gradient and the derivative of the expectation, the value included."""
    for gap in GAPS:
        logits = tail_logits(family, gap, dtype)[0]
        logits = logits[1, :2].clone() if family == "categorical" else logits[0, :2].clone()
        logits[1] = logits[1] / 8
        weight = torch.linspace(-1, 2, logits.numel()).double().reshape(logits.shape)

        def f(z, weight=weight):
            return ((z.double() * weight).sum() + 0.3).square() + 3

        expected = discretegrad.exact_gradient(logits.double(), f, family=family)
        leaf = logits.clone().requires_grad_()
        value = discretegrad.exact_expectation(leaf, f, family=family)
        (derivative,) = torch.autograd.grad(value, leaf)
        exact_value = discretegrad.exact_expectation(logits.double(), f, family=family)
        assert_in_the_tails(value.detach()[None], exact_value[None], dtype)
        scale = expected.abs() if family == "bernoulli" else None
        for gradient in (derivative, discretegrad.exact_gradient(logits, f, family=family)):
            # the joint probability is the exponential of a sum of logits: one rounding more each
            assert_in_the_tails(gradient / 2, expected / 2, dtype, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_moments_in_the_tails_in_many_digits(dtype):
    """What float64 is compared with above, which from a gap of 37 on would cancel as well."""
    family, one = FAMILIES["categorical"], FAMILIES["bernoulli"]
    g = [1.5, 4.0, -2.0, 0.5, 3.0]
    for gap in GAPS:
        logits, draw = tail_logits("categorical", gap, dtype)
        drawn, slopes = draw.unsqueeze(-1), torch.tensor(g, dtype=dtype)
        point = family.point(logits)
        residual, covariance = family.residual(drawn, point), family.covariance(point, slopes)
        other = family.other_probability(drawn, point)
        leaf = logits.clone().requires_grad_()
        sample = family.sample(leaf, drawn)
        (score,) = torch.autograd.grad(family.log_prob(leaf, sample).sum(), leaf)
        (softmax,) = torch.autograd.grad(family.relaxed(leaf), leaf, slopes.expand(leaf.shape))
        for top, k in itertools.product(range(5), range(5)):
            with mpmath.workdps(60):
                weights = [mpmath.exp(x) for x in logits[top, k].tolist()]
                p = [w / sum(weights) for w in weights]
                mean = sum(map(operator.mul, p, g))
                z_minus_p = doubles([(j == k) - p[j] for j in range(5)])
                c_g = doubles([p[j] * (g[j] - mean) for j in range(5)])
                rest = doubles([1 - p[k]])
            assert_in_the_tails(other[top, k], rest, dtype)
            assert_in_the_tails(residual[top, k], z_minus_p, dtype, z_minus_p.abs())
            assert residual[top, k].sum().abs() <= 2e-7 * residual[top, k].abs().max()
            for x, expected in (
                (covariance, c_g),
                (softmax, c_g),
                (score, z_minus_p),
            ):
                assert_in_the_tails(x[top, k], expected, dtype)
        bits, value = tail_logits("bernoulli", gap, dtype)
        residual = one.residual(value > 0, bits)
        for got, x, b in zip(residual.flatten(), bits.flatten(), value.flatten(), strict=True):
            with mpmath.workdps(60):
                expected = doubles([b.item() - 1 / (1 + mpmath.exp(-x.item()))])
            assert_in_the_tails(got[None], expected, dtype)


def doubles(numbers):
    return torch.tensor([float(x) for x in numbers], dtype=torch.float64)
