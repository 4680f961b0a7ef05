"""The recipes: which runs they are, and the paper's numbers they rest on."""

import dataclasses
import math
import re

import pytest
import torch

from discretegrad_lab import tasks
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.tasks.base import read_rows
from discretegrad_lab.tasks.evidence import Results
from discretegrad_lab.tasks.polynomial import recipes, temperature
from discretegrad_lab.tasks.polynomial.config import Polynomial, best_loss
from discretegrad_lab.tasks.polynomial.model import _Distance
from discretegrad_lab.tasks.vae import published
from lab_cases import recipes_with_runs, searched, use_table

RECIPES = recipes_with_runs()
COLUMNS = ("8x4", "4x24", "8x16", "16x12", "64x8", "10x30")


def identities(name):
    return {run.identity for run in RECIPES[name].runs()}


@pytest.mark.parametrize("name", RECIPES)
def test_runs_are_complete_different_and_have_their_place_in_a_report(name):
    recipe = RECIPES[name]
    runs = recipe.runs()
    assert len(runs) == len(identities(name))
    assert len({run.epochs * run.steps_per_epoch for run in runs}) == 1
    assert {run.estimator for run in runs} == set(recipe.keys())
    if recipe.cost is not None and recipe.cost.of:
        assert identities(name) < identities(recipe.cost.of)
    assert {run.seed for run in runs} == set(recipe.seeds)
    # temperatures are never searched on the seeds of a reported number
    if name != "polynomial-temperatures" and recipe.halving is None:
        assert not {run.seed for run in runs} & set(recipes.SEARCH_SEEDS)
    named = {"estimator", "seed", *recipe.panels, *recipe.rows, *recipe.variants}
    # what else differs between runs follows from those, such as the temperature
    settings = {}
    for run in runs:
        document = run.document()
        # a later field is left out at its default
        key = tuple(document.get(field) for field in sorted(named))
        assert settings.setdefault(key, run) == run
    for field in (*recipe.panels, *recipe.rows, *recipe.variants):
        assert len({run.document().get(field) for run in runs}) > 1


def test_a_part_of_a_recipe_has_the_same_runs():
    recipe = RECIPES["polynomial-curves"]
    part = recipe.runs(seeds=[3, 1, 3], estimators=["st", "exact", "st"])
    assert len(part) == 2 * 2 * 3
    assert {run.identity for run in part} < identities("polynomial-curves")
    assert {(run.seed, run.estimator) for run in part} == {
        (seed, name) for seed in (1, 3) for name in ("st", "exact")
    }
    more = recipe.runs(seeds=[99], estimators=["rodeo"])
    assert {(run.seed, run.estimator) for run in more} == {(99, "rodeo")}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("polynomial-curves", {"estimators": ["reinmux"]}, "estimators of .* got 'reinmux'"),
        ("vae-10x30", {"estimators": ["st", "rodeo"]}, "of stgs, .* for vae-10x30, got 'rodeo'"),
        ("polynomial-temperatures", {"estimators": ["exact"]}, "got 'exact'"),
        ("polynomial-curves", {"seeds": []}, "at least one estimator and one seed"),
        ("polynomial-curves", {"estimators": []}, "at least one estimator and one seed"),
        ("polynomial-curves", {"seeds": [-1]}, "expected a seed"),
        ("table-2", {}, r"expected a recipe of .*vae-10x30.* got 'table-2'"),
    ],
)
def test_what_cannot_be_run_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        tasks.recipe(name).runs(**options)


def test_every_claim_is_reported():
    for task in tasks.tasks().values():
        ours = [recipe for recipe in tasks.recipes().values() if recipe.task is task]
        assert {name for recipe in ours for name in recipe.claims} == set(task.claims)
        for name, claim in task.claims.items():
            assert claim.name == name
            assert claim.text
            assert re.fullmatch(r"1|([1-6]|F)\.\d", claim.section)
        for recipe in ours:
            assert set(recipe.metrics) <= {metric.name for metric in task.metrics}


# temperatures


def test_the_table_has_one_temperature_for_each_setting():
    rows = read_rows(recipes.CHOICE.path)
    chosen = [row for row in rows if row["chosen_by"] == "expected_loss"]
    keys = {(float(row["power"]), row["target"], row["estimator"]) for row in chosen}
    searches = RECIPES[recipes.SEARCH].runs()
    assert len(chosen) == len(keys)
    assert keys == {(run.power, run.target, run.estimator) for run in searches}
    assert all(re.fullmatch(r"commit .+", row["source"]) for row in rows)


def search(best):
    """Results of a search whose best temperatures are ``best``, 1.1 where it does not say."""

    def ends(run):
        distance = abs(run.tau - best.get((run.power, run.target, run.estimator), 1.1))
        return {"expected_loss": 0.2 + distance / 10 + (run.seed - 1000) * 1e-3}

    return searched(RECIPES[recipes.SEARCH], ends)


