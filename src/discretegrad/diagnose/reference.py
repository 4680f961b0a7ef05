"""The true gradient: given, enumerated, or the mean of a long run."""

import torch
from torch import Tensor

from ..exact import exact_gradient
from ..registry import ESTIMATORS
from .draws import collect
from .entries import make_entry
from .moments import GROUPS, Truth, variance_of
from .problem import NAME, Problem
from .progress import Bar
from .undrawn import undrawn_by_enumeration, undrawn_by_gradient, wide

_SAMPLES = 16


def find_truth(
    problem: Problem, reference: object, draws: int, max_outcomes: int, bar: Bar
) -> Truth:
    """The gradient to compare with, as the user's ``reference`` says."""
    if isinstance(reference, Tensor):
        _check_gradient(reference, problem.logits)
        given = wide(reference.detach()).flatten()
        undrawn = undrawn_by_gradient(problem, given)
        return Truth(given, "a given tensor, taken as exact", undrawn)
    outcomes = problem.outcomes
    is_auto = isinstance(reference, str) and reference == "auto"
    if reference == "exact" or (is_auto and outcomes <= max_outcomes and not problem.is_random):
        bar.start("reference", 1)
        gradient = _enumerated_gradient(problem, max_outcomes).flatten()
        undrawn = undrawn_by_enumeration(problem) or undrawn_by_gradient(problem, gradient)
        bar.advance(1)
        return Truth(gradient, f"exact, {outcomes} joint outcomes enumerated", undrawn)
    return _long_run(problem, "leave_one_out" if is_auto else reference, draws, bar)


def _enumerated_gradient(problem: Problem, max_outcomes: int) -> Tensor:
    """In float64, from what f gives for samples in the dtype of the logits."""
    logits = wide(problem.logits)

    def f(sample: Tensor) -> Tensor:
        return problem.f(sample.to(problem.logits)).to(sample.device)

    return exact_gradient(
        logits,
        f,
        family=problem.family,
        mask=None if problem.mask is None else problem.mask.to(logits.device),
        max_outcomes=max_outcomes,
        chunk_size=problem.draws_at_once(1),
        vectorize=problem.vectorize,
    )


def _long_run(problem: Problem, reference: object, draws: int, bar: Bar) -> Truth:
    entry = make_entry(problem, reference, _SAMPLES)
    if entry.row is not None and not entry.row.unbiased:
        unbiased = ", ".join(name for name, row in ESTIMATORS.items() if row.unbiased)
        raise ValueError(
            f"{NAME}: expected an unbiased estimator as the reference ({unbiased}), got "
            f"{entry.name!r}"
        )
    if draws < GROUPS:
        raise ValueError(
            f"{NAME}: expected at least {GROUPS} reference_draws, which the test for bias takes, "
            f"got {draws}"
        )
    bar.start("reference", draws)
    centre = torch.zeros_like(wide(problem.logits)).flatten()
    sums = collect(problem, entry, centre, draws, bar.advance)
    finite = int(sums.count.sum())
    if finite < draws:
        raise ValueError(
            f"{NAME}: expected finite draws of the reference {entry.label}, got {draws - finite} "
            f"of {draws} with NaN or inf. Check f, or pass another reference."
        )
    count, first, second = sums.count.sum(), sums.first.sum(0), sums.second.sum()
    rest = count - sums.count
    others = (first - sums.first) / rest.unsqueeze(-1)
    variances = variance_of(rest, first - sums.first, second - sums.second) / rest
    return Truth(
        first / count,
        f"mean of {draws} draws of {entry.label}",
        undrawn_by_gradient(problem, first / count),
        float(variance_of(count, first, second) / count),
        sums.group_means,
        others - first / count,
        variances,
    )


def _check_gradient(reference: Tensor, logits: Tensor) -> None:
    if reference.shape != logits.shape or not reference.is_floating_point():
        raise ValueError(
            f"{NAME}: expected a reference gradient of the logits' shape {tuple(logits.shape)}, "
            f"got shape {tuple(reference.shape)} and dtype {reference.dtype}"
        )
    if reference.device != logits.device:
        raise ValueError(
            f"{NAME}: expected a reference gradient on the logits' device {logits.device}, got "
            f"one on {reference.device}"
        )
    if not reference.isfinite().all():
        raise ValueError(f"{NAME}: expected a finite reference gradient, got NaN or inf")
