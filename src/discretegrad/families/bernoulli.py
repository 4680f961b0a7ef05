"""Bernoulli variables: a sample is 0 or 1, each with a logit of its own."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._checks import check_dense, check_logits, check_mask, check_tau, values_are_checked
from .._math import compute_dtype, sigmoid, sigmoid_and_rest
from .._random import uniform, widest
from .._seeded import seeded_logistic
from .._types import Call
from .base import Family, Variables


class Bernoulli(Family):
    """One bit. Drawn: booleans. Point: the log-odds of the value 1.

    A bit is the first of the two categories with logits (l, 0), and every formula here is that of
    the categories, for the gradient (g, 0).
    """

    name = "bernoulli"
    noise = "logistic"
    kernel = "bits"

    def check(self, call: Call, *, learnable_tau: bool = False) -> None:
        """See ``Family``."""
        name, logits, tau, dim, mask, _ = call
        check_logits(name, logits)
        if not isinstance(dim, int) or dim != -1:
            raise ValueError(
                f"{name}: expected no dim for family='bernoulli', whose logits have no category "
                f"axis, got dim={dim!r}"
            )
        check_tau(name, tau, logits, None, learnable=learnable_tau)
        check_mask(name, mask, logits)

    def prepare(self, call: Call, *, learnable_tau: bool = False) -> Variables:
        """See ``Family``: -inf where the value 1 is excluded."""
        self.check(call, learnable_tau=learnable_tau)
        name, logits, tau, dim, mask, _ = call
        dtype = compute_dtype(logits.dtype)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        check_bits(name, logits)
        if isinstance(tau, Tensor):
            tau = tau.to(logits.device, dtype).broadcast_to(logits.shape)
        return Variables(logits, logits.detach().to(dtype), tau, dim)

    def check_values(self, name: str, variables: Variables) -> None:
        """``prepare`` has done so."""

    def draw(self, call: Call, variables: Variables, count: int | None = None) -> Tensor:
        """One boolean per logit, True with probability ``sigmoid(logit)``."""
        point = variables.point
        shape = point.shape if count is None else (count, *point.shape)
        return take_less_likely(point, uniform(shape, widest(point.device), call))

    def accept(
        self, name: str, variables: Variables, given: Tensor, count: int | None = None
    ) -> Tensor:
        """The values that a user has drawn, as booleans."""
        check_bit_values(name, given, variables.logits, count)
        return given != 0

    def sample(self, logits: Tensor, drawn: Tensor) -> Tensor:
        """Zeros and ones."""
        return drawn.to(logits.dtype)

    def restore(self, x: Tensor, dim: int) -> Tensor:
        """As it is."""
        return x

    def natural(self, variables: Variables) -> Tensor:
        """The log-odds."""
        return variables.point

    def point(self, natural: Tensor) -> Tensor:
        """The log-odds."""
        return natural

    def mean(self, point: Tensor) -> Tensor:
        """The probability of the value 1."""
        return sigmoid(point)

    def covariance(self, point: Tensor, g: Tensor, *, centred: bool = False) -> Tensor:
        """``p (1 - p) g``."""
        return sigmoid(point) * sigmoid(-point) * g

    def residual(self, drawn: Tensor, point: Tensor) -> Tensor:
        """``1 - p`` where the bit is 1, without cancellation, and ``-p`` where it is 0."""
        mean, rest = sigmoid_and_rest(point)
        # exact for a weight of 0 or 1, and much faster than torch.where
        return torch.lerp(-mean, rest, drawn.to(point.dtype))

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """The product: a variable has one entry."""
        return x * y

    def centre(self, g: Tensor, drawn: Tensor) -> Tensor:
        """``g``: the covariance of a bit feels every change of it."""
        return g

    def probability(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The probability of the drawn value."""
        return sigmoid(torch.where(drawn, point, -point))

    def other_probability(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The probability of the other value."""
        return sigmoid(torch.where(drawn, -point, point))

    def draw_noise(
        self, variables: Variables, generator: torch.Generator | None, count: int | None = None
    ) -> Tensor:
        """Standard logistic noise, finite."""
        point = variables.point
        shape = point.shape if count is None else (count, *point.shape)
        call = Call("", point, generator=generator)
        return torch.logit(uniform(shape, point.dtype, call), eps=2**-24)

    def seeded_noise(self, seed: Tensor, first: int, count: int, like: Tensor) -> Tensor:
        """Standard logistic noise from one seed per bit."""
        return seeded_logistic(seed, first, count, like)

    def accept_noise(self, name: str, noise: Tensor, like: Tensor) -> Tensor:
        """Logistic noise is finite."""
        if values_are_checked(noise) and not noise.isfinite().all():
            raise ValueError(
                f"{name}: expected finite logistic noise, got NaN or inf. Draw it with "
                "torch.rand_like(logits).logit(eps=1e-7)."
            )
        return noise.detach().to(like.dtype)

    def scale(self, variables: Variables) -> Tensor:
        """The log-odds."""
        return variables.point

    def perturbed(self, scale: Tensor, drawn: Tensor, noise: Tensor) -> Tensor:
        """Log-odds plus logistic noise that makes them positive where the bit is 1.

        The log-ratio of two standard exponentials is standard logistic, so this is what
        ``Categorical.perturbed`` gives for two categories, with one number of noise.
        """
        other = logsigmoid(torch.where(drawn, -scale, scale))
        lead = -logsigmoid(other - noise)
        return torch.where(drawn, lead, -lead)

    def relaxed(self, natural: Tensor) -> Tensor:
        """Their sigmoid."""
        return logsigmoid(natural).exp()

    def gradient_given_noise(self, drawn: Tensor, g: Tensor) -> Tensor:
        """``g``: the log-odds move as the logits do."""
        return g

    def gradient_given_draw(self, scale: Tensor, drawn: Tensor, noise: Tensor, g: Tensor) -> Tensor:
        r"""With standard logistic noise L, ``perturbed`` is
        $\pm\mathrm{softplus}(L + \mathrm{softplus}(\pm l))$, plus where the bit is 1."""
        own = torch.where(drawn, scale, -scale)
        return sigmoid(noise - logsigmoid(-own)) * sigmoid(own) * g

    def variables_shape(self, logits: Tensor) -> torch.Size:
        """That of the logits."""
        return logits.shape

    def likeliest(self, logits: Tensor) -> Tensor:
        """1 where the log-odds are positive."""
        return logits > 0

    def outcomes(self, logits: Tensor) -> int:
        """Two values."""
        return 2

    def outcome(self, logits: Tensor, digits: Tensor) -> Tensor:
        """The digits as booleans."""
        return digits != 0

    def log_probs(self, logits: Tensor) -> Tensor:
        """The log-probabilities of 0 and 1, along a new last axis."""
        return logsigmoid(torch.stack([-logits, logits], -1))

    def log_prob(self, logits: Tensor, sample: Tensor) -> Tensor:
        """The log-probability of each bit's value."""
        return logsigmoid(torch.where(sample > 0, logits, -logits))


def take_less_likely(point: Tensor, uniform: Tensor) -> Tensor:
    """Bits that take their less likely value where ``uniform`` is below its probability.

    That is the probability which floating point resolves finely.
    """
    return (uniform < sigmoid(-point.abs())) ^ (point > 0)


def check_bits(name: str, logits: Tensor) -> None:
    """Bernoulli logits hold no NaN; both infinities are fine (a certain bit)."""
    if not values_are_checked(logits):
        return
    # one NaN makes the sum NaN, and the sum is fast; so do infinities of both signs, which are fine
    if math.isnan(logits.detach().sum().item()) and logits.isnan().any():
        raise ValueError(
            f"{name}: expected logits without NaN, got NaN. Find its origin with "
            "torch.autograd.set_detect_anomaly(True)."
        )


def check_bit_values(name: str, value: Tensor, logits: Tensor, count: int | None = None) -> None:
    """``value`` has a 0 or 1 for each of the Bernoulli ``logits``, or ``count`` of them."""
    if not isinstance(value, Tensor) or value.is_complex():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name}: expected given to be a 0/1 tensor, got {came}")
    check_dense(name, "given", value)
    wanted, words = logits.shape, "the logits' shape"
    if count is not None:
        wanted, words = torch.Size((count, *wanted)), "(num_samples, *the logits' shape)"
    if value.shape != wanted or value.device != logits.device:
        raise ValueError(
            f"{name}: expected given of shape {tuple(wanted)} ({words}) on {logits.device}, got "
            f"{tuple(value.shape)} on {value.device}"
        )
    if not values_are_checked(value):
        return
    if not ((value == 0) | (value == 1)).all():
        raise ValueError(f"{name}: expected every given value to be 0 or 1, got something else")
    impossible = torch.where(value != 0, -math.inf, math.inf).to(logits.dtype)
    if (logits.detach() == impossible).any():
        raise ValueError(
            f"{name}: expected given values that are possible, got a 1 where the logit is -inf (or "
            "masked), or a 0 where it is +inf"
        )
