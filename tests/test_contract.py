"""What every sampler promises, whatever its formula: the rules run over the whole registry."""

import contextlib
import copy
import importlib.resources
import inspect
import math
import pickle
from dataclasses import FrozenInstanceError

import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

import discretegrad
from cases import (
    CASES,
    SAMPLERS,
    assert_close,
    assert_discrete,
    each,
    gradient,
    normal,
    seeded,
    weights_like,
)
from discretegrad import ESTIMATORS

CATEGORICAL = [case for case in CASES if case.categorical]
BERNOULLI = [case for case in CASES if not case.categorical]
HARD = [case for case in CASES if case.hard]
RELAXED = [case for case in CASES if not case.hard]
NOISE_FREE = [case for case in CASES if not case.estimator.noise]
GUMBEL_RAO = [case for case in CASES if "num_draws" in case.options]
AS_RELEASED = [case for case in CATEGORICAL if case.options.get("as_released")]

LOW_PRECISIONS = [torch.float16, torch.bfloat16]
DTYPES = [*LOW_PRECISIONS, torch.float32, torch.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_low_precision = pytest.mark.parametrize("dtype", LOW_PRECISIONS, ids=str)

# chance that a test of a distribution fails though nothing is wrong; seeds are fixed
FAILURE_RATE = 1e-4


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@each(HARD)
@each_dtype
def test_forward_is_discrete_to_the_last_bit(case, dtype):
    # on both sides of the sizes where the draw changes its method
    for categories in (2, 7, 63, 64, 65, 300):
        logits = normal(50, categories, dtype=dtype)
        sample = case.sample(logits, generator=seeded(1))
        assert sample.dtype == dtype
        assert sample.shape == logits.shape
        assert_discrete(sample, case.family)


@each(RELAXED)
@each_dtype
def test_relaxed_sample_leans_to_the_category_drawn(case, dtype):
    logits = normal(50, 7, dtype=dtype)
    relaxed = case.sample(logits, tau=0.8, generator=seeded(1))
    hard = SAMPLERS["reinmax"].functions[case.family](logits, generator=seeded(1))
    assert relaxed.dtype == dtype
    assert ((relaxed >= 0) & (relaxed <= 1)).all()
    if case.categorical:
        assert torch.equal(relaxed.argmax(-1), hard.argmax(-1))
        torch.testing.assert_close(
            relaxed.sum(-1), torch.ones(50, dtype=dtype), rtol=4 * torch.finfo(dtype).eps, atol=0
        )
    else:
        assert torch.equal(relaxed > 0.5, hard > 0.5)


def row_sums(case, dtype, tau):
    """The sum of each gradient row, relative to the size of the terms it is made of."""
    logits = normal(40, 9, dtype=dtype).requires_grad_()
    grad = gradient(case.sample(logits, tau, generator=seeded(1)), logits)
    incoming = weights_like(logits).abs().sum(-1) * max(1, 1 / tau)
    return grad.sum(-1) / torch.maximum(grad.abs().sum(-1), incoming)


@each([case for case in CATEGORICAL if case not in AS_RELEASED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tau", [0.5, 1.0, 1.7])
def test_gradient_rows_sum_to_zero(case, dtype, tau):
    assert row_sums(case, dtype, tau).abs().max() < 4 * torch.finfo(dtype).eps


@each(AS_RELEASED)
def test_gradient_rows_of_the_released_form_do_not_sum_to_zero(case):
    assert row_sums(case, torch.float64, 1.0).abs().min() > 1e-6


MASKS = {
    "per category": lambda n: torch.arange(n) % 3 != 1,
    "per row and category": lambda n: (torch.arange(60)[:, None] + torch.arange(n)) % 3 != 1,
    "with leading axes": lambda n: (torch.arange(n) % 3 != 1)[None, None],
}


@each(CASES)
@pytest.mark.parametrize("categories", [7, 100])
@pytest.mark.parametrize("kind", MASKS)
def test_masked_is_never_drawn_and_gets_no_gradient(case, categories, kind):
    mask = MASKS[kind](categories)
    # the excluded ones would be drawn nearly always, were they not excluded
    logits = (normal(2, 60, categories) + 9 * ~mask).requires_grad_()
    sample = case.sample(logits, 0.7, mask=mask, generator=seeded(1))
    grad = gradient(sample, logits)
    excluded = ~mask.expand_as(logits)
    assert (sample[excluded] == 0).all()
    assert (grad[excluded] == 0).all()
    assert (grad[~excluded] != 0).any()


@each(CASES)
@pytest.mark.parametrize("categories", [7, 100])
@pytest.mark.parametrize("kind", MASKS)
def test_mask_means_the_same_as_minus_infinity(case, categories, kind):
    mask = MASKS[kind](categories)
    logits = normal(2, 60, categories).requires_grad_()
    masked = case.sample(logits, 0.7, mask=mask, generator=seeded(1))
    infinite = logits.detach().masked_fill(~mask, -math.inf).requires_grad_()
    sample = case.sample(infinite, 0.7, generator=seeded(1))
    assert torch.equal(masked, sample)
    assert torch.equal(gradient(masked, logits), gradient(sample, infinite))


@each(CASES)
def test_mask_and_minus_infinity_in_the_deterministic_half(case):
    mask = MASKS["per row and category"](7)
    logits = normal(60, 7).requires_grad_()
    infinite = logits.detach().masked_fill(~mask, -math.inf).requires_grad_()
    draw, noise = case.draw(infinite), case.noise(logits)
    masked = gradient(case.sample_at(logits, draw, noise, 0.7, mask=mask), logits)
    assert torch.equal(masked, gradient(case.sample_at(infinite, draw, noise, 0.7), infinite))
    assert (masked[~mask] == 0).all()
    assert (masked[mask] != 0).any()


@each(CATEGORICAL)
@pytest.mark.parametrize("dim", [0, 1, -3])
def test_mask_goes_with_dim(case, dim):
    shape = [4, 4, 4]
    mask_shape = [1, 1, 1]
    mask_shape[dim] = 4
    mask = torch.tensor([True, False, True, True]).reshape(mask_shape)
    logits = (normal(*shape) + 9 * ~mask).requires_grad_()
    sample = case.sample(logits, mask=mask, dim=dim, generator=seeded(1))
    grad = gradient(sample, logits)
    assert (sample.select(dim, 1) == 0).all()
    assert (grad.select(dim, 1) == 0).all()
    assert_close(sample.sum(dim), torch.ones(4, 4, dtype=torch.float64))


@each(CATEGORICAL)
def test_single_allowed_category_is_certain(case):
    mask = torch.nn.functional.one_hot(torch.arange(6), 6).bool()
    logits = normal(6, 6).requires_grad_()
    sample = case.sample(logits, 0.7, mask=mask, generator=seeded(1))
    assert torch.equal(sample, mask.double())
    assert (gradient(sample, logits) == 0).all()


@each(BERNOULLI)
def test_infinite_bernoulli_logit_is_certain(case):
    logits = torch.tensor([math.inf, -math.inf, 0.3], dtype=torch.float64).repeat(20, 1)
    logits.requires_grad_()
    sample = case.sample(logits, 0.7, generator=seeded(1))
    grad = gradient(sample, logits)
    assert (sample[:, 0] == 1).all()
    assert (sample[:, 1] == 0).all()
    assert (grad[:, :2] == 0).all()
    assert (grad[:, 2] != 0).all()


@each(CATEGORICAL)
@pytest.mark.parametrize("shape", [(1,), (5, 1), (2, 3, 1)], ids=str)
def test_one_category(case, shape):
    logits = normal(*shape).requires_grad_()
    sample = case.sample(logits, 0.7, generator=seeded(1))
    assert torch.equal(sample, torch.ones(shape, dtype=torch.float64))
    assert (gradient(sample, logits) == 0).all()


@each(CASES)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (0, 3, 100)], ids=str)
def test_empty_batch(case, shape):
    logits = normal(*shape).requires_grad_()
    tau = torch.ones((*shape[:-1], 1))
    sample = case.sample(logits, tau, generator=seeded(1))
    index_shape = shape[:-1] if case.categorical else shape
    draw = torch.zeros(index_shape, dtype=torch.int64)
    for result in (sample, case.sample_at(logits, draw, case.noise(logits), tau)):
        assert result.shape == shape
        assert gradient(result, logits).shape == shape


@each(BERNOULLI)
def test_bernoulli_variables_without_any(case):
    logits = normal(0).requires_grad_()
    assert gradient(case.sample(logits), logits).shape == (0,)


NON_CONTIGUOUS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    "shifted": lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
}


