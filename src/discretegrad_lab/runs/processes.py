"""Train stacks in several processes side by side, on one device of this machine.

It pays where a stack leaves most of the device idle and cannot be larger, such as a model whose
steps differ from member to member. Each process is a local ``execute`` of one stack at a time, so
everything that holds for a single process does: runs go on from their last checkpoint, whenever
something dies. On a GPU the processes share it through NVIDIA's MPS, where that can be started.
"""

import contextlib
import logging
import math
import multiprocessing
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..stack.config import Run
from .jobs import Job, user_files
from .listener import Listener, Outcome
from .mps import shared_gpu
from .options import STACK_OPTIONS, StackOptions
from .signals import stop_signals
from .worker import Failure, Place, Reporter, packed, plan, train_stack, value

_log = logging.getLogger(__name__)

_RETRIES = 2
"""Deaths of its process that a stack survives."""
_POLL = 0.25
"""Seconds between two looks at signals and the budget."""
_PATIENCE = 30.0
"""Seconds until a process that was told to go is killed."""


class ProcessLost(Exception):
    """Processes that train have died; the message says how."""


def execute(
    runs: Iterable[Run],
    root: Path | str,
    *,
    processes: int,
    device: torch.device | str = "cpu",
    data: Path | None = None,
    budget: float | None = None,
    stacks: StackOptions = STACK_OPTIONS,
    listener: Listener | None = None,
    announce: Callable[[str], None] | None = None,
) -> Outcome:
    """Train every run that is not done in several processes, as ``execute.execute`` does in one.

    Runs are cut into as many stacks as there are processes, or more if memory or ``stacks`` ask for
    it. Stacks are begun in the order of the runs. A process that dies is replaced, and its stack
    goes on from the last checkpoint. A listener is told about one stack at a time: when it is the
    turn of another one that has started before, its method ``stack_again``, or else
    ``stack_started``, is called once more.

    Args:
        runs: Configurations.
        root: The directory of the store.
        processes: How many, at most.
        device: The one that all of them use.
        data: The directory of the data sets.
        budget: Seconds after which to save and stop.
        stacks: How stacks are made and saved.
        listener: Is told what happens.
        announce: Is told the name of the first signal at once, in its handler.

    Raises:
        ProcessLost: If a stack has lost its process too often; the others were trained.
        ValueError: If an argument is wrong, or for what ``execute.execute`` raises it.
        StoreError: If the file system refuses; what was saved before is whole.
    """
    if not (isinstance(processes, int) and processes > 0):
        raise ValueError(f"expected a positive whole number of processes, got {processes!r}")
    if budget is not None and not budget > 0:
        raise ValueError(f"expected a positive number of seconds as budget, got {budget}")
    stacks.check()
    deadline = math.inf if budget is None else time.perf_counter() + budget
    configs = list(dict.fromkeys(runs))
    count = max(1, min(processes, len(configs)))
    place = Place(
        Path(root).absolute(),
        str(device),
        data and data.absolute(),
        stacks,
        files=user_files(configs),
        sharing=count,
    )
    job = _Job(configs, place, listener)
    with stop_signals(announce) as caught, shared_gpu(place.device) as why_not:
        if why_not:
            _log.warning("the processes take turns on the GPU without MPS: %s", why_not)
        with _workers(count) as workers:
            job.go(workers, deadline, caught)
    if job.errors:
        raise job.errors[0]
    return job.outcome()


class _Worker:
    """A process that trains stacks, as its parent sees it."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        # it goes with its parent, should that not come to tell it
        self._process = context.Process(target=_serve, args=(other, threads), daemon=True)
        self._process.start()
        # so that its death closes the connection
        other.close()

    def ask(self, *message: Any) -> None:
        """Send a message; that of a process that has died is lost."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self) -> tuple[str, Any]:
        """What it says next; raises ``EOFError`` or ``OSError`` if it has died."""
        message: tuple[str, Any] = self.connection.recv()
        return message

    def death(self) -> str:
        """How it died, in words."""
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        name = f"process {self._process.pid}"
        if code is not None and code < 0:
            return f"{name} was killed by signal {-code}"
        return f"{name} ended with exit code {code}"

    def end(self, patience: float) -> None:
        """Let it go; kill it if it does not."""
        self.connection.close()
        self._process.join(patience)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


