"""What many estimates of a gradient say about bias, variance and direction, with their errors."""

import math
import random
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .undrawn import SIGNIFICANCE, Undrawn

# the draws are dealt out to so many groups; standard errors come from leaving one out at a time
GROUPS = 32
# fewer groups of draws than this say too little about the distribution of their mean
_FEWEST_FOR_TEST = 20
_SIGNS = 10000
# how finely, and how far, to look for a sufficient number of draws
_STEP, _STEPS = 1.25, 200


class Truth(NamedTuple):
    """The gradient to compare with."""

    vector: Tensor
    """(numel,) float64."""
    description: str
    undrawn: Undrawn
    """What the mean of too few estimates may lack of it."""
    variance: float = 0.0
    """Trace of its covariance."""
    groups: Tensor | None = None
    """(groups, numel): its mean over each group of draws."""
    shifts: Tensor | None = None
    """(groups, numel): how it moves when a group of draws is left out."""
    variances: Tensor | None = None
    """(groups,): ``variance`` when a group of draws is left out."""

    @property
    def norm(self) -> float:
        """The norm, without what noise adds to it."""
        return math.sqrt(max(0.0, float(self.vector @ self.vector) - self.variance))


class Sums:
    """Running sums of the errors of estimates, in float64, by group of draws."""

    def __init__(self, truth: Tensor, batch: int, rounding: float, draws: int) -> None:
        groups = min(GROUPS, draws)
        self.truth, self.batch, self.rounding = truth, batch, rounding
        self.seen = 0
        self.count = truth.new_zeros(groups)
        """Finite estimates."""
        self.first = truth.new_zeros(groups, truth.numel())
        """Sum of their errors."""
        self.second = truth.new_zeros(groups)
        """Sum of the squared norms of their errors."""
        self.size = truth.new_zeros(batch)
        """Sum of the absolute entries of the estimates, for each batch element."""
        self.cosine = truth.new_zeros(2)
        """Sum of their cosines, each the mean over the batch, and of the squares of these."""

    def add(self, gradients: Tensor) -> None:
        """Count estimates, (draws, numel)."""
        draws = len(gradients)
        wide = gradients.to(self.truth.device, self.truth.dtype)
        finite = wide.isfinite().all(-1)
        error = torch.where(finite.unsqueeze(-1), wide - self.truth, 0)
        places = torch.arange(self.seen, self.seen + draws, device=wide.device)
        group = places % len(self.count)
        self.seen += draws
        self.count.index_add_(0, group, finite.to(wide.dtype))
        self.first.index_add_(0, group, error)
        self.second.index_add_(0, group, error.square().sum(-1))
        size = wide.view(draws, self.batch, -1).abs().sum(-1)
        self.size += torch.where(finite.unsqueeze(-1), size, 0).sum(0)
        cosine = torch.where(finite, cosine_to(self, wide, self.truth), 0)
        self.cosine += torch.stack([cosine.sum(), cosine.square().sum()])

    @property
    def group_means(self) -> Tensor:
        """(groups, numel), of the groups that have any."""
        some = self.count > 0
        return self.first[some] / self.count[some].unsqueeze(-1)


def cosine_to(sums: Sums, gradients: Tensor, truth: Tensor) -> Tensor:
    """Cosine similarity for each batch element, averaged over those where it exists; (draws,)."""
    truth = truth.view(sums.batch, -1)
    gradients = gradients.reshape(-1, *truth.shape)
    size, true_size = gradients.norm(dim=-1), truth.norm(dim=-1)
    cosine = (gradients * truth).sum(-1) / (size * true_size)
    cosine = torch.where(size > sums.rounding * true_size, cosine, 0)
    exists = true_size > 0
    # NaN if there is no such element
    return torch.div(torch.where(exists, cosine, 0).sum(-1), exists.sum())


