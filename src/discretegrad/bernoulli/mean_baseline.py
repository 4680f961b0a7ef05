"""The mean over both values as the baseline, for Bernoulli variables.

First order: Gregor et al., "Deep AutoRegressive Networks", ICML 2014, arXiv:1310.8499. Second
order: Liu et al., NeurIPS 2023, arXiv:2304.08612.
"""

from functools import partial

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import attach_value
from .._checks import check_mean_baseline
from .._draw import draw_value, given_value
from .._math import sigmoid
from .._rows import Bits, bernoulli_bits
from .._types import Backend, Temperature
from ..estimators.mean_baseline import kernel
from ..kernels.dispatch import choose


def mean_baseline(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    order: int = 2,
    as_released: bool = False,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""0/1 sample whose gradient uses the mean of f over both values as its baseline.

    With $p = \sigma(l)$, the draw b of probability $P(b)$ and the weight $w = 1 / (2 t)$, where t
    is $P(b)$ at the tempered logit $l/\tau$, a gradient $g = \partial f / \partial b$ becomes

    $$\hat\nabla_1 = w\, p (1 - p)\, g, \qquad
    \hat\nabla_2 = \tfrac12 \big[ \tfrac12 (1 - P(b)) + w\, p (1 - p) \big]\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``; the index of the two is ``order``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` both orders are the same and
    equal to ``bernoulli.reinmax``: with two values the choice of this baseline makes no
    difference. Equal to ``discretegrad.mean_baseline`` on the two categories ``(logits, 0)``.

    Differs from the paper: ``as_released=True`` is the form in the released code; see
    ``discretegrad.mean_baseline``.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype; -inf and +inf make the
            value certain.
        tau: Temperature of the weight: a number, or a tensor that broadcasts against ``logits``. A
            constant: it gets no gradient.
        order: 1 or 2.
        as_released: Use the form of the released code (order 2 only).
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Zeros and ones of the shape and dtype of ``logits``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, the order is neither
            1 nor 2, or a logit is NaN. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> b = discretegrad.bernoulli.mean_baseline(logits)
        >>> (b * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> logits.grad
        tensor([0.2500, 0.5000, 1.0000])

    References:
        Remark 4.1 of Liu et al. with phi = 1/2.
    """
    check_mean_baseline("mean_baseline", order, as_released)
    if choose("mean_baseline", logits, backend) == "triton":
        return fused.bernoulli_sample(
            "mean_baseline", kernel(order, as_released), logits, tau, mask, generator
        )
    bits = bernoulli_bits("mean_baseline", logits, tau, mask)
    return _mean_baseline(bits, draw_value("mean_baseline", bits, generator), order, as_released)


def mean_baseline_at(
    logits: Tensor,
    value: Tensor,
    tau: Temperature = 1.0,
    *,
    order: int = 2,
    as_released: bool = False,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``bernoulli.mean_baseline``: sample and gradient for a given draw.

    Args:
        logits: As for ``bernoulli.mean_baseline``.
        value: The values drawn, zeros and ones of the shape of ``logits``, any dtype.
        tau: As for ``bernoulli.mean_baseline``.
        order: As for ``bernoulli.mean_baseline``.
        as_released: As for ``bernoulli.mean_baseline``.
        mask: As for ``bernoulli.mean_baseline``.
        backend: As for ``bernoulli.mean_baseline``.

    Returns:
        ``value`` in the dtype of ``logits``.

    Raises:
        TypeError: As ``bernoulli.mean_baseline``.
        ValueError: As ``bernoulli.mean_baseline``, and if a value is not 0 or 1, or impossible.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.bernoulli.mean_baseline_at(torch.zeros(2), torch.tensor([1, 0]))
        tensor([1., 0.])
    """
    check_mean_baseline("mean_baseline_at", order, as_released)
    if choose("mean_baseline_at", logits, backend) == "triton":
        return fused.bernoulli_sample_at(
            "mean_baseline_at", kernel(order, as_released), logits, value, tau, mask
        )
    bits = bernoulli_bits("mean_baseline_at", logits, tau, mask)
    value = given_value("mean_baseline_at", bits, value)
    return _mean_baseline(bits, value, order, as_released)


def _mean_baseline(bits: Bits, value: Tensor, order: int, as_released: bool) -> Tensor:
    tempered = sigmoid(torch.where(value, bits.fixed, -bits.fixed) / bits.tau)
    vjp = _vjp_as_released if as_released else partial(_vjp, order=order)
    return attach_value(bits, value, vjp, bits.fixed, tempered)


def _vjp(g: Tensor, value: Tensor, logits: Tensor, tempered: Tensor, order: int) -> Tensor:
    drawn = torch.where(value, logits, -logits)
    drawn_prob, other_prob = sigmoid(drawn), sigmoid(-drawn)
    weight = 1 / (2 * tempered.clamp_min(torch.finfo(tempered.dtype).tiny))
    first_order = weight * drawn_prob * other_prob
    if order == 1:
        return g * first_order
    return g * (other_prob / 2 + first_order) / 2


def _vjp_as_released(g: Tensor, value: Tensor, logits: Tensor, tempered: Tensor) -> Tensor:
    prob, other_prob = sigmoid(logits), sigmoid(-logits)
    score = torch.where(value, other_prob, prob) / 2
    first_order = torch.where(value, prob * other_prob, -prob * prob) / (2 * tempered + 1e-12)
    return g * (score + first_order) / 2
