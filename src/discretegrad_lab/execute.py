"""Train what is not trained yet: stacks that fit, checkpoints, a clean stop, several processes.

Runs that can share a stack and have come equally far are trained together. Some of them may be
further than others, after a kill for instance; those behind catch up first and then join them.
"""

import contextlib
import functools
import gc
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .config import Run
from .environment import check_device, describe, device_name, free_memory
from .store import DamagedRun, Environment, Metrics, Saved, Store
from .trainer import EpochAbandoned, Stack, task_type

_SHARE = {"cuda": 0.85, "cpu": 0.5}
"""Of the free memory that a stack may take by its task's own estimate."""
_COST = 0.02
"""Of the training time that checkpoints may take."""
_SELDOM = 30.0
"""Seconds between two checkpoints, however cheap they are."""
_MARGIN = 1.2
"""How much longer than the longest epoch so far the next one may take, for the budget."""
# fsync mostly waits, and the journal takes what comes at once together
_WRITERS = 8


class TrainedStack(Protocol):
    """What is needed of ``discretegrad_lab.trainer.Stack``."""

    runs: tuple[Run, ...]
    epoch: int
    epochs: int
    steps_per_epoch: int
    diverged: Tensor

    def advance(self, stop: Callable[[], bool] | None = None) -> dict[str, list[float]]:
        """Train for an epoch; metrics by name, a number for each member.

        Raises ``EpochAbandoned``, with ``epoch`` as it was, if ``stop`` says so between two steps.
        """

    def state(self, member: int) -> dict[str, Tensor]:
        """All that a member needs to go on, as copies that training does not change."""

    def states(self) -> Sequence[dict[str, Tensor]]:
        """``state`` of every member."""

    def load_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """The reverse."""


MakeStack = Callable[[Sequence[Run], torch.device, Path | None], TrainedStack]


class Listener:
    """What happens while runs are trained; this one does nothing.

    All calls come from the thread that trains, so they should not take long.
    """

    def planned(self, done: Sequence[Run], to_do: Sequence[Run]) -> None:
        """The stored runs have been looked at."""

    def run_damaged(self, run: Run, reason: str) -> None:
        """A run is left alone."""

    def run_elsewhere(self, run: Run) -> None:
        """Another process has a run at the moment."""

    def stack_started(
        self, runs: tuple[Run, ...], epoch: int, epochs: int, steps_per_epoch: int
    ) -> None:
        """A stack is about to train; ``epoch`` of its ``epochs`` are done."""

    def epoch_done(
        self, epoch: int, metrics: Mapping[str, Sequence[float]], seconds: float
    ) -> None:
        """So many epochs are done; a metric has a number for each run of the stack."""

    def checkpointed(self, epoch: int, seconds: float) -> None:
        """Training waited so long until a checkpoint of this epoch was on its way."""

    def stack_finished(self, runs: tuple[Run, ...], epoch: int) -> None:
        """A stack has stopped, at its end or before."""


@dataclass(frozen=True)
class Outcome:
    """What became of the runs; each is in one of the lists, in the order they were given."""

    finished: tuple[Run, ...] = ()
    """Now, with finite losses to the end."""
    diverged: tuple[Run, ...] = ()
    """Now; they count as done."""
    already: tuple[Run, ...] = ()
    """Done before, or meanwhile by another process."""
    stopped: tuple[Run, ...] = ()
    """Not done because of the budget or a signal; the next start goes on with them."""
    elsewhere: tuple[Run, ...] = ()
    """Another process is training them."""
    damaged: Mapping[Run, str] = field(default_factory=dict)
    """Left alone, and why."""
    stopped_by: str | None = None
    """``budget`` or the name of a signal."""
    abandoned: bool = False
    """An epoch was given up since the budget was over before it was done."""

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return not (self.stopped or self.elsewhere or self.damaged)


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
        found = [stack.seconds for stack in self.stacks if stack.seconds is not None]
        return sum(found) if len(found) == len(self.stacks) else None


