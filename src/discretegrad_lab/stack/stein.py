"""The network of RODEO, with a leading member axis on every tensor.

It is asked at so many points that its hidden layer would be most of the memory traffic of a step,
so it is never kept. On a GPU kernels make it, forward and backward, and never store it. They are
operators of their own, so that a compiler that traces a step leaves them as they are. Elsewhere,
and in double precision, ``stein`` and ``stein_slopes`` do the same, which is also what the kernels
are tested against.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu

from discretegrad.kernels.dispatch import runs_on

from .layers import Linear

SLOPE = 0.3
"""Of the activation where it is negative."""
STEIN_HIDDEN = 100


class SteinNetwork(nn.Module):
    """The network of RODEO: (..., members, batch, points, 2) to the same shape.

    It has gradients for its weights, but none for its input, which RODEO never asks for.
    """

    stores_no_hidden_layer = True
    """Between the two passes only what went in is kept, and the backward pass makes the hidden
    layer again. So the library need not put it into a checkpoint, which would make it once more."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.inner = Linear(generators, 2, STEIN_HIDDEN)
        self.outer = Linear(generators, STEIN_HIDDEN, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Both outputs at every point."""
        # the members first, all points of a member in one axis
        place = x.ndim - 4
        points = x.movedim(place, 0)
        weights = self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias
        outputs: Tensor = _Stein.apply(points.reshape(len(points), -1, 2), *weights)
        return outputs.view(points.shape).movedim(0, place)

    def of_member(self, member: int) -> Callable[[Tensor], Tensor]:
        """The network of one member, a constant function from (..., 2) to (..., 2)."""
        layers = self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias
        own = [x[member : member + 1].detach() for x in layers]

        def apply(x: Tensor) -> Tensor:
            weights = [weight.to(x.dtype) for weight in own]
            return stein(x.reshape(1, -1, 2), *weights).view(x.shape)

        return apply


class _Stein(torch.autograd.Function):
    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        outputs: Tensor = (_stein if _has_kernels(x) else stein)(x, *weights)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, outer, _ = ctx.saved_tensors
        run = slopes_by_kernels if _has_kernels(x) else stein_slopes
        return None, *run(g, x, weight, bias, outer)


def _has_kernels(x: Tensor) -> bool:
    return x.dtype == torch.float32 and runs_on(x.device)


def _hidden(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Before the activation, (members, points, hidden)."""
    first, second = x.unsqueeze(-2).unbind(-1)
    return first * weight[:, None, :, 0] + second * weight[:, None, :, 1] + bias[:, None]


def stein(x: Tensor, weight: Tensor, bias: Tensor, outer: Tensor, outer_bias: Tensor) -> Tensor:
    """The network for each member: from (members, points, 2) to the same shape."""
    active = leaky_relu(_hidden(x, weight, bias), SLOPE)
    outputs = [(active * outer[:, None, n]).sum(-1) for n in (0, 1)]
    return torch.stack(outputs, -1) + outer_bias[:, None]


def stein_slopes(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, outer: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of both layers, from that at the outputs."""
    hidden = _hidden(x, weight, bias)
    active, (first, second) = leaky_relu(hidden, SLOPE), g.unsqueeze(-2).unbind(-1)
    of_active = first * outer[:, None, 0] + second * outer[:, None, 1]
    of_hidden = torch.where(hidden > 0, of_active, SLOPE * of_active)
    inputs = x.unsqueeze(-2).unbind(-1)
    for_weight = torch.stack([(of_hidden * number).sum(1) for number in inputs], -1)
    for_outer = torch.stack([(active * slope).sum(1) for slope in (first, second)], 1)
    return for_weight, of_hidden.sum(1), for_outer, g.sum(1)


# both by kernels


def slopes_by_kernels(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, outer: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``stein_slopes``, as views of one tensor."""
    hidden = bias.shape[1]
    sums = _partial_slopes(g, x, weight, bias, outer).sum(1)
    inner, of_bias, of_outer, last = sums.split([2 * hidden, hidden, 2 * hidden, 2], 1)
    return inner.unflatten(1, (hidden, 2)), of_bias, of_outer.unflatten(1, (2, hidden)), last


@torch.library.custom_op("discretegrad_lab::stein", mutates_args=())
def _stein(x: Tensor, weight: Tensor, bias: Tensor, outer: Tensor, outer_bias: Tensor) -> Tensor:
    from . import stein_kernels

    return stein_kernels.forward(x, [weight, bias, outer, outer_bias], SLOPE)


@torch.library.custom_op("discretegrad_lab::stein_partial_slopes", mutates_args=())
def _partial_slopes(g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, outer: Tensor) -> Tensor:
    from . import stein_kernels

    return stein_kernels.partial_slopes(g, x, [weight, bias, outer], SLOPE)


@_stein.register_fake
def _(x: Tensor, *layers: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@_partial_slopes.register_fake
def _(g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, outer: Tensor) -> Tensor:
    from .stein_kernels import SPAN

    return x.new_empty(len(x), -(-x.shape[1] // SPAN), 5 * bias.shape[1] + 2)
