"""Names for the types that appear in signatures, and what travels together between files."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

Backend: TypeAlias = Literal["auto", "torch", "triton"]
Temperature: TypeAlias = float | Tensor
Objective: TypeAlias = Callable[[Tensor], Tensor]
Vectorize: TypeAlias = bool | Literal["stacked"]
"""How f sees several samples: one by one, under ``torch.vmap``, or stacked in a first axis."""
Baseline: TypeAlias = Literal["self_critical"] | Callable[[Tensor], Tensor] | None


class Call(NamedTuple):
    """What every sampler is given about its variables, as the user wrote it."""

    name: str
    """The sampler, for messages."""
    logits: Tensor
    tau: Temperature = 1.0
    dim: int = -1
    mask: Tensor | None = None
    generator: torch.Generator | None = None


class Method(NamedTuple):
    """Which formula a kernel computes."""

    name: str
    """A key of the kernels' table of formulas."""
    option: float = 0.0
    """The formula's own number: the gap of ``gapped``, or the weight of ``blend``."""
    num_draws: int = 0