class _Workers:
    """The processes that live, each with the threads that are its share of the cores."""

    def __init__(self, count: int) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._threads = max(1, (cores or 1) // count)
        self.alive = [_Worker(self._threads) for _ in range(count)]

    def replace(self, worker: _Worker) -> None:
        """Start another process in the place of one that has died."""
        worker.end(0.0)
        self.alive[self.alive.index(worker)] = _Worker(self._threads)


@contextlib.contextmanager
def _workers(count: int) -> Iterator[_Workers]:
    """Processes that are gone afterwards, whatever happens."""
    workers = _Workers(count)
    patience = 0.0
    try:
        yield workers
        patience = _PATIENCE
    finally:
        for worker in workers.alive:
            worker.end(patience)


class _Job(Job):
    """One call of ``execute``."""

    def go(self, workers: _Workers, deadline: float, caught: Sequence[str]) -> None:
        """Plan, and have the stacks trained until all are, or it must stop."""
        first = workers.alive[0]
        first.ask("plan", packed(self.runs), self.place, len(workers.alive))
        try:
            _, plan_or_failure = first.receive()
        except (EOFError, OSError) as error:
            raise ProcessLost(f"expected a plan, but {first.death()}") from error
        self.planned(value(plan_or_failure))
        waiting = deque(range(len(self.stacks)))
        busy: dict[_Worker, int] = {}
        begun: Counter[int] = Counter()
        while True:
            if caught and self.stop is None:
                self.stop = caught[0]
            left = deadline - time.perf_counter()
            for worker in workers.alive:
                over = self.stop or self.stopped_by or left <= 0
                if waiting and worker not in busy and not over:
                    number = waiting.popleft()
                    worker.ask("stack", packed(self.stacks[number]), self.place, left)
                    busy[worker] = number
                    begun[number] += 1
            if not busy:
                break
            for connection in wait([worker.connection for worker in busy], timeout=_POLL):
                worker = next(x for x in busy if x.connection is connection)
                try:
                    ended = self._hear(worker, busy[worker], begun)
                except (EOFError, OSError):
                    number, how = busy.pop(worker), worker.death()
                    workers.replace(worker)
                    self._mourn(number, how, begun[number], waiting)
                else:
                    if ended:
                        del busy[worker]
        for number in waiting:
            self.look(self.stacks[number])
        if waiting:
            self.stopped_by = self.stopped_by or self.stop or "budget"

    def _hear(self, worker: _Worker, number: int, begun: Counter[int]) -> bool:
        """Take in what a process says of its stack; whether that was the end."""
        kind, content = worker.receive()
        if kind == "report":
            worker.ask(self.stop)
            for report in content:
                name, arguments = pickle.loads(report)
                self.forward(number, name, arguments)
            return False
        try:
            self.ended(value(content), again=begun[number] > 1)
        except Exception as error:
            self.errors.append(error)
            self.stop = self.stop or "error"
        return True

    def _mourn(self, number: int, how: str, deaths: int, waiting: deque[int]) -> None:
        """Have another process go on with a stack, unless too many have died with it."""
        members = len(self.stacks[number])
        if deaths <= _RETRIES:
            _log.warning("%s while it trained a stack of %d; another one goes on", how, members)
            waiting.appendleft(number)
            return
        self.look(self.stacks[number])
        self.errors.append(
            ProcessLost(
                f"expected to train a stack of {members}, but {deaths} processes died with it; the "
                f"last one: {how}. What was trained is saved. A process that is killed mostly "
                "had too little memory: try fewer with --processes"
            )
        )


def _serve(connection: Connection, threads: int) -> None:
    """Plan and train what the parent asks for, until it closes the connection; in a worker."""
    if hasattr(os, "setpgrp"):
        # Ctrl-C is for the parent, which passes it on
        os.setpgrp()
    # not more than a user has asked for
    torch.set_num_threads(min(threads, torch.get_num_threads()))

    def report(events: list[bytes]) -> str | None:
        try:
            connection.send(("report", events))
            why: str | None = connection.recv()[0]
        except (EOFError, OSError):
            return "the parent has gone"
        return why

    while True:
        try:
            kind, runs, place, number = connection.recv()
            answer: Any
            if kind == "plan":
                answer = plan(runs, place, number)
            else:
                answer = train_stack(runs, place, number, Reporter(report, ""))
            connection.send(("answer", _sendable(answer)))
        except (EOFError, OSError, KeyboardInterrupt):
            return


def _sendable(answer: Any) -> Any:
    """The answer, or a failure that says why it cannot be sent."""
    try:
        pickle.dumps(answer)
    except Exception as error:
        return Failure(RuntimeError, f"{answer}: {error}", {}, "")
    return answer
