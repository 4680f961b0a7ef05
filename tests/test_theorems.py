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
from cases import SAMPLERS
from discretegrad.estimators.gapped import lead_of

EQUAL = 1e-12
"""Largest difference of two sides of an identity, relative to the larger (at least 1)."""
EXPECTED_FAILURES = 1e-6
"""Chance that a right library fails the one Monte Carlo test here, had its seed been random."""

SIZES = (2, 3, 6)
OBJECTIVES = ("linear", "quadratic", "cubic", "exponential")
every_problem = pytest.mark.parametrize(
    ("theta", "f"),
    [
        pytest.param(
            1.5 * torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64),
            oracles.objectives(1, n)[name],
            id=f"{n}-{name}",
        )
        for n in SIZES
        for name in OBJECTIVES
    ],
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


def gradient_of_every_draw(sample_at, theta: Tensor, f) -> Tensor:
    """Row k is the estimator's gradient when category k is drawn."""
    n = len(theta)
    repeated = theta.expand(n, n).clone().requires_grad_()
    value = f(sample_at(repeated, torch.arange(n)).unsqueeze(-2))
    return torch.autograd.grad(value.sum(), repeated)[0]


def mean_over_draws(sample_at, theta: Tensor, f) -> Tensor:
    return theta.softmax(-1) @ gradient_of_every_draw(sample_at, theta, f)


def approximation(theta: Tensor, f, weights: Tensor, order: int) -> Tensor:
    """sum_i sum_j w_j (approximate f(I_i) - f(I_j)) d pi_i / d theta.

    Order 1 is forward Euler, order 2 is Heun's method.
    """
    corners = torch.eye(len(theta), dtype=theta.dtype)
    slopes, derivative = slopes_of(theta, f), softmax_derivative(theta)
    total = torch.zeros_like(theta)
    for i in range(len(theta)):
        for j in range(len(theta)):
            slope = slopes[j] if order == 1 else (slopes[i] + slopes[j]) / 2
            total += weights[j] * (slope @ (corners[i] - corners[j])) * derivative[i]
    return total


@every_problem
def test_theorem_3_1_straight_through_is_the_first_order_approximation(theta, f):
    expected = mean_over_draws(discretegrad.straight_through_at, theta, f)
    assert_equal(expected, approximation(theta, f, theta.softmax(-1), order=1))


@every_problem
def test_theorem_3_2_reinmax_is_the_second_order_approximation(theta, f):
    expected = mean_over_draws(discretegrad.reinmax_at, theta, f)
    assert_equal(expected, approximation(theta, f, theta.softmax(-1), order=2))


@every_problem
def test_remark_4_1_weighted_straight_through_has_another_baseline(theta, f):
    phi = torch.linspace(1, 2, len(theta), dtype=theta.dtype)
    phi = phi / phi.sum()
    # the expectation over D of phi_D / pi_D times the gradient
    gradients = gradient_of_every_draw(discretegrad.straight_through_at, theta, f)
    assert_equal(phi @ gradients, approximation(theta, f, phi, order=1))


@pytest.mark.parametrize("order", [1, 2])
@every_problem
def test_remark_4_1_with_the_plain_mean_is_mean_baseline(theta, f, order):
    expected = mean_over_draws(partial(discretegrad.mean_baseline_at, order=order), theta, f)
    phi = torch.full_like(theta, 1 / len(theta))
    assert_equal(expected, approximation(theta, f, phi, order=order))


@every_problem
def test_remark_4_2_reinmax_needs_no_baseline(theta, f):
    pi, slopes = theta.softmax(-1), slopes_of(theta, f)
    corners = torch.eye(len(theta), dtype=theta.dtype)
    without_baseline = torch.stack(
        [
            pi[k]
            * sum(
                pi[i] * ((slopes[i] + slopes[k]) / 2) @ (corners[k] - corners[i])
                for i in range(len(theta))
            )
            for k in range(len(theta))
        ]
    )
    assert_equal(mean_over_draws(discretegrad.reinmax_at, theta, f), without_baseline)


