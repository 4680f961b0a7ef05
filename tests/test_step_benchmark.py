"""The benchmark of a step: it refuses wrong gradients, measures what it says, its page is current.

Stored results come from ``python benchmarks/steps.py``, on a quiet machine.
"""

import itertools
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import discretegrad
from benchmark_cases import BENCHMARKS, scripts, seeded_and_on_one_thread
from discretegrad import ESTIMATORS

FAMILY = ("reinforce", "leave_one_out", "disarm", "arms", "disarm_tree")
LEARNED = ("muprop", "double_cv", "rodeo", "rebar", "relax")


seeded_on_one_thread = pytest.fixture(autouse=True)(seeded_and_on_one_thread)


@pytest.fixture(scope="module")
def bench():
    with scripts(table="steps_table", steps="steps") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def problem(bench):
    return bench.steps.Problem(bench.steps.QUICK)


@pytest.fixture(scope="module")
def tiny(bench):
    return bench.steps.tiny_problem()


@pytest.fixture(scope="module")
def quick(bench, tmp_path_factory):
    """The exit code and the CSV of a quick run, and whether it left the stored files alone."""
    stored = [path for path in (bench.table.RESULTS, bench.table.PAGE) if path.exists()]
    before = [path.read_bytes() for path in stored]
    output = tmp_path_factory.mktemp("quick") / "steps.csv"
    code = bench.steps.main(["--quick", "--threads", "1", "--output", str(output)])
    untouched = before == [path.read_bytes() for path in stored]
    return SimpleNamespace(code=code, output=output, untouched=untouched)


@pytest.fixture
def rows(bench, quick):
    return bench.table.read_csv(quick.output)


def provider(bench, problem, name, vectorize=False):
    found = bench.steps.make_providers(problem, vectorize)
    return next(each for each in found if each.name == name)


# what is measured


@pytest.mark.parametrize(
    ("name", "num_samples", "slopes"),
    [
        ("straight_through", 6, 6),
        ("reinforce", 6, 0),
        ("disarm", 6, 0),
        ("disarm_tree", 6, 0),
        ("double_cv", 6, 6),
        ("rodeo", 6, 6),
        ("muprop", 5, 1),
        ("rebar", 3, 3),
        ("relax", 2, 4),
    ],
)
def test_all_get_six_evaluations_of_f(bench, name, num_samples, slopes):
    assert bench.steps.EVALUATIONS == 6
    assert bench.steps.plan(ESTIMATORS[name]) == (num_samples, 6, slopes)


@pytest.mark.parametrize(
    ("name", "evaluations", "message"),
    [
        ("exact", 6, "all joint outcomes"),
        ("rebar", 5, "cannot use exactly 5"),
        ("muprop", 1, "cannot use exactly 1"),
        ("leave_one_out", 1, "cannot use exactly 1"),
    ],
)
def test_a_number_of_evaluations_that_does_not_fit_is_an_error(bench, name, evaluations, message):
    with pytest.raises(ValueError, match=message):
        bench.steps.plan(ESTIMATORS[name], evaluations)


@pytest.mark.parametrize("vectorize", [False, True])
def test_every_row_of_the_registry_is_measured_or_impossible(bench, problem, vectorize):
    providers = bench.steps.make_providers(problem, vectorize)
    assert len({each.key for each in providers}) == len(providers)
    assert all(each.vectorize == vectorize for each in providers)
    measured = {each.estimator for each in providers} - {""}
    assert set(ESTIMATORS) - measured == {"exact"}
    variants = {(each.estimator, each.variant) for each in providers}
    for name, row in ESTIMATORS.items():
        learns = row.module is not None and name != "reinforce"
        assert learns == (name in LEARNED)
        assert learns == ({(name, "frozen"), (name, "learning")} <= variants)
    assert ("reinforce", "running baseline") in variants


def test_exact_is_indeed_impossible(bench):
    full = bench.steps.Problem(bench.steps.FULL)
    with pytest.raises(ValueError, match=r"2 \*\* 200"):
        discretegrad.expectation(full.logits["bernoulli"], full.f, "exact", family="bernoulli")
    assert full.logits["bernoulli"].shape == (100, 200)
    assert [x.shape for x in full.decoder.parameters() if x.ndim == 2] == [(200, 200), (784, 200)]


