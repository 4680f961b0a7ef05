"""Straight-through: a first-order approximation of the gradient.

Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
Computation", 2013. arXiv:1308.3432
"""

import torch
from torch import Tensor

from .._attach import attach_softmax
from .._draw import draw_index, given_index
from .._rows import Rows, categorical_rows, tempered_probs
from .._types import Backend, Temperature


def straight_through(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""One-hot sample with the gradient of the tempered softmax.

    With $q = \mathrm{softmax}(l/\tau)$ and $J(q) = \mathrm{diag}(q) - q q^\top$, a gradient
    $g = \partial f / \partial z$ at the draw $z \sim \mathrm{softmax}(l)$ becomes

    $$\hat\nabla = \tfrac1\tau J(q)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` its expectation is the
    forward-Euler (first-order) approximation of the true gradient, exact for every f that is
    linear in each variable. Another tau is biased even there. Its variance is mostly low: no noise
    enters but through the gradient of f.

    Differs from the paper: this is the form of Liu et al., with the Jacobian of the softmax and a
    temperature.

    Args:
        logits: Unnormalised log-probabilities of any shape, any floating dtype; -inf excludes a
            category.
        tau: Temperature of the gradient (not of the draw): a number, or a tensor that broadcasts
            against ``logits`` with size 1 along ``dim``. A constant: it gets no gradient.
        dim: The category axis.
        mask: Boolean, broadcasts to ``logits``, True where a category is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        A sample of the shape and dtype of ``logits``, exactly one-hot along ``dim``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, or a row has NaN, +inf or no
            allowed category. See ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> z = discretegrad.straight_through(logits)
        >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        >>> logits.grad
        tensor([-0.3333,  0.0000,  0.3333])

    References:
        Equation 4 and Algorithm 1 of Liu et al., arXiv:2304.08612; Theorem 3.1 for the order.
    """
    rows = categorical_rows("straight_through", logits, tau, dim, mask, backend)
    return _straight_through(rows, draw_index("straight_through", rows, generator))


def straight_through_at(
    logits: Tensor,
    index: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``straight_through``: the sample and gradient for a given draw.

    Args:
        logits: As for ``straight_through``.
        index: The categories drawn, int64, of the shape of ``logits`` without ``dim``.
        tau: As for ``straight_through``.
        dim: As for ``straight_through``.
        mask: As for ``straight_through``.
        backend: As for ``straight_through``.

    Returns:
        The one-hot of ``index``.

    Raises:
        TypeError: As ``straight_through``.
        ValueError: As ``straight_through``, and if the index is out of range or names an excluded
            category.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.straight_through_at(torch.zeros(3), torch.tensor(1))
        tensor([0., 1., 0.])
    """
    rows = categorical_rows("straight_through_at", logits, tau, dim, mask, backend)
    return _straight_through(rows, given_index("straight_through_at", rows, index))


def _straight_through(rows: Rows, index: Tensor) -> Tensor:
    return attach_softmax(rows, index, tempered_probs(rows))
