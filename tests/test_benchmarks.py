"""The benchmark: it refuses wrong numbers, measures what it says, and its pages are current."""

import importlib
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import discretegrad
from cases import SAMPLERS

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SMALL = ["3000x10", "400x8"]


@pytest.fixture(scope="module")
def bench():
    """The scripts as modules. They import each other by plain names, which tests use too."""
    names = ("cases", "table", "polynomial", "run")
    path, hidden = list(sys.path), {n: sys.modules.pop(n) for n in names if n in sys.modules}
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


@pytest.fixture(autouse=True)
def seeded_on_one_thread():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def inputs(bench):
    return bench.cases.make_inputs((50, 7))


def provider(bench, sample, **options):
    return bench.cases.Provider("under test", sample, ours=True, **options)


def test_the_generated_pages_are_current(bench):
    for path, text in bench.table.generated().items():
        assert path.read_text(encoding="utf-8") == text, "run python benchmarks/table.py"


def test_checking_the_pages_finds_a_stale_one(bench, tmp_path, monkeypatch, capsys):
    assert bench.table.main(["--check"]) == 0
    stale = tmp_path / "benchmarks.md"
    stale.write_text("old", encoding="utf-8")
    monkeypatch.setattr(bench.table, "PAGE", stale)
    assert bench.table.main(["--check"]) == 1
    assert "benchmarks.md is not current" in capsys.readouterr().out
    assert stale.read_text(encoding="utf-8") == "old"


def test_the_stored_results_cover_every_sampler_and_shape(bench):
    rows = bench.table.read(bench.table.RESULTS)
    measured = {(row["provider"], row["shape"]) for row in rows}
    assert measured == {
        (provider.name, case.name)
        for provider in bench.cases.PROVIDERS
        for case in bench.cases.CASES
    }
    samplers = {name.split()[0] for name, _ in measured}
    assert set(SAMPLERS) <= samplers
    for column in ("cpu", "torch", "python", "commit", "date", "command", "threads", "rounds"):
        assert all(row[column] for row in rows)


def test_a_quick_run_measures_and_leaves_the_stored_results_alone(bench, tmp_path, capsys):
    stored = bench.table.RESULTS.read_bytes()
    output = tmp_path / "results.csv"
    arguments = ["--quick", "--shapes", "400x8", "--threads", "1", "--output", str(output)]
    assert bench.run.main(arguments) == 0
    rows = bench.table.read(output)
    assert [row["provider"] for row in rows] == [p.name for p in bench.cases.PROVIDERS]
    assert list(rows[0]) == list(bench.table.read(bench.table.RESULTS)[0])
    for row in rows:
        assert float(row["seconds_p20"]) <= float(row["seconds"]) <= float(row["seconds_p80"])
        assert float(row["peak_extra_tensors"]) >= 2
    baseline = bench.table.find(rows, bench.cases.TORCH, "400x8")
    assert float(baseline["speedup_torch"]) == 1
    assert "reinmax" in capsys.readouterr().out
    assert bench.table.RESULTS.read_bytes() == stored
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


@pytest.mark.parametrize(
    ("arguments", "is_stored"),
    [([], True), (["--quick"], False), (["--shapes", "400x8"], False)],
    ids=["full", "quick", "one shape"],
)
def test_only_a_full_run_replaces_the_stored_results(bench, arguments, is_stored):
    options = bench.run.parse(arguments)
    assert (options.output == bench.table.RESULTS) == is_stored
    assert bench.run.parse(["--quick"]).shapes == SMALL


def test_nothing_is_timed_or_written_on_a_red_gate(bench, tmp_path, monkeypatch, capsys):
    wrong = provider(bench, discretegrad.straight_through, reinmax_tau=1.0)
    monkeypatch.setattr(bench.run, "PROVIDERS", (*bench.cases.PROVIDERS, wrong))
    monkeypatch.setattr(bench.run, "time_case", lambda *_: pytest.fail("it was timed"))
    output = tmp_path / "results.csv"
    assert bench.run.main(["--quick", "--shapes", "400x8", "--output", str(output)]) == 1
    assert "under test at 400x8" in capsys.readouterr().out
    assert not output.exists()


@pytest.mark.parametrize(
    ("sample", "tau", "fault"),
    [
        (lambda x: discretegrad.reinmax(x, 1.1), 1.0, "off the float64 formula"),
        (discretegrad.straight_through, 1.0, "off the float64 formula"),
        (lambda x: x.softmax(-1), None, "not exactly one-hot"),
        (lambda x: discretegrad.reinmax(x) + (x - x.detach()), None, "do not sum to zero"),
        (lambda x: discretegrad.reinmax(x) + (x * 0).sqrt() * 0, None, "not finite"),
    ],
    ids=["another tau", "another estimator", "relaxed", "leaking", "not finite"],
)
def test_the_gate_finds(bench, inputs, sample, tau, fault):
    faults = bench.cases.gate(provider(bench, sample, reinmax_tau=tau), inputs)
    assert any(fault in found for found in faults), faults


def test_the_gate_passes_every_sampler(bench, inputs):
    for candidate in bench.cases.PROVIDERS:
        assert bench.cases.gate(candidate, inputs) == []


