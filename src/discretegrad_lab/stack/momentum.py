"""Gradient descent with Nesterov's momentum for stacks, as ``torch.optim.SGD`` does it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Momentum:
    """One step of all members at a time, without asking the device for anything.

    Args:
        parameters: (members, ...) each, float32, on one device; updated in place.
        learning_rates: One for each member.
        schedules: For each member the factor of its learning rate at each of its updates, the last
            one also for all that follow; constant by default.
        momentum: The share of the running sum of gradients that a step keeps.
        decay: Times the parameters, this is added to the gradient.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        learning_rates: Sequence[float],
        *,
        schedules: Sequence[Sequence[float]] | None = None,
        momentum: float = 0.9,
        decay: float = 0.0,
    ) -> None:
        self._parameters = {name: p.detach() for name, p in parameters.items()}
        self._sums = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._momentum, self._decay = momentum, decay
        device = next(iter(self._parameters.values())).device
        self._steps = torch.zeros(len(learning_rates), dtype=torch.int64, device=device)
        self._rates = torch.tensor(learning_rates, dtype=torch.float64, device=device)
        if schedules is None:
            schedules = [[1.0]] * len(learning_rates)
        self._factors = torch.tensor(schedules, dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], alive: Tensor) -> None:
        """Update the parameters.

        Args:
            gradients: One for each parameter, of its shape.
            alive: bool, (members,). The other members keep their parameters and their state,
                whatever their gradients are.
        """
        place = self._steps.clamp(max=self._factors.shape[1] - 1).unsqueeze(1)
        rates = (self._rates * self._factors.gather(1, place).squeeze(1)).float()
        self._steps += alive
        for name, p in self._parameters.items():
            shape = (-1, *[1] * (p.ndim - 1))
            total, own = self._sums[name], alive.view(shape)
            g = gradients[name].add(p, alpha=self._decay)
            # of a member that is not alive neither changes, and nothing of its gradient is used
            torch.where(own, total * self._momentum + g, total, out=total)
            moved = torch.addcmul(p, g.add_(total, alpha=self._momentum), -rates.view(shape))
            torch.where(own, moved, p, out=p)

    def stacked_state(self) -> dict[str, Tensor]:
        """What members need to go on besides their parameters, (members, ...) each; not copied."""
        return {"steps": self._steps} | {f"sum/{name}": x for name, x in self._sums.items()}
