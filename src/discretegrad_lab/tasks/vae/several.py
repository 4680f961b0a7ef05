"""The VAE trained with several samples of the code of each image, and an estimator for each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ...stack.compilation import compiled, worth_compiling
from ...stack.sampler import repeated
from .config import Vae
from .model import HIDDEN, PIXELS, VaeModel, with_divergence


class SeveralVae(VaeModel):
    """All members' networks with the images; the loss of an image is the mean over its samples.

    The encoder sees an image once, the decoder each of its samples. The arguments are those of
    ``VaeModel``.
    """

    def __init__(
        self, runs: Sequence[Vae], device: torch.device, data: Path | None = None, **images: Any
    ) -> None:
        super().__init__(runs, device, data, **images)
        self._samples = runs[0].samples
        elements = len(runs) * self._samples * runs[0].batch * PIXELS
        fuse = worth_compiling(device, elements, runs[0].epochs * self.steps_per_epoch)
        self._mean_loss = compiled(loss_of_samples) if fuse else loss_of_samples

    def losses(self) -> dict[str, Tensor]:
        """The mean negative ELBO of the next batch, over the samples of each image."""
        x = self._next_batch()
        logits = self._logits(self._encoder, x, self._latents)
        index = self._noise.categories(logits, repeats=self._samples)
        samples = self._sampler.at(repeated(logits, self._samples), index)
        self._noise.next_step()
        return {"train": self._mean_loss(self._decoder, samples, x, logits)}


def loss_of_samples(decoder: nn.Module, z: Tensor, x: Tensor, logits: Tensor) -> Tensor:
    """The mean negative ELBO over images and samples, (members,)."""
    costs = reconstruction_of_samples(decoder, z, x)
    return with_divergence(costs.mean(1).sum(1), logits)


def reconstruction_of_samples(decoder: nn.Module, z: Tensor, x: Tensor) -> Tensor:
    """The cross entropy of each image with each of its samples, (members, samples, batch).

    Args:
        decoder: From codes to the logits of pixels.
        z: The samples, (members, samples, batch, latents, categories).
        x: The images, (members, batch, pixels).
    """
    pixels: Tensor = decoder(z.flatten(-2).flatten(1, 2))
    pixels = pixels.unflatten(1, z.shape[1:3])
    x = x.unsqueeze(1).expand_as(pixels)
    return binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(-1)


def memory_of_samples(run: Vae, count: int) -> int:
    """An upper guess of what so many further samples of the images take in the decoder."""
    return 4 * run.batch * count * (2 * sum(HIDDEN) + 5 * PIXELS)


def further_memory(run: Vae) -> int:
    """An upper guess of what a member takes beyond one with a single sample."""
    more = run.samples - 1
    # the codes pass through several steps of the estimator
    code = 8 * run.latents * run.categories
    return memory_of_samples(run, more) + 4 * run.batch * more * code
