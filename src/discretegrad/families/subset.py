"""Subsets of fixed size: a sample has exactly k ones along an axis of n items."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._checks import check_count, values_are_checked
from .._math import compute_dtype, row_sum
from .._modes import compiling, forward_over_forward
from .._random import uniform, widest
from .._types import Call
from . import counting
from .axis import AlongAxis, constant
from .base import Variables
from .bernoulli import check_bit_values


class Steps(Protocol):
    """What the sums over subsets are asked for; see ``counting``."""

    def below_last(self, natural: Tensor, k: int) -> Tensor:
        """Natural parameters minus the k-th largest of their row."""

    def balanced(self, natural: Tensor, k: int) -> Tensor:
        """Log-odds of bits of which k are 1 on average."""

    def inclusion(self, point: Tensor, k: int) -> counting.Inclusion:
        """The probabilities of items."""

    def inclusion_and_covariance(
        self, point: Tensor, k: int, g: Tensor
    ) -> tuple[counting.Inclusion, Tensor]:
        """The same and the covariance times ``g``."""

    def second_order(
        self, point: Tensor, k: int, g: Tensor, drawn: Tensor, weight: float
    ) -> Tensor:
        """``weight`` times the covariance times ``g``, plus half of the second order."""

    def draw(self, point: Tensor, k: int, uniform: Tensor) -> Tensor:
        """Subsets from uniform numbers."""


@dataclass(frozen=True, repr=False)
class Subset(AlongAxis):
    r"""k items of n, drawn together: $P(z) \propto e^{l \cdot z}$ over all $z \in \{0, 1\}^n$ with
    k ones.

    A family of variables: pass it as ``family`` wherever ``"categorical"`` may be passed. A sample
    has exactly k ones along ``dim``, its mean are the probabilities $\mu_i$ that an item is in the
    subset, and ``given`` and ``mask`` have the shape of the logits. A subset of one item is a
    category.

    The distribution is exact, by sums over all subsets that take $O(nk)$ steps: thousands of items
    are fine. It is not that of the k largest of n logits with Gumbel noise, which are k draws
    without replacement.

    Drawn: booleans. Point: log-odds of n independent bits which, given that k of them are 1, are
    distributed so.

    Args:
        k: How many items a subset has.

    Raises:
        TypeError: If ``k`` is no int.
        ValueError: If it is not positive.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(2, 5, requires_grad=True)
        >>> z = discretegrad.straight_through(logits, family=discretegrad.Subset(3))
        >>> z.sum(-1)
        tensor([3., 3.], grad_fn=<SumBackward1>)
        >>> discretegrad.Subset(3).relaxed(logits[0]).detach()
        tensor([0.6000, 0.6000, 0.6000, 0.6000, 0.6000])
    """

    k: int
    name = "subset"
    steps_in_kernels = True
    _steps: ClassVar[Steps] = counting

    def __post_init__(self) -> None:
        check_count("Subset", "k", self.k)

    @property
    def fused(self) -> Mapping[str, Callable[..., Tensor]]:
        """See ``Family``."""
        return {"reinmax": partial(_reinmax, self)}

    def with_kernels(self) -> "Subset":
        """See ``Family``."""
        from ..kernels.subset_family import KernelSubset

        return KernelSubset(self.k)

    def check(self, call: Call, *, learnable_tau: bool = False) -> None:
        """See ``Family``: there are at least k items."""
        super().check(call, learnable_tau=learnable_tau)
        items = call.logits.shape[call.dim]
        if items < self.k:
            raise ValueError(
                f"{call.name}: expected at least {self.k} items for {self}, got {items} along dim "
                f"{call.dim} of logits of shape {tuple(call.logits.shape)}"
            )

    def check_values(self, name: str, variables: Variables) -> None:
        """No logit is NaN or +inf, and every row allows k items."""
        logits = variables.logits.detach()
        if not values_are_checked(logits):
            return
        if logits.isnan().any():
            raise ValueError(
                f"{name}: expected logits without NaN, got NaN. Find its origin with "
                "torch.autograd.set_detect_anomaly(True)."
            )
        if (logits == math.inf).any():
            raise ValueError(
                f"{name}: expected logits that are finite or -inf, got +inf. To force an item, "
                "give it a finite logit far above the others, or draw the others without it."
            )
        allowed = (logits > -math.inf).sum(-1)
        if (allowed < self.k).any():
            raise ValueError(
                f"{name}: expected at least {self.k} allowed items in every row for {self}, but in "
                f"some row the mask and -inf logits leave {int(allowed.min())}. Drop such rows, or "
                "allow more items."
            )

    def draw(self, call: Call, variables: Variables, count: int | None = None) -> Tensor:
        """Booleans of the shape of the logits, exactly k of them True in a row.

        They take n - 1 float64 numbers per variable: each says how many of the items of a group are
        in its first half.
        """
        self.check_values(call.name, variables)
        point = variables.point
        draws = () if count is None else (count,)
        shape = (*draws, *point.shape[:-1], point.shape[-1] - 1)
        place = uniform(shape, widest(point.device), call)
        place = place.reshape(count or 1, math.prod(point.shape[:-1]), shape[-1])
        drawn = self._steps.draw(point.reshape(-1, point.shape[-1]), self.k, place)
        return drawn.reshape(*draws, *point.shape)

    def accept(
        self, name: str, variables: Variables, given: Tensor, count: int | None = None
    ) -> Tensor:
        """The subsets that a user has drawn, as booleans."""
        self.check_values(name, variables)
        dim = variables.dim
        check_bit_values(name, given, self.restore(variables.logits, dim), count)
        # an axis of samples is in front, which only an axis counted from the end does not feel
        drawn = given.movedim(dim + (count is not None and dim >= 0), -1) != 0
        sizes = drawn.sum(-1)
        if values_are_checked(given) and (sizes != self.k).any():
            raise ValueError(
                f"{name}: expected given subsets with exactly {self.k} ones along dim {dim} for "
                f"{self}, got from {int(sizes.min())} to {int(sizes.max())}"
            )
        return drawn

    def sample(self, logits: Tensor, drawn: Tensor) -> Tensor:
        """Zeros and ones."""
        return drawn.to(logits.dtype)

    def natural(self, variables: Variables) -> Tensor:
        """Logits minus the k-th largest of their row."""
        return self._steps.below_last(constant(variables.logits, variables.point.dtype), self.k)

    def point(self, natural: Tensor) -> Tensor:
        """Log-odds of bits of which k are 1 on average."""
        return self._steps.balanced(natural, self.k)

    def mean(self, point: Tensor) -> Tensor:
        """The probability that an item is in the subset."""
        return self._steps.inclusion(point, self.k).mean

    def covariance(self, point: Tensor, g: Tensor, *, centred: bool = False) -> Tensor:
        """See ``counting``."""
        return self._steps.inclusion_and_covariance(point, self.k, g)[1]

    def residual(self, drawn: Tensor, point: Tensor) -> Tensor:
        """See ``counting``."""
        return counting.residual(drawn, self._steps.inclusion(point, self.k))

    def centre(self, g: Tensor, drawn: Tensor) -> Tensor:
        """``g`` minus its mean over the drawn items."""
        return g - self.dot(g, drawn.to(g.dtype)) / self.k

    def likeliest(self, logits: Tensor) -> Tensor:
        """The k largest logits."""
        self.check(Call(f"{self}.likeliest", logits))
        largest = logits.topk(self.k, -1).indices
        return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, largest, True)

    def outcomes(self, logits: Tensor) -> int:
        """How many subsets there are, those of excluded items among them."""
        return math.comb(logits.shape[-1], self.k)

    def outcome(self, logits: Tensor, digits: Tensor) -> Tensor:
        """Subsets by their numbers: first all without the last item, then those with it."""
        number, missing = digits, torch.full_like(digits, self.k)
        drawn, limit = [], self.outcomes(logits)
        for item in reversed(range(logits.shape[-1])):
            # what exceeds the limit is not met, and might exceed an int64
            ways = [min(math.comb(item, size), limit) for size in range(self.k + 1)]
            without = torch.tensor(ways, device=digits.device)[missing]
            taken = number >= without
            number, missing = number - without * taken, missing - taken.long()
            drawn.append(taken)
        return torch.stack(drawn[::-1], -1)

    def log_prob(self, logits: Tensor, sample: Tensor) -> Tensor:
        """The log-probability of each subset, (...); a sample has k ones along its last axis."""
        self._check_parameters("log_prob", logits)
        self._check_sample("log_prob", logits, sample)
        # torch compiles no function with a rule for forward mode
        log_prob = _LogProb.apply if compiling() else _LogProbForward.apply
        if not compiling() and forward_over_forward():
            log_prob = _log_prob
        return log_prob(_wide(logits), sample > 0, self.k).to(logits.dtype)

    def relaxed(self, natural: Tensor) -> Tensor:
        """The probability that an item is in the subset, differentiable as often as one likes."""
        self._check_parameters("relaxed", natural)
        point = counting.balanced(_wide(natural), self.k)
        return counting.inclusion(point, self.k).mean.to(natural.dtype)

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of each variable, (...), in nats. Differentiable."""
        self._check_parameters("entropy", logits)
        point = counting.balanced(_wide(logits), self.k)
        mean, rest = counting.inclusion(point, self.k)
        # what has no chance adds nothing, and its log-odds may be infinite
        of_in = mean * logsigmoid(point.masked_fill(mean == 0, 0))
        of_out = rest * logsigmoid(-point.masked_fill(rest == 0, 0))
        total = row_sum(of_in + of_out).squeeze(-1)
        return (counting.log_chance(point, self.k) - total).to(logits.dtype)

    def _check_parameters(self, method: str, natural: Tensor) -> None:
        """What a user passed to a method is logits of which a draw can be made."""
        name = f"{self}.{method}"
        self.check(Call(name, natural))
        self.check_values(name, Variables(natural, natural, 1.0, -1))

    def _check_sample(self, method: str, logits: Tensor, sample: Tensor) -> None:
        """What a user passed to a method is subsets of as many items as the logits have."""
        name = f"{self}.{method}"
        if not isinstance(sample, Tensor) or sample.is_complex():
            came = sample.dtype if isinstance(sample, Tensor) else type(sample).__name__
            raise TypeError(f"{name}: expected sample to be a 0/1 tensor, got {came}")
        items = logits.shape[-1]
        if sample.ndim == 0 or sample.shape[-1] != items or sample.device != logits.device:
            raise ValueError(
                f"{name}: expected a sample of shape (..., {items}), as that of the logits, on "
                f"{logits.device}, got {tuple(sample.shape)} on {sample.device}"
            )
        if not values_are_checked(sample):
            return
        ones = sample == 1
        sizes = ones.sum(-1)
        if not (ones | (sample == 0)).all() or (sizes != self.k).any():
            raise ValueError(
                f"{name}: expected samples of zeros and exactly {self.k} ones along the last axis, "
                f"got other values, or from {int(sizes.min())} to {int(sizes.max())} ones. Draw "
                "one with a sampler, or take the likeliest."
            )

    @property
    def title(self) -> str:
        """See ``Family``: those with another k are other distributions."""
        return f"Subset(k={self.k})"

    def __repr__(self) -> str:
        return f"Subset({self.k})"


