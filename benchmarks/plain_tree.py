"""The released parser of ListOps in plain PyTorch: it trains one run."""

import math
from collections.abc import Sequence

import plain
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from discretegrad_lab.tasks.listops.batches import order
from discretegrad_lab.tasks.listops.config import Parsing
from discretegrad_lab.tasks.listops.data import CLASSES, VOCABULARY, Examples


class PlainTree(nn.Module):
    """The Gumbel Tree-LSTM as the released programs compute it."""

    def __init__(self, run: Parsing) -> None:
        super().__init__()
        size, words = run.hidden, run.embedding
        self.size, self.tau = size, run.tau
        self.embedding = nn.Embedding(len(VOCABULARY), words)
        self.leaf = nn.LSTMCell(words, size)
        self.composition = nn.Linear(2 * size, 5 * size)
        self.query = nn.Parameter(torch.empty(size))
        self.drop = nn.Dropout(run.dropout)
        self.classifier, self.values = nn.Linear(size, size), nn.Linear(size, CLASSES)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        for weight in (self.embedding.weight, self.query):
            nn.init.normal_(weight, std=0.01)
        for weight in (self.leaf.weight_ih, self.classifier.weight):
            nn.init.kaiming_normal_(weight)
        for weight in (self.leaf.weight_hh, self.composition.weight):
            nn.init.orthogonal_(weight)
        nn.init.ones_(self.leaf.bias_ih[size : 2 * size])
        nn.init.uniform_(self.values.weight, -0.002, 0.002)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits of the values, (batch, classes)."""
        root = self.root(self.drop(self.embedding(tokens)), lengths)
        return self.values(self.drop(self.classifier(self.drop(root)).relu()))

    def root(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The hidden state of the last node, (batch, hidden)."""
        state = self.leaves(x)
        longest = x.shape[1]
        is_word = torch.arange(longest, device=x.device) < lengths.unsqueeze(1)
        for step in range(longest - 1):
            left, right = [s[:, :-1] for s in state], [s[:, 1:] for s in state]
            new = self.composed(left, right)
            if step < longest - 2:
                new = self.chosen(new, left, right, is_word[:, step + 1 :])
            going_on = is_word[:, step + 1].view(-1, 1, 1)
            state = [torch.where(going_on, n, s) for n, s in zip(new, left, strict=True)]
        return state[0].squeeze(1)

    def leaves(self, x: Tensor) -> list[Tensor]:
        """Hidden and cell states of words."""
        h = c = x.new_zeros(len(x), self.size)
        hidden, cells = [], []
        for word in x.unbind(1):
            h, c = self.leaf(word, (h, c))
            hidden.append(h)
            cells.append(c)
        return [torch.stack(hidden, 1), torch.stack(cells, 1)]

    def composed(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
        """Those of all pairs of neighbours."""
        gates = self.composition(torch.cat([left[0], right[0]], -1))
        i, fl, fr, u, o = gates.chunk(5, -1)
        c = left[1] * (fl + 1).sigmoid() + right[1] * (fr + 1).sigmoid() + u.tanh() * i.sigmoid()
        return [o.sigmoid() * c.tanh(), c]

    def chosen(
        self, new: list[Tensor], left: list[Tensor], right: list[Tensor], mask: Tensor
    ) -> list[Tensor]:
        """The sample mixes the states."""
        scores = (self.query * new[0]).sum(-1) / math.sqrt(self.size)
        scores = scores.masked_fill(~mask, -1e9).masked_fill(~mask.any(1, keepdim=True), 1.0)
        z = plain.reinmax(scores, self.tau).unsqueeze(-1)
        upto = z.cumsum(1)
        return [
            z * n + (1 - upto) * a + (upto - z) * b
            for n, a, b in zip(new, left, right, strict=True)
        ]


class PlainLoop:
    """Training of one run, as anybody would write it."""

    def __init__(self, run: Parsing, examples: Examples, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.model = PlainTree(run).to(device)
        self.optimiser = torch.optim.RAdam(self.model.parameters(), lr=run.learning_rate)
        self.clip_norm = run.clip_norm
        self.total = torch.zeros((), device=device)
        _, batches = order(examples.lengths, run.batch, [run.seed], 0)
        # each as wide as its longest expression
        self.batches = []
        for index in batches[0]:
            width = int(examples.lengths[index].max())
            parts = (
                examples.tokens[index, :width],
                examples.lengths[index],
                examples.labels[index],
            )
            self.batches.append(tuple(x.to(device) for x in parts))

    def sample(self, count: int) -> list[int]:
        """So many batches of all widths, in the proportions of the data."""
        widths = [batch[0].shape[1] for batch in self.batches]
        by_width = sorted(range(len(widths)), key=widths.__getitem__)
        places = [int((n + 0.5) * len(widths) / count) for n in range(count)]
        return [by_width[place] for place in places]

    def steps(self, chosen: Sequence[int]) -> None:
        """A step with each of these batches."""
        for number in chosen:
            tokens, lengths, labels = self.batches[number]
            loss = cross_entropy(self.model(tokens, lengths), labels)
            self.optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
            self.optimiser.step()
            self.total += loss.detach()
