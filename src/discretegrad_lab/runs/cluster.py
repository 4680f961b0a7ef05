"""Train stacks on a Ray cluster; the run directories are on storage that all its nodes share.

A stack is a task of Ray, which queues it, runs it and, if its worker dies, runs it again. The task
is a local ``execute``, so it goes on from the last checkpoint; claims of a dead worker are gone
with it.
"""

import contextlib
import logging
import math
import pickle
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ..stack.config import Run
from .connection import Lifeline, connected, import_ray, lost, resources
from .desk import Desk
from .jobs import Job, user_files
from .listener import Listener, Outcome
from .options import STACK_OPTIONS, StackOptions
from .plan import Estimate
from .signals import stop_signals
from .store import StoreError
from .worker import Interrupted, Place, packed, plan, train, value

_log = logging.getLogger(__name__)

_RETRIES = 5
"""Deaths of its workers that a stack survives."""
_POLL = 0.25
"""Seconds between two looks at what workers report, which also bounds how old a word to stop is."""


def execute(
    runs: Iterable[Run],
    root: Path | str,
    *,
    address: str | None = None,
    device: torch.device | str = "cpu",
    data: Path | None = None,
    budget: float | None = None,
    stacks: StackOptions = STACK_OPTIONS,
    listener: Listener | None = None,
) -> Outcome:
    """Train every run that is not done on a Ray cluster, as ``execute.execute`` does on a device.

    A stack takes a GPU, or a processor core if the device is the CPU. As many stacks as there are
    of these are made, or more if memory or ``stacks`` ask for it; they are trained side by
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
        stacks: How stacks are made and saved.
        listener: Is told what happens.

    Raises:
        ClusterError: If Ray is missing, the cluster cannot be reached or has no such device, if
            its nodes do not share the directory, or if a stack has lost its worker too often.
        ValueError: If an argument is wrong, or for what ``execute.execute`` raises it.
        StoreError: If the file system of a node refuses; what was saved before is whole.
    """
    if budget is not None and not budget > 0:
        raise ValueError(f"expected a positive number of seconds as budget, got {budget}")
    deadline = math.inf if budget is None else time.perf_counter() + budget
    ray = import_ray(address)
    with connected(ray, address):
        kind, workers = resources(ray, device)
        configs = list(dict.fromkeys(runs))
        place = Place(
            Path(root).absolute(),
            kind,
            data and data.absolute(),
            stacks,
            files=user_files(configs),
        )
        job = _Job(ray, configs, place, listener, Lifeline(ray))
        try:
            job.plan(workers)
            with stop_signals() as caught:
                job.go(deadline, caught)
        except ray.exceptions.RayError as error:
            raise lost(error) from error
    return job.outcome()


class _Job(Job):
    """One call of ``execute``."""

    def __init__(
        self,
        ray: Any,
        runs: list[Run],
        place: Place,
        listener: Listener | None,
        lifeline: Lifeline,
    ) -> None:
        super().__init__(runs, place, listener)
        self.ray, self.lifeline = ray, lifeline
        self.options: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": 1 if place.device == "cuda" else 0,
            "max_retries": _RETRIES,
            "retry_exceptions": [Interrupted],
        }

    def plan(self, workers: int) -> None:
        """Sort the runs by what is stored, and those to do into stacks that fit a worker."""
        remote = self.ray.remote(**self.options)(plan)
        arguments = (packed(self.runs), self.place, workers)
        planned: Estimate = value(self._answer(remote.remote(*arguments)))
        self.planned(planned)

    def _answer(self, reference: Any) -> Any:
        """What a reference stands for, once that is known."""
        while not self.ray.wait([reference], timeout=_POLL)[0]:
            self.lifeline.check()
        return self.ray.get(reference)

    def go(self, deadline: float, caught: Sequence[str]) -> None:
        """Have the stacks trained until all are, or it must stop."""
        if not self.stacks:
            return
        ray = self.ray
        left = deadline - time.perf_counter()
        # it hardly does anything, so it takes no core from a stack
        desk = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Desk).remote(left)
        remote = ray.remote(**self.options)(train)
        with _token(self.store.root) as token:
            place = self.place._replace(token=token)
            tasks = {
                remote.remote(desk, number, packed(stack), place): number
                for number, stack in enumerate(self.stacks)
            }
            try:
                self._watch(desk, tasks, deadline, caught)
            finally:
                if not self.lifeline.cut:
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
            self.lifeline.check()
            if caught and self.stop is None:
                self.stop = caught[0]
            left = deadline - time.perf_counter()
            for stack, report in self._answer(desk.take.remote(self.stop, left)):
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
            outcome: Outcome = value(ray.get(task))
        except ray.exceptions.TaskCancelledError:
            self.stopped_by = self.stopped_by or "budget"
            self.look(stack)
        except ray.exceptions.RayError as error:
            # the others can go on
            self.errors.append(lost(error))
        except Exception as error:
            self.errors.append(error)
            self.stop = self.stop or "error"
        else:
            self.ended(outcome, again=again)


@contextlib.contextmanager
def _token(root: Path) -> Iterator[Path]:
    """A file by which workers see that the store is on the storage that the driver has.

    The driver holds a lock on it, which the kernel gives up when it dies: those that nobody holds
    were left by drivers that were killed, and are deleted.
    """
    folder = root / ".locks"
    path = folder / f"cluster-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("cluster-*"):
            with contextlib.suppress(Timeout, OSError), FileLock(old, blocking=False):
                old.unlink()
        lock = FileLock(path)
        lock.acquire()
    except OSError as error:
        raise StoreError(
            f"expected to write in {root}, got: {error.strerror}; choose a results directory that "
            "you may write and that all nodes share"
        ) from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        lock.release()
