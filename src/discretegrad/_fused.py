"""The Triton path of the samplers: check the arguments, draw a seed, launch, attach the gradient.

Kernels are imported where they are called, so that the library needs Triton only where it runs it.
"""

import math
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
    return _one_hot((method, number, dim, False), logits, seed, mask, tau_rows)


def sample_at(
    name: str,
    method: Method,
    logits: Tensor,
    index: Tensor,
    tau: Temperature,
    dim: int,
    mask: Tensor | None,
    seed: Tensor | None = None,
) -> Tensor:
    """The same for categories that are given; ``seed`` is that of noise in backward."""
    number, tau_rows, mask = _categorical(name, logits, tau, dim, mask)
    check_index(name, index, _excluded(logits, mask).movedim(dim, -1))
    # an expanded index has a flat view that is expanded still
    source = index.long().contiguous().view(-1)
    return _one_hot((method, number, dim, True), logits, source, mask, tau_rows, seed)


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
    vjp = partial(rows_vjp, (method, number, -1, False), in_place=True)
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
    return _zero_one((method, number), logits, seed, mask, tau_rows, None)


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
    return _zero_one((method, number), logits, None, mask, tau_rows, value != 0)


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


# method, temperature, category axis, whether the draw is given
_RowConstants = tuple[Method, float, int, bool]
# method, temperature
_BitConstants = tuple[Method, float]


def _one_hot(
    constants: _RowConstants,
    logits: Tensor,
    source: Tensor,
    mask: Tensor | None,
    tau_rows: Tensor | None,
    seed: Tensor | None = None,
) -> Tensor:
    from .kernels import ops

    if logits.requires_grad and torch.is_grad_enabled():
        attached: Tensor = apply_fast(_Rows)(constants, logits, source, mask, tau_rows, seed)
        return attached
    return ops.draw(logits, constants[2], mask, source, constants[3], True)[0]


class _Rows(torch.autograd.Function):
    """As ``_attach._Attach``, for one-hots that are drawn in forward.

    In few steps, because at small sizes the time of a call is that of its Python code.
    """

    @staticmethod
    def forward(
        ctx: Any,
        constants: _RowConstants,
        logits: Tensor,
        source: Tensor,
        mask: Tensor | None,
        tau_rows: Tensor | None,
        seed: Tensor | None,
    ) -> Tensor:
        from .kernels import ops

        _, _, dim, given = constants
        sample, index, statistics = ops.draw(logits, dim, mask, source, given, True)
        ctx.constants = constants
        ctx.save_for_backward(logits, source, mask, tau_rows, index, statistics, seed)
        return sample

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            # the logits, which are saved anyway, lead the graph back: see _attach._Backward
            vjp = partial(rows_vjp, ctx.constants)
            return None, estimate(vjp, None, saved[0], g, saved), None, None, None, None
        return None, rows_vjp(ctx.constants, g, *saved), None, None, None, None


def rows_vjp(
    constants: _RowConstants,
    g: Tensor,
    logits: Tensor,
    source: Tensor,
    mask: Tensor | None,
    tau_rows: Tensor | None,
    index: Tensor,
    statistics: Tensor,
    seed: Tensor | None = None,
    in_place: bool = False,
) -> Tensor:
    """The gradient for categorical logits, over ``g`` if that is the caller's own to lose."""
    from .kernels import ops

    method, tau, dim, given = constants
    return ops.gradient(
        method.name, g, logits, dim, mask, tau, tau_rows, method.gap, method.num_draws,
        source if seed is None else seed, source if given else index, statistics, in_place,
    )  # fmt: skip


def _zero_one(
    constants: _BitConstants,
    logits: Tensor,
    seed: Tensor | None,
    mask: Tensor | None,
    tau_rows: Tensor | None,
    value: Tensor | None,
) -> Tensor:
    if logits.requires_grad and torch.is_grad_enabled():
        attached: Tensor = apply_fast(_Bits)(constants, logits, seed, mask, tau_rows, value)
        return attached
    return _draw_bits(logits, seed, mask, value)


def _draw_bits(
    logits: Tensor, seed: Tensor | None, mask: Tensor | None, value: Tensor | None
) -> Tensor:
    from .kernels import ops

    if seed is None:
        assert value is not None
        return value.to(logits.dtype)
    return ops.draw_bits(logits, mask, seed)


class _Bits(torch.autograd.Function):
    """The same for zeros and ones."""

    @staticmethod
    def forward(
        ctx: Any,
        constants: _BitConstants,
        logits: Tensor,
        seed: Tensor | None,
        mask: Tensor | None,
        tau_rows: Tensor | None,
        value: Tensor | None,
    ) -> Tensor:
        ctx.constants = constants
        ctx.save_for_backward(logits, seed, mask, tau_rows, value)
        return _draw_bits(logits, seed, mask, value)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        vjp = partial(_bits_vjp, ctx.constants)
        return None, estimate(vjp, None, saved[0], g, saved), None, None, None, None


def _bits_vjp(
    constants: _BitConstants,
    g: Tensor,
    logits: Tensor,
    seed: Tensor | None,
    mask: Tensor | None,
    tau_rows: Tensor | None,
    value: Tensor | None,
) -> Tensor:
    from .kernels import ops

    method, tau = constants
    return ops.gradient_bits(
        method.name, g, logits, mask, tau, tau_rows, method.gap, method.num_draws, seed, value
    )
