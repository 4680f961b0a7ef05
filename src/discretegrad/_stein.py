"""The control variates of RODEO: a discrete Stein operator on the outputs of a network."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ._checks import check_control_value
from ._score import Problem, call_network, score
from ._types import Objective


class JointSamples(NamedTuple):
    """Joint samples of bits with their D variables in one last axis, (K, *batch, D)."""

    values: Tensor
    """f, (K, *batch)."""
    samples: Tensor
    slopes: Tensor
    """The gradient of f."""
    turn: Tensor
    """What is added to a variable that takes its other value: 1 or -1."""
    centred: Tensor
    """The samples minus their mean."""
    flip_probs: Tensor
    """The probability of the other value."""


def joint_samples(problem: Problem, drawn: Tensor, values: Tensor, slopes: Tensor) -> JointSamples:
    """All that the operator needs to know of draws, of f there and of its slopes."""

    def flat(x: Tensor) -> Tensor:
        return x.flatten(values.ndim) if x.ndim > values.ndim else x.unsqueeze(-1)

    samples, centred = flat(drawn).to(slopes.dtype), flat(score(problem, drawn))
    turn = 1 - 2 * samples
    # 1 - p where the bit is 1, and -p where it is 0
    return JointSamples(values, samples, flat(slopes), turn, centred, centred.abs())


def stein_operator(
    problem: Problem, joint: JointSamples, control: Objective, learn: bool
) -> tuple[Tensor, Tensor]:
    """The operator on h1, (K, *batch), and on h2 times the score, (K, *batch, D)."""
    here, flipped = _other_outputs(problem, joint, control, learn)
    change = (joint.flip_probs.unsqueeze(-1) * (flipped - here.unsqueeze(-2))).mean(-2)
    of_h1, of_h2 = change.unbind(-1)
    moved = joint.flip_probs * flipped[..., 1] * joint.turn / joint.samples.shape[-1]
    return of_h1, joint.centred * of_h2.unsqueeze(-1) + moved


def _other_outputs(
    problem: Problem, joint: JointSamples, control: Objective, learn: bool
) -> tuple[Tensor, Tensor]:
    """H at a sample, (K, *batch, 2), and at its D neighbours, (K, *batch, D, 2)."""
    of_each_shift = []
    for shift in range(1, joint.samples.shape[0]):
        b, slope, value = (x.roll(shift, 0) for x in (joint.samples, joint.slopes, joint.values))
        base = (slope * (joint.samples - b)).sum(-1, keepdim=True)
        linear = torch.cat([base, base + slope * joint.turn], -1)
        level = value.to(linear.dtype).unsqueeze(-1).expand_as(linear)
        inputs = torch.stack([linear, level], -1)
        outputs = _network(control, inputs, learn)
        of_each_shift.append(check_control_value(problem.name, outputs, inputs.shape))
    mean = torch.stack(of_each_shift).mean(0)
    return mean[..., 0, :], mean[..., 1:, :]


def _network(control: Objective, inputs: Tensor, learn: bool) -> Tensor:
    # checkpoints keep the state of the random generators, which cannot be read during a capture
    capturing = inputs.is_cuda and torch.cuda.is_current_stream_capturing()
    if not learn or capturing or getattr(control, "stores_no_hidden_layer", False):
        return call_network(control, inputs)
    # the hidden layers of all pairs of samples at once would be most of the memory of a step
    outputs: Tensor = checkpoint(call_network, control, inputs, use_reentrant=False)
    return outputs
