"""Straight-through Gumbel-softmax: the gradient of a relaxed sample.

Jang et al., "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017. arXiv:1611.01144
Maddison et al., "The Concrete Distribution", ICLR 2017. arXiv:1611.00712
"""

import torch
from torch import Tensor

from .._checks import check_flag
from .._math import divide_finite
from .._row import sampler_row
from .._types import Backend, Method, Temperature
from ..families import FamilyLike
from ..kernels.dispatch import choose_backend
from ..sampling import Draw, Gradient, Request, Rule, draw_for, given_noise, jacobian_at, sample


def gumbel_softmax(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    hard: bool = True,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    noise: Tensor | None = None,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""A sample with the gradient of a Gumbel-softmax relaxation.

    With Gumbel noise $G$ (for a bit logistic noise), the relaxed sample $y = \mu((l + G)/\tau)$,
    where $\mu$ is softmax or sigmoid, $z$ the discrete sample that it is nearest to, and
    $C = \partial\mu/\partial l$, a gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = \tfrac1\tau\, C\big((l + G)/\tau\big)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``.

    Properties: one evaluation of f and of its gradient. Biased for ``hard=True``; a small tau
    lowers the bias and raises the variance. ``hard=False`` returns $y$ itself with its ordinary
    gradient (twice differentiable, also with respect to a tensor tau): an unbiased gradient of
    the relaxed problem.

    Differs from ``torch.nn.functional.gumbel_softmax``: ``hard=True`` is the default and gives
    exact ones and zeros; the category is drawn first and the noise given the category, which has
    the same distribution but keeps frequencies exact in low precision and never returns NaN.

    Args:
        tau: As for ``reinmax``; with ``hard=False`` it may require a gradient.
        hard: Return the discrete sample (True) or the relaxed one (False).
        noise: Noise for what is given, of the shape of ``logits``: standard exponential for
            categories, standard logistic for bits, where larger noise makes a surer sample.

    The other arguments are those of ``reinmax``.

    Returns:
        A sample of the shape and dtype of ``logits``, discrete if ``hard``.

    Raises:
        TypeError: As ``reinmax``.
        ValueError: As ``reinmax``, and if noise comes without a draw or has impossible values.

    Example:
        >>> import torch, discretegrad
        >>> logits, index, noise = torch.zeros(3), torch.tensor(1), torch.ones(3)
        >>> discretegrad.gumbel_softmax(logits, given=index, noise=noise)
        tensor([0., 1., 0.])
        >>> discretegrad.gumbel_softmax(logits, given=index, noise=noise, hard=False)
        tensor([0.1667, 0.6667, 0.1667])

    References:
        Equation 5 of Liu et al., arXiv:2304.08612.
    """
    check_flag("gumbel_softmax", "hard", hard)
    request = Request(logits, tau, family, given, noise, None, dim, mask, generator, backend)
    return sample(_RULE, request) if hard else _relaxed(request)


def _formula(draw: Draw) -> Gradient:
    return jacobian_at(draw, _perturbed(draw))


def _perturbed(draw: Draw) -> Tensor:
    assert draw.noise is not None
    return draw.family.perturbed(draw.family.scale(draw.variables), draw.drawn, draw.noise)


def _relaxed(request: Request) -> Tensor:
    choose_backend("gumbel_softmax", request.logits, request.backend, "hard=False")
    draw = draw_for(_RULE, request, learnable_tau=True)
    family, variables, logits = draw.family, draw.variables, draw.variables.logits
    # the noise is a constant; adding l - l = 0 gives the sum of both the gradient of l
    finite = logits.masked_fill(logits.isinf(), 0).to(variables.point.dtype)
    natural = _perturbed(draw) + (finite - finite.detach())
    relaxed = family.relaxed(divide_finite(natural, variables.tau))
    return family.restore(relaxed.to(logits.dtype), variables.dim)


_RULE = Rule(
    "gumbel_softmax",
    _formula,
    Method("gumbel_softmax"),
    draw_noise=lambda draw, generator: draw.family.draw_noise(draw.variables, generator),
    accept_noise=lambda draw, request: given_noise("gumbel_softmax", draw, request.noise),
)
ROW = sampler_row(
    name="gumbel_softmax",
    label="STGS",
    function=gumbel_softmax,
    rule=lambda hard=True: _RULE,
    takes=("noise",),
    bias="falls with tau, while the variance rises",
    temperature="0.1 to 1, tuned",
    reference="Jang et al. 2017, arXiv:1611.01144",
    options={"hard": True},
    bibtex="""@inproceedings{jang2017categorical,
  title     = {Categorical Reparameterization with {G}umbel-Softmax},
  author    = {Jang, Eric and Gu, Shixiang and Poole, Ben},
  booktitle = {International Conference on Learning Representations},
  year      = {2017},
  eprint    = {1611.01144},
  archivePrefix = {arXiv},
}""",
)
