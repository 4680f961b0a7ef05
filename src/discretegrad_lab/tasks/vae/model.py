r"""The categorical VAE of the paper, on grey or binary images.

An encoder 784-512-256-MN gives the logits of M latent variables with N categories each, a decoder
MN-256-512-784 the logits of the pixels. The loss of an image x is its negative ELBO with one
sample z of q = softmax(logits) and the uniform prior,

$$\mathrm{BCE}(\mathrm{decoder}(z), x) + \sum q \log q + M \log N .$$

The pixels are grey values in [0, 1], so the cross entropy is no proper likelihood; with binarised
images it is one. The sampling is what an estimator has to differentiate; the second and third term
have an ordinary gradient.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from ...stack.compilation import compiled, worth_compiling
from ...stack.config import Run
from ...stack.layers import generators, mlp, parameters_of
from ...stack.model import Group, Model
from ...stack.noise import Noise
from ...stack.sampler import Sampler
from .. import pixels
from ..batches import Batches
from ..data import Images, load_mnist
from .config import Vae
from .gradients import IMAGES, NAMES, STOPS, Point, compare_gradients, reconstruction

PIXELS = 784
HIDDEN = (512, 256)
TEST_EVERY = 10
"""Epochs from one pass over the test images to the next."""

# images that share a step of the random numbers outside of training
_DRAWN = 200
# several of those, since launching the kernels of a test takes longer than running them
_TEST_BATCH = 5 * _DRAWN
# images in a row of a picture
_SHOWN = 12
# the streams of random numbers besides the one of training
# 1 is that of the order of the images
_TEST, _PICTURES = 2, 3
# 4 is that of compared gradients
_PIXELS = 5
# 6 is that of measures
_PRIOR = 7


class VaeModel(Model):
    """All members' networks with the images.

    Args:
        runs: One for each member.
        device: Where everything is.
        data: The directory of the data sets, see ``discretegrad_lab.tasks.data``.
        images: Others than those of the data set.
    """

    loss_names = ("train",)

    def __init__(
        self,
        runs: Sequence[Vae],
        device: torch.device,
        data: Path | None = None,
        *,
        images: Images | None = None,
    ) -> None:
        super().__init__()
        run = runs[0]
        seeds = [member.seed for member in runs]
        self._noise = Noise(seeds, device)
        # of its own, so that nothing else changes what training draws
        self._aside = Noise(seeds, device)
        self._runs = tuple(runs)
        trained = [member.trained for member in runs]
        if trained[0].line.kind == "sampler":
            self._sampler = Sampler(trained, self._noise)
        train, test = load_mnist(data) if images is None else images
        train = train[: run.images]
        self._batches = Batches(train, seeds, run.batch, device)
        self.steps_per_epoch, self.counters = self._batches.steps_per_epoch, [self._batches.step]
        # of its own too, so that all estimators see the same pixels
        self._pixel_noise = Noise(seeds, device) if run.binarised else None
        self._test = self._settled(test).to(device)
        self._epochs, self._members = run.epochs, len(runs)
        self._latents, self._categories = run.latents, run.categories

        weights = [member.weights_seed for member in runs]
        starts = generators([s if w is None else w for s, w in zip(seeds, weights, strict=True)])
        encoder, decoder = _sizes(run)
        activation = nn.ReLU if run.slope is None else partial(nn.LeakyReLU, run.slope)
        self._encoder = mlp(starts, encoder, activation).to(device)
        self._decoder = mlp(starts, decoder, activation).to(device)
        parameters = parameters_of(encoder=self._encoder, decoder=self._decoder)
        self.groups["model"] = Group.of_runs(parameters, runs)

        # what is all memory traffic in a step
        elements, steps = self._members * run.batch * PIXELS, run.epochs * self.steps_per_epoch
        fuse = worth_compiling(device, elements, steps)
        self._logits = compiled(_logits) if fuse else _logits
        self._loss = compiled(_loss) if fuse else _loss

    def begin_epoch(self, epoch: int) -> None:
        """Put the images in each member's own new order, and start the random numbers.

        Images that do not fill a batch are left out of the epoch.
        """
        self._batches.begin(epoch)
        self._noise.begin(epoch)
        if self._pixel_noise is not None:
            self._pixel_noise.begin(epoch, _PIXELS)

    def losses(self) -> dict[str, Tensor]:
        """The mean negative ELBO of the next batch."""
        x = self._next_batch()
        logits = self._logits(self._encoder, x, self._latents)
        samples = self._sampler(logits)
        self._noise.next_step()
        return {"train": self._loss(self._decoder, samples, x, logits)}

    @torch.no_grad()
    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """The mean negative ELBO of the test images, or NaN between the epochs that have it.

        Where runs say so, also how their gradients compare with the exact ones.
        """
        total = torch.zeros(self._members, dtype=torch.float64, device=self._test.device)
        if epoch % TEST_EVERY and epoch != self._epochs:
            return {"test": total.fill_(torch.nan), **self._compared(epoch)}
        self._aside.begin(epoch, _TEST)
        for x, logits in self.test_batches(_TEST_BATCH):
            total += x.shape[1] * _loss(self._decoder, self._draw(logits), x, logits)
        return {"test": total / len(self._test), **self._compared(epoch)}

    def _compared(self, epoch: int) -> dict[str, Tensor]:
        """How the gradients of each member's estimator compare with the exact ones."""
        if not self._runs[0].along:
            return {}
        values = dict.fromkeys(NAMES, [math.nan] * self._members)
        if epoch in STOPS or epoch == self._epochs:
            x = pixels.grey(self._settled(self._batches.images[:IMAGES]))
            logits = _logits(self._encoder, x.expand(self._members, -1, -1), self._latents)
            compared = [
                compare_gradients(
                    run, Point(logits[member], reconstruction(self._decoder, member, x), epoch)
                )
                for member, run in enumerate(self._runs)
            ]
            values = {name: [numbers[name] for numbers in compared] for name in NAMES}
        device = self._test.device
        return {
            name: torch.tensor(numbers, dtype=torch.float64, device=device)
            for name, numbers in values.items()
        }

    @torch.no_grad()
    def reconstructions(self, member: int, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images and the decoder's mean for one sample of each, in [0, 1].

        Args:
            member: Whose networks.
            images: (images, 784), from 0 to 255.
        """
        self._aside.begin(0, _PICTURES)
        x = pixels.grey(self._settled(images).to(self._test.device))
        logits = _logits(self._encoder, x.expand(self._members, -1, -1), self._latents)
        means = _pixels(self._decoder, self._draw(logits))
        return x, means[member].sigmoid()

    @torch.no_grad()
    def prior_samples(self, count: int) -> Tensor:
        """The decoder's means for codes of the uniform prior, (members, count, 784) in [0, 1]."""
        uniform = self.begin_aside(_PRIOR).uniform(count, self._latents)
        codes = one_hot((uniform * self._categories).long(), self._categories)
        return self.decode(codes.to(uniform.dtype)).sigmoid()

    def test_batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All test images in their order, (members, size, 784), each with the logits of its code,
        (members, size, latents, categories)."""
        for images in self._test.split(size):
            x = pixels.grey(images).expand(self._members, -1, -1)
            yield x, _logits(self._encoder, x, self._latents)

    def decode(self, codes: Tensor) -> Tensor:
        """The logits of the pixels of codes, (members, codes, latents, categories)."""
        return _pixels(self._decoder, codes)

    def begin_aside(self, stream: int) -> Noise:
        """Random numbers that have no part in training, from the beginning of a stream of them."""
        self._aside.begin(0, stream)
        return self._aside

    def _next_batch(self) -> Tensor:
        """(members, batch, 784); the step is counted on the device, where a graph can do it."""
        x = self._batches.next()
        if self._pixel_noise is None:
            return x
        uniform = self._pixel_noise.uniform(*x.shape[1:])
        self._pixel_noise.next_step()
        return (uniform < x).to(x.dtype)

    def _settled(self, images: Tensor) -> Tensor:
        """Images outside of training, from 0 to 255: as they are, or one binary copy of them."""
        return images if self._pixel_noise is None else pixels.binary_copy(images)

    def _draw(self, logits: Tensor) -> Tensor:
        """Samples without a gradient; no estimator matters to their distribution."""
        drawn = []
        for part in logits.split(_DRAWN, dim=1):
            drawn.append(self._aside.categories(part))
            self._aside.next_step()
        return one_hot(torch.cat(drawn, dim=1), self._categories).to(logits.dtype)


def memory(run: Vae) -> int:
    """An upper guess of the device memory that one more member takes."""
    encoder, decoder = _sizes(run)
    weights = sum((a + 1) * b for sizes in (encoder, decoder) for a, b in pairwise(sizes))
    # parameters, gradients and two moments
    model = 4 * 4 * weights
    # a layer's result, its rectified form and a gradient; the pixels' and the latent ones
    # pass through several more steps of the loss and of the estimator
    activations = 4 * run.batch * (3 * 2 * sum(HIDDEN) + 8 * PIXELS + 16 * encoder[-1])
    # where the loss of a test batch takes most; a graph keeps what training needs meanwhile
    test = 4 * _TEST_BATCH * (3 * PIXELS + 6 * encoder[-1])
    # the order of the images, with the random numbers and the copies that sorting takes
    order = (8 + 32) * run.train_images
    # the random numbers of the pixels, and what they are compared with
    binary = 4 * run.batch * 2 * PIXELS if run.binarised else 0
    return model + activations + test + order + binary


def draw_reconstructions(
    runs: Sequence[Run],
    load: Callable[[Run], Mapping[str, Tensor]],
    data: Path | None = None,
    images: Images | None = None,
) -> list[tuple[str, Tensor]]:
    """Test images, and what each model makes of one sample of their codes, see ``Picture``."""
    images = load_mnist(data) if images is None else images
    shown = images.test[:_SHOWN]
    rows: list[tuple[str, Tensor]] = []
    for run in runs:
        originals, means = _restored(run, load, images).reconstructions(0, shown)
        if not rows:
            rows.append(("original", originals.unflatten(-1, (28, 28))))
        rows.append((run.line.label, means.unflatten(-1, (28, 28))))
    return rows


def draw_prior_samples(
    runs: Sequence[Run],
    load: Callable[[Run], Mapping[str, Tensor]],
    data: Path | None = None,
    images: Images | None = None,
) -> list[tuple[str, Tensor]]:
    """What each model makes of codes that are drawn from the prior, see ``Picture``."""
    images = load_mnist(data) if images is None else images
    return [
        (
            run.line.label,
            _restored(run, load, images).prior_samples(_SHOWN)[0].unflatten(-1, (28, 28)),
        )
        for run in runs
    ]


def _restored(run: Run, load: Callable[[Run], Mapping[str, Tensor]], images: Images) -> "VaeModel":
    """The model of a finished run alone, on the CPU."""
    assert isinstance(run, Vae)
    model = VaeModel([run], torch.device("cpu"), images=images)
    model.load_parameters(0, load(run))
    return model


def _logits(encoder: nn.Module, x: Tensor, latents: int) -> Tensor:
    """Of the latent variables, (members, batch, latents, categories)."""
    logits: Tensor = encoder(x)
    return logits.view(*logits.shape[:-1], latents, -1)


def _pixels(decoder: nn.Module, z: Tensor) -> Tensor:
    """The logits of the pixels, (members, batch, 784)."""
    out: Tensor = decoder(z.flatten(-2))
    return out


def _loss(decoder: nn.Module, z: Tensor, x: Tensor, logits: Tensor) -> Tensor:
    return negative_elbo(_pixels(decoder, z), x, logits)


def negative_elbo(out: Tensor, x: Tensor, logits: Tensor) -> Tensor:
    """The mean over the batch, (members,).

    Args:
        out: The decoder's logits of the pixels, (members, batch, pixels).
        x: The pixels, in [0, 1].
        logits: Of the latent variables, (members, batch, latents, categories).
    """
    reconstruction = binary_cross_entropy_with_logits(out, x, reduction="none").sum((1, 2))
    return with_divergence(reconstruction, logits)


def with_divergence(reconstruction: Tensor, logits: Tensor) -> Tensor:
    """The negative ELBO from the reconstruction's part, summed over the batch; (members,) both."""
    batch, latents, categories = logits.shape[-3:]
    q = logits.softmax(-1)
    # 1e-10 as in the released code
    divergence = (q * (q + 1e-10).log()).sum((1, 2, 3))
    return (reconstruction + divergence) / batch + latents * math.log(categories)


def _sizes(run: Vae) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The widths of the encoder's and the decoder's layers, from input to output."""
    encoder = (PIXELS, *HIDDEN, run.latents * run.categories)
    return encoder, encoder[::-1]
