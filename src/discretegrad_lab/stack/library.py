"""The one place where a stack calls the estimators of discretegrad.

Samplers are called as ``function(logits, tau, given=index, ...)``, with ``noise=`` or ``seed=``
where they need it; others as ``function(logits, f, given=samples, family=...)``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import discretegrad
from discretegrad import ESTIMATORS, Estimator

Function = Callable[..., Tensor]

__all__ = ["ESTIMATORS", "Estimator", "Function", "code", "function"]


def function(row: Estimator) -> Function:
    """The function of a row."""
    if row.kind == "score":
        return _score(row)
    if row.name == "gumbel_rao":
        return _gumbel_rao
    at = row.functions_at["categorical"]

    def with_noise(
        logits: Tensor, tau: float | Tensor = 1.0, *, given: Tensor, noise: Tensor, **options: Any
    ) -> Tensor:
        return at(logits, given, noise, tau, **options)

    def sample(
        logits: Tensor, tau: float | Tensor = 1.0, *, given: Tensor, **options: Any
    ) -> Tensor:
        return at(logits, given, tau, **options)

    return with_noise if row.noise else sample


def code(row: Estimator) -> Any:
    """What of a row of a user has been written in the user's file."""
    return (row.functions_at or row.functions)["categorical"]


def _gumbel_rao(
    logits: Tensor,
    tau: float | Tensor = 1.0,
    *,
    num_draws: int = 100,
    given: Tensor,
    seed: Tensor,
) -> Tensor:
    return discretegrad.gumbel_rao_seeded(logits, given, seed, tau, num_draws=num_draws)


def _score(row: Estimator) -> Function:
    def estimate(
        logits: Tensor,
        f: Callable[[Tensor], Tensor],
        *,
        given: Tensor,
        family: Any = "categorical",
        **options: Any,
    ) -> Tensor:
        samples = given
        if family == "categorical":
            outcomes = torch.arange(logits.shape[-1], device=logits.device)
            samples = given.unsqueeze(-1) == outcomes
        return row.functions[family](logits, f, samples=samples, **options)

    return estimate


def diagnose(logits: Tensor, f: Callable[[Tensor], Tensor], *rest: Any, **options: Any) -> Any:
    """``discretegrad.diagnose``."""
    return discretegrad.diagnose(f, logits, *rest, **options)
