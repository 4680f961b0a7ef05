"""What a task has to say about its stacked model, for the trainer."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .config import Run
from .schedules import Schedule


@dataclass(frozen=True)
class Group:
    """Parameters that one optimiser updates, with one of the model's losses.

    ``members`` are those of the stack that have these parameters; all other fields have an entry
    for each of them.
    """

    parameters: Mapping[str, Tensor]
    """Leaves, (members of the group, ...)."""
    members: range
    optimisers: Sequence[str]
    """``"adam"`` or ``"radam"``; or ``"sgd"`` for all members, with Nesterov's momentum."""
    learning_rates: Sequence[float]
    schedules: Sequence[Schedule]
    clip_norms: Sequence[float | None]
    """The largest norm of a member's gradient of the whole group; None for no limit."""
    loss: str = ""
    """Which of ``Model.loss_names`` it minimises; the first one by default."""
    beta: float = 0.9
    """The share of the running mean of gradients that a step keeps: Adam's first beta, or the
    momentum of sgd."""
    decay: float = 0.0
    """Times the parameters, this is added to the gradient (L2, as ``weight_decay`` of
    ``torch.optim.Adam`` and ``SGD``)."""
    rate_factors: Tensor | None = None
    """What the model multiplies the learning rates by while it trains, float64; see ``Plateau``.
    It belongs to the buffers of the model."""

    @classmethod
    def of_runs(
        cls, parameters: Mapping[str, Tensor], runs: Sequence[Run], loss: str = ""
    ) -> "Group":
        """Parameters of all members, each updated as its configuration says."""
        return cls(
            parameters,
            range(len(runs)),
            [run.optimiser for run in runs],
            [run.learning_rate for run in runs],
            [run.rate_schedule for run in runs],
            [run.clip_norm for run in runs],
            loss,
        )

    @classmethod
    def alike(
        cls, parameters: Mapping[str, Tensor], members: range, learning_rate: float, loss: str = ""
    ) -> "Group":
        """Parameters of some members, all of them updated by Adam at one rate."""
        count = len(members)
        return cls(
            parameters,
            members,
            ["adam"] * count,
            [learning_rate] * count,
            [Schedule()] * count,
            [None] * count,
            loss,
        )


class Model:
    """All members of a stack as one model, with its data; tasks derive theirs from it.

    A model is made with the runs of the stack, the device, and the directory of the data sets or
    None. Members with the same line lie side by side. Nothing of a member may depend on others.
    """

    loss_names: ClassVar[tuple[str, ...]]
    """Losses of a step; their means over an epoch are metrics under these names."""
    one_thread: ClassVar[bool] = False
    """Whether its tensors are too small for several threads of a CPU, which would wait for each
    other longer than they work, above all where other processes use the cores."""
    in_turn: ClassVar[bool] = False
    """Whether the losses of a step are computed one after the other by ``loss``, each with the
    parameters that the losses before it have updated; otherwise ``losses`` gives all at once."""
    capture: ClassVar[Literal["whole", "buckets", "none"]] = "whole"
    """What a CUDA graph may hold: any number of steps one after the other; one step, a graph for
    each value of ``prepare``; or nothing."""

    groups: dict[str, Group]
    """By name. The first one is what a task is about: its parameters are stored as such."""
    steps_per_epoch: int
    buffers: dict[str, Tensor]
    """(members, ...) each: what a step changes besides parameters and a member needs to go on."""
    counters: Sequence[Tensor]
    """What else a step changes and ``begin_epoch`` sets; a ``Noise`` of the model is known."""

    def __init__(self) -> None:
        self.groups, self.buffers, self.counters = {}, {}, ()

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Those of the first group."""
        return next(iter(self.groups.values())).parameters

    @torch.no_grad()
    def load_parameters(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Give a member the weights of a stored state, to look at what it has learned.

        Raises:
            ValueError: If they are those of another model; nothing has changed then.
        """
        stored: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            weights, shape = state.get(f"parameters/{name}"), tuple(parameter.shape[1:])
            if weights is None or tuple(weights.shape) != shape:
                got = "none" if weights is None else str(tuple(weights.shape))
                raise ValueError(
                    f"expected the parameters {name} of the shape {shape} in a checkpoint, got "
                    f"{got}; move the run away and train it again"
                )
            stored[name] = weights
        for name, parameter in self.parameters.items():
            parameter[member] = stored[name]

    def begin_epoch(self, epoch: int) -> None:
        """Prepare an epoch, counted from 0: order of the data, random numbers."""

    def prepare(self, step: int) -> Hashable:
        """Prepare a step of the epoch, counted from 0, outside of graphs; not with whole capture.

        Returns:
            What the shapes of the step follow from: steps with equal values share a graph, which
            reads the batch from where the first of them had it.
        """
        return None

    def losses(self) -> Mapping[str, Tensor]:
        """The losses of the next step by name, (members,) each."""
        raise NotImplementedError

    def loss(self, name: str) -> Tensor:
        """One loss of the next step, (members,); asked for in the order of ``loss_names``, if they
        come in turn."""
        raise NotImplementedError

    def gradients(self, loss: Tensor, leaves: Sequence[Tensor], keep: bool) -> Sequence[Tensor]:
        """Those of the sum of a loss over the members.

        Args:
            loss: What ``losses`` or ``loss`` gave.
            leaves: Of all groups of parameters that minimise it, in their order.
            keep: Whether another loss of the step will be differentiated, too.
        """
        return torch.autograd.grad(loss.sum(), leaves, retain_graph=keep)

    def evaluate(self, epoch: int) -> Mapping[str, Tensor]:
        """Further metrics after so many epochs, (members,) each; NaN where there is none."""
        return {}
