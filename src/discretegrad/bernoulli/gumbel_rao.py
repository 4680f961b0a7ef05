"""Gumbel-Rao for Bernoulli variables.

Paulus et al., "Rao-Blackwellizing the Straight-Through Gumbel-Softmax Gradient Estimator",
ICLR 2021. arXiv:2010.04838
"""

from functools import partial

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import Vjp, attach_value
from .._checks import check_count, check_finite_noise, check_noise
from .._draw import draw_seed, draw_value, given_value
from .._fused import Method
from .._gumbel import relaxed_bit_logit
from .._math import sigmoid
from .._noise import seeded_logistic
from .._rows import Bits, bernoulli_bits
from .._types import Backend, Temperature
from ..estimators.gumbel_rao import chunks
from ..kernels.dispatch import choose


def gumbel_rao(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    num_draws: int = 100,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""0/1 sample with the gradient of ``bernoulli.gumbel_softmax`` averaged over its noise.

    With a draw $b \sim \mathrm{Bernoulli}(\sigma(l))$, logistic noise $L^1 \dots L^K$ given that
    each selects $b$ and $y^m = \sigma((l + L^m)/\tau)$, a gradient $g = \partial f / \partial b$
    becomes

    $$\hat\nabla = \frac g{K\tau} \sum_{m=1}^K y^m (1 - y^m) .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``, $K$ ``num_draws``.

    Properties: one evaluation of f and of its gradient. The bias of ``bernoulli.gumbel_softmax``
    at the same tau, with less variance; as tau goes to 0 and K to infinity it tends to
    ``bernoulli.reinmax``. Time grows with K, memory does not. Equal in distribution to
    ``discretegrad.gumbel_rao`` on the two categories ``(logits, 0)``.

    Differs from the paper: see ``discretegrad.gumbel_rao``.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype; -inf and +inf make the
            value certain.
        tau: Temperature: a number, or a tensor that broadcasts against ``logits``. A constant: it
            gets no gradient.
        num_draws: Number of noise draws K.
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Zeros and ones of the shape and dtype of ``logits``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, there is no draw,
            or a logit is NaN. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> b = discretegrad.bernoulli.gumbel_rao(torch.zeros(5), tau=0.5, num_draws=10)
        >>> bool(((b == 0) | (b == 1)).all())
        True

    References:
        The paper's estimator for two categories.
    """
    check_count("gumbel_rao", "num_draws", num_draws)
    if choose("gumbel_rao", logits, backend) == "triton":
        return fused.bernoulli_sample(
            "gumbel_rao", Method("gumbel_rao", num_draws=num_draws), logits, tau, mask, generator
        )
    bits = bernoulli_bits("gumbel_rao", logits, tau, mask)
    value = draw_value("gumbel_rao", bits, generator)
    seed = draw_seed(value, generator)
    return _attach(bits, value, partial(_vjp_seeded, num_draws=num_draws), seed)


def gumbel_rao_at(
    logits: Tensor,
    value: Tensor,
    noise: Tensor,
    tau: Temperature = 1.0,
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``bernoulli.gumbel_rao``: sample and gradient for a given draw.

    Args:
        logits: As for ``bernoulli.gumbel_rao``.
        value: The values drawn, zeros and ones of the shape of ``logits``, any dtype.
        noise: Standard logistic noise of shape ``(num_draws, *logits.shape)``. Together with
            ``value`` it stands for the noise that selects ``value``.
        tau: As for ``bernoulli.gumbel_rao``.
        mask: As for ``bernoulli.gumbel_rao``.
        backend: As for ``bernoulli.gumbel_rao``.

    Returns:
        ``value`` in the dtype of ``logits``.

    Raises:
        TypeError: As ``bernoulli.gumbel_rao``.
        ValueError: As ``bernoulli.gumbel_rao``, and if a value is not 0 or 1, or impossible,
            or the noise is not finite.

    Example:
        >>> import torch, discretegrad
        >>> value, noise = torch.tensor([1, 0]), torch.zeros(10, 2)
        >>> discretegrad.bernoulli.gumbel_rao_at(torch.zeros(2), value, noise)
        tensor([1., 0.])
    """
    name = "gumbel_rao_at"
    choose(name, logits, backend, "noise that is given")
    bits = bernoulli_bits(name, logits, tau, mask)
    check_noise(name, noise, (-1, *logits.shape), "logistic")
    check_finite_noise(name, noise)
    # draws last: everything saved has the leading axes of the logits
    noise = noise.detach().to(bits.fixed.dtype).movedim(0, -1)
    return _attach(bits, given_value(name, bits, value), _vjp_given, noise)


def _attach(bits: Bits, value: Tensor, vjp: Vjp, source: Tensor) -> Tensor:
    if isinstance(bits.tau, Tensor):
        return attach_value(bits, value, vjp, bits.fixed, source, bits.tau)
    return attach_value(bits, value, partial(vjp, tau=bits.tau), bits.fixed, source)


def _vjp_seeded(
    g: Tensor, value: Tensor, logits: Tensor, seed: Tensor, tau: Temperature, num_draws: int
) -> Tensor:
    slope = torch.zeros_like(logits)
    for first, count in chunks(num_draws, g.numel()):
        noise = seeded_logistic(seed, first, count, logits)
        slope += _summed_slope(logits, value, noise, tau)
    return g * slope / (num_draws * tau)


def _vjp_given(g: Tensor, value: Tensor, logits: Tensor, noise: Tensor, tau: Temperature) -> Tensor:
    num_draws = noise.shape[-1]
    slope = torch.zeros_like(logits)
    for first, count in chunks(num_draws, g.numel()):
        piece = noise.narrow(-1, first, count).movedim(-1, 0)
        slope += _summed_slope(logits, value, piece, tau)
    return g * slope / (num_draws * tau)


def _summed_slope(logits: Tensor, value: Tensor, noise: Tensor, tau: Temperature) -> Tensor:
    relaxed = relaxed_bit_logit(logits, value, noise, tau)
    return (sigmoid(relaxed) * sigmoid(-relaxed)).sum(0)
