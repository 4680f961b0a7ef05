"""Every estimator against its second derivation, and its expectation by enumeration, in float64.

No Monte Carlo: expectations are sums over all joint outcomes, or quadrature over the noise.
"""

import math

import pytest
import torch

import discretegrad
import oracles
from cases import CASES, DEFAULTS, FAMILIES, HARD, SAMPLERS, each
from discretegrad.families import Family, Variables
from discretegrad.testing import Case, normal, seeded

SAME = 1e-12
"""Largest difference from the oracle, relative to the largest entry (at least 1)."""
EXACT = 1e-10
"""Largest error of an expected gradient that counts as exact."""
BIASED = 1e-2
"""Smallest relative error of an expected gradient that counts as a bias."""

TAUS = (0.5, 1.0, 1.3, 2.0)
SHAPES = {
    "categorical": ((1,), (2,), (5,), (4, 3), (2, 3, 4), (3, 33), (2, 65)),
    "bernoulli": ((), (6,), (3, 4)),
}
NUM_DRAWS = 7
GAPS = [Case(SAMPLERS["gapped"], family, {"gap": gap}) for gap in (0.0, 2.5) for family in FAMILIES]
EVERY = [*CASES, *GAPS]

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def exponential(*shape, seed=2):
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=seeded(seed))


def problem(case, *shape, draws=NUM_DRAWS):
    """Logits, a draw and noise. Any draw will do: nothing depends on its distribution."""
    logits, noise = (2 * normal(*shape)).requires_grad_(), exponential(draws, *shape)
    if case.categorical:
        return logits, torch.randint(shape[-1], shape[:-1], generator=seeded(1)), noise
    value = torch.rand(shape, generator=seeded(5)) < 0.5
    return logits, value, noise.log() - exponential(draws, *shape, seed=6).log()


def value_and_gradient(sample, logits, g):
    return sample.detach(), torch.autograd.grad((sample * g).sum(), logits)[0]


def assert_same(ours, oracle):
    assert ours.shape == oracle.shape
    scale = max(1.0, oracle.abs().max().item())
    assert torch.isfinite(ours).all()
    assert (ours - oracle).abs().max() <= SAME * scale


def assert_equals_the_oracle(case, tau, logits, draw, noise):
    g = normal(*logits.shape, seed=3)
    ours = oracles.library_sample(case, logits, draw, noise, tau)
    oracle = oracles.oracle_sample(case, logits, draw, noise, tau)
    for mine, theirs in zip(
        value_and_gradient(ours, logits, g), value_and_gradient(oracle, logits, g), strict=True
    ):
        assert_same(mine, theirs)


@each(EVERY)
def test_sample_and_gradient_equal_the_oracle(case):
    for shape in SHAPES[case.family]:
        # and a different temperature for each row
        tau_shape = (*shape[:-1], 1) if case.categorical else shape
        count = math.prod(tau_shape)
        row_taus = 0.5 + 2 * torch.arange(count, dtype=torch.float64) / count
        for tau in (*TAUS, row_taus.reshape(tau_shape)):
            assert_equals_the_oracle(case, tau, *problem(case, *shape))


# the oracle of the released form stores a matrix of n x n
@each([case for case in EVERY if case.categorical and "as_released" not in case.options])
def test_long_rows_equal_the_oracle(case):
    """Rows so long that the library sums them in parts."""
    n = 2**15 + 5
    logits, _, noise = problem(case, n, draws=2)
    for tau in (1.0, 1.3):
        assert_equals_the_oracle(case, tau, logits, torch.tensor(n - 2), noise)


# --- expectations


def several(family):
    """Logits of several variables, and the objectives on them."""
    if family == "categorical":
        return normal(3, 3, seed=7), oracles.objectives(3, 3)
    return normal(4, seed=8), oracles.objectives(4, None)


