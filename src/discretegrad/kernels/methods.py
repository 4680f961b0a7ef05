"""The formulas that the kernels know, by name for the host and by number for a kernel."""

import triton.language as tl

STRAIGHT_THROUGH = tl.constexpr(0)
REINMAX = tl.constexpr(1)
GAPPED = tl.constexpr(2)
GAPPED_P = tl.constexpr(3)
GUMBEL_SOFTMAX = tl.constexpr(4)
MEAN_FIRST = tl.constexpr(5)
MEAN_SECOND = tl.constexpr(6)
MEAN_RELEASED = tl.constexpr(7)
GUMBEL_RAO = tl.constexpr(8)

METHODS = {
    "straight_through": 0,
    "reinmax": 1,
    "gapped": 2,
    "gapped_p": 3,
    "gumbel_softmax": 4,
    "mean_first": 5,
    "mean_second": 6,
    "mean_released": 7,
    "gumbel_rao": 8,
}

# the smallest normal float32
TINY = tl.constexpr(1.1754943508222875e-38)
