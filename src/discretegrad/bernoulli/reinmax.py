"""ReinMax for Bernoulli variables: the trapezoid rule.

Liu et al., "Bridging Discrete and Backpropagation: Straight-Through and Beyond", NeurIPS 2023.
arXiv:2304.08612
"""

from functools import partial

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import attach_value
from .._draw import draw_value, given_value
from .._fused import Method
from .._math import sigmoid
from .._rows import Bits, bernoulli_bits
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def reinmax(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""0/1 sample whose gradient is second-order accurate.

    With $P(b) = \sigma(\pm l)$ the probability of the value b that was drawn, $t = P(b)$ at the
    tempered logit $l / \tau$, a gradient $g = \partial f / \partial b$ becomes

    $$\hat\nabla = \tfrac12\, g\, \big[ 1 - t^2 - P(b)(1 - P(b)) \big]
    \quad\overset{\tau = 1}{=}\quad \tfrac12\, g\, (1 - P(b)) .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` unbiased for every f that is
    quadratic in each variable: half of each end's slope is the trapezoid rule for $f(1) - f(0)$.
    Equal to ``discretegrad.reinmax`` on the two categories ``(logits, 0)``.

    Differs from the paper: nothing.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype; -inf and +inf make the
            value certain.
        tau: Temperature of the gradient (not of the draw): a number, or a tensor that broadcasts
            against ``logits``. A constant: it gets no gradient.
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Zeros and ones of the shape and dtype of ``logits``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, or a logit is NaN. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> b = discretegrad.bernoulli.reinmax(logits)
        >>> (b * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> logits.grad
        tensor([0.2500, 0.5000, 1.0000])

    References:
        Equation 7 of the paper for two categories.
    """
    if choose("reinmax", logits, backend) == "triton":
        return fused.bernoulli_sample("reinmax", Method("reinmax"), logits, tau, mask, generator)
    bits = bernoulli_bits("reinmax", logits, tau, mask)
    return _reinmax(bits, draw_value("reinmax", bits, generator))


def reinmax_at(
    logits: Tensor,
    value: Tensor,
    tau: Temperature = 1.0,
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``bernoulli.reinmax``: sample and gradient for a given draw.

    Args:
        logits: As for ``bernoulli.reinmax``.
        value: The values drawn, zeros and ones of the shape of ``logits``, any dtype.
        tau: As for ``bernoulli.reinmax``.
        mask: As for ``bernoulli.reinmax``.
        backend: As for ``bernoulli.reinmax``.

    Returns:
        ``value`` in the dtype of ``logits``.

    Raises:
        TypeError: As ``bernoulli.reinmax``.
        ValueError: As ``bernoulli.reinmax``, and if a value is not 0 or 1, or impossible.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.bernoulli.reinmax_at(torch.zeros(2), torch.tensor([True, False]))
        tensor([1., 0.])
    """
    if choose("reinmax_at", logits, backend) == "triton":
        return fused.bernoulli_sample_at("reinmax_at", Method("reinmax"), logits, value, tau, mask)
    bits = bernoulli_bits("reinmax_at", logits, tau, mask)
    return _reinmax(bits, given_value("reinmax_at", bits, value))


def _reinmax(bits: Bits, value: Tensor) -> Tensor:
    if isinstance(bits.tau, Tensor):
        return attach_value(bits, value, _vjp, bits.fixed, bits.tau)
    return attach_value(bits, value, partial(_vjp, tau=bits.tau), bits.fixed)


def _vjp(g: Tensor, value: Tensor, logits: Tensor, tau: Temperature) -> Tensor:
    drawn = torch.where(value, logits, -logits)
    if not isinstance(tau, Tensor) and tau == 1:
        return g * sigmoid(-drawn) / 2
    # 1 - t^2 = (1 - t)(1 + t), and 1 - sigmoid(x) = sigmoid(-x) without cancellation
    tempered = sigmoid(-drawn / tau) * (1 + sigmoid(drawn / tau))
    return g * (tempered - sigmoid(drawn) * sigmoid(-drawn)) / 2
