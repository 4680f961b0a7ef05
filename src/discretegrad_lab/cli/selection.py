"""Which runs a command is about: recipes, seeds, estimators and changed fields."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import parse_changes, parse_estimators, parse_seeds, suggestion

if TYPE_CHECKING:
    from ..runs.store import DamagedRun, Store
    from ..stack.config import Run
    from ..tasks.base import Recipe


@dataclass(frozen=True)
class Selection:
    """What a user asks for, as it was written."""

    recipes: Sequence[str] = ()
    seeds: str | None = None
    estimators: str | None = None
    changes: Sequence[str] | None = None

    @property
    def filters(self) -> bool:
        """Whether it says more than the names of recipes."""
        return bool(self.seeds is not None or self.estimators is not None or self.changes)

    def find(self) -> "list[Recipe]":
        """The recipes of the names and files, with the changed fields."""
        changes = parse_changes(self.changes)
        recipes = [recipe for name in dict.fromkeys(self.recipes) for recipe in find_recipes(name)]
        return [recipe.changed(changes) for recipe in recipes] if changes else recipes

    def runs(self, recipe: "Recipe") -> "list[Run]":
        """The runs of one of these recipes."""
        keys = None
        if self.estimators is not None:
            keys = parse_estimators(self.estimators, recipe.choosable())
        return recipe.runs(None if self.seeds is None else parse_seeds(self.seeds), keys)

    def stored(self, store: "Store", damaged: list[str]) -> "list[Run]":
        """All stored runs that pass; a field that was set is a condition.

        ``damaged`` takes the reasons why runs cannot be read.
        """
        errors: list[DamagedRun] = []
        runs = list(store.runs(errors))
        damaged += map(str, errors)
        if self.seeds is not None:
            seeds = set(parse_seeds(self.seeds))
            runs = [run for run in runs if run.seed in seeds]
        if self.estimators is not None:
            keys = parse_estimators(self.estimators, dict.fromkeys(run.estimator for run in runs))
            runs = [run for run in runs if run.estimator in keys]
        for name, values in parse_changes(self.changes).items():
            fields = dict.fromkeys(field for run in runs for field in run.document())
            if name not in fields:
                raise ValueError(
                    f"expected a field of the stored runs ({', '.join(fields)}), got {name!r}; "
                    f"{suggestion(name, fields) or 'choose one of these'}"
                )
            runs = [run for run in runs if any(_same(run.document().get(name), x) for x in values)]
        return runs

    def words(self, store: "Store") -> str:
        """What another command needs to be about the same runs."""
        options: list[str] = []
        for name, value in (("--seeds", self.seeds), ("--estimators", self.estimators)):
            options += [] if value is None else [name, value]
        for change in self.changes or ():
            options += ["--set", change]
        if store.root != Path("runs"):
            options += ["--runs", str(store.root)]
        return shlex.join([*self.recipes, *options])


def find_recipes(name: str) -> "list[Recipe]":
    """The recipe of a name, or those of a Python file; a wrong name gets a suggestion."""
    from ..tasks import load_recipes, recipes

    known = recipes()
    if name in known:
        return [known[name]]
    if name.endswith(".py"):
        return load_recipes(Path(name))
    raise ValueError(
        f"expected a recipe of {', '.join(known)}, or a Python file, got {name!r}; "
        f"{suggestion(name, known)}`discretegrad list` describes them"
    )


def _same(value: Any, text: str) -> bool:
    """Whether a field has the value that a text says."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return str(value).lower() == text.lower()
