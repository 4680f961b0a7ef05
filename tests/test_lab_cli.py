"""The command line: what it prints, writes, refuses and returns, on runs of a few steps."""

import errno
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from discretegrad_lab import cli, tasks
from discretegrad_lab.cli import machine, selection
from discretegrad_lab.report.folder import read_section
from discretegrad_lab.report.results import read
from discretegrad_lab.report.terminal import show
from discretegrad_lab.runs import cluster, execute, store
from discretegrad_lab.runs.connection import ClusterError
from discretegrad_lab.runs.listener import Outcome
from discretegrad_lab.runs.store import Store
from discretegrad_lab.stack import lines as stack_lines
from discretegrad_lab.tasks import data
from discretegrad_lab.tasks.chosen import NotChosen
from discretegrad_lab.watch import board
from lab_cases import recipes_with_runs, tree
from lab_tiny import ESTIMATORS, TINY, tiny

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ("reinmax", "st", "stgs", "gr-mck", "gst-1.0", "gst-p", "Mine")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path, tmp_path_factory):
    """An empty directory to work in, the tiny recipe, and no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "_extra", {"tiny": TINY})
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def call(*arguments):
    """A result with ``exit_code``, ``stdout`` and ``stderr``; an unexpected error is raised."""
    result = CliRunner().invoke(cli.app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def train(*arguments):
    result = call("run", "tiny", "--device", "cpu", *arguments)
    assert result.exit_code == 0, result.stderr
    return result


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def refused(result, *words, code=2):
    """The error is one paragraph on stderr with these words, and nothing else is said."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("discretegrad: expected ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
    return True


# what the options mean


def test_seeds_budgets_estimators_and_changes():
    texts = {"3": [0, 1, 2], "0-2,7": [0, 1, 2, 7], "7-7": [7], "7,": [7], " 4 - 5 , 4 ": [4, 5]}
    assert {text: selection.parse_seeds(text) for text in texts} == texts
    texts = {"90s": 90, "9m": 540, "1.5h": 5400, "1h30m": 5400, "1H2s": 3602}
    assert {text: selection.parse_time(text) for text in texts} == texts
    assert selection.parse_estimators("ReinMax, GST-p,reinmax", KNOWN) == ["reinmax", "gst-p"]
    assert selection.parse_estimators("mine", KNOWN) == ["Mine"]
    texts = ["tau=0.5, 1", "learning-rate=1e-3", "tau=2"]
    assert selection.parse_changes(texts) == {"tau": ["0.5", "1", "2"], "learning_rate": ["1e-3"]}
    assert selection.parse_changes(None) == {}


LARGE = r"^expected seeds between 0 and 2147483647 \(2\*\*31 - 1\), got {}; give a number of seeds"
WRONG = [
    (selection.parse_seeds, r"expected .*seed", "", "0", "a", "3-1", "1,,x", "-1", "1.5", ","),
    (selection.parse_seeds, "at most 100,000 seeds", "0-999999"),
    (selection.parse_seeds, LARGE.format("a number of 5000 digits"), "9" * 5000, "0-" + "9" * 5000),
    (selection.parse_seeds, LARGE.format("2147483648"), "2147483648-2147483648", "2147483648,"),
    (selection.parse_seeds, LARGE.format("2147483650"), "3,2147483640-2147483650"),
    (selection.parse_time, "such as 90s, 9m or 1h30m", "", "9", "9 min", "m", "-9m", "0s"),
    (selection.parse_time, "such as 90s, 9m or 1h30m", "30m1h", "inf", "9" * 400 + "s"),
    (lambda text: selection.parse_changes([text]), "tau=0.5,1", "tau", "=1", "tau=", "tau=,"),
    (lambda text: selection.parse_estimators(text, KNOWN), "leave the option out", "", ","),
]


@pytest.mark.parametrize(("parse", "message", "texts"), [(*row[:2], row[2:]) for row in WRONG])
def test_wrong_seeds_budgets_estimators_and_changes(parse, message, texts):
    for text in texts:
        with pytest.raises(ValueError, match=message):
            parse(text)


def test_near_misses_of_estimators_and_names_of_the_library_are_suggested():
    near = {"straight_through": "st", "straight-trough": "st", "gumbel_softmax": "stgs"}
    near |= {"gumbel-rao": "gr-mck", "gapped": "gst-1.0", "reinmx": "reinmax", "min": "Mine"}
    for given, meant in near.items():
        with pytest.raises(ValueError, match=f"got '{given}'; did you mean {meant}?"):
            selection.parse_estimators(given, KNOWN)


def test_auto_is_a_gpu_if_there_is_one(monkeypatch):
    for available, device in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=available: there)
        assert selection.find_device("auto") == device


# help and list


@pytest.mark.parametrize(
    "command", ["", "list", "run", "report", "choose", "plot", "data", "data fetch", "doctor"]
)
def test_help_has_examples_and_exit_codes(command):
    shown = " ".join(call(*command.split(), "--help").stdout.split())
    assert f"Examples: discretegrad {command}".strip() in shown
    for text in ("0 done", "1 something failed", "2 wrong usage", "3 work is left", "130 interrup"):
        assert text in shown
    assert call("--version").stdout.strip() == metadata.version("discretegrad")


