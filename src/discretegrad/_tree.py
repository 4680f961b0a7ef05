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
    """The nodes of a tree over n categories with these probabilities."""
    if not is_word(tree, "balanced", "stick_breaking"):
        raise ValueError(
            f'disarm_tree: expected tree to be "balanced" or "stick_breaking", got {tree!r}'
        )
    n = probs.shape[-1]
    split = torch.arange(1, n, device=probs.device)
    if tree == "balanced":
        # the lowest set bit of m is the width of either side
        width = split & -split
        begin, end = split - width, (split + width).clamp(max=n)
    else:
        begin, end = split - 1, torch.full_like(split, n)
    below = torch.cat([torch.zeros_like(probs[..., :1]), probs.cumsum(-1)], -1)
    left = below[..., split] - below[..., begin]
    right = below[..., end] - below[..., split]
    return Nodes(split, begin, end, left, right)


def chance_of_right(nodes: Nodes) -> Tensor:
    """The probability that a node's choice is right; one that is never reached may have any."""
    total = nodes.left + nodes.right
    return torch.where(total > 0, nodes.right / total, 0.5)


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


def reaches(nodes: Nodes, leaf: Tensor) -> Tensor:
    """Which nodes are on the path to the leaf."""
    return (nodes.begin <= leaf) & (leaf < nodes.end)


def repeats_unlikely(nodes: Nodes, leaf: Tensor, other: Tensor) -> Tensor:
    """Where both paths make the same choice and it is the less likely one."""
    right, also_right = leaf >= nodes.split, other >= nodes.split
    chance = chance_of_right(nodes)
    unlikely = torch.where(right, chance < 0.5, chance > 0.5)
    on_both = reaches(nodes, leaf) & reaches(nodes, other)
    return on_both & (right == also_right) & unlikely


def to_logits(nodes: Nodes, probs: Tensor, gradient: Tensor) -> Tensor:
    """A gradient for the log-odds of the nodes, taken to the logits of the categories.

    The log-odds of a node grow with a logit on its right by that category's share of the right. So
    a node adds the same number to all categories on a side, times their probabilities: the numbers
    are entered where a side begins and ends, and summed along the categories.
    """
    right, left = nodes.right.to(gradient.dtype), nodes.left.to(gradient.dtype)
    per_right = torch.where(gradient != 0, gradient / right, 0)
    per_left = torch.where(gradient != 0, gradient / left, 0)
    steps = pad(torch.zeros_like(gradient), (0, 2))
    steps = steps.index_add(-1, nodes.split, per_right + per_left)
    steps = steps.index_add(-1, nodes.end, -per_right)
    steps = steps.index_add(-1, nodes.begin, -per_left)
    return probs * steps.cumsum(-1)[..., :-1]