def choose(results):
    """Write what a search chooses."""
    recipes.CHOICE.write(recipes.CHOICE.lines(RECIPES[recipes.SEARCH], results))


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of temperatures that the recipes read in place of the committed one."""
    use_table(monkeypatch, recipes.CHOICE, tmp_path / "temperatures.csv")
    return recipes.CHOICE.path


def test_recipes_train_with_what_the_search_found(table):
    best = {(2.0, "constant", "stgs"): 0.5, (2.0, "spread", "stgs"): 0.3}
    choose(search(best))
    assert len(table.read_text().splitlines()) == 1 + 3 * 2 * 6 * 10
    assert temperature(2.0, "constant", "stgs") == 0.5
    runs = RECIPES["polynomial-settings"].runs(estimators=["stgs", "st", "rodeo"])
    for run in runs:
        expected = best.get((run.power, run.target, run.estimator), 1.1)
        assert run.tau == (1.0 if run.estimator == "rodeo" else expected)
    headline = RECIPES["polynomial-headline"].runs(estimators=["stgs"])
    assert {run.tau for run in headline} == {0.5, 1.1}
    row = next(r for r in read_rows(table) if r["chosen_by"] and r["tau"] == "0.5")
    assert row["expected_loss"] == "0.2005"
    assert (row["runs"], row["source"]) == ("2", "commit 0a1b2c")


def test_a_temperature_that_diverged_is_never_chosen(table):
    results = search({})
    worse = [
        dataclasses.replace(row, state="diverged", metrics={}, diverged_step=7)
        if row.config["tau"] == 1.1 and row.config["seed"] == 1001
        else row
        for row in results.rows
    ]
    choose(dataclasses.replace(results, rows=tuple(worse)))
    rows = read_rows(table)
    assert {row["expected_loss"] for row in rows if row["tau"] == "1.1"} == {"diverged"}
    # 1.0 and 1.2 are as far from 1.1
    assert {row["tau"] for row in rows if row["chosen_by"]} <= {"1.0", "1.2"}
    # of equals the nearest to 1 is chosen
    same = [dataclasses.replace(row, metrics={"expected_loss": 0.25}) for row in results.rows]
    choose(dataclasses.replace(results, rows=tuple(same)))
    assert {row["tau"] for row in read_rows(table) if row["chosen_by"]} == {"1.0"}
    assert temperature(2.0, "constant", "rodeo") == 1.0


def test_an_unfinished_search_chooses_nothing(table):
    results = search({})
    message = (
        r"search polynomial-temperatures of reinmax, p = 1.5, setting A at its end, got 19 of its"
    )
    with pytest.raises(ValueError, match=message):
        choose(dataclasses.replace(results, rows=results.rows[1:]))
    first, *others = results.rows
    started = (dataclasses.replace(first, state="started", metrics={}), *others)
    with pytest.raises(ValueError, match=message):
        choose(dataclasses.replace(results, rows=started))
    with pytest.raises(ValueError, match=r"expected results of the search .*, got none; give"):
        choose(Results(recipes.SEARCH))
    assert not table.exists()


# the paper's numbers


def test_tables_are_whole():
    cells = published.cells()
    columns = ("average", *COLUMNS)
    estimators = ("stgs", "gr-mck", "gst-1.0", "st", "reinmax")
    of_sizes = {(t, e, c) for t in (2, 9, 10, 11) for e in estimators for c in columns}
    # of ReinMax in its own model, of the others in theirs
    large = {(5, e, "64x32") for e in ("rloo", "disarm-tree", *estimators[:-1])}
    assert set(cells) == of_sizes | large | {(5, "reinmax", "32x64")}
    for cell in cells.values():
        assert (cell.spread is None) == (cell.column == "average")
        assert cell.runs == 10
        assert cell.measure == ("train" if cell.table in (2, 5, 11) else "test")
        assert cell.chosen_by == ("train" if cell.table in (2, 5, 9) else "test")
        assert cell.table == 5 or cell.estimator in LINES
    reinmax = cells[2, "reinmax", "10x30"]
    assert (reinmax.value, reinmax.spread) == (98.37, 0.44)


def test_contradictions_of_the_paper():
    cells = published.cells()
    doubtful = {(doubt.table, doubt.estimator, doubt.column) for doubt in published.doubts()}
    contradictions = set()
    for (table, estimator, column), cell in cells.items():
        key = table, estimator, column
        if table == 5:  # a table of its own
            continue
        train, test, test_again, train_again = (
            cells[number, estimator, column] for number in (2, 9, 10, 11)
        )
        if column == "average":
            parts = [cells[table, estimator, other].value for other in COLUMNS]
            # each part and the average are rounded to two decimals
            if abs(math.fsum(parts) / 6 - cell.value) > 0.01:
                contradictions.add(key)
        elif table == 9:
            # the same test number of runs that were chosen by train and by test
            same = (test.value, test.spread) == (test_again.value, test_again.spread)
            if same and abs(train.value - train_again.value) > 0.1:
                contradictions.add(key)
            if (test.value, test.spread) == (train.value, train.spread):
                contradictions |= {(9, estimator, column), (10, estimator, column)}
    for row in read_rows(recipes.CHOICE.path.parents[1] / "vae" / "hyperparameters.csv"):
        if float(row["tau"]) not in published.TEMPERATURES:
            contradictions.add((8, row["estimator"], row["column"]))
    assert contradictions == doubtful
    assert len(doubtful) == 5
    with pytest.raises(ValueError, match=r"expected a column of Table 8 .*10x30.*, got '30x10'"):
        published.settings("30x10")


def test_the_optimum_is_that_of_the_model():
    for target in ("constant", "spread"):
        for latents in (7, 8):
            run = Polynomial(estimator="st", power=1.5, target=target, latents=latents)
            distance = _Distance([run], torch.device("cpu"), torch.float64)
            least = torch.minimum(distance.of_zero, distance.of_one).mean().item()
            assert best_loss(run.document()) == pytest.approx(least, rel=1e-12)
