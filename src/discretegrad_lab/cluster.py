"""Train stacks on a Ray cluster; the run directories are on storage that all its nodes share.

A stack is a task of Ray, which queues it, runs it and, if its worker dies, runs it again. The task
is a local ``execute``, so it goes on from the last checkpoint; claims of a dead worker are gone
with it.
"""

import contextlib
import importlib
import logging
import math
import os
import pickle
import platform
import signal
import socket
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from .config import Run
from .desk import Desk
from .execute import Estimate, Listener, Outcome, estimate, stop_signals
from .execute import execute as execute_here
from .store import Store, StoreError

_log = logging.getLogger(__name__)

_RETRIES = 5
"""Deaths of its workers that a stack survives."""
_POLL = 0.25
"""Seconds between two looks at what workers report, which also bounds how old a word to stop is."""
_REPORT = 0.2
"""Seconds between two reports of a worker, if its epochs are shorter."""
_CONNECT = 5.0
"""Seconds to wait for a cluster; Ray itself would wait for minutes."""
# runs and reports do not need more, and Ray would take a third of the memory
_OBJECTS = 128 << 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GROUPS = ("finished", "diverged", "already", "stopped", "elsewhere")

_T = TypeVar("_T")


class ClusterError(ValueError):
    """The cluster cannot do it; the message says why and what to do."""


class _Interrupted(Exception):
    """A worker was asked to go, but not by us."""


def execute(
    runs: Iterable[Run],
    root: Path | str,
    *,
    address: str | None = None,
    device: torch.device | str = "cpu",
    data: Path | None = None,
    budget: float | None = None,
    largest_stack: int | None = None,
    checkpoint_every: float | None = None,
    listener: Listener | None = None,
) -> Outcome:
    """Train every run that is not done on a Ray cluster, as ``execute.execute`` does on a device.

    A stack takes a GPU, or a processor core if the device is the CPU. As many stacks as there are
    of these are made, or more if memory or ``largest_stack`` ask for it; they are trained side by
    side. A listener is told about one stack at a time: when it is the turn of another one that has
    started before, its method ``stack_again``, or else ``stack_started``, is called once more.

    Args:
        runs: Configurations.
        root: The directory of the store, on storage that all nodes share.
        address: ``auto`` for the cluster of this machine or ``HOST:PORT``. Without one a cluster is
            started on this machine and stopped at the end. If this process is connected to one
            already, that is used.
        device: ``cpu``, ``cuda``, or ``auto``, which is cuda if the cluster has a GPU.
        data: The directory of the data sets, on every node.
        budget: Seconds after which to save and stop.
        largest_stack: The most members of a stack.
        checkpoint_every: Seconds between checkpoints.
        listener: Is told what happens.

    Raises:
        ClusterError: If Ray is missing, the cluster cannot be reached or has no such device, if
            its nodes do not share the directory, or if a stack has lost its worker too often.
        ValueError: If an argument is wrong, or for what ``execute.execute`` raises it.
        StoreError: If the file system of a node refuses; what was saved before is whole.
    """
    if budget is not None and not budget > 0:
        raise ValueError(f"expected a positive number of seconds as budget, got {budget}")
    _check_address(address)
    deadline = math.inf if budget is None else time.perf_counter() + budget
    ray = _ray()
    with _connected(ray, address):
        kind, workers = _resources(ray, device)
        job = _Job(ray, list(dict.fromkeys(runs)), Path(root).absolute(), kind, listener)
        job.plan(workers, largest_stack)
        with stop_signals() as caught:
            job.go(deadline, caught, data and data.absolute(), largest_stack, checkpoint_every)
    return job.outcome()


