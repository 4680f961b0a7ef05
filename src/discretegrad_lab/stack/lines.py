"""Lines of tables and figures: an estimator of the library, or of a user, with options.

``LINES`` are those of the paper. A line of a user is made the same way, of a row of the library
with other options or of a sampler in a file::

    Line("GST-2.0", "gapped", gap=2.0)
    Line("Mine", "path/to/mine.py:my_sampler")
"""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

from torch import Tensor

from discretegrad import ESTIMATORS, Estimator

from .userfiles import digest_of, load_file

Function = Callable[..., Tensor]
Kind = Literal["sampler", "score", "exact"]
_KINDS: tuple[Kind, ...] = ("sampler", "score", "exact")
# for lines of users, one after the other; not those of the paper's lines
_COLOURS = ("#882255", "#117733", "#44AA99", "#332288", "#AA4499", "#999933")
LINES: dict[str, "Line"] = {}
"""Those of the paper, by key."""
_known: dict[str, "Line"] = {}
"""The latest line of each key, for those who know the key only, such as readers of results."""


@dataclass(frozen=True, init=False)
class Line:
    """An estimator with its options, and how tables and figures show it.

    Args:
        label: What tables call it.
        row: A name of ``discretegrad.ESTIMATORS``; ``"path/to/file.py:NAME"``, where NAME is a
            row or a sampler, a function ``(logits, tau, *, given, ...)``; or such an object
            itself, if it is at the top level of a file.
        key: The ``estimator`` of its runs; by default the label in lower case.
        colour: As #rrggbb.
        dash: Lengths of dashes and gaps in pixels, such as "6 3"; empty for a solid line.
        options: Keyword arguments of the estimator.

    The hash of the file is part of the identity of its runs, so that an edited estimator is
    trained again. Files that it imports are not.
    """

    label: str = field(compare=False)
    row: str
    """A name of the library, or file and name without the folder."""
    key: str
    options: tuple[tuple[str, Any], ...]
    source: str
    """The hash of the file; empty for rows of the library."""
    file: Path | None = field(compare=False)
    colour: str = field(compare=False)
    dash: str = field(compare=False)

    def __init__(
        self,
        label: str,
        row: str | Estimator | Function,
        *,
        key: str | None = None,
        colour: str | None = None,
        dash: str = "",
        **options: Any,
    ) -> None:
        if not label.strip():
            raise ValueError(f"expected a label for a line, got {label!r}")
        try:
            json.dumps(options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"expected finite numbers and texts as options of {label}, got {options}; they are "
                "part of the identity of its runs"
            ) from error
        name, file, source = _place(row)
        if file is None and name not in ESTIMATORS:
            raise ValueError(
                f"expected an estimator of {', '.join(ESTIMATORS)}, or path/to/file.py:NAME, "
                f"got {name!r}"
            )
        self._set(
            label=label,
            row=name,
            key=key or label.strip().lower().replace(" ", "-"),
            options=tuple(sorted(options.items())),
            source=source,
            file=file,
            colour=colour or _COLOURS[len(_known) % len(_COLOURS)],
            dash=dash,
        )
        if not isinstance(row, str):
            # as it is, and not from its file once more
            self._set(_object=row)
        if LINES.get(self.key, self) != self:
            raise ValueError(
                f"expected another key than {self.key!r}, which is a line of the paper with other "
                "options; give key= or another label"
            )
        _known[self.key] = self

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def document(self) -> dict[str, Any]:
        """What of it decides the outcome of a run, for a JSON file."""
        return {"row": self.row, "options": dict(self.options), "source": self.source}

    @classmethod
    def stored(cls, key: str, document: dict[str, Any]) -> "Line":
        """The line of a stored run; it can be trained only where its file has been loaded."""
        options = tuple(sorted(document["options"].items()))
        line = object.__new__(cls)
        line._set(key=key, row=document["row"], options=options, source=document["source"])
        line._set(label=key, file=None, colour=_COLOURS[0], dash="")
        return _known[key] if _known.get(key) == line else line

    @cached_property
    def _estimator(self) -> tuple[Kind, Function, frozenset[str]]:
        """What kind it is, how it is called, and the arguments it has besides logits and draw."""
        estimator: Any = self.__dict__.get("_object", ESTIMATORS.get(self.row))
        if estimator is None:
            if self.file is None:
                raise ValueError(
                    f"expected the file of the estimator {self.row}, got a stored run only; load "
                    "the sweep or make the Line that it belongs to first"
                )
            estimator = getattr(load_file(self.file, self.source), self.row.partition(":")[2])
        if isinstance(estimator, FunctionType):
            return "sampler", estimator, frozenset(inspect.signature(estimator).parameters)
        kind: Kind = "exact" if estimator.evaluations is None else estimator.kind
        call = estimator.function
        return kind, call, frozenset(inspect.signature(call).parameters)

    @property
    def kind(self) -> Kind:
        """Whether it makes a sample to differentiate through, needs the loss as a function, or
        evaluates it at every outcome."""
        return self._estimator[0]

    @property
    def function(self) -> Function:
        """A sampler is called as ``function(logits, tau, given=index, ...)``, others as
        ``function(logits, f, given=index, ...)``."""
        return self._estimator[1]

    def takes(self, argument: str) -> bool:
        """Whether its function has an argument of this name."""
        return argument in self._estimator[2]

    @property
    def has_tau(self) -> bool:
        """Whether a temperature matters to it."""
        return self.kind == "sampler" and self.takes("tau")


