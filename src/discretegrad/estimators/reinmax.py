"""ReinMax: a second-order straight-through estimator.

Liu et al., "Bridging Discrete and Backpropagation: Straight-Through and Beyond", NeurIPS 2023.
arXiv:2304.08612
"""

from functools import partial

import torch
from torch import Tensor

from .._checks import check_hard
from .._row import sampler_row
from .._types import Backend, Method, Temperature
from ..families import Family, FamilyLike
from ..sampling import Draw, Gradient, Request, Rule, sample


def reinmax(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""A sample whose gradient is second-order accurate.

    With a draw $z$, its mean $\mu = \mu(l)$ and covariance $C(l) = \partial\mu/\partial l$, both
    also at the tempered logits $l / \tau$, a gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = C(l/\tau)\, g - \tfrac12 C(l)\, g
    + \tfrac12 \big(g^\top (z - \mu_\tau)\big) (z - \mu_\tau) .$$

    For categories this is $2 J(m)\, g - \tfrac12 J(p)\, g$ with $p = \mathrm{softmax}(l)$,
    $J(p) = \mathrm{diag}(p) - p p^\top$ and $m = \tfrac12(\mathrm{softmax}(l/\tau) + z)$; for a bit
    b at ``tau=1`` it is $\tfrac12 (1 - P(b))\, g$.

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. At ``tau=1`` unbiased for every f that is
    quadratic in each variable, and what ``gumbel_rao`` tends to as its tau goes to 0 and its number
    of draws to infinity. Another tau costs that exactness (even for linear f) and buys smoothness:
    the paper tunes it to 1 to 1.5. The draw is from the logits as they are, whatever tau.

    Differs from the paper: nothing.

    Args:
        logits: Unnormalised log-probabilities, or for bits the log-odds of the value 1, of any
            shape and floating dtype; -inf excludes a category.
        tau: Temperature of the gradient: a number, or a tensor that broadcasts against ``logits``
            with size 1 along ``dim``. A constant: it gets no gradient.
        family: The kind of variable: ``"categorical"``, ``"bernoulli"`` or ``Subset(k)``.
        given: A draw that was made elsewhere, to be given its gradient: categories as an int64
            index of the shape of ``logits`` without ``dim``, bits as 0 and 1.
        hard: Only True, as in calls of ``torch.nn.functional.gumbel_softmax``.
        dim: The category axis.
        mask: Boolean, broadcasts to ``logits``; False excludes a category, or the value 1.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        A sample of the shape and dtype of ``logits``: exactly one-hot along ``dim``, or 0 and 1.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, tau is not positive, a row has NaN, +inf or no allowed
            category, or what is given cannot be drawn. See ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> z = discretegrad.reinmax(logits, generator=torch.Generator().manual_seed(0))
        >>> z.detach()
        tensor([[0., 0., 1.],
                [0., 0., 1.]])
        >>> (z * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> logits.grad
        tensor([[-0.5000, -0.3333,  0.8333],
                [-0.5000, -0.3333,  0.8333]])

    References: equation 7 and algorithm 2 of the paper; section 5 for the temperature.
    """
    check_hard("reinmax", hard)
    request = Request(logits, tau, family, given, None, None, dim, mask, generator, backend)
    return sample(RULE, request)


def _formula(draw: Draw) -> Gradient:
    family, variables, _, _ = draw
    vjp = family.fused.get("reinmax", partial(_gradient, family))
    if not isinstance(variables.tau, Tensor) and variables.tau == 1:
        return Gradient(vjp, (variables.point,))
    return Gradient(vjp, (variables.point, family.tempered(variables)))


def _gradient(
    family: Family, g: Tensor, drawn: Tensor, point: Tensor, tempered: Tensor | None = None
) -> Tensor:
    g = family.centre(g, drawn)
    tempered = point if tempered is None else tempered
    residual = family.residual(drawn, tempered)
    second = family.dot(g, residual) * residual
    return family.covariance(tempered, g) + (second - family.covariance(point, g)) / 2


RULE = Rule("reinmax", _formula, Method("reinmax"), least_tau=0.5)
ROW = sampler_row(
    name="reinmax",
    label="ReinMax",
    function=reinmax,
    rule=lambda: RULE,
    any_family=True,
    exact_for="quadratic",
    bias="second order: none for quadratic f at tau 1",
    temperature="1; tuned in 0.7 to 1.5",
    reference="Liu et al. 2023, arXiv:2304.08612",
    bibtex="""@inproceedings{liu2023bridging,
  title     = {Bridging Discrete and Backpropagation: Straight-Through and Beyond},
  author    = {Liu, Liyuan and Dong, Chengyu and Liu, Xiaodong and Yu, Bin and Gao, Jianfeng},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2023},
  eprint    = {2304.08612},
  archivePrefix = {arXiv},
}""",
)
