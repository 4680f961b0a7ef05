"""Every check of what a user passes in, and every message a user can meet.

Checks of types and shapes always run: they cost nothing. Checks of *values* (NaN, a row without
a single allowed category, a temperature tensor that is not positive, an index out of range) must
read the tensor, which would stall a GPU, so by default they run on the CPU only. See
``set_checks``.
"""

import math
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ._modes import compiling, transforming
from ._types import Objective, Temperature

# the smallest and largest normal number of the dtype that logits of a dtype are computed in
_TAU_LIMITS = {
    dtype: (torch.finfo(wide).tiny, torch.finfo(wide).max)
    for dtype, wide in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    )
}

ChecksMode = Literal["auto", "always", "never"]
_MODES = get_args(ChecksMode)


def is_word(value: object, *words: str) -> bool:
    """Whether an option is one of these words; arrays, which compare by element, are none."""
    return isinstance(value, str) and value in words


def set_checks(mode: ChecksMode) -> ChecksMode:
    """Choose when tensor *values* are checked, and return the mode that was set before.

    Args:
        mode: ``"auto"`` (the default) checks values on the CPU and never makes a GPU wait;
            ``"always"`` checks on every device, for debugging; ``"never"`` skips the checks.
            The environment variable ``DISCRETEGRAD_CHECKS`` sets the mode at import.

    Values cannot be read inside ``torch.compile``, ``torch.export`` or ``torch.func`` transforms
    (``vmap``, ``grad``), nor on tensor subclasses, so there they are never checked.

    Returns:
        The previous mode, to restore it later.

    Raises:
        ValueError: If ``mode`` is not one of the three.

    Example:
        >>> import discretegrad
        >>> before = discretegrad.set_checks("always")
        >>> discretegrad.set_checks(before)
        'always'
    """
    global _mode
    if not is_word(mode, *_MODES):
        name = "checks mode (also as DISCRETEGRAD_CHECKS)"
        raise ValueError(f"expected {name} to be one of {_MODES}, got {mode!r}")
    before, _mode = _mode, mode
    return before


_mode: ChecksMode = "auto"
set_checks(os.environ.get("DISCRETEGRAD_CHECKS") or "auto")  # type: ignore[arg-type]


def values_are_checked(x: Tensor) -> bool:
    """Whether reading the values of ``x`` is possible here and wanted."""
    # the cheap questions first: a call on a GPU asks this several times
    if _mode == "never" or (_mode == "auto" and not x.is_cpu):
        return False
    if type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return not (compiling() or transforming())


def check_logits(name: str, logits: Tensor) -> None:
    """``logits`` is a tensor of a dtype that the library computes with."""
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"{name}: expected logits to be a torch.Tensor, got {type(logits).__name__}. "
            "Convert with torch.as_tensor(logits)."
        )
    if logits.dtype not in _TAU_LIMITS:
        raise TypeError(
            f"{name}: expected floating-point logits of 16 to 64 bits, got dtype {logits.dtype}. "
            "Logits are unnormalised log-probabilities; convert with logits.float()."
        )
    check_dense(name, "logits", logits)


def is_dense(x: Tensor) -> bool:
    """Whether a tensor is neither sparse nor nested."""
    return x.layout is torch.strided and not x.is_nested


def check_index_type(name: str, given: object, of: str) -> None:
    """``given`` is a tensor of whole numbers, which stand for categories or experts."""
    if not isinstance(given, Tensor) or given.dtype not in (torch.int64, torch.int32):
        came = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise TypeError(
            f"{name}: expected given to be an int64 tensor of {of}, got {came}. "
            "Convert an index with .long(), a one-hot sample with .argmax(dim)."
        )
    check_dense(name, "given", given)


def check_dense(name: str, argument: str, x: Tensor) -> None:
    """The tensor is neither sparse nor nested."""
    if is_dense(x):
        return
    if x.is_nested:
        came, remedy = "a nested one", "Pad it with torch.nested.to_padded_tensor"
    else:
        came, remedy = f"one of layout {x.layout}", "Convert it with .to_dense()"
    raise TypeError(f"{name}: expected {argument} to be a dense tensor, got {came}. {remedy}.")


