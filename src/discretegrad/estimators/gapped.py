"""Gapped straight-through: Gumbel-softmax's properties without its noise.

Fan et al., "Training Discrete Deep Generative Models via Gapped Straight-Through Estimator",
ICML 2022. arXiv:2206.07235
"""

from typing import Literal

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import Draw, attach_one_hot, softmax_draw
from .._checks import check_gap
from .._draw import draw_index, given_index
from .._fused import Method
from .._math import softmax
from .._rows import Rows, categorical_rows, shifted_logits
from .._select import Handle, handle_of
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def gapped(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    gap: float | Literal["p"] = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""One-hot sample with the gradient of a softmax whose drawn category leads by a gap.

    With the draw k, $z$ its one-hot, and logits moved just enough that k is the largest and leads
    by at least $\gamma$,

    $$\tilde l_k = \max_i l_i, \qquad \tilde l_j = \min(l_j, \max_i l_i - \gamma), \qquad
    y = \mathrm{softmax}(\tilde l / \tau),$$

    a gradient $g = \partial f / \partial z$ becomes $\hat\nabla = \tfrac1\tau J(y)\, g$ with
    $J(q) = \mathrm{diag}(q) - q q^\top$.

    Symbols: $l$ ``logits``, $\tau$ ``tau``, $\gamma$ ``gap``.

    Properties: one evaluation of f and of its gradient; biased; no noise beyond the draw itself.
    ``gap=1.0`` is GST-1.0. ``gap="p"`` is GST-p, $\gamma = -\log(1 - p_k)/p_k$, the expected lead
    of the largest Gumbel-perturbed logit, which runs from 1 for a rare category to infinity.

    Differs from the paper: nothing. As in its released code, $p_k$ is shrunk by a factor of
    $1 - 10^{-5}$, which caps the gap of GST-p at 11.5. Excluded categories take no part in the
    maximum (in the released masked variant they do).

    Args:
        logits: Unnormalised log-probabilities of any shape, any floating dtype; -inf excludes a
            category.
        tau: Temperature of the gradient (not of the draw): a number, or a tensor that broadcasts
            against ``logits`` with size 1 along ``dim``. A constant: it gets no gradient.
        gap: The lead of the drawn category, a number of at least 0, or ``"p"``.
        dim: The category axis.
        mask: Boolean, broadcasts to ``logits``, True where a category is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        A sample of the shape and dtype of ``logits``, exactly one-hot along ``dim``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, the gap is negative, or a row has
            NaN, +inf or no allowed category. See ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.tensor([0.0, 2.0], requires_grad=True)
        >>> z = discretegrad.gapped(logits, gap="p")
        >>> (z * torch.tensor([1.0, 2.0])).sum().backward()
        >>> bool(logits.grad.sum().abs() < 1e-6)
        True

    References:
        Fan et al. 2022, arXiv:2206.07235.
    """
    check_gap("gapped", gap)
    if choose("gapped", logits, backend) == "triton":
        return fused.sample("gapped", kernel(gap), logits, tau, dim, mask, generator)
    rows = categorical_rows("gapped", logits, tau, dim, mask)
    return attach_one_hot(_gapped(rows, draw_index("gapped", rows, generator), gap))


def gapped_at(
    logits: Tensor,
    index: Tensor,
    tau: Temperature = 1.0,
    *,
    gap: float | Literal["p"] = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``gapped``: the sample and its gradient for a given draw.

    Args:
        logits: As for ``gapped``.
        index: The categories drawn, int64, of the shape of ``logits`` without ``dim``.
        tau: As for ``gapped``.
        gap: As for ``gapped``.
        dim: As for ``gapped``.
        mask: As for ``gapped``.
        backend: As for ``gapped``.

    Returns:
        The one-hot of ``index``.

    Raises:
        TypeError: As ``gapped``.
        ValueError: As ``gapped``, and if the index is out of range or names an excluded category.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.gapped_at(torch.zeros(3), torch.tensor(1))
        tensor([0., 1., 0.])
    """
    check_gap("gapped_at", gap)
    if choose("gapped_at", logits, backend) == "triton":
        return fused.sample_at("gapped_at", kernel(gap), logits, index, tau, dim, mask)
    rows = categorical_rows("gapped_at", logits, tau, dim, mask)
    return attach_one_hot(_gapped(rows, given_index("gapped_at", rows, index), gap))


def gapped_index(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    gap: float | Literal["p"] = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Handle]:
    """The index form of ``gapped``: the categories, and a handle with the gradient.

    Args:
        logits: As for ``gapped``.
        tau: As for ``gapped``.
        gap: As for ``gapped``.
        dim: As for ``gapped``.
        mask: As for ``gapped``.
        generator: As for ``gapped``, which draws the same categories from it.
        backend: As for ``gapped``.

    Returns:
        The categories, int64, of the shape of ``logits`` without ``dim``, and a handle for
        ``select``.

    Raises:
        TypeError: As ``gapped``.
        ValueError: As ``gapped``.

    Example:
        >>> import torch, discretegrad
        >>> logits, codebook = torch.zeros(2, 3, requires_grad=True), torch.randn(3, 8)
        >>> index, handle = discretegrad.gapped_index(logits)
        >>> discretegrad.select(handle, codebook).shape
        torch.Size([2, 8])
    """
    check_gap("gapped_index", gap)
    if choose("gapped_index", logits, backend) == "triton":
        return fused.sample_index("gapped_index", kernel(gap), logits, tau, dim, mask, generator)
    rows = categorical_rows("gapped_index", logits, tau, dim, mask)
    return handle_of(_gapped(rows, draw_index("gapped_index", rows, generator), gap))


def _gapped(rows: Rows, index: Tensor, gap: float | Literal["p"]) -> Draw:
    moved = shifted_logits(rows)
    if gap == "p":
        moved = torch.minimum(moved, -lead_of(rows.probs.gather(-1, index)))
    else:
        moved = moved.clamp(max=-gap)
    return softmax_draw(rows, index, softmax(moved.scatter(-1, index, 0.0) / rows.tau))


def kernel(gap: float | Literal["p"]) -> Method:
    """Which formula the kernels compute, for both families."""
    return Method("gapped_p") if gap == "p" else Method("gapped", gap=float(gap))


def lead_of(prob: Tensor) -> Tensor:
    """The gap of GST-p for a drawn category of probability ``prob``."""
    prob = (prob * (1 - 1e-5)).clamp_min(torch.finfo(prob.dtype).tiny)
    return -torch.log1p(-prob) / prob
