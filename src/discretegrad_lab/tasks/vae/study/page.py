"""Tables and figures of the study, and the page of the documentation that shows them."""

import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
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
BUDGETS = (1, 100, BUDGET, 100_000)
COLOURS = {
    "reinmax": "#0072B2", "straight_through": "#D55E00", "gumbel_softmax": "#009E73",
    "gumbel_rao": "#56B4E9", "gapped": "#CC79A7", "mean_baseline": "#E69F00",
    "reinforce": "#000000", "leave_one_out": "#7A4FBF", "disarm_tree": "#8C564B",
    "muprop": "#999999", "rebar": "#B8A000",
}  # fmt: skip
# the lines of the figure over training
CURVES = (
    "reinmax tau=1.0", "straight_through tau=1.0", "gumbel_softmax tau=0.5",
    "gumbel_rao tau=0.5 num_draws=10", "gapped tau=0.7", "mean_baseline tau=1.0", "reinforce",
    "leave_one_out K=2", "leave_one_out K=8", "disarm_tree K=2", "muprop", "rebar tau=0.5",
)  # fmt: skip

Lines = list[list[str]]
"""Cells in rows; the first row is the headings."""


def draw_cosine(study: Study) -> Figure:
    """Cosine similarity to the exact gradient over training."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    means = f"mean of {study.about['draws']} estimates: the bias"
    titles = {"cosine_of_mean": means, "cosine": "one estimate: bias and noise"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
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
        _style(ax, title)
        ax.set_xscale("symlog", linthresh=max(1, int(study.about["steps"]) // 50))
        ax.set_xlabel(f"step of training with {study.about['estimator']}")
        ax.set_ylim(top=1.05)
    axes[0].set_ylabel("cosine similarity to the exact gradient")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize="small")
    return figure


def draw_trade_off(study: Study) -> Figure:
    """Bias against the deviation that one evaluation of f buys, at the last stop."""
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    ax = figure.subplots()
    rows = at_last_stop(study.gradients)
    for name, colour in COLOURS.items():
        own = [row for row in rows if row.estimator == name]
        if name in WITH_TAU:
            by_tau = [_point(row) for row in own if row.num_samples == 1]
            ax.plot(*zip(*by_tau, strict=True), linewidth=1, color=colour)
        label = name
        for detected, marker in ((True, "o"), (False, "<")):
            points = [_point(row) for row in own if row.bias_detected is detected]
            if points:
                x, y = zip(*points, strict=True)
                ax.plot(x, y, marker, color=colour, markersize=5, label=label)
                label = "_more"
        for row in own:
            # more samples of a sampler lie on the point of one
            if row.num_samples == 1 or name not in WITH_TAU:
                text = f"K={row.num_samples}" if row.tau is None else f"{row.tau:g}"
                place: dict[str, Any] = {"xytext": (4, 3), "textcoords": "offset points"}
                ax.annotate(text, _point(row), fontsize=6, color=colour, **place)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("bias / norm of the gradient (triangle: at most this, may be zero)")
    ax.set_ylabel("deviation x root of evaluations / norm of the gradient")
    _style(ax, f"After {rows[0].step} steps; small numbers: tau or K")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")
    return figure


def _style(ax: Any, title: str) -> None:
    ax.set_title(title, fontsize="medium")
    ax.grid(alpha=0.3, which="both")
    ax.spines[["top", "right"]].set_visible(False)


def _point(row: GradientRow) -> tuple[float, float]:
    return row.bias if row.bias_detected else row.bias_bound, _price(row)


def _price(row: GradientRow) -> float:
    """The deviation for the price of one evaluation."""
    return row.deviation * math.sqrt(row.evaluations)


def digest(study: Study) -> str:
    """A fingerprint of the stored study."""
    text = to_csv(study.about, study.gradients) + to_csv(study.about, study.training)
    return hashlib.sha256(text.encode()).hexdigest()


def draw(study: Study, folder: Path) -> None:
    """Both figures; the pictures say which numbers they show."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in ((COSINE_PICTURE, draw_cosine), (TRADE_OFF_PICTURE, draw_trade_off)):
        source, smaller = {"Source": digest(study)}, {"optimize": True}
        drawn(study).savefig(folder / name, dpi=130, metadata=source, pil_kwargs=smaller)


def updated(study: Study, text: str) -> str:
    """The text of the page with current tables."""
    current = tables(study)
    block = r"(<!-- begin generated: (\w+) -->\n).*?(<!-- end generated: \2 -->)"
    new = lambda match: f"{match[1]}\n{current[match[2]]}\n{match[3]}"  # noqa: E731
    return re.sub(block, new, text, flags=re.DOTALL)


def tables(study: Study) -> dict[str, str]:
    """The generated parts of the page, by name."""
    shown = {
        "stops": _stops(study),
        "estimators": _estimators(study),
        "temperatures": temperatures(study),
        "samples": _samples(study),
        "budgets": _budgets(study),
        "training": _training(study),
        "provenance": [["", ""], *map(list, study.about.items())],
    }
    return {name: _markdown(lines) for name, lines in shown.items()} | {
        "decision": _decision(study) + "\n"
    }


