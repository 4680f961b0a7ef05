r"""The gradient of REBAR and RELAX: a relaxed sample, free and given the discrete one.

A sample is the discrete part of a continuous variable $z$: for a bit, $z = l + $ logistic noise
and $b = 1[z > 0]$; for categories, $z = l + $ Gumbel noise and the category is the largest. Only
differences between the entries of the latter matter, so here z is taken relative to its largest
entry. For every function c of z, by differentiating $E[c(z)] = E_b[E[c(\tilde z) | b]]$,

$$E[c(\tilde z)\, \nabla \log P(b)] = E[\nabla c(z)] - E[\nabla c(\tilde z)] ,$$

where $\tilde z$ has the distribution of z given b and depends on the logits through it. The
difference of the two sides is a control variate of mean zero. The identity needs the two
distributions only, so $z$ and $\tilde z$ may be the same numbers ("tied"). The family makes
$\tilde z$ from noise (``perturbed``) and takes gradients at z and $\tilde z$ back to the logits.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import (
    check_coefficient,
    check_control_value,
    check_differentiable,
    check_flag,
    check_generator,
    check_noise,
)
from ._math import divide_finite
from ._modes import compiling, transforming
from ._row import Estimator
from ._score import (
    Arguments,
    Problem,
    aligned,
    call_network,
    can_learn,
    draw,
    estimate,
    evaluate,
    learned_tensors,
    pose,
    score,
    spread,
    value_and_slope,
    weighted_score,
)
from ._types import Objective


class Control(NamedTuple):
    """The control variate ``c(z) = scale f(relaxed(z / tau)) + network(z)``, and its noise."""

    network: Objective | None
    scale: float | Tensor
    tied: bool
    """Whether z and z given b are the same."""
    noise: Tensor | None
    """That of a user: (K, ...), or with both of an untied pair (2, K, ...), given b first."""

    @property
    def relaxes(self) -> bool:
        """Whether it has a relaxed f."""
        return isinstance(self.scale, Tensor) or self.scale != 0


class Noise(NamedTuple):
    given: Tensor
    """For z given b, (count, ...)."""
    free: Tensor | None
    """For z; None where they are tied."""


def relaxed_estimate(row: Estimator, arguments: Arguments, control: Control) -> Tensor:
    """The mean loss with the gradient for the control variate."""
    check_flag(row.name, "tied", control.tied)
    problem = pose(row, arguments)
    check_coefficient(row.name, "scale", control.scale, problem.logits.shape)
    given_noise = _accept_noise(problem, control)
    drawn = draw(problem)
    noise = given_noise or _draw_noise(problem, control.tied)

    def gradient(values: Tensor) -> Tensor:
        if control.network is None and not control.relaxes:
            return weighted_score(problem, drawn, values)
        return _gradient(problem, drawn, noise, control, values, learn=can_learn(learned))

    learned = learned_tensors(control.network, control.scale, arguments.tau)
    return estimate(problem, drawn, gradient, learned)


def _accept_noise(problem: Problem, control: Control) -> Noise | None:
    """The noise that a user gave with the draws."""
    if control.noise is None:
        return None
    name, family = problem.name, problem.family
    if problem.given is None:
        raise ValueError(
            f"{name}: expected given= beside noise=, which belongs to the draws, got none. Pass "
            "the draws, or leave noise out."
        )
    shape = (problem.num_samples, *problem.point.shape)
    check_noise(name, control.noise, shape if control.tied else (2, *shape), family.noise)
    noise = family.accept_noise(name, control.noise, problem.point)
    return Noise(noise, None) if control.tied else Noise(*noise)


def _draw_noise(problem: Problem, tied: bool) -> Noise:
    generator, count = problem.call.generator, problem.num_samples
    check_generator(problem.name, generator, problem.logits)
    given = problem.family.draw_noise(problem.variables, generator, count)
    free = None if tied else problem.family.draw_noise(problem.variables, generator, count)
    return Noise(given, free)


def _gradient(
    problem: Problem, drawn: Tensor, noise: Noise, control: Control, values: Tensor, *, learn: bool
) -> Tensor:
    family, count = problem.family, problem.num_samples
    batch_shape = values.shape[1:]
    weight = check_coefficient(problem.name, "scale", control.scale, batch_shape)
    watched = control.relaxes and not (transforming() or compiling())
    reached = []

    def c(points: Tensor) -> Tensor:
        total = torch.zeros((), dtype=points.dtype, device=points.device)
        if control.relaxes:
            # an excluded category stays excluded, and gives a learned tau no gradient
            tempered = divide_finite(points, problem.variables.tau)
            relaxed = family.relaxed(tempered).to(problem.logits.dtype)
            if watched:
                relaxed.register_hook(lambda _: reached.append(True))
            of_f = evaluate(problem, relaxed)
            # no narrower than f, which it is subtracted from
            of_f = of_f.to(torch.promote_types(of_f.dtype, points.dtype))
            total = total + aligned(weight, of_f[0]) * of_f
        if control.network is not None:
            shape = (len(points), *batch_shape)
            outputs = call_network(control.network, points.masked_fill(points.isinf(), 0))
            total = total + check_control_value(problem.name, outputs, shape)
        return total

    scale = family.scale(problem.variables)
    points = family.perturbed(scale, drawn, noise.given)
    if noise.free is not None:
        points = torch.cat([points, family.perturbed(scale, drawn, noise.free)])
    of_points, slopes = value_and_slope(problem, c, points, learn=learn)
    if watched and not reached:
        # the control variate has a slope but f has none: the estimate would be biased
        check_differentiable(problem.name, None)

    of_each = score(problem, drawn)
    gradient = spread(values - of_points[:count], of_each) * of_each
    gradient = gradient + family.gradient_given_noise(drawn, slopes[-count:])
    gradient = gradient - family.gradient_given_draw(scale, drawn, noise.given, slopes[:count])
    return gradient.mean(0)
