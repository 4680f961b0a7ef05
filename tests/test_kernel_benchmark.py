"""The GPU benchmark: it refuses wrong numbers, judges its targets, and its page is current.

Stored results come from ``python benchmarks/kernels.py`` on a machine with a GPU; here the same
code runs in miniature on the CPU, where samplers take the torch path.
"""

import gzip
import itertools
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

import discretegrad
from benchmark_cases import (
    BENCHMARKS,
    check_is_complete,
    check_verdicts,
    rehearse,
    scripts,
    written_page,
)
from discretegrad import bernoulli
from oracles import one_thread

seeded_on_one_thread = pytest.fixture(autouse=True)(one_thread)


@pytest.fixture(scope="module")
def bench():
    with scripts(kernels="kernels", table="kernels_table") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A file like MNIST's, of 120 made-up images."""
    path = tmp_path_factory.mktemp("mnist") / "train-images-idx3-ubyte.gz"
    pixels = torch.randint(256, (120, 784), dtype=torch.uint8)
    head = bytes([0, 0, 8, 3, 0, 0, 0, 120, 0, 0, 0, 28, 0, 0, 0, 28])
    path.write_bytes(gzip.compress(head + pixels.numpy().tobytes()))
    return path


@pytest.fixture(scope="module")
def quick(bench, mnist, tmp_path_factory):
    """A rehearsal of everything."""
    return rehearse(bench.kernels.main, ["--mnist", str(mnist)], tmp_path_factory.mktemp("quick"))


@pytest.fixture
def results(bench, quick):
    return bench.table.PAGE.read(quick.folder)


@pytest.fixture
def setup(bench):
    return bench.kernels.Setup(torch.device("cpu"), quick=True)


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return torch.randn(100, 7).requires_grad_(), torch.randn(100, 7)


# the gate


def faults(bench, sampler, logits, cotangent):
    return bench.kernels.sampler_work(sampler, logits, cotangent).gate()


def wrong(sample, change):
    """A sampler whose gradient is changed on the way back."""

    def changed(logits):
        logits = logits.clone()
        logits.register_hook(change)
        return sample(logits)

    return changed