@every_problem
def test_reinmax_is_the_average_of_straight_through_and_darn_for_every_draw(theta, f):
    pi, slopes = theta.softmax(-1), slopes_of(theta, f)
    centred_draws = torch.eye(len(theta), dtype=theta.dtype) - pi
    straight_through = slopes @ softmax_derivative(theta)
    darn = (slopes * centred_draws).sum(-1, keepdim=True) * centred_draws
    ours = gradient_of_every_draw(discretegrad.reinmax_at, theta, f)
    assert_equal(ours, (straight_through + darn) / 2)


@every_problem
def test_reinmax_tends_to_a_formula_with_uniform_weights_as_tau_grows(theta, f):
    n, pi, slopes = len(theta), theta.softmax(-1), slopes_of(theta, f)
    weight = 1 / n + torch.eye(n, dtype=theta.dtype)
    level = (slopes.mean(-1) + slopes.diagonal()).unsqueeze(-1) / 2
    limit = weight * (slopes - level) - slopes @ softmax_derivative(theta) / 2
    at = partial(discretegrad.reinmax_at, tau=1e14)
    assert_equal(gradient_of_every_draw(at, theta, f), limit)
    assert_equal(limit.sum(-1), torch.zeros_like(pi))


@every_problem
def test_reinmax_tends_to_the_likeliest_category_as_tau_falls(theta, f):
    n, slopes = len(theta), slopes_of(theta, f)
    middle = (torch.eye(n, dtype=theta.dtype) + torch.eye(n, dtype=theta.dtype)[theta.argmax()]) / 2
    limit = 2 * middle * (slopes - (middle * slopes).sum(-1, keepdim=True))
    limit = limit - slopes @ softmax_derivative(theta) / 2
    at = partial(discretegrad.reinmax_at, tau=1e-4)
    assert_equal(gradient_of_every_draw(at, theta, f), limit)


@every_problem
def test_straight_through_vanishes_like_one_over_tau(theta, f):
    slopes = slopes_of(theta, f)
    tau = 1e14
    at = partial(discretegrad.straight_through_at, tau=tau)
    limit = (slopes - slopes.mean(-1, keepdim=True)) / len(theta)
    assert_equal(tau * gradient_of_every_draw(at, theta, f), limit)


@pytest.mark.parametrize("logit", [-3.0, -0.5, 0.0, 2.0])
def test_bernoulli_reinmax_is_half_the_slope_times_the_probability_of_the_other_value(logit):
    slopes = torch.tensor([1.3, -0.7], dtype=torch.float64)  # f'(0) and f'(1)
    logits = torch.full((2,), logit, dtype=torch.float64).requires_grad_()
    sample = discretegrad.bernoulli.reinmax_at(logits, torch.tensor([0, 1]))
    gradient = torch.autograd.grad((sample * slopes).sum(), logits)[0]
    prob_of_one = 1 / (1 + math.exp(-logit))
    other = torch.tensor([prob_of_one, 1 - prob_of_one], dtype=torch.float64)
    assert_equal(gradient, slopes * other / 2)


@pytest.mark.parametrize("order", [1, 2])
def test_bernoulli_mean_baseline_of_either_order_is_reinmax(order):
    logits = torch.linspace(-6, 6, 25, dtype=torch.float64).requires_grad_()
    for value in (0, 1):
        draw = torch.full((25,), value)
        gradients = [
            torch.autograd.grad(sample.sum(), logits)[0]
            for sample in (
                discretegrad.bernoulli.mean_baseline_at(logits, draw, order=order),
                discretegrad.bernoulli.reinmax_at(logits, draw),
            )
        ]
        assert_equal(*gradients)


@pytest.mark.parametrize("tau", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_gumbel_rao_with_one_draw_is_gumbel_softmax(family, tau):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64).requires_grad_()
    noise = torch.empty(50, 4, dtype=torch.float64).exponential_(generator=generator)
    draw = torch.arange(50) % 4
    if family == "bernoulli":
        noise, draw = noise.log(), torch.arange(200).reshape(50, 4) % 2
    g = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    one_draw = SAMPLERS["gumbel_rao"].functions_at[family](logits, draw, noise[None], tau)
    softmax = SAMPLERS["gumbel_softmax"].functions_at[family](logits, draw, noise, tau)
    assert torch.equal(one_draw, softmax)
    assert_equal(*[torch.autograd.grad((z * g).sum(), logits)[0] for z in (one_draw, softmax)])


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
@pytest.mark.parametrize("logit", [-2.5, 0.0, 1.2])
def test_gumbel_rao_of_two_categories_tends_to_reinmax(logit, family):
    """By quadrature over the noise, given each draw; the error falls with tau."""
    nodes, weights = oracles.logistic_quadrature()
    for value in (0, 1):
        errors = []
        for tau in (0.1, 0.01, 0.001):
            rao, limit = slopes_at_nodes(family, logit, value, nodes, tau)
            errors.append(abs((weights * rao).sum().item() - limit))
        assert errors[0] < 0.1
        for larger, smaller in itertools.pairwise(errors):
            assert smaller < larger / 8 + 1e-9