class _Job:
    """One call of ``execute``."""

    def __init__(
        self, ray: Any, runs: list[Run], root: Path, kind: str, listener: Listener | None
    ) -> None:
        self.ray, self.runs, self.store, self.kind = ray, runs, Store(root), kind
        self.listener = listener or Listener()
        self.forward = _Forward(self.listener)
        self.fate: dict[Run, str] = {}
        """What became of a run: a field of an outcome."""
        self.damaged: dict[Run, str] = {}
        self.stop: str | None = None
        """Why the workers are to stop."""
        self.stopped_by: str | None = None
        self.abandoned = False
        self.errors: list[Exception] = []
        self.options: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": 1 if kind == "cuda" else 0,
            "max_retries": _RETRIES,
            "retry_exceptions": [_Interrupted],
        }

    def plan(self, workers: int, largest_stack: int | None) -> None:
        """Sort the runs by what is stored, and those to do into stacks that fit a worker."""
        plan = self.ray.remote(**self.options)(_plan)
        arguments = (self.runs, self.store.root, self.kind, workers, largest_stack)
        try:
            found: Estimate = _value(self.ray.get(plan.remote(*arguments)))
        except self.ray.exceptions.RayError as error:
            raise _lost(error) from error
        self.stacks = [stack.runs for stack in found.stacks]
        self.fate |= dict.fromkeys(found.done, "already")
        self.damaged |= found.damaged
        for run, reason in found.damaged.items():
            self.listener.run_damaged(run, reason)
        to_do = {run for stack in self.stacks for run in stack}
        self.listener.planned(found.done, [run for run in self.runs if run in to_do])

    def go(
        self,
        deadline: float,
        caught: Sequence[str],
        data: Path | None,
        largest_stack: int | None,
        checkpoint_every: float | None,
    ) -> None:
        """Have the stacks trained until all are, or it must stop."""
        if not self.stacks:
            return
        ray = self.ray
        left = deadline - time.perf_counter()
        # it hardly does anything, so it takes no core from a stack
        desk = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Desk).remote(left)
        train = ray.remote(**self.options)(_train)
        with _token(self.store.root) as token:
            options = (self.store.root, token, self.kind, data, largest_stack, checkpoint_every)
            tasks = {
                train.remote(desk, number, stack, *options): number
                for number, stack in enumerate(self.stacks)
            }
            try:
                self._watch(desk, tasks, deadline, caught)
            finally:
                # none are left unless something went wrong
                for task in tasks:
                    ray.cancel(task, force=True)
                ray.kill(desk)
        if self.errors:
            raise self.errors[0]

    def _watch(
        self, desk: Any, tasks: dict[Any, int], deadline: float, caught: Sequence[str]
    ) -> None:
        ray = self.ray
        begun: Counter[int] = Counter()
        cancelled = False
        while tasks:
            # what a task has reported is at the desk when it ends
            ended, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=_POLL)
            if caught and self.stop is None:
                self.stop = caught[0]
            left = deadline - time.perf_counter()
            for stack, report in ray.get(desk.take.remote(self.stop, left)):
                name, arguments = pickle.loads(report)
                if name == "begun":
                    begun[stack] += 1
                    self._log_start(stack, begun[stack], *arguments)
                else:
                    self.forward(stack, name, arguments)
            for task in ended:
                number = tasks.pop(task)
                self._note(number, task, again=begun[number] > 1)
            if not cancelled and (self.stop or self.stopped_by or left < 0):
                cancelled = True
                # those that wait for a worker would get one only to be told to stop
                for task, number in tasks.items():
                    if not begun[number]:
                        ray.cancel(task)

    def _log_start(self, number: int, attempt: int, node: str, process: int) -> None:
        members = len(self.stacks[number])
        _log.info(
            "process %d on %s trains stack %d of %d, %d runs%s",
            *(process, node, number + 1, len(self.stacks), members),
            f", attempt {attempt}: the worker before it is gone" if attempt > 1 else "",
        )

    def _note(self, number: int, task: Any, *, again: bool) -> None:
        """Take in what became of a stack."""
        ray, stack = self.ray, self.stacks[number]
        try:
            outcome: Outcome = _value(ray.get(task))
        except ray.exceptions.TaskCancelledError:
            self.stopped_by = self.stopped_by or "budget"
            self._look(stack)
        except ray.exceptions.RayError as error:
            # the others can go on
            self.errors.append(_lost(error))
        except Exception as error:
            self.errors.append(error)
            self.stop = self.stop or "error"
        else:
            for name in _GROUPS:
                self.fate |= dict.fromkeys(getattr(outcome, name), name)
            self.damaged |= outcome.damaged
            self.stopped_by = self.stopped_by or outcome.stopped_by
            self.abandoned = self.abandoned or outcome.abandoned
            if again:
                # the worker before may have got so far
                self._look(outcome.already)

    def _look(self, runs: Sequence[Run]) -> None:
        for run in runs:
            status = self.store.status(run, quick=True)
            self.fate[run] = status.state if status.done else "stopped"

    def outcome(self) -> Outcome:
        """Afterwards."""
        groups: dict[str, Any] = {
            name: tuple(run for run in self.runs if self.fate.get(run) == name) for name in _GROUPS
        }
        return Outcome(
            **groups,
            damaged={run: self.damaged[run] for run in self.runs if run in self.damaged},
            stopped_by=self.stopped_by and (self.stop or self.stopped_by),
            abandoned=self.abandoned,
        )


