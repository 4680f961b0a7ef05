"""What users add from outside the package: estimators, sweeps, tasks; and the page on it."""

import dataclasses
import json
import math
import pickle
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

import discretegrad
import discretegrad_lab
from discretegrad_lab import LINES, Line, Recipe, Run, Store, execute, load_recipes, tasks
from discretegrad_lab.cli import app
from discretegrad_lab.report import results
from discretegrad_lab.stack import config, lines, schedules
from discretegrad_lab.tasks import base, evidence
from discretegrad_lab.tasks.polynomial.config import Polynomial
from lab_cases import make_stack

PAGE = (Path(__file__).parents[1] / "docs" / "extending-the-lab.md").read_text()
SMALL = {"latents": 6, "batch": 8, "steps_per_epoch": 5, "epochs": 2, "draws": 3}
HALFWAY = re.search(r'```py title="halfway.py"\n(.*?)```', PAGE, re.DOTALL)[1]
ROW = """
import dataclasses
import discretegrad


def mine(logits, tau=1.0, *, given=None):
    return discretegrad.straight_through(logits, 2 * tau, given=given)


MINE = dataclasses.replace(discretegrad.get("straight_through"), name="mine", function=mine)
"""


def run(estimator, **fields):
    return Polynomial(estimator=estimator, **(SMALL | fields))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to work in; what a test makes known is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    tasks.tasks()  # those of the lab stay known
    for module, name in ((tasks, "_extra"), (base, "TASKS"), (lines, "_known")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    (tmp_path / "halfway.py").write_text(HALFWAY)
    return tmp_path


# estimators


def test_an_estimator_of_a_user_trains_beside_reinmax(place):
    (place / "row.py").write_text(ROW)
    # a function of a user, and a row, which doubles the temperature
    lines = Line("Halfway", "halfway.py:halfway"), Line("Mine", "row.py:MINE")
    assert [(x.kind, x.has_tau, x.row) for x in lines] == [
        ("sampler", True, "halfway.py:halfway"), ("sampler", True, "row.py:MINE")
    ]  # fmt: skip
    runs = [run(lines[0]), run(lines[1], tau=0.5), run("reinmax"), run("st"), run("exact")]
    assert [one.estimator for one in runs] == ["halfway", "mine", "reinmax", "st", "exact"]
    stack = make_stack(runs)
    for _ in range(2):
        stack.advance()
    found = {one.estimator: stack.state(n) for n, one in enumerate(stack.runs)}
    # at these temperatures they are straight-through at 1
    for name in ("halfway", "mine"):
        torch.testing.assert_close(
            found[name]["parameters/logits"], found["st"]["parameters/logits"]
        )
    alone = make_stack([run("reinmax")])
    for _ in range(2):
        alone.advance()
    assert torch.equal(alone.state(0)["parameters/logits"], found["reinmax"]["parameters/logits"])


def test_an_edited_estimator_is_trained_again(place):
    store = Store("runs")
    runs = [run(Line("Halfway", "halfway.py:halfway")), run("reinmax")]
    assert execute(runs, store).finished == tuple(runs)
    again = [run(Line("Halfway", "halfway.py:halfway")), run("reinmax")]
    assert execute(again, store).already == tuple(runs) == tuple(again)
    (place / "halfway.py").write_text(HALFWAY.replace("/ 2", "/ 3"))
    edited = run(Line("Halfway", "halfway.py:halfway"))
    assert edited.identity != runs[0].identity
    outcome = execute([edited, runs[1]], store)
    assert (outcome.finished, outcome.already) == ((edited,), (runs[1],))
    first, second = (store.load(one).state["parameters/logits"] for one in (runs[0], edited))
    assert not torch.equal(first, second)
    # the old one cannot be trained any more, but read
    with pytest.raises(ValueError, match="got a file that has changed since"):
        make_stack([pickle.loads(pickle.dumps(runs[0]))])
    assert {one.identity for one in store.runs()} == {x.identity for x in (*runs, edited)}


@dataclass(frozen=True, kw_only=True)
class Sized(Run):
    """With fields of several values."""

    task: ClassVar[str] = "sized"
    epochs: int = 1
    sizes: tuple[int, ...] = ()
    pairs: tuple[tuple[str, float], ...] = ()


def test_fields_with_several_values_are_stored(place):
    sized = dataclasses.replace(tasks.task("polynomial"), config=Sized)
    one = Sized(estimator="st", sizes=(30, 10), pairs=(("a", 0.5),))
    again = tasks.load_run(json.loads(json.dumps(one.document())))
    assert (again, again.identity) == (one, one.identity)
    assert {one: 1}[again] == 1
    assert again.stack_key == one.stack_key
    # as rows of results have them
    config = results.configuration(again)
    assert (config["sizes"], config["pairs"]) == ("[30, 10]", '[["a", 0.5]]')
    found = evidence.Results("own", (evidence.Row(one.identity, config, "missing"),))
    results.write(found, place / "own")
    assert results.read(place / "own") == found
    recipe = tiny(task=sized, metrics=(), build=lambda *_: iter([one]))
    assert [x.sizes for x in recipe.changed({"sizes": [(1, 2), (3,)]}).runs(seeds=[0])] == [
        (1, 2), (3,), (1, 2), (3,)
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"expected a tuple as sizes, got '12'"):
        recipe.changed({"sizes": ["12"]})
    with pytest.raises(ValueError, match="expected a finite number as pairs"):
        dataclasses.replace(one, pairs=(("a", math.nan),))


def test_the_place_of_a_file_does_not_matter(place):
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "halfway.py").write_text(HALFWAY)
    here, there = (Line("Halfway", f"{p}halfway.py:halfway") for p in ("", "elsewhere/"))
    assert run(here).identity == run(there).identity
    assert here == there


