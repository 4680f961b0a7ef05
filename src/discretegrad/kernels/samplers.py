"""The Triton path of the samplers: check the arguments, draw a seed, launch, attach the gradient.

Kernels are imported where they are first called, so that the library needs Triton only where it
runs it. At small sizes the time of a call is that of its Python code, so there is little of it.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._attach import estimate
from .._checks import check_generator, values_are_checked
from .._math import softmax
from .._modes import compiling
from .._random import draw_seeds
from .._seeded import check_seed
from .._types import Call, Method, Temperature
from ..families.bernoulli import Bernoulli, check_bit_values, check_bits
from ..families.categorical import Categorical, check_index, check_rows
from ..select import Handle
from .formulas import FORMULAS
from .layout import Bits, Drawn, Rows

_CATEGORICAL, _BERNOULLI = Categorical(), Bernoulli()

if TYPE_CHECKING:
    from . import ops, quick
else:
    ops = quick = None


def _load() -> None:
    """Import the kernels, once."""
    global ops, quick
    if ops is None:
        from . import ops, quick


def one_hot(
    call: Call, method: Method, given: Tensor | None = None, seed: Tensor | None = None
) -> Tensor:
    """One-hot samples of a categorical sampler, with its gradient.

    Args:
        call: The variables, as the user gave them.
        method: The formula of the gradient.
        given: The categories, if they are not to be drawn.
        seed: Of the noise in backward, beside ``given``: int64, one for each element of the first
            axes of the variables. Without it the generator gives one for all.
    """
    _load()
    name, logits, tau, dim, mask, _ = call
    needs_gradient = logits.requires_grad and torch.is_grad_enabled()
    if needs_gradient and mask is None and given is None and not compiling():
        known = quick.find(call, method)
        if known is None:
            _CATEGORICAL.check(call)
            known = quick.learn(call, method)
        if known is not None:
            _check_values(call)
            drawn: Tensor = quick.apply(logits, known, _draw_seed(call))
            return drawn
    _CATEGORICAL.check(call)
    _check_values(call)
    if given is None:
        source = _draw_seed(call)
    else:
        check_index(name, given, _excluded(logits, mask).movedim(dim, -1))
        # an expanded index has a flat view that is expanded still
        source = given.long().contiguous().view(-1)
        if seed is not None:
            check_seed(name, seed, given)
            seed = seed.contiguous().view(-1)
        elif FORMULAS[method.name].noise:
            seed = _draw_seed(call)
    tau, tau_rows, mask = _broadcast(logits, tau, mask)
    is_given = given is not None
    if not needs_gradient:
        sample = ops.draw(Rows(logits, dim, mask), source, is_given, True)[0]
        assert sample is not None
        return sample
    fixed = _Fixed(method, dim, tau, is_given)
    apply = _OneHot.apply if compiling() else _apply_one_hot
    attached: Tensor = apply(fixed, logits, source, seed, mask, tau_rows)
    return attached


def index_form(call: Call, method: Method) -> tuple[Tensor, Handle]:
    """The categories of a categorical sampler and a handle, without the one-hot."""
    _load()
    _, logits, tau, dim, mask, _ = call
    _CATEGORICAL.check(call)
    _check_values(call)
    seed = _draw_seed(call)
    tau, tau_rows, mask = _broadcast(logits, tau, mask)
    if dim not in (-1, logits.ndim - 1):
        # what select gets has the categories last
        logits = logits.movedim(dim, -1)
        tau_rows = None if tau_rows is None else tau_rows.movedim(dim, -1)
        mask = None if mask is None else mask.movedim(dim, -1)
    constant = logits.detach()
    _, drawn = ops.draw(Rows(constant, -1, mask), seed, False, False)
    index = drawn.categories.reshape(logits.shape[:-1])
    # the gradient at the one-hot is select's own to lose
    vjp = partial(_rows_vjp, _Fixed(method, -1, tau, False), in_place=True)
    handle = Handle(logits, index, vjp, None, (constant, *drawn, seed, mask, tau_rows))
    # the user's own copy: what he does to it does not change the draw
    return index.clone(), handle


def bits(
    call: Call, method: Method, given: Tensor | None = None, seed: Tensor | None = None
) -> Tensor:
    """The same for 0/1 samples of a Bernoulli sampler, which take no seed: see ``sampling``."""
    _load()
    name, logits, tau, _, mask, _ = call
    _BERNOULLI.check(call)
    check_bits(name, _excluded(logits, mask))
    assert seed is None
    if given is not None:
        check_bit_values(name, given, _excluded(logits, mask))
        given = given != 0
    if given is None or FORMULAS[method.name].noise:
        seed = _draw_seed(call)
    tau, tau_bits, mask = _broadcast(logits, tau, mask)
    if logits.requires_grad and torch.is_grad_enabled():
        apply = _ZeroOne.apply if compiling() else _apply_zero_one
        attached: Tensor = apply((method, tau), logits, mask, tau_bits, seed, given)
        return attached
    return _draw_bits(logits, mask, seed, given)


def _check_values(call: Call) -> None:
    if values_are_checked(call.logits):
        last = _excluded(call.logits, call.mask).detach().movedim(call.dim, -1)
        check_rows(call.name, last, softmax(last.float()))


def _draw_seed(call: Call) -> Tensor:
    if call.generator is not None:
        check_generator(call.name, call.generator, call.logits)
    return draw_seeds((1,), call.logits.device, call.generator)


def _broadcast(
    logits: Tensor, tau: Temperature, mask: Tensor | None
) -> tuple[float, Tensor | None, Tensor | None]:
    """tau as a number, tau as a tensor, and the mask, both of the shape of the logits."""
    if mask is not None:
        mask = mask.to(logits.device).expand(logits.shape)
    if isinstance(tau, Tensor):
        return 1.0, tau.detach().to(logits.device, torch.float32).expand(logits.shape), mask
    return float(tau), None, mask


def _excluded(logits: Tensor, mask: Tensor | None) -> Tensor:
    """The logits as the checks of values want them: nothing is copied where values are not read."""
    if mask is None or not values_are_checked(logits):
        return logits
    return logits.masked_fill(~mask.to(logits.device), -math.inf)


class _Fixed(NamedTuple):
    """What forward and backward need besides tensors."""

    method: Method
    dim: int
    tau: float
    given: bool
    """Whether the draw is given."""


class _OneHot(torch.autograd.Function):
    """As ``_attach._Attach``, for one-hots that are drawn in forward."""

    @staticmethod
    def forward(
        ctx: Any,
        fixed: _Fixed,
        logits: Tensor,
        source: Tensor,
        seed: Tensor | None,
        mask: Tensor | None,
        tau_rows: Tensor | None,
    ) -> Tensor | None:
        sample, drawn = ops.draw(Rows(logits, fixed.dim, mask), source, fixed.given, True)
        ctx.fixed = fixed
        noise = source if seed is None else seed
        ctx.save_for_backward(logits, *drawn, noise, mask, tau_rows)
        return sample

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        # the logits, which are saved anyway, lead the graph back: see _attach._Backward
        vjp = partial(_rows_vjp, ctx.fixed)
        return None, estimate(vjp, None, saved[0], g, saved), None, None, None, None


def _rows_vjp(fixed: _Fixed, g: Tensor, *saved: Any, in_place: bool = False) -> Tensor:
    """The gradient for categorical logits, over ``g`` if that is the caller's own to lose."""
    logits, index, statistics, seed, mask, tau_rows = saved
    rows = Rows(logits, fixed.dim, mask, fixed.tau, tau_rows)
    return ops.gradient(fixed.method, g, rows, seed, Drawn(index, statistics), in_place)


