"""Categories as the leaves of a binary tree, for DisARM-Tree."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import is_word

Tree = Literal["balanced", "stick_breaking"]


class Nodes(NamedTuple):
    """Node m = 1 ... n - 1 splits the categories from ``begin`` to ``end`` in front of m."""

    split: Tensor
    begin: Tensor
    end: Tensor
    left: Tensor
    """Probability of the categories on the left, (..., n - 1)."""
    right: Tensor


def make_nodes(probs: Tensor, tree: Tree) -> Nodes:
    """The nodes of a tree over n categories with these probabilities.

    Sums over a side have positive terms only: as differences of cumulative sums, rare sides would
    be rounding.
    """
    if not is_word(tree, "balanced", "stick_breaking"):
        raise ValueError(
            f'disarm_tree: expected tree to be "balanced" or "stick_breaking", got {tree!r}'
        )
    n = probs.shape[-1]
    split = torch.arange(1, n, device=probs.device)
    if tree == "stick_breaking":
        tails = probs.flip(-1).cumsum(-1).flip(-1)
        return Nodes(split, split - 1, torch.full_like(split, n), probs[..., :-1], tails[..., 1:])
    # the lowest set bit of m is the width of either side
    width = split & -split
    # sums over neighbouring leaves, then over pairs of those, and so on, in one row
    sums, starts = [pad(probs, (0, 2 ** (n - 1).bit_length() - n))], torch.zeros_like(split)
    start = 0
    for level in range(1, (n - 1).bit_length()):
        start += sums[-1].shape[-1]
        starts = torch.where(width == 2**level, start, starts)
        sums.append(sums[-1].unflatten(-1, (-1, 2)).sum(-1))
    row, right = torch.cat(sums, -1), starts + split // width
    begin, end = split - width, (split + width).clamp(max=n)
    return Nodes(split, begin, end, row[..., right - 1], row[..., right])


def chances(nodes: Nodes) -> tuple[Tensor, Tensor]:
    """The probabilities that a node goes left and right; one never reached may have any."""
    total = nodes.left + nodes.right
    left, right = (torch.where(total > 0, side / total, 0.5) for side in (nodes.left, nodes.right))
    return left, right


def leaf_of(goes_right: Tensor, tree: Tree) -> Tensor:
    """The category at the end of the path from the root, (..., 1)."""
    if tree == "stick_breaking":
        return goes_right.long().cumprod(-1).sum(-1, keepdim=True)
    n = goes_right.shape[-1] + 1
    leaf = goes_right.new_zeros((*goes_right.shape[:-1], 1), dtype=torch.long)
    for level in reversed(range((n - 1).bit_length())):
        node = leaf + 2**level
        choice = goes_right.gather(-1, (node - 1).clamp(max=n - 2))
        leaf = torch.where(choice & (node < n), node, leaf)
    return leaf


def antithetic_leaves(nodes: Nodes, uniform: Tensor, tree: Tree) -> Tensor:
    """Two categories for one uniform number per node, (pairs, ..., n - 1): (2 pairs, ..., 1)."""
    left, right = chances(nodes)
    return torch.cat([leaf_of(uniform < right, tree), leaf_of(uniform >= left, tree)])


def reaches(nodes: Nodes, leaf: Tensor) -> Tensor:
    """Which nodes are on the path to the leaf."""
    return (nodes.begin <= leaf) & (leaf < nodes.end)


def repeats_unlikely(nodes: Nodes, leaf: Tensor, other: Tensor) -> Tensor:
    """Where both paths make the same choice and it is the less likely one."""
    right, also_right = leaf >= nodes.split, other >= nodes.split
    unlikely = torch.where(right, nodes.right < nodes.left, nodes.left < nodes.right)
    on_both = reaches(nodes, leaf) & reaches(nodes, other)
    return on_both & (right == also_right) & unlikely


def to_logits(nodes: Nodes, tree: Tree, probs: Tensor, gradient: Tensor) -> Tensor:
    """A gradient for the log-odds of the nodes, taken to the logits of the categories.

    The log-odds of a node grow with a logit on its right by that category's share of the right,
    and fall with one on its left by its share of the left. A category adds up the nodes on its
    path.
    """
    n = probs.shape[-1]
    if tree == "stick_breaking":
        # node m has all later categories on its right and category m - 1 alone on its left
        number = torch.finfo(nodes.right.dtype)
        least = number.tiny / number.eps  # no quotient overflows
        before = (gradient / nodes.right.clamp_min(least)).cumsum(-1)
        return pad(-gradient, (0, 1)) + probs * pad(before, (1, 0))
    result = torch.zeros_like(probs)
    leaf = torch.arange(n, device=probs.device)
    for level in range((n - 1).bit_length()):
        node = (leaf >> (level + 1) << (level + 1)) + 2**level
        at = (node - 1).clamp(max=n - 2)
        is_right = leaf >= node
        side = torch.where(is_right, nodes.right[..., at], nodes.left[..., at])
        share = torch.where((side > 0) & (node < n), probs / side, 0)
        result = result + torch.where(is_right, share, -share) * gradient[..., at]
    return result