def test_lines_with_options_are_runs_of_their_own():
    other = run(Line("GST-2.0", "gapped", gap=2.0))
    assert other.document()["line"] == {"row": "gapped", "options": {"gap": 2.0}, "source": ""}
    assert tasks.load_run(other.document()) == other
    assert len({other.identity, run("gst-1.0").identity, run("gst-p").identity}) == 3
    # a line of the paper is that line, however it was made
    assert run(Line("GST-1.0", "gapped", gap=1.0)).identity == run("gst-1.0").identity
    assert run(Line("ReinMax", discretegrad.get("reinmax"))) == run("reinmax")
    assert dataclasses.replace(other, estimator="st") == run("st")


def test_the_line_of_a_stored_run_is_known_again(place):
    halfway = Line("Half the way", "halfway.py:halfway", key="halfway", colour="#123456")
    document = run(halfway).document()
    assert tasks.load_run(document).line is halfway
    assert lines.line("halfway").label == "Half the way"
    # another process does not know the file
    lines._known.clear()
    stored = tasks.load_run(document)
    assert stored.identity == run(halfway).identity
    assert lines.line("halfway").label == "halfway"
    with pytest.raises(ValueError, match=r"expected the file of the estimator halfway.py:"):
        make_stack([stored])


def test_runs_of_users_travel_between_processes(place):
    one = run(Line("Halfway", "halfway.py:halfway"))
    code = "import pickle, sys; from lab_cases import make_stack; "
    code += "s = make_stack([pickle.load(sys.stdin.buffer)]); print(s.advance()['loss'])"
    paths = [str(Path(__file__).parent), str(Path(discretegrad_lab.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(one),
        capture_output=True,
        check=True,
        env={"PYTHONPATH": ":".join(paths), "HOME": str(place)},
    )
    assert done.stdout.decode().strip() == str(make_stack([one]).advance()["loss"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Line("Mine", "rainmax"), "expected an estimator of reinmax, .* got 'rainmax'"),
        (lambda: Line("Mine", "nowhere.py:mine"), "expected a Python file, got .*nowhere.py"),
        (lambda: Line("Mine", "halfway.py:mine"), "expected mine in halfway.py, got a file with"),
        (lambda: Line("GST-1.0", "gapped", gap=3.0), "expected another key than 'gst-1.0'"),
        (lambda: Line(" ", "reinmax"), "expected a label"),
        (lambda: Line("Mine", lambda logits, tau, given: None), "top level of a file"),
        (lambda: Line("Mine", "gapped", gap=torch.ones(1)), "numbers and texts as options of Mine"),
        (lambda: Line("Mine", "gapped", gap=math.inf), "expected finite numbers and texts"),
        (lambda: Line("Wrong", "wrong.py:wrong"), r"wrong.py to run, got ZeroDivisionError"),
        (lambda: run("mine"), "expected an estimator of .*, or a Line, got 'mine'"),
    ],
)
def test_wrong_lines(place, make, message):
    (place / "wrong.py").write_text("1 / 0")
    with pytest.raises((ValueError, TypeError), match=message):
        make()


# recipes

TINY = """
import discretegrad_lab

def tiny():
    task = discretegrad_lab.task("polynomial")
    metrics = ("expected_loss",)
    return discretegrad_lab.Recipe("tiny", "Tiny", task, lambda *_: [], (0,), ("st",), metrics)
"""


def tiny(**fields):
    recipe = {
        "name": "tiny",
        "title": "Tiny",
        "task": tasks.task("polynomial"),
        "build": lambda estimator, seed: iter([run(estimator, seed=seed)]),
        "seeds": (0, 1),
        "estimators": ("st", Line("Halfway", "halfway.py:halfway")),
        "metrics": ("expected_loss",),
    }
    return Recipe(**(recipe | fields))


def test_two_lines_of_a_recipe_have_two_keys():
    both = Line("Gap", "gapped", gap=2.0), Line("gap", "gapped", gap=3.0)
    with pytest.raises(ValueError, match=r"expected a key of its own .* got gap twice"):
        tiny(estimators=both)
    # in a stack they are two lines all the same
    runs = [run(line, seed=seed) for seed in (0, 1) for line in both]
    assert [members for _, members in config.groups(config.in_order(runs))] == [
        slice(0, 2), slice(2, 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metrics": ("expected_los",)}, r"metrics of tiny among .*, got expected_los; did you"),
        ({"metrics": "expected_loss"}, r"several metrics of tiny, .* 'expected_loss'; write \("),
        ({"rows": ("tua",)}, "rows of tiny among .*, got tua; did you mean tau?"),
        ({"panels": ("powers",)}, "panels of tiny among .*, got powers; did you mean power?"),
        ({"variants": "tau"}, r"several variants of tiny, .* write \('tau',\)"),
        ({"seeds": 3}, r"several seeds of tiny, .* write \(3,\)"),
        ({"over": "second"}, "over of tiny among .*, got second; choose one of these"),
        ({"claims": ("temperature",)}, "claims of tiny among .*, got temperature"),
        ({"against": ("exakt",)}, "against of tiny among .*, got exakt; did you mean exact?"),
        ({"published": {"los": None}}, "published of tiny among .*, got los"),
        ({"name": ".."}, r"expected a name of a recipe that a folder can have, got '..'; leave"),
        ({"name": ""}, "got ''; leave"),
        ({"name": "a/b"}, "got 'a/b'; leave"),
        ({"name": None}, "got None; leave"),
    ],
)
def test_wrong_recipes(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny(**fields)


def test_a_search_has_fields_that_runs_have():
    rungs = (discretegrad_lab.Rung(1),)
    with pytest.raises(ValueError, match=r"several fields of a search, .* write \('tau',\)"):
        discretegrad_lab.Halving("expected_loss", ("tau"), rungs)
    wrong = discretegrad_lab.Halving("expected_loss", ("tua",), rungs)
    with pytest.raises(ValueError, match=r"fields that halving of tiny is over among .*, got tua"):
        tiny(halving=wrong)


def test_a_changed_name_is_that_of_a_folder():
    recipe = tiny(name="own", task=tasks.task("vae"), metrics=())
    assert recipe.changed({"along": ["a/b"]}).name == "own@along=a-b"


def test_changes_are_all_combinations():
    changed = tiny().changed({"tau": ["0.5", "1", "1.0"], "optimiser": ["radam"], "tf32": ["true"]})
    assert changed.name == "tiny@tau=0.5,1.0@optimiser=radam@tf32=True"
    assert {one.tau for one in changed.runs()} == {0.5, 1.0}
    assert {(one.optimiser, one.tf32) for one in changed.runs()} == {("radam", True)}
    assert len(changed.runs()) == 2 * 2 * 2
    assert len(changed.runs(seeds=[7], estimators=["halfway"])) == 2
    assert changed.rows == ("tau",)
    more = tiny().changed({"clip_norm": ["none", "2"], "latents": ["4"], "power": [1.5, 3]})
    assert {(one.clip_norm, one.power) for one in more.runs()} == {
        (None, 1.5), (2.0, 1.5), (None, 3.0), (2.0, 3.0)
    }  # fmt: skip
    assert {type(one.power) for one in more.runs()} == {float}
    search = tasks.recipe("polynomial-temperatures")
    assert len(search.changed({"tau": [0.5, 2]}).runs()) == len(search.runs()) / 10 * 2
    published = tasks.recipe("vae-10x30").changed({"latents": ["4"]})
    assert not published.published
    assert not published.claims


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tua": ["1"]}, r"expected a field of polynomial \(tau, .*got 'tua'; did you mean tau\?"),
        ({"estimator": ["st"]}, "got 'estimator'; choose each estimator of the recipe itself"),
        ({"tau": ["warm"]}, "expected a number as tau, got 'warm'"),
        ({"epochs": ["1.5"]}, "expected a whole number as epochs, got '1.5'"),
        ({"epochs": [1.5]}, "expected a whole number as epochs, got 1.5"),
        ({"optimiser": ["sgd"]}, "expected adam or radam as optimiser, got 'sgd'"),
        ({"tf32": ["maybe"]}, "expected true or false as tf32, got 'maybe'"),
        ({"tau": []}, "expected a list of values for tau"),
        ({"tau": "0.5"}, "expected a list of values for tau"),
        ({"power": ["inf"]}, "expected a finite number as power, got inf"),
        ({"schedule_factor": ["nan"]}, "expected a finite number as schedule_factor, got nan"),
        ({"tau": ["-1"]}, r"expected a positive number .* as tau, got -1.0"),
    ],
)
def test_wrong_changes(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny().changed(changes).runs()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "to define RECIPE, a discretegrad_lab.Recipe, .* got neither"),
        ("RECIPE = 3", r"got \[3\]"),
        ("import nothing_of_that_name", "got ModuleNotFoundError"),
        (f"{TINY}\nRECIPES = tiny()", "or RECIPES, several of them, got a single one; call it"),
        (f"{TINY}\nRECIPES = tiny(), tiny()", "a name of its own .* sweep.py, got tiny twice"),
    ],
)
def test_files_without_a_recipe(place, text, message):
    (place / "sweep.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_recipes(Path("sweep.py"))
    assert "tiny" not in tasks.recipes()
    with pytest.raises(ValueError, match="expected a new name for a recipe, got 'vae-10x30'"):
        tasks.add_recipe(tiny(name="vae-10x30"))


def test_names_of_the_package():
    for name in discretegrad_lab.__all__:
        assert getattr(discretegrad_lab, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Rnu'"):
        _ = discretegrad_lab.Rnu
    assert LINES["gst-p"].options == (("gap", "p"),)


# the page


def test_the_page_names_all_schedules_and_the_default():
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| `schedule` |"))
    assert set(schedules.KINDS) < set(re.findall(r"`([\w-]+)`", row))
    assert f"`{Polynomial.schedule}` (the default)" in row


def test_the_page_works_as_it_stands(place, capsys):
    commands = []
    for kind, title, text in re.findall(r'```(\w+)(?: title="(.*?)")?\n(.*?)```', PAGE, re.DOTALL):
        if title:
            Path(title).write_text(text)
        elif kind == "py":
            exec(compile(text, "page", "exec"), {})
        else:
            commands += text.splitlines()
    printed = capsys.readouterr().out
    assert "18 runs trained" in printed
    assert "54 runs in halfway@tau=0.5,1.0,1.5" in printed
    assert "report in results/halfway" in printed
    report = Path("results/halfway/report.md").read_text()
    assert "Halfway" in report
    (classes,) = load_recipes(Path("my_task.py"))
    store = Store("runs")
    assert len(execute(classes.runs(), store).finished) == 9
    rows = [store.metrics(one)[-1] for one in classes.runs()]
    assert min(row["accuracy"] for row in rows) > 1 / 2
    assert len(commands) == 6
    for command in commands:
        program, *arguments = shlex.split(command)
        done = CliRunner().invoke(app, arguments)
        assert (program, done.exit_code) == ("discretegrad", 0), done.output
    assert len(list(store.runs())) == 18 + 54 + 9 + 18
    assert len(Path("results/classes/measures.csv").read_text().splitlines()) == 1 + 9
    assert "| norm of the weights | models |" in Path("results/classes/report.md").read_text()
    # also where the task is not known
    del tasks._extra["classes"], base.TASKS["classes"]
    checked = CliRunner().invoke(app, ["report", "--check"])
    assert checked.exit_code == 0, checked.output
