"""The configuration of polynomial programming."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Literal

from ...stack.config import Run


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
        if not (isinstance(self.power, float) and self.power > 0):
            raise ValueError(f"expected a positive number (float) as power, got {self.power!r}")
        if self.estimator == "rodeo" and self.batch % 2 == 1:
            raise ValueError(f"expected an even batch for rodeo's pairs, got {self.batch}")


def best_loss(config: Mapping[str, Any]) -> float:
    """The lowest expected loss of a configuration: every X at the nearer end."""
    latents = config["latents"]
    spread = config["target"] == "spread"
    targets = [(i + 0.5) / latents if spread else 0.45 for i in range(latents)]
    return fmean(min(c, 1 - c) ** config["power"] for c in targets)


WORDS: dict[str, Callable[[Any], str]] = {
    "power": "p = {:g}".format,
    "target": lambda target: f"setting {'B' if target == 'spread' else 'A'}",
    "latents": "{} latents".format,
    "batch": "batch {}".format,
}
"""How fields of a configuration read, in the words of the paper."""