def expected_gradient(case, logits, f, tau=1.0):
    """Over all joint outcomes, and over the noise where there is."""

    def sample_at(theta, draw):
        return case.sample(theta, tau, given=draw)

    def sample_with_mean_gradient(theta, draw):
        # given the draw, noise changes nothing but the gradient, and that of each variable
        # depends on its own noise alone: one quadrature serves all variables at once
        nodes, weights = (x.reshape(-1, 1, 1) for x in oracles.logistic_quadrature())
        shape = (len(nodes), *draw.shape)
        noise = nodes.expand(1, *shape)
        samples = oracles.library_sample(case, theta.expand(shape), draw.expand(shape), noise, tau)
        mean = (weights * samples).sum(0)
        return mean - mean.detach() + samples[0].detach()

    if case.row.takes:
        assert not case.categorical, "the quadrature is over one noise per variable"
        sample_at = sample_with_mean_gradient
    return oracles.expected_gradient(sample_at, logits, f, case.family)


def relative_bias(case, logits, f, tau=1.0):
    exact = discretegrad.exact_gradient(logits, f, family=case.family)
    error = expected_gradient(case, logits, f, tau) - exact
    return (error.norm() / exact.norm()).item()


EXACT_ON = {
    "nothing": [],
    "linear": ["linear", "multilinear"],
    "quadratic": ["linear", "multilinear", "quadratic"],
}
BIASED_ON = {"nothing": "linear", "linear": "quadratic", "quadratic": "cubic"}


def claim_of(case):
    """The functions for which a case is exact; the registry says so for the default options."""
    if case in DEFAULTS:
        return case.row.exact_for
    if "order" in case.options:
        # with two values this baseline is already of second order
        return "linear" if case.categorical else "quadratic"
    return "nothing"


# with noise only Bernoulli variables can be integrated
@each([case for case in HARD if not (case.categorical and case.row.takes)])
def test_exact_for_what_the_registry_says_and_no_more(case):
    logits, ladder = several(case.family)
    bias = {name: relative_bias(case, logits, f) for name, f in ladder.items()}
    for objective in EXACT_ON[claim_of(case)]:
        assert bias[objective] < EXACT, objective
    assert bias[BIASED_ON[claim_of(case)]] > BIASED
    assert bias["exponential"] > BIASED
    assert not case.row.unbiased
    if case in DEFAULTS and case.row.exact_for != "nothing":
        # another temperature costs exactness even on linear functions
        for tau in (0.5, 1.3, 2.0):
            assert relative_bias(case, logits, ladder["linear"], tau) > BIASED


class Table(Family):
    """A user's own family: the values of a variable are the rows of a table.

    With the values t and the logits l, the probability of a value is proportional to exp(t.l).
    Drawn: the number of the row, (..., 1). Point: the probabilities of the rows.
    """

    name, noise = "table", "none"

    def __init__(self, *values):
        self.values = torch.tensor(values, dtype=torch.float64)

    def check(self, call, *, learnable_tau=False):
        assert call.logits.shape[-1] == self.values.shape[1]

    def prepare(self, call, *, learnable_tau=False):
        self.check(call)
        return Variables(call.logits, self.point(call.logits.detach()), call.tau, call.dim)

    def check_values(self, name, variables):
        pass

    def draw(self, call, variables, count=None):
        return variables.point.multinomial(1, generator=call.generator)

    def accept(self, name, variables, given, count=None):
        return given.unsqueeze(-1)

    def sample(self, logits, drawn):
        return self.values[drawn.squeeze(-1)]

    def restore(self, x, dim):
        return x

    def natural(self, variables):
        return variables.logits.detach()

    def point(self, natural):
        return (natural @ self.values.T).softmax(-1)

    def mean(self, point):
        return point @ self.values

    def covariance(self, point, g, *, centred=False):
        residuals = self.values - self.mean(point).unsqueeze(-2)
        weights = point * (residuals @ g.unsqueeze(-1)).squeeze(-1)
        return (weights.unsqueeze(-1) * residuals).sum(-2)

    def residual(self, drawn, point):
        return self.sample(point, drawn) - self.mean(point)

    def dot(self, x, y):
        return (x * y).sum(-1, keepdim=True)

    def centre(self, g, drawn):
        return g

    def probability(self, drawn, point):
        return point.gather(-1, drawn)

    def unneeded(self, *arguments):
        raise AssertionError("straight_through and reinmax need nothing else")

    draw_noise = seeded_noise = accept_noise = scale = perturbed = relaxed = unneeded
    gradient_given_noise = gradient_given_draw = variables_shape = likeliest = unneeded
    outcomes = outcome = log_prob = other_probability = unneeded


