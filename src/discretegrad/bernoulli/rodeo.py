"""RODEO: control variates from a discrete Stein operator.

Shi et al., "Gradient Estimation with Discrete Stein Operators", NeurIPS 2022. arXiv:2202.09497
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from .._checks import (
    check_coefficient,
    check_control,
    check_control_value,
    check_count,
    check_num_samples,
    check_only_family,
)
from .._score import (
    Task,
    call_network,
    can_learn,
    evaluate,
    evaluate_with_slope,
    finish,
    given_samples,
    learned_tensors,
    open_task,
    others_mean,
    signal,
    spread,
    wants_gradient,
)
from .._types import Family, Objective


def rodeo(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int = 2,
    family: Family = "bernoulli",
    control: Callable[[Tensor], Tensor] | None = None,
    alpha: float | Tensor = 0.0,
    beta: float | Tensor = 0.0,
    samples: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: bool = False,
) -> Tensor:
    r"""Mean of f over samples, with the RODEO gradient for the logits.

    The Stein operator of Gibbs sampling, for a joint sample of D variables,

    $$(A h)(b) = \tfrac1D \sum_i w_i\, [h(b^{\neg i}) - h(b)], \qquad
    w_i = P(b_i \text{ takes its other value}),$$

    has mean zero under the distribution of $b$ for every h that does not depend on $b$. For
    sample k, h comes from the other samples: $h_k = \frac1{K-1} \sum_{j \ne k}
    H\big(g_j^\top (\cdot - b_j),\, f(b_j)\big)$, where $g_j$ is the slope of f at $b_j$ and H is a
    small network with two outputs $h^1$ and $h^2$. With
    $\tilde f_k = f(b_k) + \alpha\,(A h^1_k)(b_k)$,

    $$\hat\nabla = \tfrac1K \sum_k \big(f(b_k) - \tfrac1{K-1}\textstyle\sum_{j \ne k}
    \tilde f_j\big)(b_k - p) + \beta\, \big(A [h^2_k(\cdot)\,(\cdot - p)]\big)(b_k) .$$

    Symbols: $K$ ``num_samples``, H ``control``, $\alpha$ ``alpha``, $\beta$ ``beta``,
    $p = \sigma$(``logits``).

    Properties: unbiased for every differentiable f and every H. One evaluation of f and of its
    gradient per sample, and D + 1 evaluations of H per pair of samples. At ``alpha=beta=0``, where
    learning starts, it is ``leave_one_out``.

    Differs from the paper: one formula for every number of samples, which for two is the paper's
    and for more averages the outputs of H, as its released code does.

    Args:
        logits: Log-odds of the value 1, of any shape, any floating dtype.
        f: As for ``discretegrad.reinforce``, and differentiable.
        num_samples: Samples to average over, at least 2.
        family: ``"bernoulli"``; for categories see ``discretegrad.relax``.
        control: H, from (..., 2) to (..., 2). The parameters of an ``nn.Module`` learn; see
            ``Rodeo``, which has the network of the paper.
        alpha: Weight of the control variate of f: a number, or a tensor of numbers for the first
            batch axes. One that requires a gradient learns; how much a batch element counts in
            your loss counts for all of them alike.
        beta: Weight of the control variate of the gradient; likewise.
        samples: As for ``discretegrad.reinforce``.
        mask: Boolean, broadcasts to ``logits``; where False the value is 0.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        vectorize: As for ``discretegrad.reinforce``.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: As ``discretegrad.reinforce``.
        ValueError: As ``discretegrad.reinforce``, and if there is no ``control``, fewer than two
            samples, or f is not differentiable.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> f = lambda b: (b - 0.45).square().sum(-1)
        >>> estimator = discretegrad.bernoulli.Rodeo()
        >>> discretegrad.bernoulli.rodeo(logits, f, control=estimator.network).backward()
        >>> logits.grad.shape
        torch.Size([3])
    """
    name = "rodeo"
    check_only_family(name, family, "bernoulli", "relax, muprop or leave_one_out")
    task = open_task(name, logits, f, family, mask, vectorize)
    check_num_samples(name, num_samples, 2, "relax, rebar or muprop")
    check_control(name, control, "bernoulli.Rodeo()")
    _check_weights(name, alpha, beta, logits.shape)
    assert control is not None
    return _at(task, given_samples(task, samples, num_samples, generator), control, alpha, beta)


def _at(
    task: Task,
    samples: Tensor,
    control: Callable[[Tensor], Tensor],
    alpha: float | Tensor,
    beta: float | Tensor,
) -> Tensor:
    learned = learned_tensors(control, alpha, beta)
    if not wants_gradient(task, learned):
        losses = evaluate(task, samples)
        _check_weights(task.name, alpha, beta, losses.shape[1:])
        return losses.mean(0)
    losses, slopes = evaluate_with_slope(task, samples)
    _check_weights(task.name, alpha, beta, losses.shape[1:])
    values = signal(task, losses)
    joint = _joint(task, samples, values, slopes)
    h = _other_outputs(task, joint, control, can_learn(learned))
    of_f, of_gradient = _stein(joint, h)

    adjusted = others_mean(values + _aligned(alpha, of_f) * of_f)
    gradient = spread(values - adjusted, joint.centred) * joint.centred
    gradient = gradient + _aligned(beta, of_gradient) * of_gradient
    return finish(task, losses, gradient.mean(0).reshape(task.fixed.shape), learned)


def _check_weights(
    name: str, alpha: float | Tensor, beta: float | Tensor, shape: torch.Size
) -> None:
    check_coefficient(name, "alpha", alpha, shape)
    check_coefficient(name, "beta", beta, shape)


def _aligned(weight: float | Tensor, like: Tensor) -> float | Tensor:
    """A weight to multiply ``like`` by, which has the axis of samples before those of the batch."""
    if not isinstance(weight, Tensor):
        return weight
    return weight.reshape(()) if weight.numel() == 1 else spread(weight, like[0])


class _Joint(NamedTuple):
    """Joint samples with their D variables in one last axis, (K, *batch, D)."""

    values: Tensor
    """f, (K, *batch)."""
    samples: Tensor
    slopes: Tensor
    turn: Tensor
    """What is added to a variable that takes its other value: 1 or -1."""
    centred: Tensor
    """The samples minus their mean."""
    flip_probs: Tensor
    """The probability of the other value."""


def _joint(task: Task, samples: Tensor, values: Tensor, slopes: Tensor) -> _Joint:
    def flat(x: Tensor) -> Tensor:
        x = x.to(task.fixed.dtype)
        return x.flatten(values.ndim) if x.ndim > values.ndim else x.unsqueeze(-1)

    b = flat(samples)
    turn = 1 - 2 * b
    flip_probs = flat(torch.lerp(task.mean, task.rest, samples.to(task.mean.dtype)))
    return _Joint(values, b, flat(slopes), turn, -turn * flip_probs, flip_probs)


def _other_outputs(
    task: Task, joint: _Joint, control: Callable[[Tensor], Tensor], learn: bool
) -> tuple[Tensor, Tensor]:
    """H at a sample, (K, *batch, 2), and at its D neighbours, (K, *batch, D, 2)."""
    count = joint.samples.shape[0]
    found = []
    for shift in range(1, count):
        b, slope, value = (x.roll(shift, 0) for x in (joint.samples, joint.slopes, joint.values))
        base = (slope * (joint.samples - b)).sum(-1, keepdim=True)
        linear = torch.cat([base, base + slope * joint.turn], -1)
        level = value.to(linear.dtype).unsqueeze(-1).expand_as(linear)
        inputs = torch.stack([linear, level], -1)
        outputs = _network(control, inputs, learn)
        check_control_value(task.name, outputs, inputs.shape)
        found.append(outputs)
    mean = torch.stack(found).mean(0)
    return mean[..., 0, :], mean[..., 1:, :]


def _network(control: Callable[[Tensor], Tensor], inputs: Tensor, learn: bool) -> Tensor:
    # checkpoints keep the state of the random generators, which cannot be read during a capture
    if not learn or (inputs.is_cuda and torch.cuda.is_current_stream_capturing()):
        return call_network(control, inputs)
    # the hidden layers of all pairs of samples at once would be most of the memory of a step
    outputs: Tensor = checkpoint(call_network, control, inputs, use_reentrant=False)
    return outputs


def _stein(joint: _Joint, h: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The Stein operator on h1, and on h2 times the score."""
    here, flipped = h
    change = (joint.flip_probs.unsqueeze(-1) * (flipped - here.unsqueeze(-2))).mean(-2)
    of_f, of_h2 = change.unbind(-1)
    moved = joint.flip_probs * flipped[..., 1] * joint.turn / joint.samples.shape[-1]
    return of_f, joint.centred * of_h2.unsqueeze(-1) + moved


