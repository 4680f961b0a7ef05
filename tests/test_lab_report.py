"""From stored runs to committed results to reports, with numbers computed in other ways."""

import csv
import dataclasses
import errno
import io
import json
import math
import os
import random
import re
import shutil
import unicodedata
from pathlib import Path

import pytest
import torch
from rich.console import Console
from scipy import stats

import discretegrad_lab
from discretegrad_lab import tasks
from discretegrad_lab.report import document, results, sources
from discretegrad_lab.report.entries import entries, entries_csv
from discretegrad_lab.report.folder import CLAIMS, REPORT, TABLE, check, read_section, write
from discretegrad_lab.report.html import to_html
from discretegrad_lab.report.markdown import to_markdown, verdicts_csv
from discretegrad_lab.report.reading import READING, of_recipe, of_results
from discretegrad_lab.report.section import page, section
from discretegrad_lab.report.terminal import show
from discretegrad_lab.report.verdicts import judge
from discretegrad_lab.runs.files import write_whole
from discretegrad_lab.runs.store import Saved, Status, Store
from discretegrad_lab.tasks import evidence
from discretegrad_lab.tasks.base import Claim, Metric
from discretegrad_lab.tasks.evidence import Judgement, Results, Row, Vote, arrival
from discretegrad_lab.tasks.polynomial.claims import LOSS
from discretegrad_lab.tasks.polynomial.config import best_loss
from discretegrad_lab.tasks.polynomial.recipes import CANDIDATES
from discretegrad_lab.tasks.statistics import Comparison, Summary, compare, student, summarise
from discretegrad_lab.tasks.vae import published
from discretegrad_lab.tasks.vae.recipes import PAPER
from lab_cases import recipes_with_runs

VAE, CURVES = tasks.recipe("vae-10x30"), tasks.recipe("polynomial-curves")
SETTINGS, SEARCH = tasks.recipe("polynomial-settings"), tasks.recipe("polynomial-temperatures")
ENVIRONMENT = {
    "commit": "0123456789abcdef0123",
    "changed_since_commit": False,
    "source": "fedcba9876543210",
    "device": "a processor",
    "torch": "2.11.0",
}


def row(run, metrics, **changes):
    config = {name: value for name, value in run.document().items() if name != "version"}
    provenance = {"commit": "0a1b2c", "source": "fedc", "device": "a GPU", "torch": "2.11.0"}
    made = Row(run.identity, config, "finished", run.epochs, metrics, None, 60.0, **provenance)
    return dataclasses.replace(made, **changes)


def lost(one, state="diverged"):
    return dataclasses.replace(one, state=state, metrics={})


def changed(found, change, **where):
    """The results with some rows changed."""
    wanted = {id(one) for one in found.where(**where)}
    rows = tuple(change(one) if id(one) in wanted else one for one in found.rows)
    return dataclasses.replace(found, rows=rows)


def vae(shifts=None, seeds=None):
    """The published column, each run off by a normal number, and a shift."""
    noise = random.Random(3)
    rows, curves = [], {}
    for run in VAE.runs(seeds=seeds, estimators=PAPER):
        metrics = {}
        for metric, table in (("train", 2), ("test", 9)):
            cell = published.cells()[table, run.estimator, "10x30"]
            shift = (shifts or {}).get((metric, run.estimator), 0.0)
            metrics[metric] = cell.value + shift + noise.gauss(0, 0.3)
            curves[run.identity, metric] = {10: metrics[metric] + 5, 160: metrics[metric]}
        rows.append(row(run, metrics))
    return Results(VAE.name, tuple(rows), curves)


OWN = dataclasses.replace(
    CURVES, name="mine", title="Mine", reproduces="", claims=(), seeds=(0, 1), note="A note."
)
RATES = {"reinmax": 0.5, "stgs": 0.4, "gr-mck": 0.4, "gst-p": 0.3, "exact": 0.6}
RATES |= {"reinforce": 0.45, "rodeo": 0.45}


def polynomial(recipe, rates=None, seeds=None, **config):
    """Expected losses that fall towards the optimum at a rate of each estimator."""
    noise = random.Random(5)
    rows, curves = [], {}
    for run in recipe.runs(seeds=seeds):
        if any(getattr(run, name) != value for name, value in config.items()):
            continue
        rate = (rates or {}).get(run.estimator, RATES.get(run.estimator, 0.001))
        rate = rate(run) if callable(rate) else rate
        best = best_loss(run.document())
        start = 0.15 * noise.uniform(0.95, 1.05)
        curve = {epoch: best * (1 + start * math.exp(-rate * epoch)) for epoch in range(1, 41)}
        rows.append(row(run, {"loss": curve[40], "expected_loss": curve[40]}))
        curves[run.identity, "expected_loss"] = curve
    return Results(recipe.name, tuple(rows), curves)


def reading(found):
    return of_results(found, Path("nowhere"))


def report(found):
    return section(reading(found), found)


def evaluate(name, found):
    return judge(tasks.recipe(found.recipe).task.claims[name], found)


# statistics


def test_intervals_are_those_of_scipy():
    for freedom in (1, 1.7, 2, 4, 9, 13.4, 200):
        assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-6)
    for count in (2, 5, 10):
        noise = random.Random(count)
        values = [noise.gauss(100, 2) for _ in range(count)]
        found = summarise(values)
        interval = stats.t.interval(0.95, count - 1, found.mean, stats.sem(values))
        assert (found.mean - found.half, found.mean + found.half) == pytest.approx(interval)


