"""A draw from the softmax of a linear layer, without its logits ever being in memory at once.

A language model has more categories than hidden units, so the logits of a batch are by far its
largest tensor. Here they are made a piece at a time, used, and made again in backward.

The torch path takes a block of rows at a time. The Triton path takes a tile of categories at a
time, which is what matrix products like: forward goes over the tiles once and keeps the largest
logit, the sum of exponentials, the draw and its logit for each row. Backward goes over them twice,
first for the sums over a row that the estimator needs, then for the gradient of each tile, which
two products turn at once into gradients for ``hidden`` and ``head``. Seven products of the size of
all logits, where the plain way has six and holds them all.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from ._attach import apply_fast, estimate
from ._checks import (
    check_count,
    check_flag,
    check_gap,
    check_generator,
    check_linear,
    check_mean_baseline,
    check_one_tau,
    check_options,
    check_products,
    check_sampler,
    check_tau,
    values_are_checked,
)
from ._draw import draw_index, draw_seed
from ._modes import compiling, transforming
from ._noise import seeded_exponential
from ._registry import ESTIMATORS, Estimator
from ._rows import categorical_rows, compute_dtype
from ._select import Handle, select
from ._types import Backend, Method
from .estimators import gapped, mean_baseline
from .estimators.gumbel_rao import chunks
from .kernels.dispatch import choose

# numbers that the torch path has in each tensor of the size of a block of logits
_BLOCK_NUMBERS = 2**24
# bytes of each of the two tiles of the Triton path, for at most this many rows at a time
_TILE_BYTES = 3 * 2**25
_TILE_ROWS = 2**14
# a tile has a multiple of this many categories, and never more than this many
_TILE_STEP = 2**8
_TILE_LONGEST = 2**17

_NAME = "linear_select"


class _Sampler(NamedTuple):
    """What this file needs of a categorical sampler."""

    sample_index: Callable[..., tuple[Tensor, Handle]]
    sample_at: Callable[..., Tensor]
    method: Callable[..., Method] | None
    """The formula of the kernels, from the options; None if there is no kernel over tiles."""
    noise: bool
    options: dict[str, Any]
    """Its options with their defaults."""


def _sampler(row: Estimator) -> _Sampler:
    # a gather needs a category, so there is no relaxed sample
    options = {option: value for option, value in row.options.items() if option != "hard"}
    assert row.index_form is not None
    method = _METHODS.get(row.name)
    return _Sampler(row.index_form, row.functions_at["categorical"], method, row.noise, options)


# gumbel_rao goes over all categories many times, which no kernel does in tiles
_METHODS: dict[str, Callable[..., Method]] = {
    "reinmax": partial(Method, "reinmax"),
    "straight_through": partial(Method, "straight_through"),
    "gumbel_softmax": partial(Method, "gumbel_softmax"),
    "gapped": gapped.kernel,
    "mean_baseline": mean_baseline.kernel,
}
_SAMPLERS = {name: _sampler(row) for name, row in ESTIMATORS.items() if row.index_form is not None}


@overload
def linear_select(
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    estimator: str = ...,
    tau: float = ...,
    *,
    return_index: Literal[False] = ...,
    generator: torch.Generator | None = ...,
    backend: Backend = ...,
    **options: Any,
) -> Tensor: ...


@overload
def linear_select(
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    estimator: str = ...,
    tau: float = ...,
    *,
    return_index: Literal[True],
    generator: torch.Generator | None = ...,
    backend: Backend = ...,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


def linear_select(
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    estimator: str = "reinmax",
    tau: float = 1.0,
    *,
    return_index: bool = False,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Draw a category from the softmax of a linear layer and look it up in a table.

    For a vector h of ``hidden``, with the rows $w_j$ of ``head`` and $v_j$ of ``table``, the logits
    are $l_j = w_j \cdot h$, the draw is $k \sim \mathrm{softmax}(l)$ and the result is $v_k$. With
    g the gradient at the result and $\hat\nabla$ the gradient that the estimator makes for the
    logits from the one-hot's gradient $(g \cdot v_j)_j$,

    $$\frac{\partial}{\partial h} = \sum_j \hat\nabla_j w_j, \qquad
    \frac{\partial}{\partial w_j} = \hat\nabla_j h, \qquad
    \frac{\partial}{\partial v_j} = [j = k]\, g,$$

    the last two summed over the batch. This is ``reinmax(hidden @ head.T) @ table`` for
    vocabularies whose logits and one-hots are too large to hold: it makes them piece by piece, and
    again in backward.

    Properties: those of the estimator. The Triton path holds two tiles of 96 MiB and one float32
    tensor of the size of ``hidden`` besides inputs, outputs and their gradients, whatever the
    number of categories; the torch path a few tensors of at most $2^{24}$ numbers, or of one row.
    Logits are rounded to the dtype of ``hidden``, as in the plain way; sums over them are in
    float32. There is no kernel for ``"gumbel_rao"``, whose draws go over all categories many times.
    On the torch path, ``torch.compile`` and ``torch.func`` transforms hold all logits after all. A
    second derivative is an error.

    Args:
        hidden: (..., width), any floating dtype.
        head: (n, width), one row per category: the weight of ``torch.nn.Linear(width, n)``. It
            may be the same tensor as ``table``.
        table: (n, out), one row per category: the weight of ``torch.nn.Embedding(n, out)``.
        estimator: Whose gradient: the name of a sampler, ``"reinmax"``, ``"straight_through"``,
            ``"gumbel_softmax"``, ``"gumbel_rao"``, ``"gapped"`` or ``"mean_baseline"``.
        tau: Temperature of the gradient, as for the sampler, but always a number.
        return_index: Whether to return the categories too.
        generator: Source of randomness on the device of ``hidden``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.
        **options: The sampler's own: ``gap`` for ``"gapped"``, ``order`` and ``as_released`` for
            ``"mean_baseline"``, ``num_draws`` for ``"gumbel_rao"``.

    Returns:
        ``table[index]``, of shape (..., out); with ``return_index`` also the index, int64, (...).
        Inside ``torch.autocast`` all three inputs are cast as for a matrix product.

    Raises:
        TypeError: If an argument has the wrong type or dtype, or the sampler has no such option.
        ValueError: If shapes or devices do not fit, there is no such sampler, tau is not positive,
            an option is out of its range, or a logit is NaN or infinite. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> hidden = torch.randn(2, 5, 8, requires_grad=True)
        >>> head = torch.randn(1000, 8, requires_grad=True)
        >>> table = torch.randn(1000, 3, requires_grad=True)
        >>> token, index = discretegrad.linear_select(hidden, head, table, return_index=True)
        >>> token.shape, index.shape
        (torch.Size([2, 5, 3]), torch.Size([2, 5]))
        >>> token.square().sum().backward()
        >>> hidden.grad.shape, head.grad.shape, table.grad.shape
        (torch.Size([2, 5, 8]), torch.Size([1000, 8]), torch.Size([1000, 3]))
    """
    check_sampler(_NAME, estimator, list(_SAMPLERS))
    sampler = _SAMPLERS[estimator]
    check_options(estimator, options, ("tau", *sampler.options))
    options = {**sampler.options, **options}
    _check_values(estimator, options)
    check_flag(_NAME, "return_index", return_index)
    hidden, head, table = _autocast(hidden), _autocast(head), _autocast(table)
    check_linear(_NAME, hidden, head, table)
    check_one_tau(_NAME, tau)
    check_tau(_NAME, tau, hidden, None)
    check_generator(_NAME, generator, hidden)
    # not -1, which an empty tensor leaves open
    flat = hidden.reshape(math.prod(hidden.shape[:-1]), hidden.shape[-1])
    with _no_autocast(hidden):
        if choose(_NAME, hidden, backend, _lacking(estimator, head, table)) == "triton":
            assert sampler.method is not None
            method = sampler.method(**options)
            selected, index = _in_tiles(method, flat, head, table, tau, generator)
        elif compiling() or transforming():
            index, handle = sampler.sample_index(
                flat @ head.T, tau, generator=generator, backend=backend, **options
            )
            selected = select(handle, table)
        else:
            selected, index = _in_blocks(sampler, options, flat, head, table, tau, generator)
    selected = selected.reshape(*hidden.shape[:-1], table.shape[1])
    return (selected, index.reshape(hidden.shape[:-1])) if return_index else selected


