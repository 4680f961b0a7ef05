"""Straight-through for Bernoulli variables.

Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
Computation", 2013. arXiv:1308.3432
"""

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import attach_sigmoid
from .._draw import draw_value, given_value
from .._fused import Method
from .._rows import Bits, bernoulli_bits
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def straight_through(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""0/1 sample with the gradient of the tempered sigmoid.

    With $t = \sigma(l/\tau)$, a gradient $g = \partial f / \partial b$ at the draw
    $b \sim \mathrm{Bernoulli}(\sigma(l))$ becomes

    $$\hat\nabla = \tfrac1\tau\, t (1 - t)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` exact for every f that is
    linear in each variable. Equal to ``discretegrad.straight_through`` on the two categories
    ``(logits, 0)``.

    Differs from the paper: see ``discretegrad.straight_through``.

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
        >>> b = discretegrad.bernoulli.straight_through(logits)
        >>> (b * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> logits.grad
        tensor([0.2500, 0.5000, 1.0000])

    References:
        Equation 4 of Liu et al., arXiv:2304.08612.
    """
    if choose("straight_through", logits, backend) == "triton":
        return fused.bernoulli_sample(
            "straight_through", Method("straight_through"), logits, tau, mask, generator
        )
    bits = bernoulli_bits("straight_through", logits, tau, mask)
    return _straight_through(bits, draw_value("straight_through", bits, generator))


def straight_through_at(
    logits: Tensor,
    value: Tensor,
    tau: Temperature = 1.0,
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``bernoulli.straight_through``: sample and gradient of a draw.

    Args:
        logits: As for ``bernoulli.straight_through``.
        value: The values drawn, zeros and ones of the shape of ``logits``, any dtype.
        tau: As for ``bernoulli.straight_through``.
        mask: As for ``bernoulli.straight_through``.
        backend: As for ``bernoulli.straight_through``.

    Returns:
        ``value`` in the dtype of ``logits``.

    Raises:
        TypeError: As ``bernoulli.straight_through``.
        ValueError: As ``bernoulli.straight_through``, and if a value is not 0 or 1, or impossible.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.bernoulli.straight_through_at(torch.zeros(2), torch.tensor([1, 0]))
        tensor([1., 0.])
    """
    if choose("straight_through_at", logits, backend) == "triton":
        return fused.bernoulli_sample_at(
            "straight_through_at", Method("straight_through"), logits, value, tau, mask
        )
    bits = bernoulli_bits("straight_through_at", logits, tau, mask)
    return _straight_through(bits, given_value("straight_through_at", bits, value))


def _straight_through(bits: Bits, value: Tensor) -> Tensor:
    return attach_sigmoid(bits, value, bits.fixed / bits.tau)
