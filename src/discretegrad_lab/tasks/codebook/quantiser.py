"""The codebooks of all members, which are moving averages of the vectors that take each code.

As in ``discretegrad.nn.VectorQuantize`` and vector-quantize-pytorch, for many members at once and
with all distances in memory.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...stack.noise import Noise
from .config import Codebook

_EPS = 1e-5
# what the random numbers of a step are for, besides those of the noise itself
_RESTART = 3


class Quantiser:
    """(members, codes, width) and what it is made of.

    Args:
        runs: One for each member.
        generators: For the start of each member's codebook.
        device: Where everything is.
    """

    def __init__(
        self, runs: Sequence[Codebook], generators: Sequence[torch.Generator], device: torch.device
    ) -> None:
        run = runs[0]
        codebooks = []
        for generator in generators:
            codes = torch.empty(1, run.codes, run.width)
            nn.init.kaiming_uniform_(codes, generator=generator)
            codebooks.append(codes)
        self.codebook = torch.cat(codebooks).to(device)
        self.sums = self.codebook.clone()
        self.counts = torch.ones(len(runs), run.codes, device=device)
        self._decay, self._threshold = run.decay, run.restart
        self._scale = torch.tensor([member.scale for member in runs], device=device)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What a member needs to go on."""
        return {"codebook": self.codebook, "sums": self.sums, "counts": self.counts}

    def logits(self, rows: Tensor) -> Tensor:
        """Minus the squared distances but for a number of each row, divided by the scale.

        Args:
            rows: (members, rows, width).
        """
        # a copy, since it changes before backward needs it
        codes = self.codebook.clone()
        norms = codes.square().sum(-1).unsqueeze(1)
        closeness = torch.baddbmm(norms, rows, codes.mT, beta=-1, alpha=2)
        return closeness / self._scale.view(-1, 1, 1)

    def nearest(self, rows: Tensor) -> Tensor:
        """The nearest code of each row as a one-hot."""
        index = self.logits(rows).argmax(-1, keepdim=True)
        places = torch.arange(self.codebook.shape[1], device=rows.device)
        return (index == places).to(rows.dtype)

    @torch.no_grad()
    def update(self, rows: Tensor, samples: Tensor, noise: Noise) -> None:
        """Move the codes to the vectors that took them.

        Args:
            rows: (members, rows, width).
            samples: (members, rows, codes), one-hot.
            noise: For which vectors codes restart at.
        """
        self.counts.lerp_(samples.sum(1), 1 - self._decay)
        self.sums.lerp_(torch.bmm(samples.mT, rows), 1 - self._decay)
        codes = self.counts.shape[1]
        total = self.counts.sum(1, keepdim=True)
        smoothed = total * (self.counts + _EPS) / (total + codes * _EPS)
        self.codebook.copy_(self.sums / smoothed.unsqueeze(-1))
        if self._threshold > 0:
            self._restart(rows, noise)

    def _restart(self, rows: Tensor, noise: Noise) -> None:
        """Move codes that are hardly taken to vectors of the batch, each to another one."""
        members, count, _ = rows.shape
        unused = self.counts < self._threshold
        place = unused.cumsum(1) - 1
        start = (noise.uniform(1, purpose=_RESTART) * count).long()
        # steps without a common divisor with the number of rows meet no row twice
        chosen = (start + place.clamp_min(0) * _step(count)) % count
        vectors = rows[torch.arange(members, device=rows.device).unsqueeze(1), chosen]
        restarted = (unused & (place < count)).unsqueeze(-1)
        self.codebook.copy_(torch.where(restarted, vectors, self.codebook))
        self.sums.copy_(torch.where(restarted, self._threshold * vectors, self.sums))
        self.counts.copy_(torch.where(restarted.squeeze(-1), self._threshold, self.counts))


def _step(count: int) -> int:
    """A number near 0.62 of the count, without a common divisor."""
    step = max(1, int(0.618 * count))
    while math.gcd(step, count) != 1:
        step += 1
    return step
