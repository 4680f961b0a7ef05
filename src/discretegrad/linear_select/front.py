"""A draw from the softmax of a linear layer, without its logits ever being in memory at once.

A language model has more categories than hidden units, so the logits of a batch are by far its
largest tensor. Here they are made a piece at a time, used, and made again in backward: by the torch
path in blocks of rows, by the Triton path in tiles of categories.
"""

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._checks import (
    check_dense,
    check_flag,
    check_generator,
    check_options,
    check_tau,
    warn_of_small_tau,
)
from .._modes import compiling, transforming
from .._types import Backend
from ..kernels.dispatch import choose_backend
from ..kernels.formulas import FORMULAS
from ..registry import EstimatorLike, get_sampler
from ..sampling import Request, Rule, index_form
from ..select import select
from .blocks import select_in_blocks
from .layer import NAME, Layer, autocast, no_autocast
from .tiles import select_in_tiles

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@overload
def linear_select(
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    estimator: EstimatorLike = ...,
    tau: float = ...,
    *,
    bias: Tensor | None = ...,
    return_index: Literal[False] = ...,
    generator: torch.Generator | None = ...,
    backend: Backend = ...,
    **options: Any,
) -> Tensor: ...


@overload
def linear_select(
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    estimator: EstimatorLike = ...,
    tau: float = ...,
    *,
    bias: Tensor | None = ...,
    return_index: Literal[True],
    generator: torch.Generator | None = ...,
    backend: Backend = ...,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


def linear_select(
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    estimator: EstimatorLike = "reinmax",
    tau: float = 1.0,
    *,
    bias: Tensor | None = None,
    return_index: bool = False,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Draw a category from the softmax of a linear layer and look it up in a table.

    For a vector h of ``hidden``, with the rows $w_j$ of ``head`` and $v_j$ of ``table``, the logits
    are $l_j = w_j \cdot h$, the draw is $k \sim \mathrm{softmax}(l)$ and the result is $v_k$. With
    g the gradient at the result and $\hat\nabla$ the gradient that the estimator makes for the
    logits from the one-hot's gradient $(g \cdot v_j)_j$,

    $$\frac{\partial}{\partial h} = \sum_j \hat\nabla_j w_j, \qquad
    \frac{\partial}{\partial w_j} = \hat\nabla_j h, \qquad
    \frac{\partial}{\partial v_j} = [j = k]\, g,$$

    the last two summed over the batch. With a ``bias`` b the logits are $w_j \cdot h + b_j$ and b
    gets $\hat\nabla$, summed over the batch. This is ``reinmax(hidden @ head.T) @ table`` for
    vocabularies whose logits and one-hots are too large to hold: it makes them piece by piece, and
    again in backward.

    Properties: those of the estimator. The Triton path holds two tiles of 96 MiB and one float32
    tensor of the size of ``hidden`` besides inputs, outputs and their gradients, whatever the
    number of categories; the torch path a few tensors of at most $2^{24}$ numbers, or of one row.
    Logits are rounded to the dtype of ``hidden``, as in the plain way; sums over them are in
    float32. There is no kernel for ``"gumbel_rao"``, whose draws go over all categories many times.
    On the torch path, ``torch.compile`` and ``torch.func`` transforms hold all logits after all. A
    second derivative is an error.

    Args:
        hidden: (..., width), any floating dtype.
        head: (n, width), one row per category: the weight of ``torch.nn.Linear(width, n)``. It
            may be the same tensor as ``table``.
        table: (n, out), one row per category: the weight of ``torch.nn.Embedding(n, out)``.
        estimator: Whose gradient: the name of a sampler, ``"reinmax"``, ``"straight_through"``,
            ``"blend"``, ``"gumbel_softmax"``, ``"gumbel_rao"``, ``"gapped"`` or
            ``"mean_baseline"``, or the row of one, also of your own, or its function.
        tau: Temperature of the gradient, as for the sampler, but always a number.
        bias: (n,), one number per category: the bias of ``torch.nn.Linear(width, n)``. It is one
            more column of ``head``, which takes a copy of ``hidden`` and of ``head``.
        return_index: Whether to return the categories too.
        generator: Source of randomness on the device of ``hidden``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.
        **options: The sampler's own: ``weight`` for ``"blend"``, ``gap`` for ``"gapped"``,
            ``order`` and ``as_released`` for ``"mean_baseline"``, ``num_draws`` for
            ``"gumbel_rao"``.

    Returns:
        ``table[index]``, of shape (..., out); with ``return_index`` also the index, int64, (...).
        Inside ``torch.autocast`` all inputs are cast as for a matrix product.

    Raises:
        TypeError: If an argument has the wrong type or dtype, or the sampler has no such option.
        ValueError: If shapes or devices do not fit, there is no such sampler, tau is not positive,
            an option is out of its range, or a logit is NaN or infinite. See
            ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> hidden = torch.randn(2, 5, 8, requires_grad=True)
        >>> head = torch.randn(1000, 8, requires_grad=True)
        >>> table = torch.randn(1000, 3, requires_grad=True)
        >>> token, index = discretegrad.linear_select(hidden, head, table, return_index=True)
        >>> token.shape, index.shape
        (torch.Size([2, 5, 3]), torch.Size([2, 5]))
        >>> token.square().sum().backward()
        >>> hidden.grad.shape, head.grad.shape, table.grad.shape
        (torch.Size([2, 5, 8]), torch.Size([1000, 8]), torch.Size([1000, 3]))
    """
    row = get_sampler(NAME, estimator)
    if options:  # torch 2.6 cannot compile a look at those of the row
        # a gather needs a category, so there is no relaxed sample
        known = tuple(option for option in row.options if option != "hard")
        check_options(row.name, options, known)
    assert row.rule is not None
    rule = row.rule(**options)
    check_flag(NAME, "return_index", return_index)
    layer = Layer(autocast(hidden), autocast(head), autocast(table))
    _check_layer(layer)
    _check_tau(rule, tau, layer.hidden)
    check_generator(NAME, generator, hidden)
    # not -1, which an empty tensor leaves open
    flat = layer.hidden.reshape(math.prod(hidden.shape[:-1]), hidden.shape[-1])
    layer = Layer(flat, layer.head, layer.table)  # torch 2.6 cannot compile layer._replace
    if bias is not None:
        layer = _with_bias(layer, autocast(bias))
    with no_autocast(hidden):
        lacking = _lacking(rule, layer)
        if choose_backend(NAME, layer.hidden, backend, lacking) == "triton":
            assert rule.kernel is not None
            selected, index = select_in_tiles(rule.kernel, layer, tau, generator)
        elif compiling() or transforming():
            logits = layer.hidden @ layer.head.T
            request = Request(logits, tau, generator=generator, backend=backend)
            index, handle = index_form(rule, request)
            selected = select(handle, layer.table)
        else:
            selected, index = select_in_blocks(row, rule, layer, tau, generator)
    selected = selected.reshape(*hidden.shape[:-1], table.shape[1])
    # the index that backward needs is not the user's, who may change his
    return (selected, index.reshape(hidden.shape[:-1]).clone()) if return_index else selected


def _with_bias(layer: Layer, bias: Tensor) -> Layer:
    """The bias as a last column of the head, for which every hidden vector has a 1."""
    hidden, head, table = layer
    if not isinstance(bias, Tensor) or bias.dtype != head.dtype or bias.device != head.device:
        came = f"{bias.dtype} on {bias.device}" if isinstance(bias, Tensor) else type(bias).__name__
        raise TypeError(
            f"{NAME}: expected bias to be a tensor of the dtype and device of head, {head.dtype} "
            f"on {head.device}, got {came}"
        )
    check_dense(NAME, "bias", bias)
    if bias.shape != head.shape[:1]:
        raise ValueError(
            f"{NAME}: expected a bias of shape ({head.shape[0]},), one number per category, got "
            f"{tuple(bias.shape)}"
        )
    ones = hidden.new_ones(hidden.shape[0], 1)
    return Layer(torch.cat([hidden, ones], 1), torch.cat([head, bias.unsqueeze(1)], 1), table)


def _lacking(rule: Rule, layer: Layer) -> str:
    """What no kernel does; the dispatcher looks at ``hidden`` itself."""
    if rule.kernel is None or FORMULAS[rule.kernel.name].many_draws:
        return f"{rule.name} over tiles"
    for x in (layer.head, layer.table):
        if type(x) not in (Tensor, torch.nn.Parameter):
            return f"weights of the subclass {type(x).__name__}"
    return ""


def _check_tau(rule: Rule, tau: object, hidden: Tensor) -> None:
    if isinstance(tau, Tensor):
        raise TypeError(
            f"{NAME}: expected tau to be a number, the same for all rows, got a tensor of shape "
            f"{tuple(tau.shape)}. With a single element, pass tau.item()."
        )
    check_tau(NAME, tau, hidden, None)  # type: ignore[arg-type]
    if rule.least_tau:
        warn_of_small_tau(rule.name, tau, rule.least_tau, stacklevel=4)  # type: ignore[arg-type]


def _check_layer(layer: Layer) -> None:
    """Three tensors of one dtype and device, with one row of head and table per category."""
    hidden, head, table = layer
    named = {"hidden": hidden, "head": head, "table": table}
    for argument, x in named.items():
        if not isinstance(x, Tensor) or x.dtype not in _DTYPES:
            came = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"{NAME}: expected {argument} to be a floating-point tensor of 16 to 64 bits, got "
                f"{came}"
            )
        check_dense(NAME, argument, x)
    shapes = f"hidden {tuple(hidden.shape)}, head {tuple(head.shape)}, table {tuple(table.shape)}"
    if hidden.ndim == 0 or head.ndim != 2 or table.ndim != 2:
        raise ValueError(
            f"{NAME}: expected hidden of shape (..., width), head (n, width) and table (n, out), "
            f"got {shapes}"
        )
    if head.shape[0] == 0 or head.shape[0] != table.shape[0]:
        raise ValueError(
            f"{NAME}: expected one row of head and one row of table for each of at least one "
            f"category, got {shapes}"
        )
    if hidden.shape[-1] != head.shape[1]:
        raise ValueError(
            f"{NAME}: expected hidden and head of one width, got {shapes}. Rows of head are "
            "categories, as in the weight of torch.nn.Linear(width, n)."
        )
    for argument, x in named.items():
        if x.device != hidden.device:
            raise ValueError(
                f"{NAME}: expected {argument} on the device of hidden, {hidden.device}, got "
                f"{x.device}"
            )
        if x.dtype != hidden.dtype:
            raise TypeError(
                f"{NAME}: expected {argument} of the dtype of hidden, {hidden.dtype}, got "
                f"{x.dtype}. Convert one of them, or call it inside torch.autocast."
            )
