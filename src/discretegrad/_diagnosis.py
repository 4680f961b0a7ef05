"""The result of a diagnosis: rows, a table for the terminal, a plot."""

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ._checks import check_comparable, check_key, check_matplotlib
from ._types import Family

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

_LEGEND = """\
bias: norm of the mean error; < marks a bound where it may be zero (two standard errors). variance,
mse: of one estimate, over all logits. +-: one standard error. cosine: of one estimate to the true
gradient; of mean: of the mean of all draws. f, df: evaluations of f and of its gradient for one
estimate; ms: its time. mse/f, mse/s: what one evaluation of f, one second buys: squared bias +
variance x cost. *: smallest mse."""


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
    """Root of ``bias_squared`` and two of its standard errors."""
    bias_squared: float | None = None
    """Squared norm of the mean error, less what noise alone adds to it; never below 0."""
    bias_squared_standard_error: float | None = None
    """Too large by up to a factor of 1.4 where there is no bias."""
    bias_p_value: float | None = None
    """Chance of so large a mean error without any bias; no less than 1 in 10001."""
    bias_detected: bool | None = None
    """Whether the bias is distinguishable from zero: a p-value below 0.001."""
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
        """
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
    family: Family
    """Kind of the variables."""
    dtype: str
    """Of the logits."""
    device: str
    """Where it was measured."""
    torch_version: str
    """With which torch."""

    def __str__(self) -> str:
        return self.table()

    def __getitem__(self, label: str) -> DiagnosisRow:
        return {row.label: row for row in self.rows}[label]

    def table(self, *, relative: bool = False) -> str:
        """The result as text of fixed width.

        Args:
            relative: Give bias, variance and mean squared error relative to the norm of the true
                gradient (the latter two: to its square).

        Returns:
            A head, a line for each estimator, and a legend. ``*`` marks the smallest mean squared
            error; ``<`` stands before a bound, where the bias may be zero.
        """
        return _table(self, relative)

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
        check_key("diagnose", by, get_args(Key))
        rows = [row for row in self.rows if row.applicable and getattr(row, by) is not None]
        reasons = "; ".join(f"{row.label}: {row.status}" for row in self.rows)
        check_comparable("diagnose", by, len(rows), reasons)
        if by in ("cosine", "cosine_of_mean"):
            return max(rows, key=lambda row: getattr(row, by))
        if by == "bias":
            return min(rows, key=lambda row: (row.bias if row.bias_detected else 0, row.variance))
        return min(rows, key=lambda row: getattr(row, by))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries that ``json.dumps`` accepts.

        Returns:
            One dictionary per row, with the fields of ``DiagnosisRow``.
        """
        return [asdict(row) for row in self.rows]

    def plot(self, path: str | PathLike[str] | None = None) -> "Figure":
        """Draw squared bias and variance, and the cosines with two standard errors.

        Needs matplotlib: ``pip install discretegrad[lab]``.

        Args:
            path: Where to save the figure too; the ending decides the format.

        Returns:
            A ``matplotlib.figure.Figure``.

        Raises:
            ModuleNotFoundError: If matplotlib is not installed.
        """
        figure = _plot(self)
        if path is not None:
            figure.savefig(path)
        return figure


def _table(result: Diagnosis, relative: bool) -> str:
    scale = result.gradient_norm if relative else 1.0
    head = [
        f"diagnose: {result.family} logits {result.shape}, batch {result.batch_shape}, "
        f"{result.num_draws} draws, {result.dtype} on {result.device}, torch "
        f"{result.torch_version}",
        f"true gradient: {result.reference}; norm {_digits(result.gradient_norm)}, standard error "
        f"{_digits(result.reference_standard_error)}",
    ]
    if relative:
        head.append("bias, variance and mse: relative to the norm of the true gradient")
    titles = "bias,+-,variance,+-,mse,cosine,+-,of mean,+-,f,df,ms,mse/f,mse/s".split(",")
    lines = [["", "estimator", *titles]]
    smallest = min((row.mse for row in result.rows if row.mse is not None), default=None)
    for row in result.rows:
        mark = "*" if row.mse is not None and row.mse == smallest else ""
        lines.append([mark, row.label, *(_cells(row, scale) if row.applicable else [])])
    widths = [max(len(line[i]) for line in lines if len(line) > i) for i in range(len(lines[0]))]
    text = []
    for row_or_none, line in zip([None, *result.rows], lines, strict=True):
        cells = [line[0].ljust(1), line[1].ljust(widths[1])]
        cells += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=False)]
        if row_or_none is not None and row_or_none.status != "ok":
            cells.append(textwrap.shorten(row_or_none.status, 110, placeholder=" ..."))
        if row_or_none is not None and row_or_none.nonfinite:
            cells.append(f"({row_or_none.nonfinite} not finite)")
        text.append("  ".join(cells).rstrip())
    return "\n".join([*head, "", *text, "", _LEGEND])


