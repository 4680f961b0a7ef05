"""Distributions with the interface of ``torch.distributions`` and a choice of gradient.

``rsample`` draws by any sampler of the library. ``log_prob`` is linear in the sample, as the
log-probability of an exponential family is, so its gradient reaches the sample.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch import distributions as plain
from torch.distributions import constraints
from torch.distributions.kl import register_kl

from ._checks import check_flag, check_generator, values_are_checked
from ._math import compute_dtype, row_sum
from ._row import Estimator
from ._score import check_works_on
from ._types import Call, Temperature
from .families.bernoulli import Bernoulli as Bits
from .families.categorical import Categorical as Categories
from .registry import EstimatorLike, sampler_rule

__all__ = ["Bernoulli", "OneHotCategorical"]


class _Sampler(NamedTuple):
    """How ``rsample`` draws."""

    row: Estimator
    tau: Temperature
    generator: torch.Generator | None
    options: dict[str, Any]


class _Discrete(plain.Distribution, ABC):
    """What both distributions share: what differs is the family and how a value is weighed."""

    has_rsample = True
    has_enumerate_support = True
    _family: ClassVar[Categories | Bits]

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        *,
        estimator: EstimatorLike = "reinmax",
        tau: Temperature = 1.0,
        mask: Tensor | None = None,
        unimix: float = 0.0,
        generator: torch.Generator | None = None,
        validate_args: bool | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        row, _ = sampler_rule(name, estimator, options)
        check_works_on(row, self._family)
        if isinstance(unimix, bool) or not isinstance(unimix, (int, float)):
            came = type(unimix).__name__
            raise TypeError(f"{name}: expected unimix to be a number in [0, 1), got {came}")
        if not 0 <= unimix < 1:
            raise ValueError(f"{name}: expected unimix to be a number in [0, 1), got {unimix!r}")
        if (probs is None) == (logits is None):
            came = "neither" if probs is None else "both"
            raise ValueError(f"{name}: expected either probs or logits, got {came}")
        if validate_args is not None:
            check_flag(name, "validate_args", validate_args)
        default: bool = plain.Distribution._validate_args
        checked = default if validate_args is None else validate_args
        natural = self._from_probs(probs, checked) if logits is None else _as_tensor(logits)
        call = Call(name, natural, tau, mask=mask)
        self._family.check(call)
        check_generator(name, generator, natural)
        if mask is not None:
            natural = natural.masked_fill(~mask, -math.inf)
        if checked and values_are_checked(natural):
            self._family.check_values(name, self._family.prepare(call))
        if unimix:
            natural = self._mixed(_wide(natural), float(unimix)).to(natural.dtype)
        self._natural = natural
        self._sampler = _Sampler(row, tau, generator, options)
        variables = self._family.variables_shape(natural)
        super().__init__(variables, natural.shape[len(variables) :], validate_args=False)
        self._validate_args = checked

    @classmethod
    @abstractmethod
    def _from_probs(cls, probs: Any, checked: bool) -> Tensor:
        """Logits of probabilities, infinite where an outcome is impossible."""

    @staticmethod
    @abstractmethod
    def _mixed(natural: Tensor, unimix: float) -> Tensor:
        """Logits of a mixture with the uniform distribution over the possible outcomes."""

    @staticmethod
    @abstractmethod
    def _weights(value: Tensor) -> Tensor:
        """How much of each outcome a value is, along the last axis: linear in the value."""

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The same distribution with a larger batch shape; no memory is taken for it."""
        new: Any = self._get_checked_instance(_Discrete, _instance)  # type: ignore[no-untyped-call]
        batch_shape = torch.Size(batch_shape)
        new._natural = self._natural.expand(batch_shape + self.event_shape)
        new._sampler = self._sampler
        super(_Discrete, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    @abstractmethod
    def logits(self) -> Tensor:
        """The logits, as ``torch.distributions`` gives them: of categories normalised."""

    @property
    def log_probs(self) -> Tensor:
        """The log-probability of every outcome, along the last axis."""
        return self._wide_log_probs().to(self._natural.dtype)

    def _wide_log_probs(self) -> Tensor:
        """The same in float32 at least: a float16 cannot hold a sum over 65536 categories."""
        return self._family.log_probs(_wide(self._natural))

    @property
    def probs(self) -> Tensor:
        """The probabilities, which are the mean."""
        return self._family.relaxed(_wide(self._natural)).to(self._natural.dtype)

    @property
    def mean(self) -> Tensor:
        """The probabilities."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The variance of each entry of a sample."""
        return self.probs * (1 - self.probs)

    @property
    def mode(self) -> Tensor:
        """The likeliest outcome, a constant; of several that are equally likely the first."""
        fixed = self._natural.detach()
        return self._family.sample(fixed, self._family.likeliest(fixed))

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode, under the name that torchrl asks for."""
        return self.mode

    @property
    def param_shape(self) -> torch.Size:
        """The shape of the logits."""
        return self._natural.shape

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Samples with the gradient of the estimator."""
        row, tau, generator, options = self._sampler
        logits = self._natural.expand(self._extended_shape(torch.Size(sample_shape)))
        return row.function(logits, tau, family=self._family.name, generator=generator, **options)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """The same samples as constants."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability of a value, linear in it; -inf for an impossible one.

        An impossible outcome that was not drawn gives the value no gradient: a sampler gives it
        probability zero, so none would arrive.
        """
        if not isinstance(value, Tensor):
            name = type(self).__name__
            raise TypeError(f"{name}: expected a tensor of values, got {type(value).__name__}")
        if self._validate_args and values_are_checked(value):
            self._validate_sample(value)
        return _expected(self._weights(value.to(self._natural.dtype)), self.log_probs)

    def entropy(self) -> Tensor:
        """The entropy in nats; impossible outcomes add nothing."""
        log_probs = self._wide_log_probs()
        entropy = 0 - _expected(log_probs.exp(), log_probs)  # see _kl
        return entropy.to(self._natural.dtype)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All outcomes along a new first axis."""
        count = self._family.outcomes(self._natural)
        digits = torch.arange(count, device=self._natural.device)
        digits = digits.view(count, *[1] * len(self.batch_shape))
        values = self._family.sample(self._natural, self._family.outcome(self._natural, digits))
        return values.expand(count, *self.batch_shape, *self.event_shape) if expand else values

    def __repr__(self) -> str:
        shape, row = tuple(self.param_shape), self._sampler.row
        return f"{type(self).__name__}(logits: {shape}, estimator: {row.name})"


class OneHotCategorical(_Discrete):
    r"""One-hot samples of categories, with a gradient of your choice.

    It takes the place of ``torch.distributions.OneHotCategorical`` and
    ``OneHotCategoricalStraightThrough``. The log-probability $\sum_j z_j \log p_j$ is linear in the
    sample z, so with an estimator that is exact for linear functions a sampled
    $\log q(z) - \log p(z)$ has the gradient of the KL divergence in expectation.

    With ``unimix`` u and n possible categories, the distribution is the one with logits
    $\log\big((1-u)\,\mathrm{softmax}(l) + u/n\big)$, as in Dreamer: no probability falls below u/n.
    The gradient is that of these logits, taken back to $l$: nothing of the estimator's exactness is
    lost.

    Args:
        probs: Probabilities along the last axis, which need not sum to 1; 0 excludes a category.
        logits: Instead of them, unnormalised log-probabilities; -inf excludes a category.
        estimator: The sampler of ``rsample``: its name, its row, or its function.
        tau: The temperature of the estimator, which tempers no draw. A constant.
        mask: Boolean, broadcasts to the logits; False excludes a category.
        unimix: The share of the uniform distribution over what is not excluded.
        generator: Source of randomness for ``sample`` and ``rsample``, whose interface has no
            place for one; the global one by default.
        validate_args: As in torch; values of tensors are read where ``set_checks`` says.
        **options: The sampler's own options, such as ``gap`` or ``num_draws``.

    Example:
        >>> import torch
        >>> from discretegrad.distributions import OneHotCategorical
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> q = OneHotCategorical(logits=logits, estimator="reinmax", unimix=0.01)
        >>> z = q.rsample((5,))
        >>> z.shape, q.log_prob(z).shape
        (torch.Size([5, 2, 3]), torch.Size([5, 2]))
        >>> prior = torch.distributions.OneHotCategorical(logits=torch.zeros(2, 3))
        >>> torch.distributions.kl_divergence(q, prior).detach()
        tensor([0., 0.])
    """

    arg_constraints: ClassVar[Any] = {
        "probs": constraints.simplex,
        "logits": constraints.real_vector,
    }
    support: ClassVar[Any] = constraints.one_hot
    _family = Categories()

    @property
    def logits(self) -> Tensor:
        """The log-probabilities, as those of torch."""
        return self.log_probs

    @classmethod
    def _from_probs(cls, probs: Any, checked: bool) -> Tensor:
        most = torch.finfo(torch.float64).max
        return _log(_check_probs(cls.__name__, probs, most, checked))

    @staticmethod
    def _mixed(natural: Tensor, unimix: float) -> Tensor:
        possible = natural > -math.inf
        uniform = unimix / possible.sum(-1, keepdim=True, dtype=natural.dtype)
        return _log(torch.where(possible, (1 - unimix) * natural.softmax(-1) + uniform, 0))

    @staticmethod
    def _weights(value: Tensor) -> Tensor:
        return value


class Bernoulli(_Discrete):
    """Bits, with a gradient of your choice, in place of ``torch.distributions.Bernoulli``.

    With ``unimix`` u the probability of 1 is $(1-u)\\,\\sigma(l) + u/2$; a certain bit stays so.

    Args:
        probs: Probabilities of the value 1.
        logits: Instead of them, its log-odds; infinite for a certain bit.
        estimator: As for ``OneHotCategorical``.
        tau: As for ``OneHotCategorical``.
        mask: Boolean, broadcasts to the logits; False excludes the value 1.
        unimix: The share of the fair coin.
        generator: As for ``OneHotCategorical``.
        validate_args: As for ``OneHotCategorical``.
        **options: As for ``OneHotCategorical``.

    Example:
        >>> import torch
        >>> from discretegrad.distributions import Bernoulli
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> q = torch.distributions.Independent(Bernoulli(logits=logits), 1)
        >>> q.log_prob(q.rsample()).shape
        torch.Size([])
    """

    arg_constraints: ClassVar[Any] = {
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    support: ClassVar[Any] = constraints.boolean
    _family = Bits()

    @property
    def logits(self) -> Tensor:
        """The log-odds of the value 1."""
        return self._natural

    @classmethod
    def _from_probs(cls, probs: Any, checked: bool) -> Tensor:
        probs = _check_probs(cls.__name__, _as_tensor(probs), 1.0, checked)
        return _log(probs) - _log(1 - probs)

    @staticmethod
    def _mixed(natural: Tensor, unimix: float) -> Tensor:
        both = Bits().log_probs(natural).exp() * (1 - unimix) + unimix / 2
        return torch.where(natural.isinf(), natural, both[..., 1].log() - both[..., 0].log())

    @staticmethod
    def _weights(value: Tensor) -> Tensor:
        return torch.stack([1 - value, value], -1)


def _kl(p: Any, q: Any) -> Tensor:
    """Infinite, not NaN, where q excludes what p does not."""
    log_p, log_q = _log_probs_of(p), _log_probs_of(q)
    # what p excludes adds nothing, whatever q says
    log_ratio = torch.where(log_p == -math.inf, 0, log_q - log_p)
    divergence = 0 - _expected(log_p.exp(), log_ratio)  # not -x, which is -0.0 for equal ones
    dtypes = (d._natural.dtype if isinstance(d, _Discrete) else d.logits.dtype for d in (p, q))
    return divergence.to(torch.promote_types(*dtypes))


for _ours, _torchs in ((OneHotCategorical, plain.OneHotCategorical), (Bernoulli, plain.Bernoulli)):
    for _pair in ((_ours, _ours), (_ours, _torchs), (_torchs, _ours)):
        register_kl(*_pair)(_kl)


def _log_probs_of(d: Any) -> Tensor:
    """In float32 at least; also for torch's distributions."""
    if isinstance(d, _Discrete):
        return d._wide_log_probs()
    logits = _wide(d.logits)
    # from probs of 0 and 1 torch makes logits of the logarithm of the dtype's precision; where
    # such probs are the rounding of logits, these are further out
    clamped = logits.abs() < 1 - math.log(torch.finfo(d.logits.dtype).eps)
    logits = torch.where(clamped & (d.probs == 0), -math.inf, logits)
    if isinstance(d, plain.OneHotCategorical):
        return logits
    return Bits().log_probs(torch.where(clamped & (d.probs == 1), math.inf, logits))


def _expected(weights: Tensor, log_probs: Tensor) -> Tensor:
    """The sum of ``weights * log_probs`` over the last axis: -inf, never NaN, and 0 for 0 * -inf.

    Outcomes with a log-probability of -inf give no gradient, and their weights get none.
    """
    impossible = log_probs == -math.inf
    total = row_sum(weights * log_probs.masked_fill(impossible, 0)).squeeze(-1)
    return total.masked_fill(((weights != 0) & impossible).any(-1), -math.inf)


def _wide(natural: Tensor) -> Tensor:
    return natural.to(compute_dtype(natural.dtype))


def _log(probs: Tensor) -> Tensor:
    """The logarithm: -inf at 0, where nothing gets a gradient (torch's has NaN)."""
    impossible = probs == 0
    return probs.masked_fill(impossible, 1).log().masked_fill(impossible, -math.inf)


def _as_tensor(parameter: Any) -> Any:
    """A number as a tensor; the rest is for checks to accept or refuse."""
    is_number = isinstance(parameter, (int, float)) and not isinstance(parameter, bool)
    return torch.tensor(float(parameter)) if is_number else parameter


def _check_probs(name: str, probs: Any, most: float, checked: bool) -> Tensor:
    """``probs`` is a real tensor, which is returned, with values from 0 to ``most``."""
    if not isinstance(probs, Tensor) or not probs.is_floating_point():
        came = probs.dtype if isinstance(probs, Tensor) else type(probs).__name__
        raise TypeError(
            f"{name}: expected probs to be a floating-point tensor, got {came}. Convert with "
            "torch.as_tensor(probs).float()."
        )
    if checked and values_are_checked(probs):
        bad = ~((probs >= 0) & (probs <= most))
        if bad.any():
            limits = "in [0, 1]" if most == 1 else "non-negative and finite"
            raise ValueError(
                f"{name}: expected probs that are {limits}, got {probs[bad][0].item()}. Pass "
                "unnormalised log-probabilities as logits=."
            )
    return probs
