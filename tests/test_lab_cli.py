"""The command line: what it prints, writes, refuses and returns, on runs of a few steps."""

import importlib.util
import inspect
import io
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from discretegrad_lab import (
    arguments,
    cli,
    cluster,
    data,
    display,
    doctor,
    environment,
    execute,
    recipes,
)
from discretegrad_lab.config import Polynomial
from discretegrad_lab.store import Store

ROOT = Path(__file__).resolve().parents[1]
ESTIMATORS = ("reinmax", "st", "exact")


def tiny(estimator, seed, **changes):
    options = {"latents": 4, "batch": 4, "steps_per_epoch": 2, "epochs": 2, **changes}
    return Polynomial(estimator=estimator, seed=seed, power=2.0, **options)


TINY = recipes.Recipe(
    name="tiny",
    title="A polynomial problem of four latents",
    reproduces="nothing",
    cost="6 runs of 4 steps",
    build=lambda estimator, seed: iter([tiny(estimator, seed)]),
    seeds=(0, 1),
    estimators=ESTIMATORS,
)


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path, tmp_path_factory):
    """An empty directory to work in, the tiny recipe, and no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(recipes.RECIPES, "tiny", TINY)
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


def tree(directory):
    """Every file below a directory with its content."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


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


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", [0, 1, 2]),
        ("0-2,7", [0, 1, 2, 7]),
        ("7-7", [7]),
        ("7,", [7]),
        (" 4 - 5 , 4 ", [4, 5]),
    ],
)
def test_seeds(text, seeds):
    assert arguments.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "a", "3-1", "1,,x", "-1", "1.5", "0-999999", ","])
def test_wrong_seeds(text):
    with pytest.raises(ValueError, match=r"expected .*seed"):
        arguments.parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("9m", 540), ("1.5h", 5400), ("1h30m", 5400), ("1H 2s".replace(" ", ""), 3602)],
)
def test_budgets(text, seconds):
    assert arguments.parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "9", "9 min", "m", "-9m", "0s", "30m1h", "inf", "nan"])
def test_wrong_budgets(text):
    with pytest.raises(ValueError, match="such as 90s, 9m or 1h30m"):
        arguments.parse_budget(text)


def test_estimators_are_found_whatever_their_case():
    assert arguments.parse_estimators("ReinMax, GST-p,reinmax") == ["reinmax", "gst-p"]


def test_auto_is_a_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert arguments.find_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert arguments.find_device("auto") == "cuda"


# help and list


@pytest.mark.parametrize(
    "command",
    [[], ["list"], ["run"], ["report"], ["plot"], ["data"], ["data", "fetch"], ["doctor"]],
    ids=" ".join,
)
def test_help_has_examples_and_exit_codes(command):
    shown = " ".join(call(*command, "--help").stdout.split())
    assert f"Examples: discretegrad {' '.join(command)}".strip() in shown
    for text in ("0 done", "1 something failed", "2 wrong usage", "3 work is left", "130 interrup"):
        assert text in shown


def test_list_says_what_there_is():
    shown = call("list").stdout
    for recipe in recipes.RECIPES.values():
        for text in (recipe.name, recipe.title, recipe.reproduces, recipe.cost, *recipe.data):
            assert text in shown
        assert f"{len(recipe.runs()):,} runs" in shown


def test_version():
    assert call("--version").stdout.strip() == metadata.version("discretegrad")


# run


def test_run_trains_and_the_second_time_finds_it_done(here):
    first = train("--runs", "stored")
    assert "tiny: 6 finished" in first.stdout
    assert "Next: discretegrad report tiny --runs stored" in first.stdout
    some = train("--runs", "two words", "--seeds", "5-5", "--estimators", "st").stdout
    again = some.partition("Next: discretegrad ")[2].strip()
    assert again == "report tiny --seeds 5-5 --estimators st --runs 'two words'"
    assert call(*shlex.split(again)).exit_code == 0
    store = Store(here / "stored")
    assert {store.status(run).state for run in TINY.runs()} == {"finished"}
    before = tree(here)
    assert "tiny: 6 done before" in train("--runs", "stored").stdout
    assert tree(here) == before


def test_seeds_and_estimators_are_selected(here):
    train("--seeds", "5-5", "--estimators", "st,exact")
    assert set(Store(here / "runs").runs()) == {tiny("st", 5), tiny("exact", 5)}


def test_progress_is_plain_lines_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(display, "_LINES_EVERY", 0.0)
    monkeypatch.setattr(display.Lines.__init__, "__defaults__", (0.0,))
    result = train()
    assert "\x1b" not in result.stderr
    said = result.stderr.splitlines()
    assert said[0] == "6 runs to train, 0 done before"
    assert said[1] == "training 6 members of polynomial for 2 epochs of 2 steps"
    assert said[2].startswith("50%, 0 of 6 runs done, 6 members at epoch 1 of 2, ")
    assert "run-steps/s" in said[2]
    assert " left; ReinMax loss 0." in said[2]
    assert said[-1].startswith("6 members finished: ReinMax loss 0.")


