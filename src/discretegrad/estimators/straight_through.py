"""Straight-through: a first-order approximation of the gradient.

Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
Computation", 2013. arXiv:1308.3432
"""

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import Draw, attach_one_hot, softmax_draw
from .._draw import draw_index, given_index
from .._fused import Method
from .._rows import Rows, categorical_rows, tempered_probs
from .._select import Handle, handle_of
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


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
    if choose("straight_through", logits, backend) == "triton":
        return fused.sample(
            "straight_through", Method("straight_through"), logits, tau, dim, mask, generator
        )
    rows = categorical_rows("straight_through", logits, tau, dim, mask)
    index = draw_index("straight_through", rows, generator)
    return attach_one_hot(_straight_through(rows, index))


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
    if choose("straight_through_at", logits, backend) == "triton":
        return fused.sample_at(
            "straight_through_at", Method("straight_through"), logits, index, tau, dim, mask
        )
    rows = categorical_rows("straight_through_at", logits, tau, dim, mask)
    index = given_index("straight_through_at", rows, index)
    return attach_one_hot(_straight_through(rows, index))


def straight_through_index(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Handle]:
    """The index form of ``straight_through``: the categories, and a handle with the gradient.

    Args:
        logits: As for ``straight_through``.
        tau: As for ``straight_through``.
        dim: As for ``straight_through``.
        mask: As for ``straight_through``.
        generator: As for ``straight_through``, which draws the same categories from it.
        backend: As for ``straight_through``.

    Returns:
        The categories, int64, of the shape of ``logits`` without ``dim``, and a handle for
        ``select``.

    Raises:
        TypeError: As ``straight_through``.
        ValueError: As ``straight_through``.

    Example:
        >>> import torch, discretegrad
        >>> logits, codebook = torch.zeros(2, 3, requires_grad=True), torch.randn(3, 8)
        >>> index, handle = discretegrad.straight_through_index(logits)
        >>> discretegrad.select(handle, codebook).shape
        torch.Size([2, 8])
    """
    if choose("straight_through_index", logits, backend) == "triton":
        return fused.sample_index(
            "straight_through_index", Method("straight_through"), logits, tau, dim, mask, generator
        )
    rows = categorical_rows("straight_through_index", logits, tau, dim, mask)
    index = draw_index("straight_through_index", rows, generator)
    return handle_of(_straight_through(rows, index))


def _straight_through(rows: Rows, index: Tensor) -> Draw:
    return softmax_draw(rows, index, tempered_probs(rows))
