r"""A Gumbel Tree-LSTM that composes every pair of neighbours once.

A sentence of n nodes has n - 1 pairs of neighbours. Each is composed and scored; one pair is chosen
and its composition takes the place of both; so on, until one node is left. A choice z (one-hot)
moves every node of the new sentence,

$$s'_j = z_j\, p_j + \big(1 - \sum_{i \le j} z_i\big)\, s_j
+ \big(\sum_{i < j} z_i\big)\, s_{j+1} ,$$

where s are the nodes and p the compositions. With G the gradient at s', an estimator is given

$$\frac{\partial L}{\partial z_i} = G_i \cdot (p_i - s_{i+1})
+ \sum_{j \ge i} G_j \cdot (s_{j+1} - s_j) ,$$

two inner products for each pair. It needs G at every node of s', with all that later scores add to
it, whether they are chosen or not.

The plain way composes all pairs anew after every merge. But a merge changes two pairs only, so the
others are kept: a sentence of length L needs at most L - 1 + 2 (L - 2) compositions.

Backward, a pair that is not chosen gets a gradient through its score alone. The score's gradient at
the two nodes of the pair is the same at every step at which they are neighbours: a vector w of the
pair, which one product of matrices gives for all pairs of the parse. What a step adds to G is then
its gradient at the score times w, and only the chosen pair goes back through the weights, at its
step. The gradient of the weights is one product at the end: of each pair its scores' gradients
summed, and what came from being chosen.

This is the torch path, which runs everywhere. On a GPU ``fused`` computes the same in far fewer
launches, if it is told by a ``Way`` how to choose.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...stack.noise import Noise
from ...stack.sampler import Later
from . import kernels
from .cells import Block, Composer, compose, opened, pull_back, slopes

Choose = Callable[[Tensor], Tensor]
"""From scores, (members, batch, pairs), -inf where there is no pair, to one-hot choices."""


class Way(NamedTuple):
    """How to choose pairs, one step at a time or by kernels; these draw other numbers."""

    choose: Choose
    """For one step at a time."""
    noise: Noise | None = None
    """For kernels: what to draw with; without it the pair of the greatest score."""
    later: Callable[..., Later] | None = None
    """For kernels: the estimator, see ``Sampler.later``; without it no gradient passes through
    choices."""


class Parse(NamedTuple):
    """What became of a batch of sentences."""

    root: Tensor
    """The hidden state of the last node, (members, batch, hidden)."""
    merges: Tensor
    """Which pair was merged at each step, counted from the left among those of the step,
    (members, batch, longest - 1); -1 at steps after the sentence was one node."""
    scores: Tensor | None = None
    """By kernels and with gradients: of all steps, (longest - 1, members, batch, longest - 1), -inf
    where there is no pair."""


class _Step(NamedTuple):
    """What the backward pass of a merge needs to know: small tensors of whole numbers."""

    nodes: Tensor
    """The nodes before it, as rows of the chart, (members, batch, width)."""
    pairs: Tensor
    """Likewise the compositions of neighbours, (members, batch, width - 1)."""
    chosen: Tensor
    """The place of the chosen pair, (members, batch); ``width`` where there is nothing to do."""


class _Chart:
    """All nodes of a batch of sentences while they are parsed: the leaves, then compositions.

    A node is a row of the chart. A merge copies no states, only the numbers of rows.
    """

    def __init__(self, leaves: Tensor, composer: Composer) -> None:
        members, batch, length, width = leaves.shape
        self.composer, self._opened = composer, opened(composer)
        self._query = composer.scaled_query.view(members, 1, 1, -1)
        self._learns = torch.is_grad_enabled()
        self._length, self._size = length, width // 2
        rows = length + length - 1 + 2 * max(length - 2, 0)
        self._states = leaves.new_empty(members, batch, rows, width)
        self._states[:, :, :length] = leaves
        self._used = length
        sentences = torch.arange(members * batch, device=leaves.device).view(members, batch, 1)
        # the first row of each sentence; of all sentences, the leaves up to and with its own
        self._first, self._leaves = sentences * rows, (sentences + 1) * length
        self._blocks: list[Block] = []
        self.steps: list[_Step] = []
        self._place = torch.arange(2 * length, device=leaves.device)
        self.nodes = self._first + self._place[:length]
        self.pairs = self._first + self._place[length:-1]
        self.scores = self._add(leaves[:, :, :-1], leaves[:, :, 1:])

    def _add(self, left: Tensor, right: Tensor) -> Tensor:
        """Compose pairs into the next rows; their scores."""
        end = self._used + left.shape[2]
        out = self._states[:, :, self._used : end]
        block = compose(self._opened, left, right, out)
        self._used = end
        if self._learns:
            self._blocks.append(block)
        return (out[..., : self._size] * self._query).sum(-1)

    def _take(self, rows: Tensor) -> Tensor:
        """States by their rows, (members, batch, rows, 2 hidden)."""
        flat = self._states.view(-1, 2 * self._size).index_select(0, rows.flatten())
        return flat.view(*rows.shape, -1)

    def merge(self, chosen: Tensor) -> None:
        """Put compositions in the place of their nodes, and compose the new neighbours.

        Args:
            chosen: The place of a pair, (members, batch); beyond the last one to leave all as it
                is.
        """
        nodes, pairs = self.nodes, self.pairs
        self.steps.append(_Step(nodes, pairs, chosen))
        last = pairs.shape[-1] - 1
        place, at = self._place[: last + 1], chosen.unsqueeze(-1)
        inside = at.clamp(max=last)
        parent = pairs.gather(-1, inside)
        moved = place + (place > at)
        self.nodes = torch.where(place == at, parent, nodes.gather(-1, moved))
        if not last:
            return
        sides = [self.nodes.gather(-1, (inside - 1).clamp(min=0)), parent]
        sides.append(self.nodes.gather(-1, (inside + 1).clamp(max=last)))
        around = self._take(torch.cat(sides, -1))
        new = self._first + self._used
        left, right = self._add(around[:, :, :2], around[:, :, 1:]).split(1, -1)
        place, moved = place[:-1], moved[..., :-1]
        is_left, is_right = place == at - 1, place == at
        self.pairs = torch.where(
            is_left, new, torch.where(is_right, new + 1, pairs.gather(-1, moved))
        )
        scores = torch.where(is_right, right, self.scores.gather(-1, moved))
        self.scores = torch.where(is_left, left, scores)

    def root(self) -> Tensor:
        """The hidden state of the first node."""
        return self._take(self.nodes[..., :1]).squeeze(2)[..., : self._size]

    # from here: backward, in the opposite order

    def begin_backward(self, g: Tensor) -> None:
        """Start from the gradient at the root."""
        if not self._blocks:
            raise RuntimeError(
                "expected one backward pass through a parse, got another; parse again before it"
            )
        block = Block(*(torch.cat(parts, 2) for parts in zip(*self._blocks, strict=True)))
        self._blocks, self._hidden = [], block.hidden
        self._slopes = slopes(block)
        members, batch, count, _ = block.hidden.shape
        self._score_gates, cells = pull_back(self._slopes, self._query)
        at_hidden = torch.bmm(
            self._score_gates.view(members, batch * count, -1), self.composer.weight
        )
        # (members, batch, compositions, side, 2 hidden): w
        at_hidden = at_hidden.view(members, batch, count, 2, self._size)
        self._directions = torch.cat([at_hidden, cells], -1)
        self._pulls = g.new_zeros(members, batch, count)
        self._chosen: list[Tensor] = []
        self._chosen_gates: list[Tensor] = []
        self._g = torch.cat([g, torch.zeros_like(g)], -1).unsqueeze(2)
        self._step = len(self.steps)

    def _compositions(self, rows: Tensor) -> Tensor:
        """Rows of the chart as numbers of compositions, counted over all sentences."""
        return rows - self._leaves

    def _add_scores(self, g: Tensor, pairs: Tensor) -> None:
        """What the scores of the pairs add to the gradient at the nodes."""
        numbers = self._compositions(pairs).flatten()
        self._pulls.view(-1).index_add_(0, numbers, g.flatten())
        w = self._directions.view(-1, 4 * self._size).index_select(0, numbers)
        left, right = (w.view(*g.shape, -1) * g.unsqueeze(-1)).chunk(2, -1)
        self._g[:, :, :-1] += left
        self._g[:, :, 1:] += right

    def undo_merge(self, g_scores: Tensor | None, wants_choice: bool) -> Tensor | None:
        """Go back over the last merge; the gradient at its choice, if it is wanted."""
        self._step -= 1
        step = self.steps[self._step]
        if g_scores is not None:
            self._add_scores(g_scores, self.steps[self._step + 1].pairs)
        g, last = self._g, step.pairs.shape[-1] - 1
        at = step.chosen.unsqueeze(-1)
        for_choice = None
        if wants_choice:
            nodes = self._take(step.nodes)
            right = nodes[:, :, 1:]
            moved = (g * (right - nodes[:, :, :-1])).sum(-1)
            # the sum from each place to the end
            moved = moved.flip(-1).cumsum(-1).flip(-1)
            for_choice = (g * (self._take(step.pairs) - right)).sum(-1) + moved
            for_choice = for_choice.masked_fill(at > last, 0)
        inside = at.clamp(max=last)
        chosen = self._compositions(step.pairs.gather(-1, inside)).flatten()
        self._chosen.append(chosen)
        slope = self._slopes.flatten(0, 2).index_select(0, chosen).view(*at.shape[:2], 8, -1)
        at_parent = _places(g, inside).squeeze(2).masked_fill(at > last, 0)
        gates, cells = pull_back(slope, at_parent[..., : self._size], at_parent[..., self._size :])
        self._chosen_gates.append(gates.flatten(-2))
        hidden = torch.bmm(self._chosen_gates[-1], self.composer.weight)
        children = torch.cat([hidden.unflatten(-1, (2, self._size)), cells], -1)
        # behind the pair all nodes move one place to the right
        place = self._place[: last + 2]
        # where nothing was merged, the node that was last is no part of the sentence
        before = _places(pad(g, (0, 0, 0, 1)), torch.where(place > at, place - 1, place))
        is_left, is_right = (place == at).unsqueeze(-1), (place == at + 1).unsqueeze(-1)
        before = torch.where(is_left, children[:, :, :1], before)
        self._g = torch.where(is_right, children[:, :, 1:], before)
        return for_choice

    def end_backward(self, g_scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of the leaves, and of the composer's weight, bias and query."""
        members = len(g_scores)
        self._add_scores(g_scores, self.steps[0].pairs)
        gates = self._score_gates.flatten(0, 2).flatten(1) * self._pulls.view(-1, 1)
        of_chosen = torch.stack(self._chosen_gates).flatten(0, 2)
        gates.index_add_(0, torch.cat(self._chosen), of_chosen)
        gates = gates.view(members, -1, 5 * self._size)
        for_weight = torch.bmm(gates.mT, self._hidden.view(members, -1, 2 * self._size))
        composed = self._states[:, :, self._length :, : self._size]
        for_query = torch.einsum("mbp,mbph->mh", self._pulls, composed) / self._size**0.5
        return self._g, for_weight, gates.sum(1), for_query