def check_dim(name: str, logits: Tensor, dim: int) -> None:
    """``dim`` is an axis of ``logits`` that is not empty."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"{name}: expected dim to be an int, got {type(dim).__name__}")
    if logits.ndim == 0:
        raise ValueError(
            f"{name}: expected logits with a category axis, got a scalar. For a single 0/1 "
            "variable with this log-odds pass torch.stack([torch.zeros_like(logits), logits]), or "
            'use an estimator that works with family="bernoulli".'
        )
    if not -logits.ndim <= dim < logits.ndim:
        raise ValueError(
            f"{name}: expected dim in [{-logits.ndim}, {logits.ndim - 1}] for logits of shape "
            f"{tuple(logits.shape)}, got {dim}"
        )
    if logits.shape[dim] == 0:
        raise ValueError(
            f"{name}: expected at least one category, got zero along dim {dim} of logits of "
            f"shape {tuple(logits.shape)}"
        )


def check_tau(
    name: str, tau: Temperature, logits: Tensor, dim: int | None, *, learnable: bool = False
) -> None:
    """``tau`` is a positive number, or a tensor of them with one value per row."""
    advice = "Use tau=1.0 unless you have tuned it."
    low, high = _TAU_LIMITS[logits.dtype]
    if isinstance(tau, Tensor):
        if tau.is_complex() or tau.dtype == torch.bool:
            raise TypeError(f"{name}: expected a real tau, got dtype {tau.dtype}. {advice}")
        check_dense(name, "tau", tau)
        if tau.requires_grad and not learnable:
            raise ValueError(
                f"{name}: expected tau to be a constant, got a tensor that requires grad; this "
                "estimator defines no gradient for its temperature. Pass tau.detach()."
            )
        try:
            fits = torch.broadcast_shapes(tau.shape, logits.shape) == logits.shape
        except RuntimeError:
            fits = False
        axis = None if dim is None else dim % logits.ndim - logits.ndim
        if not fits or (axis is not None and tau.ndim >= -axis and tau.shape[axis] != 1):
            wanted = "broadcasts against logits"
            if axis is not None:
                wanted += f" with size 1 along dim {dim} (one temperature per row)"
            raise ValueError(
                f"{name}: expected a tau that {wanted}, logits have shape {tuple(logits.shape)}, "
                f"got tau of shape {tuple(tau.shape)}. For one value per row use tau.unsqueeze(-1)."
            )
        if values_are_checked(tau):
            wide = tau.double()
            good = (wide >= low) & (wide <= high)
            if not good.all():
                bad = wide[~good][0].item()
                raise ValueError(
                    f"{name}: expected every tau in (0, inf), within the range in which "
                    f"{logits.dtype} is computed, got {bad}. {advice}"
                )
    elif isinstance(tau, bool) or not isinstance(tau, (int, float, torch.SymFloat, torch.SymInt)):
        raise TypeError(
            f"{name}: expected tau to be a number or a tensor, got {type(tau).__name__}. {advice}"
        )
    elif not low <= tau <= high:
        raise ValueError(
            f"{name}: expected tau in (0, inf), within the range in which {logits.dtype} is "
            f"computed, got {tau}. {advice}"
        )


def check_mask(name: str, mask: Tensor | None, logits: Tensor) -> None:
    """``mask`` is boolean and broadcasts to the shape of ``logits``."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{name}: expected mask to be a boolean tensor (True where a category is allowed), "
            f"got {came}. Convert with mask.bool()."
        )
    check_dense(name, "mask", mask)
    try:
        fits = torch.broadcast_shapes(mask.shape, logits.shape) == logits.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name}: expected a mask that broadcasts to the logits' shape "
            f"{tuple(logits.shape)}, got shape {tuple(mask.shape)}"
        )


