"""The result of a diagnosis: its rows, and what can be asked of them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Literal, TypeAlias, get_args

Key: TypeAlias = Literal[
    "mse",
    "bias",
    "variance",
    "cosine",
    "cosine_of_mean",
    "seconds",
    "mse_per_evaluation",
    "mse_per_second",
]


@dataclass(frozen=True)
class DiagnosisRow:
    """What was measured of one estimator. None stands for what cannot be told.

    With G an estimate of the gradient g of all logits, as one vector: the bias is the norm of
    E[G] - g, the variance is E|G - E[G]|^2, and the mean squared error, E|G - g|^2, is the sum of
    the variance and the square of the bias.
    """

    label: str
    """Estimator, options and number of samples, for people."""
    estimator: str
    """Name of the estimator."""
    num_samples: int
    """Samples in one estimate."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options; what is not a plain value, as text."""
    status: str = "ok"
    """``"ok"``, or ``"not applicable: "`` and the reason."""
    draws: int = 0
    """Finite estimates that the numbers rest on."""
    nonfinite: int = 0
    """Estimates with NaN or infinity: counted here, and in no other number."""
    bias: float | None = None
    """Root of ``bias_squared``."""
    bias_standard_error: float | None = None
    """None where the bias may be zero: there its error is not symmetric. See ``bias_bound``."""
    bias_bound: float | None = None
    """Root of ``bias_squared`` and two of its standard errors; with too few draws also what
    outcomes that are too rare to rely on may add."""
    bias_squared: float | None = None
    """Squared norm of the mean error, less what noise alone adds to it; never below 0."""
    bias_squared_standard_error: float | None = None
    """Too large by up to a factor of 1.4 where there is no bias."""
    bias_p_value: float | None = None
    """Chance of so large a mean error without any bias, if means are nearly normal; no less than
    1 in 10001."""
    bias_detected: bool | None = None
    """Whether the bias is distinguishable from zero: a p-value below 0.001, and more than rare
    outcomes could explain. None if there are too few draws to tell."""
    verdict: str | None = None
    """The same in words: ``"biased"``, ``"no bias found"`` or ``"too few draws"``."""
    draws_needed: int | None = None
    """With too few draws: about so many would tell, if the mean error stayed as it is."""
    variance: float | None = None
    """Of one estimate, summed over all logits."""
    variance_standard_error: float | None = None
    """Standard error of ``variance``."""
    mse: float | None = None
    """Mean squared error of one estimate."""
    mse_standard_error: float | None = None
    """Standard error of ``mse``."""
    relative_bias: float | None = None
    """``bias`` over the norm of the true gradient."""
    relative_deviation: float | None = None
    """Root of ``variance`` over the norm of the true gradient."""
    relative_mse: float | None = None
    """``mse`` over the square of the norm of the true gradient."""
    cosine: float | None = None
    """Mean cosine similarity of one estimate to the true gradient, over draws and batch."""
    cosine_standard_error: float | None = None
    """Standard error of ``cosine``."""
    cosine_of_mean: float | None = None
    """Cosine similarity of the mean of all draws to the true gradient, averaged over the batch."""
    cosine_of_mean_standard_error: float | None = None
    """Standard error of ``cosine_of_mean``."""
    evaluations: int | None = None
    """Evaluations of f for one estimate: counted, or where that cannot be, as registered."""
    slopes: int | None = None
    """Evaluations of the gradient of f with respect to the sample, for one estimate."""
    seconds: float | None = None
    """Median time of forward and backward for one estimate, on the whole batch."""
    mse_per_evaluation: float | None = None
    """``bias_squared + variance * evaluations``: averaging divides the variance alone. A bias
    that may be zero counts as zero here, because noise in it would hide a small variance."""
    mse_per_second: float | None = None
    """``bias_squared + variance * seconds``, likewise: the error that one second buys."""

    def error(self, evaluations: float) -> float | None:
        """Root mean squared error of the mean of all estimates that a budget pays for.

        Args:
            evaluations: The budget, in evaluations of f: images times samples times the steps that
                an optimiser averages over, say.

        Returns:
            The root of the squared bias (zero if it may be zero) and of what averaging leaves of
            the variance; None where the number of evaluations is not known.

        Raises:
            ValueError: If the budget is not above zero.
        """
        if not evaluations > 0:
            raise ValueError(f"diagnose: expected more than 0 evaluations, got {evaluations!r}")
        if self.variance is None or self.bias_squared is None or self.evaluations is None:
            return None
        lasting = 0.0 if self.bias_detected is False else self.bias_squared
        return math.sqrt(lasting + self.variance * self.evaluations / evaluations)

    @property
    def applicable(self) -> bool:
        """Whether the estimator gave at least two finite estimates."""
        return self.mse is not None


