"""Train many runs as one tensor program.

Every parameter and activation has a leading member axis. A step of all members is one forward, one
backward for each loss and one update for each group of parameters; on a GPU it is captured as a
CUDA graph and replayed.
"""

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import discretegrad

from .compilation import compiled, worth_compiling
from .config import Run, in_order
from .model import Group, Model
from .momentum import Momentum
from .noise import Noise
from .optimisers import Optimiser

# steps of a CUDA graph: few replays are cheap, and a long graph takes long to capture
_STEPS_OF_A_GRAPH = 20


class EpochAbandoned(Exception):
    """An epoch was given up between two steps."""


class Stack:
    """Runs that are trained together.

    Args:
        make_model: The stacked model of the task, from the runs, the device and ``data``.
        runs: Configurations that differ only in ``Run.member_fields``.
        device: Where to train.
        data: The directory of the data sets, see ``discretegrad_lab.tasks.data``.
        graph: Whether to capture steps as CUDA graphs; on a GPU by default, if the model allows it.
    """

    def __init__(
        self,
        make_model: Callable[[Sequence[Any], torch.device, Path | None], Model],
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
        self.model = make_model(self.runs, self.device, data)
        self.steps_per_epoch = self.model.steps_per_epoch
        self._groups = _by_loss(self.model)
        updates = self.epochs * self.steps_per_epoch
        groups = self.model.groups.values()
        # together: beside a large group the many short kernels of a small one would take as long
        elements = sum(x.numel() for group in groups for x in group.parameters.values())
        # what is not captured waits for the host, and would be compiled in each of many processes
        compile = self.model.capture != "none" and worth_compiling(self.device, elements)
        self.optimisers = {
            name: _optimiser(group, updates, compile) for name, group in self.model.groups.items()
        }
        # in turn, each loss would be compiled anew
        self._take_in = take_in if self.model.in_turn or not compile else compiled(take_in)
        members = len(self.runs)
        self.diverged = torch.full((members,), -1, dtype=torch.int64, device=self.device)
        """The step, from 1, at which a loss was not finite for the first time; -1 if there is none.
        The last step of an epoch whose update leaves parameters that are not finite counts too."""
        self._step = torch.zeros((), dtype=torch.int64, device=self.device)
        self._totals = {
            name: torch.zeros(members, dtype=torch.float64, device=self.device)
            for name in self.model.loss_names
        }
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        on_gpu = self.device.type == "cuda" if graph is None else graph
        self._captures = on_gpu and self.model.capture != "none"
        self._steps_of_a_graph = 1
        if self.model.capture == "whole":
            self._steps_of_a_graph = _largest_divisor(self.steps_per_epoch, _STEPS_OF_A_GRAPH)

    def advance(self, stop: Callable[[], bool] | None = None) -> dict[str, list[float]]:
        """Train for one epoch; metrics by name, one number for each member, NaN if it diverged.

        Args:
            stop: Is asked before every step, or graph of some steps, whether to give the epoch up.

        Raises:
            EpochAbandoned: If so. The members are somewhere within the epoch then: go on with
                another stack that has the ``state`` of before.
        """
        with _settings(self.runs[0].tf32, one_thread=self.model.one_thread):
            self.model.begin_epoch(self.epoch)
            self._step.fill_(self.epoch * self.steps_per_epoch)
            for total in self._totals.values():
                total.zero_()
            if self._captures:
                self._replay(stop)
            else:
                for step in range(self.steps_per_epoch):
                    _ask(stop)
                    self._prepare(step)
                    self._train()
            self.epoch += 1
            self._note_lost()
            metrics = {name: x / self.steps_per_epoch for name, x in self._totals.items()}
            metrics |= self.model.evaluate(self.epoch)
            alive = self.diverged < 0
            return {
                name: torch.where(alive, values.double(), torch.nan).tolist()
                for name, values in metrics.items()
            }

    def _prepare(self, step: int) -> Hashable:
        return None if self.model.capture == "whole" else self.model.prepare(step)

    def _replay(self, stop: Callable[[], bool] | None) -> None:
        """The steps of an epoch."""
        last = None
        for step in range(0, self.steps_per_epoch, self._steps_of_a_graph):
            _ask(stop)
            key = self._prepare(step)
            if key not in self._graphs:
                self._graphs[key] = self._capture()
            self._graphs[key].replay()
            if stop is not None:
                # else all replays were queued at once; with one in the queue the GPU never waits
                queued = torch.cuda.Event()
                queued.record(torch.cuda.current_stream(self.device))
                if last is not None:
                    last.synchronize()
                last = queued

    def _train(self) -> None:
        self._step += 1
        if not self.model.in_turn:
            self._update(self.model.losses(), self._groups)
            return
        for loss in self.model.loss_names:
            groups = {loss: self._groups[loss]} if loss in self._groups else {}
            self._update({loss: self.model.loss(loss)}, groups)

    def _update(
        self, losses: Mapping[str, Tensor], by_loss: Mapping[str, Mapping[str, Group]]
    ) -> None:
        """Take in some losses, and update the groups of parameters that minimise them."""
        updates: dict[str, Mapping[str, Tensor]] = {}
        for number, (loss, groups) in enumerate(by_loss.items(), 1):
            leaves = [x for group in groups.values() for x in group.parameters.values()]
            gradients = iter(self.model.gradients(losses[loss], leaves, number < len(by_loss)))
            for name, group in groups.items():
                updates[name] = dict(zip(group.parameters, gradients, strict=False))
        names = [name for name in self._totals if name in losses]
        alive = self._take_in(
            [losses[name].detach() for name in names],
            [self._totals[name] for name in names],
            self.diverged,
            self._step,
        )
        for name, gradient in updates.items():
            members = self.model.groups[name].members
            self.optimisers[name].step(gradient, alive[members.start : members.stop])

    @torch.no_grad()
    def _note_lost(self) -> None:
        """Members that the last update has destroyed, which no further loss would tell."""
        for group in self.model.groups.values():
            own = self.diverged[group.members.start : group.members.stop]
            finite = [x.isfinite().view(len(x), -1).all(1) for x in group.parameters.values()]
            lost = ~torch.stack(finite).all(0) & (own < 0)
            own.masked_fill_(lost, self.epoch * self.steps_per_epoch)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Some steps as a graph; nothing has changed then."""
        buffers = self.model.buffers.values()
        changing = [
            self.diverged, self._step, *self._totals.values(), *buffers, *self.model.counters,
            *(x.counter for x in vars(self.model).values() if isinstance(x, Noise)),
        ]  # fmt: skip
        before = [x.clone() for x in changing]
        # a step leaves members that diverged as they are
        self.diverged.zero_()
        try:
            return self._captured()
        finally:
            for x, old in zip(changing, before, strict=True):
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
        states: list[dict[str, Tensor]] = [{} for _ in self.runs]
        for name, (members, x) in self._stacked_state().items():
            for member, part in zip(members, x.to("cpu", copy=True), strict=True):
                states[member][name] = part
        return states

    def _stacked_state(self) -> dict[str, tuple[range, Tensor]]:
        """Whose and what, (those, ...) each; not copied."""
        everyone = range(len(self.runs))
        tensors = {"diverged": (everyone, self.diverged)}
        for name, x in self.model.buffers.items():
            tensors[f"buffers/{name}"] = everyone, x.detach()
        for start, group, optimiser in self._parts():
            for name, x in group.parameters.items():
                tensors[f"{start}parameters/{name}"] = group.members, x.detach()
            for name, x in optimiser.stacked_state().items():
                tensors[f"{start}optimiser/{name}"] = group.members, x
        return tensors

    def _parts(self) -> Iterator[tuple[str, Group, Optimiser | Momentum]]:
        """The groups with their optimisers, and how the names of their state begin."""
        for number, (name, group) in enumerate(self.model.groups.items()):
            yield f"{name}/" if number else "", group, self.optimisers[name]

    @torch.no_grad()
    def load_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Go on from ``state``; set ``epoch`` once all members have theirs.

        Raises:
            ValueError: If it is of another model; nothing has changed then.
        """
        views = {
            name: x[members.index(member)]
            for name, (members, x) in self._stacked_state().items()
            if member in members
        }
        expected = {name: tuple(x.shape) for name, x in views.items()}
        shapes = {name: tuple(x.shape) for name, x in state.items()}
        if shapes != expected:
            differing = sorted(dict(shapes.items() ^ expected.items()))
            raise ValueError(
                f"expected the state of a member with the tensors of this model, got one that "
                f"differs in {', '.join(differing[:5])}; load one that was saved with the same "
                "task and sizes, or move it away to train its run again"
            )
        for name, x in views.items():
            x.copy_(state[name])


def take_in(
    losses: Sequence[Tensor], totals: Sequence[Tensor], diverged: Tensor, step: Tensor
) -> Tensor:
    """Add the losses of a step to their totals; which members are alive.

    Those whose loss is not finite for the first time are noted in ``diverged``.
    """
    for values, total in zip(losses, totals, strict=True):
        first = ~values.isfinite() & (diverged < 0)
        torch.where(first, step, diverged, out=diverged)
        total += values
    return diverged < 0


def _optimiser(group: Group, updates: int, compile: bool) -> Optimiser | Momentum:
    """That of a group whose schedules go over so many updates."""
    schedules = None
    if any(schedule.kind != "constant" for schedule in group.schedules):
        schedules = [schedule.factors(updates) for schedule in group.schedules]
    if "sgd" not in group.optimisers:
        return Optimiser(
            group.parameters,
            group.optimisers,
            group.learning_rates,
            schedules=schedules,
            rate_factors=group.rate_factors,
            clip_norms=group.clip_norms,
            beta1=group.beta,
            decay=group.decay,
            compile=compile,
        )
    if {*group.optimisers} != {"sgd"} or any(group.clip_norms):
        raise ValueError(
            "expected sgd for all members of a group, without a limit of the gradient, got "
            f"{', '.join(group.optimisers)} with limits {list(group.clip_norms)}"
        )
    return Momentum(
        group.parameters,
        group.learning_rates,
        schedules=schedules,
        momentum=group.beta,
        decay=group.decay,
    )


def _by_loss(model: Model) -> dict[str, dict[str, Group]]:
    """The groups of parameters for each loss that has any."""
    by_loss: dict[str, dict[str, Group]] = {}
    for name, group in model.groups.items():
        loss = group.loss or model.loss_names[0]
        if loss not in model.loss_names:
            raise ValueError(
                f"expected a loss of {', '.join(model.loss_names)} for the parameters {name}, "
                f"got {loss!r}"
            )
        by_loss.setdefault(loss, {})[name] = group
    return by_loss


def _ask(stop: Callable[[], bool] | None) -> None:
    if stop is not None and stop():
        raise EpochAbandoned


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


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
    convolutions = torch.backends.cudnn.allow_tf32
    checks = discretegrad.set_checks("never")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if one_thread:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = precision
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_num_threads(threads)
        discretegrad.set_checks(checks)
