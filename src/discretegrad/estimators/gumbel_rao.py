"""Gumbel-Rao: straight-through Gumbel-softmax with its noise averaged out, given the draw.

Paulus et al., "Rao-Blackwellizing the ST Gumbel-Softmax Estimator", ICLR 2021. arXiv:2010.04838
"""

from functools import partial

import torch
from torch import Tensor

from .._checks import check_count, check_hard
from .._random import draw_seeds
from .._row import sampler_row
from .._seeded import accept_seed, chunks
from .._types import Backend, Method, Temperature
from ..families import Family, FamilyLike
from ..sampling import Draw, Gradient, Request, Rule, given_noise, sample


def gumbel_rao(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    num_draws: int = 100,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    noise: Tensor | None = None,
    seed: Tensor | None = None,
    hard: bool = True,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""A sample with the gradient of ``gumbel_softmax`` averaged over its noise.

    With a draw $z$, noise $G^1 \dots G^M$ (Gumbel, or logistic for bits) given that each selects
    $z$, and $C = \partial\mu/\partial l$, a gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = \frac1{M\tau} \sum_{i=1}^M C\big((l + G^i)/\tau\big)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``, $M$ ``num_draws``.

    Properties: the bias of ``gumbel_softmax`` at the same tau, with less variance; as tau goes to
    0 and M to infinity it tends to ``reinmax``. Time grows with M, memory does not.

    Differs from the paper's text, which differentiates through the conditional distribution of the
    noise: here it is a constant in the gradient, as in the code released with ReinMax.

    Args:
        num_draws: Number of noise draws M.
        noise: For what is given: M times the noise of ``gumbel_softmax``, (M, *logits.shape).
        seed: Instead of it, int64 seeds for the first axes of the variables: what a seed gives
            depends on the backend, but not on the rest of the batch.

    The other arguments, the result and the errors are those of ``reinmax``.

    Example:
        >>> import torch, discretegrad
        >>> discretegrad.gumbel_rao(torch.zeros(2, 3), tau=0.5, num_draws=10).sum(-1)
        tensor([1., 1.])
    """
    check_hard("gumbel_rao", hard)
    request = Request(logits, tau, family, given, noise, seed, dim, mask, generator, backend)
    return sample(_rule(num_draws), request)


def _rule(num_draws: int = 100) -> Rule:
    check_count("gumbel_rao", "num_draws", num_draws)
    method = Method("gumbel_rao", num_draws=num_draws)
    return Rule("gumbel_rao", partial(_formula, num_draws=num_draws), method, _seeds, _accept)


def _seeds(draw: Draw, generator: torch.Generator | None) -> Tensor:
    return draw_seeds(draw.drawn.shape, draw.drawn.device, generator)


def _accept(draw: Draw, request: Request) -> Tensor:
    if request.seed is not None:
        return accept_seed("gumbel_rao", request.seed, draw.drawn, request.noise)
    # draws last: everything saved has the leading axes of the logits
    return given_noise("gumbel_rao", draw, request.noise, draws=True).movedim(0, -1)


def _formula(draw: Draw, num_draws: int) -> Gradient:
    family, variables, _, noise = draw
    assert noise is not None
    vjp, saved = partial(_gradient, family, num_draws), (family.scale(variables), noise)
    if isinstance(variables.tau, Tensor):
        return Gradient(vjp, (*saved, variables.tau))
    return Gradient(partial(vjp, number=variables.tau), saved)


def _gradient(
    family: Family, num_draws: int, g: Tensor, drawn: Tensor, *saved: Tensor, number: float = 1.0
) -> Tensor:
    scale, source, *per_row = saved
    tau: Temperature = per_row[0] if per_row else number
    seeded = source.dtype == torch.int64
    count = num_draws if seeded else source.shape[-1]
    g = family.centre(g, drawn)
    total = torch.zeros_like(g)
    for first, size in chunks(count, g.numel()):
        if seeded:
            noise = family.seeded_noise(source, first, size, scale)
        else:
            noise = source.narrow(-1, first, size).movedim(-1, 0)
        relaxed = family.point(family.perturbed(scale, drawn, noise) / tau)
        total += family.covariance(relaxed, g, centred=True).sum(0)
    return total / (count * tau)


ROW = sampler_row(
    name="gumbel_rao",
    label="GR-MCK",
    function=gumbel_rao,
    rule=_rule,
    takes=("noise", "seed"),
    bias="that of gumbel_softmax; tends to reinmax as tau goes to 0 and num_draws to infinity",
    temperature="0.1 to 1, tuned",
    reference="Paulus et al. 2021, arXiv:2010.04838",
    options={"num_draws": 100},
    bibtex="""@inproceedings{paulus2021rao,
  title     = {{R}ao-{B}lackwellizing the Straight-Through {G}umbel-Softmax Gradient Estimator},
  author    = {Paulus, Max B. and Maddison, Chris J. and Krause, Andreas},
  booktitle = {International Conference on Learning Representations},
  year      = {2021},
  eprint    = {2010.04838}, archivePrefix = {arXiv},
}""",
)
