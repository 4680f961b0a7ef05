"""Choose an estimator for a small VAE on MNIST with `discretegrad.diagnose`, and test the choice.

The model is the 8x4 VAE of Liu et al. 2023 (arXiv:2304.08612) with one hidden layer instead of two:
an encoder 784-256-32 gives the logits of 4 latent variables with 8 categories, a decoder 32-256-784
the logits of the pixels. The loss of an image is its negative ELBO,

    E[reconstruction] + KL,    KL = sum q log q + 4 log 8 with the uniform prior,

where the reconstruction is the cross entropy of the grey pixels. The KL has a closed form and an
ordinary gradient; only the expected reconstruction needs an estimator. There are 8 ** 4 = 4096
joint outcomes, few enough to enumerate: its true gradient is known.

Four parts:

1. Train with one estimator and stop six times on the way.
2. At each stop diagnose all estimators at the logits of ten training images, one of each digit:
   1024 draws against the exact gradient, over temperatures and numbers of samples.
3. Decide: the row with the smallest error for 1000 evaluations of f, see `decide`.
4. Check the decision: train from the start with it and with alternatives, several seeds each, and
   report the exact negative ELBO on training and test images.

MNIST is read from the four usual files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz,
t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz.
"""

import argparse
import copy
import csv
import datetime
import gzip
import hashlib
import io
import math
import os
import platform
import re
import shlex
import statistics
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import softplus

import discretegrad

sys.path.insert(0, str(Path(__file__).resolve().parent))

import provenance

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "results" / "diagnose"
PAGE = ROOT / "docs" / "diagnosing.md"
PICTURES = ROOT / "docs" / "assets"
GRADIENTS, TRAINING = "gradients.csv", "training.csv"
COSINE_PICTURE, TRADE_OFF_PICTURE = "diagnose_cosine.png", "diagnose_trade_off.png"

VARIABLES, CATEGORIES, HIDDEN, PIXELS, DIGITS = 4, 8, 256, 784, 10
BATCH, LEARNING_RATE = 100, 1e-3
# how far training has come at each stop
STOPS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
# the images of a step, and about ten steps that Adam averages over
BUDGET = BATCH * 10
# more samples must pay for themselves by more than this, or fewer are chosen
TIE = 0.02
_IMAGES_AT_ONCE = 1000
_DRAWS_AT_ONCE = 256

TAUS = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5)
MORE_SAMPLES = (2, 4, 8)
WITH_TAU = ("reinmax", "straight_through", "gumbel_softmax", "gumbel_rao", "gapped")

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
_EXAMPLES = """examples:
  python examples/diagnose_vae.py --data DIR --quick     everything in miniature, to see it work
  python examples/diagnose_vae.py --data DIR             the whole study, about seven minutes
  python examples/diagnose_vae.py --data DIR --store     the same, into results/ and docs/
  python examples/diagnose_vae.py --render               draw figures and tables of the stored run
"""


