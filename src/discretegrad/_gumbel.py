r"""Gumbel noise given the category it selected.

Let $a = l + G$ with Gumbel noise $G$, and k the largest entry, so that k is drawn from
$p = \mathrm{softmax}(l)$. Given k, with standard exponential $E_j$ (Paulus et al. 2021),

$$a_k = \log Z - \log E_k, \qquad a_j = -\log(E_j / e^{l_j} + E_k / Z),$$

which subtracts to $a_j - a_k = -\log(1 + E_j / (E_k\, p_j))
= \log \sigma(\log p_j - \log(E_j / E_k))$. Only these gaps enter a softmax. They lie in [-inf, 0],
so no temperature and no logits make them overflow.

Drawing k first and the noise given k has the distribution of drawing the noise first. It keeps
the frequencies of the categories exact in every dtype, and from the same generator state every
sampler of the library draws the same categories.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ._math import softmax
from ._types import Temperature


def gumbel_gaps(log_probs: Tensor, index: Tensor, noise: Tensor) -> Tensor:
    """How far each perturbed logit lies below that of ``index``, which is the largest.

    Args:
        log_probs: (..., n), log-softmax of the logits.
        index: (..., 1), the categories that were drawn.
        noise: Standard exponential, (..., n) or with draws in front, (K, ..., n).

    Returns:
        The gaps, of the shape of ``noise``, zero at ``index``.
    """
    index = index.expand(*noise.shape[:-1], 1)
    log_ratio = (noise / noise.gather(-1, index)).log()
    return logsigmoid(log_probs - log_ratio).scatter(-1, index, 0.0)


def relaxed_sample(log_probs: Tensor, index: Tensor, noise: Tensor, tau: Temperature) -> Tensor:
    """``softmax((l + G) / tau)`` for Gumbel noise G that selects ``index``."""
    return softmax(gumbel_gaps(log_probs, index, noise) / tau)


def relaxed_bit_logit(logits: Tensor, value: Tensor, noise: Tensor, tau: Temperature) -> Tensor:
    """The same for two categories: the logit of the drawn ``value`` in the relaxed sample.

    The log-ratio of two standard exponentials is standard logistic, so one ``noise`` is enough.
    """
    other = logsigmoid(torch.where(value, -logits, logits))
    return -logsigmoid(other - noise) / tau
