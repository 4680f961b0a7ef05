"""What results say: numbers at the end, and when runs came near the optimum."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from .results import Results, Row
from .statistics import Summary, summarise

NEAR = 0.01
"""Near the optimum: within this share of it."""

_WORDS = {
    "power": "p = {:g}",
    "target": "setting {}",
    "latents": "{} latents",
    "batch": "batch {}",
    "tau": "τ = {:g}",
}
_LETTERS = {"constant": "A", "spread": "B"}


def describe(setting: Mapping[str, Any]) -> str:
    """A few fields of a configuration in the words of the paper."""
    return ", ".join(_WORDS[name].format(_LETTERS.get(x, x)) for name, x in setting.items())


def decimal(value: float, places: int, sign: str = "") -> str:
    """A number with so many decimals, and no minus before what rounds to 0."""
    return f"{round(value, places) + 0.0:{sign}.{places}f}"


def percent(share: float) -> str:
    """A share in percent."""
    return decimal(100 * share, 2) + " %"


def final(rows: Iterable[Row], metric: str) -> Summary:
    """A metric at the end of those runs that are finished."""
    return summarise([row.metrics[metric] for row in rows if metric in row.metrics])


def best_loss(config: Mapping[str, Any]) -> float:
    """The lowest expected loss of a polynomial problem: every X at the nearer end."""
    latents = config["latents"]
    spread = config["target"] == "spread"
    targets = [(i + 0.5) / latents if spread else 0.45 for i in range(latents)]
    return fmean(min(c, 1 - c) ** config["power"] for c in targets)


def expected_loss(results: Results, row: Row) -> list[tuple[int, float]]:
    """The curve of a finished run at those epochs that are kept; empty for others."""
    if row.state != "finished":
        return []
    return sorted(results.curves.get((row.identity, "expected_loss"), {}).items())


def every_epoch(curve: Sequence[tuple[int, float]]) -> list[float]:
    """The values of a curve at all epochs from the first that is kept, along straight lines."""
    values = [curve[0][1]]
    for (before, start), (epoch, end) in pairwise(curve):
        count = epoch - before
        values += [start + (end - start) * n / count for n in range(1, count + 1)]
    return values


def arrival(results: Results, row: Row) -> float | None:
    """Steps until a run's expected loss is near the optimum and stays there; None if never.

    Along straight lines between those epochs that are kept.
    """
    level = (1 + NEAR) * best_loss(row.config)
    curve = expected_loss(results, row)
    outside = [number for number, (_, loss) in enumerate(curve) if loss > level]
    first = outside[-1] + 1 if outside else 0
    if first >= len(curve):
        return None
    epochs, loss = curve[first]
    if first:
        before, above = curve[first - 1]
        epochs_exactly = before + (epochs - before) * (above - level) / (above - loss)
    else:
        epochs_exactly = float(epochs)
    return epochs_exactly * float(row.config["steps_per_epoch"])
