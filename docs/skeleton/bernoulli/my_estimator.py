"""My estimator for Bernoulli variables.

First Author et al., "Title", venue and year. arXiv:0000.00000
"""

import torch
from torch import Tensor

from .._attach import attach_value
from .._draw import draw_value, given_value
from .._rows import Bits, bernoulli_bits
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def my_estimator(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""0/1 sample whose gradient is the score times a first-order guess of f.

    With $P(b)$ the probability of the value b that was drawn and $t = P(b)$ at the tempered logit
    $l / \tau$, a gradient $g = \partial f / \partial b$ becomes

    $$\hat\nabla = (1 - t) (1 - P(b))\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` exact for every f that is
    linear in each variable. Equal to ``discretegrad.my_estimator`` on the two categories
    ``(logits, 0)``.

    Differs from the paper: nothing.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype; -inf and +inf make the
            value certain.
        tau: Temperature of the guess (not of the draw): a number, or a tensor that broadcasts
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
        >>> b = discretegrad.bernoulli.my_estimator(logits)
        >>> (b * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> logits.grad
        tensor([0.2500, 0.5000, 1.0000])

    References:
        Equation 0 of the paper for two categories.
    """
    choose("my_estimator", logits, backend, "my_estimator")  # it has no kernel yet
    bits = bernoulli_bits("my_estimator", logits, tau, mask)
    return _my_estimator(bits, draw_value("my_estimator", bits, generator))


def my_estimator_at(
    logits: Tensor,
    value: Tensor,
    tau: Temperature = 1.0,
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``bernoulli.my_estimator``: sample and gradient for a given draw.

    Args:
        logits: As for ``bernoulli.my_estimator``.
        value: The values drawn, zeros and ones of the shape of ``logits``, any dtype.
        tau: As for ``bernoulli.my_estimator``.
        mask: As for ``bernoulli.my_estimator``.
        backend: As for ``bernoulli.my_estimator``.

    Returns:
        ``value`` in the dtype of ``logits``.

    Raises:
        TypeError: As ``bernoulli.my_estimator``.
        ValueError: As ``bernoulli.my_estimator``, and if a value is not 0 or 1, or impossible.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.bernoulli.my_estimator_at(torch.zeros(2), torch.tensor([1, 0]))
        tensor([1., 0.])
    """
    choose("my_estimator_at", logits, backend, "my_estimator")
    bits = bernoulli_bits("my_estimator_at", logits, tau, mask)
    return _my_estimator(bits, given_value("my_estimator_at", bits, value))


def _my_estimator(bits: Bits, value: Tensor) -> Tensor:
    return attach_value(bits, value, _vjp, bits.fixed, bits.fixed / bits.tau)


def _vjp(g: Tensor, value: Tensor, logits: Tensor, tempered: Tensor) -> Tensor:
    # 1 - P(b) is the sigmoid of the other value's logit
    others = [torch.where(value, -x, x) for x in (logits, tempered)]
    return g * torch.sigmoid(others[0]) * torch.sigmoid(others[1])