def test_comparisons_are_those_of_scipy():
    one, other = Summary(10, 98.37, 0.44), Summary(4, 98.9, 0.2)
    found = compare(one, other)
    expected = stats.ttest_ind_from_stats(98.37, 0.44, 10, 98.9, 0.2, 4, equal_var=False)
    freedom = (0.44**2 / 10 + 0.2**2 / 4) ** 2
    freedom /= (0.44**2 / 10) ** 2 / 9 + (0.2**2 / 4) ** 2 / 3
    half = stats.t.ppf(0.975, freedom) * math.sqrt(0.44**2 / 10 + 0.2**2 / 4)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-8)
    assert found.half == pytest.approx(half, abs=1e-6)
    assert found.difference == pytest.approx(-0.53)
    assert (found.sign, compare(other, one).sign) == (-1, 1)
    # between one and two degrees of freedom the density has an infinite slope at its end
    for scale in (1.0, 0.3, 0.01):
        one, other = [0.0, 1.0], [1e4, 1e4 + scale]
        expected = stats.ttest_ind(one, other, equal_var=False).pvalue
        found = compare(summarise(one), summarise(other)).p
        assert found == pytest.approx(expected, rel=0.01, abs=1e-8)


def test_few_and_equal_runs():
    assert math.isnan(summarise([3.0]).half)
    assert summarise([]).count == 0
    # then the number decides
    assert compare(summarise([3.0]), summarise([2.0, 2.1])).sign == 1
    assert compare(summarise([]), summarise([2.0, 2.1])).sign == 0
    # equal numbers have no spread, though fmean of ten of these is not that number
    x = 0.495435
    assert summarise([x] * 10) == Summary(10, x, 0.0)
    assert compare(summarise([x] * 10), summarise([x] * 2)) == Comparison(0.0, 0.0, 1.0)


# stored runs to files


def save(store, run, metrics, state="finished", diverged_step=None, **environment):
    assert store.claim(run)
    starts = [{**ENVIRONMENT, "device": "an older one"}, {**ENVIRONMENT, **environment}]
    if state != "started":
        # the first epoch, as often as it takes
        metrics = [metrics[0]] * (run.epochs - len(metrics)) + metrics
    rows = [{"epoch": n, **values} for n, values in enumerate(metrics, 1)]
    status = Status(state, len(metrics), 12.346, diverged_step)
    store.save(run, Saved(status, rows, starts, {"x": torch.zeros(3)}))
    store.release(run)


@pytest.fixture
def stored(tmp_path):
    """A store with a run in each state, and the results of that recipe."""
    store = Store(tmp_path / "store")
    runs = [dataclasses.replace(run, epochs=2) for run in VAE.runs(estimators=["st"])[:5]]
    nan = math.nan
    whole = [{"train": 120.1234567, "test": nan}, {"train": 1e-7 / 3, "test": 114.0}]
    save(store, runs[0], whole)
    lost = [{"train": 130.0, "test": nan}, {"train": nan, "test": nan}]
    save(store, runs[1], lost, "diverged", 700, changed_since_commit=True)
    save(store, runs[2], [{"train": 125.0, "test": nan}], "started", commit=None)
    save(store, runs[3], whole)
    (checkpoint,) = store.directory(runs[3]).glob("checkpoint-*")
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(content)
    return runs, results.collect(VAE.name, runs, store, VAE.metrics, [])


def test_every_run_has_a_row_whatever_became_of_it(stored):
    runs, found = stored
    assert [one.identity for one in found.rows] == [run.identity for run in runs]
    states = ["finished", "diverged", "started", "damaged", "missing"]
    assert [one.state for one in found.rows] == states
    assert found.counts() == dict.fromkeys(states, 1)
    finished, diverged, started, damaged, missing = found.rows
    assert finished.metrics == {"train": 1e-7 / 3, "test": 114.0}
    assert (finished.epoch, finished.seconds) == (2, 12.346)
    assert (finished.commit, finished.source) == ("0123456789ab", "fedcba9876543210")
    assert (finished.device, finished.torch) == ("a processor", "2.11.0")
    assert (diverged.diverged_step, diverged.commit) == (700, "0123456789ab and changes")
    assert (started.epoch, started.commit) == (1, "unknown")
    # only finished runs have a number
    assert [one.metrics for one in (diverged, started, damaged, missing)] == [{}] * 4
    assert finished.config == {
        name: value for name, value in runs[0].document().items() if name != "version"
    }


def test_files_say_what_was_collected(stored, tmp_path):
    _, found = stored
    folder = tmp_path / VAE.name
    results.write(found, folder)
    again = results.read(folder)
    assert again.recipe == VAE.name
    assert len(again.rows) == 5
    for old, new in zip(found.rows, again.rows, strict=True):
        metrics, first = (
            {name: float(f"{value:.6g}") for name, value in values.items()}
            for values in (old.metrics, old.first)
        )
        seconds = float(f"{old.seconds:.4g}")
        assert new == dataclasses.replace(old, metrics=metrics, first=first, seconds=seconds)
        assert list(map(type, new.config.values())) == list(map(type, old.config.values()))
    first, second = (again.curves[one.identity, "train"] for one in again.rows[:2])
    assert first == {1: 120.123, 2: 3.33333e-8}
    # what is not a number is not there
    assert second == {1: 130.0}
    assert again.curves[again.rows[0].identity, "test"] == {2: 114.0}
    results.write(again, tmp_path / "again")
    for name in (results.RUNS, results.CURVES):
        assert (tmp_path / "again" / name).read_text() == (folder / name).read_text()
    assert sorted(os.listdir(folder)) == [sources.CHECKSUMS, results.CURVES, results.RUNS]


TEXTS = ("10_30", "10", "1e3", "inf", "nan", "true", "", " 7", '"', "a,b\nc", "[1]")


