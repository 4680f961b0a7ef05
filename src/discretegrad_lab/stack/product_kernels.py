r"""The step of Adam or RAdam that multiplies the gradient of a weight out for itself.

That gradient is $g^\top x$, with the gradients $g$ at the outputs of a layer and its inputs $x$, a
row each for every example of the batch. A program makes a tile of it, which stays in registers, and
updates the same tile of the weight and of its moments. So 24 bytes are moved for each number of the
weight: itself and two moments, read and written. To write the gradient and read it again would be 8
more.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from discretegrad.kernels.launch import Plan, launch, power_of_two

SIDE, WARPS = 64, 8
"""A tile is at most so wide and so high, 16 numbers for each thread."""
REGISTERS = 128
"""Of a thread, so that two programs fit a multiprocessor: one computes while the other waits for
memory. Nothing is spilled."""
EXAMPLES = 32
"""So many are multiplied at a time."""
_LEAST = 16
"""The least side of what tensor cores multiply."""


@triton.jit(do_not_specialize=["outputs", "inputs", "examples"])
def _update_kernel(
    weight, mean, square, gradients, entering,
    alive, is_radam, rate, size, first, second, rectification,
    rest1, beta2, rest2, eps, outputs, inputs, examples,
    ADAM: tl.constexpr, RADAM: tl.constexpr, TF32: tl.constexpr, UNIT: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, EXAMPLES: tl.constexpr,
):  # fmt: skip
    """A tile of the weight of a member, and of both moments, after a step."""
    # sizes come in units of 4 if they can: then the compiler knows that four numbers lie together
    outputs, inputs = outputs * UNIT, inputs * UNIT
    across = tl.cdiv(inputs, INPUTS)
    tiles = across * tl.cdiv(outputs, OUTPUTS)
    tile = tl.program_id(0) % tiles
    member = (tl.program_id(0) // tiles).to(tl.int64)
    # who is not alive keeps what it has
    if tl.load(alive + member) == 0:
        return
    output = tile // across * OUTPUTS + tl.arange(0, OUTPUTS)
    input = tile % across * INPUTS + tl.arange(0, INPUTS)
    is_output, is_input = output < outputs, input < inputs
    inside = is_output[:, None] & is_input[None, :]
    place = member * outputs * inputs + output[:, None] * inputs + input[None, :]
    # they are on their way while the gradient is made
    p = tl.load(weight + place, inside, 0.0)
    m = tl.load(mean + place, inside, 0.0)
    v = tl.load(square + place, inside, 0.0)
    gradients += member * examples * outputs + output[None, :]
    entering += member * examples * inputs + input[None, :]
    g = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in range(0, examples, EXAMPLES):
        example = (start + tl.arange(0, EXAMPLES))[:, None]
        is_example = example < examples
        left = tl.load(gradients + example * outputs, is_example & is_output[None, :], 0.0)
        right = tl.load(entering + example * inputs, is_example & is_input[None, :], 0.0)
        g = tl.dot(tl.trans(left), right, g, input_precision="tf32" if TF32 else "ieee")
    m += rest1 * (g - m)
    v = v * beta2 + rest2 * g * g
    root = tl.sqrt(v)
    # as in optimisers.py, where what is the same for all numbers of a member is computed once
    follows_radam = RADAM
    if ADAM and RADAM:
        follows_radam = tl.load(is_radam + member) != 0
    if follows_radam:
        plain = m * (tl.load(rate + member) / tl.load(first + member))
        factor = tl.load(rectification + member)
        adaptive = plain * (tl.load(second + member) * factor / (root + eps))
        p -= tl.where(factor > 0, adaptive, plain)
    else:
        p += tl.load(size + member) * m / (root * (1 / tl.load(second + member)) + eps)
    tl.store(weight + place, p, inside)
    tl.store(mean + place, m, inside)
    tl.store(square + place, v, inside)


@lru_cache(maxsize=256)
def _plan(
    members: int, outputs: int, inputs: int, examples: int, rules: tuple[bool, bool], tf32: bool,
    device: torch.device,
) -> Plan:  # fmt: skip
    sides = [min(SIDE, max(_LEAST, power_of_two(size))) for size in (outputs, inputs)]
    tiles = -(-outputs // sides[0]) * -(-inputs // sides[1])
    unit = 4 if outputs % 4 == inputs % 4 == 0 else 1
    sizes = outputs // unit, inputs // unit, examples
    constants = (*sizes, *map(int, rules), int(tf32), unit, *sides, EXAMPLES)
    return Plan(_update_kernel, members * tiles, WARPS, constants, tuple(range(3, 12)), REGISTERS)


def update(
    state: Sequence[Tensor],
    factors: Sequence[Tensor],
    of_members: Sequence[Tensor],
    numbers: tuple[float, float, float, float],
    rules: tuple[bool, bool],
    tf32: bool,
) -> None:
    """Make a step of the living members, in place.

    Args:
        state: Weight and moments, (members, outputs * inputs) each, float32 and contiguous.
        factors: Gradients at the outputs, (members, examples, outputs), and inputs.
        of_members: What ``optimisers.Scalars`` has.
        numbers: 1 - beta1, beta2, 1 - beta2 and eps.
        rules: Whether any member follows Adam, and whether any follows RAdam.
        tf32: Whether the factors may be rounded to that before they are multiplied.
    """
    members, examples, outputs = factors[0].shape
    sizes = (members, outputs, factors[1].shape[2], examples)
    plan = _plan(*sizes, rules, tf32, state[0].device)
    launch(plan, [*state, *factors, *of_members], numbers)
