"""Second derivations of every estimator, objectives to try them on, and exact enumeration.

Nothing here shares code with the library. The estimators are written in stop-gradient form, as
the papers print them, with the draw given. They need finite logits: for masks, drop the excluded
categories first.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

FLOAT64 = torch.float64


def one_thread() -> Iterator[None]:
    """A fixture: for tensors as small as here threads cost time, on a busy machine fourfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stop_gradient(x: Tensor) -> Tensor:
    return x.detach()


def straight_through(theta: Tensor, index: Tensor, tau=1.0) -> Tensor:
    """Algorithm 1 of Liu et al. 2023."""
    sample = _one_hot(theta, index)
    pi_1 = (theta / tau).softmax(-1)
    return pi_1 - stop_gradient(pi_1) + sample


def reinmax(theta: Tensor, index: Tensor, tau=1.0) -> Tensor:
    """Algorithm 2 of Liu et al. 2023."""
    pi_0 = theta.softmax(-1)
    sample = _one_hot(theta, index)
    pi_1 = (sample + (theta / tau).softmax(-1)) / 2
    pi_1 = (stop_gradient(pi_1.log() - theta) + theta).softmax(-1)
    pi_2 = 2 * pi_1 - pi_0 / 2
    return pi_2 - stop_gradient(pi_2) + sample


def blend(theta: Tensor, index: Tensor, tau=1.0, weight=0.5) -> Tensor:
    """Both samples have the same value, so their mixture mixes their gradients."""
    first, second = straight_through(theta, index, tau), reinmax(theta, index, tau)
    return (1 - weight) * first + weight * second


def gapped(theta: Tensor, index: Tensor, tau=1.0, gap=1.0) -> Tensor:
    """GST: two constant moves make the drawn logit the largest and keep the others below it."""
    fixed = stop_gradient(theta)
    sample = _one_hot(theta, index)
    largest = fixed.max(-1, keepdim=True).values
    if gap == "p":
        drawn = (fixed.softmax(-1) * sample).sum(-1, keepdim=True) * (1 - 1e-5)
        gap = -torch.log1p(-drawn) / drawn
    move_1 = (largest - fixed) * sample
    move_2 = (fixed - largest + gap).clamp(min=0) * (1 - sample)
    relaxed = ((theta + move_1 - move_2) / tau).softmax(-1)
    return relaxed - stop_gradient(relaxed) + sample


def gumbel_softmax(theta: Tensor, gumbel: Tensor, tau=1.0) -> tuple[Tensor, Tensor]:
    """Straight-through Gumbel-softmax from raw Gumbel noise: the hard and the relaxed sample."""
    perturbed = theta + stop_gradient(gumbel)
    relaxed = (perturbed / tau).softmax(-1)
    sample = _one_hot(theta, perturbed.argmax(-1))
    return relaxed - stop_gradient(relaxed) + sample, relaxed


def conditional_gumbel(theta: Tensor, index: Tensor, exponential: Tensor) -> Tensor:
    """Gumbel noise given that ``index`` is the argmax of theta + G, in the raw form of exp(theta).

    ``exponential`` may have draws in front.
    """
    theta = stop_gradient(theta)
    sample = _one_hot(theta, index)
    total = theta.exp().sum(-1, keepdim=True)
    drawn = (exponential * sample).sum(-1, keepdim=True)
    largest = -torch.log(drawn / total)
    others = -torch.log(exponential * torch.exp(-theta) + drawn / total)
    return torch.where(sample.bool(), largest, others) - theta


def gumbel_rao(theta: Tensor, index: Tensor, exponential: Tensor, tau=1.0) -> Tensor:
    """Gumbel-Rao with K draws, ``exponential`` of shape (K, *theta.shape)."""
    sample = _one_hot(theta, index)
    gumbel = conditional_gumbel(theta, index, exponential)
    relaxed = ((theta + gumbel) / tau).softmax(-1).mean(0)
    return relaxed - stop_gradient(relaxed) + sample


