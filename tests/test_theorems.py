"""The theorems and remarks of the ReinMax paper, and the claims of our docstrings, in float64.

The right-hand sides are written from the paper's definitions; the left-hand sides are the
library's gradients, summed over every draw. Numbers refer to Liu et al., arXiv:2304.08612.
"""

import itertools
import math
from functools import partial
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

import discretegrad
import oracles
from cases import CATEGORICAL, RELAXED, SAMPLERS, any_tau, each, each_family
from discretegrad import mean_baseline, reinmax, straight_through
from discretegrad.testing import Case, gradient, normal, seeded

EQUAL = 1e-12
"""Largest difference of two sides of an identity, relative to the larger (at least 1)."""
EXPECTED_FAILURES = 1e-6
"""Chance that a right library fails the one Monte Carlo test here, had its seed been random."""

SIZES = (2, 3, 6)
OBJECTIVES = ("linear", "quadratic", "cubic", "exponential")
every_problem = pytest.mark.parametrize(
    ("theta", "f"),
    [(1.5 * normal(n, seed=n), oracles.objectives(1, n)[f]) for n in SIZES for f in OBJECTIVES],
)

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def assert_equal(left: Tensor, right: Tensor) -> None:
    scale = max(1.0, right.abs().max().item())
    assert (left - right).abs().max().item() <= EQUAL * scale


def slopes_of(theta: Tensor, f) -> Tensor:
    """Row j is the gradient of f at the j-th one-hot vector."""
    corners = torch.eye(len(theta), dtype=theta.dtype)
    return oracles.gradient_at_sample(lambda z: f(z.unsqueeze(-2)), corners)


def softmax_derivative(theta: Tensor) -> Tensor:
    """Row i is d pi_i / d theta."""
    pi = theta.softmax(-1)
    return torch.diag(pi) - torch.outer(pi, pi)


def gradient_of_every_draw(sampler, theta: Tensor, f) -> Tensor:
    """Row k is the estimator's gradient when category k is drawn."""
    n = len(theta)
    repeated = theta.expand(n, n).clone().requires_grad_()
    value = f(sampler(repeated, given=torch.arange(n)).unsqueeze(-2))
    return torch.autograd.grad(value.sum(), repeated)[0]


def mean_over_draws(sampler, theta: Tensor, f) -> Tensor:
    return theta.softmax(-1) @ gradient_of_every_draw(sampler, theta, f)


def approximation(theta: Tensor, f, weights: Tensor, order: int) -> Tensor:
    """sum_i sum_j w_j (approximate f(I_i) - f(I_j)) d pi_i / d theta.

    Order 1 is forward Euler, order 2 is Heun's method.
    """
    corners = torch.eye(len(theta), dtype=theta.dtype)
    slopes, derivative = slopes_of(theta, f), softmax_derivative(theta)
    total = torch.zeros_like(theta)
    for i, j in itertools.product(range(len(theta)), repeat=2):
        slope = slopes[j] if order == 1 else (slopes[i] + slopes[j]) / 2
        total += weights[j] * (slope @ (corners[i] - corners[j])) * derivative[i]
    return total


@every_problem
def test_theorem_3_1_straight_through_is_the_first_order_approximation(theta, f):
    expected = mean_over_draws(straight_through, theta, f)
    assert_equal(expected, approximation(theta, f, theta.softmax(-1), order=1))


@every_problem
def test_theorem_3_2_reinmax_is_the_second_order_approximation(theta, f):
    expected = mean_over_draws(reinmax, theta, f)
    assert_equal(expected, approximation(theta, f, theta.softmax(-1), order=2))


@every_problem
def test_remark_4_1_weighted_straight_through_has_another_baseline(theta, f):
    phi = torch.linspace(1, 2, len(theta), dtype=theta.dtype)
    phi = phi / phi.sum()
    # the expectation over D of phi_D / pi_D times the gradient
    gradients = gradient_of_every_draw(straight_through, theta, f)
    assert_equal(phi @ gradients, approximation(theta, f, phi, order=1))


@pytest.mark.parametrize("order", [1, 2])
@every_problem
def test_remark_4_1_with_the_plain_mean_is_mean_baseline(theta, f, order):
    expected = mean_over_draws(partial(mean_baseline, order=order), theta, f)
    phi = torch.full_like(theta, 1 / len(theta))
    assert_equal(expected, approximation(theta, f, phi, order=order))


@every_problem
def test_remark_4_2_reinmax_needs_no_baseline(theta, f):
    pi, slopes = theta.softmax(-1), slopes_of(theta, f)
    corners = torch.eye(len(theta), dtype=theta.dtype)
    without_baseline = torch.zeros_like(theta)
    for i, k in itertools.product(range(len(theta)), repeat=2):
        slope = (slopes[i] + slopes[k]) / 2
        without_baseline[k] += pi[k] * pi[i] * (slope @ (corners[k] - corners[i]))
    assert_equal(mean_over_draws(reinmax, theta, f), without_baseline)


