"""The configuration of the vector-quantised autoencoder."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ...stack.config import Run

TRAIN_IMAGES = 60_000
WORDS: dict[str, Callable[[Any], str]] = {
    "scale": "scale {:g}".format,
    "codes": "{} codes".format,
    "latents": "{} vectors".format,
}
"""How fields read."""


@dataclass(frozen=True, kw_only=True)
class Codebook(Run):
    """An autoencoder on MNIST between whose halves are vectors of one codebook."""

    task: ClassVar[str] = "codebook"
    member_fields: ClassVar[tuple[str, ...]] = (*Run.member_fields, "scale", "commitment")
    counts: ClassVar[tuple[str, ...]] = ("codes", "latents", "width", "batch")

    epochs: int = 100
    codes: int = 256
    """In the codebook."""
    latents: int = 16
    """Vectors of an image."""
    width: int = 8
    """Of a vector, and of a code."""
    batch: int = 100
    copied: bool = False
    """Whether the nearest code is taken and the gradient at it copied to the encoder, as
    vector-quantised models mostly do. The estimator then has no part in the training."""
    scale: float = 0.01
    """What squared distances are divided by before they are logits of the draw."""
    commitment: float = 0.25
    """Weight of the squared distances between the vectors and their codes."""
    decay: float = 0.8
    """Of the moving averages that the codes are."""
    restart: float = 1.0
    """Codes that are taken less often than this per step, on average, restart at vectors of the
    batch; 0 for never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.line.kind != "sampler":
            raise ValueError(
                f"expected an estimator that makes a sample, got {self.estimator!r}; the codes of "
                "an image are too many for others"
            )
        for name, most in (("commitment", math.inf), ("restart", math.inf), ("decay", 1.0)):
            value = getattr(self, name)
            if not (isinstance(value, float) and math.isfinite(value) and 0 <= value <= most):
                wanted = "from 0 to 1" if most == 1 else "of at least 0"
                raise ValueError(f"expected a number (float) {wanted} as {name}, got {value!r}")
        if not (isinstance(self.scale, float) and math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"expected a positive number (float) as scale, got {self.scale!r}")

    @property
    def steps_per_epoch(self) -> int:
        """Images that do not fill a batch are left out."""
        return TRAIN_IMAGES // self.batch
