"""What the cases on a GPU share: how long they are timed, and the columns that tell them apart."""

from collections.abc import Sequence

import torch
from files import MADE, ON_GPU, Row
from machine import Setup
from timing import Pace

FULL_PACE = Pace(rounds=7, seconds=0.012, calls=2000, slow_seconds=0.3, slow_rounds=2)
QUICK_PACE = Pace(rounds=2, seconds=0.0, calls=1)
TORCH = "F.gumbel_softmax(hard=True)"
EAGER = "eager"

NAMES = ("section", "case", "dtype", "mode", "provider", "status")
ABOUT = (*ON_GPU, "reinmax", *MADE)


def about(section: str, case: str, dtype: torch.dtype = torch.float32, mode: str = EAGER) -> Row:
    dtype_name = str(dtype).removeprefix("torch.")
    return {"section": section, "case": case, "dtype": dtype_name, "mode": mode}


def named(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def pace(setup: Setup) -> Pace:
    return QUICK_PACE if setup.quick else FULL_PACE