def test_texts_of_users_stay_texts(tmp_path):
    fields = [{"estimator": key, "size": x} for key in ("10", "inf", "true") for x in TEXTS]
    fields += [{"estimator": "st", "size": x} for x in (10, 1030, 1e3, 1e-5, True, False, None)]
    rows = [Row(f"{n:016x}", {"task": "7", **own}, "missing") for n, own in enumerate(fields)]
    results.write(Results("own", tuple(rows)), tmp_path / "own")
    read = [dict(row.config) for row in results.read(tmp_path / "own").rows]
    assert list(map(repr, read)) == [repr({"task": "7", **own}) for own in fields]
    # as an older version wrote them
    (tmp_path / "own" / sources.CHECKSUMS).unlink()
    path = tmp_path / "own" / results.RUNS
    path.write_text(re.sub(r'"""(7|10|inf|true)"""', r"\1", path.read_text()))
    assert results.read(tmp_path / "own").estimators() == ["10", "inf", "true", "st"]


def test_files_that_were_not_written_so_are_refused(tmp_path):
    folder = tmp_path / VAE.name
    results.write(vae(), folder)
    # as an older version left it
    (folder / sources.CHECKSUMS).unlink()
    good = (folder / results.RUNS).read_text()
    for text, message in (
        (good.replace("diverged_step", "step", 1), "got: no columns diverged_step in runs"),
        (good.replace(",finished,", ",done,", 1), "got: the state 'done' in runs.csv, which"),
        (good.rpartition(",")[0] + "\n", "got: lines of different lengths in runs.csv"),
        (good.replace(",task,", ",tusk,", 1), "got: a run without task in runs.csv"),
        (good.replace(",finished,160,", ",finished,16o,", 1), "got: invalid literal"),
        (good + '"', "got: unexpected end of data"),
    ):
        (folder / results.RUNS).write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            results.read(folder)
        assert str(folder) in str(error.value)
        assert "move all three away" in str(error.value)
    (folder / results.RUNS).write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="decode"):
        results.read(folder)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_curves_of_many_runs_are_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_CURVE_NUMBERS", 1000)
    found = polynomial(CURVES)
    results.write(found, tmp_path)
    again = results.read(tmp_path)
    thinned = (1, 8, 16, 24, 32, 40)  # of 40 epochs of 105 runs; every fourth would be 1050 numbers
    assert {tuple(curve) for curve in again.curves.values()} == {thinned}
    assert len(again.curves) == 105
    # a later report, with some whole curves beside those that were thinned: these lose nothing
    whole = dict(list(found.curves.items())[:30])
    results.write(dataclasses.replace(again, curves=again.curves | whole), tmp_path)
    for key, curve in results.read(tmp_path).curves.items():
        assert tuple(curve) == ((1, *range(2, 41, 2)) if key in whole else thinned)


# tables


def entry(found, metric, estimator):
    (cell,) = (
        cell
        for cell in entries(reading(found), found)
        if (cell.metric.name, cell.estimator) == (metric, estimator)
    )
    return cell


def table_csv(found):
    return list(csv.DictReader(io.StringIO(entries_csv(entries(reading(found), found)))))


def csv_line(found, metric, estimator):
    wanted = (metric, estimator)
    return next(x for x in table_csv(found) if (x["metric"], x["estimator"]) == wanted)


def test_a_cell_has_the_interval_and_the_verdict_of_scipy():
    found = vae()
    values = [run.metrics["train"] for run in found.where(estimator="reinmax")]
    cell, mean = entry(found, "train", "reinmax"), sum(values) / 10
    low, high = stats.t.interval(0.95, 9, mean, stats.sem(values))
    half = (high - low) / 2
    assert cell.ours.half == pytest.approx(half)
    published_numbers = (98.37, 0.44, 10)
    p = stats.ttest_ind_from_stats(
        mean, stats.tstd(values), 10, *published_numbers, equal_var=False
    ).pvalue
    assert cell.comparison.p == pytest.approx(p, abs=1e-8)
    assert (cell.verdict == "within") == (p > 0.05)
    text = to_markdown(report(found))
    assert f"| ReinMax | 98.37 ± 0.44 | {mean:.2f} ± {half:.2f} |" in text
    assert "Table 2 (Section 6.3), column 10x30" in text
    line = csv_line(found, "train", "reinmax")
    assert float(line["ours"]) == pytest.approx(mean, rel=1e-5)
    assert float(line["half_interval"]) == pytest.approx(half, rel=0.01)
    assert (line["published"], line["published_deviation"]) == ("98.37", "0.44")
    # a number that is in doubt is so below its table
    train, test = report(found).tables
    assert not any("in doubt" in note for note in train.notes)
    (doubt,) = (note for note in test.notes if "in doubt" in note)
    assert "ST is in doubt: 118.46" in doubt


def test_the_edge_of_the_joint_interval_decides():
    cell = published.cells()[2, "st", "10x30"]
    half = compare(Summary(10, 0.0, 0.3), cell.summary).half
    made = entry(vae(), "train", "st")
    shares = {0.999: "within", 1.001: "above", -0.999: "within", -1.001: "below"}
    for share, verdict in shares.items():
        ours = Summary(10, cell.value + share * half, 0.3)
        assert dataclasses.replace(made, ours=ours).verdict == verdict
    assert entry(vae(seeds=[0]), "train", "st").verdict == "too few runs"
    assert entry(changed(vae(), lost, estimator="st"), "train", "st").verdict == "no runs"


def test_lost_runs_are_counted():
    found = changed(vae(), lost, estimator="st", seed=4)
    found = changed(found, lambda one: lost(one, "missing"), estimator="stgs", seed=1)
    found = changed(found, lambda one: lost(one, "damaged"), estimator="stgs", seed=2)
    cell = entry(found, "train", "st")
    values = [r.metrics["train"] for r in found.where(estimator="st") if r.metrics]
    assert (cell.ours.count, cell.planned, cell.states["diverged"]) == (9, 10, 1)
    assert cell.ours.mean == pytest.approx(sum(values) / 9)
    whole = report(found)
    assert whole.text.startswith("50 runs: 47 finished, 1 diverged, 1 damaged, 1 missing.")
    assert "Diverged: ST 1." in whole.text
    table = whole.tables[0]
    assert "STGS: 8 finished, 1 damaged, 1 missing." in table.notes
    assert next(line for line in table.rows if line[0] == "ST")[4] == "9 of 10"
    line = csv_line(found, "test", "st")
    assert (line["finished"], line["diverged"], line["runs"]) == ("9", "1", "9")


