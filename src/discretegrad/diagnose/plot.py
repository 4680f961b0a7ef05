"""A diagnosis as a figure."""

import math
from typing import TYPE_CHECKING, Any

from .result import Diagnosis
from .table import few_draws

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(result: Diagnosis) -> "Figure":
    """See ``Diagnosis.plot``."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "diagnose: expected matplotlib for the plot, and it is not installed. Install it with "
            "pip install discretegrad[lab]."
        ) from error
    rows = [row for row in result.rows if row.applicable][::-1]
    figure = Figure(figsize=(10, 1.6 + 0.5 * max(1, len(rows))), layout="constrained")
    errors, cosines = figure.subplots(1, 2, sharey=True)
    places = range(len(rows))
    known, absent, untold = (
        [(y, row) for y, row in zip(places, rows, strict=True) if row.bias_detected is detected]
        for detected in (True, False, None)
    )
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
    for marker, label, bounded in (
        ("<", "squared bias, at most (may be zero)", absent),
        ("$?$", "the same, too few draws to tell", untold),
    ):
        errors.plot(
            [_or_nan(row.bias_bound) ** 2 for _, row in bounded],
            [y + 0.19 for y, _ in bounded],
            linestyle="none",
            marker=marker,
            color="black",
            label=label if bounded else None,
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
    for _, row in untold:
        caption += f"\n{row.label}: {few_draws(row)}."
    figure.supxlabel(caption, fontsize="small")
    return figure


def _or_nan(x: float | None) -> float:
    return math.nan if x is None else x
