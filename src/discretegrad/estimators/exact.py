"""The exact gradient as an estimator like the others: no sample, no variance, all outcomes."""

import torch
from torch import Tensor

from .._checks import check_count, check_flag, check_generator
from .._row import score_row
from .._types import Objective
from ..exact import MAX_OUTCOMES, exact_expectation
from ..families import FamilyLike


def exact(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    max_outcomes: int = MAX_OUTCOMES,
    chunk_size: int = 256,
    family: FamilyLike = "categorical",
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
        num_samples: Not used: no sample is drawn.
        max_outcomes: Most joint outcomes to enumerate.
        chunk_size: Outcomes evaluated at once.
        generator: Not used.
        vectorize: Evaluate a chunk with ``torch.vmap`` instead of one call of f per outcome.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> discretegrad.exact(logits, lambda z: z @ torch.tensor([1.0, 2.0, 4.0])).backward()
        >>> logits.grad
        tensor([-0.4444, -0.1111,  0.5556])
    """
    check_flag("exact", "vectorize", vectorize)
    if num_samples is not None:
        check_count("exact", "num_samples", num_samples)
    if isinstance(logits, Tensor):
        check_generator("exact", generator, logits)
    return exact_expectation(
        logits,
        f,
        family=family,
        mask=mask,
        max_outcomes=max_outcomes,
        chunk_size=chunk_size,
        vectorize=vectorize,
    )


ROW = score_row(
    name="exact",
    label="exact",
    function=exact,
    any_family=True,
    options={"max_outcomes": MAX_OUTCOMES, "chunk_size": 256},
    evaluations=None,
    reference="this library",
    bibtex="""@software{discretegrad,
  title  = {discretegrad: gradients through discrete random variables},
  author = {{The discretegrad developers}},
  year   = {2026},
}""",
)
