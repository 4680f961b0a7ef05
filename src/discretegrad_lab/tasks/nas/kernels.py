"""Inner products of many pairs of tensors, wherever on a GPU these lie, in one launch."""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from discretegrad.kernels.launch import Plan, launch

_BLOCK = 1024
_PARTS = 32
"""Programs that share an inner product."""


@triton.jit
def _dots_kernel(parts, table, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    pair, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    first = tl.load(table + 3 * pair).to(tl.pointer_type(tl.float32))
    second = tl.load(table + 3 * pair + 1)
    count = tl.load(table + 3 * pair + 2).to(tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(part * BLOCK, count, PARTS * BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(first + at, mask=at < count, other=0.0)
        if second != 0:
            x *= tl.load(second.to(tl.pointer_type(tl.float32)) + at, mask=at < count, other=0.0)
        total += x
    tl.store(parts + tl.program_id(0), tl.sum(total, 0))


def dots(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """The inner product of each pair, float32; the sum of its first tensor if it has no second one.

    Args:
        pairs: float32, of less than 2**31 elements that lie without gaps; both of a pair in the
            same order.
    """
    # what a caller frees after the launch is used again only after the kernel
    rows = [(x.data_ptr(), 0 if y is None else y.data_ptr(), x.numel()) for x, y in pairs]
    device = pairs[0][0].device
    table = torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
    parts = torch.empty(len(rows), _PARTS, device=device)
    launch(_plan(len(rows), device), [parts, table])
    return parts.sum(1)


@lru_cache(maxsize=1024)
def _plan(pairs: int, device: torch.device) -> Plan:
    return Plan(_dots_kernel, pairs * _PARTS, 4, (_PARTS, _BLOCK))