def test_only_learning_estimators_learn(bench, problem):
    for each in bench.steps.make_providers(problem, False):
        assert bool(each.learned) == (each.variant == "learning"), each.name


def test_every_step_is_compared_with_the_same_slopes(bench, problem):
    providers = {each.name: each for each in bench.steps.make_providers(problem, False)}
    for each in providers.values():
        reference = providers[each.reference]
        assert reference.plan == each.plan
        assert reference.reference == reference.name
    for name in FAMILY:
        assert providers[name].reference == "f alone"


# the gate


def test_the_gate_is_green(bench, problem, tiny):
    steps = []
    assert bench.steps.gate_all(problem, tiny, lambda: steps.append(1)) == []
    assert len(steps) == 2 * len(bench.steps.make_providers(problem, False))


def changed_step(bench, problem, name, change):
    """A provider whose step does something besides."""
    good = provider(bench, problem, name)

    def step():
        losses = good.step()
        return change(losses, problem, good)

    return replace(good, step=step)


def scale(which, factor):
    def change(losses, problem, good):
        which(problem, good).grad.mul_(factor)
        return losses

    return change


def logits_of(problem, good):
    return problem.logits[good.family]


def first_weight(problem, good):
    return next(problem.decoder.parameters())


def evaluate_once_more(losses, problem, good):
    problem.f(problem.samples[0])
    return losses


def touch_the_other_logits(losses, problem, good):
    problem.logits["categorical"].sum().backward()
    return losses


@pytest.mark.parametrize("name", ["straight_through", "disarm_tree", "relax (learning)"])
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda losses, *_: losses.sum(), "one finite number per image"),
        (lambda losses, *_: losses * torch.nan, "one finite number per image"),
        (evaluate_once_more, "it evaluated f at"),
        (scale(logits_of, torch.nan), "not finite, or zero"),
        (scale(logits_of, 0.0), "not finite, or zero"),
        (scale(first_weight, 1.1), "not that of f alone"),
    ],
    ids=["summed", "nan", "evaluations", "nan gradient", "no gradient", "decoder"],
)
def test_the_gate_finds(bench, problem, name, change, fault):
    wrong = changed_step(bench, problem, name, change)
    assert any(fault in found for found in bench.steps.gate(wrong, problem))


def test_the_gate_finds_gradients_where_none_belong(bench, problem):
    wrong = changed_step(bench, problem, "disarm", touch_the_other_logits)
    assert bench.steps.gate(wrong, problem) == ["logits that it should not know got a gradient"]


def test_the_gate_finds_a_vectorized_step_that_differs(bench, problem):
    good = provider(bench, problem, "arms")
    wrong = changed_step(bench, problem, "arms", scale(logits_of, 1.1))
    assert bench.steps.gate_same(good, good, problem, "here") == []
    assert bench.steps.gate_same(good, wrong, problem, "here") == ["here it gives other gradients"]


def test_the_gate_finds_wrong_learning(bench, problem):
    frozen = bench.steps.logits_gradient(provider(bench, problem, "rebar (frozen)"), problem)
    learning = provider(bench, problem, "rebar (learning)")
    assert bench.steps.gate_learning(learning, problem, frozen) == []
    (fault,) = bench.steps.gate_learning(learning, problem, 1.1 * frozen)
    assert "changes the gradient" in fault
    still = replace(learning, modules=[])
    (fault,) = bench.steps.gate_learning(still, problem, frozen)
    assert "no finite gradient" in fault


@pytest.mark.parametrize(
    "name", [*FAMILY, "reinforce (running baseline)", *(f"{name} (frozen)" for name in LEARNED)]
)
@pytest.mark.parametrize("factor", [-1.0, 0.5, 2.0])
def test_the_gate_finds_a_wrong_mean(bench, tiny, name, factor):
    wrong = changed_step(bench, tiny, name, scale(logits_of, factor))
    (fault,) = bench.steps.gate_mean(wrong, tiny)
    assert "off the exact gradient" in fault


