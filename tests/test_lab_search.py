"""Successive halving: who goes on at a rung, from rung to rung, and what the report says."""

import dataclasses
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from discretegrad_lab import cli, tasks
from discretegrad_lab.report import section as sections
from discretegrad_lab.report.entries import DASH
from discretegrad_lab.report.folder import check, gather, read_section, write_report
from discretegrad_lab.report.reading import of_recipe
from discretegrad_lab.report.results import read, write
from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.listener import Listener, Outcome
from discretegrad_lab.runs.options import StackOptions
from discretegrad_lab.runs.search import NotMeasured, complete, goals_of, next_runs, search
from discretegrad_lab.runs.store import Saved, Status, Store
from discretegrad_lab.tasks import polynomial
from discretegrad_lab.tasks.base import Recipe, read_rows
from discretegrad_lab.tasks.chosen import NotChosen
from discretegrad_lab.tasks.evidence import DROPPED
from discretegrad_lab.tasks.halving import Ended, Goal, Halving, OtherSearch, Rung, goals
from discretegrad_lab.tasks.vae.published import settings
from discretegrad_lab.tasks.vae.recipes import PAPER
from discretegrad_lab.tasks.vae.search_recipes import CHOICE
from lab_cases import searched, tree, use_small_images, use_table
from lab_tiny import tiny
from lab_toy import TOY, Toy

TAUS = (0.1, 0.5, 1.0, 1.5, 2.0)
HALVING = Halving("expected_loss", ("tau",), (Rung(1), Rung(3)))


def build(estimator, seed):
    return (tiny(estimator, seed, tau=tau, epochs=6, learning_rate=0.1) for tau in TAUS)


SEARCH = Recipe(
    name="tiny-search",
    title="A search of five temperatures",
    task=tasks.task("polynomial"),
    build=build,
    seeds=(7, 8),
    estimators=("reinmax", "st"),
    metrics=("expected_loss",),
    rows=("tau",),
    curves=False,
    halving=HALVING,
)
REINMAX = SEARCH.runs(estimators=["reinmax"])


def chosen(scores, halving=HALVING):
    """Temperatures with the goals of ReinMax, by scores of a temperature, a seed and an epoch."""
    decided = goals(halving, REINMAX, lambda run, epoch: scores(run.tau, run.seed, epoch))
    assert list(decided) == REINMAX
    by_tau = {tau: {decided[run] for run in REINMAX if run.tau == tau} for tau in TAUS}
    assert all(len(x) == 1 for x in by_tau.values())
    return {tau: next(iter(x)) for tau, x in by_tau.items()}


@pytest.mark.parametrize(
    ("scores", "on", "further"),
    [
        # half of 5 and half of 3, rounded up; the means over seeds count, not the best seed
        (lambda tau, seed, epoch: tau + (seed == 7) * (tau == 0.1), (0.5, 1.0, 0.1), (0.5, 0.1)),
        # of equals the first ones
        (lambda tau, seed, epoch: 0.0, (0.1, 0.5, 1.0), (0.1, 0.5)),
        # a later rung may turn the order around
        (lambda tau, seed, epoch: tau if epoch == 1 else -tau, (0.1, 0.5, 1.0), (1.0, 0.5)),
        # a run that diverged ends its candidate, also where there would be room
        (
            lambda tau, seed, epoch: math.inf if tau > 0.5 and seed == 8 else -tau,
            (0.1, 0.5),
            (0.5,),
        ),
        (lambda tau, seed, epoch: math.inf, (), ()),
    ],
)
def test_the_better_half_goes_on(scores, on, further):
    expected = dict.fromkeys(TAUS, Goal(1, dropped=True))
    expected |= dict.fromkeys(on, Goal(3, dropped=True)) | dict.fromkeys(further, Goal(6))
    assert chosen(scores) == expected


def test_a_rung_waits_until_all_have_come_there():
    def without_one(tau, seed, epoch):
        return None if (tau, seed) == (2.0, 8) else tau

    assert set(chosen(without_one).values()) == {Goal(1)}
    # those that are dropped already hold nobody back
    late = chosen(lambda tau, seed, epoch: None if epoch == 3 and tau != 0.1 else tau)
    assert late == {tau: Goal(3) if tau < 1.5 else Goal(1, dropped=True) for tau in TAUS}
    # what else differs than the fields of the search does not compete
    other = [dataclasses.replace(run, latents=5) for run in REINMAX]
    both = goals(HALVING, [*REINMAX, *other], lambda run, _: run.tau if run.latents == 4 else None)
    assert {both[run] for run in other} == {Goal(1)}
    assert {both[run].epoch for run in REINMAX} == {1, 3, 6}
    # and a run that ends before a rung does not stop there
    short = [dataclasses.replace(run, epochs=1) for run in REINMAX]
    assert set(goals(HALVING, short, lambda run, _: run.tau).values()) == {Goal(1)}


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ((), "rising epochs"),
        ((Rung(0),), "rising epochs"),
        ((Rung(3), Rung(3)), "rising epochs"),
        ((Rung(3, 1.0),), "share between 0 and 1"),
    ],
)
def test_rungs_that_make_no_sense_are_refused(rungs, message):
    with pytest.raises(ValueError, match=message):
        Halving("expected_loss", ("tau",), rungs)


