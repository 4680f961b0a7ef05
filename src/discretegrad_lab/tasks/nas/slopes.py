"""The gradient of the samples of the operations, from all nodes of all cells at once.

A sample's gradient is a sum of inner products, one for each cell. They are short, and a step of the
architecture has hundreds of them, so they are put off until the last node has its gradient and
then computed together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discretegrad.kernels.dispatch import runs_on

from .cells import EDGES, NODES, OPERATIONS, Cell

PLACES = len(EDGES) * len(OPERATIONS)
"""Operations of all edges; that of an operation is its edge's number times theirs, plus its own."""


class Node(NamedTuple):
    """One of the whole network."""

    cell: str
    number: int


class Slopes(ABC):
    """Takes in the gradients of all nodes, and makes that of the samples of them."""

    keeps_outputs: bool
    """Whether the gradient takes the outputs of which a node is the sum."""

    @abstractmethod
    def note(self, node: Node, g: Tensor, outputs: Mapping[int, Tensor]) -> None:
        """Take in the gradient of a node, for later."""

    @abstractmethod
    def gradient(self, one_hot: Tensor) -> Tensor:
        """Of the samples, (6, 5), once all nodes have theirs."""


class Adder:
    """Adds up nodes such that the samples of their edges get a gradient.

    Args:
        one_hot: The samples, (6, 5).
        slopes: What makes their gradient. Autograd holds it too, so it holds nothing of autograd:
            in a circle they would stay in memory until Python looks for such.
    """

    def __init__(self, one_hot: Tensor, slopes: Slopes) -> None:
        apply: Callable[..., Tensor] = _Samples.apply
        self.slopes = slopes
        self._token = apply(one_hot, slopes)

    def add_up(self, node: Node, outputs: Mapping[int, Tensor], like: Tensor) -> Tensor:
        """A node from what the chosen operations gave.

        Args:
            node: Which one.
            outputs: By edge; those that are zero are left out.
            like: Has the shape of a node.
        """
        apply: Callable[..., Tensor] = _Node.apply
        edges, parts = tuple(outputs), outputs.values()
        return apply(self._token, self.slopes, node, edges, like.detach(), *parts)


class SlopesOfGdas(Slopes):
    """GDAS multiplies the chosen output by its sample and adds each other sample as a number.

    So with g the gradient of a node, the sample of the chosen operation gets g·output and every
    other one the sum of the elements of g.

    Args:
        operations: Those that were chosen.
    """

    keeps_outputs = True

    def __init__(self, operations: Cell) -> None:
        self._operations = operations
        self._pairs: list[tuple[Tensor, Tensor | None]] = []
        self._places: list[int] = []
        """Of a pair, where its inner product is added: at an operation of an edge, or for the sum
        of a node's elements behind all of these."""

    def note(self, node: Node, g: Tensor, outputs: Mapping[int, Tensor]) -> None:
        """Take in the gradient of a node, for later."""
        self._pairs += [(g, output) for output in outputs.values()]
        self._places += [edge * len(OPERATIONS) + self._operations[edge] for edge in outputs]
        self._pairs.append((g, None))
        self._places.append(PLACES + node.number - 1)

    def gradient(self, one_hot: Tensor) -> Tensor:
        """Of the samples, once all nodes have theirs."""
        total = add_at(self._places, dots(self._pairs), one_hot.new_zeros(PLACES + NODES - 1))
        self._pairs, self._places = [], []
        chosen, of_node = total[:PLACES].view_as(one_hot), total[PLACES:].unbind()
        elsewhere = torch.stack([of_node[end - 1] for end, _ in EDGES])
        return torch.addcmul(chosen, 1 - one_hot, elsewhere.unsqueeze(1))


class _Samples(torch.autograd.Function):
    """Stands for the samples in every node; its own gradient comes last."""

    @staticmethod
    def forward(ctx: Any, one_hot: Tensor, slopes: Slopes) -> Tensor:
        ctx.slopes = slopes
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(one_hot)
        return one_hot.view_as(one_hot)

    @staticmethod
    def backward(ctx: Any, _: None) -> tuple[Tensor, None]:
        (one_hot,) = ctx.saved_tensors
        return ctx.slopes.gradient(one_hot), None


class _Node(torch.autograd.Function):
    """The sum of the chosen outputs."""

    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        slopes: Slopes,
        node: Node,
        edges: Sequence[int],
        like: Tensor,
        *outputs: Tensor,
    ) -> Tensor:
        ctx.slopes, ctx.node, ctx.edges = slopes, node, edges
        ctx.set_materialize_grads(False)
        if slopes.keeps_outputs:
            ctx.save_for_backward(*outputs)
        total = add(outputs, like)
        return total.view_as(total) if len(outputs) == 1 else total

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        if g is not None:
            outputs = dict(zip(ctx.edges, ctx.saved_tensors, strict=False))
            in_order = g.contiguous(memory_format=torch.channels_last)
            ctx.slopes.note(ctx.node, in_order, outputs)
        return None, None, None, None, None, *[g for _ in ctx.edges]


def add(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Their sum; zeros if there are none."""
    if not parts:
        return torch.zeros_like(like)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def add_at(places: Sequence[int], values: Tensor, total: Tensor) -> Tensor:
    """Add each value to the number at its place, and return all of these."""
    index = torch.tensor(places, dtype=torch.int64).to(total.device, non_blocking=True)
    return total.index_add_(0, index, values)


def in_memory(x: Tensor) -> Tensor:
    """All elements in the order of channels that come last, as a view where that is theirs."""
    return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).reshape(-1)


def has_kernels(x: Tensor) -> bool:
    """Whether the kernels of searches run for a tensor."""
    return x.is_cuda and x.dtype == torch.float32 and runs_on(x.device)


def dots(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """The inner product of each pair; without a second tensor the sum of the first one."""
    if has_kernels(pairs[0][0]):
        from . import kernels

        # the tensors themselves, in all but rare cases
        order = torch.channels_last
        return kernels.dots(
            [(x, None if y is None else y.contiguous(memory_format=order)) for x, y in pairs]
        )
    return torch.stack(
        [x.sum() if y is None else torch.dot(in_memory(x), in_memory(y)) for x, y in pairs]
    )
