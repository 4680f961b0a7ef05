"""The command ``discretegrad list``."""

from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..tasks import EXAMPLE
from ..watch.words import duration, many
from . import common
from .selection import Selection

if TYPE_CHECKING:
    from ..stack.config import Run
    from ..tasks.base import Recipe

_SHOWN = 6
"""Values of a field that are named one by one."""


@common.command(
    common.app,
    "list",
    "discretegrad list",
    f"discretegrad list {EXAMPLE}",
    f"discretegrad list {EXAMPLE} --set tau=0.5,1,1.5",
    "discretegrad list my_sweep.py --json",
)
def list_recipes(
    recipes: common.Recipes = None, changes: common.Changes = None, as_json: common.AsJson = False
) -> None:
    """List the experiments: what they reproduce, what they cost and which data they need.

    With names also the fields of their runs, which --set can change.
    """
    from .. import tasks
    from ..watch.json_lines import to_json

    with common.explaining():
        with common.checking_input():
            names = recipes or list(tasks.recipes())
            chosen = Selection(names, changes=changes).find()
            listed = [(recipe, *_runs(recipe)) for recipe in chosen]
        if as_json:
            typer.echo(to_json([_fields(*parts) for parts in listed], indent=1))
            return
        console = Console()
        for recipe, runs, waits in listed:
            data = ", ".join(recipe.data) or "none"
            console.print(
                Text(recipe.name, "bold"),
                Text(f" {'waits for a search' if waits else many(len(runs), 'run')}, data: {data}"),
            )
            lines = [recipe.title]
            lines += [f"Reproduces {recipe.reproduces}."] if recipe.reproduces else []
            lines += [] if waits else [f"{cost_words(recipe, runs)}."]
            if recipes:
                lines.append(f"Estimators: {', '.join(recipe.keys())}.")
                lines += [f"No runs yet: {waits}."] if waits else []
            if recipes and not waits:
                values = values_of(runs)
                texts = (f"{name} {_several(x)}" for name, x in values.items())
                lines.append(f"Fields: {'; '.join(texts)}.")
            for line in lines:
                console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


def _runs(recipe: "Recipe") -> "tuple[list[Run], str]":
    """The runs of a recipe; or none, and why its settings are not known yet."""
    from ..tasks.chosen import NotChosen

    try:
        return recipe.runs(), ""
    except NotChosen as error:
        return [], str(error)


def cost_words(recipe: "Recipe", runs: "list[Run]") -> str:
    """How many runs, how long each is, and what they took when they were last trained."""
    steps = sorted({run.epochs * run.steps_per_epoch for run in runs})
    each = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    text = f"{many(len(runs), 'run')} of {each} steps"
    cost = recipe.cost
    if cost is None:
        return f"{text}, not timed yet"
    if cost.of is not None:
        return f"{text}, all of them runs of {cost.of}"
    return f"{text}, together {duration(cost.seconds)} of {cost.where}"


def _fields(recipe: "Recipe", runs: "list[Run]", waits: str) -> dict[str, Any]:
    cost = recipe.cost
    return {
        "name": recipe.name,
        "title": recipe.title,
        "reproduces": recipe.reproduces,
        "task": recipe.task.name,
        "runs": len(runs),
        "data": recipe.data,
        "estimators": recipe.keys(),
        "seeds": recipe.seeds,
        "metrics": recipe.metrics,
        "fields": values_of(runs) if runs else {},
        "waits": waits,
        "cost": cost
        and {
            "seconds": cost.seconds,
            "device": cost.device,
            "where": cost.where,
            "part_of": cost.of,
        },
    }


def values_of(runs: "list[Run]") -> dict[str, list[Any]]:
    """The values of each field that can be set, in the order of the runs."""
    from dataclasses import fields

    left_out = ("estimator", "seed", "own_line")
    names = [x.name for x in fields(runs[0]) if x.name not in left_out]
    return {name: list(dict.fromkeys(getattr(run, name) for run in runs)) for name in names}


def _several(values: list[Any]) -> str:
    texts = [f"{x:g}" if isinstance(x, float) else str(x).lower() for x in values]
    return ", ".join(texts) if len(texts) <= _SHOWN else f"{texts[0]} ... {texts[-1]}"
