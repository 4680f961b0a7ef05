"""Train many small models at once and compare estimators; open to estimators and tasks of yours.

A ``Run`` is a configuration, a ``Recipe`` a list of runs and how they are read. ``execute`` trains
what a ``Store`` does not have yet, ``write_report`` writes tables and a page. What a user adds is a
``Line`` (an estimator), a ``Task`` (a problem) or a ``Recipe`` (a sweep), in a file of their own.

Names are imported when they are first used, since torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report.folder import write_report
    from .runs.execute import execute, stack_of_task
    from .runs.listener import Listener, Outcome
    from .runs.measure import measure
    from .runs.options import StackOptions
    from .runs.plan import estimate
    from .runs.search import search
    from .runs.store import Saved, Status, Store
    from .stack.config import Run
    from .stack.layers import Linear, generators, mlp
    from .stack.lines import LINES, Line
    from .stack.model import Group, Model
    from .stack.noise import Noise
    from .stack.sampler import Sampler
    from .stack.schedules import Schedule
    from .stack.trainer import Stack
    from .tasks import load_recipes, recipe, recipes, task
    from .tasks.base import Measures, Metric, Recipe, Task
    from .tasks.halving import Halving, Rung

__all__ = [
    "LINES", "Group", "Halving", "Line", "Linear", "Listener", "Measures", "Metric", "Model",
    "Noise", "Outcome", "Recipe", "Run", "Rung", "Sampler", "Saved", "Schedule", "Stack",
    "StackOptions", "Status", "Store", "Task",
    "estimate", "execute", "generators", "load_recipes", "measure", "mlp", "recipe", "recipes",
    "search", "stack_of_task", "task", "write_report",
]  # fmt: skip

_MODULES = {
    ".report.folder": ("write_report",),
    ".runs.execute": ("execute", "stack_of_task"),
    ".runs.listener": ("Listener", "Outcome"),
    ".runs.measure": ("measure",),
    ".runs.options": ("StackOptions",),
    ".runs.plan": ("estimate",),
    ".runs.search": ("search",),
    ".runs.store": ("Saved", "Status", "Store"),
    ".stack.config": ("Run",),
    ".stack.layers": ("Linear", "generators", "mlp"),
    ".stack.lines": ("LINES", "Line"),
    ".stack.model": ("Group", "Model"),
    ".stack.noise": ("Noise",),
    ".stack.sampler": ("Sampler",),
    ".stack.schedules": ("Schedule",),
    ".stack.trainer": ("Stack",),
    ".tasks": ("load_recipes", "recipe", "recipes", "task"),
    ".tasks.base": ("Measures", "Metric", "Recipe", "Task"),
    ".tasks.halving": ("Halving", "Rung"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name], __name__), name)