def execute(
    runs: Iterable[Run],
    store: Store,
    *,
    device: torch.device | str = "cpu",
    budget: float | None = None,
    data: Path | None = None,
    largest_stack: int | None = None,
    checkpoint_every: float | None = None,
    listener: Listener | None = None,
    announce: Callable[[str], None] | None = None,
    make_stack: MakeStack | None = None,
    bytes_per_member: Callable[[Run], int] | None = None,
) -> Outcome:
    """Train every run that is not done and not in the hands of another process.

    SIGINT and SIGTERM save and stop after the current epoch; a second one stops at once.

    Args:
        runs: Configurations, in the order their stacks should be trained.
        store: Where they are kept.
        device: Where to train.
        budget: Seconds after which to save and stop. An epoch is begun only if it should end, and
            be saved, in time. If it does not end in time, it is given up where everything before
            it is saved.
        data: The directory of the data sets.
        largest_stack: The most members of a stack; by default as many as fit.
        checkpoint_every: Seconds between checkpoints; by default as many as keep their cost below
            2 % of the time.
        listener: Is told what happens.
        announce: Is told the name of the first signal at once, in its handler, so it should do
            hardly more than ``os.write``.
        make_stack: Makes a stack; ``discretegrad_lab.trainer.Stack`` by default.
        bytes_per_member: Device memory of one member; asks the task by default.

    Raises:
        ValueError: If an argument is wrong, or a newer version wrote the stored runs.
        StoreError: If the file system refuses; what was saved before is whole.
    """
    _check_positive("budget", budget)
    _check_largest(largest_stack)
    if checkpoint_every is not None and not checkpoint_every >= 0:
        raise ValueError(f"expected seconds as checkpoint_every, got {checkpoint_every}")
    started = time.perf_counter()
    work = _Work(
        store,
        _Fit(check_device(device), largest_stack, bytes_per_member or _bytes_per_member),
        data,
        math.inf if budget is None else started + budget,
        checkpoint_every,
        listener or Listener(),
        make_stack or Stack,
    )
    work.look(runs)
    with stop_signals(announce) as caught, _Writer() as work.writer:
        work.caught = caught
        work.go()
    return work.outcome()


def estimate(
    runs: Iterable[Run],
    store: Store,
    *,
    device: torch.device | str = "cpu",
    largest_stack: int | None = None,
    bytes_per_member: Callable[[Run], int] | None = None,
) -> Estimate:
    """What ``execute`` would do with these arguments; changes nothing."""
    _check_largest(largest_stack)
    fit = _Fit(check_device(device), largest_stack, bytes_per_member or _bytes_per_member)
    pending, done, damaged = _look(dict.fromkeys(runs), store)
    paces = _paces({_key(run) for run in pending}, store, device_name(fit.device))
    stacks = []
    while pending:
        group = _next_group(pending)
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


class _Fit:
    """How many runs make a stack."""

    def __init__(
        self,
        device: torch.device,
        largest: int | None,
        bytes_per_member: Callable[[Run], int],
    ) -> None:
        self.device, self.bytes_per_member = device, bytes_per_member
        self._largest = min(largest or _most_claims(), _most_claims())
        self._known: dict[tuple[Any, ...], int] = {}

    def count(self, group: Sequence[Run]) -> int:
        """The members of the next stack of a group, such that all its stacks are about equal."""
        most = group[: min(self._largest, self._known.get(_key(group[0]), len(group)))]
        fitting = self._fitting(most)
        if fitting < len(most) or self._known:
            # what the last stack had may still be about
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
        self._known[_key(runs[0])] = len(runs) // 2


@dataclass
class _Member:
    """What is kept of a run while it is trained."""

    run: Run
    metrics: Metrics
    environment: Environment
    seconds: float


