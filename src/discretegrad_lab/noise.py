"""Random numbers of a stack: each member's are a function of its own seed.

They depend on the seed, the epoch and the place within the epoch, never on the other members. So a
run gives the same result alone and in any stack, and a run that goes on after an epoch needs no
state of a generator.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = 2**64 - 1


def mixed(*numbers: int) -> int:
    """A number of 63 bits from a few small ones; every bit depends on all of them."""
    state = 0
    for number in numbers:
        # the finaliser of splitmix64
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


class Noise:
    """Uniform numbers for all members at once, and a generator for each.

    On a GPU the uniform numbers are those of a counter, which one kernel computes for all members
    and which a CUDA graph can advance.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.seeds = tuple(seeds)
        self.generators = [torch.Generator(self.device) for _ in seeds]
        """For what draws its own numbers; seeded anew in every epoch."""
        self._keys = torch.zeros(len(seeds), dtype=torch.int64, device=self.device)
        self._step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._call = 0

    def begin(self, epoch: int, stream: int = 0) -> None:
        """Start the numbers of an epoch; ``stream`` tells training and evaluation apart."""
        for generator, seed in zip(self.generators, self.seeds, strict=True):
            generator.manual_seed(mixed(seed, epoch, stream))
        keys = [mixed(seed, epoch, stream, 1) for seed in self.seeds]
        self._keys.copy_(torch.tensor(keys))
        self._step.zero_()
        self._call = 0

    def next_step(self) -> None:
        """Forget which numbers of this step were used."""
        self._step += 1
        self._call = 0

    def uniform(self, *shape: int, members: slice = slice(None)) -> Tensor:
        """(members, *shape), float32, in [0, 1)."""
        keys = self._keys[members]
        numbers = torch.empty(len(keys), *shape, device=self.device)
        if self.device.type == "cuda":
            from discretegrad.kernels.uniform import fill

            fill(numbers.view(len(keys), -1), keys, self._step, self._call)
            self._call += 1
        else:
            for row, generator in zip(numbers, self.generators[members], strict=True):
                row.uniform_(generator=generator)
        return numbers

    def exponential(self, *shape: int, members: slice = slice(None)) -> Tensor:
        """(members, *shape), float32, positive and finite."""
        # 1 - u is never 0, and where u is 0 the smallest number is as good as any
        return (-torch.log1p(-self.uniform(*shape, members=members))).clamp_min(2.0**-25)
