r"""What a trained VAE is measured by: a tighter bound, and how much of its code it uses.

With K samples z of the code q of an image x, and weights w = p(x, z) / q(z), the expectation of

$$\log \frac 1K \sum_k w_k$$

is the ELBO at K = 1, rises with K and comes to log p(x) (Burda et al. 2016, arXiv:1509.00519). What
is called a bound here is its negative, in nats, the mean over all test images. Where the pixels are
grey values, the cross entropy is no likelihood, so neither is p(x): such numbers compare models of
one table, and nothing else.

For the code of M latent variables with N categories each, q_m(x) are the N probabilities of one of
them for an image, and their mean over the test images is the aggregate posterior of the variable.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ...stack.precision import full_precision
from ..base import Measures, Metric
from .config import Vae
from .model import HIDDEN, PIXELS, VaeModel

SAMPLES = 1000
ACTIVE = 0.01
"""A latent variable is used if its probabilities vary by more than this over the images, or if it
has more than so many nats of information about them."""
# images, and samples of each of them, that are decoded at once; the random numbers depend on both
_IMAGES, _DRAWN = 100, 100
_STREAM = 6


class Bounds:
    """Both bounds of each image from its weights, which come a few samples at a time.

    In float64, as the logarithm of a sum of exponentials whose largest one is taken out.
    """

    def __init__(self) -> None:
        self._log_total = torch.tensor(-math.inf, dtype=torch.float64)
        self._sum = torch.tensor(0.0, dtype=torch.float64)
        self._count = 0

    def add(self, log_weights: Tensor) -> None:
        """Of further samples, (members, samples, images)."""
        log_weights, device = log_weights.double(), log_weights.device
        self._log_total = torch.logaddexp(self._log_total.to(device), log_weights.logsumexp(1))
        self._sum = self._sum.to(device) + log_weights.sum(1)
        self._count += log_weights.shape[1]

    @property
    def importance_weighted(self) -> Tensor:
        """(members, images), of log p(x) from below."""
        return self._log_total - math.log(self._count)

    @property
    def elbo(self) -> Tensor:
        """The same with one sample at a time, (members, images)."""
        return self._sum / self._count


def log_weights(
    decode: Callable[[Tensor], Tensor], x: Tensor, logits: Tensor, index: Tensor
) -> Tensor:
    """log p(x, z) - log q(z | x) of samples z of the codes of images, (members, samples, images).

    Args:
        decode: From codes, (members, codes, latents, categories), to the logits of their pixels.
        x: The images, (members, images, pixels).
        logits: Of the codes, (members, images, latents, categories).
        index: The samples, (members, samples, images, latents).
    """
    samples, (latents, categories) = index.shape[1], logits.shape[-2:]
    log_q = logits.log_softmax(-1).unsqueeze(1).expand(-1, samples, -1, -1, -1)
    of_code = log_q.gather(-1, index.unsqueeze(-1)).sum((-2, -1))
    codes = torch.zeros(*index.shape, categories, dtype=logits.dtype, device=logits.device)
    codes.scatter_(-1, index.unsqueeze(-1), 1.0)
    pixels = decode(codes.flatten(1, 2)).unflatten(1, (samples, -1))
    x = x.unsqueeze(1).expand_as(pixels)
    cross_entropy = binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(-1)
    return -cross_entropy - latents * math.log(categories) - of_code


def measure(model: VaeModel) -> dict[str, Tensor]:
    """The metrics of ``MEASURES`` for each member."""
    with full_precision():
        return {**_bounds(model), **_use_of_the_code(model)}


def _bounds(model: VaeModel) -> dict[str, Tensor]:
    noise = model.begin_aside(_STREAM)
    weighted, single = [], []
    for x, logits in model.test_batches(_IMAGES):
        bounds = Bounds()
        for start in range(0, SAMPLES, _DRAWN):
            index = noise.categories(logits, repeats=min(_DRAWN, SAMPLES - start))
            noise.next_step()
            bounds.add(log_weights(model.decode, x, logits, index))
        weighted.append(bounds.importance_weighted)
        single.append(bounds.elbo)
    return {
        "test_bound": -torch.cat(weighted, 1).mean(1),
        "test_mean_elbo": -torch.cat(single, 1).mean(1),
    }


def _use_of_the_code(model: VaeModel) -> dict[str, Tensor]:
    count, codes = 0, []
    mean = square = entropy = torch.zeros(())
    for _, logits in model.test_batches(_IMAGES):
        q = logits.double().softmax(-1)
        count += q.shape[1]
        mean, square = mean + q.sum(1), square + q.square().sum(1)
        entropy = entropy + _entropy(q).sum(1)
        codes.append(logits.argmax(-1))
    mean, square, entropy = mean / count, square / count, entropy / count
    # the trace of the covariance over the images, of each latent variable
    variance = (square - mean.square()).sum(-1)
    information = (_entropy(mean) - entropy).clamp_min(0.0)
    most_probable = torch.cat(codes, 1)
    return {
        "active_units": (variance > ACTIVE).sum(1).double(),
        "informative_units": (information > ACTIVE).sum(1).double(),
        "information": information.sum(1),
        "code_entropy": _entropy(mean).mean(1),
        "distinct_codes": torch.tensor([float(len(x.unique(dim=0))) for x in most_probable]),
    }


def _entropy(q: Tensor) -> Tensor:
    """Of probabilities along the last axis, in nats."""
    return -torch.xlogy(q, q).sum(-1)


def memory(run: Vae) -> int:
    """An upper guess of the device memory that one more member takes."""
    code = run.latents * run.categories
    weights = 2 * (PIXELS * HIDDEN[0] + HIDDEN[0] * HIDDEN[1] + HIDDEN[1] * code)
    # the code and its logarithms, what the layers make of it, and the pixels with what the cross
    # entropy makes of them
    row = 4 * (2 * code + sum(HIDDEN) + 3 * PIXELS)
    # what the model itself keeps for training
    order = 2 * 8 * run.train_images
    return 4 * weights + _IMAGES * _DRAWN * row + order


MEASURES = Measures(
    metrics=(
        Metric("test_bound", f"test bound, {SAMPLES:,} samples", 2),
        Metric("test_mean_elbo", f"test \N{MINUS SIGN}ELBO, mean of {SAMPLES:,}", 2),
        Metric("active_units", "active units", 1, "up"),
        Metric("informative_units", "informative units", 1, "up"),
        Metric("information", "information, nats", 2, "up"),
        Metric("code_entropy", "code entropy, nats", 3, "up"),
        Metric("distinct_codes", "distinct codes", 0, "up"),
    ),
    measure=measure,
    memory=memory,
    note=(
        f"Test bound: minus the importance-weighted bound with {SAMPLES:,} samples of the code of "
        "each test image, in nats, and beside it minus the mean of the bounds of the same samples "
        "one at a time, which is the ELBO. For grey pixels the cross entropy is no likelihood, so "
        "the bound is none of log p(x) and compares models of this table only. Active units: "
        "latent variables whose probabilities vary over the test images, with variances that add "
        f"up to more than {ACTIVE:g} over the categories. Informative units: those whose mutual "
        f"information with the image is above {ACTIVE:g} nats; information: the sum of it over "
        "the variables. Code entropy: of the aggregate posterior, the mean over the variables. "
        "Distinct codes: how many different codes the test images have, each with its most "
        "probable categories."
    ),
)
