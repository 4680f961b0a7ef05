"""How many runs make a stack, and what their stacks would take."""

import contextlib
import gc
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..stack.config import Run
from ..tasks import task
from .environment import check_device, device_name, free_memory
from .pending import end_of, look
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
    dropped: tuple[Run, ...] = ()
    """Ended at a rung of a search."""

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
    until: int | None = None,
) -> Estimate:
    """What ``execute`` would do with these arguments; changes nothing."""
    check_largest(largest_stack)
    place = check_device(device)
    fit = Fit(place, largest_stack, bytes_per_member or memory_of, free_memory(place))
    _, pending, done, damaged = look(runs, store, until)
    paces = _paces({run.stack_key for run in pending}, store, device_name(place))
    stacks = []
    while pending:
        group = pending.group()
        members = tuple(itertools.islice(group, fit.count(group)))
        run, epoch = members[0], pending[members[0]]
        left = end_of(run, until) - epoch
        stacks.append(
            StackEstimate(
                members,
                epoch,
                sum(map(fit.bytes_per_member, members)),
                run.steps_per_epoch * left,
                _seconds(paces, members, left),
            )
        )
        for member in members:
            del pending[member]
    return Estimate(tuple(stacks), tuple(done), damaged)


def estimate_side_by_side(
    runs: Iterable[Run],
    store: Store,
    workers: int,
    *,
    device: torch.device | str = "cpu",
    largest_stack: int | None = None,
    sharing: int = 1,
    until: int | None = None,
) -> Estimate:
    """What so many workers would do that train stacks side by side; changes nothing.

    The bytes of a stack are those that ``sharing`` of its size take, which share the device.
    """

    def cut(part: Iterable[Run], largest: int | None) -> Estimate:
        return estimate(
            part,
            store,
            device=device,
            largest_stack=largest,
            bytes_per_member=lambda run: sharing * memory_of(run),
            until=until,
        )

    first, again = itertools.tee(runs)
    whole = cut(first, largest_stack)
    if 0 < len(whole.stacks) < workers:
        # one round of stacks for all workers
        share = math.ceil(whole.members / workers)
        return cut(again, min(share, largest_stack or share))
    return whole


class Fit:
    """How many runs make a stack.

    Args:
        device: Where they are trained.
        largest: The most members, if there is such a number.
        bytes_per_member: Device memory of one member.
        memory: Bytes to plan with; by default what is free whenever a stack is about to be made.
    """

    def __init__(
        self,
        device: torch.device,
        largest: int | None,
        bytes_per_member: Callable[[Run], int],
        memory: int | None = None,
    ) -> None:
        self.device, self.bytes_per_member, self._memory = device, bytes_per_member, memory
        self._largest = min(largest or _most_claims(), _most_claims())
        self._known: dict[tuple[Any, ...], int] = {}

    def count(self, group: Collection[Run]) -> int:
        """The members of the next stack of a group, such that all its stacks are about equal."""
        key = next(iter(group)).stack_key
        most = min(self._largest, self._known.get(key, len(group)), len(group))
        fitting = self._fitting(itertools.islice(group, most))
        if self._memory is None and (fitting < most or self._known):
            # memory of the previous stack may not be freed yet
            _free(self.device)
            fitting = self._fitting(itertools.islice(group, most))
        stacks = math.ceil(len(group) / fitting)
        return math.ceil(len(group) / stacks)

    def _fitting(self, runs: Iterable[Run]) -> int:
        """How many of them memory has room for, one at least."""
        free = free_memory(self.device) if self._memory is None else self._memory
        memory = free * _SHARE[self.device.type]
        number = 0
        for run in runs:
            memory -= self.bytes_per_member(run)
            if memory < 0:
                break
            number += 1
        return max(number, 1)

    def halve(self, runs: Sequence[Run]) -> None:
        """Remember that so many did not fit after all."""
        self._known[runs[0].stack_key] = len(runs) // 2


_Paces = dict[tuple[tuple[Any, ...], str], tuple[int, float]]
"""Members and seconds of an epoch, by the key of a stack and an estimator."""


def _paces(keys: set[tuple[Any, ...]], store: Store, device: str) -> _Paces:
    """Those of the largest stored stacks with an estimator on a device."""
    paces: _Paces = {}
    for run in store.runs(damaged=[]):
        if run.stack_key not in keys:
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
                key = (run.stack_key, run.estimator)
                paces[key] = max(paces.get(key, pace), pace)
    return paces


def _seconds(paces: _Paces, members: Sequence[Run], epochs: int) -> float | None:
    """Of so many epochs; a larger stack takes longer, a smaller one hardly less."""
    try:
        # what was trained together has one pace, which counts once
        stored = Counter(paces[run.stack_key, run.estimator] for run in members)
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
