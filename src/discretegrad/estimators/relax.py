"""RELAX: a learned control variate on the relaxed sample.

Grathwohl et al., "Backpropagation through the Void: Optimizing control variates for black-box
gradient estimation", ICLR 2018. arXiv:1711.00123
"""

from typing import Any

import torch
from torch import Tensor, nn

from .._checks import (
    check_coefficient,
    check_control,
    check_control_input,
    check_count,
    check_flag,
    check_num_samples,
    check_tau,
)
from .._relax import draw_noise, estimate
from .._score import draw_samples, open_task
from .._types import Family, Objective, Temperature


def relax(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 1,
    family: Family = "categorical",
    control: Objective | None = None,
    tau: Temperature = 0.5,
    scale: float | Tensor = 1.0,
    tied: bool = False,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
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
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype.
        f: As for ``reinforce``; unless ``scale=0`` also defined and differentiable between the
            discrete samples.
        num_samples: Samples to average over.
        family: ``"categorical"`` or ``"bernoulli"``.
        control: r, from z of the shape of ``logits``, with samples in a leading axis, to one
            number per sample and batch element. The parameters of an ``nn.Module`` learn; see
            ``Relax``.
        tau: As for ``rebar``.
        scale: As for ``rebar``.
        tied: Use the same noise for $z$ and $\tilde z$.
        mask: As for ``reinforce``.
        generator: As for ``reinforce``.
        vectorize: As for ``reinforce``; the control variate always gets all samples at once.

    Returns:
        The mean of f over the discrete samples, of the batch shape.

    Raises:
        TypeError: As ``reinforce``.
        ValueError: As ``rebar``, and if there is no ``control``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: z.argmax(-1) == 2  # not differentiable
        >>> network = discretegrad.ControlNetwork(3)
        >>> discretegrad.relax(logits, f, control=network, scale=0).backward()
        >>> logits.grad.shape
        torch.Size([3])
    """
    task = open_task("relax", logits, f, family, mask, vectorize)
    check_num_samples(task.name, num_samples, 1, "")
    check_control(task.name, control, "Relax(discretegrad.ControlNetwork(num_inputs))")
    check_tau(task.name, tau, logits, -1 if family == "categorical" else None, learnable=True)
    check_coefficient(task.name, "scale", scale)
    check_flag(task.name, "tied", tied)
    samples = draw_samples(task, num_samples, generator)
    noise = draw_noise(task, num_samples, generator)
    free_noise = None if tied else draw_noise(task, num_samples, generator)
    return estimate(task, samples, noise, free_noise, control, scale, tau)


class ControlNetwork(nn.Module):
    """The control variate of the RELAX experiments: one hidden layer on the joint sample.

    Args:
        num_inputs: Size of one joint sample, all its axes multiplied.
        hidden: Units of the hidden layer.

    Example:
        >>> import torch, discretegrad
        >>> network = discretegrad.ControlNetwork(200)
        >>> network(torch.zeros(5, 100, 200)).shape  # samples, batch, variables
        torch.Size([5, 100])
    """

    def __init__(self, num_inputs: int, hidden: int = 137) -> None:
        super().__init__()
        check_count("ControlNetwork", "num_inputs", num_inputs)
        check_count("ControlNetwork", "hidden", hidden)
        self.num_inputs = num_inputs
        self.network = nn.Sequential(
            nn.Linear(num_inputs, hidden), nn.LeakyReLU(0.3), nn.Linear(hidden, 1)
        )

    def forward(self, z: Tensor) -> Tensor:
        """One number per joint sample: the last axes of ``z`` that make up ``num_inputs``."""
        size, axes = 1, 0
        while size < self.num_inputs and axes < z.ndim:
            axes += 1
            size *= z.shape[-axes]
        check_control_input("ControlNetwork", self.num_inputs, size, z.shape)
        value: Tensor = self.network(z.flatten(-axes) if axes else z.unsqueeze(-1)).squeeze(-1)
        return value


class Relax(nn.Module):
    """RELAX with its control variate: an estimator object.

    ``backward`` of its result gives the control variate, the temperature and the scale the
    gradient of the mean square of the estimate, which is its variance up to a constant; give them
    to any optimiser.

    Args:
        control: The network r, for example a ``ControlNetwork``.
        tau: Where the temperature starts.
        scale: Where the weight of the relaxed f starts; with None there is no relaxed f, and f
            need not be differentiable.
        tied: As for ``relax``.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.Relax(discretegrad.ControlNetwork(3))
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=1e-3)
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: (z @ torch.tensor([1.0, 2.0, 4.0])).square()
        >>> discretegrad.expectation(logits, f, estimator).backward()
        >>> learning.step()
    """

    def __init__(
        self,
        control: nn.Module,
        tau: float = 0.5,
        scale: float | None = 1.0,
        *,
        tied: bool = False,
    ) -> None:
        super().__init__()
        check_control("Relax", control, "Relax(discretegrad.ControlNetwork(num_inputs))")
        check_tau("Relax", tau, torch.zeros(()), None)
        check_flag("Relax", "tied", tied)
        self.control = control
        self.log_tau: nn.Parameter | None = None
        self.scale: nn.Parameter | None = None
        if scale is not None:
            check_coefficient("Relax", "scale", scale)
            self.log_tau = nn.Parameter(torch.tensor(float(tau)).log())
            self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.tied = tied

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As ``relax``, which describes the arguments."""
        options: dict[str, Any] = {"control": self.control, "tied": self.tied, **arguments}
        if self.log_tau is None or self.scale is None:
            return relax(logits, f, scale=0.0, **options)
        return relax(logits, f, tau=self.log_tau.exp(), scale=self.scale, **options)
