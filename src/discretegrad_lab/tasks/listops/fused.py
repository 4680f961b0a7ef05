"""The Tree-LSTM on a GPU: products of matrices by torch, and one kernel between two of them.

It is the mathematics of ``parse`` and ``cells``, which run everywhere and are what this is tested
against. A parse is one node of the graph here. What it hands out are the root and the scores of all
steps; what comes back for both is all that its gradient needs. An estimator is asked when its
gradient is wanted, and never for its sample, since the parse knows what was drawn.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...stack.sampler import Later
from .cells import Composer
from .kernels import cells, chart
from .kernels.cells import Sizes
from .kernels.chart import Draws


class Request(NamedTuple):
    """How to parse, besides tensors that may have a gradient."""

    lengths: Tensor
    """(members, batch)."""
    draws: Draws | None
    """What to draw with; None for the greatest scores."""
    gradient: Later | None
    """Of the choices, (members, batch, pairs); None if nothing passes through them."""
    learns: bool
    """Whether to keep what gradients need."""


class Chart:
    """All nodes of a batch of sentences, and what their gradients need.

    Rows are (member, node, sentence), the words first. So the rows of some nodes of all sentences
    are a matrix for each member, without a copy.
    """

    def __init__(self, leaves: Tensor, composer: Composer, request: Request) -> None:
        members, batch, longest, width = leaves.shape
        self.sizes = Sizes(members, batch, longest, width // 2)
        self.request = request
        self.weight, self.bias = composer.weight, composer.bias.contiguous()
        self.query = composer.scaled_query
        learns, count, size = request.learns, self.sizes.compositions, width // 2
        new = partial(torch.empty, dtype=leaves.dtype, device=leaves.device)
        states = new(members, longest + count, batch, width)
        states[:, :longest] = leaves.transpose(1, 2)
        slopes = new(members, count, batch, 8 * size) if learns else new(0)
        hidden = new(members, count if learns else longest - 1, batch, width)
        hidden[:, : longest - 1, :, :size] = states[:, : longest - 1, :, :size]
        hidden[:, : longest - 1, :, size:] = states[:, 1:longest, :, :size]
        self.nodes = chart.Nodes(states, slopes, hidden)
        slots = longest if learns else 2
        rows = torch.arange(2 * longest, dtype=torch.int32, device=leaves.device)
        whole = (slots, members, batch, longest)
        nodes, pairs = (
            torch.empty(whole, dtype=torch.int32, device=leaves.device) for _ in range(2)
        )
        nodes[0], pairs[0] = rows[:longest], rows[longest:]
        choices = torch.empty(longest - 1, members, batch, dtype=torch.int64, device=leaves.device)
        lengths = request.lengths.contiguous()
        scores = new(longest - 1 if learns else 2, members, batch, longest - 1)
        self.lists = chart.Lists(nodes, pairs, scores, choices, lengths)
        tensors = [self._product(0, longest - 1), self.bias, self.query]
        tensors += [states, slopes, scores, lengths]
        cells.neighbours(self.sizes, learns, tensors)
        if not learns:
            self.nodes = self.nodes._replace(hidden=new(members, 2, batch, width))

    def _product(self, first: int, count: int) -> Tensor:
        """The gates of some compositions, before bias and activation."""
        hidden = self.nodes.hidden[:, first : first + count].flatten(1, 2)
        return torch.bmm(hidden, self.weight.mT)

    def merge(self) -> None:
        """Make all merges."""
        longest, before = self.sizes.longest, self.bias
        for step in range(longest - 1):
            parameters = [before, self.bias, self.query]
            chart.advance(step, self.sizes, parameters, self.nodes, self.lists, self.request.draws)
            if step < longest - 2:
                before = self._product(longest - 1 + 2 * step if self.request.learns else 0, 2)

    def root(self) -> Tensor:
        """The hidden states of the last nodes, (members, batch, hidden)."""
        members, batch, longest, size = self.sizes
        last = self.lists.nodes[(longest - 1) % len(self.lists.nodes), ..., 0].long()
        rows = last.view(members, 1, batch, 1).expand(-1, -1, -1, size)
        return self.nodes.states[..., :size].gather(1, rows).squeeze(1)

    def backward(self, g_root: Tensor | None, g_scores: Tensor | None) -> tuple[Tensor, ...]:
        """Gradients of the leaves, and of the composer's weight, bias and query."""
        members, batch, longest, size = self.sizes
        count, states = self.sizes.compositions, self.nodes.states
        new = partial(torch.empty, dtype=states.dtype, device=states.device)
        if g_root is None:
            g_root = new(members, batch, size).zero_()
        gates, at_cells = cells.directions(self.sizes, self.nodes.slopes, self.query)
        at_hidden = torch.bmm(gates.flatten(1, 2), self.weight)
        back = chart.Back(
            g_root.contiguous(),
            self.nodes,
            torch.empty_like(states),
            at_hidden,
            at_cells,
            pulls=new(members, count, batch).zero_(),
            children=new(2, members, batch, 2 * size),
            chosen=new(members, longest - 1, batch, 5 * size),
            merged=torch.full((members, count, batch), -1, dtype=torch.int32, device=gates.device),
            lists=self.lists,
        )
        back.g[:, :longest].zero_()
        product = back.g_root
        own = new(members, batch, 1)
        for step in reversed(range(longest - 1)):
            at_choice = chart.undo(step, self.sizes, back, own, product)
            product = torch.bmm(back.chosen[:, step], self.weight)
            own = self._at_scores(step, at_choice, g_scores)
        chart.undo(-1, self.sizes, back, own, product)
        cells.add_chosen(self.sizes, [gates, back.pulls, back.chosen, back.merged])
        gates = gates.flatten(1, 2)
        for_weight = torch.bmm(gates.mT, self.nodes.hidden.flatten(1, 2))
        composed = states[:, longest:, :, :size].flatten(1, 2)
        for_query = torch.bmm(back.pulls.view(members, 1, -1), composed).squeeze(1) / size**0.5
        return back.g[:, :longest].transpose(1, 2), for_weight, gates.sum(1), for_query

    def _at_scores(self, step: int, at_choice: Tensor, g_scores: Tensor | None) -> Tensor:
        """What the estimator of a step, and those who looked at its scores, give to its scores."""
        lists, gradient = self.lists, self.request.gradient
        pairs = at_choice.shape[-1]
        # one pair is no choice
        if gradient is None or pairs == 1:
            if g_scores is None:
                return torch.zeros_like(at_choice)
            return g_scores[step].contiguous()
        own = gradient(step, lists.scores[step, ..., :pairs], lists.choices[step], at_choice)
        own = own if g_scores is None else own + g_scores[step, ..., :pairs]
        return own.contiguous()


