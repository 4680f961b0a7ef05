"""The search for data sets, their checksums, the idx format and downloads, on small fakes."""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import io
import os
import signal
import struct
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from discretegrad_lab.cli import app
from discretegrad_lab.tasks import data, download

SHAPES = {
    "train-images-idx3-ubyte.gz": (6, 28, 28),
    "train-labels-idx1-ubyte.gz": (6,),
    "t10k-images-idx3-ubyte.gz": (4, 28, 28),
    "t10k-labels-idx1-ubyte.gz": (4,),
}
TRAIN, TEST = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"


def idx(shape, content=None, magic=None):
    """A compressed idx file; by default with random pixels that its shape decides."""
    if content is None:
        generator = torch.Generator().manual_seed(sum(shape))
        content = bytes(torch.randint(256, shape, generator=generator).flatten().tolist())
    start = bytes((0, 0, 8, len(shape))) if magic is None else magic
    return gzip.compress(start + struct.pack(f">{len(shape)}I", *shape) + content, mtime=0)


CONTENT = {name: idx(shape) for name, shape in SHAPES.items()}


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """MNIST with a few images, no data directory but an empty cache, and no proxy."""
    files = tuple(
        data.IdxFile(name, SHAPES[name], hashlib.sha256(content).hexdigest())
        for name, content in CONTENT.items()
    )
    # nothing listens there
    fake = data.DataSet("mnist", files, ("http://127.0.0.1:9/",))
    monkeypatch.setattr(data, "DATA_SETS", {"mnist": fake})
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return fake


def put(directory, **changed):
    """A whole data directory, but for the ``changed`` contents; None leaves a file out."""
    folder = directory / "mnist"
    folder.mkdir(parents=True)
    for name, content in (CONTENT | changed).items():
        if content is not None:
            (folder / name).write_bytes(content)
    return directory


def states(directory=None):
    return {report.file: report.state for report in data.check(directory)}


def test_images_are_those_of_the_files(tmp_path):
    images = data.load_mnist(put(tmp_path / "here"))
    for found, name in ((images.train, TRAIN), (images.test, TEST)):
        assert found.dtype == torch.uint8
        assert found.shape == (SHAPES[name][0], 784)
        assert bytes(found.flatten().tolist()) == gzip.decompress(CONTENT[name])[16:]
    labels = data.load_labels("mnist", tmp_path / "here")
    for part, name in ((labels.train, "train"), (labels.test, "t10k")):
        content = gzip.decompress(CONTENT[f"{name}-labels-idx1-ubyte.gz"])
        assert bytes(part.tolist()) == content[8:]
    # which are not needed for the images
    there = put(tmp_path / "there", **{name: None for name in SHAPES if "labels" in name})
    assert len(data.load_mnist(there).train) == 6
    data.require(["mnist"], tmp_path / "here")
    with pytest.raises(data.DataError, match="expected mnist/train-labels"):
        data.require(["mnist"], there)


def test_option_comes_before_environment_before_cache(tmp_path, monkeypatch):
    option, named = tmp_path / "option", tmp_path / "named"
    monkeypatch.setenv("DISCRETEGRAD_DATA", str(named))
    cache = tmp_path / "cache" / "discretegrad"
    assert data.directories(option) == [option, named, cache]
    put(cache)
    assert {report.path.parents[1] for report in data.check(option)} == {cache}
    put(named)
    assert {report.path.parents[1] for report in data.check(option)} == {named}
    put(option)
    assert {report.path.parents[1] for report in data.check(option)} == {option}
    assert {report.path.parents[1] for report in data.check()} == {named}
    # a place that is no directory has nothing
    (tmp_path / "file").write_text("no folder")
    assert {report.path.parents[1] for report in data.check(tmp_path / "file")} == {named}


@pytest.mark.parametrize("cache", [None, "", "relative/cache"])
def test_cache_is_below_the_home_directory_by_default(monkeypatch, cache):
    monkeypatch.setenv("HOME", "/somewhere")
    if cache is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("DISCRETEGRAD_DATA", "")
    assert data.directories() == [Path("/somewhere/.cache/discretegrad")]
    monkeypatch.setenv("DISCRETEGRAD_DATA", "~/data")
    assert data.directories()[0] == Path("/somewhere/data")


def test_a_missing_file_is_named_with_the_places_and_the_command(tmp_path, monkeypatch):
    option, named = put(tmp_path / "option", **{TEST: None}), tmp_path / "named"
    monkeypatch.setenv("DISCRETEGRAD_DATA", str(named))
    with pytest.raises(data.DataError) as error:
        data.load_mnist(option)
    message = str(error.value)
    assert f"mnist/{TEST}" in message
    for place in (option, named, tmp_path / "cache" / "discretegrad"):
        assert str(place) in message
    assert "got none; run `discretegrad data fetch mnist`" in message
    assert "\n" not in message
    assert states(option) == {**dict.fromkeys(SHAPES, "ok"), TEST: "missing"}


