"""The harness of the benchmarks, the page writer, and the samplers on a CPU."""

import itertools
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import discretegrad
from benchmark_cases import (
    BENCHMARKS,
    CPU,
    against,
    changed_gradient,
    check_complete,
    check_verdicts,
    files,
    kernels,
    machine,
    measure,
    pages,
    profiles,
    rehearse,
    run,
    samplers,
    script,
    seeded_on_one_thread,
    stacks,
    steps,
    subsets,
    table,
    timing,
)
from discretegrad import ESTIMATORS

seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)
ALL = (run, steps, kernels, stacks)
ONCE = timing.Pace(rounds=2, seconds=0.0, calls=1)


@pytest.fixture
def inputs():
    return torch.randn(100, 7).requires_grad_(), torch.randn(100, 7)


# the gate of samplers


def faults(sampler, inputs):
    return samplers.sampler_work(sampler, *inputs).gate()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_of_samplers_is_green(inputs, dtype):
    inputs = [x.detach().to(dtype).requires_grad_(x.requires_grad) for x in inputs]
    for sampler in (*run.SAMPLERS, *kernels.UNCOMPILED, *kernels.BITS):
        assert faults(sampler, inputs) == [], sampler.name


def last_row_zero(gradient):
    return torch.cat([gradient[:-1], torch.zeros_like(gradient[-1:])])


REINMAX, BITS = discretegrad.reinmax, kernels.BITS[0].sample
WRONG = {
    "relaxed": (lambda x: x.softmax(-1), False, "not exactly one-hot"),
    "twice": (lambda x: 2 * REINMAX(x), False, "not exactly one-hot"),
    "infinite": (changed_gradient(REINMAX, lambda g: g / 0), False, "not finite"),
    "shifted": (changed_gradient(REINMAX, lambda g: g + 1e-3), False, "do not sum to zero"),
    "scaled": (changed_gradient(REINMAX, lambda g: 1.001 * g), False, "off the float64"),
    "last row": (changed_gradient(REINMAX, last_row_zero), False, "off the float64"),
    "tau": (partial(REINMAX, tau=1.1), False, "off the float64"),
    "other": (discretegrad.straight_through, False, "off the float64"),
    "half bits": (lambda x: BITS(x) / 2, True, "not exactly one-hot"),
    "scaled bits": (changed_gradient(BITS, lambda g: 1.001 * g), True, "off the float64"),
    "other bits": (kernels.BITS[1].sample, True, "off the float64"),
}


@pytest.mark.parametrize("whole", [2**23, 0], ids=["whole", "ends"])
@pytest.mark.parametrize("name", WRONG)
def test_the_gate_of_samplers_finds(inputs, name, whole, monkeypatch):
    monkeypatch.setattr(samplers, "WHOLE", whole)
    sample, bits, fault = WRONG[name]
    sampler = samplers.Sampler("under test", sample, reinmax_tau=1.0, bits=bits)
    assert any(fault in message for message in faults(sampler, inputs))


def test_a_speedup_is_never_reported_on_a_red_gate(inputs):
    def raises(error):
        def sample(logits):
            raise error

        return sample

    good = kernels.CATEGORICAL[0]
    expected = {
        kernels.PYPI: ("red gate: its gradient is off", lambda x: REINMAX(x, tau=1.3)),
        "missing": ("not installed", raises(machine.Unavailable("not installed"))),
        "broken": ("failed: ZeroDivisionError: why", raises(ZeroDivisionError("why\nat all"))),
        "too large": ("out of memory", raises(torch.cuda.OutOfMemoryError())),
    }
    chosen = [good, replace(good, name=kernels.TORCH)]
    chosen += [replace(good, name=name, sample=sample) for name, (_, sample) in expected.items()]
    speeds = {"speedup_torch": kernels.TORCH, "speedup_pypi": kernels.PYPI}
    works = [samplers.sampler_work(sampler, *inputs, against=speeds) for sampler in chosen]
    case = measure.Case({}, works, ONCE, tensor_bytes=2800, has_floor=True)
    ours, _, *others = measure.measure(case, CPU)
    for row, (status, _) in zip(others, expected.values(), strict=True):
        assert row["status"].startswith(status)
        assert not {"seconds", "speedup_torch"} & set(row)
    assert [machine.is_red(row) for row in others] == [True, False, True, False]
    assert (ours["status"], ours["speedup_torch"] > 0) == ("ok", True)
    assert "speedup_pypi" not in ours
    # five passes over 2800 bytes at a bandwidth of a gigabyte a second
    assert ours["times_floor"] == pytest.approx(ours["seconds"] / 14e-6, rel=0.01)
    late = measure.measure(case, CPU._replace(deadline=-1.0))
    assert {row["status"] for row in late} == {machine.TIME_OVER}


