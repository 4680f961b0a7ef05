r"""Polynomial programming: minimise $E[\frac1L \sum_i |X_i - c_i|^p]$ over the logits of X.

The latent variables are independent, so the expected loss and its gradient are known exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import discretegrad
from discretegrad.bernoulli import Rodeo

from ..config import Polynomial
from ..estimators import ESTIMATORS, Sampler, groups
from ..noise import Noise, mixed

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
        sampled = [one for one in runs if ESTIMATORS[one.estimator].kind == "sampler"]
        self._sampler = Sampler(sampled, self._noise) if sampled else None
        self._others = groups(runs)[len(groups(sampled)) :]
        logits = torch.stack([_start(one) for one in runs])
        self.parameters = {"logits": logits.to(device).requires_grad_()}
        self._distance = _Distance(run, device)
        self._networks = {
            number: _Network(one.seed, device)
            for number, one in enumerate(runs)
            if one.estimator == "rodeo"
        }

    @classmethod
    def bytes_per_member(cls, run: Polynomial) -> int:
        """A guess of the device memory, from the tensors of the size of all samples."""
        tensors = 200 if run.estimator == "rodeo" else 20
        return tensors * 4 * run.batch * run.latents * 2

    @property
    def generators(self) -> list[torch.Generator]:
        """Those that training draws from."""
        return self._noise.generators

    @property
    def learned(self) -> list[Tensor]:
        """What estimators themselves learn."""
        return [x for network in self._networks.values() for x in network.parameters]

    def learn(self, gradients: Iterable[Tensor]) -> None:
        """A step of those, with the gradients of ``learned``."""
        ahead = iter(gradients)
        for network in self._networks.values():
            network.step(ahead)

    def begin_epoch(self, epoch: int) -> None:
        """Start the random numbers of an epoch."""
        self._noise.begin(epoch)

    def losses(self) -> Tensor:
        """The mean loss of a batch of samples, (members,)."""
        logits = self.parameters["logits"]
        found = []
        if self._sampler is not None:
            samples = self._sampler(logits[self._sampler.members], self._batch)
            found.append(self._distance(samples[..., 0]).mean((1, 2)))
        for name, members in self._others:
            if name == "exact":
                found.append(self._expected(logits[members]))
            else:
                function = self._reinforce if name == "reinforce" else self._rodeo
                numbers = range(members.start, members.stop)
                found.append(torch.stack([function(logits[m], m) for m in numbers]))
        self._noise.next_step()
        return torch.cat(found)

    def _reinforce(self, logits: Tensor, member: int) -> Tensor:
        losses = discretegrad.reinforce(
            logits.expand(self._batch, *logits.shape),
            lambda z: self._distance(z[..., 0]).mean(-1),
            generator=self._noise.generators[member],
        )
        return losses.mean()

    def _rodeo(self, logits: Tensor, member: int) -> Tensor:
        # pairs of samples, so that every estimator evaluates the loss as often as another
        bits = logits[:, 0] - logits[:, 1]
        losses: Tensor = self._networks[member].estimator(
            bits.expand(self._batch // 2, *bits.shape),
            lambda x: self._distance(x).mean(-1),
            num_samples=2,
            generator=self._noise.generators[member],
        )
        return losses.mean()

    def _expected(self, logits: Tensor) -> Tensor:
        probs = logits.softmax(-1)[..., 0]
        return torch.lerp(self._distance.of_zero, self._distance.of_one, probs).mean(-1)

    @torch.no_grad()
    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """The expected loss, exactly."""
        return {"expected_loss": self._expected(self.parameters["logits"])}

    def extra_state(self, member: int) -> dict[str, Tensor]:
        """The network of RODEO with its optimiser."""
        return self._networks[member].state() if member in self._networks else {}

    def load_extra(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Go on from ``extra_state``."""
        if member in self._networks:
            self._networks[member].load(state)


def best_loss(run: Polynomial) -> float:
    """The lowest expected loss that there is: every X at the nearer end."""
    distance = _Distance(run, torch.device("cpu"), torch.float64)
    return torch.minimum(distance.of_zero, distance.of_one).mean().item()


def _start(run: Polynomial) -> Tensor:
    generator = torch.Generator().manual_seed(mixed(run.seed, _START))
    return torch.empty(run.latents, 2).uniform_(-0.01, 0.01, generator=generator)


class _Distance:
    """``|x - c| ** p`` where x is 0 or 1, with its derivative, by a table of two values."""

    def __init__(
        self, run: Polynomial, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        c = torch.full((run.latents,), 0.45, dtype=torch.float64)
        if run.target == "spread":
            c = (torch.arange(run.latents, dtype=torch.float64) + 0.5) / run.latents
        p = run.power
        self.of_zero, self.of_one = (
            x.to(device, dtype) for x in (c.pow(p), (1 - c).pow(p))
        )  # fmt: skip
        self._slopes = [x.to(device, dtype) for x in (-p * c.pow(p - 1), p * (1 - c).pow(p - 1))]

    def __call__(self, x: Tensor) -> Tensor:
        # torch declares no types for it
        apply: Any = _Table.apply
        result: Tensor = apply(x, self.of_zero, self.of_one, *self._slopes)
        return result


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


class _Network:
    """RODEO's control variate for one member, which learns while the member does."""

    def __init__(self, seed: int, device: torch.device) -> None:
        # the weights of a module come from the global generator
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed(seed, _NETWORK))
            self.estimator = Rodeo().to(device)
        self.parameters = list(self.estimator.parameters())
        self._optimiser = torch.optim.Adam(
            self.parameters, lr=_RODEO_LEARNING_RATE, capturable=device.type == "cuda"
        )

    def step(self, gradients: Iterable[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients):  # noqa: B905, the rest is others'
            parameter.grad = gradient
        self._optimiser.step()

    def state(self) -> dict[str, Tensor]:
        found = {f"network/{n}": p.detach() for n, p in self.estimator.named_parameters()}
        for number, values in self._optimiser.state_dict()["state"].items():
            found |= {f"network-adam/{number}/{name}": x for name, x in values.items()}
        return {name: x.to("cpu", copy=True) for name, x in found.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.estimator.named_parameters():
                parameter.copy_(state[f"network/{name}"])
        saved: dict[int, dict[str, Tensor]] = {}
        for name, x in state.items():
            kind, *place = name.split("/")
            if kind == "network-adam":
                saved.setdefault(int(place[0]), {})[place[1]] = x.clone()
        document = self._optimiser.state_dict()
        self._optimiser.load_state_dict({**document, "state": saved})
