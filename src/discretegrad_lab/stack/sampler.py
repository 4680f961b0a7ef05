"""Samples for stacks whose members use different estimators."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from discretegrad import gumbel_rao

from .config import Run, groups
from .lines import LINES, Line
from .noise import Noise

Later = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From the number of a sample, its logits and categories, and the gradient at it, to the gradient
at the logits."""


class Sampler:
    """One-hot samples for all members of a stack, each with the gradient of its own estimator."""

    def __init__(self, runs: Sequence[Run], noise: Noise) -> None:
        others = {run.estimator for run in runs if run.line.kind != "sampler"}
        if others:
            samplers = [key for key, line in LINES.items() if line.kind == "sampler"]
            raise ValueError(
                f"expected estimators that make a sample, got {', '.join(sorted(others))}; "
                f"use {', '.join(samplers)}"
            )
        self.noise = noise
        self.members = slice(0, len(runs))
        """The members of the stack that these runs are: the first ones."""
        self.groups = groups(runs)
        self._draws = [run.draws for run in runs]
        self._numbers = [run.tau for run in runs]
        self._taus = torch.tensor(self._numbers, device=noise.device)

    def set_taus(self, taus: Sequence[float]) -> None:
        """Other temperatures than those of the runs, one for each, from now on."""
        self._numbers = list(taus)
        self._taus.copy_(torch.tensor(self._numbers))

    def __call__(self, logits: Tensor) -> Tensor:
        """Samples of the shape of the logits, (members, ..., categories)."""
        return self.at(logits, self.noise.categories(logits, self.members))

    def at(self, logits: Tensor, index: Tensor) -> Tensor:
        """The samples of categories that the noise has drawn."""
        # split, since the gradient of a slice is a whole tensor of mostly zeros
        pieces = logits.split([members.stop - members.start for _, members in self.groups])
        samples = [
            self._of_group(line, members, piece, index[members])
            for (line, members), piece in zip(self.groups, pieces, strict=True)
        ]
        return samples[0] if len(samples) == 1 else torch.cat(samples)

    def later(self, steps: int, *shape: int) -> Later:
        """Gradients of samples one after the other, which may be asked for in any order.

        All random numbers are made now, those of all steps at once, and the next ones of the noise
        are others only after ``next_step``. Nobody has to make a sample to get its gradient then.

        Args:
            steps: How many samples there will be.
            shape: The largest of their logits, without the axis of members. Those of a step may
                have fewer categories.
        """
        makers = [self._of_later(line, members, steps, shape) for line, members in self.groups]

        def gradient(step: int, logits: Tensor, index: Tensor, g: Tensor) -> Tensor:
            gradients: list[Tensor] = []
            for (_, members), make in zip(self.groups, makers, strict=True):
                own = logits[members].detach().requires_grad_()
                with torch.enable_grad():
                    sample = make(step, own, index[members])
                gradients += torch.autograd.grad(sample, own, g[members])
            return gradients[0] if len(gradients) == 1 else torch.cat(gradients)

        return gradient

    def _of_later(
        self, line: Line, members: slice, steps: int, shape: tuple[int, ...]
    ) -> Callable[[int, Tensor, Tensor], Tensor]:
        """How to make the samples of a line, from a step, logits and categories."""
        is_one_draw = line.row == "gumbel_softmax" and not line.options
        if is_one_draw or line.takes("seed"):
            seeds = self.noise.seeds(steps, members=members).mT
            # an even number, so that those of each step begin where a kernel likes it
            count = seeds.shape[1]
            seeds = pad(seeds, (0, count % 2)).contiguous()
            if is_one_draw:
                # the same estimator under a name for which there is a kernel with seeds
                return lambda step, logits, index: gumbel_rao(
                    logits,
                    self._tau(members, logits.ndim),
                    num_draws=1,
                    given=index,
                    seed=seeds[step, :count],
                )
            return lambda step, logits, index: self._call(
                line, members, logits, given=index, seed=seeds[step, :count]
            )
        if line.takes("noise"):
            noise = self.noise.exponential(steps, *shape, members=members)
            return lambda step, logits, index: self._call(
                line, members, logits, given=index, noise=noise[:, step, ..., : logits.shape[-1]]
            )
        return lambda step, logits, index: self._call(line, members, logits, given=index)

    def _of_group(self, line: Line, members: slice, logits: Tensor, index: Tensor) -> Tensor:
        """What the estimator of a line makes of the logits, with new noise if it takes any."""
        arguments = {"given": index}
        if line.takes("seed"):
            arguments["seed"] = self.noise.seeds(members=members)
        elif line.takes("noise"):
            arguments["noise"] = self.noise.exponential(*logits.shape[1:], members=members)
        return self._call(line, members, logits, **arguments)

    def _call(self, line: Line, members: slice, logits: Tensor, **arguments: Any) -> Tensor:
        """Ask the estimator of a line, with the settings of its members that it takes."""
        if line.takes("tau"):
            arguments["tau"] = self._tau(members, logits.ndim)
        if line.takes("num_draws"):
            arguments["num_draws"] = self._draws[members.start]
        return line.function(logits, **arguments | dict(line.options))

    def _tau(self, members: slice, ndim: int) -> float | Tensor:
        numbers = set(self._numbers[members])
        if len(numbers) == 1:
            # kernels are faster for one number
            return numbers.pop()
        return self._taus[members].view(-1, *[1] * (ndim - 1))


def repeated(logits: Tensor, times: int) -> Tensor:
    """A view with each member's logits so many times, (members, times, ..., categories)."""
    return logits.unsqueeze(1).expand(-1, times, *logits.shape[1:])