@each(CASES)
@pytest.mark.parametrize("layout", NON_CONTIGUOUS)
@pytest.mark.parametrize("categories", [6, 90])
def test_non_contiguous_input(case, layout, categories):
    plain = normal(3, 8, categories).requires_grad_()
    strided = NON_CONTIGUOUS[layout](plain.detach()).requires_grad_()
    assert not strided.is_contiguous()
    expected = case.sample(plain, 0.7, generator=seeded(1))
    sample = case.sample(strided, 0.7, generator=seeded(1))
    assert_close(sample, expected)
    # the gradient that comes in is strided too
    weights = NON_CONTIGUOUS[layout](weights_like(plain))
    assert_close(gradient(sample, strided, weights), gradient(expected, plain, weights))


@each(CASES)
def test_expanded_input(case):
    row = normal(6).requires_grad_()
    sample = case.sample(row.expand(50, 6), 0.7, generator=seeded(1))
    copies = row.detach().repeat(50, 1).requires_grad_()
    expected = case.sample(copies, 0.7, generator=seeded(1))
    assert_close(sample, expected)
    assert_close(gradient(sample, row), gradient(expected, copies).sum(0))


@each(CATEGORICAL)
@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
def test_any_dim(case, dim):
    logits = normal(3, 4, 5).requires_grad_()
    last = logits.detach().movedim(dim, -1).contiguous().requires_grad_()
    tau_last = normal(*last.shape[:-1], 1, seed=5).exp()
    tau = tau_last.movedim(-1, dim)
    weights = weights_like(logits)

    sample = case.sample(logits, tau, dim=dim, generator=seeded(1))
    expected = case.sample(last, tau_last, generator=seeded(1))
    assert_close(sample, expected.movedim(-1, dim))
    grad = gradient(expected, last, weights.movedim(dim, -1))
    assert_close(gradient(sample, logits, weights), grad.movedim(-1, dim))

    draw, noise = case.draw(logits, dim=dim), case.noise(logits)
    noise_last = noise
    if noise is not None:
        noise_last = noise.movedim(dim if dim < 0 else dim + noise.ndim - 3, -1)
    sample = case.sample_at(logits, draw, noise, tau, dim=dim)
    expected = case.sample_at(last, draw, noise_last, tau_last)
    assert_close(sample, expected.movedim(-1, dim))
    grad = gradient(expected, last, weights.movedim(dim, -1))
    assert_close(gradient(sample, logits, weights), grad.movedim(-1, dim))