def test_the_metric_of_a_search_is_one_of_the_task():
    halving = dataclasses.replace(HALVING, metric="accuracy")
    with pytest.raises(ValueError, match=r"expected a metric of polynomial .*, got 'accuracy'"):
        dataclasses.replace(SEARCH, halving=halving)


# execution


def train(store, recipe=SEARCH, calls=None, listener=None, results=None):
    """Search with ``execute``; each call with its runs and its epoch goes into ``calls``."""

    def until(runs, epoch):
        if calls is not None:
            calls.append((len(runs), epoch))
        return execute(runs, store, stacks=StackOptions(until=epoch), listener=listener)

    return search([(recipe, recipe.runs())], store, until, results)


def everything(store, runs=None):
    """All that is stored of the runs, but for times."""
    found = {}
    for run in runs or SEARCH.runs():
        saved = store.load(run)
        found[run] = saved.status.state, saved.status.epoch, saved.metrics, saved.state
    return found


def same(first, second):
    for run, (state, epoch, metrics, tensors) in first.items():
        assert (state, epoch, metrics) == second[run][:3]
        assert tensors.keys() == second[run][3].keys()
        assert all(torch.equal(x, second[run][3][name]) for name, x in tensors.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with the whole search, trained at once."""
    store, calls = Store(tmp_path_factory.mktemp("whole")), []
    outcome = train(store, calls=calls)
    assert calls == [(20, 1), (12, 3), (8, None)]
    assert outcome.complete
    assert (len(outcome.finished), len(outcome.dropped)) == (8, 12)
    return store


class Interrupts(Listener):
    """Stops training by a signal after an epoch."""

    def __init__(self, epoch):
        self._epoch = epoch

    def epoch_done(self, epoch, metrics, seconds):
        if epoch == self._epoch:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("epoch", "dropped", "calls"),
    [
        # at a rung, before and after it is decided; between rungs; on the way to the end
        (1, 8, [(12, 3), (8, None)]),
        (2, 8, [(12, 3), (8, None)]),
        (5, 12, [(8, None)]),
    ],
)
def test_an_interrupted_search_ends_as_any_other(epoch, dropped, calls, whole, tmp_path):
    store = Store(tmp_path)
    outcome = train(store, listener=Interrupts(epoch))
    assert (outcome.stopped_by, len(outcome.dropped)) == ("SIGINT", dropped)
    assert len(outcome.stopped) == 20 - dropped
    assert not outcome.complete
    again = []
    outcome = train(store, calls=again)
    assert outcome.complete
    assert again == calls
    same(everything(whole), everything(store))
    # a third start has nothing to do
    assert train(store, calls=again) == Outcome(already=outcome.finished, dropped=outcome.dropped)
    assert again[len(calls) :] == [(0, None)]


def test_runs_that_end_at_a_rung_are_like_those_of_a_run_without_rungs(whole, tmp_path):
    store = Store(tmp_path)
    execute(SEARCH.runs(), store)
    decided = goals_of(SEARCH, SEARCH.runs(), whole)
    # rungs are decided by what runs had there, however far they are now
    assert goals_of(SEARCH, SEARCH.runs(), store) == decided
    for run, goal in decided.items():
        assert whole.metrics(run) == store.metrics(run)[: goal.epoch]
        assert whole.status(run).state == ("started" if goal.dropped else "finished")


def test_a_damaged_run_holds_its_rivals_back_and_nobody_else(tmp_path):
    store = Store(tmp_path)
    execute(SEARCH.runs(), store, stacks=StackOptions(until=1))
    next(store.directory(REINMAX[0]).glob("metrics*")).write_text("epoch\n")
    outcome = train(store)
    assert list(outcome.damaged) == [REINMAX[0]]
    assert set(outcome.stopped) == set(REINMAX[1:])
    assert {run.estimator for run in (*outcome.finished, *outcome.dropped)} == {"st"}


def save(store, run, metrics, step=None):
    """Store a run that has these metrics after its epochs and diverged at a step."""
    assert store.claim(run)
    rows = [{"epoch": number, **row} for number, row in enumerate(metrics, 1)]
    store.save(run, Saved(Status("started", len(rows), 1.0, step), rows, [{}], {}))
    store.release(run)


def test_what_a_rung_makes_of_stored_numbers(tmp_path):
    store = Store(tmp_path)
    # an epoch has two steps: what diverges after the rung counts there, what is no number does not
    stored = {0.1: (1.0, 2), 0.5: (math.nan, None), 1.0: (2.0, 3), 1.5: (3.0, None), 2.0: (9.0, 1)}
    for run in REINMAX:
        value, step = stored[run.tau]
        save(store, run, [{"expected_loss": value}] * 2, step)
    decided = goals_of(SEARCH, REINMAX, store)
    assert {run.tau for run in REINMAX if not decided[run].dropped} == {1.0, 1.5}
    # where more is better, more goes on
    toys = [Toy(estimator="st", tau=tau, seed=seed) for tau in (0.5, 1.0) for seed in (0, 1)]
    for run in toys:
        save(store, run, [{"accuracy": run.tau / 2, "mistakes": 0.0}])
    halving = Halving("accuracy", ("tau",), (Rung(1),))
    search = dataclasses.replace(
        SEARCH, task=TOY, metrics=("accuracy",), panels=(), halving=halving
    )
    best = goals_of(search, toys, store)
    assert [goal.dropped for goal in best.values()] == [True, True, False, False]


def test_a_rung_where_nothing_is_measured_drops_nobody(tmp_path, listed, monkeypatch):
    """A task may measure every few epochs only; all candidates would be as bad as diverged ones."""
    monkeypatch.chdir(tmp_path)
    store = Store("runs")
    for run in REINMAX[:-1]:
        save(store, run, [{"loss": 1.0}])
    # the last may still have a number
    assert set(goals_of(SEARCH, REINMAX, store).values()) == {Goal(1)}
    save(store, REINMAX[-1], [{"loss": 1.0}])
    message = "expected expected_loss after epoch 1, where tiny-search .* none from the 10 runs"
    with pytest.raises(NotMeasured, match=message):
        goals_of(SEARCH, REINMAX, store)
    shown = call("run", SEARCH.name, "--estimators", "reinmax", "--device", "cpu", code=2)
    assert "put the rungs of the search where its task measures that" in shown
    # one that diverged had none to give
    others = [run for run in SEARCH.runs() if run.estimator == "st"]
    for run in others:
        save(store, run, [{"loss": 1.0}], step=1)
    assert {goal.dropped for goal in goals_of(SEARCH, others, store).values()} == {True}


@pytest.mark.parametrize("column", ["8x4", "64x8"])
def test_the_search_of_the_paper_has_its_settings(column):
    recipe = tasks.recipe(f"vae-search-{column}")
    assert len(recipe.runs()) == 2 * (5 * 80 + 2 * 16)
    for key, setting in recipe.halving.published.items():
        settings = [run for run in recipe.runs() if run.estimator == key]
        inside = [run for run in settings if all(getattr(run, k) == x for k, x in setting.items())]
        # Table 8 has a temperature for GR-MCK that is not in Table 7
        assert len(inside) == (0 if (column, key) == ("64x8", "gr-mck") else 2)


def test_the_search_of_the_paper_in_three_steps(tmp_path, monkeypatch):
    recipe = tasks.recipe("vae-search-8x4")
    use_small_images(monkeypatch, 6, 4)
    halving = dataclasses.replace(recipe.halving, rungs=(Rung(1), Rung(2)))
    short = dataclasses.replace(
        recipe,
        halving=halving,
        estimators=("reinmax",),
        build=lambda estimator, seed: (
            dataclasses.replace(run, epochs=3, batch=6, draws=2)
            for run in recipe.build(estimator, seed)
            if (run.optimiser, run.learning_rate) == ("radam", 7e-4) and run.tau > 1.3
        ),
    )
    outcome = train(Store(tmp_path), short)
    assert outcome.complete
    assert (len(outcome.finished), len(outcome.dropped)) == (2, 6)


# what a search chooses


CHOSEN = tasks.recipe("vae-chosen-by-train-8x4"), tasks.recipe("vae-chosen-by-test-8x4")


@pytest.fixture
def choice(tmp_path, monkeypatch):
    """What the searches of the VAE choose, with a table of its own for a test."""
    use_table(monkeypatch, CHOICE, tmp_path / "chosen.csv")
    CHOICE.path.write_text("categories,latents,estimator,chosen_by\n")
    return CHOICE


def standing(run):
    """What a run of the search has at the end, if it comes there."""
    if run.optimiser == "radam" or run.learning_rate > 5e-4:
        return {}
    paper = settings("8x4")[run.estimator]
    same = (run.learning_rate, run.tau) == (paper.learning_rate, paper.tau)
    # by train the setting of Table 8 is the best, by test another, but for STGS
    test = 125 + run.tau + 1e3 * run.learning_rate - 10 * (same and run.estimator == "stgs")
    return {"train": 130 - 10 * same - run.seed % 2, "test": test}


def test_what_was_chosen_is_trained_with_the_seeds_of_the_main_table(choice, tmp_path, monkeypatch):
    search, name = tasks.recipe("vae-search-8x4"), "vae-search-8x4"
    by_train, by_test = CHOSEN
    with pytest.raises(NotChosen, match=rf"stgs .* best by test, got none: .*choose {name}`"):
        by_test.runs()
    assert not complete(by_test, Store(tmp_path))
    write(searched(search, standing), tmp_path / name)
    shown = call("choose", name, "--results", str(tmp_path))
    by = "Train \N{MINUS SIGN}ELBO and by Test \N{MINUS SIGN}ELBO"
    assert f"{name}: settings of 5 lines chosen by {by}." in shown
    rows = read_rows(choice.path)
    # those that trained to the end: 2 learning rates at 10 or 12 temperatures
    assert len(rows) == 2 * (5 * 10 + 2 * 2)
    assert [row["chosen_by"] for row in rows if row["chosen_by"]].count("train test") == 1
    main = {run.identity: run for run in tasks.recipe("vae-8x4").runs()}
    # Table 8 has a learning rate for ST whose candidates were all dropped
    keys = ("stgs", "gr-mck", "gst-1.0", "reinmax")
    for run in by_train.runs(estimators=keys):
        assert main[run.identity] == run
    runs = by_test.runs()
    assert [(run.estimator, run.seed) for run in runs] == [
        (key, seed) for key in PAPER for seed in range(10)
    ]
    assert all(run.identity in main for run in runs if run.estimator == "stgs")
    assert {(run.optimiser, run.learning_rate, run.tau) for run in runs[10:]} == {
        ("adam", 3e-4, 0.1)
    }
    # nothing is trained twice
    use_small_images(monkeypatch, 6, 4)
    store, short = Store(tmp_path / "runs"), {"epochs": [3], "batch": [6], "draws": [2]}
    parts = [recipe.changed(short).runs(seeds=[0]) for recipe in CHOSEN]
    assert len(execute(parts[0], store).finished) == 5
    outcome = execute(parts[1], store)
    assert (len(outcome.already), len(outcome.finished)) == (1, 4)
    # what was searched for one line only can be trained and reported
    lines = search.choice.lines(search, searched(search, standing))
    CHOICE.path.unlink()
    search.choice.write({key: x for key, x in lines.items() if key[-1] == "stgs"})
    short = by_test.changed({"epochs": [3], "batch": [6], "draws": [2]})
    with pytest.raises(NotChosen, match="expected settings of gr-mck"):
        short.runs()
    rows = gather(of_recipe(short), short.runs([0], ["stgs"]), store, tmp_path / "reports", []).rows
    assert [row.state for row in rows] == ["finished"]
    # beside the numbers that the paper chose in the same way
    assert [by_test.published[x].number for x in ("train", "test")] == [11, 10]
    assert [by_train.published[x].number for x in ("train", "test")] == [2, 9]


def test_what_is_not_chosen_is_said(choice, tmp_path):
    name = "vae-search-8x4"

    def ends(run):
        return {} if run.estimator == "st" else standing(run)

    # at a rung, and on the way from there to the end
    results = searched(tasks.recipe(name), ends)
    rows = tuple(
        dataclasses.replace(row, state="diverged", metrics={}, diverged_step=7)
        if row.config["estimator"] == "gr-mck" and row.state == "finished"
        else row
        for row in results.rows
    )
    write(dataclasses.replace(results, rows=rows), tmp_path / name)
    shown = " ".join(call("choose", name, "--results", str(tmp_path)).split())
    assert f"{name}: settings of 3 lines chosen by" in shown
    for key in ("st", "gr-mck"):
        said = f"nothing was chosen for {key}, 8 categories, 4 latents, all of whose candidates"
        assert said in shown
        assert choice.setting(key, "train", 8, 4) is None
    assert shown.count("nothing was chosen") == 2


def test_choosing_from_what_is_no_search_or_not_trained_changes_nothing(choice, tmp_path):
    before = choice.path.read_text()
    write(searched(tasks.recipe("vae-search-8x4"), standing), tmp_path / "vae-search-8x4")

    def refused(*names):
        return call("choose", *names, "--results", str(tmp_path), code=2)

    assert "got vae-8x4; take one of polynomial-temperatures, vae-search-8x4" in refused("vae-8x4")
    missing = "expected results of the search vae-search-64x8, got none; give `discretegrad run"
    assert missing in refused("vae-search-8x4", "vae-search-64x8")
    assert choice.path.read_text() == before
    # recipes that wait say what for
    shown = call("list", CHOSEN[1].name)
    assert "vae-chosen-by-test-8x4 waits for a search, data: mnist" in shown
    assert "`discretegrad choose vae-search-8x4` first." in shown
    assert "`discretegrad choose vae-search-8x4` first" in call("run", CHOSEN[1].name, code=2)


# the report


@pytest.fixture
def listed(monkeypatch):
    """Have the search among the recipes of the lab."""
    monkeypatch.setattr(polynomial, "RECIPES", (*polynomial.RECIPES, SEARCH))


def tables(folder):
    """The cells of the tables by title, heading and estimator; the best by the first metric."""
    found = {}
    for table in read_section(folder)[1].tables:
        rows = {row[0]: dict(zip(table.headings, row, strict=True)) for row in table.rows}
        found[table.title] = rows
    return found


def test_the_report_has_the_best_and_what_was_dropped(whole, tmp_path, listed):
    published = {"reinmax": {"tau": 2.0}, "st": {"tau": 7.0}}
    folder = write_report(SEARCH, whole, tmp_path)
    assert check(tmp_path) is None
    results, section = read_section(folder)
    assert section.text.startswith("20 runs: 8 finished, 12 dropped.")
    decided = goals_of(SEARCH, SEARCH.runs(), whole)
    for run, row in zip(SEARCH.runs(), results.rows, strict=True):
        goal, metrics = decided[run], whole.metrics(run)
        assert row.epoch == goal.epoch == len(metrics)
        # a run that was dropped has no end
        values = row.reached if goal.dropped else row.metrics
        assert values["expected_loss"] == pytest.approx(metrics[-1]["expected_loss"], rel=1e-5)
        assert not (row.metrics if goal.dropped else row.reached)
    line = tables(folder)["How far candidates came"]["ReinMax"]
    assert list(line.values()) == ["ReinMax", "5", "5", "2", "3", "1", "2", "0"]
    ends = {}
    for run, row in zip(SEARCH.runs(), results.rows, strict=True):
        if run.estimator == "reinmax" and row.metrics:
            ends.setdefault(run.tau, []).append(row.metrics["expected_loss"])
    best = min(ends, key=lambda tau: sum(ends[tau]))
    line = tables(folder)["Best settings"]["ReinMax"]
    assert line["τ"] == f"{best:g}"
    assert float(line["expected loss"]) == pytest.approx(sum(ends[best]) / 2, abs=1e-5)
    assert "dropped" in (folder / "table.csv").read_text().splitlines()[0].split(",")
    # beside what a paper found
    halving = dataclasses.replace(HALVING, published=published)
    reading = dataclasses.replace(of_recipe(SEARCH), halving=halving)
    reinmax, st = sections.section(reading, results).tables[0].rows
    goal = next(decided[run] for run in REINMAX if run.tau == 2.0)
    assert goal.dropped
    assert reinmax[-2:] == ("2", f"dropped after epoch {goal.epoch}")
    assert st[-2:] == ("7", "not in the grid")

    # where the store is gone, or knows less, the results stay
    def known(rows):
        return [(row.state, row.epoch, row.metrics, row.reached) for row in rows]

    store = Store(tmp_path / "elsewhere")
    execute(SEARCH.runs(), store, stacks=StackOptions(until=1))
    for other in (Store(tmp_path / "nowhere"), store):
        write_report(SEARCH, other, tmp_path)
        assert known(read_section(folder)[0].rows) == known(results.rows)


def test_the_report_on_half_a_search(tmp_path, listed):
    store = Store(tmp_path / "runs")
    execute([*REINMAX, *SEARCH.runs(estimators=["st"])[:3]], store, stacks=StackOptions(until=1))
    folder = write_report(SEARCH, store, tmp_path)
    assert check(tmp_path) is None
    section = read_section(folder)[1]
    assert section.text.startswith("20 runs: 9 started, 7 missing, 4 dropped.")
    came = tables(folder)["How far candidates came"]
    assert list(came["ReinMax"].values())[1:] == ["5", "5", "2", "0", "0", "0", "0"]
    assert list(came["ST"].values())[1:] == ["5", "0", "0", "0", "0", "0", "0"]
    assert {row["τ"] for row in tables(folder)["Best settings"].values()} == {DASH}
    assert not complete(SEARCH, store)


def test_a_search_needs_no_recipe_to_be_read_again(whole, tmp_path):
    """As that of a file, or with other values of a field."""
    halving = dataclasses.replace(HALVING, published={"reinmax": {"tau": 2.0}})
    search = dataclasses.replace(SEARCH, halving=halving)
    for recipe in (search, search.changed({"learning_rate": [0.1]})):
        folder = write_report(recipe, whole, tmp_path)
        results, section = read_section(folder)
        assert section.tables == sections.section(of_recipe(recipe), results).tables
        assert section.tables[0].title == "Best settings"
    assert check(tmp_path) is None


def call(*arguments, code=0):
    """What a command says, on one line."""
    result = CliRunner().invoke(cli.app, [*arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_the_commands(tmp_path, listed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = call("run", SEARCH.name, "--device", "cpu", "--dry-run")
    assert "20 runs to train" in plan
    assert "the plan goes as far as epoch 1, where the best are chosen" in plan
    assert "12 dropped at a rung, in" in call("run", SEARCH.name, "--device", "cpu")
    assert complete(SEARCH, Store("runs"))
    again = call("run", SEARCH.name, "--device", "cpu")
    assert "12 dropped at a rung, 8 done before, in" in again
    assert "20 runs: 8 finished, 12 dropped." in call("report")
    plan = call("run", SEARCH.name, "--device", "cpu", "--dry-run")
    assert "0 runs to train in 0 stacks, 12 dropped at a rung, 8 done before, 0 damaged" in plan
    call("report", "--check")


# rungs that results decide, where the store that they were written from is gone


def ends(*groups):
    """Runs of ReinMax that ended, from temperatures with their seeds and how they ended."""
    places = {(tau, seed): end for taus, seeds, end in groups for tau in taus for seed in seeds}
    return {run: places[x] for run in REINMAX if (x := (run.tau, run.seed)) in places}


BOTH = SEARCH.seeds
FIRST, SECOND = Ended(1, dropped=True, finite=True), Ended(3, dropped=True, finite=True)
DIVERGED, NO_NUMBER = FIRST._replace(dropped=False, finite=False), FIRST._replace(finite=False)


@pytest.mark.parametrize(
    ("ended", "gone", "goal"),
    [
        # nobody was dropped, so nothing was decided
        ({}, (), Goal(1)),
        (ends(((0.1, 0.5), BOTH, DIVERGED)), (), Goal(1)),
        # at the first rung, and at both
        (ends(((0.1, 0.5), BOTH, FIRST)), (0.1, 0.5), Goal(3)),
        (ends(((0.1, 0.5), BOTH, FIRST), ([2.0], BOTH, SECOND)), (0.1, 0.5, 2.0), Goal(6)),
        # fewer go on than might, since the others diverged or had no number
        (ends(((0.1, 0.5, 1.0), BOTH, NO_NUMBER)), (0.1, 0.5, 1.0), Goal(3)),
        (ends(((0.1, 0.5), BOTH, NO_NUMBER), ([1.0], [7], DIVERGED)), (0.1, 0.5, 1.0), Goal(3)),
        # what diverges after a rung went on there
        (
            ends(((0.1, 0.5), BOTH, FIRST), ([1.0], [7], DIVERGED._replace(epoch=2))),
            (0.1, 0.5),
            Goal(3),
        ),
    ],
)
def test_a_rung_is_decided_as_it_was_before(ended, gone, goal):
    decided = goals(HALVING, REINMAX, lambda run, epoch: None, ended)
    expected = {run: Goal(0, dropped=True) if run.tau in gone else goal for run in REINMAX}
    assert decided == expected
    # what is known here counts more than what was before
    scored = goals(HALVING, REINMAX, lambda run, epoch: run.tau, ended)
    assert scored == goals(HALVING, REINMAX, lambda run, epoch: run.tau)


@pytest.mark.parametrize(
    ("ended", "on"),
    [
        # too many go on, or too few
        (ends(([0.1], BOTH, FIRST)), 4),
        (ends(((0.1, 0.5, 1.0), BOTH, FIRST)), 2),
        # dropped with one seed, as by results of that seed alone
        (ends(((0.1, 0.5), [7], FIRST)), 3),
        # where no rung is
        (ends(((0.1, 0.5), BOTH, FIRST._replace(epoch=2))), 5),
        (ends(((0.1, 0.5), BOTH, SECOND)), 5),
    ],
)
def test_results_of_another_search_are_refused(ended, on):
    with pytest.raises(OtherSearch, match=f"of 5 candidates of reinmax .* got {on} that go on"):
        goals(HALVING, REINMAX, lambda run, epoch: None, ended)


def test_results_of_a_search_with_other_rungs_are_refused():
    """Also where as many go on as should."""
    ended = ends(((0.1, 0.5), BOTH, FIRST), ([2.0], BOTH, SECOND))
    later = dataclasses.replace(HALVING, rungs=(Rung(2), Rung(3)))
    with pytest.raises(
        OtherSearch, match=r"3 of 5 candidates .* after epoch 2 .* got 3 that go on"
    ):
        goals(later, REINMAX, lambda run, epoch: None, ended)


def test_what_was_decided_otherwise_here_is_not_mixed_with_results():
    ended = ends(((0.1, 0.5), BOTH, FIRST), ([2.0], BOTH, SECOND))

    def decided(*here):
        """By what goes on at the first rung here."""
        return goals(
            HALVING, REINMAX, lambda run, x: run.tau not in here if x == 1 else None, ended
        )

    assert decided(1.0, 1.5, 2.0)[REINMAX[-1]] == Goal(0, dropped=True)
    # nobody of these was dropped at the second rung, so that one was not decided for them
    assert {goal for run, goal in decided(0.1, 0.5, 1.0).items() if run.tau <= 1} == {Goal(3)}
    with pytest.raises(OtherSearch, match="2 of 3 candidates of reinmax go on after epoch 3"):
        decided(0.1, 1.0, 2.0)


@pytest.fixture
def old(tmp_path):
    """Makes results of a machine that is gone: of a search that was stopped after an epoch."""

    def make(epoch, recipe=SEARCH):
        store = Store(tmp_path / "gone")
        train(store, recipe, listener=Interrupts(epoch))
        folder = write_report(recipe, store, tmp_path / "results")
        shutil.rmtree(store.root)
        results = read(folder)
        rows = tuple(dataclasses.replace(row, commit="old", source="old") for row in results.rows)
        write(dataclasses.replace(results, rows=rows), folder)
        return {recipe.name: rows}

    return make


def known(folder):
    """What results say of runs, but for times and places."""
    return [
        (row.identity, row.state, row.epoch, row.metrics, row.first, row.reached)
        for row in read(folder).rows
    ]


@pytest.mark.parametrize(
    ("epoch", "dropped", "calls"),
    [
        # where the first rung was just decided, between the rungs, after both
        (1, 8, [(12, 3), (8, None)]),
        (2, 8, [(12, 3), (8, None)]),
        (5, 12, [(8, None)]),
    ],
)
def test_a_new_machine_trains_those_that_went_on(
    epoch, dropped, calls, whole, old, tmp_path, listed
):
    results, store, trained = old(epoch), Store(tmp_path / "new"), []
    assert [row.state for row in results[SEARCH.name]].count(DROPPED) == dropped
    outcome = train(store, calls=trained, results=results)
    assert trained == calls
    assert outcome.complete
    assert (len(outcome.finished), len(outcome.dropped)) == (8, 12)
    begun = [run for run in SEARCH.runs() if store.status(run).epoch]
    assert len(begun) == 20 - dropped
    # each as if all had been trained at once
    same(everything(store, begun), everything(whole, begun))
    # and so is the report, which has the dropped from the old folder
    folder = write_report(SEARCH, store, tmp_path / "results")
    assert check(tmp_path / "results") is None
    assert known(folder) == known(write_report(SEARCH, whole, tmp_path / "whole"))
    before = {row.identity: row for row in results[SEARCH.name]}
    here = {run.identity for run in begun}
    for row in read(folder).rows:
        assert (row.commit == "old") == (row.source == "old") == (row.identity not in here)
        assert row.identity in here or row == before[row.identity]
    # a second start has nothing to do, and neither has one with the new results
    results = {SEARCH.name: read(folder).rows}
    assert next_runs([(SEARCH, SEARCH.runs())], store, results)[:2] == ([], None)


def test_the_report_knows_rungs_of_two_machines(old, tmp_path, listed):
    """The first rung is decided by the old results, the second one by the new store."""
    results, store = old(2), Store(tmp_path / "new")
    outcome = train(store, results=results, listener=Interrupts(5))
    assert (len(outcome.dropped), len(outcome.stopped)) == (12, 8)
    folder = write_report(SEARCH, store, tmp_path / "results")
    rows = read(folder).rows
    assert sorted((row.state, row.epoch, row.commit == "old") for row in rows) == sorted(
        [(DROPPED, 1, True)] * 8 + [(DROPPED, 3, False)] * 4 + [("started", 5, False)] * 8
    )
    assert all(bool(row.reached) == (row.state == DROPPED) for row in rows)
    # a third machine starts from there
    again = []
    assert train(Store(tmp_path / "third"), calls=again, results={SEARCH.name: rows}).complete
    assert again == [(8, None)]


def test_a_rung_that_results_do_not_decide_is_trained_for(whole, tmp_path):
    store = Store(tmp_path / "gone")
    # all of ReinMax came to the first rung, and only some of ST
    execute([*REINMAX, *SEARCH.runs(estimators=["st"])[:3]], store, stacks=StackOptions(until=1))
    results = {SEARCH.name: read(write_report(SEARCH, store, tmp_path)).rows}
    new, calls = Store(tmp_path / "new"), []
    assert train(new, calls=calls, results=results).complete
    assert calls == [(10, 1), (12, 3), (8, None)]
    begun = [run for run in SEARCH.runs() if new.status(run).epoch]
    same(everything(new, begun), everything(whole, begun))


def test_the_store_wins(whole, old, tmp_path):
    results = old(5)
    decided = goals_of(SEARCH, SEARCH.runs(), whole)
    # as it is, and with those dropped who were not
    for rows in (
        results[SEARCH.name],
        [dataclasses.replace(row, state=DROPPED, epoch=1) for row in results[SEARCH.name]],
    ):
        assert goals_of(SEARCH, SEARCH.runs(), whole, rows) == decided
    # a run that was dropped is not gone on with, wherever it is here, and one that is done is done
    dropped = [run for run, goal in decided.items() if goal.dropped]
    on = [run for run, goal in decided.items() if not goal.dropped]
    store = Store(tmp_path / "new")
    execute(dropped[:1], store)
    execute([*dropped[1:2], *on[:3]], store, stacks=StackOptions(until=4))
    execute(on[:1], store)
    calls = []
    outcome = train(store, calls=calls, results=results)
    assert calls == [(7, None)]
    assert set(outcome.already) == {dropped[0], on[0]}
    assert set(outcome.dropped) == set(dropped[1:])
    assert store.status(dropped[1]).epoch == 4
    assert {store.status(run).state for run in on} == {"finished"}


def test_what_a_rung_makes_of_rows(tmp_path):
    """The same decisions follow from a store and from the results that were written from it."""
    store = Store(tmp_path / "runs")
    # an epoch has two steps: what diverges after the rung counts there, what is no number does not
    stored = {0.1: (1.0, None), 0.5: (math.nan, None), 1.0: (2.0, 3), 1.5: (3.0, 2), 2.0: (9.0, 1)}
    for run in REINMAX:
        value, step = stored[run.tau]
        state, count = ("diverged", 6) if run.tau == 1.5 else ("started", 2)
        assert store.claim(run)
        rows = [{"epoch": number, "expected_loss": value} for number in range(1, count + 1)]
        store.save(run, Saved(Status(state, count, 1.0, step), rows, [{}], {}))
        store.release(run)
    # four of five might go on
    rung = dataclasses.replace(SEARCH, halving=Halving("expected_loss", ("tau",), (Rung(1, 0.8),)))
    rows = read(write_report(rung, store, tmp_path / "results")).rows
    assert [row.state for row in rows[:5]] == ["started", DROPPED, "started", "diverged", DROPPED]
    decided, new = goals_of(rung, REINMAX, store), Store(tmp_path / "new")
    assert {run.tau for run in REINMAX if not decided[run].dropped} == {0.1, 1.0}
    expected = {
        run: Goal(0, dropped=True) if goal.dropped else goal for run, goal in decided.items()
    }
    assert goals_of(rung, REINMAX, new, rows) == expected
    # one that went on may have no number at the rung when it is trained again
    save(new, REINMAX[0], [{"expected_loss": math.nan}])
    assert goals_of(rung, REINMAX, new, rows) == expected


def test_the_command_takes_rungs_from_results(old, tmp_path, listed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old(5)
    run = ("run", SEARCH.name, "--device", "cpu", "--results", "results")
    plan = call(*run, "--dry-run")
    assert "8 runs to train in 1 stack, 12 dropped at a rung, 0 done before, 0 damaged." in plan
    assert "the plan goes as far as" not in plan
    # commands that it names are about these results, too
    assert f"`discretegrad run {SEARCH.name} --results results --budget 1m`" in plan
    shown = call(*run)
    assert f"{SEARCH.name}: 8 finished " in shown
    assert ", 12 dropped at a rung, in" in shown
    assert len(list(Path("runs", "polynomial").iterdir())) == 8
    assert f"Next: discretegrad report {SEARCH.name} --results results" in shown
    assert "20 runs: 8 finished, 12 dropped." in call("report", SEARCH.name)
    call("report", "--check")
    assert "12 dropped at a rung, 8 done before" in call(*run)
    # without the option it trains from rung to rung as ever
    plain = call(*run[:-2], "--runs", "other", "--dry-run")
    assert "20 runs to train" in plain
    assert "the plan goes as far as epoch 1," in plain


def test_the_command_says_what_is_wrong_with_results(old, tmp_path, listed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old(5)
    place = Path("results", SEARCH.name)
    run = ("run", SEARCH.name, "--device", "cpu", "--results")

    def refused(*arguments):
        before = tree(tmp_path)
        shown = call(*arguments, code=2)
        assert tree(tmp_path) == before
        return shown

    nothing = f"expected results of {SEARCH.name} in {place / SEARCH.name}, got none; give the dire"
    assert nothing in refused(*run, str(place))
    other = refused(*run, "results", "--seeds", "0-1")
    assert f"in {place}, got 20 runs of other configurations; give the directory" in other
    # one seed more than was trained, or other rungs
    for extra in (["--dry-run"], []):
        shown = refused(*run, "results", "--seeds", "6-8", *extra)
        assert "expected results in which 3 of 5 candidates of reinmax go on after epoch 1" in shown
        assert "or search without them" in shown
    shown = refused("run", "polynomial-headline", "--results", "results")
    assert "expected a search with --results" in shown
    assert "got polynomial-headline, where every run is trained to its end" in shown
    # a report on seeds that the folder does not have keeps what is there
    write_report(dataclasses.replace(SEARCH, seeds=(6, 7, 8)), Store("none"), tmp_path / "results")
    assert [row.state for row in read(place).rows].count(DROPPED) == 12
    damaged = (place / "runs.csv").read_text().replace("dropped", "started", 1)
    (place / "runs.csv").write_text(damaged)
    assert "expected runs.csv and curves.csv in" in refused(*run, "results")
    assert "runs.csv with another checksum than checksums.json" in refused(*run, "results")
    (place / "checksums.json").unlink()
    shown = refused(*run, "results", "--dry-run")
    assert "expected checksums.json in" in shown
    assert "candidates of reinmax go on after epoch" in shown


def test_the_search_at_4x24_goes_on_without_its_runs(tmp_path):
    """Both of its rungs are decided in the stored results."""
    recipe = tasks.recipe("vae-search-4x24")
    results = read(Path(__file__).parents[1] / "results" / recipe.name)
    rows = {row.identity: row for row in results.rows}
    runs, store = recipe.runs(), Store(tmp_path)
    assert len(runs) == 864
    chosen, until, done, dropped = next_runs([(recipe, runs)], store, {recipe.name: results.rows})
    assert (len(chosen), until, done, len(dropped)) == (216, None, (), 648)
    assert all(rows[run.identity].state != DROPPED for run in chosen)
    decided = goals_of(recipe, runs, store, results.rows)
    assert {decided[run] for run in chosen} == {Goal(160)}
    assert {decided[run] for run in runs if run not in set(chosen)} == {Goal(0, dropped=True)}
    # without them all begin anew
    assert next_runs([(recipe, runs)], store) == (runs, 10, (), ())
