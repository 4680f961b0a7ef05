"""Images that stored models make: here reconstructions of a VAE."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure as Canvas
from typer.testing import CliRunner

import oracles
from discretegrad_lab import tasks
from discretegrad_lab.cli import app
from discretegrad_lab.cli.plot import _pictures
from discretegrad_lab.report import plots
from discretegrad_lab.report.document import Curve, Figure, Tried
from discretegrad_lab.report.plots import draw_map
from discretegrad_lab.report.results import collect, configuration, write
from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.store import Store
from discretegrad_lab.tasks.data import Images
from discretegrad_lab.tasks.evidence import Results, Row
from discretegrad_lab.tasks.vae import model
from discretegrad_lab.tasks.vae.config import Vae
from lab_tiny import TINY

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
    tasks.recipe("vae-10x30"),
    name="digits",
    build=built,
    seeds=(1, 0),
    estimators=("st", "reinmax", "stgs"),
    published={},
    claims=(),
)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """All runs of the recipe but those of STGS."""
    monkeypatch.setattr(model, "load_mnist", lambda data: IMAGES)
    monkeypatch.setattr(tasks, "_extra", {RECIPE.name: RECIPE})
    place = Store(tmp_path / "runs")
    assert execute(RECIPE.runs(estimators=["st", "reinmax"]), place, device="cpu").complete
    return place


def pictures(recipe, store, damaged):
    return list(_pictures(collect(recipe.name, recipe.runs(), store, (), []), store, damaged))


def test_one_finished_model_of_each_estimator_that_can_be_read(store):
    (picture, models), (prior, _) = pictures(RECIPE, store, [])
    assert (picture.name, prior.name) == ("reconstructions", "prior-samples")
    assert [(run.estimator, run.seed) for run in models] == [("st", 0), ("reinmax", 0)]
    broken = next(run for run in RECIPE.runs() if (run.estimator, run.seed) == ("st", 0))
    (checkpoint,) = store.directory(broken).glob("checkpoint-*")
    checkpoint.write_bytes(b"")
    damaged = []
    (_, models), _ = pictures(RECIPE, store, damaged)
    assert [(run.estimator, run.seed) for run in models] == [("st", 1), ("reinmax", 0)]
    assert len(damaged) == 1
    assert checkpoint.name in damaged[0]
    # other tasks have no pictures
    execute(TINY.runs(seeds=[0]), store, device="cpu")
    assert pictures(TINY, store, []) == []


def test_the_command_draws_nothing_without_the_images(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = CliRunner()
    assert command.invoke(app, ["report", RECIPE.name, "-q"]).exit_code == 0
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = command.invoke(app, ["plot", RECIPE.name])
    assert result.exit_code == 2
    assert "mnist" in result.stderr
    folder = tmp_path / "results" / RECIPE.name
    assert list(folder.glob("*.png")) == []
    monkeypatch.setattr(model, "load_mnist", lambda directory: IMAGES)
    assert command.invoke(app, ["plot", RECIPE.name]).exit_code == 0
    assert {path.stem for path in folder.glob("*.png")} == {
        "curves", "reconstructions", "prior-samples",
    }  # fmt: skip


def test_the_picture_shows_what_the_trained_models_make_of_the_images(store):
    (picture, models), (prior, _) = pictures(RECIPE, store, [])
    drawn = dict(picture.draw(models, lambda run: store.load(run).state, None))
    assert list(drawn) == ["original", "ST", "ReinMax"]
    assert torch.equal(drawn["original"].flatten(1), IMAGES.test[:12].float() / 255)
    # the weights are those of the store, not new ones
    fresh = model.VaeModel(models[:1], torch.device("cpu"), images=IMAGES)
    _, untrained = fresh.reconstructions(0, IMAGES.test[:12])
    assert not torch.allclose(drawn["ST"].flatten(1), untrained)
    state = store.load(models[0]).state
    with torch.no_grad():
        for name, parameter in fresh.groups["model"].parameters.items():
            parameter[0] = state[f"parameters/{name}"]
    assert torch.equal(drawn["ST"].flatten(1), fresh.reconstructions(0, IMAGES.test[:12])[1])
    samples = dict(prior.draw(models, lambda run: store.load(run).state, None))
    assert list(samples) == ["ST", "ReinMax"]
    assert torch.equal(samples["ST"].flatten(1), fresh.prior_samples(12)[0])


def test_a_search_is_drawn_as_a_map(tmp_path):
    recipe = tasks.recipe("polynomial-temperatures")
    runs = recipe.runs(estimators=["st", "reinmax"])
    rows = tuple(
        Row(run.identity, configuration(run), "finished", 1, {"expected_loss": 1 / run.tau})
        for run in runs
    )
    write(Results(recipe.name, rows), tmp_path / recipe.name)
    plotted = CliRunner().invoke(app, ["plot", recipe.name, "--results", str(tmp_path)])
    assert f"Wrote {tmp_path / recipe.name / 'map.png'}" in plotted.stdout.replace("\n", "")
    with pytest.raises(ValueError, match="expected at least one figure, got none"):
        draw_map([], tmp_path / "none.png")


def cells_of(panel):
    """The texts of a map by row and column."""
    return {tuple(text.get_position()[::-1]): text for text in panel.texts}


def test_a_map_has_the_numbers_of_its_figure():
    """The light end of the colours is at the best number, whatever the direction."""
    curves = tuple(
        Curve(name, "#0072b2", (0.5, 1.0, 2.0), values)
        for name, values in (("first", (3.0, 1.0, math.nan)), ("second", (2.0, 5.0, 9.0)))
    )
    for better, best in (("down", (0, 1)), ("up", (1, 2))):
        figure = Figure("title", "", "x", "y", curves, searched=True, better=better)
        panel = Canvas().subplots()
        plots._map_panel(panel, figure)
        texts = cells_of(panel)
        expected = {(0, 0): 3, (0, 1): 1, (1, 0): 2, (1, 1): 5, (1, 2): 9}
        assert {place: float(text.get_text()) for place, text in texts.items()} == expected
        image = panel.images[0]
        brightness = image.to_rgba(image.get_array())[..., :3].sum(-1)
        # a number that is missing has no colour
        brightness[0, 2] = 0
        assert np.unravel_index(brightness.argmax(), brightness.shape) == best
        assert [x.get_text() for x in panel.get_yticklabels()] == ["first", "second"]
        framed = {(round(x.get_y() + 0.44), round(x.get_x() + 0.46)) for x in panel.patches}
        assert framed == ({(0, 1), (1, 0)} if better == "down" else {(0, 0), (1, 2)})
        bold = {place for place, text in texts.items() if text.get_weight() == "bold"}
        assert bold == framed


def test_colours_of_a_map_survive_failed_runs():
    """Failed runs are far above all others and say so; the others still differ in colour."""
    values = [100.0 + step for step in range(7)]
    curve = Tried(*("line", "#0072b2", range(8), [*values, 206.0]), failed=(0, 0, 0, 0, 0, 0, 0, 2))
    panel = Canvas().subplots()
    plots._map_panel(panel, Figure("title", "", "x", "y", (curve,), searched=True))
    image = panel.images[0]
    low, high = image.get_clim()
    assert low == 100
    assert high <= 106
    colours = image.to_rgba(image.get_array())[0]
    assert len(np.unique(colours[:6], axis=0)) == 6
    marked = {place for place, text in cells_of(panel).items() if "failed" in text.get_text()}
    assert marked == {(0, 7)}
    assert cells_of(panel)[0, 7].get_text() == "206.0\n2 failed"
