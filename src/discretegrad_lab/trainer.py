"""Train many runs as one tensor program.

Every parameter and activation has a leading member axis. A step of all members is one forward, one
backward and one update; on a GPU it is captured as a CUDA graph and replayed.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

import discretegrad

from .config import Run
from .estimators import in_order
from .optimisers import Optimiser

# steps of a CUDA graph: few replays are cheap, and a long graph takes long to capture
_STEPS_OF_A_GRAPH = 20


class EpochAbandoned(Exception):
    """An epoch was given up between two steps."""


class Task(Protocol):
    """A stacked model with its data."""

    loss_name: str
    """Of the mean training loss among the metrics."""
    parameters: dict[str, Tensor]
    """Leaves, (members, ...)."""
    steps_per_epoch: int
    one_thread: bool
    """Whether its tensors are too small for several threads of a CPU, which would wait for each
    other longer than they work, above all where other processes use the cores."""

    @property
    def learned(self) -> list[Tensor]:
        """What the estimators of some members learn besides."""

    def learn(self, gradients: Sequence[Tensor], alive: Tensor) -> None:
        """A step of those, for the members that are alive."""

    def begin_epoch(self, epoch: int) -> None:
        """Prepare an epoch, counted from 0: order of the data, random numbers."""

    def losses(self) -> Tensor:
        """The loss of the next step, (members,); no value of it may depend on other members."""

    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """Metrics after so many epochs, (members,) each."""

    def extra_state(self) -> tuple[range, dict[str, Tensor]]:
        """What else some members need to go on after an epoch: who, and (those, ...) each."""

    def load_extra(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Go on from a member's part of it."""


def task_type(run: Run) -> Callable[..., Task]:
    """The stacked model of a run."""
    if run.task == "polynomial":
        from .tasks.polynomial import PolynomialTask

        return PolynomialTask
    from .tasks.vae import VaeTask

    return VaeTask


