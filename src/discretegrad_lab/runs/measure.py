"""Measure the models of finished runs, many at once, from what a store has of them.

A task says by what, see ``tasks.base.Measures``. Nothing is written here: whoever asks gets the
numbers of one stack after the other, and keeps them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..stack.config import Run, in_order
from ..tasks import task, tasks
from ..tasks.base import Measures
from .environment import check_device, out_of_memory
from .plan import Fit, check_largest
from .store import DamagedRun, Store

Values = dict[Run, dict[str, float]]
"""Metrics by name, of each run; those without a finite number are left out."""


class MeasuredStack(NamedTuple):
    """What came out of the models that were measured together."""

    values: Values
    damaged: dict[Run, str]
    """Runs whose models cannot be had, with the reason."""


def measures_of(run: Run) -> Measures:
    """By what the models of a run's task are measured.

    Raises:
        ValueError: If the task does not say it.
    """
    measures = task(run.task).measures
    if measures is None:
        known = [name for name, other in tasks().items() if other.measures is not None]
        raise ValueError(
            f"expected runs of a task that measures finished models ({', '.join(known)}), got runs "
            f"of {run.task}; give that task a `Measures`, or choose another recipe"
        )
    return measures


def measure(
    runs: Iterable[Run],
    store: Store,
    *,
    device: torch.device | str = "cpu",
    data: Path | None = None,
    largest_stack: int | None = None,
) -> Iterator[MeasuredStack]:
    """Measure the models of finished runs, as many at once as memory has room for.

    A run has the same numbers alone and with others, up to the rounding of batched products.

    Args:
        runs: Finished ones; those that are not stored, or damaged, are named in what comes out.
        store: Where they are.
        device: Where to compute.
        data: The directory of the data sets.
        largest_stack: Members at most; by default what fits.

    Raises:
        ValueError: If their task measures nothing, or an argument is wrong.
    """
    check_largest(largest_stack)
    place = check_device(device)
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in dict.fromkeys(runs):
        measures_of(run)
        groups.setdefault(run.stack_key, []).append(run)
    fit = Fit(place, largest_stack, lambda run: measures_of(run).memory(run))
    for group in groups.values():
        left = in_order(group)
        while left:
            members = left[: fit.count(left)]
            try:
                measured = _measure_stack(members, store, place, data)
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error) or len(members) < 2:
                    raise
                # the task's guess was too low
                fit.halve(members)
                continue
            left = left[len(members) :]
            yield measured


def _measure_stack(
    runs: Sequence[Run], store: Store, device: torch.device, data: Path | None
) -> MeasuredStack:
    model, damaged = task(runs[0].task).model(runs, device, data), {}
    for member, run in enumerate(runs):
        try:
            model.load_parameters(member, store.load(run).state)
        except DamagedRun as error:
            damaged[run] = str(error)
        except (KeyError, ValueError) as error:
            damaged[run] = f"{store.directory(run)}: {error.args[0]}"
    values: Values = {run: {} for run in runs if run not in damaged}
    if values:
        with torch.no_grad():
            measured = measures_of(runs[0]).measure(model)
        for name, numbers in measured.items():
            for run, number in zip(runs, numbers.tolist(), strict=True):
                if run in values and math.isfinite(number):
                    values[run][name] = number
    return MeasuredStack(values, damaged)
