"""What a task says about itself: its runs, its model, its metrics, and how its results read."""

import csv
import dataclasses
import difflib
import itertools
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..stack.config import Run
from ..stack.lines import LINES, Line
from ..stack.model import Group, Model
from .checks import check_recipe
from .evidence import FIELDS_TAKEN, MEASURES_TAKEN, NEAR, Judgement, Results, is_taken
from .halving import Halving, Rung
from .tables import Cell, Table

if TYPE_CHECKING:
    from .chosen import Choice

__all__ = [
    "Build", "Cell", "Claim", "Cost", "Exhibit", "Group", "Halving", "Line", "Measures", "Metric",
    "Model", "Picture", "Recipe", "Run", "Rung", "Table", "Task", "field_values", "read_claims",
    "read_rows",
]  # fmt: skip


_ROUNDING = 1e-5


@dataclass(frozen=True)
class Metric:
    """A number that is measured after epochs."""

    name: str
    """As models return it."""
    label: str
    """As tables and axes show it."""
    digits: int = 4
    """After the point, in tables."""
    direction: Literal["down", "up"] = "down"
    """Whether less is better, as for a loss, or more, as for an accuracy."""
    optimum: Callable[[Mapping[str, Any]], float] | None = None
    """The best value there is for a configuration, if that is known."""
    useless: float | None = None
    """What a model has that has learned nothing about its data, if that is known."""
    minor: bool = False
    """Whether it has no table and no figure of its own, but a column beside other metrics."""
    references: tuple[tuple[str, float], ...] = ()
    """Names and values of constants that figures show as lines beside the curves."""

    def failed(self, first: float, last: float, config: Mapping[str, Any]) -> bool:
        """Whether a run failed to train, by its value after the first epoch and at the end.

        It did if the value has become worse, or is no better than that of a useless model. If it
        has not changed, it did too where the optimum is known and is not near: such a run is stuck.
        Changes in the sixth digit are none.
        """
        if not (math.isfinite(first) and math.isfinite(last)):
            return False
        sign = 1 if self.direction == "down" else -1
        if self.useless is not None and sign * (last - self.useless) >= 0:
            return True
        change, rounding = sign * (last - first), _ROUNDING * abs(first)
        if self.optimum is None or change > rounding:
            return change > rounding
        best = self.optimum(config)
        return change >= -rounding and abs(last - best) > NEAR * abs(best)


@dataclass(frozen=True)
class Claim:
    """A published sentence, and how to hold it against results."""

    name: str
    section: str
    place: str
    """The figure or table it speaks of."""
    text: str
    judge: Callable[[Results], Judgement]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def read_claims(
    path: Path, judges: Mapping[str, Callable[[Results], Judgement]]
) -> dict[str, Claim]:
    """The claims of a CSV file with the columns name, section, place and text."""
    return {row["name"]: Claim(**row, judge=judges[row["name"]]) for row in read_rows(path)}


@dataclass(frozen=True)
class Picture:
    """Images that trained models make."""

    name: str
    """Of the file, without its ending."""
    draw: Callable[
        [Sequence[Run], Callable[[Run], Mapping[str, Tensor]], Path | None],
        list[tuple[str, Tensor]],
    ]
    """From finished runs, what gives the stored state of each, and the directory of the data
    sets: rows with a label and (images, height, width) in [0, 1]."""


@dataclass(frozen=True)
class Measures:
    """What finished models are measured by, beyond the metrics that training records."""

    metrics: tuple[Metric, ...]
    measure: Callable[[Any], Mapping[str, Tensor]]
    """From the stacked model of some runs, with their stored weights: each metric by name,
    (members,). Nothing of a member may depend on others."""
    memory: Callable[[Any], int]
    """An upper guess of the bytes of device memory that one more member takes."""
    note: str = ""
    """What the numbers mean, for the caption of their table."""


@dataclass(frozen=True)
class Exhibit:
    """A part of a report that only a task knows how to make: a table, or a drawing."""

    title: str
    caption: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """The first cell names the row."""
    notes: tuple[str, ...] = ()
    drawing: str = ""
    """An SVG element, which the page shows; then there is no table."""
    file: str = ""
    """The name of the file that the drawing is written to beside the report."""


@dataclass(frozen=True)
class Cost:
    """What all runs of a recipe took when they were last trained."""

    seconds: float
    device: Literal["cpu", "cuda"]
    where: str
    """Such as "an H200"."""
    of: str | None = None
    """The recipe that has these runs among its own; the time is that of all of those."""


