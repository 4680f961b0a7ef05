"""The VAE trained with a score function, which needs values of its loss and no gradient at samples.

The reconstruction of every image is evaluated at K samples. The encoder gets the estimate of the
score function from those values, the decoder its ordinary gradient from the same evaluations, and
the divergence its own, which needs no samples.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ...stack.compilation import compiled, worth_compiling
from ...stack.score import draw, sample_count
from .config import Vae
from .model import HIDDEN, PIXELS, VaeModel, with_divergence


class ScoredVae(VaeModel):
    """All members' networks with the images; all members have one line.

    The arguments are those of ``VaeModel``.
    """

    def __init__(
        self, runs: Sequence[Vae], device: torch.device, data: Path | None = None, **images: Any
    ) -> None:
        super().__init__(runs, device, data, **images)
        self._line = runs[0].trained.line
        fuse = worth_compiling(device, len(runs) * runs[0].batch * PIXELS)
        self._costs = compiled(reconstruction_of_images) if fuse else reconstruction_of_images

    def losses(self) -> dict[str, Tensor]:
        """The mean negative ELBO of the next batch, over K samples of each image."""
        x = self._next_batch()
        logits = self._logits(self._encoder, x, self._latents)
        costs = self._line.function(
            logits,
            lambda z: self._costs(self._decoder, z, x),
            given=draw(self._line, logits, self._noise),
            **dict(self._line.options),
        )
        self._noise.next_step()
        return {"train": with_divergence(costs.sum(1), logits)}


def reconstruction_of_images(decoder: nn.Module, z: Tensor, x: Tensor) -> Tensor:
    """The cross entropy of each image with its sample, (members, batch)."""
    pixels: Tensor = decoder(z.flatten(-2))
    return binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(-1)


def further_memory(run: Vae) -> int:
    """An upper guess of what a member takes beyond one whose estimator makes a sample."""
    line, code = run.trained.line, run.latents * run.categories
    count = sample_count(line)
    # what the decoder keeps of each further sample, and all samples
    guess = 4 * run.batch * ((count - 1) * (2 * sum(HIDDEN) + 5 * PIXELS) + count * code)
    # in float64: the nodes of the tree, and the weight of each of them for each sample
    return guess + (8 * run.batch * (13 + count) * code if line.row == "disarm_tree" else 0)
