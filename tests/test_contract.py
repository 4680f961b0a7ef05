"""What every sampler promises, whatever its formula: the rules run over the whole registry.

That bits are two categories, with noise too, is in test_exactness: its oracle of a bit is that of
two categories. Masks along any axis are in test_properties, frequencies in test_statistics.
"""

import contextlib
import copy
import math
import pickle
import warnings
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import Tensor

import discretegrad
from cases import (
    CASES,
    CATEGORICAL,
    FAMILIES,
    HARD,
    NOISY,
    SAMPLERS,
    SUBSETS,
    any_tau,
    each,
    each_family,
)
from discretegrad import ESTIMATORS, _random, _seeded, reinmax
from discretegrad.families import FAMILIES as FAMILY_OBJECTS
from discretegrad.kernels import dispatch
from discretegrad.testing import (
    RULES,
    Case,
    assert_close,
    assert_discrete,
    check_sampler,
    gradient,
    normal,
    seeded,
    weights_like,
)
from watched_memory import Memory

GUMBEL_RAO = [case for case in CASES if "num_draws" in case.options]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@each([*CASES, *SUBSETS])
@pytest.mark.parametrize("rule", RULES)
def test_rule(case, rule):
    RULES[rule](case)


def scaled(sample, factor):
    """The same sample with its gradient multiplied by a factor."""
    return sample.detach() + factor * (sample - sample.detach())


def with_mean_tau(x, tau, **rest):
    return reinmax(x, tau.mean().item() if isinstance(tau, Tensor) else tau, **rest)


