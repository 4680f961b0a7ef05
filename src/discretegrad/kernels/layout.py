"""What the kernels take: variables, and where the rows of a tensor lie in memory.

A kernel sees rows of categories. Row r is at ``r // inner`` times the first stride plus
``r % inner`` times the second, and the categories of a row are the third stride apart: enough for
a category axis anywhere, for broadcast masks and temperatures, and for slices, without a copy.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Strides = tuple[int, int, int]


class Rows(NamedTuple):
    """Categorical variables in the form that the kernels take."""

    logits: Tensor
    """Of any strides."""
    dim: int = -1
    """The category axis."""
    mask: Tensor | None = None
    """Boolean, of the shape of the logits (it may be expanded), True where allowed."""
    tau: float = 1.0
    tau_rows: Tensor | None = None
    """Temperatures in place of ``tau``: float32 of the shape of the logits, expanded along dim."""

    @property
    def tempered(self) -> bool:
        """Whether a kernel has to look at the temperature."""
        return self.tau != 1 or self.tau_rows is not None


class Bits(NamedTuple):
    """Bernoulli variables in the form that the kernels take."""

    logits: Tensor
    """Of any shape and strides, with at least one element."""
    mask: Tensor | None = None
    """Boolean, of the shape of the logits (it may be expanded), True where 1 is allowed."""
    tau: float = 1.0
    tau_bits: Tensor | None = None
    """Temperatures in place of ``tau``: float32 of the shape of the logits (it may be expanded)."""


class Drawn(NamedTuple):
    """What a draw keeps for its gradient."""

    categories: Tensor
    """int64, (rows,)."""
    statistics: Tensor
    """float32, (2, rows): the largest logit, and the sum of exp(logit - largest). For rows in parts
    (3, rows), with the drawn logit."""


# all that a launch has to know about rows but their addresses, so that it is planned once: shape,
# category axis, strides of logits, mask and temperatures (None if there are none), dtype, device
Place: TypeAlias = tuple[
    tuple[int, ...],
    int,
    tuple[int, ...],
    tuple[int, ...] | None,
    tuple[int, ...] | None,
    torch.dtype,
    torch.device,
]


def place(rows: Rows) -> Place:
    """Where rows lie."""
    logits, dim, mask, _, tau_rows = rows
    return (
        logits.shape,
        dim,
        logits.stride(),
        None if mask is None else mask.stride(),
        None if tau_rows is None else tau_rows.stride(),
        logits.dtype,
        logits.device,
    )


class Layout(NamedTuple):
    """Rows of several tensors of one shape."""

    rows: int
    n: int
    inner: int
    """Rows that are numbered with the second stride before the first one counts."""
    copied: tuple[int, ...]
    """Which of the tensors must be made contiguous, because two strides cannot describe them."""
    strides: tuple[Strides, ...]


def layout(shape: tuple[int, ...], dim: int, strides: tuple[tuple[int, ...], ...]) -> Layout:
    """The common layout of tensors of one shape, given their strides: 0 where they are expanded."""
    dim %= len(shape)
    leading = _without(shape, dim)
    rows: int = math.prod(leading)
    cut = _split(leading, [_without(one, dim) for one in strides], dim)
    copied, places = [], []
    for number, one in enumerate(strides):
        pair = _two_strides(leading, _without(one, dim), cut)
        if pair is None:
            copied.append(number)
            one = contiguous(shape)
            pair = _two_strides(leading, _without(one, dim), cut)
            assert pair is not None
        places.append((*pair, one[dim]))
    inner: int = math.prod(leading[cut:])
    if inner == 1:
        # a single stride is enough, and the kernel need not divide
        inner, places = rows, [(0, row, column) for row, _, column in places]
    return Layout(rows, shape[dim], inner, tuple(copied), tuple(places))


def new_like(logits: Tensor) -> Tensor:
    """New memory of the same shape and dtype, contiguous."""
    if logits.is_contiguous():
        return torch.empty_like(logits)
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor."""
    return tuple([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


def _without(values: Sequence[int], dim: int) -> list[int]:
    return [value for axis, value in enumerate(values) if axis != dim]


def _split(shape: list[int], strides: Sequence[Sequence[int]], natural: int) -> int:
    """Where to cut the leading axes in two, so that as few tensors as possible need a copy.

    A copy is contiguous, and two strides describe it only if it is cut at the category axis.
    """
    cuts = [natural, *range(natural)] if natural == len(shape) else [natural]
    for cut in cuts:
        if all(_two_strides(shape, s, cut) is not None for s in strides):
            return cut
    return natural


def _two_strides(shape: Sequence[int], strides: Sequence[int], cut: int) -> tuple[int, int] | None:
    outer = _one_stride(shape[:cut], strides[:cut])
    inner = _one_stride(shape[cut:], strides[cut:])
    return None if outer is None or inner is None else (outer, inner)


def _one_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of these axes taken as one, 0 if there is nothing to stride over, None if none."""
    kept = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if not kept:
        return 0
    for (_, outer), (size, inner) in itertools.pairwise(kept):
        if outer != size * inner:
            return None
    return kept[-1][1]