@each(CASES)
@pytest.mark.parametrize("axes", range(6))
def test_leading_axes(case, axes):
    shape = (2, 3, 1, 2, 2)[:axes]
    flat = normal(math.prod(shape), 4).requires_grad_()
    logits = flat.detach().reshape(*shape, 4).requires_grad_()
    weights = weights_like(flat)
    expected = case.sample(flat, 0.7, generator=seeded(1))
    sample = case.sample(logits, 0.7, generator=seeded(1))
    assert_close(sample, expected.reshape(logits.shape))
    grad = gradient(expected, flat, weights)
    assert_close(
        gradient(sample, logits, weights.reshape(logits.shape)), grad.reshape(logits.shape)
    )


@each(BERNOULLI)
def test_bernoulli_scalar(case):
    logits = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    sample = case.sample(logits, 0.7, generator=seeded(1))
    assert sample.shape == ()
    assert gradient(sample, logits) != 0


# 1 is among them because some formulas have a short form there
TAUS = [0.4, 1.0, 1.6]
TAU_SHAPES = {"per row": (3, 2, 1), "per member of an ensemble": (3, 1, 1), "one": (), "axis": (1,)}


@each(CASES)
@pytest.mark.parametrize("kind", TAU_SHAPES)
def test_tensor_tau_is_a_tau_for_each_row(case, kind):
    logits = normal(3, 2, 5).requires_grad_()
    shape = TAU_SHAPES[kind]
    tau = torch.tensor(TAUS).repeat(2)[: math.prod(shape)].reshape(shape)
    draw, noise = case.draw(logits), case.noise(logits)
    sample = case.sample_at(logits, draw, noise, tau)
    grad = gradient(sample, logits)
    weights = weights_like(logits)
    for member in range(3):
        for row in range(2):
            where = (member, row)
            single = logits.detach()[where].requires_grad_()
            row_noise = None if noise is None else noise[..., member, row, :]
            row_tau = tau.expand(3, 2, 1)[where].item()
            expected = case.sample_at(single, draw[where], row_noise, row_tau)
            assert_close(sample[where], expected)
            assert_close(grad[where], gradient(expected, single, weights[where]))


