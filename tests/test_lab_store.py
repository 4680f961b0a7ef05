"""Run directories: what is saved comes back, or is reported; whatever dies, and whenever."""

import errno
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from discretegrad_lab.runs import disk as protocol
from discretegrad_lab.runs import documents, files
from discretegrad_lab.runs.store import (
    DamagedRun,
    NewerStore,
    Saved,
    Status,
    Store,
    StoreError,
)
from discretegrad_lab.stack import config
from discretegrad_lab.tasks.polynomial.config import Polynomial
from lab_cases import tree
from lab_disk import Died, Disk

RUN = Polynomial(estimator="st", epochs=9)
ENVIRONMENT = [{"device": "abacus", "members": 2}]


def state_at(epoch):
    """Every kind of tensor that a task may keep, different after every epoch."""
    generator = torch.Generator().manual_seed(epoch)
    square = torch.randn(5, 4, generator=generator)
    return {
        "weights": square,
        "not contiguous": square.T,
        "double": torch.randn(3, dtype=torch.float64, generator=generator),
        "half": torch.randn(3, generator=generator).to(torch.bfloat16),
        "step": torch.tensor(epoch),
        "empty": torch.empty(0, 3),
        "alive": torch.tensor([True, epoch % 2 == 0]),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


def metrics_at(epoch):
    return [{"epoch": e, "loss": 1 / 3 / e, "test": -1e-300 * e} for e in range(1, epoch + 1)]


def save(store, run=RUN, epoch=3, **options):
    finished, step = options.pop("finished", False), options.pop("diverged_step", None)
    end = "finished" if step is None else "diverged"
    seconds = options.pop("seconds", 1.5 * epoch)
    contents = {"metrics": metrics_at(epoch), "environment": ENVIRONMENT, "state": state_at(epoch)}
    status = Status(end if finished else "started", epoch, seconds, step)
    store.save(run, Saved(status, **contents | options))


def bits(state):
    return {
        name: (x.dtype, x.shape, x.contiguous().view(-1).view(torch.uint8).tolist())
        for name, x in state.items()
    }


def assert_saved(store, epoch, run=RUN):
    """All of what ``save`` wrote for an epoch, bit for bit."""
    saved = store.load(run)
    assert saved.status.epoch == epoch
    assert saved.metrics == metrics_at(epoch) == store.metrics(run)
    assert saved.status.seconds == 1.5 * epoch
    assert bits(saved.state) == bits(state_at(epoch))


def names(store, run=RUN):
    return sorted(path.name for path in store.directory(run).iterdir())


def flip(path, position=-1, mask=0x10):
    with open(path, "r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ mask]))


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A busy disk takes long to make things last; a ``Disk`` checks when that is asked for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def store(tmp_path):
    """A store of which the run is claimed."""
    store = Store(tmp_path / "results")
    assert store.claim(RUN)
    yield store
    store.release(RUN)


# what is saved comes back


def test_what_is_saved_comes_back(store):
    assert Store(store.root / "none").status(RUN).state == "new" == store.status(RUN).state
    assert not (store.root / "none").exists()
    for epoch in (3, 6):
        save(store, epoch=epoch)
        assert_saved(store, epoch)
        status = store.status(RUN)
        assert (status.state, status.epoch, status.done) == ("started", epoch, False)
        assert store.status(RUN, quick=True) == status
    save(store, epoch=9, finished=True)
    assert_saved(store, 9)
    assert store.status(RUN).state == "finished"
    assert store.load(RUN).environment == ENVIRONMENT == store.environment(RUN)
    assert store.directory(RUN) == store.root / "polynomial" / RUN.identity
    # the environment has not changed since the first commit; nothing else is kept
    assert names(store) == [
        "checkpoint-9.safetensors",
        "config.json",
        "environment-3.json",
        "metrics-9.csv",
        "status.json",
    ]


@pytest.mark.parametrize("row", [{"epoch": 2}, {"epoch": 2, "loss": 0.5, "test": 0.5}])
def test_all_epochs_have_the_same_metrics(store, row):
    with pytest.raises(ValueError, match=r"expected a row of the metrics \['epoch', 'loss'\]"):
        save(store, epoch=2, metrics=[{"epoch": 1, "loss": 0.5}, row])
    save(store, epoch=2, metrics=[{"epoch": 1, "loss": 0.5}, {"loss": 0.25, "epoch": 2}])
    assert store.metrics(RUN) == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]


def test_saving_takes_a_claim(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(RuntimeError, match="call claim before save"):
        save(store)
    with pytest.raises(KeyError, match="never saved"):
        store.load(RUN)
    assert tree(tmp_path) == {}


def test_all_stored_runs(store):
    assert list(Store(store.root / "nothing").runs()) == []
    runs = [replace(RUN, seed=seed) for seed in range(3)]
    for run in runs:
        store.claim(run)
        save(store, run)
        store.release(run)
    (store.root / "polynomial" / "README").write_text("not a run")
    before = tree(store.root)
    assert sorted(store.runs(), key=lambda run: run.seed) == runs
    # reading writes nothing
    assert_saved(store, 3, runs[0])
    assert tree(store.root) == before
    flip(store.directory(runs[1]) / "config.json")
    damaged = []
    assert len(list(store.runs(damaged))) == 2
    assert runs[1].identity in str(damaged[0])
    with pytest.raises(DamagedRun, match=runs[1].identity):
        list(store.runs())


# damage


KINDS = ("config", "environment", "metrics", "checkpoint", "status")
DAMAGE = {
    "flipped": lambda path: flip(path, path.stat().st_size // 2, 0x01),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "empty": lambda path: os.truncate(path, 0),
    "missing": os.unlink,
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("finished", [False, True], ids=["started", "finished"])
def test_damage_is_reported(store, kind, damage, finished):
    save(store, epoch=9 if finished else 3, finished=finished)
    (path,) = store.directory(RUN).glob(f"{kind}*")
    DAMAGE[damage](path)
    status = store.status(RUN)
    assert (status.state, status.done) == ("damaged", False)
    # which file, what was expected, the remedy
    for part in (path.name, "expected", str(store.directory(RUN)), "move this directory away"):
        assert part in status.reason
    assert "\n" not in status.reason
    with pytest.raises(DamagedRun, match=path.name):
        store.load(RUN)
    if kind in ("metrics", "config", "status"):
        with pytest.raises(DamagedRun, match=path.name):
            store.metrics(RUN)
    if damage == "a directory":
        assert "Is a directory" in status.reason
    if damage != "flipped" or kind == "status":
        assert store.status(RUN, quick=True).state == "damaged"
    before = tree(store.root)
    if kind == "status":
        with pytest.raises(DamagedRun, match=path.name):
            save(store, epoch=6)
        assert tree(store.root) == before
    # the remedy helps
    shutil.move(store.directory(RUN), store.root / "away")
    assert store.status(RUN).state == "new"
    save(store)
    assert_saved(store, 3)


@pytest.mark.parametrize("kind", ["status", "config", "metrics", "checkpoint"])
def test_no_flipped_byte_goes_unnoticed(store, kind):
    save(store)
    (path,) = store.directory(RUN).glob(f"{kind}*")
    for position, mask in itertools.product(range(path.stat().st_size), (0x01, 0x80)):
        flip(path, position, mask)
        assert store.status(RUN).state == "damaged", (position, mask)
        flip(path, position, mask)
    assert_saved(store, 3)


def test_a_directory_that_is_empty_or_has_another_name_is_damaged(store):
    store.directory(RUN).mkdir(parents=True)
    assert "status.json" in store.status(RUN).reason
    store.directory(RUN).rmdir()
    save(store)
    other = replace(RUN, seed=1)
    shutil.copytree(store.directory(RUN), store.directory(other))
    assert "the hash of" in store.status(other).reason
    with pytest.raises(DamagedRun, match="the hash of"):
        store.metrics(other)
    with pytest.raises(DamagedRun, match="the hash of"):
        list(store.runs())


# other versions


def rewrite(path, **changes):
    document = json.loads(path.read_text()) | changes
    document.pop("sha256", None)
    path.write_bytes(files.dump(files.sealed(document)))


def test_a_newer_store_is_refused(store):
    save(store)
    rewrite(store.directory(RUN) / "status.json", format=2, shape="unheard of")
    before = tree(store.root)
    for call in (store.status, store.load, store.metrics, store.environment):
        with pytest.raises(NewerStore, match=r"version 1 at most, got version 2 .*; install"):
            call(RUN)
    with pytest.raises(NewerStore):
        list(store.runs([]))
    with pytest.raises(NewerStore):
        save(store, epoch=6)
    assert tree(store.root) == before


def test_configurations_of_other_versions(store, monkeypatch):
    save(store)
    monkeypatch.setattr(documents, "VERSION", 0)
    with pytest.raises(NewerStore, match="a configuration of version 0 at most"):
        list(store.runs())
    monkeypatch.setattr(documents, "VERSION", config.VERSION + 1)
    assert list(store.runs()) == []


# a file system that fails


# the first commit, an ordinary one, the same epoch again with other contents, the last one
COMMITS = [
    {"epoch": 3},
    {"epoch": 6},
    {
        "epoch": 6,
        "metrics": [row | {"loss": 0.5} for row in metrics_at(6)],
        "state": state_at(5),
        "environment": [*ENVIRONMENT, {"members": 1}],
        "seconds": 7.25,
    },
    {"epoch": 9, "finished": True},
]


def commit_until_it_fails(root, monkeypatch, fails_at, how=None):
    """The disk, how many commits came back, and the error."""
    store = Store(root)
    # what a Disk does not know of
    (root / ".locks").mkdir(parents=True, exist_ok=True)
    store.claim(RUN)
    disk = Disk(root, fails_at, how)
    done = 0
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "os", disk)
        patch.setattr(files, "os", disk)
        try:
            for options in COMMITS:
                save(store, **options)
                done += 1
        except (Died, StoreError) as error:
            return disk, done, error
        finally:
            store.release(RUN)
    return disk, done, None


def commit_there(root):
    """Which of the commits is stored, 0 for none; all of it must be."""
    store = Store(root)
    status = store.status(RUN)
    assert status.state != "damaged", status.reason
    if status.state == "new":
        return 0
    saved = store.load(RUN)
    number = next(
        number
        for number, options in enumerate(COMMITS, 1)
        if saved.status.epoch == options["epoch"]
        and saved.status.seconds == options.get("seconds", 1.5 * options["epoch"])
    )
    options = COMMITS[number - 1]
    assert saved.metrics == options.get("metrics", metrics_at(saved.status.epoch))
    assert bits(saved.state) == bits(options.get("state", state_at(saved.status.epoch)))
    assert saved.environment == options.get("environment", ENVIRONMENT)
    assert status.done == options.get("finished", False)
    return number


def operations(memory, monkeypatch):
    """The numbers of all operations of the commits."""
    disk, done, _ = commit_until_it_fails(memory / "all", monkeypatch, None)
    assert done == len(COMMITS)
    assert disk.count > 60
    return range(1, disk.count + 1)


def assert_goes_on(root):
    store = Store(root)
    assert store.claim(RUN)
    save(store, epoch=9, finished=True)
    assert_saved(store, 9)
    # whatever the failure left is gone
    assert len(names(store)) == 5
    assert sorted(os.listdir(root / "polynomial")) == [RUN.identity]
    store.release(RUN)


@pytest.mark.parametrize("power", [False, True], ids=["process", "machine"])
def test_death_at_any_operation_leaves_the_old_or_the_new(memory, monkeypatch, power):
    found = set()
    for k in operations(memory, monkeypatch):
        # what the machine forgets is a matter of chance
        for seed in range(3 if power else 1):
            root = memory / f"{k}-{seed}"
            disk, done, error = commit_until_it_fails(root, monkeypatch, k)
            assert isinstance(error, Died)
            if power:
                disk.lose_power(random.Random(seed))
            there = commit_there(root)
            assert there in (done, done + 1), k
            found.add((done, there))
            if seed == 0:
                assert_goes_on(root)
            shutil.rmtree(root)
    # both happen, for every commit
    assert found == {(done, done + new) for done in range(len(COMMITS)) for new in (0, 1)}


@pytest.mark.parametrize("how", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_an_error_at_any_operation_leaves_the_old_or_the_new(memory, monkeypatch, how):
    for k in operations(memory, monkeypatch):
        root = memory / str(k)
        _, done, error = commit_until_it_fails(root, monkeypatch, k, how)
        there = commit_there(root)
        if error is None:
            # only an old file could not be deleted
            assert there == len(COMMITS)
        else:
            assert there in (done, done + 1), k
            assert os.strerror(how) in str(error)
            assert "start again" in str(error)
            assert "\n" not in str(error)
            # nothing half-written
            assert not list(root.rglob("*.tmp"))
            assert not list(root.rglob("*.new"))
            assert not there or len(names(Store(root))) == 5
        assert_goes_on(root)
        shutil.rmtree(root)


def test_a_directory_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for call in (Store.claim, Store.status):
        with pytest.raises(StoreError, match="not a file and start again"):
            call(Store(tmp_path / "file"), RUN)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"Permission denied; choose a results directory"):
        Store(tmp_path / "new").claim(RUN)
    assert os.listdir(tmp_path) == ["file"]


# several at once


def test_readers_never_see_half_a_commit(store):
    stop, epochs, run = threading.Event(), set(), replace(RUN, epochs=99)
    assert store.claim(run)

    def read():
        reader = Store(store.root)
        while not stop.is_set():
            status = reader.status(run)
            assert status.state in ("new", "started"), status.reason
            # which looks at sizes of files that may be gone by then
            assert reader.status(run, quick=True).state in ("new", "started")
            if status.state == "started":
                saved = reader.load(run)
                assert len(saved.metrics) == saved.status.epoch == int(saved.state["step"])
                epochs.add(saved.status.epoch)

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for epoch in range(1, 60):
            save(store, run, epoch=epoch)
        stop.set()
        for reader in readers:
            reader.result()
    assert len(epochs) > 3


def test_threads_save_different_runs_at_once(store):
    runs = [replace(RUN, seed=seed) for seed in range(1, 9)]

    def work(run):
        assert store.claim(run)
        for epoch in range(1, 10):
            save(store, run, epoch, finished=epoch == 9)
        store.release(run)

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(work, runs))
    for run in runs:
        assert_saved(store, 9, run)
    # done runs need no locks
    assert os.listdir(store.root / ".locks") == [f"{RUN.identity}.lock"]


def test_one_claim_at_a_time(store):
    other = Store(store.root)
    assert not other.claim(RUN)
    assert not store.claim(RUN)
    assert other.claim(replace(RUN, seed=1))
    store.release(RUN)
    store.release(RUN)
    assert other.claim(RUN)
    assert not store.claim(RUN)
    other.release(RUN)
    other.release(replace(RUN, seed=1))


HOLD = """
import sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_dead_process_claims_nothing(store):
    store.release(RUN)
    (lock,) = (store.root / ".locks").iterdir()
    process = subprocess.Popen([sys.executable, "-c", HOLD, lock], stdout=subprocess.PIPE)
    with process:
        try:
            assert process.stdout.readline() == b"held\n"
            assert not store.claim(RUN)
        finally:
            process.kill()
    assert store.claim(RUN)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_has_not_is_not_written(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.dump({"seconds": number})
