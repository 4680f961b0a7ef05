"""The layers of all members: words, leaf LSTM, composition and query, classifier."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...stack.layers import generators, linear
from .cells import Composer, leaf_lstm
from .config import Parsing

Drop = Callable[[Tensor], Tensor]
"""Sets elements to zero and enlarges the others, or gives back what it gets."""


def marked(index: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """One-hot; unlike that of torch it never looks at values, so a CUDA graph can hold it."""
    return (index.unsqueeze(-1) == torch.arange(count, device=index.device)).to(dtype)


class Network:
    """The parameters of a stack, initialised as in the released programs.

    Args:
        runs: One for each member.
        words: How many different tokens there are.
        classes: How many different values.
        device: Where everything is.
    """

    def __init__(
        self, runs: Sequence[Parsing], words: int, classes: int, device: torch.device
    ) -> None:
        starts = generators(run.seed for run in runs)
        members = [_start(runs[0], words, classes, generator) for generator in starts]
        self.words = words
        self.parameters = {
            name: torch.stack([member[name] for member in members]).to(device).requires_grad_()
            for name in members[0]
        }

    def leaves(self, tokens: Tensor, drop: Drop) -> Tensor:
        """The states of words, (members, batch, length, 2 hidden)."""
        p = self.parameters
        members, batch, length = tokens.shape
        table = p["embedding"]
        # of few different words: the gradient of a product is faster than that of an index, and
        # always the same
        x = drop(torch.bmm(marked(tokens.view(members, -1), self.words, table.dtype), table))
        bias = p["leaf.bias_ih"] + p["leaf.bias_hh"]
        projected = linear(x, p["leaf.weight_ih"], bias)
        return leaf_lstm(projected.view(members, batch, length, -1), p["leaf.weight_hh"])

    @property
    def composer(self) -> Composer:
        """How to compose and to score."""
        p = self.parameters
        return Composer(p["composition.weight"], p["composition.bias"], p["query"])

    def classify(self, root: Tensor, drop: Drop) -> Tensor:
        """Logits of the values, (members, batch, classes)."""
        p = self.parameters
        x = linear(drop(root), p["classifier.weight"], p["classifier.bias"]).relu()
        return linear(drop(x), p["values.weight"], p["values.bias"])


def _start(run: Parsing, words: int, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The parameters of one member, on the CPU."""
    embedding, size = run.embedding, run.hidden

    def normal(*shape: int, deviation: float = 0.01) -> Tensor:
        return torch.empty(shape).normal_(0, deviation, generator=generator)

    def orthogonal(*shape: int) -> Tensor:
        return nn.init.orthogonal_(torch.empty(shape), generator=generator)

    remembering = torch.zeros(4 * size)
    # the forget gates start open
    remembering[size : 2 * size] = 1
    return {
        "embedding": normal(words, embedding),
        # Kaiming's initialisation, by the number of inputs
        "leaf.weight_ih": normal(4 * size, embedding, deviation=math.sqrt(2 / embedding)),
        "leaf.weight_hh": orthogonal(4 * size, size),
        "leaf.bias_ih": remembering,
        "leaf.bias_hh": torch.zeros(4 * size),
        "composition.weight": orthogonal(5 * size, 2 * size),
        "composition.bias": torch.zeros(5 * size),
        "query": normal(size),
        "classifier.weight": normal(size, size, deviation=math.sqrt(2 / size)),
        "classifier.bias": torch.zeros(size),
        "values.weight": torch.empty(classes, size).uniform_(-0.002, 0.002, generator=generator),
        "values.bias": torch.zeros(classes),
    }
