"""Several processes on one device: the same results, signals, deaths, and what listeners hear."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discretegrad_lab import Listener, StackOptions, Store, execute, load_recipes, tasks
from discretegrad_lab.cli import app
from discretegrad_lab.runs import mps, processes
from lab_tiny import TINY

SWEEP = """
import os
from pathlib import Path

from discretegrad_lab import Recipe, Task, task
from discretegrad_lab.tasks.polynomial.config import Polynomial

plain = task("polynomial")
mark = Path(__file__).with_name("died")

class Deadly(Polynomial):
    task = "deadly"

def model(runs, device, data):
    made = plain.model(runs, device, data)
    begin = made.begin_epoch

    def die_once(epoch):
        if epoch == 1 and runs[0].seed == 0 and {die}:
            mark.touch()
            os.kill(os.getpid(), 9)
        begin(epoch)

    made.begin_epoch = die_once
    return made

DEADLY = Task(Deadly, model, plain.metrics, plain.memory)

def build(estimator, seed):
    yield Deadly(estimator=estimator, seed=seed, latents=4, batch=4, steps_per_epoch=2, epochs=3)

RECIPE = Recipe("deadly", "It dies", DEADLY, build, (0, 1), ("reinmax", "st"), ("expected_loss",))
"""
EVERY_EPOCH = StackOptions(largest_stack=1, checkpoint_every=0.0)


def sweep(folder, die="not mark.exists()"):
    """A recipe of four runs in a file, each file with a task of its own."""
    file = folder / "sweep.py"
    name = f"deadly{len(tasks.tasks())}"
    file.write_text(SWEEP.replace("{die}", die).replace('"deadly"', f'"{name}"'))
    (recipe,) = load_recipes(file)
    return recipe


class Notes(Listener):
    """What was told, and a signal after the first epoch if that is wanted."""

    def __init__(self, number=None):
        self.number, self.epochs, self.stacks = number, [], []

    def stack_started(self, runs, epoch, epochs, steps_per_epoch):
        self.stacks.append((runs, epoch))

    def stack_again(self, *arguments):
        pass

    def epoch_done(self, epoch, metrics, seconds):
        self.epochs.append(epoch)
        if self.number is not None:
            signal.raise_signal(self.number)
            self.number = None


def metrics_of(runs, store):
    return [store.metrics(run) for run in runs]


def trained_alone(runs, folder):
    """What the runs measure where nothing happens."""
    (folder / "died").touch()
    execute(runs, Store(folder / "alone"), stacks=EVERY_EPOCH)
    (folder / "died").unlink()
    return metrics_of(runs, Store(folder / "alone"))


def test_a_process_that_dies_changes_nothing_but_the_time(tmp_path, caplog):
    runs = sweep(tmp_path).runs()
    expected = trained_alone(runs, tmp_path)
    notes = Notes()
    root = tmp_path / "runs"
    outcome = processes.execute(runs, root, processes=2, stacks=EVERY_EPOCH, listener=notes)
    assert outcome.complete
    assert {*outcome.finished} == {*runs}
    assert (tmp_path / "died").exists()
    assert "was killed by signal 9" in caplog.text
    assert metrics_of(runs, Store(root)) == expected
    # each began once, and the one that died twice
    assert len(notes.stacks) == len(runs) + 1
    assert {run for stack, _ in notes.stacks for run in stack} == {*runs}


@pytest.mark.slow
def test_a_signal_saves_and_stops_all_processes(tmp_path):
    runs = sweep(tmp_path).runs()
    expected = trained_alone(runs, tmp_path)
    (tmp_path / "died").touch()
    root, options = tmp_path / "runs", {"processes": 2, "stacks": EVERY_EPOCH}
    outcome = processes.execute(runs, root, listener=Notes(signal.SIGINT), **options)
    assert outcome.stopped_by == "SIGINT"
    assert len(outcome.stopped) >= 2
    assert not outcome.damaged
    assert processes.execute(runs, root, **options).complete
    assert metrics_of(runs, Store(root)) == expected


@pytest.mark.slow
def test_a_stack_that_always_kills_its_process_is_reported_and_the_others_are_trained(tmp_path):
    recipe = sweep(tmp_path, die="True")
    runs = recipe.runs()
    with pytest.raises(processes.ProcessLost, match=r"3 processes died with it.*signal 9"):
        processes.execute(runs, tmp_path / "runs", processes=2, stacks=EVERY_EPOCH)
    store = Store(tmp_path / "runs")
    assert [store.status(run).state for run in runs if run.seed == 1] == ["finished"] * 2


@pytest.mark.slow
def test_an_error_of_a_process_is_raised(tmp_path):
    recipe = sweep(tmp_path, die="1 / 0")
    with pytest.raises(ZeroDivisionError):
        processes.execute(recipe.runs(), tmp_path / "runs", processes=1, stacks=EVERY_EPOCH)


@pytest.mark.slow
def test_the_budget_holds_for_all_processes(tmp_path):
    recipe = sweep(tmp_path, die="False")
    runs = recipe.changed({"epochs": ["100000"]}).runs()
    outcome = processes.execute(runs, tmp_path / "runs", processes=2, budget=25.0)
    assert outcome.stopped_by == "budget"
    assert len(outcome.stopped) == 4
    # half of the runs in each process, and all of them began
    assert all(Store(tmp_path / "runs").status(run).epoch for run in runs)


def test_damaged_runs_that_were_not_asked_for_are_told_once(tmp_path):
    store = Store(tmp_path)
    asked, others = TINY.runs(seeds=[0]), TINY.runs(seeds=[1])
    execute([asked[0], *others], store)
    for run in (asked[0], others[0]):
        (store.directory(run) / "config.json").write_text("nonsense")
    stacks = StackOptions(largest_stack=1)
    outcome = processes.execute(asked, tmp_path, processes=2, stacks=stacks)
    assert (set(outcome.finished), set(outcome.damaged)) == ({*asked[1:]}, {asked[0]})
    assert outcome.unrelated == execute(asked, store).unrelated
    (reason,) = outcome.unrelated
    assert str(store.directory(others[0])) in reason


def test_wrong_arguments_are_refused(tmp_path):
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match="positive whole number of processes"):
            processes.execute(TINY.runs(), tmp_path, processes=wrong)
    with pytest.raises(ValueError, match="as budget"):
        processes.execute(TINY.runs(), tmp_path, processes=1, budget=0.0)
    arguments = ["run", "polynomial-headline", "--processes", "2", "--engine", "ray"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "expected one of --processes and --engine ray" in result.stderr


# the service of a GPU, with a stand-in for its program

CONTROL = """#!{python}
import os, sys
from pathlib import Path
words = sys.argv[1:] or sys.stdin.read().split()
with Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).parent.with_name("log").open("a") as log:
    print(*words, file=log)
