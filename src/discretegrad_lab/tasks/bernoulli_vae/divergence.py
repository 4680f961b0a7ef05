"""How far the posterior of the bits is from the prior, from a sample or as an expectation.

A prior is the logarithms of its masses of 1 and of 0, (members, latents) each.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid, softplus


def sampled_divergence(z: Tensor, logits: Tensor, prior: tuple[Tensor, Tensor]) -> Tensor:
    """log q(z) - log p(z), (samples, members, batch); linear in z, also between 0 and 1."""
    of_one, of_zero = (x.unsqueeze(1) for x in prior)
    constant = -(softplus(logits) + of_zero).sum(-1)
    return (z * (logits - of_one + of_zero)).sum(-1) + constant


def exact_divergence(logits: Tensor, prior: tuple[Tensor, Tensor]) -> Tensor:
    """Its expectation, (members, batch)."""
    of_one, of_zero = (x.unsqueeze(1) for x in prior)
    of_bits = logits.sigmoid() * (logsigmoid(logits) - of_one)
    return (of_bits + (-logits).sigmoid() * (logsigmoid(-logits) - of_zero)).sum(-1)
