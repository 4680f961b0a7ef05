"""Every check of what a user passes in, and every message a user can meet.

Checks of types and shapes always run: they cost nothing. Checks of *values* (NaN, a row without
a single allowed category, a temperature tensor that is not positive, an index out of range) must
read the tensor, which would stall a GPU, so by default they run on the CPU only. See
``set_checks``.
"""

import math
import os
from typing import Literal, get_args

import torch
from torch import Tensor

from ._modes import compiling, transforming
from ._types import Family, Temperature

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
    if mode not in _MODES:
        raise ValueError(f"expected checks mode to be one of {_MODES}, got {mode!r}")
    before, _mode = _mode, mode
    return before


_mode: ChecksMode = "auto"
set_checks(os.environ.get("DISCRETEGRAD_CHECKS", "auto"))  # type: ignore[arg-type]


def values_are_checked(x: Tensor) -> bool:
    """Whether reading the values of ``x`` is possible here and wanted."""
    if _mode == "never" or compiling() or transforming():
        return False
    if type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return _mode == "always" or x.device.type == "cpu"


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


def check_dim(name: str, logits: Tensor, dim: int) -> None:
    """``dim`` is an axis of ``logits`` that is not empty."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"{name}: expected dim to be an int, got {type(dim).__name__}")
    if logits.ndim == 0:
        raise ValueError(
            f"{name}: expected logits with a category axis, got a scalar. For a single 0/1 "
            f"variable use discretegrad.bernoulli.{name.removesuffix('_at')}."
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


def check_rows(name: str, logits: Tensor, probs: Tensor) -> None:
    """No row holds NaN or +inf, and every row allows some category. Categories are last."""
    # one bad entry makes its whole row of probabilities NaN: reading one column is enough
    if not values_are_checked(probs) or not math.isnan(probs.select(-1, 0).sum().item()):
        return
    row = int(probs.select(-1, 0).flatten().isnan().nonzero()[0])
    bad = logits.detach().flatten(0, -2)[row] if logits.ndim > 1 else logits.detach()
    where = f"row {row}" if logits.ndim > 1 else "the only row"
    if bad.isnan().any():
        raise ValueError(
            f"{name}: expected logits without NaN, got NaN in {where}. Find its origin with "
            "torch.autograd.set_detect_anomaly(True)."
        )
    if (bad == math.inf).any():
        raise ValueError(
            f"{name}: expected logits that are finite or -inf, got +inf in {where}. "
            "To force a category, mask out the others."
        )
    raise ValueError(
        f"{name}: expected at least one allowed category in every row, but in {where} the mask "
        "and -inf logits exclude all of them. Drop such rows, or allow a dummy category."
    )


def check_bits(name: str, logits: Tensor) -> None:
    """Bernoulli logits hold no NaN; both infinities are fine (a certain bit)."""
    if values_are_checked(logits) and logits.isnan().any():
        raise ValueError(
            f"{name}: expected logits without NaN, got NaN. Find its origin with "
            "torch.autograd.set_detect_anomaly(True)."
        )


def check_index(name: str, index: Tensor, logits: Tensor) -> None:
    """``index`` names one allowed category for each row of ``logits``, categories last."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32):
        came = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(
            f"{name}: expected index to be an int64 tensor of categories, got {came}. "
            "Convert with index.long()."
        )
    if index.shape != logits.shape[:-1]:
        raise ValueError(
            f"{name}: expected an index of shape {tuple(logits.shape[:-1])} (the logits' shape "
            f"without the category axis), got {tuple(index.shape)}"
        )
    if not values_are_checked(index) or index.numel() == 0:
        return
    low, high = (int(v) for v in index.aminmax())
    if low < 0 or high >= logits.shape[-1]:
        raise ValueError(
            f"{name}: expected an index in [0, {logits.shape[-1] - 1}], got values from {low} "
            f"to {high}"
        )
    if (logits.detach().gather(-1, index.long().unsqueeze(-1)) == -math.inf).any():
        raise ValueError(
            f"{name}: expected an index of allowed categories, got one that the mask or a -inf "
            "logit excludes"
        )