def slopes_at_nodes(family: str, logit: float, value: int, nodes: Tensor, tau: float):
    """d sample / d logit of Gumbel-Rao for each noise, and of ReinMax."""
    logits = torch.full_like(nodes, logit).requires_grad_()
    draw = torch.full(nodes.shape, value)
    if family == "bernoulli":
        rao = discretegrad.bernoulli.gumbel_rao_at(logits, draw, nodes[None], tau)
        limit = discretegrad.bernoulli.reinmax_at(logits, draw)
    else:
        pair, index = torch.stack([logits, torch.zeros_like(nodes)], -1), 1 - draw
        drawn = torch.nn.functional.one_hot(index, 2).bool()
        noise = torch.where(drawn, 1.0, nodes.exp().unsqueeze(-1))
        rao = discretegrad.gumbel_rao_at(pair, index, noise[None], tau)[:, 0]
        limit = discretegrad.reinmax_at(pair, index)[:, 0]
    gradients = [torch.autograd.grad(z.sum(), logits)[0] for z in (rao, limit)]
    return gradients[0], gradients[1][0].item()


def test_gumbel_rao_of_four_categories_tends_to_reinmax():
    """Monte Carlo over the noise given each draw, within the noise and a bias of order tau."""
    theta = torch.tensor([0.5, -1.0, 0.0, 1.2], dtype=torch.float64)
    g = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
    draws, n = 400_000, len(theta)
    quantile = -NormalDist().inv_cdf(EXPECTED_FAILURES / (2 * 2 * n * n))
    generator = torch.Generator().manual_seed(0)
    for tau in (0.1, 0.01):
        for k in range(n):
            noise = torch.empty(draws, n, dtype=torch.float64).exponential_(generator=generator)
            logits = theta.expand(draws, n).clone().requires_grad_()
            index = torch.full((draws,), k)
            rao = discretegrad.gumbel_rao_at(logits, index, noise[None], tau)
            gradients = torch.autograd.grad((rao * g).sum(), logits)[0]
            attached = theta.clone().requires_grad_()
            limit = discretegrad.reinmax_at(attached, torch.tensor(k))
            limit = torch.autograd.grad((limit * g).sum(), attached)[0]
            noise_level = gradients.std(0) / math.sqrt(draws)
            error = (gradients.mean(0) - limit).abs()
            assert (error <= quantile * noise_level + tau / 2).all()


VARIANTS = [
    pytest.param(name, options, id="-".join([name, *map(str, options.values())]))
    for name, options in [
        *((name, {}) for name in SAMPLERS),
        ("gumbel_softmax", {"hard": False}),
        ("gapped", {"gap": "p"}),
        ("mean_baseline", {"order": 1}),
        ("mean_baseline", {"as_released": True}),
    ]
]


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.5])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_adding_a_constant_to_a_row_changes_nothing(name, options, tau):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    noise = torch.empty(3, 20, 5, dtype=torch.float64).exponential_(generator=generator)
    g = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    index = torch.arange(20) % 5
    shifts = torch.linspace(-30, 30, 20, dtype=torch.float64).unsqueeze(-1)

    def sample_and_gradient(theta):
        theta = theta.clone().requires_grad_()
        row = SAMPLERS[name]
        z = oracles.library_sample(row, "categorical", theta, index, noise, tau, **options)
        return torch.stack([z.detach(), torch.autograd.grad((z * g).sum(), theta)[0]])

    assert_equal(sample_and_gradient(logits + shifts), sample_and_gradient(logits))


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_every_sampler_draws_the_same_from_the_same_generator_state(family):
    logits = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
    samples = [
        row.functions[family](logits, generator=torch.Generator().manual_seed(1))
        for row in SAMPLERS.values()
    ]
    assert all(torch.equal(sample, samples[0]) for sample in samples)


