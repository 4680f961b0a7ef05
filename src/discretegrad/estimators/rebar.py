"""REBAR: f at a relaxed sample as control variate.

Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent variable
models", NeurIPS 2017. arXiv:1703.07370
"""

import torch
from torch import Tensor

from .._relax import Control, relaxed_estimate
from .._row import score_row
from .._score import Arguments
from .._types import Objective, Temperature, Vectorize
from ..families import FamilyLike
from ..objects import Rebar


def rebar(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    tau: Temperature = 0.5,
    scale: float | Tensor = 1.0,
    tied: bool = True,
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    noise: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over samples, with the REBAR gradient for the logits.

    A sample b is the discrete part of a continuous $z$, logits plus logistic or Gumbel noise. With
    $\tilde z$ distributed as z given b, and $c(z) = \eta\, f(\mathrm{softmax}(z / \tau))$ (sigmoid
    for bits),

    $$\hat\nabla = \big(f(b) - c(\tilde z)\big)\, \nabla \log P(b)
    + \nabla c(z) - \nabla c(\tilde z) ,$$

    averaged over samples; both gradients of c run through the noise as the logits move it.

    Symbols: $\eta$ ``scale``, $\tau$ ``tau``.

    Properties: unbiased for every f, tau and scale, but f must be differentiable on the relaxed
    samples between the discrete ones. Per sample two evaluations of f and one gradient if
    ``tied``, else three and two. Small tau: c follows f closely, but its gradients are noisy.

    Differs from the paper: the relaxation is $z / \tau$, without the paper's factor on the logits.
    ``tied`` noise, where $\tilde z = z$, is that of its released code.

    Args:
        f: As for ``reinforce``, and defined and differentiable between the discrete samples.
        tau: Temperature of the relaxed sample: a number, or a tensor with one value for all or per
            variable. A tensor that requires a gradient learns, see ``Rebar``.
        scale: Weight of the control variate: a number, or a tensor of numbers for the first batch
            axes. One that requires a gradient learns.
        tied: Use the same noise for $z$ and $\tilde z$.
        noise: For what is given: the noise of ``gumbel_softmax`` for each sample,
            (num_samples, *logits.shape); if not tied (2, num_samples, *logits.shape), first that
            of $\tilde z$ and then that of $z$. By default it is drawn here.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: (z @ torch.tensor([1.0, 2.0, 4.0])).square()
        >>> discretegrad.rebar(logits, f, num_samples=1000).backward()
        >>> int(logits.grad.argmax())
        2
    """
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize, tau)
    return relaxed_estimate(ROW, arguments, Control(None, scale, tied, noise))


ROW = score_row(
    name="rebar",
    label="REBAR",
    function=rebar,
    takes=("noise",),
    evaluations=2,
    slopes=1,
    options={"tau": 0.5, "scale": 1.0, "tied": True},
    module=Rebar,
    temperature="0.1 to 1, or learned; changes the variance only",
    reference="Tucker et al. 2017, arXiv:1703.07370",
    bibtex="""@inproceedings{tucker2017rebar,
  title     = {{REBAR}: Low-variance, unbiased gradient estimates for discrete latent variable
               models},
  author    = {Tucker, George and Mnih, Andriy and Maddison, Chris J. and Lawson, Dieterich and
               Sohl-Dickstein, Jascha},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2017},
  eprint    = {1703.07370},
  archivePrefix = {arXiv},
}""",
)
