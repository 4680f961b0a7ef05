"""The files of results: they change together, and no damage to them goes unnoticed."""

import errno
import json
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from discretegrad_lab.report import results, sources
from discretegrad_lab.report.folder import contents, write
from discretegrad_lab.report.reading import READING, of_recipe
from discretegrad_lab.runs import files
from discretegrad_lab.tasks.evidence import Results, Row
from lab_disk import Died, Disk
from lab_tiny import TINY

NAMES = (results.RUNS, results.CURVES, READING)


def some(loss):
    """Results that say so in each of their files."""
    rows, curves = [], {}
    for run in TINY.runs(seeds=[0]):
        config = results.configuration(run)
        rows.append(Row(run.identity, config, "finished", 2, {"loss": loss}, None, 1.0, device="x"))
        curves[run.identity, "loss"] = {1: loss, 2: loss}
    return Results("tiny", tuple(rows), curves)


def put(folder, loss):
    how = replace(of_recipe(TINY), title=f"a loss of {loss}").to_json([])
    results.write(some(loss), folder, {READING: how})


def loss_of(folder):
    """The loss, which is the same in all files at any time."""
    there = sources.read_sources(folder, NAMES)
    losses = {row.metrics["loss"] for row in results._rows(there)}
    losses |= {x for curve in results._curves(there).values() for x in curve.values()}
    (loss,) = losses
    assert json.loads(there[READING])["title"] == f"a loss of {loss}"
    return loss


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A busy disk takes long to make things last; a ``Disk`` checks when that is asked for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def folder(tmp_path):
    put(tmp_path / "tiny", 0.5)
    return tmp_path / "tiny"


def test_what_is_written_comes_back_and_is_the_same_when_written_again(folder):
    assert loss_of(folder) == 0.5
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    assert set(before) == {*NAMES, sources.CHECKSUMS}
    put(folder, 0.5)
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before


@pytest.mark.parametrize("name", [*NAMES, sources.CHECKSUMS])
def test_no_flipped_bit_goes_unnoticed(folder, name):
    good = (folder / name).read_bytes()
    for position in range(0, len(good), 7):
        content = bytearray(good)
        content[position] ^= 1 << position % 8
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match="checksum"):
            sources.read_sources(folder, NAMES)
    (folder / name).unlink()
    if name != sources.CHECKSUMS:
        with pytest.raises(ValueError, match="no such file"):
            sources.read_sources(folder, NAMES)
    else:
        # as an older version left it
        assert loss_of(folder) == 0.5
        assert "got none, so damage" in sources.lack(folder, results.RUNS)


def sealed(**document):
    return files.dump(files.sealed({"format": 1, "files": {}} | document))


RECORD = {"bytes": 1, "sha256": "0" * 64}
CRAFTED = {
    "empty": b"",
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "no UTF-8": b"\xff",
    "a newer version": sealed(format=2),
    "no version": sealed(format=None),
    "a list": sealed(files=[]),
    "a name that leaves": sealed(files={"../x": RECORD, results.RUNS: RECORD}),
    "a device": sealed(files={"/dev/zero": RECORD}),
    "no record": sealed(files={results.RUNS: 7}),
    "no size": sealed(files={results.RUNS: RECORD | {"bytes": -1}}),
    "no checksum": sealed(files={results.RUNS: RECORD | {"sha256": "../../x"}}),
    "no files": sealed(),
}


@pytest.mark.parametrize("content", CRAFTED.values(), ids=CRAFTED)
def test_crafted_checksums(folder, content):
    (folder / sources.CHECKSUMS).write_bytes(content)
    with pytest.raises(ValueError, match=r"checksums\.json"):
        results.read(folder)


CELLS = {
    "identity": ("../x", "", "0123"),
    "task": ("../x", "", "."),
    "epoch": ("-1", "nan", "1e3", "9" * 30),
    "seconds": ("nan", "inf", "x"),
    "diverged_step": ("0", "1.5"),
    "final_loss": ("nan", "inf", "x"),
    "state": ("done", ""),
}


