"""What score-function estimators share: draw, evaluate f, and give the result its gradient.

Such an estimator computes its estimate of the gradient in forward, from values of f at discrete
samples. The result is the mean of those values; in backward the logits get the estimate, and
whatever f depends on gets its ordinary gradient, from the same evaluations.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ._attach import attach_gradient, attach_learned
from ._checks import (
    check_count,
    check_differentiable,
    check_loss,
    check_objective,
    check_vectorize,
    values_are_checked,
)
from ._graph import can_get_gradient, graph_leaves, nodes_of, reaches
from ._math import compute_dtype
from ._modes import compiling, transforming
from ._row import Estimator
from ._types import Call, Objective, Temperature, Vectorize
from .families import Family, FamilyLike, Variables, get_family
from .kernels.dispatch import fastest


class Arguments(NamedTuple):
    """What a user passes to every score-function estimator."""

    logits: Tensor
    f: Objective
    num_samples: int | None = None
    family: FamilyLike = "categorical"
    given: Tensor | None = None
    mask: Tensor | None = None
    generator: torch.Generator | None = None
    vectorize: Vectorize = False
    tau: Temperature = 1.0
    """For estimators that relax samples. It may learn."""


class Problem(NamedTuple):
    """An expectation to estimate: the arguments, checked and in one layout."""

    name: str
    """The estimator, for messages."""
    f: Objective
    family: Family
    variables: Variables
    logits: Tensor
    """Those of the variables: attached to the graph, -inf where excluded."""
    point: Tensor
    """Likewise: a constant, float32 or float64."""
    num_samples: int
    """How many samples to average over."""
    given: Tensor | None
    """The draws of a user, in the form that the family draws."""
    call: Call
    vectorize: Vectorize


def pose(row: Estimator, arguments: Arguments) -> Problem:
    """Check the arguments of the score-function estimator ``row``."""
    logits, f, num_samples, family_like, given, mask, generator, vectorize, tau = arguments
    name = row.name
    family = fastest(name, logits, get_family(name, family_like))
    check_works_on(row, family)
    check_objective(name, f)
    check_vectorize(name, vectorize)
    call = Call(name, logits, tau, mask=mask, generator=generator)
    variables = family.prepare(call, learnable_tau="tau" in row.options)
    family.check_values(name, variables)
    num_samples = sample_count(row, num_samples, given)
    drawn = None if given is None else family.accept(name, variables, given, num_samples)
    logits, point = variables.logits, variables.point
    return Problem(name, f, family, variables, logits, point, num_samples, drawn, call, vectorize)


def check_works_on(row: Estimator, family: Family) -> None:
    """The estimator is defined for this kind of variable."""
    if not row.works_on(family):
        from .registry import ESTIMATORS

        others = [other.name for other in ESTIMATORS.values() if other.works_on(family)]
        raise ValueError(
            f"{row.name}: expected family={' or '.join(map(repr, row.families))}, which it is "
            f"defined for, got {family.name!r}. For that family use one of {', '.join(others)}."
        )


def sample_count(row: Estimator, num_samples: int | None, given: Tensor | None) -> int:
    """The number of samples: what the user says, as many as are given, or the least."""
    if num_samples is None:
        # what else is given is refused where it is used
        several = isinstance(given, Tensor) and given.ndim > 0
        num_samples = given.shape[0] if several and given is not None else row.min_samples
    check_count(row.name, "num_samples", num_samples)
    if num_samples < row.min_samples:
        raise ValueError(
            f"{row.name}: expected num_samples of at least {row.min_samples}, got {num_samples}. "
            "With fewer samples use reinforce, muprop or rebar, or a sampler such as reinmax."
        )
    return num_samples


def check_pairs(problem: Problem, alternatives: str) -> None:
    """The number of samples is even."""
    if problem.num_samples % 2:
        raise ValueError(
            f"{problem.name}: expected an even num_samples, because samples come in antithetic "
            f"pairs, got {problem.num_samples}. For an odd number use {alternatives}."
        )


def check_antithetic(problem: Problem, repeats: Tensor) -> None:
    """No given pair takes a value twice that antithetic samples take once at most."""
    if values_are_checked(repeats) and repeats.any():
        raise ValueError(
            f"{problem.name}: expected given to hold antithetic samples, first one of each pair "
            "and then their partners, got a pair that takes the less likely of two values twice. "
            "For independent samples use leave_one_out."
        )


def draw(problem: Problem) -> Tensor:
    """The draws of the user, or new and independent ones, (num_samples, ...)."""
    if problem.given is not None:
        return problem.given
    return problem.family.draw(problem.call, problem.variables, problem.num_samples)


def estimate(
    problem: Problem,
    drawn: Tensor,
    gradient: Callable[[Tensor], Tensor],
    learned: Sequence[Tensor] = (),
) -> Tensor:
    """The mean of f over draws, with ``gradient(values of f)`` for the logits."""
    losses = evaluate(problem, problem.family.sample(problem.logits, drawn))
    if not wants_gradient(problem, learned):
        return losses.mean(0)
    return finish(problem, losses, gradient(signal(problem, losses)), learned)


def estimate_with_slopes(
    problem: Problem,
    drawn: Tensor,
    gradient: Callable[[Tensor, Tensor], Tensor],
    learned: Sequence[Tensor] = (),
) -> Tensor:
    """The same with ``gradient(values of f, slopes of f)``."""
    samples = problem.family.sample(problem.logits, drawn)
    if not wants_gradient(problem, learned):
        return evaluate(problem, samples).mean(0)
    losses, slopes = _evaluate_with_slope(problem, samples)
    slopes = slopes.to(problem.point.dtype)
    return finish(problem, losses, gradient(signal(problem, losses), slopes), learned)


def wants_gradient(problem: Problem, learned: Iterable[Tensor] = ()) -> bool:
    """Whether anybody can ask for a gradient; if not, the values of f are all there is to do."""
    if not torch.is_grad_enabled():
        return False
    if compiling():
        wanted = problem.logits.requires_grad or transforming()
    else:
        wanted = can_get_gradient(problem.logits)
    return wanted or any(x.requires_grad for x in learned)


def evaluate(problem: Problem, samples: Tensor) -> Tensor:
    """f at each of the samples, (num_samples, *batch), attached to whatever f depends on."""
    losses = evaluate_each(problem.name, problem.f, samples, problem.family, problem.vectorize)
    return losses if losses.is_floating_point() else losses.to(problem.point.dtype)


def evaluate_each(
    name: str, f: Objective, samples: Tensor, family: Family, vectorize: Vectorize
) -> Tensor:
    """The losses of samples stacked along the first axis, as f returns them.

    Where a gradient of f with respect to the samples is wanted, it must have one.
    """
    stacked, shape = vectorize == "stacked", family.variables_shape(samples)

    def checked(sample: Tensor) -> Tensor:
        # a copy, because f may write into it
        loss = f(sample.clone())
        check_loss(name, loss, shape if stacked else shape[1:], stacked=stacked)
        return loss

    if samples.requires_grad and samples.is_leaf:
        samples = samples.view_as(samples)  # a leaf has no node in the graph
    if stacked:
        losses = checked(samples)
    elif vectorize and len(samples) > 1:
        losses = torch.vmap(checked, randomness="different")(samples)
    else:
        losses = torch.stack([checked(sample) for sample in samples.unbind()])
    if not depends_on(losses, samples):
        check_differentiable(name, None)
    return losses


def depends_on(losses: Tensor, samples: Tensor) -> bool:
    """Whether a gradient that could reach the samples does so."""
    if compiling():
        # there is no graph yet, and inside a transform nothing to ask
        return transforming() or losses.requires_grad or not samples.requires_grad
    return reaches(losses, nodes_of(samples))


def joint_size(
    name: str, logits: Tensor, f: Objective, family: FamilyLike, mask: Tensor | None = None
) -> int:
    """How many elements one joint sample has: those of the axes that f consumes."""
    kind = get_family(name, family)
    variables = kind.prepare(Call(name, logits, mask=mask))
    return math.prod(logits.shape[probe(name, f, kind, variables.logits).ndim :])


def probe(name: str, f: Objective, family: Family, logits: Tensor) -> Tensor:
    """f at the most likely sample: its axes are those that f leaves to the batch."""
    with torch.no_grad():
        loss = f(family.sample(logits, family.likeliest(logits)))
    check_loss(name, loss, family.variables_shape(logits))
    return loss


def likeliest_value(problem: Problem) -> Tensor:
    """f at the most likely sample, a constant."""
    family, logits = problem.family, problem.logits
    with torch.no_grad():
        likeliest = family.sample(logits, family.likeliest(logits)).unsqueeze(0)
        return signal(problem, evaluate(problem, likeliest))


def _evaluate_with_slope(problem: Problem, samples: Tensor) -> tuple[Tensor, Tensor]:
    """f and its gradient at each of the samples; f stays attached to whatever it depends on."""
    if transforming() or compiling():
        return _value_and_slope(partial(evaluate, problem), samples)
    with torch.enable_grad():
        points = samples.detach().requires_grad_()
        losses = evaluate(problem, points)
        slopes = _slope(problem, losses, points, keep=True, learn=False)
    if all(leaf is points for leaf in graph_leaves(losses)):
        # else backward would go through f once more, for the points alone
        losses = losses.detach()
    return losses, slopes


def value_and_slope(
    problem: Problem, control: Objective, points: Tensor, *, learn: bool
) -> tuple[Tensor, Tensor]:
    """A function and its gradient at points that are no samples.

    Both are constants, or with ``learn`` attached to whatever the function depends on.
    """
    if transforming() or compiling():
        values, slope = _value_and_slope(control, points)
        return values.detach(), slope
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        values = control(points)
        slope = _slope(problem, values, points, keep=learn, learn=learn)
    return (values, slope) if learn else (values.detach(), slope)


def _value_and_slope(function: Objective, points: Tensor) -> tuple[Tensor, Tensor]:
    """The same with what torch can transform and compile."""
    values, pull_back, *_ = torch.func.vjp(function, points)
    slope: Tensor = pull_back(torch.ones_like(values))[0]
    return values, slope.detach()


def _slope(problem: Problem, values: Tensor, points: Tensor, *, keep: bool, learn: bool) -> Tensor:
    slopes: tuple[Tensor | None, ...] = (None,)
    if values.requires_grad:
        slopes = torch.autograd.grad(
            values.sum(), points, retain_graph=keep, create_graph=learn, allow_unused=True
        )
    return check_differentiable(problem.name, slopes[0])


def signal(problem: Problem, losses: Tensor) -> Tensor:
    """The losses as constants, in no less than the precision of the computation."""
    return losses.detach().to(torch.promote_types(losses.dtype, problem.point.dtype))


def others_mean(x: Tensor) -> Tensor:
    """For every sample the mean over the other samples."""
    return (x.sum(0) - x) / (x.shape[0] - 1)


def spread(x: Tensor, like: Tensor) -> Tensor:
    """One number per joint sample, shaped to broadcast against its variables."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def aligned(weight: float | Tensor, like: Tensor) -> float | Tensor:
    """A number, or one for each element of the first axes of ``like``, to multiply that by."""
    return spread(weight, like) if isinstance(weight, Tensor) and weight.ndim else weight