@pytest.mark.parametrize(
    ("sample", "tensors"),
    [
        (torch.exp, 2),  # its result and the gradient
        (lambda x: torch.stack([x, x, x]).sum(0), 4),  # three copies and their sum
        (lambda x: x.double().float(), 4),  # result, float64 gradient (two), and gradient
    ],
    ids=["two", "a large temporary", "another dtype"],
)
def test_memory_is_counted_in_tensors_of_the_logits_size(bench, sample, tensors):
    inputs = bench.cases.make_inputs((64, 256))
    peak = bench.run.peak_extra_tensors(provider(bench, sample), inputs)
    assert peak == pytest.approx(tensors, abs=0.01)


def test_rounds_run_in_changing_order_so_that_neighbours_change(bench, inputs, monkeypatch):
    calls = []

    def recording(name):
        def sample(logits):
            calls.append(name)
            return logits.exp()

        return bench.cases.Provider(name, sample, ours=True)

    names = "abcdef"
    monkeypatch.setattr(bench.run, "PROVIDERS", tuple(map(recording, names)))
    case = bench.cases.Case((50, 7), calls=2, warmups=1, rounds=20)
    times = bench.run.time_case(case, inputs)
    assert {len(seconds) for seconds in times.values()} == {20}
    blocks = calls[len(names) :: 3]  # after one first call each; a block is three calls
    before = {name: set() for name in names}
    for previous, name in itertools.pairwise(blocks):
        before[name].add(previous)
    assert min(map(len, before.values())) >= 4


def test_a_slow_sampler_is_compared_with_the_rounds_it_ran_in(bench):
    case = bench.cases.Case((400, 8), calls=1, warmups=0, rounds=5)
    times = {candidate.name: [1.0, 1.0, 1.0, 9.0, 9.0] for candidate in bench.cases.PROVIDERS}
    times["gumbel_rao num_draws=10"] = [4.0, 4.0, 4.0]
    peaks = {candidate.name: 4.0 for candidate in bench.cases.PROVIDERS} | {"reinmax": 1.0}
    rows = bench.run.case_rows(case, times, peaks)
    slow = next(row for row in rows if row["provider"] == "gumbel_rao num_draws=10")
    assert (slow["rounds"], slow["speedup_torch"], slow["speedup_torch_p80"]) == (3, 0.25, 0.25)
    reinmax = next(row for row in rows if row["provider"] == "reinmax")
    assert reinmax["memory_share_pypi"] == 0.25


def test_a_run_that_breaks_off_leaves_the_old_file_whole(bench, tmp_path):
    path = tmp_path / "results.csv"
    bench.run.write_csv(path, [{"provider": "old"}])
    with pytest.raises(ValueError, match="unknown"):
        bench.run.write_csv(path, [{"provider": "new"}, {"unknown": "column"}])
    assert bench.table.read(path) == [{"provider": "old"}]


@pytest.fixture
def stored_rows(bench):
    return [dict(row) for row in bench.table.read(bench.table.RESULTS)]


def test_a_missed_target_and_a_loss_are_shown(bench, stored_rows):
    reinmax = bench.table.find(stored_rows, "reinmax", "4096x1024")
    reinmax |= {"speedup_torch": "7", "speedup_pypi": "8", "memory_share_pypi": "0.3"}
    met = bench.table.page(stored_rows)
    reinmax |= {"speedup_torch": "0.5", "speedup_pypi": "0.4", "memory_share_pypi": "0.6"}
    missed = bench.table.page(stored_rows)
    assert missed.count("**missed**") == met.count("**missed**") + 3
    losses = bench.table.losses(stored_rows)
    for baseline in ("`F.gumbel_softmax`", "PyPI `reinmax`"):
        line = next(loss for loss in losses if f"`reinmax` is slower than {baseline}" in loss)
        assert "4096x1024 (0." in line


def test_the_targets_are_those_that_were_promised(bench):
    limits = {(t.shape, t.quantity): t.limit for t in bench.cases.TARGETS}
    assert limits == {
        ("4096x1024", "speedup_torch"): 5,
        ("64x131072", "speedup_torch"): 5,
        ("3000x10", "speedup_torch"): 1.8,
        ("400x8", "speedup_torch"): 1,
        ("4096x1024", "speedup_pypi"): 6,
        ("64x131072", "speedup_pypi"): 6,
        ("3000x10", "speedup_pypi"): 1.8,
        ("400x8", "speedup_pypi"): 1,
        ("4096x1024", "memory_share_pypi"): 0.5,
        ("64x131072", "memory_share_pypi"): 0.5,
        ("3000x10", "memory_share_pypi"): 0.5,
        ("400x8", "memory_share_pypi"): 0.5,
    }


@pytest.mark.parametrize("text", ["no markers", "<!-- begin generated: demo -->\n" * 2])
def test_a_readme_without_its_markers_is_an_error(bench, text):
    with pytest.raises(ValueError, match="markers"):
        bench.table.replace_block(text, "demo", "")


def test_help_and_wrong_arguments(bench, capsys):
    with pytest.raises(SystemExit, match="0"):
        bench.run.main(["--help"])
    assert "red gate" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        bench.run.main(["--threads", "0"])
    assert "at least 1" in capsys.readouterr().err
