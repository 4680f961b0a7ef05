"""What the workers of a job report, put together: the fate of each run, and what listeners hear."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..stack.config import Run
from .listener import Listener, Outcome, Together
from .pending import damaged_runs, unrelated
from .plan import Estimate
from .store import Store
from .worker import GROUPS, Place


class Job:
    """Stacks that several workers train, and what became of their runs.

    Args:
        runs: What is to be trained, in order.
        place: Where and how workers train.
        listener: Is told what they report.
    """

    def __init__(self, runs: list[Run], place: Place, listener: Listener | None) -> None:
        self.runs, self.store, self.place = runs, Store(place.root), place
        self.listener = Together(*([] if listener is None else [listener]))
        self.forward = Forward(self.listener)
        self.stacks: list[tuple[Run, ...]] = []
        self.fate: dict[Run, str] = {}
        """What became of a run: a field of an outcome."""
        self.failed: set[Run] = set()
        self.damaged: dict[Run, str] = {}
        self.unrelated: tuple[str, ...] = ()
        self.stop: str | None = None
        """Why the workers are to stop."""
        self.stopped_by: str | None = None
        self.abandoned = False
        self.errors: list[Exception] = []

    def planned(self, planned: Estimate) -> None:
        """Take in which runs are done and how the others are cut into stacks."""
        self.stacks = [stack.runs for stack in planned.stacks]
        self.fate |= dict.fromkeys(planned.done, "already")
        self.damaged |= planned.damaged
        # here, since each worker would say it of the runs of the others, too
        self.unrelated = unrelated(damaged_runs(self.store), self.runs)
        for run, reason in planned.damaged.items():
            self.listener.run_damaged(run, reason)
        self._count_failures()
        left = {
            run: self.place.stacks.end(run) - stack.epoch
            for stack in planned.stacks
            for run in stack.runs
        }
        self.listener.planned(planned.done, {run: left[run] for run in self.runs if run in left})

    def ended(self, outcome: Outcome, *, again: bool) -> None:
        """Take in what became of a stack; ``again`` if it had another worker before."""
        for name in GROUPS:
            self.fate |= dict.fromkeys(getattr(outcome, name), name)
        self.failed |= {*outcome.failed}
        self.damaged |= outcome.damaged
        self._count_failures()
        self.stopped_by = self.stopped_by or outcome.stopped_by
        self.abandoned = self.abandoned or outcome.abandoned
        if again:
            # the worker before may have got so far
            self.look(outcome.already)

    def _count_failures(self) -> None:
        """Stop if more runs have failed, on all nodes together, than may."""
        most = self.place.stacks.max_failures
        if most is not None and len(self.damaged) >= most:
            self.stop = self.stop or "failures"

    def look(self, runs: Sequence[Run]) -> None:
        """Take in what the store says of runs whose worker did not come to tell."""
        for run in runs:
            status = self.store.status(run, quick=True)
            reached = status.epoch >= self.place.stacks.end(run)
            self.fate[run] = status.state if status.done else "reached" if reached else "stopped"

    def outcome(self) -> Outcome:
        """Afterwards."""
        groups: dict[str, Any] = {
            name: tuple(run for run in self.runs if self.fate.get(run) == name) for name in GROUPS
        }
        # if there is more to come, a signal counts also where all of this was done
        more = self.place.stacks.until is not None
        return Outcome(
            **groups,
            failed=tuple(run for run in self.runs if run in self.failed),
            damaged={run: self.damaged[run] for run in self.runs if run in self.damaged},
            unrelated=self.unrelated,
            stopped_by=(self.stop or self.stopped_by) if self.stopped_by or more else None,
            abandoned=self.abandoned,
        )


class Forward:
    """Passes what workers report on to a listener, which knows one stack at a time."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._again: Callable[..., None] = getattr(listener, "stack_again", listener.stack_started)
        self._present: int | None = None
        self._started: dict[int, tuple[Any, ...]] = {}
        self._told: set[tuple[str, Run]] = set()

    def __call__(self, stack: int, name: str, arguments: tuple[Any, ...]) -> None:
        """Call a method of the listener, about the stack of a number."""
        if name in ("run_damaged", "run_elsewhere"):
            # a second worker of the same stack says so again
            if (name, arguments[0]) in self._told:
                return
            self._told.add((name, arguments[0]))
        elif name == "stack_started":
            self._present, self._started[stack] = stack, arguments
        elif stack not in self._started:
            # the desk died with the start
            return
        else:
            runs, _, *rest = self._started[stack]
            if stack != self._present:
                self._present = stack
                self._again(*self._started[stack])
            if name == "epoch_done":
                self._started[stack] = (runs, arguments[0], *rest)
        getattr(self._listener, name)(*arguments)


def user_files(runs: Iterable[Run]) -> tuple[Path, ...]:
    """Files that workers must load before they can have these runs."""
    modules = {type(run).__module__: sys.modules[type(run).__module__] for run in runs}
    names = [vars(module) for module in modules.values()]
    return tuple(sorted(Path(x["__file__"]) for x in names if "__digest__" in x))