def mean_baseline(theta: Tensor, index: Tensor, tau=1.0, order=2, as_released=False) -> Tensor:
    """The 1/n baseline: order 1 scales straight-through, order 2 averages it with a score term.

    The gradient of log pi_k is D - pi, so weighting it with D - 1/n gives the score term
    (g_k - mean g)(D - pi).
    """
    n = theta.shape[-1]
    pi = theta.softmax(-1)
    sample = _one_hot(theta, index)
    tempered = (stop_gradient(theta / tau).softmax(-1) * sample).sum(-1, keepdim=True)
    if order == 1:
        surrogate = pi / (n * tempered)
        return surrogate - stop_gradient(surrogate) + sample
    score = (sample - 1 / n) * (theta.log_softmax(-1) * sample).sum(-1, keepdim=True)
    if as_released:
        # the released kernel multiplies diag(pi) by the sample, so no softmax has this Jacobian
        fixed = stop_gradient(pi)
        jacobian = torch.diag_embed(fixed * sample) - fixed.unsqueeze(-1) * fixed.unsqueeze(-2)
        first_order = (jacobian @ theta.unsqueeze(-1)).squeeze(-1) / (n * tempered + 1e-12)
    else:
        first_order = pi / (n * tempered)
    surrogate = (score + first_order) / 2
    return surrogate - stop_gradient(surrogate) + sample


def sample(name: str, theta: Tensor, index: Tensor, exponential: Tensor, tau=1.0, **options):
    """The oracle of the estimator ``name``; those without noise ignore ``exponential``.

    ``exponential`` has shape (K, *theta.shape); Gumbel-softmax uses the first draw.
    """
    if name == "gumbel_rao":
        return gumbel_rao(theta, index, exponential, tau)
    if name == "gumbel_softmax":
        gumbel = conditional_gumbel(theta, index, exponential[0])
        hard, relaxed = gumbel_softmax(theta, gumbel, tau)
        return hard if options.get("hard", True) else relaxed
    without_noise = {
        "straight_through": straight_through,
        "reinmax": reinmax,
        "blend": blend,
        "gapped": gapped,
        "mean_baseline": mean_baseline,
    }
    return without_noise[name](theta, index, tau, **options)


def bernoulli_sample(name: str, theta: Tensor, value: Tensor, logistic: Tensor, tau=1.0, **options):
    """The oracle on the two categories (theta, 0), where the first stands for the value 1."""
    pair = torch.stack([theta, torch.zeros_like(theta)], -1)
    # nothing feels a shift of both, and it keeps exp in range
    pair = pair - stop_gradient(pair).max(-1, keepdim=True).values
    index = 1 - value.long()
    # logistic noise is the log-ratio of the exponentials of the other and of the drawn value
    drawn = _one_hot(pair, index).bool()
    exponential = torch.where(drawn, 1.0, logistic.unsqueeze(-1).exp())
    tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
    return sample(name, pair, index, exponential, tau, **options)[..., 0]


def oracle_sample(case, logits, draw, noise, tau=1.0) -> Tensor:
    """The oracle of a case; ``noise`` has draws in front."""
    oracle = sample if case.categorical else bernoulli_sample
    return oracle(case.row.name, logits, draw, noise, tau, **case.options)


def library_sample(case, logits, draw, noise, tau=1.0, **arguments) -> Tensor:
    """The library's sampler at a given draw; ``noise`` has draws in front."""
    if "noise" in case.row.takes:
        arguments["noise"] = noise if "num_draws" in case.row.options else noise[0]
    return case.sample(logits, tau, given=draw, **arguments)


