"""The columns of the paper's VAE tables: each is a recipe with the settings of Table 8."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ...stack.lines import Line
from ..base import Build, Cost, Metric, Picture, Recipe, Run, Task
from .claims import CLAIMS
from .config import WORDS, Vae
from .enumerated import make_model, memory
from .gradients import METRICS
from .measures import MEASURES
from .model import draw_prior_samples, draw_reconstructions
from .published import COLUMNS, HEAT_MAP, settings, table

BLIND = 206.03
"""The loss of the best decoder that does not look at its code, in nats: the sum of the entropies of
the pixels of the mean training image. A run that ends there, or above, has collapsed."""
TASK = Task(
    config=Vae,
    model=make_model,
    metrics=(
        Metric("train", "Train \N{MINUS SIGN}ELBO", 2, useless=BLIND),
        Metric("test", "Test \N{MINUS SIGN}ELBO", 2),
        *METRICS,
    ),
    memory=memory,
    words=WORDS,
    claims=CLAIMS,
    pictures=(
        Picture("reconstructions", draw_reconstructions),
        Picture("prior-samples", draw_prior_samples),
    ),
    measures=MEASURES,
)
PAPER = ("stgs", "gr-mck", "gst-1.0", "st", "reinmax")
"""The lines of the paper's tables."""
BEYOND = (
    "gst-p",
    Line("1/n baseline, order 1", "mean_baseline", key="mean-1", order=1, colour="#999933"),
    Line("1/n baseline, order 2", "mean_baseline", key="mean-2", order=2, colour="#117733"),
    Line("Blend 0.5", "blend", weight=0.5, colour="#882255"),
)
"""Lines that the paper's tables do not have. They were not tuned: GST-p has what the paper found
for GST-1.0, the others what it found for ReinMax."""
# how long the runs of a column took together: those of the paper's lines alone on the GPU, the
# others with three columns at once, of which a third is counted
_SECONDS = {
    "8x4": 235.0,
    "4x24": 247.0,
    "8x16": 268.0,
    "16x12": 281.0,
    "64x8": 446.0,
    "10x30": 332.0,
}


def _build(column: str) -> Build:
    """Runs of a column with the settings of Table 8."""
    categories, latents = map(int, column.split("x"))
    chosen = settings(column)

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        key = estimator.key if isinstance(estimator, Line) else estimator
        # a line of a user starts from what was best for ReinMax
        setting = chosen.get("gst-1.0" if key == "gst-p" else key, chosen["reinmax"])
        yield Vae(
            estimator=estimator,
            seed=seed,
            categories=categories,
            latents=latents,
            tau=setting.tau,
            optimiser=setting.optimiser,
            learning_rate=setting.learning_rate,
            tf32=True,
        )

    return build


def tuned(column: str, estimator: Any, seed: int, **changes: Any) -> Vae:
    """A run of a column with the settings of Table 8, but for some changes."""
    (run,) = _build(column)(estimator, seed)
    assert isinstance(run, Vae)
    return dataclasses.replace(run, **changes)


def _column(column: str) -> Recipe:
    categories, latents = column.split("x")
    return Recipe(
        f"vae-{column}",
        f"Categorical VAE on MNIST, {categories} categories x {latents} latents",
        TASK,
        _build(column),
        seeds=tuple(range(10)),
        estimators=(*PAPER, *BEYOND),
        choices=(*PAPER, *BEYOND),
        metrics=("train", "test"),
        reproduces=f"Tables 2 and 9, column {column}",
        cost=Cost(_SECONDS[column], "cuda", "an H200"),
        data=("mnist",),
        claims=("best-train", "best-test", "gst-p"),
        published={"train": table(2, column), "test": table(9, column)},
    )


_COLLAPSE = Recipe(
    "vae-8x4-collapse",
    "Which runs of the small categorical VAE collapse, 8 categories x 4 latents",
    TASK,
    _build("8x4"),
    seeds=tuple(range(100)),
    estimators=PAPER,
    choices=(*PAPER, *BEYOND),
    metrics=("train", "test"),
    data=("mnist",),
    note="The first ten seeds are those of vae-8x4.",
)


_BEGINNING = 20
"""Epochs in which the collapse is decided: none of the 500 runs fell into it after its fourth and
stayed, and all but two of those that left it had done so by the twentieth."""


def _weights_apart(estimator: Any, seed: int) -> Iterator[Run]:
    """Every initial weights with every seed of all else."""
    for weights in range(20):
        yield tuned("8x4", estimator, seed, epochs=_BEGINNING, weights_seed=weights)


def _beginning_at(estimator: Any, seed: int) -> Iterator[Run]:
    for tau in (0.5, 0.7, 1.0, 1.3, 2.0):
        yield tuned("8x4", estimator, seed, epochs=_BEGINNING, tau=tau)


_BEGINNINGS = (
    Recipe(
        "vae-8x4-beginning-weights",
        "Whether initial weights decide which runs collapse, 8 categories x 4 latents",
        TASK,
        _weights_apart,
        seeds=tuple(range(20)),
        # the one that collapses most
        estimators=("st",),
        choices=(*PAPER, *BEYOND),
        metrics=("train", "test"),
        rows=("weights_seed",),
        data=("mnist",),
        note="The seeds of a row are those of the order of the images and of all samples.",
    ),
    Recipe(
        "vae-8x4-beginning-temperatures",
        "Whether the temperature decides which runs collapse, 8 categories x 4 latents",
        TASK,
        _beginning_at,
        seeds=tuple(range(50)),
        estimators=("st", "reinmax"),
        choices=(*PAPER, *BEYOND),
        metrics=("train", "test"),
        rows=("tau",),
        data=("mnist",),
    ),
)


def _temperatures(estimator: Any, seed: int) -> Iterator[Run]:
    """Table 8 but for the temperature, in the four sizes with 2^48 codes."""
    for column in ("4x24", "8x16", "16x12", "64x8"):
        for run in _build(column)(estimator, seed):
            yield from (dataclasses.replace(run, tau=tau) for tau in HEAT_MAP)


_TEMPERATURES = Recipe(
    "vae-temperatures",
    "The temperature of each estimator, in the four VAEs with 2^48 codes",
    TASK,
    _temperatures,
    seeds=(0, 1),
    estimators=PAPER,
    choices=(*PAPER, *BEYOND),
    metrics=("train", "test"),
    panels=("categories", "latents"),
    rows=("tau",),
    curves=False,
    reproduces="Figure 2",
    data=("mnist",),
    claims=("small-tau", "large-tau"),
    note="The paper does not state its optimisers and learning rates: here they are those of "
    "Table 8.",
)


def _precisions(estimator: Any, seed: int) -> Iterator[Run]:
    for tf32 in (True, False):
        yield tuned("8x16", estimator, seed, tf32=tf32)


_PRECISION = Recipe(
    "vae-8x16-precision",
    "Whether TF32 changes where training ends, 8 categories x 16 latents",
    TASK,
    _precisions,
    # none of them trained for the main table
    seeds=tuple(range(10, 30)),
    # the line that ends above the paper there, and one that does not
    estimators=("st", "reinmax"),
    choices=(*PAPER, *BEYOND),
    metrics=("train", "test"),
    rows=("tf32",),
    data=("mnist",),
)
RECIPES = (*map(_column, COLUMNS), _COLLAPSE, *_BEGINNINGS, _TEMPERATURES, _PRECISION)