class _Parse(torch.autograd.Function):
    apply: Callable[..., Any]  # torch leaves it without a type

    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, weight: Tensor, bias: Tensor, query: Tensor, request: Request
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        made = Chart(leaves, Composer(weight, bias, query), request)
        made.merge()
        ctx.chart = made
        index = made.lists.choices
        ctx.mark_non_differentiable(index)
        return made.root(), made.lists.scores.detach(), index

    @staticmethod
    def backward(
        ctx: Any, g_root: Tensor | None, g_scores: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        if ctx.chart is None:
            raise RuntimeError(
                "expected one backward pass through a parse, got another; parse again before it"
            )
        made, ctx.chart = ctx.chart, None
        return *made.backward(g_root, g_scores), None


def parse(leaves: Tensor, composer: Composer, request: Request) -> tuple[Tensor, Tensor, Tensor]:
    """Merge neighbours until each sentence is one node; see ``.parse.parse``.

    Args:
        leaves: The states of words, (members, batch, longest, 2 hidden), float32, at least two.
        composer: How to compose and to score.
        request: How to choose.

    Returns:
        The hidden states of the last nodes, (members, batch, hidden); the scores of all steps,
        (longest - 1, members, batch, longest - 1), -inf where there is no pair, of a parse without
        gradients those of two steps only; and the place of the chosen pair at each step,
        (longest - 1, members, batch), 0 where there was nothing to do.
    """
    root, scores, index = _Parse.apply(leaves, *composer, request)
    return root, scores, index


class _LeafLstm(torch.autograd.Function):
    apply: Callable[..., Tensor]

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, learns: bool) -> Tensor:
        members, batch, length, width = projected.shape
        size = width // 4
        sizes = (members, batch, length, size)
        projected = projected.contiguous()
        new = partial(torch.empty, dtype=projected.dtype, device=projected.device)
        states = new(members, length, batch, 2 * size)
        gates = new(members, length, batch, width) if learns else states
        product = projected
        for place in range(length):
            if place:
                product = torch.bmm(states[:, place - 1, :, :size], weight.mT)
            cells.word(place, sizes, learns, [projected, product, states, gates])
        ctx.save_for_backward(weight, states, gates)
        return states.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, states, gates = ctx.saved_tensors
        members, length, batch, width = states.shape
        size = width // 2
        if g.stride(-1) != 1:
            g = g.contiguous()
        g_gates = torch.empty_like(gates)
        g_cells = torch.empty(members, batch, size, dtype=gates.dtype, device=gates.device)
        product = g_cells
        for place in reversed(range(length)):
            tensors = [g, product, states, gates, g_gates, g_cells]
            cells.word_back(place, (members, batch, length, size), tensors)
            if place:
                product = torch.bmm(g_gates[:, place], weight)
        # the hidden state before the first place is zero
        later, earlier = g_gates[:, 1:].flatten(1, 2), states[:, :-1, :, :size].flatten(1, 2)
        return g_gates.transpose(1, 2), torch.bmm(later.mT, earlier), None


def leaf_lstm(projected: Tensor, weight: Tensor) -> Tensor:
    """The states of words; see ``.cells.leaf_lstm``."""
    learns = torch.is_grad_enabled() and (projected.requires_grad or weight.requires_grad)
    return _LeafLstm.apply(projected, weight, learns)
