"""What the README and the page of the reproduction say of stored runs follows from those runs."""

import re
import shutil
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from benchmark_cases import measure, pages, reproduction, table
from discretegrad_lab import LINES, recipe
from discretegrad_lab.tasks.polynomial import choose_temperatures, temperature
from discretegrad_lab.tasks.polynomial.recipes import TABLE


@pytest.fixture
def demo():
    return reproduction.read(reproduction.DEMO)


@pytest.fixture
def column():
    return reproduction.read(reproduction.VAE)


def lines_of(text):
    """The cells of the lines of a table by the first one."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {name: cells for name, *cells in lines}


def test_the_demo_table_has_the_final_loss_and_the_temperature_of_every_run(demo):
    cells = lines_of(reproduction.demo_table(demo))
    assert cells["estimator"][::3] == [
        *("p = 1.5, best 0.30187", "p = 2, best 0.20250", "p = 3, best 0.09113")
    ]
    for row in demo.rows:
        name, power, tau = (row.config[field] for field in ("estimator", "power", "tau"))
        loss, _, shown = cells[LINES[name].label][3 * (1.5, 2, 3).index(power) :][:3]
        assert loss == f"{row.metrics['expected_loss']:.5f}"
        # the caption says that the search found it best
        assert tau == temperature(power, row.config["target"], name)
        assert shown == (f"{tau:g}" if LINES[name].has_tau else "\N{EN DASH}")
    assert all(0 < int(steps) < 800 for steps in cells["exact gradient"][1::3])


def test_the_demo_shows_failures_dashes_and_intervals(demo):
    first, *others = demo.rows
    lost = replace(demo, rows=(replace(first, state="diverged", metrics={}), *others))
    assert lines_of(reproduction.demo_table(lost))["ReinMax"][:2] == ["-", "-"]
    assert "ReinMax 1" in reproduction.demo_caption(lost)
    far = {key: dict.fromkeys(curve, 1.0) for key, curve in demo.curves.items()}
    cells = lines_of(reproduction.demo_table(replace(demo, curves=far)))
    assert cells["ReinMax"][1::3] == ["-"] * 3
    # a second seed, lower by 0.002, gives an interval
    second = [
        replace(
            row,
            identity=f"{row.identity}-1",
            config={**row.config, "seed": 1},
            metrics={"expected_loss": row.metrics["expected_loss"] - 0.002},
        )
        for row in demo.rows
    ]
    both = replace(demo, rows=(*demo.rows, *second))
    assert f" ± {12.7062 * 0.001:.5f} | - |" in reproduction.demo_table(both)


def test_the_demo_caption_follows_from_the_runs(demo):
    caption = reproduction.demo_caption(demo)
    for words in ("after 800 steps", "rate of 0.01 (", "8,000 steps", "1 seed.", "has 4 draws"):
        assert words in caption


def pictures_on(page):
    path = measure.ROOT / page
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", path.read_text(encoding="utf-8"))
    return [(path.parent / name).resolve() for name in shown]


def test_the_pictures_show_the_stored_curves_and_are_shown(demo, tmp_path, monkeypatch, capsys):
    pictures = reproduction.pictures()
    shown = [x for name in ("README.md", "docs/reproduction.md") for x in pictures_on(name)]
    assert set(pictures) < set(shown)
    assert all(path.exists() for path in shown)
    assert all(pages.shows(path, figures) for path, figures in pictures.items())
    # a picture of other curves is found and drawn again
    copy = tmp_path / "copy.png"
    old = next(path for path in pictures if path.stem == reproduction.DEMO)
    shutil.copy(old, copy)
    curves = {key: {**curve, 40: 0.1} for key, curve in demo.curves.items()}
    figures = reproduction.section(replace(demo, curves=curves)).figures
    monkeypatch.setattr(reproduction, "pictures", lambda: {copy: figures})
    assert table.main(["--check"]) == 1
    assert "copy.png is not current" in capsys.readouterr().out
    pages.draw(copy, figures)
    assert pages.shows(copy, figures)
    assert not pages.shows(old, figures)


def test_stored_results_are_those_of_their_recipes():
    for name in reproduction.STORED:
        runs = {run.identity for run in recipe(name).runs()}
        assert {row.identity for row in reproduction.read(name).rows} == runs, (
            f"run and report {name} again"
        )


def test_the_chosen_temperatures_are_the_best_of_the_stored_search(tmp_path):
    path = tmp_path / "temperatures.csv"
    choose_temperatures(reproduction.read(reproduction.SEARCH), path)
    assert path.read_text(encoding="utf-8") == TABLE.read_text(encoding="utf-8")


def test_the_readme_shows_the_column_as_it_is_stored(column, monkeypatch):
    block = reproduction.column_block()
    tests = [row.metrics["test"] for row in column.where(estimator="st")]
    # the half interval of a mean over ten runs, with Student's t at 97.5 %
    half = 2.262157 * stdev(tests) / len(tests) ** 0.5
    expected = ["118.46 ± 0.13", f"{fmean(tests):.2f} ± {half:.2f}", "below"]
    assert lines_of(block)["ST"][3:] == expected
    assert "ours over 10" in block
    assert "11 claims" in block
    # a run less
    lost = column.where(estimator="st", seed=3)
    rows = [
        replace(row, state="diverged", metrics={}) if row in lost else row for row in column.rows
    ]
    fewer = replace(column, rows=tuple(rows))
    stored = reproduction.read
    monkeypatch.setattr(
        reproduction, "read", lambda name: fewer if name == reproduction.VAE else stored(name)
    )
    assert "89 finished, 1 diverged" in reproduction.runs_table()
    assert "9 of 10" in reproduction.blocks()["vae"]
    assert "ours over 9 to 10" in reproduction.column_block()


def test_shares_of_the_time_are_those_of_stacks(column):
    stacks = {row.commit: row.seconds for row in column.rows}
    assert reproduction.training_seconds(column) == sum(stacks.values())
    assert reproduction.training_seconds(reproduction.of_paper(column)) == column.rows[0].seconds
    settings = reproduction.read(reproduction.SETTINGS)
    seconds = {row.seconds for row in settings.rows}
    assert len(seconds) == 9
    assert reproduction.training_seconds(settings) == pytest.approx(sum(seconds))
    assert reproduction.runs_table().count(f"in {reproduction.SETTINGS}") == 2


def test_reinmax_at_one_is_that_of_the_search():
    search = reproduction.read(reproduction.SEARCH)
    rows = search.where(estimator="reinmax", power=2.0, target="constant", tau=1.0)
    losses = [row.metrics["expected_loss"] for row in rows]
    searched, tuned, rodeo = lines_of(reproduction.at_one_table())["p = 2"]
    # the optimum is the mean of 0.45 squared
    assert searched.startswith(f"{100 * (fmean(losses) / 0.45**2 - 1):.2f} ± ")
    assert [x.partition(" (")[2] for x in (searched, tuned, rodeo)] == [
        *("2 runs)", "5 runs)", "5 runs)")
    ]


def test_curves_from_an_epoch_on(column):
    for figure in reproduction.section(column).figures:
        for curve in reproduction.from_epoch(10, figure).curves:
            assert curve.x[0] == 10
            assert len(curve.x) == len(curve.y) == len(curve.low) == len(curve.high)
