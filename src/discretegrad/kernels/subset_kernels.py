r"""The kernels for moments and draws of subsets of k of n items: a program does all of a row.

They compute what ``families.counting`` computes, along the same tree; the mathematics is there. In
short: every item is a bit, its polynomial is $q + p t$, and the product of the polynomials of a
group has the chances that the group holds 0, 1, 2, ... ones. Groups are multiplied in pairs, level
by level, until there are two; then one goes back from the root. In torch each level is several
small operations; here it is a loop, with a barrier before the next level.

*Levels.* Level l has $\lceil n / 2^l \rceil$ groups; group i is paired with group i + half, and an
odd one out is passed on. A polynomial of level l has the degrees 0 to $\min(2^l, k)$. With n = 5
and k = 2, the levels have 5, 3 and 2 groups, of degree 1, 2 and 2.

*Memory.* A level is stored coefficient by coefficient: that of degree m of group i is at
``m * groups + i``. The levels lie one after the other in memory that only this program uses, and
uses again for its next row. It is small enough to stay in the caches: about $n \log_2 k$ numbers.

*Lanes.* A tile is a run of neighbouring numbers of the level that is made, one for each lane. Each
adds up products of two loaded numbers, ``TERMS`` of them written out, so that many loads are under
way. The sums have a fixed order: a result does not change from call to call.

Numbers are float32 as on the torch path, and a draw compares float64 sums of them with the same
uniform numbers, so it is the same draw but for those that rounding decides.
"""

import triton
import triton.language as tl

_TINY = tl.constexpr(2.0**-126)


# --- the tree


@triton.jit
def _level(level, n, k):
    """How many groups a level has, and the degree of their polynomials."""
    groups = (n + (1 << level) - 1) >> level
    return groups, tl.minimum(1 << level, tl.maximum(k, 1))


@triton.jit
def _leaf(x, FLIPPED: tl.constexpr):
    """The chances that items are out and in, from their log-odds; those of being out if flipped."""
    if FLIPPED:
        x = -x
    small = tl.exp(-tl.abs(x))
    likely = 1.0 / (1.0 + small)
    unlikely = small / (1.0 + small)
    return tl.where(x < 0, likely, unlikely), tl.where(x < 0, unlikely, likely)


