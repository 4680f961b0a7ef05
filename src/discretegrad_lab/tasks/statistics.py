"""Means over a few runs: their intervals, and whether two of them differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """What a few runs say about a number."""

    count: int
    mean: float = math.nan
    deviation: float = math.nan
    """Standard deviation; NaN below two runs, as is what follows from it."""

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.deviation / math.sqrt(self.count) if self.count else math.nan

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval of the mean, by Student's t."""
        return student(self.count - 1) * self.error if self.count > 1 else math.nan


@dataclass(frozen=True)
class Comparison:
    """Two means, by Welch's t-test; all but the difference NaN unless both have two runs."""

    difference: float
    half: float
    """Half the width of the joint 95 % interval, that of the difference."""
    p: float

    @property
    def chance(self) -> str:
        """p in words; nothing where there is none."""
        if math.isnan(self.p):
            return ""
        # what is left of smaller ones depends on how a machine rounds
        return "< 0.0001" if self.p < 1e-4 else f"{self.p:.2g}"

    @property
    def sign(self) -> int:
        """Of the difference; 0 if its interval holds 0. Without an interval the number decides."""
        if math.isnan(self.difference) or abs(self.difference) <= self.half:
            return 0
        return (self.difference > 0) - (self.difference < 0)


def summarise(values: Sequence[float]) -> Summary:
    """The mean of some numbers and how sure it is."""
    if not values:
        return Summary(0)
    mean = fmean(values)
    if len(values) < 2:
        return Summary(1, mean)
    if min(values) == max(values):
        # the mean of equal numbers may be a rounding off, which is no spread
        return Summary(len(values), values[0], 0.0)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Summary(len(values), mean, math.sqrt(squares / (len(values) - 1)))


def compare(first: Summary, second: Summary) -> Comparison:
    """The first mean less the second first, whose variances may differ."""
    difference = first.mean - second.mean
    if first.count < 2 or second.count < 2:
        return Comparison(difference, math.nan, math.nan)
    parts = [summary.error**2 for summary in (first, second)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Comparison(difference, 0.0, float(difference == 0))
    # Welch and Satterthwaite
    freedom = sum(parts) ** 2 / sum(
        part**2 / (summary.count - 1) for part, summary in zip(parts, (first, second), strict=True)
    )
    p = max(0.0, 1 - _inside(abs(difference) / error, freedom))
    return Comparison(difference, student(freedom) * error, p)


@cache
def student(freedom: float) -> float:
    """The t within which Student's distribution has 95 % of its mass, for 1 degree or more."""
    low, high = 0.0, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < LEVEL else (low, middle)
    return high


def chi_square(freedom: float, share: float) -> float:
    """What a chi-square variable is below with the probability ``share``."""
    low, high = 0.0, freedom + 20 * math.sqrt(freedom) + 20
    while high - low > 1e-9 * freedom:
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, freedom) < share else (low, middle)
    return high


def _below(x: float, freedom: float) -> float:
    """Chi-square's P(X < x): the series of the incomplete gamma function."""
    order, half, total = freedom / 2, x / 2, 0.0
    term = math.exp(order * math.log(half) - half - math.lgamma(order + 1))
    while term > 1e-16 * total:
        total += term
        order += 1
        term *= half / order
    return total


def _inside(t: float, freedom: float) -> float:
    """Student's P(|T| < t): with t = sqrt(freedom) tan(x) the density is a power of the cosine."""
    end, steps = math.atan(t / math.sqrt(freedom)), 400
    # Simpson's rule over s, x = end - s², since below two degrees the slope at pi / 2 is infinite
    width = math.sqrt(end) / steps
    weights = (1.0, *(4.0 if k % 2 else 2.0 for k in range(1, steps)), 1.0)
    total = math.fsum(
        weight * 2 * k * width * math.cos(end - (k * width) ** 2) ** (freedom - 1)
        for k, weight in enumerate(weights)
    )
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return 2 * math.exp(scale) * total * width / 3
