"""The configuration of a search."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...stack.config import Run
from .images import HALF

WORDS: dict[str, Callable[[Any], str]] = {
    "decay": "decay {:g}".format,
    "gradient": lambda kind: "full gradient" if kind == "full" else "gradient of GDAS",
}
"""How fields read."""


@dataclass(frozen=True, kw_only=True)
class Search(Run):
    """Search for a cell on CIFAR-10 with shared weights, as GDAS does on NATS-Bench.

    ``learning_rate``, ``tau`` and ``optimiser`` are those of the architecture. The weights of the
    supernet follow the protocol of the benchmark, which has no choices.
    """

    task: ClassVar[str] = "nas"
    counts: ClassVar[tuple[str, ...]] = ("channels", "cells", "batch", "images")

    epochs: int = 100
    learning_rate: float = 3e-4
    tau_end: float | None = None
    """The temperature of the last epoch, to which it goes in equal steps; None for ``tau``."""
    decay: float = 1e-3
    """Of the architecture (L2)."""
    gradient: Literal["gdas", "full"] = "gdas"
    """What the estimator gets as the gradient of a sample: GDAS's own form, in which all operations
    that were not chosen have the same one, or what each of them would have made of its input."""
    channels: int = 16
    """Of the first stage; each of the two that follow has twice as many."""
    cells: int = 5
    """In each of the three stages."""
    batch: int = 64
    images: int = HALF
    """Of each half of the data, the first ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.line.kind != "sampler":
            raise ValueError(
                f"expected an estimator that makes a sample, got {self.estimator!r}; a search "
                "knows the loss of the cell that it has sampled only"
            )
        end = self.tau_end
        if not (end is None or (isinstance(end, float) and math.isfinite(end) and end > 0)):
            raise ValueError(f"expected a positive number (float) as tau_end, or None, got {end!r}")
        if not (isinstance(self.decay, float) and math.isfinite(self.decay) and self.decay >= 0):
            raise ValueError(f"expected a number (float) of 0 or more as decay, got {self.decay!r}")
        if self.images > HALF:
            raise ValueError(f"expected at most {HALF} images, got {self.images}")

    @property
    def steps_per_epoch(self) -> int:
        """The last batch may be smaller than the others."""
        return math.ceil(self.images / self.batch)

    def tau_at(self, epoch: int) -> float:
        """The temperature in an epoch, counted from 0."""
        if self.tau_end is None or self.epochs == 1:
            return self.tau
        return self.tau + (self.tau_end - self.tau) * epoch / (self.epochs - 1)

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """A search is a stack of its own: a step runs the operations that it has chosen only."""
        return (*super().stack_key, self.identity)
