"""Learning rates that change while a run is trained."""

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["constant", "cosine", "linear", "exponential", "step", "cosine-steps"]
KINDS: tuple[Kind, ...] = ("constant", "cosine", "linear", "exponential", "step", "cosine-steps")


@dataclass(frozen=True)
class Schedule:
    """What the learning rate is multiplied by at each update.

    cosine, linear and exponential go from 1 at the first update to ``factor`` after the last;
    step multiplies by ``factor`` after every ``every`` updates. cosine-steps is a cosine that
    changes only then.
    """

    kind: Kind = "constant"
    factor: float = 1.0
    every: int = 1
    """Updates; for the kinds step and cosine-steps."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"expected a schedule of {', '.join(KINDS)}, got {self.kind!r}")
        # with 0 the learning rate would be 0 for the rest of the training
        positive = self.kind in ("exponential", "step")
        number = self.factor if isinstance(self.factor, int | float) else math.nan
        if not (math.isfinite(number) and number >= 0) or (positive and number == 0):
            least = "positive" if positive else "not negative"
            raise ValueError(
                f"expected a factor of the learning rate for the schedule {self.kind} that is "
                f"{least}, got {self.factor!r}; set schedule_factor of the run, such as 0.1"
            )
        if self.every < 1:
            raise ValueError(f"expected a positive number of updates, got {self.every!r}")

    def factors(self, updates: int) -> list[float]:
        """For each of so many updates."""
        return [self._at(number, updates) for number in range(updates)]

    def _at(self, number: int, updates: int) -> float:
        if self.kind == "cosine-steps":
            number -= number % self.every
        share, end = number / updates, self.factor
        if self.kind in ("cosine", "cosine-steps"):
            return end + (1 - end) * (1 + math.cos(math.pi * share)) / 2
        if self.kind == "linear":
            return 1 + (end - 1) * share
        if self.kind == "exponential":
            return float(end**share)
        return float(end ** (number // self.every)) if self.kind == "step" else 1.0
