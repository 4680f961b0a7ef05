"""Every estimator against its second derivation, and its expectation by enumeration, in float64.

No Monte Carlo: expectations are sums over all joint outcomes, or quadrature over the noise.
"""

import importlib
import math

import pytest
import torch

import discretegrad
import oracles
from cases import SAMPLERS
from discretegrad import _noise

SAME = 1e-12
"""Largest difference from the oracle, relative to the largest entry (at least 1)."""
EXACT = 1e-10
"""Largest error of an expected gradient that counts as exact."""
BIASED = 1e-2
"""Smallest relative error of an expected gradient that counts as a bias."""

TAUS = (0.5, 1.0, 1.3, 2.0)
SHAPES = ((1,), (2,), (5,), (4, 3), (2, 3, 4), (3, 33), (2, 65))
# every estimator with its defaults comes from the registry; these are the other options
MORE_OPTIONS = {
    "gumbel_softmax": [{"hard": False}],
    "gapped": [{"gap": 0.0}, {"gap": 2.5}, {"gap": "p"}],
    "mean_baseline": [{"order": 1}, {"as_released": True}],
}
NUM_DRAWS = 7


def _id(name, options):
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


VARIANTS = [
    pytest.param(name, options, id=_id(name, options))
    for name in SAMPLERS
    for options in [{}, *MORE_OPTIONS.get(name, [])]
]
FAMILIES = ("categorical", "bernoulli")

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_draw(logits, seed=1):
    """Any index will do: nothing here depends on its distribution."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(logits.shape[-1], logits.shape[:-1], generator=generator)


def exponential(*shape, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)


def value_and_gradient(sample, logits, g):
    return sample.detach(), torch.autograd.grad((sample * g).sum(), logits)[0]


def assert_same(ours, oracle):
    assert ours.shape == oracle.shape
    scale = max(1.0, oracle.abs().max().item())
    assert torch.isfinite(ours).all()
    assert (ours - oracle).abs().max() <= SAME * scale


def row_temperatures(shape):
    """A different temperature for each row."""
    count = math.prod(shape)
    return (0.5 + 2 * torch.arange(count, dtype=torch.float64) / count).reshape(shape)


def taus_for(shape):
    return [*TAUS, row_temperatures(shape)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_sample_and_gradient_equal_the_oracle(name, options, shape):
    logits = (2 * random(*shape)).requires_grad_()
    index, g = random_draw(logits), random(*shape, seed=3)
    noise = exponential(NUM_DRAWS, *shape)
    for tau in taus_for((*shape[:-1], 1)):
        ours = oracles.library_sample(
            SAMPLERS[name], "categorical", logits, index, noise, tau, **options
        )
        oracle = oracles.sample(name, logits, index, noise, tau, **options)
        for mine, theirs in zip(
            value_and_gradient(ours, logits, g), value_and_gradient(oracle, logits, g), strict=True
        ):
            assert_same(mine, theirs)


@pytest.mark.parametrize(
    ("name", "options"),
    # the oracle of the released form stores a matrix of n x n
    [variant for variant in VARIANTS if "as_released" not in variant.values[1]],
)
def test_long_rows_equal_the_oracle(name, options):
    """Rows so long that the library sums them in parts."""
    n = 2**15 + 5
    logits = (2 * random(n)).requires_grad_()
    index, g, noise = torch.tensor(n - 2), random(n, seed=3), exponential(2, n)
    for tau in (1.0, 1.3):
        ours = oracles.library_sample(
            SAMPLERS[name], "categorical", logits, index, noise, tau, **options
        )
        oracle = oracles.sample(name, logits, index, noise, tau, **options)
        for mine, theirs in zip(
            value_and_gradient(ours, logits, g), value_and_gradient(oracle, logits, g), strict=True
        ):
            assert_same(mine, theirs)


@pytest.mark.parametrize("dim", [0, 1, -2])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_category_axis_anywhere(name, options, dim):
    logits = random(3, 4, 5).requires_grad_()
    g, noise = random(3, 4, 5, seed=3), exponential(NUM_DRAWS, 3, 4, 5)
    last = logits.movedim(dim, -1)
    index = random_draw(last)
    noise_axis = dim if dim < 0 else dim + 1
    tau_last = row_temperatures((*last.shape[:-1], 1))
    ours = oracles.library_sample(
        SAMPLERS[name],
        "categorical",
        logits,
        index,
        noise,
        tau_last.movedim(-1, dim),
        dim=dim,
        **options,
    )
    oracle = oracles.sample(name, last, index, noise.movedim(noise_axis, -1), tau_last, **options)
    for mine, theirs in zip(
        value_and_gradient(ours, logits, g),
        value_and_gradient(oracle.movedim(-1, dim), logits, g),
        strict=True,
    ):
        assert_same(mine, theirs)


@pytest.mark.parametrize("given_as", ["mask", "minus infinity"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_masked_rows_equal_the_oracle_without_the_excluded_categories(name, options, given_as):
    rows, n = 24, 7
    logits = 2 * random(rows, n)
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(rows, n, generator=generator) < 0.6
    index = random_draw(logits)
    mask.scatter_(-1, index.unsqueeze(-1), True)  # what was drawn is allowed
    g, noise = random(rows, n, seed=3), exponential(NUM_DRAWS, rows, n)
    for tau in TAUS:
        if given_as == "mask":
            attached = logits.clone().requires_grad_()
            extra = {"mask": mask}
        else:
            attached = logits.masked_fill(~mask, -math.inf).requires_grad_()
            extra = {}
        ours = oracles.library_sample(
            SAMPLERS[name], "categorical", attached, index, noise, tau, **extra, **options
        )
        value, gradient = value_and_gradient(ours, attached, g)
        assert (value[~mask] == 0).all()
        assert (gradient[~mask] == 0).all()
        for row in range(rows):
            keep = mask[row]
            kept = logits[row, keep].requires_grad_()
            kept_index = keep[: index[row]].sum()
            oracle = oracles.sample(name, kept, kept_index, noise[:, row, keep], tau, **options)
            oracle_value, oracle_gradient = value_and_gradient(oracle, kept, g[row, keep])
            assert_same(value[row, keep], oracle_value)
            assert_same(gradient[row, keep], oracle_gradient)


@pytest.mark.parametrize("shape", [(), (6,), (3, 4)], ids=str)
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_bernoulli_equals_the_oracle_on_two_categories(name, options, shape):
    logits = (2 * random(*shape)).requires_grad_()
    generator = torch.Generator().manual_seed(5)
    value = torch.rand(shape, generator=generator) < 0.5
    noise = exponential(NUM_DRAWS, *shape).log() - exponential(NUM_DRAWS, *shape, seed=6).log()
    g = random(*shape, seed=3)
    for tau in taus_for(shape):
        ours = oracles.library_sample(
            SAMPLERS[name], "bernoulli", logits, value, noise, tau, **options
        )
        oracle = oracles.bernoulli_sample(name, logits, value, noise, tau, **options)
        for mine, theirs in zip(
            value_and_gradient(ours, logits, g), value_and_gradient(oracle, logits, g), strict=True
        ):
            assert_same(mine, theirs)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_bernoulli_with_a_certain_value_has_no_gradient(name, options):
    logits = torch.tensor([-math.inf, math.inf, 0.7], dtype=torch.float64).requires_grad_()
    mask = torch.tensor([True, True, False])
    value = torch.tensor([0, 1, 0])
    noise = exponential(NUM_DRAWS, 3).log()
    ours = oracles.library_sample(
        SAMPLERS[name], "bernoulli", logits, value, noise, mask=mask, **options
    )
    sample, gradient = value_and_gradient(ours, logits, random(3, seed=3))
    assert sample.tolist() == value.tolist()
    assert gradient.tolist() == [0, 0, 0]


GUMBEL_RAO = {
    "categorical": importlib.import_module("discretegrad.estimators.gumbel_rao"),
    "bernoulli": importlib.import_module("discretegrad.bernoulli.gumbel_rao"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_gumbel_rao_makes_the_noise_that_its_seeds_stand_for(family, monkeypatch):
    num_draws, shape = 50, (4, 3)
    logits = random(*shape).requires_grad_()
    g = random(*shape, seed=3)
    seed_shape = (4, 1) if family == "categorical" else shape
    seed = torch.randint(2**62, seed_shape, generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr(GUMBEL_RAO[family], "draw_seed", lambda like, generator: seed)
    sample = SAMPLERS["gumbel_rao"].functions[family](
        logits, 0.7, num_draws=num_draws, generator=torch.Generator().manual_seed(0)
    )
    value, gradient = value_and_gradient(sample, logits, g)
    if family == "categorical":
        noise = _noise.seeded_exponential(seed, 0, num_draws, logits)
        oracle = oracles.gumbel_rao(logits, value.argmax(-1), noise, 0.7)
    else:
        noise = _noise.seeded_logistic(seed, 0, num_draws, logits)
        oracle = oracles.bernoulli_sample("gumbel_rao", logits, value, noise, 0.7)
    assert_same(gradient, value_and_gradient(oracle, logits, g)[1])


@pytest.mark.parametrize("limit", [1, 12, 30, 10**6])
@pytest.mark.parametrize("family", FAMILIES)
def test_gumbel_rao_does_not_depend_on_the_size_of_its_pieces(family, limit, monkeypatch):
    row = SAMPLERS["gumbel_rao"]
    noise = exponential(25, 4, 3) if family == "categorical" else exponential(25, 4, 3).log()
    draw = torch.tensor([2, 0, 1, 1]) if family == "categorical" else random(4, 3) > 0

    def gradients():
        logits = random(4, 3).requires_grad_()
        given = row.functions_at[family](logits, draw, noise, 0.7)
        generator = torch.Generator().manual_seed(0)
        seeded = row.functions[family](logits, 0.7, num_draws=25, generator=generator)
        g = random(4, 3, seed=3)
        return [value_and_gradient(sample, logits, g)[1] for sample in (given, seeded)]

    whole = gradients()
    monkeypatch.setattr(GUMBEL_RAO["categorical"], "_CHUNK_NUMBERS", limit)
    for mine, theirs in zip(gradients(), whole, strict=True):
        assert_same(mine, theirs)


def problem(family):
    """Logits of several variables, and the objectives on them."""
    if family == "categorical":
        return random(3, 3, seed=7), oracles.objectives(3, 3)
    return random(4, seed=8), oracles.objectives(4, None)


def expected_gradient(name, options, family, logits, f, tau=1.0):
    """Through the library's ``_at``, over all joint outcomes, and over the noise where there is."""
    row = SAMPLERS[name]

    def sample_at(theta, draw):
        return row.functions_at[family](theta, draw, tau, **options)

    def sample_with_mean_gradient(theta, draw):
        # given the draw, noise changes nothing but the gradient, and that of each variable
        # depends on its own noise alone: one quadrature serves all variables at once
        nodes, weights = (x.reshape(-1, 1, 1) for x in oracles.logistic_quadrature())
        shape = (len(nodes), *draw.shape)
        samples = oracles.library_sample(
            row, family, theta.expand(shape), draw.expand(shape), nodes.expand(1, *shape), tau
        )
        mean = (weights * samples).sum(0)
        return mean - mean.detach() + samples[0].detach()

    if row.noise:
        assert family == "bernoulli", "the quadrature is over one noise per variable"
        sample_at = sample_with_mean_gradient
    return oracles.expected_gradient(sample_at, logits, f, family)