def test_list_says_what_there_is():
    shown = call("list").stdout
    for recipe in tasks.recipes().values():
        for text in (recipe.name, recipe.title, recipe.reproduces, *recipe.data):
            assert text in shown
    for recipe in recipes_with_runs().values():
        assert f"{len(recipe.runs()):,} runs" in shown
    assert "21 runs of 800 steps, together 1 min 38 s of one CPU core." in shown
    assert "945 runs of 8,000 steps, all of them runs of polynomial-settings." in shown
    assert "6 runs of 4 steps, not timed yet." in shown
    # with a name, also what can be changed
    assert "Fields:" not in shown
    shown = " ".join(call("list", "tiny", "--set", "tau=0.5,2").stdout.split())
    assert "tiny@tau=0.5,2.0 12 runs" in shown
    assert "Estimators: reinmax, st, exact." in shown
    assert "Fields: tau 0.5, 2; optimiser adam;" in shown
    # for programs
    recipes = {recipe["name"]: recipe for recipe in json.loads(call("list", "--json").stdout)}
    assert list(recipes) == list(tasks.recipes())
    listed = recipes["tiny"]
    assert (listed["runs"], listed["estimators"], listed["seeds"]) == (6, [*ESTIMATORS], [0, 1])


# run


def test_run_trains_and_the_second_time_finds_it_done(here):
    first = train("--runs", "stored")
    assert "tiny: 6 finished" in first.stdout
    assert "Next: discretegrad report tiny --runs stored" in first.stdout
    selected = train("--runs", "two words", "--seeds", "5-5", "--estimators", "st,exact").stdout
    assert set(Store(here / "two words").runs()) == {tiny("st", 5), tiny("exact", 5)}
    again = selected.partition("Next: discretegrad ")[2].strip()
    assert again == "report tiny --seeds 5-5 --estimators st,exact --runs 'two words'"
    assert call(*shlex.split(again)).exit_code == 0
    stored = Store(here / "stored")
    assert {stored.status(run).state for run in TINY.runs()} == {"finished"}
    before = tree(here)
    assert "tiny: 6 done before" in train("--runs", "stored").stdout
    quiet = train("--runs", "stored", "--quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")
    assert tree(here) == before


def test_progress_is_plain_lines_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(board, "_EVERY", 0.0)
    result = train()
    assert "\x1b" not in result.stderr
    said = result.stderr.splitlines()
    assert said[0] == "6 runs to train, 0 done before"
    assert said[1] == "training 6 members of polynomial for 2 epochs of 2 steps"
    assert said[2].startswith("50%, 0 of 6 runs done, 6 members at epoch 1 of 2, ")
    assert "run-steps/s" in said[2]
    assert " left; ReinMax loss 0." in said[2]
    assert said[-1].startswith("6 members finished: ReinMax loss 0.")


def test_json_is_one_object_for_each_event():
    events = lines(train("--json").stdout)
    assert {event.get("stack", 1) for event in events} == {1}
    kinds = [event["event"] for event in events]
    stack = ["stack_started", "epoch_done", "epoch_done", "checkpointed", "stack_finished"]
    assert kinds == ["planned", *stack, "outcome"]
    members = [member["run"] for member in events[1]["members"]]
    assert sorted(members) == sorted(run.identity for run in TINY.runs())
    for event in events[2:4]:
        assert set(event["metrics"]) == {"loss", "expected_loss"}
        assert {len(values) for values in event["metrics"].values()} == {6}
        assert event["run_steps_per_second"] == pytest.approx(12 / event["seconds"])
    outcome = events[-1]
    assert sorted(outcome["finished"]) == sorted(members)
    assert (outcome["complete"], outcome["exit_code"]) == (True, 0)


def test_dry_run_says_what_would_be_done_and_changes_nothing(here):
    result = call("run", "tiny", "--dry-run", "--device", "cpu", "--largest-stack", 3)
    assert result.exit_code == 0
    assert "tiny on cpu: 6 runs to train in 2 stacks, 0 done before, 0 damaged." in result.stdout
    # both are alike: one row
    assert len(re.findall(r"  2 +3 +0 +4 ", result.stdout)) == 1
    assert "Time: unknown" in result.stdout
    assert "discretegrad run tiny --budget 1m" in result.stdout
    assert tree(here) == {}
    train("--seeds", "1")
    before = tree(here)
    event = lines(call("run", "tiny", "--dry-run", "--json", "--device", "cpu").stdout)[-1]
    assert tree(here) == before
    assert event["event"] == "estimate"
    assert (event["members"], len(event["done"]), event["steps"]) == (3, 3, 4)
    assert event["bytes"] > 0
    assert event["seconds"] > 0
    assert "Time: about " in call("run", "tiny", "--dry-run", "--device", "cpu").stdout


def test_a_dry_run_cuts_stacks_for_processes(here):
    (alone,) = lines(call("run", "tiny", "--dry-run", "--json", "--device", "cpu").stdout)
    options = ("run", "tiny", "--dry-run", "--device", "cpu", "--processes", 2)
    (event,) = lines(call(*options, "--json").stdout)
    assert [len(stack["runs"]) for stack in alone["stacks"]] == [6]
    assert [len(stack["runs"]) for stack in event["stacks"]] == [3, 3]
    # of both, which share the device
    assert event["bytes"] == alone["bytes"]
    assert "for 2 stacks of the largest size. Time: unknown" in call(*options).stdout
    train("--seeds", "1")
    assert "2 processes train them side by side" in " ".join(call(*options).stdout.split())
    assert [2, 1] == [
        len(stack["runs"]) for stack in lines(call(*options, "--json").stdout)[0]["stacks"]
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "tiny", "--device", "cpu", "--dry-run", "--runs"),
        ("run", "tiny", "--device", "cpu", "--runs"),
        ("run", "tiny", "--device", "cpu", "--tensorboard"),
        ("report", "tiny", "--runs"),
        ("report", "tiny", "--results"),
        ("plot", "tiny", "--results"),
        ("data", "check", "--data"),
        ("doctor", "--runs"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_no_traceback(here, arguments):
    result = call(*arguments, "a" * 256)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "too long" in result.output or arguments[0] in ("data", "plot", "report")


def test_a_file_that_the_system_refuses_is_named(here, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), "runs\x1b/loop")

    monkeypatch.setattr("discretegrad_lab.cli.selection.Selection.find", refuse)
    result = call("run", "tiny")
    assert result.exit_code == 1
    assert r"got runs\x1b/loop: Too many levels of symbolic links; choose" in result.stderr


