"""The estimators under the names of the paper, for stacks whose members use different ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

import discretegrad

from .noise import Noise

if TYPE_CHECKING:
    from .config import Run


@dataclass(frozen=True)
class Estimator:
    """One line of the paper's tables and figures."""

    name: str
    title: str
    """As in the paper."""
    colour: str
    dash: str = ""
    kind: Literal["sampler", "objective", "exact"] = "sampler"
    """Whether it makes a sample to differentiate through, needs the loss as a function, or knows
    the expected loss."""
    has_tau: bool = True


# colours that a colour-blind reader can tell apart (Okabe and Ito)
ESTIMATORS = {
    one.name: one
    for one in (
        Estimator("reinmax", "ReinMax", "#0072B2"),
        Estimator("st", "ST", "#D55E00"),
        Estimator("stgs", "STGS", "#009E73"),
        Estimator("gr-mck", "GR-MCK", "#56B4E9", "6 3"),
        Estimator("gst-1.0", "GST-1.0", "#CC79A7", "6 3"),
        Estimator("gst-p", "GST-p", "#CC79A7"),
        Estimator("reinforce", "REINFORCE", "#E69F00", "2 3", "objective", False),
        Estimator("rodeo", "RODEO", "#E69F00", "", "objective", False),
        Estimator("exact", "exact gradient", "#888888", "2 3", "exact", has_tau=False),
    )
}
_ORDER = {name: number for number, name in enumerate(ESTIMATORS)}


def in_order(runs: Sequence["Run"]) -> list["Run"]:
    """Runs with the same estimator side by side."""
    return sorted(runs, key=lambda run: (_ORDER[run.estimator], run.identity))


def groups(runs: Sequence["Run"]) -> list[tuple[str, slice]]:
    """Which members of a stack use which estimator; they lie side by side."""
    found, first = [], 0
    for name, members in groupby(run.estimator for run in runs):
        count = len(list(members))
        found.append((name, slice(first, first + count)))
        first += count
    return found


class Sampler:
    """One-hot samples for all members of a stack, each with the gradient of its own estimator."""

    def __init__(self, runs: Sequence["Run"], noise: Noise) -> None:
        others = {run.estimator for run in runs if ESTIMATORS[run.estimator].kind != "sampler"}
        if others:
            raise ValueError(
                f"expected estimators that make a sample, got {', '.join(sorted(others))}; "
                f"use {', '.join(name for name, e in ESTIMATORS.items() if e.kind == 'sampler')}"
            )
        self.noise = noise
        self.members = slice(0, len(runs))
        """The members of the stack that these runs are: the first ones."""
        self.groups = groups(runs)
        self._draws = [run.draws for run in runs]
        self._numbers = [run.tau for run in runs]
        self._taus = torch.tensor(self._numbers, device=noise.device)

    def __call__(self, logits: Tensor) -> Tensor:
        """Samples of the shape of the logits, (members, ..., categories)."""
        return self.at(logits, self.noise.categories(logits, self.members))

    def at(self, logits: Tensor, index: Tensor) -> Tensor:
        """The samples of categories that the noise has drawn."""
        # split, since the gradient of a slice is a whole tensor of mostly zeros
        pieces = logits.split([members.stop - members.start for _, members in self.groups])
        samples = [
            self._of_group(name, members, piece, index[members])
            for (name, members), piece in zip(self.groups, pieces, strict=True)
        ]
        return samples[0] if len(samples) == 1 else torch.cat(samples)

    def _of_group(self, name: str, members: slice, logits: Tensor, index: Tensor) -> Tensor:
        tau = self._tau(members, logits.ndim)
        if name == "reinmax":
            return discretegrad.reinmax_at(logits, index, tau)
        if name == "st":
            return discretegrad.straight_through_at(logits, index, tau)
        if name == "stgs":
            noise = self.noise.exponential(*logits.shape[1:], members=members)
            return discretegrad.gumbel_softmax_at(logits, index, noise, tau)
        if name == "gr-mck":
            seeds = self.noise.seeds(members)
            return discretegrad.gumbel_rao_seeded(
                logits, index, seeds, tau, num_draws=self._draws[members.start]
            )
        gap: Any = "p" if name == "gst-p" else float(name.removeprefix("gst-"))
        return discretegrad.gapped_at(logits, index, tau, gap=gap)

    def _tau(self, members: slice, ndim: int) -> float | Tensor:
        numbers = set(self._numbers[members])
        if len(numbers) == 1:
            # kernels are faster for one number
            return numbers.pop()
        return self._taus[members].view(-1, *[1] * (ndim - 1))


def repeated(logits: Tensor, times: int) -> Tensor:
    """A view with each member's logits so many times, (members, times, ..., categories)."""
    return logits.unsqueeze(1).expand(-1, times, *logits.shape[1:])
