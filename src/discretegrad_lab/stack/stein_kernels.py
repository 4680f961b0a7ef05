r"""Kernels of the network of RODEO, which keep its hidden layer in registers.

The hidden layer is fifty times as large as what goes in and what comes out. Here a thread makes a
number of it, uses it at once and forgets it.

A member has at a point $x$ the hidden numbers $h = w \cdot x + b$ and the outputs
$\sum o_n \max(h, s h) + c_n$ over its hidden units, where $s$ is the slope. With $g$ the gradient
at the outputs, $d$ = 1 where $h > 0$ and $s$ elsewhere, and $z = (x_0, x_1, 1)$, all gradients of a
hidden unit follow from six sums over the points, $M_{nk} = \sum d\, g_n z_k$: that of $w_k$ is
$\sum_n o_n M_{nk}$, that of $b$ is $\sum_n o_n M_{n2}$, and that of $o_n$ is
$\sum_k w_k M_{nk} + b M_{n2}$. The products $g_n z_k$ are the same for all hidden units, so that
each of them takes ten operations at a point: two for $h$, two for $d$, six for the sums.

What a program works on follows from the number of points and of hidden units alone. So what it
gives for a member is the same in every stack, to the last bit.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from discretegrad.kernels.launch import Plan, launch, power_of_two

FORWARD_BLOCK, FORWARD_WARPS = 512, 2
"""Points of a program: 8 for each thread, which share the five loads of a hidden unit. More of them
would leave fewer programs, and 15 members at 40,200 points have none to spare on 132
multiprocessors."""
UNITS, LANES = 16, 32
"""Hidden units of a program of the backward pass, all of them in each of its threads, which are one
warp. With 8 there would be twice as many programs, each of which reads the points."""
SPAN = 4096
"""Points of such a program: 128 for each thread, so that adding up over threads is a twentieth of
the work. 15 members at 40,200 points are 1050 programs, two for each of the 528 schedulers."""
REGISTERS = 168
"""Of a thread of it, so that three warps fit each scheduler. Nothing is spilled."""


@triton.jit(do_not_specialize=["points"])
def _forward_kernel(
    x, weight, bias, outer, outer_bias, out, slope, points,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The outputs at a block of points of a member."""
    blocks = tl.cdiv(points, BLOCK)
    member = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = at < points
    place = (member * points + at) * 2
    x0 = tl.load(x + place, inside, 0.0)
    x1 = tl.load(x + place + 1, inside, 0.0)
    out0 = tl.zeros([BLOCK], tl.float32) + tl.load(outer_bias + member * 2)
    out1 = tl.zeros([BLOCK], tl.float32) + tl.load(outer_bias + member * 2 + 1)
    weight += member * (2 * HIDDEN)
    bias += member * HIDDEN
    outer += member * (2 * HIDDEN)
    # four hidden units at a time, whose loads start together
    for _ in tl.range(HIDDEN, loop_unroll_factor=4):
        h = x0 * tl.load(weight) + (x1 * tl.load(weight + 1) + tl.load(bias))
        active = tl.maximum(h, slope * h)
        out0 += active * tl.load(outer)
        out1 += active * tl.load(outer + HIDDEN)
        weight += 2
        bias += 1
        outer += 1
    tl.store(out + place, out0, inside)
    tl.store(out + place + 1, out1, inside)


