"""Which estimator suits a model: bias, variance and cost of each, measured on the model itself."""

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ._checks import (
    check_candidate,
    check_count,
    check_draws,
    check_estimate,
    check_estimators,
    check_finite_reference,
    check_flag,
    check_generator,
    check_loss,
    check_not_empty,
    check_reference,
    check_unbiased,
)
from ._diagnosis import Diagnosis, DiagnosisRow
from ._exact import exact_gradient
from ._expectation import expectation
from ._modes import transforming
from ._moments import Sums, Truth, moments, p_value_of, standard_errors, variance_of
from ._progress import Bar, shown
from ._registry import ESTIMATORS, Estimator, get
from ._score import graph_leaves, likeliest, open_task
from ._types import Family, Objective

EstimatorLike: TypeAlias = str | Estimator | Callable[..., Tensor]
Candidate: TypeAlias = EstimatorLike | tuple[EstimatorLike, Mapping[str, Any]]

_NAME = "diagnose"
_SIGNIFICANCE = 1e-3
_CHUNK_ELEMENTS = 2**20
_REFERENCE_SAMPLES = 16
_REFERENCE_RATIO = 4
_WARM_UPS = 2
_TIMED_CALLS = 7
# so many units in the last place of the logits' dtype, relative to the gradient, are rounding
_ROUNDING = 16


def diagnose(
    f: Objective,
    logits: Tensor,
    estimators: Sequence[Candidate] | Mapping[str, Candidate] | None = None,
    *,
    num_draws: int = 1000,
    num_samples: int | None = None,
    family: Family = "categorical",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    reference: Candidate | Tensor = "auto",
    reference_draws: int | None = None,
    max_outcomes: int = 2**16,
    chunk_size: int | None = None,
    vectorize: bool = True,
    progress: bool | None = None,
) -> Diagnosis:
    r"""Measure bias, variance and cost of estimators on your own f and logits.

    Each estimator is drawn ``num_draws`` times. Its estimates $G_1, \dots, G_N$ of the gradient
    $g$ of $E[f]$ are taken as vectors over all logits of the whole batch. With their mean
    $\bar G$ and their variance $V = \frac{1}{N-1} \sum_i |G_i - \bar G|^2$, the squared bias is

    $$B = \max(0,\ |\bar G - g|^2 - V / N - V_g),$$

    where $V_g$ is the variance of the reference $g$ itself, zero if it is exact: without the last
    two terms noise would pass for bias. The mean squared error is $B + V$. What one evaluation of
    f buys is $B + V \cdot \text{evaluations}$, and one second $B + V \cdot \text{seconds}$: under
    averaging, variance times cost stays what it is, while no budget buys off the bias. (For these
    two, a bias that is not distinguishable from zero counts as zero.)

    The cosine similarity is taken for each batch element and averaged over the batch, for single
    estimates and for $\bar G$. An estimate that is zero counts as cosine 0; batch elements whose
    true gradient is zero are left out. Against a reference that is a long run, cosines are lower
    than the truth, by a factor of about $1 - V_g / 2 |g|^2$. Standard errors are those of the
    jackknife over 32 groups of draws.

    Nothing of yours is changed: no ``.grad``, no mode, and estimators that are modules are copied
    and put into evaluation mode. f itself is called as it is: put a model with dropout or batch
    normalisation into the mode that you mean to measure.

    Args:
        f: As for ``expectation``. Estimators that need its gradient are listed as not applicable
            if it has none.
        logits: As for ``expectation``; a constant here.
        estimators: Names, registry rows, estimator objects or pairs of these with a dictionary of
            options (``("reinmax", {"tau": 1.3})``, ``("leave_one_out", {"num_samples": 4})``);
            or a mapping from labels to such. By default every registered estimator of the family
            that needs no object, less ``exact``.
        num_draws: Estimates per estimator.
        num_samples: Samples in each estimate, where an estimator's own options do not say. By
            default the fewest that it can work with.
        family: ``"categorical"`` (categories last) or ``"bernoulli"``.
        mask: Boolean, broadcasts to ``logits``, True where a category (or the value 1) is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
            With a generator every estimator starts from the same state, so that its row does not
            depend on the others. Another ``chunk_size`` means other draws.
        reference: The true gradient. ``"auto"`` enumerates up to ``max_outcomes`` joint outcomes;
            beyond, and if f gives two values for one sample, it is the mean of a long run of
            ``leave_one_out`` with 16 samples. ``"exact"`` always enumerates. Otherwise an
            unbiased estimator for the long run, given as in ``estimators`` (an object is trusted
            to be unbiased; of those that use the gradient of f, many have less variance), or the
            gradient itself, a tensor of the shape of ``logits`` that is taken as exact.
        reference_draws: Length of the long run; by default ``4 * num_draws``.
        max_outcomes: Most joint outcomes to enumerate.
        chunk_size: Draws made at once. Memory grows with it and not with ``num_draws``. By
            default so many that their samples have about a million elements.
        vectorize: Evaluate the draws of a chunk with ``torch.vmap``. Set it to False for an f that
            vmap cannot trace: f then runs once per draw.
        progress: Whether to show a progress bar on stderr; by default on terminals only.

    Returns:
        A ``Diagnosis``: print it, or use its ``rows``, ``best``, ``to_dicts`` and ``plot``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, a name is not known, or the reference is not known to be
            unbiased.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3)  # two variables with three categories
        >>> f = lambda z: (z @ torch.tensor([1.0, 2.0, 4.0])).sum(-1).square()
        >>> generator = torch.Generator().manual_seed(0)
        >>> result = discretegrad.diagnose(
        ...     f, logits, ["straight_through", "reinmax"], generator=generator
        ... )
        >>> result.best("bias").label, result["reinmax"].bias_detected
        ('reinmax', False)
    """
    check_count(_NAME, "num_draws", num_draws)
    check_count(_NAME, "max_outcomes", max_outcomes)
    if num_samples is not None:
        check_count(_NAME, "num_samples", num_samples)
    if chunk_size is not None:
        check_count(_NAME, "chunk_size", chunk_size)
    if reference_draws is not None:
        check_count(_NAME, "reference_draws", reference_draws)
    if progress is not None:
        check_flag(_NAME, "progress", progress)
    # a result needs gradients, whatever mode the caller is in
    with torch.inference_mode(False), torch.enable_grad():
        problem = _problem(f, logits, family, mask, chunk_size, vectorize)
        check_generator(_NAME, generator, logits)
        check_draws(_NAME, num_draws)
        entries = _entries(estimators, num_samples, problem)
        with shown(progress) as bar:
            truth = _reference(
                problem,
                reference,
                reference_draws or _REFERENCE_RATIO * num_draws,
                max_outcomes,
                generator,
                bar,
            )
            state = None if generator is None else generator.get_state()
            rows = []
            for entry in entries:
                if generator is not None and state is not None:
                    generator.set_state(state)
                rows.append(_row(problem, entry, num_draws, truth, generator, bar))
    return Diagnosis(
        rows=tuple(rows),
        reference=truth.description,
        reference_standard_error=math.sqrt(truth.variance),
        gradient_norm=truth.norm,
        num_draws=num_draws,
        shape=tuple(logits.shape),
        batch_shape=tuple(problem.batch_shape),
        family=family,
        dtype=str(logits.dtype).removeprefix("torch."),
        device=_device_name(logits.device),
        torch_version=str(torch.__version__),
    )


