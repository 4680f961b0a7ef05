r"""The gradient of REBAR and RELAX: a relaxed sample, free and given the discrete one.

A sample is the discrete part of a continuous variable $z$: for a bit, $z = l + $ logistic noise
and $b = 1[z > 0]$; for categories, $z = l + $ Gumbel noise and the category is the largest. Only
differences between the entries of the latter matter, so here z is taken relative to its largest
entry. For every function c of z, by differentiating $E[c(z)] = E_b[E[c(\tilde z) | b]]$,

$$E[c(\tilde z)\, \nabla \log P(b)] = E[\nabla c(z)] - E[\nabla c(\tilde z)] ,$$

where $\tilde z$ has the distribution of z given b and depends on the logits through it. The
difference of the two sides is a control variate of mean zero. The identity needs the two
distributions only, so $z$ and $\tilde z$ may be the same numbers ("tied").

Given b and standard logistic noise L, with $q = P(b)$ and $s = \pm 1$ the sign of z,
$|\tilde z| = \mathrm{softplus}(L + \mathrm{softplus}(s l))$ and
$\partial \tilde z / \partial l = \sigma(L + \mathrm{softplus}(s l))\, q$.
Given the category k and standard exponential E, with $p = \mathrm{softmax}(l)$,
$\tilde z_j = \log \sigma(\log p_j - \log(E_j / E_k))$ as derived in ``_gumbel``.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ._checks import check_control_value, check_differentiable
from ._draw import draw_exponential, draw_logistic
from ._gumbel import gumbel_gaps, relaxed_bit_logit
from ._math import divide_finite, sigmoid
from ._modes import compiling, transforming
from ._score import (
    Task,
    as_bits,
    as_rows,
    call_network,
    can_learn,
    evaluate,
    finish,
    learned_tensors,
    score,
    signal,
    spread,
    value_and_slope,
    wants_gradient,
)
from ._types import Objective, Temperature


def draw_noise(task: Task, count: int, generator: torch.Generator | None) -> Tensor:
    """The noise of a relaxed sample given the discrete one, (count, ...)."""
    if task.family == "bernoulli":
        return draw_logistic(as_bits(task, count), generator)
    return draw_exponential(as_rows(task, count), generator)


def estimate(
    task: Task,
    samples: Tensor,
    noise: Tensor,
    free_noise: Tensor | None,
    control: Objective | None,
    scale: float | Tensor,
    tau: Temperature,
) -> Tensor:
    """The mean loss with the gradient for ``c(z) = scale f(relaxed(z / tau)) + control(z)``.

    ``free_noise`` makes z, and ``noise`` makes z given b; without it both are the same.
    """
    losses = evaluate(task, samples)
    learned = learned_tensors(control, scale, tau)
    if not wants_gradient(task, learned):
        return losses.mean(0)
    relaxes = isinstance(scale, Tensor) or scale != 0
    if control is None and not relaxes:
        plain = spread(signal(task, losses), samples) * score(task, samples)
        return finish(task, losses, plain.mean(0))

    watched = relaxes and not (transforming() or compiling())
    reached = []

    def c(points: Tensor) -> Tensor:
        total = torch.zeros((), dtype=points.dtype, device=points.device)
        if relaxes:
            relaxed = _relaxed(task, points, tau).to(task.logits.dtype)
            if watched:
                relaxed.register_hook(lambda _: reached.append(True))
            total = total + scale * evaluate(task, relaxed).to(points.dtype)
        if control is not None:
            shape = (len(points), *losses.shape[1:])
            values = call_network(control, points.masked_fill(points.isinf(), 0))
            check_control_value(task.name, values, shape)
            total = total + values.reshape(shape)
        return total

    points = _given(task, samples, noise)
    if free_noise is not None:
        points = torch.cat([points, _given(task, samples, free_noise)])
    values, slopes = value_and_slope(task, c, points, learn=can_learn(learned))
    if watched and not reached:
        # the control variate has a slope but f has none: the estimate would be biased
        check_differentiable(task.name, None)

    count = len(samples)
    values, given_slopes, free_slopes = values[:count], slopes[:count], slopes[-count:]
    advantage = spread(signal(task, losses) - values, samples)
    gradient = advantage * score(task, samples)
    gradient = gradient + _free_product(task, samples, free_slopes)
    gradient = gradient - _given_product(task, samples, noise, given_slopes)
    return finish(task, losses, gradient.mean(0), learned)


def _relaxed(task: Task, z: Tensor, tau: Temperature) -> Tensor:
    # an excluded category stays excluded, and gives a learned tau no gradient
    z = divide_finite(z, tau)
    return logsigmoid(z).exp() if task.family == "bernoulli" else z.softmax(-1)


def _given(task: Task, samples: Tensor, noise: Tensor) -> Tensor:
    """z given the sample."""
    if task.family == "bernoulli":
        lead = relaxed_bit_logit(task.fixed, samples != 0, noise, 1.0)
        return torch.where(samples != 0, lead, -lead)
    return gumbel_gaps(_log_probs(task), _index(samples), noise)


def _free_product(task: Task, samples: Tensor, g: Tensor) -> Tensor:
    """The transposed Jacobian of ``l + noise`` (relative to its largest entry) times g."""
    if task.family == "bernoulli":
        return g
    return g - samples.to(g.dtype) * g.sum(-1, keepdim=True)


def _given_product(task: Task, samples: Tensor, noise: Tensor, g: Tensor) -> Tensor:
    """The transposed Jacobian of z given the sample times g."""
    if task.family == "bernoulli":
        drawn = torch.where(samples != 0, task.fixed, -task.fixed)
        return sigmoid(noise - logsigmoid(-drawn)) * sigmoid(drawn) * g
    log_ratio = (noise / noise.gather(-1, _index(samples))).log()
    g = torch.where(samples != 0, 0, g * sigmoid(log_ratio - _log_probs(task)))
    return g - task.mean * g.sum(-1, keepdim=True)


def _log_probs(task: Task) -> Tensor:
    return task.fixed.log_softmax(-1)


def _index(samples: Tensor) -> Tensor:
    return samples.argmax(-1, keepdim=True)
