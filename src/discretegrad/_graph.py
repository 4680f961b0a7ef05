"""What a tensor depends on, read off the graph that torch keeps for backward."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

Nodes: TypeAlias = Mapping[int, Any]
"""The node of a tensor in each graph that has one: outside ``torch.func`` transforms there is one
graph; each transform that differentiates keeps a graph of its own, known by its level."""


def nodes_of(x: Tensor) -> Nodes:
    """Where a tensor that is no leaf stands in the graphs, empty if no gradient can reach it."""
    return {level: seen.grad_fn for level, seen in _levels(x) if seen.grad_fn is not None}


def can_get_gradient(x: Tensor) -> bool:
    """Whether anybody may ask for a gradient of ``x``: plain torch, or an active transform."""
    forward_mode = forward_ad._current_level >= 0
    return forward_mode or any(seen.requires_grad for _, seen in _levels(x))


def reaches(x: Tensor, nodes: Nodes) -> bool:
    """Whether the gradient of ``x`` arrives at the nodes, in every graph that has one."""
    inner = dict(_levels(x))
    return all(
        level in inner and any(other is node for other in _graph(inner[level]))
        for level, node in nodes.items()
    )


def graph_leaves(x: Tensor) -> Iterator[Tensor]:
    """Everything that ``x.backward()`` would give a gradient."""
    for node in _graph(x):
        # only the node that accumulates the gradient of a leaf has a variable
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf


def _levels(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """``x`` as every active transform sees it, by level, and as plain torch does."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        yield functorch.maybe_get_level(x), x
        x = functorch.get_unwrapped(x)
    yield 0, x


def _graph(x: Tensor) -> Iterator[Any]:
    """All nodes that a backward pass from ``x`` goes through."""
    seen, ahead = set(), [x.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        ahead += [before for before, _ in node.next_functions]
