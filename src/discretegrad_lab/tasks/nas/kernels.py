"""Inner products and sums of many pairs of tensors in one launch, and averages over neighbours.

ATen has such averages too, but they are slow where channels come last. A profile of a step on an
H200 has 80 kernels of 16 us each, a fifth of its time, where to read and write the tensors once
takes 2. It has lost their names; as many averages are in a step.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from discretegrad.kernels.launch import Plan, launch, power_of_two

_BLOCK = 1024
_PARTS = 32
"""Programs that share an inner product, or the sums of an edge."""
_WARPS = 4


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
    device = pairs[0][0].device
    rows = [(x.data_ptr(), 0 if y is None else y.data_ptr(), x.numel()) for x, y in pairs]
    parts = torch.empty(len(rows), _PARTS, device=device)
    launch(_dots_plan(len(rows), device), [parts, _table(rows, device)])
    return parts.sum(1)


def _table(rows: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    """Addresses and numbers, of which a kernel takes a row.

    What lies at an address may be freed once the kernel is launched: on its stream the memory is
    used again only after it.
    """
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


@lru_cache(maxsize=1024)
def _dots_plan(pairs: int, device: torch.device) -> Plan:
    return Plan(_dots_kernel, pairs * _PARTS, _WARPS, (_PARTS, _BLOCK))


@triton.jit
def _sums_kernel(
    parts, table, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, COPIES: tl.constexpr,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Four sums over the pixels of a part, for each of ``COPIES * CHANNELS`` columns."""
    pair, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    output = tl.load(table + 3 * pair).to(tl.pointer_type(tl.float32))
    stride = tl.load(table + 3 * pair + 1).to(tl.int32)
    gradient = tl.load(table + 3 * pair + 2).to(tl.pointer_type(tl.float32))
    if CHANNELS % 4 == 0:
        # every row begins at a multiple of 16 bytes, so that a thread can read four numbers at once
        output, gradient = tl.multiple_of(output, 16), tl.multiple_of(gradient, 16)
        stride = tl.multiple_of(stride, 4)
    column = tl.arange(0, COLUMNS)[None, :]
    sum_y = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_yy = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_gy = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_g = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(part * ROWS, PIXELS, PARTS * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < PIXELS) & (column < COPIES * CHANNELS)
        y = tl.load(output + row * stride + column, inside, 0.0)
        g = tl.load(gradient + row * CHANNELS + column % CHANNELS, inside, 0.0)
        sum_y += y
        sum_yy += y * y
        sum_gy += g * y
        sum_g += g
    into = parts + tl.program_id(0) * (4 * COLUMNS) + tl.arange(0, COLUMNS)
    tl.store(into, tl.sum(sum_y, 0))
    tl.store(into + COLUMNS, tl.sum(sum_yy, 0))
    tl.store(into + 2 * COLUMNS, tl.sum(sum_gy, 0))
    tl.store(into + 3 * COLUMNS, tl.sum(sum_g, 0))


def sums(parts: Sequence[tuple[Tensor, int, Tensor]], copies: int) -> Tensor:
    """See ``every.sums``.

    Args:
        parts: An output, (images, outputs, height, width), the position of an edge in it, and a
            gradient with its channels; float32, with the channels last in memory, all gradients of
            one shape and of less than 2**31 elements, as the outputs. They begin at multiples of
            16 bytes, as torch allocates them.
        copies: How many outputs an edge has for each channel of the gradient.
    """
    images, channels, height, width = parts[0][2].shape
    pixels, columns = images * height * width, power_of_two(copies * channels)
    bytes_of_edge = 4 * copies * channels
    rows = [
        (y.data_ptr() + position * bytes_of_edge, y.shape[1], g.data_ptr())
        for y, position, g in parts
    ]
    device = parts[0][0].device
    partial = torch.empty(len(rows), _PARTS, 4, columns, device=device)
    plan = _sums_plan(len(rows), pixels, channels, copies, columns, device)
    launch(plan, [partial, _table(rows, device)])
    return partial[..., : copies * channels].sum(1, dtype=torch.float64)


@lru_cache(maxsize=1024)
def _sums_plan(
    pairs: int, pixels: int, channels: int, copies: int, columns: int, device: torch.device
) -> Plan:
    rows = max(1, _BLOCK // columns)
    constants = (pixels, channels, copies, _PARTS, columns, rows)
    return Plan(_sums_kernel, pairs * _PARTS, _WARPS, constants)


@triton.jit
def _neighbours(row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """How many of the nine pixels around a pixel, itself included, are in the image."""
    rows = 3 - (row == 0).to(tl.float32) - (row == HEIGHT - 1).to(tl.float32)
    return rows * (3 - (column == 0).to(tl.float32) - (column == WIDTH - 1).to(tl.float32))


@triton.jit
def _averages_kernel(
    x, result, COUNT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, TRANSPOSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = at // (WIDTH * CHANNELS) % HEIGHT, at // CHANNELS % WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for down in tl.static_range(-1, 2):
        for right in tl.static_range(-1, 2):
            r, c = row + down, column + right
            inside = (at < COUNT) & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
            value = tl.load(x + at + (down * WIDTH + right) * CHANNELS, inside, 0.0)
            if TRANSPOSED:
                value /= _neighbours(r, c, HEIGHT, WIDTH)
            total += value
    if not TRANSPOSED:
        total /= _neighbours(row, column, HEIGHT, WIDTH)
    tl.store(result + at, total, at < COUNT)


def averages(x: Tensor, *, transposed: bool = False) -> Tensor:
    """The average of each pixel and its neighbours, those outside of the image left out.

    Args:
        x: float32, (images, channels, height, width) with the channels last in memory, of less
            than 2**31 elements.
        transposed: The gradient at the pixels instead, from that at the averages.
    """
    result = torch.empty_like(x)
    launch(_averages_plan(x.shape, transposed, x.device), [x, result])
    return result


@lru_cache(maxsize=1024)
def _averages_plan(shape: torch.Size, transposed: bool, device: torch.device) -> Plan:
    _, channels, height, width = shape
    programs = triton.cdiv(shape.numel(), _BLOCK)
    constants = (shape.numel(), height, width, channels, int(transposed), _BLOCK)
    return Plan(_averages_kernel, programs, _WARPS, constants)
