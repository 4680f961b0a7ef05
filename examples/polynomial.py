"""Compare every sampler of the library on a problem whose answer is known.

The polynomial problem of Liu et al. 2023 (arXiv:2304.08612, section 6.1): 128 binary latent
variables with two logits each, 256 joint samples a step, and the loss

    mean over latents of |X - 0.45| ** 2,    X = 1 where the first category was drawn, else 0

X = 0 everywhere is best, with a loss of 0.2025; at the start, where both values are equally likely,
the expected loss is 0.2525. The latents are independent, so the expected loss and its gradient have
a closed form: the loss that is reported is exact, and training with the exact gradient gives the
reference curve.

Every sampler starts from the same logits, draws from the same seeds, and runs with Adam and
tau = 1. Nothing is tuned. The learning rate is 1e-2, ten times the paper's, so that a few hundred
steps go as far as a few thousand of the paper's 8000. The runs share the processor cores, one
thread each, so the result does not depend on how many there are.
"""

import argparse
import csv
import datetime
import hashlib
import io
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cosine_similarity

import discretegrad

sys.path.insert(0, str(Path(__file__).resolve().parent))

import provenance

ROOT = Path(__file__).resolve().parents[1]
STORED_CSV = ROOT / "results" / "demo" / "polynomial.csv"
STORED_PLOT = ROOT / "docs" / "assets" / "polynomial.png"

LATENTS, BATCH, TARGET, POWER = 128, 256, 0.45, 2
LEARNING_RATE = 1e-2
PAPER_STEPS = 8000
BEST = min(TARGET, 1 - TARGET) ** POWER
MILESTONE = 0.21  # near the best, 0.2025; the start is 0.2525
RECORD_EVERY = 10
EXACT = "exact gradient"

# what to run of an estimator that has options; the others run once, with their defaults
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "gumbel_rao": [{"num_draws": 2}],  # its default of 100 would take several minutes
    "gapped": [{"gap": 1.0}, {"gap": "p"}],
    "mean_baseline": [{"order": 1}, {"order": 2}],
}
# one colour for each estimator; its variants differ in the line
COLOURS = {
    "reinmax": "#0072B2",
    "straight_through": "#D55E00",
    "gumbel_softmax": "#009E73",
    "gumbel_rao": "#56B4E9",
    "gapped": "#CC79A7",
    "mean_baseline": "#E69F00",
    EXACT: "#000000",
}
_DASHED, _DOTTED = (0, (3, 3)), (0, (1, 1.5))
LINES = {
    EXACT: _DOTTED,
    "gapped gap=1.0": _DASHED,
    "mean_baseline order=1": _DASHED,
    "mean_baseline order=2": _DOTTED,
    "gumbel_rao num_draws=2": _DASHED,
}
_EXAMPLES = """examples:
  python examples/polynomial.py                                   all samplers, under a minute
  python examples/polynomial.py --estimators reinmax straight_through --steps 2000
  python examples/polynomial.py --tau 0.5                         where Gumbel methods gain
"""


@dataclass(frozen=True)
class Variant:
    """An estimator with its options."""

    estimator: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As in ``gapped gap=p``."""
        return " ".join([self.estimator, *(f"{k}={v}" for k, v in self.options.items())])


class Point(NamedTuple):
    """One line of the CSV: where a run stood after some steps."""

    variant: str
    seed: int
    step: int
    expected_loss: float
    cosine: float
    """With the exact gradient, the mean over the steps since the last point."""
    milliseconds: float
    """Processor time of a step (sample, loss, backward), the mean since the last point."""


class Run(NamedTuple):
    """Everything that was measured, and how."""

    about: dict[str, str]
    points: list[Point]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, or show a stored one."""
    options = _parse(arguments)
    console = Console()
    csv_path, plot_path = options.output / "polynomial.csv", options.output / "polynomial.png"
    if options.store:
        csv_path, plot_path = STORED_CSV, STORED_PLOT
    begin = time.perf_counter()
    if options.render:
        csv_path = STORED_CSV
        run = read(csv_path)
    else:
        run = measure(options, console)
        provenance.write_whole(csv_path, as_csv(run))
    draw(run, plot_path)

    headings, lines = table(run)
    shown = Table(box=SIMPLE_HEAD)
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if number else "left", no_wrap=number < 2)
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    console.print(caption(run), highlight=False)
    console.print(f"plot: {_relative(plot_path)}\nnumbers: {_relative(csv_path)}")
    console.print(f"{time.perf_counter() - begin:.0f} seconds")
    return 0