def test_a_run_that_is_not_finished_never_counts():
    found = changed(vae(), lambda one: lost(one, "started"), estimator="st", seed=4)
    assert entry(found, "train", "st").ours.count == 9
    for name, recipe in recipes_with_runs().items():
        nothing = Results(name, tuple(lost(row(run, {}), "missing") for run in recipe.runs()))
        whole = report(nothing)
        texts = to_markdown(whole), entries_csv(entries(reading(nothing), nothing))
        assert not any("nan" in text.lower() for text in texts)
        assert f"{len(nothing.rows)} missing." in whole.text
        assert all(verdict.holds is None for verdict in whole.verdicts)


def test_a_run_that_is_as_good_as_a_useless_model_failed():
    """Also if it began worse; a metric whose useless level is not known cannot tell."""
    loss = Metric("loss", "loss", 2, useless=206.0)
    assert loss.failed(224.0, 214.0, {})
    assert loss.failed(224.0, 206.0, {})
    assert not loss.failed(224.0, 205.9, {})
    assert not Metric("loss", "loss", 2).failed(224.0, 214.0, {})
    accuracy = Metric("accuracy", "accuracy", 2, "up", useless=0.1)
    assert accuracy.failed(0.05, 0.1, {})
    assert not accuracy.failed(0.05, 0.2, {})


def test_polynomial_tables_have_the_distance_to_the_optimum():
    found = polynomial(CURVES)
    tables = report(found).tables
    assert [table.title for table in tables] == ["p = 1.5", "p = 2", "p = 3"]
    rows = found.where(estimator="st", power=2.0)
    values = [one.metrics["expected_loss"] for one in rows]
    line = next(line for line in tables[1].rows if line[0] == "ST")
    share = 100 * (sum(values) / 5 / 0.45**2 - 1)
    half = 100 * stats.t.ppf(0.975, 4) * stats.sem(values) / 0.45**2
    assert line[2] == f"{sorted(values)[2]:.5f}"
    assert line[3] == f"{share:.2f} ± {half:.2f}"
    assert line[4] == "\N{EN DASH}"
    assert f"the optimum is {0.45**2:.5f}" in tables[1].caption
    assert tables[1].rows[0][3] == "0.00 ± 0.00"
    # what the runs were trained with
    assert tables[1].rows[-1][-3:] == ("\N{EN DASH}", "adam", "0.001")
    first = table_csv(found)[0]
    assert (first["tau"], first["optimiser"], first["learning_rate"]) == ("0.7", "adam", "0.001")


def test_wide_tables_have_a_column_for_each_estimator():
    found = polynomial(SETTINGS, seeds=[0, 1], power=2.0)
    tables = report(found).tables
    assert [table.title for table in tables] == ["p = 2, setting A", "p = 2, setting B"]
    assert tables[0].headings[1:4] == ("ReinMax", "ST", "STGS")
    assert len(tables[0].headings) == 10
    # nine settings, and the temperatures; what is the same for all stands in the caption
    names = [line[0] for line in tables[0].rows]
    assert names[:2] == ["8 latents, batch 16", "8 latents, batch 64"]
    assert (names[9:], tables[0].rows[9][1]) == (["τ"], "0.7")
    assert "All with optimiser adam, learning rate 0.001. The paper" in tables[0].caption
    where = {"target": "spread", "latents": 32}
    values = [
        run.metrics["expected_loss"] for run in found.where(estimator="st", batch=256, **where)
    ]
    share = 100 * (sum(values) / 2 / best_loss({**where, "power": 2.0}) - 1)
    (line,) = (line for line in tables[1].rows if line[0] == "32 latents, batch 256")
    assert line[2].startswith(f"{share:.2f} ± ")


def test_an_optimum_of_0_has_no_percentages():
    """As of a bound on what cannot be negative."""
    zero = dataclasses.replace(LOSS, optimum=lambda config: 0.0)
    found = polynomial(CURVES, seeds=[0, 1])
    (line, *_) = section(dataclasses.replace(reading(found), metrics=(zero,)), found).tables[0].rows
    values = [x.metrics["expected_loss"] for x in found.where(estimator="exact", power=1.5)]
    mean = sum(values) / 2
    assert (line[1][:7], line[3]) == (f"{mean:.5f}", "\N{EN DASH}")
    # cells that are nothing but the distance have the number itself
    found = polynomial(SETTINGS, seeds=[0, 1], power=2.0)
    some = dataclasses.replace(LOSS, optimum=lambda config: 0.25 * (config["batch"] > 16))
    table = section(dataclasses.replace(reading(found), metrics=(some,)), found).tables[0]
    first = {name: found.rows[0].config[name] for name in ("estimator", "target", "latents")}
    means = [
        sum(x.metrics["expected_loss"] for x in found.where(batch=batch, **first)) / 2
        for batch in (16, 64)
    ]
    assert table.rows[0][1].startswith(f"{means[0]:.5f} ± ")
    assert table.rows[1][1].startswith(f"{400 * means[1] - 100:.2f} ± ")
    assert "in percent of the optimum, or where it ends if the optimum is 0: mean" in table.caption


# how near, how soon


