"""A search: the weights of the supernet and the architecture, updated in turn.

A step draws a cell and updates the weights on a batch of the one half of the images, then draws
another cell and updates the architecture on a batch of the other half. The architecture, alpha, has
a row of logits for each edge, which all cells share.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...stack.layers import generators
from ...stack.model import Group, Model
from ...stack.noise import Noise
from ...stack.sampler import Sampler
from ...stack.schedules import Schedule
from .benchmark import COLUMNS, Benchmark, load
from .cells import EDGES, LABELS, NONE, OPERATIONS, SKIP, reduced, to_number
from .config import Search
from .images import RANDOM, Crops, Halves, first, load_halves
from .network import Samples, Supernet

LOSS, ARCHITECTURE_LOSS = "loss", "architecture_loss"
GRADIENT = "architecture_gradient"
"""The metric with the root mean square of the gradient at alpha, before decay, over an epoch."""
PROBABILITIES = tuple(
    f"p_{end}{start}_{label.replace(' ', '')}" for end, start in EDGES for label in LABELS
)
"""Metrics with the probability of each operation on each edge."""
# of the weights, by the protocol of the benchmark
_RATE, _LAST_RATE, _MOMENTUM, _DECAY = 0.025, 0.001, 0.9, 5e-4
_BETA = 0.5
"""Adam's first beta for the architecture."""
_START = 1e-3
"""The deviation of alpha before training."""
# the stream of random numbers of the images, besides the one of the samples
_IMAGES = 1