def _stops(study: Study) -> Lines:
    """Where training stood at each stop."""
    lines = [["step", "-ELBO, training images", "norm of the gradient"]]
    for step, row in sorted({row.step: row for row in study.gradients}.items()):
        lines.append([str(step), f"{row.negative_elbo:.1f}", f"{row.gradient_norm:.3g}"])
    return lines


def _estimators(study: Study) -> Lines:
    """The estimators of the figure at the last stop."""
    lines = [["estimator", "f", "df", "bias", "deviation"]]
    lines[0] += ["error of one", "cosine of one", "cosine of the mean"]
    for row in at_last_stop(study.gradients):
        if row.label in CURVES or row.label == "reinforce baseline=self_critical":
            bias = f"{row.bias:.2f}" if row.bias_detected else f"<{row.bias_bound:.2f}"
            cells = [f"`{row.label}`", str(row.evaluations), str(row.slopes), bias]
            # for the price of one estimate
            cells += [f"{row.deviation:.2f}", f"{row.error(row.evaluations):.2f}"]
            lines.append([*cells, f"{row.cosine:.3f}", f"{row.cosine_of_mean:.3f}"])
    return lines


def temperatures(study: Study) -> Lines:
    """The error for the budget by temperature, over all stops; the best of a line in bold."""
    error = errors(study.gradients)
    rows = [row for row in at_last_stop(study.gradients) if row.num_samples == 1]
    lines = [["estimator", *(f"tau {tau:g}" for tau in TAUS)]]
    for name in WITH_TAU:
        values = [error[row.label] for row in rows if row.estimator == name]
        lines.append([f"`{name}`", *(_bold(x, x == min(values)) for x in values)])
    return lines


def _samples(study: Study) -> Lines:
    """Deviation times the root of K at the last stop: what the same budget buys."""
    prices = {row.label: f"{_price(row):.2f}" for row in at_last_stop(study.gradients)}
    counts = (1, *MORE_SAMPLES)
    lines = [["estimator", *(f"K = {k}" for k in counts)]]
    for label in ("reinmax tau=1.0", "reinforce", "leave_one_out", "disarm_tree"):
        cells = [prices.get(f"{label} K={k}" if k > 1 else label, "") for k in counts]
        lines.append([f"`{label}`", *cells])
    return lines


def _budgets(study: Study) -> Lines:
    """The error for several budgets over all stops; the best of a column in bold."""
    error = {n: errors(study.gradients, n) for n in BUDGETS}
    best = {n: decide(study.gradients, n).label for n in BUDGETS}
    shown = dict.fromkeys([*best.values(), *CURVES, *(c.label for c in ALTERNATIVES)])
    lines = [["estimator", *(f"n = {n:,}" for n in BUDGETS)]]
    for label in sorted(shown, key=lambda label: error[BUDGET][label]):
        cells = [_bold(error[n][label], label == best[n]) for n in BUDGETS]
        lines.append([f"`{label}`", *cells])
    return lines


def _decision(study: Study) -> str:
    row = decide(study.gradients)
    tau = f", tau {row.tau:g}" if row.tau is not None else ", which has no temperature"
    samples = f"{row.num_samples} sample{'s' if row.num_samples > 1 else ''}"
    return f"**Decision: `{row.estimator}`{tau}, {samples} per image and step.**"


def _training(study: Study) -> Lines:
    """How the runs ended, the lowest test loss first."""
    runs: dict[str, list[TrainingRow]] = {}
    for row in study.training:
        runs.setdefault(row.label, []).append(row)
    decided, first = decide(study.gradients).label, ALTERNATIVES[0].label
    lines = [["estimator", "f", "train -ELBO", "test -ELBO", "worst seed"]]
    lines[0].append(f"test, minus `{first}`")
    for label in sorted(runs, key=lambda label: fmean(row.test for row in runs[label])):
        train, test = ([getattr(x, name) for x in runs[label]] for name in ("train", "test"))
        pairs = [x.test - other.test for x, other in zip(runs[label], runs[first], strict=True)]
        name = f"`{label}`" + (" (decision)" if label == decided else "")
        difference = "" if label == first else _with_spread(pairs, math.sqrt(len(pairs)))
        cells = [str(runs[label][0].evaluations), _with_spread(train), _with_spread(test)]
        lines.append([name, *cells, f"{max(test):.1f}", difference])
    return lines


def _bold(x: float, best: bool) -> str:
    text = f"{x:.2f}" if x < 100 else f"{x:.0f}"
    return f"**{text}**" if best else text


def _with_spread(values: Sequence[float], divisor: float = 1.0) -> str:
    """The mean and the standard deviation, or a part of it."""
    spread = f" ± {stdev(values) / divisor:.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def _markdown(lines: Lines) -> str:
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