sys.exit({code})
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Makes the program, which ends with an exit code."""

    def make(code=0):
        file = tmp_path / "bin" / "nvidia-cuda-mps-control"
        file.parent.mkdir(exist_ok=True)
        file.write_text(CONTROL.format(python=sys.executable, code=code))
        file.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(mps.tempfile, "tempdir", None)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return make


def test_the_service_is_started_tried_and_stopped(tmp_path, monkeypatch, control):
    monkeypatch.setattr(mps, "_TRIAL", "import os; os.environ['CUDA_MPS_PIPE_DIRECTORY']")
    control()
    with mps.shared_gpu("cuda:0") as why_not:
        assert why_not == ""
        assert Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        assert (tmp_path / "log").read_text() == "-d\n"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert (tmp_path / "log").read_text() == "-d\nquit\n"


@pytest.mark.parametrize("trouble", ["none", "refuses", "no use"])
def test_without_the_service_it_goes_on_and_says_why(tmp_path, monkeypatch, control, trouble):
    words = {"none": "there is no", "refuses": "exit code 3", "no use": "exit code 5"}[trouble]
    monkeypatch.setattr(mps, "_TRIAL", "raise SystemExit(5)")
    if trouble != "none":
        control(3 if trouble == "refuses" else 0)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    with mps.shared_gpu("cuda") as why_not:
        assert words in why_not
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_a_service_of_the_user_and_other_devices_are_left_alone(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    with mps.shared_gpu("cpu") as why_not:
        assert why_not == ""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "somewhere")
    with mps.shared_gpu("cuda") as why_not:
        assert why_not == ""