def test_steps_until_a_run_stays_near_the_optimum():
    run = CURVES.runs(seeds=[0], estimators=["st"])[1]
    one = row(run, {"expected_loss": 0.2})
    best = best_loss(run.document())

    def steps(*shares):
        curve = {n: best * (1 + share) for n, share in enumerate(shares, 1)}
        found = Results("", (one,), {(one.identity, "expected_loss"): curve})
        epochs = arrival(found, one, LOSS)
        return None if epochs is None else 200 * epochs

    assert steps(0.05, 0.02, 0.0, 0.0) == pytest.approx(200 * 2.5)
    # it must stay there
    assert steps(0.0, 0.03, 0.02, 0.005) == pytest.approx(200 * (3 + 2 / 3))
    assert steps(0.005, 0.0) == 200
    assert steps(0.05, 0.02) is None
    assert steps() is None
    # of a metric whose better values are the larger ones
    share = Metric("expected_loss", "share", direction="up", optimum=lambda config: 0.5)
    rising = {(one.identity, "expected_loss"): {1: 0.2, 2: 0.48, 3: 0.51, 4: 0.5}}
    assert arrival(Results("", (one,), rising), one, share) == pytest.approx(2.5)


def test_no_zero_is_negative():
    texts = {-0.004: "0.00", -0.006: "-0.01", 0.0: "0.00", 12.345678: "12.35"}
    assert {value: evidence.decimal(value, 2) for value in texts} == texts
    assert evidence.percent(-0.00004) == "0.00 %"


# claims


FIGURE_1 = ("near-optimal", "fastest", "st-and-gst-fail", "close-but-slower", "gst-p-better")


@pytest.mark.parametrize(
    ("rates", "holds", "names"),
    [
        ({}, True, set(FIGURE_1)),
        ({"reinmax": 0.001}, False, {"near-optimal", "fastest", "close-but-slower"}),
        ({"stgs": 0.55}, False, {"fastest", "close-but-slower"}),
        ({"stgs": 0.06}, False, {"close-but-slower"}),
        ({"st": 0.2}, False, {"st-and-gst-fail"}),
        ({"gst-1.0": 0.2}, False, {"st-and-gst-fail"}),
        ({"gst-p": 0.0}, False, {"gst-p-better"}),
        ({"st": lambda run: 0.2 if run.power == 3 else 0.001}, False, {"st-and-gst-fail"}),
        # what chance can explain
        ({"stgs": RATES["reinmax"]}, None, {"fastest", "close-but-slower"}),
        ({"gst-p": 0.001}, None, {"gst-p-better"}),
    ],
)
def test_claims_hold_where_the_numbers_say_so(rates, holds, names):
    found = polynomial(CURVES, rates)
    assert {name for name in FIGURE_1 if evaluate(name, found).holds is holds} == names


@pytest.mark.parametrize(
    ("votes", "holds"),
    [
        ([(1, 0.01)] * 4, True),
        ([(1, 0.01)] * 3 + [(1, 0.06)], None),
        ([(1, 0.01)] * 3 + [(0, 0.0)], None),
        ([(1, 0.01)] * 3 + [(-1, 0.02)], None),
        ([(1, 0.01)] * 3 + [(-1, 0.012)], False),
        ([(0, 0.0)] * 3 + [(-1, 0.0)], False),
        ([], None),
    ],
)
def test_one_of_many_comparisons_refutes_beyond_the_chance_of_all(votes, holds):
    judgement = Judgement([Vote(*vote) for vote in votes], "so")
    claim = Claim("a", "1", "Figure 1", "It is so.", lambda _: judgement)
    assert judge(claim, polynomial(CURVES, seeds=[0])).holds is holds


def test_claims_without_runs_are_undecided_and_say_which():
    found = changed(polynomial(CURVES), lost, estimator="gr-mck", power=2.0)
    claim = evaluate("fastest", found)
    assert claim.holds is None
    assert "p = 2: no finished runs of GR-MCK" in claim.evidence
    assert "p = 3: steps to 1 % of the optimum: ReinMax" in claim.evidence
    assert evaluate("near-optimal", found).holds is True
    empty = evaluate("fastest", Results(CURVES.name))
    assert (empty.holds, empty.evidence) == (None, "No results.")


def test_evidence_has_the_numbers():
    found = polynomial(CURVES)
    claim = evaluate("st-and-gst-fail", found)
    values = [one.metrics["expected_loss"] for one in found.where(estimator="gst-1.0", power=1.5)]
    share = 100 * (sum(values) / 5 / 0.45**1.5 - 1)
    assert f"GST-1.0 ends {share:.2f} % above the optimum; p = 2:" in claim.evidence
    assert claim.place == "Section 6.1, Figure 1"
    assert claim.text == "ST and GST-1.0 do not perform well in all three cases"


def rivals(simple, hard):
    """Rates of ReinMax's rivals; ReinMax has 0.5."""

    def rate(run):
        ease = (run.target == "constant") + (run.batch > 16) + (run.latents < 128)
        return hard if ease == 0 else simple

    return {"reinforce": rate, "rodeo": rate}


@pytest.mark.parametrize(
    ("simple", "hard", "expected"),
    [
        (0.6, 0.3, (True, True, True)),
        (0.3, 0.6, (False, False, False)),
        (0.5, 0.5, (None, None, None)),
        (0.6, 0.6, (False, True, True)),
    ],
)
def test_claims_about_simple_and_hard_settings(simple, hard, expected):
    # one p is enough, and all of them are slow
    found = polynomial(SETTINGS, rivals(simple, hard), seeds=range(4), power=2.0)
    names = ("reinmax-on-hard", "reinforce-on-simple", "slower-on-simple")
    assert tuple(evaluate(name, found).holds for name in names) == expected


def test_slower_somewhere_by_one_measure_is_slower():
    """As early as the others in the end, yet behind on the way there, in a single setting."""
    found = polynomial(SETTINGS, rivals(0.3, 0.3), seeds=range(4), power=2.0)
    assert evaluate("slower-on-simple", found).holds is False
    curves = dict(found.curves)
    where = {"target": "constant", "latents": 8, "batch": 64}
    for one in found.where(estimator="reinmax", **where):
        key = (one.identity, "expected_loss")
        # far above the optimum until it comes near
        near = 1.01 * best_loss(one.config)
        curves[key] = {n: x + 1 if x > near else x for n, x in curves[key].items()}
    claim = evaluate("slower-on-simple", Results(found.recipe, found.rows, curves))
    assert claim.holds is True
    assert "REINFORCE or RODEO is ahead of ReinMax in 2 of 18" in claim.evidence
    assert "at p = 2, 8 latents, batch 64, setting A, p " in claim.evidence