class _SteinNetwork(nn.Module):
    """H: two inputs, one hidden layer, two outputs."""

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


class Rodeo(nn.Module):
    """RODEO with the network of the paper: an estimator object.

    ``backward`` of its result gives the network and both weights the gradient of the mean square
    of the estimate, which is its variance up to a constant; give them to any optimiser. The paper
    uses Adam with a learning rate of 1e-3.

    Args:
        hidden: Units of the network.
        alpha: Where the weight of the control variate of f starts.
        beta: Where the weight of the control variate of the gradient starts.

    Example:
        >>> import torch, discretegrad
        >>> estimator = discretegrad.bernoulli.Rodeo()
        >>> learning = torch.optim.Adam(estimator.parameters(), lr=1e-3)
        >>> logits = torch.zeros(100, 3, requires_grad=True)
        >>> f = lambda b: (b - 0.45).square().sum(-1)
        >>> loss = discretegrad.expectation(
        ...     logits, f, estimator, num_samples=2, family="bernoulli"
        ... )
        >>> loss.mean().backward()
        >>> learning.step()
    """

    def __init__(self, hidden: int = 100, *, alpha: float = 0.0, beta: float = 0.0) -> None:
        super().__init__()
        check_count("Rodeo", "hidden", hidden)
        check_coefficient("Rodeo", "alpha", alpha)
        check_coefficient("Rodeo", "beta", beta)
        self.network = _SteinNetwork(hidden)
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        self.beta = nn.Parameter(torch.tensor(float(beta)))

    def forward(self, logits: Tensor, f: Objective, **arguments: Any) -> Tensor:
        """As ``bernoulli.rodeo``, which describes the arguments."""
        return rodeo(logits, f, control=self.network, alpha=self.alpha, beta=self.beta, **arguments)