@pytest.mark.parametrize(
    "content",
    [CONTENT[TRAIN][:-9], CONTENT[TRAIN] + b"\0", b"", CONTENT[TEST]],
    ids=["truncated", "longer", "empty", "another file"],
)
def test_a_damaged_file_is_found_and_not_used(tmp_path, content):
    here = put(tmp_path / "here", **{TRAIN: content})
    assert states(here) == {**dict.fromkeys(SHAPES, "ok"), TRAIN: "damaged"}
    with pytest.raises(data.DataError) as error:
        data.load_mnist(here)
    message = str(error.value)
    assert f"{here / 'mnist' / TRAIN}, which is damaged ({len(content)} bytes" in message
    assert "`discretegrad data fetch mnist`" in message


def test_a_damaged_file_does_not_hide_a_whole_one(tmp_path):
    here, cache = put(tmp_path / "here", **{TRAIN: b"damaged"}), tmp_path / "cache" / "discretegrad"
    put(cache)
    assert len(data.load_mnist(here).train) == 6
    # of two damaged ones the first is reported, also if it cannot be read at all
    (cache / "mnist" / TRAIN).write_bytes(b"damaged, too")
    (here / "mnist" / TRAIN).unlink()
    (here / "mnist" / TRAIN).mkdir()
    report = data.check(here)[0]
    assert (report.state, report.path) == ("damaged", here / "mnist" / TRAIN)
    assert "cannot be read" in report.reason


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx((2, 3))[:-9], "whole gzip file"),
        (b"no gzip", "whole gzip file"),
        (gzip.compress(b"", mtime=0), r"begin like an idx file of bytes with 2 axes, got $"),
        (idx((2, 3), magic=bytes((0, 0, 9, 2))), r"axes, got 00 00 09 02"),
        (idx((2, 3, 1)), r"begin like .* 2 axes, got 00 00 08 03"),
        (gzip.compress(bytes((0, 0, 8, 2, 0)), mtime=0), "hold 2 x 3 bytes, got 0 x 0"),
        (idx((3, 2)), "hold 2 x 3 bytes, got 3 x 2"),
        (idx((2, 3), b"12345"), "6 bytes after the header of name, got 5"),
        (idx((2, 3), b"1234567"), "6 bytes after the header of name, got 7"),
    ],
)
def test_a_wrong_idx_file_is_refused(content, message):
    with pytest.raises(data.DataError, match=message):
        data.read_idx(content, (2, 3), "name")


class Server:
    """Serves ``content``; ``announced`` is what it says the length of a file is, or None.

    It waits for ``silence`` seconds before it answers, and for ``pause`` between two pieces.
    """

    def __init__(self):
        self.content, self.announced, self.asked = dict(CONTENT), {}, []
        self.silence = self.pause = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/")
                outer.asked.append(name)
                if name not in outer.content:
                    self.send_error(404)
                    return
                content = outer.content[name]
                time.sleep(outer.silence)
                self.send_response(200)
                length = outer.announced.get(name, len(content))
                if length is not None:
                    self.send_header("Content-Length", length)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    for start in range(0, len(content), 1000):
                        self.wfile.write(content[start : start + 1000])
                        time.sleep(outer.pause)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch, small):
    started = Server()
    use(monkeypatch, small, started.address)
    yield started
    started.close()


def use(monkeypatch, small, *sources):
    monkeypatch.setitem(data.DATA_SETS, "mnist", dataclasses.replace(small, sources=sources))


def files(directory):
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_fetch_downloads_to_the_first_directory_of_the_search(tmp_path, monkeypatch, server):
    for place in ("cache/discretegrad", "named", "option"):
        if place == "named":
            monkeypatch.setenv("DISCRETEGRAD_DATA", str(tmp_path / place))
        option = tmp_path / place if place == "option" else None
        assert [path.name for path in data.fetch("mnist", option)] == list(SHAPES)
        assert files(tmp_path / place / "mnist") == sorted(SHAPES)
        assert set(states(tmp_path / place).values()) == {"ok"}


def test_fetch_keeps_what_is_whole_and_replaces_what_is_damaged(tmp_path, server):
    here = put(tmp_path / "here", **{TRAIN: b"damaged", TEST: None})
    assert [path.name for path in data.fetch("mnist", here)] == [TRAIN, TEST]
    assert server.asked == [TRAIN, TEST]
    assert set(states(here).values()) == {"ok"}


