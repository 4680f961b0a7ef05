r"""Polynomial programming: minimise $E[\frac1L \sum_i |X_i - c_i|^p]$ over the logits of X.

The latent variables are independent, so the expected loss and its gradient are known exactly.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from discretegrad import Rodeo

from ...stack.config import groups
from ...stack.lines import Line
from ...stack.model import Group, Model
from ...stack.noise import Noise, mixed
from ...stack.sampler import Sampler, repeated
from .config import Polynomial

# what the paper of RODEO trains its network with
_RODEO_LEARNING_RATE = 1e-3
_START, _NETWORK = 101, 102


class PolynomialModel(Model):
    """All members' logits, (members, latents, 2); X is 1 where the first category is drawn."""

    loss_names = ("loss",)
    one_thread = True

    def __init__(
        self, runs: Sequence[Polynomial], device: torch.device, data: Path | None = None
    ) -> None:
        super().__init__()
        run = runs[0]
        self.steps_per_epoch = run.steps_per_epoch
        self._batch = run.batch
        self._noise = Noise([member.seed for member in runs], device)
        self.logits = torch.stack([_start(member) for member in runs]).to(device).requires_grad_()
        self.groups["model"] = Group.of_runs({"logits": self.logits}, runs)
        self._distance = _Distance(runs, device)
        # members with one estimator lie side by side: first those that make a sample to
        # differentiate through, then those that evaluate the loss, then the exact gradient
        kinds = [member.line.kind for member in runs]
        self._drawn = slice(0, len(runs) - kinds.count("exact"))
        sampled = runs[: kinds.count("sampler")]
        self._sampler = Sampler(sampled, self._noise) if sampled else None
        self._others = groups(runs)[len(groups(sampled)) :]
        for line, members in self._others:
            if line.row == "rodeo":
                self._controls = _Controls([member.seed for member in runs[members]]).to(device)
                self.groups["control"] = Group.alike(
                    dict(self._controls.named_parameters()),
                    range(members.start, members.stop),
                    _RODEO_LEARNING_RATE,
                )

    def begin_epoch(self, epoch: int) -> None:
        """Start the random numbers of an epoch."""
        self._noise.begin(epoch)

    def losses(self) -> dict[str, Tensor]:
        """The mean loss of a batch of samples."""
        logits = self.logits
        losses = []
        if self._drawn.stop > 0:
            index = self._noise.categories(logits[self._drawn], self._drawn, self._batch)
        if self._sampler is not None:
            members = self._sampler.members
            samples = self._sampler.at(repeated(logits[members], self._batch), index[members])
            losses.append(self._distance(samples[..., 0], members).mean((1, 2)))
        for line, members in self._others:
            if line.kind == "exact":
                losses.append(self._expected(logits[members], members))
            else:
                estimate = self._rodeo if line.row == "rodeo" else self._score
                losses.append(estimate(line, logits[members], index[members], members).mean(1))
        self._noise.next_step()
        # a draw from logits that are not finite is a category like any other, with a finite loss
        return {"loss": torch.cat(losses) + 0 * logits.detach().sum((1, 2))}

    def _score(self, line: Line, logits: Tensor, index: Tensor, members: slice) -> Tensor:
        return line.function(
            repeated(logits, self._batch),
            lambda z: self._distance(z[..., 0], members).mean(-1),
            given=index.unsqueeze(0),
            **dict(line.options),
        )

    def _rodeo(self, line: Line, logits: Tensor, index: Tensor, members: slice) -> Tensor:
        # pairs of samples, so that every estimator evaluates the loss as often as another
        pairs = self._batch // 2
        bits = (logits[..., 0] - logits[..., 1]).unsqueeze(1).expand(-1, pairs, -1)
        return line.function(
            bits,
            lambda x: self._distance(x, members).mean(-1),
            family="bernoulli",
            given=(index == 0).unflatten(1, (2, pairs)).movedim(1, 0),
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
        return {"expected_loss": self._expected(self.logits, slice(None))}


def memory(run: Polynomial) -> int:
    """A guess of the device memory of a member, from the tensors of the size of all samples."""
    tensors = 200 if run.estimator == "rodeo" else 20
    return tensors * 4 * run.batch * run.latents * 2


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

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        alone = [dict(_alone(seed).named_parameters()) for seed in seeds]
        stacked = {
            name: nn.Parameter(torch.stack([member[name].detach() for member in alone]))
            for name in alone[0]
        }
        self.network = _Network(*(stacked.pop(f"network.{name}") for name in _NETWORK_PARTS))
        self.alpha, self.beta = stacked.pop("alpha"), stacked.pop("beta")
        assert not stacked


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
