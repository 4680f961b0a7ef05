"""The Triton path: a tile of categories at a time, which is what matrix products like.

Forward goes over the tiles once and keeps the largest logit, the sum of exponentials, the draw and
its logit for each row. Backward goes over them twice, first for the sums over a row that the
estimator needs, then for the gradient of each tile, which two products turn at once into gradients
for ``hidden`` and ``head``. Seven products of the size of all logits, where the plain way has six
and holds them all.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._checks import values_are_checked
from .._modes import batched, compiling
from .._random import draw_seeds
from .._types import Method
from .layer import Layer, Needs, attach, check_products, no_autocast

# bytes of each of the two tiles, for at most this many rows at a time
_TILE_BYTES = 3 * 2**25
_TILE_ROWS = 2**14
# a tile has a multiple of this many categories, and never more than this many
_TILE_STEP = 2**8
_TILE_LONGEST = 2**17


def select_in_tiles(
    method: Method, layer: Layer, tau: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """``table[index]`` with its gradient, and the index."""
    hidden, head, _ = layer
    blocks = -(-hidden.shape[0] // _TILE_ROWS)
    # a pair for each block of rows, because kernels prefer addresses that are multiples of 16
    seeds = draw_seeds((blocks, 2), hidden.device, generator)
    draw: Any = _draw_operator if compiling() else _draw_in_tiles
    index, kept = draw(hidden.detach(), head.detach(), seeds)
    if values_are_checked(hidden):
        for block in _row_blocks(hidden.shape[0]):
            check_products(_of_block(kept, block)[1] > 0, block.start)
    vjp = partial(_vjp, method, float(tau))
    return attach(vjp, layer, index, kept, seeds), index


def _vjp(
    method: Method, tau: float, needs: Needs, g: Tensor, layer: Layer, *rest: Tensor
) -> tuple[Tensor, Tensor]:
    run: Any = _gradient_operator if compiling() or batched(g) else _gradient_in_tiles
    for_hidden, for_head = run(g, *layer, *rest, method.name, tau, method.option, *needs)
    return for_hidden, for_head


def _draw_in_tiles(hidden: Tensor, head: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """The index, int64, (rows,), and what else backward needs, see ``_of_block``."""
    from ..kernels.categorical import draw_part
    from ..kernels.layout import Drawn

    rows, n = hidden.shape[0], head.shape[0]
    index = torch.empty(rows, dtype=torch.int64, device=hidden.device)
    kept = torch.empty(3 * rows, dtype=torch.float32, device=hidden.device)
    with torch.no_grad(), no_autocast(hidden):
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
    option: float,
    needs_hidden: bool,
    needs_head: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients for ``hidden`` and ``head``, empty where there is no need for one."""
    from ..kernels.categorical import LongRows, gradient_part, sums_part
    from ..kernels.layout import Drawn

    n = head.shape[0]
    for_hidden = torch.empty_like(hidden) if needs_hidden else hidden.new_empty(0)
    for_head = torch.empty_like(head) if needs_head else head.new_empty(0)
    with torch.no_grad(), no_autocast(hidden):
        for block, seed in zip(_row_blocks(hidden.shape[0]), seeds, strict=True):
            x, at_table = hidden[block], g[block]
            drawn = Drawn(index[block], _of_block(kept, block))
            own = at_table.to(torch.float32, copy=True).mul_(
                table.index_select(0, drawn.categories)
            )
            at_draw = own.sum(-1)
            del own
            sums = torch.zeros(8, x.shape[0], dtype=torch.float32, device=x.device)
            known = LongRows(Method(method, option), tau, seed, drawn, at_draw, sums)
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
def _(g: Tensor, hidden: Tensor, head: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, needs_hidden, needs_head = rest
    return (
        torch.empty_like(hidden) if needs_hidden else hidden.new_empty(0),
        torch.empty_like(head) if needs_head else head.new_empty(0),
    )
