"""Tables and figures of the study, and the page of the documentation that shows them."""

import hashlib
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import discretegrad

from .measure import ALTERNATIVES, MORE_SAMPLES, TAUS, WITH_TAU
from .rows import BUDGET, GradientRow, Study, TrainingRow, at_last_stop, decide, errors, to_csv

_CHECKOUT = Path(__file__).parents[5]
STORED = _CHECKOUT / "results" / "diagnose"
PAGE = _CHECKOUT / "docs" / "diagnosing.md"
PICTURES = _CHECKOUT / "docs" / "assets"
COSINE_PICTURE, TRADE_OFF_PICTURE = "diagnose_cosine.png", "diagnose_trade_off.png"

COLOURS = {
    "reinmax": "#0072B2",
    "straight_through": "#D55E00",
    "gumbel_softmax": "#009E73",
    "gumbel_rao": "#56B4E9",
    "gapped": "#CC79A7",
    "mean_baseline": "#E69F00",
    "reinforce": "#000000",
    "leave_one_out": "#7A4FBF",
    "disarm_tree": "#8C564B",
    "muprop": "#999999",
    "rebar": "#B8A000",
}
# the lines of the figure over training
CURVES = (
    "reinmax tau=1.0",
    "straight_through tau=1.0",
    "gumbel_softmax tau=0.5",
    "gumbel_rao tau=0.5 num_draws=10",
    "gapped tau=0.7",
    "mean_baseline tau=1.0",
    "reinforce",
    "leave_one_out K=2",
    "leave_one_out K=8",
    "disarm_tree K=2",
    "muprop",
    "rebar tau=0.5",
)


def draw_cosine(study: Study) -> Figure:
    """Cosine similarity to the exact gradient over training."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, name, title in (
        (axes[0], "cosine_of_mean", f"mean of {study.about['draws']} estimates: the bias"),
        (axes[1], "cosine", "one estimate: bias and noise"),
    ):
        for label in CURVES:
            rows = [row for row in study.gradients if row.label == label]
            score = discretegrad.get(rows[0].estimator).kind == "score"
            ax.errorbar(
                [row.step for row in rows],
                [getattr(row, name) for row in rows],
                yerr=[2 * getattr(row, f"{name}_standard_error") for row in rows],
                label=label,
                color=COLOURS[rows[0].estimator],
                linestyle="--" if score else "-",
                marker={1: "o", 2: "s"}.get(rows[0].num_samples, "D"),
                markersize=4,
                capsize=2,
            )
        ax.set_title(title, fontsize="medium")
        ax.set_xscale("symlog", linthresh=max(1, int(study.about["steps"]) // 50))
        ax.set_xlabel(f"step of training with {study.about['estimator']}")
        ax.set_ylim(top=1.05)
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("cosine similarity to the exact gradient")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize="small")
    return figure


def draw_trade_off(study: Study) -> Figure:
    """Bias against the deviation that one evaluation of f buys, at the last stop."""
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    ax = figure.subplots()
    rows = at_last_stop(study.gradients)
    for name in dict.fromkeys(row.estimator for row in rows):
        of_estimator = [row for row in rows if row.estimator == name]
        style: dict[str, Any] = {"color": COLOURS[name], "markersize": 5}
        known = [row for row in of_estimator if row.bias_detected]
        bounded = [row for row in of_estimator if not row.bias_detected]
        if name in WITH_TAU:
            by_tau = [row for row in of_estimator if row.num_samples == 1]
            ax.plot(
                [_bias_or_bound(row) for row in by_tau],
                [_deviation_per_evaluation(row) for row in by_tau],
                linewidth=1,
                color=COLOURS[name],
            )
        for chosen, marker in ((known, "o"), (bounded, "<")):
            ax.plot(
                [_bias_or_bound(row) for row in chosen],
                [_deviation_per_evaluation(row) for row in chosen],
                linestyle="none",
                marker=marker,
                label=name if chosen is (known or bounded) else "_more",
                **style,
            )
        for row in of_estimator:
            if row.num_samples > 1 and name in WITH_TAU:
                continue  # these lie on the point of one sample
            ax.annotate(
                f"K={row.num_samples}" if row.tau is None else f"{row.tau:g}",
                (_bias_or_bound(row), _deviation_per_evaluation(row)),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=6,
                color=COLOURS[name],
            )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("bias / norm of the gradient (triangle: at most this, may be zero)")
    ax.set_ylabel("deviation x root of evaluations / norm of the gradient")
    ax.set_title(f"After {rows[0].step} steps; small numbers: tau or K", fontsize="medium")
    ax.grid(alpha=0.3, which="both")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")
    return figure


def _bias_or_bound(row: GradientRow) -> float:
    return row.bias if row.bias_detected else row.bias_bound


def _deviation_per_evaluation(row: GradientRow) -> float:
    return row.deviation * math.sqrt(row.evaluations)


def digest(study: Study) -> str:
    """A fingerprint of the stored study."""
    text = to_csv(study.about, study.gradients) + to_csv(study.about, study.training)
    return hashlib.sha256(text.encode()).hexdigest()


def draw(study: Study, folder: Path) -> None:
    """Both figures; the pictures say which numbers they show."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in (
        (COSINE_PICTURE, draw_cosine(study)),
        (TRADE_OFF_PICTURE, draw_trade_off(study)),
    ):
        figure.savefig(
            folder / name,
            dpi=130,
            metadata={"Source": digest(study)},
            pil_kwargs={"optimize": True},
        )


_BLOCK = re.compile(
    r"(<!-- begin generated: (\w+) -->\n).*?(<!-- end generated: \2 -->)", re.DOTALL
)


