"""What a trained parser is measured by: its trees, and where its values are right.

All on the test set and by the greedy parse. Scores of trees are those of expressions that are
shorter than ``LIMIT``, see ``trees``; accuracies are those of the full test set. The report is
written where there are neither models nor data, so three kinds of numbers are kept for it, which
have no column in the table of measures: accuracies of groups of expressions with the sizes of the
groups; the scores of trees that know only the number of tokens, which are the same for every model;
and what each model makes of the expressions ``SHOWN``.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...stack.precision import full_precision
from ..base import Measures, Metric
from .batches import chunks
from .data import LIMIT, Examples, decode, depths, encode
from .expressions import Tokens
from .model import SEED, TOKENS, ParsingModel
from .scored import memory
from .trees import TreeScores, accuracy_by, baselines, score

SHOWN: tuple[Tokens, ...] = tuple(
    tuple(text.split())
    for text in (
        "[ max 1 5 [ min 9 2 5 ] ]",
        "[ sm [ sm [ min 0 8 1 ] 5 [ sm 1 7 ] ] 8 ]",
        "[ sm [ min [ min 5 [ sm 5 4 1 ] 0 4 9 ] 8 7 6 ] 1 1 7 3 ]",
    )
)
"""Whose trees are drawn: the first expressions of the test set that have 11, 19 and 26 tokens, and
lists within a list. Stored numbers name them by their places, so further ones come last."""
BASELINES = ("left-branching", "right-branching", "random")
SCORES = {"f1": "F1", "lists": "lists", "exact": "exactly right"}
"""Fields of ``TreeScores``, and how tables call them."""
_MOST = 10**9


class Grouping(NamedTuple):
    """How expressions are grouped, to see where a model is right."""

    name: str
    lasts: tuple[int, ...]
    """The largest size of each group; the last group has no end."""

    def accuracy(self, first: int) -> str:
        """The name of the accuracy of the group that begins at a size, in percent."""
        return f"accuracy_{self.name}_{first}"

    def examples(self, first: int) -> str:
        """The name of the number of expressions in it."""
        return f"examples_{self.name}_{first}"

    @property
    def groups(self) -> dict[int, str]:
        """The first size of each group, and how tables call the group."""
        firsts = (1, *(last + 1 for last in self.lasts[:-1]))
        labels = {
            first: f"{first}" if first == last else f"{first} to {last}"
            for first, last in zip(firsts, self.lasts, strict=True)
        }
        return labels | {firsts[-1]: f"from {firsts[-1]}"}


LENGTH = Grouping("length", (10, 20, 40, 60, 80, LIMIT - 1, 2 * LIMIT - 1, _MOST))
DEPTH = Grouping("depth", (2, 3, 4, 5, 6, 8, 10, 14, _MOST))


def tree_name(field: str, baseline: str = "") -> str:
    """The name of a score of the learned trees, or of a baseline, in percent."""
    return f"{baseline.replace('-', '_') or 'test_tree'}_{field}"


def merge_name(number: int, place: int) -> str:
    """The name of a merge of one of ``SHOWN``."""
    return f"shown_{number}_merge_{place}"


def answer_name(number: int) -> str:
    """The name of the value that was given to one of ``SHOWN``."""
    return f"shown_{number}_answer"


UNSHOWN = frozenset(
    (
        *(tree_name(field, name) for name in BASELINES for field in SCORES),
        *(x.accuracy(first) for x in (LENGTH, DEPTH) for first in x.groups),
        *(x.examples(first) for x in (LENGTH, DEPTH) for first in x.groups),
        *(merge_name(n, x) for n, tokens in enumerate(SHOWN) for x in range(len(tokens) - 1)),
        *(answer_name(number) for number in range(len(SHOWN))),
    )
)
"""What is kept for the exhibits."""


def measure(model: ParsingModel) -> dict[str, Tensor]:
    """The metrics of ``MEASURES``, and ``UNSHOWN``, for each member."""
    with full_precision():
        test = Examples(*(x.cpu() for x in model.test))
        merges, right = _parse(model, test)
        shown = _shown(model)
    return {**_trees(test, merges, len(right)), **_accuracies(test, right), **shown}


def _parse(model: ParsingModel, test: Examples) -> tuple[list[tuple[int, list[list[int]]]], Tensor]:
    """The merges of expressions that are short, and whether the value of each is right.

    Returns:
        Numbers of expressions with the merges of each member, and (members, count).
    """
    merges, right = [], []
    parts = chunks(test.lengths, TOKENS)
    for width, index in parts:
        part = Examples(test.tokens[index, :width], test.lengths[index], test.labels[index])
        parsed, values = (x.cpu() for x in model.parses(part))
        right.append(values == part.labels)
        for place, (number, length) in enumerate(
            zip(index.tolist(), part.lengths.tolist(), strict=True)
        ):
            if 1 < length < LIMIT:
                merges.append((number, parsed[:, place, : length - 1].tolist()))
    # back in the order of the test set
    order = torch.cat([index for _, index in parts]).argsort()
    return sorted(merges), torch.cat(right, 1)[:, order]


def _trees(
    test: Examples, merges: list[tuple[int, list[list[int]]]], members: int
) -> dict[str, Tensor]:
    """How right the trees of each member are, and those of the baselines."""
    if not merges:
        return {}
    expressions = [decode(test.tokens[number]) for number, _ in merges]
    learned = [score(expressions, [own[member] for _, own in merges]) for member in range(members)]
    trees = {"": learned} | {
        name: [scores] * members for name, scores in baselines(expressions, SEED).items()
    }
    return {
        tree_name(field, name): torch.tensor(
            [_percent(x, field) for x in scores], dtype=torch.float64
        )
        for name, scores in trees.items()
        for field in SCORES
    }


def _percent(scores: TreeScores, field: str) -> float:
    share = getattr(scores, field)
    return math.nan if share is None else 100 * share


def _accuracies(test: Examples, right: Tensor) -> dict[str, Tensor]:
    """The accuracy of each member in each group that there is, and its size."""
    measured: dict[str, Tensor] = {}
    for grouping, sizes in ((LENGTH, test.lengths), (DEPTH, depths(test.tokens))):
        members = [accuracy_by(sizes.tolist(), own.tolist(), grouping.lasts) for own in right]
        for groups in zip(*members, strict=True):
            first = groups[0].first
            shares = torch.tensor([group.accuracy for group in groups], dtype=torch.float64)
            measured[grouping.accuracy(first)] = 100 * shares
            measured[grouping.examples(first)] = torch.full_like(shares, groups[0].examples)
    return measured


def _shown(model: ParsingModel) -> dict[str, Tensor]:
    """What the members make of ``SHOWN``."""
    merges, values = (x.cpu().double() for x in model.parses(encode(SHOWN)))
    measured = {answer_name(number): values[:, number] for number in range(len(SHOWN))}
    for number, tokens in enumerate(SHOWN):
        for place in range(len(tokens) - 1):
            measured[merge_name(number, place)] = merges[:, number, place]
    return measured


MEASURES = Measures(
    metrics=tuple(
        Metric(tree_name(field), f"{label}, %", 2, "up") for field, label in SCORES.items()
    ),
    measure=measure,
    # a pass without gradients needs less than training does
    memory=memory,
    note=(
        f"Greedy parses of test expressions of fewer than {LIMIT} tokens, by the model of the last "
        "epoch. F1: unlabelled, the share of the spans of a tree that the right tree has, too. "
        "Lists: the share of the lists within an expression that are spans of its tree. Exactly "
        "right: the share of trees that are the right ones. All are means over expressions."
    ),
)
