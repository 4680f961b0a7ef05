"""exact_expectation and exact_gradient against plain loops, autograd and finite limits."""

import itertools
import math
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import discretegrad
import oracles
from discretegrad import exact_expectation, exact_gradient

SAME = 1e-12
"""Largest difference in float64, where values are of order 1 to 100."""
LOW_PRECISION = {torch.float16: 5.5e-4, torch.bfloat16: 4.4e-3, torch.float32: 1e-6}
"""Largest difference relative to the largest entry: one rounding of the result, ten in float32."""
BOTH = pytest.mark.parametrize("exact", [exact_expectation, exact_gradient])
CHUNKS = pytest.mark.parametrize("chunk_size", [1, 7, 16, 10**6])
FAMILIES = pytest.mark.parametrize("family", ["categorical", "bernoulli"])

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def problem(family, *batch):
    """Three variables with three categories, or four bits, and a function that couples them."""
    if family == "categorical":
        return random(*batch, 3, 3), oracles.objectives(3, 3)["exponential"]
    return random(*batch, 4), oracles.objectives(4, None)["exponential"]


def outcomes_with_probability(logits, family):
    """Every joint outcome of one batch element, as a sample, with its probability: plain loops."""
    if family == "categorical":
        variables, states = logits.shape
        table = logits.softmax(-1).tolist()
    else:
        variables, states = logits.shape[0], 2
        table = [[1 - p, p] for p in torch.sigmoid(logits).tolist()]
    for outcome in itertools.product(range(states), repeat=variables):
        prob = math.prod(table[i][state] for i, state in enumerate(outcome))
        sample = torch.tensor(outcome)
        if family == "categorical":
            sample = torch.nn.functional.one_hot(sample, states)
        yield prob, sample.double()


def expectation_by_loops(logits, f, family):
    return sum(p * f(z).item() for p, z in outcomes_with_probability(logits, family))


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


@CHUNKS
@pytest.mark.parametrize("vectorize", [True, False])
@FAMILIES
def test_chunks_and_vectorizing_change_nothing(family, vectorize, chunk_size):
    logits, f = problem(family, 2)
    options = {"family": family, "chunk_size": chunk_size, "vectorize": vectorize}
    whole, whole_gradient = (
        exact(logits, f, family=family) for exact in (exact_expectation, exact_gradient)
    )
    attached = logits.clone().requires_grad_()
    value = exact_expectation(attached, f, **options)
    value.sum().backward()
    assert (value - whole).abs().max() < SAME
    assert (attached.grad - whole_gradient).abs().max() < SAME
    assert (exact_gradient(logits, f, **options) - whole_gradient).abs().max() < SAME


@pytest.mark.parametrize("chunk_size", [5, 256])
def test_gradients_reach_the_parameters_of_f(chunk_size):
    logits = random(2, 3).requires_grad_()
    weight = random(2, 3, seed=1).requires_grad_()
    value = exact_expectation(logits, lambda z: (z * weight).sum(), chunk_size=chunk_size)
    gradients = torch.autograd.grad(value, (logits, weight))
    # E[f] = sum p w, so the gradient for w is p
    assert (gradients[1] - logits.detach().softmax(-1)).abs().max() < SAME
    by_hand = exact_gradient(logits, lambda z: (z * weight).sum())
    assert (gradients[0] - by_hand).abs().max() < SAME


@pytest.mark.parametrize("vectorize", [True, False])
@FAMILIES
def test_second_derivatives(family, vectorize):
    logits, f = problem(family)

    def expectation(theta):
        return exact_expectation(theta, f, family=family, chunk_size=8, vectorize=vectorize)

    attached = logits.clone().requires_grad_()
    (first,) = torch.autograd.grad(expectation(attached), attached, create_graph=True)
    direction = random(*logits.shape, seed=2)
    (product,) = torch.autograd.grad((first * direction).sum(), attached)
    step = 1e-5
    ends = [exact_gradient(logits + s * step * direction, f, family=family) for s in (-1, 1)]
    by_differences = (ends[1] - ends[0]) / (2 * step)
    assert (product - by_differences).abs().max() < 1e-7


def test_bernoulli_equals_two_categories():
    logits = random(2, 4)
    f = oracles.objectives(4, None)["exponential"]
    pair = torch.stack([logits, torch.zeros_like(logits)], -1)

    def f_of_pair(z):
        return f(z[..., 0])

    bits = exact_expectation(logits, f, family="bernoulli")
    assert (bits - exact_expectation(pair, f_of_pair)).abs().max() < SAME
    gradient = exact_gradient(logits, f, family="bernoulli")
    assert (gradient - exact_gradient(pair, f_of_pair)[..., 0]).abs().max() < SAME


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3)], ids=str)
@FAMILIES
def test_every_batch_element_is_its_own_problem(family, batch):
    logits, f = problem(family, *batch)
    value, gradient = (
        exact_expectation(logits, f, family=family),
        exact_gradient(logits, f, family=family),
    )
    assert value.shape == batch
    assert gradient.shape == logits.shape
    for position in itertools.product(*map(range, batch)):
        alone = logits[position]
        assert abs(value[position].item() - expectation_by_loops(alone, f, family)) < SAME
        own = exact_gradient(alone, f, family=family)
        assert (gradient[position] - own).abs().max() < SAME


def test_an_empty_batch_gives_an_empty_answer():
    f = oracles.objectives(3, 3)["quadratic"]
    logits = torch.zeros(0, 3, 3, dtype=torch.float64)
    assert exact_expectation(logits, f).shape == (0,)
    assert exact_gradient(logits, f).shape == (0, 3, 3)


