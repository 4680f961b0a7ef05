"""A task that has it all: groups, losses, schedules, clipping, buckets, an accuracy."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from discretegrad_lab import Group, Metric, Model, Noise, Run, Sampler
from discretegrad_lab.tasks.base import Task

FEATURES, CLASSES = 5, 3
SIZES = (8, 12, 8, 5)


@dataclass(frozen=True, kw_only=True)
class Toy(Run):
    """Guess a class from features by a sample, in batches of several sizes."""

    # whatever name a test runner gives this file, so that it is one task however often it is loaded
    __module__ = "lab_toy"
    task: ClassVar[str] = "toy"
    epochs: int = 4
    steps_per_epoch: int = len(SIZES)


class ToyModel(Model):
    """Weights that minimise the mistakes of samples, and a guess of the mistakes beside them."""

    loss_names = ("mistakes", "surprise")
    capture = "buckets"

    def __init__(self, runs, device, data=None):
        super().__init__()
        self.steps_per_epoch = runs[0].steps_per_epoch
        self._noise = Noise([run.seed for run in runs], device)
        self._sampler = Sampler(runs, self._noise)
        generators = [torch.Generator().manual_seed(run.seed) for run in runs]
        starts = [torch.randn(FEATURES, CLASSES, generator=g) for g in generators]
        self.weight = torch.stack(starts).to(device).requires_grad_()
        self.guess = torch.zeros(len(runs), CLASSES, device=device).requires_grad_()
        self.groups["model"] = Group.of_runs({"weight": self.weight}, runs)
        self.groups["guess"] = Group.alike(
            {"guess": self.guess}, range(len(runs)), 0.05, loss="surprise"
        )
        self.seen = torch.zeros(len(runs), device=device)
        self.buffers["seen"] = self.seen
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.counters = [self.step]
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(max(SIZES), FEATURES, generator=generator).to(device)
        self.label = (self.x[:, :CLASSES]).argmax(-1)
        self.right = torch.nn.functional.one_hot(self.label, CLASSES).float()
        self.batch = self.x

    def begin_epoch(self, epoch):
        self._noise.begin(epoch)
        self.step.zero_()

    def prepare(self, step):
        self.batch = self.x[: SIZES[step % len(SIZES)]]
        return len(self.batch)

    def losses(self):
        size = len(self.batch)
        logits = self.batch @ self.weight
        right = self.right[:size]
        mistakes = 1 - (self._sampler(logits) * right).sum(-1)
        surprise = (mistakes.detach() - self.guess @ right.T).square()
        self._noise.next_step()
        self.seen += size
        self.step += 1
        # the step is part of the loss, so that a graph which lost count would be seen
        share = 1 + 0.1 * self.step
        return {"mistakes": share * mistakes.mean(1), "surprise": surprise.mean(1)}

    @torch.no_grad()
    def evaluate(self, epoch):
        chosen = (self.x @ self.weight).argmax(-1)
        return {"accuracy": (chosen == self.label).float().mean(1)}


TOY = Task(
    config=Toy,
    model=ToyModel,
    metrics=(Metric("accuracy", "accuracy", 3, "up"), Metric("mistakes", "mistakes")),
    memory=lambda run: 1000,
)
