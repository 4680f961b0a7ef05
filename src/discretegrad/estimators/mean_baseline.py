"""Straight-through with the plain mean over categories as the baseline.

The alternatives that section 4.1 of the ReinMax paper compares with. First order: Gregor et al.,
"Deep AutoRegressive Networks", ICML 2014, arXiv:1310.8499; Pervez et al., ICML 2020. Second order:
Liu et al., NeurIPS 2023, arXiv:2304.08612.
"""

from functools import partial

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import Draw, attach_one_hot, centred, jacobian_product
from .._checks import check_mean_baseline
from .._draw import draw_index, given_index
from .._fused import Method
from .._math import row_sum
from .._rows import Rows, categorical_rows, tempered_probs
from .._select import Handle, handle_of
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def mean_baseline(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    order: int = 2,
    as_released: bool = False,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""One-hot sample whose gradient uses the mean of f over the categories as its baseline.

    With $p = \mathrm{softmax}(l)$, a draw k with one-hot $z$, n allowed categories, $\bar g$ the
    mean of the gradient $g = \partial f / \partial z$ over them,
    $J(q) = \mathrm{diag}(q) - q q^\top$ and the weight $w = 1 / (n\, \mathrm{softmax}(l/\tau)_k)$,

    $$\hat\nabla_1 = w\, J(p)\, g, \qquad
    \hat\nabla_2 = \tfrac12 \big[ (g_k - \bar g)(z - p) + w\, J(p)\, g \big] .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``; the index of the two is ``order``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` order 1 is exact for linear
    and order 2 for quadratic f of each variable. The weight is large when an unlikely category is
    drawn: the variance is like that of ``reinmax`` for flat distributions and many times higher
    for peaked ones, where training tends to end. A tau above 1 tames the weight, at the price of
    bias.

    Differs from the paper: ``as_released=True`` is the form in the released code, behind the
    figure on the choice of baseline. It multiplies the first term of $J(p) g$ by $z$, which makes
    it biased even for linear f, and its rows do not sum to zero. With it, that figure
    cannot tell the effect of the baseline from the effect of the error.

    Args:
        logits: Unnormalised log-probabilities of any shape, any floating dtype; -inf excludes a
            category.
        tau: Temperature of the weight: a number, or a tensor that broadcasts against ``logits``
            with size 1 along ``dim``. A constant: it gets no gradient.
        order: 1 or 2.
        as_released: Use the form of the released code (order 2 only).
        dim: The category axis.
        mask: Boolean, broadcasts to ``logits``, True where a category is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        A sample of the shape and dtype of ``logits``, exactly one-hot along ``dim``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, the order is neither 1 nor 2, or a
            row has NaN, +inf or no allowed category. See ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> z = discretegrad.mean_baseline(logits, order=1)
        >>> (z * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> logits.grad
        tensor([[-0.4444, -0.1111,  0.5556],
                [-0.4444, -0.1111,  0.5556]])

    References:
        Remark 4.1 of the paper with phi = 1/n.
    """
    check_mean_baseline("mean_baseline", order, as_released)
    if choose("mean_baseline", logits, backend) == "triton":
        return fused.sample(
            "mean_baseline", kernel(order, as_released), logits, tau, dim, mask, generator
        )
    rows = categorical_rows("mean_baseline", logits, tau, dim, mask)
    index = draw_index("mean_baseline", rows, generator)
    return attach_one_hot(_mean_baseline(rows, index, order, as_released))


def mean_baseline_at(
    logits: Tensor,
    index: Tensor,
    tau: Temperature = 1.0,
    *,
    order: int = 2,
    as_released: bool = False,
    dim: int = -1,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``mean_baseline``: the sample and gradient for a given draw.

    Args:
        logits: As for ``mean_baseline``.
        index: The categories drawn, int64, of the shape of ``logits`` without ``dim``.
        tau: As for ``mean_baseline``.
        order: As for ``mean_baseline``.
        as_released: As for ``mean_baseline``.
        dim: As for ``mean_baseline``.
        mask: As for ``mean_baseline``.
        backend: As for ``mean_baseline``.

    Returns:
        The one-hot of ``index``.

    Raises:
        TypeError: As ``mean_baseline``.
        ValueError: As ``mean_baseline``, and if the index is out of range or names an excluded
            category.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.mean_baseline_at(torch.zeros(3), torch.tensor(1))
        tensor([0., 1., 0.])
    """
    check_mean_baseline("mean_baseline_at", order, as_released)
    if choose("mean_baseline_at", logits, backend) == "triton":
        return fused.sample_at(
            "mean_baseline_at", kernel(order, as_released), logits, index, tau, dim, mask
        )
    rows = categorical_rows("mean_baseline_at", logits, tau, dim, mask)
    index = given_index("mean_baseline_at", rows, index)
    return attach_one_hot(_mean_baseline(rows, index, order, as_released))


def mean_baseline_index(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    order: int = 2,
    as_released: bool = False,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Handle]:
    """The index form of ``mean_baseline``: the categories, and a handle with the gradient.

    Args:
        logits: As for ``mean_baseline``.
        tau: As for ``mean_baseline``.
        order: As for ``mean_baseline``.
        as_released: As for ``mean_baseline``.
        dim: As for ``mean_baseline``.
        mask: As for ``mean_baseline``.
        generator: As for ``mean_baseline``, which draws the same categories from it.
        backend: As for ``mean_baseline``.

    Returns:
        The categories, int64, of the shape of ``logits`` without ``dim``, and a handle for
        ``select``.

    Raises:
        TypeError: As ``mean_baseline``.
        ValueError: As ``mean_baseline``.

    Example:
        >>> import torch, discretegrad
        >>> logits, codebook = torch.zeros(2, 3, requires_grad=True), torch.randn(3, 8)
        >>> index, handle = discretegrad.mean_baseline_index(logits)
        >>> discretegrad.select(handle, codebook).shape
        torch.Size([2, 8])
    """
    check_mean_baseline("mean_baseline_index", order, as_released)
    if choose("mean_baseline_index", logits, backend) == "triton":
        return fused.sample_index(
            "mean_baseline_index", kernel(order, as_released), logits, tau, dim, mask, generator
        )
    rows = categorical_rows("mean_baseline_index", logits, tau, dim, mask)
    index = draw_index("mean_baseline_index", rows, generator)
    return handle_of(_mean_baseline(rows, index, order, as_released))


def kernel(order: int, as_released: bool) -> Method:
    """Which formula the kernels compute, for both families."""
    if as_released:
        return Method("mean_released")
    return Method("mean_first" if order == 1 else "mean_second")


def _mean_baseline(rows: Rows, index: Tensor, order: int, as_released: bool) -> Draw:
    allowed = rows.logits.detach() > -torch.inf
    tempered = tempered_probs(rows).gather(-1, index)
    vjp = _vjp_as_released if as_released else partial(_vjp, order=order)
    return Draw(rows, index, vjp, (rows.probs, tempered, allowed))


def _vjp(
    g: Tensor, index: Tensor, probs: Tensor, tempered: Tensor, allowed: Tensor, order: int
) -> Tensor:
    n = allowed.sum(-1, keepdim=True)
    weight = 1 / (n * tempered.clamp_min(torch.finfo(tempered.dtype).tiny))
    g = centred(g, index)
    first_order = jacobian_product(probs, g) * weight
    if order == 1:
        return first_order
    return (_score(g, index, probs, allowed, n) + first_order) / 2


def _vjp_as_released(
    g: Tensor, index: Tensor, probs: Tensor, tempered: Tensor, allowed: Tensor
) -> Tensor:
    n = allowed.sum(-1, keepdim=True)
    product = g * probs
    at_draw = torch.zeros_like(g).scatter(-1, index, product.gather(-1, index))
    first_order = (at_draw - row_sum(product) * probs) / (n * tempered + 1e-12)
    return (_score(g, index, probs, allowed, n) + first_order) / 2


def _score(g: Tensor, index: Tensor, probs: Tensor, allowed: Tensor, n: Tensor) -> Tensor:
    # (g_k - mean g)(z - p)
    mean = row_sum(torch.where(allowed, g, 0)) / n
    advantage = g.gather(-1, index) - mean
    return (-probs * advantage).scatter_add(-1, index, advantage)