def test_quiet_says_nothing():
    result = train("--quiet")
    assert (result.stdout, result.stderr) == ("", "")


def test_json_is_one_object_for_each_event():
    events = lines(train("--json").stdout)
    assert {event.get("stack", 1) for event in events} == {1}
    kinds = [event["event"] for event in events]
    assert kinds == [
        "planned",
        "stack_started",
        "epoch_done",
        "epoch_done",
        "checkpointed",
        "stack_finished",
        "outcome",
    ]
    members = [member["run"] for member in events[1]["members"]]
    assert sorted(members) == sorted(run.identity for run in TINY.runs())
    for event in events[2:4]:
        assert set(event["metrics"]) == {"loss", "expected_loss"}
        assert {len(values) for values in event["metrics"].values()} == {6}
        assert event["run_steps_per_second"] == pytest.approx(12 / event["seconds"])
    outcome = events[-1]
    assert sorted(outcome["finished"]) == sorted(members)
    assert outcome["complete"]
    assert outcome["exit_code"] == 0


def test_json_has_no_word_for_nan(capsys):
    display.Json(sys.stdout).epoch_done(1, {"loss": [1.0, math.nan, math.inf]}, 1.0)
    assert json.loads(capsys.readouterr().out)["metrics"]["loss"] == [1.0, None, None]


def test_largest_stack():
    events = lines(train("--json", "--largest-stack", "4").stdout)
    sizes = [len(event["members"]) for event in events if event["event"] == "stack_started"]
    assert sizes == [3, 3]


def test_dry_run_says_what_would_be_done_and_changes_nothing(here):
    result = call("run", "tiny", "--dry-run", "--device", "cpu", "--largest-stack", 3)
    assert result.exit_code == 0
    assert "tiny on cpu: 6 runs to train in 2 stacks, 0 done before, 0 damaged." in result.stdout
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
    again = call("run", "tiny", "--dry-run", "--device", "cpu").stdout
    assert "Time: about " in again
    assert "not known" not in again


def test_time_of_stacks_that_were_never_measured_is_scaled():
    def stack(steps, size, seconds):
        return execute.StackEstimate((tiny("st", 0),), 0, size, steps, seconds)

    plan = execute.Estimate((stack(20, 10, 6.0), stack(10, 40, None)), (), {})
    # 20 steps at 10 bytes take 6 s, so 10 at 40 take 12
    assert cli._seconds(plan) == pytest.approx(18.0)
    assert cli._seconds(execute.Estimate((stack(20, 10, None),), (), {})) is None


def outcome(**fields):
    run = tiny("st", 0)
    fields = {name: (run,) if value is True else value for name, value in fields.items()}
    if fields.get("damaged"):
        fields["damaged"] = {run: "expected a file, got none; put it back"}
    return execute.Outcome(**fields)


CODES = [
    (outcome(finished=True), 0),
    (outcome(diverged=True, already=True), 0),
    (outcome(damaged=True, stopped=True, stopped_by="budget"), 1),
    (outcome(damaged=True), 1),
    (outcome(stopped=True, stopped_by="budget"), 3),
    (outcome(elsewhere=True), 3),
    (outcome(finished=True, stopped_by="budget"), 0),
    (outcome(stopped=True, damaged=True, stopped_by="SIGTERM"), 130),
    (outcome(stopped=True, stopped_by="SIGINT"), 130),
]


@pytest.mark.parametrize(("found", "code"), CODES)
def test_exit_codes(monkeypatch, found, code):
    monkeypatch.setattr(execute, "execute", lambda *_, **__: found)
    assert call("run", "tiny", "--device", "cpu", "-q").exit_code == code
    event = lines(call("run", "tiny", "--device", "cpu", "--json").stdout)[-1]
    assert (event["event"], event["exit_code"]) == ("outcome", code)


def test_a_budget_that_ends_leaves_work_for_the_next_command(here):
    result = call("run", "tiny", "--device", "cpu", "--budget", "0.000001s")
    assert result.exit_code == 3
    assert "6 left" in result.stdout
    assert "The budget ended" in result.stdout
    train()


def test_an_epoch_that_was_given_up_is_told(monkeypatch):
    outcome = execute.Outcome(stopped=(tiny("st", 0),), stopped_by="budget", abandoned=True)
    monkeypatch.setattr(execute, "execute", lambda *_, **__: outcome)
    result = call("run", "tiny", "--device", "cpu", "--budget", "1s")
    assert result.exit_code == 3
    assert "An epoch was given up" in result.stdout
    events = lines(call("run", "tiny", "--device", "cpu", "--budget", "1s", "--json").stdout)
    assert events[-1]["abandoned"] is True


