r"""The slopes of every operation, also of those that a step has not run.

In the full form the sample of an operation gets $\langle g, o(x) \rangle$, where $x$ is the node
that its edge starts from and $g$ the gradient of the node where the edge ends. So nothing but nodes
and their gradients is needed, and all of it is done once these are there.

Convolutions have no output of their own here. With $y$ that of a convolution before it is
normalised, $m_c$ and $s_c$ the mean and the deviation of a channel over the batch,

$$\Big\langle g, \frac{y - m}{s} \Big\rangle
= \sum_c \frac{\langle g_c, y_c \rangle - m_c \sum g_c}{s_c} ,$$

which takes four sums over the pixels of all images: of $y_c$, $y_c^2$, $g_c y_c$ and $g_c$. All
convolutions that read a node are one convolution with many outputs, in which a kernel of one pixel
lies in the middle of nine.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from .cells import CONV_1, CONV_3, EDGES, NODES, OPERATIONS, POOL, SKIP
from .pooling import averages
from .slopes import PLACES, Node, Slopes, add_at, dots, has_kernels

EPSILON = 1e-5
"""Is added to the variances of all norms, as by default in torch."""
CONVOLUTIONS = (CONV_1, CONV_3)
"""In this order their outputs come in that of the joined convolution, edge by edge."""
FROM = tuple(
    tuple(edge for edge, (_, start) in enumerate(EDGES) if start == number)
    for number in range(NODES - 1)
)
"""The edges that start from each node."""
Joined = Mapping[str, Sequence[Tensor]]
"""For each cell and node of it the kernel of all convolutions that read the node, (outputs,
channels, 3, 3)."""


class Read(NamedTuple):
    """A node that operations read, and what of it is positive, which convolutions read."""

    x: Tensor
    rectified: Tensor


class Edge(NamedTuple):
    """An edge of a cell whose end has a gradient."""

    number: int
    start: Node
    position: int
    """Among the edges that start from there."""
    g: Tensor
    """The gradient of the node where it ends."""


class SlopesOfAll(Slopes):
    """Those of every operation.

    Args:
        joined: The kernels of all convolutions.
    """

    keeps_outputs = False

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._read: dict[Node, Read] = {}
        self._gradients: dict[Node, Tensor] = {}

    def see(self, node: Node, x: Tensor, rectified: Tensor) -> None:
        """Take in a node that edges start from."""
        self._read[node] = Read(x.detach(), rectified.detach())

    def note(self, node: Node, g: Tensor, outputs: Mapping[int, Tensor]) -> None:
        """Take in the gradient of a node, for later."""
        self._gradients[node] = g

    def gradient(self, one_hot: Tensor) -> Tensor:
        """Of the samples, once all nodes have theirs."""
        total = one_hot.new_zeros(PLACES)
        edges = list(self._edges())
        if edges:
            self._add_of_pixels(edges, total)
            # stage by stage, after which the outputs of one are free
            for width in dict.fromkeys(edge.g.shape[1] for edge in edges):
                self._add_of_convolutions([x for x in edges if x.g.shape[1] == width], total)
        self._read, self._gradients = {}, {}
        return total.view_as(one_hot)

    def _edges(self) -> Iterator[Edge]:
        """All but those to nodes that no chosen operation reads, which count for nobody."""
        for start in self._read:
            for position, number in enumerate(FROM[start.number]):
                g = self._gradients.get(Node(start.cell, EDGES[number][0]))
                if g is not None:
                    yield Edge(number, start, position, g)

    def _add_of_pixels(self, edges: Sequence[Edge], total: Tensor) -> None:
        """The slopes of the operations that take pixels as they are, or their averages."""
        read = {edge.start: self._read[edge.start].x for edge in edges}
        averaged = {start: averages(x) for start, x in read.items()}
        pairs = [(edge.g, x[edge.start]) for edge in edges for x in (read, averaged)]
        add_at(_places(edges, (SKIP, POOL)), dots(pairs), total)

    def _add_of_convolutions(self, edges: Sequence[Edge], total: Tensor) -> None:
        """Those of the convolutions, of edges with equally many channels."""
        outputs = {
            start: conv2d(
                self._read[start].rectified, self._joined[start.cell][start.number], padding=1
            )
            for start in dict.fromkeys(edge.start for edge in edges)
        }
        parts = [(outputs[edge.start], edge.position, edge.g) for edge in edges]
        of_y, of_squares, of_products, of_g = sums(parts).unbind(1)
        count = edges[0].g.numel() // edges[0].g.shape[1]
        mean = of_y / count
        # where all outputs are equal, rounding may leave less than nothing
        variance = (of_squares / count - mean.square()).clamp_min(0)
        of_channels = (of_products - mean * of_g) / (variance + EPSILON).sqrt()
        slopes = of_channels.unflatten(1, (len(CONVOLUTIONS), -1)).sum(2).flatten()
        add_at(_places(edges, CONVOLUTIONS), slopes.to(total.dtype), total)


def _places(edges: Sequence[Edge], operations: Sequence[int]) -> list[int]:
    return [edge.number * len(OPERATIONS) + x for edge in edges for x in operations]


Part = tuple[Tensor, int, Tensor]
"""What a joined convolution has put out, the position of an edge in it, and the gradient at its
end."""


def sums(parts: Sequence[Part]) -> Tensor:
    """Over all pixels of all images, for every output of the convolutions of an edge.

    Returns:
        Of the output, its square, its product with the gradient, and the gradient; float64,
        (edges, 4, convolutions x channels).
    """
    if has_kernels(parts[0][0]):
        from . import kernels

        order = torch.channels_last
        return kernels.sums(
            [(y.contiguous(memory_format=order), position, g) for y, position, g in parts],
            len(CONVOLUTIONS),
        )
    of_edges = []
    for y, position, g in parts:
        width = len(CONVOLUTIONS) * g.shape[1]
        y = y.narrow(1, position * width, width).double()
        g = g.repeat(1, len(CONVOLUTIONS), 1, 1).double()
        of_edges.append(torch.stack([x.sum((0, 2, 3)) for x in (y, y * y, g * y, g)]))
    return torch.stack(of_edges)
