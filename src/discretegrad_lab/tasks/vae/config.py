"""The configuration of the categorical VAE."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...stack.config import Run
from ...stack.lines import line
from ...stack.score import sample_count

TRAIN_IMAGES = {"mnist": 60_000}
OWN = "own"
MOST_CODES = 2**16
"""More joint codes than this are not enumerated."""
WORDS: dict[str, Callable[[Any], str]] = {
    "along": lambda key: (
        "along its own training" if key == OWN else f"along the training with {line(key).label}"
    ),
    "binarised": lambda yes: "binary images" if yes else "grey images",
    "categories": lambda n: f"{n} categories",
    "latents": lambda n: f"{n} latents",
    # rows of runs with one sample do not have the field
    "samples": lambda n: f"{n} samples" if n else "",
    "tf32": lambda yes: "products in TF32" if yes else "products in float32",
    "weights_seed": lambda n: f"weights of seed {n}",
}
"""How fields read."""


@dataclass(frozen=True, kw_only=True)
class Vae(Run):
    """The categorical VAE on images of 784 pixels."""

    task: ClassVar[str] = "vae"
    counts: ClassVar[tuple[str, ...]] = ("categories", "latents", "batch", "samples")
    member_fields: ClassVar[tuple[str, ...]] = (*Run.member_fields, "weights_seed")
    later_fields: ClassVar[tuple[str, ...]] = (
        *Run.later_fields, "along", "along_tau", "images", "binarised", "slope", "samples",
        "weights_seed",
    )  # fmt: skip

    epochs: int = 160
    data: Literal["mnist"] = "mnist"
    categories: int
    latents: int
    batch: int = 100
    along: str = ""
    """Along whose training the gradients of the estimator are compared with the exact ones:
    ``"own"``, or the key of a line, which then trains in place of the estimator. Without it they
    are not compared."""
    along_tau: float | None = None
    """The temperature of that line."""
    images: int | None = None
    """How many images to train on, the first ones of the data set; None for all of them."""
    binarised: bool = False
    """Whether each pixel of a training image is 1 with its grey value as the probability and 0
    else, drawn anew in every epoch; test images are drawn once, alike for all runs."""
    slope: float | None = None
    """Of the activations where they are negative (LeakyReLU); None for ReLU."""
    samples: int = 1
    """Of the code of each image, in a step: the loss is the mean over them. For 1, a score function
    has as many as it needs at least."""
    weights_seed: int | None = None
    """Of the initial weights, where it is another than the seed of all else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_data()
        if not (self.slope is None or (isinstance(self.slope, float) and 0 < self.slope < 1)):
            raise ValueError(
                "expected a number (float) between 0 and 1 as slope, or None for ReLU, got "
                f"{self.slope!r}"
            )
        weights = self.weights_seed
        if not (weights is None or (type(weights) is int and weights >= 0)):
            raise ValueError(
                "expected a whole number of at least 0 as weights_seed, or None for the seed of "
                f"the run, got {weights!r}"
            )
        if self.along:
            self._check_along()
        if self.trained.line.kind == "score":
            sample_count(self.trained.line, self.samples)
        elif self.samples > 1 and self.enumerates:
            raise ValueError(
                f"expected samples=1 where all codes are enumerated, got samples={self.samples}; "
                "leave it out, or choose an estimator that makes samples and leave along out"
            )
        if self.enumerates and self.codes > MOST_CODES:
            raise ValueError(
                f"expected at most {MOST_CODES:,} joint codes, which the exact gradient "
                f"enumerates, got {self.categories} ** {self.latents}; take fewer latents, such as "
                "categories=8, latents=4, or another estimator"
            )

    def _check_data(self) -> None:
        every, count = TRAIN_IMAGES[self.data], self.images
        if not (count is None or (isinstance(count, int) and self.batch <= count < every)):
            raise ValueError(
                f"expected a whole number as images, from the batch of {self.batch} to "
                f"{every - 1:,}, or None for all {every:,}, got {count!r}"
            )

    def _check_along(self) -> None:
        if self.line.kind != "sampler":
            raise ValueError(
                "expected an estimator that makes a sample, whose gradients can be compared with "
                f"the exact ones, got {self.estimator!r}; leave along out, or choose another"
            )
        own = self.along == OWN
        if not (own or line(self.along).row):
            raise ValueError(f"expected {OWN!r} or the key of a line as along, got {self.along!r}")
        tau = self.along_tau
        if (tau is None) != own or not (tau is None or (isinstance(tau, float) and tau > 0)):
            raise ValueError(
                f"expected a positive number (float) as along_tau beside the key of a line, and "
                f"none beside {OWN!r}, got along={self.along!r}, along_tau={tau!r}"
            )

    @property
    def codes(self) -> int:
        """How many joint outcomes the latent variables have."""
        return int(self.categories**self.latents)

    @property
    def trained(self) -> "Vae":
        """The run whose estimator trains the networks: itself, unless it is along another."""
        if self.along in ("", OWN):
            return self
        changes: dict[str, Any] = {"estimator": line(self.along), "tau": self.along_tau}
        return dataclasses.replace(self, **changes, own_line=None, along="", along_tau=None)

    @property
    def enumerates(self) -> bool:
        """Whether it needs the loss of every joint code."""
        return bool(self.along) or self.line.kind == "exact"

    @property
    def train_images(self) -> int:
        """How many images it trains on."""
        return TRAIN_IMAGES[self.data] if self.images is None else self.images

    @property
    def steps_per_epoch(self) -> int:
        """Images that do not fill a batch are left out."""
        return self.train_images // self.batch

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """A line that makes no sample has a stack of its own, since its steps are others."""
        own = () if self.line.kind == "sampler" else ((self.line.row, self.line.options),)
        return super().stack_key + own