@each(BERNOULLI)
def test_tensor_tau_is_a_tau_for_each_bernoulli_variable(case):
    logits = normal(4).requires_grad_()
    tau = torch.tensor([0.4, 1.0, 1.6, 3.0])
    draw, noise = case.draw(logits), case.noise(logits)
    grad = gradient(case.sample_at(logits, draw, noise, tau), logits)
    for i in range(4):
        single = logits.detach()[i].requires_grad_()
        row_noise = None if noise is None else noise[..., i]
        expected = case.sample_at(single, draw[i], row_noise, tau[i].item())
        assert_close(grad[i], gradient(expected, single, weights_like(logits)[i]))


@each(CASES)
def test_tensor_tau_changes_no_draw(case):
    logits = normal(30, 2, 5)
    with_number = case.sample(logits, 0.4, generator=seeded(1))
    for shape in ((), (30, 1, 1)):
        tau = torch.full(shape, 0.4, dtype=torch.float64)
        assert_close(case.sample(logits, tau, generator=seeded(1)), with_number)


def extreme_logits(dtype):
    """Rows at the limits of the dtype, and ordinary ones."""
    largest, tiny = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    rows = [
        [largest] * 5,
        [-largest] * 5,
        [largest, -largest, 0, 1, largest / 2],
        [-largest, -largest, -largest / 2, -largest, -largest],
        [-largest, -math.inf, 3, 2, -math.inf],
        [largest, -math.inf, -largest, largest, -math.inf],
        [tiny, -tiny, 0, tiny, -math.inf],
        [0, 10, -10, 5, -5],
    ]
    extreme = torch.tensor(rows, dtype=torch.float64).to(dtype).repeat(10, 1)
    return torch.cat([extreme, normal(40, 5, dtype=dtype), 8 * normal(40, 5, dtype=dtype)])


@each(CASES)
@each_dtype
@pytest.mark.parametrize("tau", [1e-3, 1.0, 1e3])
def test_finite_up_to_the_range_of_the_dtype(case, dtype, tau):
    logits = extreme_logits(dtype).requires_grad_()
    sample = case.sample(logits, tau, generator=seeded(1))
    grad = gradient(sample, logits)
    assert sample.isfinite().all()
    if case.estimator.name == "mean_baseline" and tau < 1 and dtype == torch.float16:
        # this estimator divides by the tempered probability of the draw, so that its gradient
        # has no bound; where it leaves the range of float16, inf is its correct rounding
        wide = logits.detach().float().requires_grad_()
        expected = gradient(
            case.sample(wide, tau, generator=seeded(1)), wide, weights_like(logits).float()
        )
        assert expected.isfinite().all()
        assert torch.equal(grad, expected.half())
    else:
        assert grad.isfinite().all()
    wide_row = logits.detach().reshape(1, -1).requires_grad_()
    if tau >= 1:
        # the same numbers as one row of many categories, which takes other code paths
        assert gradient(case.sample(wide_row, tau, generator=seeded(1)), wide_row).isfinite().all()


