"""All weights of the supernet in one tensor, and parts of it as the kernels of convolutions."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .every import Joined
from .slopes import in_memory

_SIDE = 3
"""Of a joined kernel."""
_STEP = 4
"""A weight starts at a multiple of so many numbers, or 16 bytes, which cuDNN may read at once."""


def rounded_up(end: int) -> int:
    """Where a weight may start behind others."""
    return -(-end // _STEP) * _STEP


class Place(NamedTuple):
    """Where a weight lies in the tensor of all weights."""

    start: int
    shape: tuple[int, ...]
    bound: float | None
    """It starts out uniform between this and its negative, or at ``value`` if there is none."""
    value: float

    @property
    def end(self) -> int:
        """The first number that is not part of it."""
        return self.start + math.prod(self.shape)


def parts(flat: Tensor, places: Sequence[Place]) -> tuple[Tensor, ...]:
    """Views of the tensor of all weights, (1, size), whose gradient is one such tensor again."""
    apply: Callable[..., tuple[Tensor, ...]] = _Parts.apply
    return apply(flat, places)


class _Parts(torch.autograd.Function):
    """Parts of a tensor (1, size), whose gradient is one tensor again, zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, places: Sequence[Place]) -> tuple[Tensor, ...]:
        ctx.places, ctx.size = places, flat.shape[1]
        return _cut(flat, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].new_zeros(1, ctx.size)
        pieces = [x.view(-1) for x in _pieces(total, ctx.places)]
        torch._foreach_copy_(pieces, [in_memory(g) for g in gradients])
        return total, None


def _cut(flat: Tensor, places: Sequence[Place]) -> tuple[Tensor, ...]:
    return tuple(
        # a kernel lies in memory with the channels last
        piece.view(place.shape[0], *place.shape[2:], place.shape[1]).permute(0, 3, 1, 2)
        if len(place.shape) == 4
        else piece.view(place.shape)
        for piece, place in zip(_pieces(flat, places), places, strict=True)
    )


def _pieces(flat: Tensor, places: Sequence[Place]) -> tuple[Tensor, ...]:
    # places come in order: one call for all of them, and what lies between two is left out
    ends = [0, *(x for place in places for x in (place.start, place.end)), flat.shape[1]]
    pieces: tuple[Tensor, ...] = flat[0].split([end - start for start, end in pairwise(ends)])
    return pieces[1::2]


class Joiner:
    """Makes one kernel of all convolutions that read a node.

    Args:
        places: Where their kernels lie, for each cell and node; they are as wide as they are high,
            by one pixel or three.
    """

    def __init__(self, places: Mapping[str, Sequence[Sequence[Place]]]) -> None:
        self._places = places
        self._shapes = [
            (sum(place.shape[0] for place in node), _SIDE, _SIDE, node[0].shape[1])
            for nodes in places.values()
            for node in nodes
        ]
        self._index, self._inside = _numbers([node for nodes in places.values() for node in nodes])

    def __call__(self, flat: Tensor) -> Joined:
        """From the tensor of all weights."""
        if self._index.device != flat.device:
            self._index, self._inside = self._index.to(flat.device), self._inside.to(flat.device)
        numbers = flat[0].take(self._index) * self._inside
        counts = [math.prod(shape) for shape in self._shapes]
        pieces = numbers.split([rounded_up(count) for count in counts])
        kernels = (
            piece[:count].view(shape).permute(0, 3, 1, 2)
            for piece, count, shape in zip(pieces, counts, self._shapes, strict=True)
        )
        return {cell: [next(kernels) for _ in nodes] for cell, nodes in self._places.items()}


def _numbers(nodes: Sequence[Sequence[Place]]) -> tuple[Tensor, Tensor]:
    """Which weight each number of the joined kernels is, and 0 where it is none, else 1."""
    index, inside = [], []
    for node in nodes:
        count = 0
        for place in node:
            outputs, channels, side, _ = place.shape
            pixels = _SIDE * _SIDE
            own = torch.arange(place.start, place.end).view(outputs, side * side, channels)
            # a kernel of one pixel lies in the middle
            in_middle = torch.arange(pixels) == pixels // 2
            here = torch.ones(pixels) if side == _SIDE else in_middle.float()
            index.append(own.expand(outputs, pixels, channels).flatten())
            inside.append(here.view(1, pixels, 1).expand(outputs, pixels, channels).flatten())
            count += index[-1].numel()
        between = rounded_up(count) - count
        index.append(torch.zeros(between, dtype=torch.int64))
        inside.append(torch.zeros(between))
    return torch.cat(index), torch.cat(inside)
