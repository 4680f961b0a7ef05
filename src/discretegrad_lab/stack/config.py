"""What a training run is: a frozen configuration whose hash is its name."""

import dataclasses
import hashlib
import json
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

from .lines import LINES, Line, line, order
from .schedules import Kind, Schedule

# raise it when the same configuration would give other results than before
VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that decides the outcome of a training run on a kind of device, but rounding.

    CPUs and GPUs draw different random numbers. Of a task's own fields those that are ``bool`` or
    ``Literal`` are checked by their types, and whole numbers are that it lists in ``counts``.
    """

    task: ClassVar[str]
    """The name of the task."""
    member_fields: ClassVar[tuple[str, ...]] = (
        "estimator", "line", "tau", "optimiser", "learning_rate", "seed",
        "schedule", "schedule_factor", "schedule_every", "clip_norm",
    )  # fmt: skip
    """What may differ between the members of a stack; all else is the same for them."""
    later_fields: ClassVar[tuple[str, ...]] = (
        "schedule", "schedule_factor", "schedule_every", "clip_norm",
    )  # fmt: skip
    """What runs did not have when the first ones were stored. At its default it is no part of the
    identity, so that those keep theirs."""
    counts: ClassVar[tuple[str, ...]] = ()
    """Fields of a task that are positive whole numbers."""

    estimator: str
    """The key of a line; give a ``Line`` of your own here."""
    tau: float = 1.0
    optimiser: Literal["adam", "radam"] = "adam"
    learning_rate: float = 1e-3
    seed: int = 0
    """Of the initialisation, the order of the data and all samples."""
    epochs: int
    draws: int = 1000
    """Of noise, for each sample of an estimator that has the option ``num_draws``."""
    tf32: bool = False
    """Whether matrix products may round their factors to 10 bits, on GPUs that can."""
    own_line: Line | None = None
    """The line, if it is none of the paper's."""
    schedule: Kind = "constant"
    """Of the learning rate, see ``Schedule``."""
    schedule_factor: float = 0.0
    """What the learning rate is multiplied by at the end, or at each step; positive for the
    schedules exponential and step."""
    schedule_every: int = 1
    """Epochs between the steps of the schedules step and cosine-steps."""
    clip_norm: float | None = None
    """The largest norm of a member's gradient."""

    def __post_init__(self) -> None:
        given: Any = self.estimator
        if isinstance(given, Line):
            own = None if LINES.get(given.key) == given else given
            object.__setattr__(self, "estimator", given.key)
            object.__setattr__(self, "own_line", own)
        elif self.own_line is not None and self.own_line.key != given:
            object.__setattr__(self, "own_line", None)
        if self.own_line is None and self.estimator not in LINES:
            raise ValueError(
                f"expected an estimator of {', '.join(LINES)}, or a Line, got {self.estimator!r}"
            )
        config: Any = type(self)
        for name, values in _choices(config).items():
            value = getattr(self, name)
            if type(value) is not type(values[0]) or value not in values:
                options = " or ".join(map(str, values))
                raise ValueError(f"expected {options} as {name}, got {value!r}")
        positive = ("tau", "learning_rate", "clip_norm")
        for name in positive if self.clip_norm is not None else positive[:2]:
            value = getattr(self, name)
            if not (isinstance(value, float) and math.isfinite(value) and value > 0):
                raise ValueError(f"expected a positive number (float) as {name}, got {value!r}")
        for name in (field.name for field in dataclasses.fields(self)):
            value = getattr(self, name)
            if not _is_finite(value):
                raise ValueError(f"expected a finite number as {name}, got {value!r}")
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**31):
            raise ValueError(f"expected a seed from 0 to 2**31 - 1, got {self.seed!r}")
        for name in ("epochs", "draws", "schedule_every", *self.counts):
            value = getattr(self, name)
            if not (isinstance(value, int) and value > 0):
                raise ValueError(f"expected a positive whole number as {name}, got {value!r}")
        if self.schedule != "constant":
            # refuses a factor that it cannot have
            Schedule(self.schedule, self.schedule_factor, self.schedule_every)

    @property
    def steps_per_epoch(self) -> int:
        """How many updates an epoch has."""
        raise NotImplementedError

    @property
    def line(self) -> Line:
        """Its line of tables and figures, which knows the estimator."""
        return line(self.estimator) if self.own_line is None else self.own_line

    @property
    def rate_schedule(self) -> Schedule:
        """Of the learning rate."""
        if self.schedule == "constant":
            return Schedule()
        every = self.schedule_every * self.steps_per_epoch
        return Schedule(self.schedule, self.schedule_factor, every)

    def document(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        document: dict[str, Any] = {"task": self.task, "version": VERSION}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "own_line":
                if value is not None:
                    document["line"] = value.document()
            elif not (field.name in self.later_fields and value == field.default):
                document[field.name] = value
        return document

    @cached_property
    def identity(self) -> str:
        """The hash of the canonical configuration, 16 hexadecimal digits."""
        canonical = json.dumps(
            self.document(), sort_keys=True, separators=(",", ":"), allow_nan=False
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def needs(self, data_set: str) -> bool:
        """Whether it reads a data set of its recipe: not if it has a choice of data, of which this
        is one, and another was chosen."""
        config: Any = type(self)
        return data_set not in _choices(config).get("data", ()) or vars(self)["data"] == data_set

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """Equal for runs that can be members of one stack."""
        config: Any = type(self)
        return (self.task, *(getattr(self, name) for name in _shared_fields(config)))


def _is_finite(value: Any) -> bool:
    """Whether it has no number that JSON has not."""
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@cache
def _choices(config: type[Run]) -> dict[str, tuple[Any, ...]]:
    """The values of those fields that have few, by their types."""
    types = typing.get_type_hints(config)
    choices = {}
    for field in dataclasses.fields(config):
        if types[field.name] is bool:
            choices[field.name] = (True, False)
        elif typing.get_origin(types[field.name]) is Literal:
            choices[field.name] = typing.get_args(types[field.name])
    return choices


@cache
def _shared_fields(config: type[Run]) -> tuple[str, ...]:
    """Fields that are the same for all members of a stack."""
    # documents call the field own_line so
    names = {field.name: field.name for field in dataclasses.fields(config)} | {"own_line": "line"}
    return tuple(field for field, name in names.items() if name not in config.member_fields)


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Runs with the same line side by side: samplers, then score functions, then exact ones."""
    return sorted(runs, key=lambda run: (order(run.line), run.identity))


def groups(runs: Sequence[Run]) -> list[tuple[Line, slice]]:
    """Which members of a stack have which line; they lie side by side."""
    members_of_lines: list[tuple[Line, slice]] = []
    for number, run in enumerate(runs):
        if members_of_lines and members_of_lines[-1][0] == run.line:
            members_of_lines[-1] = run.line, slice(members_of_lines[-1][1].start, number + 1)
        else:
            members_of_lines.append((run.line, slice(number, number + 1)))
    return members_of_lines
