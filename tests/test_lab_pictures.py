"""Reconstructions of stored models."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import oracles
from discretegrad_lab import data, plots
from discretegrad_lab.cli import app
from discretegrad_lab.config import Polynomial, Vae
from discretegrad_lab.data import Images
from discretegrad_lab.execute import execute
from discretegrad_lab.pictures import draw_reconstructions, finished
from discretegrad_lab.recipes import RECIPES
from discretegrad_lab.store import Store
from discretegrad_lab.tasks import vae

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)

IMAGES = Images(
    *(
        torch.randint(256, (n, 784), generator=torch.Generator().manual_seed(n)).to(torch.uint8)
        for n in (40, 20)
    )
)


def built(estimator, seed):
    yield Vae(estimator=estimator, seed=seed, categories=4, latents=3, batch=20, epochs=1)


RECIPE = replace(
    RECIPES["vae-10x30"], build=built, seeds=(1, 0), estimators=("st", "reinmax", "stgs")
)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """All runs of the recipe but those of STGS."""
    monkeypatch.setattr(vae, "load_mnist", lambda data: IMAGES)
    kept = Store(tmp_path / "runs")
    assert execute(RECIPE.runs(estimators=["st", "reinmax"]), kept, device="cpu").complete
    return kept


def test_one_finished_model_of_each_estimator(store):
    models = finished(RECIPE, store, [])
    assert [(run.estimator, run.seed) for run in models] == [("reinmax", 0), ("st", 0)]


def test_models_that_cannot_be_read_are_told(store):
    broken = next(run for run in RECIPE.runs() if (run.estimator, run.seed) == ("st", 0))
    (checkpoint,) = store.directory(broken).glob("checkpoint-*")
    checkpoint.write_bytes(b"")
    damaged = []
    models = finished(RECIPE, store, damaged)
    assert [(run.estimator, run.seed) for run in models] == [("reinmax", 0), ("st", 1)]
    assert len(damaged) == 1
    assert checkpoint.name in damaged[0]


def test_the_command_draws_nothing_without_the_images(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(RECIPES, RECIPE.name, RECIPE)
    command = CliRunner()
    assert command.invoke(app, ["report", RECIPE.name, "-q"]).exit_code == 0
    result = command.invoke(app, ["plot", RECIPE.name])
    assert result.exit_code == 2
    assert "mnist" in result.stderr
    folder = tmp_path / "results" / RECIPE.name
    assert list(folder.glob("*.png")) == []
    monkeypatch.setattr(data, "load_mnist", lambda directory: IMAGES)
    assert command.invoke(app, ["plot", RECIPE.name]).exit_code == 0
    assert {path.name for path in folder.glob("*.png")} == {"curves.png", "reconstructions.png"}


def test_only_models_of_images(store):
    runs = [Polynomial(estimator="reinmax", latents=2, batch=2, steps_per_epoch=1, epochs=1)]
    execute(runs, store, device="cpu")
    other = replace(RECIPE, build=lambda estimator, seed: iter(runs), estimators=("reinmax",))
    assert finished(other, store, []) == []


def test_the_picture_shows_what_the_trained_models_make_of_the_images(store, tmp_path, monkeypatch):
    drawn = {}

    def recorded(rows, path, **options):
        drawn.update(rows)
        kept(rows, path, **options)

    kept = plots.picture_grid
    monkeypatch.setattr(plots, "picture_grid", recorded)
    path = tmp_path / "pictures.png"
    models = finished(RECIPE, store, [])
    draw_reconstructions(models, store, path, images=IMAGES)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(drawn) == ["original", "ReinMax", "ST"]
    assert torch.equal(drawn["original"].flatten(1), IMAGES.test[:12].float() / 255)
    # the weights are those of the store, not new ones
    task = vae.VaeTask(models[:1], torch.device("cpu"), images=IMAGES)
    _, untrained = task.reconstructions(0, IMAGES.test[:12])
    assert not torch.allclose(drawn["ReinMax"].flatten(1), untrained)
    state = store.load(models[0]).state
    with torch.no_grad():
        for name, parameter in task.parameters.items():
            parameter[0] = state[f"parameters/{name}"]
    assert torch.equal(drawn["ReinMax"].flatten(1), task.reconstructions(0, IMAGES.test[:12])[1])
