"""The kernels as operators: called directly in eager mode, registered for ``torch.compile``.

A registered operator costs more time at each call than a small sample, so only tracing uses it.
"""

from typing import Any

import torch
from torch import Tensor

from .._modes import compiling
from . import bernoulli, categorical, gumbel_rao
from .categorical import Drawn


def draw(
    logits: Tensor, dim: int, mask: Tensor | None, source: Tensor, given: bool, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``categorical.draw``: the sample, the index (empty if it was given), the statistics."""
    run = _draw_operator if compiling() else _draw
    return run(logits, dim, mask, source, given, dense)


def gradient(
    method: str,
    g: Tensor,
    logits: Tensor,
    dim: int,
    mask: Tensor | None,
    tau: float,
    tau_rows: Tensor | None,
    gap: float,
    num_draws: int,
    seed: Tensor,
    index: Tensor,
    statistics: Tensor,
    in_place: bool,
) -> Tensor:
    """See ``categorical.gradient`` and ``gumbel_rao.gradient``."""
    arguments = (
        method, g, logits, dim, mask, tau, tau_rows, gap, num_draws, seed, index, statistics
    )  # fmt: skip
    if compiling():
        # a traced operator changes nothing it was given: the compiler reuses memory itself
        return _gradient_operator(*arguments)  # type: ignore[no-any-return]
    return _gradient(*arguments, in_place=in_place)


def draw_bits(logits: Tensor, mask: Tensor | None, seed: Tensor) -> Tensor:
    """See ``bernoulli.draw``."""
    run: Any = _draw_bits_operator if compiling() else bernoulli.draw
    return run(logits, mask, seed)  # type: ignore[no-any-return]


def gradient_bits(
    method: str,
    g: Tensor,
    logits: Tensor,
    mask: Tensor | None,
    tau: float,
    tau_rows: Tensor | None,
    gap: float,
    num_draws: int,
    seed: Tensor | None,
    value: Tensor | None,
) -> Tensor:
    """See ``bernoulli.gradient``."""
    run: Any = _gradient_bits_operator if compiling() else _gradient_bits
    return run(  # type: ignore[no-any-return]
        method, g, logits, mask, tau, tau_rows, gap, num_draws, seed, value
    )


def _draw(
    logits: Tensor, dim: int, mask: Tensor | None, source: Tensor, given: bool, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    sample, drawn = categorical.draw(logits, dim, mask, source, given=given, dense=dense)
    # an operator must not return what it was given
    index = logits.new_empty(0, dtype=torch.int64) if given else drawn.index
    return sample, index, drawn.statistics


def _gradient(
    method: str,
    g: Tensor,
    logits: Tensor,
    dim: int,
    mask: Tensor | None,
    tau: float,
    tau_rows: Tensor | None,
    gap: float,
    num_draws: int,
    seed: Tensor,
    index: Tensor,
    statistics: Tensor,
    in_place: bool = False,
) -> Tensor:
    temperature = tau if tau_rows is None else tau_rows
    drawn = Drawn(index, statistics)
    if method == "gumbel_rao":
        return gumbel_rao.gradient(
            g, logits, dim, mask, temperature, num_draws, seed, drawn, in_place=in_place
        )
    return categorical.gradient(
        method, g, logits, dim, mask, temperature, gap, seed, drawn, in_place=in_place
    )


def _gradient_bits(
    method: str,
    g: Tensor,
    logits: Tensor,
    mask: Tensor | None,
    tau: float,
    tau_rows: Tensor | None,
    gap: float,
    num_draws: int,
    seed: Tensor | None,
    value: Tensor | None,
) -> Tensor:
    temperature = tau if tau_rows is None else tau_rows
    return bernoulli.gradient(method, g, logits, mask, temperature, gap, num_draws, seed, value)


_draw_operator = torch.library.custom_op("discretegrad::draw", _draw, mutates_args=())
_gradient_operator = torch.library.custom_op("discretegrad::gradient", _gradient, mutates_args=())
_draw_bits_operator = torch.library.custom_op(
    "discretegrad::draw_bits", bernoulli.draw, mutates_args=()
)
_gradient_bits_operator = torch.library.custom_op(
    "discretegrad::gradient_bits", _gradient_bits, mutates_args=()
)


@_draw_operator.register_fake
def _(
    logits: Tensor, dim: int, mask: Tensor | None, source: Tensor, given: bool, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.numel() // logits.shape[dim]
    return (
        logits.new_empty(logits.shape if dense else [0]),
        logits.new_empty(0 if given else rows, dtype=torch.int64),
        logits.new_empty(2, rows, dtype=torch.float32),
    )


@_gradient_operator.register_fake
@_gradient_bits_operator.register_fake
def _(method: str, g: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(logits.shape)


@_draw_bits_operator.register_fake
def _(logits: Tensor, mask: Tensor | None, seed: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)
