"""Every random number of the library comes from here."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._checks import check_generator
from ._types import Call


def uniform(shape: Sequence[int], dtype: torch.dtype, call: Call) -> Tensor:
    """Uniform numbers in [0, 1), on the device of the logits of a call, by its generator."""
    generator, device = call.generator, call.logits.device
    if generator is None:
        # with an argument for the generator, torch cannot trace dynamic shapes
        return torch.rand(shape, dtype=dtype, device=device)
    check_generator(call.name, generator, call.logits)
    return torch.rand(shape, dtype=dtype, device=device, generator=generator)


def draw_seeds(
    shape: Sequence[int], device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Non-negative int64 seeds, drawn on the device without a wait."""
    high = 2**63 - 1
    if generator is None:  # see uniform
        return torch.randint(high, shape, device=device)
    return torch.randint(high, shape, device=device, generator=generator)


def widest(device: torch.device) -> torch.dtype:
    """The dtype of the numbers that decide a draw."""
    # Apple GPUs have no float64
    return torch.float32 if device.type == "mps" else torch.float64
