"""The front of a diagnosis, and how a row of it is measured."""

import math
from typing import Any

import torch
from torch import Tensor

from .._checks import check_count, check_flag
from .._types import Objective
from ..families import FamilyLike
from .cost import count_evaluations, measure_seconds
from .draws import collect
from .entries import Candidate, Candidates, Entry, make_entries, plain
from .moments import GROUPS, Sums, Truth, Verdict, judge, moments, standard_errors
from .problem import NAME, Arguments, Problem, check_order, pose
from .progress import Bar, shown
from .reference import find_truth
from .result import Diagnosis, DiagnosisRow

_REFERENCE_RATIO = 4
_WORDS = {True: "biased", False: "no bias found", None: "too few draws"}


def diagnose(
    logits: Tensor,
    f: Objective,
    estimators: Candidates | None = None,
    *,
    num_draws: int = 1000,
    num_samples: int | None = None,
    family: FamilyLike = "categorical",
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

    A mean error counts as bias only if it is more than chance gives in one of 1000 cases, and more
    than outcomes can explain that are too rare for the number of draws: at confident logits all
    draws may be alike, and their spread then says nothing about what was not drawn. Where rare
    outcomes could explain it, the verdict is ``"too few draws"``, with the number that would tell.

    Nothing of yours is changed: no ``.grad``, no mode, and estimators that are modules are copied
    and put into evaluation mode. f itself is called as it is: put a model with dropout or batch
    normalisation into the mode that you mean to measure.

    Args:
        logits: As for ``expectation``; a constant here.
        f: As for ``expectation``. Estimators that need its gradient are listed as not applicable
            if it has none.
        estimators: Names, rows of the registry or of your own, samplers such as
            ``discretegrad.reinmax``, estimator objects, callables with the signature of
            ``reinforce``, or pairs of these with a dictionary of options
            (``("reinmax", {"tau": 1.3})``, ``("leave_one_out", {"num_samples": 4})``); or a mapping
            from labels to such. By default every registered estimator of the family that needs no
            control variate, less ``exact``. ``"relax"`` and ``"rodeo"`` by name get a new network
            that has learned nothing; pass an object to measure one that has.
        num_draws: Estimates per estimator.
        num_samples: Samples in each estimate, where an estimator's own options do not say. By
            default the fewest that it can work with.
        family: ``"categorical"`` (categories last), ``"bernoulli"`` or ``Subset(k)`` (items last).
        mask: Boolean, broadcasts to ``logits``, True where a category (or the value 1) is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
            With a generator every estimator starts from the same state, so that its row does not
            depend on the others. Another ``chunk_size`` means other draws.
        reference: The true gradient. ``"auto"`` enumerates up to ``max_outcomes`` joint outcomes;
            beyond, and if f gives two values for one sample, it is the mean of a long run of
            ``leave_one_out`` with 16 samples. ``"exact"`` always enumerates. Otherwise an
            unbiased estimator for the long run, given as in ``estimators`` (one of your own is
            trusted to be unbiased; of those that use the gradient of f, many have less variance),
            or the gradient itself, a tensor of the shape of ``logits`` that is taken as exact.
        reference_draws: Length of the long run; at least 32; by default ``4 * num_draws``.
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
        ...     logits, f, ["straight_through", "reinmax"], generator=generator
        ... )
        >>> result.best("bias").label, result["reinmax"].bias_detected
        ('reinmax', False)
    """
    check_order(logits, f, estimators)
    counts = {"num_draws": num_draws, "max_outcomes": max_outcomes, "num_samples": num_samples}
    counts |= {"chunk_size": chunk_size, "reference_draws": reference_draws}
    for option, value in counts.items():
        if value is not None or option in ("num_draws", "max_outcomes"):
            check_count(NAME, option, value)  # type: ignore[arg-type]
    if progress is not None:
        check_flag(NAME, "progress", progress)
    # a result needs gradients, whatever mode the caller is in
    with torch.inference_mode(False), torch.enable_grad():
        problem = pose(Arguments(logits, f, family, mask, generator, chunk_size, vectorize))
        if num_draws < 2:
            raise ValueError(
                f"{NAME}: expected at least 2 draws, to see a variance, got {num_draws}"
            )
        entries = make_entries(problem, estimators, num_samples)
        with shown(progress) as bar:
            long = reference_draws or max(GROUPS, _REFERENCE_RATIO * num_draws)
            truth = find_truth(problem, reference, long, max_outcomes, bar)
            state = None if generator is None else generator.get_state()
            rows = []
            for entry in entries:
                if generator is not None and state is not None:
                    generator.set_state(state)
                rows.append(_row(problem, entry, num_draws, truth, bar))
    return Diagnosis(
        rows=tuple(rows),
        reference=truth.description,
        reference_standard_error=math.sqrt(truth.variance),
        gradient_norm=truth.norm,
        num_draws=num_draws,
        shape=tuple(logits.shape),
        batch_shape=tuple(problem.batch_shape),
        family=problem.family.title,
        dtype=str(logits.dtype).removeprefix("torch."),
        device=_device_name(logits.device),
        torch_version=str(torch.__version__),
    )


def _row(problem: Problem, entry: Entry, draws: int, truth: Truth, bar: Bar) -> DiagnosisRow:
    options = {key: plain(value) for key, value in entry.options.items()}
    start = DiagnosisRow(entry.label, entry.name, entry.num_samples, options)
    bar.start(entry.label, draws)
    try:
        sums = collect(problem, entry, truth.vector, draws, bar.advance)
        evaluations, slopes = count_evaluations(problem, entry)
        seconds = measure_seconds(problem, entry)
    except torch.OutOfMemoryError:
        raise  # says nothing about the estimator: a smaller chunk_size may do
    except (TypeError, ValueError, RuntimeError) as error:
        # f and the logits are known to be good, so it is the estimator that cannot
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return _replace(start, status=f"not applicable: {lines[0]}")
    verdict = judge(sums, truth, entry.num_samples)
    measures = _measures(sums, truth, verdict, (evaluations, seconds))
    return _replace(start, evaluations=evaluations, slopes=slopes, seconds=seconds, **measures)


def _replace(row: DiagnosisRow, **changes: Any) -> DiagnosisRow:
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in changes.items()
    }
    return DiagnosisRow(**{**vars(row), **plain})


def _measures(
    sums: Sums, truth: Truth, verdict: Verdict, cost: tuple[int | None, float]
) -> dict[str, Any]:
    """Everything that follows from the sums, as fields of a row; NaN where undefined."""
    count = float(sums.count.sum())
    counts: dict[str, Any] = {"draws": int(count), "nonfinite": sums.seen - int(count)}
    if count < 2:
        return {**counts, "status": "not applicable: fewer than two estimates are finite"}
    variance, bias_squared, _, cosine_of_mean = (float(x) for x in moments(sums, truth))
    errors = [float(x) for x in standard_errors(sums, truth)]
    bias_squared = max(0.0, bias_squared)
    mse = variance + bias_squared
    evaluations, seconds = cost
    detected = verdict.detected
    bias = math.sqrt(bias_squared)
    lasting = 0.0 if detected is False else bias_squared
    cosine, square = (float(x) / count for x in sums.cosine)
    cosine_error = math.sqrt(max(0.0, square - cosine**2) / (count - 1))
    norm = truth.norm or math.nan
    return {
        **counts,
        "bias": bias,
        "bias_standard_error": errors[1] / (2 * bias) if detected and bias else math.nan,
        "bias_bound": math.sqrt(bias_squared + 2 * errors[1]) + verdict.missing,
        "bias_squared": bias_squared,
        "bias_squared_standard_error": errors[1],
        "bias_p_value": verdict.p_value,
        "bias_detected": detected,
        "verdict": _WORDS[detected],
        "draws_needed": verdict.draws_needed,
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


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
