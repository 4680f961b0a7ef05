"""The kernels as operators: called directly in eager mode, registered for ``torch.compile``.

A registered operator costs more time at each call than a small sample, so only tracing uses it,
and ``is_grads_batched``.
"""

from typing import Any

import torch
from torch import Tensor

from .._modes import batched, compiling
from .._types import Method
from . import bernoulli, categorical, gumbel_rao, subset
from .formulas import FORMULAS
from .layout import Bits, Drawn, Rows


def draw(rows: Rows, source: Tensor, given: bool, dense: bool) -> tuple[Tensor | None, Drawn]:
    """See ``categorical.draw``."""
    if not compiling():
        return categorical.draw(rows, source, given, dense)
    sample, index, statistics = _draw(rows.logits, rows.dim, rows.mask, source, given, dense)
    return sample, Drawn(source if given else index, statistics)


def gradient(
    method: Method, g: Tensor, rows: Rows, seed: Tensor | None, drawn: Drawn, in_place: bool = False
) -> Tensor:
    """See ``categorical.gradient`` and ``gumbel_rao.gradient``."""
    if compiling() or batched(g):
        # a traced operator changes nothing it was given: the compiler reuses memory itself
        return _gradient(*method, g, *rows, seed, *drawn)  # type: ignore[no-any-return]
    run: Any = gumbel_rao if FORMULAS[method.name].many_draws else categorical
    return run.gradient(method, g, rows, seed, drawn, in_place)  # type: ignore[no-any-return]


def draw_bits(bits: Bits, seed: Tensor) -> Tensor:
    """See ``bernoulli.draw``."""
    if compiling():
        return _draw_bits(bits.logits, bits.mask, seed)  # type: ignore[no-any-return]
    return bernoulli.draw(bits, seed)


def gradient_bits(
    method: Method, g: Tensor, bits: Bits, seed: Tensor | None, value: Tensor | None
) -> Tensor:
    """See ``bernoulli.gradient``."""
    if compiling() or batched(g):
        return _gradient_bits(*method, g, *bits, seed, value)  # type: ignore[no-any-return]
    return bernoulli.gradient(method, g, bits, seed, value)


def balance_subsets(natural: Tensor, k: int, shifted: bool) -> Tensor:
    """See ``subset.balance``."""
    return (_balance_subsets if compiling() else subset.balance)(natural, k, shifted)


def moments_of_subsets(point: Tensor, k: int, g: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """See ``subset.moments``."""
    return (_moments_of_subsets if compiling() else subset.moments)(point, k, g)


def second_order_of_subsets(
    point: Tensor, k: int, g: Tensor, drawn: Tensor, weight: float
) -> Tensor:
    """See ``subset.second_order``."""
    run = _second_order_of_subsets if compiling() else subset.second_order
    return run(point, k, g, drawn, weight)


def draw_subsets(point: Tensor, k: int, uniform: Tensor) -> Tensor:
    """See ``subset.draw``."""
    return (_draw_subsets if compiling() else subset.draw)(point, k, uniform)


# the registered operators: the same with one argument for each part of the tuples


@torch.library.custom_op("discretegrad::draw", mutates_args=())
def _draw(
    logits: Tensor, dim: int, mask: Tensor | None, source: Tensor, given: bool, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The sample (empty if not dense), the index (empty if it was given), the statistics."""
    sample, drawn = categorical.draw(Rows(logits, dim, mask), source, given, dense)
    # an operator must not return what it was given
    index = logits.new_empty(0, dtype=torch.int64) if given else drawn.categories
    return logits.new_empty(0) if sample is None else sample, index, drawn.statistics


@torch.library.custom_op("discretegrad::gradient", mutates_args=())
def _gradient(
    name: str,
    option: float,
    num_draws: int,
    g: Tensor,
    logits: Tensor,
    dim: int,
    mask: Tensor | None,
    tau: float,
    tau_rows: Tensor | None,
    seed: Tensor | None,
    index: Tensor,
    statistics: Tensor,
) -> Tensor:
    rows = Rows(logits, dim, mask, tau, tau_rows)
    return gradient(Method(name, option, num_draws), g, rows, seed, Drawn(index, statistics))


@torch.library.custom_op("discretegrad::draw_bits", mutates_args=())
def _draw_bits(logits: Tensor, mask: Tensor | None, seed: Tensor) -> Tensor:
    return bernoulli.draw(Bits(logits, mask), seed)


@torch.library.custom_op("discretegrad::gradient_bits", mutates_args=())
def _gradient_bits(
    name: str,
    option: float,
    num_draws: int,
    g: Tensor,
    logits: Tensor,
    mask: Tensor | None,
    tau: float,
    tau_bits: Tensor | None,
    seed: Tensor | None,
    value: Tensor | None,
) -> Tensor:
    bits = Bits(logits, mask, tau, tau_bits)
    return bernoulli.gradient(Method(name, option, num_draws), g, bits, seed, value)


@torch.library.custom_op("discretegrad::balance_subsets", mutates_args=())
def _balance_subsets(natural: Tensor, k: int, shifted: bool) -> Tensor:
    return subset.balance(natural, k, shifted)


@torch.library.custom_op("discretegrad::moments_of_subsets", mutates_args=())
def _moments_of_subsets(point: Tensor, k: int, g: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return subset.moments(point, k, g)


@torch.library.custom_op("discretegrad::second_order_of_subsets", mutates_args=())
def _second_order_of_subsets(
    point: Tensor, k: int, g: Tensor, drawn: Tensor, weight: float
) -> Tensor:
    return subset.second_order(point, k, g, drawn, weight)


@torch.library.custom_op("discretegrad::draw_subsets", mutates_args=())
def _draw_subsets(point: Tensor, k: int, uniform: Tensor) -> Tensor:
    return subset.draw(point, k, uniform)


@_draw.register_fake
def _(
    logits: Tensor, dim: int, mask: Tensor | None, source: Tensor, given: bool, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.numel() // logits.shape[dim]
    return (
        logits.new_empty(logits.shape if dense else [0]),
        logits.new_empty(0 if given else rows, dtype=torch.int64),
        logits.new_empty(2, rows, dtype=torch.float32),
    )


@_gradient.register_fake
@_gradient_bits.register_fake
def _(name: str, option: float, num_draws: int, g: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(logits.shape)


@_draw_bits.register_fake
def _(logits: Tensor, mask: Tensor | None, seed: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


@_balance_subsets.register_fake
@_second_order_of_subsets.register_fake
def _(point: Tensor, *rest: Any) -> Tensor:
    return point.new_empty(point.shape)


@_moments_of_subsets.register_fake
def _(point: Tensor, k: int, g: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    product = point.new_empty(0 if g is None else point.shape)
    return point.new_empty(point.shape), point.new_empty(point.shape), product


@_draw_subsets.register_fake
def _(point: Tensor, k: int, uniform: Tensor) -> Tensor:
    return point.new_empty((uniform.shape[0], *point.shape), dtype=torch.bool)
