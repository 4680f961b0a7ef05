"""The configuration of the categorical VAE."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...stack.config import Run

TRAIN_IMAGES = {"mnist": 60_000}


@dataclass(frozen=True, kw_only=True)
class Vae(Run):
    """The categorical VAE on images of 784 pixels."""

    task: ClassVar[str] = "vae"
    counts: ClassVar[tuple[str, ...]] = ("categories", "latents", "batch")

    epochs: int = 160
    data: Literal["mnist"] = "mnist"
    categories: int
    latents: int
    batch: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data != "mnist":
            raise ValueError(f"expected the data mnist, got {self.data!r}")

    @property
    def steps_per_epoch(self) -> int:
        """Images that do not fill a batch are left out."""
        return TRAIN_IMAGES[self.data] // self.batch
