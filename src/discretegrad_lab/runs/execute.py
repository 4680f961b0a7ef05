"""Train what is not trained yet: stacks that fit, checkpoints, a clean stop, several processes."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..stack.config import Run
from ..stack.trainer import EpochAbandoned, Stack
from ..tasks import task
from .checkpoints import WRITERS, Copy, Pace, Writer
from .environment import check_device, describe, out_of_memory
from .listener import Listener, Outcome, Together
from .options import STACK_OPTIONS, StackOptions
from .pending import Group, damaged_runs, look, unrelated
from .plan import Fit, memory_of
from .signals import stop_signals
from .store import DamagedRun, Environment, LostClaim, Metrics, Saved, State, Status, Store


def execute(
    runs: Iterable[Run],
    store: Store,
    *,
    device: torch.device | str = "cpu",
    budget: float | None = None,
    data: Path | None = None,
    stacks: StackOptions = STACK_OPTIONS,
    listener: Listener | None = None,
    announce: Callable[[str], None] | None = None,
) -> Outcome:
    """Train every run that is not done and not in the hands of another process.

    SIGINT, SIGTERM and SIGHUP save and stop after the current epoch; SIGINT or SIGTERM as a second
    one stops at once. If anything raises an error, what is trained is saved first, but for the
    latest epochs where copies of them would have taken too long.

    Args:
        runs: Configurations, in the order their stacks should be trained.
        store: Where they are kept.
        device: Where to train.
        budget: Seconds after which to save and stop. An epoch is begun only if it should end, and
            be saved, in time. If it does not end in time, it is given up where everything before
            it is saved.
        data: The directory of the data sets.
        stacks: How stacks are made and saved.
        listener: Is told what happens. If it raises an error, training goes on without it, and a
            warning in the log says so.
        announce: Is told the name of the first signal at once, in its handler, so it should do
            hardly more than ``os.write``.

    Raises:
        ValueError: If an argument is wrong, or a newer version wrote the stored runs.
        StoreError: If the file system refuses; what was saved before is whole.
    """
    if budget is not None and not budget > 0:
        raise ValueError(f"expected a positive number of seconds as budget, got {budget}")
    stacks.check()
    deadline = math.inf if budget is None else time.perf_counter() + budget
    fit = Fit(check_device(device), stacks.largest_stack, stacks.bytes_per_member or memory_of)
    told = Together(*([] if listener is None else [listener]))
    work = _Work(store, fit, data, deadline, stacks, told)
    work.look(runs)
    with stop_signals(announce) as caught, Writer() as work.writer:
        work.caught = caught
        work.go()
        if stacks.until is not None:
            # there is more to come, so a signal in the last epoch counts too
            work._must_stop(0)
    return work.outcome()


def stack_of_task(runs: Sequence[Run], device: torch.device, data: Path | None) -> Stack:
    """Runs of one task that are alike, to be trained together."""
    return Stack(task(runs[0].task).model, runs, device, data)


@dataclass
class _Member:
    """What is kept of a run while it is trained."""

    run: Run
    metrics: Metrics
    environment: Environment
    seconds: float


class _Work:
    """One call of ``execute``."""

    writer: Writer
    caught: list[str]

    def __init__(
        self,
        store: Store,
        fit: Fit,
        data: Path | None,
        deadline: float,
        stacks: StackOptions,
        listener: Listener,
    ) -> None:
        self.store, self.fit, self.data = store, fit, data
        self.deadline, self.checkpoint_every = deadline, stacks.checkpoint_every
        self.listener, self.make_stack = listener, stacks.make_stack or stack_of_task
        self.end, self.until = stacks.end, stacks.until
        self.stopped_by: str | None = None
        self.abandoned = False
        self.building = 0.0
        """How long the latest stack took from claiming its runs to its first epoch, in seconds."""
        self.held: dict[Run, None] = {}
        """Claims that have not been handed over to a final commit."""
        self.told: set[Run] = set()
        self.finished: set[Run] = set()
        self.failed: set[Run] = set()
        self.diverged: set[Run] = set()
        self.reached: set[Run] = set()
        self.max_failures = math.inf if stacks.max_failures is None else stacks.max_failures
        self.lost: list[tuple[Run, str | None]] = []
        """Runs that could not be saved, and why; None if another process has saved them."""

    def look(self, runs: Iterable[Run]) -> None:
        """Sort the runs by what is stored; nothing is written before this is done."""
        damaged = damaged_runs(self.store)
        self.runs, self.pending, self.already, self.damaged = look(runs, self.store, self.until)
        self.unrelated = unrelated(damaged, self.runs)
        for run, reason in self.damaged.items():
            self.listener.run_damaged(run, reason)
        left = {run: self.end(run) - epoch for run, epoch in self.pending.items()}
        self.listener.planned(list(self.already), left)

    def go(self) -> None:
        """Train until nothing is left that this process can have, or it must stop."""
        trained = True
        while trained:
            trained = False
            # others may have died or stopped meanwhile
            self.pending.put_back()
            while self.stopped_by is None:
                group = self.pending.group()
                if not group or self._must_stop(self.building):
                    break
                trained |= self._take(group)
            trained = trained and bool(self.pending.aside) and self.stopped_by is None

    def outcome(self) -> Outcome:
        """Afterwards."""
        self._note_losses()
        for run in tuple(self.pending.aside):
            if self.store.status(run, quick=True).epoch >= self.end(run):
                self.already[run] = None
                del self.pending[run]
        groups = {
            "finished": self.finished,
            "failed": self.failed,
            "diverged": self.diverged,
            "reached": self.reached,
            "already": self.already,
            "stopped": self.pending.keys() - self.pending.aside.keys(),
            "elsewhere": self.pending.aside,
        }
        return Outcome(
            **{
                name: tuple(run for run in self.runs if run in members)
                for name, members in groups.items()
            },
            damaged={run: self.damaged[run] for run in self.runs if run in self.damaged},
            unrelated=self.unrelated,
            stopped_by=self.stopped_by,
            abandoned=self.abandoned,
        )

    def _take(self, group: Group) -> bool:
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
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if len(self.held) < 2:
                raise torch.OutOfMemoryError(str(error) or "out of memory.") from error
            # the task's estimate was too low
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
        try:
            claimed = self.store.claim(run)
        except DamagedRun as error:
            self._leave_alone(run, str(error))
            return False
        if not claimed:
            self._leave_to_another(run)
            return False
        status = self.store.status(run, quick=True)
        if status.state == "damaged":
            self._leave_alone(run, status.reason)
        elif status.epoch >= self.end(run):
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

    def _leave_to_another(self, run: Run) -> None:
        self.pending.set_aside(run)
        if run not in self.told:
            self.told.add(run)
            self.listener.run_elsewhere(run)

    def _note_losses(self) -> None:
        while self.lost:
            run, reason = self.lost.pop()
            if reason is not None:
                self._leave_alone(run, reason)
            else:
                # it may look finished here; the next claim sees how far the other one is
                self.pending.setdefault(run, 0)
                self._leave_to_another(run)

    def _let_go(self, run: Run, reason: str) -> None:
        """Leave a run alone that was to be a member of the next stack."""
        self._leave_alone(run, reason)
        self.store.release(run)
        del self.held[run]

    def _load(self) -> dict[Run, Saved]:
        """What is stored of runs that have begun; damaged ones are let go."""
        loaded = {}
        for run in tuple(self.held):
            try:
                loaded[run] = self.store.load(run)
            except DamagedRun as error:
                self._let_go(run, str(error))
            except KeyError:
                # moved away since it was claimed, so it begins again
                self.pending[run] = 0
                self.store.release(run)
                del self.held[run]
        return loaded

    def _train(self) -> None:
        began = time.perf_counter()
        epoch = self.pending[next(iter(self.held))]
        saved = self._load() if epoch else {}
        if not self.held:
            return
        stack = self.make_stack(list(self.held), self.fit.device, self.data)
        for number, run in enumerate(stack.runs):
            if run in saved:
                try:
                    stack.load_state(number, saved[run].state)
                except ValueError as error:
                    self._let_go(run, f"{self.store.directory(run)}: {error}")
        if len(self.held) < len(stack.runs):
            # the others make another stack
            return
        stack.epoch = epoch
        here = {
            **describe(self.fit.device, tf32=stack.runs[0].tf32),
            "members": len(stack.runs),
            "from_epoch": epoch,
        }
        members = [
            _Member(run, old.metrics, [*old.environment, here], old.status.seconds)
            if (old := saved.get(run))
            else _Member(run, [], [here], 0.0)
            for run in stack.runs
        ]
        asked = time.perf_counter()
        state = sum(tensor.nbytes for tensor in stack.state(0).values())
        pace = Pace(len(members), state, time.perf_counter() - asked)
        # what is new, and what is not deleted yet while it is replaced
        self.store.check_room((len(members) - len(saved) + WRITERS) * state)
        saved.clear()
        end = self.end(stack.runs[0])
        self.listener.stack_started(stack.runs, epoch, end, stack.steps_per_epoch)
        self.building = time.perf_counter() - began
        # where others wait that these can join
        self._loop(stack, members, min(end, self.pending.joins(stack.runs[0], epoch)), pace)
        self.listener.stack_finished(stack.runs, stack.epoch)

    def _loop(self, stack: Stack, members: Sequence[_Member], until: int, pace: Pace) -> None:
        saved_at = stack.epoch
        copy: Copy | None = None
        """Of epochs that are not saved, for the case of an error."""
        last = copied = time.perf_counter()

        def over() -> bool:
            # epochs before it that are not saved would be lost, and a signal promises to finish it
            saved = stack.epoch == saved_at
            return saved and not self.caught and time.perf_counter() >= self.deadline

        def copy_now() -> Copy:
            return pace.copied(stack, [member.seconds for member in members])

        stop = None if math.isinf(self.deadline) else over
        try:
            while stack.epoch < until and not self._must_stop(pace.next_epoch()):
                try:
                    now = self._advance(stack, members, pace, stop)
                except EpochAbandoned:
                    self.stopped_by, self.abandoned = "budget", True
                    break
                every = pace.interval() if self.checkpoint_every is None else self.checkpoint_every
                if stack.epoch < until and now - last >= every:
                    self._save(copy_now(), members, pace)
                    copy, saved_at = None, stack.epoch
                    last = copied = time.perf_counter()
                elif now - copied >= pace.copy_interval():
                    copy, copied = copy_now(), time.perf_counter()
            if stack.epoch > saved_at:
                self._save(copy_now(), members, pace)
                copy, saved_at = None, stack.epoch
            if stack.epoch < stack.epochs:
                self._settle(members, stack.epoch)
        except Exception:
            if copy is not None:
                self._rescue(copy, members, pace)
            raise

    def _advance(
        self,
        stack: Stack,
        members: Sequence[_Member],
        pace: Pace,
        stop: Callable[[], bool] | None,
    ) -> float:
        """Train for an epoch; the time at its end."""
        began = time.perf_counter()
        metrics = stack.advance(stop)
        now = time.perf_counter()
        pace.epoch(now - began)
        for number, member in enumerate(members):
            row = {name: values[number] for name, values in metrics.items()}
            member.metrics.append({"epoch": stack.epoch, **row})
            member.seconds += now - began
        self.listener.epoch_done(stack.epoch, metrics, now - began)
        self.writer.check()
        return now

    def _settle(self, members: Sequence[_Member], epoch: int) -> None:
        """Wait until an epoch is saved, since what is stored decides what comes next."""
        self.writer.wait()
        self._note_losses()
        for member in members:
            if member.run in self.pending and member.run not in self.pending.aside:
                self.pending[member.run] = epoch
                if epoch == self.end(member.run):
                    del self.pending[member.run]
                    self.reached.add(member.run)

    def _rescue(self, copy: Copy, members: Sequence[_Member], pace: Pace) -> None:
        """Save a copy before an error ends training; if that fails too, the first error counts."""
        with contextlib.suppress(Exception):
            self.writer.wait()
        with contextlib.suppress(Exception):
            self._save(copy, members, pace)
            self._settle(members, copy.epoch)

    def _save(self, copy: Copy, members: Sequence[_Member], pace: Pace) -> None:
        """Hand a checkpoint of all members to the writer; a final one gives the claims up too."""
        began = time.perf_counter()
        self.writer.wait()
        self._note_losses()
        finished = copy.epoch == members[0].run.epochs
        jobs = []
        for number, member in enumerate(members):
            if member.run not in self.damaged and member.run not in self.pending.aside:
                step = copy.diverged[number]
                end: State = "finished" if step is None else "diverged"
                state: State = end if finished else "started"
                status = Status(state, copy.epoch, copy.seconds[number], step)
                metrics = member.metrics[: copy.epoch]
                saved = Saved(status, metrics, member.environment, copy.states[number])
                jobs.append(functools.partial(self._write, member.run, saved))
        self.writer.start(jobs, pace)
        if finished:
            for member in members:
                if member.run in self.damaged or member.run in self.pending.aside:
                    self.store.release(member.run)
                else:
                    self.pending.pop(member.run, None)
            self.held.clear()
        waited = pace.copy_seconds + time.perf_counter() - began
        pace.waited(waited)
        self.listener.checkpointed(copy.epoch, waited)

    def _write(self, run: Run, saved: Saved) -> None:
        """In another thread."""
        try:
            self.store.save(run, saved)
            if saved.status.done:
                (self.finished if saved.status.state == "finished" else self.diverged).add(run)
                if saved.status.state == "finished" and task(run.task).failed(run, saved.metrics):
                    self.failed.add(run)
        except DamagedRun as error:
            self.lost.append((run, str(error)))
        except LostClaim:
            self.lost.append((run, None))
        finally:
            if saved.status.done:
                self.store.release(run)

    def _must_stop(self, seconds: float) -> bool:
        """Whether to stop, if the next thing to do takes so long."""
        if self.stopped_by is None:
            if self.caught:
                self.stopped_by = self.caught[0]
            elif len(self.damaged) >= self.max_failures:
                self.stopped_by = "failures"
            elif time.perf_counter() + seconds > self.deadline:
                self.stopped_by = "budget"
        return self.stopped_by is not None
