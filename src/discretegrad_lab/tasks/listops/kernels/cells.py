r"""Kernels of the two cells: all that happens to a product of matrices, in one launch.

A step of training has a few products of matrices for each word, and between them functions of a few
thousand numbers. As operations of torch those are a hundred launches, each of which takes longer to
start than to run. Here they are one launch, with one program for each sentence (or for each
composition of a sentence): it reads its row of the product, applies gates, and writes states and
what the gradient needs.

Rows are numbered (member, place, sentence): the rows of a place lie together, so that they are a
matrix of the next product without a copy. A state is 2 hidden numbers: h, then c. See ``..cells``
for the mathematics; no sum here is over more than one row, so the result of a member does not
depend on the others.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from discretegrad.kernels.launch import Plan, launch, power_of_two

WARPS = 4
"""Of a program that works on one row of each tensor."""


@triton.jit
def tanh(x):
    """Accurate for small x, too, where the quotient would cancel."""
    square = x * x
    series = -1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * (62.0 / 2835)))
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.3, x * (1.0 + square * series), tl.where(x < 0, -far, far))


@triton.jit
def sigmoid(x):
    """With no number that is too large on the way."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def compose(
    before, bias, left, right, out, slopes, query, is_real,
    LEARNS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the state of a composition, and its slopes if it LEARNS; returns its score.

    Pointers are to the beginnings of rows: gates before bias and activation, the bias (both forget
    gates are opened by 1), the children's states, the state, the slopes, the query. What is not
    real has children of zeros.
    """
    k = tl.arange(0, BLOCK)
    inside = k < SIZE
    i = sigmoid(tl.load(before + k, inside, 0.0) + tl.load(bias + k, inside, 0.0))
    before += SIZE
    bias += SIZE
    fl = sigmoid(tl.load(before + k, inside, 0.0) + tl.load(bias + k, inside, 0.0) + 1.0)
    before += SIZE
    bias += SIZE
    fr = sigmoid(tl.load(before + k, inside, 0.0) + tl.load(bias + k, inside, 0.0) + 1.0)
    before += SIZE
    bias += SIZE
    u = tanh(tl.load(before + k, inside, 0.0) + tl.load(bias + k, inside, 0.0))
    before += SIZE
    bias += SIZE
    o = sigmoid(tl.load(before + k, inside, 0.0) + tl.load(bias + k, inside, 0.0))
    cl = tl.load(left + SIZE + k, inside & is_real, 0.0)
    cr = tl.load(right + SIZE + k, inside & is_real, 0.0)
    cell = i * u + fl * cl + fr * cr
    inner = tanh(cell)
    hidden = o * inner
    tl.store(out + k, hidden, inside)
    tl.store(out + SIZE + k, cell, inside)
    if LEARNS:
        tl.store(slopes + k, u * i * (1.0 - i), inside)
        tl.store(slopes + SIZE + k, cl * fl * (1.0 - fl), inside)
        tl.store(slopes + 2 * SIZE + k, cr * fr * (1.0 - fr), inside)
        tl.store(slopes + 3 * SIZE + k, i * (1.0 - u * u), inside)
        tl.store(slopes + 4 * SIZE + k, inner * o * (1.0 - o), inside)
        tl.store(slopes + 5 * SIZE + k, o * (1.0 - inner * inner), inside)
        tl.store(slopes + 6 * SIZE + k, fl, inside)
        tl.store(slopes + 7 * SIZE + k, fr, inside)
    return tl.sum(tl.where(inside, hidden * tl.load(query + k, inside, 0.0), 0.0), 0)


@triton.jit
def pull_back(
    slopes, hidden, cell, gates, left, right, is_real, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the gradients at the gates of a composition, and at its children's cell states.

    Pointers are to the beginnings of rows; ``hidden`` and ``cell`` are the gradients at the state.
    What is not real gets zeros.
    """
    k = tl.arange(0, BLOCK)
    inside = k < SIZE
    real = inside & is_real
    whole = tl.load(slopes + 5 * SIZE + k, real, 0.0) * hidden + cell
    for gate in tl.static_range(4):
        tl.store(
            gates + gate * SIZE + k, tl.load(slopes + gate * SIZE + k, real, 0.0) * whole, inside
        )
    tl.store(gates + 4 * SIZE + k, tl.load(slopes + 4 * SIZE + k, real, 0.0) * hidden, inside)
    tl.store(left + k, tl.load(slopes + 6 * SIZE + k, real, 0.0) * whole, inside)
    tl.store(right + k, tl.load(slopes + 7 * SIZE + k, real, 0.0) * whole, inside)


