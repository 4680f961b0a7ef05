"""The supernet of a search: all operations of all edges, of which a step runs the chosen ones.

Its layers have no member axis: which of them a step runs depends on the sample of the member, so
members cannot share a convolution. All weights lie in one tensor instead, so that an update is a
handful of kernels, and operations that a step has not run get a gradient of zero. Momentum and
decay move these all the same, as they do in the released code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, linear, relu

from .cells import CONV_1, CONV_3, EDGES, NODES, NONE, OPERATIONS, POOL, SKIP, Cell

CLASSES = 10
_KERNELS = {CONV_1: 1, CONV_3: 3}
"""Operations with weights, and the width of their kernels."""


class Place(NamedTuple):
    """Where a weight lies in the tensor of all weights."""

    start: int
    shape: tuple[int, ...]
    bound: float | None
    """It starts out uniform between this and its negative, or at ``value`` if there is none."""
    value: float

    @property
    def end(self) -> int:
        """The first number that is not part of it."""
        return self.start + math.prod(self.shape)


class Samples(NamedTuple):
    """One-hot samples of the operations, through which the architecture gets its gradient."""

    one_hot: Tensor
    """(6, 5)"""
    full: bool
    """Whether each operation gets what it would have made of its input, or all that were not
    chosen the same, as in GDAS."""


Weights = Mapping[str, Tensor]


class Supernet:
    """A stem, three stages of cells with a residual block between them, and a linear head.

    Args:
        channels: Of the first stage.
        cells: In each stage.
    """

    def __init__(self, channels: int, cells: int) -> None:
        self.places: dict[str, Place] = {}
        self._stages = [[f"stage{stage}.cell{n}" for n in range(cells)] for stage in range(3)]
        widths = [channels * 2**stage for stage in range(3)]
        self._convolution("stem", 3, widths[0], 3)
        self._norm("stem", widths[0])
        for stage, (width, names) in enumerate(zip(widths, self._stages, strict=True)):
            if stage:
                self._reduction(f"reduction{stage}", widths[stage - 1], width)
            for name in names:
                for edge in range(len(EDGES)):
                    for operation, kernel in _KERNELS.items():
                        self._convolution(_name(name, edge, operation), width, width, kernel)
        self._norm("head", widths[-1])
        bound = 1 / math.sqrt(widths[-1])
        self._add("head.linear", (CLASSES, widths[-1]), bound)
        self._add("head.offset", (CLASSES,), bound)
        self._always = {name for name in self.places if not name.startswith("stage")}

    @property
    def size(self) -> int:
        """How many numbers the weights are."""
        return next(reversed(self.places.values())).end

    def _add(
        self, name: str, shape: tuple[int, ...], bound: float | None = None, value: float = 0.0
    ) -> None:
        start = self.size if self.places else 0
        self.places[name] = Place(start, shape, bound, value)

    def _convolution(self, name: str, inputs: int, outputs: int, kernel: int) -> None:
        # torch's own: uniform within one over the root of the inputs of a number
        bound = 1 / math.sqrt(inputs * kernel * kernel)
        self._add(f"{name}.kernel", (outputs, inputs, kernel, kernel), bound)

    def _norm(self, name: str, width: int) -> None:
        self._add(f"{name}.scale", (width,), value=1.0)
        self._add(f"{name}.shift", (width,))

    def _reduction(self, name: str, inputs: int, outputs: int) -> None:
        for part, width in (("first", inputs), ("second", outputs)):
            self._convolution(f"{name}.{part}", width, outputs, 3)
            self._norm(f"{name}.{part}", outputs)
        self._convolution(f"{name}.shortcut", inputs, outputs, 1)

    def start(self, generator: torch.Generator) -> Tensor:
        """All weights before training, by torch's default rules."""
        weights = torch.empty(self.size)
        for place in self.places.values():
            part = weights[place.start : place.end]
            if place.bound is None:
                part.fill_(place.value)
            else:
                part.uniform_(-place.bound, place.bound, generator=generator)
        return weights

    def weights(self, flat: Tensor, cell: Cell, *, every: bool = False) -> Weights:
        """Those that a cell needs, or every one; as views of the tensor of all, (1, size)."""
        chosen = {*self._always, *self._chosen(cell)}
        names = [name for name in self.places if every or name in chosen]
        apply: Callable[..., tuple[Tensor, ...]] = _Parts.apply
        parts = apply(flat, [self.places[name] for name in names])
        return dict(zip(names, parts, strict=True))

    def _chosen(self, cell: Cell) -> list[str]:
        own = [(edge, operation) for edge, operation in enumerate(cell) if operation in _KERNELS]
        return [
            f"{_name(name, *place)}.kernel"
            for names in self._stages
            for name in names
            for place in own
        ]

    def __call__(
        self, x: Tensor, weights: Weights, cell: Cell, samples: Samples | None = None
    ) -> Tensor:
        """The logits of the classes, (images, 10).

        Args:
            x: Images, (images, 3, height, width).
            weights: See ``weights``.
            cell: The operations to run.
            samples: What the architecture gets a gradient through; without them it gets none.
        """
        join: _JoinNode = _add_up
        if samples is not None:
            # once for all cells, since each piece takes a kernel to put together again
            join = _Join(samples.one_hot.split([1, 2, 3]), samples.full)
        x = _norm(conv2d(x, weights["stem.kernel"], padding=1), weights, "stem")
        for stage, names in enumerate(self._stages):
            if stage:
                x = _reduce(x, weights, f"reduction{stage}")
            for name in names:
                x = _run_cell(_Cell(name, cell, weights), x, join)
        x = relu(_norm(x, weights, "head"))
        return linear(x.mean((2, 3)), weights["head.linear"], weights["head.offset"])