class _Forward:
    """Passes what workers report on to a listener, which knows one stack at a time."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._again: Callable[..., None] = getattr(listener, "stack_again", listener.stack_started)
        self._present: int | None = None
        self._started: dict[int, tuple[Any, ...]] = {}
        self._told: set[tuple[str, Run]] = set()

    def __call__(self, stack: int, name: str, arguments: tuple[Any, ...]) -> None:
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


class _Reporter(Listener):
    """Reports from a worker; if it hears that it must stop, it interrupts ``execute``."""

    def __init__(self, report: Callable[[list[bytes]], str | None], node: str) -> None:
        self._report, self._node = report, node
        self._waiting: list[bytes] = []
        self._last = -math.inf
        self._interrupted = self._wrapped = False
        self.told: str | None = None

    def run_damaged(self, run: Run, reason: str) -> None:
        """With the node, whose view of the storage may be the problem."""
        self._waiting.append(_event("run_damaged", run, _at(reason, self._node)))

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
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}

        def pass_on(number: int, frame: Any) -> None:
            handler = handlers[signal.Signals(number)]
            if not self._interrupted and callable(handler):
                self._interrupted = True
                handler(number, frame)

        # execute puts back what there was before it
        for number in _SIGNALS:
            signal.signal(number, pass_on)


def _event(name: str, *arguments: Any) -> bytes:
    """A method of a listener, mostly, with its arguments."""
    return pickle.dumps((name, arguments))


@dataclass(frozen=True)
class _Failure:
    """An exception on its way from a worker; not every one can be pickled."""

    kind: type[Exception]
    message: str
    attributes: Mapping[str, Any]
    trace: str

    @classmethod
    def of(cls, error: Exception, node: str) -> "_Failure":
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


def _value(found: _T | _Failure) -> _T:
    if isinstance(found, _Failure):
        raise found.error()
    return found


def _at(message: str, node: str) -> str:
    return f"{message} (on the node {node})"


def _plan(
    runs: Sequence[Run], root: Path, device: str, workers: int, largest: int | None
) -> Estimate | _Failure:
    """Cut runs into stacks; in a worker, since only that knows its memory."""
    try:
        store = Store(root)
        found = estimate(runs, store, device=device, largest_stack=largest)
        if 0 < len(found.stacks) < workers:
            # one round of stacks for all workers
            share = math.ceil(found.members / workers)
            found = estimate(runs, store, device=device, largest_stack=min(share, largest or share))
        return found
    except Exception as error:
        return _Failure.of(error, platform.node())


def _train(
    desk: Any,
    number: int,
    runs: tuple[Run, ...],
    root: Path,
    token: Path,
    device: str,
    data: Path | None,
    largest_stack: int | None,
    checkpoint_every: float | None,
) -> Outcome | _Failure:
    """Train a stack, in a worker."""
    node = platform.node()
    why, left = _reply(desk.begin.remote(number, _event("begun", node, os.getpid())))
    if why is not None:
        return Outcome(stopped=runs, stopped_by=why)
    reporter = _Reporter(lambda events: _reply(desk.report.remote(number, events)), node)
    try:
        _check_shared(token)
        outcome = execute_here(
            runs,
            Store(root),
            device=device,
            budget=None if math.isinf(left) else left,
            data=data,
            largest_stack=largest_stack,
            checkpoint_every=checkpoint_every,
            listener=reporter,
        )
    except Exception as error:
        reporter.end()
        return _Failure.of(error, node)
    reporter.end()
    if outcome.stopped_by not in (None, "budget") and reporter.told is None:
        # its node goes, or a part of it; Ray finds another one
        raise _Interrupted(outcome.stopped_by)
    if outcome.stopped_by is not None:
        _reply(desk.shut.remote(outcome.stopped_by))
    damaged = {run: _at(reason, node) for run, reason in outcome.damaged.items()}
    fields = {name: getattr(outcome, name) for name in (*_GROUPS, "stopped_by", "abandoned")}
    return Outcome(**fields, damaged=damaged)


def _reply(reference: Any) -> Any:
    """What the desk says; ``ray.get`` would lend the core of this task to another one meanwhile."""
    return reference.future().result()


@contextlib.contextmanager
def _token(root: Path) -> Iterator[Path]:
    """A file by which workers see that the store is on the storage that the driver has."""
    path = root / ".locks" / f"cluster-{uuid.uuid4().hex[:8]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise StoreError(
            f"expected to write in {root}, got: {error.strerror}; choose a results directory that "
            "you may write and that all nodes share"
        ) from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _check_shared(token: Path) -> None:
    if not token.exists():
        raise ClusterError(
            f"expected {token.parent.parent} to be on storage that all nodes share, got a node "
            f"that does not find {token.name} in it; choose a results directory that they share"
        )


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClusterError(
            "expected the package ray for training on a cluster, got none; install it with "
            '`pip install "discretegrad[ray]"`'
        ) from error


def _check_address(address: str | None) -> None:
    """Whether somebody listens there."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not (host and "/" not in host and port.isdecimal()):
        raise ClusterError(
            f"expected auto or HOST:PORT as the address of a Ray cluster, got {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str | None, error: Exception) -> ClusterError:
    got = " ".join(str(error).split()).rstrip(".")
    if address is None:
        return ClusterError(
            f"expected to start a Ray cluster on this machine, got: {got}; train without Ray, or "
            "give the address of a cluster that runs"
        )
    # Ray mentions it somewhere in the chain of causes
    if "AuthenticationError" in "".join(traceback.format_exception(error)):
        return ClusterError(
            f"expected a Ray cluster at the address {address} that lets this machine in, got one "
            "that asks for a token; set RAY_AUTH_MODE=token, and give this machine "
            "the cluster's token as Ray's documentation on token authentication says"
        )
    return ClusterError(
        f"expected a Ray cluster at the address {address}, got: {got}; start one with "
        "`ray start --head`, or leave the address out to have one started on this machine"
    )


@contextlib.contextmanager
def _connected(ray: Any, address: str | None, **options: Any) -> Iterator[None]:
    """Connect to a cluster, or start one, and end that again."""
    if ray.is_initialized():
        yield
        return
    if address is None:
        # no report goes out to anybody
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"include_dashboard": False, "object_store_memory": _OBJECTS, **options}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from error
    try:
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler exits on the spot
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        yield
    finally:
        ray.shutdown()


def _resources(ray: Any, device: torch.device | str) -> tuple[str, int]:
    """The kind of device to train on, and how many of it the cluster has."""
    found = ray.cluster_resources()
    if device == "auto":
        device = "cuda" if found.get("GPU", 0) >= 1 else "cpu"
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"expected the device cpu or cuda, got {device!r}") from error
    names = {"cpu": "CPU", "cuda": "GPU"}
    if wanted.type not in names or wanted.index:
        raise ValueError(
            f"expected the device cpu or cuda for a cluster, got {wanted}; choose one of the two, "
            "and Ray gives every stack a device of that kind"
        )
    count = int(found.get(names[wanted.type], 0))
    if count < 1:
        raise ClusterError(
            f"expected a cluster with a {names[wanted.type]}, got one without; choose another "
            "device, or add a node that has one"
        )
    return wanted.type, count


def _lost(error: Exception) -> ClusterError:
    """What to say when Ray gives up."""
    lines = str(error).rstrip(" .\n").splitlines() or [type(error).__name__]
    return ClusterError(
        f"expected workers that live until their stacks are trained, got: {lines[-1].strip()}; see "
        "that every node has memory for it and the same discretegrad and ray as this machine, and "
        "start again: what was saved is whole, and work goes on from there"
    )
