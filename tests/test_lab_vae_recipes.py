"""Every recipe of the VAE in three steps on stand-in images."""

import dataclasses
import math

import pytest

import oracles
from discretegrad_lab import tasks
from discretegrad_lab.tasks.vae import gradients
from discretegrad_lab.tasks.vae import model as vae
from discretegrad_lab.tasks.vae.gradients import NAMES
from discretegrad_lab.tasks.vae.search_recipes import CHOICE
from lab_cases import make_stack, searched, use_small_images, use_table

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)
RECIPES = [name for name, recipe in tasks.recipes().items() if recipe.task is tasks.task("vae")]


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """What searches have found, in a table of its own."""
    use_table(monkeypatch, CHOICE, tmp_path / "chosen.csv")
    for search in (tasks.recipe(name) for name in RECIPES):
        if search.choice is not None:
            results = searched(search, lambda run: {"train": 130 - run.tau, "test": 131 + run.tau})
            CHOICE.write(CHOICE.lines(search, results))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_three_steps(name, monkeypatch, request):
    if "chosen-by" in name:
        request.getfixturevalue("chosen")
    use_small_images(monkeypatch, 60, 7)
    monkeypatch.setattr(vae, "IMAGES", 3)
    monkeypatch.setattr(gradients, "DRAWS", 64)
    recipe = tasks.recipe(name)
    stacks = {}
    for run in recipe.runs(seeds=recipe.seeds[:1]):
        # comparing gradients takes most of the time
        smaller = {"latents": 2} if run.along else {}
        small = dataclasses.replace(run, epochs=1, batch=20, draws=3, **smaller)
        # of candidates that differ in numbers alone one is enough
        stacks.setdefault(small.stack_key, {})[small.estimator, small.optimiser] = small
    for members in stacks.values():
        stack = make_stack(list(members.values()))
        assert stack.steps_per_epoch == 3
        metrics = stack.advance()
        assert set(metrics) == {"train", "test", *(NAMES if stack.runs[0].along else ())}
        for values in metrics.values():
            assert len(values) == len(members)
            assert all(map(math.isfinite, values))
        assert all(0 < x < 1000 for name in ("train", "test") for x in metrics[name])
