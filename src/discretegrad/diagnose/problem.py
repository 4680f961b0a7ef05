"""What is diagnosed: f, the logits, and how many of its draws are made at once."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_flag, check_generator, check_loss, check_objective
from .._types import Call, Objective
from ..families import Family, FamilyLike, get_family

NAME = "diagnose"
_CHUNK_ELEMENTS = 2**20


class Arguments(NamedTuple):
    """What a user says about the problem."""

    logits: Tensor
    f: Objective
    family: FamilyLike
    mask: Tensor | None
    generator: torch.Generator | None
    chunk_size: int | None
    vectorize: bool


class Problem(NamedTuple):
    """The same, checked."""

    f: Objective
    f_of_many: Objective
    """f for samples with an axis of draws in front."""
    logits: Tensor
    """A constant copy of the user's."""
    family: Family
    mask: Tensor | None
    generator: torch.Generator | None
    batch_shape: torch.Size
    outcomes: int
    """How many joint outcomes there are."""
    chunk_size: int | None
    vectorize: bool
    is_random: bool
    """Whether f gave two values for one sample."""

    def draws_at_once(self, num_samples: int) -> int:
        """Estimates of so many samples each that are made together."""
        samples = num_samples * self.logits.numel()
        return self.chunk_size or max(1, _CHUNK_ELEMENTS // samples)


def pose(arguments: Arguments) -> Problem:
    """Check the arguments and find, from one call of f with two equal samples, the batch shape."""
    logits, f, family, mask, generator, chunk_size, vectorize = arguments
    kind = get_family(NAME, family)
    check_objective(NAME, f)
    check_flag(NAME, "vectorize", vectorize)
    variables = kind.prepare(Call(NAME, logits, mask=mask))
    kind.check_values(NAME, variables)
    if logits.numel() == 0:
        raise ValueError(
            f"{NAME}: expected logits with at least one element, got shape {tuple(logits.shape)}"
        )
    check_generator(NAME, generator, logits)
    f_of_many = _over_draws(f, vectorize)
    sample = kind.sample(variables.logits, kind.likeliest(variables.logits))
    try:
        with torch.no_grad():
            losses = f_of_many(torch.stack([sample, sample]))
    except Exception as error:
        if vectorize:
            error.add_note(f"{NAME}: if torch.vmap cannot trace f, pass vectorize=False.")
        raise
    shape = kind.variables_shape(logits)
    check_loss(NAME, losses[0] if isinstance(losses, Tensor) else losses, shape)
    first, second = losses.double()
    batch_shape = losses.shape[1:]
    return Problem(
        f,
        f_of_many,
        logits.detach().clone(),
        kind,
        mask,
        generator,
        batch_shape,
        kind.outcomes(logits) ** math.prod(shape[len(batch_shape) :]),
        chunk_size,
        vectorize,
        # the same sums in another order are no randomness
        not torch.allclose(first, second, rtol=1e-4, atol=0, equal_nan=True),
    )


def check_order(logits: object, f: object, estimators: object) -> None:
    """None of the first three arguments stands in the place of another."""
    others = (f, estimators)
    swapped = not isinstance(logits, Tensor) and any(isinstance(x, Tensor) for x in others)
    swapped |= not callable(f) and any(callable(x) for x in (logits, estimators))
    if swapped:
        came = ", ".join(type(x).__name__ for x in (logits, f, estimators))
        raise TypeError(
            f"{NAME}: expected first the logits, a tensor, then f, a function, then the "
            f"estimators, a list, got ({came}). Write discretegrad.diagnose(logits, f, estimators)."
        )


def _over_draws(f: Objective, vectorize: bool) -> Objective:
    def on_copy(sample: Tensor) -> Tensor:
        # f may write into it
        return f(sample.clone())

    if vectorize:
        return torch.vmap(on_copy, randomness="different")

    def loop(samples: Tensor) -> Tensor:
        losses = [on_copy(sample) for sample in samples]
        # what f returns instead of a tensor is for check_loss to refuse
        return torch.stack(losses) if all(isinstance(x, Tensor) for x in losses) else losses[0]

    return loop
