"""What listeners show and keep of training: boards, lines, JSON and event files."""

import contextlib
import errno
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.jobs import Job
from discretegrad_lab.runs.listener import Together
from discretegrad_lab.runs.options import StackOptions
from discretegrad_lab.runs.plan import estimate
from discretegrad_lab.runs.store import Store
from discretegrad_lab.runs.worker import Place
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.watch import board, tally
from discretegrad_lab.watch.board import Board
from discretegrad_lab.watch.json_lines import JsonLines
from discretegrad_lab.watch.streams import Stream
from discretegrad_lab.watch.tally import Tally
from discretegrad_lab.watch.tensorboard import EventFiles
from discretegrad_lab.watch.words import duration, size
from lab_tiny import TINY, tiny

ROOT = Path(__file__).resolve().parents[1]


# streams that cannot be written


def quiet_board(**options):
    return Board(Console(file=io.StringIO(), force_terminal=True, width=120), **options)


def rendered(shown):
    console = Console(width=140)
    with console.capture() as capture:
        console.print(shown.picture())
    return capture.get()


COMMANDS = """
import json, sys
from pathlib import Path
from discretegrad_lab import tasks
from discretegrad_lab.__main__ import main
from lab_tiny import TINY

tasks.add_recipe(TINY)
codes = {}
for command in json.loads(sys.argv[1]):
    sys.argv = ["discretegrad", *command.split()]
    try:
        main()
    except SystemExit as error:
        codes[command] = error.code
Path("codes").write_text(json.dumps(codes))
"""
RUN = "run tiny --seeds 1 --device cpu --estimators"
CODES = {
    "list tiny": 1, f"{RUN} st --dry-run": 1, f"{RUN} st": 0, f"{RUN} reinmax --json": 0,
    "report tiny": 1, "doctor": 1,
}  # fmt: skip
"""Of commands whose stdout is lost: the result of training is not there."""
REFUSED = {"closed": ("&-", "Bad file descriptor"), "full": ("/dev/full", "No space left")}