def check_value(name: str, value: Tensor, logits: Tensor) -> None:
    """``value`` is a 0/1 tensor of the shape of the Bernoulli ``logits``."""
    if not isinstance(value, Tensor) or value.is_complex():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name}: expected value to be a 0/1 tensor, got {came}")
    if value.shape != logits.shape:
        raise ValueError(
            f"{name}: expected a value of the logits' shape {tuple(logits.shape)}, "
            f"got {tuple(value.shape)}"
        )
    if not values_are_checked(value):
        return
    if not ((value == 0) | (value == 1)).all():
        raise ValueError(f"{name}: expected every value to be 0 or 1, got something else")
    impossible = torch.where(value != 0, -math.inf, math.inf).to(logits.dtype)
    if (logits.detach() == impossible).any():
        raise ValueError(
            f"{name}: expected possible values, got a 1 where the logit is -inf (or masked), or "
            "a 0 where it is +inf"
        )


def check_noise(name: str, noise: Tensor, shape: tuple[int, ...], what: str) -> None:
    """``noise`` is a real tensor; a leading -1 in ``shape`` stands for any positive length."""
    if not isinstance(noise, Tensor) or not noise.is_floating_point():
        came = noise.dtype if isinstance(noise, Tensor) else type(noise).__name__
        raise TypeError(f"{name}: expected noise to be a floating-point tensor, got {came}")
    fits = len(noise.shape) == len(shape) and all(
        came == want or (want == -1 and came > 0)
        for came, want in zip(noise.shape, shape, strict=False)
    )
    if not fits:
        wanted = ", ".join("num_draws" if size == -1 else str(size) for size in shape)
        raise ValueError(
            f"{name}: expected {what} noise of shape ({wanted}), got {tuple(noise.shape)}"
        )


def check_exponential(name: str, noise: Tensor) -> None:
    """Exponential noise is positive and finite."""
    if values_are_checked(noise) and not ((noise > 0) & (noise < math.inf)).all():
        raise ValueError(
            f"{name}: expected positive, finite exponential noise, got something else. "
            "Draw it with torch.empty_like(logits).exponential_()."
        )


def check_finite_noise(name: str, noise: Tensor) -> None:
    """Logistic noise is finite."""
    if values_are_checked(noise) and not noise.isfinite().all():
        raise ValueError(
            f"{name}: expected finite logistic noise, got NaN or inf. Draw it with "
            "torch.rand_like(logits).logit(eps=1e-7)."
        )


def check_gap(name: str, gap: object) -> None:
    """``gap`` is a number of at least 0, or the string "p"."""
    if gap == "p":
        return
    if isinstance(gap, bool) or not isinstance(gap, (int, float)):
        raise TypeError(f'{name}: expected gap to be a number or "p", got {gap!r}')
    if not 0 <= gap < math.inf:
        raise ValueError(f"{name}: expected a finite gap of at least 0, got {gap}")


def check_mean_baseline(name: str, order: object, as_released: object) -> None:
    """``order`` is 1 or 2; only order 2 has a released form."""
    if isinstance(order, bool) or order not in (1, 2):
        raise ValueError(f"{name}: expected order to be 1 or 2, got {order!r}")
    if as_released and order != 2:
        raise ValueError(
            f"{name}: expected order=2 together with as_released=True, got order={order}; the "
            "released code has the second-order form only"
        )


def check_family(name: str, family: object) -> None:
    """``family`` is one of the two."""
    if family not in get_args(Family):
        raise ValueError(f"{name}: expected family to be one of {get_args(Family)}, got {family!r}")


def check_count(name: str, option: str, value: int) -> None:
    """``value`` is a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected {option} to be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}: expected {option} of at least 1, got {value}")