def test_fetch_reports_its_progress(tmp_path, monkeypatch, server):
    monkeypatch.setattr(download, "_AT_ONCE", 1000)
    calls = []
    data.fetch("mnist", tmp_path, lambda *call: calls.append(call))
    for name, content in CONTENT.items():
        mine = [(done, total) for file, done, total in calls if file == name]
        assert [total for _, total in mine] == [len(content)] * -(-len(content) // 1000)
        assert [done for done, _ in mine] == [*range(1000, len(content), 1000), len(content)]


def test_the_next_source_is_tried(tmp_path, monkeypatch, small, server):
    wrong = "http://127.0.0.1:9/", server.address + "nothing/"
    use(monkeypatch, small, *wrong)
    with pytest.raises(data.DataError) as error:
        data.fetch("mnist", tmp_path / "new")
    message = str(error.value)
    assert f"http://127.0.0.1:9/{TRAIN}: [Errno" in message
    assert f"{server.address}nothing/{TRAIN}: HTTP status 404" in message
    assert f"copy the file to {tmp_path / 'new' / 'mnist' / TRAIN}" in message
    assert "\n" not in message
    assert not (tmp_path / "new").exists()
    use(monkeypatch, small, *wrong, server.address)
    data.fetch("mnist", tmp_path)
    assert set(states(tmp_path).values()) == {"ok"}


def most_bytes(name):
    return data.IdxFile(name, SHAPES[name], "").most_bytes


TROUBLE = {
    "cut off": r"ended after \d+ of \d+ bytes",
    "wrong": f"wrong checksum.* was deleted .*{hashlib.sha256(CONTENT[TEST]).hexdigest()}",
    "too large": f"1000000 bytes or more, expected {most_bytes(TRAIN)} at most",
    "endless": rf"\d+ bytes or more, expected {most_bytes(TRAIN)} at most",
    "slow": r"only \d+ bytes within 0.1 s",
    "silent": "no answer within 0.1 s",
    "full disk": "No space left on device; make room",
    "interrupted": "by the user",
}


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("before", [None, b"damaged, and somebody's"])
def test_a_download_that_fails_leaves_what_was_there(
    tmp_path, monkeypatch, server, trouble, before
):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def progress(*_):
        if trouble == "interrupted":
            raise KeyboardInterrupt("by the user")

    here = put(tmp_path / "here", **{TRAIN: before})
    there = files(here)
    server.announced[TRAIN] = len(CONTENT[TRAIN]) + 5 * (trouble == "cut off")
    if trouble == "wrong":
        server.content[TRAIN], server.announced = CONTENT[TEST], {}
    elif trouble in ("too large", "endless"):
        server.content[TRAIN] = CONTENT[TRAIN] + bytes(1_000_000)
        server.announced[TRAIN] = 1_000_000 if trouble == "too large" else None
    elif trouble == "slow":
        server.pause = 0.15
        monkeypatch.setattr(download, "_LONGEST", 0.1)
    elif trouble == "silent":
        server.silence = 0.3
        monkeypatch.setattr(download, "_ANSWER", 0.1)
    elif trouble == "full disk":
        monkeypatch.setattr(data.os, "fsync", full)
    with pytest.raises((data.DataError, KeyboardInterrupt), match=TROUBLE[trouble]):
        data.fetch("mnist", here, progress)
    assert files(here) == there
    assert before is None or (here / "mnist" / TRAIN).read_bytes() == before
    assert server.asked == [TRAIN]


def test_the_files_are_smaller_than_the_most_they_may_have():
    """Also one of random bytes, which gzip makes larger."""
    for name, content in CONTENT.items():
        assert len(content) <= most_bytes(name)
    noise = idx((100_000,), os.urandom(100_000))
    assert 100_000 < len(noise) <= data.IdxFile("", (100_000,), "").most_bytes < 103_000


def test_what_a_killed_process_left_is_cleared_away(tmp_path, server):
    here = put(tmp_path / "here")
    old, new, other = (here / "mnist" / name for name in (".a.part", ".b.part", "c.part"))
    for path in (old, new, other):
        path.touch()
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    # another process may be writing the new one, and the other one is none of ours
    assert data.fetch("mnist", here) == []
    assert files(here) == sorted([*SHAPES, new.name, other.name])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_part_of_a_file(tmp_path, monkeypatch, server, number):
    def stop(response, file, path, progress):
        receive(response, file, path, lambda *_: signal.raise_signal(number))

    receive = data.receive
    monkeypatch.setattr(data, "receive", stop)
    before = signal.getsignal(number)
    result = CliRunner().invoke(app, ["data", "fetch", "mnist", "--data", str(tmp_path)])
    assert result.exit_code == 130
    assert files(tmp_path) == []
    assert signal.getsignal(number) == before


def test_what_cannot_be_fetched_is_refused(tmp_path, server):
    with pytest.raises(ValueError, match="expected a data set of mnist, got 'imagenet'"):
        data.fetch("imagenet", tmp_path)
    (tmp_path / "mnist").write_text("a file, no folder")
    with pytest.raises(data.DataError, match="expected to write"):
        data.fetch("mnist", tmp_path)
    assert files(tmp_path) == ["mnist"]


def test_a_plain_file_may_have_another_name_at_its_source_or_none(tmp_path, monkeypatch, server):
    content, lost = b"a line\n", b"lines\n"
    server.content["elsewhere/lines.txt"] = content
    files = (
        data.PlainFile("a.txt", hashlib.sha256(content).hexdigest(), len(content),
                       f"{server.address}elsewhere/lines.txt"),
        data.PlainFile("b.txt", hashlib.sha256(lost).hexdigest(), len(lost)),
    )  # fmt: skip
    plain = data.DataSet("plain", files, ())
    monkeypatch.setitem(data.DATA_SETS, "plain", plain)
    place = tmp_path / "plain" / "b.txt"
    with pytest.raises(
        data.DataError,
        match=f"copy it from a machine that does to {place}$",
    ):
        data.fetch("plain", tmp_path)
    assert data.read_file("plain", "a.txt", tmp_path) == content
    with pytest.raises(
        data.DataError,
        match="got none; no public source has it: copy",
    ):
        data.read_file("plain", "b.txt", tmp_path)
    place.write_bytes(lost)
    assert data.fetch("plain", tmp_path) == []
    data.require(["plain"], tmp_path)
    # more bytes than the file has are refused before their checksum is wrong
    server.content["elsewhere/lines.txt"] = content * 2
    (tmp_path / "plain" / "a.txt").unlink()
    with pytest.raises(data.DataError, match="14 bytes or more, expected 7 at most"):
        data.fetch("plain", tmp_path)


# files that are published together


def packed(**content):
    """A compressed tar file with a folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, inside in content.items():
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(inside)
            archive.addfile(member, io.BytesIO(inside))
    return stream.getvalue()


@pytest.fixture
def together(monkeypatch, server):
    """Two files in an archive; a function that changes what is in it."""

    def plain(name, content):
        return data.PlainFile(name, hashlib.sha256(content).hexdigest(), len(content))

    def serve(**content):
        whole = packed(**content)
        server.content["both.tar.gz"] = whole
        pair = plain("a", b"first"), plain("b", b"second")
        archive = plain("both.tar.gz", whole)
        made = data.DataSet("pair", pair, (server.address,), archive)
        monkeypatch.setitem(data.DATA_SETS, "pair", made)

    serve(a=b"first", b=b"second")
    return serve


def test_an_archive_is_fetched_once_and_unpacked(tmp_path, server, together):
    folder = tmp_path / "pair"
    assert data.fetch("pair", tmp_path) == [folder / "a", folder / "b"]
    assert files(tmp_path) == ["a", "b"]
    assert data.read_file("pair", "b", tmp_path) == b"second"
    assert data.fetch("pair", tmp_path) == []
    # only what is missing is replaced, and an archive that is there is used
    (folder / "b").write_bytes(b"damaged")
    (folder / "both.tar.gz").write_bytes(server.content["both.tar.gz"])
    assert data.fetch("pair", tmp_path) == [folder / "b"]
    assert server.asked == ["both.tar.gz"]
    assert files(tmp_path) == ["a", "b", "both.tar.gz"]


def test_an_archive_with_other_files_is_refused(tmp_path, server, together):
    for content, words in (
        ({"a": b"first"}, "expected both.tar.gz with a, b"),
        ({"a": b"first", "b": b"sEcond"}, "expected b with sha256"),
        ({"a": b"first", "b": b"second and more"}, "expected b with sha256"),
    ):
        together(**content)
        with pytest.raises(data.DataError, match=words):
            data.fetch("pair", tmp_path)
        assert files(tmp_path) == ["a"]
        (tmp_path / "pair" / "a").unlink()
    server.content["both.tar.gz"] = b"no archive"
    with pytest.raises(data.DataError, match="wrong checksum"):
        data.fetch("pair", tmp_path)
    assert files(tmp_path) == []


REAL = os.environ.get("DISCRETEGRAD_DATA")


@pytest.mark.skipif(not REAL, reason="DISCRETEGRAD_DATA names no data directory")
def test_the_real_files(monkeypatch):
    monkeypatch.undo()
    assert len(data.DATA_SETS) > 1
    found = {report for report in data.check() if report.data_set == "mnist"}
    assert {report.state for report in found} == {"ok"}
    images = data.load_mnist()
    assert images.train.shape == (60000, 784)
    assert images.test.shape == (10000, 784)
    # the mean that everybody normalises MNIST with
    assert images.train.float().mean().item() / 255 == pytest.approx(0.1307, abs=5e-5)