TABLES = {
    "three values": Table([-1.0], [0.0], [1.0]),
    "two bits of which at most one is 1": Table([0.0, 0.0], [0.0, 1.0], [1.0, 0.0]),
    "two of four": Table(
        *(
            [float(i in pair) for i in range(4)]
            for pair in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
        )
    ),
}


@pytest.mark.parametrize("name", [row.name for row in SAMPLERS.values() if row.any_family])
@pytest.mark.parametrize("family", TABLES.values(), ids=TABLES)
def test_estimators_for_any_family_keep_their_order_in_a_family_of_ones_own(name, family):
    count, size = family.values.shape
    linear, matrix, cube = (normal(*[size] * axes, seed=axes) for axes in (1, 2, 1))
    row, theta = SAMPLERS[name], normal(size, seed=20)
    degrees = {
        "linear": lambda z: z @ linear,
        "quadratic": lambda z: z @ linear + ((z @ matrix) * z).sum(-1),
        "cubic": lambda z: z @ linear + (z @ cube + 0.3) ** 3,
    }
    assert row.works_on(family)
    for degree, f in degrees.items():
        logits = theta.clone().requires_grad_()
        probs = (family.values @ logits).softmax(-1)
        (exact,) = torch.autograd.grad(probs @ f(family.values), logits)
        repeated = theta.expand(count, size).clone().requires_grad_()
        sample = row.function(repeated, family=family, given=torch.arange(count))
        assert torch.equal(sample, family.values)
        (gradients,) = torch.autograd.grad(f(sample).sum(), repeated)
        error = (probs.detach() @ gradients - exact).norm() / exact.norm()
        if degree in EXACT_ON[row.exact_for]:
            assert error < EXACT
        if degree == BIASED_ON[row.exact_for]:
            assert error > BIASED
    drawn = row.function(theta.expand(500, size), 1.3, family=family, generator=seeded(1))
    assert len(drawn.unique(dim=0)) == count


@pytest.mark.parametrize("tau", [1.1, 1.3, 1.5, 2.0])
def test_tempered_reinmax_is_biased_on_linear_functions_as_predicted(tau):
    logits, b = normal(5, seed=9), normal(5, seed=10)
    p, q = logits.softmax(-1), (logits / tau).softmax(-1)
    cross = torch.outer(q, q) + torch.outer(q, p) + torch.outer(p, q) - torch.outer(p, p)
    predicted = (torch.diag(q) - cross / 2) @ b
    expected = oracles.expected_gradient(
        lambda theta, index: discretegrad.reinmax(theta, tau, given=index),
        logits.unsqueeze(0),
        lambda z: (z * b).sum((-1, -2)),
    )[0]
    assert (expected - predicted).abs().max() < EXACT
    true = discretegrad.exact_gradient(logits, lambda z: z @ b)
    assert (expected - true).norm() / true.norm() > BIASED


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
@each([case for case in DEFAULTS if case.row.takes])
def test_gumbel_methods_integrate_to_the_raw_relaxation(case, tau):
    """Both families: the noise given the draw, weighted by the draw, is the raw noise."""
    nodes, weights = oracles.logistic_quadrature()
    for logit in (-3.0, -0.4, 0.0, 1.7):
        for value, raw in enumerate(slope_of_gumbel_softmax(logit, tau)):
            prob = 1 / (1 + math.exp(-logit if value == 1 else logit))
            logits = torch.full_like(nodes, logit).requires_grad_()
            draw, noise = torch.full(nodes.shape, value), nodes
            if case.categorical:
                draw = 1 - draw
                drawn = torch.nn.functional.one_hot(draw, 2).bool()
                noise = torch.where(drawn, 1.0, nodes.exp().unsqueeze(-1))
                pair = torch.stack([logits, torch.zeros_like(nodes)], -1)
                sample = oracles.library_sample(case, pair, draw, noise[None], tau)[:, 0]
            else:
                sample = oracles.library_sample(case, logits, draw, noise[None], tau)
            slope = torch.autograd.grad(sample.sum(), logits)[0]
            assert abs(prob * (weights * slope).sum() - raw) < EXACT
