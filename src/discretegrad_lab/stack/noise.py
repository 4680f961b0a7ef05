"""Random numbers of a stack: each member's are a function of its own seed.

They depend on the seed, the epoch and the place within the epoch, never on the other members. So a
run gives the same result alone and in any stack, and a run that goes on after an epoch needs no
state of a generator.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = 2**64 - 1
# what the numbers of a step are for
_DRAWS, _EXPONENTIAL, _SEEDS = 0, 1, 2


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
    """Random numbers for all members at once.

    On a GPU they are those of a counter, which one kernel computes for all members and which a CUDA
    graph can advance. On a CPU they are others, those of torch's generator. That takes 32 bits of a
    seed: of the epochs of all members, one pair in four billion has the same numbers.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._seeds = tuple(seeds)
        # on a CPU, one for each member
        self._generators = [] if self.device.type == "cuda" else [torch.Generator() for _ in seeds]
        self._keys = torch.zeros(len(seeds), dtype=torch.int64, device=self.device)
        self._step = torch.zeros(1, dtype=torch.int64, device=self.device)

    @property
    def counter(self) -> Tensor:
        """What a step advances, on a GPU."""
        return self._step

    def begin(self, epoch: int | Sequence[int], stream: int = 0) -> None:
        """Start the numbers of an epoch; ``stream`` tells training and evaluation apart.

        Members that count differently give one epoch each.
        """
        epochs = [epoch] * len(self._seeds) if isinstance(epoch, int) else epoch
        pairs = zip(self._seeds, epochs, strict=True)
        keys = [mixed(seed, number, stream) for seed, number in pairs]
        for number, generator in enumerate(self._generators):
            generator.manual_seed(keys[number])
        self._keys.copy_(torch.tensor(keys))
        self._step.zero_()

    @property
    def keys(self) -> Tensor:
        """What the numbers of a member follow from in an epoch, int64, (members,)."""
        return self._keys

    def next_step(self, steps: int = 1) -> None:
        """Go on to numbers that were not used before, by more than a step after several uses."""
        self._step += steps

    def uniform(self, *shape: int, members: slice = slice(None), purpose: int = _DRAWS) -> Tensor:
        """(members, *shape), float32, in [0, 1); of a step, other ones for every purpose."""
        keys = self._keys[members]
        numbers = torch.empty(len(keys), *shape, device=self.device)
        if self.device.type == "cuda":
            from discretegrad.kernels.uniform import fill

            fill(numbers.view(len(keys), -1), keys, self._step, purpose)
        else:
            for row, generator in zip(numbers, self._generators[members], strict=True):
                row.uniform_(generator=generator)
        return numbers

    @torch.no_grad()
    def categories(
        self, logits: Tensor, members: slice = slice(None), repeats: int | None = None
    ) -> Tensor:
        """Draw from the logits of these members, (members, ...) or (members, repeats, ...).

        Args:
            logits: float32, (members, ..., categories).
            members: Whose logits they are.
            repeats: How often to draw from each; without it once.
        """
        shape = logits.shape[1:-1] if repeats is None else (repeats, *logits.shape[1:-1])
        keys, n = self._keys[members], logits.shape[-1]
        if self.device.type == "cuda":
            from discretegrad.kernels.uniform import LONGEST, choose

            # torch's own running sum takes longer than a layer of a network
            if n <= LONGEST:
                index = torch.empty(len(keys), *shape, dtype=torch.int64, device=self.device)
                rows = logits.reshape(len(keys), -1, n).contiguous()
                choose(index.view(len(keys), -1), rows, keys, self._step, _DRAWS)
                return index
        cumulative = logits.softmax(-1).cumsum(-1)
        if repeats is not None:
            cumulative = cumulative.unsqueeze(1)
        threshold = self.uniform(*shape, 1, members=members) * cumulative[..., n - 1 :]
        return (cumulative[..., : n - 1] <= threshold).sum(-1)

    def exponential(self, *shape: int, members: slice = slice(None)) -> Tensor:
        """(members, *shape), float32, positive and finite."""
        # 1 - u is never 0, and where u is 0 the smallest number is as good as any
        uniform = self.uniform(*shape, members=members, purpose=_EXPONENTIAL)
        return (-torch.log1p(-uniform)).clamp_min(2.0**-25)

    def logistic(self, *shape: int) -> Tensor:
        """(members, *shape), float32, of the standard logistic distribution and finite."""
        return torch.logit(self.uniform(*shape, purpose=_EXPONENTIAL), eps=2.0**-24)

    def seeds(self, *shape: int, members: slice = slice(None)) -> Tensor:
        """(members, *shape), int64 of 63 bits, for what makes its own numbers from a seed."""
        numbers = (self.uniform(*shape, 3, members=members, purpose=_SEEDS) * 2**21).long()
        low, middle, high = numbers.unbind(-1)
        return low | middle << 21 | high << 42
