"""Rungs of a search that ``discretegrad run`` takes from results instead of training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..watch.words import many

if TYPE_CHECKING:
    from ..runs.search import Parts, Results
    from ..stack.config import Run
    from ..tasks.base import Recipe
    from ..tasks.evidence import Row


def read_rungs(results: Path, parts: "Parts") -> "Results":
    """What the folders below ``results`` say of the searches among these recipes.

    Raises:
        ValueError: If none is a search, or a folder has nothing of its search or is damaged.
    """
    searches = [(recipe, runs) for recipe, runs in parts if recipe.halving is not None]
    if not searches:
        names = ", ".join(recipe.name for recipe, _ in parts)
        raise ValueError(
            f"expected a search with --results, whose rungs can be taken from there, got {names}, "
            "where every run is trained to its end; leave --results out"
        )
    return {recipe.name: _rows(results, recipe, runs) for recipe, runs in searches}


def _rows(results: Path, recipe: "Recipe", runs: "Sequence[Run]") -> "Sequence[Row]":
    from ..report.results import RUNS, read
    from ..report.sources import lack

    folder = results / recipe.name
    if problem := lack(folder, RUNS):
        typer.echo(f"discretegrad: {problem}", err=True)
    rows = read(folder).rows
    if not {row.identity for row in rows} & {run.identity for run in runs}:
        got = f"{many(len(rows), 'run')} of other configurations" if rows else "none"
        raise ValueError(
            f"expected results of {recipe.name} in {folder}, got {got}; give the directory that "
            f"its folder {recipe.name} is in, or leave --results out"
        )
    return rows
