"""The paper's tables of the VAE, with the place of each number, and where they do not agree.

Liu et al., "Bridging Discrete and Backpropagation: Straight-Through and Beyond", NeurIPS 2023,
arXiv:2304.08612. Columns are called categories x latents, as there. The tables were read in the
paper's LaTeX source, which has sections but no pages. Table 5 is one row there; here each of its
numbers has the column of the model that it was trained with, see ``large_recipes``.

The paper averages 10 seeds (Section F.2) and does not say what stands behind its ±. It is the
standard deviation of the runs: ours of Tables 2 and 9, which are stored, have the same, see
``tests/test_results_pages.py``. How many runs the baselines of Table 5 have, which are those of Fan
et al. 2022, is not known; 10 are assumed.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ..base import Cell, Table, read_rows

# the candidates of Table 7
TEMPERATURES = (0.1, 0.3, 0.5, 0.7, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
OPTIMISERS: tuple[Literal["adam", "radam"], ...] = ("adam", "radam")
RATES = (1e-3, 7e-4, 5e-4, 3e-4)
# those of Figure 2, Section 6.6
HEAT_MAP = (0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0, 4.0, 5.0)
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Number(Cell):
    """One number of a table: the negative ELBO in nats. The averages have no spread."""

    table: int
    section: str
    measure: str
    """``"train"`` or ``"test"``."""
    chosen_by: str
    """What the hyper-parameters were chosen by."""
    estimator: str
    column: str


@dataclass(frozen=True)
class Setting:
    """The hyper-parameters that the paper's search found, Table 8."""

    optimiser: Literal["adam", "radam"]
    learning_rate: float
    tau: float


@dataclass(frozen=True)
class Doubt:
    """Two numbers of the paper that cannot both be right."""

    table: int
    estimator: str
    column: str
    text: str


_SETTINGS = read_rows(_FOLDER / "hyperparameters.csv")
COLUMNS = tuple(dict.fromkeys(row["column"] for row in _SETTINGS))
"""Those of Table 8."""


@cache
def cells() -> dict[tuple[int, str, str], Number]:
    """Tables 2, 5, 9, 10 and 11: each number under its table, estimator and column."""
    return {
        (int(row["table"]), row["estimator"], row["column"]): Number(
            value=float(row["value"]),
            spread=float(row["spread"]) if row["spread"] else None,
            runs=int(row["runs"]),
            table=int(row["table"]),
            section=row["section"],
            measure=row["measure"],
            chosen_by=row["chosen_by"],
            estimator=row["estimator"],
            column=row["column"],
        )
        for row in read_rows(_FOLDER / "published.csv")
    }


def table(number: int, column: str) -> Table:
    """A column of one of those tables."""
    numbers = [x for x in cells().values() if (x.table, x.column) == (number, column)]
    texts: dict[str, list[str]] = {}
    for doubt in doubts():
        if (doubt.table, doubt.column) == (number, column):
            texts.setdefault(doubt.estimator, []).append(doubt.text)
    return Table(
        number,
        numbers[0].section,
        column,
        {x.estimator: x for x in numbers},
        {estimator: "; ".join(parts) for estimator, parts in texts.items()},
    )


@cache
def settings(column: str) -> dict[str, Setting]:
    """What Table 8 says of a column, by estimator."""
    by_estimator = {
        row["estimator"]: Setting(
            "radam" if row["optimiser"] == "radam" else "adam",
            float(row["learning_rate"]),
            float(row["tau"]),
        )
        for row in _SETTINGS
        if row["column"] == column
    }
    if not by_estimator:
        raise ValueError(f"expected a column of Table 8 ({', '.join(COLUMNS)}), got {column!r}")
    return by_estimator


def doubts() -> list[Doubt]:
    """Where the paper's numbers contradict each other.

    Tables 2 and 9 are the train and the test side of the same runs, Tables 11 and 10 those of the
    runs that are best on test. So an average follows from its columns; a number that was chosen for
    is the better one; and where one side did not change, nor did the other.
    """
    return [Doubt(int(row.pop("table")), **row) for row in read_rows(_FOLDER / "doubts.csv")]
