"""The gradient of the samples of the operations, from all nodes of all cells at once.

A sample's gradient is a sum of inner products, one for each cell. They are short, and a step of the
architecture has hundreds of them, so they are put off until the last node has its gradient and
then computed together.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from discretegrad.kernels.dispatch import runs_on

from .cells import EDGES, NODES, OPERATIONS

_PLACES = len(EDGES) * len(OPERATIONS)
Place = tuple[int, int]
"""An edge and an operation."""


class Slopes:
    """Adds up nodes such that the samples of their edges get a gradient.

    With g the gradient of a node, the sample of an operation j gets g·output_j in the full form.
    GDAS multiplies the chosen output by its weight and adds the plain number w_j of each other
    operation to it: there these get the sum of the elements of g.

    Args:
        one_hot: The samples, (6, 5).
        full: Whether the full form is wanted.
    """

    def __init__(self, one_hot: Tensor, full: bool) -> None:
        self.full = full
        self._pairs: list[tuple[Tensor, Tensor | None]] = []
        self._places: list[int] = []
        """Of a pair, where its inner product is added: at an operation of an edge, or for the sum
        of a node's elements behind all of these."""
        apply: Callable[..., Tensor] = _Samples.apply
        self._token = apply(one_hot, self)

    def add_up(
        self,
        node: int,
        chosen: Mapping[Place, Tensor],
        others: Mapping[Place, Tensor],
        like: Tensor,
    ) -> Tensor:
        """A node from what the chosen operations gave.

        Args:
            node: Its number.
            chosen: By edge and operation; those that are zero are left out.
            others: What the operations that were not chosen would have given, in the full form.
            like: Has the shape of a node.
        """
        apply: Callable[..., Tensor] = _Node.apply
        places = [edge * len(OPERATIONS) + operation for edge, operation in (*chosen, *others)]
        outputs = (*chosen.values(), *others.values())
        return apply(self._token, self, node, places, like.detach(), len(chosen), *outputs)

    def note(self, node: int, g: Tensor, places: Sequence[int], outputs: Sequence[Tensor]) -> None:
        """Take in the gradient of a node, for later."""
        g = g.contiguous(memory_format=torch.channels_last)
        self._pairs += [(g, output) for output in outputs]
        self._places += places
        if not self.full:
            self._pairs.append((g, None))
            self._places.append(_PLACES + node - 1)

    def gradient(self, one_hot: Tensor) -> Tensor:
        """Of the samples, once all nodes have theirs."""
        total = one_hot.new_zeros(_PLACES + NODES - 1)
        index = torch.tensor(self._places).to(total.device, non_blocking=True)
        total.index_add_(0, index, _dots(self._pairs))
        self._pairs, self._places = [], []
        found = total[:_PLACES].view_as(one_hot)
        if self.full:
            return found
        of_node = total[_PLACES:].unbind()
        elsewhere = torch.stack([of_node[end - 1] for end, _ in EDGES])
        return torch.addcmul(found, 1 - one_hot, elsewhere.unsqueeze(1))


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
        node: int,
        places: Sequence[int],
        like: Tensor,
        chosen: int,
        *outputs: Tensor,
    ) -> Tensor:
        ctx.slopes, ctx.node, ctx.places, ctx.chosen = slopes, node, places, chosen
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*outputs)
        total = add(outputs[:chosen], like)
        return total.view_as(total) if chosen == 1 else total

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        outputs = ctx.saved_tensors
        if g is not None:
            ctx.slopes.note(ctx.node, g, ctx.places, outputs)
        passed = [g if number < ctx.chosen else None for number in range(len(outputs))]
        return None, None, None, None, None, None, *passed


def add(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Their sum; zeros if there are none."""
    if not parts:
        return torch.zeros_like(like)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def in_memory(x: Tensor) -> Tensor:
    """All elements in the order of channels that come last, as a view where that is theirs."""
    return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).reshape(-1)


def has_kernels(x: Tensor) -> bool:
    """Whether the kernels of searches run for a tensor."""
    return x.is_cuda and x.dtype == torch.float32 and runs_on(x.device)


def _dots(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """The inner product of each pair; without a second tensor the sum of the first one."""
    if has_kernels(pairs[0][0]):
        return _dots_of_kernel(pairs)
    return torch.stack(
        [x.sum() if y is None else torch.dot(in_memory(x), in_memory(y)) for x, y in pairs]
    )


def _dots_of_kernel(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    from .kernels import dots

    # the tensors themselves, in all but rare cases
    order = torch.channels_last
    return dots([(x, None if y is None else y.contiguous(memory_format=order)) for x, y in pairs])
