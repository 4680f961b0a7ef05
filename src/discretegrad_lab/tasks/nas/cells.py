"""Cells of the topology space of NATS-Bench: one of five operations on each of six edges.

A cell has four nodes. Each node adds up what the operations on its edges make of earlier nodes, so
there are 5^6 = 15,625 cells. As text a cell is written as in the benchmark,
``|nor_conv_3x3~0|+|nor_conv_3x3~0|none~1|+|skip_connect~0|none~1|avg_pool_3x3~2|``: node by node,
each operation with the node it reads.
"""

import re

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""In the order of the columns of alpha."""
LABELS = ("none", "skip", "conv 1x1", "conv 3x3", "pool 3x3")
NONE, SKIP, CONV_1, CONV_3, POOL = range(5)
EDGES = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))
"""The node that an edge ends in and the one that it reads; in the order of the rows of alpha."""
NODES = 4
CELLS = len(OPERATIONS) ** len(EDGES)

Cell = tuple[int, ...]
"""The number of the operation on each edge."""
_EXAMPLE = "|nor_conv_3x3~0|+|nor_conv_3x3~0|none~1|+|skip_connect~0|none~1|avg_pool_3x3~2|"


def to_text(cell: Cell) -> str:
    """A cell as the benchmark writes it."""
    texts = [f"{OPERATIONS[operation]}~{start}" for operation, (_, start) in _placed(cell)]
    nodes = (texts[:1], texts[1:3], texts[3:])
    return "+".join(f"|{'|'.join(node)}|" for node in nodes)


def from_text(text: str) -> Cell:
    """The cell of a text; raises ``ValueError`` if it is none."""
    parts = [re.findall(r"\|([^|~+]+)~(\d)(?=\|)", node) for node in text.strip().split("+")]
    rebuilt = "+".join("|" + "".join(f"{name}~{start}|" for name, start in x) for x in parts)
    starts = [[int(start) for _, start in node] for node in parts]
    if rebuilt != text.strip() or starts != [[0], [0, 1], [0, 1, 2]]:
        raise ValueError(f"expected a cell such as {_EXAMPLE}, got {text!r}")
    names = [name for node in parts for name, _ in node]
    for name in names:
        if name not in OPERATIONS:
            raise ValueError(
                f"expected operations of {', '.join(OPERATIONS)} in a cell, got {name!r}"
            )
    return tuple(OPERATIONS.index(name) for name in names)


def to_number(cell: Cell) -> int:
    """A number from 0 to 15,624 that stands for a cell; its digits to base 5 are the operations."""
    number = 0
    for operation, _ in _placed(cell):
        number = number * len(OPERATIONS) + operation
    return number


def from_number(number: int) -> Cell:
    """The cell that a number stands for."""
    if not 0 <= number < CELLS:
        raise ValueError(f"expected the number of a cell from 0 to {CELLS - 1}, got {number}")
    digits = []
    for _ in EDGES:
        number, digit = divmod(number, len(OPERATIONS))
        digits.append(digit)
    return tuple(reversed(digits))


def reduced(cell: Cell) -> Cell:
    """A cell with none on each edge that has no effect on its output, which stays the same.

    Such an edge leads to no output, or it reads a node that is zero: all operations make zeros of
    that.
    """
    operations = list(cell)
    for number, (_, start) in enumerate(EDGES):
        before = [x for x, (end, _) in zip(operations, EDGES, strict=True) if end == start]
        if start and set(before) == {NONE}:
            operations[number] = NONE
    # from the last edge back, so that all edges that read a node are done before those to it
    for number, (end, _) in reversed(list(enumerate(EDGES))):
        after = [x for x, (_, start) in zip(operations, EDGES, strict=True) if start == end]
        if end < NODES - 1 and set(after) == {NONE}:
            operations[number] = NONE
    return tuple(operations)


def _placed(cell: Cell) -> list[tuple[int, tuple[int, int]]]:
    """The operations with their edges, if it is a cell."""
    if len(cell) != len(EDGES) or not all(operation in range(5) for operation in cell):
        raise ValueError(f"expected six numbers of operations from 0 to 4, got {cell}")
    return list(zip(cell, EDGES, strict=True))