def _one_hot(theta: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(index, theta.shape[-1]).to(theta.dtype)


class Objective:
    """A function of several variables with fixed random coefficients: one value per batch element.

    Of categorical variables (..., L, n), or without ``categories`` of zeros and ones (..., L).
    Degree 1 is linear in each variable, degree 2 quadratic in each, both with terms across
    variables; degree 3 is cubic; an infinite degree is exponential.
    """

    def __init__(
        self,
        name: str,
        degree: float,
        variables: int,
        categories: int | None,
        cross_terms: bool = True,
    ) -> None:
        self.name, self.degree, self.cross_terms = name, degree, cross_terms
        self.bits = categories is None
        shape = (variables, categories or 1)
        generator = torch.Generator().manual_seed(1000 + 10 * shape[0] + shape[1])
        self.linear = torch.randn(shape, generator=generator, dtype=FLOAT64)
        self.other = torch.randn(shape, generator=generator, dtype=FLOAT64)
        self.matrix = torch.randn(*shape, shape[1], generator=generator, dtype=FLOAT64)

    def __call__(self, z: Tensor) -> Tensor:
        z = z.unsqueeze(-1) if self.bits else z
        forms = self._form_of_each_variable(z)
        value = forms.sum(-1)
        if self.cross_terms:
            # a product over all variables, and one over neighbours, keep the degree in each
            other = (z * self.other.to(z)).sum(-1)
            value = value + forms.prod(-1) + (forms[..., 1:] * other[..., :-1]).sum(-1)
        return value

    def _form_of_each_variable(self, z: Tensor) -> Tensor:
        linear = (z * self.linear.to(z)).sum(-1)
        if self.degree == 1:
            return linear
        quadratic = linear + torch.einsum("...i,...ij,...j->...", z, self.matrix.to(z), z)
        if self.degree == 2:
            return quadratic
        return quadratic + (linear**3 if self.degree == 3 else linear.exp())


def objectives(variables: int, categories: int | None) -> dict[str, Objective]:
    """The ladder of objectives: each rung contains what the one below cannot express."""
    size = (variables, categories)
    ladder = [
        Objective("linear", 1, *size, cross_terms=False),
        Objective("multilinear", 1, *size),
        Objective("quadratic", 2, *size),
        Objective("cubic", 3, *size),
        Objective("exponential", math.inf, *size),
    ]
    return {f.name: f for f in ladder}


def joint_outcomes(variables: int, states: int) -> Tensor:
    """Every joint outcome, (states ** variables, variables)."""
    return torch.tensor(list(itertools.product(range(states), repeat=variables)))


def expected_gradient(
    sample_at: Callable[[Tensor, Tensor], Tensor],
    logits: Tensor,
    f: Callable[[Tensor], Tensor],
    family: str = "categorical",
) -> Tensor:
    """E of a noise-free estimator's gradient, summed over every joint outcome.

    ``sample_at(logits, draw)`` gets the logits repeated for every outcome.
    """
    if family == "categorical":
        variables, states = logits.shape
        outcomes = joint_outcomes(variables, states)
        probs = logits.softmax(-1)[torch.arange(variables), outcomes].prod(-1)
    else:
        outcomes = joint_outcomes(logits.shape[0], 2)
        prob_of_one = torch.sigmoid(logits)
        probs = torch.where(outcomes == 1, prob_of_one, 1 - prob_of_one).prod(-1)
    repeated = logits.detach().expand(len(outcomes), *logits.shape).clone().requires_grad_()
    values = f(sample_at(repeated, outcomes))
    gradient = torch.autograd.grad(values.sum(), repeated)[0]
    return (probs.reshape(-1, *[1] * logits.ndim) * gradient).sum(0)


def gradient_at_sample(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """df/dz at z."""
    z = z.detach().requires_grad_()
    return torch.autograd.grad(f(z).sum(), z)[0]


def logistic_quadrature() -> tuple[Tensor, Tensor]:
    """Nodes and weights for expectations over standard logistic noise, exact to rounding.

    The tails beyond 45 hold e^-45 of the mass each.
    """
    x, weights = gauss_legendre(-45.0, 45.0, 90)
    return x, weights * torch.sigmoid(x) * torch.sigmoid(-x)


def gauss_legendre(low: float, high: float, panels: int) -> tuple[Tensor, Tensor]:
    """Composite Gauss-Legendre nodes and weights with 20 points a panel."""
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(20))
    half = (high - low) / panels / 2
    middle = low + half * (2 * torch.arange(panels, dtype=FLOAT64).unsqueeze(-1) + 1)
    return (middle + half * nodes).flatten(), (half * weights).expand(panels, -1).flatten()
