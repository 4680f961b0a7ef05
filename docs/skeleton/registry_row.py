"""The row for ``ESTIMATORS`` in ``_registry.py``."""

from . import bernoulli
from ._registry import Estimator, _families
from .estimators.my_estimator import my_estimator, my_estimator_at

ROW = Estimator(
    name="my_estimator",
    label="ME",
    kind="sampler",
    functions=_families(my_estimator, bernoulli.my_estimator),
    functions_at=_families(my_estimator_at, bernoulli.my_estimator_at),
    noise=False,
    unbiased=False,
    exact_for="linear",
    bias="first order: none for linear f at tau 1",
    evaluations=1,
    slopes=1,
    temperature="1",
    reference="Author et al. 2000, arXiv:0000.00000",
    bibtex="""@inproceedings{author2000title,
  title     = {Title},
  author    = {Author, First},
  booktitle = {Venue},
  year      = {2000},
}""",
)
