"""The table of estimators: tests, documentation and command line derive from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from . import bernoulli
from ._types import Family
from .estimators.gapped import gapped, gapped_at
from .estimators.gumbel_rao import gumbel_rao, gumbel_rao_at
from .estimators.gumbel_softmax import gumbel_softmax, gumbel_softmax_at
from .estimators.mean_baseline import mean_baseline, mean_baseline_at
from .estimators.reinmax import reinmax, reinmax_at
from .estimators.straight_through import straight_through, straight_through_at

Sampler = Callable[..., Tensor]


@dataclass(frozen=True)
class Estimator:
    """One estimator: what it is, what it costs, what it promises, and where it comes from."""

    name: str
    """Registry key, function name and file name."""
    label: str
    """How papers write it."""
    kind: Literal["sampler"]
    """A sampler turns logits into a sample that carries a gradient."""
    functions: Mapping[Family, Sampler]
    """The sampler of each family."""
    functions_at: Mapping[Family, Sampler]
    """The deterministic half of each, for a given draw."""
    noise: bool
    """Whether the draw includes noise besides the category, which ``_at`` then takes too."""
    unbiased: bool
    """Whether the expected gradient is the true one for every f."""
    exact_for: Literal["linear", "quadratic", "nothing"]
    """The functions of each variable for which it is exact at tau 1."""
    bias: str
    """The bias in words."""
    evaluations: int
    """Evaluations of f for one gradient."""
    needs_grad_f: bool
    """Whether it needs the gradient of f."""
    temperature: str
    """Sensible temperatures."""
    reference: str
    """Paper."""
    bibtex: str
    """Citation."""
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Its own keyword arguments with their defaults."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Estimator":
        return self  # immutable, and so is all it holds

    def __reduce__(self) -> tuple[Callable[[str], "Estimator"], tuple[str]]:
        return get, (self.name,)

    @property
    def families(self) -> tuple[Family, ...]:
        """The kinds of variable it works on."""
        return tuple(self.functions)


def _families(categorical: Sampler, bits: Sampler) -> Mapping[Family, Sampler]:
    return MappingProxyType({"categorical": categorical, "bernoulli": bits})


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        row.name: row
        for row in (
            Estimator(
                name="reinmax",
                label="ReinMax",
                kind="sampler",
                functions=_families(reinmax, bernoulli.reinmax),
                functions_at=_families(reinmax_at, bernoulli.reinmax_at),
                noise=False,
                unbiased=False,
                exact_for="quadratic",
                bias="second order: none for quadratic f at tau 1",
                evaluations=1,
                needs_grad_f=True,
                temperature="1 (exactness) to 1.5 (smoothness)",
                reference="Liu et al. 2023, arXiv:2304.08612",
                bibtex="""@inproceedings{liu2023bridging,
  title     = {Bridging Discrete and Backpropagation: Straight-Through and Beyond},
  author    = {Liu, Liyuan and Dong, Chengyu and Liu, Xiaodong and Yu, Bin and Gao, Jianfeng},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2023},
  eprint    = {2304.08612},
  archivePrefix = {arXiv},
}""",
            ),
            Estimator(
                name="straight_through",
                label="ST",
                kind="sampler",
                functions=_families(straight_through, bernoulli.straight_through),
                functions_at=_families(straight_through_at, bernoulli.straight_through_at),
                noise=False,
                unbiased=False,
                exact_for="linear",
                bias="first order: none for linear f at tau 1",
                evaluations=1,
                needs_grad_f=True,
                temperature="1 to 2",
                reference="Bengio et al. 2013, arXiv:1308.3432",
                bibtex="""@article{bengio2013estimating,
  title   = {Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
             Computation},
  author  = {Bengio, Yoshua and L{\\'e}onard, Nicholas and Courville, Aaron},
  journal = {arXiv preprint arXiv:1308.3432},
  year    = {2013},
}""",
            ),
            Estimator(
                name="gumbel_softmax",
                label="STGS",
                kind="sampler",
                functions=_families(gumbel_softmax, bernoulli.gumbel_softmax),
                functions_at=_families(gumbel_softmax_at, bernoulli.gumbel_softmax_at),
                noise=True,
                unbiased=False,
                exact_for="nothing",
                bias="falls with tau, while the variance rises",
                evaluations=1,
                needs_grad_f=True,
                temperature="0.1 to 1, tuned",
                reference="Jang et al. 2017, arXiv:1611.01144",
                bibtex="""@inproceedings{jang2017categorical,
  title     = {Categorical Reparameterization with {G}umbel-Softmax},
  author    = {Jang, Eric and Gu, Shixiang and Poole, Ben},
  booktitle = {International Conference on Learning Representations},
  year      = {2017},
  eprint    = {1611.01144},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"hard": True}),
            ),
            Estimator(
                name="gumbel_rao",
                label="GR-MCK",
                kind="sampler",
                functions=_families(gumbel_rao, bernoulli.gumbel_rao),
                functions_at=_families(gumbel_rao_at, bernoulli.gumbel_rao_at),
                noise=True,
                unbiased=False,
                exact_for="nothing",
                bias="that of gumbel_softmax; tends to reinmax as tau goes to 0",
                evaluations=1,
                needs_grad_f=True,
                temperature="0.1 to 1, tuned",
                reference="Paulus et al. 2021, arXiv:2010.04838",
                bibtex="""@inproceedings{paulus2021rao,
  title     = {{R}ao-{B}lackwellizing the Straight-Through {G}umbel-Softmax Gradient Estimator},
  author    = {Paulus, Max B. and Maddison, Chris J. and Krause, Andreas},
  booktitle = {International Conference on Learning Representations},
  year      = {2021},
  eprint    = {2010.04838},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"num_draws": 100}),
            ),
            Estimator(
                name="gapped",
                label="GST",
                kind="sampler",
                functions=_families(gapped, bernoulli.gapped),
                functions_at=_families(gapped_at, bernoulli.gapped_at),
                noise=False,
                unbiased=False,
                exact_for="nothing",
                bias="depends on the gap; no noise beyond the draw",
                evaluations=1,
                needs_grad_f=True,
                temperature="0.1 to 1, tuned",
                reference="Fan et al. 2022, arXiv:2206.07235",
                bibtex="""@inproceedings{fan2022training,
  title     = {Training Discrete Deep Generative Models via Gapped Straight-Through Estimator},
  author    = {Fan, Ting-Han and Chi, Ta-Chung and Rudnicky, Alexander I. and Ramadge, Peter J.},
  booktitle = {International Conference on Machine Learning},
  year      = {2022},
  eprint    = {2206.07235},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"gap": 1.0}),
            ),
            Estimator(
                name="mean_baseline",
                label="1/n baseline",
                kind="sampler",
                functions=_families(mean_baseline, bernoulli.mean_baseline),
                functions_at=_families(mean_baseline_at, bernoulli.mean_baseline_at),
                noise=False,
                unbiased=False,
                exact_for="quadratic",
                bias="second order: none for quadratic f at tau 1; high variance when peaked",
                evaluations=1,
                needs_grad_f=True,
                temperature="1",
                reference="Liu et al. 2023, arXiv:2304.08612, section 4.1; Gregor et al. 2014",
                bibtex="""@inproceedings{gregor2014deep,
  title     = {Deep AutoRegressive Networks},
  author    = {Gregor, Karol and Danihelka, Ivo and Mnih, Andriy and Blundell, Charles and
               Wierstra, Daan},
  booktitle = {International Conference on Machine Learning},
  year      = {2014},
  eprint    = {1310.8499},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"order": 2, "as_released": False}),
            ),
        )
    }
)
"""Every estimator by name, read-only."""


def get(name: str) -> Estimator:
    """The registry row of an estimator.

    Args:
        name: A key of ``discretegrad.ESTIMATORS``.

    Returns:
        The row.

    Raises:
        ValueError: If there is no such estimator; the message lists those there are.

    Example:
        >>> import discretegrad
        >>> discretegrad.get("reinmax").exact_for
        'quadratic'
    """
    if name not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        raise ValueError(f"expected the name of an estimator ({known}), got {name!r}")
    return ESTIMATORS[name]


def citation(name: str) -> str:
    """The BibTeX entry of the paper that introduced an estimator.

    Args:
        name: A key of ``discretegrad.ESTIMATORS``.

    Returns:
        BibTeX.

    Raises:
        ValueError: If there is no such estimator.

    Example:
        >>> import discretegrad
        >>> print(discretegrad.citation("reinmax").splitlines()[0])
        @inproceedings{liu2023bridging,
    """
    return get(name).bibtex
