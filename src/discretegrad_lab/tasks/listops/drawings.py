"""Parse trees as pictures: a learned tree with the right one beside it, as SVG text.

A picture needs no other file. It has colours of its own on a white ground, so it reads the same in
a light and in a dark page, and the same trees give the same text each time.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from .expressions import ANY, Span, gold_spans, parse
from .trees import merged_spans

_INK, _BOTH, _ALONE = "#1b1f24", "#0b5cad", "#b3440b"
_COLUMN, _LEVEL, _MARGIN, _HEADING = 22, 16, 16, 26
"""Points between tokens, between the levels of a tree, around a tree, and for its heading."""
_NARROWEST = 290
"""What a heading needs."""


class _Node(NamedTuple):
    """A token or a join of two others."""

    span: Span
    children: "tuple[_Node, ...]" = ()

    @property
    def x(self) -> float:
        """Where it is drawn."""
        return _COLUMN * (self.span[0] + self.span[1]) / 2

    @property
    def height(self) -> int:
        """Levels above the tokens."""
        return self.span[1] - self.span[0] - 1


class Parsed(NamedTuple):
    """An expression and what a model made of it."""

    tokens: Sequence[str]
    merges: Sequence[int]
    """The learned tree, see ``trees``."""
    answer: int | None = None
    """The value that the model gave, to be told in the heading."""


class _Pair(NamedTuple):
    """A learned tree beside the right one, drawn."""

    width: int
    height: int
    description: str
    lines: list[str]


def draw_trees(*parses: Parsed) -> str:
    """Learned trees on the left and the right ones beside them, an expression below the other.

    Joins that both trees have are drawn with full lines and filled dots, the others with broken
    lines and empty dots. In the right tree a digit stands above each list: its value.

    Returns:
        An ``svg`` element.

    Raises:
        ValueError: If there is none, or the merges of one are not a tree of its tokens.
    """
    if not parses:
        raise ValueError("expected an expression and its parse, got none; give at least one")
    pairs: list[_Pair] = []
    for parsed in parses:
        pairs.append(_draw_pair(parsed, sum(pair.height for pair in pairs)))
    width, height = max(pair.width for pair in pairs), sum(pair.height for pair in pairs)
    description = " ".join(pair.description for pair in pairs)
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {width} {height}" style="width: {width}px">',
            f"<title>{escape(description)}</title>",
            f'<path d="M0 0H{width}V{height}H0Z" fill="#ffffff"/>',
            *(line for pair in pairs for line in pair.lines),
            "</svg>",
            "",
        ]
    )


def _draw_pair(parsed: Parsed, top: int) -> _Pair:
    tokens, merges, answer = parsed
    expression = parse(" ".join(tokens), ANY)
    learned, right = merged_spans(merges), gold_spans(tokens)
    if len(learned) != len(right):
        raise ValueError(
            f"expected {len(right)} merges for {len(tokens)} tokens, got {len(learned)}; leave the "
            "padding out"
        )
    both = set(learned) & set(right)
    heading = f"learned: {len(both)} of {len(right)} joins are right"
    headings = (
        heading if answer is None else f"{heading}, answer {answer}",
        f"right: value {expression.value}",
    )
    trees = [_layout(spans, len(tokens)) for spans in (learned, right)]
    width = max(_NARROWEST, _COLUMN * len(tokens)) + _MARGIN
    bottom = _HEADING + _LEVEL * (1 + len(tokens))
    description = f"Trees of {' '.join(tokens)}. {'; '.join(headings)}."
    lines = []
    values: tuple[Mapping[Span, int], ...] = ({}, expression.lists)
    for place, tree in enumerate(trees):
        lines += [
            f'<g transform="translate({_MARGIN + place * width} {top})">',
            _text(headings[place], 0, _HEADING - 8, "start"),
            *(_join(node, bottom, node.span in both) for node in tree if node.children),
            *(_text(tokens[x.span[0]], x.x, bottom, "middle") for x in tree if not x.children),
            *(
                _text(
                    str(values[place][x.span]), x.x, bottom - _LEVEL * (x.height + 1) - 6, "middle"
                )
                for x in tree
                if x.span in values[place]
            ),
            "</g>",
        ]
    return _Pair(2 * width + _MARGIN, bottom + _MARGIN, description, lines)


def _layout(spans: Sequence[Span], length: int) -> list[_Node]:
    """The nodes of a tree, children before their parents.

    A node is the top of a triangle over its tokens, and all triangles have the same slopes. So a
    child lies on a side of its parent's triangle, and no lines cross.
    """
    # the largest part so far that begins at a token
    parts = {i: _Node((i, i + 1)) for i in range(length)}
    nodes = list(parts.values())
    for start, end in sorted(spans, key=lambda span: span[1] - span[0]):
        left = parts[start]
        parts[start] = _Node((start, end), (left, parts[left.span[1]]))
        nodes.append(parts[start])
    return nodes


def _join(node: _Node, bottom: int, both: bool) -> str:
    """The two lines to the children of a node, and its dot."""

    def point(x: _Node) -> str:
        # lines end above the letters of a token
        return f"{x.x:.1f} {bottom - _LEVEL * (x.height + 1) + 3 * (not x.children)}"

    left, right = node.children
    colour = _BOTH if both else _ALONE
    style = "" if both else ' stroke-dasharray="3 2"'
    x, _, y = point(node).partition(" ")
    return (
        f'<path d="M{point(left)}L{point(node)}L{point(right)}" fill="none" stroke="{colour}"'
        f'{style}/><circle cx="{x}" cy="{y}" r="3" fill="{colour if both else "#ffffff"}" '
        f'stroke="{colour}"/>'
    )


def _text(text: str, x: float, y: float, anchor: str) -> str:
    # a style of its own, since pages have rules for texts in pictures; the edge keeps lines away
    edge = "paint-order: stroke; stroke: #ffffff; stroke-width: 3px"
    style = f"fill: {_INK}; font: 13px system-ui, sans-serif; text-anchor: {anchor}; {edge}"
    return f'<text x="{x:.1f}" y="{y}" style="{style}">{escape(text)}</text>'