def test_a_damaged_run_is_named_and_the_others_are_trained(here):
    train()
    store = Store(here / "runs")
    broken = TINY.runs()[0]
    shutil.rmtree(store.directory(TINY.runs()[1]))
    next(store.directory(broken).glob("metrics-*")).write_text("nonsense")
    result = call("run", "tiny", "--device", "cpu", "-q")
    assert refused(result, broken.identity, "metrics-2.csv", "move this directory away", code=1)
    assert store.status(TINY.runs()[1]).state == "finished"


def test_ray_gets_what_the_local_engine_gets(monkeypatch, here):
    found = {}

    def fake(runs, root, **options):
        found.update(options, runs=runs, root=root)
        options["listener"].planned([], runs)
        return execute.Outcome(finished=tuple(runs))

    monkeypatch.setattr(cluster, "execute", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    options = ("--engine", "ray", "--ray-address", "there:1", "--budget", "9m", "--device", "cuda")
    result = call("run", "tiny", *options, "--largest-stack", 2, "--data", "images", "--json")
    assert result.exit_code == 0
    assert found.pop("runs") == TINY.runs()
    del found["listener"]
    assert found == {
        "root": Path("runs"),
        "address": "there:1",
        "device": "cuda",
        "data": Path("images"),
        "budget": 540.0,
        "largest_stack": 2,
    }
    assert [event["event"] for event in lines(result.stdout)] == ["planned", "outcome"]


def test_trouble_with_a_cluster_is_a_paragraph(monkeypatch):
    def fails(*_, **__):
        raise cluster.ClusterError("expected a Ray cluster, got none; start one")

    monkeypatch.setattr(cluster, "execute", fails)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert refused(call("run", "tiny", "--engine", "ray", "-q"), "start one", code=1)


# what is refused


BAD = {
    "recipe": (["run", "tyni"], ["got 'tyni'; did you mean tiny?", "discretegrad list"]),
    "estimator": (
        ["run", "tiny", "--estimators", "st,reinmx"],
        ["got 'reinmx'; did you mean reinmax?"],
    ),
    "no estimator": (["run", "tiny", "--estimators", ","], ["leave the option out"]),
    "estimator of another recipe": (
        ["run", "vae-10x30", "--estimators", "rodeo"],
        ["estimators of", "for vae-10x30", "'rodeo'"],
    ),
    "seeds": (["run", "tiny", "--seeds", "x"], ["0-4,7"]),
    "large seed": (["run", "tiny", "--seeds", f"{2**31},"], ["2**31 - 1"]),
    "budget": (["run", "tiny", "--budget", "9"], ["9m"]),
    "kind of device": (["run", "tiny", "--device", "tpu"], ["cpu or cuda", "tpu"]),
    "device of a cluster": (
        ["run", "tiny", "--engine", "ray", "--device", "cuda:1"],
        ["auto, cpu or cuda", "'cuda:1'"],
    ),
    "ray address": (["run", "tiny", "--ray-address", "auto"], ["--engine ray"]),
    "quiet json": (["run", "tiny", "--quiet", "--json"], ["--quiet and --json"]),
    "report": (["report", "tiny"], ["runs of tiny in runs", "discretegrad run tiny", "--runs"]),
    "no report": (["report"], ["whose runs are all done", "name a recipe"]),
    "report of nothing": (["report", "tyni"], ["did you mean tiny?"]),
    "check of nothing": (["report", "--check"], ["below results, got none", "--results"]),
    "check of one": (["report", "tiny", "--check"], ["expected no recipe with --check"]),
    "plot": (["plot", "tiny"], ["discretegrad report tiny"]),
    "plot of nothing": (["plot"], ["discretegrad report"]),
    "data": (["data", "fetch", "mnits"], ["did you mean mnist?"]),
    "data check": (["data", "check", "imagenet"], ["mnist", "imagenet"]),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_bad_input(here, arguments, words):
    result = call(*arguments)
    if "--json" in arguments:
        assert lines(result.stdout)[-1]["event"] == "error"
        result = SimpleNamespace(exit_code=result.exit_code, stdout="", stderr=result.stderr)
    assert refused(result, *words)
    assert tree(here) == {}


def test_a_gpu_that_is_not_there(monkeypatch, here):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refused(call("run", "tiny", "--device", "cuda"), "no CUDA GPU", "choose the device cpu")
    assert tree(here) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "tiny", "--largest-stack", "0"],
        ["run", "tiny", "--engine", "slurm"],
        ["run", "tiny", "--nonsense"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage(here, arguments):
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert tree(here) == {}


def test_missing_data(here, monkeypatch):
    arguments = ("run", "vae-10x30", "--device", "cpu", "--seeds", "1", "--data", "nowhere")
    assert refused(call(*arguments), "mnist", "nowhere", "discretegrad data fetch mnist")
    planned = call(*arguments, "--dry-run")
    assert planned.exit_code == 0
    assert "discretegrad data fetch mnist" in planned.stdout
    assert tree(here) == {}


def test_a_full_disk(here, monkeypatch):
    full = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    result = call("run", "tiny", "--device", "cpu")
    assert refused(result, "free space", "choose another results directory", code=1)
    assert tree(here) == {}


def test_a_runs_directory_that_is_a_file(here):
    (here / "runs").write_text("mine")
    result = call("run", "tiny", "--device", "cpu", "-q")
    assert refused(result, "expected a directory as --runs, got the file runs")
    assert tree(here) == {"runs": b"mine"}


def test_results_of_a_newer_version(here, monkeypatch):
    from discretegrad_lab import store

    with monkeypatch.context() as future:
        future.setattr(store, "FORMAT", store.FORMAT + 1)
        train()
    before = tree(here)
    for command in (["run", "tiny", "--device", "cpu", "-q"], ["report", "tiny"]):
        assert refused(call(*command), "install the discretegrad that wrote it")
    assert refused(call("run", "tiny", "--device", "cpu", "--dry-run"), "version")
    assert tree(here) == before


def test_memory_that_is_not_enough_for_one(monkeypatch):
    def fails(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore text.")

    monkeypatch.setattr(execute, "execute", fails)
    result = call("run", "tiny", "--device", "cpu", "-q")
    assert refused(result, "9 GiB.", "another --device", code=1)
    assert "More text" not in result.stderr


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("ray", ["run", "tiny", "--engine", "ray"]),
        ("tensorboard", ["run", "tiny", "--tensorboard", "events"]),
        ("matplotlib", ["plot"]),
    ],
)
def test_a_package_that_is_missing(monkeypatch, here, package, arguments):
    found = [name for name in sys.modules if name.split(".")[0] == package]
    for name in (*found, package):
        monkeypatch.setitem(sys.modules, name, None)
    extra = "lab" if package == "matplotlib" else package
    assert refused(call(*arguments), f'pip install "discretegrad[{extra}]"')
    assert tree(here) == {}


# tensorboard


def scalars(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path))
    events.Reload()
    return {
        tag: [(one.step, one.value) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_files_have_the_metrics_of_every_run(here):
    train("--tensorboard", "events")
    store = Store(here / "runs")
    folders = list((here / "events" / "polynomial").iterdir())
    assert len(folders) == 6
    for run in TINY.runs():
        (folder,) = (one for one in folders if one.name.endswith(run.identity[:8]))
        assert folder.name.startswith(f"{run.estimator}-tau1-lr0.001-seed{run.seed}-")
        rows = store.metrics(run)
        assert scalars(folder) == {
            name: [(2 * row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in rows]
            for name in ("loss", "expected_loss")
        }


def test_tensorboard_forgets_what_a_resumed_run_does_again(here):
    from discretegrad_lab.tensorboard import EventFiles

    run = tiny("st", 0, epochs=9)
    for epoch, values in ((0, (5.0, 4.0)), (1, (3.0, math.nan, 2.0))):
        files = EventFiles(here / "events")
        files.stack_started((run,), epoch, 9, 10)
        for number, value in enumerate(values, epoch + 1):
            files.epoch_done(number, {"loss": [value]}, 1.0)
        files.stack_finished((run,), 0)
    assert files.problem == ""
    assert scalars(files.path(run).parent) == {"loss": [(10, 5.0), (20, 3.0), (40, 2.0)]}


def test_tensorboard_tells_stacks_side_by_side_apart(here, clock):
    from discretegrad_lab.tensorboard import EventFiles

    files = EventFiles(here / "events")
    stacks = side_by_side(display.Together(files), clock)
    files.write()
    for number, (run,) in enumerate(stacks):
        expected = [(10, 10.0 * number + 1), (20, 10.0 * number + 2)]
        assert scalars(files.path(run).parent) == {"loss": expected}


def test_tensorboard_files_that_cannot_be_written(here):
    (here / "events").write_text("a file")
    result = call("run", "tiny", "--device", "cpu", "--tensorboard", "events")
    assert refused(result, "TensorBoard files in events", "choose another directory")
    assert not (here / "runs").exists()


def test_training_goes_on_if_tensorboard_files_cannot_be_written_later(here):
    (here / "events").mkdir()
    (here / "events" / "polynomial").write_text("a file")
    result = call("run", "tiny", "--device", "cpu", "--json", "--tensorboard", "events")
    assert result.exit_code == 1
    assert "TensorBoard files in events" in result.stderr
    outcome = lines(result.stdout)[-1]
    assert (len(outcome["finished"]), outcome["exit_code"]) == (6, 1)
    assert outcome["problems"] == [result.stderr.removeprefix("discretegrad: ").strip()]


# the board


def board(**options):
    from rich.console import Console

    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=120)
        return display.Board(console, **options)


def rendered(shown):
    from rich.console import Console

    console = Console(width=140)
    with console.capture() as capture:
        console.print(shown.render())
    return capture.get()


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until its ``now`` is set."""
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(display, "time", clock)
    return clock


def test_board_shows_members_speed_time_left_and_losses(clock):
    shown = board(budget=100.0)
    runs = (tiny("reinmax", 0), tiny("st", 0), tiny("st", 1))
    others = (tiny("exact", 0), tiny("exact", 1))
    shown.planned([], [*runs, *others])
    assert "looking at the stored runs" in rendered(shown)
    shown.stack_started(runs, 0, 2, 50)
    clock.now += 3
    shown.epoch_done(1, {"train": [1.0, 2.0, math.nan], "test": [math.nan] * 3}, 3.0)
    text = rendered(shown)
    # 3 of 10 epochs took 3 s
    assert "30%, 0 of 5 runs done, 3 members at epoch 1 of 2, 50 run-steps/s, 7.0 s left" in text
    assert "the budget ends in 1 min 37 s" in text
    titles = [line.split() for line in text.splitlines()]
    assert ["ReinMax", "1"] in titles
    assert ["ST", "2", "1", "diverged"] in titles
    shown.epoch_done(2, {"train": [0.5, 1.5, math.nan], "test": [7.0, 8.0, math.nan]}, 3.0)
    assert ["ReinMax", "0.5", "7"] in [line.split() for line in rendered(shown).splitlines()]
    shown.stack_finished(runs, 2)
    assert "60%, 3 of 5 runs done" in rendered(shown)


def side_by_side(listener, clock):
    """Two stacks of one run, as a cluster tells of them: one second an epoch, 10 steps each."""
    stacks = [(tiny("reinmax", 0, epochs=4),), (tiny("st", 0, epochs=4),)]
    listener.planned([], [run for stack in stacks for run in stack])
    for stack in stacks:
        listener.stack_started(stack, 0, 4, 10)
    for epoch in (1, 2):
        clock.now += 1
        for number, stack in enumerate(stacks):
            listener.stack_again(stack, epoch - 1, 4, 10)
            listener.epoch_done(epoch, {"loss": [10.0 * number + epoch]}, 1.0)
    return stacks


def test_stacks_side_by_side_have_one_speed_and_their_own_losses(clock):
    tally = display.Tally()
    stacks = side_by_side(tally, clock)
    assert tally.run_steps_per_second == pytest.approx(20.0)
    assert tally.seconds_left == pytest.approx(2.0)
    assert tally.losses == {"st": {"loss": 12.0}}
    tally.stack_again(stacks[0], 2, 4, 10)
    assert tally.losses == {"reinmax": {"loss": 2.0}}
    assert (tally.share, tally.runs) == (0.5, 2)


def test_epochs_that_are_told_of_at_once_were_not_trained_at_once(clock):
    tally = display.Tally()
    tally.stack_started((tiny("st", 0, epochs=9),), 0, 9, 10)
    for epoch in range(1, 5):
        tally.epoch_done(epoch, {"loss": [1.0]}, 1.0)
    assert tally.run_steps_per_second == pytest.approx(10.0)


def test_json_numbers_stacks_side_by_side(clock, capsys):
    side_by_side(display.Together(display.Json(sys.stdout), display.Tally()), clock)
    events = lines(capsys.readouterr().out)
    found = [(one["event"], one["stack"], one.get("epoch")) for one in events[1:]]
    started = [("stack_started", 1, 0), ("stack_started", 2, 0)]
    assert found == started + [("epoch_done", n, e) for e in (1, 2) for n in (1, 2)]


def test_tally_leaves_out_what_was_done_before_or_is_lost():
    tally = display.Tally()
    runs = tuple(tiny("st", seed, epochs=10) for seed in range(3))
    tally.planned([], runs)
    assert (tally.runs, tally.left) == (3, 30)
    tally.run_elsewhere(runs[2])
    assert (tally.runs, tally.left) == (2, 20)
    tally.stack_started(runs, 8, 10, 5)
    assert (tally.runs, tally.left) == (3, 6)
    tally.run_damaged(runs[0], "broken")
    assert (tally.runs, tally.left) == (2, 4)


def test_a_terminal_shows_the_board(monkeypatch):
    # which is how rich is told of terminals that it does not know
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    result = train("--budget", "100s")
    for text in ("100%, 6 of 6 runs done", "run-steps/s", "the budget ends in", "expected loss"):
        assert text in result.stderr
    assert "tiny: 6 finished" in result.stdout
    assert "\x1b" not in result.stdout


def test_board_says_what_is_left_alone(capsys):
    from rich.console import Console

    with display.Board(Console(force_terminal=True, width=100)) as shown:
        shown.run_damaged(tiny("st", 0), "expected [this], got none")
    assert "left alone: expected [this], got none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3725, "1 h 2 min")],
)
def test_durations(seconds, text):
    assert display.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (36.7e6, "36.7 MB"), (64.5e9, "64.5 GB")],
)
def test_sizes(count, text):
    assert display.size(count) == text


# report and plot


def test_report_goes_from_runs_to_files_and_is_checked(here):
    train()
    shown = call("report", "tiny").stdout
    assert "ReinMax" in shown
    assert "Wrote results/tiny" in shown
    files = {"claims.csv", "curves.csv", "report.html", "report.md", "runs.csv", "table.csv"}
    assert {path.name for path in (here / "results" / "tiny").iterdir()} == files
    checked = call("report", "--check")
    assert (checked.exit_code, checked.stdout) == (
        0,
        "All tables of 1 recipe follow from their results.\n",
    )


def test_report_without_names_takes_what_is_done(here):
    train("--seeds", "1")
    assert refused(call("report"), "name a recipe")
    train()
    assert call("report", "-q").stdout == ""
    assert (here / "results" / "tiny" / "report.md").exists()


@pytest.mark.parametrize("name", ["runs.csv", "table.csv", "report.md", "report.html"])
def test_check_finds_a_changed_file(here, name):
    train()
    call("report", "tiny")
    path = here / "results" / "tiny" / name
    text = path.read_text()
    changed = text.replace("finished", "diverged", 1) if name == "runs.csv" else text + "more\n"
    path.write_text(changed)
    assert refused(
        call("report", "--check"), f"tiny/{name}" if name != "runs.csv" else "tiny/", code=1
    )


def test_check_names_a_file_that_is_not_there(here):
    train()
    call("report", "tiny")
    (here / "results" / "tiny" / "claims.csv").unlink()
    assert refused(call("report", "--check"), "tiny/claims.csv", "no such file", code=1)


def test_report_keeps_results_of_runs_that_are_not_here(here):
    train()
    call("report", "tiny")
    before = tree(here / "results")
    shutil.rmtree(here / "runs")
    assert call("report").exit_code == 0
    assert tree(here / "results") == before
    # of one that is here only in part, too
    train("--seeds", "1")
    started = Store(here / "runs")
    shutil.rmtree(started.directory(tiny("st", 0)))
    assert call("report", "tiny").exit_code == 0
    rows = (here / "results" / "tiny" / "runs.csv").read_text()
    assert rows.count("finished") == 6


def test_report_of_more_seeds(here):
    train("--seeds", "3")
    call("report", "tiny", "--seeds", "3", "--estimators", "st")
    assert (here / "results" / "tiny" / "runs.csv").read_text().count("finished") == 3


def test_report_of_a_few_keeps_results_that_only_the_folder_has(here):
    train()
    call("report", "tiny")
    before = tree(here / "results")
    # what the store has can be had again
    call("report", "tiny", "--seeds", "1", "--estimators", "st")
    assert (here / "results" / "tiny" / "runs.csv").read_text().count("finished") == 1
    call("report", "tiny")
    assert tree(here / "results") == before
    shutil.rmtree(here / "runs")
    for selection in (["--seeds", "1"], ["--estimators", "exact"]):
        assert call("report", "tiny", *selection).exit_code == 0
        assert tree(here / "results") == before
    # begun again and not done, or damaged, is not to be had from the store either
    train()
    for status in (here / "runs").rglob("status.json"):
        status.write_bytes(b"")
    assert call("report", "tiny", "--seeds", "5-5").exit_code == 0
    rows = (here / "results" / "tiny" / "runs.csv").read_text()
    assert (rows.count("finished"), rows.count("missing")) == (6, 3)


def test_report_writes_nothing_if_one_recipe_cannot_be_reported(here):
    train()
    result = call("report", "tiny", "polynomial-curves")
    assert refused(result, "expected runs of polynomial-curves")
    assert not (here / "results").exists()


def damage(here, estimator="st", seed=0):
    directory = Store(here / "runs").directory(tiny(estimator, seed))
    (metrics,) = directory.glob("metrics-*")
    metrics.write_bytes(b"")
    return directory


def test_report_says_why_a_run_cannot_be_read(here):
    train()
    directory = damage(here)
    result = call("report", "tiny", "-q")
    assert result.exit_code == 1
    assert str(directory.relative_to(here)) in result.stderr
    assert "move this directory away" in result.stderr
    rows = (here / "results" / "tiny" / "runs.csv").read_text()
    assert (rows.count("finished"), rows.count("damaged")) == (5, 1)
    for seed in range(2):
        for estimator in ESTIMATORS:
            damage(here, estimator, seed)
    assert "discretegrad: and 1 more" in call("report", "tiny", "-q").stderr


def test_a_damaged_run_is_explained_once(here):
    train()
    damage(here)
    for options in ([], ["-q"]):
        result = call("run", "tiny", "--device", "cpu", *options)
        assert result.exit_code == 1
        assert result.stderr.count("move this directory away") == 1


def test_errors_of_the_store_are_not_about_the_results(here, monkeypatch):
    from discretegrad_lab import store

    train()

    def metrics(self, run):
        raise store.StoreError("expected to read a run, got: Permission denied; look at it")

    monkeypatch.setattr(store.Store, "metrics", metrics)
    result = call("report", "tiny")
    assert refused(result, "expected to read a run", code=1)
    assert "--results" not in result.stderr


@pytest.mark.parametrize("name", ["runs.csv", "claims.csv", "report.html"])
def test_check_explains_what_it_cannot_read(here, name):
    train()
    call("report", "tiny")
    path = here / "results" / "tiny" / name
    path.unlink()
    path.mkdir()
    result = call("report", "--check")
    assert refused(result, "expected", name, code=1)


def test_check_finds_a_page_that_is_no_text(here):
    train()
    call("report", "tiny")
    for name in ("report.html", "report.md"):
        path = here / "results" / "tiny" / name
        before = path.read_bytes()
        path.write_bytes(b"\xff\xfe")
        assert refused(call("report", "--check"), name, code=1)
        path.write_bytes(before)


def test_tables_are_wide_where_there_is_no_terminal(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    train()
    text = call("report", "tiny").stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "% above optimum" in text


def test_a_narrow_terminal_cuts_no_number(here):
    from rich.console import Console

    from discretegrad_lab import report, results

    train()
    call("report", "tiny")
    stream = io.StringIO()
    found = results.read(here / "results" / "tiny")
    report.show(report.section(found), Console(file=stream, width=40))
    assert "\N{HORIZONTAL ELLIPSIS}" not in stream.getvalue()


def test_results_that_cannot_be_written(here):
    train()
    (here / "results").write_text("a file")
    assert refused(call("report", "tiny"), "choose another directory with --results", code=1)


def test_plot_draws_a_picture(here):
    train()
    call("report", "tiny")
    for names in ([], ["tiny"]):
        assert "Wrote results/tiny/curves.png" in call("plot", *names).stdout
        picture = here / "results" / "tiny" / "curves.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


# data


@pytest.fixture
def small_data(monkeypatch):
    """A data set of one file of three bytes, at a source that is not there."""
    digest = "039058c6f2c0cb492c533b0a4d14ef77cc0f78abccced5287d84a1a2011cfb81"
    file = data.IdxFile("numbers", (3,), digest)
    small = data.DataSet("mnist", (file,), ("http://127.0.0.1:9/",))
    monkeypatch.setattr(data, "DATA_SETS", {"mnist": small})
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
    (here / "mine" / "mnist" / "numbers").write_bytes(b"\x01\x02\x04")
    damaged = call("data", "check", "--data", "mine")
    assert damaged.exit_code == 1
    assert "damaged" in damaged.stdout


def test_data_that_no_recipe_needs_may_be_missing(here, monkeypatch):
    assert call("data", "check", "fashion-mnist").exit_code == 1
    states = [
        data.Report("mnist", "a", "ok", None),
        data.Report("fashion-mnist", "b", "missing", None),
    ]
    monkeypatch.setattr(data, "check", lambda directory: states)
    found = call("data", "check")
    assert found.exit_code == 0
    assert "fashion" not in found.stdout
    states[1] = data.Report("fashion-mnist", "b", "damaged", None)
    assert call("data", "check").exit_code == 1


@pytest.mark.usefixtures("small_data")
def test_data_are_fetched(here, monkeypatch):
    assert refused(call("data", "fetch", "--data", "mine"), "download", "copy the file", code=1)
    monkeypatch.setattr(data, "fetch", lambda name, directory, _: [directory / name / "numbers"])
    assert call("data", "fetch", "--data", "mine").stdout == "fetched mine/mnist/numbers\n"
    monkeypatch.setattr(data, "fetch", lambda *_: [])
    assert call("data", "fetch", "mnist").stdout == "mnist is there already\n"


# doctor


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
        f"new/runs: {display.size(shutil.disk_usage(here).free)[:2]}",
        "data set mnist missing `discretegrad data fetch mnist`",
        'ray not installed For --engine ray: pip install "discretegrad[ray]"',
        f"matplotlib {metadata.version('matplotlib')}",
    ):
        assert text in shown
    assert tree(here) == {}


def test_doctor_fails_where_runs_cannot_be_written(here):
    (here / "runs").write_text("a file")
    result = call("doctor")
    assert result.exit_code == 1
    assert "cannot be written" in result.stdout
    assert result.stderr.endswith("got trouble with runs directory\n")


def test_doctor_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    properties = SimpleNamespace(total_memory=100e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(environment, "device_name", lambda name: f"[{name}]")
    free = {"cpu": 1e9, "cuda:0": 90e9, "cuda:1": 10e9}
    monkeypatch.setattr(environment, "free_memory", free.get)
    monkeypatch.setattr(doctor, "_kernels", lambda: doctor.Finding("fused kernels", "run"))
    found = {one.what: one for one in doctor._hardware()}
    assert found["GPU 0"] == doctor.Finding("GPU 0", "[cuda:0], 90.0 GB of 100.0 GB free")
    assert found["GPU 1"].advice == "Something else uses most of its memory."
    assert found["TF32"].advice
    assert found["fused kernels"].found == "run"


def test_doctor_says_why_kernels_fail():
    if torch.cuda.is_available():
        pytest.skip("they run here")
    found = doctor._kernels()
    assert found.broken
    assert found.found.startswith("fail: ")
    assert "compiler" in found.advice


@pytest.mark.gpu
def test_doctor_runs_a_kernel():
    assert doctor._kernels().found.startswith("run (triton ")


# as a process of its own


def process(here, *arguments, before="", **options):
    """Start ``discretegrad`` with the tiny recipe, or whatever ``before`` does first."""
    code = textwrap.dedent(before) + textwrap.dedent(
        f"""
        import sys
        from discretegrad_lab.__main__ import main
        sys.argv = ["discretegrad", *{list(map(str, arguments))!r}]
        main()
        """
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **options}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        cwd=here,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("missing", [["typer"], ["rich", "safetensors"]], ids="-".join)
def test_without_the_lab_packages_it_says_what_to_install(here, missing):
    hide = f"import sys\nsys.modules.update({dict.fromkeys(missing)!r})"
    out, error = process(here, "list", before=hide).communicate(timeout=60)
    assert out == ""
    assert error == (
        f"discretegrad: the command line needs {' and '.join(missing)}; install what it needs with "
        '`pip install "discretegrad[lab]"`\n'
    )


def test_a_reader_that_leaves_is_no_error(here):
    with process(here, "list") as running:
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 1


def test_a_terminal_that_knows_only_ascii(here):
    running = process(here, "list", before="import sys", PYTHONIOENCODING="ascii")
    out, error = running.communicate(timeout=60)
    assert (running.returncode, error) == (0, "")
    running = process(here, "doctor", PYTHONIOENCODING="ascii")
    out, error = running.communicate(timeout=120)
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


def long_recipe():
    """A single run that takes an hour; its source goes to another process too."""
    from discretegrad_lab import recipes
    from discretegrad_lab.config import Polynomial

    def build(estimator, seed):
        sizes = {"latents": 4, "batch": 4, "steps_per_epoch": 20, "epochs": 100000}
        yield Polynomial(estimator=estimator, seed=seed, **sizes)

    return recipes.Recipe(
        name="long", title="", reproduces="", cost="", build=build, seeds=(0,), estimators=("st",)
    )


LONG = (
    inspect.getsource(long_recipe)
    + """
from discretegrad_lab import recipes
recipes.RECIPES["long"] = long_recipe()
"""
)


def test_an_interrupted_command_saves_and_goes_on(here, monkeypatch):
    running = process(here, "run", "long", "--json", "--device", "cpu", before=LONG)
    kinds = []
    while "epoch_done" not in kinds:
        kinds.append(json.loads(running.stdout.readline())["event"])
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=60)
    assert (running.returncode, error) == (130, "")
    last = lines(out)[-1]
    assert (last["event"], last["stopped_by"], last["exit_code"]) == ("outcome", "SIGINT", 130)
    # without JSON it says so at once
    running = process(here, "run", "long", "--device", "cpu", before=LONG)
    while "epoch" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "discretegrad: stopping after this epoch; once more" in error
    monkeypatch.setitem(recipes.RECIPES, "long", long_recipe())
    again = lines(call("run", "long", "--json", "--budget", "1s", "--device", "cpu").stdout)
    assert again[-1]["exit_code"] == 3
    assert next(event for event in again if event["event"] == "stack_started")["epoch"] > 0
