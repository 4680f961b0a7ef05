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


# columns of some rows, ``STEP`` apart from ``FIRST`` on; a function for each number of them, as in
# earlier versions of Triton none may call itself


@triton.jit
def _one(pointer, stride, in_rows, other, N: tl.constexpr, FIRST: tl.constexpr):
    pointer += tl.full((), FIRST, tl.int64) * stride
    return tl.load(pointer, mask=in_rows & (FIRST < N), other=other)


@triton.jit
def _two(pointer, stride, in_rows, other, N: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr):
    a = _one(pointer, stride, in_rows, other, N, FIRST)
    b = _one(pointer, stride, in_rows, other, N, FIRST + STEP)
    return tl.join(a, b)


@triton.jit
def _four(pointer, stride, in_rows, other, N: tl.constexpr, FIRST: tl.constexpr,
          STEP: tl.constexpr):  # fmt: skip
    a = _two(pointer, stride, in_rows, other, N, FIRST, 2 * STEP)
    b = _two(pointer, stride, in_rows, other, N, FIRST + STEP, 2 * STEP)
    return tl.reshape(tl.join(a, b), (a.shape[0], 4))


@triton.jit
def _eight(pointer, stride, in_rows, other, N: tl.constexpr, FIRST: tl.constexpr,
           STEP: tl.constexpr):  # fmt: skip
    a = _four(pointer, stride, in_rows, other, N, FIRST, 2 * STEP)
    b = _four(pointer, stride, in_rows, other, N, FIRST + STEP, 2 * STEP)
    return tl.reshape(tl.join(a, b), (a.shape[0], 8))


@triton.jit
def _sixteen(pointer, stride, in_rows, other, N: tl.constexpr):
    a = _eight(pointer, stride, in_rows, other, N, 0, 2)
    b = _eight(pointer, stride, in_rows, other, N, 1, 2)
    return tl.reshape(tl.join(a, b), (a.shape[0], 16))


@triton.jit
def load(pointer, column, n, in_rows, stride, other, PER_THREAD: tl.constexpr,
         EVICT: tl.constexpr):  # fmt: skip
    """Some columns of the rows that begin at the pointers; ``other`` from n on.

    ``PER_THREAD`` is the n of rows that a thread is to have to itself, else 0; then ``column`` is
    all of 4, 8 or 16. A thread loads one column of its row after the other. So sums over the row
    need no other thread, and what a warp loads is still one stretch of memory, which the cache
    holds meanwhile.
    """
    if PER_THREAD:
        pointer = tl.reshape(pointer, (pointer.shape[0],))
        in_rows = tl.reshape(in_rows, (in_rows.shape[0],))
        if column.shape[1] == 4:
            return _four(pointer, stride, in_rows, other, PER_THREAD, 0, 1)
        elif column.shape[1] == 8:
            return _eight(pointer, stride, in_rows, other, PER_THREAD, 0, 1)
        else:
            return _sixteen(pointer, stride, in_rows, other, PER_THREAD)
    else:
        inside = in_rows & (column < n)
        return tl.load(pointer + column.to(tl.int64) * stride, mask=inside, other=other,
                       eviction_policy=EVICT)  # fmt: skip


@triton.jit
def load_logits(logits, mask, column, n, in_rows, logits_column, mask_column,
                HAS_MASK: tl.constexpr, PER_THREAD: tl.constexpr, EVICT: tl.constexpr):  # fmt: skip
    """Logits in float32, -inf where a category is excluded or past the end."""
    x = load(logits, column, n, in_rows, logits_column, -float("inf"), PER_THREAD, EVICT)
    x = x.to(tl.float32)
    if HAS_MASK:
        allowed = load(mask, column, n, in_rows, mask_column, 0, PER_THREAD, NORMAL)
        x = tl.where(allowed != 0, x, -float("inf"))
    return x
