"""Lookups in a table by a sampled one-hot: the ways to make them, and their gate."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import calls
import plain
import torch
from gpu_cases import TORCH, about, named, pace
from machine import Setup
from measure import Case, Work
from samplers import GATE_ROWS, PYPI, REINMAX, off_formula, pypi_reinmax, tolerance_of
from timing import STREAM
from torch import Tensor
from torch.nn.functional import gumbel_softmax

import discretegrad


class Lookup(NamedTuple):
    """A product with a sampled one-hot, in one way or another."""

    name: str
    apply: Callable[..., Tensor]
    """Of (logits, table), or of (hidden, head, table)."""
    ours: bool = True
    is_reinmax: bool = True


BY_INDEX, LINEAR_SELECT = "sample_index, select", "linear_select"
STRAIGHTFORWARD = "reinmax @ table"
_OF_LOGITS = (
    Lookup(BY_INDEX, calls.reinmax_row),
    Lookup(STRAIGHTFORWARD, lambda logits, table: calls.sampler(REINMAX)(logits) @ table),
    Lookup(TORCH, lambda logits, table: gumbel_softmax(logits, hard=True) @ table, False, False),
    Lookup(PYPI, lambda logits, table: pypi_reinmax(logits) @ table, ours=False),
)
LOOKUPS = {
    "index": _OF_LOGITS,
    "vocabulary": (
        Lookup(LINEAR_SELECT, discretegrad.linear_select),
        *(
            x._replace(apply=lambda hidden, head, table, x=x: x.apply(hidden @ head.T, table))
            for x in _OF_LOGITS
            if x.is_reinmax
        ),
    ),
}
# rows, categories, width of the table (and of the hidden layer), dtype
LOOKUP_SIZES = {
    "index": ((65536, 1024, 64, torch.float32), (8192, 32768, 512, torch.bfloat16)),
    "vocabulary": (
        (8192, 131072, 1024, torch.bfloat16),
        # one tensor of rows x categories has 80 GiB
        (163840, 262144, 1024, torch.bfloat16),
    ),
}


def lookup_cases(section: str, setup: Setup) -> Iterator[Case]:
    sizes = dict.fromkeys((setup.small(*shape), dtype) for *shape, dtype in LOOKUP_SIZES[section])
    for (rows, categories, width), dtype in sizes:
        table = setup.random(categories, width, dtype=dtype)
        leaves = [setup.random(rows, categories, dtype=dtype), table]
        if section == "vocabulary":
            # logits of variance 1
            head = setup.random(categories, width, dtype=dtype, scale=width**-0.5)
            leaves = [setup.random(rows, width, dtype=dtype), head, table]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        cotangent = setup.random(rows, width, dtype=dtype)
        yield Case(
            about(section, named((rows, categories, width)), dtype),
            [lookup_work(lookup, leaves, cotangent) for lookup in LOOKUPS[section]],
            pace(setup),
            STREAM,
            tensor_bytes=rows * categories * table.element_size(),
        )


def lookup_work(lookup: Lookup, leaves: Sequence[Tensor], cotangent: Tensor) -> Work:
    against = {"speedup_plain": STRAIGHTFORWARD, "memory_ratio": STRAIGHTFORWARD}
    return Work(
        lookup.name,
        lambda: lookup.apply(*leaves),
        lambda output: torch.autograd.grad(output, leaves, cotangent),
        lambda: lookup_faults(lookup, leaves, cotangent),
        ours=lookup.ours,
        against=against | {"speedup_torch": TORCH, "speedup_pypi": PYPI},
    )


def lookup_faults(lookup: Lookup, leaves: Sequence[Tensor], cotangent: Tensor) -> list[str]:
    """What is wrong with the output and all gradients for a few rows, against float64."""
    few = [leaves[0][:GATE_ROWS].detach().requires_grad_(), *leaves[1:]]
    cotangent = cotangent[:GATE_ROWS]
    output = lookup.apply(*few)
    gradients = torch.autograd.grad(output, few, cotangent)
    if not all(gradient.isfinite().all() for gradient in gradients):
        return ["its gradients are not finite"]
    if not lookup.is_reinmax:
        return []
    *before, table = (leaf.detach().double() for leaf in few)
    g = cotangent.double()
    # the row of the table that is nearest
    index = (2 * output.detach().double() @ table.T - table.square().sum(-1)).argmax(-1)
    faults = [] if torch.equal(output, few[-1][index]) else ["its output is no row of the table"]
    logits = before[0] @ before[1].T if len(before) == 2 else before[0]
    z = torch.zeros_like(logits).scatter_(-1, index.unsqueeze(-1), 1.0)
    slope = plain.reinmax_formula(logits, g @ table.T, z, 1.0)
    expected = [slope @ before[1], slope.T @ before[0]] if len(before) == 2 else [slope]
    # all of them round products of matrices, not only the result
    return faults + off_formula(gradients, [*expected, z.T @ g], tolerance_of(cotangent, False))
