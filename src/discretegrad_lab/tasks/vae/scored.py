"""The VAE trained with a score function, which needs values of its loss and no gradient at samples.

The reconstruction of every image is evaluated at K samples. The encoder gets the estimate of the
score function from those values, the decoder its ordinary gradient from the same evaluations, and
the divergence its own, which needs no samples.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...stack.compilation import compiled, worth_compiling
from ...stack.score import antithetic, draw, sample_count
from .config import Vae
from .model import PIXELS, VaeModel, with_divergence
from .several import memory_of_samples, reconstruction_of_samples

_AT_THE_SAMPLES = ("leave_one_out", "disarm_tree")
"""Rows that ask for the loss of each given sample once, in their order, and for nothing else."""


class ScoredVae(VaeModel):
    """All members' networks with the images; all members have one line.

    The arguments are those of ``VaeModel``.
    """

    def __init__(
        self, runs: Sequence[Vae], device: torch.device, data: Path | None = None, **images: Any
    ) -> None:
        super().__init__(runs, device, data, **images)
        run = runs[0]
        self._line, self._samples = run.trained.line, run.samples
        elements, steps = len(runs) * run.batch * PIXELS, run.epochs * self.steps_per_epoch
        fuse = worth_compiling(device, elements, steps)
        # the estimate too, if it asks for values alone: that of a tree is of many small operations
        whole = fuse and self._line.row in _AT_THE_SAMPLES
        self._loss_at = compiled(loss_at) if whole else loss_at
        self._pairs = compiled(antithetic) if whole else antithetic
        apart = fuse and not whole
        self._costs = compiled(reconstruction_of_samples) if apart else reconstruction_of_samples

    def losses(self) -> dict[str, Tensor]:
        """The mean negative ELBO of the next batch, over K samples of each image."""
        x = self._next_batch()
        logits = self._logits(self._encoder, x, self._latents)
        given = draw(self._line, logits, self._noise, self._samples, self._pairs)
        self._noise.next_step()
        return {"train": self._loss_at(self, x, logits, given)}

    def loss_at(self, x: Tensor, logits: Tensor, given: Tensor) -> Tensor:
        """The same for a batch, the logits of its codes and samples of them, (members,)."""
        costs = self._line.function(
            logits, self._loss_of_a_sample(given, x), given=given, **dict(self._line.options)
        )
        return with_divergence(costs.sum(1), logits)

    def _loss_of_a_sample(self, given: Tensor, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The cross entropy of each image with its sample, (members, batch)."""
        if self._line.row not in _AT_THE_SAMPLES:
            return lambda z: self._costs(self._decoder, z.unsqueeze(1), x).squeeze(1)
        # all of them in one pass of the decoder
        shape = (*given.shape, self._categories)
        codes = torch.zeros(shape, dtype=x.dtype, device=x.device)
        codes.scatter_(-1, given.unsqueeze(-1), 1.0)
        costs = iter(self._costs(self._decoder, codes.movedim(0, 1), x).unbind(1))
        return lambda z: next(costs)


def loss_at(model: ScoredVae, x: Tensor, logits: Tensor, given: Tensor) -> Tensor:
    """``ScoredVae.loss_at`` as a function, which can be compiled."""
    return model.loss_at(x, logits, given)


def further_memory(run: Vae) -> int:
    """An upper guess of what a member takes beyond one whose estimator makes a sample."""
    line, code = run.trained.line, run.latents * run.categories
    count = sample_count(line, run.samples)
    # in float64: the nodes of the tree, and the weight of each of them for each sample
    tree = 8 * run.batch * (13 + count) * code if line.row == "disarm_tree" else 0
    # what the estimator itself has of each sample
    return memory_of_samples(run, count - 1) + 4 * run.batch * (count + 1) * code + tree
