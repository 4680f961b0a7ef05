"""Batches of expressions of similar lengths, which are padded to few different widths."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...stack.noise import mixed
from .data import WIDTHS, Examples, buckets, padded_length

# tells these random numbers apart from others of a member and an epoch
_ORDER = 1


class Batch(NamedTuple):
    """Expressions for all members, each with a member axis."""

    tokens: Tensor
    """(members, batch, width)."""
    lengths: Tensor
    """(members, batch)."""
    labels: Tensor
    """(members, batch)."""


def widths_up_to(longest: int, *, bucketed: bool) -> tuple[int, ...]:
    """What batches of expressions of up to so many tokens are padded to.

    It is one width if they are not bucketed.
    """
    widest = padded_length(longest)
    return tuple(width for width in WIDTHS if width <= widest) if bucketed else (widest,)


def order(
    lengths: Tensor,
    batch: int,
    seeds: Sequence[int],
    epoch: int,
    widths: Sequence[int] = WIDTHS,
) -> tuple[list[int], Tensor]:
    """Which expressions the steps of an epoch take.

    The width of each step is the same for all members, since they are one tensor program; which
    expressions it has is random, and another choice for each member. A batch that is not full is
    left out.

    Args:
        lengths: Of all expressions, (count,), on the CPU.
        batch: How many expressions a step takes.
        seeds: Of the members.
        epoch: Counted from 0.
        widths: To pad to, see ``buckets``.

    Returns:
        The width of each step, and its expressions, (members, steps, batch).
    """
    members = []
    for seed in seeds:
        choice, among = (
            torch.Generator().manual_seed(x) for x in (mixed(seed, epoch, _ORDER), epoch)
        )
        batches = buckets(lengths, batch, choice, widths=widths, order=among)
        members.append(torch.stack([part for part in batches if len(part) == batch]))
    longest = lengths[members[0]].amax(1)
    return [padded_length(length, widths) for length in longest.tolist()], torch.stack(members)


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
    return Batch(examples.tokens[:, :width][index], examples.lengths[index], examples.labels[index])