def _places(x: Tensor, index: Tensor) -> Tensor:
    """Nodes by their places, (members, batch, places, 2 hidden)."""
    return x.gather(2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))


# The chart holds the gradients on their way back. What torch sees is a chain of functions that hand
# on a number, so that it goes back over the merges in the right order.


class _Begin(torch.autograd.Function):
    apply: Callable[..., Any]

    @staticmethod
    def forward(ctx: Any, chart: _Chart, leaves: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.chart = chart
        return chart.scores.detach(), leaves.new_zeros(())

    @staticmethod
    def backward(ctx: Any, g_scores: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.chart.end_backward(g_scores)


class _Merge(torch.autograd.Function):
    apply: Callable[..., Any]

    @staticmethod
    def forward(ctx: Any, link: Tensor, choice: Tensor, chart: _Chart, at: Tensor) -> Any:
        ctx.chart, ctx.scored = chart, choice.shape[-1] > 1
        chart.merge(at)
        return link.detach(), chart.scores.detach() if ctx.scored else link.new_zeros(())

    @staticmethod
    def backward(ctx: Any, g_link: Tensor, g_scores: Tensor) -> tuple[Tensor | None, ...]:
        scores = g_scores if ctx.scored else None
        return g_link, ctx.chart.undo_merge(scores, ctx.needs_input_grad[1]), None, None


class _End(torch.autograd.Function):
    apply: Callable[..., Tensor]

    @staticmethod
    def forward(ctx: Any, link: Tensor, chart: _Chart) -> Tensor:
        ctx.chart = chart
        return chart.root()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.chart.begin_backward(g)
        return g.new_zeros(()), None


def parse(leaves: Tensor, lengths: Tensor, composer: Composer, choose: Choose | Way) -> Parse:
    """Merge neighbours until each sentence is one node.

    Args:
        leaves: The states of the words, (members, batch, longest, 2 hidden); those after the end of
            a sentence do not matter, but must be finite.
        lengths: (members, batch), from 1 to ``longest``.
        composer: How to compose and to score.
        choose: Which pair to merge at a step. The gradient of what it returns is that of the
            choice. It is asked as long as any sentence could have two pairs; where a sentence has
            none left, it is shown one, whose choice does not matter. A ``Way`` lets kernels choose
            where they can run.
    """
    longest, size = leaves.shape[2], leaves.shape[-1] // 2
    if longest == 1:
        return Parse(leaves[:, :, 0, :size], lengths.new_empty(*lengths.shape, 0))
    if isinstance(choose, Way):
        if kernels.serve(leaves, longest, size):
            return _by_kernels(leaves, lengths, composer, choose)
        choose = choose.choose
    chart = _Chart(leaves.detach(), Composer(*(x.detach() for x in composer)))
    scores, link = _Begin.apply(chart, leaves, *composer)
    # for all steps at once: the merges that are still to do, and which places have no pair
    place = torch.arange(longest - 1, device=leaves.device)
    to_do = lengths - 1 - place.view(-1, 1, 1)
    is_over, has_none = to_do < 1, place >= to_do.clamp(min=1).unsqueeze(-1)
    merges = []
    for step in range(longest - 1):
        width = longest - step
        if width > 2:
            choice = choose(scores.masked_fill(has_none[step, ..., : width - 1], -torch.inf))
        else:
            choice = torch.ones_like(scores)
        merges.append(choice.detach().argmax(-1))
        at = torch.where(is_over[step], width, merges[-1])
        link, scores = _Merge.apply(link, choice, chart, at)
    root = _End.apply(link, chart)
    return Parse(root, torch.where(is_over, -1, torch.stack(merges)).movedim(0, -1))


def _by_kernels(leaves: Tensor, lengths: Tensor, composer: Composer, way: Way) -> Parse:
    from . import fused
    from .kernels.chart import Draws

    steps = leaves.shape[2] - 1
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (leaves, *composer))
    draws = gradient = None
    if way.noise is not None:
        draws = Draws(way.noise.keys, way.noise.counter)
    if learns and way.later is not None:
        gradient = way.later(steps, lengths.shape[1], steps)
    request = fused.Request(lengths, draws, gradient, learns)
    root, scores, index = fused.parse(leaves, composer, request)
    if way.noise is not None:
        way.noise.next_step(steps)
    is_over = lengths <= torch.arange(1, steps + 1, device=lengths.device).view(-1, 1, 1)
    merges = index.masked_fill(is_over, -1).movedim(0, -1)
    return Parse(root, merges, scores if learns else None)