class _Problem(NamedTuple):
    f: Objective
    many: Objective
    """f for samples with an axis of draws in front."""
    logits: Tensor
    """A constant copy of the user's."""
    family: Family
    mask: Tensor | None
    batch_shape: torch.Size
    states: int
    chunk_size: int | None
    vectorize: bool
    stochastic: bool
    """Whether f gave two values for one sample."""


class _Entry(NamedTuple):
    """One estimator to measure."""

    label: str
    name: str
    estimator: EstimatorLike
    options: dict[str, Any]
    num_samples: int
    row: Estimator | None
    """Of the registry, if it is there."""


def _problem(
    f: Objective,
    logits: Tensor,
    family: Family,
    mask: Tensor | None,
    chunk_size: int | None,
    vectorize: bool,
) -> _Problem:
    """Check the arguments and find, from one call of f with two equal samples, the batch shape."""
    task = open_task(_NAME, logits, f, family, mask, vectorize)
    check_not_empty(_NAME, logits)
    many = _over_draws(f, vectorize)
    sample = likeliest(task)
    with torch.no_grad(), _VmapHint(vectorize):
        losses = many(torch.stack([sample, sample]))
    variables = logits.shape[:-1] if family == "categorical" else logits.shape
    check_loss(_NAME, losses[0] if isinstance(losses, Tensor) else losses, variables)
    first, second = losses.double()
    return _Problem(
        f,
        many,
        logits.detach().clone(),
        family,
        mask,
        losses.shape[1:],
        logits.shape[-1] if family == "categorical" else 2,
        chunk_size,
        vectorize,
        # the same sums in another order are no randomness
        not torch.allclose(first, second, rtol=1e-4, atol=0, equal_nan=True),
    )


