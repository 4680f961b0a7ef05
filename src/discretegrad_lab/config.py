"""What a training run is: a frozen configuration whose hash is its name."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from .estimators import ESTIMATORS

# raise it when the same configuration would give other results than before
VERSION = 2


TRAIN_IMAGES = {"mnist": 60_000}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that decides the outcome of a training run on a kind of device, but rounding.

    CPUs and GPUs draw different random numbers.
    """

    task: ClassVar[str]
    member_fields: ClassVar[tuple[str, ...]] = (
        "estimator", "tau", "optimiser", "learning_rate", "seed",
    )  # fmt: skip
    """What may differ between the members of a stack; all else is the same for them."""

    estimator: str
    """A name of ``discretegrad_lab.estimators.ESTIMATORS``."""
    tau: float = 1.0
    optimiser: Literal["adam", "radam"] = "adam"
    learning_rate: float = 1e-3
    seed: int = 0
    """Of the initialisation, the order of the data and all samples."""
    epochs: int
    draws: int = 1000
    """Of noise, for each sample of gr-mck."""
    tf32: bool = False
    """Whether matrix products may round their factors to 10 bits, on GPUs that can."""

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise ValueError(
                f"expected an estimator of {', '.join(ESTIMATORS)}, got {self.estimator!r}"
            )
        if self.optimiser not in ("adam", "radam"):
            raise ValueError(f"expected the optimiser adam or radam, got {self.optimiser!r}")
        for name in ("tau", "learning_rate"):
            value = getattr(self, name)
            if not (isinstance(value, float) and math.isfinite(value) and value > 0):
                raise ValueError(f"expected a positive number (float) as {name}, got {value!r}")
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**31):
            raise ValueError(f"expected a seed from 0 to 2**31 - 1, got {self.seed!r}")
        for name in ("epochs", "draws", *self.counts):
            value = getattr(self, name)
            if not (isinstance(value, int) and value > 0):
                raise ValueError(f"expected a positive whole number as {name}, got {value!r}")

    counts: ClassVar[tuple[str, ...]] = ()
    """Fields of a task that are positive whole numbers."""

    @property
    def steps_per_epoch(self) -> int:
        """How many updates an epoch has."""
        raise NotImplementedError

    def document(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        return {"task": self.task, "version": VERSION, **dataclasses.asdict(self)}

    @cached_property
    def identity(self) -> str:
        """The hash of the canonical configuration, 16 hexadecimal digits."""
        canonical = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """Equal for runs that can be members of one stack."""
        shared = {k: v for k, v in self.document().items() if k not in self.member_fields}
        return tuple(sorted(shared.items()))


@dataclass(frozen=True, kw_only=True)
class Polynomial(Run):
    r"""Minimise $E[\frac1L \sum_i |X_i - c_i|^p]$ over the logits of L binary variables."""

    task: ClassVar[str] = "polynomial"
    member_fields: ClassVar[tuple[str, ...]] = (*Run.member_fields, "power", "target")
    counts: ClassVar[tuple[str, ...]] = ("latents", "batch", "steps_per_epoch")

    epochs: int = 40
    steps_per_epoch: int = 200
    power: float = 2.0
    """p"""
    latents: int = 128
    """L"""
    batch: int = 256
    """Joint samples a step, which is also evaluations of the loss."""
    target: Literal["constant", "spread"] = "constant"
    """c: 0.45 everywhere (the paper's setting A), or (i - 0.5) / L (its setting B)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in ("constant", "spread"):
            raise ValueError(f"expected the target constant or spread, got {self.target!r}")
        if not (isinstance(self.power, float) and self.power > 0):
            raise ValueError(f"expected a positive number (float) as power, got {self.power!r}")
        if self.estimator == "rodeo" and self.batch % 2 == 1:
            raise ValueError(f"expected an even batch for rodeo's pairs, got {self.batch}")


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


TASKS: dict[str, type[Run]] = {kind.task: kind for kind in (Polynomial, Vae)}


def load_run(document: dict[str, Any]) -> Run:
    """The run that ``Run.document`` described."""
    fields = dict(document)
    task, version = fields.pop("task", None), fields.pop("version", None)
    if version != VERSION:
        raise ValueError(
            f"expected a configuration of version {VERSION}, got version {version}; "
            "read it with the discretegrad that wrote it"
        )
    if task not in TASKS:
        raise ValueError(f"expected a task of {', '.join(TASKS)}, got {task!r}")
    try:
        return TASKS[task](**fields)
    except TypeError as error:
        raise ValueError(f"expected a configuration of the task {task}: {error}") from error