def variants(names: Sequence[str]) -> list[Variant]:
    """What to run of these estimators, and the exact gradient as reference."""
    return [Variant(name, options) for name in names for options in OPTIONS.get(name, [{}])] + [
        Variant(EXACT)
    ]


def expected_loss(theta: Tensor) -> Tensor:
    """The loss averaged over all outcomes; ``theta`` is (128, 2)."""
    p = theta.softmax(-1)[..., 0]
    return (p * (1 - TARGET) ** POWER + (1 - p) * TARGET**POWER).mean()


def exact_gradient(theta: Tensor) -> Tensor:
    """The gradient of the expected loss."""
    p = theta.softmax(-1)[..., 0]
    slope = p * (1 - p) * ((1 - TARGET) ** POWER - TARGET**POWER) / LATENTS
    return torch.stack([slope, -slope], -1)


def train(
    variant: Variant,
    seed: int,
    options: argparse.Namespace,
    advance: Callable[[int], None] = lambda steps: None,
) -> list[Point]:
    """Minimise the loss with one estimator from one seed."""
    torch.set_num_threads(1)  # this thread's own: the runs share the cores among them
    device = options.device
    generator = torch.Generator(device).manual_seed(seed)
    theta = torch.empty(LATENTS, 2, device=device).uniform_(-0.01, 0.01, generator=generator)
    theta.requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=LEARNING_RATE)
    gradient = partial(_estimate, variant, options, generator)
    if variant.estimator == EXACT:
        gradient = exact_gradient

    points = [Point(variant.name, seed, 0, expected_loss(theta).item(), float("nan"), float("nan"))]
    cosines, seconds = [], 0.0
    for step in range(1, options.steps + 1):
        begin = _clock(device)
        theta.grad = gradient(theta)
        seconds += _clock(device) - begin
        with torch.no_grad():
            cosines.append(_cosine(theta.grad, exact_gradient(theta)))
        optimizer.step()
        if step % RECORD_EVERY == 0 or step == options.steps:
            count = len(cosines)
            cosine = torch.stack(cosines).mean().item()
            with torch.no_grad():
                loss = expected_loss(theta).item()
            points.append(Point(variant.name, seed, step, loss, cosine, 1e3 * seconds / count))
            cosines, seconds = [], 0.0
            advance(count)
    return points


def _estimate(
    variant: Variant, options: argparse.Namespace, generator: torch.Generator, theta: Tensor
) -> Tensor:
    sampler = discretegrad.get(variant.estimator).functions[options.family]
    sample = partial(sampler, tau=options.tau, generator=generator, **variant.options)
    if options.family == "categorical":
        x = sample(theta.expand(BATCH, LATENTS, 2))[..., 0]
    else:
        x = sample((theta[:, 0] - theta[:, 1]).expand(BATCH, LATENTS))
    loss = (x - TARGET).abs().pow(POWER).mean()
    return torch.autograd.grad(loss, theta)[0]


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return cosine_similarity(a.flatten(), b.flatten(), dim=0)


def _clock(device: str) -> float:
    if device == "cpu":
        return time.thread_time()  # a busy machine does not disturb it
    torch.accelerator.synchronize()
    return time.perf_counter()


