r"""Polynomial programming: minimise $E[\frac1L \sum_i |X_i - c_i|^p]$ over the logits of X.

The latent variables are independent, so the expected loss and its gradient are known exactly.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

import discretegrad
from discretegrad.bernoulli import Rodeo, rodeo

from ..config import Polynomial
from ..estimators import ESTIMATORS, Sampler, groups, repeated
from ..noise import Noise, mixed
from ..optimisers import Optimiser

# what the paper of RODEO trains its network with
_RODEO_LEARNING_RATE = 1e-3
_START, _NETWORK = 101, 102


class PolynomialTask:
    """All members' logits, (members, latents, 2); X is 1 where the first category is drawn."""

    loss_name = "loss"
    one_thread = True

    def __init__(
        self, runs: Sequence[Polynomial], device: torch.device, data: Path | None = None
    ) -> None:
        run = runs[0]
        self.steps_per_epoch = run.steps_per_epoch
        self._batch = run.batch
        self._noise = Noise([one.seed for one in runs], device)
        logits = torch.stack([_start(one) for one in runs])
        self.parameters = {"logits": logits.to(device).requires_grad_()}
        self._distance = _Distance(runs, device)
        # members with one estimator lie side by side: first those that make a sample to
        # differentiate through, then those that evaluate the loss, then the exact gradient
        kinds = [ESTIMATORS[one.estimator].kind for one in runs]
        self._drawn = slice(0, len(runs) - kinds.count("exact"))
        sampled = runs[: kinds.count("sampler")]
        self._sampler = Sampler(sampled, self._noise) if sampled else None
        self._others = groups(runs)[len(groups(sampled)) :]
        self._controls: _Controls | None = None
        for name, members in self._others:
            if name == "rodeo":
                self._controls = _Controls([one.seed for one in runs[members]], members, device)

    @classmethod
    def bytes_per_member(cls, run: Polynomial) -> int:
        """A guess of the device memory, from the tensors of the size of all samples."""
        tensors = 200 if run.estimator == "rodeo" else 20
        return tensors * 4 * run.batch * run.latents * 2

    @property
    def learned(self) -> list[Tensor]:
        """What estimators themselves learn."""
        return [] if self._controls is None else list(self._controls.parameters())

    def learn(self, gradients: Sequence[Tensor], alive: Tensor) -> None:
        """A step of those, with the gradients of ``learned``."""
        assert self._controls is not None
        self._controls.step(gradients, alive)

    def begin_epoch(self, epoch: int) -> None:
        """Start the random numbers of an epoch."""
        self._noise.begin(epoch)

    def losses(self) -> Tensor:
        """The mean loss of a batch of samples, (members,)."""
        logits = self.parameters["logits"]
        found = []
        if self._drawn.stop > 0:
            index = self._noise.categories(logits[self._drawn], self._drawn, self._batch)
        if self._sampler is not None:
            members = self._sampler.members
            samples = self._sampler.at(repeated(logits[members], self._batch), index[members])
            found.append(self._distance(samples[..., 0], members).mean((1, 2)))
        for name, members in self._others:
            if name == "exact":
                found.append(self._expected(logits[members], members))
            else:
                estimate = self._reinforce if name == "reinforce" else self._rodeo
                found.append(estimate(logits[members], index[members], members).mean(1))
        self._noise.next_step()
        # a draw from logits that are not finite is a category like any other, with a finite loss
        return torch.cat(found) + 0 * logits.detach().sum((1, 2))

    def _reinforce(self, logits: Tensor, index: Tensor, members: slice) -> Tensor:
        return discretegrad.reinforce(
            repeated(logits, self._batch),
            lambda z: self._distance(z[..., 0], members).mean(-1),
            samples=torch.stack((index == 0, index == 1), -1).unsqueeze(0),
        )

    def _rodeo(self, logits: Tensor, index: Tensor, members: slice) -> Tensor:
        assert self._controls is not None
        # pairs of samples, so that every estimator evaluates the loss as often as another
        pairs = self._batch // 2
        bits = (logits[..., 0] - logits[..., 1]).unsqueeze(1).expand(-1, pairs, -1)
        return rodeo(
            bits,
            lambda x: self._distance(x, members).mean(-1),
            samples=(index == 0).unflatten(1, (2, pairs)).movedim(1, 0),
            control=self._controls.network,
            alpha=self._controls.alpha,
            beta=self._controls.beta,
        )

    def _expected(self, logits: Tensor, members: slice) -> Tensor:
        zero, one = self._distance.of_zero[members], self._distance.of_one[members]
        return torch.lerp(zero, one, logits.softmax(-1)[..., 0]).mean(-1)

    @torch.no_grad()
    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """The expected loss, exactly."""
        return {"expected_loss": self._expected(self.parameters["logits"], slice(None))}

    def extra_state(self) -> tuple[range, dict[str, Tensor]]:
        """The networks of RODEO with their optimiser."""
        if self._controls is None:
            return range(0), {}
        return self._controls.members, self._controls.stacked_state()

    def load_extra(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Go on from ``extra_state``."""
        if self._controls is not None and member in self._controls.members:
            self._controls.load(member, state)


def best_loss(run: Polynomial) -> float:
    """The lowest expected loss that there is: every X at the nearer end."""
    distance = _Distance([run], torch.device("cpu"), torch.float64)
    return torch.minimum(distance.of_zero, distance.of_one).mean().item()


def _start(run: Polynomial) -> Tensor:
    generator = torch.Generator().manual_seed(mixed(run.seed, _START))
    return torch.empty(run.latents, 2).uniform_(-0.01, 0.01, generator=generator)


class _Distance:
    """``|x - c| ** p`` where x is 0 or 1, with its derivative, by a table of two values."""

    def __init__(
        self, runs: Sequence[Polynomial], device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.of_zero, self.of_one, *self._slopes = (
            torch.stack(tables).to(device, dtype)
            for tables in zip(*map(_tables, runs), strict=True)
        )

    def __call__(self, x: Tensor, members: slice) -> Tensor:
        """For x of the shape (members, batch, latents)."""
        tables = [self.of_zero, self.of_one, *self._slopes]
        # torch declares no types for it
        apply: Any = _Table.apply
        result: Tensor = apply(x, *(table[members].unsqueeze(1) for table in tables))
        return result


def _tables(run: Polynomial) -> tuple[Tensor, ...]:
    """The distance and its slope at 0 and at 1."""
    c = torch.full((run.latents,), 0.45, dtype=torch.float64)
    if run.target == "spread":
        c = (torch.arange(run.latents, dtype=torch.float64) + 0.5) / run.latents
    p = run.power
    return c.pow(p), (1 - c).pow(p), -p * c.pow(p - 1), p * (1 - c).pow(p - 1)


class _Table(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, zero: Tensor, one: Tensor, slope_zero: Tensor, slope_one: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, slope_zero, slope_one)
        return torch.lerp(zero, one, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, slope_zero, slope_one = ctx.saved_tensors
        return torch.lerp(slope_zero, slope_one, x) * g, None, None, None, None


class _Controls(nn.Module):
    """RODEO's control variates, one for each member, which learn while the members do."""

    def __init__(self, seeds: Sequence[int], members: slice, device: torch.device) -> None:
        super().__init__()
        self.members = range(members.start, members.stop)
        alone = [dict(_alone(seed).named_parameters()) for seed in seeds]
        stacked = {
            name: nn.Parameter(torch.stack([one[name].detach() for one in alone]).to(device))
            for name in alone[0]
        }
        self.network = _Network(*(stacked.pop(f"network.{name}") for name in _NETWORK_PARTS))
        self.alpha, self.beta = stacked.pop("alpha"), stacked.pop("beta")
        assert not stacked
        self._optimiser = Optimiser(
            dict(self.named_parameters()),
            ["adam"] * len(seeds),
            [_RODEO_LEARNING_RATE] * len(seeds),
        )

    def step(self, gradients: Sequence[Tensor], alive: Tensor) -> None:
        names = [name for name, _ in self.named_parameters()]
        own = alive[self.members.start : self.members.stop]
        self._optimiser.step(dict(zip(names, gradients, strict=True)), own)

    def stacked_state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {f"network/{n}": p for n, p in self.named_parameters()}
        adam = self._optimiser.stacked_state()
        return found | {f"network-adam/{n}": x for n, x in adam.items()}

    @torch.no_grad()
    def load(self, member: int, state: Mapping[str, Tensor]) -> None:
        number = self.members.index(member)
        for name, parameter in self.named_parameters():
            parameter[number] = state[f"network/{name}"].to(parameter.device)
        start = "network-adam/"
        self._optimiser.load_state(
            number, {n.removeprefix(start): x for n, x in state.items() if n.startswith(start)}
        )


def _alone(seed: int) -> Rodeo:
    """The estimator of one member at its start."""
    # the weights of a module come from the global generator
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed(seed, _NETWORK))
        return Rodeo()


_NETWORK_PARTS = ("inner.weight", "inner.bias", "outer.weight")


class _Network(nn.Module):
    """The network of ``Rodeo`` for each member: (samples, members, ..., 2) to the same."""

    def __init__(self, inner: nn.Parameter, bias: nn.Parameter, outer: nn.Parameter) -> None:
        super().__init__()
        self.inner, self.bias, self.outer = inner, bias, outer

    def forward(self, x: Tensor) -> Tensor:
        first = x.movedim(1, 0)
        hidden = torch.baddbmm(self.bias.unsqueeze(1), first.flatten(1, -2), self.inner.mT)
        outputs = leaky_relu(hidden, 0.3) @ self.outer.mT
        return outputs.view(first.shape).movedim(0, 1)
