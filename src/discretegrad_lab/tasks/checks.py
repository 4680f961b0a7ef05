"""What recipes cannot have: mistakes that would otherwise show after the training."""

import dataclasses
import difflib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Recipe

_SEVERAL = (
    "seeds", "estimators", "metrics", "choices", "data", "panels", "rows", "variants", "claims",
    "against", "traced",
)  # fmt: skip


def check_recipe(recipe: "Recipe") -> None:
    """Refuse a name that no folder has, a text in place of several, and names of nothing."""
    name, task = recipe.name, recipe.task
    if not is_plain_name(name):
        raise ValueError(
            f"expected a name of a recipe that a folder can have, got {name!r}; leave out slashes, "
            "backslashes and colons"
        )
    for part in _SEVERAL:
        check_several(f"{part} of {name}", getattr(recipe, part))
    metrics = [metric.name for metric in task.metrics]
    # documents call the field own_line so
    fields = [x.name for x in dataclasses.fields(task.config) if x.name != "own_line"] + ["line"]
    for part in ("panels", "rows", "variants"):
        _check_known(f"{part} of {name}", getattr(recipe, part), fields)
    if recipe.halving is not None:
        _check_known(f"fields that halving of {name} is over", recipe.halving.fields, fields)
    _check_known(f"metrics of {name}", recipe.metrics, metrics)
    _check_known(f"published of {name}", recipe.published, metrics)
    _check_known(f"over of {name}", [recipe.over] if recipe.over else [], metrics)
    _check_known(f"claims of {name}", recipe.claims, task.claims)
    _check_known(f"against of {name}", recipe.against, recipe.choosable())


def check_several(what: str, values: object) -> None:
    """Refuse a single value where several belong, such as a text in brackets without a comma."""
    if isinstance(values, str) or not isinstance(values, Collection):
        raise ValueError(f"expected several {what}, got {values!r}; write ({values!r},) for one")


def is_plain_name(text: Any) -> bool:
    """Whether a text can be the name of something in a directory, and leads nowhere else."""
    if not isinstance(text, str) or text in ("", ".", "..") or not text.isprintable():
        return False
    return not set(text) & set("/\\:")


def _check_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), list(known), 1)
            advice = f"did you mean {near[0]}?" if near else "choose one of these"
            raise ValueError(
                f"expected {what} among {', '.join(known) or 'none'}, got {name}; {advice}"
            )
