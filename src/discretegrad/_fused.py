"""The Triton path of the samplers: check the arguments, draw a seed, launch, attach the gradient.

Kernels are imported where they are called, so that the library needs Triton only where it runs it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._attach import apply_fast, estimate
from ._checks import (
    check_bits,
    check_dim,
    check_generator,
    check_index,
    check_logits,
    check_mask,
    check_rows,
    check_tau,
    check_value,
    values_are_checked,
)
from ._draw import draw_one_seed
from ._math import softmax
from ._select import Handle
from ._types import Temperature


class Method(NamedTuple):
    """Which formula a kernel computes."""

    name: str
    """A key of the kernels' METHODS."""
    gap: float = 0.0
    num_draws: int = 0


def sample(
    name: str,
    method: Method,
    logits: Tensor,
    tau: Temperature,
    dim: int,
    mask: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """One-hot samples of the categorical sampler ``name``, with its gradient."""
    number, tau_rows, mask = _categorical(name, logits, tau, dim, mask)
    check_generator(name, generator, logits)
    seed = draw_one_seed(logits.device, generator)
    return _one_hot(method, logits, number, tau_rows, dim, mask, seed, False)


def sample_at(
    name: str,
    method: Method,
    logits: Tensor,
    index: Tensor,
    tau: Temperature,
    dim: int,
    mask: Tensor | None,
) -> Tensor:
    """The same for categories that are given."""
    number, tau_rows, mask = _categorical(name, logits, tau, dim, mask)
    check_index(name, index, _excluded(logits, mask).movedim(dim, -1))
    source = index.long().reshape(-1)
    return _one_hot(method, logits, number, tau_rows, dim, mask, source, True)


def sample_index(
    name: str,
    method: Method,
    logits: Tensor,
    tau: Temperature,
    dim: int,
    mask: Tensor | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Handle]:
    """The categories of the categorical sampler ``name`` and a handle, without the one-hot."""
    from .kernels import ops

    number, tau_rows, mask = _categorical(name, logits, tau, dim, mask)
    check_generator(name, generator, logits)
    seed = draw_one_seed(logits.device, generator)
    if dim not in (-1, logits.ndim - 1):
        # what select gets has the categories last
        logits = logits.movedim(dim, -1)
        tau_rows = None if tau_rows is None else tau_rows.movedim(dim, -1)
        mask = None if mask is None else mask.movedim(dim, -1)
    fixed = logits.detach()
    _, flat, statistics = ops.draw(fixed, -1, mask, seed, False, False)
    index = flat.reshape(logits.shape[:-1])
    vjp = partial(rows_vjp, method=method, tau=number, dim=-1, given=False, in_place=True)
    return index, Handle(logits, index, vjp, None, (fixed, seed, mask, tau_rows, flat, statistics))


def bernoulli_sample(
    name: str,
    method: Method,
    logits: Tensor,
    tau: Temperature,
    mask: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """0/1 samples of the Bernoulli sampler ``name``, with its gradient."""
    number, tau_rows, mask = _bernoulli(name, logits, tau, mask)
    check_generator(name, generator, logits)
    seed = draw_one_seed(logits.device, generator)
    make, vjp = _draw_bits, partial(_bits_vjp, method=method, tau=number)
    return _attach(make, vjp, logits, seed, mask, tau_rows, None)


def bernoulli_sample_at(
    name: str,
    method: Method,
    logits: Tensor,
    value: Tensor,
    tau: Temperature,
    mask: Tensor | None,
) -> Tensor:
    """The same for values that are given."""
    number, tau_rows, mask = _bernoulli(name, logits, tau, mask)
    check_value(name, value, _excluded(logits, mask))
    make, vjp = _given_bits, partial(_bits_vjp, method=method, tau=number)
    return _attach(make, vjp, logits, None, mask, tau_rows, value != 0)


def _categorical(
    name: str, logits: Tensor, tau: Temperature, dim: int, mask: Tensor | None
) -> tuple[float, Tensor | None, Tensor | None]:
    """tau as a number, tau as a tensor, and the mask, both of the shape of the logits."""
    check_logits(name, logits)
    check_dim(name, logits, dim)
    check_tau(name, tau, logits, dim)
    check_mask(name, mask, logits)
    if values_are_checked(logits):
        last = _excluded(logits, mask).detach().movedim(dim, -1)
        check_rows(name, last, softmax(last.float()))
    return _broadcast(logits, tau, mask)


def _bernoulli(
    name: str, logits: Tensor, tau: Temperature, mask: Tensor | None
) -> tuple[float, Tensor | None, Tensor | None]:
    check_logits(name, logits)
    check_tau(name, tau, logits, None)
    check_mask(name, mask, logits)
    check_bits(name, _excluded(logits, mask))
    return _broadcast(logits, tau, mask)


def _broadcast(
    logits: Tensor, tau: Temperature, mask: Tensor | None
) -> tuple[float, Tensor | None, Tensor | None]:
    if mask is not None:
        mask = mask.to(logits.device).expand(logits.shape)
    if isinstance(tau, Tensor):
        return 1.0, tau.detach().to(logits.device, torch.float32).expand(logits.shape), mask
    return float(tau), None, mask


def _excluded(logits: Tensor, mask: Tensor | None) -> Tensor:
    """The logits as the checks of values want them: nothing is copied where values are not read."""
    if mask is None or not values_are_checked(logits):
        return logits
    return logits.masked_fill(~mask.to(logits.device), -math.inf)


def _one_hot(
    method: Method,
    logits: Tensor,
    tau: float,
    tau_rows: Tensor | None,
    dim: int,
    mask: Tensor | None,
    source: Tensor,
    given: bool,
) -> Tensor:
    make = partial(_draw_rows, dim=dim, given=given)
    vjp = partial(rows_vjp, method=method, tau=tau, dim=dim, given=given)
    return _attach(make, vjp, logits, source, mask, tau_rows)


def _draw_rows(
    logits: Tensor, source: Tensor, mask: Tensor | None, tau_rows: Tensor | None, dim: int,
    given: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    from .kernels import ops

    return ops.draw(logits, dim, mask, source, given, True)


def rows_vjp(
    g: Tensor,
    logits: Tensor,
    source: Tensor,
    mask: Tensor | None,
    tau_rows: Tensor | None,
    index: Tensor,
    statistics: Tensor,
    method: Method,
    tau: float,
    dim: int,
    given: bool,
    in_place: bool = False,
) -> Tensor:
    """The gradient for categorical logits, over ``g`` if that is the caller's own to lose."""
    from .kernels import ops

    return ops.gradient(
        method.name, g, logits, dim, mask, tau, tau_rows, method.gap, method.num_draws, source,
        source if given else index, statistics, in_place,
    )  # fmt: skip


def _draw_bits(
    logits: Tensor, seed: Tensor, mask: Tensor | None, tau_rows: Tensor | None, value: None
) -> tuple[Tensor, ...]:
    from .kernels import ops

    return (ops.draw_bits(logits, mask, seed),)


def _given_bits(
    logits: Tensor, seed: None, mask: Tensor | None, tau_rows: Tensor | None, value: Tensor
) -> tuple[Tensor, ...]:
    return (value.to(logits.dtype),)


def _bits_vjp(
    g: Tensor,
    logits: Tensor,
    seed: Tensor | None,
    mask: Tensor | None,
    tau_rows: Tensor | None,
    value: Tensor | None,
    method: Method,
    tau: float,
) -> Tensor:
    from .kernels import ops

    return ops.gradient_bits(
        method.name, g, logits, mask, tau, tau_rows, method.gap, method.num_draws, seed, value
    )


def _attach(
    make: Callable[..., tuple[Tensor, ...]], vjp: Any, logits: Tensor, *rest: Any
) -> Tensor:
    if not (logits.requires_grad and torch.is_grad_enabled()):
        return make(logits, *rest)[0]
    result: Tensor = apply_fast(_Fused)(make, vjp, logits, *rest)
    return result


class _Fused(torch.autograd.Function):
    """As ``_attach._Attach``, for a sample that is drawn in forward.

    ``make`` returns the sample and what it keeps; ``vjp`` gets the gradient at the sample, the
    logits, the rest of the arguments and what was kept.
    """

    @staticmethod
    def forward(ctx: Any, make: Any, vjp: Any, logits: Tensor, *rest: Tensor | None) -> Tensor:
        made: Tensor
        made, *kept = make(logits, *rest)
        ctx.vjp, ctx.rest = vjp, len(rest)
        ctx.save_for_backward(logits, *rest, *kept)
        return made

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        # the logits, which are saved anyway, lead the graph back: see _attach._Backward
        gradient = estimate(ctx.vjp, None, saved[0], g, saved)
        return None, None, gradient, *[None] * ctx.rest
