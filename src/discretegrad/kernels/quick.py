"""The commonest call of a sampler in as few steps of Python as possible.

At 3000 x 10 a GPU is done before Python has asked for the next kernel, so there the steps of Python
are the time of a call. This file is a second way to do what ``samplers`` does, for contiguous
logits in short rows, one temperature, no mask and a draw that is not given. What depends on shapes
and types alone is checked at the first such call and looked up at the next ones, and what is kept
of a draw for its gradient is one allocation.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._attach import estimate
from .._modes import batched, compiling
from .._types import Call, Method
from . import categorical, ops
from .formulas import FORMULAS
from .launch import Plan, is_ready, launch, start
from .layout import Drawn, Rows, contiguous, place


class Known(NamedTuple):
    """All about a call but its tensors."""

    method: Method
    noise: bool
    """Whether the gradient makes noise from the seed."""
    dim: int
    numbers: tuple[float, float]
    """The temperature, and the formula's own number."""
    draw: Plan
    gradient: Plan | None
    """For a contiguous gradient; None if its kernel is not the usual one."""
    rows: int
    even: int
    """The same, rounded up, so that both parts of what is kept begin at a multiple of 16 bytes."""
    device: int


_known: dict[tuple[Any, ...], Known] = {}
_MOST = 4096


def find(call: Call, method: Method) -> Known | None:
    """What is known about a call that has neither a mask nor several temperatures."""
    _, logits, tau, dim, _, _ = call
    # types, because True is equal to 1
    if type(tau) is not float or type(dim) is not int:
        return None
    return _known.get(
        (logits.shape, logits.stride(), logits.dtype, logits.device, dim, tau, method)
    )


def learn(call: Call, method: Method) -> Known | None:
    """The same for a call whose shapes and types were checked; None if it is not one for here."""
    _, logits, tau, dim, _, _ = call
    if type(tau) is not float or type(dim) is not int or not logits.is_contiguous():
        return None
    rows = Rows(logits, dim, None, tau)
    where = place(rows)
    drawing = categorical.draw_plan(where, False, True)
    if drawing.zeroed or drawing.pieces is not None:
        return None
    gradient, count = None, drawing.rows
    if not FORMULAS[method.name].many_draws:
        at_sample = (contiguous(logits.shape), logits.dtype, False)
        plan = categorical.gradient_plan(where, at_sample, method.name, rows.tempered)
        gradient = plan.write if plan.sums is None else None
    known = Known(
        method,
        FORMULAS[method.name].noise,
        dim,
        (tau, method.option),
        drawing.draw,
        gradient,
        rows=count,
        even=count + count % 2,
        device=logits.get_device(),
    )
    if len(_known) >= _MOST:
        _known.clear()
    key = (logits.shape, logits.stride(), logits.dtype, logits.device, dim, tau, method)
    _known[key] = known
    return known


class _Quick(torch.autograd.Function):
    """As ``samplers._OneHot``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, known: Known, seed: Tensor) -> Tensor:
        sample = torch.empty_like(logits)
        kept = torch.empty(2 * known.even, dtype=torch.int64, device=logits.device)
        at = logits.data_ptr()
        if at % 16 == 0 and is_ready(known.draw, known.device):
            at_kept = kept.data_ptr()
            addresses = (
                at, at, sample.data_ptr(), seed.data_ptr(), at_kept, at_kept + 8 * known.even
            )  # fmt: skip
            start(known.draw, known.device, addresses)
        else:
            launch(known.draw, [logits, logits, sample, seed, *_drawn(known, kept)])
        ctx.known = known
        if known.noise:
            ctx.save_for_backward(logits, kept, seed)
        else:
            ctx.save_for_backward(logits, kept)
        return sample

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            # the logits, which are saved anyway, lead the graph back: see _attach._Backward
            return estimate(partial(_vjp, ctx.known), None, saved[0], g, saved), None, None
        return _vjp(ctx.known, g, *saved), None, None


def _vjp(
    known: Known, g: Tensor, logits: Tensor, kept: Tensor, seed: Tensor | None = None
) -> Tensor:
    plan, at, at_g = known.gradient, 1, 1
    if plan is not None and not (compiling() or batched(g)):
        if g.is_contiguous() and g.dtype == logits.dtype:
            at, at_g = logits.data_ptr(), g.data_ptr()
    if plan is None or (at | at_g) % 16 or not is_ready(plan, known.device):
        rows = Rows(logits, known.dim, None, known.numbers[0])
        return ops.gradient(known.method, g, rows, seed, _drawn(known, kept))
    result = torch.empty_like(logits)
    index = kept.data_ptr()
    statistics = index + 8 * known.even
    # as in ``categorical.gradient``, where they have names
    addresses = (
        at, at, at_g, at, result.data_ptr(), statistics, index, statistics,
        index if seed is None else seed.data_ptr(), statistics,
    )  # fmt: skip
    start(plan, known.device, addresses, known.numbers)
    return result


def _drawn(known: Known, kept: Tensor) -> Drawn:
    """The two parts of what is kept, as tensors."""
    statistics = kept[known.even :].view(torch.float32)[: 2 * known.rows]
    return Drawn(kept[: known.rows], statistics.view(2, known.rows))


# as _attach.apply_fast does it; torch.func transforms never come here
apply: Any = super(torch.autograd.Function, _Quick).apply
