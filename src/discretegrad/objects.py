"""Estimator objects: they keep between calls what an estimator learns, and the networks for it.

``backward`` of the result of an object gives its parameters the gradient of the mean square of the
estimate, which is its variance up to a constant; give them to any optimiser. Nothing else gets a
part of it: not the logits, not the parameters of f.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from ._checks import (
    check_baseline,
    check_coefficient,
    check_control,
    check_count,
    check_flag,
    check_tau,
    is_word,
)
from ._modes import transforming
from ._types import Baseline, Objective


class _EstimatorObject(nn.Module):
    """Calls the function of a row of the registry with options of its own."""

    row: ClassVar[str]
    """The name of the row."""

    def options(self) -> dict[str, Any]:
        """What is learned, as the options of the function."""
        return {}

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As the function, which describes the arguments."""
        from .registry import get

        return get(self.row).function(logits, f, **{**self.options(), **arguments})


def _number(name: str, option: str, value: float) -> nn.Parameter:
    check_coefficient(name, option, value)
    return nn.Parameter(torch.tensor(float(value)))


class Reinforce(_EstimatorObject):
    """REINFORCE with a baseline that is kept between calls.

    The running baseline is the exponential mean of earlier values of f, corrected for its start at
    zero. It is updated after it has been used, in training mode only, and saved in the
    ``state_dict``. Inside ``torch.func`` transforms, which cannot update it, call ``eval()`` first.
    The parameters of a baseline network learn.

    Args:
        baseline: ``"running"``, or whatever ``reinforce`` takes.
        decay: Weight of the past in the running mean.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.Reinforce("running")
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> f = lambda z: z @ torch.arange(4.0)
        >>> for _ in range(100):
        ...     loss = discretegrad.expectation(logits, f, estimator)
        >>> bool((estimator.mean - 1.5).abs() < 1)
        True
    """

    row = "reinforce"
    mean: Tensor
    """The running mean of f, before the correction."""
    steps: Tensor
    """How many calls it has seen."""

    def __init__(
        self, baseline: Literal["running"] | Baseline = "running", *, decay: float = 0.99
    ) -> None:
        super().__init__()
        if not is_word(baseline, "running"):
            check_baseline("Reinforce", baseline)
        if isinstance(decay, bool) or not isinstance(decay, (int, float)):
            raise TypeError(f"Reinforce: expected decay to be a number, got {type(decay).__name__}")
        if not 0 <= decay < 1:
            raise ValueError(f"Reinforce: expected decay in [0, 1), got {decay}. Try 0.99.")
        self.baseline = baseline
        self.decay = decay
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def options(self) -> dict[str, Any]:
        """The baseline; a running one is the corrected mean."""
        if self.baseline != "running":
            return {"baseline": self.baseline}
        seen = 1 - self.decay ** self.steps.to(self.mean.dtype)
        before = torch.where(self.steps > 0, self.mean / seen.clamp_min(1e-12), 0.0)
        return {"baseline": lambda _: before}

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As ``reinforce``, which describes the arguments."""
        result = super().forward(logits, f, **arguments)
        if self.baseline == "running" and self.training and result.numel() > 0:
            self._remember(result.detach().mean().to(self.mean))
        return result

    def _remember(self, value: Tensor) -> None:
        try:
            self._update(value)
        except RuntimeError as error:
            if not transforming():
                raise
            raise RuntimeError(
                "Reinforce: expected evaluation mode inside a torch.func transform, which cannot "
                "update the running mean, got training mode. Call estimator.eval() before the "
                "transform and train() after it, or pass the buffers as arguments of the "
                "transformed function with torch.func.functional_call."
            ) from error

    def _update(self, value: Tensor) -> None:
        # one loss that is not finite must not spoil the mean for ever
        finite = value.isfinite()
        updated = self.mean.lerp(value, 1 - self.decay)
        self.mean.copy_(torch.where(finite, updated, self.mean))
        self.steps.add_(finite.long())


class MuProp(_EstimatorObject):
    """MuProp with learned coefficients.

    Args:
        offset: Where the weight of f at the mean starts.
        slope: Where the weight of the linear term starts.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.MuProp()
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: z @ torch.tensor([1.0, 2.0, 4.0])
        >>> discretegrad.expectation(logits, f, estimator).backward()
        >>> logits.grad
        tensor([-0.4444, -0.1111,  0.5556])
    """

    row = "muprop"

    def __init__(self, offset: float = 1.0, slope: float = 1.0) -> None:
        super().__init__()
        self.offset = _number("MuProp", "offset", offset)
        self.slope = _number("MuProp", "slope", slope)

    def options(self) -> dict[str, Any]:
        """The coefficients."""
        return {"offset": self.offset, "slope": self.slope}


class DoubleCV(_EstimatorObject):
    """Double control variates with a learned weight.

    Args:
        alpha: Where the weight starts.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.DoubleCV(alpha=0.0)
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=0.01)
        >>> logits = torch.zeros(100, 3, requires_grad=True)
        >>> f = lambda b: b @ torch.tensor([1.0, 2.0, 4.0])
        >>> discretegrad.expectation(logits, f, estimator, family="bernoulli").mean().backward()
        >>> learning.step()
        >>> bool(estimator.alpha < 0)  # on its way to -1, the best for a linear f
        True
    """

    row = "double_cv"

    def __init__(self, alpha: float = -1.0) -> None:
        super().__init__()
        self.alpha = _number("DoubleCV", "alpha", alpha)

    def options(self) -> dict[str, Any]:
        """The weight."""
        return {"alpha": self.alpha}


class Rebar(_EstimatorObject):
    """REBAR with learned temperature and weight. The temperature takes second derivatives of f.

    Args:
        tau: Where the temperature starts.
        scale: Where the weight of the control variate starts.
        tied: As for ``rebar``.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.Rebar()
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=1e-2)
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: (z @ torch.tensor([1.0, 2.0, 4.0])).square()
        >>> discretegrad.expectation(logits, f, estimator, num_samples=4).backward()
        >>> learning.step()
    """

    row = "rebar"

    def __init__(self, tau: float = 0.5, scale: float = 1.0, *, tied: bool = True) -> None:
        super().__init__()
        check_tau("Rebar", tau, torch.zeros(()), None)
        check_flag("Rebar", "tied", tied)
        # learned as a logarithm, so that it stays positive
        self.log_tau = nn.Parameter(torch.tensor(float(tau)).log())
        self.scale = _number("Rebar", "scale", scale)
        self.tied = tied

    def options(self) -> dict[str, Any]:
        """Temperature, weight, and whether the noise is shared."""
        return {"tau": self.log_tau.exp(), "scale": self.scale, "tied": self.tied}


class Relax(_EstimatorObject):
    """RELAX with its control variate, which learns, and so do the temperature and the scale.

    Args:
        control: The network r, or the size of one joint sample, all its axes multiplied, for a new
            ``ControlNetwork`` of so many inputs.
        tau: Where the temperature starts.
        scale: Where the weight of the relaxed f starts; with None there is no relaxed f, and f
            need not be differentiable.
        tied: As for ``relax``.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.Relax(3)
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=1e-3)
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda z: (z @ torch.tensor([1.0, 2.0, 4.0])).square()
        >>> discretegrad.expectation(logits, f, estimator).backward()
        >>> learning.step()
    """

    row = "relax"

    def __init__(
        self,
        control: nn.Module | int,
        tau: float = 0.5,
        scale: float | None = 1.0,
        *,
        tied: bool = False,
    ) -> None:
        super().__init__()
        network: Any = ControlNetwork(control) if type(control) is int else control
        check_control("Relax", network, "Relax(num_inputs)")
        check_tau("Relax", tau, torch.zeros(()), None)
        check_flag("Relax", "tied", tied)
        self.control = network
        self.log_tau: nn.Parameter | None = None
        self.scale: nn.Parameter | None = None
        if scale is not None:
            self.log_tau = nn.Parameter(torch.tensor(float(tau)).log())
            self.scale = _number("Relax", "scale", scale)
        self.tied = tied

    def options(self) -> dict[str, Any]:
        """The network, and what the relaxed f has if there is one."""
        options = {"control": self.control, "tied": self.tied}
        if self.log_tau is None or self.scale is None:
            return {**options, "scale": 0.0}
        return {**options, "tau": self.log_tau.exp(), "scale": self.scale}


class Rodeo(_EstimatorObject):
    """RODEO with the network of the paper, which uses Adam with a learning rate of 1e-3.

    Args:
        hidden: Units of the network.
        alpha: Where the weight of the control variate of f starts.
        beta: Where the weight of the control variate of the gradient starts.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.Rodeo()
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=1e-3)
        >>> logits = torch.zeros(100, 3, requires_grad=True)
        >>> f = lambda b: (b - 0.45).square().sum(-1)
        >>> discretegrad.expectation(logits, f, estimator, family="bernoulli").mean().backward()
        >>> learning.step()
    """

    row = "rodeo"

    def __init__(self, hidden: int = 100, *, alpha: float = 0.0, beta: float = 0.0) -> None:
        super().__init__()
        check_count("Rodeo", "hidden", hidden)
        self.network = _SteinNetwork(hidden)
        self.alpha = _number("Rodeo", "alpha", alpha)
        self.beta = _number("Rodeo", "beta", beta)

    def options(self) -> dict[str, Any]:
        """The network and both weights."""
        return {"control": self.network, "alpha": self.alpha, "beta": self.beta}


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
        if size != self.num_inputs:
            raise ValueError(
                f"ControlNetwork: expected the last axes of z to have {self.num_inputs} elements "
                f"together, got shape {tuple(z.shape)}. Make it for one joint sample: the "
                "variables of a batch element, times the categories."
            )
        value: Tensor = self.network(z.flatten(-axes) if axes else z.unsqueeze(-1)).squeeze(-1)
        return value


class _SteinNetwork(nn.Module):
    """The control variate of RODEO: two inputs, one hidden layer, two outputs."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(2, hidden)
        self.outer = nn.Linear(hidden, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        # the hidden layer is most of the memory of a step
        x = leaky_relu(x, 0.3, inplace=not x.requires_grad)
        outputs: Tensor = self.outer(x)
        return outputs