@each(CASES)
@each_low_precision
@pytest.mark.parametrize("tau", [0.6, 1.0, torch.tensor(1.4)], ids=["0.6", "1", "tensor"])
@pytest.mark.parametrize("categories", [5, 90])
def test_low_precision_is_computed_in_float32(case, dtype, tau, categories):
    logits = (3 * normal(20, categories, dtype=dtype)).requires_grad_()
    wide = logits.detach().float().requires_grad_()
    weights = weights_like(logits)
    sample = case.sample(logits, tau, generator=seeded(1))
    expected = case.sample(wide, tau, generator=seeded(1))
    grad = gradient(sample, logits, weights)
    assert grad.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(sample, expected.to(dtype), rtol=eps, atol=0)
    rounded = gradient(expected, wide, weights.float()).to(dtype)
    torch.testing.assert_close(grad, rounded, rtol=eps, atol=0)


@each(CASES)
@each_dtype
def test_autocast_changes_nothing(case, dtype):
    logits = normal(40, 5, dtype=dtype).requires_grad_()
    expected = case.sample(logits, 0.7, generator=seeded(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sample = case.sample(logits, 0.7, generator=seeded(1))
        inside = gradient(sample, logits)
    assert sample.dtype == dtype
    assert torch.equal(sample, expected)
    assert torch.equal(inside, gradient(expected, logits))


@each(CASES)
@pytest.mark.parametrize("shape", [(30, 5), (4, 200)], ids=str)
def test_same_generator_state_same_sample_and_gradient(case, shape):
    logits = normal(*shape).requires_grad_()
    generator = seeded(1)
    state = generator.get_state()
    first = case.sample(logits, generator=generator)
    second = case.sample(logits, generator=generator)
    generator.set_state(state)
    again = case.sample(logits, generator=generator)
    assert torch.equal(first, again)
    assert torch.equal(gradient(first, logits), gradient(again, logits))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
@pytest.mark.parametrize("shape", [(200, 2), (200, 7), (50, 300), (2, 6, 9)], ids=str)
def test_from_one_generator_state_all_draw_the_same_category(family, shape):
    logits = normal(*shape)
    mask = normal(*shape, seed=4) < 1
    mask[..., 0] = True
    samples = [
        case.sample(logits, 0.7, mask=mask, generator=seeded(1))
        for case in HARD
        if case.family == family
    ]
    assert len(samples) > len(SAMPLERS)
    for sample in samples[1:]:
        assert torch.equal(sample, samples[0])


@each(CASES)
def test_global_generator_is_left_alone(case):
    logits = normal(30, 5).requires_grad_()
    before = torch.get_rng_state()
    gradient(case.sample(logits, generator=seeded(1)), logits)
    gradient(case.sample_at(logits, case.draw(logits), case.noise(logits)), logits)
    assert torch.equal(torch.get_rng_state(), before)


@each(CASES)
def test_without_a_generator_the_global_one_is_used(case):
    logits = normal(30, 5).requires_grad_()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        sample = case.sample(logits)
        after = torch.get_rng_state()
        gradient(sample, logits)
        assert not torch.equal(after, before)
        # backward draws nothing
        assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(sample, case.sample(logits, generator=seeded(1)))


# long rows, many rows, and sizes that leave a rest when cut into equal parts for threads and into
# vectors: torch computes the rest of some functions in another way
THREAD_SHAPES = {
    "categorical": [(1, 200_001), (40_000,), (64, 5000), (3000, 10), (20_001, 9), (500, 1023)],
    "bernoulli": [(200_001,), (3000, 10)],
}


@pytest.mark.parametrize(
    ("case", "shape"),
    [(case, shape) for case in CASES for shape in THREAD_SHAPES[case.family]],
    ids=str,
)
def test_result_does_not_depend_on_the_number_of_threads(case, shape):
    logits = normal(*shape, dtype=torch.float32).requires_grad_()
    weights = weights_like(logits)
    results = []
    for count in (1, 2, 4, 7):
        with threads(count):
            sample = case.sample(logits, 0.7, generator=seeded(1))
            results.append((sample.detach(), gradient(sample, logits, weights)))
    for sample, grad in results[1:]:
        assert torch.equal(sample, results[0][0])
        # the relaxed sample has the gradient of torch's own softmax, which does depend on it
        if case.hard:
            assert torch.equal(grad, results[0][1])


@each(NOISE_FREE)
@pytest.mark.parametrize("shape", [(30, 5), (4, 200)], ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_sampler_is_the_deterministic_half_at_its_draw(case, shape, tau):
    logits = normal(*shape).requires_grad_()
    sample = case.sample(logits, tau, generator=seeded(1))
    draw = sample.detach().argmax(-1) if case.categorical else sample.detach()
    expected = case.sample_at(logits, draw, None, tau)
    assert torch.equal(sample, expected)
    assert torch.equal(gradient(sample, logits), gradient(expected, logits))


@each(CASES)
def test_deterministic_half_returns_its_draw(case):
    logits = normal(30, 5)
    draw = case.draw(logits)
    sample = case.sample_at(logits, draw, case.noise(logits), 0.7)
    if case.categorical:
        assert torch.equal(sample.argmax(-1), draw)
    else:
        assert torch.equal((sample > 0.5).double(), draw)
    if case.hard:
        assert_discrete(sample, case.family)


@each(CASES)
def test_draw_of_any_integer_or_float_type_is_taken(case):
    logits = normal(30, 5)
    draw, noise = case.draw(logits), case.noise(logits)
    expected = case.sample_at(logits, draw, noise)
    kinds = [torch.int32] if case.categorical else [torch.bool, torch.int64, torch.float16]
    for kind in kinds:
        assert torch.equal(case.sample_at(logits, draw.to(kind), noise), expected)


@each(CASES)
@pytest.mark.parametrize("dim", [-1, 0])
def test_output_is_contiguous(case, dim):
    arguments = {"dim": dim} if case.categorical else {}
    for logits in (normal(4, 5, 6), normal(4, 6, 5).mT):
        assert case.sample(logits, generator=seeded(1), **arguments).is_contiguous()


@each(HARD)
@pytest.mark.parametrize("dim", [-1, 0])
def test_output_may_be_changed_in_place(case, dim):
    arguments = {"dim": dim} if case.categorical else {}
    logits = normal(4, 5).requires_grad_()
    expected = gradient(case.sample(logits, generator=seeded(1), **arguments) * 3, logits)
    sample = case.sample(logits, generator=seeded(1), **arguments)
    sample.mul_(3)
    assert torch.equal(gradient(sample, logits), expected)


@each(CASES)
def test_given_draw_and_noise_are_not_changed(case):
    logits = normal(4, 5).requires_grad_()
    draw, noise = case.draw(logits), case.noise(logits)
    given = [x.clone() for x in (logits, draw, noise) if x is not None]
    gradient(case.sample_at(logits, draw, noise, 0.7), logits)
    after = [x for x in (logits, draw, noise) if x is not None]
    for x, y in zip(given, after, strict=True):
        assert torch.equal(x, y)


@each(CASES)
def test_incoming_gradient_is_not_changed(case):
    logits = normal(4, 5).requires_grad_()
    weights = weights_like(logits)
    before = weights.clone()
    sample = case.sample(logits, 0.7, generator=seeded(1))
    torch.autograd.grad(sample, logits, weights)
    assert torch.equal(weights, before)


@each(CASES)
def test_without_grad_there_is_no_graph(case):
    logits = normal(4, 5)
    assert not case.sample(logits, 0.7).requires_grad
    with torch.no_grad():
        sample = case.sample(logits.requires_grad_(), 0.7)
    assert not sample.requires_grad
    assert case.sample(logits, 0.7).requires_grad


@each(CASES)
def test_parameter_accumulates_over_two_samples(case):
    logits = torch.nn.Parameter(normal(4, 5))
    weights = weights_like(logits)
    parts = [case.sample(logits, 0.7, generator=seeded(seed)) for seed in (1, 2)]
    for sample in parts:
        (sample * weights).sum().backward(retain_graph=True)
    expected = sum(gradient(sample, logits, weights) for sample in parts)
    assert_close(logits.grad, expected)


def two_categories(case):
    """The categorical case that a Bernoulli case claims to equal."""
    return next(
        other
        for other in CATEGORICAL
        if other.estimator == case.estimator and other.options == case.options
    )


@each(BERNOULLI)
@pytest.mark.parametrize(
    "tau",
    [1.0, 0.4, 2.5, torch.linspace(0.3, 3, 40, dtype=torch.float64)],
    ids=["1", "0.4", "2.5", "tensor"],
)
def test_bernoulli_equals_two_categories_for_given_draws(case, tau):
    logits = (2 * normal(40)).requires_grad_()
    zeros = torch.zeros(40, dtype=torch.float64)
    pair = torch.stack([logits.detach(), zeros], -1).requires_grad_()
    value = torch.arange(40) % 2
    index = 1 - value
    noise = pair_noise = None
    if case.estimator.noise:
        pair_noise = two_categories(case).noise(pair)
        drawn = pair_noise.gather(-1, index.expand(pair_noise.shape[:-1])[..., None])
        # the log-ratio of two standard exponentials is standard logistic
        noise = (pair_noise.sum(-1) - drawn[..., 0]).log() - drawn[..., 0].log()
    pair_tau = tau.unsqueeze(-1) if isinstance(tau, torch.Tensor) else tau

    sample = case.sample_at(logits, value, noise, tau)
    expected = two_categories(case).sample_at(pair, index, pair_noise, pair_tau)
    assert_close(sample, expected[..., 0])
    weights = normal(40, seed=9)
    pair_weights = torch.stack([weights, zeros], -1)
    assert_close(gradient(sample, logits, weights), gradient(expected, pair, pair_weights)[..., 0])


@each(BERNOULLI)
@pytest.mark.parametrize("logit", [-4.0, 0.2, 2.0])
def test_bernoulli_equals_two_categories_in_distribution(case, logit):
    number = 20_000
    logits = torch.full((number,), logit, dtype=torch.float64, requires_grad=True)
    pair = torch.tensor([logit, 0.0], dtype=torch.float64).repeat(number, 1).requires_grad_()
    sample = case.sample(logits, 0.7, generator=seeded(1))
    other = two_categories(case).sample(pair, 0.7, generator=seeded(2))[..., 0]

    ones = torch.tensor([(sample > 0.5).sum(), (other > 0.5).sum()])
    prob = torch.tensor(logit, dtype=torch.float64).sigmoid()
    for count in ones:
        assert stats.binomtest(int(count), number, prob.item()).pvalue > FAILURE_RATE
    table = torch.stack([ones, number - ones]).numpy()
    assert stats.chi2_contingency(table).pvalue > FAILURE_RATE

    if case.estimator.noise:
        grad = torch.autograd.grad(sample.sum(), logits)[0]
        pair_grad = torch.autograd.grad(other.sum(), pair)[0][..., 0]
        assert stats.ks_2samp(grad.numpy(), pair_grad.numpy()).pvalue > FAILURE_RATE


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                # an expanded tensor is as large as its memory
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_memory_of_gumbel_rao_does_not_grow_with_its_draws(family):
    limit = importlib.import_module("discretegrad.estimators.gumbel_rao")._CHUNK_NUMBERS
    function = SAMPLERS["gumbel_rao"].functions[family]
    logits = normal(4, 100, dtype=torch.float32).requires_grad_()
    largest = []
    for num_draws in (4000, 8000):
        with LargestTensor() as watch:
            sample = function(logits, num_draws=num_draws, generator=seeded(1))
        assert watch.numel <= logits.numel()
        with LargestTensor() as watch:
            gradient(sample, logits)
        largest.append(watch.numel)
    assert largest[0] == largest[1] <= limit
    # the pieces hold many draws, so that the limit is what keeps them small
    assert largest[0] > 1000 * logits.numel()


@each(GUMBEL_RAO)
def test_chunks_of_gumbel_rao_change_nothing(case, monkeypatch):
    logits = normal(6, 5).requires_grad_()
    function = SAMPLERS["gumbel_rao"].functions[case.family]
    noise = torch.stack([case.noise(logits, seed=seed)[0] for seed in range(7)])

    def gradients():
        sample = function(logits, 0.7, num_draws=7, generator=seeded(1))
        at = case.sample_at(logits, case.draw(logits), noise, 0.7)
        return gradient(sample, logits), gradient(at, logits)

    whole = gradients()
    # 30 numbers per draw: pieces of 1, 2, 3 and 5 draws
    for limit in (1, 60, 100, 150):
        monkeypatch.setattr("discretegrad.estimators.gumbel_rao._CHUNK_NUMBERS", limit)
        for chunked, expected in zip(gradients(), whole, strict=True):
            assert_close(chunked, expected)


each_estimator = pytest.mark.parametrize("name", ESTIMATORS)
each_sampler = pytest.mark.parametrize("name", SAMPLERS)


@each_sampler
@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_signatures_are_the_same_but_for_the_options(name, family):
    row = ESTIMATORS[name]
    common = {"dim": -1, "mask": None, "generator": None, "backend": "auto"}
    if family == "bernoulli":
        del common["dim"]
    parameters = inspect.signature(row.functions[family]).parameters
    assert list(parameters)[:2] == ["logits", "tau"]
    keywords = {
        p.name: p.default for p in parameters.values() if p.kind == inspect.Parameter.KEYWORD_ONLY
    }
    assert keywords == {**row.options, **common}
    assert parameters["tau"].default == 1.0

    at = inspect.signature(row.functions_at[family]).parameters
    draw = "index" if family == "categorical" else "value"
    given = [draw, "noise"] if row.noise else [draw]
    assert list(at)[: 2 + len(given)] == ["logits", *given, "tau"]
    del common["generator"]
    options = {key: default for key, default in row.options.items() if key != "num_draws"}
    keywords = {p.name: p.default for p in at.values() if p.kind == inspect.Parameter.KEYWORD_ONLY}
    assert keywords == {**options, **common}


def test_registry_is_read_only():
    row = ESTIMATORS["reinmax"]
    with pytest.raises(TypeError):
        ESTIMATORS["mine"] = row
    with pytest.raises(TypeError):
        row.functions["categorical"] = None
    with pytest.raises(TypeError):
        ESTIMATORS["gapped"].options["gap"] = 2.0
    with pytest.raises(FrozenInstanceError):
        row.name = "mine"


@each_estimator
def test_row_may_be_part_of_what_is_copied(name):
    """A module that keeps its estimator's row can be copied and saved like any other."""
    row = ESTIMATORS[name]
    assert copy.deepcopy(row) == row
    assert pickle.loads(pickle.dumps(row)) == row


@each_estimator
def test_rows_are_filled_in(name):
    row = ESTIMATORS[name]
    assert row.families
    assert (row.evaluations is None) == (name == "exact")
    if row.kind == "sampler":
        assert row.families == ("categorical", "bernoulli")
        assert (row.evaluations, row.slopes, row.min_samples) == (1, 1, 1)
        assert (row.extra_evaluations, row.extra_slopes, row.module) == (0, 0, None)
    else:
        assert row.unbiased
        assert row.exact_for == "everything"
        assert not row.functions_at
    assert row.needs_grad_f == (row.slopes + row.extra_slopes > 0)
    for text in (row.label, row.bias, row.temperature, row.reference):
        assert text


@each_estimator
def test_citation(name):
    entry = discretegrad.citation(name)
    row = ESTIMATORS[name]
    assert entry == row.bibtex
    assert entry.startswith("@")
    assert entry.count("{") == entry.count("}")
    assert "year" in entry
    assert discretegrad.get(name) is row


@pytest.mark.parametrize("function", [discretegrad.get, discretegrad.citation])
def test_unknown_estimator_lists_those_there_are(function):
    with pytest.raises(ValueError, match="got 'reinmaxx'") as error:
        function("reinmaxx")
    for name in ESTIMATORS:
        assert name in str(error.value)
