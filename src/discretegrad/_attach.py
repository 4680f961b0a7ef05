"""Give a discrete sample a gradient: the one autograd function of the library.

Forward returns the sample itself: nothing is added to it, so it is one-hot to the last bit.
Backward calls the estimator's formula. ``torch.compile`` traces through both; ``vmap`` and
``torch.func.grad`` compose with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._math import row_sum, sigmoid
from ._modes import compiling, transforming
from ._rows import Bits, Rows, restore_dim
from ._types import Temperature

_LOW_PRECISIONS = (torch.float16, torch.bfloat16)
# vjp(g, draw, *saved): the gradient for the logits, given the gradient g at the sample
Vjp = Callable[..., Tensor]


@dataclass(frozen=True)
class Draw:
    """Categories that were drawn, with the gradient ``vjp(g, index, *saved)`` of their one-hot."""

    rows: Rows
    index: Tensor
    """int64, (..., 1)."""
    vjp: Vjp
    """The formula; bind numbers to it with ``functools.partial``."""
    saved: tuple[Tensor, ...]
    """Constant tensors with the leading axes of the logits."""


def attach_one_hot(draw: Draw) -> Tensor:
    """The one-hot of a draw, with its gradient, in the user's layout."""
    rows = draw.rows
    return restore_dim(dense_one_hot(draw.vjp, rows.logits, draw.index, *draw.saved), rows.dim)


def dense_one_hot(vjp: Vjp, logits: Tensor, *saved: Tensor | None) -> Tensor:
    """The one-hot of the first that is saved, an index (..., 1), with the gradient of ``vjp``."""
    return _apply(_one_hot, vjp, logits, *saved)


def attach_value(bits: Bits, value: Tensor, vjp: Vjp, *saved: Tensor) -> Tensor:
    """The 0/1 sample of the boolean ``value`` with the gradient ``vjp(g, value, *saved)``."""
    return _apply(_zero_one, vjp, bits.logits, value, *saved)


def softmax_draw(rows: Rows, index: Tensor, probs: Tensor) -> Draw:
    """A draw with the gradient of ``probs = softmax(x / tau)`` for x."""
    if isinstance(rows.tau, Tensor):
        return Draw(rows, index, _softmax_vjp, (probs, rows.tau))
    return Draw(rows, index, partial(_softmax_vjp, tau=rows.tau), (probs,))


def attach_sigmoid(bits: Bits, value: Tensor, logits: Tensor) -> Tensor:
    """The 0/1 sample ``value`` with the gradient of ``sigmoid(x / tau)``, x / tau = ``logits``."""
    slope = sigmoid(logits) * sigmoid(-logits) / bits.tau
    return attach_value(bits, value, _slope_vjp, slope)


