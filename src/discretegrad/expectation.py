"""One front for all estimators: the mean of f over samples, with the gradient of your choice."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ._checks import check_logits, check_objective, check_options, check_vectorize
from ._modes import compiling
from ._row import Estimator
from ._score import check_works_on, evaluate_each, joint_size, sample_count
from ._types import Call, Objective, Vectorize
from .families import Family, FamilyLike, get_family
from .registry import EstimatorLike, find_row, get

_COMMON = ("mask", "given", "vectorize")


def expectation(
    logits: Tensor,
    f: Objective,
    estimator: EstimatorLike = "reinmax",
    *,
    num_samples: int | None = None,
    family: FamilyLike = "categorical",
    generator: torch.Generator | None = None,
    **options: Any,
) -> Tensor:
    r"""Monte Carlo mean of f, differentiable by any estimator of the library.

    The value is $\frac1K \sum_k f(z_k)$ for samples of ``softmax(logits)`` or ``sigmoid(logits)``.
    In backward the logits get the estimator's gradient of $E[f(z)]$, and everything else that f
    depends on, such as the weights of a decoder, its ordinary gradient. Both come from the same
    evaluations of f.

    Args:
        logits: (..., n) categorical logits with the categories last, or Bernoulli log-odds of any
            shape; any floating dtype.
        f: Maps a sample of the shape of ``logits`` to one loss per batch element, that is, to a
            tensor whose shape is a prefix of the shape of ``logits``; the axes it has consumed
            form one joint sample. It is called once per sample, each a copy of its own that it
            may write into. It may be random. For score-function estimators it may return integers
            and need not be differentiable.
        estimator: A name in ``discretegrad.ESTIMATORS``, a row of that table or of your own, a
            sampler such as ``discretegrad.reinmax`` or ``partial(discretegrad.reinmax, tau=1.3)``,
            or an estimator object: a module such as ``Relax``, or any callable with the signature
            of ``reinforce``.
        num_samples: Samples to average over, the K of estimators that compare samples. By default
            as many as are given, or the least number that the estimator needs.
        family: The kind of variable: ``"categorical"``, ``"bernoulli"`` or ``Subset(k)``.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        **options: What the estimator takes besides: ``mask``; ``given``, draws that were made
            elsewhere, as for ``reinforce``; ``vectorize``, for f on all samples in one call, as
            for ``reinforce``; for samplers ``tau`` and ``backend``; and the options in its
            row of the table.

    Returns:
        The mean of f over the samples, of the batch shape.

    Raises:
        TypeError: If an argument has the wrong type or dtype, or f does not return a tensor.
        ValueError: If the estimator does not exist, is not defined for the family, needs more
            samples or a differentiable f, or does not have an option; the message names those
            that do. If shapes do not fit, a logit is NaN, or no category is allowed.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(100, 5, 3, requires_grad=True)  # batch, variables, categories
        >>> weight = torch.ones(3, requires_grad=True)
        >>> f = lambda z: (z @ weight - 2).square().sum(-1)  # (100, 5, 3) -> (100,)
        >>> loss = discretegrad.expectation(logits, f, "leave_one_out", num_samples=4)
        >>> loss.shape
        torch.Size([100])
        >>> loss.mean().backward()
        >>> logits.grad.shape, weight.grad.shape
        (torch.Size([100, 5, 3]), torch.Size([3]))
    """
    name = "expectation"
    kind = get_family(name, family)
    check_objective(name, f)
    check_logits(name, logits)
    if num_samples is not None:
        options["num_samples"] = num_samples
    if isinstance(estimator, partial):
        check_partial(name, estimator)
        row = _find_row_of_partial(estimator)
    else:
        row = find_row(estimator)
    if row is None:
        arguments = {"family": family, "generator": generator, **options}
        _check_callable(name, estimator, (logits, f), arguments)
        assert callable(estimator)
        return estimator(logits, f, **arguments)
    check_works_on(row, kind)
    if row.kind == "score":
        common = _COMMON if row.evaluations is not None else ("mask", "vectorize")
        check_options(row.name, options, ("num_samples", *row.options, *row.takes, *common))
        return row.function(logits, f, family=family, generator=generator, **options)
    known = ("num_samples", *row.options, *row.takes, "tau", *_COMMON, "backend")
    check_options(row.name, options, known)
    return _sampled(row, kind, logits, f, family=family, generator=generator, **options)


def _find_row_of_partial(estimator: partial[Tensor]) -> Estimator | None:
    """The row of a sampler to which ``functools.partial`` has given options, with these options.

    A score-function estimator with options is called like any other callable.
    """
    row = find_row(estimator.func)
    return replace(row, function=estimator) if row is not None and row.kind == "sampler" else None


def check_partial(name: str, estimator: partial[Tensor]) -> None:
    """``functools.partial`` has given an estimator nothing that ``name`` overrides or misreads."""
    row = find_row(estimator.func)
    if row is not None and estimator.args:
        raise TypeError(
            f"{name}: expected a partial that gives options by their names, got "
            f"{_in_words(estimator)}. {name} itself passes what comes first, from the logits on."
        )
    itself = "itself, which overrides what a partial has."
    advice = {
        "family": f"Pass family to {name} {itself}",
        "generator": f"Pass generator to {name} {itself}",
    }
    if row is not None and row.kind == "sampler":
        advice["dim"] = "Here categories are last: pass logits.movedim(dim, -1)."
        advice["given"] = f"Pass given to {name} itself, with samples in a leading axis."
    for option in estimator.keywords:
        if option in advice:
            raise TypeError(
                f"{name}: expected a partial without {option}, got {_in_words(estimator)}. "
                f"{advice[option]}"
            )


def _in_words(estimator: partial[Tensor]) -> str:
    """Without values, which may be large tensors."""
    function = getattr(estimator.func, "__name__", type(estimator.func).__name__)
    bound = ["..." for _ in estimator.args] + [f"{option}=..." for option in estimator.keywords]
    return f"partial({', '.join([function, *bound])})"


def _sampled(
    row: Estimator,
    kind: Family,
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    vectorize: Vectorize = False,
    **arguments: Any,
) -> Tensor:
    name = row.name
    num_samples = sample_count(row, num_samples, arguments.get("given"))
    check_vectorize(name, vectorize)
    # here, where messages can show the shape that the user knows
    call = Call(name, logits, arguments.get("tau", 1.0), mask=arguments.get("mask"))
    kind.check(call, learnable_tau=arguments.get("hard") is False)
    copies = logits.expand(num_samples, *logits.shape)
    samples = row.function(copies, **arguments)
    losses = evaluate_each(name, f, samples, kind, vectorize)
    return (losses if losses.is_floating_point() else losses.to(logits.dtype)).mean(0)


def make_object(
    estimator: str | Estimator,
    logits: Tensor,
    f: Objective,
    family: FamilyLike = "categorical",
    mask: Tensor | None = None,
) -> nn.Module:
    """A new estimator object with its defaults, for a row that has a ``module``.

    A module whose constructor requires an argument gets the size of one joint sample, which one
    call of f shows.
    """
    row = get(estimator) if isinstance(estimator, str) else estimator
    if row.module is None:
        raise ValueError(
            f"expected an estimator that can learn, got {row.name!r}, which has no module"
        )
    signature = inspect.signature(row.module)
    required = any(x.default is x.empty for x in signature.parameters.values())
    sizes = [joint_size(row.name, logits, f, family, mask)] if required else []
    return row.module(*sizes).to(logits.device)


def _check_callable(
    name: str, estimator: object, positional: tuple[Any, ...], arguments: Mapping[str, Any]
) -> None:
    if not callable(estimator):
        raise TypeError(
            f"{name}: expected estimator to be a name in discretegrad.ESTIMATORS, a row, a sampler "
            f"of discretegrad, or a callable with the arguments of discretegrad.reinforce, got "
            f"{type(estimator).__name__}"
        )
    if isinstance(estimator, type):
        raise TypeError(
            f"{name}: expected an estimator object, got the class {estimator.__name__}. Make one "
            "once, so that it can learn, and pass that."
        )
    if compiling():
        return
    try:
        inspect.signature(estimator).bind(*positional, **arguments)
    except TypeError as error:
        raise TypeError(
            f"{name}: expected an estimator that can be called as discretegrad.reinforce is, with "
            f"(logits, f) and {', '.join(arguments)}, got {estimator!r}: {error}. For a sampler of "
            "your own make a row, see docs/adding-an-estimator.md."
        ) from error
    except ValueError:
        return  # something that does not say what it takes
