r"""The loss of the decoder, and the same for estimators that ask for its slopes.

Those want $\partial f / \partial z$ at their samples, and those that learn differentiate that once
more. ``torch.autograd`` would make the gradient of every weight along with each slope, and go
through the network again for the weights. For layers with a piecewise linear activation all of it
is short: with $\delta$ the gradient at what a layer puts out before its activation, a slope is
$W_1^\top \delta_1$, the gradient of a weight is $\delta h^\top$, and the only curvature is that of
the last sigmoid.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu

from ...stack.layers import Linear


def reconstruction(decoder: nn.Module, z: Tensor, x: Tensor) -> Tensor:
    """The cross entropy of each image with each of its samples, (samples, members, batch).

    Args:
        decoder: Of all members.
        z: (samples, members, batch, latents).
        x: (members, batch, pixels).
    """
    samples, members, batch, latents = z.shape
    codes = z.movedim(0, 1).reshape(members, samples * batch, latents)
    pixels = decoder(codes).view(members, samples, batch, -1)
    x = x.unsqueeze(1).expand_as(pixels)
    costs = binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(-1)
    return costs.movedim(1, 0)


def sloped_reconstruction(slope: float, decoder: nn.Module, z: Tensor, x: Tensor) -> Tensor:
    """``reconstruction``, which can be differentiated by z twice, by weights once.

    Args:
        slope: That of the activations where they are negative.
        decoder: Of all members.
        z: (samples, members, batch, latents).
        x: (members, batch, pixels).
    """
    layers = [layer for layer in decoder.children() if isinstance(layer, Linear)]
    parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
    with torch.no_grad():
        point = _Point(slope, z.detach(), x, [p.detach() for p in parameters])
    # two nodes of the graph, so that a gradient of one asks nothing of the other
    return _Costs.apply(z, point) + _Weights.apply(point, *parameters)


class _Point:
    """Samples with what has been computed there so far."""

    def __init__(self, slope: float, z: Tensor, x: Tensor, parameters: Sequence[Tensor]) -> None:
        self.slope, self.x, self.parameters = slope, x, parameters
        self.costs, self.outputs = forward(z, x, parameters, slope)

    @cached_property
    def deltas(self) -> list[Tensor]:
        return backward(self.outputs, self.x, self.parameters, self.slope)

    @cached_property
    def slopes(self) -> Tensor:
        return slopes(self.deltas[0], self.parameters[0], self.costs.shape)

    def curvature(self, g: Tensor, v: Tensor) -> Tensor:
        return curvature(g.detach(), v, self.outputs, self.parameters, self.slope)

    def weight_gradients(self, g: Tensor) -> list[Tensor]:
        return weight_gradients(g, self.outputs, self.deltas)


class _Costs(torch.autograd.Function):
    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, z: Tensor, point: _Point) -> Tensor:
        ctx.point = point
        ctx.save_for_backward(z)
        return point.costs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Slopes.apply(*ctx.saved_tensors, g, ctx.point), None


class _Slopes(torch.autograd.Function):
    """The slopes times a number for each sample."""

    apply: Callable[..., Tensor]

    @staticmethod
    def forward(ctx: Any, z: Tensor, g: Tensor, point: _Point) -> Tensor:
        ctx.point = point
        ctx.save_for_backward(g)
        return g.unsqueeze(-1) * point.slopes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = ctx.saved_tensors
        for_z, for_g, _ = ctx.needs_input_grad
        return (
            ctx.point.curvature(g, v) if for_z else None,
            (ctx.point.slopes * v).sum(-1) if for_g else None,
            None,
        )


class _Weights(torch.autograd.Function):
    """Zeros that carry the gradients of the weights."""

    apply: Callable[..., Tensor]

    @staticmethod
    def forward(ctx: Any, point: _Point, *parameters: Tensor) -> Tensor:
        ctx.point = point
        return torch.zeros_like(point.costs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.point.weight_gradients(g)


# samples of a member lie in one axis: (members, samples * batch, ...)


def _joined(x: Tensor) -> Tensor:
    """From (samples, members, batch, ...)."""
    return x.movedim(0, 1).flatten(1, 2)


def _parted(x: Tensor, samples: int) -> Tensor:
    """Back to that."""
    parted: Tensor = x.unflatten(1, (samples, -1))
    return parted.movedim(1, 0)


def _through(output: Tensor, change: Tensor, slope: float) -> Tensor:
    """A change times the derivative of an activation, which follows from the sign of its output."""
    return torch.where(output > 0, change, slope * change)


def forward(
    z: Tensor, x: Tensor, parameters: Sequence[Tensor], slope: float
) -> tuple[Tensor, list[Tensor]]:
    """The losses, (samples, members, batch), and what goes into each layer and out of the last."""
    outputs = [_joined(z)]
    for number in range(0, len(parameters), 2):
        weight, bias = parameters[number], parameters[number + 1]
        output = torch.bmm(outputs[-1], weight.mT) + bias.unsqueeze(1)
        outputs.append(output if number == len(parameters) - 2 else leaky_relu(output, slope))
    pixels = _parted(outputs[-1], len(z))
    target = x.expand_as(pixels)
    costs = binary_cross_entropy_with_logits(pixels, target, reduction="none").sum(-1)
    return costs, outputs


def backward(
    outputs: Sequence[Tensor], x: Tensor, parameters: Sequence[Tensor], slope: float
) -> list[Tensor]:
    """The gradient of a sample's loss at the output of each layer, before its activation."""
    pixels = outputs[-1].unflatten(1, (-1, x.shape[1]))
    deltas = [(pixels.sigmoid() - x.unsqueeze(1)).flatten(1, 2)]
    for weight, output in zip(parameters[-2:0:-2], outputs[-2:0:-1], strict=True):
        deltas.append(_through(output, torch.bmm(deltas[-1], weight), slope))
    return deltas[::-1]


def slopes(delta: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of a sample's loss at the sample, (samples, members, batch, latents)."""
    return _parted(torch.bmm(delta, weight), shape[0])


def curvature(
    g: Tensor, v: Tensor, outputs: Sequence[Tensor], parameters: Sequence[Tensor], slope: float
) -> Tensor:
    """The second derivatives of each loss times v, and times g, of the shape of v."""
    hidden, change = outputs[1:-1], _joined(v)
    for weight, output in zip(parameters[:-2:2], hidden, strict=True):
        change = _through(output, torch.bmm(change, weight.mT), slope)
    probs = outputs[-1].sigmoid()
    change = torch.bmm(change, parameters[-2].mT) * (probs * (1 - probs))
    change = change * _joined(g).unsqueeze(-1)
    for weight, output in zip(parameters[-2:0:-2], hidden[::-1], strict=True):
        change = _through(output, torch.bmm(change, weight), slope)
    return _parted(torch.bmm(change, parameters[0]), len(v))


def weight_gradients(
    g: Tensor, outputs: Sequence[Tensor], deltas: Sequence[Tensor]
) -> list[Tensor]:
    """Those of weight and bias of each layer, where each loss counts g times."""
    weights = _joined(g).unsqueeze(-1)
    gradients: list[Tensor] = []
    for entering, delta in zip(outputs[:-1], deltas, strict=True):
        weighted = delta * weights
        gradients += [torch.bmm(weighted.mT, entering), weighted.sum(1)]
    return gradients
