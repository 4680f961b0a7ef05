"""exact_expectation and exact_gradient against plain loops, autograd and finite limits."""

import itertools
import math
import re
from functools import partial

import pytest
import torch

import oracles
from discretegrad import Subset, exact_expectation, exact_gradient
from discretegrad.testing import assert_close, normal
from watched_memory import Memory

SAME = 1e-12
"""Largest difference in float64, where values are of order 1 to 100."""
LOW_PRECISION = {torch.float16: 5.5e-4, torch.bfloat16: 4.4e-3, torch.float32: 1e-6}
"""Largest difference relative to the largest entry: one rounding of the result, ten in float32."""
BOTH = pytest.mark.parametrize("exact", [exact_expectation, exact_gradient])
FAMILIES = pytest.mark.parametrize("family", ["categorical", "bernoulli"])

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def problem(family, *batch):
    """Three variables with three categories, or four bits, and a function that couples them."""
    if family == "categorical":
        return normal(*batch, 3, 3), oracles.objectives(3, 3)["exponential"]
    return normal(*batch, 4), oracles.objectives(4, None)["exponential"]


def expectation_by_loops(logits, f, family):
    """The sum over every joint outcome of one batch element."""
    probs = torch.sigmoid(logits)
    table = logits.softmax(-1) if family == "categorical" else torch.stack([1 - probs, probs], -1)
    variables, states = table.shape
    total = 0.0
    for outcome in itertools.product(range(states), repeat=variables):
        sample = torch.tensor(outcome)
        if family == "categorical":
            sample = torch.nn.functional.one_hot(sample, states)
        prob = math.prod(table[i, state].item() for i, state in enumerate(outcome))
        total += prob * f(sample.double()).item()
    return total


def gradient_by_differences(logits, f, family, step=1e-5):
    gradient = torch.zeros_like(logits)
    for i in range(logits.numel()):
        shift = torch.zeros_like(logits)
        shift.view(-1)[i] = step
        ends = [expectation_by_loops(logits + s * shift, f, family) for s in (-1, 1)]
        gradient.view(-1)[i] = (ends[1] - ends[0]) / (2 * step)
    return gradient


@FAMILIES
def test_gradient_equals_finite_differences_of_plain_loops(family):
    logits, f = problem(family)
    by_differences = gradient_by_differences(logits, f, family)
    # a step of 1e-5 leaves an error of about its square
    assert (exact_gradient(logits, f, family=family) - by_differences).abs().max() < 1e-7


@pytest.mark.parametrize("chunk_size", [1, 7, 16, 10**6])
@pytest.mark.parametrize("vectorize", [True, False])
@FAMILIES
def test_chunks_and_vectorizing_change_nothing(family, vectorize, chunk_size):
    """For the value, its gradients for the logits and the parameters of f, and the gradient."""
    logits, f = problem(family, 2)
    weight = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    options = {"family": family, "chunk_size": chunk_size, "vectorize": vectorize}
    value, gradient = (x(logits, f, family=family) for x in (exact_expectation, exact_gradient))
    attached = logits.clone().requires_grad_()
    weighted = exact_expectation(attached, lambda z: weight * f(z), **options)
    to_logits, to_weight = torch.autograd.grad(weighted.sum(), (attached, weight))
    assert (weighted - 1.3 * value).abs().max() < SAME
    assert (to_logits - 1.3 * gradient).abs().max() < SAME
    assert (to_weight - value.sum()).abs() < SAME
    assert (exact_gradient(logits, f, **options) - gradient).abs().max() < SAME


