r"""What a distribution must give so that every estimator works on it.

A family is a distribution with natural parameters l, the logits. Every closed form of the library
is written with three things that it gives: the sample z, its mean $\mu(l)$, and the product
$C(l)\, g$ with $C = \partial\mu / \partial l$, which is also the covariance of z. The score, the
gradient of the log-probability of z, is $z - \mu(l)$ in every family.

Three forms of the same thing appear below:

- *drawn*: a draw in the shortest form, an index (..., 1) for categories, booleans for bits and
  subsets;
- *sample*: the draw as f gets it, one-hot or zeros and ones, in the dtype of the logits;
- *point*: where mean and covariance are taken, in the form that computes both without
  cancellation: probabilities for categories, log-odds for bits and subsets.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from .._types import Call, Temperature

# a plain dictionary: torch 2.6 cannot compile a look-up in one that is read-only
_NOTHING_FUSED: Mapping[str, Callable[..., Tensor]] = {}


class Variables(NamedTuple):
    """Random variables, checked and in one layout: the axes of a single variable come last."""

    logits: Tensor
    """Attached to the graph; -inf where a category, or the value 1, is excluded."""
    point: Tensor
    """The point of the logits themselves: a constant, float32 or float64."""
    tau: Temperature
    """A number, or a constant tensor that broadcasts against the logits."""
    dim: int
    """Where the user's category axis was."""


