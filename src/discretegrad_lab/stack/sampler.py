"""Samples for stacks whose members use different estimators."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .config import Run, groups
from .lines import LINES, Line
from .noise import Noise


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

    def _of_group(self, line: Line, members: slice, logits: Tensor, index: Tensor) -> Tensor:
        """What the estimator of a line makes of the logits, with the arguments that it has."""
        arguments: dict[str, Any] = {"given": index}
        if line.takes("tau"):
            arguments["tau"] = self._tau(members, logits.ndim)
        if line.takes("num_draws"):
            arguments["num_draws"] = self._draws[members.start]
        if line.takes("seed"):
            arguments["seed"] = self.noise.seeds(members=members)
        elif line.takes("noise"):
            arguments["noise"] = self.noise.exponential(*logits.shape[1:], members=members)
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