@pytest.mark.parametrize("vectorize", [True, False])
@FAMILIES
def test_second_derivatives(family, vectorize):
    logits, f = problem(family)

    def expectation(theta):
        return exact_expectation(theta, f, family=family, chunk_size=8, vectorize=vectorize)

    attached = logits.clone().requires_grad_()
    (first,) = torch.autograd.grad(expectation(attached), attached, create_graph=True)
    direction = normal(*logits.shape, seed=2)
    (product,) = torch.autograd.grad((first * direction).sum(), attached)
    step = 1e-5
    ends = [exact_gradient(logits + s * step * direction, f, family=family) for s in (-1, 1)]
    by_differences = (ends[1] - ends[0]) / (2 * step)
    assert (product - by_differences).abs().max() < 1e-7


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (0,)], ids=str)
@FAMILIES
def test_every_batch_element_is_its_own_problem(family, batch):
    logits, f = problem(family, *batch)
    value, gradient = (x(logits, f, family=family) for x in (exact_expectation, exact_gradient))
    assert value.shape == batch
    assert gradient.shape == logits.shape
    for position in itertools.product(*map(range, batch)):
        alone = logits[position]
        assert abs(value[position].item() - expectation_by_loops(alone, f, family)) < SAME
        own = exact_gradient(alone, f, family=family)
        assert (gradient[position] - own).abs().max() < SAME


def test_no_latent_axis_left_over_means_one_variable_per_batch_element():
    logits, values = normal(4, 3), normal(3, seed=1)
    value = exact_expectation(logits, lambda z: z @ values)
    assert (value - logits.softmax(-1) @ values).abs().max() < SAME
    bits = normal(5)
    value = exact_expectation(bits, lambda b: 3 * b + 1, family="bernoulli")
    assert (value - (3 * torch.sigmoid(bits) + 1)).abs().max() < SAME


def test_several_latent_axes_act_as_one():
    logits, f = normal(2, 2, 2, 3), oracles.objectives(4, 3)["exponential"]
    for exact in (exact_expectation, exact_gradient):
        of_grid = exact(logits, lambda z: f(z.flatten(-3, -2)))
        flat = exact(logits.flatten(1, 2), f)
        assert (of_grid - flat.reshape(of_grid.shape)).abs().max() < SAME


@BOTH
@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=str)
@FAMILIES
def test_low_precision_is_computed_inside_in_float32(family, dtype, exact):
    logits, f = problem(family, 2)
    logits, seen = logits.to(dtype), []

    def recording(z):
        seen.append(z.dtype)
        return f(z.double())

    result = exact(logits, recording, family=family, chunk_size=4)
    assert set(seen) == {dtype}
    # an expectation is no narrower than f
    assert result.dtype == (torch.float64 if exact is exact_expectation else dtype)
    wide = exact(logits.double(), f, family=family)
    assert (result - wide).abs().max() < LOW_PRECISION[dtype] * wide.abs().max()


@pytest.mark.parametrize("given_as", ["mask", "infinite logits"])
@pytest.mark.parametrize("value_there", [math.inf, math.nan])
@FAMILIES
def test_impossible_outcomes_count_nothing_even_where_f_is_not_finite(
    family, value_there, given_as
):
    """Value, gradient, gradient of the expectation and second derivative stay finite."""
    logits, smooth = problem(family)
    allowed = torch.ones_like(logits, dtype=torch.bool)
    allowed[0, ...] = torch.tensor([True, False, True]) if family == "categorical" else False

    def f(z):
        broken = (z * ~allowed).sum((-1, -2) if family == "categorical" else -1)
        return torch.where(broken > 0, value_there, smooth(z))

    if given_as == "mask":
        masked, options = logits.clone().requires_grad_(), {"mask": allowed}
    else:
        masked, options = logits.masked_fill(~allowed, -math.inf).requires_grad_(), {}
    tiny = logits.masked_fill(~allowed, -200.0)  # probability e^-200
    value = exact_expectation(masked, f, family=family, **options)
    assert abs(value.item() - expectation_by_loops(tiny, smooth, family)) < SAME
    (gradient,) = torch.autograd.grad(value, masked, create_graph=True)
    other = exact_gradient(masked, f, family=family, **options)
    reference = exact_gradient(tiny, smooth, family=family)
    assert (gradient - reference).abs().max() < SAME
    assert (other - reference).abs().max() < SAME
    assert (other[~allowed] == 0).all()
    (second,) = torch.autograd.grad(gradient.pow(2).sum(), masked)
    assert second.isfinite().all()