class Family(ABC):
    """One kind of random variable. Its objects hold no state that changes."""

    name: ClassVar[str]
    noise: ClassVar[str] = "no"
    """The distribution of the noise that perturbs logits, for messages."""
    kernel: ClassVar[str | None] = None
    """The function of ``kernels.samplers`` that draws it; None if no kernel does."""
    steps_in_kernels: ClassVar[bool] = False
    """Whether kernels make its draws and moments, without a kernel that does all in one: then
    ``with_kernels`` is the family that calls them."""

    @property
    def fused(self) -> Mapping[str, Callable[..., Tensor]]:
        """Faster forms of an estimator's formula, by its name, with the formula's arguments."""
        return _NOTHING_FUSED

    def with_kernels(self) -> "Family":
        """The same distribution, with kernels for its draws and moments. It needs Triton."""
        raise self._expected("with_kernels")

    # --- from a call to a draw

    @abstractmethod
    def check(self, call: Call, *, learnable_tau: bool = False) -> None:
        """Check types and shapes of what a user passed in."""

    @abstractmethod
    def prepare(self, call: Call, *, learnable_tau: bool = False) -> Variables:
        """Check what a user passed in and bring it into one layout."""

    @abstractmethod
    def check_values(self, name: str, variables: Variables) -> None:
        """Refuse logits of which no draw can be made; a draw does so by itself."""

    @abstractmethod
    def draw(self, call: Call, variables: Variables, count: int | None = None) -> Tensor:
        """One draw of every variable, or ``count`` of them along a new first axis."""

    @abstractmethod
    def accept(
        self, name: str, variables: Variables, given: Tensor, count: int | None = None
    ) -> Tensor:
        """A user's draw, or ``count`` of them along the first axis, in the form of ``draw``."""

    @abstractmethod
    def sample(self, logits: Tensor, drawn: Tensor) -> Tensor:
        """The sample of a draw, in the dtype of the logits."""

    @abstractmethod
    def restore(self, x: Tensor, dim: int) -> Tensor:
        """Something of the shape of a sample, in the user's layout."""

    # --- moments

    @abstractmethod
    def natural(self, variables: Variables) -> Tensor:
        """The logits as constants, shifted so that no temperature makes them overflow."""

    @abstractmethod
    def point(self, natural: Tensor) -> Tensor:
        """The point of natural parameters."""

    @abstractmethod
    def mean(self, point: Tensor) -> Tensor:
        """The mean of a sample."""

    @abstractmethod
    def covariance(self, point: Tensor, g: Tensor, *, centred: bool = False) -> Tensor:
        """The covariance of a sample times ``g``, to a rounding of the result's largest entry.

        With ``centred``, ``g`` is already zero where the mean is largest, which saves a pass.
        """

    @abstractmethod
    def residual(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The sample minus its mean, each entry to a rounding of itself, however certain the draw.

        Where the sample is 1, that is the probability of all other draws and not 1 minus the
        mean: nothing would be left of the latter in float32 from a logit of 17 on.
        """

    @abstractmethod
    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """The inner product over the entries of one variable, which are kept with size 1."""

    @abstractmethod
    def centre(self, g: Tensor, drawn: Tensor) -> Tensor:
        """``g``, shifted by what no covariance feels so that its entry at the draw is zero."""

    def tempered(self, variables: Variables) -> Tensor:
        """The point of ``logits / tau``."""
        tau = variables.tau
        if not isinstance(tau, Tensor) and tau == 1:
            return variables.point
        return self.point(self.natural(variables) / tau)

    # --- for score functions and enumeration

    @abstractmethod
    def variables_shape(self, logits: Tensor) -> torch.Size:
        """The shape of the logits without the axes of a single variable."""

    @abstractmethod
    def likeliest(self, logits: Tensor) -> Tensor:
        """The draw of the highest probability."""

    @abstractmethod
    def outcomes(self, logits: Tensor) -> int:
        """How many values one variable has."""

    @abstractmethod
    def outcome(self, logits: Tensor, digits: Tensor) -> Tensor:
        """The draws of values by their numbers."""

    @abstractmethod
    def log_prob(self, logits: Tensor, sample: Tensor) -> Tensor:
        """The log-probability of each variable's value, attached to the logits.

        Its derivatives hold to a rounding of their largest entry, however certain the value.
        """

    # --- what only some estimators need, which then name the families that have it

    def probability(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The probability of the draw."""
        raise self._expected("probability")

    def other_probability(self, drawn: Tensor, point: Tensor) -> Tensor:
        """The probability of all other draws, to a rounding of itself."""
        raise self._expected("other_probability")

    # noise that perturbs the logits, given the draw that it selects

    def draw_noise(
        self, variables: Variables, generator: torch.Generator | None, count: int | None = None
    ) -> Tensor:
        """Noise of the shape of a point for ``perturbed``, or ``count`` times along a new axis."""
        raise self._expected("draw_noise")

    def seeded_noise(self, seed: Tensor, first: int, count: int, like: Tensor) -> Tensor:
        """The same as a function of one seed per variable, for draws ``first`` to
        ``first + count``, along a new first axis."""
        raise self._expected("seeded_noise")

    def accept_noise(self, name: str, noise: Tensor, like: Tensor) -> Tensor:
        """A user's noise, its values checked, as a constant in the dtype of ``like``."""
        raise self._expected("accept_noise")

    def scale(self, variables: Variables) -> Tensor:
        """What ``perturbed`` needs to know of the logits."""
        raise self._expected("scale")

    def perturbed(self, scale: Tensor, drawn: Tensor, noise: Tensor) -> Tensor:
        """Natural parameters of the relaxed sample: logits plus noise that selects the draw."""
        raise self._expected("perturbed")

    def relaxed(self, natural: Tensor) -> Tensor:
        """The mean of natural parameters, differentiable as often as one likes.

        The derivatives hold to a rounding of their largest entry.
        """
        raise self._expected("relaxed")

    def gradient_given_noise(self, drawn: Tensor, g: Tensor) -> Tensor:
        """A gradient ``g`` at ``perturbed``, taken back to the logits: the noise stays where it is
        when the logits move."""
        raise self._expected("gradient_given_noise")

    def gradient_given_draw(self, scale: Tensor, drawn: Tensor, noise: Tensor, g: Tensor) -> Tensor:
        """The same with the draw fixed: the perturbed logits follow their distribution given it."""
        raise self._expected("gradient_given_draw")

    def _expected(self, method: str) -> NotImplementedError:
        return NotImplementedError(
            f"expected a family that has {method}, got {self}. Use an estimator that needs only "
            "what every family gives: its row in discretegrad.ESTIMATORS has any_family=True."
        )

    @property
    def title(self) -> str:
        """How results call it: its name, unless there are several families of that name."""
        return self.name

    def __repr__(self) -> str:
        return f"family {self.name!r}"
