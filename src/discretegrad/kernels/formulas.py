r"""The formulas that the kernels compute: what they are called, and what each of them needs.

The gradient of a categorical sampler is, see ``categorical_gradient``,

$$\hat\nabla_j = e_j (a_1 h_j + a_0) + p_j (b_1 h_j + b_0) \quad (j \ne k), \qquad
\hat\nabla_k = c .$$

This is data for the host, which needs no Triton. A kernel is compiled for the number of a formula
and for the terms that it has.
"""

from typing import NamedTuple


class Formula(NamedTuple):
    """One row of the table."""

    number: int
    """What the kernels know it by."""
    noise: bool = False
    """Whether the gradient has noise of its own, made from a seed."""
    own_weights: bool = False
    """Whether e is not the tempered softmax, so that it is needed at a temperature of 1, too."""
    in_e: bool = True
    """Whether the gradient has the first term; without it, e only enters its coefficients."""
    in_p: bool = False
    """Whether it has the second term beside the first; without the first it always has."""
    in_z: bool = False
    """Whether the gradient at the draw is a number of its own, c."""
    mean: bool = False
    """Whether it needs the mean of h over the allowed categories."""
    many_draws: bool = False
    """Whether it is a mean over many noise draws; categories have a kernel of their own for it."""


FORMULAS = {
    "straight_through": Formula(0),
    "reinmax": Formula(1, in_p=True, in_z=True),
    "gapped": Formula(2, own_weights=True),
    "gapped_p": Formula(3, own_weights=True),
    "gumbel_softmax": Formula(4, noise=True, own_weights=True),
    "mean_first": Formula(5, in_e=False, mean=True),
    "mean_second": Formula(6, in_e=False, in_z=True, mean=True),
    "mean_released": Formula(7, in_e=False, in_z=True, mean=True),
    "gumbel_rao": Formula(8, noise=True, own_weights=True, many_draws=True),
    "blend": Formula(9, in_p=True, in_z=True),
}


class Terms(NamedTuple):
    """What a gradient kernel for categories is compiled for, in the order of its constants."""

    number: int
    tempered: bool
    uses_e: bool
    writes_e: bool
    writes_p: bool
    writes_z: bool
    mean: bool


def terms(name: str, tempered: bool) -> Terms:
    """The terms of a formula, at a temperature of 1 or (``tempered``) at any other."""
    formula = FORMULAS[name]
    uses_e = formula.own_weights or tempered
    writes_e = uses_e and formula.in_e
    writes_p = formula.in_p or not writes_e
    return Terms(
        formula.number, tempered, uses_e, writes_e, writes_p, formula.in_z, formula.mean
    )  # fmt: skip