def test_a_dry_run_uses_the_cost_that_the_list_shows(here):
    def dry(name, *options):
        return call("run", name, "--dry-run", "--device", "cpu", *options).stdout

    text = dry("polynomial-headline", "--estimators", "st")
    # 3 of 21 runs, which take 98 s
    assert "Time: about 14 s." in text
    assert "the time is that of one CPU core, where the recipe was trained before" in text
    text = dry("polynomial-curves")
    assert "Time: unknown." in text
    # 105 of the 2,430 runs that take 3 minutes
    assert "They would take about 7.8 s of an H200." in text
    assert tree(here) == {}


# sweeps of a user


SAMPLER = """
from torch.nn.functional import one_hot

def sampler(logits, tau=1.0, *, given):
    mean = (logits / tau).softmax(-1)
    return one_hot(given, logits.shape[-1]) + mean - mean.detach()
"""
SWEEP = """
from discretegrad_lab import Line, Recipe, recipe
from lab_tiny import tiny

RECIPE = Recipe(
    name="mine",
    title="A sweep of mine",
    task=recipe("polynomial-headline").task,
    build=lambda estimator, seed: iter([tiny(estimator, seed, tau=0.5)]),
    seeds=(0, 1),
    estimators=("reinmax", Line("My way", "sampler.py:sampler")),
    metrics=("expected_loss",),
)
"""