@pytest.mark.parametrize(
    ("column", "text"), [(k, text) for k, row in CELLS.items() for text in row]
)
def test_crafted_rows(folder, column, text):
    (folder / sources.CHECKSUMS).unlink()
    path = folder / results.RUNS
    head, first, *others = path.read_text().splitlines()
    cells = first.split(",")
    cells[head.split(",").index(column)] = text
    path.write_text("\n".join([head, ",".join(cells), *others]) + "\n")
    with pytest.raises(ValueError, match=r"expected runs\.csv and curves\.csv in .*/tiny as"):
        results.read(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"title": 7}, {"panels": "power"}, {"rows": [1]}, {"curves": "yes"}, {"metrics": {}},
        {"metrics": [{"name": "loss", "label": "loss", "digits": "many", "direction": "up"}]},
        {"metrics": [7]}, {"measures": [7]}, {"measures_note": 7}, {"looks": {"a": 7}}, {"more": 1},
        {"over": 7}, {"overview": "yes"}, {"halving": 7}, {"halving": {"metric": "loss"}},
        {"halving": {"metric": "loss", "fields": [], "rungs": [[1, 2.0]], "published": {}}},
        {"halving": {"metric": "loss", "fields": [], "rungs": [[1]], "published": {}}},
        {"halving": {"metric": "loss", "fields": [], "rungs": [[1, 0.5]], "published": {"a": 1}}},
        {"looks": {"a": {"label": "a", "colour": '"><b>', "dash": "", "has_tau": True}}},
    ],
)  # fmt: skip
def test_a_crafted_reading(folder, changes):
    (folder / sources.CHECKSUMS).unlink()
    path = folder / READING
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=r"reading\.json as it was written, got: "):
        contents(folder)


@pytest.mark.parametrize("name", [results.RUNS, sources.CHECKSUMS])
@pytest.mark.parametrize("how", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_something_in_the_way(folder, name, how):
    (folder / name).unlink()
    how(folder / name)
    with pytest.raises(ValueError, match=name):
        results.read(folder)


def test_nothing_is_written_through_a_planted_link(folder, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "01234567")
    for name in (*NAMES, sources.CHECKSUMS, "report.md"):
        for ending in (".partial", ".tmp", ".01234567.tmp", ".01234567.new"):
            (folder / (name + ending)).symlink_to(victim)
    put(folder, 0.25)
    assert loss_of(folder) == 0.25
    # a name that somebody has guessed
    with pytest.raises(FileExistsError):
        write(folder)
    assert victim.read_text() == "mine"


# whatever dies, and whenever


def put_until_it_fails(root, monkeypatch, fails_at, how=None):
    """The disk, how many writes came back, and the error."""
    disk, done = Disk(root, fails_at, how), 0
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", disk)
        patch.setattr(sources, "os", disk)
        try:
            for loss in (1.0, 2.0, 3.0):
                put(root / "tiny", loss)
                done += 1
        except (Died, OSError) as error:
            return disk, done, error
    return disk, done, None


@pytest.fixture
def operations(memory, monkeypatch):
    disk, done, _ = put_until_it_fails(memory, monkeypatch, None)
    assert (done, disk.count > 60) == (3, True)
    shutil.rmtree(memory / "tiny")
    return range(1, disk.count + 1)


@pytest.mark.parametrize("power", [False, True], ids=["process", "machine"])
def test_death_at_any_operation_leaves_the_old_or_the_new(memory, operations, monkeypatch, power):
    for k in operations:
        for seed in range(2 if power else 1):
            root = memory / f"{k}-{seed}"
            root.mkdir()
            disk, done, error = put_until_it_fails(root, monkeypatch, k)
            assert isinstance(error, Died)
            if power:
                disk.lose_power(random.Random(seed))
            if (root / "tiny" / sources.CHECKSUMS).exists() or done:
                assert loss_of(root / "tiny") in (done, done + 1), k
            put(root / "tiny", 9.0)
            assert loss_of(root / "tiny") == 9.0
            assert set(os.listdir(root / "tiny")) == {*NAMES, sources.CHECKSUMS}
            shutil.rmtree(root)


def test_a_full_disk_leaves_the_old_or_the_new(memory, operations, monkeypatch):
    for k in operations:
        root = memory / str(k)
        root.mkdir()
        _, done, error = put_until_it_fails(root, monkeypatch, k, errno.ENOSPC)
        assert error is not None
        if done:
            assert loss_of(root / "tiny") in (done, done + 1), k
        shutil.rmtree(root)


def test_several_writers_and_a_reader(folder):
    def work(loss):
        for _ in range(12):
            put(folder, loss)
            write(folder)

    losses = set()
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(work, loss) for loss in (1.0, 2.0)]
        while not all(writer.done() for writer in writers):
            losses.add(loss_of(folder))
        for writer in writers:
            writer.result()
    assert losses <= {0.5, 1.0, 2.0}
    assert loss_of(folder) in (1.0, 2.0)
    for name, text in contents(folder).items():
        assert (folder / name).read_text() == text
    assert not [name for name in os.listdir(folder) if name.endswith((".tmp", ".new"))]