# rounds, ratios, memory


def test_rounds_run_in_changing_order_and_a_slow_provider_has_fewer():
    order = []
    pace = timing.Pace(rounds=20, seconds=0.0, calls=1, slow_seconds=9.0, slow_rounds=3)
    entries = [
        timing.Entry(name, partial(order.append, name), warmups=1, is_slow=name == "f")
        for name in "abcdef"
    ]
    times = timing.race(entries, pace, CPU)
    assert {name: len(x) for name, x in times.items()} == {**dict.fromkeys("abcde", 20), "f": 3}
    blocks = [name for name, _ in itertools.groupby(order)]
    before = {name: set() for name in "abcdef"}
    for previous, name in itertools.pairwise(blocks):
        before[name].add(previous)
    assert min(len(before[name]) for name in "abcde") >= 3
    pace = timing.Pace(20, 0.0, 1, slow_seconds=0.0, slow_rounds=2)
    assert len(timing.race([timing.Entry("a", bool)], pace, CPU)["a"]) == 2
    # a busy machine
    pace = timing.Pace(20, 0.0, 1, limit_seconds=0.0, fewest_rounds=4)
    assert len(timing.race([timing.Entry("a", bool)], pace, CPU)["a"]) == 4


def test_ratios_are_formed_within_a_round():
    baselines = {
        "speedup_torch": "torch",
        "overhead": "torch",
        "time_ratio": "torch",
        "memory_ratio": "torch",
        "speedup_other": "was not timed",
    }
    work = measure.Work("a", None, against=baselines, derived=lambda row: {"x": row["rounds"] + 1})
    case = measure.Case({"shape": "8x4"}, [work], ONCE, tensor_bytes=128, has_floor=True)
    # slow, in two rounds only
    times = {"a": [1.0, 1.0], "torch": [2.0, 4.0, 99.0]}
    peaks = {"a": (256, 200), "torch": (512, 512)}
    row = measure.result(case, work, "ok", times, peaks, bandwidth=1280.0)
    assert (row["shape"], row["rounds"], row["seconds"], row["x"]) == ("8x4", 2, 1.0, 3)
    assert (row["speedup_torch"], row["speedup_torch_p20"]) == (3.0, 2.4)
    assert (row["overhead"], row["time_ratio"], row["times_floor"]) == (-2.0, 0.375, 2.0)
    assert (row["peak_extra_tensors"], row["beyond_bytes"], row["memory_ratio"]) == (2.0, 56, 0.5)
    assert "speedup_other" not in row
    without = measure.result(case, work, "ok", times, {}, bandwidth=1.0)
    assert not {"peak_extra_bytes", "memory_ratio"} & set(without)


@pytest.mark.parametrize(
    ("forward", "tensors"),
    [
        (torch.exp, 1),
        (lambda x: torch.stack([x, x, x]).sum(0), 4),  # three copies and their sum
        (lambda x: (x.exp() * 2).exp(), 2),  # a temporary is gone before the next
    ],
    ids=["one", "a large temporary", "temporaries"],
)
def test_memory_is_the_most_that_is_alive_at_once(forward, tensors):
    x = torch.zeros(64, 1024)
    peak, named = measure.peak_bytes(measure.Work("a", lambda: forward(x)), CPU)
    # numbers become small tensors
    assert (peak, named) == (pytest.approx(tensors * x.nbytes, abs=64), x.nbytes)


# sections and files


def test_a_section_replaces_only_its_own_rows(tmp_path):
    file = files.File("x.csv", ("section", "x"))
    for section, x in (("small", "old"), ("large", "old"), ("small", "new")):
        rows = [{"section": section, "x": x, "unknown": 1}]
        files.write_section(tmp_path, file, ["large", "small"], section, rows)
    rows = files.read_csv(tmp_path / "x.csv")
    assert rows == [{"section": "large", "x": "old"}, {"section": "small", "x": "new"}]
    # a file that cannot be written whole stays as it was
    with pytest.raises(AttributeError):
        files.write_csv(tmp_path / "x.csv", ["x"], [{"x": 1}, None])
    assert files.read_csv(tmp_path / "x.csv") == rows