def test_a_sweep_from_a_file_is_trained_reported_checked_and_plotted(here, monkeypatch):
    monkeypatch.setattr(stack_lines, "_known", dict(stack_lines._known))
    (here / "sweep.py").write_text(SWEEP)
    (here / "sampler.py").write_text(SAMPLER)
    done = call("run", "sweep.py", "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    assert "mine: 4 finished" in done.stdout
    assert "Next: discretegrad report sweep.py" in done.stdout
    assert "A sweep of mine" in call("list", "sweep.py").stdout
    assert "Wrote results/mine" in call("report", "sweep.py").stdout
    for check in (["report", "--check"], ["report", "sweep.py", "--check"]):
        assert call(*check).exit_code == 0
    # a later process knows the folder, and neither the recipe nor its estimator
    del tasks._extra["mine"]
    del stack_lines._known["my-way"]
    assert call("report", "--check").exit_code == 0
    assert "| My way | " in (here / "results" / "mine" / "report.md").read_text()
    # without the file the stored runs can still be reported
    assert "my-way" in call("report", "--estimators", "reinmax,my-way").stdout
    assert refused(call("report", "--estimators", "my_way"), "did you mean my-way?")
    assert "Wrote results/mine/curves.png" in call("plot", "mine").stdout
    assert "Wrote results/mine/curves.png" in call("plot", "sweep.py").stdout


def test_fields_are_set_for_training_and_for_the_report(here):
    options = ("--set", "tau=0.5,2", "--set", "learning_rate=0.5", "--seeds", "1")
    train(*options)
    stored = list(Store(here / "runs").runs())
    assert {(run.tau, run.learning_rate) for run in stored} == {(0.5, 0.5), (2.0, 0.5)}
    assert len(stored) == 2 * len(ESTIMATORS)
    assert call("report", "tiny", *options).exit_code == 0
    name = "tiny@tau=0.5,2.0@learning_rate=0.5"
    text = (here / "results" / name / "report.md").read_text()
    assert "| τ = 0.5 |" in text
    assert "learning rate 0.5" in text
    assert call("report", "--check").exit_code == 0
    assert f"Wrote results/{name}/curves.png" in call("plot", "tiny", *options[:4]).stdout


def test_any_set_of_stored_runs_is_reported(here):
    train("--set", "tau=0.5,2")
    # no recipe is done, so all runs are taken
    assert "Stored runs of polynomial" in call("report").stdout
    folder = here / "results" / "stored-polynomial"
    assert (folder / "runs.csv").read_text().count("finished") == 12
    shutil.rmtree(here / "results")
    chosen = ("--set", "tau=0.5", "--estimators", "ReinMax,st", "--seeds", "1")
    shown = json.loads(call("report", *chosen, "--json").stdout)
    (table, _) = shown[0]["tables"]
    assert [line[0] for line in table["rows"]] == ["ReinMax", "ST"]
    assert [line[-3] for line in table["rows"]] == ["0.5", "0.5"]
    assert shown[0]["claims"] == []
    assert call("report", "--check").exit_code == 0
    assert "Wrote results/stored-polynomial/curves.png" in call("plot").stdout
    assert "Wrote results/stored-polynomial/curves.png" in call("plot", folder.name).stdout
    assert refused(call("report", "--set", "tua=1"), "'tua'; did you mean tau?")
    assert refused(call("report", "--set", "tau=7"), "got none that fit")


def test_stored_runs_that_another_report_left_have_rows_of_their_own(here):
    """Runs of one machine with p = 1.5, of another with p = 3: both vary nothing themselves."""
    for power in ("1.5", "3"):
        runs = ("--runs", here / power)
        train(*runs, "--set", "tau=1", "--set", f"power={power}", "--seeds", "1")
        assert call("report", *runs, "-q").exit_code == 0
    text = (here / "results" / "stored-polynomial" / "report.md").read_text()
    assert "| p = 1.5 |" in text
    assert "| p = 3 |" in text
    assert call("report", "--check").exit_code == 0


def test_plot_says_that_there_is_nothing_to_draw(here):
    shutil.copytree(ROOT / "results" / "vae-search-8x16", here / "results" / "vae-search-8x16")
    before = tree(here)
    result = call("plot", "vae-search-8x16")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Nothing to draw of results/vae-search-8x16: ")
    assert tree(here) == before


def test_a_file_that_vanishes_while_a_report_looks_does_not_matter(here):
    """As the temporary ones of another report do; a link to nothing has a name and no size."""
    shutil.copytree(ROOT / "results" / "vae-10x30", here / "results" / "vae-10x30")
    (here / "results" / "vae-10x30" / "runs.csv.0a1b.tmp").symlink_to("nothing")
    result = call("report", "vae-10x30")
    assert result.exit_code == 0
    assert "Wrote results/vae-10x30" in result.stdout


def test_a_report_for_programs_has_tables_and_verdicts(here):
    shutil.copytree(ROOT / "results" / "vae-10x30", here / "results" / "vae-10x30")
    (document,) = json.loads(call("report", "vae-10x30", "--json").stdout)
    assert document["tables"][0]["rows"][4][:2] == ["ReinMax", "98.37 ± 0.44"]
    assert document["tables"][0]["headings"][-3:] == ["τ", "optimiser", "learning rate"]
    verdicts = [claim["verdict"] for claim in document["claims"]]
    assert verdicts == ["undecided", "undecided", "holds"]


ONE = (tiny("st", 0),)
BROKEN = {ONE[0]: "expected a file, got none; put it back"}
CODES = [
    (Outcome(finished=ONE), 0),
    (Outcome(diverged=ONE, already=ONE), 0),
    (Outcome(damaged=BROKEN, stopped=ONE, stopped_by="budget"), 1),
    (Outcome(stopped=ONE, stopped_by="budget"), 3),
    (Outcome(elsewhere=ONE), 3),
    (Outcome(finished=ONE, stopped_by="budget"), 0),
    (Outcome(stopped=ONE, damaged=BROKEN, stopped_by="SIGTERM"), 130),
]


@pytest.mark.parametrize(("found", "code"), CODES)
def test_exit_codes(monkeypatch, found, code):
    monkeypatch.setattr(execute, "execute", lambda *_, **__: found)
    assert call("run", "tiny", "--device", "cpu", "-q").exit_code == code
    event = lines(call("run", "tiny", "--device", "cpu", "--json").stdout)[-1]
    assert (event["event"], event["exit_code"]) == ("outcome", code)


def test_a_budget_that_ends_leaves_work_for_the_next_command(monkeypatch):
    result = call("run", "tiny", "--device", "cpu", "--budget", "0.000001s")
    assert result.exit_code == 3
    assert "6 left" in result.stdout
    assert "The budget ended" in result.stdout
    train()
    # an epoch that was given up is told
    outcome = Outcome(stopped=ONE, stopped_by="budget", abandoned=True)
    monkeypatch.setattr(execute, "execute", lambda *_, **__: outcome)
    assert "An epoch was given up" in call("run", "tiny", "--device", "cpu").stdout
    assert lines(call("run", "tiny", "--device", "cpu", "--json").stdout)[-1]["abandoned"] is True


def test_a_damaged_run_is_named_and_the_others_are_trained(here):
    train()
    stored = Store(here / "runs")
    broken = TINY.runs()[0]
    shutil.rmtree(stored.directory(TINY.runs()[1]))
    next(stored.directory(broken).glob("metrics-*")).write_text("nonsense")
    result = call("run", "tiny", "--device", "cpu", "-q")
    assert refused(result, broken.identity, "metrics-2.csv", "move this directory away", code=1)
    assert stored.status(TINY.runs()[1]).state == "finished"


def test_ray_gets_what_the_local_engine_gets(monkeypatch):
    given = {}

    def fake(runs, root, *, listener, **options):
        given.update(options, runs=runs, root=root)
        listener.planned([], dict.fromkeys(runs, 2))
        return Outcome(finished=tuple(runs))

    monkeypatch.setattr(cluster, "execute", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    options = ("--engine", "ray", "--ray-address", "there:1", "--budget", "9m", "--device", "cuda")
    result = call("run", "tiny", *options, "--largest-stack", 2, "--data", "images", "--json")
    assert result.exit_code == 0
    assert [event["event"] for event in lines(result.stdout)] == ["planned", "outcome"]
    assert (given.pop("runs"), given.pop("root")) == (TINY.runs(), Path("runs"))
    options = {"device": "cuda", "data": Path("images"), "budget": 540.0}
    assert given == {"address": "there:1", "stacks": execute.StackOptions(2), **options}


# what is refused


BAD = {
    "run tyni": ["a recipe, or a Python file, got 'tyni'; did you mean tiny?", "discretegrad list"],
    "run sweep.py": ["sweep.py", "cannot be read"],
    "run tiny --estimators st,reinmx": ["got 'reinmx'; did you mean reinmax?"],
    "run vae-10x30 --estimators rodeo": ["estimators of", "'rodeo'"],
    "run tiny --seeds x": ["0-4,7"],
    "run tiny --device tpu": ["cpu or cuda", "tpu"],
    "run tiny --device cuda": ["no CUDA GPU", "choose the device cpu"],
    "run tiny --engine ray --device cuda:1": ["auto, cpu or cuda", "'cuda:1'"],
    "run tiny --ray-address auto": ["--engine ray"],
    "run tiny --quiet --json": ["--quiet and --json"],
    "run tiny --checkpoint-every soon": ["a time as --checkpoint-every, got 'soon'"],
    "run tiny --set tua=1": ["'tua'; did you mean tau?"],
    "run tiny --set epochs=few": ["a whole number as epochs, got 'few'"],
    "run tiny --set schedule=exponential": ["positive, got 0.0", "set schedule_factor"],
    "run tiny --set schedule=step": ["positive, got 0.0", "set schedule_factor"],
    "run tiny --set schedule=cosine --set schedule_factor=-1": ["not negative, got -1.0"],
    "list tiny --set tau": ["give it as tau=0.5,1"],
    "report tiny": ["runs of tiny in runs", "discretegrad run tiny", "--runs"],
    "report tiny vae-8x4": ["runs of tiny in runs", "`discretegrad run tiny`"],
    "report vae-8x4 tiny --set tau=2": ["of vae-8x4@tau=2.0 in", "run vae-8x4 --set tau=2`"],
    "report": ["stored runs in runs", "discretegrad run", "--runs"],
    "report --check": ["below results, got none", "--results"],
    "report tiny --check": ["expected no recipe with --check"],
    "plot tiny": ["discretegrad report tiny"],
    "plot": ["discretegrad report"],
    "data fetch mnits": ["did you mean mnist?"],
    "data check imagenet": ["mnist", "imagenet"],
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input(here, monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = call(*command.split())
    if "--json" in command:
        assert lines(result.stdout)[-1]["event"] == "error"
        result = SimpleNamespace(exit_code=result.exit_code, stdout="", stderr=result.stderr)
    assert refused(result, *BAD[command])
    assert tree(here) == {}


def test_wrong_usage(here):
    stack, engine = "run tiny --largest-stack 0", "run tiny --engine slurm"
    for words in ("run", stack, engine, "run tiny --nonsense", "nonsense"):
        result = call(*words.split())
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr
    assert tree(here) == {}


def test_missing_data_a_full_disk_and_a_file_in_the_way(here, monkeypatch):
    arguments = ("run", "vae-10x30", "--device", "cpu", "--seeds", "1", "--data", "nowhere")
    assert refused(call(*arguments), "mnist", "nowhere", "discretegrad data fetch mnist")
    planned = call(*arguments, "--dry-run")
    assert planned.exit_code == 0
    assert "discretegrad data fetch mnist" in planned.stdout
    with monkeypatch.context() as full:
        usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)
        full.setattr(shutil, "disk_usage", lambda _: usage)
        result = call("run", "tiny", "--device", "cpu")
    assert refused(result, "free space", "choose another results directory", code=1)
    assert tree(here) == {}
    (here / "runs").write_text("mine")
    result = call("run", "tiny", "--device", "cpu", "-q")
    assert refused(result, "expected a directory as --runs, got the file runs")
    assert tree(here) == {"runs": b"mine"}


def test_results_of_a_newer_version(here, monkeypatch):
    with monkeypatch.context() as future:
        future.setattr(store, "FORMAT", store.FORMAT + 1)
        train()
    before = tree(here)
    for command in (["run", "tiny", "--device", "cpu", "-q"], ["report", "tiny"]):
        assert refused(call(*command), "install the discretegrad that wrote it")
    assert refused(call("run", "tiny", "--device", "cpu", "--dry-run"), "version")
    assert tree(here) == before


TROUBLE = {
    "memory": (execute, torch.OutOfMemoryError("Tried to allocate 9 GiB.\nMore text."), "9 GiB."),
    "cluster": (cluster, ClusterError("expected a Ray cluster, got none; start one"), "start one"),
}


@pytest.mark.parametrize(("engine", "error", "words"), TROUBLE.values(), ids=TROUBLE)
def test_trouble_while_training_is_a_paragraph(monkeypatch, engine, error, words):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(engine, "execute", fails)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    options = ("--engine", "ray" if engine is cluster else "local", "--device", "cpu", "-q")
    result = call("run", "tiny", *options)
    assert refused(result, words, code=1)
    assert "More text" not in result.stderr


MISSING = {"run tiny --engine ray": "ray", "run tiny --tensorboard events": "tensorboard"}


@pytest.mark.parametrize(("command", "package"), [*MISSING.items(), ("plot", "matplotlib")])
def test_a_package_that_is_missing(monkeypatch, here, command, package):
    loaded = [name for name in sys.modules if name.split(".")[0] == package]
    for name in (*loaded, package):
        monkeypatch.setitem(sys.modules, name, None)
    extra = "lab" if package == "matplotlib" else package
    assert refused(call(*command.split()), f'pip install "discretegrad[{extra}]"')
    assert tree(here) == {}


def test_training_goes_on_if_tensorboard_files_cannot_be_written(here):
    (here / "later").mkdir()
    (here / "later" / "polynomial").write_text("a file")
    result = call("run", "tiny", "--device", "cpu", "--json", "--tensorboard", "later")
    assert result.exit_code == 1
    assert "TensorBoard files in later" in result.stderr
    outcome = lines(result.stdout)[-1]
    assert (len(outcome["finished"]), outcome["exit_code"]) == (6, 1)
    assert outcome["problems"] == [result.stderr.removeprefix("discretegrad: ").strip()]


@pytest.mark.parametrize("curves", [True, False])
def test_runs_that_fail_to_train_are_counted(here, curves):
    """A rate of 1e6 leaves every logit at an end: those of the exact gradient at the right one."""
    tasks._extra["tiny"] = replace(TINY, curves=curves)
    change = ("--set", "learning_rate=1e6")
    result = train(*change, "--seeds", "1")
    assert "3 finished (2 of them failed to train), in " in result.stdout
    again = call("run", "tiny", "--device", "cpu", *change, "--json")
    assert len(lines(again.stdout)[-1]["failed"]) == 2
    result = call("report", "tiny", *change)
    words = "expected loss no better at the end than after the first epoch: ReinMax 2, ST 2."
    assert f"6 runs: 6 finished. Failed to train, {words}" in result.stdout
    assert "ST, p = 2: 2 finished, 2 of them failed to train." in result.stdout
    # they stay in the means
    assert "0.24000 ± 0.15883" in result.stdout
    (table,) = (here / "results").glob("*/table.csv")
    assert [line.rpartition(",")[2] for line in table.read_text().splitlines()[1:]] == list("220")
    assert call("report", "--check").exit_code == 0
    train("--set", "learning_rate=0.1", "--estimators", "exact")
    assert "failed to train" not in call("report", "--set", "learning_rate=0.1").stdout


@pytest.mark.parametrize(
    ("given", "every"),
    [([], None), (["--checkpoint-every", "0s"], 0.0), (["--checkpoint-every", "1m30s"], 90.0)],
)
def test_how_often_to_save_can_be_said(monkeypatch, given, every):
    seen = {}
    monkeypatch.setattr(execute, "execute", lambda *_, **options: seen.update(options) or Outcome())
    assert call("run", "tiny", "--device", "cpu", *given).exit_code == 0
    assert seen["stacks"].checkpoint_every == every


def test_a_terminal_shows_the_board(monkeypatch):
    # which is how rich is told of terminals that it does not know
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    result = train("--budget", "100s")
    for text in ("100%, 6 of 6 runs done", "run-steps/s", "the budget ends in", "expected loss"):
        assert text in result.stderr
    assert "tiny: 6 finished" in result.stdout
    assert "\x1b" not in result.stdout


# report and plot


def test_report_goes_from_runs_to_files_and_is_checked(here):
    train()
    # without names it takes what is done
    assert call("report", "-q").stdout == ""
    before = tree(here / "results")
    shown = call("report", "tiny").stdout
    assert "ReinMax" in shown
    assert "Wrote results/tiny" in shown
    assert tree(here / "results") == before
    files = {"claims.csv", "curves.csv", "report.html", "report.md", "runs.csv", "table.csv"}
    files |= {"reading.json", "checksums.json"}
    assert {path.name for path in (here / "results" / "tiny").iterdir()} == files
    checked = call("report", "--check")
    assert checked.exit_code == 0
    assert checked.stdout == "All tables of 1 recipe follow from their results.\n"
    shutil.rmtree(here / "results")
    (here / "results").write_text("a file")
    assert refused(call("report", "tiny"), "choose another directory with --results", code=1)


@pytest.mark.parametrize("name", ["runs.csv", "report.md"])
def test_check_finds_what_was_changed_or_cannot_be_read(here, name):
    train("--seeds", "1")
    call("report", "tiny", "-q")
    path = here / "results" / "tiny" / name
    path.write_bytes(path.read_bytes().replace(b"finished", b"diverged", 1).rstrip() + b" \n")
    assert refused(call("report", "--check"), name, "tiny", code=1)
    path.write_bytes(b"\xff\xfe")
    assert refused(call("report", "--check"), name, code=1)
    # results of an older version are read, and that is told
    if name == "runs.csv":
        shutil.rmtree(path.parent)
        call("report", "tiny", "-q")
        (path.parent / "checksums.json").unlink()
        assert refused(call("report", "--check"), "expected checksums.json", code=1)
        assert "expected checksums.json" in call("report", "tiny", "-q").stderr
        assert call("report", "--check").exit_code == 0


def test_report_of_a_few_keeps_results_that_only_the_folder_has(here):
    train()
    # what the store has can be had again
    call("report", "tiny", "--seeds", "1", "--estimators", "st")
    assert (here / "results" / "tiny" / "runs.csv").read_text().count("finished") == 1
    call("report", "tiny")
    before = tree(here / "results")
    shutil.rmtree(here / "runs")
    for options in ([], ["--seeds", "1"], ["--estimators", "exact"]):
        assert call("report", "tiny", *options).exit_code == 0
        assert tree(here / "results") == before
    # begun again and not done, or damaged, is not to be had from the store either
    train()
    for status in (here / "runs").rglob("status.json"):
        status.write_bytes(b"")
    assert call("report", "tiny", "--seeds", "5-5").exit_code == 0
    rows = (here / "results" / "tiny" / "runs.csv").read_text()
    assert (rows.count("finished"), rows.count("missing")) == (6, 3)


def test_results_of_other_settings_are_not_averaged_with_new_ones(here):
    """The recipe has changed for ReinMax only, and the old runs are not here."""
    train("--seeds", "3")
    call("report", "tiny", "--seeds", "3")
    old = {row.identity: row for row in read(here / "results" / "tiny").rows}
    before = tree(here / "results")
    shutil.move(here / "runs", here / "elsewhere")

    def build(estimator, seed):
        yield tiny(estimator, seed, tau=1.5 if estimator == "reinmax" else 1.0)

    tasks._extra["tiny"] = replace(TINY, build=build)
    train("--estimators", "reinmax", "--seeds", "3")
    for options in ([], ["--estimators", "reinmax"], ["--seeds", "3"]):
        report = call("report", "tiny", *options)
        assert refused(report, "got 3 with other settings", "(reinmax, seed 0)", "rename results/")
        assert tree(here / "results") == before
    # what the message says
    (here / "results" / "tiny").rename(here / "results" / "old")
    assert call("report", "tiny", "--seeds", "3", "-q").exit_code == 0
    (here / "results" / "old").rename(here / "old")
    assert call("report", "--check").exit_code == 0
    rows = read(here / "results" / "tiny").rows
    assert sorted(row.config["tau"] for row in rows) == [1.0] * 6 + [1.5] * 3
    assert all(row == old[row.identity] for row in rows if row.config["tau"] == 1.0)
    # where the store has the old runs, nothing is lost
    shutil.rmtree(here / "results")
    shutil.copytree(here / "old", here / "results" / "tiny")
    shutil.copytree(here / "elsewhere", here / "runs", dirs_exist_ok=True)
    assert call("report", "tiny", "-q").exit_code == 0
    assert len(read(here / "results" / "tiny").rows) == 6


def test_results_of_an_estimator_that_was_taken_out_of_a_file_stay(here):
    train()
    call("report", "tiny")
    shutil.rmtree(here / "runs")
    tasks._extra["tiny"] = replace(TINY, estimators=("st", "exact"), choices=("st", "exact"))
    assert call("report", "tiny", "-q").exit_code == 0
    rows = read(here / "results" / "tiny").rows
    assert {row.config["estimator"] for row in rows} == set(ESTIMATORS)


def test_report_writes_nothing_if_one_recipe_cannot_be_reported(here):
    train()
    result = call("report", "tiny", "polynomial-curves")
    assert refused(result, "expected runs of polynomial-curves")
    assert not (here / "results").exists()


def test_a_bare_report_takes_the_estimators_that_no_search_is_waited_for(here, monkeypatch):
    chosen = {"reinmax", "exact"}

    def build(estimator, seed):
        if estimator not in chosen:
            raise NotChosen(f"expected settings of {estimator}, got none; search first")
        yield tiny(estimator, seed, tau=0.9)

    waiting = replace(TINY, name="waiting", build=build)
    monkeypatch.setitem(tasks._extra, "waiting", waiting)
    train()
    some = ("waiting", "--estimators", "reinmax,exact")
    assert call("run", *some, "--device", "cpu").exit_code == 0
    assert call("report", *some).exit_code == 0
    before = tree(here / "results")
    assert refused(call("report", "waiting"), "settings of st, got none; search first")
    result = call("report")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Wrote results/tiny" in result.stdout
    assert tree(here / "results" / "waiting") == {
        name.removeprefix("waiting/"): x for name, x in before.items() if "/" in name
    }
    # nor is anything lost where no estimator has settings any more
    chosen.clear()
    before = tree(here / "results")
    result = call("report", "-q")
    assert result.exit_code == 0
    assert "waiting is left as it is: expected settings of exact, got none" in result.stderr
    assert tree(here / "results") == before


def test_report_says_why_a_run_cannot_be_read(here):
    train()
    first, *others = (Store(here / "runs").directory(run) for run in TINY.runs())
    next(first.glob("metrics-*")).write_bytes(b"")
    result = call("report", "tiny", "-q")
    assert result.exit_code == 1
    assert str(first.relative_to(here)) in result.stderr
    assert "move this directory away" in result.stderr
    rows = (here / "results" / "tiny" / "runs.csv").read_text()
    assert (rows.count("finished"), rows.count("damaged")) == (5, 1)
    for directory in others:
        next(directory.glob("metrics-*")).write_bytes(b"")
    assert "discretegrad: and 1 more" in call("report", "tiny", "-q").stderr


def test_no_number_is_cut_or_folded_in_a_pipe_or_a_narrow_terminal(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    train()
    text = call("report", "tiny").stdout
    assert "% above optimum" in text
    stream = io.StringIO()
    _, section = read_section(here / "results" / "tiny")
    show(section, Console(file=stream, width=48))
    for shown in (text, stream.getvalue()):
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown
        assert all(cell in shown for row in section.tables[0].rows for cell in row)


# data


@pytest.fixture
def small_data(monkeypatch):
    """A data set of one file of three bytes, at a source that is not there."""
    digest = "039058c6f2c0cb492c533b0a4d14ef77cc0f78abccced5287d84a1a2011cfb81"
    file = data.IdxFile("numbers", (3,), digest)
    small = data.DataSet("mnist", (file,), ("http://127.0.0.1:9/",))
    monkeypatch.setattr(data, "DATA_SETS", {"mnist": small})
    # the one that recipes need
    monkeypatch.setattr("discretegrad_lab.cli.data._needed", lambda: {"mnist": None})
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.usefixtures("small_data")
def test_data_are_checked(here):
    missing = call("data", "check")
    assert missing.exit_code == 1
    assert "missing" in missing.stdout
    assert "discretegrad data fetch mnist" in missing.stderr
    (here / "mine" / "mnist").mkdir(parents=True)
    (here / "mine" / "mnist" / "numbers").write_bytes(b"\x01\x02\x03")
    found = call("data", "check", "mnist", "--data", "mine")
    assert found.exit_code == 0
    assert "ok" in found.stdout
    assert "mine/mnist/numbers" in found.stdout


def test_data_that_no_recipe_needs_may_be_missing(monkeypatch):
    for state, code in (("missing", 0), ("damaged", 1)):
        files = [data.Report("mnist", "a", "ok", None), data.Report("other", "b", state, None)]
        monkeypatch.setattr(data, "check", lambda directory, files=files: files)
        checked = call("data", "check")
        assert (checked.exit_code, "other" in checked.stdout) == (code, code == 1)


@pytest.mark.usefixtures("small_data")
def test_data_are_fetched(here, monkeypatch):
    assert refused(call("data", "fetch", "--data", "mine"), "download", "copy the file", code=1)
    monkeypatch.setattr(data, "fetch", lambda name, directory, _: [directory / name / "numbers"])
    assert call("data", "fetch", "--data", "mine").stdout == "fetched mine/mnist/numbers\n"
    monkeypatch.setattr(data, "fetch", lambda *_: [])
    assert call("data", "fetch", "mnist").stdout == "mnist is there already\n"


# doctor


def test_data_that_no_run_reads_are_not_asked_for(here):
    few = ("run", "listops", "--dry-run", "--seeds", "1", "--estimators", "st")
    generated = ("--set", "data=generated", "--set", "examples=200")
    for options, missing in (((), True), (generated, False)):
        result = call(*few, *options)
        assert result.exit_code == 0
        assert ("discretegrad data fetch listops" in result.stdout) == missing
    bits = ("run", "bernoulli-vae-k2", "--dry-run", "--seeds", "1", "--estimators", "rodeo")
    shown = call(*bits, "--set", "data=omniglot").stdout
    assert "omniglot28.npz" in shown
    assert "data fetch mnist" in call(*bits).stdout


def test_doctor_says_what_there_is_and_what_to_do(monkeypatch, here):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "ray", None)
    result = call("doctor", "--runs", here / "new" / "runs")
    shown = " ".join(result.stdout.split())
    assert result.exit_code == 0
    for text in (
        f"torch {torch.__version__}",
        "none that torch can use Training runs on the CPU",
        "fused kernels only on GPUs",
        "data set mnist missing Run `discretegrad data fetch mnist`",
        'ray not installed For --engine ray: pip install "discretegrad[ray]"',
        f"matplotlib {metadata.version('matplotlib')}",
    ):
        assert text in shown
    assert re.search(r"new/runs: [\d.,]+ .?B free", shown)
    assert tree(here) == {}
    parts = {part["what"]: part for part in json.loads(call("doctor", "--json").stdout)}
    assert not any(part["broken"] for part in parts.values())


def test_doctor_says_what_is_broken(here):
    (here / "runs").write_text("a file")
    result = call("doctor")
    assert result.exit_code == 1
    assert result.stderr.endswith("got trouble with runs directory\n")
    place = here / "runs" / "below"
    assert machine.disk(place).state == f"{place}: cannot be written (Not a directory)"
    if not torch.cuda.is_available() and importlib.util.find_spec("triton"):
        kernels = machine.kernels()
        assert (kernels.broken, kernels.state[:6]) == (True, "fail: ")
        assert "compiler" in kernels.advice


@pytest.mark.gpu
def test_doctor_on_a_gpu():
    parts = {part.what: part for part in machine.hardware()}
    assert " free" in parts["GPU 0"].state
    assert parts["TF32"].state
    assert parts["fused kernels"].state.startswith("run (triton ")


# as a process of its own


def process(here, *arguments, before="", **options):
    """Start ``discretegrad``, after what ``before`` does."""
    code = textwrap.dedent(before) + textwrap.dedent(
        f"""
        import sys
        from discretegrad_lab.__main__ import main
        sys.argv = ["discretegrad", *{list(map(str, arguments))!r}]
        main()
        """
    )
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", **options}
    command = [sys.executable, "-W", "error", "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=here, env=environ, text=True, **pipes)


@pytest.mark.parametrize("missing", [["typer"], ["rich", "safetensors"]], ids="-".join)
def test_without_the_lab_packages_it_says_what_to_install(here, missing):
    hide = f"import sys\nsys.modules.update({dict.fromkeys(missing)!r})"
    out, error = process(here, "list", before=hide).communicate(timeout=60)
    assert out == ""
    assert error == (
        f"discretegrad: the command line needs {' and '.join(missing)}; install what it needs with "
        '`pip install "discretegrad[lab]"`\n'
    )


def test_a_terminal_that_knows_only_ascii(here):
    out, error = process(here, "doctor", PYTHONIOENCODING="ascii").communicate(timeout=120)
    assert "Traceback" not in error
    assert "? " in out


def test_an_interrupt_while_it_starts(here):
    before = """
        import sys

        class Interrupting:
            def find_spec(self, name, path, target=None):
                if name == "discretegrad_lab.cli":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupting())
    """
    running = process(here, "list", before=before)
    assert running.communicate(timeout=60) == ("", "")
    assert running.returncode == 130


def test_a_second_interrupt_says_what_is_lost(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "execute", interrupted)
    result = call("run", "tiny", "--device", "cpu", "--json")
    assert result.exit_code == 130
    last = lines(result.stdout)[-1]
    assert (last["event"], last["exit_code"]) == ("error", 130)
    assert result.stderr == "discretegrad: interrupted; runs go on from their last checkpoints\n"


def test_help_does_not_wait_for_torch(here):
    hide = "import sys\nsys.modules['torch'] = None"
    helped = process(here, "run", "--help", before=hide)
    out, error = helped.communicate(timeout=60)
    assert (helped.returncode, error) == (0, "")
    assert "--budget" in out


LONG = """
from dataclasses import replace
from discretegrad_lab import tasks
from lab_tiny import TINY, tiny

def build(estimator, seed):
    yield tiny(estimator, seed, steps_per_epoch=20, epochs=100000)

tasks.add_recipe(replace(TINY, name="long", build=build, seeds=(0,), estimators=("st",)))
"""


def test_an_interrupted_command_saves_and_goes_on(here, monkeypatch):
    # a line for each epoch
    before = f"{LONG}\nfrom discretegrad_lab.watch import board\nboard._EVERY = 0.0\n"
    running = process(here, "run", "long", "--device", "cpu", before=before)
    assert any(" at epoch " in line for line in iter(running.stderr.readline, ""))
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "discretegrad: stopping after this epoch; once more" in error
    assert "Interrupted; what was trained is saved" in out
    exec(LONG, {})
    monkeypatch.setitem(tasks._extra, "long", tasks._extra["long"])
    again = lines(call("run", "long", "--json", "--budget", "1s", "--device", "cpu").stdout)
    assert again[-1]["exit_code"] == 3
    assert next(event for event in again if event["event"] == "stack_started")["epoch"] > 0


# commands on pages


ROOT = Path(__file__).parents[1]
ON_PAGES = sorted(
    {
        command.partition("#")[0].strip()
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
        for command in block.replace("\\\n", " ").splitlines()
        if command.startswith("discretegrad ")
    }
)


@pytest.mark.parametrize("command", ON_PAGES)
def test_a_command_of_a_page_has_arguments_that_there_are(command):
    words, parser = shlex.split(command)[1:], typer.main.get_command(cli.app)
    while hasattr(parser, "commands") and not words[0].startswith("-"):
        group = parser.make_context(None, [*words], resilient_parsing=True)
        parser, *words = parser.get_command(group, words[0]), *words[1:]
    parser.make_context(None, words, resilient_parsing="--version" in words)
