"""RELAX: a learned control variate on the relaxed sample.

Grathwohl et al., "Backpropagation through the Void: Optimizing control variates for black-box
gradient estimation", ICLR 2018. arXiv:1711.00123
"""

import torch
from torch import Tensor

from .._checks import check_control
from .._relax import Control, relaxed_estimate
from .._row import score_row
from .._score import Arguments, joint_size
from .._types import Objective, Temperature, Vectorize
from ..families import FamilyLike
from ..objects import Relax


def relax(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    control: Objective | None = None,
    tau: Temperature = 0.5,
    scale: float | Tensor = 1.0,
    tied: bool = False,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    noise: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over samples, with the RELAX gradient for the logits.

    As ``rebar``, with a control variate that has a free part r, usually a network:

    $$c(z) = \eta\, f(\mathrm{softmax}(z / \tau)) + r(z), \qquad
    \hat\nabla = \big(f(b) - c(\tilde z)\big)\, \nabla \log P(b)
    + \nabla c(z) - \nabla c(\tilde z) .$$

    Symbols: r ``control``, $\eta$ ``scale``, $\tau$ ``tau``.

    Properties: unbiased for every r, tau and scale. Per sample three evaluations of f and two
    gradients, or two and one if ``tied``. With ``scale=0`` the relaxed f drops out: one
    evaluation of f, which then need not be differentiable.

    Differs from the paper: for categories the network sees z relative to its largest entry, which
    is zero. Infinite entries, of excluded categories or certain bits, are shown to it as zero.

    Args:
        f: As for ``reinforce``; unless ``scale=0`` also defined and differentiable between the
            discrete samples.
        control: r, from z of the shape of ``logits``, with samples in a leading axis, to one
            number per sample and batch element. The parameters of an ``nn.Module`` learn; see
            ``Relax``. It gets all samples at once, also without ``vectorize``.
        tau: As for ``rebar``.
        scale: As for ``rebar``, the weight of the relaxed f.
        tied: As for ``rebar``.
        noise: As for ``rebar``.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: z.argmax(-1) == 2  # not differentiable
        >>> network = discretegrad.ControlNetwork(3)
        >>> discretegrad.relax(logits, f, control=network, scale=0).backward()
        >>> logits.grad.shape
        torch.Size([3])
    """
    size = joint_size("relax", logits, f, family, mask) if control is None else 0
    check_control("relax", control, f"Relax({size})")
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize, tau)
    return relaxed_estimate(ROW, arguments, Control(control, scale, tied, noise))


ROW = score_row(
    name="relax",
    label="RELAX",
    function=relax,
    takes=("noise",),
    evaluations=3,
    slopes=2,
    options={"control": None, "tau": 0.5, "scale": 1.0, "tied": False},
    module=Relax,
    temperature="0.1 to 1, or learned; changes the variance only",
    reference="Grathwohl et al. 2018, arXiv:1711.00123",
    bibtex="""@inproceedings{grathwohl2018backpropagation,
  title     = {Backpropagation through the Void: Optimizing control variates for black-box gradient
               estimation},
  author    = {Grathwohl, Will and Choi, Dami and Wu, Yuhuai and Roeder, Geoffrey and
               Duvenaud, David},
  booktitle = {International Conference on Learning Representations},
  year      = {2018},
  eprint    = {1711.00123},
  archivePrefix = {arXiv},
}""",
)
