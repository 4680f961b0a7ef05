"""What both paths share: the three tensors, their gradients, and what autocast makes of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._attach import apply_fast, compiled_without_gradient, estimate
from .._math import add_rows

NAME = "linear_select"


class Layer(NamedTuple):
    """A linear layer, its input and a table, all of one dtype and device."""

    hidden: Tensor
    """(rows, width)."""
    head: Tensor
    """(n, width)."""
    table: Tensor
    """(n, out)."""


# vjp(needs, g, layer, index, *rest): gradients for hidden and head, given the gradient g at the
# result; what ``needs`` does not ask for may be anything
LayerVjp = Callable[..., tuple[Tensor, Tensor]]
Needs = tuple[bool, bool]


def attach(vjp: LayerVjp, layer: Layer, index: Tensor, *rest: Tensor | None) -> Tensor:
    """``table[index]`` with its gradients."""
    if compiled_without_gradient(*layer):
        return layer.table.index_select(0, index)
    selected: Tensor = apply_fast(_Select)(vjp, *layer, index, *rest)[0]
    return selected


class _Select(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vjp: LayerVjp,
        hidden: Tensor,
        head: Tensor,
        table: Tensor,
        index: Tensor,
        *rest: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        # the empty second output ties the gradient to this node: see _attach._Backward
        anchor = hidden.new_empty(0)
        ctx.vjp = vjp
        ctx.save_for_backward(anchor, hidden, head, table, index, *rest)
        ctx.set_materialize_grads(False)
        return table.index_select(0, index), anchor

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: None) -> tuple[Tensor | None, ...]:
        anchor, *saved = ctx.saved_tensors
        needs = tuple(ctx.needs_input_grad[1:4])
        gradients: Any = estimate(partial(_gradients, ctx.vjp, needs), None, anchor, g, saved)
        return None, *gradients, *[None] * (len(saved) - 3)


def _gradients(
    vjp: LayerVjp, needs: tuple[bool, bool, bool], g: Tensor, *saved: Tensor | None
) -> Any:
    """For hidden, head and table, None where there is no need for one."""
    hidden, head, table, index, *rest = saved
    layer = Layer(hidden, head, table)  # type: ignore[arg-type]
    g = g.contiguous()
    for_hidden = for_head = for_table = None
    if needs[0] or needs[1]:
        with no_autocast(g):
            for_hidden, for_head = vjp(needs[:2], g, layer, index, *rest)
    if needs[2]:
        assert index is not None
        for_table = add_rows(g, index, layer.table.shape[0])
    return for_hidden if needs[0] else None, for_head if needs[1] else None, for_table


def check_products(good: Tensor, first_row: int) -> None:
    """All rows, (rows,), are ``good``: their logits have a softmax. Reads values."""
    if not good.all():
        row = first_row + int((~good).nonzero()[0])
        raise ValueError(
            f"{NAME}: expected finite logits hidden @ head.T, got NaN or inf in row {row}. Find "
            "their origin with torch.autograd.set_detect_anomaly(True)."
        )


# asked once: torch.compile of some versions cannot trace the question
_AUTOCAST_DEVICES = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)
)


def _autocasts(device: torch.device) -> bool:
    return device.type in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device.type)


def autocast(x: Tensor) -> Tensor:
    """What ``torch.autocast`` makes of an argument of a matrix product."""
    if not isinstance(x, Tensor) or not _autocasts(x.device):
        return x
    if not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Outside of ``torch.autocast``, whose casts are done."""
    if not _autocasts(x.device):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)
