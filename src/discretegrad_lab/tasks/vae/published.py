"""The paper's tables of the VAE, with the place of each number, and where they do not agree.

Liu et al., "Bridging Discrete and Backpropagation: Straight-Through and Beyond", NeurIPS 2023,
arXiv:2304.08612. Columns are called categories x latents, as there. The tables were read in the
paper's LaTeX source, which has sections but no pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Literal

from ..base import Cell, Table, read_rows

AVERAGE = "average"
# the candidates of Table 7
OPTIMISERS = ("adam", "radam")
LEARNING_RATES = (1e-3, 7e-4, 5e-4, 3e-4)
TEMPERATURES = (0.1, 0.3, 0.5, 0.7, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
# what rounding to two places can hide
_ROUNDING = 0.005
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
    """Tables 2, 9, 10 and 11: each number under its table, estimator and column."""
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
        numbers[0].runs,
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
    contradictions = [*_averages(), *_choices(), *_sides(), *_twins(), *_candidates()]
    return sorted(contradictions, key=lambda doubt: (doubt.table, doubt.estimator, doubt.column))


def _averages() -> Iterator[Doubt]:
    for (table, estimator, column), cell in cells().items():
        if column == AVERAGE:
            parts = [
                other.value
                for (t, e, c), other in cells().items()
                if (t, e) == (table, estimator) and c != AVERAGE
            ]
            mean = sum(parts) / len(parts)
            if abs(mean - cell.value) > 2 * _ROUNDING + 1e-9:
                yield Doubt(
                    table, estimator, column, f"{cell.value:.2f}; the columns give {mean:.3f}"
                )


def _choices() -> Iterator[Doubt]:
    for measure, chosen, other in (("train", 2, 11), ("test", 10, 9)):
        for (table, estimator, column), cell in cells().items():
            rival = cells()[other, estimator, column]
            # 104 and 104.02 are the same number with and without its decimals
            if table == chosen and column != AVERAGE and cell.value > rival.value + 2 * _ROUNDING:
                yield Doubt(
                    table,
                    estimator,
                    column,
                    f"{cell.value:.2f} was chosen by {measure}, yet Table {other} has "
                    f"{rival.value:.2f}",
                )


def _sides() -> Iterator[Doubt]:
    for (table, estimator, column), train in cells().items():
        if table != 2 or column == AVERAGE:
            continue
        train_again, test, test_again = (cells()[t, estimator, column] for t in (11, 9, 10))
        same_train = (train.value, train.spread) == (train_again.value, train_again.spread)
        same_test = (test.value, test.spread) == (test_again.value, test_again.spread)
        if same_test and abs(train.value - train_again.value) > 0.1:
            yield Doubt(
                9,
                estimator,
                column,
                f"{test.value:.2f} stands in Table 10 too, yet train is {train.value:.2f} in "
                f"Table 2 and {train_again.value:.2f} in Table 11",
            )
        if same_train and abs(test.value - test_again.value) > 0.1:
            yield Doubt(
                9,
                estimator,
                column,
                f"{test.value:.2f}, yet Table 10 has {test_again.value:.2f} at the same train "
                f"{train.value:.2f}",
            )


def _twins() -> Iterator[Doubt]:
    for first, second in combinations(cells().values(), 2):
        same = (first.column, first.value, first.spread) == (
            second.column,
            second.value,
            second.spread,
        )
        if same and first.column != AVERAGE:
            if first.estimator == second.estimator and first.measure != second.measure:
                train, test = sorted((first, second), key=lambda cell: cell.measure == "test")
                if train.table == 2:
                    yield Doubt(
                        test.table,
                        test.estimator,
                        test.column,
                        f"{test.value:.2f} ± {test.spread} is the train number of Table 2",
                    )
            elif first.estimator != second.estimator:
                yield Doubt(
                    second.table,
                    second.estimator,
                    second.column,
                    f"{second.value:.2f} ± {second.spread} is also the number of "
                    f"{first.estimator} in Table {first.table}",
                )


def _candidates() -> Iterator[Doubt]:
    for row in _SETTINGS:
        if float(row["tau"]) not in TEMPERATURES:
            yield Doubt(
                int(row["table"]),
                row["estimator"],
                row["column"],
                f"the temperature {row['tau']} is none of the candidates of Table 7",
            )
