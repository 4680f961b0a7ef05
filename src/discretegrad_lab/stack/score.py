"""Draws for the score functions of a stack, which evaluate the loss at several samples."""

from collections.abc import Callable

from torch import Tensor

from discretegrad import ESTIMATORS
from discretegrad._math import softmax
from discretegrad._random import widest
from discretegrad._tree import Tree, antithetic_leaves, make_nodes

from .lines import Line
from .noise import Noise

ROWS = ("reinforce", "leave_one_out", "disarm_tree")
"""Score functions of categories that need nothing but samples and their losses."""


def sample_count(line: Line, samples: int = 1) -> int:
    """At how many samples the line evaluates the loss.

    Args:
        line: Its ``num_samples``, if it has that option.
        samples: If it has not: so many, or for 1 the least number that it can have.

    Raises:
        ValueError: If it is no score function of ``ROWS``, or cannot have so many samples.
    """
    if line.row not in ROWS:
        raise ValueError(
            f"expected a sampler, or a score function of {', '.join(ROWS)}, got {line.row!r}; the "
            "others learn a control variate, or are for bits"
        )
    least = ESTIMATORS[line.row].min_samples
    options = dict(line.options)
    if samples != 1 and "num_samples" in options:
        raise ValueError(
            f"expected the number of samples of {line.label} once, got num_samples="
            f"{options['num_samples']} in its line and samples={samples}; leave one of them out"
        )
    count = options.get("num_samples", least if samples == 1 else samples)
    pairs = line.row == "disarm_tree"
    if not isinstance(count, int) or count < least or (pairs and count % 2):
        kind = "an even number" if pairs else "a whole number"
        raise ValueError(
            f"expected {kind} of at least {least} as num_samples of {line.label}, got {count!r}"
        )
    return count


def antithetic(logits: Tensor, uniform: Tensor, tree: Tree) -> Tensor:
    """Pairs of categories by a uniform number for each node of a tree, (2 pairs, ...)."""
    # in the precision of the library, where a choice and its partner are compared
    probs = softmax(logits.detach()).to(widest(logits.device))
    return antithetic_leaves(make_nodes(probs, tree), uniform, tree).squeeze(-1)


def draw(
    line: Line,
    logits: Tensor,
    noise: Noise,
    samples: int = 1,
    pairs: Callable[[Tensor, Tensor, Tree], Tensor] = antithetic,
) -> Tensor:
    """What to give to the function of the line: categories, (samples, members, ...).

    Args:
        line: That of all members.
        logits: (members, ..., categories).
        noise: The random numbers of the members.
        samples: As in ``sample_count``.
        pairs: ``antithetic``, or what it was compiled to.
    """
    count = sample_count(line, samples)
    if line.row != "disarm_tree":
        return noise.categories(logits, repeats=count).movedim(1, 0)
    shape = (count // 2, *logits.shape[1:-1], logits.shape[-1] - 1)
    uniform = noise.uniform(*shape).movedim(1, 0)
    return pairs(logits, uniform, dict(line.options).get("tree", "balanced"))