class _Work:
    """One call of ``execute``."""

    writer: "_Writer"
    caught: list[str]

    def __init__(
        self,
        store: Store,
        fit: _Fit,
        data: Path | None,
        deadline: float,
        checkpoint_every: float | None,
        listener: Listener,
        make_stack: MakeStack,
    ) -> None:
        self.store, self.fit, self.data = store, fit, data
        self.deadline, self.checkpoint_every = deadline, checkpoint_every
        self.listener, self.make_stack = listener, make_stack
        self.stopped_by: str | None = None
        self.abandoned = False
        self.building = 0.0
        """Seconds from claiming to the first epoch, the last time."""
        self.held: dict[Run, None] = {}
        """Claims that have not been handed over to a final commit."""
        self.elsewhere: set[Run] = set()
        self.told: set[Run] = set()
        self.finished: set[Run] = set()
        self.diverged: set[Run] = set()
        self.lost: list[tuple[Run, str]] = []
        """Damage that commits have met."""

    def look(self, runs: Iterable[Run]) -> None:
        """Sort the runs by what is stored; nothing is written before this is done."""
        self.runs = dict.fromkeys(runs)
        for _ in self.store.runs(damaged=[]):
            # a newer version may have written others than these, under names of its own
            pass
        self.pending, self.already, self.damaged = _look(self.runs, self.store)
        for run, reason in self.damaged.items():
            self.listener.run_damaged(run, reason)
        self.listener.planned(list(self.already), list(self.pending))

    def go(self) -> None:
        """Train until nothing is left that this process can have, or it must stop."""
        trained = True
        while trained:
            trained = False
            # others may have died or stopped meanwhile
            self.elsewhere.clear()
            while self.stopped_by is None:
                here = self._here()
                if not here or self._must_stop(self.building):
                    break
                trained |= self._take(_next_group(here))
            trained = trained and bool(self.elsewhere) and self.stopped_by is None

    def _here(self) -> dict[Run, int]:
        return {run: e for run, e in self.pending.items() if run not in self.elsewhere}

    def outcome(self) -> Outcome:
        """Afterwards."""
        self._note_losses()
        for run in self.elsewhere:
            if self.store.status(run, quick=True).done:
                self.already[run] = None
                self.pending.pop(run, None)
        found = {
            "finished": self.finished,
            "diverged": self.diverged,
            "already": self.already,
            "stopped": self.pending.keys() - self.elsewhere,
            "elsewhere": self.pending.keys() & self.elsewhere,
        }
        return Outcome(
            **{
                name: tuple(run for run in self.runs if run in some) for name, some in found.items()
            },
            damaged={run: self.damaged[run] for run in self.runs if run in self.damaged},
            stopped_by=self.stopped_by,
            abandoned=self.abandoned,
        )

    def _take(self, group: Sequence[Run]) -> bool:
        """Train a stack of a group; False if none of them could be had."""
        size = self.fit.count(group)
        try:
            for run in group:
                if len(self.held) == size or self._must_stop(0):
                    break
                if self._claim(run):
                    self.held[run] = None
            if not self.held or self.stopped_by is not None:
                return False
            self._train()
        except torch.OutOfMemoryError:
            # the task's estimate was too low
            if len(self.held) < 2:
                raise
            self.fit.halve(list(self.held))
        finally:
            if self.held:
                self.writer.settle()
            for run in self.held:
                self.store.release(run)
            self.held.clear()
        return True

    def _claim(self, run: Run) -> bool:
        """Claim a run and look again: it may not be as it was when the stack was planned."""
        if not self.store.claim(run):
            self.elsewhere.add(run)
            if run not in self.told:
                self.told.add(run)
                self.listener.run_elsewhere(run)
            return False
        status = self.store.status(run, quick=True)
        if status.state == "damaged":
            self._leave_alone(run, status.reason)
        elif status.done:
            del self.pending[run]
            self.already[run] = None
        elif status.epoch != self.pending[run]:
            self.pending[run] = status.epoch
        else:
            return True
        self.store.release(run)
        return False

    def _leave_alone(self, run: Run, reason: str) -> None:
        self.pending.pop(run, None)
        self.damaged[run] = reason
        self.listener.run_damaged(run, reason)

    def _note_losses(self) -> None:
        while self.lost:
            self._leave_alone(*self.lost.pop())

    def _load(self) -> dict[Run, Saved]:
        """What is stored of runs that have begun; damaged ones are let go."""
        found = {}
        for run in tuple(self.held):
            try:
                found[run] = self.store.load(run)
            except DamagedRun as error:
                self._leave_alone(run, str(error))
                self.store.release(run)
                del self.held[run]
        return found

    def _train(self) -> None:
        began = time.perf_counter()
        epoch = self.pending[next(iter(self.held))]
        saved = self._load() if epoch else {}
        if not self.held:
            return
        stack = self.make_stack(list(self.held), self.fit.device, self.data)
        for number, run in enumerate(stack.runs):
            if run in saved:
                stack.load_state(number, saved[run].state)
        stack.epoch = epoch
        here = {
            **describe(self.fit.device, tf32=stack.runs[0].tf32),
            "members": len(stack.runs),
            "from_epoch": epoch,
        }
        members = [
            _Member(run, old.metrics, [*old.environment, here], old.seconds)
            if (old := saved.get(run))
            else _Member(run, [], [here], 0.0)
            for run in stack.runs
        ]
        asked = time.perf_counter()
        state = sum(tensor.nbytes for tensor in stack.state(0).values())
        pace = _Pace(len(members), state, time.perf_counter() - asked)
        # what is new, and what is not deleted yet while it is replaced
        self.store.check_room((len(members) - len(saved) + _WRITERS) * state)
        saved.clear()
        self.listener.stack_started(stack.runs, epoch, stack.epochs, stack.steps_per_epoch)
        self.building = time.perf_counter() - began
        # where others wait that these can join
        same = (e for run, e in self._here().items() if _key(run) == _key(stack.runs[0]))
        until = min((e for e in same if e > epoch), default=stack.epochs)
        self._loop(stack, members, until, pace)
        self.listener.stack_finished(stack.runs, stack.epoch)

    def _loop(
        self, stack: TrainedStack, members: Sequence[_Member], until: int, pace: "_Pace"
    ) -> None:
        saved_at = stack.epoch
        last = time.perf_counter()

        def over() -> bool:
            # epochs before it that are not saved would be lost, and a signal promises to finish it
            saved = stack.epoch == saved_at
            return saved and not self.caught and time.perf_counter() >= self.deadline

        stop = None if math.isinf(self.deadline) else over
        while stack.epoch < until and not self._must_stop(pace.next_epoch()):
            began = time.perf_counter()
            try:
                metrics = stack.advance(stop)
            except EpochAbandoned:
                self.stopped_by, self.abandoned = "budget", True
                break
            now = time.perf_counter()
            pace.epoch(now - began)
            for number, member in enumerate(members):
                row = {name: values[number] for name, values in metrics.items()}
                member.metrics.append({"epoch": stack.epoch, **row})
                member.seconds += now - began
            self.listener.epoch_done(stack.epoch, metrics, now - began)
            self.writer.check()
            every = pace.interval() if self.checkpoint_every is None else self.checkpoint_every
            if stack.epoch < until and now - last >= every:
                self._save(stack, members, pace)
                saved_at, last = stack.epoch, time.perf_counter()
        if stack.epoch > saved_at:
            self._save(stack, members, pace)
        if stack.epoch < stack.epochs:
            # what is stored decides what comes next
            self.writer.wait()
            self._note_losses()
            for member in members:
                if member.run in self.pending:
                    self.pending[member.run] = stack.epoch

    def _save(self, stack: TrainedStack, members: Sequence[_Member], pace: "_Pace") -> None:
        """Hand a checkpoint of all members to the writer; a final one gives the claims up too."""
        began = time.perf_counter()
        self.writer.wait()
        self._note_losses()
        finished = stack.epoch == stack.epochs
        steps = [None if step < 0 else step for step in stack.diverged.tolist()]
        states = stack.states()
        jobs = [
            functools.partial(
                self._write,
                member.run,
                stack.epoch,
                list(member.metrics),
                states[number],
                member.environment,
                member.seconds,
                finished=finished,
                diverged_step=steps[number],
            )
            for number, member in enumerate(members)
            if member.run not in self.damaged
        ]
        self.writer.start(jobs, pace)
        if finished:
            for member in members:
                self.pending.pop(member.run, None)
                if member.run in self.damaged:
                    self.store.release(member.run)
            self.held.clear()
        waited = time.perf_counter() - began
        pace.waited(waited)
        self.listener.checkpointed(stack.epoch, waited)

    def _write(self, run: Run, *saved: Any, finished: bool, diverged_step: int | None) -> None:
        """In another thread."""
        try:
            self.store.save(run, *saved, finished=finished, diverged_step=diverged_step)
            if finished:
                (self.finished if diverged_step is None else self.diverged).add(run)
        except DamagedRun as error:
            self.lost.append((run, str(error)))
        finally:
            if finished:
                self.store.release(run)

    def _must_stop(self, seconds: float) -> bool:
        """Whether to stop, if the next thing to do takes so long."""
        if self.stopped_by is None:
            if self.caught:
                self.stopped_by = self.caught[0]
            elif time.perf_counter() + seconds > self.deadline:
                self.stopped_by = "budget"
        return self.stopped_by is not None


