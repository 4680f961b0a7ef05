"""The tasks that are trained; each is a folder, and the only place that has its name.

This file imports nothing that takes long, since the help of the command line does.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..stack.config import Run
    from .base import Recipe, Task

# a folder each, with TASK and RECIPES
FOLDERS = (
    "polynomial",
    "vae",
    "listops",
    "codebook",
    "experts",
    "nas",
    "bernoulli_vae",
)
COMMANDS = {
    "nas": "Look up what cells reach in the table of NATS-Bench; convert the images of a search."
}
"""Tasks that bring commands of their own, a ``typer.Typer`` called ``app`` in the file
``commands.py`` of the folder, with the help of their group."""

EXAMPLE = "polynomial-headline"
"""A recipe for examples."""
EXAMPLE_SEARCH = "polynomial-temperatures"
"""A recipe for examples that is a search."""
EXAMPLE_DATA = "mnist"
"""A data set for examples."""

_extra: dict[str, "Recipe"] = {}
"""Recipes of users."""
_files: dict[str, Path] = {}
"""The files that recipes of users are of, as they were given."""


class UnknownTask(ValueError):
    """A task that this process has not been told of."""


@cache
def _folder(name: str) -> Any:
    return import_module(f".{name}", __name__)


def tasks() -> dict[str, "Task"]:
    """All tasks by name, those of users after the others."""
    for name in FOLDERS:
        _folder(name)
    from .base import TASKS

    # whatever was imported first
    return {name: TASKS[name] for name in FOLDERS} | TASKS


def task(name: str) -> "Task":
    """The task of a name."""
    known = tasks()
    if name not in known:
        raise UnknownTask(
            f"expected a task of {', '.join(known)}, got {name!r}; load the file that has it first"
        )
    return known[name]


def recipes() -> dict[str, "Recipe"]:
    """All recipes by name, those of users after the others."""
    ours = {recipe.name: recipe for name in FOLDERS for recipe in _folder(name).RECIPES}
    return ours | _extra


def recipe(name: str) -> "Recipe":
    """The recipe of a name."""
    known = recipes()
    if name not in known:
        raise ValueError(f"expected a recipe of {', '.join(known)}, got {name!r}")
    return known[name]


def given_as(name: str) -> str | None:
    """What a command line calls a recipe: its name, or its Python file; None if it is not known."""
    if name in _extra:
        return str(_files[name]) if name in _files else None
    return name if name in recipes() else None


def add_recipe(recipe: "Recipe") -> None:
    """Let a recipe be known by its name in this process."""
    if any(recipe.name == present.name for name in FOLDERS for present in _folder(name).RECIPES):
        raise ValueError(f"expected a new name for a recipe, got {recipe.name!r}; choose another")
    _extra[recipe.name] = recipe


def load_recipes(path: Path) -> "list[Recipe]":
    """The recipes of a user's file, which are known by their names from then on.

    Args:
        path: A Python file that defines ``RECIPE``, or ``RECIPES``, a sequence of them.
    """
    from ..stack.userfiles import load_file
    from .base import Recipe

    names = vars(load_file(path))
    several = names.get("RECIPES", ())
    if not isinstance(several, Iterable):
        raise ValueError(
            f"expected {path} to define RECIPE, a discretegrad_lab.Recipe, or RECIPES, several of "
            "them, got a single one; call it RECIPE"
        )
    loaded = [*several, *(names[x] for x in ("RECIPE",) if x in names)]
    if not loaded or not all(isinstance(recipe, Recipe) for recipe in loaded):
        raise ValueError(
            f"expected {path} to define RECIPE, a discretegrad_lab.Recipe, or RECIPES, several of "
            f"them, got {loaded or 'neither'}"
        )
    # RECIPE may be one of RECIPES
    different = list({id(recipe): recipe for recipe in loaded}.values())
    every = [recipe.name for recipe in different]
    twice = sorted({name for name in every if every.count(name) > 1})
    if twice:
        raise ValueError(
            f"expected a name of its own for each recipe of {path}, got {', '.join(twice)} twice; "
            "call one of them otherwise"
        )
    for recipe in different:
        add_recipe(recipe)
        _files[recipe.name] = path
    return different


def load_run(document: dict[str, Any]) -> "Run":
    """The run that ``Run.document`` described."""
    from ..stack.config import VERSION
    from ..stack.lines import Line

    fields = {key: _as_tuple(value) for key, value in document.items()}
    name, version = fields.pop("task", None), fields.pop("version", None)
    if version != VERSION:
        raise ValueError(
            f"expected a configuration of version {VERSION}, got version {version}; "
            "read it with the discretegrad that wrote it"
        )
    config = task(name).config
    try:
        if "line" in fields:
            fields["own_line"] = Line.stored(fields["estimator"], fields.pop("line"))
        return config(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected a configuration of the task {name}: {error}") from error


def _as_tuple(value: Any) -> Any:
    """A list of JSON as the tuple that it was, since runs are keys of dictionaries."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
