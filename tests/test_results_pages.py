"""What the README and the page of the reproduction say of stored runs follows from those runs."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
from discretegrad_lab.recipes import choose_temperatures

from benchmark_cases import demo, measure, pages, reproduction, table
from discretegrad_lab import published


@pytest.fixture
def stored():
    return demo.results.read(demo.DEMO)


def changed(stored, **fields):
    """The results as if their runs had been configured otherwise."""
    rows = [replace(row, config={**row.config, **fields}) for row in stored.rows]
    return replace(stored, rows=tuple(rows))


def with_temperatures(monkeypatch, stored, **fields):
    """As if these were the temperatures that a table of them chose."""
    lines = [
        {**{k: str(v) for k, v in row.config.items()}, "chosen": "yes", "runs": "2", **fields}
        for row in stored.rows
    ]
    rows_of = demo.published.rows
    monkeypatch.setattr(
        demo.published,
        "rows",
        lambda name: lines if name == "temperatures.csv" else rows_of(name),
    )
    return demo.demo_caption(stored)


def test_the_demo_table_has_the_final_loss_of_every_run(stored):
    headings, _, *lines = demo.demo_table(changed(stored, tau=1.0)).splitlines()
    assert headings == (
        "| estimator | p = 1.5, best 0.30187 | steps | p = 2, best 0.20250 | steps "
        "| p = 3, best 0.09113 | steps |"
    )
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in lines}
    for row in stored.rows:
        title = demo.ESTIMATORS[row.config["estimator"]].title
        column = 1 + 2 * (1.5, 2, 3).index(row.config["power"])
        assert cells[title][column] == f"{row.metrics['expected_loss']:.5f}"
    steps = [int(text) for text in cells["exact gradient"][2::2][:2]]
    assert all(0 < number < 800 for number in steps)


def test_the_demo_table_shows_runs_that_failed_and_those_that_never_arrived(stored):
    first, *others = stored.rows
    lost = replace(stored, rows=(replace(first, state="diverged", metrics={}), *others))
    line = demo.demo_table(lost).splitlines()[2]
    assert line.startswith("| ReinMax | - | - | 0.2")
    assert "ReinMax 1" in demo.demo_caption(lost)
    far = {key: dict.fromkeys(curve, 1.0) for key, curve in stored.curves.items()}
    lines = demo.demo_table(replace(stored, curves=far)).splitlines()[2:]
    assert all(line.split(" | ")[2] == "-" for line in lines)


def test_the_demo_caption_follows_from_the_results(stored):
    caption = demo.demo_caption(stored)
    for words in ("after 800 steps", "rate of 0.01 (", "8,000 steps", "one seed", "has 4 draws"):
        assert words in caption
    other = changed(stored, learning_rate=0.05, steps_per_epoch=50, draws=7, latents=16, batch=32)
    caption = demo.demo_caption(other)
    for words in ("after 2,000 steps", "0.05 (", "has 7 draws", "over 16 binary", "with 32 joint"):
        assert words in caption
    # a second seed, lower by 0.002, gives an interval
    second = [
        replace(
            row,
            identity=f"{row.identity}-1",
            config={**row.config, "seed": 1},
            metrics={"expected_loss": row.metrics["expected_loss"] - 0.002},
        )
        for row in stored.rows
    ]
    both = replace(stored, rows=(*stored.rows, *second))
    assert "2 seeds, mean ± half" in demo.demo_caption(both)
    half = 12.7062 * 0.001
    assert f" ± {half:.5f} | - |" in demo.demo_table(both)


def test_the_demo_says_whether_temperatures_are_tuned(stored, monkeypatch):
    default = changed(stored, tau=1.0)
    said = with_temperatures(monkeypatch, default, runs="0")
    assert "τ is 1 everywhere and not tuned" in said
    assert "τ" not in demo.demo_table(default)
    said = with_temperatures(monkeypatch, default)
    assert "τ is 1 everywhere: of 10 values" in said
    draws = demo.RECIPES["polynomial-temperatures"].runs()[0].draws
    assert f"8,000 steps of Adam at a learning rate of 0.001, {draws:,} draws" in said
    assert "seeds 1000 and 1001" in said
    rows = [replace(r, config={**r.config, "tau": r.config["power"] / 2}) for r in stored.rows]
    tuned = replace(stored, rows=tuple(rows))
    assert "τ is given for each p: of 10 values" in with_temperatures(monkeypatch, tuned)
    # runs at other temperatures than those that the search chose are not tuned
    assert "not tuned" in demo.demo_caption(default)
    lines = demo.demo_table(tuned).splitlines()
    assert lines[0].endswith("| τ |")
    assert all(line.endswith("| 0.75 / 1 / 1.5 |") for line in lines[2:-1])
    assert lines[-1].endswith("| - |")


def test_the_pictures_show_the_stored_curves(stored, tmp_path, monkeypatch, capsys):
    assert not demo.stale_pictures(), "run python benchmarks/table.py"
    for path in demo.pictures():
        shutil.copy(path, tmp_path / path.name)
    monkeypatch.setattr(demo, "PICTURES", tmp_path)
    assert not demo.stale_pictures()
    folder, picture = tmp_path / demo.DEMO.name, tmp_path / f"{demo.DEMO.name}.png"
    curves = {key: {**curve, 40: 0.1} for key, curve in stored.curves.items()}
    demo.results.write(replace(stored, curves=curves), folder)
    monkeypatch.setattr(demo, "DEMO", folder)
    assert demo.stale_pictures() == [picture]
    assert table.main(["--check"]) == 1
    assert f"{picture.name} is not current" in capsys.readouterr().out
    demo.draw_picture(picture)
    assert not demo.stale_pictures()
    picture.unlink()
    assert demo.stale_pictures() == [picture]


def pictures_on(page):
    path = measure.ROOT / page
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", path.read_text(encoding="utf-8"))
    return [(path.parent / name).resolve() for name in shown]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_demo_picture_is_shown(page):
    assert pages.PICTURES / f"{demo.DEMO.name}.png" in pictures_on(page)


def test_the_pictures_of_the_reproduction_are_shown():
    shown = pictures_on("docs/reproduction.md")
    drawn = [pages.PICTURES / f"{name}.png" for name in reproduction.figures()]
    assert set(drawn) < set(shown)
    assert all(path.exists() for path in shown)


def test_stored_results_are_those_of_their_recipes():
    for name in reproduction.STORED:
        runs = {run.identity for run in demo.RECIPES[name].runs()}
        assert {row.identity for row in reproduction.read(name).rows} == runs, (
            f"run and report {name} again"
        )


def test_the_chosen_temperatures_are_the_best_of_the_stored_search(tmp_path):
    path = tmp_path / "temperatures.csv"
    choose_temperatures(reproduction.read(reproduction.SEARCH), path)
    stored = Path(published.__file__).parent / "tables" / path.name
    assert path.read_text(encoding="utf-8") == stored.read_text(encoding="utf-8")


@pytest.fixture
def column():
    return reproduction.read(reproduction.VAE)


def test_the_readme_shows_the_column_as_it_is_stored(column, monkeypatch):
    block = reproduction.readme_block()
    tests = [row.metrics["test"] for row in column.where(estimator="st")]
    # the half interval of a mean over ten runs, with Student's t at 97.5 %
    half = 2.262157 * stdev(tests) / len(tests) ** 0.5
    line = next(line for line in block.splitlines() if line.startswith("| ST |"))
    assert line.endswith(f"| 118.46 ± 0.13 | {fmean(tests):.2f} ± {half:.2f} | below |")
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
    assert "49 finished, 1 diverged" in reproduction.runs_table()
    assert "9 of 10" in reproduction.page()
    assert "ours over 9 to 10" in reproduction.readme_block()


def test_shares_of_the_time_are_those_of_stacks(column):
    assert reproduction.training_seconds(column) == column.rows[0].seconds
    settings = reproduction.read(reproduction.SETTINGS)
    seconds = {row.seconds for row in settings.rows}
    assert len(seconds) == 9
    assert reproduction.training_seconds(settings) == pytest.approx(sum(seconds))
    assert reproduction.runs_table().count(f"in {reproduction.SETTINGS}") == 2


def test_reinmax_at_one_is_that_of_the_search():
    search = reproduction.read(reproduction.SEARCH)
    rows = search.where(estimator="reinmax", power=2.0, target="constant", tau=1.0)
    losses = [row.metrics["expected_loss"] for row in rows]
    line = next(x for x in reproduction.at_one_table().splitlines() if x.startswith("| p = 2 |"))
    # the optimum is the mean of 0.45 squared
    assert f"| {100 * (fmean(losses) / 0.45**2 - 1):.2f} ± " in line
    assert line.count("(2 runs)") == 1
    assert line.count("(5 runs)") == 2


def test_curves_from_an_epoch_on():
    (train, test) = reproduction.figures()[reproduction.VAE]
    for figure in (train, test):
        for curve in figure.curves:
            assert curve.x[0] == 10
            assert len(curve.x) == len(curve.y) == len(curve.low) == len(curve.high)