def test_nothing_is_timed_or_written_on_a_red_gate(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench.steps, "gate_mean", lambda *_: ["it is wrong"])
    monkeypatch.setattr(bench.steps, "measure", lambda *_: pytest.fail("it was timed"))
    output = tmp_path / "steps.csv"
    assert bench.steps.main(["--quick", "--threads", "1", "--output", str(output)]) == 1
    assert "reinforce: it is wrong" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# the measurement


def test_rounds_run_in_changing_order_and_a_slow_step_has_fewer(bench, problem, monkeypatch):
    calls = []
    good = provider(bench, problem, "reinforce")
    named = [replace(good, name=name, step=lambda n=name: calls.append(n)) for name in "abcdef"]
    seconds = {name: 0.001 for name in "abcde"} | {"f": 1.0}

    def time_steps(each, problem, steps):
        for _ in range(steps):
            each.step()
        return [seconds[each.name]] * steps

    monkeypatch.setattr(bench.steps, "time_steps", time_steps)
    times = bench.steps.measure(named, problem, bench.steps.Pace(steps=1, warmups=0, rounds=20))
    assert {name: len(found) for (name, _), found in times.items()} == {
        **dict.fromkeys("abcde", 20),
        "f": bench.steps.SLOW_ROUNDS,
    }
    blocks = calls[2 * len(named) :]  # after a first and a second step each
    before = {name: set() for name in "abcdef"}
    for previous, name in itertools.pairwise(blocks):
        before[name].add(previous)
    assert min(map(len, before.values())) >= 3


def test_a_busy_machine_gets_fewer_rounds(bench, problem, monkeypatch):
    monkeypatch.setattr(bench.steps, "RUN_SECONDS", 0.0)
    named = [provider(bench, problem, "f alone")]
    times = bench.steps.measure(named, problem, bench.steps.Pace(steps=1, warmups=0, rounds=50))
    assert [len(found) for found in times.values()] == [bench.steps.FEWEST_ROUNDS]


def test_a_step_starts_without_gradients(bench, problem):
    """Otherwise it would time the sum with those of the step before."""
    good = provider(bench, problem, "rebar (learning)")
    tensors = [problem.logits["bernoulli"], *problem.decoder.parameters(), *good.learned]
    clean = []

    def step():
        clean.append(all(tensor.grad is None for tensor in tensors))
        return good.step()

    bench.steps.time_block(replace(good, step=step), problem, steps=2, warmups=1)
    bench.steps.peak_bytes(replace(good, step=step), problem)
    assert clean == [True] * 4


@pytest.mark.parametrize(
    ("step", "tensors"),
    [
        (lambda x: x.exp(), 1),
        (lambda x: torch.stack([x, x, x]).sum(0), 4),  # three copies and their sum
        (lambda x: (x.exp() * 2).exp(), 2),  # a temporary is gone before the next
    ],
    ids=["one", "a large temporary", "temporaries"],
)
def test_memory_is_the_most_that_is_alive_at_once(bench, problem, step, tensors):
    x = torch.zeros(64, 1024)
    some = replace(provider(bench, problem, "f alone"), step=lambda: step(x))
    # numbers become small tensors
    assert bench.steps.peak_bytes(some, problem) == pytest.approx(tensors * x.nbytes, abs=64)


def test_ratios_and_shares_are_formed_within_a_round(bench, problem):
    names = ("straight_through", "f alone", "rodeo (frozen)", "reinforce")
    found = [provider(bench, problem, name, v) for v in (False, True) for name in names]
    found += [provider(bench, problem, found[0].reference, v) for v in (False, True)]
    found += [provider(bench, problem, found[2].reference, v) for v in (False, True)]
    times = {each.key: [1.0, 1.0, 1.0, 9.0, 9.0] for each in found}
    times["f alone", False] = [0.5, 0.5, 0.5, 4.5, 4.5]
    times["rodeo (frozen)", False] = [4.0, 4.0, 4.0]
    times["rodeo (frozen)", True] = [2.0, 2.0, 2.0]
    times[found[2].reference, False] = [3.0, 3.0, 3.0, 99.0, 99.0]
    peaks = {each.key: 2**20 for each in found} | {("reinforce", False): 2**19}
    rows = bench.steps.result_rows(found, times, peaks)
    rows = {(row["provider"], row["vectorize"]): row for row in rows}

    slow = rows["rodeo (frozen)", "no"]
    assert (slow["rounds"], slow["time_ratio"], slow["time_ratio_p80"]) == (3, 4.0, 4.0)
    assert (slow["overhead"], slow["overhead_with_slopes"]) == (0.875, 0.25)
    assert (slow["loop_ratio"], rows["rodeo (frozen)", "yes"]["loop_ratio"]) == (1.0, 0.5)
    fast = rows["reinforce", "no"]
    assert (fast["overhead_p20"], fast["overhead"], fast["overhead_p80"]) == (0.5, 0.5, 0.5)
    assert (fast["memory_ratio"], fast["peak_mib"]) == (0.5, 0.5)
    assert rows["f alone", "no"]["overhead"] == 0
    assert rows["straight_through", "yes"]["time_ratio"] == 1


