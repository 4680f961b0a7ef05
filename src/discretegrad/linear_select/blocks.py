"""The torch path: a block of rows at a time, with all of their logits."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import values_are_checked
from .._math import compute_dtype
from .._random import draw_seeds
from .._row import Estimator
from .._types import Call
from ..families import get_family
from ..sampling import Draw, Rule
from .layer import NAME, Layer, Needs, attach, check_products

# numbers in each tensor of the size of a block of logits
_BLOCK_NUMBERS = 2**24
_FAMILY = get_family(NAME, "categorical")


class _Gradient(NamedTuple):
    """Whose gradient it is."""

    rule: Rule
    tau: float
    keeps_seed: bool
    """Whether its noise is a seed for each row, from which it makes its own draws."""


def select_in_blocks(
    row: Estimator, rule: Rule, layer: Layer, tau: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """``table[index]`` with its gradient, and the index."""
    _check_noise(row, rule)
    hidden, head, _ = layer
    index = hidden.new_empty(hidden.shape[0], dtype=torch.int64)
    with torch.no_grad():
        for block in _blocks(hidden, head):
            call = Call(NAME, hidden[block] @ head.T, generator=generator)
            variables = _FAMILY.prepare(call)
            if values_are_checked(hidden):
                check_products(~variables.point[:, 0].isnan(), block.start)
            index[block] = _FAMILY.draw(call, variables).squeeze(-1)
    seed = None
    if rule.draw_noise is not None:
        # last, so that every sampler draws the same categories from the same generator state
        seed = draw_seeds((hidden.shape[0], 1), hidden.device, generator)
    vjp = partial(_vjp, _Gradient(rule, tau, "seed" in row.takes))
    return attach(vjp, layer, index, seed), index


def _check_noise(row: Estimator, rule: Rule) -> None:
    if rule.draw_noise is not None and not row.takes:
        raise ValueError(
            f"{NAME}: expected a sampler whose noise can be made again in backward, got "
            f"{row.name!r}, whose row takes neither noise nor a seed. Use sample_index and select."
        )


def _blocks(hidden: Tensor, head: Tensor) -> Iterator[slice]:
    """Rows whose logits are together few enough."""
    rows, size = hidden.shape[0], max(1, _BLOCK_NUMBERS // head.shape[0])
    return (slice(first, min(first + size, rows)) for first in range(0, rows, size))


def _vjp(
    gradient: _Gradient, needs: Needs, g: Tensor, layer: Layer, index: Tensor, seed: Tensor | None
) -> tuple[Tensor, Tensor]:
    hidden, head, table = layer
    wide = compute_dtype(hidden.dtype)
    # made from g, which may stand for several gradients at once: see _modes.batched
    for_hidden = g.new_empty(hidden.shape if needs[0] else 0)
    for_head = g.new_zeros(head.shape if needs[1] else 0, dtype=wide)
    for block in _blocks(hidden, head):
        logits = (hidden[block] @ head.T).to(wide)
        at_one_hot = (g[block] @ table.T).to(wide)
        seeds = None if seed is None else seed[block]
        for_logits = _logits_vjp(gradient, at_one_hot, logits, index[block].unsqueeze(-1), seeds)
        if needs[0]:
            for_hidden[block] = for_logits.to(head.dtype) @ head
        if needs[1]:
            for_head.addmm_(for_logits.T, hidden[block].to(wide))
    return for_hidden, for_head.to(head.dtype)


def _logits_vjp(
    gradient: _Gradient, g: Tensor, logits: Tensor, drawn: Tensor, seed: Tensor | None
) -> Tensor:
    """The estimator's gradient for a block of logits."""
    rule, tau, keeps_seed = gradient
    variables = _FAMILY.prepare(Call(NAME, logits, tau))
    noise = seed
    if seed is not None and not keeps_seed:
        noise = _FAMILY.seeded_noise(seed, 0, 1, variables.point)[0]
    vjp, saved = rule.formula(Draw(_FAMILY, variables, drawn, noise))
    return vjp(g, drawn, *saved)