def test_no_latent_axis_left_over_means_one_variable_per_batch_element():
    logits, values = random(4, 3), random(3, seed=1)
    value = exact_expectation(logits, lambda z: z @ values)
    assert (value - logits.softmax(-1) @ values).abs().max() < SAME
    bits = random(5)
    value = exact_expectation(bits, lambda b: 3 * b + 1, family="bernoulli")
    assert (value - (3 * torch.sigmoid(bits) + 1)).abs().max() < SAME


def test_several_latent_axes_act_as_one():
    logits = random(2, 2, 2, 3)
    f = oracles.objectives(4, 3)["exponential"]

    def of_grid(z):
        return f(z.flatten(-3, -2))

    flat = logits.flatten(1, 2)
    assert (exact_expectation(logits, of_grid) - exact_expectation(flat, f)).abs().max() < SAME
    gradient = exact_gradient(logits, of_grid).flatten(1, 2)
    assert (gradient - exact_gradient(flat, f)).abs().max() < SAME


@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=str)
@FAMILIES
def test_low_precision_is_computed_inside_in_float32(family, dtype):
    logits, f = problem(family, 2)
    logits = logits.to(dtype)
    seen = []

    def recording(z):
        seen.append(z.dtype)
        return f(z.double())

    value = exact_expectation(logits, recording, family=family, chunk_size=4)
    gradient = exact_gradient(logits, recording, family=family, chunk_size=4)
    assert set(seen) == {dtype}
    assert value.dtype == gradient.dtype == dtype
    for ours, exact in (
        (value, exact_expectation(logits.double(), f, family=family)),
        (gradient, exact_gradient(logits.double(), f, family=family)),
    ):
        assert (ours - exact).abs().max() < LOW_PRECISION[dtype] * exact.abs().max()


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
    logits = random(3, 3)

    def f(z):
        return (z[..., 0].sum(-1) >= 2).double().round()

    value = exact_expectation(logits, f, vectorize=vectorize).item()
    assert abs(value - expectation_by_loops(logits, f, "categorical")) < SAME
    gradient = exact_gradient(logits, f, vectorize=vectorize)
    by_differences = gradient_by_differences(logits, f, "categorical")
    assert (gradient - by_differences).abs().max() < 1e-7


def test_f_may_look_at_values_when_not_vectorized():
    logits = random(2, 3)

    def f(z):
        return torch.tensor(1.0 if z.argmax(-1)[0].item() == 2 else 0.0, dtype=torch.float64)

    value = exact_expectation(logits, f, vectorize=False)
    assert abs(value.item() - logits.softmax(-1)[0, 2].item()) < SAME


@BOTH
def test_f_runs_with_gradients_only_in_exact_expectation(exact):
    logits, modes = random(2, 3).requires_grad_(), []

    def f(z):
        modes.append(torch.is_grad_enabled())
        return z.sum((-1, -2))

    result = exact(logits, f)
    assert result.requires_grad == modes[-1] == (exact is exact_expectation)
    with torch.no_grad():
        assert not exact(logits, f).requires_grad


@BOTH
@pytest.mark.parametrize(
    ("family", "shape", "outcomes"),
    [("categorical", (3, 5), 5**3), ("bernoulli", (7,), 2**7), ("bernoulli", (16,), None)],
)
def test_the_limit_itself_is_allowed_and_one_more_is_not(exact, family, shape, outcomes):
    def f(z):
        return z.sum()

    limit = {} if outcomes is None else {"max_outcomes": outcomes}
    exact(random(*shape), f, family=family, chunk_size=2**16, **limit)
    with pytest.raises(ValueError, match=f"max_outcomes={outcomes or 2**16}"):
        exact(random(shape[0] + 1, *shape[1:]), f, family=family, **limit)


@BOTH
def test_a_hopeless_number_of_outcomes_is_refused_at_once(exact):
    with pytest.raises(ValueError, match="10 \\*\\* 500"):
        exact(torch.zeros(500, 10), lambda z: z.sum())


class Memory(TorchDispatchMode):
    """Follows the tensors made under it: the largest, and the most bytes alive at once."""

    def __init__(self):
        super().__init__()
        self.largest = self.alive = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self._follow(x.untyped_storage())
        return result

    def _follow(self, storage):
        key, size = storage.data_ptr(), storage.nbytes()
        if key in self.known or size == 0:
            return
        self.known.add(key)
        self.largest = max(self.largest, size)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key, size):
        self.known.discard(key)
        self.alive -= size


def memory_of(variables, chunk_size, exact):
    logits = random(variables, 2).requires_grad_()
    weight = random(variables, 2, seed=1)

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


@FAMILIES
def test_agrees_with_a_long_average_of_a_sampler(family):
    """Across modules: the frequencies of a sampler give the same expectation."""
    logits, f = problem(family)
    rows = 200_000
    generator = torch.Generator().manual_seed(0)
    many = logits.expand(rows, *logits.shape)
    values = f(discretegrad.reinmax(many, family=family, generator=generator))
    # six standard errors: a right sampler fails one seed in 500 million
    tolerance = 6 * values.std().item() / math.sqrt(rows)
    assert (
        abs(values.mean().item() - exact_expectation(logits, f, family=family).item()) < tolerance
    )


def test_float64_logits_beyond_the_range_of_float32():
    logits = torch.tensor([1e300, -1e300, 1e300], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    expectation = discretegrad.exact_expectation(logits, lambda z: z @ weights)
    assert expectation.item() == pytest.approx(2.5, abs=1e-12)
