"""ReinMax: a second-order straight-through estimator.

Liu et al., "Bridging Discrete and Backpropagation: Straight-Through and Beyond", NeurIPS 2023.
arXiv:2304.08612
"""

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import Draw, attach_one_hot, centred
from .._draw import draw_index, given_index
from .._fused import Method
from .._math import row_sum
from .._rows import Rows, categorical_rows, tempered_probs
from .._select import Handle, handle_of
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def reinmax(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""One-hot sample whose gradient is second-order accurate.

    With $p = \mathrm{softmax}(l)$, a draw $z \sim p$, $m = \tfrac12(\mathrm{softmax}(l/\tau) + z)$
    and $J(q) = \mathrm{diag}(q) - q q^\top$, a gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = 2 J(m)\, g - \tfrac12 J(p)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` unbiased for every f that is
    quadratic in each variable, and equal to the zero-temperature limit of ``gumbel_rao``. Another
    tau costs that exactness (even for linear f) and buys smoothness: the paper's tuned values are
    1 to 1.5, and its section 5 asks for at least 1. The draw is from $p$, whatever tau.

    Differs from the paper: nothing. Differs from PyPI ``reinmax``: returns the sample alone; for
    the probabilities call ``logits.softmax(dim)``.

    Args:
        logits: Unnormalised log-probabilities of any shape, any floating dtype; -inf excludes a
            category.
        tau: Temperature of the gradient: a number, or a tensor that broadcasts against ``logits``
            with size 1 along ``dim``. A constant: it gets no gradient.
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
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> z = discretegrad.reinmax(logits, generator=torch.Generator().manual_seed(0))
        >>> z
        tensor([[0., 0., 1.],
                [0., 0., 1.]], grad_fn=<_AttachBackward>)
        >>> (z * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> logits.grad
        tensor([[-0.5000, -0.3333,  0.8333],
                [-0.5000, -0.3333,  0.8333]])

    References:
        Equation 7 and Algorithm 2 of the paper; section 5 for the temperature.
    """
    if choose("reinmax", logits, backend) == "triton":
        return fused.sample("reinmax", Method("reinmax"), logits, tau, dim, mask, generator)
    rows = categorical_rows("reinmax", logits, tau, dim, mask)
    return attach_one_hot(_reinmax(rows, draw_index("reinmax", rows, generator)))


def reinmax_at(
    logits: Tensor,
    index: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``reinmax``: the sample and its gradient for a given draw.

    Args:
        logits: As for ``reinmax``.
        index: The categories drawn, int64, of the shape of ``logits`` without ``dim``.
        tau: As for ``reinmax``.
        dim: As for ``reinmax``.
        mask: As for ``reinmax``.
        backend: As for ``reinmax``.

    Returns:
        The one-hot of ``index``.

    Raises:
        TypeError: As ``reinmax``.
        ValueError: As ``reinmax``, and if the index is out of range or names an excluded
            category.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.reinmax_at(torch.zeros(2, 3), torch.tensor([2, 0]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """
    if choose("reinmax_at", logits, backend) == "triton":
        return fused.sample_at("reinmax_at", Method("reinmax"), logits, index, tau, dim, mask)
    rows = categorical_rows("reinmax_at", logits, tau, dim, mask)
    return attach_one_hot(_reinmax(rows, given_index("reinmax_at", rows, index)))


def reinmax_index(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Handle]:
    """The index form of ``reinmax``: the categories, and a handle with the gradient.

    Args:
        logits: As for ``reinmax``.
        tau: As for ``reinmax``.
        dim: As for ``reinmax``.
        mask: As for ``reinmax``.
        generator: As for ``reinmax``, which draws the same categories from it.
        backend: As for ``reinmax``.

    Returns:
        The categories, int64, of the shape of ``logits`` without ``dim``, and a handle for
        ``select``.

    Raises:
        TypeError: As ``reinmax``.
        ValueError: As ``reinmax``.

    Example:
        >>> import torch, discretegrad
        >>> logits, codebook = torch.zeros(2, 3, requires_grad=True), torch.randn(3, 8)
        >>> index, handle = discretegrad.reinmax_index(logits)
        >>> discretegrad.select(handle, codebook).shape
        torch.Size([2, 8])
    """
    if choose("reinmax_index", logits, backend) == "triton":
        return fused.sample_index(
            "reinmax_index", Method("reinmax"), logits, tau, dim, mask, generator
        )
    rows = categorical_rows("reinmax_index", logits, tau, dim, mask)
    return handle_of(_reinmax(rows, draw_index("reinmax_index", rows, generator)))


def _reinmax(rows: Rows, index: Tensor) -> Draw:
    if not isinstance(rows.tau, Tensor) and rows.tau == 1:
        return Draw(rows, index, _vjp, (rows.probs,))
    return Draw(rows, index, _vjp_tempered, (rows.probs, tempered_probs(rows)))


def _vjp(g: Tensor, index: Tensor, probs: Tensor) -> Tensor:
    # tau = 1 in closed form: (p (g - g_k) + z (g_k - p.g)) / 2; the first term is 0 at k, where
    # the second, minus the sum of the first, goes
    gradient = centred(g, index).mul_(probs)
    total = row_sum(gradient)
    return gradient.scatter_(-1, index, total.neg_()).mul_(0.5)


def _vjp_tempered(g: Tensor, index: Tensor, probs: Tensor, tempered: Tensor) -> Tensor:
    # 2 J(m) g = (q + z)(g - s) with m = (q + z) / 2 and s = m.g; J ignores a shift of g, so g_k
    # is subtracted first, which leaves z (g - s) = -s z. In place: temporaries cost the most here
    g = centred(g, index)
    gradient = tempered * g
    s = row_sum(gradient) / 2
    gradient.addcmul_(tempered, s, value=-1)
    minus = g.mul_(probs)
    mean = row_sum(minus)
    minus.addcmul_(probs, mean, value=-1)
    return gradient.add_(minus, alpha=-0.5).scatter_add_(-1, index, -s)