def _wide(logits: Tensor) -> Tensor:
    return logits.to(compute_dtype(logits.dtype))


def _reinmax(
    family: Subset, g: Tensor, drawn: Tensor, point: Tensor, tempered: Tensor | None = None
) -> Tensor:
    """The gradient of ``reinmax`` with one pass for mean and covariance of a point."""
    second_order = family._steps.second_order
    if tempered is None:
        return second_order(point, family.k, g, drawn, 0.5)
    return second_order(tempered, family.k, g, drawn, 1.0) - family.covariance(point, g) / 2


def _log_prob(logits: Tensor, drawn: Tensor, k: int) -> Tensor:
    point = counting.balanced(logits, k)
    bits = logsigmoid(torch.where(drawn, point, -point))
    return row_sum(bits).squeeze(-1) - counting.log_chance(point, k)


class _LogProb(torch.autograd.Function):
    """The log-probability of subsets. Its gradient is the residual, and differentiable itself.

    Through the sums over subsets the gradient would be a difference of numbers near 1 wherever a
    subset is nearly certain.
    """

    apply: Callable[..., Tensor]  # torch leaves it without a type
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, drawn: Tensor, k: int) -> Tensor:
        return _log_prob(logits, drawn, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        logits, drawn, ctx.k = inputs
        ctx.save_for_backward(logits, drawn)
        ctx.save_for_forward(logits, drawn)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        logits, drawn = ctx.saved_tensors
        gradient = g[0].unsqueeze(-1) * _score(logits, drawn, ctx.k)
        return gradient.sum_to_size(logits.shape), None, None


class _LogProbForward(_LogProb):
    """The same with derivatives in forward mode."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        logits, drawn = ctx.saved_tensors
        return (tangents[0] * _score(logits, drawn, ctx.k)).sum(-1)


def _score(logits: Tensor, drawn: Tensor, k: int) -> Tensor:
    """The gradient of the log-probability, differentiable."""
    return counting.residual(drawn, counting.inclusion(counting.balanced(logits, k), k))
