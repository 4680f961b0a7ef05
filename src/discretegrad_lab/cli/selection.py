"""What users write on the command line, as values, and the runs that a command is about.

A ``ValueError`` says what is wrong with what was written.
"""

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runs.store import DamagedRun, Store
    from ..stack.config import Run
    from ..tasks.base import Recipe

_MOST_SEEDS = 100_000
# what a run takes, see ``stack.config``, whose import takes seconds
_LARGEST_SEED = 2**31 - 1
_GOOD_SEEDS = "give a number of seeds such as 5, or seeds such as 0-4,7"


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
        f"expected the name of a recipe, or a Python file, got {name!r}; "
        f"{suggestion(name, known)}`discretegrad list` names all of them"
    )


def _same(value: Any, text: str) -> bool:
    """Whether a field has the value that a text says."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return str(value).lower() == text.lower()


def parse_seeds(text: str) -> list[int]:
    """``5`` as 0 to 4, ``0-4,7`` as it says."""
    if re.fullmatch(r"\d+", text.strip()):
        ranges = [(0, _seed(text.strip()) - 1)]
    else:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        matches = [re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part) for part in parts]
        if not matches or None in matches:
            raise ValueError(f"expected seeds, got {text!r}; {_GOOD_SEEDS}")
        ranges = [(_seed(m[1]), _seed(m[2] or m[1])) for m in matches if m]
    if any(first > last for first, last in ranges):
        raise ValueError(f"expected at least one seed in every part, got {text!r}; {_GOOD_SEEDS}")
    if sum(last - first + 1 for first, last in ranges) > _MOST_SEEDS:
        raise ValueError(f"expected at most {_MOST_SEEDS:,} seeds, got {text!r}; {_GOOD_SEEDS}")
    seeds = [seed for first, last in ranges for seed in range(first, last + 1)]
    return list(dict.fromkeys(seeds))


def _seed(digits: str) -> int:
    # Python refuses to read thousands of digits, in words that are not for users
    long = len(digits) > 20
    if long or int(digits) > _LARGEST_SEED:
        got = f"a number of {len(digits)} digits" if long else digits
        raise ValueError(
            f"expected seeds between 0 and {_LARGEST_SEED} (2**31 - 1), got {got}; {_GOOD_SEEDS}"
        )
    return int(digits)


def parse_estimators(text: str, known: Iterable[str]) -> list[str]:
    """Keys with commas between them; a wrong one gets a suggestion.

    Args:
        text: What the user wrote.
        known: The keys that can be asked for.
    """
    keys = {key.lower(): key for key in known}
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not names:
        raise ValueError(
            f"expected estimators such as reinmax,st, got {text!r}; leave the option out for all"
        )
    for name in names:
        if name not in keys:
            raise ValueError(
                f"expected estimators of {', '.join(keys.values())}, got {name!r}; "
                f"{suggestion(name, (), _names_of_the_library(keys) | keys) or 'choose of these'}"
            )
    return list(dict.fromkeys(keys[name] for name in names))


def _names_of_the_library(keys: Mapping[str, str]) -> dict[str, str]:
    """What the library calls the estimators of the tables, such as straight_through for st."""
    from ..stack.lines import LINES

    rows: dict[str, str] = {}
    for key, line in LINES.items():
        if key in keys:
            rows.setdefault(line.row, key)
            rows.setdefault(line.label.lower(), key)
    return rows


def parse_changes(texts: Sequence[str] | None) -> dict[str, list[str]]:
    """``tau=0.5,1`` as a field with its values; a field that is given twice has all of them."""
    changes: dict[str, list[str]] = {}
    for text in texts or ():
        name, sign, values = text.partition("=")
        parts = [part.strip() for part in values.split(",") if part.strip()]
        if not (name.strip() and sign and parts):
            raise ValueError(
                f"expected a field with values as --set, got {text!r}; give it as tau=0.5,1"
            )
        changes.setdefault(name.strip().replace("-", "_"), []).extend(parts)
    return changes


def parse_time(text: str, option: str = "--budget", *, zero: bool = False) -> float:
    """``90s``, ``9m``, ``1.5h`` or ``1h30m`` in seconds; 0s only if ``zero``."""
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower())
    factors = (3600, 60, 1)
    seconds = (
        sum(float(part or 0) * factor for part, factor in zip(match.groups(), factors, strict=True))
        if match and match.group()
        else math.inf
    )
    if seconds == math.inf or not (seconds or zero):
        raise ValueError(
            f"expected a time as {option}, got {text!r}; give it in seconds, minutes or hours, "
            "such as 90s, 9m or 1h30m"
        )
    return seconds


def find_device(name: str) -> str:
    """A device that this machine has; auto is a GPU if there is one."""
    import torch

    from ..runs.environment import check_device

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(check_device(name))


def suggestion(name: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """The nearest of the known names, as the beginning of a sentence; empty if none is near.

    Args:
        name: What was given.
        known: Names that are right.
        also: Other names for some of them.
    """
    names = {**(also or {}), **{right: right for right in known}}
    nearest = difflib.get_close_matches(name.lower(), list(names), 1, 0.5)
    return f"did you mean {names[nearest[0]]}? " if nearest else ""
