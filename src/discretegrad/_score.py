"""What score-function estimators share: draw, evaluate f, and give the result its gradient.

Such an estimator computes its estimate of the gradient in forward, from values of f at discrete
samples. The result is the mean of those values; in backward the logits get the estimate, and
whatever f depends on gets its ordinary gradient, from the same evaluations.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ._attach import attach_gradient, attach_learned
from ._checks import (
    check_category_axis,
    check_differentiable,
    check_family,
    check_flag,
    check_logits,
    check_loss,
    check_objective,
    check_rows,
    check_samples,
)
from ._draw import draw_index, draw_uniform
from ._math import sigmoid_and_rest
from ._modes import compiling, transforming
from ._rows import Bits, Rows, bernoulli_bits, categorical_rows
from ._types import Family, Objective


class Task(NamedTuple):
    """An expectation to estimate."""

    name: str
    """The estimator, for messages."""
    family: Family
    logits: Tensor
    """Attached to the graph, -inf where excluded."""
    fixed: Tensor
    """The same as a constant, float32 or float64."""
    mean: Tensor
    """Of a sample: softmax or sigmoid of the logits, a constant."""
    rest: Tensor
    """For bits the probability of the value 0, accurate where that is small; else the mean."""
    f: Objective
    vectorize: bool


def open_task(
    name: str,
    logits: Tensor,
    f: Objective,
    family: Family,
    mask: Tensor | None,
    vectorize: bool,
) -> Task:
    """Check the arguments of the estimator ``name`` and normalise them."""
    check_family(name, family)
    check_objective(name, f)
    check_logits(name, logits)
    check_flag(name, "vectorize", vectorize)
    if family == "categorical":
        check_category_axis(name, logits)
        rows = categorical_rows(name, logits, 1.0, -1, mask)
        check_rows(name, rows.logits, rows.probs)
        fixed = rows.logits.detach().to(rows.probs.dtype)
        return Task(name, family, rows.logits, fixed, rows.probs, rows.probs, f, vectorize)
    bits = bernoulli_bits(name, logits, 1.0, mask)
    mean, rest = sigmoid_and_rest(bits.fixed)
    return Task(name, family, bits.logits, bits.fixed, mean, rest, f, vectorize)


def wants_gradient(task: Task, learned: Iterable[Tensor] = ()) -> bool:
    """Whether anybody can ask for a gradient; if not, the values of f are all there is to do."""
    if not torch.is_grad_enabled():
        return False
    return task.logits.requires_grad or transforming() or any(x.requires_grad for x in learned)


def as_rows(task: Task, count: int) -> Rows:
    """The categorical variables ``count`` times over."""
    return Rows(task.logits, task.mean.expand(count, *task.mean.shape), 1.0, -1)


def as_bits(task: Task, count: int) -> Bits:
    """The Bernoulli variables ``count`` times over."""
    return Bits(task.logits, task.fixed.expand(count, *task.fixed.shape), 1.0)


def given_samples(
    task: Task, samples: Tensor | None, count: int, generator: torch.Generator | None
) -> Tensor:
    """Those that the user has drawn, or new ones."""
    if samples is None:
        return draw_samples(task, count, generator)
    check_samples(task.name, samples, count, task.fixed, task.family)
    return samples.detach().to(task.logits.dtype)


def draw_samples(task: Task, count: int, generator: torch.Generator | None) -> Tensor:
    """Independent samples, (count, ...), in the dtype of the logits."""
    if task.family == "bernoulli":
        shape = (count, *task.fixed.shape)
        return less_likely(task, draw_uniform(task.name, shape, task.logits, generator))
    return one_hot(task, draw_index(task.name, as_rows(task, count), generator))


def less_likely(task: Task, uniform: Tensor) -> Tensor:
    """Bits that take their less likely value where ``uniform`` is below its probability."""
    flipped = uniform < torch.minimum(task.mean, task.rest)
    return (flipped ^ (task.fixed > 0)).to(task.logits.dtype)


def one_hot(task: Task, index: Tensor) -> Tensor:
    """The one-hot of an index of shape (..., 1), in the dtype of the logits."""
    return (torch.arange(task.fixed.shape[-1], device=index.device) == index).to(task.logits.dtype)


def likeliest(task: Task) -> Tensor:
    """The most likely sample."""
    if task.family == "bernoulli":
        return (task.fixed > 0).to(task.logits.dtype)
    return one_hot(task, task.fixed.argmax(-1, keepdim=True))


def evaluate(task: Task, samples: Tensor) -> Tensor:
    """f at each of the samples, (count, *batch), attached to whatever f depends on."""
    losses = evaluate_each(task.name, task.f, samples, task.family, task.vectorize)
    return losses if losses.is_floating_point() else losses.to(task.fixed.dtype)


def evaluate_each(
    name: str, f: Objective, samples: Tensor, family: Family, vectorize: bool
) -> Tensor:
    """The losses of samples stacked along the first axis, as f returns them."""
    variables = samples.shape[1:-1] if family == "categorical" else samples.shape[1:]

    def checked(sample: Tensor) -> Tensor:
        loss = f(sample)
        check_loss(name, loss, variables)
        return loss

    if vectorize and len(samples) > 1:
        losses: Tensor = torch.vmap(checked, randomness="different")(samples)
        return losses
    return torch.stack([checked(sample) for sample in samples.unbind()])


def evaluate_with_slope(task: Task, samples: Tensor) -> tuple[Tensor, Tensor]:
    """f and its gradient at each of the samples; f stays attached to whatever it depends on."""
    if transforming() or compiling():
        return _value_and_slope(partial(evaluate, task), samples)
    with torch.enable_grad():
        points = samples.detach().requires_grad_()
        losses = evaluate(task, points)
        slopes = _slope(task, losses, points, keep=True, learn=False)
    if all(leaf is points for leaf in graph_leaves(losses)):
        # else backward would go through f once more, for the points alone
        losses = losses.detach()
    return losses, slopes


def graph_leaves(x: Tensor) -> Iterator[Tensor]:
    """Everything that ``x.backward()`` would give a gradient."""
    seen, ahead = set(), [x.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # only the node that accumulates the gradient of a leaf has a variable
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        ahead += [before for before, _ in node.next_functions]


def value_and_slope(
    task: Task, control: Objective, points: Tensor, *, learn: bool
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
        slope = _slope(task, values, points, keep=learn, learn=learn)
    return (values, slope) if learn else (values.detach(), slope)


def _value_and_slope(function: Objective, points: Tensor) -> tuple[Tensor, Tensor]:
    """The same with what torch can transform and compile."""
    values, pull_back, *_ = torch.func.vjp(function, points)
    slope: Tensor = pull_back(torch.ones_like(values))[0]
    return values, slope.detach()


def _slope(task: Task, values: Tensor, points: Tensor, *, keep: bool, learn: bool) -> Tensor:
    slopes: tuple[Tensor | None, ...] = (None,)
    if values.requires_grad:
        slopes = torch.autograd.grad(
            values.sum(), points, retain_graph=keep, create_graph=learn, allow_unused=True
        )
    return check_differentiable(task.name, slopes[0])


def signal(task: Task, losses: Tensor) -> Tensor:
    """The losses as constants, in no less than the precision of the computation."""
    return losses.detach().to(torch.promote_types(losses.dtype, task.fixed.dtype))


def others_mean(x: Tensor) -> Tensor:
    """For every sample the mean over the other samples."""
    return (x.sum(0) - x) / (x.shape[0] - 1)


def spread(x: Tensor, like: Tensor) -> Tensor:
    """One number per joint sample, shaped to broadcast against its variables."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def joint_sum(x: Tensor, like: Tensor) -> Tensor:
    """The sum over the variables of a joint sample, to the shape of ``like``."""
    axes = tuple(range(like.ndim, x.ndim))
    return x.sum(axes) if axes else x