class _Pace:
    """How long epochs and checkpoints of a stack take."""

    def __init__(self, members: int, size: int, seconds: float) -> None:
        """From the bytes of a member's state and how long it took to have it."""
        self._epochs: list[float] = []
        self._blocked = members * seconds
        """How long training waits for a checkpoint to be on its way."""
        # guesses for a slow disk, until there are measurements
        self._cost = self._blocked + members * (size / 5e8 + 0.002)
        self._wall = members * (size / 1e8 + 0.01)

    def epoch(self, seconds: float) -> None:
        """An epoch took so long."""
        self._epochs.append(seconds)

    def waited(self, seconds: float) -> None:
        """Training waited so long for a checkpoint to be on its way."""
        self._blocked = seconds

    def written(self, wall: float, processor: float) -> None:
        """That checkpoint was written in the background."""
        self._wall = wall
        # what the other processors could not do meanwhile
        self._cost = self._blocked + processor / (os.cpu_count() or 1)

    def next_epoch(self) -> float:
        """Seconds that the next epoch and a checkpoint may take."""
        # the first one compiles
        known = self._epochs[1:] or self._epochs
        return _MARGIN * max(known, default=0.0) + self._blocked + 1.5 * self._wall

    def interval(self) -> float:
        """Seconds between checkpoints that keep their cost low."""
        return max(_SELDOM, self._cost / _COST)