@dataclass(frozen=True)
class Task:
    """A problem to train on. It is known by its name as soon as it is made.

    Its folder, or a file of a user, is the only place that has its name.
    """

    config: type[Run]
    model: Callable[[Sequence[Any], torch.device, Path | None], Model]
    """From the runs of a stack, the device and the directory of the data sets."""
    metrics: tuple[Metric, ...]
    memory: Callable[[Any], int]
    """An upper guess of the bytes of device memory that one more member takes."""
    words: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    """How values of fields of the configuration read, where not as "field value"."""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    measures: Measures | None = None
    """What `discretegrad measure` finds out about finished runs."""
    unshown: frozenset[str] = frozenset()
    """Names of what models measure that is kept for ``exhibits`` of recipes, but neither shown
    while they train nor in the table of what finished models were measured by."""

    def __post_init__(self) -> None:
        present = TASKS.get(self.name)
        if present is not None and present.config.__module__ != self.config.__module__:
            raise ValueError(
                f"expected a new name for a task, got {self.name!r}, which "
                f"{present.config.__module__} has already"
            )
        measured = self.measures.metrics if self.measures else ()
        for names, taken in (
            ([x.name for x in dataclasses.fields(self.config)], FIELDS_TAKEN),
            ([metric.name for metric in measured], MEASURES_TAKEN),
        ):
            wrong = [name for name in names if is_taken(name, taken)]
            if wrong:
                raise ValueError(
                    f"expected names for fields and measures of {self.name} that results do not "
                    f"have for something else ({', '.join(taken)}), got {', '.join(wrong)}; call "
                    "them otherwise"
                )
        TASKS[self.name] = self

    @property
    def name(self) -> str:
        """Of the task, and of the folder of its stored runs."""
        return self.config.task

    def metric(self, name: str) -> Metric:
        """The metric of a name."""
        return next(metric for metric in self.metrics if metric.name == name)

    def failed(self, run: Run, rows: Sequence[Mapping[str, float]]) -> bool:
        """Whether a run failed to train, by its first metric after each epoch."""
        metric = self.metrics[0]
        values = [row[metric.name] for row in rows if math.isfinite(row.get(metric.name, math.nan))]
        return len(values) > 1 and metric.failed(values[0], values[-1], run.document())


TASKS: dict[str, Task] = {}
"""Those whose modules have been imported; ``tasks.task`` and ``tasks.tasks`` know all."""

Build = Callable[[Any, int], Iterator[Run]]


