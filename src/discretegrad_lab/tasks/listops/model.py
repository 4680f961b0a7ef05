"""Gumbel Tree-LSTMs that learn to evaluate expressions of ListOps, from their values alone.

An expression's words go through an LSTM from left to right, its states are merged pair by pair to
one node, and a classifier reads the value off that node. Which pair is merged is a sample in
training and the pair of the greatest score in a test; nobody tells the model where the brackets of
an expression belong together.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...stack.model import Group, Model
from ...stack.noise import Noise
from ...stack.plateau import Plateau
from ...stack.sampler import Sampler
from .batches import Batch, chunks, order, take, widths_up_to
from .config import Parsing
from .data import (
    CLASSES,
    LIMIT,
    VOCABULARY,
    Examples,
    ListOps,
    decode,
    generate_listops,
    load_listops,
)
from .network import Network, marked
from .parse import Parse, Way, parse
from .trees import score

FACTOR = 0.5
"""Of the learning rate, when the validation has not become better for long."""
TOKENS = 8192
"""The most of a part of the validation or the test, for each member."""
SEED = 0
"""Of generated expressions, which are the same for all runs."""
# expressions of a validation and of a test, for so many to train on
_VALID, _TEST = 10, 5
# the stream of random numbers besides the one of the samples; 1 is that of the order
_DROPS = 2
# what is kept of the validation that was best
_BEST = ("best_valid_accuracy", "best_test_accuracy", "best_full_accuracy")


class ParsingModel(Model):
    """All members' networks with the expressions.

    Args:
        runs: One for each member.
        device: Where everything is.
        data: The directory of the data sets, see ``discretegrad_lab.tasks.data``.
        expressions: Others than those of the data set.
    """

    loss_names = ("train_loss",)
    one_thread = True
    capture = "buckets"

    def __init__(
        self,
        runs: Sequence[Parsing],
        device: torch.device,
        data: Path | None = None,
        *,
        expressions: ListOps | None = None,
    ) -> None:
        super().__init__()
        run, members = runs[0], len(runs)
        seeds = [member.seed for member in runs]
        self._noise, self._drop_noise = Noise(seeds, device), Noise(seeds, device)
        self._seeds, self._members, self._epochs = seeds, members, run.epochs
        self._dropout = run.dropout
        expressions = expressions_of(run, data) if expressions is None else expressions
        self._train, self._valid, _, self._test = (
            Examples(*(x.to(device) for x in part)) for part in expressions
        )
        self._is_short = self._test.lengths < LIMIT
        self._parts = {
            part: chunks(examples.lengths, TOKENS)
            for part, examples in (("valid", expressions.valid), ("test", expressions.long_test))
        }
        self._lengths, self._batch_size = expressions.train.lengths, run.batch
        self.steps_per_epoch = len(self._lengths) // run.batch
        if len(self._lengths) != run.train_examples:
            raise ValueError(
                f"expected {run.train_examples} expressions to train on, as the run says, got "
                f"{len(self._lengths)}; change examples of the run, or the expressions"
            )
        self.network = Network(runs, len(VOCABULARY), CLASSES, device)
        self._plateau = Plateau([member.patience for member in runs], FACTOR, device)
        group = Group.of_runs(self.network.parameters, runs)
        self.groups["model"] = replace(group, rate_factors=self._plateau.rate_factors)
        self.buffers = self._plateau.buffers | {
            name: torch.full((members,), -1.0, dtype=torch.float64, device=device) for name in _BEST
        }
        self._make_sampler(runs)
        self._paddings = widths_up_to(int(self._lengths.max()), bucketed=run.bucketed)
        self._widths: list[int] = []
        self._chosen = self._train.lengths
        # a graph reads the batches of its width from where they are
        self._batches: dict[int, Batch] = {}

    def _make_sampler(self, runs: Sequence[Parsing]) -> None:
        self._sampler = Sampler(runs, self._noise)

    def begin_epoch(self, epoch: int) -> None:
        """Put the expressions in a new order, and start the random numbers."""
        self._widths, chosen = order(
            self._lengths, self._batch_size, self._seeds, epoch, self._paddings
        )
        self._chosen = chosen.to(self._train.tokens.device)
        self._noise.begin(epoch)
        self._drop_noise.begin(epoch, _DROPS)

    def prepare(self, step: int) -> Hashable:
        """Lay out the batch of a step; half-way through the epoch, validate before it."""
        if step == self.steps_per_epoch // 2:
            self._validate(test=False)
        width = self._widths[step]
        batch = take(self._train, self._chosen[:, step], width)
        if width in self._batches:
            for place, tensor in zip(self._batches[width], batch, strict=True):
                place.copy_(tensor)
        else:
            self._batches[width] = batch
        self._batch = self._batches[width]
        return width

    def losses(self) -> dict[str, Tensor]:
        """The mean cross entropy of the next batch."""
        tokens, lengths, labels = self._batch
        leaves = self.network.leaves(tokens, self._drop)
        way = Way(self._choose, self._noise, self._sampler.later)
        root = parse(leaves, lengths, self.network.composer, way).root
        return {"train_loss": costs(self.network.classify(root, self._drop), labels).mean(1)}

    def _choose(self, scores: Tensor) -> Tensor:
        return self._sampler.at(scores, self._draw(scores))

    @torch.no_grad()
    def _draw(self, scores: Tensor) -> Tensor:
        """Pairs, (members, batch), and never one that there is not.

        Those that there are come first. The running sum of their probabilities may be a rounding
        below that of all, so a random number next to 1 could pass it.
        """
        index = self._noise.categories(scores)
        self._noise.next_step()
        return torch.minimum(index, (scores > -torch.inf).sum(-1) - 1)

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout, with each member's own random numbers."""
        if not self._dropout:
            return x
        stays = self._drop_noise.uniform(*x.shape[1:]) >= self._dropout
        self._drop_noise.next_step()
        return x * stays / (1 - self._dropout)

    def evaluate(self, epoch: int) -> dict[str, Tensor]:
        """Validation and test at the end of an epoch, and at the best validation so far.

        After the last one also how right the trees are.
        """
        measured = self._validate(test=True)
        measured |= {name: self.buffers[name].clone() for name in _BEST}
        measured["tree_f1"] = torch.full_like(measured["valid_accuracy"], torch.nan)
        if epoch == self._epochs:
            measured["tree_f1"].copy_(torch.tensor(self._tree_scores()))
        return measured

    def _tree_scores(self) -> list[float]:
        """How near each member's trees of the validation are to the right ones, in percent."""
        examples = Examples(*(x[self._valid.lengths > 1].cpu() for x in self._valid))
        if not len(examples.labels):
            return [math.nan] * self._members
        expressions = [decode(row) for row in examples.tokens]
        return [
            100
            * score(
                expressions, [own[: len(x) - 1] for own, x in zip(merges, expressions, strict=True)]
            ).f1
            for merges in self.parses(examples)[0].tolist()
        ]

    @torch.no_grad()
    def _validate(self, *, test: bool) -> dict[str, Tensor]:
        """Accuracies in percent; tests if one of the members has never been better, or must."""
        right, losses = self._pass("valid", self._valid)
        accuracy = 100 * right.double().mean(1)
        self._plateau.step(accuracy)
        measured = {"valid_accuracy": accuracy, "valid_loss": losses.double().mean(1)}
        best = self.buffers["best_valid_accuracy"]
        is_better = accuracy > best
        if test or bool(is_better.any()):
            right, _ = self._pass("test", self._test)
            right = 100 * right.double()
            measured["full_accuracy"] = right.mean(1)
            short = right * self._is_short
            measured["test_accuracy"] = short.sum(1) / self._is_short.sum()
            for name in _BEST:
                now = measured[name.removeprefix("best_")]
                torch.where(is_better, now, self.buffers[name], out=self.buffers[name])
        return measured

    def _pass(self, part: str, examples: Examples) -> tuple[Tensor, Tensor]:
        """Whether each value is right, and its cross entropy, (members, count) both."""
        count = len(examples.labels)
        right = torch.zeros(self._members, count, dtype=torch.bool, device=examples.labels.device)
        losses = torch.zeros(self._members, count, device=examples.labels.device)
        for width, index in self._parts[part]:
            index = index.to(examples.labels.device)
            batch = take(examples, index.expand(self._members, -1), width)
            logits = self._greedy(batch)[1]
            right[:, index] = logits.argmax(-1) == batch.labels
            losses[:, index] = costs(logits, batch.labels).float()
        return right, losses

    def _greedy(self, batch: Batch) -> tuple[Parse, Tensor]:
        """Parses by the greatest scores, and logits of the values."""
        leaves = self.network.leaves(batch.tokens, _nothing)
        parsed = parse(leaves, batch.lengths, self.network.composer, Way(greatest))
        return parsed, self.network.classify(parsed.root, _nothing)

    @property
    def test(self) -> Examples:
        """The full test set."""
        return self._test

    @torch.no_grad()
    def parses(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """How each member merges each expression, and the value that it reads off.

        Args:
            examples: Any, on any device.

        Returns:
            Merges, (members, count, longest - 1), see ``Parse``, and values, (members, count).
        """
        device = self._train.tokens.device
        on_device = Examples(*(x.to(device) for x in examples))
        count, longest = examples.tokens.shape
        merges = torch.full((self._members, count, max(longest - 1, 0)), -1, device=device)
        values = torch.zeros(self._members, count, dtype=torch.int64, device=device)
        for width, index in chunks(examples.lengths.cpu(), TOKENS):
            index = index.to(device)
            parsed, logits = self._greedy(take(on_device, index.expand(self._members, -1), width))
            merges[:, index, : width - 1] = parsed.merges
            values[:, index] = logits.argmax(-1)
        return merges, values


def greatest(scores: Tensor) -> Tensor:
    """The pair of the greatest score, one-hot."""
    return marked(scores.argmax(-1), scores.shape[-1], scores.dtype)


def costs(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each expression, (members, batch)."""
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


def _nothing(x: Tensor) -> Tensor:
    return x


def expressions_of(run: Parsing, data: Path | None = None) -> ListOps:
    """What a run trains on."""
    if run.data == "listops":
        return load_listops(data)
    count = run.train_examples
    counts = (count, max(1, count // _VALID), max(1, count // _TEST))
    return generate_listops(SEED, counts, longest=run.longest)
