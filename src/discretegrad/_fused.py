"""The old names of kernels/samplers.py, until the samplers that use them are replaced."""

from ._types import Call
from ._types import Method as Method
from .kernels import samplers


def sample(name, method, logits, tau, dim, mask, generator):  # type: ignore
    return samplers.one_hot(Call(name, logits, tau, dim, mask, generator), method)


def sample_at(name, method, logits, index, tau, dim, mask, seed=None):  # type: ignore
    return samplers.one_hot(Call(name, logits, tau, dim, mask), method, index, seed)


def sample_index(name, method, logits, tau, dim, mask, generator):  # type: ignore
    return samplers.index_form(Call(name, logits, tau, dim, mask, generator), method)


def bernoulli_sample(name, method, logits, tau, mask, generator):  # type: ignore
    return samplers.bits(Call(name, logits, tau, -1, mask, generator), method)


def bernoulli_sample_at(name, method, logits, value, tau, mask):  # type: ignore
    return samplers.bits(Call(name, logits, tau, -1, mask), method, value)