# runs and what they write


def test_a_quick_run_measures_everything_and_leaves_the_stored_results_alone(bench, quick, rows):
    assert quick.code == 0
    assert quick.untouched
    assert sorted(path.name for path in quick.output.parent.iterdir()) == ["steps.csv", "steps.md"]
    assert {row["command"] for row in rows} == {"python benchmarks/steps.py --quick --threads 1"}
    problem = bench.steps.Problem(bench.steps.QUICK)
    expected = {each.key for v in (False, True) for each in bench.steps.make_providers(problem, v)}
    assert {(row["provider"], row["vectorize"] == "yes") for row in rows} == expected
    assert len(rows) == len(expected)
    for row in rows:
        for quantity in ("seconds", "time_ratio", "overhead", "overhead_with_slopes"):
            low, middle, high = (float(row[quantity + suffix]) for suffix in ("_p20", "", "_p80"))
            assert low <= middle <= high
        assert float(row["peak_mib"]) > 0
        for column in ("machine", "torch", "python", "commit", "date", "command", "threads"):
            assert row[column]


@pytest.mark.gpu
def test_a_quick_run_on_a_gpu(bench, tmp_path):
    output = tmp_path / "steps.csv"
    arguments = ["--quick", "--device", "cuda", "--output", str(output)]
    assert bench.steps.main(arguments) == 0
    rows = bench.table.read_csv(output)
    assert {row["machine"] for row in rows} == {torch.cuda.get_device_name()}
    assert all(float(row["seconds"]) > 0 and float(row["peak_mib"]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "is_stored"), [([], True), (["--quick"], False)], ids=["full", "quick"]
)
def test_only_a_full_run_replaces_the_stored_results(bench, arguments, is_stored):
    assert (bench.steps.parse(arguments).output == bench.table.RESULTS) == is_stored


def test_a_device_replaces_only_its_own_rows(bench):
    stored = [{"device": "cuda", "x": "old"}, {"device": "cpu", "x": "old"}]
    new = [{"device": "cuda", "x": "new"}, {"device": "cuda", "x": "new"}]
    assert bench.steps.merge(stored, new) == [stored[1], *new]
    new_cpu = [{"device": "cpu", "x": "new"}]
    assert bench.steps.merge(stored, new_cpu) == [*new_cpu, stored[0]]


def test_a_run_keeps_the_rows_of_other_devices(bench, rows, tmp_path):
    output = tmp_path / "steps.csv"
    bench.steps.write_csv(output, [row | {"device": "cuda"} for row in rows])
    assert bench.steps.main(["--quick", "--threads", "1", "--output", str(output)]) == 0
    found = bench.table.read_csv(output)
    assert [row["device"] for row in found] == ["cpu"] * len(rows) + ["cuda"] * len(rows)
    assert found[len(rows) :] == [row | {"device": "cuda"} for row in rows]
    text = output.with_suffix(".md").read_text(encoding="utf-8")
    assert "\n## CPU\n" in text
    assert "\n## GPU\n" in text


def test_a_run_that_breaks_off_leaves_the_old_file_whole(bench, tmp_path):
    path = tmp_path / "steps.csv"
    bench.steps.write_csv(path, [{"provider": "old"}])
    with pytest.raises(ValueError, match="unknown"):
        bench.steps.write_csv(path, [{"provider": "new"}, {"unknown": "column"}])
    assert bench.table.read_csv(path) == [{"provider": "old"}]


