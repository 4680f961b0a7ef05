"""Published tables: numbers of a paper, and what stands behind their ±."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .statistics import Summary

_TO_DEVIATION: dict[str, Callable[[int], float]] = {
    "deviation": lambda runs: 1.0,
    "population": lambda runs: math.sqrt(runs / (runs - 1)),
    "error": math.sqrt,
}
"""What makes a standard deviation of the number behind a published ±."""


@dataclass(frozen=True)
class Cell:
    """A published number."""

    value: float
    spread: float | None
    """What stands behind its ±."""
    runs: int
    meaning: Literal["deviation", "population", "error"] = field(default="deviation", kw_only=True)
    """What that is: the standard deviation of the runs, the same divided by their number and not by
    one less, as NumPy does it, or the standard error of their mean."""

    @property
    def deviation(self) -> float:
        """The standard deviation of the runs; NaN if it is not known."""
        factor = _TO_DEVIATION[self.meaning](self.runs)
        return math.nan if self.spread is None else self.spread * factor

    @property
    def summary(self) -> Summary:
        """The number, as one of our own."""
        return Summary(self.runs, self.value, self.deviation)


@dataclass(frozen=True)
class Table:
    """A column of a published table."""

    number: int
    section: str
    column: str
    cells: Mapping[str, Cell]
    """By the key of a line."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Why a number cannot be right, by the key of its line."""
    note: str = ""
    """A sentence to read the comparison with ours by."""
