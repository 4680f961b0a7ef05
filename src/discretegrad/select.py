"""The index form of a sample: consumers gather by the index and never see a dense one-hot."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._attach import Vjp, apply_fast, attach_sample, compiled_without_gradient, estimate
from ._checks import check_dense
from ._math import add_rows
from ._modes import transforming
from .families import FAMILIES


@dataclass(frozen=True, eq=False)
class Handle:
    """Categories that were drawn and still carry their gradient; give it to ``select``.

    Made by ``sample_index``.
    """

    logits: Tensor
    """(..., n), categories last, attached to the graph."""
    index: Tensor
    """int64, (...): the categories."""
    vjp: Vjp
    """The estimator's formula, for the gradient at the one-hot."""
    dtype: torch.dtype | None
    """See ``_attach.estimate``."""
    saved: tuple[Tensor | None, ...]
    """What the formula needs besides."""


def select(handle: Handle, weight: Tensor) -> Tensor:
    r"""``one_hot @ weight`` as a gather, with the gradient of the estimator that drew.

    Rows of ``weight`` are the vectors of a codebook or an embedding. With g the gradient at the
    result, the one-hot's gradient $g W^\top$ goes into the estimator's formula, and ``weight``
    gets the gradient of a gather. Each call of ``select`` with one handle adds its gradient, as
    several uses of one sample do.

    Properties: forward reads one row of ``weight`` per draw. Backward makes one tensor of the size
    of the logits, which is their gradient; the torch path needs a few more. Under ``torch.func``
    transforms the one-hot is made after all.

    Args:
        handle: From ``sample_index``.
        weight: One row per category, (n, width) or (n,), floating point.

    Returns:
        ``weight[index]``, of shape (..., width) or (...), where ... is the shape of the index.

    Raises:
        TypeError: If the handle is no handle, or the weight no floating-point tensor.
        ValueError: If the weight does not have one row per category, or is on another device.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> codebook = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], requires_grad=True)
        >>> index, handle = discretegrad.sample_index(logits, "reinmax")
        >>> code = discretegrad.select(handle, codebook)
        >>> torch.equal(code, codebook[index])
        True
        >>> code.sum().backward()
        >>> logits.grad.shape, codebook.grad.shape
        (torch.Size([2, 3]), torch.Size([3, 2]))
    """
    _check(handle, weight)
    if transforming():
        make_one_hot = FAMILIES["categorical"].sample
        one_hot = attach_sample(make_one_hot, handle.vjp, handle.logits, *handle.saved)
        return one_hot.to(weight.dtype) @ weight
    if compiled_without_gradient(handle.logits, weight):
        return weight[handle.index]
    selected: Tensor = apply_fast(_Select)(
        handle.vjp, handle.dtype, handle.logits, weight, handle.index, *handle.saved
    )[0]
    return selected


def _check(handle: object, weight: Tensor) -> None:
    """``weight`` has one row for each category of the handle."""
    if not isinstance(handle, Handle):
        raise TypeError(
            f"select: expected a handle from sample_index, got {type(handle).__name__}. Call "
            'index, handle = discretegrad.sample_index(logits, "reinmax").'
        )
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        came = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"select: expected weight to be a floating-point tensor, got {came}")
    check_dense("select", "weight", weight)
    logits = handle.logits
    n = logits.shape[-1]
    if weight.ndim not in (1, 2) or weight.shape[0] != n:
        raise ValueError(
            f"select: expected a weight of shape ({n}, width) or ({n},), one row per category, "
            f"got {tuple(weight.shape)}"
        )
    if weight.device != logits.device:
        raise ValueError(
            f"select: expected weight on the logits' device {logits.device}, got {weight.device}"
        )


class _Select(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vjp: Vjp,
        dtype: torch.dtype | None,
        logits: Tensor,
        weight: Tensor,
        index: Tensor,
        *saved: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        # the empty second output ties the gradient to this node: see _attach._Backward
        anchor = logits.new_empty(0)
        ctx.vjp, ctx.dtype = vjp, dtype
        ctx.save_for_backward(anchor, weight, index, *saved)
        ctx.set_materialize_grads(False)
        rows = weight.index_select(0, index.reshape(-1))
        # to torch a new tensor, not a view of one: the user may change it in place
        return torch.ops.aten._unsafe_view(rows, index.shape + weight.shape[1:]), anchor

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: None) -> tuple[Tensor | None, ...]:
        anchor, weight, index, *saved = ctx.saved_tensors
        for_logits = for_weight = None
        n, width = weight.shape[0], math.prod(weight.shape[1:])
        # not -1, which an empty tensor leaves open
        table, g = weight.reshape(n, width), g.reshape(index.numel(), width)
        if ctx.needs_input_grad[2]:
            at_one_hot = (g @ table.T).reshape(*index.shape, n)
            if ctx.dtype is not None:
                at_one_hot = at_one_hot.to(torch.promote_types(ctx.dtype, g.dtype))
            for_logits = estimate(ctx.vjp, ctx.dtype, anchor, at_one_hot, saved)
        if ctx.needs_input_grad[3]:
            for_weight = add_rows(g, index.reshape(-1), n).reshape(weight.shape)
        return None, None, for_logits, for_weight, None, *[None] * len(saved)
