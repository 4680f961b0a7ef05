"""The paper's numbers of ListOps: Table 1 and the settings of Table 8.

They are averages of 5 seeds (Section F.2) with their standard deviations, which Section 6.2 calls
derivations.
"""

from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from ..base import Cell, Table, read_rows

_FOLDER = Path(__file__).parent


class Setting(NamedTuple):
    """The hyper-parameters that the paper's search found, Table 8."""

    optimiser: Literal["adam", "radam"]
    learning_rate: float
    tau: float


@cache
def table(measure: str) -> Table:
    """Table 1 as a column: ``"valid_accuracy"`` or ``"test_accuracy"``, in percent."""
    rows = [row for row in read_rows(_FOLDER / "published.csv") if row["measure"] == measure]
    cells = {
        row["estimator"]: Cell(float(row["value"]), float(row["spread"]), int(row["runs"]))
        for row in rows
    }
    first = rows[0]
    return Table(int(first["table"]), first["section"], "ListOps", cells)


@cache
def settings() -> dict[str, Setting]:
    """What Table 8 says of ListOps, by estimator."""
    return {
        row["estimator"]: Setting(
            "radam" if row["optimiser"] == "radam" else "adam",
            float(row["learning_rate"]),
            float(row["tau"]),
        )
        for row in read_rows(_FOLDER / "hyperparameters.csv")
    }