def test_averages_do_not_depend_on_which_epochs_are_kept():
    line = [(n, 10.0 - 2 * n) for n in range(1, 11)]
    assert evidence.every_epoch(line) == [loss for _, loss in line]
    kept = [line[0], *line[1::2]]
    assert evidence.every_epoch(kept) == pytest.approx([loss for _, loss in line])
    assert evidence.every_epoch(line[:1]) == [8.0]


def test_the_claim_about_temperatures():
    def results_of(best):
        rows = []
        for run in SEARCH.runs():
            distance = abs(run.tau - best[run.estimator])
            rows.append(row(run, {"expected_loss": 0.2 + distance}))
        return Results(SEARCH.name, tuple(rows))

    # the claim is about STGS and ST alone
    best = {"stgs": 0.5, "gst-1.0": 1.3, "gr-mck": 1.5, "st": 1.0, "reinmax": 0.7, "gst-p": 1.5}
    claim = evaluate("temperatures", results_of(best))
    assert claim.holds is True
    assert "STGS 0.5, 0.5, 0.5, 0.5, 0.5, 0.5" in claim.evidence
    assert evaluate("temperatures", results_of({**best, "st": 0.7})).holds is False
    assert evaluate("temperatures", results_of({**best, "stgs": 1.1})).holds is False
    # one that always ends the same prefers nothing
    same = changed(
        results_of({**best, "st": 0.7}),
        lambda one: dataclasses.replace(one, metrics={"expected_loss": 0.2}),
        estimator="st",
    )
    claim = evaluate("temperatures", same)
    assert claim.holds is None
    assert "ST any, any, any, any, any, any" in claim.evidence


def test_the_claims_about_the_vae():
    assert evaluate("best-train", vae({("train", "reinmax"): -2.0})).holds is True
    assert evaluate("best-test", vae({("train", "reinmax"): -2.0})).holds is None
    assert evaluate("best-train", vae({("train", "gst-1.0"): -2.0})).holds is False
    # GST-1.0 and ReinMax are not far enough apart in the paper either
    claim = evaluate("best-train", vae())
    p = stats.ttest_ind_from_stats(98.37, 0.44, 10, 98.64, 0.33, 10, equal_var=False).pvalue
    assert p > 0.05
    assert f"in the paper {p:.2g})" in claim.evidence


def test_thinned_curves_keep_what_is_measured_now_and_then(tmp_path, monkeypatch):
    """After every tenth epoch and the last, of 1,667 of them."""
    found = vae(seeds=range(1))
    tests = [*range(10, 1667, 10), 1667]
    curves = {}
    for one in found.rows:
        curves[one.identity, "train"] = dict.fromkeys(range(1, 1668), 100.0)
        curves[one.identity, "test"] = dict.fromkeys(tests, 101.0)
    monkeypatch.setattr(results, "_CURVE_NUMBERS", 6_000)
    results.write(dataclasses.replace(found, curves=curves), tmp_path)
    again = results.read(tmp_path).curves
    for one in found.rows:
        assert list(again[one.identity, "train"]) == [1, *range(2, 1667, 2), 1667]
        assert list(again[one.identity, "test"]) == tests


def test_the_claim_about_gst_p():
    assert evaluate("gst-p", vae()).holds is None
    assert "GST-p without a run" in evaluate("gst-p", vae()).evidence
    worse = vae()
    for one in VAE.runs(estimators=("gst-p",)):
        worse = dataclasses.replace(
            worse, rows=(*worse.rows, row(one, {"train": 100.0 + 0.1 * one.seed}))
        )
    claim = evaluate("gst-p", worse)
    assert claim.holds is True
    assert "against GST-p 100.45 (p < 0.0001)" in claim.evidence


def test_the_claims_about_temperatures_of_the_vae():
    recipe = tasks.recipe("vae-temperatures")

    def found(best):
        noise = random.Random(1)
        rows = []
        for run in recipe.runs():
            loss = 100 + abs(math.log(run.tau / best[run.estimator])) + noise.gauss(0, 0.01)
            rows.append(row(run, {"train": loss, "test": loss}))
        return Results(recipe.name, tuple(rows))

    best = {"stgs": 0.5, "gst-1.0": 0.7, "gr-mck": 1.0, "st": 2.0, "reinmax": 1.0}
    claim = evaluate("small-tau", found(best))
    assert claim.holds is True
    assert "4x24: best STGS at 0.5, GST-1.0 at 0.7, GR-MCK at 1;" in claim.evidence
    assert evaluate("large-tau", found(best)).holds is True
    assert evaluate("small-tau", found(best | {"gr-mck": 3.0})).holds is False
    assert evaluate("large-tau", found(best | {"st": 0.3})).holds is False


# the files of a report


@pytest.fixture
def committed(tmp_path):
    for found in (vae(), polynomial(CURVES)):
        results.write(found, tmp_path / found.recipe)
        write(tmp_path / found.recipe)
    return tmp_path