def joint_sum(x: Tensor, like: Tensor) -> Tensor:
    """The sum over the variables of a joint sample, to the shape of ``like``."""
    axes = tuple(range(like.ndim, x.ndim))
    return x.sum(axes) if axes else x


def score(problem: Problem, drawn: Tensor) -> Tensor:
    """The gradient of the log-probability of each draw: the sample minus its mean."""
    return problem.family.residual(drawn, problem.point)


def weighted_score(problem: Problem, drawn: Tensor, weights: Tensor) -> Tensor:
    """The mean over the samples of a weight for each of them times its score."""
    return weighted(weights, score(problem, drawn))


def weighted(weights: Tensor, x: Tensor) -> Tensor:
    """The mean over the samples of a weight for each of them times ``x``."""
    return (spread(weights, x) * x).mean(0)


def call_network(network: Objective, x: Tensor) -> Tensor:
    """A user's function or network on ``x``, in the dtype of its parameters.

    The result is no narrower than the computation on ``x``, nor than what came out.
    """
    parameters = list(network.parameters()) if isinstance(network, nn.Module) else []
    y = network(x.to(parameters[0].dtype) if len(parameters) > 0 else x)
    if not isinstance(y, Tensor):
        return y
    return y.to(torch.promote_types(compute_dtype(x.dtype), y.dtype))


