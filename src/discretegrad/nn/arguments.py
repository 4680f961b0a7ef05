"""Checks of what ``VectorQuantize`` is given."""

import sys
from typing import Any

import torch
from torch import Tensor

from .._checks import values_are_checked
from ..registry import get_sampler

NAME = "VectorQuantize"


def check_estimator(estimator: object, options: dict[str, Any]) -> None:
    """There is such a sampler, and it has these options."""
    row = get_sampler(NAME, estimator)
    known = [option for option in row.options if option != "hard"]
    for option in options:
        if option not in known:
            raise TypeError(
                f"{NAME}: expected arguments of its own or options of {row.name} "
                f"({', '.join(known) or 'it has none'}), got {option!r}. Not every argument of "
                "vector-quantize-pytorch is known here: see help(discretegrad.nn.VectorQuantize)."
            )
    assert row.rule is not None
    row.rule(**options)


# not math.isfinite, which torch.compile cannot trace for a number that changes between calls
_LARGEST = sys.float_info.max


def check_number(
    name: str, value: object, least: float = -_LARGEST, most: float = _LARGEST
) -> None:
    """``value`` is a finite number between these limits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{NAME}: expected {name} to be a number, got {type(value).__name__}")
    if not least <= value <= most:
        limits = {-_LARGEST: "a finite number", 0.0: "a finite number of at least 0"}
        wanted = "a number between 0 and 1" if most == 1 else limits.get(least, "a positive number")
        raise ValueError(f"{NAME}: expected {name} to be {wanted}, got {value}")


def check_finite(rows: Tensor) -> None:
    """The vectors of a batch, one per row, hold neither NaN nor inf."""
    if values_are_checked(rows) and not rows.isfinite().all():
        row = int((~rows.isfinite()).any(1).nonzero()[0])
        raise ValueError(
            f"{NAME}: expected vectors of finite numbers, got NaN or inf in vector {row}. Find its "
            "origin with torch.autograd.set_detect_anomaly(True); leave padding out with mask=."
        )


def check_mask(mask: object, vectors: Tensor) -> None:
    """``mask`` is None, or has one flag for each vector, (..., width)."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{NAME}: expected mask to be a boolean tensor (False for padding), got {came}. "
            "Convert with mask.bool()."
        )
    if mask.shape != vectors.shape[:-1]:
        raise ValueError(
            f"{NAME}: expected a mask of the shape of the indices, {tuple(vectors.shape[:-1])}, "
            f"got {tuple(mask.shape)}"
        )
