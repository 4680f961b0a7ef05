"""The supernet of a search: all operations of all edges, of which a step runs the chosen ones.

Its layers have no member axis: which of them a step runs depends on the sample of the member, so
members cannot share a convolution. All weights lie in one tensor instead, so that an update is a
handful of kernels, and operations that a step has not run get a gradient of zero. Momentum and
decay move these all the same, as they do in the released code.

Channels come last in memory, the order in which cuDNN's convolutions on tensor cores read them.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, linear, relu

from .cells import CONV_1, CONV_3, EDGES, NODES, NONE, OPERATIONS, POOL, SKIP, Cell
from .every import CONVOLUTIONS, EPSILON, FROM, Joined, SlopesOfAll
from .pooling import averages
from .slopes import Adder, Node, SlopesOfGdas, add
from .weights import Joiner, Place, parts, rounded_up

CLASSES = 10
_KERNELS = {CONV_1: 1, CONV_3: 3}
"""Operations with weights, and the width of their kernels."""


class Samples(NamedTuple):
    """One-hot samples of the operations, through which the architecture gets its gradient."""

    one_hot: Tensor
    """(6, 5)"""
    joined: Joined | None = None
    """See ``Supernet.joined``: with it each operation gets what it would have made of its input,
    without it all that were not chosen get the same, as in GDAS."""


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
        # the norm before the head has no weights, as those of cells: a protocol with --affine 0
        bound = 1 / math.sqrt(widths[-1])
        self._add("head.linear", (CLASSES, widths[-1]), bound)
        self._add("head.offset", (CLASSES,), bound)
        self._joiner = Joiner(
            {
                name: [
                    [
                        self.places[f"{_name(name, edge, operation)}.kernel"]
                        for edge in edges
                        for operation in CONVOLUTIONS
                    ]
                    for edges in FROM
                ]
                for names in self._stages
                for name in names
            }
        )
        self._always = {name for name in self.places if not name.startswith("stage")}
        self._needed: dict[Cell | None, list[str]] = {}

    @property
    def size(self) -> int:
        """How many numbers the weights are, with those between two that are of no use."""
        return next(reversed(self.places.values())).end

    def _add(
        self, name: str, shape: tuple[int, ...], bound: float | None = None, value: float = 0.0
    ) -> None:
        end = self.size if self.places else 0
        self.places[name] = Place(rounded_up(end), shape, bound, value)

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
        weights = torch.zeros(self.size)
        for place in self.places.values():
            part = weights[place.start : place.end]
            if place.bound is None:
                part.fill_(place.value)
            else:
                part.uniform_(-place.bound, place.bound, generator=generator)
        return weights

    def weights(self, flat: Tensor, cell: Cell, *, every: bool = False) -> Weights:
        """Those that a cell needs, or every one; as views of the tensor of all, (1, size).

        They follow it where it is changed in place.
        """
        key = None if every else cell
        if key not in self._needed:
            chosen = {*self._always, *self._chosen(cell)}
            self._needed[key] = [name for name in self.places if every or name in chosen]
        names = self._needed[key]
        return dict(zip(names, parts(flat, [self.places[name] for name in names]), strict=True))

    def joined(self, flat: Tensor) -> Joined:
        """All convolutions that read a node as one, for each cell and node; see ``every``."""
        return self._joiner(flat)

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
        adder = _adder(samples, cell)
        plan = _Plan.of(cell, full=adder is not None and isinstance(adder.slopes, SlopesOfAll))
        x = _norm(conv2d(x, weights["stem.kernel"], padding=1), weights, "stem")
        for stage, names in enumerate(self._stages):
            if stage:
                x = _reduce(x, weights, f"reduction{stage}")
            for name in names:
                x = _run_cell(_Cell(name, weights, plan, adder), x)
        x = relu(_normalised(x))
        return linear(x.mean((2, 3)), weights["head.linear"], weights["head.offset"])


def _adder(samples: Samples | None, cell: Cell) -> Adder | None:
    if samples is None:
        return None
    joined = samples.joined
    return Adder(samples.one_hot, SlopesOfGdas(cell) if joined is None else SlopesOfAll(joined))


def _name(cell: str, edge: int, operation: int) -> str:
    end, start = EDGES[edge]
    return f"{cell}.{end}<-{start}.{OPERATIONS[operation]}"


def _norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    return _normalised(x, weights[f"{name}.scale"], weights[f"{name}.shift"])


def _normalised(x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """By the means and variances of the batch."""
    # not the function of torch.nn, which looks at the shape first: a step has many of these
    return torch.batch_norm(x, scale, shift, None, None, True, 0.0, EPSILON, True)


def _reduce(x: Tensor, weights: Weights, name: str) -> Tensor:
    """A residual block that halves the height and the width."""
    shortcut = conv2d(avg_pool2d(x, 2), weights[f"{name}.shortcut.kernel"])
    for part, stride in (("first", 2), ("second", 1)):
        kernel = weights[f"{name}.{part}.kernel"]
        x = _norm(conv2d(relu(x), kernel, stride=stride, padding=1), weights, f"{name}.{part}")
    return x + shortcut


class _Plan(NamedTuple):
    """What has to be computed of a cell, the same in all cells."""

    operations: Cell
    full: bool
    read: frozenset[int]
    """Nodes that the last one depends on, and itself; the others get no gradient."""
    rectified: frozenset[int]
    """Nodes that a convolution reads."""

    @classmethod
    def of(cls, operations: Cell, *, full: bool) -> "_Plan":
        """From the last node back to the first."""
        read, rectified = {NODES - 1}, set()
        # edges come in the order of their ends
        for operation, (end, start) in reversed(list(zip(operations, EDGES, strict=True))):
            if end in read and operation != NONE:
                read.add(start)
            if full or (end in read and operation in _KERNELS):
                rectified.add(start)
        return cls(operations, full, frozenset(read), frozenset(rectified))

    def needs(self, node: int) -> bool:
        """In the full form other operations than the chosen ones read a node too."""
        return self.full or node in self.read


class _Cell(NamedTuple):
    """One cell of the network."""

    name: str
    weights: Weights
    plan: _Plan
    adder: Adder | None

    def output(self, operation: int, edge: int, x: Tensor, rectified: Tensor) -> Tensor:
        """What an operation other than none makes of a node."""
        if operation == SKIP:
            return x
        if operation == POOL:
            return averages(x)
        kernel = self.weights[f"{_name(self.name, edge, operation)}.kernel"]
        y = conv2d(rectified, kernel, padding=_KERNELS[operation] // 2)
        return _normalised(y)


def _run_cell(cell: _Cell, x: Tensor) -> Tensor:
    plan = cell.plan
    slopes = None if cell.adder is None else cell.adder.slopes
    nodes: dict[int, tuple[Tensor, Tensor]] = {}
    node = x
    for number in range(NODES):
        if not plan.needs(number):
            continue
        if number:
            node = _run_node(cell, number, nodes, x)
        nodes[number] = node, relu(node) if number in plan.rectified else node
        if isinstance(slopes, SlopesOfAll) and number < len(FROM):
            slopes.see(Node(cell.name, number), *nodes[number])
    return node


def _run_node(
    cell: _Cell, number: int, nodes: Mapping[int, tuple[Tensor, Tensor]], like: Tensor
) -> Tensor:
    """The sum of what the chosen operations make of earlier nodes."""
    plan, adder = cell.plan, cell.adder
    outputs: dict[int, Tensor] = {}
    for edge, (end, start) in enumerate(EDGES):
        operation = plan.operations[edge]
        if end == number and operation != NONE:
            outputs[edge] = cell.output(operation, edge, *nodes[start])
    if adder is not None and number in plan.read:
        return adder.add_up(Node(cell.name, number), outputs, like)
    return add(list(outputs.values()), like)
