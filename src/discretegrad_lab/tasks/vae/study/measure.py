"""The small VAE, its gradients at several stops, and its training with several estimators."""

import copy
import datetime
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import discretegrad

from .rows import BATCH, GradientRow, Study, TrainingRow, decide

VARIABLES, CATEGORIES, HIDDEN, PIXELS, DIGITS = 4, 8, 256, 784, 10
LEARNING_RATE = 1e-3
TAUS = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5)
MORE_SAMPLES = (2, 4, 8)
WITH_TAU = ("reinmax", "straight_through", "gumbel_softmax", "gumbel_rao", "gapped")
SEED = 0
_IMAGES_AT_ONCE, _DRAWS_AT_ONCE = 1000, 256


class Settings(NamedTuple):
    """How large the study is."""

    steps: int = 1000
    stops: tuple[float, ...] = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
    """How far training has come at each stop."""
    draws: int = 1024
    seeds: int = 5
    """Runs to check each choice."""
    evaluated: int = 10_000
    """Images of the exact negative ELBO."""


MINIATURE = Settings(20, (0.0, 1.0), 32, 2, 200)
"""To see it work; its numbers mean little."""


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


class Pixels(NamedTuple):
    """Images as bytes, (images, 784), and the digits of the training images."""

    train: Tensor
    digits: Tensor
    test: Tensor


