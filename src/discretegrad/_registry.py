"""The table of estimators: tests, documentation and command line derive from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor, nn

from . import bernoulli
from ._select import Handle
from ._types import Family
from .estimators.disarm_tree import disarm_tree
from .estimators.exact import exact
from .estimators.gapped import gapped, gapped_at, gapped_index
from .estimators.gumbel_rao import gumbel_rao, gumbel_rao_at, gumbel_rao_index
from .estimators.gumbel_softmax import gumbel_softmax, gumbel_softmax_at, gumbel_softmax_index
from .estimators.leave_one_out import leave_one_out
from .estimators.mean_baseline import mean_baseline, mean_baseline_at, mean_baseline_index
from .estimators.muprop import MuProp, muprop
from .estimators.rebar import Rebar, rebar
from .estimators.reinforce import Reinforce, reinforce
from .estimators.reinmax import reinmax, reinmax_at, reinmax_index
from .estimators.relax import Relax, relax
from .estimators.straight_through import (
    straight_through,
    straight_through_at,
    straight_through_index,
)

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Estimator:
    """One estimator: what it is, what it costs, what it promises, and where it comes from."""

    name: str
    """Registry key, function name and file name."""
    label: str
    """How papers write it."""
    kind: Literal["sampler", "score"]
    """A sampler turns logits into a sample that carries a gradient; a score-function estimator
    takes logits and f, and returns the mean of f with a gradient."""
    functions: Mapping[Family, Function]
    """The function of each family."""
    functions_at: Mapping[Family, Function]
    """For samplers, the deterministic half of each, for a given draw."""
    noise: bool
    """Whether the draw includes noise besides the category, which ``_at`` then takes too."""
    unbiased: bool
    """Whether the expected gradient is the true one for every f."""
    exact_for: Literal["linear", "quadratic", "nothing", "everything"]
    """The functions of each variable for which its mean is exact, for samplers at tau 1."""
    bias: str
    """The bias in words."""
    evaluations: int | None
    """Evaluations of f for each sample; None stands for all joint outcomes."""
    temperature: str
    """Sensible temperatures."""
    reference: str
    """Paper."""
    bibtex: str
    """Citation."""
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Its own keyword arguments with their defaults."""
    min_samples: int = 1
    """The least number of samples."""
    extra_evaluations: int = 0
    """Evaluations of f besides, whatever the number of samples."""
    slopes: int = 0
    """Evaluations of the gradient of f with respect to the sample, for each sample."""
    extra_slopes: int = 0
    """The same, whatever the number of samples."""
    index_form: Callable[..., tuple[Tensor, Handle]] | None = None
    """For samplers, the categorical one that gives the index and a handle for ``select``."""
    module: type[nn.Module] | None = None
    """The estimator object that keeps what it learns, if it can learn."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Estimator":
        return self  # immutable, and so is all it holds

    def __reduce__(self) -> tuple[Callable[[str], "Estimator"], tuple[str]]:
        return get, (self.name,)

    @property
    def needs_grad_f(self) -> bool:
        """Whether it needs the gradient of f with respect to the sample."""
        return self.slopes + self.extra_slopes > 0

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

    @property
    def families(self) -> tuple[Family, ...]:
        """The kinds of variable it works on."""
        return tuple(self.functions)


def _families(categorical: Function, bits: Function) -> Mapping[Family, Function]:
    return MappingProxyType({"categorical": categorical, "bernoulli": bits})


def _score(**row: Any) -> Estimator:
    """The row of a score-function estimator: all of them are unbiased, and few have noise."""
    common: dict[str, Any] = {
        "kind": "score",
        "functions_at": MappingProxyType({}),
        "noise": False,
        "unbiased": True,
        "exact_for": "everything",
        "bias": "none",
        "temperature": "none",
    }
    return Estimator(**{**common, **row})


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
                index_form=reinmax_index,
                noise=False,
                unbiased=False,
                exact_for="quadratic",
                bias="second order: none for quadratic f at tau 1",
                evaluations=1,
                slopes=1,
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
                index_form=straight_through_index,
                noise=False,
                unbiased=False,
                exact_for="linear",
                bias="first order: none for linear f at tau 1",
                evaluations=1,
                slopes=1,
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
                index_form=gumbel_softmax_index,
                noise=True,
                unbiased=False,
                exact_for="nothing",
                bias="falls with tau, while the variance rises",
                evaluations=1,
                slopes=1,
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
                index_form=gumbel_rao_index,
                noise=True,
                unbiased=False,
                exact_for="nothing",
                bias="that of gumbel_softmax; tends to reinmax as tau goes to 0",
                evaluations=1,
                slopes=1,
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
                index_form=gapped_index,
                noise=False,
                unbiased=False,
                exact_for="nothing",
                bias="depends on the gap; no noise beyond the draw",
                evaluations=1,
                slopes=1,
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
                index_form=mean_baseline_index,
                noise=False,
                unbiased=False,
                exact_for="quadratic",
                bias="second order: none for quadratic f at tau 1; high variance when peaked",
                evaluations=1,
                slopes=1,
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
            _score(
                name="reinforce",
                label="REINFORCE",
                functions=_families(reinforce, reinforce),
                evaluations=1,
                reference="Williams 1992",
                bibtex="""@article{williams1992simple,
  title   = {Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
             Learning},
  author  = {Williams, Ronald J.},
  journal = {Machine Learning},
  volume  = {8},
  pages   = {229--256},
  year    = {1992},
}""",
                options=MappingProxyType({"baseline": None, "samples": None}),
                module=Reinforce,
            ),
            _score(
                name="leave_one_out",
                label="RLOO",
                functions=_families(leave_one_out, leave_one_out),
                evaluations=1,
                reference="Kool et al. 2019",
                bibtex="""@inproceedings{kool2019buy,
  title     = {Buy 4 {REINFORCE} Samples, Get a Baseline for Free!},
  author    = {Kool, Wouter and van Hoof, Herke and Welling, Max},
  booktitle = {ICLR Workshop on Deep Reinforcement Learning Meets Structured Prediction},
  year      = {2019},
}""",
                options=MappingProxyType({"samples": None}),
                min_samples=2,
            ),
            _score(
                name="disarm",
                label="DisARM",
                functions=MappingProxyType({"bernoulli": bernoulli.disarm}),
                evaluations=1,
                reference="Dong et al. 2020, arXiv:2006.10680",
                bibtex="""@inproceedings{dong2020disarm,
  title     = {{DisARM}: An Antithetic Gradient Estimator for Binary Latent Variables},
  author    = {Dong, Zhe and Mnih, Andriy and Tucker, George},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020},
  eprint    = {2006.10680},
  archivePrefix = {arXiv},
}""",
                min_samples=2,
            ),
            _score(
                name="arms",
                label="ARMS",
                functions=MappingProxyType({"bernoulli": bernoulli.arms}),
                evaluations=1,
                reference="Dimitriev and Zhou 2021, arXiv:2105.14141",
                bibtex="""@inproceedings{dimitriev2021arms,
  title     = {{ARMS}: Antithetic-{REINFORCE}-Multi-Sample Gradient for Binary Variables},
  author    = {Dimitriev, Aleksandar and Zhou, Mingyuan},
  booktitle = {International Conference on Machine Learning},
  year      = {2021},
  eprint    = {2105.14141},
  archivePrefix = {arXiv},
}""",
                min_samples=2,
            ),
            _score(
                name="disarm_tree",
                label="DisARM-Tree",
                functions=MappingProxyType({"categorical": disarm_tree}),
                evaluations=1,
                reference="Dong et al. 2021, arXiv:2106.08056",
                bibtex="""@inproceedings{dong2021coupled,
  title     = {Coupled Gradient Estimators for Discrete Latent Variables},
  author    = {Dong, Zhe and Mnih, Andriy and Tucker, George},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021},
  eprint    = {2106.08056},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"tree": "balanced"}),
                min_samples=2,
            ),
            _score(
                name="muprop",
                label="MuProp",
                functions=_families(muprop, muprop),
                evaluations=1,
                reference="Gu et al. 2016, arXiv:1511.05176",
                bibtex="""@inproceedings{gu2016muprop,
  title     = {{MuProp}: Unbiased Backpropagation for Stochastic Neural Networks},
  author    = {Gu, Shixiang and Levine, Sergey and Sutskever, Ilya and Mnih, Andriy},
  booktitle = {International Conference on Learning Representations},
  year      = {2016},
  eprint    = {1511.05176},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"offset": 1.0, "slope": 1.0, "samples": None}),
                extra_evaluations=1,
                extra_slopes=1,
                module=MuProp,
            ),
            _score(
                name="double_cv",
                label="Double CV",
                functions=MappingProxyType({"bernoulli": bernoulli.double_cv}),
                evaluations=1,
                reference="Titsias and Shi 2022, arXiv:2111.05300",
                bibtex="""@inproceedings{titsias2022double,
  title     = {Double Control Variates for Gradient Estimation in Discrete Latent Variable Models},
  author    = {Titsias, Michalis K. and Shi, Jiaxin},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year      = {2022},
  eprint    = {2111.05300},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"alpha": -1.0, "samples": None}),
                min_samples=2,
                slopes=1,
                module=bernoulli.DoubleCV,
            ),
            _score(
                name="rodeo",
                label="RODEO",
                functions=MappingProxyType({"bernoulli": bernoulli.rodeo}),
                evaluations=1,
                reference="Shi et al. 2022, arXiv:2202.09497",
                bibtex="""@inproceedings{shi2022gradient,
  title     = {Gradient Estimation with Discrete {S}tein Operators},
  author    = {Shi, Jiaxin and Zhou, Yuhao and Hwang, Jessica and Titsias, Michalis and
               Mackey, Lester},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2022},
  eprint    = {2202.09497},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType(
                    {"control": None, "alpha": 0.0, "beta": 0.0, "samples": None}
                ),
                min_samples=2,
                slopes=1,
                module=bernoulli.Rodeo,
            ),
            _score(
                name="rebar",
                label="REBAR",
                functions=_families(rebar, rebar),
                noise=True,
                evaluations=2,
                temperature="0.1 to 1, or learned; changes the variance only",
                reference="Tucker et al. 2017, arXiv:1703.07370",
                bibtex="""@inproceedings{tucker2017rebar,
  title     = {{REBAR}: Low-variance, unbiased gradient estimates for discrete latent variable
               models},
  author    = {Tucker, George and Mnih, Andriy and Maddison, Chris J. and Lawson, Dieterich and
               Sohl-Dickstein, Jascha},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2017},
  eprint    = {1703.07370},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType({"tau": 0.5, "scale": 1.0, "tied": True}),
                slopes=1,
                module=Rebar,
            ),
            _score(
                name="relax",
                label="RELAX",
                functions=_families(relax, relax),
                noise=True,
                evaluations=3,
                temperature="0.1 to 1, or learned; changes the variance only",
                reference="Grathwohl et al. 2018, arXiv:1711.00123",
                bibtex="""@inproceedings{grathwohl2018backpropagation,
  title     = {Backpropagation through the Void: Optimizing control variates for black-box gradient
               estimation},
  author    = {Grathwohl, Will and Choi, Dami and Wu, Yuhuai and Roeder, Geoffrey and
               Duvenaud, David},
  booktitle = {International Conference on Learning Representations},
  year      = {2018},
  eprint    = {1711.00123},
  archivePrefix = {arXiv},
}""",
                options=MappingProxyType(
                    {"control": None, "tau": 0.5, "scale": 1.0, "tied": False}
                ),
                slopes=2,
                module=Relax,
            ),
            _score(
                name="exact",
                label="exact",
                functions=_families(exact, exact),
                evaluations=None,
                reference="this library",
                bibtex="""@software{discretegrad,
  title  = {discretegrad: gradients through discrete random variables},
  author = {{The discretegrad developers}},
  year   = {2026},
}""",
                options=MappingProxyType({"max_outcomes": 2**16, "chunk_size": 256}),
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