def _name(cell: str, edge: int, operation: int) -> str:
    end, start = EDGES[edge]
    return f"{cell}.{end}<-{start}.{OPERATIONS[operation]}"


def _norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    """By the means and variances of the batch."""
    scale, shift = weights[f"{name}.scale"], weights[f"{name}.shift"]
    return batch_norm(x, None, None, scale, shift, training=True)


def _reduce(x: Tensor, weights: Weights, name: str) -> Tensor:
    """A residual block that halves the height and the width."""
    shortcut = conv2d(avg_pool2d(x, 2), weights[f"{name}.shortcut.kernel"])
    for part, stride in (("first", 2), ("second", 1)):
        kernel = weights[f"{name}.{part}.kernel"]
        x = _norm(conv2d(relu(x), kernel, stride=stride, padding=1), weights, f"{name}.{part}")
    return x + shortcut


class _Cell(NamedTuple):
    """One cell of the network."""

    name: str
    operations: Cell
    weights: Weights

    def output(self, operation: int, edge: int, x: Tensor, rectified: Tensor) -> Tensor | None:
        """What an operation makes of a node; None is a tensor of zeros."""
        if operation == NONE:
            return None
        if operation == SKIP:
            return x
        if operation == POOL:
            return avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        kernel = self.weights[f"{_name(self.name, edge, operation)}.kernel"]
        y = conv2d(rectified, kernel, padding=_KERNELS[operation] // 2)
        return batch_norm(y, None, None, training=True)


Outputs = Sequence[Tensor | None]
"""Of the five operations of an edge; None where it is zero, or was not run."""
_JoinNode = Callable[[int, Sequence[int], Sequence[Outputs], Tensor], Tensor]
"""Adds up a node: its number, the operation of each edge, what these gave, and a tensor that has
the shape of a node."""


def _run_cell(cell: _Cell, x: Tensor, join: _JoinNode) -> Tensor:
    nodes, rectified = [x], [relu(x)]
    for node in range(1, NODES):
        edges = [edge for edge, (end, _) in enumerate(EDGES) if end == node]
        outputs = []
        for edge in edges:
            before = EDGES[edge][1]
            outputs.append(_outputs(cell, edge, (nodes[before], rectified[before]), join))
        nodes.append(join(node, [cell.operations[edge] for edge in edges], outputs, x))
        if node < NODES - 1:
            rectified.append(relu(nodes[node]))
    return nodes[-1]


def _outputs(cell: _Cell, edge: int, inputs: tuple[Tensor, Tensor], join: _JoinNode) -> Outputs:
    """Of the chosen operation; of the others only if they are needed, and without a gradient."""
    chosen = cell.operations[edge]
    outputs: list[Tensor | None] = [None] * len(OPERATIONS)
    if isinstance(join, _Join) and join.full:
        with torch.no_grad():
            for operation in range(len(OPERATIONS)):
                if operation != chosen:
                    outputs[operation] = cell.output(operation, edge, *inputs)
    outputs[chosen] = cell.output(chosen, edge, *inputs)
    return outputs


def _add_up(_: int, chosen: Sequence[int], outputs: Sequence[Outputs], like: Tensor) -> Tensor:
    """A node without a gradient of the architecture."""
    parts = [outputs[edge][operation] for edge, operation in enumerate(chosen)]
    return _sum([part for part in parts if part is not None], like)


def _sum(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    if not parts:
        return torch.zeros_like(like)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@dataclass(frozen=True)
class _Join:
    """Adds up nodes such that the samples of their edges get a gradient."""

    pieces: Sequence[Tensor]
    """The samples of the edges of each node."""
    full: bool

    def __call__(
        self, node: int, chosen: Sequence[int], outputs: Sequence[Outputs], like: Tensor
    ) -> Tensor:
        apply: Callable[..., Tensor] = _Node.apply
        flat = [output for edge in outputs for output in edge]
        return apply(self.pieces[node - 1], tuple(chosen), self.full, like.detach(), *flat)


class _Node(torch.autograd.Function):
    """The sum over edges of the chosen operation's output, as a function of the samples too.

    With g the gradient of the node, the sample of an operation j gets g·output_j in the full form.
    GDAS multiplies the chosen output by its weight and adds the plain number w_j of each other
    operation to it: there these get the sum of the elements of g.
    """

    @staticmethod
    def forward(
        ctx: Any,
        samples: Tensor,
        chosen: tuple[int, ...],
        full: bool,
        like: Tensor,
        *outputs: Tensor | None,
    ) -> Tensor:
        ctx.chosen, ctx.full = chosen, full
        ctx.save_for_backward(*outputs)
        places = [edge * len(OPERATIONS) + operation for edge, operation in enumerate(chosen)]
        parts = [x for x in (outputs[place] for place in places) if x is not None]
        total = _sum(parts, like)
        return total.view_as(total) if len(parts) == 1 else total

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        flat = g.reshape(-1)
        # of operations that are zero, and of those that were not run
        zero = g.new_zeros(()) if ctx.full or NONE in ctx.chosen else flat
        elsewhere = zero if ctx.full else g.sum()
        entries: list[Tensor] = []
        gradients: list[Tensor | None] = []
        for place, output in enumerate(ctx.saved_tensors):
            edge, operation = divmod(place, len(OPERATIONS))
            chosen = operation == ctx.chosen[edge]
            if output is not None:
                entries.append(torch.dot(flat, output.reshape(-1)))
            else:
                entries.append(zero if chosen else elsewhere)
            gradients.append(g if chosen and output is not None else None)
        return torch.stack(entries).view(-1, len(OPERATIONS)), None, None, None, *gradients


class _Parts(torch.autograd.Function):
    """Parts of a tensor (1, size), whose gradient is one tensor again, zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, places: Sequence[Place]) -> tuple[Tensor, ...]:
        ctx.places, ctx.size = places, flat.shape[1]
        return _cut(flat, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].new_zeros(1, ctx.size)
        torch._foreach_copy_(_cut(total, ctx.places), gradients)
        return total, None


def _cut(flat: Tensor, places: Sequence[Place]) -> tuple[Tensor, ...]:
    # places come in order: one call for all of them, and what lies between two is left out
    ends = [0, *(x for place in places for x in (place.start, place.end)), flat.shape[1]]
    pieces = flat[0].split([end - start for start, end in pairwise(ends)])[1::2]
    return tuple(piece.view(x.shape) for piece, x in zip(pieces, places, strict=True))
