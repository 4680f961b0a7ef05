"""The exact gradient as an estimator like the others: no sample, no variance, all outcomes."""

import torch
from torch import Tensor

from .._checks import check_flag, check_generator, check_num_samples, check_objective
from .._exact import MAX_OUTCOMES, exact_expectation
from .._types import Family, Objective


def exact(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 1,
    family: Family = "categorical",
    max_outcomes: int = MAX_OUTCOMES,
    chunk_size: int = 256,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = True,
) -> Tensor:
    r"""The expectation of f with its exact gradient, by enumerating all joint outcomes.

    $$\nabla = \sum_z P(z)\, f(z)\, \nabla \log P(z) .$$

    Symbols: z runs over the joint outcomes, n to the power of the number of variables.

    Properties: no bias and no variance. As many evaluations of f as there are outcomes, and as
    many again in backward; the gradient of f with respect to the sample is not needed.

    Differs from the paper: nothing. It is ``exact_expectation`` with the arguments of the
    score-function estimators.

    Args:
        logits: (..., L, n) for L categorical variables with n categories, or (..., L) Bernoulli
            logits.
        f: As for ``reinforce``.
        num_samples: Not used: no sample is drawn.
        family: ``"categorical"`` or ``"bernoulli"``.
        max_outcomes: Most joint outcomes to enumerate.
        chunk_size: Outcomes evaluated at once.
        mask: As for ``reinforce``.
        generator: Not used.
        vectorize: Evaluate a chunk with ``torch.vmap`` instead of one call of f per outcome.

    Returns:
        The expectation, of the batch shape.

    Raises:
        TypeError: As ``exact_expectation``.
        ValueError: As ``exact_expectation``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> discretegrad.exact(logits, lambda z: z @ torch.tensor([1.0, 2.0, 4.0])).backward()
        >>> logits.grad
        tensor([-0.4444, -0.1111,  0.5556])
    """
    check_objective("exact", f)
    check_flag("exact", "vectorize", vectorize)
    check_num_samples("exact", num_samples, 1, "")
    value = exact_expectation(
        logits,
        f,
        family=family,
        mask=mask,
        max_outcomes=max_outcomes,
        chunk_size=chunk_size,
        vectorize=vectorize,
    )
    check_generator("exact", generator, logits)
    return value