def _slope_vjp(g: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    return g * slope


def attach_gradient(logits: Tensor, gradient: Tensor, latent_axes: int) -> Tensor:
    """Zeros of the batch shape whose gradient for the logits is ``gradient``.

    The last ``latent_axes`` axes of the logits are those of one batch element.
    """
    make, vjp = partial(_zeros, latent_axes=latent_axes), partial(_scaled, latent_axes=latent_axes)
    return _apply(make, vjp, logits, gradient)


def _zeros(logits: Tensor, gradient: Tensor, latent_axes: int) -> Tensor:
    return logits.new_zeros(logits.shape[: logits.ndim - latent_axes])


def _scaled(g: Tensor, gradient: Tensor, latent_axes: int) -> Tensor:
    return g.reshape(g.shape + (1,) * latent_axes) * gradient


def attach_learned(
    value: Tensor, learned: Sequence[Tensor], slopes: Sequence[Tensor | None]
) -> Tensor:
    """Zeros like ``value`` that give each learned tensor its slope, times the sum of ``|g|``.

    The absolute value, so that a control variate reduces the variance also where the loss is
    maximised; the sum is 1 for the mean of a batch.
    """
    pairs = [(x, slope) for x, slope in zip(learned, slopes, strict=True) if slope is not None]
    if not pairs:
        return torch.zeros_like(value)
    tensors, slopes = zip(*pairs, strict=True)
    return _Learned.apply(value.detach(), len(tensors), *tensors, *slopes)


class _Learned(torch.autograd.Function):
    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[count:])
        return torch.zeros_like(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.saved_tensors
        weight = g.abs().sum()
        gradients = [(weight * slope).to(slope.dtype) for slope in slopes]
        return None, None, *gradients, *[None] * len(slopes)


def jacobian_product(probs: Tensor, g: Tensor) -> Tensor:
    """``J(q) g`` with ``J(q) = diag(q) - q q^T``, the Jacobian of softmax at its value q."""
    product = probs * g
    return product.addcmul_(probs, row_sum(product), value=-1)


def centred(g: Tensor, index: Tensor) -> Tensor:
    """``g`` minus its entry at ``index``: no estimator here feels a shift, but rounding does."""
    return g - g.gather(-1, index)


def _softmax_vjp(g: Tensor, index: Tensor, probs: Tensor, tau: Temperature) -> Tensor:
    return jacobian_product(probs, centred(g, index)).div_(tau)


def _apply(*args: Any) -> Tensor:
    sample: Tensor = apply_fast(_Attach)(*args)[0]
    return sample


def apply_fast(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without what takes longer than a small sample."""
    if compiling() or transforming():
        return function.apply
    # Function.apply inspects the signature of forward at every call; outside transforms it then
    # only calls its parent, as here
    fast: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return fast


def _one_hot(logits: Tensor, index: Tensor) -> Tensor:
    if compiling():
        # torch 2.11 compiles scatter_ of a constant to a gradient of zero, and scatter of a
        # constant to a float32 result; a comparison fuses as well
        return (torch.arange(logits.shape[-1], device=logits.device) == index).to(logits.dtype)
    zeros = torch.zeros_like(logits, memory_format=torch.contiguous_format)
    return zeros.scatter_(-1, index, 1.0)


def _zero_one(logits: Tensor, value: Tensor) -> Tensor:
    return value.to(logits.dtype)


class _Attach(torch.autograd.Function):
    apply: Callable[..., tuple[Tensor, Tensor]]  # torch leaves it without a type

    @staticmethod
    def forward(
        make_sample: Callable[[Tensor, Tensor], Tensor],
        vjp: Vjp,
        logits: Tensor,
        draw: Tensor,
        *saved: Tensor,
    ) -> tuple[Tensor, Tensor]:
        # the empty second output ties the gradient to this node: see _Backward
        return make_sample(logits, draw), logits.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.vjp, ctx.dtype = inputs[1], inputs[2].dtype
        ctx.save_for_backward(output[1], *inputs[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: None) -> tuple[Tensor | None, ...]:
        anchor, *saved = ctx.saved_tensors
        gradient = estimate(ctx.vjp, ctx.dtype, anchor, g, saved)
        return None, None, gradient, *[None] * len(saved)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return _Attach.apply(*_batch_first(info.batch_size, in_dims, args)), (0, None)


def estimate(
    vjp: Vjp,
    dtype: torch.dtype | None,
    anchor: Tensor,
    g: Tensor,
    saved: Sequence[Tensor | None],
) -> Tensor:
    """The gradient ``vjp(g, *saved)`` of logits of this dtype, whose own derivative is an error.

    A dtype of None stands for a formula that takes ``g`` as it is and knows its result's dtype.
    """
    if compiling() or not (torch.is_grad_enabled() or transforming()):
        return _gradient(vjp, dtype, g, saved)
    return _Backward.apply(vjp, dtype, anchor, g, *saved)


def _gradient(
    vjp: Vjp, dtype: torch.dtype | None, g: Tensor, saved: Sequence[Tensor | None]
) -> Tensor:
    return vjp(g.float(), *saved).to(dtype) if dtype in _LOW_PRECISIONS else vjp(g, *saved)


class _Backward(torch.autograd.Function):
    """The backward of ``_Attach`` as a function of its own, whose derivative is an error.

    ``anchor`` leads the graph back to the logits, so that the error is met even where the
    incoming gradient ``g`` is a constant, instead of a silent zero.
    """

    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(
        vjp: Vjp, dtype: torch.dtype | None, anchor: Tensor, g: Tensor, *saved: Tensor | None
    ) -> Tensor:
        return _gradient(vjp, dtype, g, saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        raise RuntimeError(
            "discretegrad: the gradient of a discrete sample is an estimate whose own derivative "
            "does not estimate a second derivative, so differentiating it again is refused. "
            "Detach the first gradient, or take second derivatives of "
            "discretegrad.exact_expectation."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return _Backward.apply(*_batch_first(info.batch_size, in_dims, args)), 0


def _batch_first(size: int, axes: tuple[int | None, ...], args: tuple[Any, ...]) -> list[Any]:
    """The arguments with the axis of ``vmap`` in front: the formulas leave leading axes alone."""
    return [
        arg
        if not isinstance(arg, Tensor)
        else arg.expand(size, *arg.shape)
        if axis is None
        else arg.movedim(axis, 0)
        for arg, axis in zip(args, axes, strict=True)
    ]
