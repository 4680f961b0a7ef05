"""Gapped straight-through for Bernoulli variables.

Fan et al., "Training Discrete Deep Generative Models via Gapped Straight-Through Estimator",
ICML 2022. arXiv:2206.07235
"""

from typing import Literal

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import attach_sigmoid
from .._checks import check_gap
from .._draw import draw_value, given_value
from .._math import sigmoid
from .._rows import Bits, bernoulli_bits
from .._types import Backend, Temperature
from ..estimators.gapped import kernel, lead_of
from ..kernels.dispatch import choose


def gapped(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    gap: float | Literal["p"] = 1.0,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""0/1 sample with the gradient of a sigmoid whose drawn value leads by a gap.

    With $s = \pm l$ the logit of the value b that was drawn and $d = \max(s, \gamma)$, a gradient
    $g = \partial f / \partial b$ becomes

    $$\hat\nabla = \tfrac1\tau\, \sigma(d/\tau)\, \sigma(-d/\tau)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``, $\gamma$ ``gap``.

    Properties: one evaluation of f and of its gradient; biased; no noise beyond the draw itself.
    ``gap=1.0`` is GST-1.0; ``gap="p"`` is GST-p, $\gamma = -\log(1 - P(b))/P(b)$. Equal to
    ``discretegrad.gapped`` on the two categories ``(logits, 0)``.

    Differs from the paper: nothing; see ``discretegrad.gapped`` for a cap on the gap of GST-p.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype; -inf and +inf make the
            value certain.
        tau: Temperature of the gradient (not of the draw): a number, or a tensor that broadcasts
            against ``logits``. A constant: it gets no gradient.
        gap: The lead of the drawn value, a number of at least 0, or ``"p"``.
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Zeros and ones of the shape and dtype of ``logits``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, the gap is negative,
            or a logit is NaN. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> b = discretegrad.bernoulli.gapped(torch.zeros(5), gap="p")
        >>> bool(((b == 0) | (b == 1)).all())
        True

    References:
        Fan et al. 2022, arXiv:2206.07235.
    """
    check_gap("gapped", gap)
    if choose("gapped", logits, backend) == "triton":
        return fused.bernoulli_sample("gapped", kernel(gap), logits, tau, mask, generator)
    bits = bernoulli_bits("gapped", logits, tau, mask)
    return _gapped(bits, draw_value("gapped", bits, generator), gap)


def gapped_at(
    logits: Tensor,
    value: Tensor,
    tau: Temperature = 1.0,
    *,
    gap: float | Literal["p"] = 1.0,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``bernoulli.gapped``: sample and gradient for a given draw.

    Args:
        logits: As for ``bernoulli.gapped``.
        value: The values drawn, zeros and ones of the shape of ``logits``, any dtype.
        tau: As for ``bernoulli.gapped``.
        gap: As for ``bernoulli.gapped``.
        mask: As for ``bernoulli.gapped``.
        backend: As for ``bernoulli.gapped``.

    Returns:
        ``value`` in the dtype of ``logits``.

    Raises:
        TypeError: As ``bernoulli.gapped``.
        ValueError: As ``bernoulli.gapped``, and if a value is not 0 or 1, or impossible.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.bernoulli.gapped_at(torch.zeros(2), torch.tensor([1, 0]))
        tensor([1., 0.])
    """
    check_gap("gapped_at", gap)
    if choose("gapped_at", logits, backend) == "triton":
        return fused.bernoulli_sample_at("gapped_at", kernel(gap), logits, value, tau, mask)
    bits = bernoulli_bits("gapped_at", logits, tau, mask)
    return _gapped(bits, given_value("gapped_at", bits, value), gap)


def _gapped(bits: Bits, value: Tensor, gap: float | Literal["p"]) -> Tensor:
    lead = torch.where(value, bits.fixed, -bits.fixed)
    if gap == "p":
        lead = torch.maximum(lead, lead_of(sigmoid(lead)))
    else:
        lead = lead.clamp(min=gap)
    return attach_sigmoid(bits, value, lead / bits.tau)