def check_generator(name: str, generator: torch.Generator | None, logits: Tensor) -> None:
    """``generator`` draws on the device of ``logits``."""
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"{name}: expected generator to be a torch.Generator, got {type(generator).__name__}. "
            f"Make one with torch.Generator({str(logits.device)!r}).manual_seed(0)."
        )
    wanted, came = logits.device, generator.device
    # a generator made for "cuda" reports index 0, a tensor on "cuda" its index: compare both
    if wanted.type != came.type or (wanted.index or 0) != (came.index or 0):
        raise ValueError(
            f"{name}: expected a generator on the logits' device {wanted}, got one on {came}. "
            f"Make one with torch.Generator({str(wanted)!r})."
        )


def check_noise(name: str, noise: Tensor, shape: tuple[int, ...], what: str) -> None:
    """``noise`` is a real tensor; a leading -1 in ``shape`` stands for any positive length."""
    if not isinstance(noise, Tensor) or not noise.is_floating_point():
        came = noise.dtype if isinstance(noise, Tensor) else type(noise).__name__
        raise TypeError(f"{name}: expected noise to be a floating-point tensor, got {came}")
    check_dense(name, "noise", noise)
    fits = len(noise.shape) == len(shape) and all(
        came == want or (want == -1 and came > 0)
        for came, want in zip(noise.shape, shape, strict=False)
    )
    if not fits:
        wanted = ", ".join("num_draws" if size == -1 else str(size) for size in shape)
        raise ValueError(
            f"{name}: expected {what} noise of shape ({wanted}), got {tuple(noise.shape)}"
        )


def check_count(name: str, option: str, value: int) -> None:
    """``value`` is a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected {option} to be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}: expected {option} of at least 1, got {value}")


def check_flag(name: str, option: str, value: object) -> None:
    """``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected {option} to be True or False, got {value!r}")


def check_vectorize(name: str, value: object) -> None:
    """``value`` is True, False or "stacked"."""
    if not (isinstance(value, bool) or is_word(value, "stacked")):
        raise TypeError(f'{name}: expected vectorize to be True, False or "stacked", got {value!r}')


def check_hard(name: str, hard: object) -> None:
    """``hard`` is True: these samplers have no relaxed sample."""
    if hard is True:
        return
    check_flag(name, "hard", hard)
    if not hard:
        raise ValueError(
            f"{name}: expected hard=True, got False: {name} makes discrete samples only. For a "
            "relaxed sample call gumbel_softmax(logits, tau, hard=False)."
        )


def warn_of_small_tau(name: str, tau: float, least: float, stacklevel: int = 5) -> None:
    """Say what a small temperature does here, where many bring one along from Gumbel-softmax."""
    if isinstance(tau, (int, float)) and 0 < tau < least and _mode != "never" and not compiling():
        warnings.warn(
            f"{name}: tau={tau:g} is unusual. A small tau makes gumbel_softmax less biased, but "
            f"not {name}: here it tempers the gradient only, which is exact for the simplest f at "
            "tau=1. Start with tau=1; if you tune it, search 0.7, 1, 1.3 and 1.5.",
            stacklevel=stacklevel,
        )


def check_objective(name: str, f: object) -> None:
    """``f`` can be called."""
    # torch 2.6 cannot trace callable() of a functools.partial
    if not compiling() and not callable(f):
        raise TypeError(
            f"{name}: expected f to be a function from a sample to one loss per batch element, got "
            f"{type(f).__name__}. Arguments come in the order (logits, f)."
        )


