"""What the lab shows and refuses: boards, lines and JSON, event files, arguments, the doctor."""

import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from rich.console import Console

from discretegrad_lab import arguments, display, doctor
from discretegrad_lab.config import Polynomial
from discretegrad_lab.store import Store
from discretegrad_lab.tensorboard import EventFiles

ROOT = Path(__file__).resolve().parents[1]


def tiny(estimator, seed, **changes):
    options = {"latents": 4, "batch": 4, "steps_per_epoch": 2, "epochs": 2, **changes}
    return Polynomial(estimator=estimator, seed=seed, power=2.0, **options)


# readers that go away


class Closed(io.StringIO):
    """A pipe that nobody reads; counts who tries."""

    tries = 0

    def write(self, text):
        self.tries += 1
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


SHOWN = {
    "json": display.Json,
    "lines": lambda file: display.Lines(file, every=0.0),
    "board": lambda file: display.Board(Console(file=file, force_terminal=True)),
}


@pytest.mark.parametrize("make", SHOWN.values(), ids=SHOWN)
def test_a_closed_pipe_is_met_once_and_training_goes_on(make):
    file = Closed()
    runs = (tiny("st", 0),)
    with make(file) as shown:
        shown.planned([], runs)
        shown.say("this")
        shown.stack_started(runs, 0, 2, 2)
        for epoch in (1, 2):
            shown.epoch_done(epoch, {"loss": [1.0]}, 1.0)
        shown.stack_finished(runs, 2)
    assert file.tries == 1


def test_a_pipe_that_breaks_when_it_is_flushed():
    reader, writer = os.pipe()
    with open(writer, "w") as file:
        shown = display.Json(file)
        shown.say("read")
        assert json.loads(os.read(reader, 1000)) == {"event": "message", "text": "read"}
        os.close(reader)
        shown.say("not read")
        shown.say("not written")
        # as Python does at exit
        file.flush()


COMMAND = """
import sys
from discretegrad_lab import recipes
from discretegrad_lab.__main__ import main
from discretegrad_lab.config import Polynomial

def build(estimator, seed):
    yield Polynomial(
        estimator=estimator, seed=seed, latents=4, batch=4, steps_per_epoch=2, epochs=2
    )

recipes.RECIPES["tiny"] = recipes.Recipe(
    name="tiny", title="", reproduces="", cost="", build=build, seeds=(0, 1), estimators=("st",)
)
sys.argv = ["discretegrad", "run", "tiny", "--device", "cpu", *sys.argv[1:]]
main()
"""
READERS = {
    "--json | head": (["--json"], {}, subprocess.PIPE),
    "2>&1 | head": ([], {}, subprocess.STDOUT),
    "board 2>&1 | head": ([], {"FORCE_COLOR": "1", "TERM": "xterm"}, subprocess.STDOUT),
}


@pytest.mark.parametrize(("options", "environ", "stderr"), READERS.values(), ids=READERS)
def test_a_command_whose_reader_goes_away_saves_and_ends_well(tmp_path, options, environ, stderr):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMAND, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environ},
        stdout=writer,
        stderr=stderr,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr or b"") == (0, b"")
    store = Store(tmp_path / "runs")
    assert [store.status(run).state for run in store.runs()] == ["finished"] * 2


# the board of a large stack


def test_a_redraw_hashes_no_run(monkeypatch):
    shown = display.Board(Console(file=io.StringIO(), force_terminal=True, width=100))
    runs = tuple(tiny("st", seed) for seed in range(3))
    shown.planned([], runs)
    shown.stack_started(runs, 0, 2, 2)
    shown.epoch_done(1, {"loss": [1.0] * 3}, 1.0)
    hashed = []
    monkeypatch.setattr(Polynomial, "__hash__", lambda run: hashed.append(run) or 0)
    console = Console(file=io.StringIO(), width=100)
    console.print(shown.render())
    assert "3 members at epoch 1 of 2, 6 run-steps/s" in console.file.getvalue()
    assert hashed == []


def test_what_a_redraw_goes_through_does_not_change():
    tally = display.Tally()
    tally.stack_started((tiny("st", 0),), 0, 2, 2)
    tally.epoch_done(1, {"loss": [1.0]}, 1.0)
    seen = tally.seen
    tally.epoch_done(2, {"loss": [2.0], "test": [3.0]}, 1.0)
    assert seen == ({"st": {"loss": 1.0}}, {"st": 0})
    assert tally.seen == ({"st": {"loss": 2.0, "test": 3.0}}, {"st": 0})