@triton.jit(do_not_specialize=["longest", "batch", "count"])
def _neighbours_kernel(
    before, bias, query, states, slopes, scores, lengths,
    longest, batch, count, LEARNS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compose the neighbours among the words; a program for each row of the product."""
    row = tl.program_id(0).to(tl.int64)
    sentence = row % batch
    pair = row // batch % (longest - 1)
    member = row // batch // (longest - 1)
    rows = longest + count
    out = states + ((member * rows + longest + pair) * batch + sentence) * (2 * SIZE)
    left = states + ((member * rows + pair) * batch + sentence) * (2 * SIZE)
    score = compose(
        before + row * (5 * SIZE), bias + member * (5 * SIZE), left, left + batch * (2 * SIZE), out,
        slopes + ((member * count + pair) * batch + sentence) * (8 * SIZE), query + member * SIZE,
        True, LEARNS, SIZE, BLOCK,
    )  # fmt: skip
    number = member * batch + sentence
    real = tl.maximum(tl.load(lengths + number) - 1, 1)
    place = scores + number * (longest - 1) + pair
    tl.store(place, tl.where(pair < real, score, -float("inf")))


@triton.jit(do_not_specialize=["per_member"])
def _directions_kernel(
    slopes, query, gates, cells, per_member, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """From the score of each composition: gradients at its gates and at its children's cells."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    hidden = tl.load(query + row // per_member * SIZE + k, k < SIZE, 0.0)
    pull_back(
        slopes + row * (8 * SIZE), hidden, 0.0, gates + row * (5 * SIZE), cells + row * (2 * SIZE),
        cells + row * (2 * SIZE) + SIZE, True, SIZE, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["per_member", "batch", "merges"])
def _gates_kernel(
    gates, pulls, chosen, merged, per_member, batch, merges,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The whole gradient at the gates of each composition, over what its score alone gives."""
    row = tl.program_id(0).to(tl.int64)
    member = row // per_member
    pull = tl.load(pulls + row)
    step = tl.load(merged + row).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < 5 * SIZE
    whole = tl.load(gates + row * (5 * SIZE) + k, inside, 0.0) * pull
    at = chosen + ((member * merges + step) * batch + row % batch) * (5 * SIZE)
    whole += tl.load(at + k, inside & (step >= 0), 0.0)
    # several threads may hold one number of a short row
    tl.debug_barrier()
    tl.store(gates + row * (5 * SIZE) + k, whole, inside)


@triton.jit(do_not_specialize=["place", "length", "batch"])
def _word_kernel(
    projected, product, states, gates, place, length, batch,
    LEARNS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A place of the LSTM over words; a program for each sentence."""
    number = tl.program_id(0).to(tl.int64)
    member, sentence = number // batch, number % batch
    k = tl.arange(0, BLOCK)
    inside = k < SIZE
    # before the first place, hidden and cell state are zeros
    goes_on = inside & (place > 0)
    projected += (number * length + place) * (4 * SIZE)
    product += number * (4 * SIZE)
    row = (member * length + place) * batch + sentence
    states += row * (2 * SIZE)
    i = sigmoid(tl.load(projected + k, inside, 0.0) + tl.load(product + k, goes_on, 0.0))
    projected += SIZE
    product += SIZE
    f = sigmoid(tl.load(projected + k, inside, 0.0) + tl.load(product + k, goes_on, 0.0))
    projected += SIZE
    product += SIZE
    u = tanh(tl.load(projected + k, inside, 0.0) + tl.load(product + k, goes_on, 0.0))
    projected += SIZE
    product += SIZE
    o = sigmoid(tl.load(projected + k, inside, 0.0) + tl.load(product + k, goes_on, 0.0))
    cell = f * tl.load(states - batch * (2 * SIZE) + SIZE + k, goes_on, 0.0) + i * u
    tl.store(states + k, o * tanh(cell), inside)
    tl.store(states + SIZE + k, cell, inside)
    if LEARNS:
        gates += row * (4 * SIZE)
        tl.store(gates + k, i, inside)
        tl.store(gates + SIZE + k, f, inside)
        tl.store(gates + 2 * SIZE + k, u, inside)
        tl.store(gates + 3 * SIZE + k, o, inside)


@triton.jit(do_not_specialize=["place", "length", "batch", "member_step", "sentence_step", "step"])
def _word_back_kernel(
    g, product, states, gates, g_gates, g_cells,
    place, length, batch, member_step, sentence_step, step,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Back over a place of the LSTM over words; ``product`` is the gradient at its hidden state."""
    number = tl.program_id(0).to(tl.int64)
    member, sentence = number // batch, number % batch
    k = tl.arange(0, BLOCK)
    inside = k < SIZE
    comes_back = inside & (place < length - 1)
    g += member * member_step + sentence * sentence_step + place.to(tl.int64) * step
    row = (member * length + place) * batch + sentence
    states += row * (2 * SIZE)
    gates += row * (4 * SIZE)
    g_gates += row * (4 * SIZE)
    g_cells += number * SIZE
    i = tl.load(gates + k, inside, 0.0)
    f = tl.load(gates + SIZE + k, inside, 0.0)
    u = tl.load(gates + 2 * SIZE + k, inside, 0.0)
    o = tl.load(gates + 3 * SIZE + k, inside, 0.0)
    inner = tanh(tl.load(states + SIZE + k, inside, 0.0))
    earlier = tl.load(states - batch * (2 * SIZE) + SIZE + k, inside & (place > 0), 0.0)
    hidden = tl.load(g + k, inside, 0.0) + tl.load(product + number * SIZE + k, comes_back, 0.0)
    cell = tl.load(g + SIZE + k, inside, 0.0) + tl.load(g_cells + k, comes_back, 0.0)
    cell += hidden * (o * (1.0 - inner * inner))
    # several threads may hold one number of a short row
    tl.debug_barrier()
    tl.store(g_gates + k, u * i * (1.0 - i) * cell, inside)
    tl.store(g_gates + SIZE + k, earlier * f * (1.0 - f) * cell, inside)
    tl.store(g_gates + 2 * SIZE + k, i * (1.0 - u * u) * cell, inside)
    tl.store(g_gates + 3 * SIZE + k, inner * o * (1.0 - o) * hidden, inside)
    tl.store(g_cells + k, f * cell, inside)


# the host's side


class Sizes(NamedTuple):
    """Of a parse."""

    members: int
    batch: int
    longest: int
    """Words of the longest sentence, at least 2."""
    hidden: int

    @property
    def compositions(self) -> int:
        """Of a sentence: the neighbours among its words, then two for each merge but the last."""
        return self.longest - 1 + 2 * (self.longest - 2)

    @property
    def sentences(self) -> int:
        """Of all members."""
        return self.members * self.batch

    @property
    def block(self) -> int:
        """What holds a hidden state."""
        return power_of_two(self.hidden)


@lru_cache(maxsize=4096)
def _plan(kernel: str, programs: int, constants: tuple[int, ...], device: torch.device) -> Plan:
    return Plan(globals()[kernel], programs, WARPS, constants)


def neighbours(sizes: Sizes, learns: bool, tensors: list[Tensor]) -> None:
    """Compose the neighbours among the words, and score them.

    Args:
        sizes: Of the parse.
        learns: Whether to write the slopes.
        tensors: Gates before bias and activation, (members, longest - 1, batch, 5 hidden); bias;
            scaled query; states; slopes; scores; lengths. See ``chart.Lists`` for the last ones.
    """
    members, batch, longest, hidden = sizes
    constants = (longest, batch, sizes.compositions, learns, hidden, sizes.block)
    programs = members * (longest - 1) * batch
    launch(_plan("_neighbours_kernel", programs, constants, tensors[0].device), tensors)


def directions(sizes: Sizes, slopes: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """What the score of each composition gives to its gates and its children's cell states."""
    members, batch, _, hidden = sizes
    shape = (members, sizes.compositions, batch)
    gates, cells = (
        torch.empty(*shape, width * hidden, dtype=slopes.dtype, device=slopes.device)
        for width in (5, 2)
    )
    per_member = sizes.compositions * batch
    plan = _plan(
        "_directions_kernel", members * per_member, (per_member, hidden, sizes.block), slopes.device
    )
    launch(plan, [slopes, query, gates, cells])
    return gates, cells


def add_chosen(sizes: Sizes, tensors: list[Tensor]) -> None:
    """Turn what scores give to the gates into their whole gradient, in place.

    Args:
        sizes: Of the parse.
        tensors: The gates of ``directions``; the gradient at each composition's scores, summed,
            (members, compositions, batch); gradients at the gates of the pairs that were chosen,
            (members, merges, batch, 5 hidden); and for each composition the merge that chose it,
            or -1.
    """
    members, batch, longest, hidden = sizes
    per_member = sizes.compositions * batch
    constants = (per_member, batch, longest - 1, hidden, power_of_two(5 * hidden))
    plan = _plan("_gates_kernel", members * per_member, constants, tensors[0].device)
    launch(plan, tensors)


def word(place: int, sizes: tuple[int, int, int, int], learns: bool, tensors: list[Tensor]) -> None:
    """Go on by a place in the LSTM over words.

    Args:
        place: Counted from 0.
        sizes: Members, batch, length, hidden.
        learns: Whether to keep the gates.
        tensors: What the words give, (members, batch, length, 4 hidden); the product of the last
            hidden states, (members, batch, 4 hidden), which the first place does not look at;
            states; gates, (members, length, batch, 2 or 4 hidden).
    """
    members, batch, length, hidden = sizes
    constants = (length, batch, learns, hidden, power_of_two(hidden))
    plan = _plan("_word_kernel", members * batch, constants, tensors[0].device)
    launch(plan, tensors, (place,))


def word_back(place: int, sizes: tuple[int, int, int, int], tensors: list[Tensor]) -> None:
    """Go back over a place.

    Args:
        place: Counted from 0.
        sizes: Members, batch, length, hidden.
        tensors: The gradient at the states, (members, batch, length, 2 hidden), of any strides but
            the last; the product of the last gradient at the gates, (members, batch, hidden), which
            the last place does not look at; states; gates; where the gradient at the gates goes;
            the gradient at the cell states, (members, batch, hidden), which it changes.
    """
    members, batch, length, hidden = sizes
    g = tensors[0]
    constants = (length, batch, g.stride(0), g.stride(1), g.stride(2), hidden, power_of_two(hidden))
    plan = _plan("_word_back_kernel", members * batch, constants, g.device)
    launch(plan, tensors, (place,))
