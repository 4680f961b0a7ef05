"""My estimator: one line that says what it is.

First Author et al., "Title", venue and year. arXiv:0000.00000
"""

import torch
from torch import Tensor

from .._attach import Draw, attach_one_hot, centred
from .._draw import draw_index, given_index
from .._rows import Rows, categorical_rows, tempered_probs
from .._types import Backend, Temperature
from ..kernels.dispatch import choose


def my_estimator(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""One-hot sample whose gradient is the score times a first-order guess of f.

    With $p = \mathrm{softmax}(l)$, a draw $z \sim p$ and $q = \mathrm{softmax}(l/\tau)$, a gradient
    $g = \partial f / \partial z$ becomes

    $$\hat\nabla = \big( g \cdot (z - q) \big) (z - p) .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` exact for every f that is
    linear in each variable, with more variance than ``straight_through``.

    Differs from the paper: nothing.

    Args:
        logits: Unnormalised log-probabilities of any shape, any floating dtype; -inf excludes a
            category.
        tau: Temperature of the guess (not of the draw): a number, or a tensor that broadcasts
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
        >>> z = discretegrad.my_estimator(logits)
        >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        >>> bool(logits.grad.sum().abs() < 1e-6)
        True

    References:
        Equation 0 of the paper.
    """
    choose("my_estimator", logits, backend, "my_estimator")  # it has no kernel yet
    rows = categorical_rows("my_estimator", logits, tau, dim, mask)
    return attach_one_hot(_my_estimator(rows, draw_index("my_estimator", rows, generator)))


def my_estimator_at(
    logits: Tensor,
    index: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``my_estimator``: the sample and its gradient for a given draw.

    Args:
        logits: As for ``my_estimator``.
        index: The categories drawn, int64, of the shape of ``logits`` without ``dim``.
        tau: As for ``my_estimator``.
        dim: As for ``my_estimator``.
        mask: As for ``my_estimator``.
        backend: As for ``my_estimator``.

    Returns:
        The one-hot of ``index``.

    Raises:
        TypeError: As ``my_estimator``.
        ValueError: As ``my_estimator``, and if the index is out of range or names an excluded
            category.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.my_estimator_at(torch.zeros(3), torch.tensor(1))
        tensor([0., 1., 0.])
    """
    choose("my_estimator_at", logits, backend, "my_estimator")
    rows = categorical_rows("my_estimator_at", logits, tau, dim, mask)
    return attach_one_hot(_my_estimator(rows, given_index("my_estimator_at", rows, index)))


def _my_estimator(rows: Rows, index: Tensor) -> Draw:
    return Draw(rows, index, _vjp, (rows.probs, tempered_probs(rows)))


def _vjp(g: Tensor, index: Tensor, probs: Tensor, tempered: Tensor) -> Tensor:
    # g . (z - q) does not feel a shift of g; with g_k = 0 it is -(q . g)
    guess = -(tempered * centred(g, index)).sum(-1, keepdim=True)
    return (-probs * guess).scatter_add(-1, index, guess)
