"""What trained parsers of ListOps are measured by, and what the report makes of it."""

import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

import oracles
from discretegrad_lab import Store, execute, tasks
from discretegrad_lab.cli import app
from discretegrad_lab.report.document import Drawing, TextTable
from discretegrad_lab.report.reading import of_recipe
from discretegrad_lab.report.results import read
from discretegrad_lab.report.section import section
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.tasks.evidence import DASH, Measured, Results, Row
from discretegrad_lab.tasks.listops import measures
from discretegrad_lab.tasks.listops.config import Parsing
from discretegrad_lab.tasks.listops.data import (
    REGENERATED,
    ListOps,
    decode,
    depths,
    encode,
    generate_listops,
)
from discretegrad_lab.tasks.listops.measures import (
    BASELINES,
    DEPTH,
    LENGTH,
    MEASURES,
    SCORES,
    SHOWN,
    UNSHOWN,
    measure,
)
from discretegrad_lab.tasks.listops.model import SEED, ParsingModel, expressions_of
from discretegrad_lab.tasks.listops.trees import baselines, merged_spans, score

CPU = torch.device("cpu")
SMALL = {
    "data": "generated", "examples": 24, "longest": 40, "batch": 8, "embedding": 6, "hidden": 5,
    "epochs": 1,
}  # fmt: skip
QUICK = tasks.recipe("listops-quick")
RECIPE = dataclasses.replace(
    QUICK,
    name="small-trees",
    build=lambda estimator, seed: iter([Parsing(estimator=estimator, seed=seed, **SMALL)]),
    estimators=("reinmax", "st"),
)

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


def model(*seeds, expressions=None):
    """Models whose trees differ."""
    runs = [Parsing(estimator="st", seed=seed, **SMALL) for seed in seeds]
    made = ParsingModel(runs, CPU, expressions=expressions)
    with torch.no_grad():
        for name in ("embedding", "query", "values.weight"):
            made.network.parameters[name] *= 30
    return made


def test_numbers_of_models_are_those_of_their_parses(monkeypatch):
    # short, long and single ones, in several parts
    short = generate_listops(1, (24, 2, 30), longest=40)
    long = generate_listops(2, (1, 1, 1), shortest=90, longest=99)
    over = encode([("[", "max", *"1" * 100, "]"), ("7",)])
    texts = [decode(x) for part in (short.test, long.test, over) for x in part.tokens]
    everything = encode(texts)
    monkeypatch.setattr(measures, "TOKENS", 200)
    parts = ListOps(short.train, short.valid, short.test, everything)
    made = model(0, 1, expressions=parts)
    measured = measure(made)
    assert set(measured) <= UNSHOWN | {metric.name for metric in MEASURES.metrics}
    merges, values = made.parses(everything)
    trees = [n for n, tokens in enumerate(texts) if 1 < len(tokens) < 100]
    assert len(trees) > 20
    expressions = [texts[n] for n in trees]
    expected = baselines(expressions, SEED)
    assert tuple(expected) == BASELINES
    sizes = {LENGTH: everything.lengths, DEPTH: depths(everything.tokens)}
    for member in range(2):
        own = [merges[member, n, : len(texts[n]) - 1].tolist() for n in trees]
        for name, scores in {"": score(expressions, own), **expected}.items():
            for field in SCORES:
                value = measured[measures.tree_name(field, name)][member].item()
                assert value == pytest.approx(100 * getattr(scores, field))
        right = (values[member] == everything.labels).double()
        for grouping, size in sizes.items():
            seen = 0
            for first, label in grouping.groups.items():
                words = label.split(" to ")
                last = 10**9 if label.startswith("from") else int(words[-1])
                inside = (size >= first) & (size <= last)
                seen += int(inside.sum())
                if inside.any():
                    accuracy = measured[grouping.accuracy(first)][member].item()
                    assert accuracy == pytest.approx(100 * right[inside].mean().item())
                    assert measured[grouping.examples(first)][member] == inside.sum()
                else:
                    assert grouping.accuracy(first) not in measured
            assert seen == len(texts)
        for number, tokens in enumerate(SHOWN):
            names = [measures.merge_name(number, place) for place in range(len(tokens) - 1)]
            drawn = [int(measured[name][member]) for name in names]
            (plain,), answer = (x[member].tolist() for x in made.parses(encode([tokens])))
            assert drawn == plain
            assert len(merged_spans(drawn)) == len(tokens) - 1
            assert [measured[measures.answer_name(number)][member]] == answer
    assert measured["test_tree_f1"][0] != measured["test_tree_f1"][1]
    for name, values in measure(model(1, expressions=parts)).items():
        torch.testing.assert_close(values[0], measured[name][1], equal_nan=True)


def test_digits_alone_have_no_trees():
    short = generate_listops(1, (24, 2, 2), longest=40)
    digits = encode([("7",), ("1",)])
    measured = measure(model(0, expressions=ListOps(short.train, short.valid, digits, digits)))
    assert "test_tree_f1" not in measured
    assert measured[LENGTH.examples(1)] == measured[DEPTH.examples(1)] == 2


