r"""The Tree-LSTM trained with a score function: no gradient passes through a choice.

A parse is a sequence of draws, whose joint probability is the product of that of each merge. With K
parses of an expression, losses $f_k$ and log-probabilities $\ell_k$, the gradient is

$$\frac1K \sum_k \nabla f_k + \Big(f_k - \frac{1}{K-1} \sum_{j \ne k} f_j\Big) \nabla \ell_k ,$$

unbiased for the expected loss. The K parses share their words' states and all dropout, so that
their losses differ by the parse alone.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from discretegrad._score import others_mean

from .batches import widths_up_to
from .config import Parsing
from .data import LIMIT
from .model import TOKENS, ParsingModel, costs
from .network import marked
from .parse import Parse, Way, parse


class ScoredParsing(ParsingModel):
    """All members' networks with the expressions; all members have one line.

    The arguments are those of ``ParsingModel``.
    """

    def _make_sampler(self, runs: Sequence[Parsing]) -> None:
        self._samples = runs[0].samples

    def losses(self) -> dict[str, Tensor]:
        """The mean cross entropy of the next batch, over K parses of each expression."""
        tokens, lengths, labels = self._batch
        count = self._samples
        leaves = self.network.leaves(tokens, self._drop).repeat_interleave(count, 1)
        lengths, labels = (x.repeat_interleave(count, 1) for x in (lengths, labels))
        parsed, log_probs = self._parse(leaves, lengths)
        logits = self.network.classify(parsed.root, self._drop_alike)
        losses = costs(logits, labels).unflatten(1, (-1, count))
        log_probs = log_probs.unflatten(1, (-1, count))
        return {"train_loss": scored(losses, log_probs).mean(1)}

    def _parse(self, leaves: Tensor, lengths: Tensor) -> tuple[Parse, Tensor]:
        """Drawn parses and their log-probabilities, (members, sentences)."""
        log_probs: list[Tensor] = [leaves.new_zeros(lengths.shape)]

        def choose(scores: Tensor) -> Tensor:
            index = self._draw(scores)
            chosen = scores.log_softmax(-1).gather(-1, index.unsqueeze(-1))
            log_probs.append(chosen.squeeze(-1))
            return marked(index, scores.shape[-1], scores.dtype)

        parsed = parse(leaves, lengths, self.network.composer, Way(choose, self._noise))
        if parsed.scores is None:
            return parsed, torch.stack(log_probs).sum(0)
        # after the end of an expression the only pair that is shown has a log-probability of 0
        index = parsed.merges.movedim(-1, 0).clamp(min=0).unsqueeze(-1)
        return parsed, parsed.scores.log_softmax(-1).gather(-1, index).sum((0, -1))

    def _drop_alike(self, x: Tensor) -> Tensor:
        """Dropout, the same for all parses of an expression."""
        parts = x.unflatten(1, (-1, self._samples))
        stays = self._drop(torch.ones_like(parts[:, :, 0]))
        dropped: Tensor = (parts * stays.unsqueeze(2)).flatten(1, 2)
        return dropped


def scored(losses: Tensor, log_probs: Tensor) -> Tensor:
    """The mean loss, (members, batch), with the gradient of the leave-one-out estimator.

    Args:
        losses: (members, batch, samples).
        log_probs: Likewise.
    """
    fixed = losses.detach().movedim(-1, 0)
    advantage = (fixed - others_mean(fixed)).movedim(0, -1)
    surrogate = (advantage * log_probs).mean(-1)
    return losses.mean(-1) + (surrogate - surrogate.detach())


def make_model(
    runs: Sequence[Parsing], device: torch.device, data: Path | None = None
) -> ParsingModel:
    """The stacked model of runs that can be members of one stack."""
    kind = ScoredParsing if runs[0].line.kind == "score" else ParsingModel
    return kind(runs, device, data)


def memory(run: Parsing) -> int:
    """An upper guess of the device memory that one more member takes."""
    size, words = run.hidden, run.embedding
    weights = 4 * size * (words + size + 2) + 5 * size * (2 * size + 1) + size * (size + 16)
    # parameters, gradients, two moments, and what the update of a large one takes meanwhile
    model = 4 * 5 * weights
    # of a word: at most three compositions with what their gradients need, the LSTM, the embedding;
    # every width has a graph, which keeps its memory
    of_word = 3 * 45 * size + 40 * size + 6 * words
    widths = widths_up_to(min(run.longest, LIMIT - 1), bucketed=run.bucketed)
    steps = 4 * run.batch * run.samples * sum(widths) * of_word
    # without gradients
    test = 4 * TOKENS * (24 * size + 4 * words)
    return model + steps + test + 64 * run.train_examples