def relative_bias(name, options, family, logits, f, tau=1.0):
    exact = discretegrad.exact_gradient(logits, f, family=family)
    error = expected_gradient(name, options, family, logits, f, tau) - exact
    return (error.norm() / exact.norm()).item()


EXACT_ON = {
    "nothing": [],
    "linear": ["linear", "multilinear"],
    "quadratic": ["linear", "multilinear", "quadratic"],
}
BIASED_ON = {"nothing": "linear", "linear": "quadratic", "quadratic": "cubic"}
CLAIMS = [
    *((name, {}, family, row.exact_for) for name, row in SAMPLERS.items() for family in FAMILIES),
    ("mean_baseline", {"order": 1}, "categorical", "linear"),
    # with two values this baseline is already of second order
    ("mean_baseline", {"order": 1}, "bernoulli", "quadratic"),
    ("mean_baseline", {"as_released": True}, "categorical", "nothing"),
    ("mean_baseline", {"as_released": True}, "bernoulli", "nothing"),
    ("gapped", {"gap": "p"}, "categorical", "nothing"),
    ("gapped", {"gap": "p"}, "bernoulli", "nothing"),
]


@pytest.mark.parametrize(
    ("name", "options", "family", "exact_for"),
    [
        pytest.param(*claim, id=f"{_id(*claim[:2])}-{claim[2]}")
        for claim in CLAIMS
        # with noise only Bernoulli variables can be integrated
        if claim[2] == "bernoulli" or not SAMPLERS[claim[0]].noise
    ],
)
def test_exact_for_what_the_registry_says_and_no_more(name, options, family, exact_for):
    logits, ladder = problem(family)
    bias = {k: relative_bias(name, options, family, logits, f) for k, f in ladder.items()}
    for objective in EXACT_ON[exact_for]:
        assert bias[objective] < EXACT, objective
    assert bias[BIASED_ON[exact_for]] > BIASED
    assert bias["exponential"] > BIASED