class Stack:
    """Runs that are trained together.

    Args:
        runs: Configurations that differ only in ``Run.member_fields``.
        device: Where to train.
        data: The directory of the data sets, see ``discretegrad_lab.data``.
        graph: Whether to capture a step as a CUDA graph; on a GPU by default.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        device: torch.device | str = "cpu",
        data: Path | None = None,
        *,
        graph: bool | None = None,
    ) -> None:
        if len({run.stack_key for run in runs}) != 1:
            raise ValueError("expected runs that differ only in what members may differ in")
        if len({run.identity for run in runs}) != len(runs):
            raise ValueError("expected different runs, got one of them twice")
        self.device = torch.device(device)
        self.runs = tuple(in_order(runs))
        self.epoch = 0
        """How many epochs all members have done."""
        self.epochs = runs[0].epochs
        self.task: Task = task_type(runs[0])(self.runs, self.device, data)
        self.steps_per_epoch = self.task.steps_per_epoch
        self.optimiser = Optimiser(
            self.task.parameters,
            [run.optimiser for run in self.runs],
            [run.learning_rate for run in self.runs],
        )
        members = len(self.runs)
        self.diverged = torch.full((members,), -1, dtype=torch.int64, device=self.device)
        """The step, from 1, whose loss was the first that is not finite; -1 if there is none. The
        last step of an epoch whose update leaves parameters that are not finite counts too."""
        self._step = torch.zeros((), dtype=torch.int64, device=self.device)
        self._total = torch.zeros(members, dtype=torch.float64, device=self.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._steps_of_a_graph = _largest_divisor(self.steps_per_epoch, _STEPS_OF_A_GRAPH)
        self._captures = self.device.type == "cuda" if graph is None else graph

    def advance(self, stop: Callable[[], bool] | None = None) -> dict[str, list[float]]:
        """Train for one epoch; metrics by name, one number for each member, NaN if it diverged.

        Args:
            stop: Is asked before every step, or graph of some steps, whether to give the epoch up.

        Raises:
            EpochAbandoned: If so. The members are somewhere within the epoch then: go on with
                another stack that has the ``state`` of before.
        """
        with _settings(self.runs[0].tf32, one_thread=self.task.one_thread):
            self.task.begin_epoch(self.epoch)
            self._step.fill_(self.epoch * self.steps_per_epoch)
            if self._captures and self._graph is None:
                self._graph = self._capture()
                self.task.begin_epoch(self.epoch)
            self._total.zero_()
            if self._graph is None:
                for _ in range(self.steps_per_epoch):
                    _ask(stop)
                    self._train()
            else:
                self._replay(self._graph, stop)
            self.epoch += 1
            self._note_lost()
            metrics = {self.task.loss_name: self._total / self.steps_per_epoch}
            metrics |= self.task.evaluate(self.epoch)
            alive = self.diverged < 0
            return {
                name: torch.where(alive, values.double(), torch.nan).tolist()
                for name, values in metrics.items()
            }

    def _replay(self, graph: torch.cuda.CUDAGraph, stop: Callable[[], bool] | None) -> None:
        """The steps of an epoch."""
        last = None
        for _ in range(self.steps_per_epoch // self._steps_of_a_graph):
            _ask(stop)
            graph.replay()
            if stop is not None:
                # else all replays were queued at once; with one in the queue the GPU never waits
                queued = torch.cuda.Event()
                queued.record(torch.cuda.current_stream(self.device))
                if last is not None:
                    last.synchronize()
                last = queued

    def _train(self) -> None:
        parameters = self.task.parameters
        learned = self.task.learned
        losses = self.task.losses()
        gradients = torch.autograd.grad(losses.sum(), [*parameters.values(), *learned])
        self._step += 1
        losses = losses.detach()
        first = ~losses.isfinite() & (self.diverged < 0)
        torch.where(first, self._step, self.diverged, out=self.diverged)
        self._total += losses
        own = dict(zip(parameters, gradients[: len(parameters)], strict=True))
        alive = self.diverged < 0
        self.optimiser.step(own, alive)
        if learned:
            self.task.learn(gradients[len(parameters) :], alive)

    @torch.no_grad()
    def _note_lost(self) -> None:
        """Members that the last update has destroyed, which no further loss would tell."""
        finite = [x.isfinite().flatten(1).all(1) for x in self.task.parameters.values()]
        lost = ~torch.stack(finite).all(0) & (self.diverged < 0)
        self.diverged.masked_fill_(lost, self.epoch * self.steps_per_epoch)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Some steps as a graph; nothing has changed then but the random numbers."""
        kept = [self.diverged, self._step]
        before = [x.clone() for x in kept]
        # a step leaves members that diverged as they are
        self.diverged.zero_()
        try:
            return self._captured()
        finally:
            for x, old in zip(kept, before, strict=True):
                x.copy_(old)

    def _captured(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                self._train()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph):
            for _ in range(self._steps_of_a_graph):
                self._train()
        return graph

    def state(self, member: int) -> dict[str, Tensor]:
        """All that a member needs to go on after the last epoch, as copies on the CPU."""
        return {
            name: x[members.index(member)].to("cpu", copy=True)
            for name, (members, x) in self._stacked_state().items()
            if member in members
        }

    def states(self) -> list[dict[str, Tensor]]:
        """``state`` of every member, as parts of one copy of each tensor."""
        found: list[dict[str, Tensor]] = [{} for _ in self.runs]
        for name, (members, x) in self._stacked_state().items():
            for member, part in zip(members, x.to("cpu", copy=True), strict=True):
                found[member][name] = part
        return found

    def _stacked_state(self) -> dict[str, tuple[range, Tensor]]:
        """Whose and what, (those, ...) each; not copied."""
        found = {f"parameters/{n}": x for n, x in self.task.parameters.items()}
        found["diverged"] = self.diverged
        found |= {f"optimiser/{n}": x for n, x in self.optimiser.stacked_state().items()}
        everyone = range(len(self.runs))
        some, extra = self.task.extra_state()
        return {name: (everyone, x.detach()) for name, x in found.items()} | {
            f"task/{name}": (some, x.detach()) for name, x in extra.items()
        }

    @torch.no_grad()
    def load_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Go on from ``state``; set ``epoch`` once all members have theirs."""
        for name, x in self.task.parameters.items():
            x[member] = state[f"parameters/{name}"].to(x.device)
        self.diverged[member] = state["diverged"].to(self.device)
        self.optimiser.load_state(member, _part("optimiser", state))
        self.task.load_extra(member, _part("task", state))


def _ask(stop: Callable[[], bool] | None) -> None:
    if stop is not None and stop():
        raise EpochAbandoned


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def _part(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = name + "/"
    return {key.removeprefix(start): x for key, x in state.items() if key.startswith(start)}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage before and not within: a graph or a node that is freed breaks a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _settings(tf32: bool, *, one_thread: bool) -> Iterator[None]:
    """Global switches of torch and the library for the time of an epoch."""
    precision, threads = torch.backends.cuda.matmul.allow_tf32, torch.get_num_threads()
    checks = discretegrad.set_checks("never")
    torch.backends.cuda.matmul.allow_tf32 = tf32
    if one_thread:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = precision
        torch.set_num_threads(threads)
        discretegrad.set_checks(checks)
