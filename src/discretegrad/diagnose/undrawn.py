r"""What outcomes that are too rare to rely on may add to the mean of many estimates.

The spread of the draws says nothing about an outcome that none of them has shown: at confident
logits all draws are alike, and their mean is off by what the rare outcomes would have added. So a
mean error counts as bias only beyond that.

For each value of each variable, look at the outcomes in which the variable has it. Without them the
mean lacks their chance times the estimate there, whose norm is taken to be at most

$$(|f(z) - E_i f(z)| + F)\, |z - \mu|,$$

where $E_i$ is the mean over the variable alone, $z - \mu$ the score, and F the size of the
estimates that were drawn, in units of the score. The first term is what every unbiased estimator
has to find out; the second is what an estimator multiplies with the score besides (for REINFORCE
without a baseline, f itself).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._types import Call
from ..families.base import Variables
from .problem import NAME, Problem

SIGNIFICANCE = 1e-3
"""The chance of a false alarm that the test for bias allows."""
# outcomes that are expected this often are missed with that chance
_MISSED = -math.log(SIGNIFICANCE)
# from this expected number on, the test for bias keeps its level by itself: with Poisson counts its
# false alarms are 4 % at 5, 0.6 % at 15, 0.2 % at 50 and 0.1 % from 100 on
_RELIABLE = 100
# enumerated values of f that are held at once to see the rare outcomes among them
_TABLE_ELEMENTS = 2**24
_SLICE_ELEMENTS = 2**20
_TINY = 1e-60


class Parts(NamedTuple):
    """Contributions to a mean, (batch elements, parts): each from the outcomes in which one
    variable has one value."""

    amount: Tensor
    """The expected norm, 0 where the variable has another value."""
    fourth: Tensor
    """The expected fourth power of the norm."""
    chance: Tensor
    """How likely a sample is to show it."""

    def missing(self, samples: float) -> Tensor:
        """How much so many samples may lack, for each batch element.

        Outcomes are missed that are expected ``_MISSED`` times in all. They contribute no more than
        all that are rare, and no more than Hölder's inequality allows them.
        """
        is_rare = samples * self.chance < _RELIABLE
        amount, fourth = (torch.where(is_rare, x, 0).sum(-1) for x in (self.amount, self.fourth))
        return torch.minimum(amount, (_MISSED / samples) ** 0.75 * fourth**0.25)


class Undrawn(NamedTuple):
    """What a mean of estimates may lack."""

    changes: Parts
    """Of the change of f times the score."""
    scores: Parts
    """Of the score alone."""
    spread: Tensor
    """(batch elements,): the expected sum of the absolute entries of the score."""

    def missing_square(self, samples: float, sizes: Tensor) -> float:
        """Squared norm of what the mean over so many samples may lack.

        ``sizes`` are the mean sums of absolute entries of the estimates, (batch elements,).
        """
        factor = torch.where(self.spread > 0, sizes / self.spread, 0)
        missing = self.changes.missing(samples) + factor * self.scores.missing(samples)
        return float(missing.square().sum())


def wide(x: Tensor) -> Tensor:
    """In float64; on a CPU where the device has none (Apple GPUs)."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def variables_of(problem: Problem) -> Variables:
    """The variables in float64."""
    logits = wide(problem.logits)
    mask = None if problem.mask is None else problem.mask.to(logits.device)
    return problem.family.prepare(Call(NAME, logits, mask=mask))


def undrawn_by_gradient(problem: Problem, gradient: Tensor) -> Undrawn:
    r"""What the true gradient tells, where f is not enumerated.

    With an entry $g$ of the gradient and the mean $\mu$ of the same entry of the sample, f is on
    average $g / \mu$ above its mean where the sample has a 1, and $g / (1 - \mu)$ below it where it
    has a 0.
    """
    elements = math.prod(problem.batch_shape)
    mean = problem.family.mean(variables_of(problem).point).reshape(elements, -1)
    rest, size = 1 - mean, gradient.reshape(elements, -1).abs()
    variance = (mean * rest).sum(-1, keepdim=True)
    chance = torch.cat([mean, rest], -1)
    # of the score: that of the variable itself, at most, and that of the others
    length = (2 * (1 - chance).square() + variance).sqrt()
    amount = torch.cat([size, size], -1) * length
    # where a chance is 0 in float64, so is the amount, but for rounding
    fourth = amount**4 / chance.clamp_min(_TINY) ** 3
    scores = Parts(chance * length, chance * length**4, chance)
    return Undrawn(Parts(amount, fourth, chance), scores, 2 * variance.squeeze(-1))