class SearchModel(Model):
    """One search; the layers of its network have no member axis, so it is a stack by itself.

    Args:
        runs: The only one.
        device: Where everything is.
        data: The directory of the data sets, see ``discretegrad_lab.tasks.data``.
        images: Others than those of the data set.
        benchmark: Another table than that of the data set.
    """

    loss_names = (LOSS, ARCHITECTURE_LOSS)
    in_turn = True
    capture = "none"

    def __init__(
        self,
        runs: Sequence[Search],
        device: torch.device,
        data: Path | None = None,
        *,
        images: Halves | None = None,
        benchmark: Benchmark | None = None,
    ) -> None:
        super().__init__()
        if len(runs) != 1:
            raise ValueError(f"expected one search in a stack, got {len(runs)}")
        (self._run,) = runs
        run = self._run
        self._benchmark = load(data) if benchmark is None else benchmark
        halves = first(load_halves(data) if images is None else images, run.images)
        self._images = {
            name: Crops(x, device) for name, x in zip(self.loss_names, halves, strict=True)
        }
        self.steps_per_epoch = run.steps_per_epoch

        self._noise, self._image_noise = Noise([run.seed], device), Noise([run.seed], device)
        self._sampler = Sampler(runs, self._noise)
        (generator,) = generators([run.seed])
        self._network = Supernet(run.channels, run.cells)
        weights = self._network.start(generator).unsqueeze(0)
        shape = (1, len(EDGES), len(OPERATIONS))
        alpha = _START * torch.randn(shape, generator=generator)
        self.alpha = alpha.to(device).requires_grad_()
        self.weights = weights.to(device).requires_grad_()
        # without a gradient; updates are in place, so they stay what they are
        self._views = self._network.weights(self.weights.detach(), (), every=True)
        self.groups["architecture"] = Group(
            {"alpha": self.alpha}, range(1), [run.optimiser], [run.learning_rate],
            [run.rate_schedule], [run.clip_norm], ARCHITECTURE_LOSS, beta=_BETA, decay=run.decay,
        )  # fmt: skip
        schedule = Schedule("cosine-steps", _LAST_RATE / _RATE, run.steps_per_epoch)
        self.groups["weights"] = Group(
            {"weights": self.weights}, range(1), ["sgd"], [_RATE], [schedule], [None], LOSS,
            beta=_MOMENTUM, decay=_DECAY,
        )  # fmt: skip
        self._step = 0
        self._squares = torch.zeros(shape, dtype=torch.float64, device=device)
        """Of the gradients at alpha, added up over the steps of an epoch."""
        self.counters = [self._squares]
        self._index = torch.zeros(1, len(EDGES), dtype=torch.int64, device=device)

    def begin_epoch(self, epoch: int) -> None:
        """Order and crops of the images, the temperature, and the numbers of the samples."""
        run = self._run
        self._squares.zero_()
        self._noise.begin(epoch)
        self._sampler.set_taus([run.tau_at(epoch)])
        self._image_noise.begin(epoch, _IMAGES)
        uniform = self._image_noise.uniform(run.images, 2 + 2 * RANDOM)[0]
        order, chosen, *crops = uniform.split([1, 1, RANDOM, RANDOM], dim=1)
        # each image of the one half once, and any image of the other half at any time
        places = order[:, 0].argsort(stable=True), (chosen[:, 0] * run.images).long()
        self._batches = {
            name: self._images[name].places(place, crop).split(run.batch)
            for name, place, crop in zip(self.loss_names, places, crops, strict=True)
        }

    def prepare(self, step: int) -> None:
        """Draw both cells of a step: alpha changes only at its end."""
        self._step = step
        index = self._noise.categories(self.alpha, repeats=2)
        self._noise.next_step()
        # the host must know which operations to launch
        first_cell, second_cell = index[0].tolist()
        self._cells = {LOSS: tuple(first_cell), ARCHITECTURE_LOSS: tuple(second_cell)}
        self._index = index[:, 1].contiguous()

    def loss(self, name: str) -> Tensor:
        """Of the weights, or of the architecture."""
        x, labels = self._images[name].batch(self._batches[name][self._step])
        cell = self._cells[name]
        if name == LOSS:
            # what is left out would get a gradient of zero
            cell = reduced(cell)
            logits = self._network(x, self._network.weights(self.weights, cell), cell)
        else:
            # a view, whose gradient is that at alpha as the estimator gives it
            alpha = self.alpha.view_as(self.alpha)
            alpha.register_hook(self._add_square)
            samples = self._sampler.at(alpha, self._index)
            joined = None
            if self._run.gradient == "full":
                joined = self._network.joined(self.weights.detach())
            logits = self._network(x, self._views, cell, Samples(samples[0], joined))
        return cross_entropy(logits, labels).unsqueeze(0)

    def _add_square(self, gradient: Tensor) -> None:
        g = gradient.double()
        self._squares.addcmul_(g, g)

    @torch.no_grad()
    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """What the table says of the most probable cell, and how sure the architecture is of it."""
        alpha = self.alpha[0].cpu().double()
        p = alpha.softmax(-1)
        cell = tuple(alpha.argmax(-1).tolist())
        accuracies = self._benchmark[cell].accuracies
        values = {name: accuracies[name] for name in COLUMNS} | {
            GRADIENT: (self._squares.mean() / self.steps_per_epoch).sqrt().item(),
            "entropy": torch.special.entr(p).sum(-1).mean().item(),
            "cell_number": float(to_number(cell)),
            "none_edges": float(cell.count(NONE)),
            "skip_edges": float(cell.count(SKIP)),
            **dict(zip(PROBABILITIES, p.flatten().tolist(), strict=True)),
        }
        device = self.alpha.device
        return {
            name: torch.tensor([value], dtype=torch.float64, device=device)
            for name, value in values.items()
        }


def memory(run: Search) -> int:
    """A guess of the device memory of a search, of which a context on a GPU is a part."""
    stages = sum(run.channels * 2**stage * (32 // 2**stage) ** 2 for stage in range(3))
    # of every edge: rectified, convolved and normalised, a gradient; in the full form also the
    # outputs of both convolutions, and averages
    tensors = len(EDGES) * (4 if run.gradient == "gdas" else 7)
    activations = 4 * run.batch * stages * run.cells * tensors
    images = 2 * run.images * 3 * 40 * 40
    return int((1 << 30) + activations + images)
