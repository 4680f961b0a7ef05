"""The search for the settings of Table 8, one for each size, by successive halving.

What it finds best, by train and by test, is trained with the seeds of the main table.
"""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from ...stack.lines import Line
from ..base import Build, Recipe, Run
from ..chosen import Choice
from ..halving import SEARCH_SEEDS, Halving, Rung
from .config import Vae
from .published import COLUMNS, OPTIMISERS, RATES, TEMPERATURES, settings, table
from .recipes import BEYOND, PAPER, TASK, tuned

MORE_TEMPERATURES = {"reinmax": (2.0, 3.0), "st": (2.0, 3.0)}
"""Beyond the paper's grid, whose largest temperature is the best one for these in several sizes."""
RUNGS = (Rung(10), Rung(40))
"""Of 160 epochs: half of the candidates train beyond the first, a quarter to the end."""
CHOICE = Choice(
    Vae,
    Path(__file__).with_name("chosen.csv"),
    where=("categories", "latents"),
    fields=("optimiser", "learning_rate", "tau"),
    by=("train", "test"),
)
"""Found by the searches."""
_TABLES = {"train": {"train": 2, "test": 9}, "test": {"train": 11, "test": 10}}
"""The paper's tables of each metric, by what its settings were chosen by."""


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
        rows=CHOICE.fields,
        curves=False,
        reproduces=f"the search of Section F.2, column {column} of Table 8",
        data=("mnist",),
        halving=Halving("train", CHOICE.fields, RUNGS, published),
        choice=CHOICE,
    )


def _chosen(column: str, by: str) -> Recipe:
    """What the search found best by a metric, with the seeds of the main table."""
    categories, latents = map(int, column.split("x"))
    search = f"vae-search-{column}"

    def build(estimator: Any, seed: int) -> Iterator[Run]:
        key = estimator.key if isinstance(estimator, Line) else estimator
        yield tuned(
            column, estimator, seed, **CHOICE.required(search, key, by, categories, latents)
        )

    numbers = _TABLES[by]
    return Recipe(
        f"vae-chosen-by-{by}-{column}",
        f"Settings chosen by {by}, {categories} categories x {latents} latents",
        TASK,
        build,
        seeds=tuple(range(10)),
        estimators=PAPER,
        choices=(*PAPER, *BEYOND),
        metrics=("train", "test"),
        reproduces=f"Tables {numbers['train']} and {numbers['test']}, column {column}, with "
        "settings of a search of our own",
        data=("mnist",),
        published={metric: table(number, column) for metric, number in numbers.items()},
        note=f"Settings: those that {search} found best by {by}, with two other seeds, among the "
        "candidates that its rungs, by train, let train to the end. Where they are the same by "
        f"train and by test, or those of vae-{column}, so are the runs.",
    )


SEARCH_RECIPES = (
    *map(_search, COLUMNS),
    *(_chosen(column, by) for by in CHOICE.by for column in COLUMNS),
)
