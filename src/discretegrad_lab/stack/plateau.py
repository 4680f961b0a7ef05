"""Learning rates that fall when a measured number no longer rises."""

from collections.abc import Sequence

import torch
from torch import Tensor

_THRESHOLD = 1e-4


class Plateau:
    """``torch.optim.lr_scheduler.ReduceLROnPlateau`` for each member, with the mode ``"max"``.

    When a number has not become better by a ten-thousandth of itself more than ``patience`` times
    in a row, the learning rate of its member is multiplied by ``factor``.

    Args:
        patience: For each member.
        factor: For all.
        device: Where everything is.
    """

    def __init__(
        self, patience: Sequence[int], factor: float, device: torch.device | str = "cpu"
    ) -> None:
        self._patience = torch.tensor(patience, device=device)
        self._factor = factor
        members = len(patience)
        self.rate_factors = torch.ones(members, dtype=torch.float64, device=device)
        """What learning rates are multiplied by, see ``Group``."""
        self._best = torch.full_like(self.rate_factors, -torch.inf)
        self._in_vain = torch.zeros(members, dtype=torch.int64, device=device)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What a member needs to go on."""
        return {
            "plateau/rate_factors": self.rate_factors,
            "plateau/best": self._best,
            "plateau/in_vain": self._in_vain,
        }

    def step(self, values: Tensor) -> None:
        """Take the numbers of all members, (members,), which are not negative."""
        values = values.to(self._best.dtype)
        better = values > self._best * (1 + _THRESHOLD)
        torch.where(better, values, self._best, out=self._best)
        self._in_vain.add_(1).masked_fill_(better, 0)
        lower = self._in_vain > self._patience
        self._in_vain.masked_fill_(lower, 0)
        self.rate_factors.mul_(torch.where(lower, self._factor, 1.0))
