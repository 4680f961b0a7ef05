"""The index form of every categorical sampler."""

from typing import Any

import torch
from torch import Tensor

from ._types import Backend, Temperature
from .registry import EstimatorLike, get_sampler, sampler_rule
from .sampling import Request, index_form
from .select import Handle


def sample_index(
    logits: Tensor,
    estimator: EstimatorLike = "reinmax",
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
    **options: Any,
) -> tuple[Tensor, Handle]:
    """The index form of a sampler: the drawn categories, and a handle with the gradient.

    No one-hot is made. ``select`` looks the categories up in a codebook, and its backward gives
    the logits the gradient that the sampler's one-hot would have given them.

    Args:
        logits: As for ``reinmax``.
        estimator: The name of a sampler, its row, or its function.
        tau: As for that sampler.
        dim: As for ``reinmax``.
        mask: As for ``reinmax``.
        generator: As for ``reinmax``, which draws the same categories from it.
        backend: As for ``reinmax``.
        **options: The sampler's own options, such as ``gap`` or ``num_draws``.

    Returns:
        The categories, int64, of the shape of ``logits`` without ``dim``, and a handle for
        ``select``.

    Raises:
        TypeError: As ``reinmax``, and if the sampler does not have an option.
        ValueError: As ``reinmax``, and if the estimator is no sampler of categories.

    Example:
        >>> import torch, discretegrad
        >>> logits, codebook = torch.zeros(2, 3, requires_grad=True), torch.randn(3, 8)
        >>> index, handle = discretegrad.sample_index(logits, "reinmax")
        >>> discretegrad.select(handle, codebook).shape
        torch.Size([2, 8])
    """
    if "family" in options:
        raise ValueError(
            f"sample_index: expected no family, because an index stands for one category, got "
            f"{options['family']!r}. For bits and subsets use the dense sample, "
            f"{get_sampler('sample_index', estimator).name}(logits, family=...)."
        )
    _, rule = sampler_rule("sample_index", estimator, options)
    request = Request(logits, tau, dim=dim, mask=mask, generator=generator, backend=backend)
    return index_form(rule, request)
