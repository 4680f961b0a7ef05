"""How results are to be read: which numbers, in which tables and figures, beside which claims.

Recipes that come with the lab say so themselves. For a recipe of a user, and for stored runs that
belong to none, ``reading.json`` beside the results does.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .. import tasks
from ..runs.files import is_whole, parse
from ..runs.search import goals_of
from ..runs.store import Store
from ..stack.config import Run
from ..stack.lines import LINES
from ..stack.lines import line as line_of
from ..tasks.base import Claim, Exhibit, Metric, Recipe, Table, Task
from ..tasks.evidence import Results, Row, describe
from ..tasks.halving import Goal, Halving, Rung
from .results import configuration
from .sources import CHECKSUMS, read_sources

READING = "reading.json"
TUNED = {"tau": "τ", "optimiser": "optimiser", "learning_rate": "learning rate"}
"""Fields of a run that every table shows, with their headings."""
_TEXTS = ("title", "reproduces", "note", "over")
_TUPLES = ("panels", "rows", "variants", "against")
_SWITCHES = ("curves", "overview")


class Look(NamedTuple):
    """How tables and figures show an estimator."""

    label: str
    colour: str
    dash: str
    has_tau: bool


@dataclass(frozen=True)
class Reading:
    """How the results of one recipe, or of one set of stored runs, are to be read."""

    name: str
    title: str
    metrics: tuple[Metric, ...]
    panels: tuple[str, ...] = ()
    """Fields of a run: there is a table for each combination of their values."""
    rows: tuple[str, ...] = ()
    """Fields whose values are the rows of a table, with a column for each estimator."""
    variants: tuple[str, ...] = ()
    """Fields whose values make several rows, and several lines of a figure, of one estimator."""
    reproduces: str = ""
    note: str = ""
    """A sentence for the captions of tables."""
    against: tuple[str, ...] = ()
    """Keys of estimators that tables compare all others with."""
    overview: bool = False
    """Whether tables begin with one that has a column for each metric."""
    over: str = ""
    """A metric that figures are drawn over, too."""
    curves: bool = True
    """Whether curves are written among the results."""
    claims: tuple[Claim, ...] = ()
    published: Mapping[str, Table] = field(default_factory=dict)
    measures: tuple[Metric, ...] = ()
    """What finished models may have been measured by."""
    measures_note: str = ""
    """What those numbers mean."""
    unshown: frozenset[str] = frozenset()
    """Names of what was measured of finished models that is for ``exhibits`` only."""
    words: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    """How fields of the configuration read."""
    halving: Halving | None = None
    """Where runs were dropped, if it is a search."""
    traced: tuple[str, ...] = ()
    """Names of further metrics whose curves are kept."""
    exhibits: Callable[[Results], Sequence[Exhibit]] = lambda results: ()
    """Makes the parts of a report that only a task can."""
    goals: Callable[[Sequence[Run], Store, Sequence[Row]], Mapping[Run, Goal]] = (
        lambda runs, store, rows: {}
    )
    """How far runs of a search are to be trained, by what a store and results have."""
    runs: Callable[[], Sequence[Run]] = list
    """All runs that there should be, in the order of the tables."""
    outdated: Callable[[Sequence[Row]], list[Row]] = lambda rows: []
    """Finds rows with settings that no run has any more, whatever its seed."""
    varying: bool = False
    """Whether ``rows`` are the fields that vary, whatever these are."""
    looks: Mapping[str, Look] = field(default_factory=dict)
    """Of estimators of users, by key."""
    shipped: bool = False
    """Whether it is that of a recipe that comes with the lab, which needs no ``reading.json``."""

    @property
    def heading(self) -> str:
        """Its title with what it reproduces."""
        return f"{self.title} ({self.reproduces})" if self.reproduces else self.title

    def describe(self, setting: Mapping[str, Any]) -> str:
        """A few fields of a configuration in words."""
        return describe(setting, self.words)

    def label(self, key: str, setting: Mapping[str, Any], shown: Collection[str] = ()) -> str:
        """An estimator with what tells it from others of its name, but for fields that are shown
        beside it."""
        look = self.look(key)
        telling = {
            name: value
            for name, value in setting.items()
            if name not in shown and (name != "tau" or look.has_tau)
        }
        return ", ".join(filter(None, (look.label, self.describe(telling))))

    def look(self, key: str) -> Look:
        """How an estimator is shown."""
        if key in self.looks:
            return self.looks[key]
        line = line_of(key)
        try:
            has_tau = line.has_tau
        except ValueError:
            # an estimator of a user whose file is not loaded
            has_tau = True
        return Look(line.label, line.colour, line.dash, has_tau)

    def to_json(self, keys: Sequence[str]) -> str:
        """What ``of_results`` needs besides the results, which have these estimators."""
        names = (*_TEXTS, *_TUPLES, *_SWITCHES, "measures_note")
        document = {name: getattr(self, name) for name in names}
        document["halving"] = self.halving and {x: getattr(self.halving, x) for x in _HALVING}
        for name in ("metrics", "measures"):
            metrics = getattr(self, name)
            document[name] = [{part: getattr(x, part) for part in _METRIC} for x in metrics]
        looks = {key: self.look(key)._asdict() for key in keys if key not in LINES}
        document["looks"] = looks
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def of_recipe(recipe: Recipe) -> Reading:
    """The reading of a recipe."""
    task = recipe.task
    ours = (x for name in tasks.FOLDERS for x in import_module(f"{tasks.__name__}.{name}").RECIPES)
    same = (
        *("name", *_TEXTS, *_TUPLES, *_SWITCHES),
        *("published", "traced", "exhibits", "halving"),
    )
    return Reading(
        **{name: getattr(recipe, name) for name in same},
        metrics=tuple(task.metric(name) for name in recipe.metrics),
        claims=tuple(task.claims[name] for name in recipe.claims),
        **_of_task(task),
        goals=partial(goals_of, recipe),
        runs=recipe.runs,
        outdated=partial(_outdated, recipe),
        shipped=any(recipe is other for other in ours),
    )


def _outdated(recipe: Recipe, rows: Sequence[Row]) -> list[Row]:
    """Those whose estimator and seed a recipe trains, but not with these settings."""
    seeds: dict[str, dict[Any, None]] = {}
    for row in rows:
        seeds.setdefault(row.config["estimator"], {})[row.config.get("seed")] = None
    known: dict[str, set[str]] = {}
    for key, numbers in seeds.items():
        # one that the recipe has no runs of, or none yet, shares its cells with nobody
        with contextlib.suppress(ValueError):
            known[key] = {run.identity for run in recipe.runs(list(numbers), [key])}
    own = [row for row in rows if row.config["estimator"] in known]
    return [row for row in own if row.identity not in known[row.config["estimator"]]]


def of_results(results: Results, folder: Path) -> Reading:
    """The reading of the results in a folder, which has the name of the recipe."""
    recipe = tasks.recipes().get(results.recipe)
    if recipe is not None:
        return of_recipe(recipe)
    configs = [row.config for row in results.rows]
    try:
        files = read_sources(folder, [READING])
        if not files:
            names = dict.fromkeys(name for row in results.rows for name in row.metrics)
            return of_configs(results.recipe, configs, tuple(names))
        return _parse(results.recipe, configs, parse(files[READING]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"expected {folder / READING} as it was written, got: {error}; put copies of it and of "
            f"{CHECKSUMS} back, or remove both"
        ) from error


def _parse(name: str, configs: Sequence[Mapping[str, Any]], document: Any) -> Reading:
    """What ``Reading.to_json`` wrote, if every field is what it was."""
    if isinstance(document, dict):
        # which files of before do not have
        before = {
            **{"against": [], "variants": [], "measures": [], "measures_note": ""},
            **{"overview": False, "over": "", "halving": None},
        }
        document = {**before, **document}
    fields = _typed(document, _FIELDS)
    task = _task(configs)
    known = {metric.name: metric for metric in task.metrics} if task else {}
    metrics, measures = (
        tuple(Metric(**_typed(metric, _METRIC)) for metric in fields.pop(name))
        for name in ("metrics", "measures")
    )
    looks = {key: Look(**_typed(look, _LOOK)) for key, look in fields.pop("looks").items()}
    for text in _TUPLES:
        fields[text] = tuple(fields[text])
    halving = fields.pop("halving")
    return Reading(
        name=name,
        metrics=tuple(known.get(metric.name, metric) for metric in metrics),
        looks=looks,
        halving=None if halving is None else _halving(halving),
        **{**fields, "measures": measures, **_of_task(task)},
    )


def _halving(document: Any) -> Halving:
    parts = _typed(document, _HALVING)
    rungs = tuple(Rung(*rung) for rung in parts.pop("rungs"))
    return Halving(**{**parts, "fields": tuple(parts["fields"])}, rungs=rungs)


def _of_task(task: Task | None) -> dict[str, Any]:
    """What a reading has from the task, as far as that is known."""
    if task is None:
        return {}
    own: dict[str, Any] = {"words": task.words, "unshown": task.unshown}
    if task.measures is not None:
        own |= {"measures": task.measures.metrics, "measures_note": task.measures.note}
    return own


def _typed(document: Any, kinds: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    if not isinstance(document, dict) or document.keys() != kinds.keys():
        raise ValueError(f"no document with the fields {', '.join(kinds)}")
    for name, is_right in kinds.items():
        if not is_right(document[name]):
            raise ValueError(f"{ascii(document[name])[:60]} as {name}")
    return dict(document)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_style(value: Any) -> bool:
    """Whether it can be a colour or dashes, which stand in the page as they are."""
    return _is_text(value) and re.fullmatch(r"[\w#%(),. -]*", value) is not None


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_rung(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and is_whole(value[0], 1)
        and isinstance(value[1], float)
    )


def _is_setting(value: Any) -> bool:
    scalars = str | int | float | None
    return isinstance(value, dict) and all(isinstance(x, scalars) for x in value.values())


_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_TEXTS, _is_text),
    **dict.fromkeys(_TUPLES, _are_texts),
    **dict.fromkeys(_SWITCHES, _is_switch),
    "metrics": lambda value: isinstance(value, list),
    "measures": lambda value: isinstance(value, list),
    "measures_note": _is_text,
    "looks": lambda value: isinstance(value, dict),
    "halving": lambda value: value is None or isinstance(value, dict),
}
"""What ``reading.json`` has, and what each field may be."""
_METRIC: dict[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "label": _is_text,
    "digits": lambda value: is_whole(value, 0, 20),
    "direction": lambda value: isinstance(value, str) and value in ("down", "up"),
}
_HALVING: dict[str, Callable[[Any], bool]] = {
    "metric": _is_text,
    "fields": _are_texts,
    "rungs": lambda value: isinstance(value, list) and all(map(_is_rung, value)),
    "published": lambda value: isinstance(value, dict) and all(map(_is_setting, value.values())),
}
_LOOK: dict[str, Callable[[Any], bool]] = {
    "label": _is_text,
    "colour": _is_style,
    "dash": _is_style,
    "has_tau": _is_switch,
}


def of_runs(name: str, runs: Sequence[Run]) -> Iterator[tuple[Reading, list[Run]]]:
    """A reading for the stored runs of each task, called after it."""
    places = {key: number for number, key in enumerate(LINES)}
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task]
        own.sort(key=lambda run: (places.get(run.estimator, len(places)), run.estimator, run.seed))
        reading = of_configs(f"{name}-{task}", [configuration(run) for run in own])
        yield dataclasses.replace(reading, runs=own.copy), own


def of_configs(
    name: str, configs: Sequence[Mapping[str, Any]], metrics: Sequence[str] = ()
) -> Reading:
    """The reading of runs of one task that no recipe describes: what varies are the rows."""
    task = _task(configs)
    known = task.metrics if task else tuple(Metric(x, x.replace("_", " ")) for x in metrics)
    return Reading(
        name,
        f"Stored runs of {configs[0]['task']}" if configs else f"Stored runs ({name})",
        known,
        rows=_varying(configs),
        varying=True,
        **_of_task(task),
    )


def _task(configs: Sequence[Mapping[str, Any]]) -> Task | None:
    """The task of runs; None if it is in a file of a user that is not loaded."""
    known = tasks.tasks()
    return known.get(configs[0]["task"]) if configs else None


def _varying(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Fields with several values, but for those that follow from the estimator and the others."""
    names = dict.fromkeys(name for config in configs for name in config)
    values = {name: {config.get(name) for config in configs} for name in names}
    several = [
        name for name in names if len(values[name]) > 1 and name not in ("estimator", "seed")
    ]
    following = (*TUNED, "line")
    others = [name for name in several if name not in following]

    def follows(name: str) -> bool:
        if name not in following:
            return False
        chosen: dict[tuple[Any, ...], set[Any]] = {}
        for config in configs:
            key = tuple(config.get(other) for other in ("estimator", *others))
            chosen.setdefault(key, set()).add(config.get(name))
        return all(len(x) == 1 for x in chosen.values())

    return tuple(name for name in several if not follows(name))