def test_help_and_wrong_arguments(bench, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="0"):
        bench.steps.main(["--help"])
    assert "red gate" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        bench.steps.main(["--threads", "0"])
    assert "at least 1" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        bench.steps.main(["--device", "cuda"])
    assert "torch finds none" in capsys.readouterr().err


def test_it_runs_without_the_packages_that_other_benchmarks_compare_with():
    """A machine with a GPU may have torch and little else."""
    code = "import sys; sys.modules['reinmax'] = None; import steps"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=BENCHMARKS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# the page


def test_the_page_is_current(bench):
    text = bench.table.page(bench.table.read_csv(bench.table.RESULTS))
    assert bench.table.PAGE.read_text(encoding="utf-8") == text, "run benchmarks/steps.py --render"


def test_the_stored_results_cover_everything_at_full_size(bench, rows):
    stored = bench.table.read_csv(bench.table.RESULTS)
    everything = {(row["provider"], row["vectorize"]) for row in rows}
    devices = {row["device"] for row in stored}
    assert "cpu" in devices
    for device in devices:
        of_device = [row for row in stored if row["device"] == device]
        assert {(row["provider"], row["vectorize"]) for row in of_device} == everything
        assert len(of_device) == len(everything)
    assert {row["latents"] for row in stored} == {"200"}
    assert list(stored[0]) == list(rows[0])


def test_rendering_writes_the_page_and_nothing_else(bench, quick, tmp_path, monkeypatch):
    page = tmp_path / "estimator-costs.md"
    monkeypatch.setattr(bench.table, "RESULTS", quick.output)
    monkeypatch.setattr(bench.table, "PAGE", page)
    before = quick.output.read_bytes()
    assert bench.steps.main(["--render"]) == 0
    assert page.read_text(encoding="utf-8") == quick.output.with_suffix(".md").read_text("utf-8")
    assert quick.output.read_bytes() == before
    assert list(tmp_path.iterdir()) == [page]


def test_the_page_shows_every_row_of_the_registry(bench, rows):
    text = bench.table.page(rows)
    loop, vectorized = text.split("### All samples in one call")
    for name in ESTIMATORS:
        assert f"`{name}`" in loop
        assert f"`{name}`" in vectorized or name == "exact"
    assert "- `exact`: it evaluates f at every joint outcome" in text
    for column in ("date", "machine", "python", "torch", "commit", "command", "threads"):
        assert rows[0][column] in text


def test_a_missed_target_is_shown(bench, rows):
    assert bench.table.TARGET == 0.25
    assert bench.table.REINFORCE_FAMILY == FAMILY
    for row in rows:
        row["overhead"] = "0.24"
    assert "missed" not in bench.table.targets_table(rows)
    for row in rows:
        row["overhead"] = "0.26" if row["vectorize"] == "no" else "0.1"
    lines = bench.table.targets_table(rows).splitlines()[2:]
    assert len(lines) == len(FAMILY) + 1  # reinforce also with a running baseline
    assert all("26 %" in line and line.endswith("**missed** |") for line in lines)


def test_a_loss_is_shown_with_its_reason(bench, rows):
    loop = [row for row in rows if row["vectorize"] == "no"]
    for row in loop:
        row |= {"time_ratio": "1.1", "memory_ratio": "1.2"}
    assert bench.table.losses(loop) == []
    row = next(row for row in loop if row["provider"] == "rodeo (learning)")
    row |= {"time_ratio": "31.4", "memory_ratio": "9.5"}
    row = next(row for row in loop if row["provider"] == "disarm")
    row |= {"memory_ratio": "1.6"}
    rodeo, disarm = bench.table.losses(loop)
    assert rodeo.startswith("`rodeo` takes 31.4x the time and 9.50x the memory, learning: its net")
    assert disarm == "`disarm` takes 1.10x the time and 1.60x the memory."
    assert set(bench.table.REASONS) <= set(ESTIMATORS)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("0.123", "12 % (12 to 12)"), ("-0.001", "0 % (0 to 0)"), ("-0.104", "-10 % (-10 to -10)")],
)
def test_shares_are_written_in_percent(bench, value, shown):
    row = dict.fromkeys(("overhead", "overhead_p20", "overhead_p80"), value)
    assert bench.table.share(row, "overhead") == shown
