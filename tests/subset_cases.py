"""What the tests of the kernels for subsets share, in Triton's interpreter and on a GPU."""

import math

import torch
from torch import Tensor

import discretegrad
from discretegrad import Subset
from discretegrad.families import counting
from discretegrad.testing import assert_discrete, seeded

# a probability to a rounding of itself and of its logit, as far as float32 reaches; a covariance
# to a rounding of the largest one of its row. These are the numbers of test_subset
OF_PROBABILITY, OF_PRODUCT, TINY = 2e-5, 2e-6, 1e-30
OPTIONS = {"straight_through": {}, "reinmax": {}, "blend": {"weight": 0.3}}


def wide(x: Tensor) -> Tensor:
    return x.detach().cpu().double()


def assert_near(actual: Tensor, expected: Tensor, of_largest: float) -> None:
    """To a part of the largest of the row."""
    assert actual.shape == expected.shape
    error = (wide(actual) - expected).abs().amax(-1)
    assert (error <= of_largest * expected.abs().amax(-1) + TINY).all()


def check_steps(logits: Tensor, k: int, g: Tensor) -> None:
    """The steps by kernels against those of torch, in float64 where these compute."""
    from discretegrad.kernels import subset_steps

    assert torch.equal(subset_steps.below_last(logits, k), counting.below_last(logits, k))
    point = subset_steps.balanced(logits, k)
    theirs = counting.balanced(logits.double().cpu(), k)
    # any shift is right that makes about k bits 1
    assert ((point.sigmoid().sum(-1) - k).abs() <= 2).all()
    fixed = wide(point)
    sure, mean = counting.inclusion(fixed, k), counting.inclusion(theirs, k).mean
    assert ((sure.mean - mean).abs() <= OF_PROBABILITY * mean + TINY).all()
    alone = subset_steps.inclusion(point, k)
    parts, product = subset_steps.inclusion_and_covariance(point, k, g)
    for x, other, y in zip(alone, parts, sure, strict=True):
        assert torch.equal(x, other)
        assert ((wide(x) - y).abs() <= OF_PROBABILITY * y + TINY).all()
    expected = counting.inclusion_and_covariance(fixed, k, wide(g))[1]
    assert_near(product, expected, OF_PRODUCT)
    drawn = Subset(k).likeliest(-logits)  # not likely at all: residuals are large
    second = subset_steps.second_order(point, k, g, drawn, 0.7)
    expected = counting.second_order(fixed, k, wide(g), drawn.cpu(), 0.7)
    spread = (wide(g) - wide(g).mean(-1, keepdim=True)).abs().amax(-1, keepdim=True)
    scale = spread + expected.abs().amax(-1, keepdim=True)
    assert ((wide(second) - expected).abs() <= 2 * OF_PRODUCT * scale + TINY).all()


def draws_of(logits: Tensor, k: int, count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Subsets (count, rows, n) by kernels and by torch, from the same numbers."""
    from discretegrad.kernels import subset_steps

    rows, n = logits.shape
    numbers = torch.rand(count, rows, n - 1, dtype=torch.float64, generator=seeded(seed))
    point = counting.balanced(logits, k)
    ours = subset_steps.draw(point, k, numbers.to(logits.device))
    assert_discrete(ours.float(), Subset(k))
    assert not ours[:, logits == -math.inf].any()
    return ours.cpu(), counting.draw(point.cpu(), k, numbers)


def gradients_of(name: str, logits: Tensor, g: Tensor, family, tau=1.0, **arguments):
    """A sample and its gradient, by each of the backends, from one state of the generator."""
    function = getattr(discretegrad, name)
    for backend in ("triton", "torch"):
        leaf = logits.detach().clone().requires_grad_()
        options = {**OPTIONS[name], "backend": backend, **arguments}
        if "given" not in arguments:
            options["generator"] = torch.Generator(logits.device).manual_seed(1)
        sample = function(leaf, tau, family=family, **options)
        yield sample.detach(), torch.autograd.grad(sample, leaf, g)[0]
