"""The numbers of the formulas and other constants, in the form that a kernel can read."""

import triton.language as tl

from .formulas import FORMULAS

STRAIGHT_THROUGH = tl.constexpr(FORMULAS["straight_through"].number)
REINMAX = tl.constexpr(FORMULAS["reinmax"].number)
GAPPED = tl.constexpr(FORMULAS["gapped"].number)
GAPPED_P = tl.constexpr(FORMULAS["gapped_p"].number)
GUMBEL_SOFTMAX = tl.constexpr(FORMULAS["gumbel_softmax"].number)
MEAN_FIRST = tl.constexpr(FORMULAS["mean_first"].number)
MEAN_SECOND = tl.constexpr(FORMULAS["mean_second"].number)
MEAN_RELEASED = tl.constexpr(FORMULAS["mean_released"].number)
GUMBEL_RAO = tl.constexpr(FORMULAS["gumbel_rao"].number)
BLEND = tl.constexpr(FORMULAS["blend"].number)

# the smallest normal and the lowest finite float32
TINY = tl.constexpr(1.1754943508222875e-38)
LOWEST = tl.constexpr(-3.4028234663852886e38)
LOG2_E = tl.constexpr(1.4426950408889634)