@pytest.mark.parametrize(
    ("columns", "written"),
    [(("section", "provider", "status"), "cab"), (("section", "provider"), "c")],
)
def test_a_section_that_breaks_off_keeps_what_it_has(tmp_path, capsys, columns, written):
    def good(setup):
        yield {"section": "good", "provider": "a", "status": "ok"}
        yield {"section": "good", "provider": "b", "status": "red gate: it is wrong"}

    def breaks(setup):
        yield {"section": "breaks", "provider": "c", "status": "ok"}
        raise ZeroDivisionError

    sections = {"breaks": breaks, "good": good}
    file = files.File("x.csv", columns)
    benchmark = script.Benchmark("x.py", "", sections, file, devices=("cpu",))
    assert benchmark.main(["--output", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.count("breaks broke off") == 1
    assert out.count("b: red gate: it is wrong") == 2
    # a file that has no room for the status gets nothing of a section with a red gate
    rows = files.read_csv(tmp_path / "x.csv")
    assert "".join(row["provider"] for row in rows) == written


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (run, ["--threads", "0"], "at least 1"),
        (run, ["--only", "tiny"], "invalid choice"),
        (run, ["--quick", "--output", str(BENCHMARKS)], "a rehearsal"),
        (steps, ["--device", "cuda"], "torch finds none"),
        (kernels, ["--only", "small"], "torch finds none"),
        (kernels, ["--device", "cpu"], "it only rehearses, with --quick"),
        (kernels, ["--device", "cpu", "--quick"], "needs MNIST, and it is not given"),
        (kernels, ["--device", "cpu", "--quick", "--mnist", "x.gz"], "there is no file x.gz"),
        (stacks, ["--device", "cpu", "--quick", "--data", "x"], "or measure with --synthetic"),
        (stacks, ["--synthetic", "--data", "x"], "not allowed with"),
    ],
)
def test_wrong_arguments(module, arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        module.BENCHMARK.main(arguments)
    assert message in capsys.readouterr().err


COMMANDS = [
    (run, [], "", True),
    (run, ["--quick"], " --quick --only 3000x10 400x8", False),
    (steps, ["--commit", "abc"], "", True),
    (steps, ["--device", "cuda"], " --device cuda", True),
    (kernels, ["--mnist", __file__], " --mnist FILE", True),
    (kernels, ["--quick", "--only", "index", "small"], " --quick --only small index", False),
    (stacks, ["--data", "/some/place"], " --data DIR", True),
    (stacks, ["--only", "polynomial", "--limit", "260"], " --only polynomial", True),
    (stacks, ["--quick", "--synthetic"], " --synthetic --quick", False),
]  # fmt: skip


@pytest.mark.parametrize(("module", "arguments", "command", "is_stored"), COMMANDS)
def test_the_recorded_command_has_no_path(module, arguments, command, is_stored, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(stacks, "load_mnist", lambda place: stacks.Images([0] * 70000, [0] * 70000))
    options = module.BENCHMARK.parse(arguments)
    assert options.command == f"python {module.BENCHMARK.script}{command}"
    assert (options.output == BENCHMARKS) == is_stored
    if module is stacks and "--data" in arguments:
        assert [len(x) for x in options.data.images] == [60000, 10000]
        assert options.about == {"images": "mnist"}


def test_they_run_without_the_packages_that_a_machine_with_a_gpu_may_lack():
    code = (
        "import sys; sys.modules['reinmax'] = sys.modules['matplotlib'] = None\n"
        "import kernels, machine, samplers, stacks, steps\n"
        "status = machine.attempt(lambda: samplers.pypi_reinmax(None))\n"
        "assert status == (None, 'not installed'), status"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# pages


def test_the_generated_pages_are_current():
    assert table.main(["--check"]) == 0, "run python benchmarks/table.py"


def test_stale_pages_and_pictures_are_found_and_written(tmp_path, capsys):
    for name in ("results.csv", "stacks.csv"):
        (tmp_path / name).write_bytes((BENCHMARKS / name).read_bytes())
    preview = ["--preview", str(tmp_path)]
    assert table.main(preview) == 0
    assert table.main([*preview, "--check"]) == 0
    page, picture = tmp_path / "benchmarks.md", tmp_path / "assets" / "stack_scaling.png"
    assert picture.stat().st_size > 10_000
    assert page.read_text(encoding="utf-8") == run.PAGE.path.read_text(encoding="utf-8")
    assert "\nNot measured yet.\n" in (tmp_path / "kernel-benchmarks.md").read_text("utf-8")
    for path in (page, picture):
        path.write_text("old", encoding="utf-8")
    capsys.readouterr()
    assert table.main([*preview, "--check"]) == 1
    assert capsys.readouterr().out.count("is not current") == 2
    assert page.read_text(encoding="utf-8") == picture.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("module", ALL)
def test_a_page_of_nothing_says_so(module):
    text = module.PAGE.text(pages.Results([]))
    assert text.count("Not measured yet.") >= 4
    assert "| not measured |" in text
    assert "met. |" not in text
    assert module.PAGE.pictures(pages.Results([])) == {}


@pytest.mark.parametrize("module", ALL)
def test_what_is_stored_has_the_columns_that_a_run_writes(module):
    for file in {*module.BENCHMARK.files.values()}:
        rows = files.read_csv(BENCHMARKS / file.name)
        assert list(rows[0]) == list(file.columns)
        sections = {name for name, x in module.BENCHMARK.files.items() if x == file}
        # one that is new has not been measured yet
        assert {row[file.part] for row in rows} <= sections


def test_runs_of_several_commits_are_told_apart():
    rows = [dict(row) for row in run.PAGE.read().rows]
    assert pages.provenance(rows).count("| date |") == 1
    rows[-1]["commit"] = "abc"
    text = pages.provenance(rows)
    assert text.count("| date |") == 2
    assert "| sections | 400x8 |" in text


def test_losses_are_shown():
    def row(provider, seconds, memory, **rest):
        return {"provider": provider, "seconds": seconds, "memory": memory, **rest}

    groups = [
        [row("ours", 4.0, "30"), row("PyPI reinmax", 2.0, "20"), row("unknown", 1.0, "1")],
        [row("ours", 4.0, ""), row("PyPI reinmax", 3.0, "20"), row("other", 9.0, "9")],
        [row("ours", 1.0, "10"), row("PyPI reinmax", 2.0, "10"), row("other", 2.0, "9.95")],
        [row("ours", 1.0, "10"), row("other", 0.5, "1", status="red gate: it is wrong")],
    ]
    rivals = {"ours": ("PyPI reinmax", "other")}
    assert pages.losses(groups, rivals, lambda row: f"{row['seconds']:g}", "memory") == [
        "`ours` is slower than PyPI `reinmax` at 4 (0.50x), 4 (0.75x).",
        "`ours` needs more memory than PyPI `reinmax` at 4 (1.50x).",
    ]
    for module in ALL[:1] + ALL[2:]:
        stored = module.PAGE.read()
        assert module.losses(stored.rows if module is run else stored)


def test_kernels_by_the_time_they_take(monkeypatch):
    events = [
        SimpleNamespace(name=name, device_time=time)
        for name, time in (
            ("short(int)", 1.0),
            ("(anonymous namespace)::long<float>(a)", 5.0),
            ("short(int)", 2.0),
            ("_ZN4many5namesIfEEvT_", 3.0),
            ("void many::names<int>(int)", 0.5),
        )
    ]
    monkeypatch.setattr(profiles, "events_on_gpu", lambda function: function() or events)
    called = []
    found = profiles.by_kernel(lambda: called.append(1), 2, steps=2)
    assert called
    assert found == {
        "all": {"launches": "2.5", "seconds": 5.75e-6},
        "long": {"launches": "0.5", "seconds": 2.5e-6},
        "many::names": {"launches": "1", "seconds": 1.75e-6},
    }
    row = {"case": "A", "status": "ok", "launches": "1", "seconds": "2e-6"}
    # as they were stored once, and what is no kernel
    for name, shown in (
        ("void many::names f, Functor", "`many::names f, Functor`"),
        ("all", "all"),
    ):
        assert f"| A: {shown} | 1 | 2 µs |" in profiles.kernels_table([row | {"provider": name}])


TARGETS = {
    **{module: module.TARGETS for module in (run, kernels, stacks)},
    steps: [*steps.targets("cpu"), *steps.targets("cuda")],
}


@pytest.mark.parametrize("module", TARGETS, ids=lambda x: x.__name__)
def test_targets_are_met_or_missed(module):
    stored = module.PAGE.read().rows
    for target in TARGETS[module]:
        check_verdicts(target)
        rows = [row for row in stored if row.get("section") == target.where.get("section")]
        # a new section has not been measured yet, and a machine may lack another package
        lacks = any(row["status"] == "not installed" for row in rows if "status" in row)
        if lacks and target.column == "speedup_pypi":
            assert target.judged(stored)[1] == "not measured"
        elif rows:
            assert target.judged(stored)[1] in ("met", "**missed**")
        assert target.judged([dict.fromkeys(target.where, "another")]) == ("", "not measured")


@pytest.mark.gpu
# of torch's own compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("module", "arguments", "machine", "memory"),
    [
        (steps, ["--device", "cuda"], "machine", "peak_mib"),
        (kernels, ["--only", "small", "index"], "gpu", "peak_extra_bytes"),
        (stacks, ["--synthetic"], "gpu", "peak_bytes"),
    ],
)
def test_a_rehearsal_on_a_gpu(module, arguments, machine, memory, tmp_path):
    assert module.BENCHMARK.main(["--quick", *arguments, "--output", str(tmp_path)]) == 0
    results = module.PAGE.read(tmp_path)
    assert {row[machine] for row in results.rows} == {torch.cuda.get_device_name()}
    # PyPI reinmax may be missing, graphs share their memory, and overheads need none
    rows = [row for row in results.rows if pages.is_ok(row) and row.get("section") != "overhead"]
    assert all(float(row[memory]) > 0 for row in rows if row.get("mode", "eager") == "eager")
    if module is kernels:
        eager = results.of(section="small", mode="eager", status="ok")
        assert any(row["provider"] == "reinmax" for row in eager)
        assert all(int(row["launches_forward"]) > 0 for row in eager)
        modes = {row["mode"] for row in results.of(section="small")}
        assert modes == {"eager", "graph", "graph of 20"}


# samplers on a CPU


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return rehearse(run.BENCHMARK, ["--only", "400x8"], tmp_path_factory.mktemp("quick"))


def test_a_rehearsal_measures_and_leaves_the_stored_results_alone(quick):
    assert (quick.code, quick.untouched) == (0, True)
    rows = run.PAGE.read(quick.folder).rows
    check_complete(rows, run.FILE)
    assert [row["provider"] for row in rows] == [sampler.name for sampler in run.SAMPLERS]
    assert all(float(row["peak_extra_tensors"]) >= 2 for row in rows)
    assert float(run.find(rows, run.TORCH, "400x8")["speedup_torch"]) == 1


def test_every_sampler_of_the_registry_is_measured():
    names = {sampler.name.split()[0] for sampler in run.SAMPLERS}
    assert {name for name, row in ESTIMATORS.items() if row.kind == "sampler"} <= names
    stored = {(row["provider"], row["shape"]) for row in run.PAGE.read().rows}
    assert stored == {(sampler.name, shape) for sampler in run.SAMPLERS for shape in run.CASES}


def test_two_trees_are_timed_in_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(against, "REHEARSED", tmp_path)
    monkeypatch.setattr(run, "SAMPLERS", run.SAMPLERS[:3])
    given = ["--only", "400x8", "--rounds", "2", "--threads", "1"]
    assert against.main(["--against", str(BENCHMARKS.parent / "src"), *given]) in (0, 1)
    rows = files.read_csv(tmp_path / "against.csv")
    assert [row["provider"] for row in rows] == [sampler.name for sampler in run.SAMPLERS]
    assert all(float(row["other_seconds"]) > 0 and float(row["speedup"]) > 0 for row in rows)
    assert float(rows[0]["speedup_relative"]) == 1
    with pytest.raises(SystemExit, match="2"):
        against.main(["--against", str(tmp_path)])
    assert "expected a folder with discretegrad" in capsys.readouterr().err


def test_subsets_are_measured_beside_top_k(tmp_path, monkeypatch):
    monkeypatch.setattr(subsets, "SHAPES", {"400x32, k=4": (400, 32, 4)})
    quick = rehearse(subsets.BENCHMARK, [], tmp_path)
    assert quick.code == 0
    assert quick.untouched
    rows = subsets.PAGE.read(tmp_path).rows
    check_complete(rows, subsets.FILE)
    assert [row["provider"] for row in rows] == [subsets.TOPK, subsets.GUMBEL, *subsets.OURS]
    assert float(rows[0]["time_ratio"]) == 1
    text = subsets.PAGE.text(pages.Results([]))
    assert text.count("Not measured yet.") == 8
    stored = files.read_csv(BENCHMARKS / subsets.FILE.name)
    assert list(stored[0]) == list(subsets.FILE.columns)


def test_a_wrong_subset_is_not_timed(monkeypatch):
    right = discretegrad.Subset.sample
    monkeypatch.setattr(discretegrad.Subset, "sample", lambda *x: right(*x) * 0.5)
    logits = torch.randn(4, 6, requires_grad=True)
    *_, work = subsets.works(logits, torch.randn(4, 6), 2)
    assert work.gate() == ["its sample has not 2 ones in every row"]