def test_what_is_changed_missing_or_too_much_in_a_report_is_found(committed):
    # folders of something else do not matter
    (committed / "other").mkdir()
    (committed / "other" / "a.csv").write_text("1\n")
    assert check(committed) is None
    for name in (REPORT, TABLE, CLAIMS):
        path = committed / VAE.name / name
        text = path.read_text(encoding="utf-8")
        number, line = next((n, x) for n, x in enumerate(text.splitlines(), 1) if "98." in x)
        path.write_text(text.replace("98.", "97.", 1), encoding="utf-8")
        found = check(committed)
        assert f"expected {line!r} in line {number} of vae-10x30/{name}, got " in found
        assert "write it again with `discretegrad report vae-10x30`" in found
        path.write_text(text + "one more\n", encoding="utf-8")
        assert "got 'one more'" in check(committed)
        path.write_text(text.rpartition("\n")[0].rpartition("\n")[0], encoding="utf-8")
        assert "got 'end of file'" in check(committed)
        path.unlink()
        assert f"expected vae-10x30/{name}, got no such file" in check(committed)
        path.write_text(text, encoding="utf-8")
    # a digit of the results, which the checksums would not let pass
    (committed / VAE.name / sources.CHECKSUMS).unlink()
    assert "expected checksums.json" in check(committed)
    results.write(results.read(committed / VAE.name), committed / VAE.name)
    path = committed / VAE.name / results.RUNS
    text = path.read_text()
    line = next(line for line in text.splitlines() if ",reinmax," in line)
    path.write_text(text.replace(line, line.replace(",98.", ",99.", 1)))
    assert path.read_text() != text
    assert "got: runs.csv with another checksum than checksums.json says" in check(committed)
    # as if it had been measured so
    (committed / VAE.name / sources.CHECKSUMS).unlink()
    results.write(results.read(committed / VAE.name), committed / VAE.name)
    assert "of vae-10x30/report.md" in check(committed)


def test_a_report_on_nothing_names_what_is_missing(tmp_path):
    for name, recipe in recipes_with_runs().items():
        whole = report(Results(name))
        assert f"none of the {len(recipe.runs())} runs of {name} is here" in whole.text
        assert not whole.tables
    assert results.read(tmp_path / VAE.name) == Results(VAE.name)
    results.write(Results(VAE.name), tmp_path / VAE.name)
    assert results.read(tmp_path / VAE.name).rows == ()
    write(tmp_path / VAE.name)
    assert check(tmp_path) is None
    assert check(tmp_path / "nowhere") is None
    assert (tmp_path / VAE.name / TABLE).read_text() == "metric,estimator\n"


def test_the_terminal_shows_tables_and_verdicts_whose_texts_are_no_markup():
    verdict = document.Verdict("a [red] claim", "here", None, "[bold] or | not")
    table = document.TextTable("a", "b", ("", "x|y"), (("c", "1|2"),))
    whole = document.Section("a [red] heading", "a text", (table, verdict))
    stream = io.StringIO()
    for part in (whole, report(vae({("train", "gst-1.0"): -2.0}))):
        show(part, Console(file=stream, width=110))
    for text in (
        "a [red] claim (here)",
        "[bold] or | not",
        "a [red] heading",
        "98.37 ± 0.44",
        "does not hold: ReinMax achieves the best performance",
    ):
        assert text in stream.getvalue()
    text = to_markdown(whole)
    assert r"| c | 1\|2 |" in text
    assert r"[bold] or \| not |" in text


HOSTILE = "\x1b]0;x\x07<script>alert(1)</script>\r\n\n# big [a](http://b) [red]\u202e \x9b31m <!--"