class _Writer:
    """Writes a round of checkpoints in the background, while training goes on."""

    def __enter__(self) -> "_Writer":
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="checkpoint")
        self._round: list[Future[tuple[float, float]]] = []
        self._began = 0.0
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown()

    def start(self, jobs: Sequence[Callable[[], None]], pace: _Pace) -> None:
        """Begin a round; the one before must be over."""
        assert not self._round
        self._began, self._pace = time.perf_counter(), pace
        self._round = [self._pool.submit(_timed, job) for job in jobs]

    def check(self) -> None:
        """Note the end of the present round, and raise its error as soon as there is one."""
        if all(job.done() for job in self._round) or any(
            job.done() and job.exception() for job in self._round
        ):
            self.wait()

    def settle(self) -> None:
        """Wait for the present round and keep its error for later."""
        wait_for(self._round)

    def wait(self) -> None:
        """Wait for the present round, if there is one."""
        wait_for(self._round)
        jobs, self._round = self._round, []
        times = [job.result() for job in jobs]
        if times:
            wall = max(end for end, _ in times) - self._began
            self._pace.written(wall, sum(used for _, used in times))


def _timed(job: Callable[[], None]) -> tuple[float, float]:
    began = time.thread_time()
    job()
    return time.perf_counter(), time.thread_time() - began


@contextlib.contextmanager
def stop_signals(announce: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """Names of signals that ask to stop, the first one announced; a second one stops at once."""
    caught: list[str] = []

    def note(number: int, _: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(signal.Signals(number).name)
        if announce is not None:
            # a terminal that is gone must not cost the epoch
            with contextlib.suppress(OSError):
                announce(caught[0])

    # Python allows it nowhere else
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _look(
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
def _key(run: Run) -> tuple[Any, ...]:
    """Plans ask for it again and again."""
    return run.stack_key


def _next_group(pending: Mapping[Run, int]) -> list[Run]:
    """Runs that can be trained together; those behind first."""
    key = _key(next(iter(pending)))
    same = {run: epoch for run, epoch in pending.items() if _key(run) == key}
    epoch = min(same.values())
    group = [run for run, done in same.items() if done == epoch]
    group.sort(key=lambda run: (run.estimator, run.tau, run.identity))
    return group


_Paces = dict[tuple[tuple[Any, ...], str], tuple[int, float]]
"""Members and seconds of an epoch, by the key of a stack and an estimator."""


def _paces(keys: set[tuple[Any, ...]], store: Store, device: str) -> _Paces:
    """Those of the largest stored stacks with an estimator on a device."""
    found: _Paces = {}
    for run in store.runs(damaged=[]):
        if _key(run) not in keys:
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
                key = (_key(run), run.estimator)
                found[key] = max(found.get(key, pace), pace)
    return found


def _seconds(paces: _Paces, members: Sequence[Run], epochs: int) -> float | None:
    """Of so many epochs; a larger stack takes longer, a smaller one hardly less."""
    try:
        # what was trained together has one pace, which counts once
        stored = Counter(paces[_key(run), run.estimator] for run in members)
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


def _bytes_per_member(run: Run) -> int:
    task: Any = task_type(run)
    return int(task.bytes_per_member(run))


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"expected a positive number of seconds as {name}, got {value}")


def _check_largest(value: int | None) -> None:
    if value is not None and not (isinstance(value, int) and value > 0):
        raise ValueError(f"expected a positive whole number as largest_stack, got {value!r}")
