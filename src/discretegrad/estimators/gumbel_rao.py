"""Gumbel-Rao: straight-through Gumbel-softmax with its noise averaged out, given the draw.

Paulus et al., "Rao-Blackwellizing the Straight-Through Gumbel-Softmax Gradient Estimator",
ICLR 2021. arXiv:2010.04838
"""

from functools import partial

import torch
from torch import Tensor

from .. import _fused as fused
from .._attach import Draw, Vjp, attach_one_hot, centred, jacobian_product
from .._checks import check_count, check_exponential, check_noise, check_seed
from .._draw import draw_index, draw_seed, given_index
from .._fused import Method
from .._gumbel import relaxed_sample
from .._noise import row_seeds, seeded_exponential
from .._rows import Rows, categorical_rows
from .._select import Handle, handle_of
from .._types import Backend, Temperature
from ..kernels.dispatch import choose

# noise is made and used in pieces of at most this many numbers, whatever the number of draws
_CHUNK_NUMBERS = 2**20


def gumbel_rao(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    num_draws: int = 100,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> Tensor:
    r"""One-hot sample with the gradient of ``gumbel_softmax`` averaged over its noise.

    With a draw $z \sim \mathrm{softmax}(l)$, Gumbel noise $G^1 \dots G^K$ given that each selects
    $z$, $y^m = \mathrm{softmax}((l + G^m)/\tau)$ and $J(q) = \mathrm{diag}(q) - q q^\top$, a
    gradient $g = \partial f / \partial z$ becomes

    $$\hat\nabla = \frac1{K\tau} \sum_{m=1}^K J(y^m)\, g .$$

    Symbols: $l$ ``logits``, $\tau$ ``tau``, $K$ ``num_draws``.

    Properties: one evaluation of f and of its gradient. The bias of ``gumbel_softmax`` at the
    same tau, with less variance; as tau goes to 0 and K to infinity it tends to ``reinmax``.
    Time grows with K, memory does not: the noise is made in backward, a piece at a time, from one
    seed per row that belongs to the draw.

    Differs from the paper: the noise is a constant in the gradient, as in the code released with
    ReinMax (the paper's text differentiates through its conditional distribution).

    Args:
        logits: Unnormalised log-probabilities of any shape, any floating dtype; -inf excludes a
            category.
        tau: Temperature: a number, or a tensor that broadcasts against ``logits`` with size 1
            along ``dim``. A constant: it gets no gradient.
        num_draws: Number of noise draws K.
        dim: The category axis.
        mask: Boolean, broadcasts to ``logits``, True where a category is allowed.
        generator: Source of randomness on the device of ``logits``; the global one by default.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        A sample of the shape and dtype of ``logits``, exactly one-hot along ``dim``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, tau is not positive, there is no draw, or a row has NaN,
            +inf or no allowed category. See ``discretegrad.set_checks``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> z = discretegrad.gumbel_rao(logits, tau=0.5, num_draws=10)
        >>> (z * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        >>> bool((logits.grad.sum(-1).abs() < 1e-6).all())
        True

    References:
        Paulus et al. 2021, arXiv:2010.04838.
    """
    check_count("gumbel_rao", "num_draws", num_draws)
    if choose("gumbel_rao", logits, backend) == "triton":
        return fused.sample(
            "gumbel_rao",
            Method("gumbel_rao", num_draws=num_draws),
            logits,
            tau,
            dim,
            mask,
            generator,
        )
    rows = categorical_rows("gumbel_rao", logits, tau, dim, mask)
    index = draw_index("gumbel_rao", rows, generator)
    seed = draw_seed(index, generator)
    return attach_one_hot(_draw(rows, index, partial(_vjp_seeded, num_draws=num_draws), seed))


def gumbel_rao_at(
    logits: Tensor,
    index: Tensor,
    noise: Tensor,
    tau: Temperature = 1.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The deterministic part of ``gumbel_rao``: the sample and its gradient for given draws.

    Args:
        logits: As for ``gumbel_rao``.
        index: The categories drawn, int64, of the shape of ``logits`` without ``dim``.
        noise: Standard exponential noise of shape ``(num_draws, *logits.shape)``. Together with
            ``index`` it stands for the Gumbel noise that selects ``index``.
        tau: As for ``gumbel_rao``.
        dim: As for ``gumbel_rao``.
        mask: As for ``gumbel_rao``.
        backend: As for ``gumbel_rao``.

    Returns:
        The one-hot of ``index``.

    Raises:
        TypeError: As ``gumbel_rao``.
        ValueError: As ``gumbel_rao``, and if the index is out of range or names an excluded
            category, or the noise is not positive and finite.

    Example:
        >>> import torch, discretegrad
        >>> logits, index = torch.zeros(3), torch.tensor(1)
        >>> discretegrad.gumbel_rao_at(logits, index, torch.ones(10, 3))
        tensor([0., 1., 0.])
    """
    name = "gumbel_rao_at"
    choose(name, logits, backend, "noise that is given")
    rows = categorical_rows(name, logits, tau, dim, mask)
    check_noise(name, noise, (-1, *logits.shape), "exponential")
    check_exponential(name, noise)
    # draws last: everything saved has the leading axes of the logits
    axis = dim if dim < 0 else dim + 1
    noise = noise.detach().to(rows.probs.dtype).movedim(axis, -1).movedim(0, -1)
    return attach_one_hot(_draw(rows, given_index(name, rows, index), _vjp_given, noise))


def gumbel_rao_seeded(
    logits: Tensor,
    index: Tensor,
    seed: Tensor,
    tau: Temperature = 1.0,
    *,
    num_draws: int = 100,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """``gumbel_rao_at`` with noise that is made in backward, in the memory of ``gumbel_rao``.

    The noise is a function of the seed and of the place among the rows of that seed. So what one
    seed gives does not depend on what else is in the batch: members of an ensemble, each with its
    own seed, get the same alone and together. The kernels and the torch path have different noise.

    Args:
        logits: As for ``gumbel_rao``, with the categories last.
        index: The categories drawn, int64, of the shape of ``logits`` without the last axis.
        seed: Non-negative int64, on the device of ``logits``: one for each element of the first
            axes, that is, of a shape that begins as that of ``index`` does.
        tau: As for ``gumbel_rao``.
        num_draws: As for ``gumbel_rao``.
        mask: As for ``gumbel_rao``.
        backend: As for ``gumbel_rao``.

    Returns:
        The one-hot of ``index``.

    Raises:
        TypeError: As ``gumbel_rao``, and if the seed is no int64 tensor.
        ValueError: As ``gumbel_rao_at``, and if the shape of the seed does not fit.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> index, seed = torch.tensor([1, 0]), torch.tensor([7, 8])
        >>> discretegrad.gumbel_rao_seeded(logits, index, seed, num_draws=10)[:, 0].sum().backward()
        >>> bool((logits.grad.sum(-1).abs() < 1e-6).all())
        True
    """
    name = "gumbel_rao_seeded"
    check_count(name, "num_draws", num_draws)
    if choose(name, logits, backend) == "triton":
        method = Method("gumbel_rao", num_draws=num_draws)
        return fused.sample_at(name, method, logits, index, tau, -1, mask, seed)
    rows = categorical_rows(name, logits, tau, -1, mask)
    check_seed(name, seed, logits)
    given = given_index(name, rows, index)
    vjp = partial(_vjp_seeded, num_draws=num_draws)
    return attach_one_hot(_draw(rows, given, vjp, row_seeds(seed, given)))


def gumbel_rao_index(
    logits: Tensor,
    tau: Temperature = 1.0,
    *,
    num_draws: int = 100,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Handle]:
    """The index form of ``gumbel_rao``: the categories, and a handle with the gradient.

    Args:
        logits: As for ``gumbel_rao``.
        tau: As for ``gumbel_rao``.
        num_draws: As for ``gumbel_rao``.
        dim: As for ``gumbel_rao``.
        mask: As for ``gumbel_rao``.
        generator: As for ``gumbel_rao``, which draws the same categories from it.
        backend: As for ``gumbel_rao``.

    Returns:
        The categories, int64, of the shape of ``logits`` without ``dim``, and a handle for
        ``select``.

    Raises:
        TypeError: As ``gumbel_rao``.
        ValueError: As ``gumbel_rao``.

    Example:
        >>> import torch, discretegrad
        >>> logits, codebook = torch.zeros(2, 3, requires_grad=True), torch.randn(3, 8)
        >>> index, handle = discretegrad.gumbel_rao_index(logits)
        >>> discretegrad.select(handle, codebook).shape
        torch.Size([2, 8])
    """
    check_count("gumbel_rao_index", "num_draws", num_draws)
    if choose("gumbel_rao_index", logits, backend) == "triton":
        return fused.sample_index(
            "gumbel_rao_index",
            Method("gumbel_rao", num_draws=num_draws),
            logits,
            tau,
            dim,
            mask,
            generator,
        )
    rows = categorical_rows("gumbel_rao_index", logits, tau, dim, mask)
    index = draw_index("gumbel_rao_index", rows, generator)
    seed = draw_seed(index, generator)
    return handle_of(_draw(rows, index, partial(_vjp_seeded, num_draws=num_draws), seed))


def _draw(rows: Rows, index: Tensor, vjp: Vjp, source: Tensor) -> Draw:
    log_probs = rows.logits.detach().to(rows.probs.dtype).log_softmax(-1)
    if isinstance(rows.tau, Tensor):
        return Draw(rows, index, vjp, (log_probs, source, rows.tau))
    return Draw(rows, index, partial(vjp, tau=rows.tau), (log_probs, source))


def _vjp_seeded(
    g: Tensor, index: Tensor, log_probs: Tensor, seed: Tensor, tau: Temperature, num_draws: int
) -> Tensor:
    g = centred(g, index)
    gradient = torch.zeros_like(g)
    for first, count in chunks(num_draws, g.numel()):
        noise = seeded_exponential(seed, first, count, log_probs)
        gradient += _summed(g, index, log_probs, noise, tau)
    return gradient / (num_draws * tau)


def _vjp_given(
    g: Tensor, index: Tensor, log_probs: Tensor, noise: Tensor, tau: Temperature
) -> Tensor:
    num_draws = noise.shape[-1]
    g = centred(g, index)
    gradient = torch.zeros_like(g)
    for first, count in chunks(num_draws, g.numel()):
        piece = noise.narrow(-1, first, count).movedim(-1, 0)
        gradient += _summed(g, index, log_probs, piece, tau)
    return gradient / (num_draws * tau)


def _summed(g: Tensor, index: Tensor, log_probs: Tensor, noise: Tensor, tau: Temperature) -> Tensor:
    return jacobian_product(relaxed_sample(log_probs, index, noise, tau), g).sum(0)


def chunks(num_draws: int, numbers_per_draw: int) -> list[tuple[int, int]]:
    """(first, count) of pieces of the draws that together stay below the limit on numbers."""
    size = max(1, min(num_draws, _CHUNK_NUMBERS // max(1, numbers_per_draw)))
    return [(first, min(size, num_draws - first)) for first in range(0, num_draws, size)]
