"""A diagnosis as text of fixed width."""

import textwrap

from .result import Diagnosis, DiagnosisRow

_LEGEND = """\
bias: norm of the mean error; < marks a bound where it may be zero (two standard errors), ? a mean
error that rare outcomes may explain (too few draws). variance, mse: of one estimate, over all
logits. +-: one standard error. cosine: of one estimate to the true gradient; of mean: of the mean
of all draws. f, df: evaluations of f and of its gradient for one estimate; ms: its time. mse/f,
mse/s: what one evaluation of f, one second buys: squared bias + variance x cost. *: smallest
mse."""


def table(result: Diagnosis, relative: bool) -> str:
    """See ``Diagnosis.table``."""
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
            cells.append(textwrap.shorten(row_or_none.status, 200, placeholder=" ..."))
        if row_or_none is not None and row_or_none.nonfinite:
            cells.append(f"({row_or_none.nonfinite} not finite)")
        if row_or_none is not None and row_or_none.verdict == "too few draws":
            cells.append(f"({few_draws(row_or_none)})")
        text.append("  ".join(cells).rstrip())
    return "\n".join([*head, "", *text, "", _LEGEND])


def _cells(row: DiagnosisRow, scale: float) -> list[str]:
    def scaled(x: float | None, power: int) -> str:
        return _digits(None if x is None or not scale else x / scale**power)

    if row.bias_detected is False:
        bias = ["<" + scaled(row.bias_bound, 1), ""]
    elif row.bias_detected is None:
        bias = ["?" + scaled(row.bias, 1), ""]
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


def few_draws(row: DiagnosisRow) -> str:
    """That the draws are too few, and how many are not."""
    needed = row.draws_needed
    return "too few draws" + ("" if needed is None else f", about {needed} would tell")


def _digits(x: float | None, digits: int = 3) -> str:
    return "?" if x is None else f"{x:.{digits}g}"


def _places(x: float | None) -> str:
    return "?" if x is None else f"{x:.4f}"
