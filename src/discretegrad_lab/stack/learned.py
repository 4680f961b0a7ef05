"""What estimators of bits learn besides the model, with a leading member axis on every tensor.

Their gradient is that of the mean square of the estimate, which the library gives them in the
backward pass of the loss; so they are a group of parameters with an optimiser of their own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu

from .compilation import compiled, worth_compiling
from .layers import Linear, mlp, of_member
from .lines import Line

RATE = 1e-3
"""Of the Adam that all of it learns with, as in the released code of RODEO."""
SLOPE = 0.3
"""Of the activations of the networks where they are negative."""
STEIN_HIDDEN, RELAX_HIDDEN = 100, 137


class Learned(nn.Module):
    """Gives the estimator what it has learned as options."""

    def options(self) -> dict[str, Any]:
        """For the function of the estimator."""
        return {}

    def see(self, x: Tensor) -> None:
        """Take notice of the batch of a step, (members, batch, inputs)."""

    def of_member(self, member: int) -> dict[str, Any]:
        """The options of one member, as constants and functions without a member axis."""
        return {}


class LearnedWeights(Learned):
    """A weight for each member: that of Double CV. It starts at 0, as in the released code."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(members))

    def options(self) -> dict[str, Any]:
        """The weight."""
        return {"alpha": self.alpha}

    def of_member(self, member: int) -> dict[str, Any]:
        """The weight."""
        return {"alpha": self.alpha[member].item()}


class LearnedStein(LearnedWeights):
    """The network of RODEO, with a weight for each of its two outputs."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__(len(generators))
        self.beta = nn.Parameter(torch.zeros(len(generators)))
        self.network = SteinNetwork(generators)

    def options(self) -> dict[str, Any]:
        """Both weights, and the network."""
        return super().options() | {"beta": self.beta, "control": self.network}

    def of_member(self, member: int) -> dict[str, Any]:
        """Both weights, and the network, from (..., 2) to (..., 2)."""
        own = {"beta": self.beta[member].item(), "control": self.network.of_member(member)}
        return super().of_member(member) | own


class LearnedRelaxation(Learned):
    """Temperature and weight of REBAR, and of RELAX with its network of the sample and the batch.

    Args:
        generators: One for each member.
        taus: Where the temperatures start.
        inputs: The size of an input and a sample together; None for no network.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        taus: Sequence[float],
        inputs: int | None = None,
    ) -> None:
        super().__init__()
        # as a logarithm, so that it stays positive
        self.log_tau = nn.Parameter(torch.tensor(taus).log())
        self.scale = nn.Parameter(torch.ones(len(taus)))
        self.control = None if inputs is None else RelaxNetwork(generators, inputs)

    def options(self) -> dict[str, Any]:
        """What has been learned."""
        options: dict[str, Any] = {"tau": self.log_tau.exp()[:, None, None], "scale": self.scale}
        return options if self.control is None else options | {"control": self.control}

    def see(self, x: Tensor) -> None:
        """The network has the batch as an input."""
        if self.control is not None:
            self.control.batch = x

    def of_member(self, member: int) -> dict[str, Any]:
        """The network has an input and a sample as one vector in its last axis."""
        own = {"tau": self.log_tau[member].exp().item(), "scale": self.scale[member].item()}
        if self.control is None:
            return own
        layers = of_member(self.control.layers, member)
        return own | {"control": lambda both: layers(both).squeeze(-1)}


