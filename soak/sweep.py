"""The sweep that the attacks on the lab train: six short runs that learn something."""

from discretegrad_lab import Recipe, recipe
from lab_tiny import tiny

RECIPE = Recipe(
    name="soak",
    title="A sweep that is disturbed",
    task=recipe("polynomial-headline").task,
    build=lambda estimator, seed: iter([tiny(estimator, seed, steps_per_epoch=3, epochs=12)]),
    seeds=(0, 1),
    estimators=("reinmax", "st", "exact"),
    metrics=("expected_loss",),
)