@dataclass(frozen=True)
class Recipe:
    """An experiment: its runs, and how its results are to be read."""

    name: str
    title: str
    task: Task
    build: Build
    """The runs of an estimator, which is a key or a line, and a seed."""
    seeds: tuple[int, ...]
    estimators: tuple[str | Line, ...]
    metrics: tuple[str, ...]
    """Names of those of the task that the report is about."""
    choices: tuple[str | Line, ...] = ()
    """Estimators that can be asked for; by default all that the paper names, and ``estimators``."""
    reproduces: str = ""
    """Which figure or table."""
    cost: Cost | None = None
    data: tuple[str, ...] = ()
    """Names of data sets, see ``discretegrad_lab.tasks.data``."""
    panels: tuple[str, ...] = ()
    """Fields of a run: there is a table for each combination of their values."""
    rows: tuple[str, ...] = ()
    """Fields whose values are the rows of a table, with a column for each estimator; without them
    the estimators are the rows. There is a figure for each row, but one for all values of tau."""
    variants: tuple[str, ...] = ()
    """Fields whose values make several rows, and several lines of a figure, of one estimator."""
    curves: bool = True
    """Whether curves are kept among the results."""
    claims: tuple[str, ...] = ()
    """Names of those of the task that these runs decide."""
    published: Mapping[str, Table] = field(default_factory=dict)
    """By metric."""
    note: str = ""
    """A sentence for the captions of tables."""
    overview: bool = False
    """Whether tables begin with one that has a column for each metric, where estimators are the
    rows."""
    over: str = ""
    """A metric that figures are drawn over, too, besides steps."""
    against: tuple[str, ...] = ()
    """Keys of estimators that tables, where estimators are the rows, compare all others with."""
    halving: Halving | None = None
    """Where runs stop that are worse than others, if this is a search."""
    choice: "Choice | None" = None
    """Where `discretegrad choose` writes which settings are best, if this is a search."""
    by_seed: bool = False
    """Whether all estimators of a seed come before those of the next one, so that whenever training
    stops there are about as many runs of each."""
    traced: tuple[str, ...] = ()
    """Names of further metrics whose curves are kept, for ``exhibits``."""
    exhibits: Callable[[Results], Sequence[Exhibit]] = lambda results: ()
    """Makes further parts of the report."""

    def __post_init__(self) -> None:
        check_recipe(self)
        known = {metric.name for metric in self.task.metrics}
        if self.halving is not None and self.halving.metric not in known:
            raise ValueError(
                f"expected a metric of {self.task.name} ({', '.join(sorted(known))}) to compare "
                f"the candidates of {self.name} by, got {self.halving.metric!r}"
            )
        twice = {key for key in self.keys() if self.keys().count(key) > 1}
        if twice:
            raise ValueError(
                f"expected a key of its own for each estimator of {self.name}, got "
                f"{', '.join(sorted(twice))} twice; give one of the lines another label or key="
            )

    def choosable(self) -> dict[str, str | Line]:
        """Estimators that can be asked for, by key."""
        choices = self.choices or (*LINES, *self.estimators)
        return {x.key if isinstance(x, Line) else x: x for x in choices}

    def keys(self) -> tuple[str, ...]:
        """Of ``estimators``."""
        return tuple(x.key if isinstance(x, Line) else x for x in self.estimators)

    def runs(
        self, seeds: Sequence[int] | None = None, estimators: Sequence[str] | None = None
    ) -> list[Run]:
        """All runs, or those of some seeds and estimators, which are given by their keys."""
        known = self.choosable()
        wanted = tuple(dict.fromkeys(self.keys() if estimators is None else estimators))
        for key in wanted:
            if key not in known:
                raise ValueError(
                    f"expected estimators of {', '.join(known)} for {self.name}, got {key!r}"
                )
        numbers = tuple(self.seeds if seeds is None else dict.fromkeys(seeds))
        if not wanted or not numbers:
            raise ValueError(
                f"expected at least one estimator and one seed for {self.name}, got none; "
                "leave the option out for all of them"
            )
        pairs = [(key, seed) for key in wanted for seed in numbers]
        if self.by_seed:
            pairs = [(key, seed) for seed in numbers for key in wanted]
        return [run for key, seed in pairs for run in self.build(known[key], seed)]

    def changed(self, changes: Mapping[str, Sequence[Any]]) -> "Recipe":
        """This recipe with other values of some fields of its runs, in all combinations.

        Args:
            changes: By field, one or more values, or texts that can be read as such.

        Returns:
            A recipe that is called after the changes. What was published is about other runs, so
            it is left out.

        Raises:
            ValueError: If there is no such field, or a value does not fit it.
        """
        values = {
            name: field_values(self.task.config, name, texts) for name, texts in changes.items()
        }
        combinations = [
            dict(zip(values, x, strict=True)) for x in itertools.product(*values.values())
        ]

        def build(estimator: Any, seed: int) -> Iterator[Run]:
            runs = list(self.build(estimator, seed))
            changed = (dataclasses.replace(run, **x) for run in runs for x in combinations)
            # once each: a recipe may have had several values of a field itself
            yield from dict.fromkeys(changed)

        several = tuple(
            name
            for name, x in values.items()
            if len(x) > 1 and name not in (*self.panels, *self.rows, *self.variants)
        )
        texts = {name: ",".join(map(str, x)) for name, x in values.items()}
        return dataclasses.replace(
            self,
            # a folder has the name
            name=re.sub(r"[/\\:]", "-", "@".join([self.name, *map("=".join, texts.items())])),
            title=self.title + "".join(f", {name} = {text}" for name, text in texts.items()),
            reproduces="",
            build=build,
            rows=(*self.rows, *several),
            cost=None,
            claims=(),
            published={},
            exhibits=lambda results: (),
            choice=None,
        )


_NOT_TO_CHANGE = ("estimator", "seed", "own_line")


def field_values(config: type[Run], name: str, texts: Sequence[Any]) -> list[Any]:
    """Values for a field of a configuration, given as such or as texts, each once."""
    types = typing.get_type_hints(config)
    fields = [f.name for f in dataclasses.fields(config) if f.name not in _NOT_TO_CHANGE]
    if name not in fields:
        near = difflib.get_close_matches(name, fields, 1)
        advice = f"did you mean {near[0]}?" if near else "choose one of these"
        if name in _NOT_TO_CHANGE:
            advice = f"choose each {name} of the recipe itself"
        raise ValueError(
            f"expected a field of {config.task} ({', '.join(fields)}), got {name!r}; {advice}"
        )
    if isinstance(texts, str) or not texts:
        raise ValueError(f"expected a list of values for {name}, got {texts!r}")
    return list(dict.fromkeys(_value(types[name], name, text) for text in texts))


def _value(kind: Any, name: str, text: Any) -> Any:
    """A value of a type, given as such or as text."""
    if typing.get_origin(kind) is Literal:
        options = typing.get_args(kind)
        expected = " or ".join(map(str, options))
        matching = [x for x in options if str(x) == str(text)]
        if matching:
            return matching[0]
    elif isinstance(kind, UnionType):
        if str(text).lower() == "none":
            return None
        return _value(next(x for x in typing.get_args(kind) if x is not type(None)), name, text)
    elif kind is bool:
        expected = "true or false"
        if str(text).lower() in ("true", "false"):
            return str(text).lower() == "true"
    elif tuple in (kind, typing.get_origin(kind)):
        expected = "a tuple"
        if isinstance(text, tuple):
            return text
    else:
        expected = {int: "a whole number", float: "a number"}.get(kind, "a text")
        try:
            if not (kind is int and isinstance(text, float)):
                return kind(text)
        except (TypeError, ValueError):
            pass
    raise ValueError(f"expected {expected} as {name}, got {text!r}")
