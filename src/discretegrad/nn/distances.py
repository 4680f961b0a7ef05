"""Squared distances to a codebook, of which only a block of rows is ever in memory."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._modes import compiling, transforming

# distances of a block
_BLOCK_NUMBERS = 2**24


class Distances(NamedTuple):
    """A linear layer whose outputs are $-||x - e||^2 / s$ but for a number that each row has.

    That number, the squared norm of x, changes neither a softmax nor which code is nearest.
    """

    hidden: Tensor
    """(rows, width): the vectors x."""
    head: Tensor
    """(n, width)."""
    bias: Tensor
    """(n,)."""

    @classmethod
    def to_codes(cls, rows: Tensor, codebook: Tensor, scale: float) -> "Distances":
        """From vectors, (rows, width), to the rows of a codebook, (n, width)."""
        # distances do not depend on the origin, but their rounding errors do
        origin = codebook.detach().mean(0)
        codes = codebook - origin
        return cls(rows - origin, codes * (2 / scale), -codes.square().sum(1) / scale)

    def _blocks(self) -> Iterator[Tensor]:
        size = max(1, _BLOCK_NUMBERS // self.head.shape[0])
        if compiling() or transforming():
            return iter((self.hidden,))
        return iter(self.hidden.split(size))

    @torch.no_grad()
    def nearest(self) -> Tensor:
        """The number of the nearest code of each row, int64, (rows,)."""
        parts = [
            torch.addmm(self.bias, block, self.head.T).argmax(1)
            for block in self._blocks()
            if block.shape[0] > 0
        ]
        empty = torch.zeros(0, dtype=torch.int64, device=self.hidden.device)
        return torch.cat(parts) if parts else empty

    def entropies(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Two entropies of the softmax, with one weight per row, (rows,), which sum to 1.

        That of the mean of all rows' probabilities, and the mean of each row's own. The
        probabilities are made again in backward.
        """
        usage = self.head.new_zeros(self.head.shape[0])
        own = self.head.new_zeros(())
        weights = iter(weight.split([block.shape[0] for block in self._blocks()]))
        for block in self._blocks():
            arguments = (block, self.head, self.bias, next(weights))
            if compiling() or transforming():
                part, entropy = _block_sums(*arguments)
            else:
                part, entropy = checkpoint(
                    _block_sums, *arguments, use_reentrant=False, preserve_rng_state=False
                )
            usage, own = usage + part, own + entropy
        # a code that nobody uses has a finite slope
        tiny = torch.finfo(usage.dtype).tiny
        return -(usage * usage.clamp_min(tiny).log()).sum(), own


def _block_sums(
    hidden: Tensor, head: Tensor, bias: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Of a block: the weighted sums of the probabilities and of the entropies."""
    logs = torch.addmm(bias, hidden, head.T).log_softmax(1)
    probs = logs.exp()
    return weight @ probs, -(weight * (probs * logs).sum(1)).sum()