def commands(directory, redirection, codes, **environ):
    """What a process says that is given commands, which end with these codes."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", **environ}
    line = f'"$0" -W error -c "$1" "$2" {redirection}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, COMMANDS, json.dumps(list(codes))],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert json.loads((directory / "codes").read_text()) == codes, done.stderr
    trained = [command for command in codes if command.startswith("run") and "dry" not in command]
    store = Store(directory / "runs")
    assert [store.status(run).state for run in store.runs()] == ["finished"] * len(trained)
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.mark.parametrize(("place", "why"), REFUSED.values(), ids=REFUSED)
def test_commands_whose_output_is_lost_say_so_once_and_training_goes_on(tmp_path, place, why):
    for stream in ("stdout", "stderr", "both"):
        (tmp_path / stream).mkdir()
    done = commands(tmp_path / "stdout", f">{place}", CODES)
    assert done.stderr.count(f"discretegrad: expected to write to stdout, got: {why}") == len(CODES)
    codes = dict.fromkeys(CODES, 0)
    done = commands(tmp_path / "stderr", f"2>{place}", codes)
    # where training said nothing else there was nothing to lose
    assert done.stdout.count(f"discretegrad: expected to write to stderr, got: {why}") == 1
    done = commands(tmp_path / "both", f">{place} 2>{place}", CODES)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("option", "redirection", "environ", "said"),
    [
        ("--json", "> >(true)", {}, 1),
        ("", "> >(true) 2>&1", {}, 0),
        ("", "> >(true) 2>&1", {"FORCE_COLOR": "1", "TERM": "xterm"}, 0),
    ],
    ids=["--json | true", "2>&1 | true", "board 2>&1 | true"],
)
def test_training_goes_on_when_a_reader_goes_away(tmp_path, option, redirection, environ, said):
    done = commands(tmp_path, redirection, {f"{RUN} st {option}": 0}, **environ)
    assert done.stderr.count("expected to write to stdout, got: Broken pipe") == said
    assert done.stderr.count("\n") == said


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_a_reader_that_does_not_read_is_waited_for_only_so_long(pipe):
    _, writer = pipe
    stream = Stream(writer, "the log")
    stream.patience = 0.05
    file = io.TextIOWrapper(io.BufferedWriter(stream))
    for _ in range(100):
        print("x" * 10_000, file=file, flush=True)
    expected = "expected to write to the log, got: nobody has read it for 0.05 s; nothing more"
    assert stream.problem.startswith(expected)


def test_all_of_a_text_arrives_in_a_pipe_that_refuses_to_wait(pipe):
    reader, writer = pipe
    os.set_blocking(writer, False)
    stream = Stream(writer, "the log")
    text = "".join(f"{number}\n" for number in range(100_000))
    with ThreadPoolExecutor(1) as pool:
        with open(reader, closefd=False) as file:
            arriving = pool.submit(file.read)
            with io.TextIOWrapper(io.BufferedWriter(stream)) as written:
                written.write(text)
            os.close(writer)
            assert arriving.result(30) == text
    assert stream.problem == ""


# the board of a large stack


def test_a_redraw_hashes_no_run_and_what_it_goes_through_does_not_change(monkeypatch):
    shown = quiet_board()
    runs = tuple(tiny("st", seed) for seed in range(3))
    shown.planned([], dict.fromkeys(runs, 2))
    shown.stack_started(runs, 0, 2, 2)
    shown.epoch_done(1, {"loss": [1.0] * 3}, 1.0)
    with monkeypatch.context() as patched:
        hashed = []
        patched.setattr(Polynomial, "__hash__", lambda run: hashed.append(run) or 0)
        assert "3 members at epoch 1 of 2, 6 run-steps/s" in rendered(shown)
        assert hashed == []
    means = shown.means
    shown.epoch_done(2, {"loss": [2.0] * 3, "test": [3.0] * 3}, 1.0)
    assert means == ({"st": {"loss": 1.0}}, {"st": 0})
    assert shown.means == ({"st": {"loss": 2.0, "test": 3.0}}, {"st": 0})


def test_a_redraw_while_training_goes_on():
    """A thread draws as fast as it can, while stacks start and their metrics come and go."""
    shown = quiet_board()
    stacks = [tuple(tiny(name, seed) for seed in range(30)) for name in ("st", "reinmax")]
    over = threading.Event()

    def draw():
        drawn = 0
        while not over.is_set():
            shown.picture()
            drawn += 1
        return drawn

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            drawing = pool.submit(draw)
            for number in range(100):
                shown.stack_started(stacks[number % 2], 0, 20, 2)
                for epoch in range(20):
                    shown.epoch_done(epoch, {f"metric {epoch}": [1.0] * 30}, 1.0)
            over.set()
        assert drawing.result() > 0
    finally:
        sys.setswitchinterval(interval)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until its ``now`` is set."""
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    for module in (board, tally):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_board_shows_members_speed_time_left_and_losses(clock, capsys):
    shown = quiet_board(budget=100.0)
    runs = (tiny("reinmax", 0), tiny("st", 0), tiny("st", 1))
    others = (tiny("exact", 0), tiny("exact", 1))
    shown.planned([], dict.fromkeys([*runs, *others], 2))
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
    with Board(Console(force_terminal=True, width=100)) as shown:
        shown.run_damaged(tiny("st", 0), "expected [this], got none")
    assert "left alone: expected [this], got none" in capsys.readouterr().out


def side_by_side(listener, clock):
    """Two stacks of one run, as a cluster tells of them: one second an epoch, 10 steps each."""
    stacks = [(tiny("reinmax", 0, epochs=4),), (tiny("st", 0, epochs=4),)]
    listener.planned([], {run: 4 for stack in stacks for run in stack})
    for stack in stacks:
        listener.stack_started(stack, 0, 4, 10)
    for epoch in (1, 2):
        clock.now += 1
        for number, stack in enumerate(stacks):
            listener.stack_again(stack, epoch - 1, 4, 10)
            listener.epoch_done(epoch, {"loss": [10.0 * number + epoch]}, 1.0)
    return stacks


def test_stacks_side_by_side_have_one_speed_and_their_own_losses(clock):
    tally = Tally()
    stacks = side_by_side(tally, clock)
    assert tally.run_steps_per_second == pytest.approx(20.0)
    assert tally.seconds_left == pytest.approx(2.0)
    assert tally.means.values == {"st": {"loss": 12.0}}
    tally.stack_again(stacks[0], 2, 4, 10)
    assert tally.means.values == {"reinmax": {"loss": 2.0}}
    assert (tally.share, tally.runs) == (0.5, 2)


def test_epochs_that_are_told_of_at_once_were_not_trained_at_once(clock):
    tally = Tally()
    tally.stack_started((tiny("st", 0, epochs=9),), 0, 9, 10)
    for epoch in range(1, 5):
        tally.epoch_done(epoch, {"loss": [1.0]}, 1.0)
    assert tally.run_steps_per_second == pytest.approx(10.0)


def test_json_numbers_stacks_side_by_side_and_has_no_word_for_nan(clock, capsys):
    shown = JsonLines(sys.stdout)
    side_by_side(Together(shown, Tally()), clock)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(event["event"], event["stack"], event.get("epoch")) for event in events[1:]]
    started = [("stack_started", 1, 0), ("stack_started", 2, 0)]
    assert found == started + [("epoch_done", n, e) for e in (1, 2) for n in (1, 2)]
    shown.epoch_done(1, {"loss": [1.0, math.nan, math.inf]}, 1.0)
    assert json.loads(capsys.readouterr().out)["metrics"]["loss"] == [1.0, None, None]


