"""Straight-through Gumbel-softmax, and the relaxed sample it is made from.

Jang et al., "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017. arXiv:1611.01144
"""

import math

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import Draw, attach_one_hot, softmax_draw
from .._checks import check_exponential, check_noise
from .._draw import draw_exponential, draw_index, given_index
from .._fused import Method
from .._gumbel import gumbel_gaps, relaxed_sample
from .._math import divide_finite
from .._rows import Rows, categorical_rows, restore_dim
from .._select import Handle, handle_of
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def gumbel_softmax(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""One-hot sample with the gradient of a Gumbel-softmax relaxation.

    With Gumbel noise $G$, $y = \mathrm{softmax}((l + G)/\tau)$, $z$ the one-hot of its largest
    entry and $J(q) = \mathrm{diag}(q) - q q^\top$, a gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = \tfrac1\tau J(y)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. Biased for ``hard=True``; a small tau
    lowers the bias and raises the variance. ``hard=False`` returns $y$ itself with its ordinary
    gradient (twice differentiable, also with respect to a tensor tau): an unbiased gradient of
    the relaxed problem.

    Differs from ``torch.nn.functional.gumbel_softmax``: ``hard=True`` is the default and gives
    exact ones and zeros; the category is drawn first and the noise given the category, which has
    the same distribution but keeps frequencies exact in low precision and never returns NaN.

    Args:
        logits: Unnormalised log-probabilities of any shape, any floating dtype; -inf excludes a
            category.
        tau: Temperature: a number, or a tensor that broadcasts against ``logits`` with size 1
            along ``dim``. With ``hard=True`` a constant: it gets no gradient.
        hard: Return the one-hot sample (True) or the relaxed one (False).
        dim: The category axis.
        mask: Boolean, broadcasts to ``logits``, True where a category is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        A sample of the shape and dtype of ``logits``, one-hot along ``dim`` if ``hard``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, or a row has NaN, +inf or no
            allowed category. See ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 4)
        >>> discretegrad.gumbel_softmax(logits, tau=0.5).sum(-1)
        tensor([1., 1.])
        >>> relaxed = discretegrad.gumbel_softmax(logits, tau=0.5, hard=False)
        >>> bool(((relaxed > 0) & (relaxed < 1)).all())
        True

    References:
        Equation 5 of Liu et al., arXiv:2304.08612.
    """
    if choose("gumbel_softmax", logits, backend, "" if hard else "hard=False") == "triton":
        return fused.sample(
            "gumbel_softmax", Method("gumbel_softmax"), logits, tau, dim, mask, generator
        )
    rows = categorical_rows("gumbel_softmax", logits, tau, dim, mask, learnable_tau=not hard)
    index = draw_index("gumbel_softmax", rows, generator)
    return _gumbel_softmax(rows, index, draw_exponential(rows, generator), hard)


def gumbel_softmax_at(
    logits: Tensor,
    index: Tensor,
    noise: Tensor,
    tau: Temperature = 1.0,
    *,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``gumbel_softmax``: the sample and gradient for a given draw.

    Args:
        logits: As for ``gumbel_softmax``.
        index: The categories drawn, int64, of the shape of ``logits`` without ``dim``.
        noise: Standard exponential noise of the shape of ``logits``. Together with ``index`` it
            stands for the Gumbel noise that selects ``index``.
        tau: As for ``gumbel_softmax``.
        hard: As for ``gumbel_softmax``.
        dim: As for ``gumbel_softmax``.
        mask: As for ``gumbel_softmax``.
        backend: As for ``gumbel_softmax``.

    Returns:
        The one-hot of ``index``, or the relaxed sample whose largest entry is at ``index``.

    Raises:
        TypeError: As ``gumbel_softmax``.
        ValueError: As ``gumbel_softmax``, and if the index is out of range or names an excluded
            category, or the noise is not positive and finite.

    Example:
        >>> import torch, discretegrad
        >>> logits, index, noise = torch.zeros(3), torch.tensor(1), torch.ones(3)
        >>> discretegrad.gumbel_softmax_at(logits, index, noise)
        tensor([0., 1., 0.])
        >>> discretegrad.gumbel_softmax_at(logits, index, noise, hard=False)
        tensor([0.1667, 0.6667, 0.1667])
    """
    name = "gumbel_softmax_at"
    choose(name, logits, backend, "noise that is given")
    rows = categorical_rows(name, logits, tau, dim, mask, learnable_tau=not hard)
    check_noise(name, noise, tuple(logits.shape), "exponential")
    check_exponential(name, noise)
    noise = noise.detach().to(rows.probs.dtype).movedim(dim, -1)
    return _gumbel_softmax(rows, given_index(name, rows, index), noise, hard)


def gumbel_softmax_index(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Handle]:
    """The index form of ``gumbel_softmax``: the categories, and a handle with the gradient.

    Args:
        logits: As for ``gumbel_softmax``.
        tau: As for ``gumbel_softmax``.
        dim: As for ``gumbel_softmax``.
        mask: As for ``gumbel_softmax``.
        generator: As for ``gumbel_softmax``, which draws the same categories from it.
        backend: As for ``gumbel_softmax``.

    Returns:
        The categories, int64, of the shape of ``logits`` without ``dim``, and a handle for
        ``select``.

    Raises:
        TypeError: As ``gumbel_softmax``.
        ValueError: As ``gumbel_softmax``.

    Example:
        >>> import torch, discretegrad
        >>> logits, codebook = torch.zeros(2, 3, requires_grad=True), torch.randn(3, 8)
        >>> index, handle = discretegrad.gumbel_softmax_index(logits)
        >>> discretegrad.select(handle, codebook).shape
        torch.Size([2, 8])
    """
    if choose("gumbel_softmax_index", logits, backend) == "triton":
        return fused.sample_index(
            "gumbel_softmax_index", Method("gumbel_softmax"), logits, tau, dim, mask, generator
        )
    rows = categorical_rows("gumbel_softmax_index", logits, tau, dim, mask)
    index = draw_index("gumbel_softmax_index", rows, generator)
    return handle_of(_draw(rows, index, draw_exponential(rows, generator)))


def _draw(rows: Rows, index: Tensor, noise: Tensor) -> Draw:
    return softmax_draw(rows, index, relaxed_sample(_log_probs(rows), index, noise, rows.tau))


def _log_probs(rows: Rows) -> Tensor:
    return rows.logits.detach().to(rows.probs.dtype).log_softmax(-1)


def _gumbel_softmax(rows: Rows, index: Tensor, noise: Tensor, hard: bool) -> Tensor:
    if hard:
        return attach_one_hot(_draw(rows, index, noise))
    # the gaps are values only; adding l - l = 0 gives them the gradient of l + G
    finite = rows.logits.masked_fill(rows.logits == -math.inf, 0).to(rows.probs.dtype)
    gaps = gumbel_gaps(_log_probs(rows), index, noise) + (finite - finite.detach())
    relaxed = divide_finite(gaps, rows.tau).softmax(-1)
    return restore_dim(relaxed.to(rows.logits.dtype), rows.dim)