def updated(study: Study, text: str) -> str:
    """The text of the page with current tables."""
    current = tables(study)
    return _BLOCK.sub(lambda match: f"{match[1]}\n{current[match[2]]}\n{match[3]}", text)


def tables(study: Study) -> dict[str, str]:
    """The generated parts of the page, by name."""
    return {
        "stops": _markdown(*stops_table(study)),
        "estimators": _markdown(*estimators_table(study)),
        "temperatures": _markdown(*temperature_table(study)),
        "samples": _markdown(*samples_table(study)),
        "budgets": _markdown(*budget_table(study)),
        "decision": decision_text(study) + "\n",
        "training": _markdown(*training_table(study)),
        "provenance": _markdown(["", ""], [[key, value] for key, value in study.about.items()]),
    }


def stops_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Where training stood at each stop."""
    seen = {row.step: row for row in study.gradients}
    return ["step", "-ELBO, training images", "norm of the gradient"], [
        [str(step), f"{row.negative_elbo:.1f}", f"{row.gradient_norm:.3g}"]
        for step, row in sorted(seen.items())
    ]


def estimators_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """The estimators of the figure at the last stop."""
    headings = [
        "estimator",
        "f",
        "df",
        "bias",
        "deviation",
        "error of one",
        "cosine of one",
        "cosine of the mean",
    ]
    lines = []
    for row in at_last_stop(study.gradients):
        if row.label in CURVES or row.label == "reinforce baseline=self_critical":
            lines.append(
                [
                    f"`{row.label}`",
                    str(row.evaluations),
                    str(row.slopes),
                    f"{row.bias:.2f}" if row.bias_detected else f"<{row.bias_bound:.2f}",
                    f"{row.deviation:.2f}",
                    f"{math.hypot(row.bias if row.bias_detected else 0, row.deviation):.2f}",
                    f"{row.cosine:.3f}",
                    f"{row.cosine_of_mean:.3f}",
                ]
            )
    return headings, lines


def temperature_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """The error for the budget by temperature, over all stops; the best of a line in bold."""
    error = errors(study.gradients)
    lines = []
    for name in WITH_TAU:
        by_tau = {
            row.tau: error[row.label]
            for row in study.gradients
            if row.estimator == name and row.num_samples == 1
        }
        best = min(by_tau.values())
        lines.append([f"`{name}`", *(_bold(x, x == best) for x in by_tau.values())])
    return ["estimator", *(f"tau {tau:g}" for tau in TAUS)], lines


def samples_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Deviation times the root of K at the last stop: what the same budget buys."""
    rows = {row.label: row for row in at_last_stop(study.gradients)}
    counts = (1, *MORE_SAMPLES)
    lines = []
    for label in ("reinmax tau=1.0", "reinforce", "leave_one_out", "disarm_tree"):
        of_label = [rows.get(f"{label} K={k}" if k > 1 else label) for k in counts]
        cells = ["" if row is None else f"{_deviation_per_evaluation(row):.2f}" for row in of_label]
        lines.append([f"`{label}`", *cells])
    return ["estimator", *(f"K = {k}" for k in counts)], lines


BUDGETS = (1, 100, BUDGET, 100_000)


def budget_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """The error for several budgets over all stops; the best of a column in bold."""
    error = {n: errors(study.gradients, n) for n in BUDGETS}
    winners = [decide(study.gradients, n).label for n in BUDGETS]
    shown = list(dict.fromkeys([*winners, *CURVES, *(c.label for c in ALTERNATIVES)]))
    shown.sort(key=lambda label: error[BUDGET][label])
    lines = [
        [
            f"`{label}`",
            *(_bold(error[n][label], label == w) for n, w in zip(BUDGETS, winners, strict=True)),
        ]
        for label in shown
    ]
    return ["estimator", *(f"n = {n:,}" for n in BUDGETS)], lines


def decision_text(study: Study) -> str:
    """The decision in one sentence."""
    row = decide(study.gradients)
    tau = f", tau {row.tau:g}" if row.tau is not None else ", which has no temperature"
    samples = f"{row.num_samples} sample{'s' if row.num_samples > 1 else ''}"
    return f"**Decision: `{row.estimator}`{tau}, {samples} per image and step.**"


def training_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """How the runs ended, the lowest test loss first."""
    runs: dict[str, list[TrainingRow]] = {}
    for row in study.training:
        runs.setdefault(row.label, []).append(row)
    decided = decide(study.gradients).label
    base = runs[ALTERNATIVES[0].label]
    lines = []
    for label in sorted(runs, key=lambda label: statistics.fmean(r.test for r in runs[label])):
        rows = runs[label]
        difference = [row.test - other.test for row, other in zip(rows, base, strict=True)]
        lines.append(
            [
                f"`{label}`" + (" (decision)" if label == decided else ""),
                str(rows[0].evaluations),
                _mean_and_deviation([row.train for row in rows]),
                _mean_and_deviation([row.test for row in rows]),
                f"{max(row.test for row in rows):.1f}",
                "" if rows == base else _mean_and_error(difference),
            ]
        )
    headings = ["estimator", "f", "train -ELBO", "test -ELBO", "worst seed"]
    return [*headings, f"test, minus `{ALTERNATIVES[0].label}`"], lines


def _bold(x: float, best: bool) -> str:
    text = f"{x:.2f}" if x < 100 else f"{x:.0f}"
    return f"**{text}**" if best else text


def _mean_and_deviation(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def _mean_and_error(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.2f} ± {error:.2f}"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
