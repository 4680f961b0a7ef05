r"""The VAE trained with the exact gradient of its loss, or with that of the encoder alone.

The decoder does not see the image. So each of the joint codes z is decoded once for all images of a
batch, to logits $o_z$ of the pixels, and the expected reconstruction of an image x is

$$\sum_z P(z) \big( \sum \mathrm{softplus}(o_z) - x \cdot o_z \big) ,$$

a product of two matrices. With 8 ** 4 codes and a batch of 100 that is 41 times the work of the
decoder for one sample of each image, and not 4096 times.

All other estimators take the gradient of the decoder from the sample, too. So there are two lines:
``exact`` has no noise at all, and ``exact-encoder`` the same noise as they in the decoder and none
in the encoder, as the unused option of the released code. What an estimator leaves to the second is
what it costs to estimate the gradient of the encoder.

What decodes all codes is not compiled: torch 2.11 on an H200 made a program of it whose loss and
whose gradient of the encoder were right, and whose gradient of the decoder was nearly zero.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus

from ...stack.lines import Kind, Line
from .config import Vae
from .model import HIDDEN, PIXELS, VaeModel, with_divergence
from .model import memory as memory_of_one_sample
from .scored import ScoredVae
from .scored import further_memory as memory_of_scores
from .several import SeveralVae
from .several import further_memory as memory_of_several

ENCODER = Line(
    "exact gradient, encoder only",
    "exact",
    key="exact-encoder",
    colour="#888888",
    decoder="sampled",
)


def make_model(runs: Sequence[Vae], device: torch.device, data: Path | None = None) -> VaeModel:
    """The stacked model of runs that can be members of one stack."""
    sampled = SeveralVae if runs[0].samples > 1 else VaeModel
    kinds: dict[Kind, type[VaeModel]] = {"score": ScoredVae, "exact": EnumeratedVae}
    return kinds.get(runs[0].trained.line.kind, sampled)(runs, device, data)


class EnumeratedVae(VaeModel):
    """All members' networks with the images; every step decodes all codes.

    The arguments are those of ``VaeModel``.
    """

    def __init__(
        self, runs: Sequence[Vae], device: torch.device, data: Path | None = None, **images: Any
    ) -> None:
        super().__init__(runs, device, data, **images)
        run = runs[0].trained
        self._samples_decoder = dict(run.line.options).get("decoder") == "sampled"
        codes = all_codes(run.latents, run.categories).flatten(1).to(device)
        self._codes = codes.expand(len(runs), *codes.shape)

    def losses(self) -> dict[str, Tensor]:
        """The mean negative ELBO of the next batch, as an expectation or with one sample each."""
        x = self._next_batch()
        logits = self._logits(self._encoder, x, self._latents)
        if not self._samples_decoder:
            return {"train": expected_loss(self._decoder, self._codes, x, logits)}
        with torch.no_grad():
            costs = reconstruction_of_codes(self._decoder, self._codes, x)
            index = self._noise.categories(logits).unsqueeze(-1)
            z = torch.zeros_like(logits).scatter_(-1, index, 1.0)
        self._noise.next_step()
        expected = (joint_probabilities(logits) * costs).sum((1, 2)) / x.shape[1]
        # its gradient alone: the value is that of the sample, as for all other estimators
        return {"train": self._loss(self._decoder, z, x, logits) + (expected - expected.detach())}


def all_codes(latents: int, categories: int) -> Tensor:
    """Every joint outcome as samples, (codes, latents, categories); the last latent runs first."""
    index = torch.cartesian_prod(*[torch.arange(categories)] * latents).view(-1, latents)
    return one_hot(index, categories).float()


def joint_probabilities(logits: Tensor) -> Tensor:
    """Of all codes in that order, (members, batch, codes)."""
    joint, *others = logits.softmax(-1).unbind(-2)
    for q in others:
        joint = (joint.unsqueeze(-1) * q.unsqueeze(-2)).flatten(-2)
    return joint


def reconstruction_of_codes(decoder: nn.Module, codes: Tensor, x: Tensor) -> Tensor:
    """The cross entropy of every image with every code, (members, batch, codes)."""
    pixels: Tensor = decoder(codes)
    return softplus(pixels).sum(-1).unsqueeze(1) - torch.bmm(x, pixels.mT)


def expected_loss(decoder: nn.Module, codes: Tensor, x: Tensor, logits: Tensor) -> Tensor:
    """The mean over the batch of the expected negative ELBO, (members,)."""
    costs = reconstruction_of_codes(decoder, codes, x)
    return with_divergence((joint_probabilities(logits) * costs).sum((1, 2)), logits)


def memory(run: Vae) -> int:
    """An upper guess of the device memory that one more member takes."""
    guess = memory_of_one_sample(run)
    if run.trained.line.kind == "score":
        guess += memory_of_scores(run)
    elif run.samples > 1:
        guess += memory_of_several(run)
    if run.trained.line.kind == "exact":
        # what the layers make of the codes, with gradients; probabilities and costs of the images
        guess += 4 * run.codes * (2 * sum(HIDDEN) + 3 * PIXELS + 4 * run.batch)
    return guess