def test_a_redraw_while_training_goes_on():
    """A thread draws as fast as it can, while stacks start and their metrics come and go."""
    shown = display.Board(Console(file=io.StringIO(), force_terminal=True))
    stacks = [tuple(tiny(name, seed) for seed in range(30)) for name in ("st", "reinmax")]
    failed, drawn, over = [], [], threading.Event()

    def draw():
        try:
            while not over.is_set():
                drawn.append(shown.render())
        except Exception as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    drawing = threading.Thread(target=draw)
    drawing.start()
    try:
        for number in range(100):
            stack = stacks[number % 2]
            shown.stack_started(stack, 0, 20, 2)
            for epoch in range(20):
                shown.epoch_done(epoch, {f"metric {epoch}": [1.0] * 30}, 1.0)
    finally:
        over.set()
        drawing.join()
        sys.setswitchinterval(interval)
    assert failed == []
    assert drawn


# words


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (999_500_000, "1.0 GB"),
        (1000, "1 kB"),
        (999_600_000_000, "999.6 GB"),
    ],
)
def test_sizes_that_round_up_to_the_next_unit(count, text):
    assert display.size(count) == text


# event files


def test_event_files_in_an_impossible_place(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    long = tmp_path / ("x" * 300)
    reasons = {file: "File exists", file / "events": "Not a directory", long: "File name too long"}
    for place, reason in reasons.items():
        expected = f"expected to write TensorBoard files in .*, got: {reason}; choose another"
        with pytest.raises(ValueError, match=expected):
            EventFiles(place)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == "mine"


def test_event_files_in_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    # a read-only file system, say: the superuser gets past permissions
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"got: Read-only file system; .* --tensorboard"):
        EventFiles(tmp_path)


def test_event_files_begin_with_an_empty_directory(tmp_path):
    files = EventFiles(tmp_path / "new" / "events")
    assert files.problem == ""
    assert list((tmp_path / "new" / "events").iterdir()) == []


def test_event_files_that_are_refused_later_leave_a_reason(tmp_path):
    files = EventFiles(tmp_path / "events")
    (tmp_path / "events" / "polynomial").write_text("a file")
    run = tiny("st", 0)
    files.stack_started((run,), 0, 2, 2)
    for epoch in (1, 2):
        files.epoch_done(epoch, {"loss": [1.0]}, 1.0)
        files.write()
        assert files.problem == (
            f"expected to write TensorBoard files in {tmp_path / 'events'}, got: Not a directory; "
            "the runs themselves are not touched by this"
        )


# arguments


@pytest.mark.parametrize("text", ["9" * 400 + "s", "9" * 308 + "h", "1h" + "9" * 5000 + "s"])
def test_an_endless_budget(text):
    with pytest.raises(ValueError, match="such as 90s, 9m or 1h30m"):
        arguments.parse_budget(text)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("9" * 5000, "a number of 5000 digits"),
        ("0-" + "9" * 5000, "a number of 5000 digits"),
        ("2147483648-2147483648", "2147483648"),
        ("3,2147483640-2147483650", "2147483650"),
        ("2147483648,", "2147483648"),
        ("9" * 15, "9" * 15),
    ],
)
def test_seeds_that_are_too_large(text, got):
    with pytest.raises(ValueError, match="expected seeds") as caught:
        arguments.parse_seeds(text)
    assert str(caught.value) == (
        f"expected seeds between 0 and 2147483647 (2**31 - 1), got {got}; give a number of seeds "
        "such as 5, or seeds such as 0-4,7"
    )


def test_the_largest_seed_is_that_of_a_run():
    (largest,) = arguments.parse_seeds("2147483647-2147483647")
    tiny("st", largest)
    with pytest.raises(ValueError, match="seed"):
        tiny("st", largest + 1)


# doctor


def test_doctor_says_why_a_place_cannot_be_written(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    reasons = {
        file: "Not a directory",
        file / "runs": "Not a directory",
        tmp_path / ("x" * 300): "File name too long",
    }
    for place, reason in reasons.items():
        assert doctor._disk(place) == doctor.Finding(
            "runs directory",
            f"{place}: cannot be written ({reason})",
            "Choose another with --runs.",
            broken=True,
        )
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert doctor._disk(tmp_path).found.endswith("cannot be written (Permission denied)")


def test_doctor_at_a_directory_that_cannot_be_searched(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    stat = Path.stat

    # the superuser may search all
    def refuse(path, **options):
        if closed in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    found = doctor._disk(closed / "runs")
    assert found.broken
    assert found.found.endswith("cannot be written (Permission denied)")


def test_doctor_finds_room_where_a_directory_would_be_made(tmp_path):
    found = doctor._disk(tmp_path / "new" / "runs")
    assert not found.broken
    assert found.found.endswith(" free")