class DataError(Exception):
    """A file cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Choice:
    """An estimator with everything that a user has to decide."""

    estimator: str
    options: dict[str, Any] = field(default_factory=dict)
    num_samples: int = 1

    @property
    def label(self) -> str:
        """As in ``reinmax tau=1.3 K=4``."""
        words = [self.estimator, *(f"{key}={value}" for key, value in self.options.items())]
        return " ".join(words + ([f"K={self.num_samples}"] if self.num_samples > 1 else []))


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


class Images(NamedTuple):
    """Pixels as bytes, (images, 784), and the digits of the training images."""

    train: Tensor
    digits: Tensor
    test: Tensor
    checksum: str


class VAE(nn.Module):
    """784-256-32 and 32-256-784 with torch's default start."""

    def __init__(self) -> None:
        super().__init__()
        width = VARIABLES * CATEGORIES
        self.encoder = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, width))
        self.decoder = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, PIXELS))

    def logits(self, images: Tensor) -> Tensor:
        """(images, 4, 8)."""
        return self.encoder(images).unflatten(-1, (VARIABLES, CATEGORIES))

    def reconstruction(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        """The f of the library: from a sample (images, 4, 8) to a cross entropy per image."""

        def f(z: Tensor) -> Tensor:
            pixels = self.decoder(z.flatten(-2))
            return (softplus(pixels) - images * pixels).sum(-1)

        return f


def divergence(logits: Tensor) -> Tensor:
    """KL between the latent variables and uniform ones, per image."""
    log_q = logits.log_softmax(-1)
    return (log_q.exp() * log_q).sum((-2, -1)) + VARIABLES * math.log(CATEGORIES)


def codes() -> Tensor:
    """All joint outcomes, (4096, 4, 8)."""
    index = torch.cartesian_prod(*[torch.arange(CATEGORIES)] * VARIABLES)
    return nn.functional.one_hot(index, CATEGORIES).float()


@torch.no_grad()
def negative_elbo(model: VAE, pixels: Tensor) -> float:
    """The exact mean over images. All images share the outcomes, so that each is decoded once."""
    decoded = model.decoder(codes().flatten(-2))
    constant = softplus(decoded).sum(-1)
    total = 0.0
    for some in pixels.split(_IMAGES_AT_ONCE):
        images = some / 255
        logits = model.logits(images)
        joint = logits.new_ones(len(images), 1)
        for q in logits.softmax(-1).unbind(1):
            joint = (joint.unsqueeze(-1) * q.unsqueeze(1)).flatten(1)
        losses = torch.addmm(constant, images, decoded.T, alpha=-1)
        total += float((joint * losses).sum() + divergence(logits).sum())
    return total / len(pixels)


def new_model(seed: int) -> VAE:
    """A model whose start depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VAE()


def training_steps(
    model: VAE, choice: Choice, pixels: Tensor, seed: int, steps: int
) -> Iterator[int]:
    """Train, and yield the number of steps done, from 0 on."""
    # images do not depend on how many random numbers an estimator takes
    order, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    queue: list[Tensor] = []
    for done in range(steps):
        yield done
        queue = queue or list(torch.randperm(len(pixels), generator=order).split(BATCH))
        images = pixels[queue.pop()] / 255
        logits = model.logits(images)
        reconstruction = discretegrad.expectation(
            logits,
            model.reconstruction(images),
            choice.estimator,
            num_samples=choice.num_samples,
            generator=noise,
            **choice.options,
        )
        optimizer.zero_grad()
        (reconstruction + divergence(logits)).mean().backward()
        optimizer.step()
    yield steps


def candidates() -> list[Choice]:
    """What is diagnosed."""
    # 10 draws instead of 100: ten times less time for little more variance
    own: dict[str, dict[str, Any]] = {"gumbel_rao": {"num_draws": 10}}
    chosen = [Choice(name, {"tau": tau, **own.get(name, {})}) for name in WITH_TAU for tau in TAUS]
    chosen.append(Choice("mean_baseline", {"tau": 1.0}))
    chosen += [Choice("reinmax", {"tau": 1.0}, k) for k in MORE_SAMPLES]
    chosen += [Choice("reinforce"), Choice("reinforce", {"baseline": "self_critical"})]
    chosen += [Choice(name, {}, k) for name in ("leave_one_out", "disarm_tree") for k in (2, 4, 8)]
    return [*chosen, Choice("muprop"), Choice("rebar", {"tau": 0.5})]


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
# what the decision is compared with: usual choices, two of them with 4 evaluations of f
ALTERNATIVES = (
    Choice("reinmax", {"tau": 1.0}),
    Choice("reinmax", {"tau": 1.0}, 4),
    Choice("straight_through", {"tau": 1.0}),
    Choice("gumbel_softmax", {"tau": 0.5}),
    Choice("leave_one_out", {}, 4),
)


def diagnose_all(
    model: VAE, images: Tensor, step: int, loss: float, options: argparse.Namespace
) -> list[GradientRow]:
    """One row for each candidate, at the logits of these images."""
    chosen = candidates()
    result = discretegrad.diagnose(
        model.reconstruction(images),
        model.logits(images).detach(),
        {c.label: (c.estimator, {**c.options, "num_samples": c.num_samples}) for c in chosen},
        num_draws=options.draws,
        generator=torch.Generator().manual_seed(options.seed),
        chunk_size=_DRAWS_AT_ONCE,
        progress=False,
    )
    rows = []
    for choice, row in zip(chosen, result.rows, strict=True):
        if not row.applicable:
            raise RuntimeError(f"{row.label}: {row.status}")
        rows.append(
            GradientRow(
                step=step,
                negative_elbo=loss,
                gradient_norm=result.gradient_norm,
                label=row.label,
                estimator=row.estimator,
                tau=choice.options.get("tau"),
                num_samples=row.num_samples,
                evaluations=row.evaluations,
                slopes=row.slopes,
                bias=row.relative_bias,
                bias_bound=row.bias_bound / result.gradient_norm,
                bias_detected=bool(row.bias_detected),
                deviation=row.relative_deviation,
                cosine=row.cosine,
                cosine_standard_error=row.cosine_standard_error,
                cosine_of_mean=row.cosine_of_mean,
                cosine_of_mean_standard_error=row.cosine_of_mean_standard_error,
            )
        )
    return rows


def errors(rows: Sequence[GradientRow], budget: float = BUDGET) -> dict[str, float]:
    """For each label the error for a budget: the root mean square over all stops."""
    squares: dict[str, list[float]] = {}
    for row in rows:
        squares.setdefault(row.label, []).append(row.error(budget) ** 2)
    return {label: math.sqrt(statistics.fmean(values)) for label, values in squares.items()}


def decide(rows: Sequence[GradientRow], budget: float = BUDGET) -> GradientRow:
    """The row of the last stop whose estimator has the smallest error for the budget.

    Samples of a sampler are independent, so more of them only share the budget differently: of
    rows that differ in nothing else, the fewest samples win unless more are better by 2 %.
    """
    found = errors(rows, budget)
    last = at_last_stop(rows)
    best = min(last, key=lambda row: found[row.label])
    alike = [
        row
        for row in last
        if _without_samples(row.label) == _without_samples(best.label)
        and found[row.label] <= found[best.label] * (1 + TIE)
    ]
    return min(alike, key=lambda row: row.num_samples)


def at_last_stop(rows: Sequence[GradientRow]) -> list[GradientRow]:
    """The rows of the last stop."""
    last = max(row.step for row in rows)
    return [row for row in rows if row.step == last]


def _without_samples(label: str) -> str:
    return re.sub(r" K=\d+$", "", label)


def measure(options: argparse.Namespace, console: Console) -> Study:
    """All four parts. Every worker has one thread, so that their number changes no result."""
    images = read_images(options.data)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # the number of threads belongs to the thread that sets it
    pool = ThreadPoolExecutor(options.workers, initializer=torch.set_num_threads, initargs=(1,))
    with Progress(*columns, console=console) as progress, pool:
        gradients = _gradients(images, options, progress, pool)
        training = _training(images, decide(gradients), options, progress, pool)
    return Study(_provenance(options, images), gradients, training)


def _gradients(
    images: Images, options: argparse.Namespace, progress: Progress, pool: ThreadPoolExecutor
) -> list[GradientRow]:
    stops = sorted({round(share * options.steps) for share in options.stops})
    bar = progress.add_task("train and diagnose", total=1 + len(stops))
    first = [int((images.digits == digit).nonzero()[0]) for digit in range(DIGITS)]
    start = by_name(options.estimator)

    def train() -> dict[int, VAE]:
        model, seen = new_model(options.seed), {}
        for step in training_steps(model, start, images.train, options.seed, options.steps):
            if step in stops:
                seen[step] = copy.deepcopy(model)
        progress.advance(bar)
        return seen

    def diagnose(step: int, model: VAE) -> list[GradientRow]:
        loss = negative_elbo(model, images.train[: options.evaluated])
        rows = diagnose_all(model, images.train[first] / 255, step, loss, options)
        progress.advance(bar)
        return rows

    models = pool.submit(train).result()
    return [row for rows in pool.map(diagnose, models, models.values()) for row in rows]


def _training(
    images: Images,
    decision: GradientRow,
    options: argparse.Namespace,
    progress: Progress,
    pool: ThreadPoolExecutor,
) -> list[TrainingRow]:
    decided = next(c for c in candidates() if c.label == decision.label)
    choices = [decided, *(c for c in ALTERNATIVES if c != decided)]
    seeds = range(options.seed, options.seed + options.seeds)
    # made here, one after the other: the start comes from the global generator
    runs = [(choice, seed, new_model(seed)) for choice in choices for seed in seeds]
    bar = progress.add_task("check the decision", total=len(runs))

    def run(choice: Choice, seed: int, model: VAE) -> TrainingRow:
        for _ in training_steps(model, choice, images.train, seed, options.steps):
            pass
        ends = [negative_elbo(model, x[: options.evaluated]) for x in (images.train, images.test)]
        progress.advance(bar)
        return TrainingRow(choice.label, seed, _evaluations(choice), *ends)

    return list(pool.map(run, *zip(*runs, strict=True)))


def _evaluations(choice: Choice) -> int:
    row = discretegrad.get(choice.estimator)
    return row.evaluations * choice.num_samples + row.extra_evaluations


def by_name(name: str) -> Choice:
    """An estimator at tau 1 if it has one, with the fewest samples it works with."""
    options = {"tau": 1.0} if discretegrad.get(name).kind == "sampler" else {}
    return Choice(name, options, discretegrad.get(name).min_samples)


# data


def read_images(folder: Path) -> Images:
    """MNIST from its four files, checked."""
    if not folder.is_dir():
        raise DataError(
            f"--data: there is no folder {folder}. Give the folder with the MNIST files "
            "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz "
            "and t10k-labels-idx1-ubyte.gz."
        )
    checksum = hashlib.sha256()
    parts = {}
    for part in ("train", "t10k"):
        pixels = _read_idx(folder / f"{part}-images-idx3-ubyte.gz", (28, 28), checksum)
        digits = _read_idx(folder / f"{part}-labels-idx1-ubyte.gz", (), checksum)
        if len(pixels) != len(digits):
            raise DataError(
                f"{folder}: {part} has {len(pixels)} images and {len(digits)} labels. Both files "
                "must be of the same data set; get them again."
            )
        parts[part] = pixels.flatten(1), digits
    missing = sorted(set(range(DIGITS)) - set(parts["train"][1].tolist()))
    if missing:
        raise DataError(
            f"{folder}: no training image of {', '.join(map(str, missing))}, but one of each digit "
            "is diagnosed. Use all of MNIST, or a part with every digit."
        )
    return Images(*parts["train"], parts["t10k"][0], checksum.hexdigest())


def _read_idx(path: Path, shape: tuple[int, ...], checksum: "hashlib._Hash") -> Tensor:
    if not path.is_file():
        raise DataError(
            f"{path.parent}: {path.name} is missing. Put the gzipped MNIST file of that name there."
        )
    raw = path.read_bytes()
    checksum.update(raw)
    again = f"{path.name} is damaged or not MNIST; get the file again."
    try:
        content = gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{again} Unpacking it failed: {error}.") from error
    head = 8 + 4 * len(shape)
    # two zero bytes, 8 for unsigned bytes, the number of axes; then the length of each axis
    if len(content) < head or content[:4] != bytes([0, 0, 8, 1 + len(shape)]):
        raise DataError(f"{again} It does not begin like an idx file of {1 + len(shape)} axes.")
    count, *found = struct.unpack(f">{1 + len(shape)}I", content[4:head])
    expected = count * math.prod(shape)
    if tuple(found) != shape or len(content) - head != expected or count == 0:
        raise DataError(
            f"{again} Its head says {(count, *found)}, and {len(content) - head} bytes follow; "
            f"expected (images, {', '.join(map(str, shape))})."
        )
    return torch.frombuffer(bytearray(content[head:]), dtype=torch.uint8).view(count, *shape)


# the stored study


def write(folder: Path, study: Study) -> None:
    """The study as two CSV files, each with comment lines that say how it was made."""
    provenance.write_whole(
        folder / GRADIENTS, _as_csv(study.about, GradientRow._fields, study.gradients)
    )
    provenance.write_whole(
        folder / TRAINING, _as_csv(study.about, TrainingRow._fields, study.training)
    )


def read(folder: Path) -> Study:
    """What ``write`` wrote."""
    about, gradients = _from_csv(folder / GRADIENTS, GradientRow)
    _, training = _from_csv(folder / TRAINING, TrainingRow)
    return Study(about, gradients, training)


def _value(kind: Any, text: str) -> Any:
    if kind is bool:
        return text == "True"
    if kind == float | None:
        return float(text) if text else None
    return kind(text)


def _as_csv(about: dict[str, str], fields: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    for key, value in about.items():
        text.write(f"# {key}: {value}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    for row in rows:
        writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in row])
    return text.getvalue()


def _from_csv(path: Path, kind: Any) -> tuple[dict[str, str], list[Any]]:
    if not path.is_file():
        raise DataError(f"there is no {path.name} in {path.parent}: run with --store first.")
    lines = path.read_text(encoding="utf-8").splitlines()
    notes = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    types = kind.__annotations__
    rows = [
        kind(**{key: _value(types[key], text) for key, text in row.items()})
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    ]
    return dict(note.split(": ", 1) for note in notes), rows


def _provenance(options: argparse.Namespace, images: Images) -> dict[str, str]:
    changes = " with uncommitted changes" if provenance.has_changes() else ""
    return {
        "command": options.command,
        "date": datetime.date.today().isoformat(),
        "discretegrad": f"{discretegrad.__version__}, commit {provenance.commit()}{changes}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{provenance.cpu_name()}, {os.cpu_count()} cores",
        "workers": f"{options.workers}, one thread each",
        "data": f"{len(images.train)} training and {len(images.test)} test images, sha256 of the "
        f"four files {images.checksum[:16]}",
        "estimator": options.estimator,
        "steps": str(options.steps),
        "draws": str(options.draws),
        "first seed": str(options.seed),
        "seeds": str(options.seeds),
        "evaluated": f"the first {options.evaluated} images of each part",
    }


# figures


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
        some = [row for row in rows if row.estimator == name]
        style: dict[str, Any] = {"color": COLOURS[name], "markersize": 5}
        known = [row for row in some if row.bias_detected]
        bounded = [row for row in some if not row.bias_detected]
        if name in WITH_TAU:
            by_tau = [row for row in some if row.num_samples == 1]
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
        for row in some:
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
    text = _as_csv(study.about, GradientRow._fields, study.gradients)
    text += _as_csv(study.about, TrainingRow._fields, study.training)
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


# tables

_BLOCK = re.compile(
    r"(<!-- begin generated: (\w+) -->\n).*?(<!-- end generated: \2 -->)", re.DOTALL
)


def page(study: Study, text: str) -> str:
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
    found = errors(study.gradients)
    lines = []
    for name in WITH_TAU:
        by_tau = {
            row.tau: found[row.label]
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
        some = [rows.get(f"{label} K={k}" if k > 1 else label) for k in counts]
        cells = ["" if row is None else f"{_deviation_per_evaluation(row):.2f}" for row in some]
        lines.append([f"`{label}`", *cells])
    return ["estimator", *(f"K = {k}" for k in counts)], lines


BUDGETS = (1, 100, BUDGET, 100_000)


def budget_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """The error for several budgets over all stops; the best of a column in bold."""
    found = {n: errors(study.gradients, n) for n in BUDGETS}
    winners = [decide(study.gradients, n).label for n in BUDGETS]
    shown = list(dict.fromkeys([*winners, *CURVES, *(c.label for c in ALTERNATIVES)]))
    shown.sort(key=lambda label: found[BUDGET][label])
    lines = [
        [
            f"`{label}`",
            *(_bold(found[n][label], label == w) for n, w in zip(BUDGETS, winners, strict=True)),
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


def _show(console: Console, title: str, headings: list[str], rows: list[list[str]]) -> None:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    plain = [[re.sub(r"[`*]", "", cell) for cell in row] for row in (headings, *rows)]
    table.add_column(plain[0][0], overflow="fold")
    for place, heading in enumerate(plain[0][1:], 1):
        # headings may wrap, numbers may not
        width = max(len(row[place]) for row in plain[1:])
        table.add_column(heading, justify="right", min_width=width)
    for row in plain[1:]:
        table.add_row(*row)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, or show the stored one."""
    options = _parse(arguments)
    console = Console()
    folder = STORED if options.store or options.render else options.output
    pictures = PICTURES if options.store or options.render else options.output
    try:
        study = read(folder) if options.render else measure(options, console)
    except DataError as error:
        Console(stderr=True).print(f"[red]error:[/] {error}", highlight=False, soft_wrap=True)
        return 2
    if not options.render:
        write(folder, study)
        study = read(folder)  # rounded, so that figures and tables follow from the files
    draw(study, pictures)
    if options.store or options.render:
        provenance.write_whole(PAGE, page(study, PAGE.read_text(encoding="utf-8")))
    for title, shown in (
        ("At the last stop, relative to the norm of the exact gradient", estimators_table(study)),
        (f"Error for {BUDGET} evaluations, by temperature", temperature_table(study)),
        ("Error for n evaluations", budget_table(study)),
        ("Trained from the start", training_table(study)),
    ):
        _show(console, title, *shown)
    console.print(re.sub(r"[`*]", "", decision_text(study)))
    console.print(f"numbers: {_relative(folder)}, figures: {_relative(pictures)}")
    return 0


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
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the four MNIST files")
    parser.add_argument(
        "--estimator",
        choices=[name for name in discretegrad.ESTIMATORS if name in COLOURS],
        default="reinmax",
        metavar="NAME",
        help="what the diagnosed model is trained with (default: reinmax)",
    )
    parser.add_argument(
        "--steps", type=_positive, default=1000, help="of 100 images each (default: 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--seeds", type=_positive, default=5, help="runs to check each choice (default: 5)"
    )
    parser.add_argument(
        "--workers",
        type=_positive,
        default=os.cpu_count() or 1,
        help="runs at a time, one thread each; changes no result (default: one per core)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a miniature: 20 steps, 2 stops, 32 draws, 2 seeds, 200 images; its numbers mean "
        "little",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("output/diagnose"),
        help="folder for the numbers and figures (default: output/diagnose)",
    )
    parser.add_argument(
        "--store",
        action="store_true",
        help="write results/diagnose, docs/assets and the tables of docs/diagnosing.md instead",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="run nothing; make figures and tables of the page from results/diagnose",
    )
    options = parser.parse_args(arguments)
    if options.data is None and not options.render:
        parser.error("--data DIR is needed: the folder with the four MNIST files")
    options.stops, options.draws, options.evaluated = STOPS, 1024, 10_000
    if options.quick:
        options.steps, options.seeds, options.stops = 20, 2, (0.0, 1.0)
        options.draws, options.evaluated = 32, 200
    given = list(sys.argv[1:] if arguments is None else arguments)
    # whose folder it was is nobody's business; the checksum says what was in it
    given = [
        "DIR" if before == "--data" else word
        for before, word in zip(["", *given], given, strict=False)
    ]
    given = [re.sub(r"^--data=.*", "--data=DIR", word) for word in given]
    options.command = shlex.join(["python", "examples/diagnose_vae.py", *given])
    return options


if __name__ == "__main__":
    raise SystemExit(main())
