"""The columns of the paper's VAE tables: each is a recipe with the settings of Table 8."""

from collections.abc import Iterator
from typing import Any

from ..base import Cost, Metric, Picture, Recipe, Run, Task
from .claims import CLAIMS
from .config import Vae
from .model import VaeModel, draw_reconstructions, memory
from .published import COLUMNS, settings, table

TASK = Task(
    config=Vae,
    model=VaeModel,
    metrics=(
        Metric("train", "Train \N{MINUS SIGN}ELBO", 2),
        Metric("test", "Test \N{MINUS SIGN}ELBO", 2),
    ),
    memory=memory,
    claims=CLAIMS,
    pictures=(Picture("reconstructions", draw_reconstructions),),
)
# how long the runs of a column took together, where they have been trained
_SECONDS = {
    "8x4": 150.0,
    "4x24": 160.0,
    "8x16": 177.0,
    "16x12": 190.0,
    "64x8": 360.0,
    "10x30": 240.0,
}


def _column(column: str) -> Recipe:
    categories, latents = map(int, column.split("x"))
    chosen = settings(column)

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        # a line of a user starts from what was best for ReinMax
        setting = chosen.get(estimator, chosen["reinmax"])
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

    return Recipe(
        f"vae-{column}",
        f"Categorical VAE on MNIST, {categories} categories x {latents} latents",
        TASK,
        build,
        seeds=tuple(range(10)),
        estimators=("stgs", "gr-mck", "gst-1.0", "st", "reinmax"),
        metrics=("train", "test"),
        choices=tuple(chosen),
        reproduces=f"Tables 2 and 9, column {column}",
        cost=Cost(_SECONDS[column], "cuda", "an H200") if column in _SECONDS else None,
        data=("mnist",),
        claims=("best-train", "best-test"),
        published={"train": table(2, column), "test": table(9, column)},
    )


RECIPES = tuple(map(_column, COLUMNS))
