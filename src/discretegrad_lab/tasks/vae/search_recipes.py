"""The search for the settings of Table 8, one for each size, by successive halving."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

from ...stack.lines import Line
from ..base import Build, Recipe, Run
from ..halving import SEARCH_SEEDS, Halving, Rung
from .config import Vae
from .published import COLUMNS, OPTIMISERS, RATES, TEMPERATURES, settings
from .recipes import BEYOND, PAPER, TASK

MORE_TEMPERATURES = {"reinmax": (2.0, 3.0), "st": (2.0, 3.0)}
"""Beyond the paper's grid, whose largest temperature is the best one for these in several sizes."""
RUNGS = (Rung(10), Rung(40))
"""Of 160 epochs: half of the candidates train beyond the first, a quarter to the end."""


def _build(column: str) -> Build:
    categories, latents = map(int, column.split("x"))

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        key = estimator.key if isinstance(estimator, Line) else estimator
        temperatures = (*TEMPERATURES, *MORE_TEMPERATURES.get(key, ()))
        for optimiser, rate, tau in product(OPTIMISERS, RATES, temperatures):
            yield Vae(
                estimator=estimator,
                seed=seed,
                categories=categories,
                latents=latents,
                tau=tau,
                optimiser=optimiser,
                learning_rate=rate,
                tf32=True,
            )

    return build


def _search(column: str) -> Recipe:
    categories, latents = column.split("x")
    fields = ("optimiser", "learning_rate", "tau")
    published = {key: asdict(setting) for key, setting in settings(column).items()}
    return Recipe(
        f"vae-search-{column}",
        f"The search for settings, {categories} categories x {latents} latents",
        TASK,
        _build(column),
        seeds=SEARCH_SEEDS,
        estimators=PAPER,
        choices=(*PAPER, *BEYOND),
        metrics=("train", "test"),
        rows=fields,
        curves=False,
        reproduces=f"the search of Section F.2, column {column} of Table 8",
        data=("mnist",),
        halving=Halving("train", fields, RUNGS, published),
    )


SEARCH_RECIPES = tuple(map(_search, COLUMNS))
