"""The demo: its closed forms are right, it runs, and the stored run is the one that is shown."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import discretegrad
from cases import SAMPLERS

DEMO = Path(__file__).resolve().parents[1] / "examples" / "polynomial.py"
FLOAT32 = {"rtol": 1e-5, "atol": 1e-7}


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("polynomial_demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def threads():
    """The demo gives each of its threads one core; the tests keep theirs."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(demo, folder, *arguments):
    assert demo.main(["--output", str(folder), *arguments]) == 0
    return demo.read(folder / "polynomial.csv")


def without_times(run):
    return [point._replace(milliseconds=0.0) for point in run.points if point.step > 0]


def test_the_expected_loss_and_its_gradient_are_exact(demo, generator):
    theta = torch.randn(demo.LATENTS, 2, generator=generator).requires_grad_()

    def loss_of_each(z):
        return (z[..., 0] - demo.TARGET).abs() ** demo.POWER / demo.LATENTS

    loss = demo.expected_loss(theta)
    enumerated = discretegrad.exact_expectation(theta, loss_of_each).sum()
    torch.testing.assert_close(loss, enumerated, **FLOAT32)
    gradient = discretegrad.exact_gradient(theta, loss_of_each)
    torch.testing.assert_close(demo.exact_gradient(theta), gradient, **FLOAT32)
    torch.testing.assert_close(torch.autograd.grad(loss, theta)[0], gradient, **FLOAT32)


def test_the_best_loss_is_reached_where_every_variable_is_zero(demo):
    certain = torch.tensor([-50.0, 50.0]).expand(demo.LATENTS, 2)
    assert demo.expected_loss(certain).item() == pytest.approx(demo.BEST)


@pytest.mark.parametrize("family", ["categorical", "bernoulli"])
def test_every_estimator_runs_and_is_shown(demo, tmp_path, capsys, family):
    stored = run(demo, tmp_path, "--steps", "2", "--seeds", "2", "--family", family)
    shown = capsys.readouterr().out
    names = {point.variant for point in stored.points}
    assert {name.split()[0] for name in names - {demo.EXACT}} == set(SAMPLERS)
    for name in names:
        assert name in shown
    assert {point.seed for point in stored.points} == {0, 1}
    # at the start every estimator points the right way
    assert all(point.cosine > 0.7 for point in stored.points if point.step == 2)
    assert Image.open(tmp_path / "polynomial.png").text["Source"] == demo.digest(stored)


def test_the_same_seed_gives_the_same_numbers_with_any_number_of_cores(demo, tmp_path, monkeypatch):
    chosen = ("--steps", "3", "--estimators", "reinmax", "gumbel_softmax")
    first = run(demo, tmp_path, *chosen, "--seeds", "2")
    monkeypatch.setattr(demo.os, "cpu_count", lambda: 1)
    assert without_times(run(demo, tmp_path, *chosen, "--seeds", "2")) == without_times(first)
    second_seed = [p for p in without_times(first) if p.seed == 1]
    alone = run(demo, tmp_path, *chosen, "--seeds", "1", "--seed", "1")
    assert without_times(alone) == [p for p in second_seed]
    assert second_seed != [p._replace(seed=1) for p in without_times(first) if p.seed == 0]


def test_with_two_categories_mean_baseline_has_the_gradient_of_reinmax(demo, generator):
    # the caption says so
    theta = torch.randn(demo.LATENTS, 2, generator=generator).requires_grad_()
    gradients = []
    for name, options in (
        ("reinmax", {}),
        ("mean_baseline", {"order": 1}),
        ("mean_baseline", {"order": 2}),
    ):
        sampler = discretegrad.get(name).functions["categorical"]
        z = sampler(theta, generator=torch.Generator().manual_seed(1), **options)
        loss = (z[..., 0] - demo.TARGET).square().sum()
        gradients.append(torch.autograd.grad(loss, theta)[0])
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], **FLOAT32)


def test_the_table_counts_steps_seeds_and_times(demo):
    points = [
        demo.Point(name, seed, step, loss, 0.5, milliseconds)
        for name, losses, milliseconds in (
            ("reinmax", (0.25, 0.21, 0.205), 2.0),
            ("straight_through", (0.25, 0.249, 0.248), 3.0),
        )
        for seed in (0, 1)
        for step, loss in zip((0, 10, 20), losses, strict=True)
    ]
    _, lines = demo.table(demo.Run({}, points))
    assert lines == [
        ["reinmax", "0.20500 ± 0.00000", "10", "0.50", "0.50", "1.0x"],
        ["straight_through", "0.24800 ± 0.00000", "-", "0.50", "0.50", "1.5x"],
    ]


def test_every_estimator_has_a_colour_of_its_own(demo):
    assert set(demo.COLOURS) == {*SAMPLERS, demo.EXACT}
    assert len(set(demo.COLOURS.values())) == len(demo.COLOURS)


def test_the_stored_run_has_every_variant_and_says_how_it_was_made(demo):
    stored = demo.read(demo.STORED_CSV)
    expected = {variant.name for variant in demo.variants(list(SAMPLERS))}
    assert {point.variant for point in stored.points} == expected
    assert {"command", "date", "discretegrad", "torch", "machine", "steps"} <= set(stored.about)
    assert demo.as_csv(stored) == demo.STORED_CSV.read_text(encoding="utf-8")


def test_the_stored_picture_shows_the_stored_run(demo):
    stored = demo.read(demo.STORED_CSV)
    assert Image.open(demo.STORED_PLOT).text["Source"] == demo.digest(stored), (
        "draw it again with python examples/polynomial.py --render --store"
    )


def test_showing_the_stored_run_again_runs_nothing(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "measure", lambda *_: pytest.fail("it ran"))
    assert demo.main(["--render", "--output", str(tmp_path)]) == 0
    assert "reinmax" in capsys.readouterr().out
    assert (tmp_path / "polynomial.png").stat().st_size > 10_000


def test_help_and_wrong_arguments(demo, capsys):
    with pytest.raises(SystemExit, match="0"):
        demo.main(["--help"])
    assert "--estimators" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        demo.main(["--steps", "0"])
    assert "at least 1" in capsys.readouterr().err
