"""Which estimators are measured: from what a user may write to one form."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from .._checks import check_count
from .._row import Estimator
from ..expectation import check_partial, make_object
from ..registry import ESTIMATORS, EstimatorLike, find_row
from .problem import NAME, Problem

Candidate: TypeAlias = EstimatorLike | tuple[EstimatorLike, Mapping[str, Any]]
Candidates: TypeAlias = Sequence[Candidate] | Mapping[str, Candidate]


class Entry(NamedTuple):
    """One estimator to measure."""

    label: str
    name: str
    estimator: EstimatorLike
    options: dict[str, Any]
    num_samples: int
    row: Estimator | None
    """What is said about it, if it has a row."""

    def fresh(self, *, learn: bool) -> "Entry":
        """The same with copies of all modules, in evaluation mode."""
        options = {key: _fresh(value, learn) for key, value in self.options.items()}
        return self._replace(estimator=_fresh(self.estimator, learn), options=options)


def _fresh(value: Any, learn: bool) -> Any:
    if not isinstance(value, nn.Module):
        return value
    value = copy.deepcopy(value).eval()
    return value if learn else value.requires_grad_(False)


def make_entries(
    problem: Problem, estimators: Candidates | None, num_samples: int | None
) -> list[Entry]:
    """What a user asked for, each with a label of its own."""
    if estimators is None:
        estimators = [
            row
            for row in ESTIMATORS.values()
            if row.works_on(problem.family) and row.name != "exact" and not _needs_control(row)
        ]
    _check_estimators(estimators)
    if isinstance(estimators, Mapping):
        return [
            make_entry(problem, candidate, num_samples)._replace(label=str(label))
            for label, candidate in estimators.items()
        ]
    entries: list[Entry] = []
    for candidate in estimators:
        entry = make_entry(problem, candidate, num_samples)
        alike = sum(other.label.split(" #")[0] == entry.label for other in entries)
        entries.append(
            entry._replace(label=f"{entry.label} #{alike + 1}" if alike else entry.label)
        )
    return entries


def make_entry(problem: Problem, candidate: Any, num_samples: int | None) -> Entry:
    """A name, a row, a function or an object, perhaps in a pair with options."""
    is_pair = isinstance(candidate, tuple) and len(candidate) == 2
    estimator, options = candidate if is_pair else (candidate, {})
    _check_candidate(estimator, options)
    options = dict(options)
    row = _row_of(estimator)
    name = estimator if isinstance(estimator, str) else name_of(estimator)
    fewest = row.min_samples if row else 1
    wanted = (options.pop("num_samples", None), num_samples, fewest)
    samples: int = next(count for count in wanted if count is not None)
    check_count(NAME, "num_samples", samples)
    words = [name, *(f"{key}={plain(value)}" for key, value in options.items())]
    if samples > 1:
        words.append(f"K={samples}")
    if problem.mask is not None:
        options.setdefault("mask", problem.mask)
    estimator = _with_control(problem, estimator, row, options)
    return Entry(" ".join(words), name, estimator, options, samples, row)


def _needs_control(row: Estimator) -> bool:
    """Whether it works only with a control variate, which has to be made first."""
    return row.module is not None and "control" in row.options


def _with_control(
    problem: Problem, estimator: EstimatorLike, row: Estimator | None, options: Mapping[str, Any]
) -> EstimatorLike:
    """The estimator, or a new object in its place if it lacks its control variate.

    The object has learned nothing; its network starts from a fixed seed, so that a diagnosis does
    not depend on others.
    """
    if row is None or isinstance(estimator, nn.Module) or "control" in options:
        return estimator
    if not _needs_control(row):
        return estimator
    device = problem.logits.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return make_object(row, problem.logits, problem.f, problem.family, problem.mask)


def _row_of(estimator: EstimatorLike) -> Estimator | None:
    """The row of a name, a row, a function or an object, if there is one."""
    if isinstance(estimator, nn.Module):
        return next((row for row in ESTIMATORS.values() if type(estimator) is row.module), None)
    return find_row(estimator)


def name_of(thing: object) -> str:
    """The name of a row, a function or an object."""
    if isinstance(thing, Estimator):
        return thing.name
    name = getattr(thing, "__name__", None)
    return name if isinstance(name, str) else type(thing).__name__


def plain(value: object) -> object:
    """A number or a word as it is, anything else as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else f"tensor{tuple(value.shape)}"
    return name_of(value)


def _check_estimators(estimators: object) -> None:
    if isinstance(estimators, str) or not isinstance(estimators, (Sequence, Mapping)):
        raise TypeError(
            f"{NAME}: expected estimators to be a list of names and objects, or a mapping from "
            f"labels to them, got {estimators!r}. Put a single one into a list."
        )
    if not estimators:
        raise ValueError(
            f"{NAME}: expected at least one estimator, got none. Leave estimators out to measure "
            "all that are registered."
        )


def _check_candidate(estimator: object, options: object) -> None:
    if not isinstance(estimator, (str, Estimator, Callable)):  # type: ignore[arg-type]
        raise TypeError(
            f"{NAME}: expected an estimator to be a name, a registry row, a function or object "
            f"that can be called, or a pair of such with a dictionary of options, got "
            f'{estimator!r}. To give options to a single estimator, write [("reinmax", '
            '{"tau": 1.3})].'
        )
    if not isinstance(options, Mapping):
        raise TypeError(
            f"{NAME}: expected the options of an estimator as a dictionary, got {options!r}"
        )
    bound = estimator.keywords if isinstance(estimator, partial) else {}
    if "given" in {*options, *bound}:
        raise ValueError(
            f"{NAME}: expected options without given, because every estimate draws new samples; "
            "leave given out"
        )
    if isinstance(estimator, partial):
        check_partial(NAME, estimator)