class SmallVae(nn.Module):
    """784-256-32 and 32-256-784 with torch's default start."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        width = VARIABLES * CATEGORIES
        # the start comes from the global generator
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder, self.decoder = (
                nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))
                for inputs, outputs in ((PIXELS, width), (width, PIXELS))
            )

    def logits(self, images: Tensor) -> Tensor:
        """(images, 4, 8)."""
        encoded: Tensor = self.encoder(images)
        logits: Tensor = encoded.unflatten(-1, (VARIABLES, CATEGORIES))
        return logits

    def reconstruction(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        """The f of the library: from a sample (images, 4, 8) to a cross entropy per image."""

        def f(z: Tensor) -> Tensor:
            pixels: Tensor = self.decoder(z.flatten(-2))
            losses: Tensor = softplus(pixels) - images * pixels
            return losses.sum(-1)

        return f


def divergence(logits: Tensor) -> Tensor:
    """KL between the latent variables and uniform ones, per image."""
    log_q = logits.log_softmax(-1)
    return (log_q.exp() * log_q).sum((-2, -1)) + VARIABLES * math.log(CATEGORIES)


@torch.no_grad()
def negative_elbo(model: SmallVae, pixels: Tensor) -> float:
    """The exact mean over images. All images share the outcomes, so that each is decoded once."""
    index = torch.cartesian_prod(*[torch.arange(CATEGORIES)] * VARIABLES)
    decoded = model.decoder(nn.functional.one_hot(index, CATEGORIES).float().flatten(-2))
    constant = softplus(decoded).sum(-1)
    total = 0.0
    for part in pixels.split(_IMAGES_AT_ONCE):
        images = part / 255
        logits = model.logits(images)
        joint = logits.new_ones(len(images), 1)
        for q in logits.softmax(-1).unbind(1):
            joint = (joint.unsqueeze(-1) * q.unsqueeze(1)).flatten(1)
        losses = torch.addmm(constant, images, decoded.T, alpha=-1)
        total += float((joint * losses).sum() + divergence(logits).sum())
    return total / len(pixels)


def training_steps(
    model: SmallVae, choice: Choice, pixels: Tensor, seed: int, steps: int
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


TRAINED_WITH = Choice("reinmax", {"tau": 1.0})
"""What the diagnosed model is trained with."""
# what the decision is compared with: usual choices, two of them with 4 evaluations of f
ALTERNATIVES = (
    TRAINED_WITH,
    Choice("reinmax", {"tau": 1.0}, 4),
    Choice("straight_through", {"tau": 1.0}),
    Choice("gumbel_softmax", {"tau": 0.5}),
    Choice("leave_one_out", {}, 4),
)


def diagnosed(
    model: SmallVae, images: Tensor, step: int, loss: float, settings: Settings
) -> list[GradientRow]:
    """One row for each candidate, at the logits of these images."""
    chosen = candidates()
    result = discretegrad.diagnose(
        model.logits(images).detach(),
        model.reconstruction(images),
        {c.label: (c.estimator, {**c.options, "num_samples": c.num_samples}) for c in chosen},
        num_draws=settings.draws,
        generator=torch.Generator().manual_seed(SEED),
        chunk_size=_DRAWS_AT_ONCE,
        progress=False,
    )
    norm, rows = result.gradient_norm, []
    for choice, row in zip(chosen, result.rows, strict=True):
        if not row.applicable:
            raise RuntimeError(f"{row.label}: {row.status}")
        same = {n: getattr(row, n) for n in GradientRow._fields if hasattr(row, n)}
        same |= {"bias": row.relative_bias, "bias_bound": (row.bias_bound or 0) / norm}
        same |= {"deviation": row.relative_deviation, "bias_detected": bool(row.bias_detected)}
        same |= {"step": step, "negative_elbo": loss, "gradient_norm": norm}
        rows.append(GradientRow(**same | {"tau": choice.options.get("tau")}))
    return rows


def measure(pixels: Pixels, settings: Settings, workers: int) -> Study:
    """All of it. Every worker has one thread, so that their number changes no result."""
    # the number of threads belongs to the thread that sets it
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        gradients = _gradients(pixels, settings, pool)
        training = _training(pixels, decide(gradients), settings, pool)
    return Study(_about(pixels, settings, workers), gradients, training)


def _gradients(pixels: Pixels, settings: Settings, pool: ThreadPoolExecutor) -> list[GradientRow]:
    stops = {round(share * settings.steps) for share in settings.stops}
    first = [int((pixels.digits == digit).nonzero()[0]) for digit in range(DIGITS)]

    def train() -> dict[int, SmallVae]:
        model, seen = SmallVae(SEED), {}
        for step in training_steps(model, TRAINED_WITH, pixels.train, SEED, settings.steps):
            if step in stops:
                seen[step] = copy.deepcopy(model)
        return seen

    def at_stop(step: int, model: SmallVae) -> list[GradientRow]:
        loss = negative_elbo(model, pixels.train[: settings.evaluated])
        return diagnosed(model, pixels.train[first] / 255, step, loss, settings)

    models = pool.submit(train).result()
    return [row for rows in pool.map(at_stop, models, models.values()) for row in rows]


def _training(
    pixels: Pixels, decision: GradientRow, settings: Settings, pool: ThreadPoolExecutor
) -> list[TrainingRow]:
    decided = next(c for c in candidates() if c.label == decision.label)
    choices = [decided, *(c for c in ALTERNATIVES if c != decided)]
    seeds = range(SEED, SEED + settings.seeds)
    # made here, one after the other: the start comes from the global generator
    runs = [(choice, seed, SmallVae(seed)) for choice in choices for seed in seeds]

    def run(choice: Choice, seed: int, model: SmallVae) -> TrainingRow:
        for _ in training_steps(model, choice, pixels.train, seed, settings.steps):
            pass
        parts = (pixels.train, pixels.test)
        train, test = (negative_elbo(model, part[: settings.evaluated]) for part in parts)
        cost = discretegrad.get(choice.estimator).cost(choice.num_samples)
        assert cost is not None
        return TrainingRow(choice.label, seed, cost[0], train, test)

    return list(pool.map(run, *zip(*runs, strict=True)))


def _about(pixels: Pixels, settings: Settings, workers: int) -> dict[str, str]:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": "python -m discretegrad_lab.tasks.vae.study",
        "date": datetime.date.today().isoformat(),
        "discretegrad": f"{discretegrad.__version__}, commit {commit or 'unknown'}",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "workers": f"{workers}, one thread each",
        "data": f"{len(pixels.train)} training and {len(pixels.test)} test images",
        "estimator": TRAINED_WITH.estimator,
        "steps": str(settings.steps),
        "draws": str(settings.draws),
        "seeds": str(settings.seeds),
        "evaluated": f"the first {settings.evaluated} images of each part",
    }
