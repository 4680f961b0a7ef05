"""How right learned trees are: unlabelled F1, its baselines, and accuracy by length and depth.

A parse of n tokens is a sequence of n - 1 merges: each says which of the parts that are left is
joined with its right neighbour. Its tree is the set of the n - 1 spans that the merges make, which
decides everything that is compared here.

**Unlabelled F1** as Nangia and Bowman (2018) and Williams et al. (2018) have it: the spans of both
trees, with that of the whole expression; per expression, then averaged over expressions; single
digits, which have no spans, are left out. Both trees are binary and have as many spans, so
precision, recall and F1 are one number, the share of spans in common. The right tree of ListOps is
binary because the published files make it so: within a list it branches to the left, see
``expressions.gold_spans``. Two things differ from the script of Nangia and Bowman. The tokens are
those of the released programs of ReinMax, where ``[`` and the operator are two, so each list has
one span more. And that script does not count operators when it numbers tokens, so that some
different spans become one there; here none do.

How a list is joined within itself is a convention: a model can do well without it. So beside F1
there is the share of the lists of the right trees that are parts of the learned ones.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from .expressions import ANY, Span, gold_spans, parse


class TreeScores(NamedTuple):
    """How near trees are to the right ones; shares from 0 to 1, averaged over expressions."""

    expressions: int
    """Those with more than one token; the others are left out."""
    f1: float
    """Spans in common with the right tree."""
    lists: float | None
    """Lists within the expression that are spans, of expressions that have such lists; None if none
    has."""
    exact: float
    """Trees that are the right ones."""


class Group(NamedTuple):
    """The accuracy on some of the examples."""

    first: int
    last: int
    """The smallest and the largest length or depth that belong to the group."""
    examples: int
    accuracy: float
    error: float
    """The standard error of the accuracy."""


def merged_spans(merges: Sequence[int]) -> list[Span]:
    """The spans of a parse, in the order in which they are made.

    Args:
        merges: For each merge the index of the left one of the two parts, among those that are left
            at that time.

    Raises:
        ValueError: If there is no such pair.
    """
    # where each of the parts begins that are left; the last entry is where the last one ends
    edges = list(range(len(merges) + 2))
    spans = []
    for index in merges:
        if not 0 <= index < len(edges) - 2:
            raise ValueError(
                f"expected merges from 0 to {len(edges) - 3} with {len(edges) - 1} parts left, got "
                f"{index}; count the parts anew after each merge"
            )
        del edges[index + 1]
        spans.append((edges[index], edges[index + 1]))
    return spans


def left_branching(length: int) -> list[int]:
    """The merges that join the first two parts each time."""
    return [0] * (length - 1)


def right_branching(length: int) -> list[int]:
    """The merges that join the last two parts each time."""
    return list(range(length - 2, -1, -1))


def random_merges(length: int, uniform: Callable[[], float]) -> list[int]:
    """Merges of uniformly chosen neighbours, one after the other.

    Args:
        length: Tokens of the expression.
        uniform: Gives random numbers in [0, 1).
    """
    return [int(uniform() * pairs) for pairs in range(length - 1, 0, -1)]


def f1(spans: Iterable[Span], gold: Iterable[Span]) -> float:
    """Unlabelled F1 of two sets of spans, also where they are not equally many."""
    ours, right = set(spans), set(gold)
    if not ours or not right:
        raise ValueError(
            f"expected two trees with spans, got {len(ours)} and {len(right)} spans; leave "
            "expressions of one token out"
        )
    return 2 * len(ours & right) / (len(ours) + len(right))


def score(expressions: Sequence[Sequence[str]], parses: Sequence[Sequence[int]]) -> TreeScores:
    """Hold parses against the right trees.

    Args:
        expressions: The tokens of each.
        parses: The merges of each.

    Raises:
        ValueError: If a parse is not one of its expression.
    """
    shares: list[float] = []
    list_shares: list[float] = []
    exact = 0
    for tokens, merges in zip(expressions, parses, strict=True):
        if len(merges) != len(tokens) - 1:
            raise ValueError(
                f"expected {len(tokens) - 1} merges for {len(tokens)} tokens, got {len(merges)}; "
                "leave the padding out"
            )
        if not merges:
            continue
        spans, gold = set(merged_spans(merges)), gold_spans(tokens)
        shares.append(f1(spans, gold))
        exact += spans == set(gold)
        inner = [x for x in parse(" ".join(tokens), ANY).lists if x != (0, len(tokens))]
        if inner:
            list_shares.append(len(spans.intersection(inner)) / len(inner))
    if not shares:
        raise ValueError("expected expressions of more than one token, got none; give some")
    lists = sum(list_shares) / len(list_shares) if list_shares else None
    return TreeScores(len(shares), sum(shares) / len(shares), lists, exact / len(shares))


def baselines(expressions: Sequence[Sequence[str]], seed: int) -> dict[str, TreeScores]:
    """The scores of trees that look at nothing but the number of tokens; the last are random."""
    uniform = Random(seed).random
    parsers: dict[str, Callable[[int], list[int]]] = {
        "left-branching": left_branching,
        "right-branching": right_branching,
        "random": lambda length: random_merges(length, uniform),
    }
    return {
        name: score(expressions, [parser(len(tokens)) for tokens in expressions])
        for name, parser in parsers.items()
    }


def accuracy_by(
    sizes: Sequence[int], correct: Sequence[bool], lasts: Sequence[int] | None = None
) -> list[Group]:
    """Accuracy by length or depth.

    Args:
        sizes: The length or the depth of each example.
        correct: Whether each was classified rightly.
        lasts: The largest size of each group, in ascending order; by default each size is a group.

    Returns:
        Groups that have examples.

    Raises:
        ValueError: If an example fits into no group.
    """
    ends = sorted(set(sizes)) if lasts is None else lasts
    if not ends or max(sizes, default=0) > ends[-1]:
        most = ends[-1] if ends else 0
        raise ValueError(
            f"expected sizes of at most {most}, got {max(sizes, default=0)}; add a group"
        )
    inside: dict[int, list[bool]] = {end: [] for end in ends}
    for size, right in zip(sizes, correct, strict=True):
        inside[ends[bisect.bisect_left(ends, size)]].append(right)
    firsts = ends if lasts is None else (1, *(end + 1 for end in ends))
    groups = []
    for first, end in zip(firsts, ends, strict=False):
        if inside[end]:
            examples = len(inside[end])
            share = sum(inside[end]) / examples
            error = math.sqrt(share * (1 - share) / examples)
            groups.append(Group(first, end, examples, share, error))
    return groups
