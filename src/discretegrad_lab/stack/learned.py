"""What estimators of bits learn besides the model, with a leading member axis on every tensor.

Their gradient is that of the mean square of the estimate, which the library gives them in the
backward pass of the loss; so they are a group of parameters with an optimiser of their own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .layers import Linear, mlp, of_member
from .lines import Line
from .stein import SLOPE, SteinNetwork

RATE = 1e-3
"""Of the Adam that all of it learns with, as in the released code of RODEO."""
RELAX_HIDDEN = 137


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
