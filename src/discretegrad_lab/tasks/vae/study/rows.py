"""What the study has measured, how it decides, and its CSV files."""

import csv
import io
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

GRADIENTS, TRAINING = "gradients.csv", "training.csv"
BATCH = 100
# the images of a step, and about ten steps that Adam averages over
BUDGET = BATCH * 10
# more samples must pay for themselves by more than this, or fewer are chosen
TIE = 0.02


class GradientRow(NamedTuple):
    """One line of gradients.csv. Bias, deviation: relative to the norm of the true gradient."""

    step: int
    negative_elbo: float
    """Exact, the mean over the training images that are evaluated."""
    gradient_norm: float
    label: str
    estimator: str
    tau: float | None
    num_samples: int
    evaluations: int
    slopes: int
    bias: float
    bias_bound: float
    bias_detected: bool
    deviation: float
    """Standard deviation of one estimate."""
    cosine: float
    cosine_standard_error: float
    cosine_of_mean: float
    cosine_of_mean_standard_error: float

    def error(self, budget: float) -> float:
        """Of the mean of as many independent estimates as ``budget`` evaluations of f pay for.

        A bias that is not distinguishable from zero counts as zero, as in ``mse_per_evaluation``.
        """
        bias = self.bias if self.bias_detected else 0.0
        return math.hypot(bias, self.deviation * math.sqrt(self.evaluations / budget))


class TrainingRow(NamedTuple):
    """One line of training.csv: how a run ended."""

    label: str
    seed: int
    evaluations: int
    """Of f for each image and step."""
    train: float
    """Exact negative ELBO."""
    test: float


class Study(NamedTuple):
    """Everything that was measured, and how."""

    about: dict[str, str]
    gradients: list[GradientRow]
    training: list[TrainingRow]


def errors(rows: Sequence[GradientRow], budget: float = BUDGET) -> dict[str, float]:
    """For each label the error for a budget: the root mean square over all stops."""
    squares: dict[str, list[float]] = {}
    for row in rows:
        squares.setdefault(row.label, []).append(row.error(budget) ** 2)
    return {label: math.sqrt(statistics.fmean(values)) for label, values in squares.items()}


def at_last_stop(rows: Sequence[GradientRow]) -> list[GradientRow]:
    """The rows of the last stop."""
    last = max(row.step for row in rows)
    return [row for row in rows if row.step == last]


def decide(rows: Sequence[GradientRow], budget: float = BUDGET) -> GradientRow:
    """The row of the last stop whose estimator has the smallest error for the budget.

    Samples of a sampler are independent, so more of them only share the budget differently: of
    rows that differ in nothing else, the fewest samples win unless more are better by 2 %.
    """
    error, last = errors(rows, budget), at_last_stop(rows)
    best = min(last, key=lambda row: error[row.label])
    alike = [
        row
        for row in last
        if re.sub(r" K=\d+$", "", row.label) == re.sub(r" K=\d+$", "", best.label)
        and error[row.label] <= error[best.label] * (1 + TIE)
    ]
    return min(alike, key=lambda row: row.num_samples)


def to_csv(about: dict[str, str], rows: Sequence[GradientRow] | Sequence[TrainingRow]) -> str:
    """Rows below comment lines that say how they were made."""
    text = io.StringIO()
    for key, value in about.items():
        text.write(f"# {key}: {value}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0]._fields)
    for row in rows:
        writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in row])
    return text.getvalue()


def write(folder: Path, study: Study) -> None:
    """The study as two CSV files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GRADIENTS).write_text(to_csv(study.about, study.gradients), encoding="utf-8")
    (folder / TRAINING).write_text(to_csv(study.about, study.training), encoding="utf-8")


def read(folder: Path) -> Study:
    """What ``write`` wrote."""
    about, gradients = _from_csv(folder / GRADIENTS, GradientRow)
    return Study(about, gradients, _from_csv(folder / TRAINING, TrainingRow)[1])


def _from_csv(path: Path, kind: Any) -> tuple[dict[str, str], list[Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    notes = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    read_as: dict[Any, Any] = {
        bool: "True".__eq__,
        float | None: lambda text: float(text) if text else None,
    }
    kinds = {name: read_as.get(x, x) for name, x in kind.__annotations__.items()}
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    parsed = [kind(**{name: kinds[name](text) for name, text in row.items()}) for row in rows]
    return dict(note.split(": ", 1) for note in notes), parsed
