"""What workers do, on a cluster or beside each other: they plan, train a stack, and report."""

import math
import os
import pickle
import platform
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..stack.config import Run
from ..stack.userfiles import load_file
from .connection import ClusterError
from .execute import execute
from .listener import REASONS, Listener, Outcome
from .options import STACK_OPTIONS, StackOptions
from .plan import Estimate, estimate_side_by_side
from .signals import STOP
from .store import Store

GROUPS = ("finished", "diverged", "reached", "already", "stopped", "elsewhere")
_REPORT = 0.2
"""Seconds between two reports of a worker, if its epochs are shorter."""
_T = TypeVar("_T")


class Place(NamedTuple):
    """Where and how a worker trains."""

    root: Path
    """Of the store."""
    device: str
    data: Path | None = None
    stacks: StackOptions = STACK_OPTIONS
    token: Path | None = None
    """A file of the store that the driver has written."""
    files: tuple[Path, ...] = ()
    """Python files of users that runs come from."""
    sharing: int = 1
    """How many workers share the device."""


class Interrupted(Exception):
    """A worker was asked to go, but not by us."""


class Reporter(Listener):
    """Reports from a worker; if it hears that it must stop, it interrupts ``execute``."""

    def __init__(self, report: Callable[[list[bytes]], str | None], node: str) -> None:
        self._report, self.node = report, node
        self._waiting: list[bytes] = []
        self._last = -math.inf
        self._interrupted = self._wrapped = False
        self.told: str | None = None

    def run_damaged(self, run: Run, reason: str) -> None:
        """With the node, whose view of the storage may be the problem."""
        self._waiting.append(_event("run_damaged", run, _at(reason, self.node)))

    def run_elsewhere(self, run: Run) -> None:
        """Later."""
        self._waiting.append(_event("run_elsewhere", run))

    def stack_started(self, *arguments: Any) -> None:
        """At once."""
        self._once()
        self._waiting.append(_event("stack_started", *arguments))
        self._send()

    def epoch_done(self, *arguments: Any) -> None:
        """If it is time."""
        self._waiting.append(_event("epoch_done", *arguments))
        if time.monotonic() - self._last >= _REPORT:
            self._send()

    def checkpointed(self, *arguments: Any) -> None:
        """Later."""
        self._waiting.append(_event("checkpointed", *arguments))

    def stack_finished(self, *arguments: Any) -> None:
        """At once."""
        self._waiting.append(_event("stack_finished", *arguments))
        self._send()

    def end(self) -> None:
        """Report what is left, once nothing can be interrupted any more."""
        told = self._report(self._waiting)
        self.told = self.told or told

    def _send(self) -> None:
        events, self._waiting = self._waiting, []
        told = self._report(events)
        self._last = time.monotonic()
        if told is not None and self.told is None:
            self.told = told
            signal.raise_signal(signal.SIGTERM)

    def _once(self) -> None:
        """Let one signal through to ``execute``, which does not save when a second one comes."""
        if self._wrapped:
            return
        self._wrapped = True
        handlers = {number: signal.getsignal(number) for number in STOP}

        def pass_on(number: int, frame: Any) -> None:
            handler = handlers[signal.Signals(number)]
            if not self._interrupted and callable(handler):
                self._interrupted = True
                handler(number, frame)

        # execute puts back what there was before it
        for number in STOP:
            signal.signal(number, pass_on)


def _event(name: str, *arguments: Any) -> bytes:
    """A method of a listener, mostly, with its arguments."""
    return pickle.dumps((name, arguments))


@dataclass(frozen=True)
class Failure:
    """An exception on its way from a worker; not every one can be pickled."""

    kind: type[Exception]
    message: str
    attributes: Mapping[str, Any]
    trace: str

    @classmethod
    def of(cls, error: Exception, node: str) -> "Failure":
        """What is known of it."""
        trace = "".join(traceback.format_exception(error))
        return cls(type(error), _at(str(error), node), dict(error.__dict__), trace)

    def error(self) -> Exception:
        """An exception of the same type that names the node."""
        # its constructor may want anything
        error = self.kind.__new__(self.kind, self.message)
        error.args = (self.message,)
        error.__dict__ |= self.attributes
        error.add_note(self.trace)
        return error


def value(returned: _T | Failure) -> _T:
    """What a worker has returned, or the error that it met."""
    if isinstance(returned, Failure):
        raise returned.error()
    return returned


def _at(message: str, node: str) -> str:
    """A message with the node it comes from, if there is more than one."""
    return f"{message} (on the node {node})" if node else message


def packed(runs: Sequence[Run]) -> bytes:
    """Runs on their way to a worker, which may have to load files before it can have them."""
    return pickle.dumps(tuple(runs))


def _unpacked(runs: bytes, place: Place) -> tuple[Run, ...]:
    for file in place.files:
        load_file(file)
    configs: tuple[Run, ...] = pickle.loads(runs)
    return configs


def plan(runs: bytes, place: Place, workers: int) -> Estimate | Failure:
    """Cut runs into stacks; in a worker, since only that knows its memory."""
    try:
        configs, store = _unpacked(runs, place), Store(place.root)
        return estimate_side_by_side(
            configs,
            store,
            workers,
            device=place.device,
            largest_stack=place.stacks.largest_stack,
            sharing=place.sharing,
            until=place.stacks.until,
        )
    except Exception as error:
        return Failure.of(error, platform.node())


def train(desk: Any, number: int, runs: bytes, place: Place) -> Outcome | Failure:
    """Train a stack, in a worker."""
    node = platform.node()
    why, left = _reply(desk.begin.remote(number, _event("begun", node, os.getpid())))
    if why is not None:
        return Outcome(stopped=_unpacked(runs, place), stopped_by=why)
    reporter = Reporter(lambda events: _reply(desk.report.remote(number, events)), node)
    outcome = train_stack(runs, place, left, reporter)
    if isinstance(outcome, Failure):
        return outcome
    if outcome.stopped_by not in (None, *REASONS) and reporter.told is None:
        # its node goes, or a part of it; Ray finds another one
        raise Interrupted(outcome.stopped_by)
    if outcome.stopped_by is not None:
        _reply(desk.shut.remote(outcome.stopped_by))
    return outcome


def train_stack(runs: bytes, place: Place, left: float, reporter: Reporter) -> Outcome | Failure:
    """Train a stack within so many seconds; its claims are free again then."""
    try:
        _check_shared(place)
        outcome = execute(
            _unpacked(runs, place),
            Store(place.root),
            device=place.device,
            budget=None if math.isinf(left) else left,
            data=place.data,
            stacks=place.stacks,
            listener=reporter,
        )
    except Exception as error:
        reporter.end()
        return Failure.of(error, reporter.node)
    reporter.end()
    damaged = {run: _at(reason, reporter.node) for run, reason in outcome.damaged.items()}
    fields = {
        name: getattr(outcome, name) for name in (*GROUPS, "failed", "stopped_by", "abandoned")
    }
    return Outcome(**fields, damaged=damaged)


def _reply(reference: Any) -> Any:
    """What the desk says; ``ray.get`` would lend the core of this task to another one meanwhile."""
    return reference.future().result()


def _check_shared(place: Place) -> None:
    if place.token is not None and not place.token.exists():
        raise ClusterError(
            f"expected {place.root} to be on storage that all nodes share, got a node that does "
            f"not find {place.token.name} in it; choose a results directory that they share"
        )
