"""A recipe of six runs with four steps each, for tests that train."""

from discretegrad_lab import tasks
from discretegrad_lab.tasks.base import Recipe
from discretegrad_lab.tasks.polynomial.config import Polynomial

ESTIMATORS = ("reinmax", "st", "exact")


def tiny(estimator, seed, **changes):
    """A run of four steps."""
    sizes = {"latents": 4, "batch": 4, "steps_per_epoch": 2, "epochs": 2, "power": 2.0}
    return Polynomial(estimator=estimator, seed=seed, **sizes | changes)


TINY = Recipe(
    name="tiny",
    title="A polynomial problem of four latents",
    task=tasks.task("polynomial"),
    build=lambda estimator, seed: iter([tiny(estimator, seed)]),
    seeds=(0, 1),
    estimators=ESTIMATORS,
    metrics=("expected_loss",),
    panels=("power",),
    reproduces="nothing",
)