def _check_values(name: str, options: dict[str, Any]) -> None:
    if "gap" in options:
        check_gap(name, options["gap"])
    if "order" in options:
        check_mean_baseline(name, options["order"], options["as_released"])
    if "num_draws" in options:
        check_count(name, "num_draws", options["num_draws"])


def _lacking(estimator: str, head: Tensor, table: Tensor) -> str:
    """What no kernel does; the dispatcher looks at ``hidden`` itself."""
    if _SAMPLERS[estimator].method is None:
        return f"{estimator} over tiles"
    for x in (head, table):
        if type(x) not in (Tensor, torch.nn.Parameter):
            return f"weights of the subclass {type(x).__name__}"
    return ""


# asked once: torch.compile of some versions cannot trace the question
_AUTOCAST_DEVICES = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)
)


def _autocasts(device: torch.device) -> bool:
    return device.type in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device.type)


def _autocast(x: Tensor) -> Tensor:
    """What ``torch.autocast`` makes of an argument of a matrix product."""
    if not isinstance(x, Tensor) or not _autocasts(x.device):
        return x
    if not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    if not _autocasts(x.device):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


# gradients for hidden and head; what is not asked for may be anything
_LinearVjp = Callable[..., tuple[Tensor, Tensor]]


class _LinearSelect(torch.autograd.Function):
    """``table[index]``; ``vjp`` gets the gradient there, the tensors, and which of two to make."""

    @staticmethod
    def forward(
        ctx: Any,
        vjp: _LinearVjp,
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
    vjp: _LinearVjp,
    needs: tuple[bool, bool, bool],
    g: Tensor,
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    index: Tensor,
    *rest: Tensor | None,
) -> Any:
    g = g.contiguous()
    for_hidden = for_head = for_table = None
    if needs[0] or needs[1]:
        with _no_autocast(g):
            for_hidden, for_head = vjp(g, hidden, head, table, index, *rest, needs[0], needs[1])
    if needs[2]:
        # adds up in float32 whatever the dtype, unlike index_add
        for_table = torch.ops.aten.embedding_dense_backward(g, index, table.shape[0], -1, False)
    return for_hidden if needs[0] else None, for_head if needs[1] else None, for_table