@every_problem
def test_reinmax_is_the_average_of_straight_through_and_darn_for_every_draw(theta, f):
    pi, slopes = theta.softmax(-1), slopes_of(theta, f)
    centred_draws = torch.eye(len(theta), dtype=theta.dtype) - pi
    straight_through = slopes @ softmax_derivative(theta)
    darn = (slopes * centred_draws).sum(-1, keepdim=True) * centred_draws
    ours = gradient_of_every_draw(reinmax, theta, f)
    assert_equal(ours, (straight_through + darn) / 2)


@every_problem
def test_reinmax_tends_to_a_formula_with_uniform_weights_as_tau_grows(theta, f):
    n, pi, slopes = len(theta), theta.softmax(-1), slopes_of(theta, f)
    weight = 1 / n + torch.eye(n, dtype=theta.dtype)
    level = (slopes.mean(-1) + slopes.diagonal()).unsqueeze(-1) / 2
    limit = weight * (slopes - level) - slopes @ softmax_derivative(theta) / 2
    assert_equal(gradient_of_every_draw(partial(reinmax, tau=1e14), theta, f), limit)
    assert_equal(limit.sum(-1), torch.zeros_like(pi))


@any_tau
@every_problem
def test_reinmax_tends_to_the_likeliest_category_as_tau_falls(theta, f):
    n, slopes = len(theta), slopes_of(theta, f)
    middle = (torch.eye(n, dtype=theta.dtype) + torch.eye(n, dtype=theta.dtype)[theta.argmax()]) / 2
    limit = 2 * middle * (slopes - (middle * slopes).sum(-1, keepdim=True))
    limit = limit - slopes @ softmax_derivative(theta) / 2
    assert_equal(gradient_of_every_draw(partial(reinmax, tau=1e-4), theta, f), limit)


@every_problem
def test_straight_through_vanishes_like_one_over_tau(theta, f):
    slopes, tau = slopes_of(theta, f), 1e14
    limit = (slopes - slopes.mean(-1, keepdim=True)) / len(theta)
    gradients = gradient_of_every_draw(partial(straight_through, tau=tau), theta, f)
    assert_equal(tau * gradients, limit)


def gradient_of_bits(sampler, logits: Tensor, given: Tensor, g: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    sample = sampler(logits, family="bernoulli", given=given)
    return torch.autograd.grad((sample * g).sum(), logits)[0]


BITS = torch.linspace(-6, 6, 25, dtype=torch.float64)


@pytest.mark.parametrize("value", [0, 1])
def test_bernoulli_reinmax_is_half_the_slope_times_the_probability_of_the_other_value(value):
    given, g = torch.full((25,), value), normal(25)
    other = torch.sigmoid(-BITS if value == 1 else BITS)
    ours = gradient_of_bits(reinmax, BITS, given, g)
    assert_equal(ours, g * other / 2)
    for order in (1, 2):
        of_either_order = gradient_of_bits(partial(mean_baseline, order=order), BITS, given, g)
        assert_equal(of_either_order, ours)


@each_family
def test_gumbel_rao_with_one_draw_is_gumbel_softmax(family):
    softmax = Case(SAMPLERS["gumbel_softmax"], family)
    rao = Case(SAMPLERS["gumbel_rao"], family, {"num_draws": 1})
    logits = normal(50, 4).requires_grad_()
    given, noise = softmax.draw(logits).values()
    for tau in (0.1, 1.0, 2.0):
        samples = (
            softmax.sample(logits, tau, given=given, noise=noise),
            rao.sample(logits, tau, given=given, noise=noise[None]),
        )
        assert_equal(*[gradient(sample, logits) for sample in samples])


# two categories are the same as a bit, which test_exactness shows
@pytest.mark.parametrize("logit", [-2.5, 0.0, 1.2])
def test_gumbel_rao_of_bits_tends_to_reinmax(logit):
    """By quadrature over the noise, given each draw; the error falls with tau."""
    nodes, weights = oracles.logistic_quadrature()
    logits = torch.full_like(nodes, logit)
    for value in (0, 1):
        given, ones = torch.full(nodes.shape, value), torch.ones_like(nodes)
        limit = gradient_of_bits(reinmax, logits, given, ones)[0]
        errors = []
        for tau in (0.1, 0.01, 0.001):
            rao = partial(discretegrad.gumbel_rao, tau=tau, noise=nodes[None])
            slopes = gradient_of_bits(rao, logits, given, ones)
            errors.append(abs((weights * slopes).sum() - limit).item())
        assert errors[0] < 0.1
        for larger, smaller in itertools.pairwise(errors):
            assert smaller < larger / 8 + 1e-9


def test_gumbel_rao_of_four_categories_tends_to_reinmax():
    """Monte Carlo over the noise given each draw, within the noise and a bias of order tau."""
    theta = torch.tensor([0.5, -1.0, 0.0, 1.2], dtype=torch.float64)
    g = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
    draws, n = 200_000, len(theta)
    quantile = -NormalDist().inv_cdf(EXPECTED_FAILURES / (2 * 2 * n * n))
    generator = torch.Generator().manual_seed(0)
    for tau in (0.1, 0.01):
        for k in range(n):
            noise = torch.empty(draws, n, dtype=torch.float64).exponential_(generator=generator)
            logits = theta.expand(draws, n).clone().requires_grad_()
            index = torch.full((draws,), k)
            rao = discretegrad.gumbel_rao(logits, tau, given=index, noise=noise[None])
            gradients = torch.autograd.grad((rao * g).sum(), logits)[0]
            attached = theta.clone().requires_grad_()
            limit = reinmax(attached, given=torch.tensor(k))
            limit = torch.autograd.grad((limit * g).sum(), attached)[0]
            noise_level = gradients.std(0) / math.sqrt(draws)
            error = (gradients.mean(0) - limit).abs()
            assert (error <= quantile * noise_level + tau / 2).all()


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.5])
@each(CATEGORICAL)
def test_adding_a_constant_to_a_row_changes_nothing(case, tau):
    noise = torch.empty(3, 20, 5, dtype=torch.float64).exponential_(generator=seeded(1))
    g, index = normal(20, 5, seed=2), torch.arange(20) % 5
    shifts = torch.linspace(-30, 30, 20, dtype=torch.float64).unsqueeze(-1)

    def sample_and_gradient(theta):
        z = oracles.library_sample(case, theta.requires_grad_(), index, noise, tau)
        return torch.stack([z.detach(), gradient(z, theta, g)])

    logits = normal(20, 5)
    assert_equal(sample_and_gradient(logits + shifts), sample_and_gradient(logits))


