"""The experts and the scores that a router chooses among them by, for all members of a stack."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...stack.layers import Linear, linear

PIXELS, CLASSES = 784, 10


class Network(nn.Module):
    """A linear layer for the scores, and experts with one hidden layer each.

    Args:
        generators: For the start of each member's weights.
        experts: How many.
        hidden: Units in the hidden layer of an expert.
    """

    def __init__(self, generators: Sequence[torch.Generator], experts: int, hidden: int) -> None:
        super().__init__()
        self.scores = Linear(generators, PIXELS, experts)
        self.inner = _Layers(generators, experts, PIXELS, hidden)
        self.outer = _Layers(generators, experts, hidden, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The scores (members, batch, experts) of images (members, batch, pixels), and what every
        expert gives as logits of the classes, (members, batch, experts, classes)."""
        members, experts, hidden = self.inner.bias.shape
        # one product: all experts see the same images
        units = linear(x, self.inner.weight.flatten(1, 2), self.inner.bias.flatten(1)).relu()
        units = units.unflatten(-1, (experts, hidden)).transpose(1, 2).flatten(0, 1)
        outer = self.outer
        outputs = linear(units, outer.weight.flatten(0, 1), outer.bias.flatten(0, 1))
        return self.scores(x), outputs.unflatten(0, (members, experts)).transpose(1, 2)


class _Layers(nn.Module):
    """A linear layer of each expert; the experts of a member start one after the other."""

    def __init__(
        self, generators: Sequence[torch.Generator], experts: int, inputs: int, outputs: int
    ) -> None:
        super().__init__()
        layers = Linear([x for x in generators for _ in range(experts)], inputs, outputs)
        shape = (len(generators), experts)
        self.weight = nn.Parameter(layers.weight.detach().unflatten(0, shape))
        self.bias = nn.Parameter(layers.bias.detach().unflatten(0, shape))
