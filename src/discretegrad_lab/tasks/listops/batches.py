"""Batches of expressions of similar lengths, which are padded to few different widths."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...stack.noise import Noise, mixed
from .data import Examples


class Batch(NamedTuple):
    """Expressions for all members, each with a member axis."""

    tokens: Tensor
    """(members, batch, width)."""
    lengths: Tensor
    """(members, batch)."""
    labels: Tensor
    """(members, batch)."""


class Order:
    """Which expressions the steps of an epoch take.

    The width of each step is the same for all members, since they are one tensor program; which
    expressions it has is random, and another choice for each member. Of every width, those that do
    not fill a batch go with the next wider ones; in the end less than a batch is left out.

    Args:
        lengths: Of all expressions, (count,).
        batch: How many expressions a step takes.
        widths: What to pad to, in ascending order.
    """

    def __init__(self, lengths: Tensor, batch: int, widths: Sequence[int]) -> None:
        self._batch = batch
        self._pools: list[Tensor] = []
        # of each batch, from the narrowest to the widest
        self._widths: list[int] = []
        left_over, below = 0, 0
        for width in widths:
            pool = ((lengths > below) & (lengths <= width)).nonzero().squeeze(1)
            self._pools.append(pool)
            below = width
            count, left_over = divmod(left_over + len(pool), batch)
            self._widths += [width] * count
        if below < int(lengths.max()):
            raise ValueError(f"expected at most {below} tokens, got {int(lengths.max())}")
        self.steps = len(self._widths)

    def epoch(self, number: int, noise: Noise) -> tuple[list[int], Tensor]:
        """The width of each step, and its expressions, (members, steps, batch).

        Args:
            number: Of the epoch; the order of the widths depends on it alone.
            noise: The random numbers of the members, begun for this.
        """
        parts: list[Tensor] = []
        rest = self._pools[0].new_empty(noise.members, 0)
        for pool in self._pools:
            pool = torch.cat([rest, pool.expand(noise.members, -1)], 1)
            # stable: expressions with equal numbers are in one order on every device
            order = noise.uniform(pool.shape[1]).argsort(dim=1, stable=True)
            noise.next_step()
            pool = pool.gather(1, order)
            whole = pool.shape[1] // self._batch * self._batch
            parts.append(pool[:, :whole])
            rest = pool[:, whole:]
        batches = torch.cat(parts, 1).unflatten(1, (self.steps, self._batch))
        generator = torch.Generator().manual_seed(mixed(number))
        steps = torch.randperm(self.steps, generator=generator)
        widths = [self._widths[step] for step in steps.tolist()]
        return widths, batches[:, steps.to(batches.device)]


def chunks(lengths: Tensor, most_tokens: int) -> list[tuple[int, Tensor]]:
    """All expressions in parts of similar lengths, for a pass without gradients.

    Args:
        lengths: (count,).
        most_tokens: Of a part, with its padding; a part has at least one expression.

    Returns:
        For each part its greatest length and which expressions it has.
    """
    parts: list[tuple[int, Tensor]] = []
    order = lengths.argsort(descending=True, stable=True)
    while len(order):
        width = int(lengths[order[0]])
        count = max(1, most_tokens // width)
        parts.append((width, order[:count]))
        order = order[count:]
    return parts


def take(examples: Examples, index: Tensor, width: int) -> Batch:
    """Expressions by their numbers, (members, batch)."""
    return Batch(
        examples.tokens[:, :width][index], examples.lengths[index], examples.labels[index]
    )