def lead_of(logits: Tensor) -> Tensor:
    """The gap of GST-p for bits that are 1, from its gradient 1 / (2 + 2 cosh(gap))."""
    slope = gradient_of_bits(
        partial(discretegrad.gapped, gap="p"), logits, torch.ones_like(logits), 1
    )
    return torch.acosh(1 / (2 * slope) - 1)


def test_the_gap_of_gst_p_is_the_expected_lead_of_the_largest_perturbed_logit():
    # all other categories together act as one of probability 1 - p, behind which the drawn one
    # leads by log(1 + e^L / (1 - p)) with logistic noise L
    nodes, weights = oracles.logistic_quadrature()
    for prob in (1e-6, 0.1, 0.5, 0.9, 0.999):
        lead = (weights * torch.log1p(nodes.exp() / (1 - prob))).sum().item()
        # the released code shrinks p by 1e-5, which moves the gap by no more than this
        ours = lead_of(torch.tensor(prob, dtype=torch.float64).logit()).item()
        assert abs(ours - lead) < 2e-5 / (1 - prob)
    rare = lead_of(torch.tensor(-30.0, dtype=torch.float64)).item()
    assert rare == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_mean_baseline_is_far_noisier_than_reinmax_where_categories_are_unlikely(order):
    theta = 4 * normal(30)
    f, pi = oracles.objectives(1, 30)["quadratic"], theta.softmax(-1)

    def variance(sampler):
        gradients = gradient_of_every_draw(sampler, theta, f)
        return (pi @ (gradients - pi @ gradients).square()).sum().item()

    noisy = variance(partial(mean_baseline, order=order))
    assert noisy > 50 * variance(reinmax)


@each(RELAXED)
def test_relaxed_sample_is_twice_differentiable_also_in_tau(case):
    logits, g = normal(2, 3).requires_grad_(), normal(2, 3, seed=1)
    tau = torch.tensor([[0.7], [1.3]], dtype=torch.float64).requires_grad_()
    given, noise = case.draw(logits).values()
    temperature = tau if case.categorical else tau.expand(2, 3)
    sample = oracles.library_sample(case, logits, given, noise[None], temperature)
    oracle = oracles.oracle_sample(case, logits, given, noise[None], temperature)
    assert_equal(sample, oracle)
    first = [
        torch.autograd.grad((z.pow(2) * g).sum(), (logits, tau), create_graph=True)
        for z in (sample, oracle)
    ]
    second = [torch.autograd.grad(a.pow(2).sum() + b.pow(2).sum(), (logits, tau)) for a, b in first]
    for ours, theirs in zip(first[0] + second[0], first[1] + second[1], strict=True):
        assert_equal(ours.detach(), theirs.detach())


@each(RELAXED)
@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float64).min], ids=str)
def test_relaxed_sample_of_masked_logits_has_a_gradient_in_tau(case, lowest):
    """The largest number over a small tau is infinite too."""
    logits = torch.tensor([[0.3, -0.2, lowest]], dtype=torch.float64).requires_grad_()
    tau = torch.tensor(0.5, dtype=torch.float64).requires_grad_()
    given, noise = case.draw(logits.detach().clamp(min=-1e3)).values()
    sample = oracles.library_sample(case, logits, given, noise[None], tau)
    for_logits, for_tau = torch.autograd.grad(sample.square().sum(), (logits, tau))
    assert for_logits.isfinite().all()
    assert for_logits[:, :2].any()
    assert for_tau.isfinite()
    assert for_tau != 0
