"""Train many small models at once and compare estimators; open to estimators and tasks of yours.

A ``Run`` is a configuration, a ``Recipe`` a list of runs and how they are read. ``execute`` trains
what a ``Store`` does not have yet, ``write_report`` writes tables and a page. What a user adds is a
``Line`` (an estimator), a ``Task`` (a problem) or a ``Recipe`` (a sweep), in a file of their own.

Names are imported when they are first used, since torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report.folder import write_report as write_report
    from .runs.execute import execute as execute
    from .runs.execute import stack_of_task as stack_of_task
    from .runs.listener import Listener as Listener
    from .runs.listener import Outcome as Outcome
    from .runs.plan import estimate as estimate
    from .runs.store import Saved as Saved
    from .runs.store import Status as Status
    from .runs.store import Store as Store
    from .stack.config import Run as Run
    from .stack.layers import Linear as Linear
    from .stack.layers import generators as generators
    from .stack.layers import mlp as mlp
    from .stack.lines import LINES as LINES
    from .stack.lines import Line as Line
    from .stack.model import Group as Group
    from .stack.model import Model as Model
    from .stack.noise import Noise as Noise
    from .stack.sampler import Sampler as Sampler
    from .stack.schedules import Schedule as Schedule
    from .stack.trainer import Stack as Stack
    from .tasks import load_recipes as load_recipes
    from .tasks import recipe as recipe
    from .tasks import recipes as recipes
    from .tasks import task as task
    from .tasks.base import Metric as Metric
    from .tasks.base import Recipe as Recipe
    from .tasks.base import Task as Task

_MODULES = {
    ".report.folder": ("write_report",),
    ".runs.execute": ("execute", "stack_of_task"),
    ".runs.listener": ("Listener", "Outcome"),
    ".runs.plan": ("estimate",),
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
    ".tasks.base": ("Metric", "Recipe", "Task"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name], __name__), name)