def _draw_bits(
    logits: Tensor, mask: Tensor | None, seed: Tensor | None, given: Tensor | None
) -> Tensor:
    if given is not None:
        return given.to(logits.dtype)
    assert seed is not None
    return ops.draw_bits(Bits(logits, mask), seed)


class _ZeroOne(torch.autograd.Function):
    """The same for zeros and ones."""

    @staticmethod
    def forward(
        ctx: Any,
        constants: tuple[Method, float],
        logits: Tensor,
        mask: Tensor | None,
        tau_bits: Tensor | None,
        seed: Tensor | None,
        given: Tensor | None,
    ) -> Tensor:
        ctx.constants = constants
        ctx.save_for_backward(logits, mask, tau_bits, seed, given)
        return _draw_bits(logits, mask, seed, given)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        vjp = partial(_bits_vjp, ctx.constants)
        return None, estimate(vjp, None, saved[0], g, saved), None, None, None, None


def _bits_vjp(constants: tuple[Method, float], g: Tensor, *saved: Any) -> Tensor:
    method, tau = constants
    logits, mask, tau_bits, seed, given = saved
    return ops.gradient_bits(method, g, Bits(logits, mask, tau, tau_bits), seed, given)


# as _attach.apply_fast does it; torch.func transforms never come here
_apply_one_hot: Any = super(torch.autograd.Function, _OneHot).apply
_apply_zero_one: Any = super(torch.autograd.Function, _ZeroOne).apply