def _cells(row: DiagnosisRow, scale: float) -> list[str]:
    def scaled(x: float | None, power: int) -> str:
        return _digits(None if x is None or not scale else x / scale**power)

    if row.bias_detected is False:
        bias = ["<" + scaled(row.bias_bound, 1), ""]
    else:
        bias = [scaled(row.bias, 1), scaled(row.bias_standard_error, 1)]
    return [
        *bias,
        scaled(row.variance, 2),
        scaled(row.variance_standard_error, 2),
        scaled(row.mse, 2),
        _places(row.cosine),
        _digits(row.cosine_standard_error, 2),
        _places(row.cosine_of_mean),
        _digits(row.cosine_of_mean_standard_error, 2),
        "?" if row.evaluations is None else str(row.evaluations),
        "?" if row.slopes is None else str(row.slopes),
        _digits(None if row.seconds is None else 1000 * row.seconds),
        scaled(row.mse_per_evaluation, 2),
        scaled(row.mse_per_second, 2),
    ]


def _digits(x: float | None, digits: int = 3) -> str:
    return "?" if x is None else f"{x:.{digits}g}"


def _places(x: float | None) -> str:
    return "?" if x is None else f"{x:.4f}"


def _plot(result: Diagnosis) -> "Figure":
    figure_type = check_matplotlib("diagnose")
    rows = [row for row in result.rows if row.applicable][::-1]
    figure = figure_type(figsize=(10, 1.6 + 0.5 * max(1, len(rows))), layout="constrained")
    errors, cosines = figure.subplots(1, 2, sharey=True)
    places = range(len(rows))
    known = [(y, row) for y, row in zip(places, rows, strict=True) if row.bias_detected]
    unknown = [(y, row) for y, row in zip(places, rows, strict=True) if not row.bias_detected]
    style: dict[str, Any] = {"height": 0.36, "edgecolor": "black"}
    errors.barh(
        [y - 0.19 for y in places],
        [row.variance for row in rows],
        xerr=[2 * (row.variance_standard_error or 0) for row in rows],
        color="white",
        hatch="///",
        label="variance",
        **style,
    )
    errors.barh(
        [y + 0.19 for y, _ in known],
        [row.bias_squared for _, row in known],
        xerr=[2 * (row.bias_squared_standard_error or 0) for _, row in known],
        color="0.35",
        label="squared bias",
        **style,
    )
    # an arrow to the left says: at most this
    errors.plot(
        [(row.bias_bound or math.nan) ** 2 for _, row in unknown],
        [y + 0.19 for y, _ in unknown],
        linestyle="none",
        marker="<",
        color="black",
        label="squared bias, at most (may be zero)",
    )
    if any(row.variance for row in rows):
        errors.set_xscale("log")
    errors.set_yticks(list(places), [row.label for row in rows])
    errors.set_xlabel("variance and squared bias of one estimate")
    for offset, marker, label, name in (
        (0.12, "o", "of one estimate", "cosine"),
        (-0.12, "s", f"of the mean of {result.num_draws}", "cosine_of_mean"),
    ):
        cosines.errorbar(
            [_or_nan(getattr(row, name)) for row in rows],
            [y + offset for y in places],
            xerr=[2 * (getattr(row, f"{name}_standard_error") or 0) for row in rows],
            linestyle="none",
            marker=marker,
            markerfacecolor="white" if marker == "s" else "black",
            color="black",
            capsize=3,
            label=label,
        )
    cosines.set_xlabel("cosine similarity to the true gradient")
    cosines.axvline(1, color="0.7", linewidth=1)
    for axes in (errors, cosines):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize="small")
    caption = (
        f"{result.num_draws} draws; true gradient: {result.reference}. Bars: two standard errors."
    )
    missing = ", ".join(row.label for row in result.rows if not row.applicable)
    if missing:
        caption += f"\nNot applicable: {missing}."
    figure.supxlabel(caption, fontsize="small")
    return figure


def _or_nan(x: float | None) -> float:
    return math.nan if x is None else x