@pytest.mark.parametrize(("name", "row"), SAMPLERS.items(), ids=SAMPLERS.keys())
def test_unbiased_column(name, row):
    logits, ladder = problem("bernoulli")
    biases = [relative_bias(name, {}, "bernoulli", logits, f) for f in ladder.values()]
    assert row.unbiased == (max(biases) < EXACT)


@pytest.mark.parametrize("tau", [1.1, 1.3, 1.5, 2.0])
def test_tempered_reinmax_is_biased_on_linear_functions_as_predicted(tau):
    logits, b = random(5, seed=9), random(5, seed=10)
    p, q = logits.softmax(-1), (logits / tau).softmax(-1)
    cross = torch.outer(q, q) + torch.outer(q, p) + torch.outer(p, q) - torch.outer(p, p)
    predicted = (torch.diag(q) - cross / 2) @ b
    expected = oracles.expected_gradient(
        lambda theta, index: discretegrad.reinmax_at(theta, index, tau),
        logits.unsqueeze(0),
        lambda z: (z * b).sum((-1, -2)),
    )[0]
    assert (expected - predicted).abs().max() < EXACT
    true = discretegrad.exact_gradient(logits, lambda z: z @ b)
    assert (expected - true).norm() / true.norm() > BIASED


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["reinmax", "straight_through", "mean_baseline"])
def test_another_temperature_costs_exactness_even_on_linear_functions(name, family):
    logits, ladder = problem(family)
    for tau in (0.5, 1.3, 2.0):
        assert relative_bias(name, {}, family, logits, ladder["linear"], tau) > BIASED