@dataclass(frozen=True)
class Diagnosis:
    """The rows of ``diagnose`` and what they were measured against."""

    rows: tuple[DiagnosisRow, ...]
    """One per estimator, in the order given."""
    reference: str
    """Where the true gradient comes from."""
    reference_standard_error: float
    """Norm of the standard error of the true gradient; 0 where it is exact."""
    gradient_norm: float
    """Norm of the true gradient of all logits."""
    num_draws: int
    """Draws asked for."""
    shape: tuple[int, ...]
    """Of the logits."""
    batch_shape: tuple[int, ...]
    """Of the losses."""
    family: str
    """Kind of the variables, such as ``"categorical"`` or ``"Subset(k=3)"``."""
    dtype: str
    """Of the logits."""
    device: str
    """Where it was measured."""
    torch_version: str
    """With which torch."""

    def __str__(self) -> str:
        return self.table()

    def __getitem__(self, label: str) -> DiagnosisRow:
        rows = {row.label: row for row in self.rows}
        if label not in rows:
            raise KeyError(f"expected the label of a row ({', '.join(rows)}), got {label!r}")
        return rows[label]

    def table(self, *, relative: bool = False) -> str:
        """The result as text of fixed width.

        Args:
            relative: Give bias, variance and mean squared error relative to the norm of the true
                gradient (the latter two: to its square).

        Returns:
            A head, a line for each estimator, and a legend. ``*`` marks the smallest mean squared
            error; ``<`` stands before a bound, where the bias may be zero, and ``?`` before a mean
            error that says nothing yet, because the draws are too few.
        """
        from .table import table

        return table(self, relative)

    def best(self, by: Key = "mse") -> DiagnosisRow:
        """The row with the smallest number, or the largest cosine.

        Args:
            by: ``"mse"``, ``"bias"``, ``"variance"``, ``"cosine"``, ``"cosine_of_mean"``,
                ``"seconds"``, ``"mse_per_evaluation"`` or ``"mse_per_second"``. By bias, all rows
                whose bias may be zero are equal, and the smallest variance among them wins.

        Returns:
            The row. Rows that lack the number take no part.

        Raises:
            ValueError: If there is no such key, or no row has that number.
        """
        if by not in get_args(Key):
            raise ValueError(f"diagnose: expected by to be one of {get_args(Key)}, got {by!r}")
        rows = [row for row in self.rows if row.applicable and getattr(row, by) is not None]
        if not rows:
            reasons = "; ".join(f"{row.label}: {row.status}" for row in self.rows)
            raise ValueError(
                f"diagnose: expected a row with a number for {by!r}, got none. {reasons}"
            )
        if by in ("cosine", "cosine_of_mean"):
            return max(rows, key=lambda row: getattr(row, by))
        if by == "bias":
            return min(
                rows, key=lambda row: (0 if row.bias_detected is False else row.bias, row.variance)
            )
        return min(rows, key=lambda row: getattr(row, by))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries that ``json.dumps`` accepts.

        Returns:
            One dictionary per row, with the fields of ``DiagnosisRow``.
        """
        return [asdict(row) for row in self.rows]

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """Draw squared bias and variance, and the cosines with two standard errors.

        Needs matplotlib: ``pip install discretegrad[lab]``.

        Args:
            path: Where to save the figure too; the ending decides the format.

        Returns:
            A ``matplotlib.figure.Figure``.

        Raises:
            ModuleNotFoundError: If matplotlib is not installed.
        """
        from .plot import plot

        figure = plot(self)
        if path is not None:
            figure.savefig(path)
        return figure