def _in_blocks(
    sampler: _Sampler,
    options: dict[str, Any],
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    tau: float,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """The torch path: ``table[index]`` with its gradient, and the index."""
    index = hidden.new_empty(hidden.shape[0], dtype=torch.int64)
    with torch.no_grad():
        for block in _blocks(hidden, head):
            rows = categorical_rows(_NAME, hidden[block] @ head.T, 1.0, -1, None)
            if values_are_checked(hidden):
                check_products(_NAME, ~rows.probs[:, 0].isnan(), block.start)
            index[block] = draw_index(_NAME, rows, generator).squeeze(-1)
    # last, so that every sampler draws the same categories from the same generator state
    seed = draw_seed(index.unsqueeze(-1), generator) if sampler.noise else None
    vjp = partial(_blocks_vjp, sampler, options, tau)
    selected: Tensor = apply_fast(_LinearSelect)(vjp, hidden, head, table, index, seed)[0]
    return selected, index


def _blocks(hidden: Tensor, head: Tensor) -> Iterator[slice]:
    """Rows whose logits are together few enough."""
    rows, size = hidden.shape[0], max(1, _BLOCK_NUMBERS // head.shape[0])
    return (slice(first, min(first + size, rows)) for first in range(0, rows, size))


def _blocks_vjp(
    sampler: _Sampler,
    options: dict[str, Any],
    tau: float,
    g: Tensor,
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    index: Tensor,
    seed: Tensor | None,
    needs_hidden: bool,
    needs_head: bool,
) -> tuple[Tensor, Tensor]:
    wide = compute_dtype(hidden.dtype)
    for_hidden = torch.empty_like(hidden) if needs_hidden else hidden.new_empty(0)
    for_head = torch.zeros_like(head, dtype=wide) if needs_head else head.new_empty(0)
    for block in _blocks(hidden, head):
        logits = (hidden[block] @ head.T).to(wide)
        at_one_hot = (g[block] @ table.T).to(wide)
        seeds = None if seed is None else seed[block]
        for_logits = _logits_vjp(sampler, options, tau, at_one_hot, logits, index[block], seeds)
        if needs_hidden:
            for_hidden[block] = for_logits.to(head.dtype) @ head
        if needs_head:
            for_head.addmm_(for_logits.T, hidden[block].to(wide))
    return for_hidden, for_head.to(head.dtype)


def _logits_vjp(
    sampler: _Sampler,
    options: dict[str, Any],
    tau: float,
    g: Tensor,
    logits: Tensor,
    index: Tensor,
    seed: Tensor | None,
) -> Tensor:
    """The estimator's gradient for a block of logits, from the deterministic half of a sampler."""
    at = partial(_gradient_at, sampler.sample_at, g, logits, index)
    if seed is None:
        return at(tau=tau, **options)
    if "num_draws" not in options:
        return at(seeded_exponential(seed, 0, 1, logits)[0], tau=tau)
    gradient, num_draws = torch.zeros_like(g), options["num_draws"]
    for first, count in chunks(num_draws, g.numel()):
        noise = seeded_exponential(seed, first, count, logits)
        gradient.add_(at(noise, tau=tau), alpha=count / num_draws)
    return gradient


def _gradient_at(
    sample_at: Callable[..., Tensor],
    g: Tensor,
    logits: Tensor,
    index: Tensor,
    *noise: Tensor,
    **arguments: Any,
) -> Tensor:
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        sample = sample_at(logits, index, *noise, backend="torch", **arguments)
    return torch.autograd.grad(sample, logits, g)[0]


def _in_tiles(
    method: Method,
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    tau: float,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """The Triton path: ``table[index]`` with its gradient, and the index."""
    blocks = -(-hidden.shape[0] // _TILE_ROWS)
    # a pair for each block of rows, because kernels prefer addresses that are multiples of 16
    seeds = draw_seed(hidden.new_empty(blocks, 2), generator)
    draw: Any = _draw_operator if compiling() else _draw_in_tiles
    index, kept = draw(hidden.detach(), head.detach(), seeds)
    if values_are_checked(hidden):
        for block in _row_blocks(hidden.shape[0]):
            check_products(_NAME, _of_block(kept, block)[1] > 0, block.start)
    vjp = partial(_tiles_vjp, method, float(tau))
    selected: Tensor = apply_fast(_LinearSelect)(vjp, hidden, head, table, index, kept, seeds)[0]
    return selected, index


def _tiles_vjp(
    method: Method,
    tau: float,
    g: Tensor,
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    index: Tensor,
    kept: Tensor,
    seeds: Tensor,
    needs_hidden: bool,
    needs_head: bool,
) -> tuple[Tensor, Tensor]:
    run: Any = _gradient_operator if compiling() else _gradient_in_tiles
    tensors = (g, hidden, head, table, index, kept, seeds)
    for_hidden, for_head = run(*tensors, method.name, tau, method.gap, needs_hidden, needs_head)
    return for_hidden, for_head


def _draw_in_tiles(hidden: Tensor, head: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """The index, int64, (rows,), and what else backward needs, see ``_of_block``."""
    from .kernels.categorical import draw_part
    from .kernels.layout import Drawn

    rows, n = hidden.shape[0], head.shape[0]
    index = torch.empty(rows, dtype=torch.int64, device=hidden.device)
    kept = torch.empty(3 * rows, dtype=torch.float32, device=hidden.device)
    with torch.no_grad(), _no_autocast(hidden):
        for block, seed in zip(_row_blocks(rows), seeds, strict=True):
            x = hidden[block]
            drawn = Drawn(index[block], _of_block(kept, block))
            size = _tile_size(x, n)
            buffer = _buffer(x, size)
            for number, weight in enumerate(head.split(size)):
                draw_part(_product(x, weight, buffer), number * size, seed, drawn)
    return index, kept


def _gradient_in_tiles(
    g: Tensor,
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    index: Tensor,
    kept: Tensor,
    seeds: Tensor,
    method: str,
    tau: float,
    gap: float,
    needs_hidden: bool,
    needs_head: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients for ``hidden`` and ``head``, empty where there is no need for one."""
    from .kernels.categorical import LongRows, gradient_part, sums_part
    from .kernels.layout import Drawn

    n = head.shape[0]
    for_hidden = torch.empty_like(hidden) if needs_hidden else hidden.new_empty(0)
    for_head = torch.empty_like(head) if needs_head else head.new_empty(0)
    with torch.no_grad(), _no_autocast(hidden):
        for block, seed in zip(_row_blocks(hidden.shape[0]), seeds, strict=True):
            x, at_table = hidden[block], g[block]
            drawn = Drawn(index[block], _of_block(kept, block))
            own = at_table.to(torch.float32, copy=True).mul_(table.index_select(0, drawn.categories))
            at_draw = own.sum(-1)
            del own
            sums = torch.zeros(5, x.shape[0], dtype=torch.float32, device=x.device)
            known = LongRows(Method(method, gap), tau, seed, drawn, at_draw, sums)
            size = _tile_size(x, n)
            tiles = list(zip(range(0, n, size), head.split(size), table.split(size), strict=True))
            buffers = _buffer(x, size), _buffer(x, size)
            for first, weight, vectors in tiles:
                logits = _product(x, weight, buffers[0])
                at_one_hot = _product(at_table, vectors, buffers[1])
                sums_part(known, at_one_hot, logits, first)
            wide = x.new_zeros(x.shape if needs_hidden else 0, dtype=torch.float32)
            # in reverse: the last tile is still in the buffers
            for first, weight, vectors in reversed(tiles):
                if first != tiles[-1][0]:
                    logits = _product(x, weight, buffers[0])
                    at_one_hot = _product(at_table, vectors, buffers[1])
                for_logits = gradient_part(known, at_one_hot, logits, first)
                if needs_hidden and x.dtype == torch.float32:
                    wide.addmm_(for_logits, weight)
                elif needs_hidden:
                    wide += for_logits @ weight
                if needs_head:
                    into = for_head[first : first + size]
                    if block.start == 0:
                        torch.mm(for_logits.T, x, out=into)
                    else:
                        into.addmm_(for_logits.T, x)
            if needs_hidden:
                for_hidden[block] = wide
    return for_hidden, for_head


def _row_blocks(rows: int) -> list[slice]:
    return [slice(i, min(i + _TILE_ROWS, rows)) for i in range(0, rows, _TILE_ROWS)]


def _tile_size(x: Tensor, n: int) -> int:
    """The categories of a tile."""
    most = min(_TILE_BYTES // (x.shape[0] * x.element_size()), _TILE_LONGEST)
    return min(n, max(_TILE_STEP, most // _TILE_STEP * _TILE_STEP))


def _of_block(kept: Tensor, block: slice) -> Tensor:
    """(3, rows) of a block of rows: the largest logit, the sum of exponentials, the drawn logit."""
    return kept[3 * block.start : 3 * block.stop].view(3, -1)


def _buffer(x: Tensor, size: int) -> Tensor:
    return torch.empty(x.shape[0], size, dtype=x.dtype, device=x.device)


def _product(x: Tensor, weight: Tensor, buffer: Tensor) -> Tensor:
    """``x @ weight.T``, contiguous, in the memory of the buffer."""
    if weight.shape[0] < buffer.shape[1]:
        # the last tile
        size = x.shape[0] * weight.shape[0]
        buffer = buffer.view(-1)[:size].view(x.shape[0], weight.shape[0])
    return torch.mm(x, weight.T, out=buffer)


# see kernels/ops.py: only tracing uses them
_draw_operator = torch.library.custom_op(
    "discretegrad::linear_draw", _draw_in_tiles, mutates_args=()
)
_gradient_operator = torch.library.custom_op(
    "discretegrad::linear_gradient", _gradient_in_tiles, mutates_args=()
)


@_draw_operator.register_fake
def _(hidden: Tensor, head: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    rows = hidden.shape[0]
    return (
        hidden.new_empty(rows, dtype=torch.int64),
        hidden.new_empty(3 * rows, dtype=torch.float32),
    )


@_gradient_operator.register_fake
def _(
    g: Tensor,
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    index: Tensor,
    kept: Tensor,
    seeds: Tensor,
    method: str,
    tau: float,
    gap: float,
    needs_hidden: bool,
    needs_head: bool,
) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(hidden) if needs_hidden else hidden.new_empty(0),
        torch.empty_like(head) if needs_head else head.new_empty(0),
    )
