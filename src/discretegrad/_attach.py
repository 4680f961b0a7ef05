"""Give a discrete sample a gradient: the one autograd function of the library.

Forward returns the sample itself: nothing is added to it, so it is one-hot to the last bit.
Backward calls the estimator's formula. ``torch.compile`` traces through both; ``vmap`` and
``torch.func.grad`` compose with it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._modes import compiling, transforming

_LOW_PRECISIONS = (torch.float16, torch.bfloat16)
# vjp(g, draw, *saved): the gradient for the logits, given the gradient g at the sample
Vjp = Callable[..., Tensor]


def attach_sample(
    make_sample: Callable[[Tensor, Tensor], Tensor], vjp: Vjp, logits: Tensor, *saved: Tensor | None
) -> Tensor:
    """``make_sample(logits, drawn)`` with the gradient ``vjp(g, drawn, *rest)`` for the logits.

    The first that is saved is the draw, the rest are constants; all have the leading axes of the
    logits.
    """
    return _apply(make_sample, vjp, logits, *saved)


def attach_gradient(logits: Tensor, gradient: Tensor, latent_axes: int) -> Tensor:
    """Zeros of the batch shape whose gradient for the logits is ``gradient``.

    The last ``latent_axes`` axes of the logits are those of one batch element. The zeros have the
    dtype of ``gradient``, so that what comes in is multiplied in it and only the product rounded
    to the dtype of the logits: a loss scale may be larger than any float16.
    """
    make, vjp = partial(_zeros, latent_axes=latent_axes), partial(_scaled, latent_axes=latent_axes)
    return _apply(make, vjp, logits, gradient)


def _zeros(logits: Tensor, gradient: Tensor, latent_axes: int) -> Tensor:
    return gradient.new_zeros(logits.shape[: logits.ndim - latent_axes])


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
        weight = g.abs().sum(dtype=torch.promote_types(g.dtype, torch.float32))
        gradients = [(weight * slope).to(slope.dtype) for slope in slopes]
        return None, None, *gradients, *[None] * len(slopes)


def apply_fast(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without what takes longer than a small sample."""
    if compiling() or transforming():
        return function.apply
    # Function.apply inspects the signature of forward at every call; outside transforms it then
    # only calls its parent, as here
    fast: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return fast


def compiled_without_gradient(*tensors: Tensor) -> bool:
    """Whether a function is compiled and none of its arguments needs a gradient.

    Then torch traces the forward of an autograd function as if it had a context, unless it has
    exactly as many arguments as parameters, of which a starred one counts as one.
    """
    if not compiling() or transforming():
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def _apply(
    make_sample: Callable[[Tensor, Tensor], Tensor], vjp: Vjp, logits: Tensor, *saved: Any
) -> Tensor:
    if compiled_without_gradient(logits):
        return make_sample(logits, saved[0])
    apply = _Attach.apply if compiling() or transforming() else _apply_eager
    sample: Tensor = apply(make_sample, vjp, logits, *saved)[0]
    return sample


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


class _AttachEager(torch.autograd.Function):
    """The same in one step, which is faster but closed to transforms."""

    backward = _Attach.backward

    @staticmethod
    def forward(
        ctx: Any,
        make_sample: Callable[[Tensor, Tensor], Tensor],
        vjp: Vjp,
        logits: Tensor,
        draw: Tensor,
        *saved: Tensor,
    ) -> tuple[Tensor, Tensor]:
        anchor = logits.new_empty(0)
        ctx.vjp, ctx.dtype = vjp, logits.dtype
        ctx.save_for_backward(anchor, draw, *saved)
        ctx.set_materialize_grads(False)
        return make_sample(logits, draw), anchor


# see apply_fast
_apply_eager: Callable[..., Any] = super(torch.autograd.Function, _AttachEager).apply


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