def learned_tensors(*sources: object) -> list[Tensor]:
    """Everything in these tensors and modules that learns."""
    tensors: list[Tensor] = []
    for source in sources:
        if isinstance(source, nn.Module):
            tensors += list(source.parameters())
        elif isinstance(source, Tensor):
            tensors.append(source)
    return [x for x in tensors if x.requires_grad]


def can_learn(learned: Sequence[Tensor]) -> bool:
    """Whether learned tensors get a gradient here: not in a transform or a compiled function."""
    return len(learned) > 0 and torch.is_grad_enabled() and not (transforming() or compiling())


def finish(
    problem: Problem, losses: Tensor, gradient: Tensor, learned: Sequence[Tensor] = ()
) -> Tensor:
    """The mean loss, with ``gradient`` for the logits.

    The learned tensors that ``gradient`` depends on get the gradient of its mean square. It is
    computed here, so that it reaches nothing else: not the parameters of f, not the logits.
    """
    value = losses.mean(0)
    latent_axes = problem.point.ndim - value.ndim
    fixed = gradient.detach().to(problem.point.dtype)
    result = value + attach_gradient(problem.logits, fixed, latent_axes).to(value.dtype)
    if can_learn(learned) and gradient.requires_grad:
        square = gradient.square().sum() / max(value.numel(), 1)
        slopes = torch.autograd.grad(square, learned, allow_unused=True)
        result = result + attach_learned(value, learned, slopes)
    return result
