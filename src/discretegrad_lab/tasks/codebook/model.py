r"""A vector-quantised autoencoder of images.

An encoder 784-512-256-MD gives M vectors x of width D, each is replaced by a code e of one
codebook, and a decoder MD-256-512-784 gives the logits of the pixels. With the weight $\beta$ of
the commitment, the loss of an image is

$$\mathrm{BCE}(\mathrm{decoder}(e), \mathrm{image}) + \beta \sum ||x - e||^2 .$$

In training a code is drawn from the softmax of $-||x - e||^2 / s$, and an estimator gives the
encoder its gradient; or the nearest code is taken and the gradient at it is copied. The test takes
the nearest codes of all runs.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ...stack.layers import generators, mlp, parameters_of
from ...stack.model import Group, Model
from ...stack.noise import Noise
from ...stack.sampler import Sampler
from ..batches import Batches
from ..data import Images, load_mnist
from ..pixels import grey
from .config import Codebook
from .quantiser import Quantiser

PIXELS = 784
HIDDEN = (512, 256)
TEST_EVERY = 10
"""Epochs from one pass over the test images to the next."""
_TEST_BATCH = 500


class CodebookModel(Model):
    """All members' networks and codebooks with the images.

    Args:
        runs: One for each member.
        device: Where everything is.
        data: The directory of the data sets, see ``discretegrad_lab.tasks.data``.
        images: Others than those of the data set.
    """

    loss_names = ("train",)

    def __init__(
        self,
        runs: Sequence[Codebook],
        device: torch.device,
        data: Path | None = None,
        *,
        images: Images | None = None,
    ) -> None:
        super().__init__()
        run = runs[0]
        seeds = [member.seed for member in runs]
        train, test = load_mnist(data) if images is None else images
        self._batches = Batches(train, seeds, run.batch, device)
        self._test = test.to(device)
        self.steps_per_epoch = self._batches.steps_per_epoch
        self.counters = [self._batches.step]
        self._noise = Noise(seeds, device)
        self._sampler = None if run.copied else Sampler(runs, self._noise)
        self._epochs, self._width = run.epochs, run.width
        self._commitment = torch.tensor([member.commitment for member in runs], device=device)

        starts = generators(seeds)
        sizes = (PIXELS, *HIDDEN, run.latents * run.width)
        self._encoder = mlp(starts, sizes).to(device)
        self._decoder = mlp(starts, sizes[::-1]).to(device)
        self.quantiser = Quantiser(runs, starts, device)
        self.buffers = self.quantiser.buffers
        parameters = parameters_of(encoder=self._encoder, decoder=self._decoder)
        self.groups["model"] = Group.of_runs(parameters, runs)

    def begin_epoch(self, epoch: int) -> None:
        """Put the images in each member's own new order, and start the random numbers."""
        self._batches.begin(epoch)
        self._noise.begin(epoch)

    def losses(self) -> dict[str, Tensor]:
        """The mean loss of the next batch."""
        x = self._batches.next()
        rows = self._rows(x)
        codes, taken = self.quantised(rows)
        with torch.no_grad():
            codes_only = codes.detach().clone()
            self.quantiser.update(rows, taken, self._noise)
        self._noise.next_step()
        distance = (rows - codes_only).square().sum((1, 2)) / x.shape[1]
        return {"train": self._reconstruction(codes, x) + self._commitment * distance}

    def quantised(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The codes with their gradient, and which they are as one-hots without one.

        Args:
            rows: (members, rows, width).
        """
        # a copy, since it changes before backward needs it
        codebook = self.quantiser.codebook.clone()
        if self._sampler is None:
            taken = self.quantiser.nearest(rows.detach())
            return rows + (torch.bmm(taken, codebook) - rows).detach(), taken
        samples = self._sampler(self.quantiser.logits(rows))
        return torch.bmm(samples, codebook), samples.detach()

    @torch.no_grad()
    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """Of the test images with the nearest codes, or NaN between the epochs that have it.

        The reconstruction's part of the loss, and how many codes are in use: the exponential of the
        entropy of their frequencies.
        """
        members = len(self._commitment)
        total = torch.zeros(members, dtype=torch.float64, device=self._test.device)
        if epoch % TEST_EVERY and epoch != self._epochs:
            unknown = total.fill_(torch.nan)
            return {"test": unknown, "usage": unknown.clone()}
        counts = torch.zeros_like(self.quantiser.counts, dtype=torch.float64)
        for images in self._test.split(_TEST_BATCH):
            x = grey(images).expand(members, -1, -1)
            taken = self.quantiser.nearest(self._rows(x))
            codes = torch.bmm(taken, self.quantiser.codebook)
            total += len(images) * self._reconstruction(codes, x)
            counts += taken.sum(1)
        share = counts / counts.sum(1, keepdim=True)
        usage = torch.special.entr(share).sum(1).exp()
        return {"test": total / len(self._test), "usage": usage}

    def _rows(self, x: Tensor) -> Tensor:
        """The encoder's vectors, (members, images times vectors, width)."""
        vectors: Tensor = self._encoder(x)
        return vectors.reshape(len(x), -1, self._width)

    def _reconstruction(self, codes: Tensor, x: Tensor) -> Tensor:
        """The cross entropy of the pixels, the mean over the images; (members,)."""
        out = self._decoder(codes.reshape(*x.shape[:2], -1))
        return binary_cross_entropy_with_logits(out, x, reduction="none").sum((1, 2)) / x.shape[1]


def memory(run: Codebook) -> int:
    """An upper guess of the device memory that one more member takes."""
    vectors = run.latents * run.width
    sizes = (PIXELS, *HIDDEN, vectors)
    weights = 2 * sum((a + 1) * b for a, b in pairwise(sizes)) + PIXELS
    # parameters, gradients and two moments
    model = 4 * 4 * weights
    # a layer's result, its rectified form and a gradient; distances pass through several steps
    rows = run.latents * run.codes
    activations = 4 * run.batch * (12 * sum(HIDDEN) + 8 * PIXELS + 8 * vectors + 12 * rows)
    test = 4 * _TEST_BATCH * (3 * PIXELS + 4 * rows)
    # the order of the images, with the random numbers and the copies that sorting takes
    order = (8 + 32) * run.batch * run.steps_per_epoch
    return model + activations + test + order