class _VmapHint:
    """Adds to an error of f what may help."""

    def __init__(self, vectorize: bool) -> None:
        self.vectorize = vectorize

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self.vectorize:
            error.add_note("diagnose: if torch.vmap cannot trace f, pass vectorize=False.")


def _over_draws(f: Objective, vectorize: bool) -> Objective:
    if vectorize:
        return torch.vmap(f, randomness="different")

    def loop(samples: Tensor) -> Tensor:
        losses = [f(sample) for sample in samples]
        # what f returns instead of a tensor is for check_loss to refuse
        return torch.stack(losses) if all(isinstance(x, Tensor) for x in losses) else losses[0]

    return loop


def _entries(
    estimators: Sequence[Candidate] | Mapping[str, Candidate] | None,
    num_samples: int | None,
    problem: _Problem,
) -> list[_Entry]:
    if estimators is None:
        estimators = [
            row.name
            for row in ESTIMATORS.values()
            if problem.family in row.families and row.name != "exact" and not _needs_object(row)
        ]
    check_estimators(_NAME, estimators)
    if isinstance(estimators, Mapping):
        return [
            _entry(item, num_samples, problem)._replace(label=str(label))
            for label, item in estimators.items()
        ]
    entries: list[_Entry] = []
    for item in estimators:
        entry = _entry(item, num_samples, problem)
        alike = sum(other.label.split(" #")[0] == entry.label for other in entries)
        entries.append(
            entry._replace(label=f"{entry.label} #{alike + 1}" if alike else entry.label)
        )
    return entries


def _needs_object(row: Estimator) -> bool:
    """Whether it works only with a control variate that the user makes."""
    return "control" in row.options


def _entry(item: Any, num_samples: int | None, problem: _Problem) -> _Entry:
    estimator, options = item if isinstance(item, tuple) and len(item) == 2 else (item, {})
    check_candidate(_NAME, estimator, isinstance(estimator, (str, Estimator)), options)
    options = dict(options)
    row = _registered(estimator)
    name = estimator if isinstance(estimator, str) else _name(estimator)
    samples = options.pop("num_samples", None) or num_samples or (row.min_samples if row else 1)
    check_count(_NAME, "num_samples", samples)
    words = [name, *(f"{key}={_plain(value)}" for key, value in options.items())]
    if samples > 1:
        words.append(f"K={samples}")
    if problem.mask is not None:
        options.setdefault("mask", problem.mask)
    return _Entry(
        " ".join(words),
        name,
        estimator,
        options,
        samples,
        row,
    )


def _registered(estimator: EstimatorLike) -> Estimator | None:
    """The registry row of a name, a function or a module, if there is one."""
    if isinstance(estimator, Estimator):
        return estimator
    if isinstance(estimator, str):
        return get(estimator)
    for row in ESTIMATORS.values():
        if type(estimator) is row.module or estimator in row.functions.values():
            return row
    return None


def _name(thing: object) -> str:
    """Of a registry row, a function or an object."""
    if isinstance(thing, Estimator):
        return thing.name
    name = getattr(thing, "__name__", None)
    return name if isinstance(name, str) else type(thing).__name__