# for each rule a form of reinmax that breaks it
BROKEN = {
    "samples are discrete": lambda x, tau, **rest: 0.999 * reinmax(x, tau, **rest),
    "draws what the library draws": lambda x, tau, **rest: reinmax(-x, tau, **rest),
    "takes a given draw": lambda x, tau, given=None, **rest: reinmax(x, tau, **rest),
    "is its formula at the draw": lambda x, tau, **rest: scaled(
        reinmax(x, tau, **rest), 2 if "given" in rest else 1
    ),
    "masks": lambda x, tau, mask=None, **rest: reinmax(x, tau, **rest),
    "any axis may hold the categories": lambda x, tau, dim=-1, **rest: reinmax(
        x, tau, dim=dim, **rest
    ).flip(dim if dim >= 0 else ()),
    "leading axes are a batch": lambda x, tau, **rest: reinmax(x, tau, **rest).flip(
        0 if x.ndim > 2 else ()
    ),
    "temperature per row": with_mean_tau,
    "low precision is computed in float32": lambda x, tau, **rest: scaled(
        reinmax(x, tau, **rest), 2 if x.itemsize == 2 else 1
    ),
    "generators": lambda x, tau, generator=None, **rest: reinmax(x, tau, **rest),
    "graph": lambda x, tau, **rest: reinmax(x, tau, **rest).detach(),
    "bits are two categories": lambda x, tau, family, **rest: scaled(
        reinmax(x, tau, family=family, **rest), 2 if family == "bernoulli" else 1
    ),
    "is as exact as its row says": lambda x, tau, **rest: scaled(reinmax(x, tau, **rest), 2),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_row_passes_with_its_defaults(name):
    check_sampler(discretegrad.get(name))


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_sampler_breaks_the_rule(rule):
    family = "bernoulli" if rule == "bits are two categories" else "categorical"
    row = replace(SAMPLERS["reinmax"], function=BROKEN[rule])
    with pytest.raises(AssertionError):
        RULES[rule](Case(row, family))
    with pytest.raises(AssertionError, match=rf"{family}-reinmax breaks the rule '[\w ]+'"):
        check_sampler(row)


@each(CATEGORICAL)
def test_gradient_rows_sum_to_zero_but_for_the_released_form(case):
    """Relative to the terms of the sum; for every dtype and temperature in test_properties."""
    logits = normal(40, 9).requires_grad_()
    grad = gradient(case.sample(logits, generator=seeded(1)), logits)
    sums = grad.sum(-1).abs() / (grad.abs().sum(-1) + weights_like(logits).abs().sum(-1))
    if case.options.get("as_released"):
        assert sums.min() > 1e-7
    else:
        assert sums.max() < 1e-15


@each(CATEGORICAL)
def test_a_category_without_rivals_is_certain(case):
    alone = torch.nn.functional.one_hot(torch.arange(6), 6).bool()
    for shape, mask in (((6, 6), alone), ((1,), None), ((5, 1), None), ((2, 3, 1), None)):
        logits = normal(*shape).requires_grad_()
        sample = case.sample(logits, 0.7, mask=mask, generator=seeded(1))
        assert torch.equal(sample == 1, torch.ones(shape).bool() if mask is None else mask)
        assert (gradient(sample, logits) == 0).all()


@each(CASES)
def test_empty_batch(case):
    for shape in ((0, 4), (3, 0, 4), (0, 3, 100)):
        logits, tau = normal(*shape).requires_grad_(), torch.ones((*shape[:-1], 1))
        arguments = {**case.draw(logits.new_zeros(1, 4)), **case._noise(logits)}
        arguments["given"] = torch.zeros(shape[:-1] if case.categorical else shape).long()
        sample = case.sample(logits, tau, **arguments)
        assert sample.shape == gradient(sample, logits).shape == shape
    if not case.categorical:
        logits = normal(0).requires_grad_()
        assert gradient(case.sample(logits), logits).shape == (0,)


LAYOUTS = (
    lambda x: x.mT.contiguous().mT,
    lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
    lambda x: x[:1, :1].expand_as(x),
)


@each(CASES)
@pytest.mark.parametrize("categories", [6, 90])
def test_strided_and_expanded_input(case, categories):
    numbers = normal(3, 8, categories)
    for layout in LAYOUTS:
        strided = layout(numbers).requires_grad_()
        assert not strided.is_contiguous()
        plain = strided.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        sample, expected = (case.sample(x, 0.7, generator=seeded(1)) for x in (strided, plain))
        assert sample.is_contiguous()
        assert_close(sample, expected)
        # the gradient that comes in is strided too
        weights = layout(weights_like(plain))
        assert_close(gradient(sample, strided, weights), gradient(expected, plain, weights))


@each(CASES)
def test_the_same_call_in_other_words(case):
    """A temperature as a tensor, and the family as its object."""
    logits, by_object = normal(30, 2, 5), replace(case, family=FAMILY_OBJECTS[case.family])
    taus = [torch.full(shape, 0.6, dtype=torch.float64) for shape in ((), (30, 1, 1))]
    results = []
    for same, tau in ((case, 0.6), (by_object, 0.6), (case, taus[0]), (case, taus[1])):
        leaf = logits.clone().requires_grad_()
        sample = same.sample(leaf, tau, generator=seeded(1))
        results.append(torch.stack([sample.detach(), gradient(sample, leaf)]))
    for result in results[1:]:
        assert_close(result, results[0])


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


@any_tau
@each(CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_finite_up_to_the_range_of_the_dtype(case, dtype):
    rows = extreme_logits(dtype)
    for tau in (1e-3, 1.0, 1e3):
        # the same numbers as one row of many categories take other code paths
        for logits in (rows.clone().requires_grad_(), rows.reshape(1, -1).requires_grad_()):
            sample = case.sample(logits, tau, generator=seeded(1))
            assert sample.isfinite().all()
            # this estimator divides by the tempered probability of the draw, so that its
            # gradient has no bound
            if case.row.name != "mean_baseline" or tau >= 1:
                assert gradient(sample, logits).isfinite().all()


@each(CASES)
def test_autocast_changes_nothing(case):
    for dtype in DTYPES:
        logits = normal(40, 5, dtype=dtype).requires_grad_()
        expected = case.sample(logits, 0.7, generator=seeded(1))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            sample = case.sample(logits, 0.7, generator=seeded(1))
            inside = gradient(sample, logits)
        assert sample.dtype == dtype
        assert torch.equal(sample, expected)
        assert torch.equal(inside, gradient(expected, logits))


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# long rows, many rows, and sizes that leave a rest when cut into equal parts for threads and into
# vectors: torch computes the rest of some functions in another way
THREAD_SHAPES = {
    "categorical": [(1, 200_001), (40_000,), (64, 5000), (3000, 10), (20_001, 9), (500, 1023)],
    "bernoulli": [(200_001,), (3000, 10)],
    "subset": [(40_001,), (300, 10)],
}


@each([*CASES, *SUBSETS])
def test_result_does_not_depend_on_the_number_of_threads(case):
    for shape in THREAD_SHAPES[getattr(case.family, "name", case.family)]:
        logits = normal(*shape, dtype=torch.float32).requires_grad_()
        weights = weights_like(logits)
        results = []
        for count in (1, 2, 7):
            with threads(count):
                sample = case.sample(logits, 0.7, generator=seeded(1))
                results.append((sample.detach(), gradient(sample, logits, weights)))
        for sample, grad in results[1:]:
            assert torch.equal(sample, results[0][0])
            # the relaxed sample has the gradient of torch's own softmax, which does depend on it
            if case.hard:
                assert torch.equal(grad, results[0][1])


@each(HARD)
def test_output_may_be_changed_in_place(case):
    for arguments in ({}, {"dim": 0}) if case.categorical else ({},):
        logits = normal(4, 5).requires_grad_()
        sample = case.sample(logits, generator=seeded(1), **arguments)
        assert sample.is_contiguous()
        expected = gradient(sample * 3, logits)
        sample = case.sample(logits, generator=seeded(1), **arguments)
        sample.mul_(3)
        assert torch.equal(gradient(sample, logits), expected)


@each(NOISY)
def test_a_given_draw_without_noise_gets_new_noise_from_the_generator(case):
    logits = normal(30, 5).requires_grad_()
    given, before = case.draw(logits)["given"], torch.get_rng_state()
    samples = [case.sample(logits, 0.7, given=given, generator=seeded(seed)) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    for sample in samples:
        assert_discrete(sample, case.family)
        assert torch.equal(sample.argmax(-1) if case.categorical else sample, given)
    first, again, other = (gradient(sample, logits) for sample in samples)
    assert torch.equal(first, again)
    assert (first != other).any(-1).all()


@pytest.mark.parametrize("name", ["reinmax", "straight_through", "blend"])
def test_a_small_temperature_is_explained(name):
    function = SAMPLERS[name].function
    layer = torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(3, 5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):  # once for each line that calls
            function(torch.zeros(3), 0.3)
        discretegrad.linear_select(*layer, estimator=name, tau=0.3)
        discretegrad.sample_index(torch.zeros(3), name, 0.3)
        function(torch.zeros(3), 0.3, family="bernoulli")
        function(torch.zeros(3), 0.3, given=torch.tensor(1))
    assert len(caught) == 5
    for warning in caught:
        assert warning.filename == __file__
        assert str(warning.message).startswith(f"{name}: tau=0.3 is unusual.")
        assert "Start with tau=1; if you tune it, search 0.7, 1, 1.3 and 1.5." in str(
            warning.message
        )


@each(HARD)
def test_most_temperatures_need_no_explanation(case):
    """Warnings are errors here."""
    case.sample(torch.zeros(3), 0.5)
    case.sample(torch.zeros(3), torch.tensor(0.1))
    explained = case.row.name in ("reinmax", "straight_through", "blend")
    before = discretegrad.set_checks("never" if explained else "auto")
    try:
        case.sample(torch.zeros(3), 0.1)
    finally:
        discretegrad.set_checks(before)


# --- gumbel_rao: noise that belongs to a seed, made again in backward, a piece at a time


@each_family
def test_memory_of_gumbel_rao_does_not_grow_with_its_draws(family):
    logits = normal(4, 100, dtype=torch.float32).requires_grad_()
    largest = []
    for num_draws in (4000, 8000):
        arguments = {"num_draws": num_draws, "generator": seeded(1)}
        with Memory() as memory:
            sample = discretegrad.gumbel_rao(logits, family=family, **arguments)
        assert memory.most_numbers <= logits.numel()
        with Memory() as memory:
            gradient(sample, logits)
        largest.append(memory.most_numbers)
    assert largest[0] == largest[1] <= _seeded._CHUNK_NUMBERS
    # the pieces hold many draws, so that the limit is what keeps them small
    assert largest[0] > 1000 * logits.numel()


@each(GUMBEL_RAO)
def test_pieces_of_gumbel_rao_change_nothing(case, monkeypatch):
    case = replace(case, options={"num_draws": 7})
    logits = normal(6, 5).requires_grad_()
    arguments = case.draw(logits)
    seeds = {"given": arguments["given"], "seed": torch.arange(6)}

    def gradients():
        drawn = {"generator": seeded(1)}
        return [gradient(case.sample(logits, 0.7, **x), logits) for x in (drawn, arguments, seeds)]

    whole = gradients()
    # 30 numbers per draw: pieces of 1, 2, 3 and 5 draws
    for limit in (1, 60, 100, 150):
        monkeypatch.setattr(_seeded, "_CHUNK_NUMBERS", limit)
        for chunked, expected in zip(gradients(), whole, strict=True):
            assert_close(chunked, expected)


INTERPRETED = dispatch._INTERPRETED and dispatch._HAS_TRITON
# NumPy tells of infinities in Triton's interpreter that a GPU makes silently
each_seeded = pytest.mark.parametrize(
    ("case", "backend"),
    [
        *((case, "torch") for case in GUMBEL_RAO),
        pytest.param(
            GUMBEL_RAO[0],
            "triton",
            marks=[
                pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter"),
                pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
            ],
        ),
    ],
    ids=str,
)


def seeded_gradient(case, logits, given, seed, tau=0.7, **arguments):
    logits = logits.clone().requires_grad_()
    sample = case.sample(logits, tau, given=given, seed=seed, **arguments)
    assert torch.equal(sample.argmax(-1) if case.categorical else sample, given)
    return gradient(sample, logits, normal(*logits.shape[-2:], seed=11, dtype=logits.dtype))


def seeds(*shape):
    return torch.randint(2**63 - 1, shape, generator=seeded(3))


@pytest.fixture
def small_tiles(monkeypatch):
    """More than 16 categories are too many to stay on chip."""
    if not INTERPRETED:
        yield
        return
    from discretegrad.kernels import gumbel_rao

    monkeypatch.setattr(gumbel_rao, "LONGEST", 16)
    monkeypatch.setattr(gumbel_rao, "LONG_BLOCK", 16)
    # plans are kept for as long as the process runs
    gumbel_rao._plan.cache_clear()
    yield
    gumbel_rao._plan.cache_clear()


@each_seeded
@pytest.mark.parametrize("categories", [2, 3, 20])
def test_what_a_seed_gives_does_not_depend_on_the_batch(case, backend, categories, small_tiles):
    logits, seed = normal(3, 2, 1, categories, dtype=torch.float32), seeds(3)
    given, tau = case.draw(logits)["given"], torch.tensor([0.5, 1.0, 1.7]).view(3, 1, 1, 1)
    given = given.to(torch.int64 if case.categorical else torch.float32)
    before = torch.get_rng_state()
    together = seeded_gradient(case, logits, given, seed, tau, backend=backend)
    assert torch.equal(torch.get_rng_state(), before)
    for member in range(3):
        alone = (x[member] for x in (logits, given, seed, tau))
        alone = seeded_gradient(case, *alone, backend=backend)
        torch.testing.assert_close(together[member], alone, rtol=1e-5, atol=1e-7)
    other = seeded_gradient(case, logits, given, seed.roll(1), tau, backend=backend)
    assert (other != together).any(-1).all()


@each_seeded
def test_a_seed_for_any_of_the_first_axes(case, backend):
    """Rows with the same logits, gradient and draw have noise of their own."""
    logits = normal(4, dtype=torch.float32).expand(2, 3, 4)
    given = torch.tensor(1).expand(2, 3) if case.categorical else torch.ones(2, 3, 4)
    for axes in range(given.ndim + 1):
        seed = seeds(*given.shape[:axes])
        grad = seeded_gradient(case, logits, given, seed, backend=backend)
        assert len(grad.flatten(0, 1).unique(dim=0)) == 6
    empty = torch.zeros(0, 3, requires_grad=True)
    given = torch.zeros((0,) if case.categorical else (0, 3)).long()
    sample = case.sample(empty, given=given, seed=torch.zeros(0).long())
    assert gradient(sample, empty).shape == (0, 3)


@each(GUMBEL_RAO)
def test_seeds_stand_for_noise(case):
    logits, seed = normal(3, 5, 4), seeds(3)
    given = case.draw(logits)["given"]
    drawn = given.unsqueeze(-1) if case.categorical else given
    # a seed for each member, and the seeds that a generator gives
    from_generator = _random.draw_seeds(drawn.shape, drawn.device, seeded(5))
    for row_seeds, arguments in (
        (_seeded.row_seeds(seed, drawn), {"seed": seed}),
        (from_generator, {"generator": seeded(5)}),
    ):
        noise = FAMILY_OBJECTS[case.family].seeded_noise(row_seeds, 0, 3, logits)
        leaf = logits.clone().requires_grad_()
        expected = gradient(case.sample(leaf, 0.7, given=given, noise=noise), leaf)
        assert_close(gradient(case.sample(leaf, 0.7, given=given, **arguments), leaf), expected)


# --- the registry


def test_registry_is_read_only():
    row = ESTIMATORS["reinmax"]
    with pytest.raises(TypeError):
        ESTIMATORS["mine"] = row
    with pytest.raises(TypeError):
        ESTIMATORS["gapped"].options["gap"] = 2.0
    with pytest.raises(FrozenInstanceError):
        row.name = "mine"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_are_filled_in(name):
    row = discretegrad.get(name)
    assert row is ESTIMATORS[name]
    # a module that keeps its estimator's row can be copied and saved like any other
    assert copy.deepcopy(row) is row
    assert pickle.loads(pickle.dumps(row)) is row
    assert row.families
    assert all(row.works_on(FAMILY_OBJECTS[family]) for family in row.families)
    assert (row.evaluations is None) == (name == "exact")
    if row.kind == "sampler":
        assert row.families == FAMILIES
        assert row.rule().name == name
        assert (row.evaluations, row.slopes, row.min_samples) == (1, 1, 1)
        assert (row.extra_evaluations, row.extra_slopes, row.module) == (0, 0, None)
    else:
        assert row.unbiased
        assert row.exact_for == "everything"
        assert row.rule is None
    assert row.needs_grad_f == (row.slopes + row.extra_slopes > 0)
    for text in (row.label, row.bias, row.temperature, row.reference):
        assert text
    assert row.bibtex == discretegrad.citation(name)
    assert row.bibtex.startswith("@")
    assert row.bibtex.count("{") == row.bibtex.count("}")
    assert "year" in row.bibtex


@pytest.mark.parametrize("function", [discretegrad.get, discretegrad.citation])
def test_unknown_estimator_lists_those_there_are(function):
    with pytest.raises(ValueError, match="got 'reinmaxx'") as error:
        function("reinmaxx")
    for name in ESTIMATORS:
        assert name in str(error.value)