def undrawn_by_enumeration(problem: Problem) -> Undrawn | None:
    """What all values of f tell; None where these are too many to hold."""
    elements = math.prod(problem.batch_shape)
    if problem.outcomes * elements > _TABLE_ELEMENTS:
        return None
    table = _enumerate(problem, elements)
    width = max(1, _SLICE_ELEMENTS // problem.outcomes)
    slices = [
        _parts(problem, Table(*(x[:, first : first + width] for x in table)))
        for first in range(0, elements, width)
    ]
    changes, scores = (
        Parts(*(torch.cat(column) for column in zip(*parts, strict=True)))
        for parts in zip(*slices, strict=True)
    )
    mean = problem.family.mean(variables_of(problem).point).reshape(elements, -1)
    return Undrawn(changes, scores, 2 * (mean * (1 - mean)).sum(-1))


class Table(NamedTuple):
    """All joint outcomes, (outcomes, batch elements)."""

    chance: Tensor
    loss: Tensor
    """f, and 0 where the outcome is impossible."""
    score: Tensor
    """Norm of the score."""


def _enumerate(problem: Problem, elements: int) -> Table:
    """Outcome number d has the digits of d, the first variable's being the lowest, as values."""
    family, variables = problem.family, variables_of(problem)
    values, mean = family.outcomes(problem.logits), family.mean(variables.point)
    latent = family.variables_shape(problem.logits)[len(problem.batch_shape) :]
    place = values ** torch.arange(math.prod(latent), device=problem.logits.device)
    pieces = []
    for numbers in torch.arange(problem.outcomes).split(problem.draws_at_once(1)):
        digits = numbers.to(place.device).unsqueeze(-1) // place % values
        digits = digits.view(len(numbers), *[1] * len(problem.batch_shape), *latent)
        samples = family.sample(problem.logits, family.outcome(problem.logits, digits))
        samples = samples.expand(len(numbers), *problem.logits.shape)
        with torch.no_grad():
            loss = wide(problem.f_of_many(samples)).reshape(len(numbers), elements)
        samples = wide(samples)
        log_chance = family.log_prob(variables.logits, samples)
        chance = log_chance.reshape(len(numbers), elements, -1).sum(-1).exp()
        score = (samples - mean).reshape(len(numbers), elements, -1).norm(dim=-1)
        pieces.append((chance, torch.where(chance > 0, loss, 0), score))
    return Table(*(torch.cat(columns) for columns in zip(*pieces, strict=True)))


def _parts(problem: Problem, table: Table) -> tuple[Parts, Parts]:
    """Of the changes of f times the score, and of the score alone."""
    values = problem.family.outcomes(problem.logits)
    changes, scores, low = [], [], 1
    while low < problem.outcomes:
        # by the value of one variable: (variables after it, values, variables before it, elements)
        shape = (-1, values, low, table.chance.shape[-1])
        chance, loss, score = (x.reshape(shape) for x in table)
        marginal = chance.sum((0, 2), keepdim=True)
        change = (loss - (marginal * loss).sum(1, keepdim=True)).abs() * score
        powers = [[(chance * x**n).sum((0, 2)) for n in (1, 2, 4)] for x in (change, score)]
        (amount, second, fourth), (score_amount, _, score_fourth) = powers
        # the chance of the value if all changes are equal, and less if a few are large
        effective = torch.where(fourth > 0, second.square() / fourth, 0)
        changes.append((amount, fourth, effective))
        scores.append((score_amount, score_fourth, marginal[0, :, 0]))
        low *= values
    return _joined(changes), _joined(scores)


def _joined(variables: Sequence[tuple[Tensor, ...]]) -> Parts:
    """From (values, batch elements) of each variable to (batch elements, parts)."""
    return Parts(*(torch.cat(column).T for column in zip(*variables, strict=True)))