@triton.jit
def _products(chances, sums, n, k, steps, SUMS: tl.constexpr, TERMS: tl.constexpr,
              TILE: tl.constexpr):  # fmt: skip
    """The polynomials of all groups, up to the two halves, and where the last level begins.

    With ``SUMS`` also the means of s in ``families.counting._covariance``, times the chances.
    """
    at = 0
    for level in range(steps - 1):
        tl.debug_barrier()
        groups, degree = _level(level, n, k)
        above, degree_above = _level(level + 1, n, k)
        half = groups // 2
        to = at + (degree + 1) * groups
        size = (degree_above + 1) * above
        for start in range(0, size, TILE):
            number = start + tl.arange(0, TILE)
            inside = number < size
            m, pair = number // above, number % above
            # of the odd one out there is a single term
            alone = inside & (pair >= half) & (m <= degree)
            odd = at + m * groups + 2 * half
            product = tl.load(chances + odd, mask=alone, other=0.0)
            weighted = product
            if SUMS:
                weighted = tl.load(sums + odd, mask=alone, other=0.0)
            # terms that all lanes lack are left out
            first = tl.maximum(start // above - degree, 0)
            last = tl.minimum((start + TILE - 1) // above, degree)
            for begin in range(first, last + 1, TERMS):
                for term in tl.static_range(TERMS):
                    j = begin + term
                    i = m - j
                    valid = inside & (pair < half) & (j <= last) & (i >= 0) & (i <= degree)
                    left = at + j * groups + pair
                    right = at + i * groups + half + pair
                    a = tl.load(chances + left, mask=valid, other=0.0)
                    b = tl.load(chances + right, mask=valid, other=0.0)
                    product += a * b
                    if SUMS:
                        weighted += a * tl.load(sums + right, mask=valid, other=0.0)
                        weighted += b * tl.load(sums + left, mask=valid, other=0.0)
            tl.store(chances + to + number, product, mask=inside)
            if SUMS:
                tl.store(sums + to + number, weighted, mask=inside)
        at = to
    return at


@triton.jit
def _outside(chances, sums, outside, others, at, n, k, steps, wide, SUMS: tl.constexpr,
             TERMS: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """For every item and j, the chance that all other items contribute k - j; with ``SUMS`` also
    the mean of s over them, times that chance.

    ``at`` is where the last level begins. Two levels of ``wide`` numbers at most take turns in
    ``outside`` and ``others``; returned is which of the two has the items.
    """
    for start in range(0, tl.maximum(k, 1) + 1, TILE):
        j = start + tl.arange(0, TILE)
        tl.store(outside + j, tl.where(j == k, 1.0, 0.0), mask=j <= tl.maximum(k, 1))
        if SUMS:
            tl.store(others + j, tl.zeros((TILE,), tl.float32), mask=j <= tl.maximum(k, 1))
    for back in range(steps):
        tl.debug_barrier()
        level = steps - 1 - back
        groups, degree = _level(level, n, k)
        above, degree_above = _level(level + 1, n, k)
        half = groups // 2
        here, there = (back % 2) * wide, (1 - back % 2) * wide
        size = (degree + 1) * groups
        for start in range(0, size, TILE):
            number = start + tl.arange(0, TILE)
            inside = number < size
            j, group = number // groups, number % groups
            # the odd one out is the last of both levels
            alone = inside & (group >= 2 * half) & (j <= degree_above)
            odd = here + j * above + half
            chance = tl.load(outside + odd, mask=alone, other=0.0)
            weighted = chance
            if SUMS:
                weighted = tl.load(others + odd, mask=alone, other=0.0)
            pair = tl.where(group < half, group, group - half)
            sibling = tl.where(group < half, group + half, group - half)
            last = tl.minimum(degree_above - start // groups, degree)
            for begin in range(0, last + 1, TERMS):
                for term in tl.static_range(TERMS):
                    i = begin + term
                    valid = inside & (group < 2 * half) & (i <= last) & (i + j <= degree_above)
                    inner = at + i * groups + sibling
                    outer = here + (i + j) * above + pair
                    a = tl.load(chances + inner, mask=valid, other=0.0)
                    b = tl.load(outside + outer, mask=valid, other=0.0)
                    chance += a * b
                    if SUMS:
                        weighted += a * tl.load(others + outer, mask=valid, other=0.0)
                        weighted += b * tl.load(sums + inner, mask=valid, other=0.0)
            tl.store(outside + there + number, chance, mask=inside)
            if SUMS:
                tl.store(others + there + number, weighted, mask=inside)
        groups_below, degree_below = _level(tl.maximum(level - 1, 0), n, k)
        at -= (degree_below + 1) * groups_below
    tl.debug_barrier()
    return (steps % 2) * wide


# --- moments


@triton.jit
def _centre(point, g, n, FLIPPED: tl.constexpr, TILE: tl.constexpr):
    """The mean of g, weighted by the variances of the bits."""
    weight = tl.zeros((TILE,), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, n, TILE):
        item = start + tl.arange(0, TILE)
        inside = item < n
        q, p = _leaf(tl.load(point + item, mask=inside, other=-float("inf")), FLIPPED)
        weight += p * q
        total += p * q * tl.load(g + item, mask=inside, other=0.0)
    return tl.sum(total, 0) / tl.maximum(tl.sum(weight, 0), _TINY)


@triton.jit(do_not_specialize=["rows", "n", "k", "steps", "tree", "wide"])
def _moments_kernel(
    point, g, drawn, mean, rest, product, scratch,
    weight, rows, n, k, steps, tree, wide,
    ORDER: tl.constexpr, FLIPPED: tl.constexpr, TERMS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The probabilities of items with log-odds (rows, n), and their covariance C times ``g``.

    ``ORDER`` 0 writes the probabilities ``mean`` and ``rest``. 1 also writes C g as ``product``. 2
    writes ``weight`` C g + (g . r) r / 2 instead, with the residual r of the ``drawn`` subset, and
    uses ``mean`` for r.

    ``k`` is that of the smaller side; if ``FLIPPED`` that are the items which are left out. A tree
    has ``tree`` numbers, and its widest level ``wide``.
    """
    room = tree + 2 * wide
    if ORDER > 0:
        room *= 2
    chances = scratch + tl.program_id(0) * room.to(tl.int64)
    outside = chances + tree
    sums = outside + 2 * wide
    others = sums + tree
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at_row = row * n.to(tl.int64)
        centre = 0.0
        if ORDER > 0:
            centre = _centre(point + at_row, g + at_row, n, FLIPPED, TILE)
        tl.debug_barrier()  # all lanes are done with the row before
        for start in range(0, n, TILE):
            item = start + tl.arange(0, TILE)
            inside = item < n
            q, p = _leaf(tl.load(point + at_row + item, mask=inside, other=0.0), FLIPPED)
            tl.store(chances + item, q, mask=inside)
            tl.store(chances + n + item, p, mask=inside)
            if ORDER > 0:
                swing = p * q * (tl.load(g + at_row + item, mask=inside, other=0.0) - centre)
                tl.store(sums + item, -swing, mask=inside)
                tl.store(sums + n + item, swing, mask=inside)
        at = _products(chances, sums, n, k, steps, ORDER > 0, TERMS, TILE)
        last = _outside(
            chances, sums, outside, others, at, n, k, steps, wide, ORDER > 0, TERMS, TILE
        )
        aligned = tl.zeros((TILE,), tl.float32)
        for start in range(0, n, TILE):
            item = start + tl.arange(0, TILE)
            inside = item < n
            q = tl.load(chances + item, mask=inside, other=1.0)
            p = tl.load(chances + n + item, mask=inside, other=1.0)
            without = tl.load(outside + last + item, mask=inside, other=1.0)
            within = tl.load(outside + last + n + item, mask=inside, other=1.0)
            chance = p * within + q * without
            is_in, is_out = p * within / chance, q * without / chance
            variance = is_in * is_out
            if FLIPPED:
                is_in, is_out = is_out, is_in
            if ORDER < 2:
                tl.store(mean + at_row + item, is_in, mask=inside)
                tl.store(rest + at_row + item, is_out, mask=inside)
            if ORDER > 0:
                own = tl.load(g + at_row + item, mask=inside, other=0.0) - centre
                sum_without = tl.load(others + last + item, mask=inside, other=0.0)
                sum_within = tl.load(others + last + n + item, mask=inside, other=0.0)
                slope = without * sum_within - within * sum_without
                value = variance * own + p / chance * (q / chance) * slope
                tl.store(product + at_row + item, value, mask=inside)
            if ORDER > 1:
                chosen = tl.load(drawn + at_row + item, mask=inside, other=0) != 0
                residual = tl.where(chosen, is_out, -is_in)
                tl.store(mean + at_row + item, residual, mask=inside)
                aligned += tl.where(inside, own * residual, 0.0)
        if ORDER > 1:
            slope = tl.sum(aligned, 0) / 2
            tl.debug_barrier()
            for start in range(0, n, TILE):
                item = start + tl.arange(0, TILE)
                first = tl.load(product + at_row + item, mask=item < n, other=0.0)
                residual = tl.load(mean + at_row + item, mask=item < n, other=0.0)
                value = weight * first + slope * residual
                tl.store(product + at_row + item, value, mask=item < n)


# --- draws


@triton.jit
def _split(chances, counts, uniform, at, n, k, steps, TERMS: tl.constexpr, TILE: tl.constexpr):
    """How many of the k each item has, 0 or 1, from n - 1 uniform numbers; where in ``counts``.

    From the root on, the ones of a pair are split: its left group takes j of them with a chance
    that is the product of two coefficients. One uniform number inverts their cumulative sum.
    """
    tl.debug_barrier()  # all lanes are done with the draw before
    tl.store(counts, k)
    used = 0
    for back in range(steps):
        tl.debug_barrier()
        level = steps - 1 - back
        groups, degree = _level(level, n, k)
        above = (groups + 1) // 2
        half = groups // 2
        here, there = (back % 2) * n, (1 - back % 2) * n
        for start in range(0, above, TILE):
            pair = start + tl.arange(0, TILE)
            paired = pair < half
            count = tl.load(counts + here + pair, mask=pair < above, other=0)
            place = tl.load(uniform + used + pair, mask=paired, other=0.0)
            total = tl.zeros((TILE,), tl.float64)
            for begin in range(0, degree + 1, TERMS):
                for term in tl.static_range(TERMS):
                    j = begin + term
                    total += _weight(chances + at, j, pair, count, groups, degree, paired)
            # in the same order, so that the sum ends at the total, which is above the threshold
            threshold = place * total
            passed = tl.zeros((TILE,), tl.float64)
            taken = tl.zeros((TILE,), tl.int32)
            for begin in range(0, degree + 1, TERMS):
                for term in tl.static_range(TERMS):
                    j = begin + term
                    passed += _weight(chances + at, j, pair, count, groups, degree, paired)
                    taken += ((j < degree) & (passed <= threshold)).to(tl.int32)
            # only underflow goes beyond these limits
            taken = tl.minimum(tl.maximum(taken, count - degree), tl.minimum(count, degree))
            # the odd one out is the last of both levels
            to = there + tl.where(paired, pair, 2 * half)
            tl.store(counts + to, tl.where(paired, taken, count), mask=pair < above)
            tl.store(counts + there + half + pair, count - taken, mask=paired)
        used += half
        groups_below, degree_below = _level(tl.maximum(level - 1, 0), n, k)
        at -= (degree_below + 1) * groups_below
    tl.debug_barrier()
    return (steps % 2) * n


@triton.jit
def _weight(chances, j, pair, count, groups, degree, paired):
    """The chance that the left groups of pairs have j ones and the right ones the others."""
    i = count - j
    valid = paired & (j <= degree) & (i >= 0) & (i <= degree)
    a = tl.load(chances + j * groups + pair, mask=valid, other=0.0)
    b = tl.load(chances + i * groups + groups // 2 + pair, mask=valid, other=0.0)
    return (a * b).to(tl.float64)


@triton.jit(do_not_specialize=["rows", "n", "k", "steps", "tree", "draws", "share"])
def _draw_kernel(
    point, uniform, drawn, scratch, counts,
    rows, n, k, steps, tree, draws, share,
    FLIPPED: tl.constexpr, TERMS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Subsets (draws, rows, n), from log-odds (rows, n) and numbers (draws, rows, n - 1).

    The sides and the tree are as in ``_moments_kernel``. A tree serves ``share`` draws.
    """
    chances = scratch + tl.program_id(0) * tree.to(tl.int64)
    counts += tl.program_id(0) * (2 * n).to(tl.int64)
    parts = tl.cdiv(draws, share)
    for job in range(tl.program_id(0), rows * parts, tl.num_programs(0)):
        row, first = job // parts, job % parts * share
        at_row = row * n.to(tl.int64)
        bad = tl.zeros((TILE,), tl.int32)
        for start in range(0, n, TILE):
            item = start + tl.arange(0, TILE)
            x = tl.load(point + at_row + item, mask=item < n, other=0.0)
            bad += (x != x).to(tl.int32)
        # of rows that no check has looked at, with NaN or too few items, any subset will do
        is_bad = tl.sum(bad, 0) > 0
        alike = k.to(tl.float32) / n
        tl.debug_barrier()  # all lanes are done with the job before
        for start in range(0, n, TILE):
            item = start + tl.arange(0, TILE)
            inside = item < n
            q, p = _leaf(tl.load(point + at_row + item, mask=inside, other=0.0), FLIPPED)
            tl.store(chances + item, tl.where(is_bad, 1.0 - alike, q), mask=inside)
            tl.store(chances + n + item, tl.where(is_bad, alike, p), mask=inside)
        at = _products(chances, chances, n, k, steps, False, TERMS, TILE)
        for draw in range(first, tl.minimum(first + share, draws)):
            number = draw * rows.to(tl.int64) + row
            last = _split(chances, counts, uniform + number * (n - 1), at, n, k, steps, TERMS, TILE)
            for start in range(0, n, TILE):
                item = start + tl.arange(0, TILE)
                count = tl.load(counts + last + item, mask=item < n, other=0)
                is_in = count == 0 if FLIPPED else count > 0
                tl.store(drawn + number * n + item, is_in, mask=item < n)