def zero_last_row(gradient):
    return torch.cat([gradient[:-1], torch.zeros_like(gradient[-1:])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_is_green(bench, inputs, dtype):
    logits, cotangent = (x.detach().to(dtype) for x in inputs)
    logits.requires_grad_()
    for sampler in (*bench.kernels.CATEGORICAL, *bench.kernels.BITS):
        if not sampler.compiled:
            assert faults(bench, sampler, logits, cotangent) == [], sampler.name


@pytest.mark.parametrize(
    ("sample", "fault"),
    [
        (partial(discretegrad.gumbel_softmax, hard=False), "not exactly one-hot"),
        (lambda logits: 2 * discretegrad.reinmax(logits), "not exactly one-hot"),
        (wrong(discretegrad.reinmax, lambda g: g / 0), "not finite"),
        (wrong(discretegrad.reinmax, lambda g: g + 1e-3), "do not sum to zero"),
        (wrong(discretegrad.reinmax, lambda g: 1.001 * g), "off the float64 formula"),
        (wrong(discretegrad.reinmax, zero_last_row), "off the float64 formula"),
        (partial(discretegrad.reinmax, tau=1.1), "off the float64 formula"),
        (discretegrad.straight_through, "off the float64 formula"),
    ],
    ids=["relaxed", "twice", "infinite", "shifted", "scaled", "last row", "tau", "other"],
)
def test_the_gate_finds(bench, inputs, sample, fault):
    sampler = bench.kernels.Sampler("under test", sample, reinmax_tau=1.0)
    assert any(fault in found for found in faults(bench, sampler, *inputs))


@pytest.mark.parametrize(
    ("sample", "fault"),
    [
        (lambda logits: bernoulli.reinmax(logits) / 2, "not exactly one-hot"),
        (wrong(bernoulli.reinmax, lambda g: 1.001 * g), "off the float64 formula"),
        (bernoulli.straight_through, "off the float64 formula"),
    ],
    ids=["halves", "scaled", "other"],
)
def test_the_gate_finds_wrong_bits(bench, inputs, sample, fault):
    sampler = bench.kernels.Sampler("under test", sample, reinmax_tau=1.0, bits=True)
    assert any(fault in found for found in faults(bench, sampler, *inputs))


def lookup_leaves(section):
    torch.manual_seed(0)
    table, logits, hidden = torch.randn(20, 6), torch.randn(40, 20), torch.randn(40, 6)
    leaves = [logits, table] if section == "index" else [hidden, torch.randn(20, 6), table]
    return [leaf.requires_grad_() for leaf in leaves], torch.randn(40, 6)


@pytest.mark.parametrize("section", ["index", "vocabulary"])
def test_the_gate_of_lookups_is_green(bench, section):
    for lookup in bench.kernels.LOOKUPS[section]:
        assert bench.kernels.lookup_faults(lookup, *lookup_leaves(section)) == [], lookup.name


@pytest.mark.parametrize("section", ["index", "vocabulary"])
def test_the_gate_finds_wrong_lookups(bench, section):
    good = next(x for x in bench.kernels.LOOKUPS[section] if x.name == "reinmax @ table")
    leaves, cotangent = lookup_leaves(section)
    for place in range(len(leaves)):

        def apply(*given, place=place):
            given = [leaf * 1 for leaf in given]
            given[place].register_hook(lambda gradient: 1.01 * gradient)
            return good.apply(*given)

        (fault,) = bench.kernels.lookup_faults(replace(good, apply=apply), leaves, cotangent)
        assert "off the float64 formula" in fault
    shifted = replace(good, apply=lambda *given: good.apply(*given) + 1e-3)
    assert "no row of the table" in bench.kernels.lookup_faults(shifted, leaves, cotangent)[0]


def test_a_speedup_is_never_reported_on_a_red_gate(bench, setup, inputs):
    kernels = bench.kernels
    lying = wrong(discretegrad.reinmax, lambda g: 2 * g)

    def missing(logits):
        raise kernels.Unavailable("not installed")

    def broken(logits):
        raise ZeroDivisionError("no reason\nat all")

    def too_large(logits):
        raise torch.cuda.OutOfMemoryError

    good = next(x for x in kernels.CATEGORICAL if x.name == kernels.REINMAX)
    samplers = [
        good,
        replace(good, name=kernels.PYPI, sample=lying),
        replace(good, name="missing", sample=missing),
        replace(good, name="broken", sample=broken),
        replace(good, name="too large", sample=too_large),
        replace(good, name=kernels.TORCH),
    ]
    works = [kernels.sampler_work(sampler, *inputs) for sampler in samplers]
    case = kernels.Case("large", "100x7", "float32", works, tensor_bytes=2800, has_floor=True)
    rows = {row["provider"]: row for row in kernels.measure(case, setup, kernels.QUICK_PACE, 1e9)}
    assert rows[kernels.PYPI]["status"].startswith("red gate: its gradient is off")
    assert rows["missing"]["status"] == "not installed"
    assert rows["broken"]["status"] == "failed: ZeroDivisionError: no reason"
    assert rows["too large"]["status"] == "out of memory"
    for name in (kernels.PYPI, "missing", "broken", "too large"):
        assert rows[name]["seconds"] == rows[name]["speedup_torch"] == ""
    ours = rows[kernels.REINMAX]
    assert ours["status"] == "ok"
    assert ours["seconds"] > 0
    assert ours["speedup_torch"] > 0
    assert ours["speedup_pypi"] == ""
    assert [kernels.is_red(row) for row in rows.values()] == [
        False,
        True,
        False,
        True,
        False,
        False,
    ]


# what it compares with


@pytest.mark.parametrize(
    ("plain", "ours", "options"),
    [
        ("plain_straight_through", discretegrad.straight_through, {}),
        ("plain_reinmax", discretegrad.reinmax, {}),
        ("plain_gapped", discretegrad.gapped, {}),
        ("plain_gumbel_rao", discretegrad.gumbel_rao, {"num_draws": 20}),
        ("plain_bernoulli_gumbel_rao", bernoulli.gumbel_rao, {"num_draws": 20}),
    ],
)
def test_the_plain_forms_estimate_the_same(bench, plain, ours, options):
    torch.manual_seed(0)
    row, slope = torch.tensor([0.3, -1.0, 0.8, 0.0]), torch.tensor([1.0, -2.0, 0.5, 3.0])
    means = []
    for function in (getattr(bench.kernels, plain), ours):
        logits = row.expand(4000, -1).clone().requires_grad_()
        sample = function(logits, tau=0.7, **options)
        assert torch.equal(sample, sample.round())
        (gradient,) = torch.autograd.grad(sample, logits, slope + sample.detach())
        means.append((gradient.mean(0), gradient.std(0) / 4000**0.5))
    (one, error), (two, other_error) = means
    assert ((one - two).abs() < 5 * (error.square() + other_error.square()).sqrt() + 1e-6).all()


def test_the_published_numbers_have_their_places(bench):
    methods = [method.name for method in bench.kernels.METHODS]
    assert methods[:5] == ["ReinMax", "ST", "STGS", "GST-1.0", "GR-MCK 100"]
    assert methods[5:] == ["GR-MCK 300", "GR-MCK 1000"]
    assert bench.kernels.PUBLISHED["QP"][6] == (6.6, 3e9)
    assert bench.kernels.PUBLISHED["MNIST-VAE"][4] == (5.2, 76e6)


def test_images_are_read_or_refused(bench, mnist, tmp_path):
    images = bench.kernels.read_images(mnist, 100)
    assert images.shape == (100, 784)
    assert 0.9 < images.max() <= 1
    with pytest.raises(ValueError, match="not MNIST's"):
        bench.kernels.read_images(mnist, 121)
    other = tmp_path / "train-labels-idx1-ubyte.gz"
    other.write_bytes(gzip.compress(b"\0\0\x08\x01" + bytes(10**5)))
    with pytest.raises(ValueError, match="not MNIST's"):
        bench.kernels.read_images(other, 100)
    with pytest.raises(FileNotFoundError, match="--mnist"):
        bench.kernels.read_images(tmp_path / "nothing.gz", 100)


# the measurement


def case_of(bench, names, **options):
    works = [bench.kernels.Work(name, None, None, None, plain="plain") for name in names]
    return bench.kernels.Case("large", "8x4", "float32", works, **options)


def test_ratios_are_formed_within_a_round(bench):
    kernels = bench.kernels
    case = case_of(
        bench,
        ["a", kernels.TORCH, kernels.PYPI, "plain"],
        tensor_bytes=128,
        memory_baseline="plain",
    )
    times = {
        "a": [1.0, 1.0],  # slow, in two rounds only
        kernels.TORCH: [2.0, 4.0, 99.0],
        kernels.PYPI: [8.0, 8.0, 99.0],
        "plain": [0.5, 0.5, 99.0],
    }
    peaks = {"a": (256, 200), "plain": (512, 512)}
    row = kernels.result(case, case.works[0], "ok", times, peaks, floor=0.5)
    assert (row["rounds"], row["seconds"], row["times_floor"]) == (2, 1.0, 2.0)
    assert (row["speedup_torch"], row["speedup_torch_p20"]) == (3.0, 2.4)
    assert (row["speedup_pypi"], row["speedup_plain"]) == (8.0, 0.5)
    assert (row["peak_extra_bytes"], row["peak_extra_tensors"]) == (256, 2.0)
    assert (row["beyond_bytes"], row["memory_ratio"]) == (56, 0.5)
    without = kernels.result(case, case.works[1], "ok", times, {}, floor=None)
    assert without["times_floor"] == without["peak_extra_bytes"] == without["memory_ratio"] == ""
    assert tuple(row) == kernels.COLUMNS


def test_rounds_run_in_changing_order_and_a_slow_provider_has_fewer(bench, setup):
    kernels, calls = bench.kernels, []
    case = case_of(bench, "abcdef")
    ready = [
        kernels.Stopwatch(work, partial(calls.append, work.provider), 1, work.provider == "f", 1)
        for work in case.works
    ]
    times = kernels.race(ready, case, setup, kernels.Pace(20, 0.0, 1))
    assert {name: len(found) for name, found in times.items()} == {
        **dict.fromkeys("abcde", 20),
        "f": kernels.SLOW_ROUNDS,
    }
    before = {name: set() for name in "abcdef"}
    for previous, name in itertools.pairwise(calls[::2]):  # each has a warm-up call
        before[name].add(previous)
    assert min(len(before[name]) for name in "abcde") >= 3


def test_a_call_that_stands_for_twenty_is_divided(bench, setup):
    kernels = bench.kernels
    case = case_of(bench, "ab")
    sleep = partial(kernels.time.sleep, 0.002)
    ready = [
        kernels.Stopwatch(work, sleep, calls_each, False, 3)
        for work, calls_each in zip(case.works, (1, 20), strict=True)
    ]
    times = kernels.race(ready, case, setup, kernels.Pace(2, 0.0, 1))
    assert min(times["a"]) >= 0.002 > 0.0015 > min(times["b"]) >= 0.0001


def test_the_floor_is_five_passes_at_the_bandwidth_of_a_copy(bench, setup, inputs):
    kernels = bench.kernels
    works = [kernels.sampler_work(kernels.CATEGORICAL[0], *inputs)]
    case = kernels.Case("large", "100x7", "float32", works, tensor_bytes=2800, has_floor=True)
    (row,) = kernels.measure(case, setup, kernels.QUICK_PACE, bandwidth=1e9)
    assert row["times_floor"] == pytest.approx(row["seconds"] / (20 * 700 / 1e9), rel=0.01)


def test_launches_are_counted_forward_and_backward(bench, monkeypatch):
    kernels = bench.kernels
    names = {"forward": ["draw", "Memset (Device)"], "backward": ["one", "two", "Memcpy DtoD"]}
    work = kernels.Work("reinmax", lambda: "forward", lambda output: "backward", None)
    monkeypatch.setattr(kernels, "names_on_gpu", lambda function: names[function()])
    assert kernels.count_launches(work) == {
        "launches_forward": 1,
        "copies_forward": 1,
        "launches_backward": 2,
        "copies_backward": 1,
    }


def test_memory_that_cannot_be_measured_costs_no_times(bench, setup, inputs, monkeypatch, capsys):
    kernels = bench.kernels

    def fails(work, setup):
        raise ZeroDivisionError("no memory")

    monkeypatch.setattr(kernels, "peak_bytes", fails)
    works = [kernels.sampler_work(kernels.CATEGORICAL[0], *inputs)]
    case = kernels.Case("large", "100x7", "float32", works, tensor_bytes=2800)
    (row,) = kernels.measure(case, setup, kernels.QUICK_PACE, bandwidth=1e9)
    assert row["seconds"] > 0
    assert row["peak_extra_bytes"] == ""
    assert "reinmax: failed: ZeroDivisionError: no memory" in capsys.readouterr().out


# targets


def test_the_targets_are_those_of_the_issue(bench):
    limits = {}
    for target in bench.kernels.TARGETS:
        limits.setdefault((target.case, target.column), set()).add(target.limit)
    for shape, floor in (("65536x1024", 1.25), ("8192x32768", 1.25), ("2048x131072", 1.6)):
        assert limits[shape, "times_floor"] == {floor}
        assert limits[shape, "speedup_pypi"] == {7}
        assert limits[shape, "speedup_torch"] == {4}
        assert limits[shape, "peak_extra_tensors"] == {2.1}
    for shape in ("3000x10", "400x8"):
        assert limits[shape, "launches_forward"] == limits[shape, "launches_backward"] == {2}
        assert limits[shape, "speedup_pypi"] == {4}
        assert limits[shape, "speedup_torch"] == {1}
        assert limits[shape, "seconds"] == {12}
    assert limits["512x128x2", "memory_ratio"] == limits["QP", "memory_ratio"] == {2}
    assert limits["512x128x2", "speedup_plain"] == limits["QP", "speedup_plain"] == {20}
    assert limits["8192x131072x1024", "beyond_bytes"] == {256}
    assert limits["8192x131072x1024", "speedup_plain"] == {1 / 2.5}
    assert len(bench.kernels.TARGETS) == 40


def test_every_target_is_about_something_that_is_measured(bench):
    kernels = bench.kernels
    shapes = {"x".join(map(str, size.shape)) for size in (*kernels.LARGE, *kernels.SMALL)}
    shapes |= {"x".join(map(str, s)) for sizes in kernels.LOOKUP_SIZES.values() for *s, _ in sizes}
    names = {sampler.name for sampler in kernels.CATEGORICAL} | {"gumbel_rao", "linear_select"}
    names |= {method.name for method in kernels.METHODS}
    columns = {*kernels.COLUMNS, "epoch_seconds"}
    for target in kernels.TARGETS:
        assert target.section in kernels.SECTIONS
        assert target.case in shapes | {"512x128x2", "QP"}
        assert target.provider in names
        assert target.column in columns


def row_for(bench, target, value, status="ok"):
    row = dict.fromkeys(bench.kernels.COLUMNS, "") | {
        "section": target.section,
        "case": target.case,
        "dtype": target.dtype,
        "mode": target.mode,
        "provider": target.provider,
        "status": status,
    }
    suffixes = ("", "_p20", "_p80") if target.is_least else ("",)
    return row | {target.column + suffix: str(value) for suffix in suffixes}


def test_targets_are_met_or_missed(bench):
    for target in bench.kernels.TARGETS:

        def judged(value, target=target):
            return bench.table.judged(target, [row_for(bench, target, value)])

        check_verdicts(target, judged)
        red = row_for(bench, target, "", "red gate: it is wrong")
        assert bench.table.judged(target, [red]) == ("red gate: it is wrong", "**missed**")
        assert bench.table.judged(target, [row_for(bench, target, "")]) == ("", "not measured")
        assert bench.table.judged(target, []) == ("", "not measured")


# runs and what they write


def test_a_rehearsal_measures_everything_and_leaves_the_stored_results_alone(bench, quick, results):
    assert quick.code == 0
    assert quick.untouched
    assert sorted(path.name for path in quick.folder.glob("*.csv")) == [
        "efficiency.csv",
        "kernels.csv",
    ]
    assert list(dict.fromkeys(row["section"] for row in results.rows if "source" not in row)) == [
        section for section in bench.kernels.SECTIONS if section != "efficiency"
    ]
    for row in results.rows:
        check_is_complete(row)
        if row["mode"] != "published":
            assert float(row["seconds_p20"]) <= float(row["seconds"]) <= float(row["seconds_p80"])
            assert int(row["peak_extra_bytes"]) > 0
    forms = {(row["case"], row["provider"], row["mode"]) for row in results.of("efficiency")}
    methods = [method.name for method in bench.kernels.METHODS]
    assert forms == set(
        itertools.product(("QP", "MNIST-VAE"), methods, ("published", "plain", "ours"))
    )


@pytest.mark.gpu
# of torch's own compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_rehearsal_on_a_gpu(bench, tmp_path):
    arguments = ["--quick", "--only", "small", "index", "--output", str(tmp_path)]
    assert bench.kernels.main(arguments) == 0
    rows = bench.table.PAGE.read(tmp_path).rows
    assert {row["gpu"] for row in rows} == {torch.cuda.get_device_name()}
    eager = [row for row in rows if row["section"] == "small" and row["mode"] == "eager"]
    # PyPI reinmax may be missing
    measured = [row for row in eager if row["status"] == "ok"]
    assert any(row["provider"] == "reinmax" for row in measured)
    assert all(int(row["launches_forward"]) > 0 for row in measured)
    assert {row["mode"] for row in rows if row["section"] == "small"} == {
        "eager",
        "graph",
        "graph of 20",
    }


def test_a_section_replaces_only_its_own_rows(bench, tmp_path):
    kernels = bench.kernels
    kernels.write_section(tmp_path, "small", [{"section": "small", "x": "old"}])
    kernels.write_section(tmp_path, "large", [{"section": "large", "x": "old"}])
    kernels.write_section(tmp_path, "small", [{"section": "small", "x": "new"}] * 2)
    kernels.write_section(tmp_path, "small", [])
    kernels.write_section(tmp_path, "efficiency", [{"section": "efficiency", "x": "new"}])
    found = [(row["section"], row["x"]) for row in bench.table.PAGE.read(tmp_path).rows]
    assert found == [("large", "old"), ("small", "new"), ("small", "new"), ("efficiency", "new")]


def test_a_section_that_breaks_off_keeps_what_it_has(bench, tmp_path, monkeypatch, capsys):
    kernels = bench.kernels
    good = kernels.SECTIONS["gumbel_rao"]

    def breaks(setup):
        yield next(good(setup))
        raise ZeroDivisionError

    monkeypatch.setitem(kernels.SECTIONS, "gumbel_rao", breaks)
    monkeypatch.setattr(kernels, "peak_bytes_on_cpu", lambda call: 1)
    arguments = ["--device", "cpu", "--quick", "--only", "gumbel_rao", "index"]
    assert kernels.main([*arguments, "--output", str(tmp_path)]) == 1
    assert "gumbel_rao broke off" in capsys.readouterr().out
    sections = {row["section"] for row in bench.table.PAGE.read(tmp_path).rows}
    assert sections == {"gumbel_rao", "index"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu", "--only", "tiny"], "invalid choice"),
        (["--device", "cpu"], "needs MNIST, and it is not given"),
        (["--device", "cpu", "--mnist", "nothing.gz"], "there is no file nothing.gz"),
        (["--device", "cpu", "--only", "small", "--output", str(BENCHMARKS)], "a rehearsal"),
        (["--only", "small"], "torch finds none"),
    ],
)
def test_wrong_arguments(bench, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        bench.kernels.main(arguments)
    assert message in capsys.readouterr().err


def test_help_and_the_recorded_command(bench, capsys, mnist, monkeypatch):
    with pytest.raises(SystemExit, match="0"):
        bench.kernels.main(["--help"])
    assert "red gate" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    full = bench.kernels.parse(["--mnist", str(mnist), "--commit", "abc"])
    assert full.command == "python benchmarks/kernels.py --mnist FILE"
    assert full.output == BENCHMARKS
    part = bench.kernels.parse(["--quick", "--only", "index", "small"])
    assert part.command == "python benchmarks/kernels.py --quick --only small index"
    assert part.output != BENCHMARKS


def test_it_runs_without_the_packages_that_a_machine_with_a_gpu_may_lack():
    code = (
        "import sys; sys.modules['reinmax'] = sys.modules['matplotlib'] = None; import kernels\n"
        "assert kernels.attempt(lambda: kernels.pypi_reinmax(None)) == (None, 'not installed')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# the page


def test_the_page_is_current(bench):
    stored = [BENCHMARKS / name for name in (bench.kernels.RESULTS, bench.kernels.EFFICIENCY)]
    if not all(path.exists() for path in stored):
        pytest.skip("nothing is stored yet")
    assert bench.table.main(["--check"]) == 0, "run python benchmarks/kernels_table.py"


def test_a_page_of_nothing_says_so(bench, tmp_path):
    assert bench.table.main(["--preview", str(tmp_path)]) == 0
    text = (tmp_path / "kernel-benchmarks.md").read_text(encoding="utf-8")
    assert text.count("Not measured yet.") == 10
    assert text.count("| not measured |") == len(bench.kernels.TARGETS)
    assert [path.name for path in tmp_path.iterdir()] == ["kernel-benchmarks.md"]


def test_a_page_shows_what_there_is(bench, quick, results, tmp_path):
    for section in bench.kernels.SECTIONS:
        some = bench.table.Results(results.of(section), "")
        text = bench.table.page(some)
        assert "Not measured yet." in text
        for row in some.rows:
            assert row["provider"] in text


def test_the_page_and_its_pictures_follow_from_the_results(bench, quick, results, capsys):
    text = written_page(bench.table, quick.folder, bench.table.FLOOR_PICTURE, capsys)
    assert "Not measured yet." not in text
    for row in results.rows:
        assert row["command"] in text
    for name in (bench.table.FLOOR_PICTURE, bench.table.MEMORY_PICTURE):
        assert f"(assets/{name})" in text


def test_losses_are_shown(bench, results):
    rows = [dict(row) for row in results.of("large") if not row["case"].endswith("bits")]
    for row in rows:
        fast = row["provider"] in bench.table.RIVALS
        row |= {"seconds": "1.0" if fast else "2.0", "peak_extra_bytes": "10" if fast else "20"}
    assert bench.table.losses(bench.table.Results(rows, "")) == []
    row = next(row for row in rows if row["provider"] == bench.kernels.REINMAX)
    row |= {"seconds": "4.0", "peak_extra_bytes": "30"}
    found = bench.table.losses(bench.table.Results(rows, ""))
    assert f"`reinmax` is slower than `PyPI reinmax` at {row['case']} float32 (0.50x)." in found
    assert (
        f"`reinmax` needs more memory than `PyPI reinmax` at {row['case']} float32 (1.50x)."
        in found
    )
    assert len(found) == 6  # against torch, PyPI and the torch path


def test_tensors_that_fit_into_the_cache_are_named(bench, results):
    rows = [row | {"l2_bytes": "1000"} for row in results.of("large")]
    note = bench.table.cache_note(rows)
    assert "16x10 float32 (640 bytes)" in note
    assert "16x32 float32" not in note
    assert bench.table.cache_note(results.of("large")) == ""


@pytest.mark.parametrize(
    ("value", "shown"), [("2.5e-06", "2.5 µs"), ("0.00123", "1.23 ms"), ("1200", "1200 s")]
)
def test_times_have_a_unit(bench, value, shown):
    assert bench.table.seconds({"status": "ok", "seconds": value}) == shown
    assert bench.table.seconds({"status": "out of memory"}) == "out of memory"


@pytest.mark.parametrize(
    ("value", "shown"),
    [("", ""), (100, "100 bytes"), (2**20 * 1023.9, "1024 MiB"), ("3221225472", "3 GiB")],
)
def test_sizes_have_a_unit(bench, value, shown):
    assert bench.table.size(value) == shown
