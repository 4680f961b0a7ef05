"""A codebook layer that draws its codes."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._checks import check_count, check_flag, check_generator, check_tau, values_are_checked
from .._math import add_rows, compute_dtype
from .._random import uniform
from .._types import Call
from ..linear_select import linear_select
from ..linear_select.layer import no_autocast
from ..registry import EstimatorLike, get_sampler
from .arguments import NAME, check_estimator, check_finite, check_mask, check_number
from .distances import Distances


class LossBreakdown(NamedTuple):
    """The terms of the loss of ``VectorQuantize``, before their weights.

    What is not needed is zero: the commitment without its weight, the entropies if neither has
    one.
    """

    commitment: Tensor
    """Mean squared difference between the inputs and their codes."""
    codebook_diversity: Tensor
    """Minus the entropy of the mean distribution over codes: at best minus log(codebook_size)."""
    code_entropy: Tensor
    """Mean entropy of the distribution over codes of each vector."""


class _Batch(NamedTuple):
    """The vectors of a call, one per row."""

    rows: Tensor
    """(rows, width of the codebook), zero where padding is."""
    valid: Tensor
    """bool, (rows,): False where padding is."""
    weight: Tensor
    """(rows,): one over the number of valid rows, zero where padding is."""
    generator: torch.Generator | None


class VectorQuantize(nn.Module):
    r"""A codebook layer: each vector is replaced by a code that is drawn, with a gradient.

    For a vector x and codes $e_1, \dots, e_n$, in training the code k is drawn with probability

    $$p_k \propto \exp(-||x - e_k||^2 / s)$$

    where s is ``sample_codebook_temp``; in evaluation it is the nearest code. The encoder gets the
    gradient of an estimator for the draw, and so learns what other codes would have done to the
    loss. With ``"reinmax"`` the expected gradient is exact where the loss is a quadratic function
    of the code.

    The draw is by ``linear_select``, so that neither the distances nor a one-hot of all vectors
    and codes are in memory at once. The codebook is a moving average of the vectors that drew each
    code, or, with ``learnable_codebook``, a parameter, which gets the gradient of the draw too.
    Codes that are hardly drawn restart at vectors of the batch.

    Arguments, defaults and results have the names and the meaning of those of
    vector-quantize-pytorch (1.32) where both have them; ``estimator``, ``tau`` and
    ``entropy_loss_weight`` are new. In evaluation both give the same codes.

    Differs from vector-quantize-pytorch: codes are always drawn in training, from squared
    distances; the diversity is that of the distribution that is drawn from, averaged over all
    vectors; a mask has the shape of the indices, also for images; ``learnable_codebook=True`` turns
    the moving averages off by itself. Its other arguments are not known here.

    Properties: computes in float32 at least, also inside ``torch.autocast``, and returns the dtype
    of the input. Works under ``torch.compile(fullgraph=True)`` without a generator. With
    ``torch.distributed`` the processes share their counts, and restart codes at vectors of
    process 0.

    Args:
        dim: Width of the input.
        codebook_size: Number of codes.
        codebook_dim: Width of the codes; if it is not that of the input, linear layers are in
            front and behind.
        estimator: Whose gradient: the name of a sampler, its row or its function, as for
            ``linear_select``.
        tau: Temperature of the gradient, as for ``linear_select``.
        sample_codebook_temp: What squared distances are divided by before they are logits. Well
            above the squared distances between codes it lets moving averages move to one point.
        decay: Of the moving averages.
        eps: Added to the counts of codes before sums are divided by them.
        learnable_codebook: Whether the codebook is a parameter.
        ema_update: Whether the codebook is a moving average; by default if it is no parameter.
        freeze_codebook: Whether the codebook stays as it is.
        threshold_ema_dead_code: Codes that are drawn less often than this per step, on average,
            restart at random vectors of the batch. 0 for never.
        commitment_weight: Of the mean squared difference between inputs and their codes.
        codebook_diversity_loss_weight: Of minus the entropy of the mean distribution over codes,
            which is least if all are used equally often.
        entropy_loss_weight: Of the mean entropy of each vector's own distribution. Above zero it
            makes draws certain, below zero it keeps them random.
        channel_last: Whether the last axis of the input is the width; otherwise it is axis 1.
        accept_image_fmap: Whether the input is (batch, dim, height, width).
        return_zeros_for_masked_padding: What padding becomes: zeros, or what it is.
        sync_codebook: Whether processes of ``torch.distributed`` share their counts; by default
            if there are several.
        **options: The estimator's own, as for ``linear_select``.

    Raises:
        TypeError: If an argument has the wrong type, or there is no such argument or option.
        ValueError: If an argument is out of its range, or there is no such sampler.

    Example:
        >>> import torch, discretegrad
        >>> quantize = discretegrad.nn.VectorQuantize(8, codebook_size=32, commitment_weight=0.25)
        >>> x = torch.randn(2, 10, 8, requires_grad=True)
        >>> quantized, indices, loss = quantize(x)
        >>> quantized.shape, indices.shape
        (torch.Size([2, 10, 8]), torch.Size([2, 10]))
        >>> (quantized.square().mean() + loss).backward()
        >>> x.grad.shape
        torch.Size([2, 10, 8])
        >>> nearest = quantize.eval()(x)[1]
        >>> torch.equal(nearest, torch.cdist(x, quantize.codebook).argmin(-1))
        True
    """

    codebook: Tensor
    cluster_size: Tensor
    embed_avg: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        estimator: EstimatorLike = "reinmax",
        tau: float = 1.0,
        sample_codebook_temp: float = 1.0,
        decay: float = 0.8,
        eps: float = 1e-5,
        learnable_codebook: bool = False,
        ema_update: bool | None = None,
        freeze_codebook: bool = False,
        threshold_ema_dead_code: float = 0,
        commitment_weight: float = 1.0,
        codebook_diversity_loss_weight: float = 0.0,
        entropy_loss_weight: float = 0.0,
        channel_last: bool = True,
        accept_image_fmap: bool = False,
        return_zeros_for_masked_padding: bool = True,
        sync_codebook: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_count(NAME, "dim", dim)
        check_count(NAME, "codebook_size", codebook_size)
        width = dim if codebook_dim is None else codebook_dim
        check_count(NAME, "codebook_dim", width)
        check_estimator(estimator, options)
        if isinstance(tau, Tensor):
            raise TypeError(f"{NAME}: expected tau to be a number, got a tensor")
        check_tau(NAME, tau, torch.zeros(()), None)
        flags = {
            "learnable_codebook": learnable_codebook,
            "freeze_codebook": freeze_codebook,
            "channel_last": channel_last,
            "accept_image_fmap": accept_image_fmap,
            "return_zeros_for_masked_padding": return_zeros_for_masked_padding,
        }
        for name, flag in flags.items():
            check_flag(NAME, name, flag)
        if ema_update is None:
            ema_update = not learnable_codebook
        check_flag(NAME, "ema_update", ema_update)
        if sync_codebook is not None:
            check_flag(NAME, "sync_codebook", sync_codebook)
        if ema_update and learnable_codebook:
            raise ValueError(
                f"{NAME}: expected a codebook that is either a parameter or a moving average, got "
                "learnable_codebook=True and ema_update=True. Leave one of them out."
            )
        check_number("sample_codebook_temp", sample_codebook_temp, least=1e-30)
        check_number("decay", decay, least=0.0, most=1.0)
        check_number("eps", eps, least=1e-30)
        check_number("threshold_ema_dead_code", threshold_ema_dead_code, least=0.0)
        check_number("commitment_weight", commitment_weight, least=0.0)
        check_number("codebook_diversity_loss_weight", codebook_diversity_loss_weight)
        check_number("entropy_loss_weight", entropy_loss_weight)

        self.dim, self.codebook_size, self.codebook_dim = dim, codebook_size, width
        self.estimator, self.tau, self.options = estimator, tau, options
        self.sample_codebook_temp = sample_codebook_temp
        self.decay, self.eps = decay, eps
        self.learnable_codebook, self.ema_update = learnable_codebook, ema_update
        self.freeze_codebook = freeze_codebook
        self.threshold_ema_dead_code = threshold_ema_dead_code
        self.commitment_weight = commitment_weight
        self.codebook_diversity_loss_weight = codebook_diversity_loss_weight
        self.entropy_loss_weight = entropy_loss_weight
        self.channel_last, self.accept_image_fmap = channel_last, accept_image_fmap
        self.return_zeros_for_masked_padding = return_zeros_for_masked_padding
        self.sync_codebook = sync_codebook

        self.project_in: nn.Module = nn.Identity()
        self.project_out: nn.Module = nn.Identity()
        if width != dim:
            self.project_in, self.project_out = nn.Linear(dim, width), nn.Linear(width, dim)
        # small against the inputs, so that at first no code is much nearer than the others
        codes = torch.empty(1, codebook_size, width)
        nn.init.kaiming_uniform_(codes)
        codes = codes.squeeze(0)
        if learnable_codebook:
            self.codebook = nn.Parameter(codes)
        else:
            self.register_buffer("codebook", codes)
        self.register_buffer("cluster_size", torch.ones(codebook_size))
        self.register_buffer("embed_avg", codes.clone())

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        sample_codebook_temp: float | None = None,
        freeze_codebook: bool | None = None,
        return_loss_breakdown: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, LossBreakdown]:
        """Replace vectors by codes.

        Args:
            x: (..., dim), or (batch, dim, ...) without ``channel_last``.
            mask: bool, of the shape of the indices: False for padding, which has no part in the
                loss and in the codebook.
            sample_codebook_temp: Another temperature of the draw for this call.
            freeze_codebook: Another choice for this call.
            return_loss_breakdown: Whether to return the terms of the loss too.
            generator: Source of randomness on the device of ``x``; the global one by default.

        Returns:
            The codes in the shape and the dtype of ``x``, their indices, int64, -1 for padding,
            and the loss, which is zero in evaluation; if asked for, a ``LossBreakdown``.

        Raises:
            TypeError: If an argument has the wrong type or dtype.
            ValueError: If shapes do not fit, or, in training, a value of ``x`` is NaN or infinite.
                See ``discretegrad.set_checks``.
        """
        scale = self.sample_codebook_temp if sample_codebook_temp is None else sample_codebook_temp
        check_number("sample_codebook_temp", scale, least=1e-30)
        frozen = self.freeze_codebook if freeze_codebook is None else freeze_codebook
        check_flag(NAME, "freeze_codebook", frozen)
        check_flag(NAME, "return_loss_breakdown", return_loss_breakdown)
        vectors = self._vectors(x)
        check_mask(mask, vectors)
        check_generator(NAME, generator, x)

        # padding may hold anything, also what spoils the gradient of the projection
        known = vectors if mask is None else vectors.masked_fill(~mask.unsqueeze(-1), 0)
        projected = self.project_in(known)
        with no_autocast(x):
            batch = self._batch(projected, mask, generator)
            # what is updated below must not change under the backward of this call
            codebook = self.codebook.to(batch.rows.dtype, copy=True)
            if frozen or not self.learnable_codebook:
                codebook = codebook.detach()
            # which code is nearest does not depend on a temperature, whose extremes cost digits
            by = scale if self.training else 1.0
            distances = Distances.to_codes(batch.rows, codebook, by)
            if self.training:
                check_finite(batch.rows)
                codes, index = linear_select(
                    distances.hidden,
                    distances.head,
                    codebook,
                    self.estimator,
                    self.tau,
                    bias=distances.bias,
                    return_index=True,
                    generator=generator,
                    **self.options,
                )
                terms = self._terms(batch, distances, codebook[index])
                if not frozen:
                    self._update(batch, index)
            else:
                index = distances.nearest()
                codes, zero = codebook[index], codebook.new_zeros(())
                terms = LossBreakdown(zero, zero, zero)
        loss = (
            self.commitment_weight * terms.commitment
            + self.codebook_diversity_loss_weight * terms.codebook_diversity
            + self.entropy_loss_weight * terms.code_entropy
        )

        shape = vectors.shape[:-1]
        quantized = self.project_out(codes.to(projected.dtype).reshape(*shape, self.codebook_dim))
        quantized, index = quantized.to(x.dtype), index.reshape(shape)
        if mask is not None:
            padding = x.new_zeros(()) if self.return_zeros_for_masked_padding else vectors
            quantized = torch.where(mask.unsqueeze(-1), quantized, padding)
            index = torch.where(mask, index, -1)
        quantized = self._channels_back(quantized)
        if return_loss_breakdown:
            return quantized, index, loss, terms
        return quantized, index, loss

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """The codes of indices, zero for those of padding, in the layout of the input."""
        return self._channels_back(self._codes(indices))

    def get_output_from_indices(self, indices: Tensor) -> Tensor:
        """What ``forward`` returned with these indices, zero where padding was."""
        output = self.project_out(self._codes(indices))
        return self._channels_back(output.masked_fill((indices < 0).unsqueeze(-1), 0))

    def extra_repr(self) -> str:
        """What a print of the layer shows."""
        name = get_sampler(NAME, self.estimator).name
        return (
            f"{self.dim}, codebook_size={self.codebook_size}, estimator={name!r}, "
            f"sample_codebook_temp={self.sample_codebook_temp}"
        )

    def _codes(self, indices: Tensor) -> Tensor:
        if not isinstance(indices, Tensor) or indices.dtype != torch.int64:
            came = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
            raise TypeError(f"{NAME}: expected indices of dtype torch.int64, got {came}")
        last = self.codebook_size - 1
        if values_are_checked(indices) and ((indices < -1) | (indices > last)).any():
            raise ValueError(
                f"{NAME}: expected indices in [0, {last}], or -1 for padding, got values from "
                f"{int(indices.min())} to {int(indices.max())}. Pass what the layer returned."
            )
        padding = (indices < 0).unsqueeze(-1)
        return self.codebook[indices.clamp_min(0)].masked_fill(padding, 0)

    @property
    def _channels_first(self) -> bool:
        return self.accept_image_fmap or not self.channel_last

    def _channels_back(self, vectors: Tensor) -> Tensor:
        return vectors.movedim(-1, 1) if self._channels_first else vectors

    def _vectors(self, x: Tensor) -> Tensor:
        """The input with its width as the last axis."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            came = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{NAME}: expected x to be a floating-point tensor, got {came}")
        axis = 1 if self._channels_first else -1
        axes = 4 if self.accept_image_fmap else x.ndim
        if x.ndim != axes or x.ndim < (2 if axis == 1 else 1) or x.shape[axis] != self.dim:
            wanted = f"(..., {self.dim})"
            if self._channels_first:
                rest = "height, width" if self.accept_image_fmap else "..."
                wanted = f"(batch, {self.dim}, {rest})"
            raise ValueError(
                f"{NAME}: expected x of shape {wanted}, got {tuple(x.shape)}. Which axis has the "
                "width is said by channel_last and accept_image_fmap."
            )
        return x.movedim(axis, -1)

    def _batch(
        self, vectors: Tensor, mask: Tensor | None, generator: torch.Generator | None
    ) -> _Batch:
        dtype = compute_dtype(torch.promote_types(vectors.dtype, self.codebook.dtype))
        # not -1, which an empty tensor leaves open
        count = math.prod(vectors.shape[:-1])
        rows = vectors.to(dtype).reshape(count, self.codebook_dim)
        if mask is None:
            valid = torch.ones(count, dtype=torch.bool, device=rows.device)
            return _Batch(rows, valid, rows.new_full((count,), 1 / max(count, 1)), generator)
        valid = mask.reshape(count)
        weight = valid.to(dtype) / valid.sum().clamp_min(1)
        # the projection has made something of padding, too
        return _Batch(rows.masked_fill(~valid.unsqueeze(1), 0), valid, weight, generator)

    def _terms(self, batch: _Batch, distances: Distances, codes: Tensor) -> LossBreakdown:
        zero = codes.new_zeros(())
        commitment = diversity = own = zero
        if self.commitment_weight:
            squares = (codes - batch.rows).square().mean(1)
            commitment = (batch.weight * squares).sum()
        if self.codebook_diversity_loss_weight or self.entropy_loss_weight:
            joint, own = distances.entropies(batch.weight)
            diversity = -joint
        return LossBreakdown(commitment, diversity, own)

    @torch.no_grad()
    def _update(self, batch: _Batch, index: Tensor) -> None:
        """The moving averages, and the codes that follow from them or restart."""
        restarts = self.threshold_ema_dead_code > 0
        if not self.ema_update and not restarts:
            return
        ones = batch.valid.to(batch.rows.dtype).unsqueeze(1)
        # padding is zero already
        sums = add_rows(torch.cat([batch.rows, ones], 1), index, self.codebook_size)
        if self._shares():
            torch.distributed.all_reduce(sums)
        buffers = self.embed_avg, self.cluster_size
        # in the dtype of the sums: a float16 cannot hold the number of vectors of a large batch
        averages = [
            average.to(sums.dtype).lerp(new, 1 - self.decay)
            for average, new in zip(buffers, (sums[:, :-1], sums[:, -1]), strict=True)
        ]
        # a batch that is not finite must not spoil the codebook for ever, and one of padding alone
        # says nothing
        telling = sums[:, -1].sum() > 0
        for average, new in zip(buffers, averages, strict=True):
            telling = telling & new.to(average.dtype).isfinite().all()
        for average, new in zip(buffers, averages, strict=True):
            average.copy_(torch.where(telling, new.to(average.dtype), average))
        if self.ema_update:
            size = self.cluster_size.to(sums.dtype)
            total = size.sum()
            counts = (size + self.eps) / (total + self.codebook_size * self.eps)
            self.codebook.copy_(self.embed_avg / (counts * total).unsqueeze(1))
        if restarts:
            self._restart(batch)

    def _restart(self, batch: _Batch) -> None:
        """Move codes that are hardly drawn to vectors of the batch, each to another one."""
        rows, valid = batch.rows, batch.valid
        if rows.shape[0] == 0:
            # as padding, since other processes may wait for this one
            rows, valid = rows.new_zeros(1, self.codebook_dim), valid.new_zeros(1)
        dead = self.cluster_size < self.threshold_ema_dead_code
        call = Call(NAME, rows, generator=batch.generator)
        # a random order of the vectors with the padding last; shapes do not depend on values
        order = (uniform(valid.shape, torch.float32, call) + 2 * ~valid).argsort()
        place = dead.cumsum(0) - 1
        vectors = rows[order[place.clamp(0, len(rows) - 1)]]
        # those for which there is no vector wait for the next batch
        restarted = (dead & (place < valid.sum()) & vectors.isfinite().all(1)).unsqueeze(1)
        if self._shares():
            parts = torch.cat([vectors, restarted.to(vectors.dtype)], 1)
            torch.distributed.broadcast(parts, src=0)
            vectors, restarted = parts[:, :-1], parts[:, -1:] > 0
        size = self.threshold_ema_dead_code
        self.codebook.copy_(torch.where(restarted, vectors.to(self.codebook), self.codebook))
        averages = size * vectors.to(self.embed_avg)
        self.embed_avg.copy_(torch.where(restarted, averages, self.embed_avg))
        self.cluster_size.masked_fill_(restarted.squeeze(1), size)

    def _shares(self) -> bool:
        """Whether counts are those of all processes."""
        distributed = torch.distributed
        if self.sync_codebook is False or not distributed.is_available():
            return False
        return distributed.is_initialized() and distributed.get_world_size() > 1