def test_texts_of_stored_runs_are_shown_and_do_nothing():
    """Whatever an environment, or a title from elsewhere, says to a terminal or a browser."""
    verdict = document.Verdict(HOSTILE, HOSTILE, True, HOSTILE)
    table = document.TextTable(
        HOSTILE, HOSTILE, ("", HOSTILE), ((HOSTILE, HOSTILE),), notes=(HOSTILE,)
    )
    changes = dict.fromkeys(("device", "torch", "source", "commit"), HOSTILE)
    state = report(changed(vae(), lambda one: dataclasses.replace(one, **changes), seed=0)).text
    whole = document.Section(HOSTILE, state, (table, verdict))
    stream = io.StringIO()
    show(whole, Console(file=stream, width=400))
    markdown, page_text = to_markdown(whole), to_html(page(whole))
    for text in (stream.getvalue(), markdown, verdicts_csv(whole), page_text):
        acting = {x for x in text if unicodedata.category(x) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert acting <= {"\n"}
        assert r"\x1b]0;x\x07" in text
        assert r"\u202e \x9b31m" in text
    assert "<script>alert(1)</script>" in stream.getvalue()
    assert "[red]" in stream.getvalue()
    assert r"\<script>alert(1)\</script>" in markdown
    assert not re.search(r"(?<!\\)<[a-z/!?]|\]\(|^# big", markdown, re.MULTILINE)
    assert "<script>alert" not in page_text


# figures


def test_curves_have_the_interval_over_runs():
    found = polynomial(CURVES)
    drawn = report(found).figures
    assert [one.title for one in drawn] == ["p = 1.5", "p = 2", "p = 3"]
    curve = next(one for one in drawn[1].curves if one.name == "STGS")
    values = [
        found.curves[one.identity, "expected_loss"][3]
        for one in found.where(estimator="stgs", power=2.0)
    ]
    low, high = stats.t.interval(0.95, 4, sum(values) / 5, stats.sem(values))
    assert (curve.low[2], curve.y[2], curve.high[2]) == pytest.approx((low, sum(values) / 5, high))
    assert drawn[1].reference == pytest.approx(0.2025)
    assert [one.name for one in drawn[0].curves][:2] == ["ReinMax", "ST"]


def test_curves_of_runs_that_are_not_finished_are_left_out():
    found = polynomial(CURVES, seeds=[0, 1])
    found = changed(found, lost, estimator="st", seed=1)
    found = changed(found, lambda one: lost(one, "started"), estimator="stgs")
    curves = {curve.name: curve for curve in report(found).figures[0].curves}
    assert "STGS" not in curves
    assert (curves["ST"].low is None, curves["ReinMax"].low is None) == (True, False)


def test_a_search_is_drawn_over_the_temperature_and_the_vae_over_epochs():
    rows = [row(run, {"expected_loss": 0.2 + run.tau}) for run in SEARCH.runs()]
    drawn = report(Results(SEARCH.name, tuple(rows))).figures
    assert (len(drawn), drawn[0].x_label) == (6, "τ")
    assert drawn[0].curves[0].x == CANDIDATES
    assert drawn[0].curves[0].y[0] == pytest.approx(0.3)
    train, test = report(vae()).figures
    assert (train.x_label, train.title) == ("epoch", "Train \N{MINUS SIGN}ELBO")
    assert (train.curves[0].x, train.reference) == ((10, 160), None)
    assert test.title.startswith("Test")


# any set of runs


def test_the_report_on_a_recipe_of_a_user_can_be_checked_without_it(tmp_path):
    store = Store(tmp_path / "runs")
    for run in OWN.runs(seeds=[0]):
        save(store, run, [{"loss": 0.3, "expected_loss": 0.2 + run.tau}])
    folder = discretegrad_lab.write_report(OWN, store, tmp_path / "results")
    assert (folder.name, (folder / READING).exists()) == ("mine", True)
    assert check(tmp_path / "results") is None
    found, whole = read_section(folder)
    assert (whole.heading, whole.text[:42]) == (
        "Mine",
        "42 runs: 21 finished, 21 missing. Missing:",
    )
    # the recipe is known no more, its task is
    assert [one.title for one in whole.tables] == ["p = 1.5", "p = 2", "p = 3"]
    assert whole.tables[0].caption.endswith("A note.")
    assert whole.figures[0].reference == pytest.approx(0.45**1.5)
    assert of_results(found, folder).describe({"target": "spread"}) == "setting B"
    text = (folder / READING).read_text()
    (folder / READING).write_text(text.replace("panels", "panel"))
    with pytest.raises(ValueError, match=r"as it was written, got: reading\.json with another"):
        read_section(folder)
    (folder / sources.CHECKSUMS).unlink()
    with pytest.raises(ValueError, match=r"reading\.json as it was written, got: no document with"):
        read_section(folder)


def test_overviews_and_curves_over_a_metric_need_no_recipe(tmp_path):
    store = Store(tmp_path / "runs")
    whole = dataclasses.replace(
        OWN, seeds=(0,), metrics=("expected_loss", "loss"), overview=True, over="loss"
    )
    for run in whole.runs():
        save(store, run, [{"loss": 0.3, "expected_loss": 0.2 + run.tau}])
    folder = discretegrad_lab.write_report(whole, store, tmp_path / "results")
    found, there = read_section(folder)
    expected = section(of_recipe(whole), found)
    assert (there.tables, there.figures) == (expected.tables, expected.figures)
    assert there.tables[0].title == "All metrics, p = 1.5"
    # what was written before it was kept
    (folder / sources.CHECKSUMS).unlink()
    document = json.loads((folder / READING).read_text())
    assert (document.pop("overview"), document.pop("over")) == (True, "loss")
    assert document.pop("halving") is None
    (folder / READING).write_text(json.dumps(document))
    old = of_results(found, folder)
    assert (old.overview, old.over, old.halving) == (False, "", None)


@pytest.mark.parametrize(
    ("name", "given", "command"),
    [
        ("vae-10x30", None, "`discretegrad report vae-10x30`"),
        ("vae-10x30@tau=0.5,1.0", None, "`discretegrad report vae-10x30 --set tau=0.5,1.0`"),
        ("mine@tau=1.0", "my sweeps/a.py", "`discretegrad report 'my sweeps/a.py' --set tau=1.0`"),
        ("mine", None, "and the Python file, or the options, that it was given when it wrote "),
        ("stored-polynomial", None, "`discretegrad report` and the Python file, or the options"),
    ],
)
def test_the_command_that_writes_a_report_again_works(name, given, command, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_extra", {"mine": dataclasses.replace(VAE, name="mine")})
    monkeypatch.setattr(tasks, "_files", {} if given is None else {"mine": Path(given)})
    folder = tmp_path / name
    folder.mkdir()
    (folder / results.RUNS).touch()
    assert command in sources.lack(folder, results.RUNS)
    with pytest.raises(ValueError, match=f"write them again with .*{re.escape(command)}"):
        results.read(folder)
    shutil.rmtree(folder)
    shutil.copytree(Path(__file__).parents[1] / "results" / "vae-10x30", folder)
    (folder / REPORT).write_text("changed\n")
    assert command in check(tmp_path).partition("; write it again with ")[2]


def test_without_a_recipe_what_varies_are_the_rows(tmp_path):
    def runs(**changes):
        return [
            row(dataclasses.replace(run, **changes), {"expected_loss": 0.3, "loss": 0.3})
            for run in CURVES.runs(seeds=[0, 1], estimators=["reinmax", "st"])
        ]

    found = Results("nobody", tuple(runs(batch=8) + runs(batch=16)))
    own = of_results(found, tmp_path)
    # temperatures belong to estimators, here
    assert (own.rows, own.panels) == (("power", "batch"), ())
    assert [metric.name for metric in own.metrics] == ["expected_loss", "loss"]
    table = section(own, found).tables[1]
    assert table.title == "loss of the samples"
    assert [line[0] for line in table.rows] == [
        *(f"p = {p}, batch {b}" for p in (1.5, 2, 3) for b in (8, 16)),
        "τ",
    ]
    assert table.rows[0][1] == "0.30000 ± 0.00000"
    assert own.title == "Stored runs of polynomial"
    over_tau = Results("nobody", tuple(runs(tau=0.5, power=2.0) + runs(tau=1.5, power=2.0)))
    drawn = section(of_results(over_tau, tmp_path), over_tau).figures
    assert [figure.x_label for figure in drawn] == ["τ", "step", "step"] * 2