class RelaxNetwork(nn.Module):
    """The control variate of RELAX: from (samples, members, batch, variables) to one number each.

    It sees the sample beside the input that the sample was drawn for, ``batch``.
    """

    def __init__(self, generators: Sequence[torch.Generator], inputs: int) -> None:
        super().__init__()
        sizes = (inputs, RELAX_HIDDEN, 1)
        self.layers = mlp(generators, sizes, lambda: nn.LeakyReLU(SLOPE))
        self.batch: Tensor | None = None

    def forward(self, z: Tensor) -> Tensor:
        """The numbers, (samples, members, batch)."""
        assert self.batch is not None
        inner, outer = self.layers[0], self.layers[2]
        assert isinstance(inner, Linear)
        assert isinstance(outer, Linear)
        x, samples = self.batch.to(z.dtype), len(z)
        # the input is the same for all samples; torch's own products, since they do no more than
        # what a gradient is asked of, and slopes ask for none of the weights
        for_x, for_z = inner.weight.split([x.shape[-1], z.shape[-1]], -1)
        of_x = torch.bmm(x, for_x.mT) + inner.bias.unsqueeze(1)
        of_z = torch.bmm(z.movedim(0, 1).flatten(1, 2), for_z.mT).unflatten(1, (samples, -1))
        hidden = self.layers[1](of_z + of_x.unsqueeze(1)).flatten(1, 2)
        value = torch.bmm(hidden, outer.weight.mT) + outer.bias.unsqueeze(1)
        return value.view(len(x), samples, -1).movedim(0, 1)


class SteinNetwork(nn.Module):
    """The network of RODEO: (..., members, batch, points, 2) to the same shape.

    Its hidden layer would be most of the memory traffic of a step, so it is never stored: the
    backward pass makes it again, and on a GPU both passes are one kernel each.
    """

    stores_no_hidden_layer = True
    """So the library need not put it into a checkpoint. It must not: the steps before a capture
    would compile the backward pass for a checkpoint, and the capture, which has none, once more."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.inner = Linear(generators, 2, STEIN_HIDDEN)
        self.outer = Linear(generators, STEIN_HIDDEN, 2)
        self._passes: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Both outputs at every point."""
        if self._passes is None:
            fuse = worth_compiling(x.device, x.numel() * STEIN_HIDDEN)
            self._passes = (stein, stein_slopes)
            if fuse:
                self._passes = compiled(stein, inline=True), compiled(stein_slopes, inline=True)
        # the members first, all points of a member in one axis
        place = x.ndim - 4
        points = x.movedim(place, 0)
        weights = self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias
        outputs: Tensor = _Stein.apply(self._passes, points.reshape(len(points), -1, 2), *weights)
        return outputs.view(points.shape).movedim(0, place)

    def of_member(self, member: int) -> Callable[[Tensor], Tensor]:
        """The network of one member, a constant function from (..., 2) to (..., 2)."""
        layers = self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias
        own = [x[member : member + 1].detach() for x in layers]

        def apply(x: Tensor) -> Tensor:
            weights = [weight.to(x.dtype) for weight in own]
            return stein(x.reshape(1, -1, 2), *weights).view(x.shape)

        return apply


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
    for_weight = torch.stack([(of_hidden * one).sum(1) for one in inputs], -1)
    for_outer = torch.stack([(active * one).sum(1) for one in (first, second)], 1)
    return for_weight, of_hidden.sum(1), for_outer, g.sum(1)


class _Stein(torch.autograd.Function):
    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, passes: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.slopes = passes[1]
        ctx.save_for_backward(x, *weights)
        outputs: Tensor = passes[0](x, *weights)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, outer, _ = ctx.saved_tensors
        return None, None, *ctx.slopes(g.contiguous(), x, weight, bias, outer)


def make_learned(
    line: Line, generators: Sequence[torch.Generator], taus: Sequence[float], inputs: int
) -> Learned | None:
    """What the estimator of a line learns; None if it learns nothing.

    Args:
        line: That of all members.
        generators: One for each member, for its networks.
        taus: Where temperatures start that are learned.
        inputs: The size of an input and a sample together.
    """
    if line.row == "double_cv":
        return LearnedWeights(len(taus))
    if line.row == "rodeo":
        return LearnedStein(generators)
    if line.row in ("rebar", "relax"):
        return LearnedRelaxation(generators, taus, inputs if line.row == "relax" else None)
    return None
