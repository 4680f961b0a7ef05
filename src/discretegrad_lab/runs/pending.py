"""Which runs are left to train, and which of them are trained together.

Runs that can share a stack and have come equally far are trained together. Some of them may be
further than others, after a kill for instance; those behind catch up first and then join them.
"""

import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

from ..stack.config import Run
from .store import DamagedRun, Store


class Group:
    """Runs that can be trained together and have come equally far, in the order to take them.

    Runs may leave while others go through it, and leaving costs the same however many there are.
    """

    def __init__(self) -> None:
        self._members: set[Run] = set()
        self._order: list[Run] | None = None
        """Members, and perhaps runs that have left; None until it is asked for."""
        self._first = 0
        """Before this place of the order all have left."""

    def add(self, run: Run) -> None:
        """Let a run join."""
        self._members.add(run)
        self._order = None

    def discard(self, run: Run) -> None:
        """Let a run leave, if it is here."""
        self._members.discard(run)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, run: object) -> bool:
        return run in self._members

    def __iter__(self) -> Iterator[Run]:
        if self._order is None:
            self._first = 0
            self._order = sorted(self._members, key=lambda x: (x.estimator, x.tau, x.identity))
        order = self._order
        while self._first < len(order) and order[self._first] not in self._members:
            self._first += 1
        # by number, since a slice would be a copy of all that are left
        places = range(self._first, len(order))
        return (order[place] for place in places if order[place] in self._members)


class Pending(MutableMapping[Run, int]):
    """Runs to train with the epochs they have done, sorted into groups.

    A run can be set aside, for instance while another process has it: then it is in no group.
    What one call takes does not grow with the number of runs.
    """

    def __init__(self) -> None:
        self._epochs: dict[Run, int] = {}
        # a plain dict takes the longer to find its first key the more were deleted before it
        self._groups: OrderedDict[tuple[Any, ...], dict[int, Group]] = OrderedDict()
        self.aside: dict[Run, None] = {}
        """Runs that were set aside."""

    def __getitem__(self, run: Run) -> int:
        return self._epochs[run]

    def __setitem__(self, run: Run, epoch: int) -> None:
        before = self._epochs.get(run)
        self._epochs[run] = epoch
        if run not in self.aside:
            # first, so that runs like it keep their turn
            self._groups.setdefault(run.stack_key, {}).setdefault(epoch, Group()).add(run)
        if before not in (None, epoch):
            self._leave(run, before)

    def __delitem__(self, run: Run) -> None:
        self._leave(run, self._epochs.pop(run))
        self.aside.pop(run, None)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._epochs)

    def __len__(self) -> int:
        return len(self._epochs)

    def _leave(self, run: Run, epoch: int) -> None:
        """Take a run out of the group of an epoch, and let go of groups that are empty."""
        key = run.stack_key
        groups = self._groups.get(key, {})
        if epoch in groups:
            groups[epoch].discard(run)
            if not groups[epoch]:
                del groups[epoch]
            if not groups:
                del self._groups[key]

    def set_aside(self, run: Run) -> None:
        """Take a run out of its group until it is put back."""
        self._leave(run, self._epochs[run])
        self.aside[run] = None

    def put_back(self) -> None:
        """Let all runs that were set aside join their groups again."""
        runs, self.aside = self.aside, {}
        for run in runs:
            self[run] = self._epochs[run]

    def group(self) -> Group:
        """Those to train next: of the runs that can share stacks with the first one those that are
        furthest behind. It is empty if all runs are set aside."""
        groups = next(iter(self._groups.values()), {})
        return groups[min(groups)] if groups else Group()

    def joins(self, run: Run, epoch: int) -> int:
        """The next epoch at which others wait that a run can join; its last one if none do."""
        waiting = (e for e in self._groups.get(run.stack_key, ()) if e > epoch)
        return min(waiting, default=run.epochs)


class Looked(NamedTuple):
    """Runs, each once, and what is stored of them."""

    runs: dict[Run, None]
    pending: Pending
    done: dict[Run, None]
    """There is nothing to train, as far as they are asked for."""
    damaged: dict[Run, str]
    """With the reason."""


def end_of(run: Run, until: int | None) -> int:
    """The epochs that a run has when it is left: ``until``, if it has more."""
    return run.epochs if until is None else min(until, run.epochs)


def damaged_runs(store: Store) -> list[DamagedRun]:
    """All stored runs that cannot be read.

    Raises:
        NewerStore: If a newer version has written runs, perhaps under names of its own.
    """
    damaged: list[DamagedRun] = []
    for _ in store.runs(damaged):
        pass
    return damaged


def unrelated(damaged: Iterable[DamagedRun], runs: Iterable[Run]) -> tuple[str, ...]:
    """Why those that are none of these runs cannot be read."""
    asked = {run.identity for run in runs}
    return tuple(str(error) for error in damaged if error.directory.name not in asked)


def look(runs: Iterable[Run], store: Store, until: int | None = None) -> Looked:
    """Sort runs by what is stored of them, if they are to be trained until an epoch."""
    looked = Looked({}, Pending(), {}, {})
    identities = functools.cache(store.identities)
    for run in runs:
        if run in looked.runs:
            continue
        looked.runs[run] = None
        stored = identities(run.task)
        if stored is not None and run.identity not in stored:
            looked.pending[run] = 0
            continue
        status = store.status(run)
        if status.state == "damaged":
            looked.damaged[run] = status.reason
        elif status.epoch >= end_of(run, until):
            looked.done[run] = None
        else:
            looked.pending[run] = status.epoch
    return looked