@pytest.mark.parametrize("vectorize", [True, False])
def test_f_need_not_be_differentiable(vectorize):
    logits = normal(3, 3)

    def f(z):
        return (z[..., 0].sum(-1) >= 2).double().round()

    def of_values(z):
        return torch.tensor(f(z).item(), dtype=torch.float64)

    # vmap cannot look at values
    f_used = f if vectorize else of_values
    value = exact_expectation(logits, f_used, vectorize=vectorize).item()
    assert abs(value - expectation_by_loops(logits, f, "categorical")) < SAME
    gradient = exact_gradient(logits, f_used, vectorize=vectorize)
    by_differences = gradient_by_differences(logits, f, "categorical")
    assert (gradient - by_differences).abs().max() < 1e-7


@BOTH
def test_f_runs_with_gradients_only_in_exact_expectation(exact):
    logits, modes = normal(2, 3).requires_grad_(), []

    def f(z):
        modes.append(torch.is_grad_enabled())
        return z.sum((-1, -2))

    result = exact(logits, f)
    assert result.requires_grad == modes[-1] == (exact is exact_expectation)
    with torch.no_grad():
        assert not exact(logits, f).requires_grad


@BOTH
def test_the_limit_itself_is_allowed_and_one_more_is_not(exact):
    """The default; a hopeless number is refused at once."""
    exact(normal(16), torch.sum, family="bernoulli", chunk_size=2**16)
    for shape, family, outcomes in (
        ((17,), "bernoulli", "2 ** 17"),
        ((500, 10), "categorical", "10 ** 500"),
    ):
        with pytest.raises(
            ValueError, match=re.escape(f"max_outcomes=65536 joint outcomes, got {outcomes}")
        ):
            exact(torch.zeros(shape), torch.sum, family=family)
    # too long for Python to write down
    with pytest.raises(ValueError, match=re.escape("got (about 10 ** 6018) ** 1")):
        exact(torch.zeros(20_000), torch.sum, family=Subset(10_000))


def memory_of(variables, chunk_size, exact):
    logits = normal(variables, 2).requires_grad_()
    weight = normal(variables, 2, seed=1)

    def f(z):
        return (z * weight).sum((-1, -2)).square()

    with Memory() as memory:
        value = exact(logits, f, chunk_size=chunk_size)
        if exact is exact_expectation:
            value.backward()
    return memory


@BOTH
def test_memory_grows_with_the_chunk_and_not_with_the_outcomes(exact):
    """16 times the outcomes, the same chunk: nearly the same memory, also with gradients."""
    chunk_size = 64
    few, many = (memory_of(variables, chunk_size, exact) for variables in (7, 11))
    one_outcome = 11 * 2 * 8  # bytes of one sample, and of as many integers
    assert many.largest <= chunk_size * one_outcome
    assert many.peak < 3 * few.peak
    assert memory_of(11, 2**11, exact).largest > 16 * many.largest


def test_what_f_gives_is_not_rounded_to_the_dtype_of_the_logits():
    """A wider f may have values that differ by less than a narrow dtype can tell apart."""
    logits, weights = normal(2, 3).float(), normal(2, 3)

    def f(z, level):
        return level + (z.double() * weights).sum()

    expected, actual = (exact_gradient(logits, partial(f, level=x)) for x in (0.0, 1e6))
    assert_close(actual, expected)
    expected, actual = (exact_expectation(logits, partial(f, level=x)) for x in (0.0, 1e6))
    assert abs(actual - 1e6 - expected) < 1e-6


def test_float64_logits_beyond_the_range_of_float32():
    logits = torch.tensor([1e300, -1e300, 1e300], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert exact_expectation(logits, lambda z: z @ weights).item() == pytest.approx(2.5, abs=1e-12)
