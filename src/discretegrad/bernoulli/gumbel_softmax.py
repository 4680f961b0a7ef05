"""Straight-through Gumbel-softmax for Bernoulli variables (the binary concrete distribution).

Jang et al., "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017. arXiv:1611.01144
Maddison et al., "The Concrete Distribution", ICLR 2017. arXiv:1611.00712
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .. import _fused as fused
from .._attach import attach_sigmoid
from .._checks import check_finite_noise, check_noise
from .._draw import draw_logistic, draw_value, given_value
from .._fused import Method
from .._gumbel import relaxed_bit_logit
from .._math import divide_finite
from .._rows import Bits, bernoulli_bits
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def gumbel_softmax(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    hard: bool = True,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""0/1 sample with the gradient of a binary concrete relaxation.

    With logistic noise $L$, $y = \sigma((l + L)/\tau)$ and $b = 1$ where $l + L > 0$, a gradient
    $g = \partial f / \partial b$ becomes

    $$\hat\nabla = \tfrac1\tau\, y (1 - y)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. Biased for ``hard=True``; a small tau
    lowers the bias and raises the variance. ``hard=False`` returns $y$ itself with its ordinary
    gradient (twice differentiable, also with respect to a tensor tau). Equal in distribution to
    ``discretegrad.gumbel_softmax`` on the two categories ``(logits, 0)``.

    Differs from the paper: the value is drawn first and the noise given the value, which has the
    same distribution.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype; -inf and +inf make the
            value certain.
        tau: Temperature: a number, or a tensor that broadcasts against ``logits``. With
            ``hard=True`` a constant: it gets no gradient.
        hard: Return zeros and ones (True) or the relaxed sample (False).
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        A sample of the shape and dtype of ``logits``, zeros and ones if ``hard``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, or a logit is NaN. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> b = discretegrad.bernoulli.gumbel_softmax(torch.zeros(5), tau=0.5)
        >>> bool(((b == 0) | (b == 1)).all())
        True
        >>> y = discretegrad.bernoulli.gumbel_softmax(torch.zeros(5), tau=0.5, hard=False)
        >>> bool(((y > 0) & (y < 1)).all())
        True

    References:
        Jang et al. 2017, arXiv:1611.01144; Maddison et al. 2017, arXiv:1611.00712.
    """
    if choose("gumbel_softmax", logits, backend, "" if hard else "hard=False") == "triton":
        return fused.bernoulli_sample(
            "gumbel_softmax", Method("gumbel_softmax"), logits, tau, mask, generator
        )
    bits = bernoulli_bits("gumbel_softmax", logits, tau, mask, learnable_tau=not hard)
    value = draw_value("gumbel_softmax", bits, generator)
    return _gumbel_softmax(bits, value, draw_logistic(bits, generator), hard)


def gumbel_softmax_at(
    logits: Tensor,
    value: Tensor,
    noise: Tensor,
    tau: Temperature = 1.0,
    *,
    hard: bool = True,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``bernoulli.gumbel_softmax``: sample and gradient for a given draw.

    Args:
        logits: As for ``bernoulli.gumbel_softmax``.
        value: The values drawn, zeros and ones of the shape of ``logits``, any dtype.
        noise: Standard logistic noise of the shape of ``logits``. Together with ``value`` it
            stands for the noise that selects ``value``; larger noise makes a surer sample.
        tau: As for ``bernoulli.gumbel_softmax``.
        hard: As for ``bernoulli.gumbel_softmax``.
        mask: As for ``bernoulli.gumbel_softmax``.
        backend: As for ``bernoulli.gumbel_softmax``.

    Returns:
        ``value`` in the dtype of ``logits``, or the relaxed sample on its side of one half.

    Raises:
        TypeError: As ``bernoulli.gumbel_softmax``.
        ValueError: As ``bernoulli.gumbel_softmax``, and if a value is not 0 or 1, or impossible,
            or the noise is not finite.

    Example:
        >>> import torch, discretegrad
        >>> logits, value, noise = torch.zeros(2), torch.tensor([1, 0]), torch.zeros(2)
        >>> discretegrad.bernoulli.gumbel_softmax_at(logits, value, noise)
        tensor([1., 0.])
        >>> discretegrad.bernoulli.gumbel_softmax_at(logits, value, noise, hard=False)
        tensor([0.7500, 0.2500])
    """
    name = "gumbel_softmax_at"
    choose(name, logits, backend, "noise that is given")
    bits = bernoulli_bits(name, logits, tau, mask, learnable_tau=not hard)
    check_noise(name, noise, tuple(logits.shape), "logistic")
    check_finite_noise(name, noise)
    noise = noise.detach().to(bits.fixed.dtype)
    return _gumbel_softmax(bits, given_value(name, bits, value), noise, hard)


def _gumbel_softmax(bits: Bits, value: Tensor, noise: Tensor, hard: bool) -> Tensor:
    if hard:
        relaxed = relaxed_bit_logit(bits.fixed, value, noise, bits.tau)
        return attach_sigmoid(bits, value, relaxed)
    # the lead is a value only; adding l - l = 0 gives it the gradient of l + L
    finite = torch.nan_to_num(bits.logits).to(bits.fixed.dtype)
    lead = relaxed_bit_logit(bits.fixed, value, noise, 1.0)
    perturbed = torch.where(value, lead, -lead) + (finite - finite.detach())
    return logsigmoid(divide_finite(perturbed, bits.tau)).exp().to(bits.logits.dtype)
