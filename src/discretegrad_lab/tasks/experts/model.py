r"""A mixture of experts that classifies images.

A linear layer gives the scores of the experts from the pixels. Each expert is a classifier of its
own, 784-H-10 with a narrow hidden layer. With the weights $w_i$ that a router makes of the
scores, mostly 0 but for one expert, the loss of an image is the cross entropy of

$$\sum_i w_i\, E_i(\mathrm{image}) .$$

With n experts and the weight $\beta$ of the balance, $\beta\, n \sum_i s_i \bar p_i$ is added to
what is minimised, as in the Switch Transformer (Fedus et al. 2022): $s_i$ is the share of the batch
whose highest score is that of expert i, and the gradient goes through the mean probability
$\bar p_i$.

The stack runs all experts for every image, so that no shape depends on what is drawn, and a weight
of 0 takes an expert out. What a router may look at is another matter, see ``Router``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from ...stack.layers import generators
from ...stack.model import Group, Model
from ...stack.noise import Noise
from ..batches import Batches
from ..data import Images, Labels, load_images, load_labels
from ..pixels import grey
from .config import Experts
from .network import CLASSES, PIXELS, Network
from .routers import Router

_TEST_BATCH = 1000


class Examples(NamedTuple):
    """Images and what they show."""

    images: Images
    labels: Labels


class ExpertsModel(Model):
    """All members' experts and routers with the images.

    Args:
        runs: One for each member.
        device: Where everything is.
        data: The directory of the data sets, see ``discretegrad_lab.tasks.data``.
        examples: Others than those of the data set.
    """

    loss_names = ("train", "objective")

    def __init__(
        self,
        runs: Sequence[Experts],
        device: torch.device,
        data: Path | None = None,
        *,
        examples: Examples | None = None,
    ) -> None:
        super().__init__()
        run = runs[0]
        if examples is None:
            examples = Examples(load_images(run.data, data), load_labels(run.data, data))
        images, labels = examples
        seeds = [member.seed for member in runs]
        self._batches = Batches(images.train, seeds, run.batch, device)
        self._labels = labels.train.long().to(device)
        self._test, self._test_labels = images.test.to(device), labels.test.long().to(device)
        self.steps_per_epoch, self.counters = self._batches.steps_per_epoch, [self._batches.step]
        self._noise = Noise(seeds, device)
        self._router = Router(runs, self._noise)
        self.network = Network(generators(seeds), run.experts, run.hidden).to(device)
        parameters = dict(self.network.named_parameters())
        self.groups["model"] = Group.of_runs(parameters, runs, "objective")
        self._balance = torch.tensor([member.balance for member in runs], device=device)

    def begin_epoch(self, epoch: int) -> None:
        """Put the images in each member's own new order, and start the random numbers."""
        self._batches.begin(epoch)
        self._noise.begin(epoch)

    def losses(self) -> dict[str, Tensor]:
        """The mean cross entropy of the next batch, and with the term for the balance."""
        index = self._batches.next_index()
        labels = self._labels.index_select(0, index.flatten())
        scores, outputs = self.network(self._batches.pixels(index))
        costs = self._router.costs(
            scores, lambda weights: _cross_entropy(_mixed(weights, outputs), labels)
        )
        self._noise.next_step()
        train = costs.mean(1)
        return {"train": train, "objective": train + self._balance * _imbalance(scores)}

    @torch.no_grad()
    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """Cross entropy and accuracy in percent of the test images, and how many experts are in
        use: the exponential of the entropy of their shares of the images, by the highest score."""
        members, experts, _ = self.network.inner.bias.shape
        cost, right, used = (
            torch.zeros(shape, dtype=torch.float64, device=self._test.device)
            for shape in (members, members, (members, experts))
        )
        parts = zip(
            self._test.split(_TEST_BATCH), self._test_labels.split(_TEST_BATCH), strict=True
        )
        for images, labels in parts:
            x = grey(images).expand(members, -1, -1)
            scores, outputs = self.network(x)
            mixed = _mixed(self._router.test_weights(scores), outputs)
            cost += _cross_entropy(mixed, labels.repeat(members)).sum(1)
            right += (mixed.argmax(-1) == labels).sum(1)
            used += one_hot(scores.argmax(-1), experts).sum(1)
        count = len(self._test)
        usage = torch.special.entr(used / count).sum(1).exp()
        return {"test": cost / count, "accuracy": 100 * right / count, "usage": usage}


def _mixed(weights: Tensor, outputs: Tensor) -> Tensor:
    """The weighted sum of what the experts give, (members, batch, classes)."""
    return (weights.unsqueeze(-1) * outputs).sum(2)


def _imbalance(scores: Tensor) -> Tensor:
    """1 if all experts get equally many images, up to their number; (members,)."""
    experts = scores.shape[-1]
    best = scores.argmax(-1, keepdim=True) == torch.arange(experts, device=scores.device)
    share = best.to(scores.dtype).mean(1)
    return experts * (share * scores.softmax(-1).mean(1)).sum(-1)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each image, (members, batch); the labels are those of all members, one after the other."""
    costs = cross_entropy(logits.flatten(0, 1), labels, reduction="none")
    return costs.view(logits.shape[:2])


def memory(run: Experts) -> int:
    """An upper guess of the device memory that one more member takes."""
    units = run.experts * run.hidden
    weights = (PIXELS + 1) * (run.experts + units) + (units + run.experts) * CLASSES
    # parameters, gradients and two moments
    model = 4 * 4 * weights
    # of an image: pixels; units with their rectified form and gradients; outputs of all experts,
    # their products with weights and gradients, twice for an estimator with two samples; scores
    outputs = run.experts * CLASSES
    of_image = 2 * PIXELS + 6 * units + 10 * outputs + 16 * run.experts
    test = 4 * _TEST_BATCH * (PIXELS + 3 * units + 4 * outputs)
    # the order of the images, with the random numbers and the copies that sorting takes
    order = (8 + 32) * run.batch * run.steps_per_epoch
    return model + 4 * run.batch * of_image + test + order
