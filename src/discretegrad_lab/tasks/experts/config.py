"""The configuration of the mixture of experts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...stack.config import Run
from ...stack.score import sample_count

DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
TRAIN_IMAGES = 60_000
"""Of either data set."""
VERSIONS: dict[str, Literal[1, 2]] = {"sparse-mixer-1": 1, "sparse-mixer-2": 2}
"""Routers that are those of ``discretegrad.sparse_mixer``."""
WORDS: dict[str, Callable[[Any], str]] = {
    "balance": lambda weight: f"balance {weight:g}" if weight else "no term for balance",
    "data": lambda name: DATA[name],
    "experts": "{} experts".format,
    "hidden": "{} hidden units each".format,
    "gated": lambda yes: "times the probability" if yes else "not times the probability",
}
"""How fields read."""


@dataclass(frozen=True, kw_only=True)
class Experts(Run):
    """A classifier of images of 784 pixels, made of experts of which one runs for each image."""

    task: ClassVar[str] = "experts"
    member_fields: ClassVar[tuple[str, ...]] = (*Run.member_fields, "balance")
    counts: ClassVar[tuple[str, ...]] = ("experts", "hidden", "batch")

    epochs: int = 20
    data: Literal["mnist", "fashion-mnist"] = "mnist"
    experts: int = 8
    hidden: int = 8
    """Units in the one hidden layer of an expert."""
    batch: int = 100
    router: Literal["drawn", "best", "gate", "sparse-mixer-1", "sparse-mixer-2", "soft"] = "drawn"
    """``"drawn"``: an expert is drawn, and the estimator gives the scores their gradient.
    ``"best"``: the expert of the highest score runs, with the gradient of the estimator for it.
    ``"gate"``: it runs, its output is multiplied by its probability, and that is all that the
    scores learn from. ``"sparse-mixer-1"``, ``"sparse-mixer-2"``: ``discretegrad.sparse_mixer``.
    ``"soft"``: all experts run, in the test too, and their outputs are averaged. The estimator has
    no part in the last four."""
    gated: bool = False
    """With the routers drawn and best: whether the output of the expert is multiplied by its
    probability, as it is with those that have no choice."""
    balance: float = 0.0
    """Weight of a term that is least if all experts get equally many images, see the model."""
    jitter_eps: float = 0.1
    """Of ``sparse_mixer``."""
    threshold: Literal["phimoe", "shift-invariant"] = "phimoe"
    """Likewise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gated and not self.has_estimator:
            raise ValueError(
                f"expected gated=True with the routers drawn and best alone, got {self.router}; "
                "leave it out"
            )
        for name in ("balance", "jitter_eps"):
            value = getattr(self, name)
            if not (isinstance(value, float) and math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"expected a number (float) of at least 0 as {name}, got {value!r}"
                )
        self._check_estimator()

    def _check_estimator(self) -> None:
        kind = self.line.kind
        if kind == "score" and self.router == "drawn":
            sample_count(self.line)
        elif kind != "sampler":
            raise ValueError(
                f"expected an estimator that makes a sample for the router {self.router}, got "
                f"{self.estimator!r}; use reinmax or st, or leave_one_out with the router drawn"
            )

    @property
    def has_estimator(self) -> bool:
        """Whether the estimator has a part in the training."""
        return self.router in ("drawn", "best")

    @property
    def steps_per_epoch(self) -> int:
        """Images that do not fill a batch are left out."""
        return TRAIN_IMAGES // self.batch

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """A score function has a stack of its own, since its steps are others."""
        own = (self.line.row, self.line.options) if self.line.kind == "score" else ()
        return (*super().stack_key, *own)