def variance_of(count: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Total variance from the count, the sum, and the sum of squared norms."""
    return ((second - first.square().sum(-1) / count) / (count - 1)).clamp_min(0)


def moments(
    sums: Sums, truth: Truth, without: int | None = None, truth_without: int | None = None
) -> Tensor:
    """Variance, squared bias less noise, their sum, and the cosine of the mean.

    One group of draws may be left out, of the estimator or of the reference.
    """
    count, first, second = sums.count.sum(), sums.first.sum(0), sums.second.sum()
    if without is not None:
        count = count - sums.count[without]
        first = first - sums.first[without]
        second = second - sums.second[without]
    vector, noise = truth.vector, torch.as_tensor(truth.variance)
    if truth_without is not None:
        assert truth.shifts is not None
        assert truth.variances is not None
        vector, noise = vector + truth.shifts[truth_without], truth.variances[truth_without]
    mean = first / count + truth.vector
    variance = variance_of(count, first, second)
    bias_squared = (mean - vector).square().sum() - variance / count - noise.to(variance)
    cosine = cosine_to(sums, mean, vector)[0]
    return torch.stack([variance, bias_squared, variance + bias_squared, cosine])


def standard_errors(sums: Sums, truth: Truth) -> Tensor:
    """Standard errors of ``moments``, from leaving out one group of draws at a time."""
    some = sums.count.nonzero().flatten().tolist()
    if len(some) < 3:
        return sums.count.new_full((4,), math.nan)
    square = _jackknife_square([moments(sums, truth, group) for group in some])
    if truth.shifts is not None:
        groups = range(len(truth.shifts))
        square = square + _jackknife_square(
            [moments(sums, truth, truth_without=group) for group in groups]
        )
    return square.sqrt()


def _jackknife_square(leave_one_out: list[Tensor]) -> Tensor:
    values = torch.stack(leave_one_out)
    groups = len(values)
    return (groups - 1) / groups * (values - values.mean(0)).square().sum(0)


class Verdict(NamedTuple):
    """Whether the mean error is bias."""

    p_value: float
    """Chance of a mean error of this norm if the expected one is zero."""
    detected: bool | None
    """None if there are too few draws to tell."""
    draws_needed: int | None = None
    """In that case: draws that would tell, if the error stayed as it is."""
    missing: float = 0.0
    """Norm of what the mean may lack, where it is this that leaves the answer open."""


def judge(sums: Sums, truth: Truth, num_samples: int) -> Verdict:
    """Test the mean error against zero.

    Without bias the mean error of a group of draws is as likely as its opposite, nearly, because
    means are nearly normal. So the sum over groups is compared with sums under random signs. Means
    of draws that lack rare outcomes are not nearly normal: what those may add is no bias.
    """
    errors = sums.group_means
    if len(errors) < _FEWEST_FOR_TEST:
        return Verdict(math.nan, None, _FEWEST_FOR_TEST)
    if truth.groups is not None:
        if len(truth.groups) != len(errors):
            return Verdict(math.nan, None, GROUPS)
        errors = errors + truth.vector - truth.groups
    square = float(errors.mean(0).square().sum())
    draws = float(sums.count.sum())
    scale = max(float(truth.vector @ truth.vector), float(sums.second.sum()) / draws)
    if math.isnan(square):
        return Verdict(math.nan, None)
    if square <= sums.rounding**2 * scale:
        return Verdict(1.0, False)
    signs = _signs(_SIGNS, len(errors)).to(errors)
    squares = ((signs @ (errors @ errors.T)) * signs).sum(-1) / len(errors) ** 2

    def p_value(factor: float, missing: float) -> float:
        # signs that are all alike give the same sum, up to rounding
        as_large = int((squares / factor + missing >= square * (1 - 1e-9)).sum())
        return (1 + as_large) / (1 + len(squares))

    def missing(factor: float) -> float:
        """Squared norm of what the mean of so many times the draws may lack."""
        return truth.undrawn.missing_square(factor * draws * num_samples, sums.size / draws)

    naive = p_value(1, 0)
    if naive >= SIGNIFICANCE:
        return Verdict(naive, False)
    for factor in (_STEP**n for n in range(_STEPS)):
        if p_value(factor, missing(factor)) < SIGNIFICANCE:
            break
    if factor == 1:
        return Verdict(naive, True)
    return Verdict(naive, None, _rounded_up(draws * factor), math.sqrt(missing(1)))


def _rounded_up(x: float) -> int:
    """To two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(x)) - 1))
    return math.ceil(x / unit) * unit


@cache
def _signs(rows: int, count: int) -> Tensor:
    """A fixed table of random signs, (rows, count)."""
    bits = random.Random(0)
    words = torch.tensor([bits.getrandbits(count) for _ in range(rows)])
    return 1 - 2 * (words.unsqueeze(-1) >> torch.arange(count) & 1)
