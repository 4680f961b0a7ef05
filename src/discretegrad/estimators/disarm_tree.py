"""DisARM for categories: every category is a path through a tree of binary choices.

Dong et al., "Coupled Gradient Estimators for Discrete Latent Variables", NeurIPS 2021.
arXiv:2106.08056
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._checks import check_only_family, check_pairs, check_tree
from .._draw import draw_uniform
from .._score import Task, evaluate, finish, one_hot, open_task, signal, spread, wants_gradient
from .._types import Family, Objective

Tree = Literal["balanced", "stick_breaking"]


def disarm_tree(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 2,
    family: Family = "categorical",
    tree: Tree = "balanced",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over antithetic pairs, with the DisARM-Tree gradient for the logits.

    The categories are the leaves of a binary tree. Node i goes right with probability
    $\rho_i = \sigma(\phi_i)$, where $\phi_i$ is the log-sum-exp of the logits on its right minus
    that on its left. One uniform number per node gives two antithetic choices $b_i$ and
    $\tilde b_i$, and so two categories $z$ and $\tilde z$. With $\Delta = f(z) - f(\tilde z)$ the
    gradient for $\phi_i$ is

    $$\hat\nabla_{\phi_i} = \tfrac12 \Delta \cdot \begin{cases}
    (b_i - \tilde b_i)\, \sigma(|\phi_i|) & \text{if } i \text{ is on both paths} \\
    b_i - \rho_i & \text{if only on the path to } z \\
    -(\tilde b_i - \rho_i) & \text{if only on the path to } \tilde z \\
    0 & \text{else} \end{cases}$$

    and the chain rule takes it to the logits. It is DisARM on the independent bits of all nodes,
    averaged over the choices that neither category depends on.

    Symbols: ``num_samples / 2`` pairs; the shape of the tree is ``tree``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample. For two categories it is DisARM.

    Differs from the paper: any number of categories; a tree whose size is no power of two has
    shorter branches at its right end.

    Args:
        logits: (..., n), categories last, any floating dtype.
        f: As for ``reinforce``.
        num_samples: Samples to average over, an even number.
        family: ``"categorical"``; for bits see ``discretegrad.bernoulli.disarm``.
        tree: ``"balanced"`` halves the categories at every node; ``"stick_breaking"`` decides
            about one category after the other, from the first to the last.
        mask: As for ``reinforce``.
        generator: As for ``reinforce``.
        vectorize: As for ``reinforce``.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: As ``reinforce``.
        ValueError: As ``reinforce``, and if ``num_samples`` is odd.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(5, requires_grad=True)
        >>> loss = discretegrad.disarm_tree(logits, lambda z: z.argmax(-1) == 2, num_samples=200)
        >>> loss.backward()
        >>> int(logits.grad.argmax())
        2
    """
    name = "disarm_tree"
    check_only_family(name, family, "categorical", "bernoulli.disarm or leave_one_out")
    task = open_task(name, logits, f, family, mask, vectorize)
    check_pairs(name, num_samples, "leave_one_out")
    check_tree(name, tree)
    shape = (num_samples // 2, *task.mean.shape[:-1], task.mean.shape[-1] - 1)
    return _at(task, draw_uniform(name, shape, task.logits, generator), tree)


class _Nodes(NamedTuple):
    """Node m = 1 ... n - 1 splits the categories from ``begin`` to ``end`` in front of m."""

    split: Tensor
    begin: Tensor
    end: Tensor
    left: Tensor
    """Probability of the categories on the left, (..., n - 1)."""
    right: Tensor


def _at(task: Task, uniform: Tensor, tree: Tree) -> Tensor:
    nodes = _nodes(task.mean.to(uniform.dtype), tree)
    total = nodes.left + nodes.right
    # a node that is never reached may have any chance
    chance = torch.where(total > 0, nodes.right / total, 0.5)
    z, other = _leaf(uniform < chance, tree), _leaf(uniform >= 1 - chance, tree)
    losses = evaluate(task, one_hot(task, torch.cat([z, other])))
    if not wants_gradient(task):
        return losses.mean(0)

    chance = chance.to(task.mean.dtype)
    on_path, on_other = (_reaches(nodes, leaf) for leaf in (z, other))
    b, b_other = ((leaf >= nodes.split).to(chance.dtype) for leaf in (z, other))
    both = (b - b_other) * torch.maximum(chance, 1 - chance)
    alone = torch.where(on_path, b - chance, chance - b_other)
    weight = torch.where(on_path & on_other, both, alone)
    weight = torch.where(on_path | on_other, weight, 0)
    f_z, f_other = signal(task, losses).chunk(2)
    for_nodes = (spread((f_z - f_other) / 2, weight) * weight).mean(0)
    return finish(task, losses, _to_logits(task, nodes, for_nodes))


def _nodes(probs: Tensor, tree: Tree) -> _Nodes:
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
    return _Nodes(split, begin, end, left, right)


def _leaf(goes_right: Tensor, tree: Tree) -> Tensor:
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


def _reaches(nodes: _Nodes, leaf: Tensor) -> Tensor:
    """Which nodes are on the path to the leaf."""
    return (nodes.begin <= leaf) & (leaf < nodes.end)


def _to_logits(task: Task, nodes: _Nodes, gradient: Tensor) -> Tensor:
    """The chain rule: phi grows with a logit on its right by that category's share of the right.

    A node adds the same number to all categories on a side, times their probabilities: the
    numbers are entered where a side begins and ends, and summed along the categories.
    """
    right, left = nodes.right.to(gradient.dtype), nodes.left.to(gradient.dtype)
    per_right = torch.where(gradient != 0, gradient / right, 0)
    per_left = torch.where(gradient != 0, gradient / left, 0)
    steps = torch.nn.functional.pad(torch.zeros_like(gradient), (0, 2))
    steps = steps.index_add(-1, nodes.split, per_right + per_left)
    steps = steps.index_add(-1, nodes.end, -per_right)
    steps = steps.index_add(-1, nodes.begin, -per_left)
    return task.mean * steps.cumsum(-1)[..., :-1]