def _place(row: str | Estimator | Function) -> tuple[str, Path | None, str]:
    """Name, file and hash of an estimator."""
    if isinstance(row, str):
        path, colon, name = row.rpartition(":")
        if not (colon and path.endswith(".py")):
            return row, None, ""
        file = Path(path).expanduser().absolute()
        if not hasattr(load_file(file), name):
            raise ValueError(f"expected {name} in {path}, got a file without it")
        return f"{file.name}:{name}", file, digest_of(file)
    if isinstance(row, Estimator) and ESTIMATORS.get(row.name) is row:
        return row.name, None, ""
    function = row.function if isinstance(row, Estimator) else row
    module = sys.modules.get(function.__module__)
    names = [name for name, value in vars(module).items() if value is row] if module else []
    path = inspect.getsourcefile(function) or ""
    if not (names and Path(path).is_file()):
        raise ValueError(
            f"expected an estimator at the top level of a file, got {row!r}; write it into a file "
            'and give "path/to/file.py:NAME"'
        )
    file = Path(path).absolute()
    return f"{file.name}:{names[0]}", file, digest_of(file)


for _line in (
    # colours that a colour-blind reader can tell apart (Okabe and Ito)
    Line("ReinMax", "reinmax", colour="#0072B2"),
    Line("ST", "straight_through", colour="#D55E00"),
    Line("STGS", "gumbel_softmax", colour="#009E73"),
    Line("GR-MCK", "gumbel_rao", colour="#56B4E9", dash="6 3"),
    Line("GST-1.0", "gapped", gap=1.0, colour="#CC79A7", dash="6 3"),
    Line("GST-p", "gapped", gap="p", colour="#CC79A7"),
    Line("REINFORCE", "reinforce", colour="#E69F00", dash="2 3"),
    Line("RODEO", "rodeo", colour="#E69F00"),
    Line("exact gradient", "exact", key="exact", colour="#888888", dash="2 3"),
):
    LINES[_line.key] = _line
_ORDER = {key: number for number, key in enumerate(LINES)}


def line(key: str) -> Line:
    """The line with a key, also one that is known by its key only."""
    return _known.get(key) or Line.stored(key, {"row": "", "options": {}, "source": ""})


def order(line: Line) -> tuple[Any, ...]:
    """Sorts lines: by kind; those of the paper as there, then those of users."""
    place = _ORDER.get(line.key, len(_ORDER))
    return _KINDS.index(line.kind), place, line.key, line.source, str(line.options)