def score(task: Task, samples: Tensor) -> Tensor:
    """The gradient of the log-probability: the sample minus its mean."""
    if task.family == "categorical":
        return samples.to(task.mean.dtype) - task.mean
    # -p where the bit is 0, and 1 - p, without cancellation, where it is 1
    return torch.lerp(-task.mean, task.rest, samples.to(task.mean.dtype))


def covariance_product(task: Task, g: Tensor) -> Tensor:
    """The covariance of a sample times ``g``, which is also the Jacobian of its mean."""
    if task.family == "bernoulli":
        return task.mean * task.rest * g
    product = task.mean * g
    return product - task.mean * product.sum(-1, keepdim=True)


def finite_logits(task: Task) -> Tensor:
    """The logits for a network to read: a constant, zero where they are infinite."""
    logits = task.logits.detach()
    return logits.masked_fill(logits.isinf(), 0)


def call_network(network: Objective, x: Tensor) -> Tensor:
    """A user's function or network on ``x``, in the dtype of its parameters and back."""
    parameters = list(network.parameters()) if isinstance(network, nn.Module) else []
    y = network(x.to(parameters[0].dtype) if len(parameters) > 0 else x)
    return y.to(x.dtype) if isinstance(y, Tensor) else y


def learned_tensors(*sources: object) -> list[Tensor]:
    """Everything in these tensors and modules that learns."""
    found: list[Tensor] = []
    for source in sources:
        if isinstance(source, nn.Module):
            found += list(source.parameters())
        elif isinstance(source, Tensor):
            found.append(source)
    return [x for x in found if x.requires_grad]


def can_learn(learned: Sequence[Tensor]) -> bool:
    """Whether learned tensors get a gradient here: not in a transform or a compiled function."""
    return len(learned) > 0 and torch.is_grad_enabled() and not (transforming() or compiling())


def finish(task: Task, losses: Tensor, gradient: Tensor, learned: Sequence[Tensor] = ()) -> Tensor:
    """The mean loss, with ``gradient`` for the logits.

    The learned tensors that ``gradient`` depends on get the gradient of its mean square. It is
    computed here, so that it reaches nothing else: not the parameters of f, not the logits.
    """
    value = losses.mean(0)
    latent_axes = task.fixed.ndim - value.ndim
    estimate = gradient.detach().to(task.fixed.dtype)
    result = value + attach_gradient(task.logits, estimate, latent_axes).to(value.dtype)
    if can_learn(learned) and gradient.requires_grad:
        square = gradient.square().sum() / max(value.numel(), 1)
        slopes = torch.autograd.grad(square, learned, allow_unused=True)
        result = result + attach_learned(value, learned, slopes)
    return result
