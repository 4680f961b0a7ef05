"""Layers of stacks: those of ``torch.nn`` with a leading member axis on every tensor."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def generators(seeds: Iterable[int]) -> list[torch.Generator]:
    """One for each member; layers made one after another draw from them in that order."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


class Linear(nn.Module):
    """``torch.nn.Linear`` for each member: (members, batch, inputs) to (members, batch, outputs).

    A member starts from the numbers of a ``torch.nn.Linear`` that is made where the global
    generator is in the state of the member's own. It is made on the CPU, in float32; move it with
    ``to``.

    Args:
        generators: One for each member, on the CPU, see ``generators``.
        in_features: As in ``torch.nn.Linear``.
        out_features: Likewise.

    Example:
        >>> import torch
        >>> from discretegrad_lab.stack import layers
        >>> layer = layers.Linear(layers.generators([7, 8]), 3, 5)
        >>> layer(torch.zeros(2, 10, 3)).shape
        torch.Size([2, 10, 5])
        >>> _ = torch.manual_seed(8)
        >>> torch.equal(layer.weight[1], torch.nn.Linear(3, 5).weight)
        True
    """

    def __init__(
        self, generators: Sequence[torch.Generator], in_features: int, out_features: int
    ) -> None:
        super().__init__()
        members = len(generators)
        self.weight = nn.Parameter(torch.empty(members, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(members, out_features))
        bound = 1 / math.sqrt(in_features)
        with torch.no_grad():
            for weight, bias, generator in zip(self.weight, self.bias, generators, strict=True):
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
                bias.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all members."""
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        members, outputs, inputs = self.weight.shape
        return f"members={members}, in_features={inputs}, out_features={outputs}"


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight.mT + bias`` for each member, (members, batch, outputs)."""
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    # torch's own gradient of baddbmm comes with the axes of the weight swapped in memory, and the
    # optimiser, which is all memory traffic, would have to read it across
    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        # not baddbmm, which writes the bias first and reads it again; a compiler fuses the sum
        return torch.bmm(x, weight.mT) + bias.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        for_x = torch.bmm(g, weight) if ctx.needs_input_grad[0] else None
        return for_x, torch.bmm(g.mT, x), g.sum(1)


def parameters_of(**networks: nn.Module) -> dict[str, Tensor]:
    """All parameters, by the names of their network and of theirs in it."""
    return {
        f"{name}.{part}": parameter
        for name, network in networks.items()
        for part, parameter in network.named_parameters()
    }


def of_member(network: nn.Module, member: int) -> Callable[[Tensor], Tensor]:
    """The layers of one member as a function, constant and in the precision of what it is given."""
    layers = [_layer_of(layer, member) for layer in network.children()]

    def apply(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return apply


def _layer_of(layer: nn.Module, member: int) -> Callable[[Tensor], Tensor]:
    if not isinstance(layer, Linear):
        return layer
    weight, bias = layer.weight[member].detach(), layer.bias[member].detach()
    return lambda x: functional.linear(x, weight.to(x.dtype), bias.to(x.dtype))


def start_as_glorot(network: nn.Module, generators: Sequence[torch.Generator]) -> None:
    """Let all weights start from Glorot's uniform distribution, and biases from 0, as in Keras."""
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, Linear):
                layer.bias.zero_()
                for weight, generator in zip(layer.weight, generators, strict=True):
                    nn.init.xavier_uniform_(weight, generator=generator)


def mlp(
    generators: Sequence[torch.Generator],
    sizes: Sequence[int],
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Linear layers from each of ``sizes`` to the next, with activations between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [Linear(generators, inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])