# the report


def test_a_report_has_tables_and_trees_of_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_extra", {RECIPE.name: RECIPE})
    monkeypatch.chdir(tmp_path)
    assert execute(RECIPE.runs(), Store("runs"), device="cpu").complete
    for command in ("measure", "report"):
        result = CliRunner().invoke(app, [command, RECIPE.name, "-q"])
        assert result.exit_code == 0, result.stderr
    assert CliRunner().invoke(app, ["report", "--check"]).exit_code == 0
    folder = Path("results") / RECIPE.name
    rows = read(folder).rows
    assert len([row for row in rows if row.measured]) == 4
    report = (folder / "report.md").read_text()
    assert "|  | F1, % | lists, % | exactly right, % | models |" in report
    assert "shown_" not in report
    assert "| expressions |" in report
    for name in (*BASELINES, "ST", "ReinMax"):
        assert f"| {name} |" in report
    for key in ("st", "reinmax"):
        assert f"trees-{key}.svg" in report
        # of the lowest seed
        assert f"## Trees of {LINES[key].label}, seed 0" in report
        picture = ElementTree.fromstring((folder / f"trees-{key}.svg").read_text())
        headings = [group.find("{*}text").text for group in picture.findall("{*}g")]
        assert len(headings) == 2 * len(SHOWN)
        assert all(text.startswith("learned") for text in headings[::2])
    assert (folder / "trees-st.svg").read_text() in (folder / "report.html").read_text()


def measured_rows(recipe, **changes):
    """Rows of all runs of a recipe, as if they were finished and measured."""
    values = {name: 50.0 for name in UNSHOWN | {metric.name for metric in MEASURES.metrics}}
    values |= {name: 0.0 for name in UNSHOWN if name.startswith("shown")}
    metrics = {metric.name: 60.0 for metric in recipe.task.metrics}
    return Results(
        recipe.name,
        tuple(
            Row(
                run.identity, {**run.document(), **changes}, "finished", 20, metrics,
                measured=Measured(values),
            )
            for run in recipe.runs()
        ),
    )  # fmt: skip


def test_results_on_the_files_say_that_the_training_set_was_regenerated():
    recipe = tasks.recipe("listops")
    changed = recipe.changed({"bucketed": ["true", "false"]})
    assert len(changed.runs()) == 2 * len(recipe.runs())
    for one in (recipe, changed):
        items = section(of_recipe(one), measured_rows(one)).items
        shown = [item for item in items if isinstance(item, TextTable | Drawing)]
        assert len(shown) > len(recipe.metrics)
        for item in shown:
            assert REGENERATED in item.caption, item.title
    wide = next(item for item in shown if isinstance(item, TextTable))
    assert [row[0] for row in wide.rows[:2]] == ["batches of similar lengths", "uniform batches"]


def test_both_checkpoints_stand_beside_the_paper_and_with_their_spread():
    recipe = tasks.recipe("listops")
    rows = [
        dataclasses.replace(
            row,
            metrics={**row.metrics, "test_accuracy": 60.0 + row.config["seed"]},
            measured=None,
        )
        for row in measured_rows(recipe).rows
    ]
    # one estimator has a single finished run, another has none
    lost = [x for x in rows if x.config["estimator"] == "st"][1:]
    lost += [x for x in rows if x.config["estimator"] == "rloo-4"]
    rows = [
        dataclasses.replace(row, state="diverged", metrics={}) if row in lost else row
        for row in rows
    ]
    items = section(of_recipe(recipe), Results(recipe.name, tuple(rows))).items
    tables = {item.title: item for item in items if isinstance(item, TextTable)}
    for title in ("Test accuracy, %, ListOps", "Test accuracy at best valid, %, ListOps"):
        assert tables[title].rows[-3][:2] == ("ReinMax", "68.07 ± 1.18")
    spread = {row[0]: row[1:] for row in tables["Spread of the test accuracy over seeds"].rows}
    assert spread["ReinMax"] == ("60.00", "64.00", "1.58", "60.00", "60.00", "0.00", "5")
    assert spread["ST"][2] == DASH
    assert "RLOO-4" not in spread


def test_no_model_was_trained_on_what_is_drawn():
    """The files are seen to in test_the_real_files."""
    train = expressions_of(QUICK.runs()[0]).train
    short = [tokens for tokens in SHOWN if len(tokens) <= QUICK.runs()[0].longest]
    assert short
    assert {decode(row) for row in train.tokens}.isdisjoint(short)


def test_only_expressions_that_are_not_longer_than_those_of_the_training_are_drawn():
    for longest, count in ((13, 1), (10, 0)):
        items = section(of_recipe(QUICK), measured_rows(QUICK, longest=longest)).items
        drawings = [item for item in items if isinstance(item, Drawing)]
        assert len(drawings) == len(QUICK.estimators) * bool(count)
        for drawing in drawings:
            assert len(ElementTree.fromstring(drawing.svg).findall("{*}g")) == 2 * count
        tables = [item for item in items if isinstance(item, TextTable)]
        assert not any(REGENERATED in table.caption for table in tables)
