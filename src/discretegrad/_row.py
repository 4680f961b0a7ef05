"""A row of the registry: everything that is said about one estimator, in its own file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor, nn

from .families import Family
from .sampling import Rule

BOTH = ("categorical", "bernoulli")


@dataclass(frozen=True, eq=False)
class Estimator:
    """One estimator: what it is, what it costs, what it promises, and where it comes from.

    The rows of the library are in ``discretegrad.ESTIMATORS``. A row of your own works wherever
    the library takes the name of an estimator; docs/adding-an-estimator.md shows how to make one.
    """

    name: str
    """Registry key, function name and file name."""
    label: str
    """How papers write it."""
    kind: Literal["sampler", "score"]
    """A sampler turns logits into a sample that carries a gradient; a score-function estimator
    takes logits and f, and returns the mean of f with a gradient."""
    function: Callable[..., Tensor]
    """What a user calls; the family is one of its arguments."""
    reference: str
    """Paper."""
    bibtex: str
    """Citation."""
    families: tuple[str, ...] = BOTH
    """Names of the kinds of variable that it works on."""
    any_family: bool = False
    """Whether it needs only what every family gives, and so works on families of your own too."""
    rule: Callable[..., Rule] | None = None
    """For samplers: from the options in ``options`` to the rule of the gradient."""
    takes: tuple[str, ...] = ()
    """For samplers with noise besides the draw, what may be passed beside ``given``: ``"noise"``,
    ``"seed"``."""
    unbiased: bool = False
    """Whether the expected gradient is the true one for every f."""
    exact_for: Literal["linear", "quadratic", "nothing", "everything"] = "nothing"
    """The functions of each variable for which its mean is exact, for samplers at tau 1."""
    bias: str = "not known"
    """The bias in words."""
    temperature: str = "none"
    """Sensible temperatures."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its own keyword arguments with their defaults."""
    evaluations: int | None = 1
    """Evaluations of f for each sample; None stands for all joint outcomes."""
    min_samples: int = 1
    """The least number of samples."""
    extra_evaluations: int = 0
    """Evaluations of f besides, whatever the number of samples."""
    slopes: int = 0
    """Evaluations of the gradient of f with respect to the sample, for each sample."""
    extra_slopes: int = 0
    """The same, whatever the number of samples."""
    module: type[nn.Module] | None = None
    """The estimator object that keeps what it learns, if it can learn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Estimator":
        return self  # immutable, and so is all it holds

    def __reduce__(self) -> tuple[Any, ...]:
        # the file that its function is in has it as ROW
        return _row_of, (self.function.__module__, self.name)

    @property
    def needs_grad_f(self) -> bool:
        """Whether it needs the gradient of f with respect to the sample."""
        return self.slopes + self.extra_slopes > 0

    def works_on(self, family: Family) -> bool:
        """Whether it is defined for this kind of variable."""
        return self.any_family or family.name in self.families

    def cost(self, num_samples: int) -> tuple[int, int] | None:
        """Evaluations of f and of its gradient with respect to the sample for one estimate.

        None if f is evaluated at all joint outcomes. Learning a temperature needs further
        derivatives of f, and the self-critical baseline one more evaluation.
        """
        if self.evaluations is None:
            return None
        return (
            self.evaluations * num_samples + self.extra_evaluations,
            self.slopes * num_samples + self.extra_slopes,
        )


def _row_of(module: str, name: str) -> Estimator:
    row: Estimator = import_module(module).ROW
    if row.name != name:
        raise ValueError(f"expected {module} to hold the row {name!r} as ROW, got {row.name!r}")
    return row


def sampler_row(**row: Any) -> Estimator:
    """The row of a sampler: one evaluation of f and of its gradient for each sample."""
    return Estimator(**{"kind": "sampler", "slopes": 1, **row})


def score_row(**row: Any) -> Estimator:
    """The row of a score-function estimator: all of them are unbiased."""
    common = {"kind": "score", "unbiased": True, "exact_for": "everything", "bias": "none"}
    return Estimator(**{**common, **row})