def measure(options: argparse.Namespace, console: Console) -> Run:
    """Train with every estimator from every seed, several at a time."""
    tasks = [
        (variant, seed)
        for variant in variants(options.estimators)
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    # the longest first, so that no core waits for it at the end
    tasks.sort(key=lambda task: task[0].estimator != "gumbel_rao")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    workers = (os.cpu_count() or 1) if options.device == "cpu" else 1
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(workers) as pool:
        bar = progress.add_task(f"{len(tasks)} runs", total=len(tasks) * options.steps)
        futures = [
            pool.submit(train, variant, seed, options, lambda steps: progress.advance(bar, steps))
            for variant, seed in tasks
        ]
        points = [point for future in futures for point in future.result()]
    order = [variant.name for variant in variants(options.estimators)]
    points.sort(key=lambda point: (order.index(point.variant), point.seed, point.step))
    return Run(_provenance(options), points)


def table(run: Run) -> tuple[list[str], list[list[str]]]:
    """Headings and one line for each estimator, the lowest loss first."""
    headings = ["estimator", "loss", f"steps to {MILESTONE}", "cosine, start", "end", "time"]
    curves = _curves(run)
    times = {
        name: statistics.median(point.milliseconds for curve in some for point in curve[1:])
        for name, some in curves.items()
    }
    lines = []
    for name, some in curves.items():
        steps = [_steps_to_milestone(curve) for curve in some]
        tenth = max(1, (len(some[0]) - 1) // 10)
        start = statistics.fmean(point.cosine for curve in some for point in curve[1 : 1 + tenth])
        end = statistics.fmean(point.cosine for curve in some for point in curve[-tenth:])
        comparable = "reinmax" in times and name != EXACT
        lines.append(
            [
                name,
                _mean_and_deviation([curve[-1].expected_loss for curve in some]),
                "-" if None in steps else f"{statistics.fmean(steps):.0f}",
                f"{start:.2f}",
                f"{end:.2f}",
                f"{times[name] / times['reinmax']:.1f}x" if comparable else "",
            ]
        )
    return headings, lines


def caption(run: Run) -> str:
    """What the table shows, and what it does not."""
    about = run.about
    return (
        f"{about['steps']} steps of Adam at a learning rate of {LEARNING_RATE:g} (the paper runs "
        f"{PAPER_STEPS} at a tenth of it), {about['seeds']} seeds: mean and standard deviation of "
        "the expected loss after the last step, which is exact; "
        f"{BEST:.4f} is the least possible. A dash means: not within these steps. The cosine is "
        f"that between the gradient of a step, an average over {BATCH} samples, and the exact one, "
        "in the first and the last tenth of the steps. Time is processor time of sample, loss and "
        "backward relative to `reinmax`.\n\n"
        f"Every sampler runs at tau = {float(about['tau']):g} and nothing is tuned; the paper "
        "tunes tau for each method, so this does not rank tuned methods. The loss is quadratic, "
        "the case in which `reinmax` at tau 1 is unbiased; with two categories `mean_baseline` at "
        "tau 1 has the same gradient, sample for sample, so those curves coincide."
    )


def draw(run: Run, path: Path) -> None:
    """The expected loss against the step: mean over seeds, shaded by the standard deviation."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, some in _curves(run).items():
        estimator = name if name == EXACT else name.split()[0]
        colour = COLOURS.get(estimator, "#777777")
        losses = torch.tensor([[point.expected_loss for point in curve] for curve in some])
        steps = [point.step for point in some[0]]
        mean = losses.mean(0)
        # curves coincide: reinmax is wide, and what may lie on another curve has gaps
        axes.plot(
            steps,
            mean,
            label=name,
            color=colour,
            linestyle=LINES.get(name, "-"),
            linewidth=5 if estimator == "reinmax" else 2,
            zorder=1 if estimator == "reinmax" else 2,
        )
        if len(some) > 1:
            deviation = losses.std(0)
            axes.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.2)
    axes.set_xlabel("step")
    axes.set_ylabel(f"expected loss (the best is {BEST:.4f})")
    axes.set_title(
        f"Polynomial problem: p = {POWER}, {LATENTS} binary latents, batch {BATCH}, "
        f"tau = {float(run.about['tau']):g}, {run.about['seeds']} seeds",
        fontsize="medium",
    )
    axes.margins(x=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    # in the order in which the curves end, from top to bottom
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # the picture says which numbers it shows
    figure.savefig(path, dpi=150, metadata={"Source": digest(run)}, pil_kwargs={"optimize": True})


def digest(run: Run) -> str:
    """A fingerprint of the stored run."""
    return hashlib.sha256(as_csv(run).encode()).hexdigest()


def as_csv(run: Run) -> str:
    """The run as a file: comment lines that say how it was made, then one line for each point."""
    text = io.StringIO()
    for key, value in run.about.items():
        text.write(f"# {key}: {value}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Point._fields)
    for p in run.points:
        measured = ("", "") if p.step == 0 else (f"{p.cosine:.4f}", f"{p.milliseconds:.3f}")
        writer.writerow([*p[:3], f"{p.expected_loss:.7f}", *measured])
    return text.getvalue()


def read(path: Path) -> Run:
    """A run that was stored with ``as_csv``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    notes = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    about = dict(note.split(": ", 1) for note in notes)
    points = [
        Point(
            row["variant"],
            int(row["seed"]),
            int(row["step"]),
            float(row["expected_loss"]),
            float(row["cosine"] or "nan"),
            float(row["milliseconds"] or "nan"),
        )
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    ]
    return Run(about, points)


def _curves(run: Run) -> dict[str, list[list[Point]]]:
    """For each variant its curves, one per seed; the variant with the lowest loss first."""
    curves: dict[str, dict[int, list[Point]]] = {}
    for point in run.points:
        curves.setdefault(point.variant, {}).setdefault(point.seed, []).append(point)
    listed = {name: list(by_seed.values()) for name, by_seed in curves.items()}
    final = {
        # rounded, so that equal curves stay in the order of the registry
        name: round(statistics.fmean(curve[-1].expected_loss for curve in some), 5)
        for name, some in listed.items()
    }
    return {name: listed[name] for name in sorted(final, key=final.__getitem__)}


def _steps_to_milestone(curve: Sequence[Point]) -> int | None:
    return next((point.step for point in curve if point.expected_loss <= MILESTONE), None)


def _mean_and_deviation(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.5f}"
    return f"{statistics.fmean(values):.5f} ± {statistics.stdev(values):.5f}"


def _provenance(options: argparse.Namespace) -> dict[str, str]:
    changes = " with uncommitted changes" if provenance.has_changes() else ""
    return {
        "command": options.command,
        "date": datetime.date.today().isoformat(),
        "discretegrad": f"{discretegrad.__version__}, commit {provenance.commit()}{changes}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{provenance.cpu_name()}, {os.cpu_count()} cores",
        "device": options.device,
        "family": options.family,
        "steps": str(options.steps),
        "seeds": str(options.seeds),
        "first seed": str(options.seed),
        "tau": str(options.tau),
    }


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [row.name for row in discretegrad.ESTIMATORS.values() if row.kind == "sampler"]
    parser.add_argument(
        "--estimators",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"which to compare, of {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--steps",
        type=_positive,
        default=300,
        help=f"optimisation steps (default: 300; the paper runs {PAPER_STEPS})",
    )
    parser.add_argument(
        "--seeds", type=_positive, default=3, help="runs of each sampler (default: 3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--tau",
        type=float,
        default=1.0,
        help="temperature of every sampler (default: 1; smaller helps the Gumbel methods)",
    )
    parser.add_argument(
        "--family",
        choices=("categorical", "bernoulli"),
        default="categorical",
        help="two categories for each latent, or one 0/1 variable: the same gradients, and "
        "bernoulli is several times as fast (default: categorical)",
    )
    parser.add_argument("--device", default="cpu", help="where to run (default: cpu)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("output/demo"),
        help="folder for polynomial.png and polynomial.csv (default: output/demo)",
    )
    parser.add_argument(
        "--store",
        action="store_true",
        help="write the run that the README shows: results/demo/polynomial.csv and "
        "docs/assets/polynomial.png; then run python benchmarks/table.py",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="run nothing; show the stored run again (with --store: redraw its picture)",
    )
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    options.command = shlex.join(["python", "examples/polynomial.py", *given])
    return options


if __name__ == "__main__":
    raise SystemExit(main())
