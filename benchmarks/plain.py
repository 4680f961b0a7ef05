"""Without the library: stop-gradient forms as the papers print them, a formula, the paper's VAE."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits


def reinmax_formula(logits: Tensor, g: Tensor, z: Tensor, tau: float) -> Tensor:
    """The gradient ``2 J(m) g - J(p) g / 2`` for the sample z."""
    m = ((logits / tau).softmax(-1) + z) / 2
    return 2 * _jacobian_product(m, g) - _jacobian_product(logits.softmax(-1), g) / 2


def _jacobian_product(q: Tensor, g: Tensor) -> Tensor:
    return q * g - q * (q * g).sum(-1, keepdim=True)


def drawn(theta: Tensor) -> Tensor:
    probs = theta.softmax(-1)
    index = torch.multinomial(probs.flatten(0, -2), 1).view(*theta.shape[:-1], 1)
    return torch.zeros_like(probs).scatter_(-1, index, 1.0)


def replaced(value: Tensor, surrogate: Tensor) -> Tensor:
    """The value of one with the gradient of the other."""
    return surrogate - surrogate.detach() + value


def straight_through(theta: Tensor, tau: float = 1.0) -> Tensor:
    return replaced(drawn(theta), (theta / tau).softmax(-1))


def reinmax(theta: Tensor, tau: float = 1.0) -> Tensor:
    sample = drawn(theta)
    pi_1 = (sample + (theta / tau).softmax(-1)) / 2
    pi_1 = ((pi_1.log() - theta).detach() + theta).softmax(-1)
    return replaced(sample, 2 * pi_1 - theta.softmax(-1) / 2)


def gapped(theta: Tensor, tau: float = 1.0) -> Tensor:
    sample, fixed = drawn(theta), theta.detach()
    largest = fixed.max(-1, keepdim=True).values
    up = (largest - fixed) * sample
    down = (fixed - largest + 1.0).clamp(min=0) * (1 - sample)
    return replaced(sample, ((theta + up - down) / tau).softmax(-1))


def gumbel_rao(theta: Tensor, tau: float = 1.0, num_draws: int = 1000) -> Tensor:
    """All draws at once: Gumbel noise given that the sample is the largest."""
    sample, fixed = drawn(theta), theta.detach()
    exponential = theta.new_empty(num_draws, *theta.shape).exponential_()
    own = (exponential * sample).sum(-1, keepdim=True) / fixed.exp().sum(-1, keepdim=True)
    others = -torch.log(exponential * torch.exp(-fixed) + own)
    noise = torch.where(sample.bool(), -torch.log(own), others) - fixed
    return replaced(sample, ((theta + noise) / tau).softmax(-1).mean(0))


def bernoulli_gumbel_rao(theta: Tensor, tau: float = 1.0, num_draws: int = 1000) -> Tensor:
    """All draws at once: logistic noise given the sign that it leads to."""
    prob = torch.sigmoid(theta.detach())
    sample = torch.bernoulli(prob)
    uniform = torch.rand(num_draws, *theta.shape, device=theta.device, dtype=theta.dtype)
    uniform = torch.where(sample.bool(), 1 - prob + prob * uniform, (1 - prob) * uniform)
    noise = torch.logit(uniform, eps=1e-6)
    return replaced(sample, torch.sigmoid((theta + noise) / tau).mean(0))


def coders(
    widths: Sequence[int], slope: float | None = None
) -> tuple[nn.Sequential, nn.Sequential]:
    """An encoder with layers of these widths, and a decoder that has them in reverse."""
    active = nn.ReLU() if slope is None else nn.LeakyReLU(slope)
    encoder, decoder = (
        nn.Sequential(*[x for i, o in pairs for x in (nn.Linear(i, o), active)][:-1])
        for pairs in (itertools.pairwise(widths), itertools.pairwise(widths[::-1]))
    )
    return encoder, decoder


def negative_elbo(
    encoder: nn.Module,
    decoder: nn.Module,
    images: Tensor,
    sample: Callable[[Tensor], Tensor],
    categories: int,
) -> Tensor:
    """The mean over images, with one sample of the code for each and a uniform prior."""
    logits = encoder(images).unflatten(-1, (-1, categories))
    pixels = decoder(sample(logits).flatten(-2))
    reconstruction = binary_cross_entropy_with_logits(pixels, images, reduction="sum")
    q = logits.softmax(-1)
    divergence = (q * torch.log(q + 1e-10)).sum()
    return (reconstruction + divergence) / len(images) + logits.shape[-2] * math.log(categories)
