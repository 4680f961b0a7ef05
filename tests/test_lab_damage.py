"""Files that were crafted, planted or put in the way: one bad file stops nothing but its run."""

import errno
import json
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from discretegrad_lab import tasks
from discretegrad_lab.cli import app
from discretegrad_lab.runs import files
from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.listener import Listener
from discretegrad_lab.runs.options import StackOptions
from discretegrad_lab.runs.plan import estimate
from discretegrad_lab.runs.store import DamagedRun, LostClaim, NewerStore, Store
from lab_tiny import TINY, tiny

BAD, *OTHERS = RUNS = [tiny("st", seed, epochs=4) for seed in range(3)]


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A busy disk takes long to make things last, which is the subject of test_lab_store.py."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def no_hanging():
    """Whoever waits for a pipe, or goes round in a circle, is stopped."""

    def give_up(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class StopAt(Listener):
    """Stops training after an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def epoch_done(self, epoch, metrics, seconds):
        if epoch == self.epoch:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs that have done two of their four epochs, and one to its end."""
    store = Store(tmp_path_factory.mktemp("trained") / "runs")
    execute(RUNS, store, listener=StopAt(2))
    assert {store.status(run).epoch for run in RUNS} == {2}
    return store.root


@pytest.fixture
def store(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs")
    return Store(tmp_path / "runs")


def craft(directory, changes, contents=None):
    """Change a status, and files, so that all checksums are right."""
    path = directory / "status.json"
    document = json.loads(path.read_bytes())
    del document["sha256"]
    for kind, content in (contents or {}).items():
        record = document["files"][kind]
        (directory / record["name"]).write_bytes(content)
        record |= {"bytes": len(content), "sha256": files.sha256(content)}
    changes = changes(document) if callable(changes) else document | changes
    # not files.dump, which refuses numbers that are not finite
    content = json.dumps(changes, indent=1, sort_keys=True) + "\n"
    sealed = changes | {"sha256": files.sha256(content.encode())}
    path.write_text(json.dumps(sealed, indent=1, sort_keys=True) + "\n")


def assert_only_the_bad_run_is_left_alone(store, words=""):
    """Whoever reads it is told, nothing of it changes, and the others are trained."""
    directory = store.directory(BAD)
    reasons = [store.status(BAD).reason]
    for call in (store.load, store.metrics, store.environment):
        try:
            call(BAD)
        except DamagedRun as error:
            reasons.append(str(error))
    assert store.status(BAD).state == "damaged"
    assert words in reasons[0]
    damaged = []
    listed = list(store.runs(damaged))
    assert set(OTHERS) <= set(listed)
    reasons += map(str, damaged)
    for reason in reasons:
        assert "\n" not in reason
        assert str(store.root) in reason
        assert len(reason) < 1000
    plan = estimate(RUNS, store)
    assert set(plan.damaged) == {BAD}
    before = sorted(os.listdir(directory)) if directory.is_dir() else None
    outcome = execute(RUNS, store)
    assert (set(outcome.damaged), set(outcome.finished)) == ({BAD}, set(OTHERS))
    assert (sorted(os.listdir(directory)) if directory.is_dir() else None) == before
    # the same where nobody asked for it, as long as it is no run to this version
    outcome = execute(OTHERS, store)
    assert set(outcome.already) == set(OTHERS)
    assert outcome.unrelated == tuple(map(str, damaged))


# a status that has the right checksum


def file_record(kind, **changes):
    """Another record of a file."""

    def change(document):
        record = document["files"][kind] | changes
        return document | {"files": document["files"] | {kind: record}}

    return change


def without(*names):
    return lambda document: {k: v for k, v in document.items() if k not in names}


def deep(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


LONG = "x" * 5000
NUMBERS = [0, -1, 5, 2**31, 2**63, 10**400, 1.0, 2.5, float("nan"), float("inf"), True]
THINGS = [None, "2", "", [], [2], {}, {"epoch": 2}, deep(200)]
STATUS = {
    **{f"epoch {x!r:.20}": {"epoch": x} for x in [*NUMBERS, *THINGS]},
    **{
        f"state {x!r:.20}": {"state": x}
        for x in ("new", "damaged", "finished", "diverged", "", "Started", 1, *THINGS)
    },
    **{
        f"seconds {x!r:.20}": {"seconds": x}
        for x in (-1.0, float("nan"), float("inf"), -float("inf"), True, *THINGS)
    },
    **{f"step {x!r:.20}": {"diverged_step": x} for x in (*NUMBERS[:2], *NUMBERS[3:], *THINGS[1:])},
    **{f"files {x!r:.20}": {"files": x} for x in (1, *THINGS)},
    **{f"format {x!r:.20}": {"format": x} for x in (0, -1, 1.5, float("nan"), True, *THINGS)},
    **{
        f"no {name}": without(name)
        for name in ("epoch", "state", "seconds", "diverged_step", "files", "format")
    },
    "nothing": lambda _: {},
    "finished at the end that has not come": {"state": "finished", "epoch": 4},
    "started at the end": {"state": "started", "epoch": 4},
    "one file less": lambda d: d | {"files": without("config")(d["files"])},
    "one file more": lambda d: d | {"files": d["files"] | {"extra": d["files"]["config"]}},
    **{
        f"the name {name!r:.30}": file_record("metrics", name=name)
        for name in (
            "../x", "../../secret", "/dev/zero", "/etc/passwd", "/proc/self/mem", ".", "..", "",
            "metrics-2.csv/", "./metrics-2.csv", "a/b", "\0", "metrics-2.csv\0", LONG,
            "status.json", "metrics-2.csv\n", "metrics-٢.csv", "config.json", "\ud800", None, 7,
            ["metrics-2.csv"],
        )
    },
    **{
        f"the size {size!r:.20}": file_record("metrics", bytes=size)
        for size in (-1, 0, 2**40, 10**400, 1.5, None, "7", True)
    },
    **{
        f"the checksum {value!r:.20}": file_record("metrics", sha256=value)
        for value in ("", "0" * 64, "Z" * 64, LONG, None, 7, [])
    },
}  # fmt: skip


@pytest.mark.parametrize("changes", STATUS.values(), ids=STATUS)
def test_a_crafted_status(store, changes):
    # what a name that leaves the directory would find
    for place in (store.root, store.root / "polynomial"):
        (place / "secret").write_text("epoch,loss\n1,2\n")
        (place / "x").write_text("epoch,loss\n1,2\n")
    craft(store.directory(BAD), changes)
    assert_only_the_bad_run_is_left_alone(store)


RAW = {
    "empty": b"",
    "no JSON": b"{",
    "no document": b"7\n",
    "deep": b"[" * 100_000,
    "deep in a document": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no UTF-8": b'{"state": "\xff"}',
    "UTF-16": '{"state": "started"}'.encode("utf-16"),
    "a number of many digits": b'{"epoch": ' + b"9" * 10_000 + b"}",
    "too large": b" " * (2 << 20),
    "a name twice": b'{"epoch": 1, "epoch": 2}',
}


@pytest.mark.parametrize("content", RAW.values(), ids=RAW)
def test_a_status_that_is_none(store, content):
    (store.directory(BAD) / "status.json").write_bytes(content)
    assert_only_the_bad_run_is_left_alone(store, "status.json")


def test_a_newer_format_is_no_damage(store):
    craft(store.directory(BAD), {"format": 2})
    with pytest.raises(NewerStore):
        execute(OTHERS, store)


# other documents that have the right checksums


def config(**changes):
    return files.dump(BAD.document() | changes)


def tensors(**more):
    return safetensors.torch.save({"x": torch.zeros(3), **more})


HEAD = b"epoch,loss\n"
CONTENTS = {
    **{f"config {name}": ("config", content) for name, content in RAW.items()},
    "another run": ("config", config(seed=7)),
    "a number for a float": ("config", config(tau=1)),
    "true for a number": ("config", config(seed=False)),
    "a list": ("config", files.dump([BAD.document()])),
    **{
        f"the task {name!r:.20}": ("config", config(task=name))
        for name in ("../x", "", None, 7, [], {}, LONG)
    },
    **{
        f"the version {version!r:.20}": ("config", config(version=version))
        for version in (0, -1, 1.5, "2", None, [], True)
    },
    **{
        f"the field {name} {value!r:.20}": ("config", config(**{name: value}))
        for name, value in (
            ("epochs", 0), ("epochs", "4"), ("epochs", 10**30), ("estimator", []), ("line", 7),
            ("line", {}), ("line", {"row": 1, "options": 2, "source": 3}), ("unheard_of", 1),
            ("tau", -1.0), ("power", {}), ("learning_rate", deep(200)),
        )
    },
    **{f"environment {name}": ("environment", content) for name, content in RAW.items()},
    **{
        f"environment {value!r:.30}": ("environment", files.dump(value))
        for value in (
            {}, [], [7], [None], [[]], [{"device": 7}], [{"device": ["a"]}], [{"members": "many"}],
            [{"members": -1}], [{"members": 1.5}], [{"commit": {}}], [{"x": deep(200)}],
        )
    },
    **{
        f"metrics {content!r:.40}": ("metrics", content)
        for content in (
            b"", b"\n", HEAD, HEAD + b"1,2\n", HEAD + b"1,2\n2,3\n3,4\n", HEAD + b"1,2\n3,4\n",
            HEAD + b"2,2\n1,2\n", HEAD + b"1,2\n2\n", HEAD + b"1,2\n2,3,4\n", HEAD + b"1,2\n2,x\n",
            HEAD + b"1,2\n2.0,3\n", b"epoch,loss,loss\n1,2,3\n2,3,4\n", b"loss\n1\n2\n",
            HEAD + b'1,2\n2,"3', HEAD + b"1,2\n2,\xff\n", HEAD + b"1,2\n2," + b"9" * 200_000,
            b"\0\0\0", b"1,2\n2,3\n",
        )
    },
    **{
        f"checkpoint {content!r:.40}": ("checkpoint", content)
        for content in (
            b"", b"\0" * 7, b"\xff" * 8, b"\xff" * 100, tensors(), tensors(y=torch.ones(2)),
            (10**6).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{}",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "content"), CONTENTS.values(), ids=CONTENTS)
def test_a_crafted_file(store, kind, content):
    craft(store.directory(BAD), {}, {kind: content})
    if kind == "checkpoint":
        # whole as far as a look can tell; it is met when it is loaded
        outcome = execute(RUNS, store)
        assert (set(outcome.damaged), set(outcome.finished)) == ({BAD}, set(OTHERS))
        assert str(store.directory(BAD)) in outcome.damaged[BAD]
    else:
        assert_only_the_bad_run_is_left_alone(store)


# something else than a file


def a_socket(path):
    # its name may not be long
    there = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(there)


INSTEAD = {
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a pipe": os.mkfifo,
    "a socket": a_socket,
    "a directory": os.mkdir,
    "a file": Path.touch,
}


@pytest.mark.parametrize("how", INSTEAD.values(), ids=INSTEAD)
@pytest.mark.parametrize("kind", ["status", "config", "metrics", "environment", "checkpoint", ""])
def test_something_in_the_way(store, kind, how):
    directory = store.directory(BAD)
    if kind:
        (path,) = directory.glob(f"{kind}*")
        path.unlink()
    else:
        path = directory
        shutil.rmtree(path)
    how(path)
    if not kind and path.is_dir() and not path.is_symlink():
        path.joinpath("mine").touch()
    assert_only_the_bad_run_is_left_alone(store)


@pytest.mark.parametrize("kind", ["status", "metrics"])
def test_a_link_to_a_good_file(store, tmp_path, kind):
    (path,) = store.directory(BAD).glob(f"{kind}*")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert_only_the_bad_run_is_left_alone(store, "got a link")


@pytest.mark.parametrize("kind", ["status", "metrics", "checkpoint"])
@pytest.mark.parametrize("how", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
def test_a_file_that_cannot_be_read(store, monkeypatch, kind, how):
    directory, opened = store.directory(BAD), os.open

    def refuse(path, *arguments, **options):
        if Path(path).parent == directory and Path(path).name.startswith(kind):
            raise OSError(how, os.strerror(how))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert_only_the_bad_run_is_left_alone(store, os.strerror(how))


@pytest.mark.parametrize("how", ["a link", "a link to itself", "a directory"])
def test_something_in_the_way_of_a_lock(store, how):
    lock = store.root / ".locks" / f"{BAD.identity}.lock"
    lock.unlink(missing_ok=True)
    INSTEAD[how](lock)
    outcome = execute(RUNS, store)
    assert (set(outcome.damaged), set(outcome.finished)) == ({BAD}, set(OTHERS))
    assert lock.name in outcome.damaged[BAD]
    assert "remove it" in outcome.damaged[BAD]


def test_a_directory_that_cannot_be_written(store, monkeypatch):
    opened = os.open

    def refuse(path, flags, *rest, **options):
        if flags & os.O_CREAT and Path(path).parent == store.directory(BAD):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    outcome = execute(RUNS, store)
    assert (set(outcome.damaged), set(outcome.finished)) == ({BAD}, set(OTHERS))
    assert "to write new files" in outcome.damaged[BAD]
    assert store.status(BAD).epoch == 2


def test_so_many_failures_and_no_more(store):
    for run in RUNS[:2]:
        (store.directory(run) / "status.json").write_bytes(b"")
    stacks = StackOptions(max_failures=2)
    outcome = execute(RUNS, store, stacks=stacks)
    assert (outcome.stopped_by, outcome.stopped, len(outcome.damaged)) == (
        "failures",
        (RUNS[2],),
        2,
    )
    stacks = StackOptions(max_failures=3)
    outcome = execute(RUNS, store, stacks=stacks)
    assert (outcome.stopped_by, outcome.finished) == (None, (RUNS[2],))


# planted links and files of users


def test_nothing_is_written_through_a_planted_link(store, tmp_path, monkeypatch):
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.write_text("mine")
    place.mkdir()
    directory, new = store.directory(BAD), tiny("st", 9, epochs=4)
    # the first commit prepares a directory of this name
    store.directory(new).with_name(f"{new.identity}.new").symlink_to(place)
    # even if the name of a temporary file were known
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "01234567")
    for name in ("status.json", "metrics-4.csv", "checkpoint-4.safetensors"):
        for ending in (".tmp", ".01234567.tmp"):
            (directory / (name + ending)).symlink_to(victim)
        outcome = execute([new, *RUNS], store)
    assert (set(outcome.damaged), new in outcome.already) == ({BAD}, True)
    assert (victim.read_text(), os.listdir(place)) == ("mine", [])
    (tmp_path / "a.csv.01234567.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        files.write_whole(tmp_path / "a.csv", "new")
    assert victim.read_text() == "mine"


def test_files_of_a_user_stay(store):
    directory = store.directory(BAD)
    mine = [
        "metrics.png", "config.bak", "config.json.bak", "metrics-2.csv.tmp", "checkpoint.pt",
        "metrics-2.png", "metrics-old.csv", "environment.yml", "notes.txt", "status.json.orig",
        "checkpoint-2.safetensors.sha256",
    ]  # fmt: skip
    for name in mine:
        (directory / name).write_text("mine")
    (directory / "metrics-1.csv").mkdir()
    (directory / "metrics-7.csv.0a1b2c3d.tmp").write_text("left by a process that died")
    execute(RUNS, store)
    assert store.status(BAD).state == "finished"
    assert [(directory / name).read_text() for name in mine] == ["mine"] * len(mine)
    assert len(os.listdir(directory)) == len(mine) + 1 + 5


# somebody else


def test_a_claim_that_was_lost_changes_nothing(store):
    slow = Store(store.root)
    assert slow.claim(BAD)
    saved = slow.load(BAD)
    # somebody deletes the lock, another process claims the run and trains it to its end
    shutil.rmtree(store.root / ".locks")
    assert set(execute(RUNS, store).finished) == set(RUNS)
    with pytest.raises(LostClaim, match="another process"):
        slow.save(BAD, saved)
    slow.release(BAD)
    assert store.status(BAD).state == "finished"
    assert store.claim(BAD)


def test_training_leaves_a_lost_run_to_the_other_process(store):
    class Stolen(StopAt):
        def epoch_done(self, epoch, metrics, seconds):
            if epoch == self.epoch:
                shutil.rmtree(store.root / ".locks")
                execute([BAD], Store(store.root))

    outcome = execute(RUNS, store, listener=Stolen(3), stacks=StackOptions(checkpoint_every=0))
    assert (set(outcome.finished), outcome.already) == (set(OTHERS), (BAD,))
    assert store.status(BAD).state == "finished"


def test_one_who_commits_at_the_same_time_wins(store):
    assert store.claim(BAD)
    saved = store.load(BAD)
    with files.locked(store.directory(BAD)), pytest.raises(LostClaim):
        store.save(BAD, saved)
    store.save(BAD, saved)
    store.release(BAD)


# the commands


def test_commands_go_on_and_end_with_1(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(tasks._extra, TINY.name, TINY)
    call = CliRunner().invoke
    store, runs = Store(tmp_path / "runs"), TINY.runs()
    for run, how in zip(runs, INSTEAD.values(), strict=False):
        store.directory(run).parent.mkdir(parents=True, exist_ok=True)
        how(store.directory(run))
    shutil.rmtree(store.directory(runs[-1]))
    (store.root / "loop").symlink_to(store.root / "loop")
    result = call(app, ["run", "tiny", "--device", "cpu", "-q"])
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert f"{store.root.name}/loop" in result.output
    assert store.status(runs[-1]).state == "finished"
    result = call(app, ["run", "tiny", "--device", "cpu", "--max-failures", "2"])
    assert result.exit_code == 1
    result = call(app, ["report", "tiny"])
    assert result.exit_code == 1
    assert (tmp_path / "results" / "tiny" / "runs.csv").read_text().count("finished") == 1