def test_tally_leaves_out_what_was_done_before_or_is_lost():
    tally = Tally()
    runs = tuple(tiny("st", seed, epochs=10) for seed in range(3))
    tally.planned([], dict.fromkeys(runs, 10))
    assert (tally.runs, tally.left) == (3, 30)
    tally.run_elsewhere(runs[2])
    assert (tally.runs, tally.left) == (2, 20)
    tally.stack_started(runs, 8, 10, 5)
    assert (tally.runs, tally.left) == (3, 6)
    tally.run_damaged(runs[0], "broken")
    assert (tally.runs, tally.left) == (2, 4)


class Shares(Tally):
    """The share of epochs that are done, after each."""

    def __init__(self):
        super().__init__()
        self.shares = []

    def epoch_done(self, epoch, metrics, seconds):
        super().epoch_done(epoch, metrics, seconds)
        self.shares.append(self.share)


def test_what_is_left_ends_at_a_rung_and_begins_where_a_run_goes_on(tmp_path):
    """Of several stacks, also of those that have not begun."""
    runs, store = [tiny("st", seed, epochs=6) for seed in range(4)], Store(tmp_path)
    options = StackOptions(largest_stack=2, until=2)
    rung, end = Shares(), Shares()
    execute(runs, store, stacks=options, listener=rung)
    assert rung.shares == [0.25, 0.5, 0.75, 1.0]
    execute(runs, store, stacks=StackOptions(largest_stack=2), listener=end)
    assert end.shares == [n / 8 for n in range(1, 9)]
    # so it is with workers
    others = [tiny("st", seed, epochs=6) for seed in range(4, 7)]
    execute(others[:1], store, stacks=StackOptions(until=3))
    tally = Tally()
    job = Job([*runs, *others], Place(tmp_path, "cpu", stacks=StackOptions(until=4)), tally)
    job.planned(estimate(job.runs, store, until=4))
    assert (tally.runs, tally.left) == (3, 4 + 4 + 1)


def test_durations_and_sizes():
    texts = {0.04: "0.0 s", 9.94: "9.9 s", 59.4: "59 s", 59.6: "1 min 0 s", 3725: "1 h 2 min"}
    assert {seconds: duration(seconds) for seconds in texts} == texts
    texts = {0: "0 bytes", 999: "999 bytes", 1000: "1 kB", 999_499: "999 kB", 36.7e6: "36.7 MB"}
    # these round up to the next unit
    texts |= {999_600: "1 MB", 999_500_000: "1.0 GB", 999_600_000_000: "999.6 GB"}
    assert {count: size(count) for count in texts} == texts


# event files


def test_event_files_in_an_impossible_place(tmp_path, monkeypatch):
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

    # a read-only file system, say: the superuser gets past permissions
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"got: Read-only file system; .* --tensorboard"):
        EventFiles(tmp_path)


def scalars(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path):
    run = tiny("st", 0, epochs=9)
    for epoch, values in ((0, (5.0, 4.0)), (1, (3.0, math.nan, 2.0))):
        files = EventFiles(tmp_path / "events")
        files.stack_started((run,), epoch, 9, 10)
        for number, value in enumerate(values, epoch + 1):
            files.epoch_done(number, {"loss": [value]}, 1.0)
        files.stack_finished((run,), 0)
    assert scalars(files.path(run).parent) == {"loss": [(10, 5.0), (20, 3.0), (40, 2.0)]}


def test_tensorboard_has_the_metrics_of_every_run(tmp_path, clock):
    store, files = Store(tmp_path / "runs"), EventFiles(tmp_path / "events")
    execute(TINY.runs(), store, device="cpu", listener=files)
    folders = list((tmp_path / "events" / "polynomial").iterdir())
    assert len(folders) == 6
    for run in TINY.runs():
        (folder,) = (path for path in folders if path.name.endswith(run.identity[:8]))
        assert folder.name.startswith(f"{run.estimator}-tau1-lr0.001-seed{run.seed}-")
        rows = store.metrics(run)
        assert scalars(folder) == {
            name: [(2 * row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in rows]
            for name in ("loss", "expected_loss")
        }
    # stacks side by side are told apart
    stacks = side_by_side(Together(files), clock)
    files.write()
    for number, (run,) in enumerate(stacks):
        expected = [(10, 10.0 * number + 1), (20, 10.0 * number + 2)]
        assert scalars(files.path(run).parent) == {"loss": expected}