def check_loss(name: str, loss: object, variables: torch.Size, *, stacked: bool = False) -> None:
    """What f returned is a real tensor with one loss per batch element, and per stacked sample."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"{name}: expected f to return a tensor, got {type(loss).__name__}. Convert with "
            "torch.as_tensor(loss)."
        )
    if loss.is_complex():
        raise TypeError(f"{name}: expected f to return real losses, got dtype {loss.dtype}")
    check_dense(name, "what f returns", loss)
    if loss.shape != variables[: loss.ndim] or (stacked and loss.ndim == 0):
        each = "sample and batch element" if stacked else "batch element"
        raise ValueError(
            f"{name}: expected f to return one loss per {each}, a shape that begins "
            f"{tuple(variables)}, got {tuple(loss.shape)}. Sum f over its other axes."
        )


def check_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    """All options are options of the estimator."""
    for option in options:
        if option not in known:
            among = f"options among {', '.join(known)}" if known else "no options"
            raise TypeError(
                f"{name}: expected {among}, got {option!r}. Other estimators have other options: "
                "see discretegrad.ESTIMATORS."
            )


def check_differentiable(name: str, slope: Tensor | None) -> Tensor:
    """f has a gradient with respect to the sample, which is returned."""
    if slope is None:
        raise ValueError(
            f"{name}: expected f to be differentiable with respect to the sample, but its result "
            "does not depend on the sample through differentiable operations. Use an estimator "
            "that needs values of f only: reinforce, leave_one_out, disarm, arms "
            "or disarm_tree."
        )
    return slope


def check_coefficient(
    name: str, option: str, value: object, shape: torch.Size | None = None
) -> float | Tensor:
    """``value`` is a finite number, a tensor with a single one, or one for leading axes.

    It is returned; a tensor with a single number without its axes, so that it multiplies anything.
    """
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: expected {option} to be a number, got {type(value).__name__}")
        if not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite {option}, got {value}")
        return value
    if not value.is_floating_point():
        raise TypeError(
            f"{name}: expected {option} to be a number or a floating-point tensor, got dtype "
            f"{value.dtype}. Convert with {option}.float()."
        )
    check_dense(name, option, value)
    if value.numel() == 1:
        value = value.reshape(())
    elif shape is None or value.shape != shape[: value.ndim]:
        axes = "" if shape is None else f", or with one for the first axes of {tuple(shape)}"
        raise ValueError(
            f"{name}: expected {option} to be a number or a tensor with one element{axes}, got "
            f"shape {tuple(value.shape)}"
        )
    if values_are_checked(value) and not value.isfinite().all():
        raise ValueError(f"{name}: expected a finite {option}, got NaN or inf")
    return value


def check_baseline(name: str, baseline: object) -> None:
    """``baseline`` is None, "self_critical" or a function of the logits."""
    if baseline is None or is_word(baseline, "self_critical") or callable(baseline):
        return
    if is_word(baseline, "running"):
        raise ValueError(
            f'{name}: expected baseline None, "self_critical" or a callable, got "running", which '
            "must remember earlier calls. Make an object that does, once: "
            'estimator = discretegrad.Reinforce(baseline="running"), and pass it as the estimator.'
        )
    raise ValueError(
        f'{name}: expected baseline None, "running", "self_critical" or a callable, got '
        f"{baseline!r}"
    )


def check_baseline_value(name: str, value: object, batch_shape: torch.Size) -> None:
    """A baseline gives one number per batch element, or one for all."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: expected the baseline to return a tensor, got {type(value).__name__}"
        )
    check_dense(name, "what the baseline returns", value)
    try:
        fits = torch.broadcast_shapes(value.shape, batch_shape) == batch_shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name}: expected a baseline that broadcasts to the batch shape "
            f"{tuple(batch_shape)}, got {tuple(value.shape)}. It gets the logits; reduce it to one "
            "number per batch element."
        )


def check_control(name: str, control: Objective | None, made: str) -> Objective:
    """A control variate was given, which is returned; ``made`` is how to make one."""
    if control is None:
        raise ValueError(
            f"{name}: expected a control variate, got None. It learns, so make it once: "
            f"estimator = discretegrad.{made}. Give its parameters to an optimiser, and pass it "
            "as the estimator."
        )
    if not callable(control):
        raise TypeError(
            f"{name}: expected control to be a function or an nn.Module, got "
            f"{type(control).__name__}"
        )
    return control


def check_control_value(name: str, value: object, shape: Sequence[int]) -> Tensor:
    """A control variate gives one number per sample and batch element.

    It may have further axes of size 1, without which it is returned.
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: expected the control variate to return a tensor, got {type(value).__name__}"
        )
    check_dense(name, "what the control variate returns", value)
    beyond = value.shape[len(shape) :]
    if tuple(value.shape) != (*shape, *[1] * len(beyond)):
        raise ValueError(
            f"{name}: expected the control variate to return one number per sample and batch "
            f"element, shape {tuple(shape)}, got {tuple(value.shape)}. It must accept any number "
            "of leading axes."
        )
    return value.reshape(tuple(shape))