def _plain(value: object) -> object:
    """A number or a word as it is, anything else as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else f"tensor{tuple(value.shape)}"
    return _name(value)


def _copied(entry: _Entry, *, learn: bool) -> _Entry:
    """The entry with copies of all modules, in evaluation mode."""

    def fresh(value: Any) -> Any:
        if not isinstance(value, nn.Module):
            return value
        value = copy.deepcopy(value).eval()
        return value if learn else value.requires_grad_(False)

    options = {key: fresh(value) for key, value in entry.options.items()}
    return entry._replace(estimator=fresh(entry.estimator), options=options)


def _estimate(
    problem: _Problem,
    entry: _Entry,
    f: Objective,
    logits: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    values = expectation(
        logits,
        f,
        entry.estimator,
        num_samples=entry.num_samples,
        family=problem.family,
        generator=generator,
        **entry.options,
    )
    lead = logits.shape[: logits.ndim - problem.logits.ndim]
    return check_estimate(entry.label, values, lead + problem.batch_shape)


def _gradients(
    problem: _Problem, entry: _Entry, draws: int, generator: torch.Generator | None
) -> Tensor:
    """Independent estimates of the gradient, (draws, numel): one for each copy of the logits."""
    copies = problem.logits.expand(draws, *problem.logits.shape).clone().requires_grad_()
    values = _estimate(problem, entry, problem.many, copies, generator)
    (gradients,) = torch.autograd.grad(values.sum(), copies)
    return gradients.detach().reshape(draws, -1)


def _collect(
    problem: _Problem,
    entry: _Entry,
    truth: Tensor,
    draws: int,
    generator: torch.Generator | None,
    advance: Callable[[int], None],
) -> Sums:
    private = _copied(entry, learn=False)
    rounding = _ROUNDING * torch.finfo(problem.logits.dtype).eps
    sums = Sums(truth, math.prod(problem.batch_shape), rounding, draws)
    chunk_size = _chunk_size(problem, entry.num_samples)
    for first in range(0, draws, chunk_size):
        size = min(chunk_size, draws - first)
        sums.add(_gradients(problem, private, size, generator))
        advance(size)
    return sums


def _chunk_size(problem: _Problem, num_samples: int) -> int:
    samples = num_samples * problem.logits.numel()
    return problem.chunk_size or max(1, _CHUNK_ELEMENTS // samples)


def _reference(
    problem: _Problem,
    reference: object,
    draws: int,
    max_outcomes: int,
    generator: torch.Generator | None,
    bar: Bar,
) -> Truth:
    if isinstance(reference, Tensor):
        check_reference(_NAME, reference, problem.logits)
        return Truth(_wide(reference.detach()).flatten(), "a given tensor, taken as exact")
    outcomes = _outcomes(problem)
    automatic = isinstance(reference, str) and reference == "auto"
    if reference == "exact" or (automatic and outcomes <= max_outcomes and not problem.stochastic):
        bar.start("reference", 1)
        gradient = exact_gradient(
            problem.logits,
            problem.f,
            family=problem.family,
            mask=problem.mask,
            max_outcomes=max_outcomes,
            chunk_size=_chunk_size(problem, 1),
            vectorize=problem.vectorize,
        )
        bar.advance(1)
        return Truth(_wide(gradient).flatten(), f"exact, {outcomes} joint outcomes enumerated")
    return _long_run(problem, "leave_one_out" if automatic else reference, draws, generator, bar)


def _long_run(
    problem: _Problem,
    reference: object,
    draws: int,
    generator: torch.Generator | None,
    bar: Bar,
) -> Truth:
    entry = _entry(reference, _REFERENCE_SAMPLES, problem)
    if isinstance(entry.estimator, (str, Estimator)) and entry.row is not None:
        unbiased = [name for name, row in ESTIMATORS.items() if row.unbiased]
        check_unbiased(_NAME, entry.name, entry.row.unbiased, unbiased)
    check_draws(_NAME, draws)
    bar.start("reference", draws)
    centre = torch.zeros_like(_wide(problem.logits)).flatten()
    sums = _collect(problem, entry, centre, draws, generator, bar.advance)
    check_finite_reference(_NAME, entry.label, int(sums.count.sum()), draws)
    count, first, second = sums.count.sum(), sums.first.sum(0), sums.second.sum()
    rest = count - sums.count
    others = (first - sums.first) / rest.unsqueeze(-1)
    variances = variance_of(rest, first - sums.first, second - sums.second) / rest
    variance = float(variance_of(count, first, second) / count)
    return Truth(
        first / count,
        f"mean of {draws} draws of {entry.label}",
        variance,
        sums.group_means,
        others - first / count,
        variances,
    )


def _row(
    problem: _Problem,
    entry: _Entry,
    draws: int,
    truth: Truth,
    generator: torch.Generator | None,
    bar: Bar,
) -> DiagnosisRow:
    start = DiagnosisRow(
        entry.label,
        entry.name,
        entry.num_samples,
        {key: _plain(value) for key, value in entry.options.items()},
    )
    bar.start(entry.label, draws)
    try:
        sums = _collect(problem, entry, truth.vector, draws, generator, bar.advance)
        evaluations, slopes = _costs(problem, entry, generator)
        seconds = _seconds(problem, entry, generator)
    except torch.OutOfMemoryError:
        raise  # says nothing about the estimator: a smaller chunk_size may do
    except (TypeError, ValueError, RuntimeError) as error:
        # f and the logits are known to be good, so it is the estimator that cannot
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return _replace(start, status=f"not applicable: {lines[0]}")
    measures = _measures(sums, truth, evaluations, seconds)
    return _replace(start, evaluations=evaluations, slopes=slopes, seconds=seconds, **measures)


def _replace(row: DiagnosisRow, **changes: Any) -> DiagnosisRow:
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in changes.items()
    }
    return DiagnosisRow(**{**vars(row), **plain})


def _measures(sums: Sums, truth: Truth, evaluations: int | None, seconds: float) -> dict[str, Any]:
    """Everything that follows from the sums, as fields of a row; NaN where undefined."""
    count = float(sums.count.sum())
    counts: dict[str, Any] = {"draws": int(count), "nonfinite": sums.seen - int(count)}
    if count < 2:
        return {**counts, "status": "not applicable: fewer than two estimates are finite"}
    variance, bias_squared, _, cosine_of_mean = (float(x) for x in moments(sums, truth))
    errors = [float(x) for x in standard_errors(sums, truth)]
    bias_squared = max(0.0, bias_squared)
    mse = variance + bias_squared
    p_value = p_value_of(sums, truth)
    detected = None if math.isnan(p_value) else p_value < _SIGNIFICANCE
    bias = math.sqrt(bias_squared)
    lasting = 0.0 if detected is False else bias_squared
    cosine, square = (float(x) / count for x in sums.cosine)
    cosine_error = math.sqrt(max(0.0, square - cosine**2) / (count - 1))
    norm = truth.norm or math.nan
    return {
        **counts,
        "bias": bias,
        "bias_standard_error": errors[1] / (2 * bias) if detected and bias else math.nan,
        "bias_bound": math.sqrt(bias_squared + 2 * errors[1]),
        "bias_squared": bias_squared,
        "bias_squared_standard_error": errors[1],
        "bias_p_value": p_value,
        "bias_detected": detected,
        "variance": variance,
        "variance_standard_error": errors[0],
        "mse": mse,
        "mse_standard_error": errors[2],
        "relative_bias": bias / norm,
        "relative_deviation": math.sqrt(variance) / norm,
        "relative_mse": mse / norm**2,
        "cosine": cosine,
        "cosine_standard_error": cosine_error,
        "cosine_of_mean": cosine_of_mean,
        "cosine_of_mean_standard_error": errors[3],
        "mse_per_evaluation": lasting + variance * (evaluations or math.nan),
        "mse_per_second": lasting + variance * seconds,
    }


class _Counter:
    """f, with a count of the samples it was called with and of those whose gradient was taken."""

    def __init__(self, f: Objective) -> None:
        self.f = f
        self.calls = 0
        self.slopes: set[int] = set()
        self.hidden = False
        """Whether it was called inside a transform, where one call stands for many."""

    def __call__(self, sample: Tensor) -> Tensor:
        if transforming():
            self.hidden = True
            return self.f(sample)
        self.calls += 1
        return self.f(_Watched.apply(sample, partial(self.slopes.add, self.calls)))


class _Watched(torch.autograd.Function):
    """The identity; tells when a gradient passes."""

    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, x: Tensor, tell: Callable[[], None]) -> Tensor:
        ctx.tell = tell
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.tell()
        return g, None


def _costs(
    problem: _Problem, entry: _Entry, generator: torch.Generator | None
) -> tuple[int | None, int | None]:
    """Evaluations of f and of its gradient for one estimate: counted, or as registered."""
    counter = _Counter(problem.f)
    logits = problem.logits.clone().requires_grad_()
    private = _copied(entry, learn=False)
    loss = _estimate(problem, private, counter, logits, generator).sum()
    torch.autograd.grad(loss, logits)
    row = entry.row
    if not counter.hidden:
        return counter.calls, len(counter.slopes)
    if row is None:
        return None, None
    return row.cost(entry.num_samples) or (_outcomes(problem), 0)


def _outcomes(problem: _Problem) -> int:
    """How many joint outcomes there are."""
    variables = math.prod(problem.logits.shape[len(problem.batch_shape) :])
    if problem.family == "categorical":
        variables //= problem.states
    return int(problem.states**variables)


def _seconds(problem: _Problem, entry: _Entry, generator: torch.Generator | None) -> float:
    """Median time of one estimate, forward and backward, as in a step of training."""
    private = _copied(entry, learn=True)
    times = []
    for _ in range(_WARM_UPS + _TIMED_CALLS):
        logits = problem.logits.clone().requires_grad_()
        _synchronise(logits.device)
        began = time.perf_counter()
        loss = _estimate(problem, private, problem.f, logits, generator).sum()
        # backward without .grad: everything that learns gets its gradient, and it is dropped
        torch.autograd.grad(loss, list(graph_leaves(loss)), allow_unused=True)
        _synchronise(logits.device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[_WARM_UPS:])


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _wide(x: Tensor) -> Tensor:
    # Apple GPUs have no float64
    return x.cpu().double() if x.device.type == "mps" else x.double()
