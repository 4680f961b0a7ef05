"""How kernels read rows of categories; see ``layout`` for where they lie."""

import triton
import triton.language as tl

from .numbers import LOG2_E

# what the cache does with a line: as ever, keep it for the second pass, or let it go
NORMAL = tl.constexpr("")
KEEP = tl.constexpr("evict_last")
DROP = tl.constexpr("evict_first")


@triton.jit
def exp(x):
    """``exp(x)``, and 0 below the normal numbers, which takes half the instructions."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def row_offset(row, inner, outer_stride, inner_stride, SPLIT: tl.constexpr):
    """Where a row begins."""
    if SPLIT:
        return (row // inner) * outer_stride + (row % inner) * inner_stride
    else:
        return row * inner_stride


@triton.jit
def load_logits(logits, mask, column, inside, logits_column, mask_column, HAS_MASK: tl.constexpr,
                 EVICT: tl.constexpr):  # fmt: skip
    """Logits in float32, -inf where a category is excluded or past the end."""
    x = tl.load(logits + column.to(tl.int64) * logits_column, mask=inside, other=-float("inf"),
                eviction_policy=EVICT)  # fmt: skip
    x = x.to(tl.float32)
    if HAS_MASK:
        allowed = tl.load(mask + column.to(tl.int64) * mask_column, mask=inside, other=0)
        x = tl.where(allowed != 0, x, -float("inf"))
    return x