def slope_of_gumbel_softmax(logit, tau):
    """E[y (1 - y) / tau; b] for b = 0 and 1, with y = sigmoid((l + L) / tau), from raw noise L.

    The sum l + L = +-e^x has its kink at 0 and a peak of width tau there; x resolves both.
    """
    x, weights = oracles.gauss_legendre(-50.0, 5.0, 110)
    distance = x.exp()
    slopes = []
    for sign in (-1, 1):
        noise = sign * distance - logit
        density = torch.sigmoid(noise) * torch.sigmoid(-noise)
        y = torch.sigmoid(sign * distance / tau)
        other = torch.sigmoid(-sign * distance / tau)
        slopes.append((weights * distance * density * y * other / tau).sum())
    return torch.stack(slopes)


@pytest.mark.parametrize("tau", [0.1, *TAUS])
@pytest.mark.parametrize("logit", [-3.0, -0.4, 0.0, 1.7])
@pytest.mark.parametrize("name", [name for name, row in SAMPLERS.items() if row.noise])
def test_gumbel_methods_integrate_to_the_raw_relaxation(name, logit, tau):
    """Both families: the noise given the draw, weighted by the draw, is the raw noise."""
    row = SAMPLERS[name]
    nodes, weights = oracles.logistic_quadrature()
    prob_of_one = torch.sigmoid(torch.tensor(logit, dtype=torch.float64))
    for value, raw in enumerate(slope_of_gumbel_softmax(logit, tau)):
        prob = prob_of_one if value == 1 else 1 - prob_of_one
        logits = torch.full_like(nodes, logit).requires_grad_()
        draw = torch.full(nodes.shape, value)
        sample = oracles.library_sample(row, "bernoulli", logits, draw, nodes[None], tau)
        slope = torch.autograd.grad(sample.sum(), logits)[0]
        assert abs(prob * (weights * slope).sum() - raw) < EXACT

        pair = torch.stack([logits.detach(), torch.zeros_like(nodes)], -1).requires_grad_()
        index = 1 - draw
        drawn = torch.nn.functional.one_hot(index, 2).bool()
        noise = torch.where(drawn, 1.0, nodes.exp().unsqueeze(-1))
        sample = oracles.library_sample(row, "categorical", pair, index, noise[None], tau)
        slope = torch.autograd.grad(sample[:, 0].sum(), pair)[0][:, 0]
        assert abs(prob * (weights * slope).sum() - raw) < EXACT


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_gumbel_rao_averages_its_draws_with_equal_weight(tau):
    logit, draws = 0.8, 2**14
    # the midpoint rule in the uniform that stands behind the noise
    uniform = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    noise = uniform.logit().unsqueeze(-1)
    logits = torch.tensor([logit], dtype=torch.float64).requires_grad_()
    for value, raw in enumerate(slope_of_gumbel_softmax(logit, tau)):
        sample = discretegrad.bernoulli.gumbel_rao_at(logits, torch.tensor([value]), noise, tau)
        slope = torch.autograd.grad(sample.sum(), logits)[0]
        prob = torch.sigmoid(torch.tensor(logit if value == 1 else -logit, dtype=torch.float64))
        # the error of the midpoint rule falls with the square of the number of draws
        assert abs(prob * slope.item() - raw) < 1e-6