def test_the_gap_of_gst_p_is_the_expected_lead_of_the_largest_perturbed_logit():
    # all other categories together act as one of probability 1 - p, behind which the drawn one
    # leads by log(1 + e^L / (1 - p)) with logistic noise L
    nodes, weights = oracles.logistic_quadrature()
    for prob in (1e-6, 0.1, 0.5, 0.9, 0.999):
        lead = (weights * torch.log1p(nodes.exp() / (1 - prob))).sum().item()
        # the released code shrinks p by 1e-5, which moves the gap by no more than this
        ours = lead_of(torch.tensor(prob, dtype=torch.float64)).item()
        assert abs(ours - lead) < 2e-5 / (1 - prob)
    ends = lead_of(torch.tensor([1e-12, 1.0], dtype=torch.float64))
    assert ends[0].item() == pytest.approx(1.0, abs=1e-9)
    assert ends[1].item() == pytest.approx(11.5, abs=0.05)


@pytest.mark.parametrize("order", [1, 2])
def test_mean_baseline_is_far_noisier_than_reinmax_where_categories_are_unlikely(order):
    generator = torch.Generator().manual_seed(0)
    theta = 4 * torch.randn(30, generator=generator, dtype=torch.float64)
    f, pi = oracles.objectives(1, 30)["quadratic"], theta.softmax(-1)

    def variance(sample_at):
        gradients = gradient_of_every_draw(sample_at, theta, f)
        return (pi @ (gradients - pi @ gradients).square()).sum().item()

    noisy = variance(partial(discretegrad.mean_baseline_at, order=order))
    assert noisy > 50 * variance(discretegrad.reinmax_at)


def test_mean_baseline_as_released_has_rows_that_do_not_sum_to_zero():
    theta = torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64)
    f = oracles.objectives(1, 3)["linear"]
    at = partial(discretegrad.mean_baseline_at, as_released=True)
    assert gradient_of_every_draw(at, theta, f).sum(-1).abs().min() > 0.01


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_relaxed_sample_is_twice_differentiable_also_in_tau(family):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, generator=generator, dtype=torch.float64).requires_grad_()
    noise = torch.empty(2, 3, dtype=torch.float64).exponential_(generator=generator)
    draw = torch.tensor([2, 0]) if family == "categorical" else torch.tensor([[0, 1, 1], [1, 0, 0]])
    at = SAMPLERS["gumbel_softmax"].functions_at[family]
    tau = torch.tensor([[0.7], [1.3]], dtype=torch.float64).requires_grad_()

    def value(theta, temperature):
        # the library holds the draw and the noise given it fixed: so must finite differences
        gumbel = fixed_noise(family, logits.detach(), draw, noise)
        if family == "categorical":
            return ((theta + gumbel) / temperature).softmax(-1)
        return torch.sigmoid((theta + gumbel) / temperature)

    sample, oracle = at(logits, draw, noise, tau, hard=False), value(logits, tau)
    assert_equal(sample, oracle)
    g = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    first = [
        torch.autograd.grad((z.pow(2) * g).sum(), (logits, tau), create_graph=True)
        for z in (sample, oracle)
    ]
    second = [torch.autograd.grad(a.pow(2).sum() + b.pow(2).sum(), (logits, tau)) for a, b in first]
    for ours, theirs in zip(first[0] + second[0], first[1] + second[1], strict=True):
        assert_equal(ours.detach(), theirs.detach())


def fixed_noise(family: str, theta: Tensor, draw: Tensor, noise: Tensor) -> Tensor:
    """The raw noise that the draw and the noise given it stand for."""
    if family == "categorical":
        return oracles.conditional_gumbel(theta, draw, noise)
    pair = torch.stack([theta, torch.zeros_like(theta)], -1)
    index = 1 - draw
    drawn = torch.nn.functional.one_hot(index, 2).bool()
    exponential = torch.where(drawn, 1.0, noise.exp().unsqueeze(-1))
    gumbel = oracles.conditional_gumbel(pair, index, exponential)
    return gumbel[..., 0] - gumbel[..., 1]