@triton.jit(do_not_specialize=["points"])
def _slopes_kernel(
    g, x, weight, bias, outer, parts, slope, points,
    HIDDEN: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """What a span of points gives to the gradients of some hidden units of a member."""
    groups: tl.constexpr = (HIDDEN + UNITS - 1) // UNITS
    spans = tl.cdiv(points, SPAN)
    # programs that run at the same time read the same points
    group = tl.program_id(0) % groups
    span = tl.program_id(0) // groups % spans
    member = (tl.program_id(0) // groups // spans).to(tl.int64)
    unit = group * UNITS + tl.arange(0, UNITS)
    real = unit < HIDDEN
    weight += member * (2 * HIDDEN)
    outer += member * (2 * HIDDEN)
    w0 = tl.load(weight + 2 * unit, real, 0.0)
    w1 = tl.load(weight + 2 * unit + 1, real, 0.0)
    b = tl.load(bias + member * HIDDEN + unit, real, 0.0)
    lane = tl.arange(0, BLOCK)
    place = (member * points + span * SPAN + lane) * 2
    g += place
    x += place
    count = tl.minimum(points - span * SPAN, SPAN)
    left = count - lane
    m00 = tl.zeros([UNITS, BLOCK], tl.float32)
    m01 = tl.zeros([UNITS, BLOCK], tl.float32)
    m02 = tl.zeros([UNITS, BLOCK], tl.float32)
    m10 = tl.zeros([UNITS, BLOCK], tl.float32)
    m11 = tl.zeros([UNITS, BLOCK], tl.float32)
    m12 = tl.zeros([UNITS, BLOCK], tl.float32)
    sum0 = tl.zeros([BLOCK], tl.float32)
    sum1 = tl.zeros([BLOCK], tl.float32)
    # two points of a thread at a time, whose loads start together
    for start in tl.range(0, count, BLOCK, loop_unroll_factor=2):
        inside = start < left
        x0 = tl.load(x, inside, 0.0)
        x1 = tl.load(x + 1, inside, 0.0)
        g0 = tl.load(g, inside, 0.0)
        g1 = tl.load(g + 1, inside, 0.0)
        x += 2 * BLOCK
        g += 2 * BLOCK
        h = w0[:, None] * x0[None, :] + (w1[:, None] * x1[None, :] + b[:, None])
        d = tl.where(h > 0, 1.0, slope)
        m00 += d * (g0 * x0)[None, :]
        m01 += d * (g0 * x1)[None, :]
        m02 += d * g0[None, :]
        m10 += d * (g1 * x0)[None, :]
        m11 += d * (g1 * x1)[None, :]
        m12 += d * g1[None, :]
        sum0 += g0
        sum1 += g1
    of00, of01, of02 = tl.sum(m00, 1), tl.sum(m01, 1), tl.sum(m02, 1)
    of10, of11, of12 = tl.sum(m10, 1), tl.sum(m11, 1), tl.sum(m12, 1)
    o0 = tl.load(outer + unit, real, 0.0)
    o1 = tl.load(outer + HIDDEN + unit, real, 0.0)
    parts += (member * spans + span) * (5 * HIDDEN + 2)
    tl.store(parts + 2 * unit, o0 * of00 + o1 * of10, real)
    tl.store(parts + 2 * unit + 1, o0 * of01 + o1 * of11, real)
    tl.store(parts + 2 * HIDDEN + unit, o0 * of02 + o1 * of12, real)
    tl.store(parts + 3 * HIDDEN + unit, w0 * of00 + w1 * of01 + b * of02, real)
    tl.store(parts + 4 * HIDDEN + unit, w0 * of10 + w1 * of11 + b * of12, real)
    if group == 0:
        tl.store(parts + 5 * HIDDEN, tl.sum(sum0, 0))
        tl.store(parts + 5 * HIDDEN + 1, tl.sum(sum1, 0))


# the host's side


@lru_cache(maxsize=256)
def _forward_plan(members: int, points: int, hidden: int, device: torch.device) -> Plan:
    programs = members * -(-points // FORWARD_BLOCK)
    constants = (points, hidden, FORWARD_BLOCK)
    return Plan(_forward_kernel, programs, FORWARD_WARPS, constants, copied=(0, 1, 2, 3, 4))


@lru_cache(maxsize=256)
def _slopes_plan(members: int, points: int, hidden: int, device: torch.device) -> Plan:
    units = min(UNITS, power_of_two(hidden))
    programs = members * -(-points // SPAN) * -(-hidden // units)
    constants, copied = (points, hidden, units, LANES, SPAN), (0, 1, 2, 3, 4)
    return Plan(_slopes_kernel, programs, 1, constants, copied, REGISTERS)


def forward(x: Tensor, layers: list[Tensor], slope: float) -> Tensor:
    """The outputs, (members, points, 2).

    Args:
        x: (members, points, 2), float32.
        layers: Inner weight, (members, hidden, 2), inner bias, outer weight, (members, 2, hidden),
            and outer bias.
        slope: Of the activation where it is negative, from 0 to 1.
    """
    members, points, _ = x.shape
    out = torch.empty(members, points, 2, dtype=x.dtype, device=x.device)
    plan = _forward_plan(members, points, layers[0].shape[1], x.device)
    launch(plan, [x, *layers, out], (slope,))
    return out


def partial_slopes(g: Tensor, x: Tensor, layers: list[Tensor], slope: float) -> Tensor:
    """What each span of points gives to the gradients, (members, spans, 5 hidden + 2).

    A row has those of the inner weight, the inner bias, the outer weight and the outer bias.

    Args:
        g: The gradient at the outputs, (members, points, 2), float32.
        x: As above.
        layers: As above, without the outer bias.
        slope: As above.
    """
    members, points, _ = x.shape
    hidden = layers[0].shape[1]
    parts = torch.empty(members, -(-points // SPAN), 5 * hidden + 2, dtype=x.dtype, device=x.device)
    launch(_slopes_plan(members, points, hidden, x.device), [g, x, *layers, parts], (slope,))
    return parts
