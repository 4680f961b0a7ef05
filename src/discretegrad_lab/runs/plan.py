"""Which runs are trained together, and what that takes.

Runs that can share a stack and have come equally far are trained together. Some of them may be
further than others, after a kill for instance; those behind catch up first and then join them.
"""

import contextlib
import functools
import gc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..stack.config import Run
from ..tasks import task
from .environment import check_device, device_name, free_memory
from .store import DamagedRun, Store

_SHARE = {"cuda": 0.85, "cpu": 0.5}
"""Of the free memory that a stack may take by its task's own estimate."""


@dataclass(frozen=True)
class StackEstimate:
    """What a stack would take."""

    runs: tuple[Run, ...]
    epoch: int
    """How many are done."""
    bytes: int
    """Of device memory."""
    steps: int
    """Left for every member."""
    seconds: float | None
    """None if no run like these is stored for one of their estimators."""


@dataclass(frozen=True)
class Estimate:
    """What ``execute`` would do."""

    stacks: tuple[StackEstimate, ...]
    done: tuple[Run, ...]
    damaged: Mapping[Run, str]

    @property
    def members(self) -> int:
        """Of all stacks."""
        return sum(len(stack.runs) for stack in self.stacks)

    @property
    def steps(self) -> int:
        """Of all stacks, one after the other."""
        return sum(stack.steps for stack in self.stacks)

    @property
    def bytes(self) -> int:
        """Of the largest stack."""
        return max((stack.bytes for stack in self.stacks), default=0)

    @property
    def seconds(self) -> float | None:
        """Of training, if it is known for every stack."""
        known = [stack.seconds for stack in self.stacks if stack.seconds is not None]
        return sum(known) if len(known) == len(self.stacks) else None


def estimate(
    runs: Iterable[Run],
    store: Store,
    *,
    device: torch.device | str = "cpu",
    largest_stack: int | None = None,
    bytes_per_member: Callable[[Run], int] | None = None,
) -> Estimate:
    """What ``execute`` would do with these arguments; changes nothing."""
    check_largest(largest_stack)
    fit = Fit(check_device(device), largest_stack, bytes_per_member or memory_of)
    pending, done, damaged = look(dict.fromkeys(runs), store)
    paces = _paces({stack_key(run) for run in pending}, store, device_name(fit.device))
    stacks = []
    while pending:
        group = next_group(pending)
        members = group[: fit.count(group)]
        run, epoch = members[0], pending[members[0]]
        left = run.epochs - epoch
        stacks.append(
            StackEstimate(
                tuple(members),
                epoch,
                sum(map(fit.bytes_per_member, members)),
                run.steps_per_epoch * left,
                _seconds(paces, members, left),
            )
        )
        for member in members:
            del pending[member]
    return Estimate(tuple(stacks), tuple(done), damaged)


class Fit:
    """How many runs make a stack."""

    def __init__(
        self, device: torch.device, largest: int | None, bytes_per_member: Callable[[Run], int]
    ) -> None:
        self.device, self.bytes_per_member = device, bytes_per_member
        self._largest = min(largest or _most_claims(), _most_claims())
        self._known: dict[tuple[Any, ...], int] = {}

    def count(self, group: Sequence[Run]) -> int:
        """The members of the next stack of a group, such that all its stacks are about equal."""
        most = group[: min(self._largest, self._known.get(stack_key(group[0]), len(group)))]
        fitting = self._fitting(most)
        if fitting < len(most) or self._known:
            # memory of the previous stack may not be freed yet
            _free(self.device)
            fitting = self._fitting(most)
        stacks = math.ceil(len(group) / fitting)
        return math.ceil(len(group) / stacks)

    def _fitting(self, group: Sequence[Run]) -> int:
        memory = free_memory(self.device) * _SHARE[self.device.type]
        for number, run in enumerate(group):
            memory -= self.bytes_per_member(run)
            if memory < 0:
                return max(number, 1)
        return len(group)

    def halve(self, runs: Sequence[Run]) -> None:
        """Remember that so many did not fit after all."""
        self._known[stack_key(runs[0])] = len(runs) // 2


def look(
    runs: Iterable[Run], store: Store
) -> tuple[dict[Run, int], dict[Run, None], dict[Run, str]]:
    """Runs to train with the epochs they have done, those that are done, those with damage."""
    pending: dict[Run, int] = {}
    done: dict[Run, None] = {}
    damaged: dict[Run, str] = {}
    for run in runs:
        status = store.status(run)
        if status.state == "damaged":
            damaged[run] = status.reason
        elif status.done:
            done[run] = None
        else:
            pending[run] = status.epoch
    return pending, done, damaged


@functools.lru_cache(1 << 16)
def stack_key(run: Run) -> tuple[Any, ...]:
    """``Run.stack_key``, which plans ask for again and again."""
    return run.stack_key


def next_group(pending: Mapping[Run, int]) -> list[Run]:
    """Runs that can be trained together; those behind first."""
    first = stack_key(next(iter(pending)))
    same = {run: epoch for run, epoch in pending.items() if stack_key(run) == first}
    epoch = min(same.values())
    group = [run for run, done in same.items() if done == epoch]
    group.sort(key=lambda run: (run.estimator, run.tau, run.identity))
    return group


_Paces = dict[tuple[tuple[Any, ...], str], tuple[int, float]]
"""Members and seconds of an epoch, by the key of a stack and an estimator."""


def _paces(keys: set[tuple[Any, ...]], store: Store, device: str) -> _Paces:
    """Those of the largest stored stacks with an estimator on a device."""
    paces: _Paces = {}
    for run in store.runs(damaged=[]):
        if stack_key(run) not in keys:
            continue
        status = store.status(run, quick=True)
        if not status.epoch or status.state == "damaged":
            continue
        with contextlib.suppress(DamagedRun):
            starts = store.environment(run)
            if {start.get("device") for start in starts} == {device}:
                members = max(start.get("members", 1) for start in starts)
                pace = (members, status.seconds / status.epoch)
                # of equal ones the slowest, so that all estimators in both name the same one
                key = (stack_key(run), run.estimator)
                paces[key] = max(paces.get(key, pace), pace)
    return paces


def _seconds(paces: _Paces, members: Sequence[Run], epochs: int) -> float | None:
    """Of so many epochs; a larger stack takes longer, a smaller one hardly less."""
    try:
        # what was trained together has one pace, which counts once
        stored = Counter(paces[stack_key(run), run.estimator] for run in members)
    except KeyError:
        return None
    each = (seconds * max(1.0, count / of) for (of, seconds), count in stored.items())
    return epochs * sum(each)


def _most_claims() -> int:
    """Runs that one process can claim, which takes an open file each."""
    try:
        import resource
    except ImportError:
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(soft // 2, 1)


def _free(device: torch.device) -> None:
    """Give memory back that nothing needs any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def memory_of(run: Run) -> int:
    """Device memory of a member, by its task's own guess."""
    return task(run.task).memory(run)


def check_largest(value: int | None) -> None:
    """Refuse what is no number of members."""
    if value is not None and not (isinstance(value, int) and value > 0):
        raise ValueError(f"expected a positive whole number as largest_stack, got {value!r}")
