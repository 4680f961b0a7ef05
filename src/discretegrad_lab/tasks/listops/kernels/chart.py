r"""Kernels of a parse: a merge forward, and back over a merge, each one launch beside one product.

Forward, a merge is a product of matrices, the gates of the two new pairs of neighbours, and then
``_advance_kernel``, which has one program for each sentence. It makes the states and scores of the
pairs that the last merge brought together, completes the list of scores, chooses a pair from it,
writes the lists of nodes and of pairs after the merge, and lays the hidden states of the two new
pairs out for the next product.

Backward, ``_undo_kernel`` also has one program for each sentence. The gradient G is kept by nodes
and not by places, so nothing moves when a merge is undone: only the two children get theirs, from
the last product. With $\alpha_j$ the gradient at the score of the pair j after the merge, and
$w^l, w^r$ the gradients of scores at the nodes of a pair, it goes over the nodes from the right,

$$G_j \mathrel{+}= \alpha_j\, w^l_j + \alpha_{j-1}\, w^r_{j-1} , \qquad
\partial L / \partial z_j = G_j \cdot (p_j - s_{j+1}) + \sum_{i \ge j} G_i \cdot (s_{i+1} - s_i) ,$$

some places at a time, with the running sum carried on. Then it turns G at the chosen composition
into gradients at its gates, for the next product.

A program sums in one fixed order and touches nothing of other sentences: two runs give the same
bits, and so does a member alone and in a stack. Within a program, numbers that one thread writes to
memory and another reads are separated by a barrier. Padding is never looked at: a sentence that is
one node waits until the others are done.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from discretegrad.kernels.launch import Plan, launch, power_of_two
from discretegrad.kernels.philox import DRAW, words

from .cells import Sizes, compose, pull_back

NUMBERS = 1024
"""Of states that ``_undo_kernel`` takes at a time: 2 places of 512, since a thread then needs few
enough registers that the sentences of 25 members run at once."""
WARPS, UNDO_WARPS = 4, 8
# lists of different lengths share a kernel: compiling takes longer than empty lanes
_SHORTEST = 32
_LONG = 128


@triton.jit
def _uniform(keys, counter, member, sentence, step):
    """As ``discretegrad.kernels.uniform.fill`` numbers them, with a step for each merge."""
    item = (sentence // 4).to(tl.int64)
    a, b, c, d = words(tl.load(keys + member), item, tl.load(counter) + step, DRAW)
    lane = sentence % 4
    word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    # 24 bits, as many as float32 holds
    return (word >> 8).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _first_greatest(x, place, real):
    """The place of the greatest number; the last real one, if there is none, as among NaNs."""
    at = tl.min(tl.where(x == tl.max(x, 0), place, real - 1), 0)
    return tl.minimum(at, real - 1)


@triton.jit
def _drawn(x, place, real, uniform):
    """Where the running sum of probabilities passes a number, among the real places."""
    cumulative = tl.cumsum(tl.exp(x - tl.max(x, 0)), 0)
    threshold = uniform * tl.max(cumulative, 0)
    return tl.sum(((cumulative <= threshold) & (place < real - 1)).to(tl.int32), 0)


@triton.jit(do_not_specialize=["step", "longest", "batch", "count", "slots", "held"])
def _advance_kernel(
    before, bias, query, states, slopes, hidden, nodes, pairs, scores, index, lengths, keys,
    counter, step, longest, batch, count, slots, held,
    FIRST: tl.constexpr, LEARNS: tl.constexpr, DRAWS: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Complete the last merge and make the next one; see the top of the file."""
    number = tl.program_id(0).to(tl.int64)
    sentences = tl.num_programs(0).to(tl.int64)
    member, sentence = number // batch, number % batch
    length = tl.load(lengths + number).to(tl.int32)
    # pairs that there are: after the end one is shown, whose choice does not matter
    real = tl.maximum(length - 1 - step, 1)
    is_on = length - 1 - step >= 1
    place = tl.arange(0, PLACES)
    in_list = place < longest - 1 - step
    # where rows of this sentence begin
    state = (member * (longest + count) * batch + sentence) * (2 * SIZE)
    one_state = batch.to(tl.int64) * (2 * SIZE)
    now = (step % slots * sentences + number) * longest
    after = ((step + 1) % slots * sentences + number) * longest
    own_scores = (step % slots * sentences + number) * (longest - 1)

    if FIRST:
        x = tl.load(scores + own_scores + place, in_list, -float("inf"))
    else:
        last = tl.load(index + (step - 1) * sentences + number).to(tl.int32)
        has_left, has_right = last > 0, last + 1 < length - step
        parent = tl.load(nodes + now + last).to(tl.int64)
        left = tl.load(nodes + now + last - 1, has_left, 0).to(tl.int64)
        right = tl.load(nodes + now + last + 1, has_right, 0).to(tl.int64)
        made = longest - 3 + 2 * step
        gates = before + (member * 2 * batch + sentence) * (5 * SIZE)
        out = states + state + (longest + made) * one_state
        slope = slopes + ((member * count + made) * batch + sentence) * (8 * SIZE)
        at_parent = states + state + parent * one_state
        on_left = compose(
            gates, bias + member * (5 * SIZE), states + state + left * one_state, at_parent, out,
            slope, query + member * SIZE, has_left, LEARNS, SIZE, BLOCK,
        )  # fmt: skip
        on_right = compose(
            gates + batch * (5 * SIZE), bias + member * (5 * SIZE), at_parent,
            states + state + right * one_state, out + one_state, slope + batch * (8 * SIZE),
            query + member * SIZE, has_right, LEARNS, SIZE, BLOCK,
        )  # fmt: skip
        earlier = scores + ((step - 1) % slots * sentences + number) * (longest - 1)
        moved = place + (place > last).to(tl.int32)
        x = tl.load(earlier + moved, in_list, -float("inf"))
        x = tl.where((place == last - 1) & has_left, on_left, x)
        x = tl.where((place == last) & has_right, on_right, x)
        x = tl.where(place < real, x, -float("inf"))
        tl.store(scores + own_scores + place, x, place < longest - 1)

    if DRAWS:
        at = _drawn(x, place, real, _uniform(keys, counter, member, sentence, step))
    else:
        at = _first_greatest(x, place, real)
    tl.store(index + step * sentences + number, at.to(tl.int64))

    # the lists after the merge
    parent = tl.load(pairs + now + at).to(tl.int64)
    moved = place + ((place > at) & is_on).to(tl.int32)
    node = tl.load(nodes + now + moved, in_list, 0)
    tl.store(nodes + after + place, tl.where((place == at) & is_on, parent, node), in_list)
    new = longest - 1 + 2 * step
    pair = tl.load(pairs + now + moved, place < longest - 2 - step, 0)
    pair = tl.where((place == at - 1) & is_on, longest + new, pair)
    pair = tl.where((place == at) & is_on, longest + new + 1, pair)
    tl.store(pairs + after + place, pair, place < longest - 2 - step)

    # the hidden states of the two new pairs, some of which this program has just written
    tl.debug_barrier()
    has_left, has_right = is_on & (at > 0), at + 1 < length - 1 - step
    left = tl.load(nodes + now + at - 1, has_left, 0).to(tl.int64)
    right = tl.load(nodes + now + at + 2, has_right, 0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < SIZE
    goes_on = step < longest - 2
    middle = tl.load(states + state + parent * one_state + k, inside & (has_left | has_right), 0.0)
    left_hidden = tl.load(states + state + left * one_state + k, inside & has_left, 0.0)
    right_hidden = tl.load(states + state + right * one_state + k, inside & has_right, 0.0)
    first = new if LEARNS else 0
    hidden += ((member * held + first) * batch + sentence) * (2 * SIZE)
    tl.store(hidden + k, left_hidden, inside & goes_on)
    tl.store(hidden + SIZE + k, tl.where(has_left, middle, 0.0), inside & goes_on)
    hidden += one_state
    tl.store(hidden + k, tl.where(has_right, middle, 0.0), inside & goes_on)
    tl.store(hidden + SIZE + k, right_hidden, inside & goes_on)


@triton.jit(do_not_specialize=["step", "scored", "longest", "batch", "count"])
def _undo_kernel(
    g_root, states, slopes, g, at_hidden, at_cells, g_scores, pulls, product, children, chosen,
    merged, for_choice, nodes, pairs, index, lengths, step, scored, longest, batch, count,
    ENDS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, LIST: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    """Go back over a merge; with ENDS, only complete G before the first one."""
    number = tl.program_id(0).to(tl.int64)
    sentences = tl.num_programs(0).to(tl.int64)
    member, sentence = number // batch, number % batch
    # the nodes that are left after the merge; none if there was nothing to merge
    real = tl.load(lengths + number).to(tl.int32) - 1 - step
    k = tl.arange(0, BLOCK)
    inside = k < SIZE
    state = (member * (longest + count) * batch + sentence) * (2 * SIZE)
    one_state = batch.to(tl.int64) * (2 * SIZE)
    pair_of = (member * count * batch + sentence) * (2 * SIZE)
    now = (step * sentences + number) * longest
    after = now + sentences * longest
    g += state

    # the root, or the children of the merge after this one, have nothing yet
    is_root, has_children = inside & (real == 1), inside & (real >= 2)
    root = g + tl.load(nodes + after, real == 1, 0).to(tl.int64) * one_state
    tl.store(root + k, tl.load(g_root + number * SIZE + k, is_root, 0.0), is_root)
    tl.store(root + SIZE + k, tl.zeros([BLOCK], tl.float32), is_root)
    later = tl.load(index + (step + 1) * sentences + number, real >= 2, 0)
    cells = children + ((step + 1) % 2 * sentences + number) * (2 * SIZE)
    for side in tl.static_range(2):
        child = g + tl.load(nodes + after + later + side, real >= 2, 0).to(tl.int64) * one_state
        for_hidden = tl.load(product + number * (2 * SIZE) + side * SIZE + k, has_children, 0.0)
        tl.store(child + k, for_hidden, has_children)
        for_cell = tl.load(cells + side * SIZE + k, has_children, 0.0)
        tl.store(child + SIZE + k, for_cell, has_children)

    g_scores += number * scored
    place = tl.arange(0, LIST)
    is_pair = place < real - 1
    pair = tl.load(pairs + after + place, is_pair, longest).to(tl.int64) - longest
    pull = pulls + (member * count + pair) * batch + sentence
    pulled = tl.load(pull, is_pair, 0.0) + tl.load(g_scores + place, is_pair, 0.0)
    # also because several threads may hold one number of a short list
    tl.debug_barrier()
    tl.store(pull, pulled, is_pair)

    carried = 0.0
    blocks = tl.cdiv(tl.maximum(real, 0), PLACES)
    for block in range(0, blocks):
        j = (blocks - 1 - block) * PLACES + tl.arange(0, PLACES)
        is_node = j < real
        node = tl.load(nodes + after + j, is_node, 0).to(tl.int64)
        here = node[:, None] * one_state + k[None, :]
        mask = is_node[:, None] & inside[None, :]
        hidden = tl.load(g + here, mask, 0.0)
        cell = tl.load(g + SIZE + here, mask, 0.0)
        for side in tl.static_range(2):
            # of the pair with the next node, this is the left one; of that before, the right one
            at = j - side
            has = (at >= 0) & (at < real - 1)
            alpha = tl.load(g_scores + at, has, 0.0)[:, None]
            beside = tl.load(pairs + after + at, has, longest).to(tl.int64) - longest
            where = pair_of + beside[:, None] * one_state + side * SIZE + k[None, :]
            mask_pair = has[:, None] & inside[None, :]
            hidden += alpha * tl.load(at_hidden + where, mask_pair, 0.0)
            cell += alpha * tl.load(at_cells + where, mask_pair, 0.0)
        if not ENDS:
            s = tl.load(nodes + now + j, is_node, 0).to(tl.int64)
            t = tl.load(nodes + now + j + 1, is_node, 0).to(tl.int64)
            p = tl.load(pairs + now + j, is_node, 0).to(tl.int64)
            s = state + s[:, None] * one_state + k[None, :]
            t = state + t[:, None] * one_state + k[None, :]
            p = state + p[:, None] * one_state + k[None, :]
            right = tl.load(states + t, mask, 0.0)
            moved = hidden * (right - tl.load(states + s, mask, 0.0))
            taken = hidden * (tl.load(states + p, mask, 0.0) - right)
            right = tl.load(states + SIZE + t, mask, 0.0)
            moved += cell * (right - tl.load(states + SIZE + s, mask, 0.0))
            taken += cell * (tl.load(states + SIZE + p, mask, 0.0) - right)
            moved = tl.sum(moved, 1)
            # the sum from each place on
            onwards = tl.sum(tl.where(j[None, :] >= j[:, None], moved[None, :], 0.0), 1)
            sums = tl.sum(taken, 1) + onwards + carried
            tl.store(for_choice + number * (longest - 1 - step) + j, sums, is_node)
            carried += tl.sum(moved, 0)
        tl.debug_barrier()
        tl.store(g + here, hidden, mask)
        tl.store(g + SIZE + here, cell, mask)

    if not ENDS:
        is_empty = (place >= real) & (place < longest - 1 - step)
        zeros = tl.zeros([LIST], tl.float32)
        tl.store(for_choice + number * (longest - 1 - step) + place, zeros, is_empty)
        tl.debug_barrier()
        is_on = real >= 1
        at = tl.load(index + step * sentences + number)
        parent = tl.load(nodes + after + at, is_on, longest).to(tl.int64)
        hidden = tl.load(g + parent * one_state + k, inside & is_on, 0.0)
        cell = tl.load(g + parent * one_state + SIZE + k, inside & is_on, 0.0)
        row = (member * count + parent - longest) * batch + sentence
        cells = children + (step % 2 * sentences + number) * (2 * SIZE)
        pull_back(
            slopes + row * (8 * SIZE), hidden, cell,
            chosen + ((member * (longest - 1) + step) * batch + sentence) * (5 * SIZE),
            cells, cells + SIZE, is_on, SIZE, BLOCK,
        )  # fmt: skip
        tl.store(merged + row, step, is_on)


# the host's side


class Lists(NamedTuple):
    """What is known of sentences at every step; as whole numbers, so a merge copies no states.

    A parse that learns keeps those of all steps, any other the last two, in turn.
    """

    nodes: Tensor
    """Nodes by their rows of the chart, int32, (steps, members, batch, longest)."""
    pairs: Tensor
    """Likewise the compositions of neighbours."""
    scores: Tensor
    """Of these, float32, (steps, members, batch, longest - 1); -inf where there is none."""
    choices: Tensor
    """The place of the chosen pair at each step, int64, (longest - 1, members, batch); 0 where
    there is nothing to do."""
    lengths: Tensor
    """int64, (members, batch)."""


class Draws(NamedTuple):
    """The random numbers of a parse: those of a member at a step are a function of its key."""

    keys: Tensor
    """int64, (members,)."""
    counter: Tensor
    """The step of the first merge, int64, (1,)."""


class Nodes(NamedTuple):
    """The rows of a chart: words, then compositions."""

    states: Tensor
    """(members, rows, batch, 2 hidden)."""
    slopes: Tensor
    """How gates follow from a composition's gradient, (members, compositions, batch, 8 hidden)."""
    hidden: Tensor
    """The children of compositions, (members, compositions, batch, 2 hidden); only of the two last
    ones, if nothing is learned."""


def _list_block(longest: int) -> int:
    """What holds a list; of sentences that only a test has, the same for all."""
    block = max(_SHORTEST, power_of_two(longest))
    return block if block <= _LONG else max(block, 2048)


@lru_cache(maxsize=1024)
def _advance_plan(
    sizes: Sizes, slots: int, held: int, flags: tuple[bool, ...], device: torch.device
) -> Plan:
    _, batch, longest, hidden = sizes
    constants = (
        longest, batch, sizes.compositions, slots, held, *flags, hidden, sizes.block,
        _list_block(longest),
    )  # fmt: skip
    return Plan(_advance_kernel, sizes.sentences, WARPS, constants)


def advance(
    step: int, sizes: Sizes, parameters: list[Tensor], nodes: Nodes, lists: Lists,
    draws: Draws | None,
) -> None:  # fmt: skip
    """Complete a merge and make the next one, the pair of the greatest score without ``draws``.

    Args:
        step: Of the next merge, from 0.
        sizes: Of the parse.
        parameters: Gates of the last two compositions before bias and activation, (members, 2,
            batch, 5 hidden); bias; scaled query.
        nodes: The chart; the next two hold the hidden states for the next product then.
        lists: Those of this step, without the scores of the last two compositions.
        draws: What to draw with.
    """
    first, learns, held = step == 0, nodes.slopes.numel() > 0, nodes.hidden.shape[1]
    slots, device = len(lists.nodes), nodes.states.device
    plan = _advance_plan(sizes, slots, held, (first, learns, draws is not None), device)
    numbers = draws or (lists.choices, lists.choices)
    launch(plan, [*parameters, *nodes, *lists, *numbers], (step,))


class Back(NamedTuple):
    """What a backward pass carries."""

    g_root: Tensor
    """(members, batch, hidden)."""
    nodes: Nodes
    g: Tensor
    """At the nodes, like ``Nodes.states``; of words that are padding zero before."""
    at_hidden: Tensor
    """Of the score of each composition, at its children's hidden states, (..., 2 hidden)."""
    at_cells: Tensor
    """Likewise at their cell states."""
    pulls: Tensor
    """At the scores of each composition, summed, (members, compositions, batch); zero before."""
    children: Tensor
    """At the cell states of the last children, (2, members, batch, 2 hidden)."""
    chosen: Tensor
    """At the gates of chosen pairs, (members, merges, batch, 5 hidden)."""
    merged: Tensor
    """The merge that chose a composition, int32, (members, compositions, batch); -1 before."""
    lists: Lists


@lru_cache(maxsize=1024)
def _undo_plan(sizes: Sizes, ends: bool, device: torch.device) -> Plan:
    _, batch, longest, hidden = sizes
    places = min(max(NUMBERS // sizes.block, 1), _SHORTEST)
    constants = (
        longest, batch, sizes.compositions, ends, hidden, sizes.block, _list_block(longest), places
    )  # fmt: skip
    return Plan(_undo_kernel, sizes.sentences, UNDO_WARPS, constants)


def undo(step: int, sizes: Sizes, back: Back, g_scores: Tensor, product: Tensor) -> Tensor:
    """Go back over a merge; the gradient at its choice, (members, batch, pairs).

    Args:
        step: Of the merge; -1 for what comes after the first one.
        sizes: Of the parse.
        back: What is carried; the gradient at the gates of the chosen pair is in its ``chosen``.
        g_scores: At the scores after the merge, (members, batch, pairs), contiguous.
        product: At the hidden states of the children of the merge after this one, (members, batch,
            2 hidden).
    """
    members, batch, longest, _ = sizes
    ends, lists = step < 0, back.lists
    for_choice = g_scores
    if not ends:
        for_choice = torch.empty(members, batch, longest - 1 - step, device=g_scores.device)
    tensors = [
        back.g_root, *back.nodes[:2], *back[2:5], g_scores, back.pulls, product, *back[6:9],
        for_choice, lists.nodes, lists.pairs, lists.choices, lists.lengths,
    ]  # fmt: skip
    launch(_undo_plan(sizes, ends, g_scores.device), tensors, (step, g_scores.shape[-1]))
    return for_choice
