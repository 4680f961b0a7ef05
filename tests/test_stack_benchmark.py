"""The benchmark of stacks: it refuses wrong numbers, judges its targets, and its page is current.

Stored results come from ``python benchmarks/stacks.py`` on a machine with a GPU; here the same code
runs in miniature on the CPU, where stacks have no graphs.
"""

import math
from copy import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from benchmark_cases import (
    BENCHMARKS,
    check_is_complete,
    check_verdicts,
    rehearse,
    scripts,
    written_page,
)
from discretegrad_lab import recipes
from discretegrad_lab.execute import Outcome
from discretegrad_lab.noise import Noise
from discretegrad_lab.tasks.vae import VaeTask
from discretegrad_lab.trainer import Stack
from oracles import one_thread

CPU = torch.device("cpu")
# what sums of some hundred thousand float32 numbers in different orders may differ by
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SHORT = {"steps_per_epoch": 2}

seeded_on_one_thread = pytest.fixture(autouse=True)(one_thread)


@pytest.fixture(scope="module")
def bench():
    with scripts(stacks="stacks", table="stacks_table", kernels="kernels") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def quick(bench, tmp_path_factory):
    """A rehearsal of everything."""
    torch.set_num_threads(1)
    arguments = ["--synthetic", "--limit", "600"]
    return rehearse(bench.stacks.main, arguments, tmp_path_factory.mktemp("quick"))


@pytest.fixture
def results(bench, quick):
    return bench.table.PAGE.read(quick.folder)


@pytest.fixture
def context(bench, tmp_path):
    setup = bench.stacks.Setup(CPU, quick=True)
    plan = bench.stacks.QUICK
    return bench.stacks.Context(setup, plan, 1e9, math.inf, None, tmp_path)


def no_faults(stack, metrics):
    return []


# what it compares with


def test_the_plain_vae_is_one_member_of_the_stack(bench, monkeypatch):
    stacks = bench.stacks
    run = replace(stacks.vae_runs(1, stacks.QUICK)[0], batch=20)
    images = torch.randint(256, (20, 784), dtype=torch.uint8)
    plain = stacks.PlainVae(run, images, CPU)
    task = VaeTask([run], CPU, images=stacks.Images(images, images))
    task.begin_epoch(0)
    parameters = [*plain.encoder.parameters(), *plain.decoder.parameters()]
    for ours, other in zip(task.parameters.values(), parameters, strict=True):
        assert torch.equal(ours[0], other)

    # both draw the category where the cumulative probability passes 0.3
    def drawn(logits):
        index = (logits.softmax(-1).cumsum(-1) <= 0.3).sum(-1)
        return one_hot(index, logits.shape[-1]).to(logits.dtype)

    def uniform(noise, *shape, members):
        return torch.full((1, *shape), 0.3)

    monkeypatch.setattr(Noise, "uniform", uniform)
    monkeypatch.setattr(bench.kernels, "drawn", drawn)
    ours, other = task.losses(), plain.loss(images.float() / 255)
    torch.testing.assert_close(ours[0], other, **CLOSE)
    pairs = (
        torch.autograd.grad(loss.sum(), list(leaves))
        for loss, leaves in ((ours, task.parameters.values()), (other, parameters))
    )
    for found, expected in zip(*pairs, strict=True):
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(found[0], expected, **CLOSE)


def test_the_plain_vae_trains_on_all_images_in_a_new_order(bench):
    stacks = bench.stacks
    (run,) = stacks.vae_runs(1, stacks.QUICK)
    images = torch.arange(25, dtype=torch.uint8).unsqueeze(1).expand(-1, 784)
    plain = stacks.PlainVae(replace(run, batch=10), images, CPU)
    seen, original = [], plain.loss
    plain.loss = lambda x: (seen.append((x[:, 0] * 255).round().tolist()), original(x))[1]
    before = [p.clone() for p in plain.encoder.parameters()]
    for _ in range(4):
        plain.step()
    for first, second in (seen[:2], seen[2:]):
        assert len({*first, *second}) == 20
    assert seen[:2] != seen[2:]
    assert plain.total > 4 * 400
    for old, new in zip(before, plain.encoder.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_the_plain_polynomial_knows_its_expected_loss(bench):
    stacks = bench.stacks
    (run,) = stacks.polynomial_runs(1, stacks.QUICK)
    stack, plain = Stack([run]), stacks.PlainPolynomial(run, CPU)
    with torch.no_grad():
        logits = torch.randn(run.latents, 2)
        stack.task.parameters["logits"][0] = logits
        plain.theta.copy_(logits)
    assert plain.expected() == pytest.approx(stack.task.evaluate(1)["expected_loss"].item())
    before = plain.expected()
    for _ in range(30):
        plain.step()
    assert plain.expected() < before


def test_the_floor_counts_what_a_step_must_move(bench):
    stacks = bench.stacks
    (run,) = stacks.vae_runs(1, stacks.FULL)
    plain = stacks.PlainVae(run, torch.zeros(100, 784, dtype=torch.uint8), CPU)
    found = stacks.traffic(run)
    layers = [x for x in (*plain.encoder, *plain.decoder) if isinstance(x, nn.Linear)]
    floor = activations = 0
    for number, layer in enumerate(layers):
        for parameter in layer.parameters():
            # update: p, g, m, v in and p, m, v out; gradient out; parameter in
            floor += parameter.nbytes * (4 + 3 + 1 + 1)
        inputs, outputs = (4 * run.batch * n for n in (layer.in_features, layer.out_features))
        activations += 2 * inputs + outputs + outputs + outputs
        if number:
            floor += layer.weight.nbytes
            activations += outputs
    assert found == (1_083_696, floor, activations)
    assert floor == 41_732_800


# the gate


def test_the_gate_of_the_vae(bench):
    runs = bench.stacks.vae_runs(5, bench.stacks.QUICK, bench.stacks.FIVE_TAUS)
    assert sorted(run.estimator for run in runs) == sorted(bench.stacks.FIVE_TAUS)
    stack = SimpleNamespace(runs=runs)
    gate = partial(bench.stacks.vae_faults, 200.0, stack)
    assert gate({"train": [210.0, 400.0, 400.0, 400.0, 400.0]}) == []
    assert gate({"train": [240.0, 200.0, 200.0, 200.0, 200.0]}) == [
        "its loss is 240, that of the plain loop 200"
    ]
    assert gate({"train": [200.0, math.nan, 200.0, 200.0, 200.0]}) == ["a loss is not finite"]


def test_the_gate_of_the_polynomial(bench):
    gate = partial(bench.stacks.polynomial_faults, 0.25, 0.01, None)
    assert gate({"expected_loss": [0.235, 0.245]}) == []
    assert gate({"expected_loss": [0.25, 0.25]}) == [
        "the fall of its loss is 0, that of the plain loop 0.01"
    ]
    assert gate({"expected_loss": [math.nan, 0.24]}) != []


def test_a_speedup_is_never_reported_on_a_red_gate(bench, context, capsys):
    stacks = bench.stacks
    honest = stacks.polynomial_runs

    def impatient(members, plan):
        # the plain loop has one run
        rate = 1e-3 if members == 1 else 5e-3
        return [replace(run, learning_rate=rate) for run in honest(members, plan)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "polynomial_runs", impatient)
        rows = stacks.polynomial_rows(context)
    plain = rows.pop(0)
    assert len(rows) == 2
    for row in rows:
        assert row["status"].startswith("red gate: the fall of its loss is")
        assert row["seconds"] == row["speedup"] == ""
        assert stacks.is_red(row)
    assert (plain["status"], plain["seconds"]) == ("not measured", "")
    assert not stacks.is_red(plain)


# the measurement


class FakeStack:
    """Trains nothing."""

    steps_per_epoch = 10

    def __init__(self, runs, device, data=None):
        self.runs = runs

    def advance(self):
        return {}


def scripted(bench, monkeypatch, epochs, steps):
    """Times of an epoch and of a plain step, in the order they are asked for."""
    asked = []

    def block_seconds(call, calls, setup, by_events):
        asked.append(call.__name__)
        return next(times[call.__name__])

    times = {"advance": iter(epochs), "step": iter(steps)}
    monkeypatch.setattr(bench.stacks, "Stack", FakeStack)
    monkeypatch.setattr(bench.stacks, "block_seconds", block_seconds)
    return asked


class Loop:
    def step(self):
        pass


def test_ratios_are_formed_within_a_round(bench, context, monkeypatch, capsys):
    stacks = bench.stacks
    plan = context.plan._replace(rounds=3)
    asked = scripted(bench, monkeypatch, [0.2, 0.4, 0.8], [0.1, 0.1, 0.8])
    rival = stacks.Rival(Loop(), no_faults, 77)
    runs = stacks.polynomial_runs(4, plan)
    plain, row = stacks.contest(
        "vae", "case", [(stacks.STACK, runs)], rival, context._replace(plan=plan)
    )
    # 40 run-steps in an epoch: 5, 10 and 20 ms; 20, 10 and 40 times as fast
    assert (row["rounds"], row["steps_per_epoch"], row["members"]) == (3, 10, 4)
    assert (row["seconds"], row["seconds_p20"], row["seconds_p80"]) == (0.01, 0.007, 0.016)
    assert (row["speedup"], row["speedup_p20"], row["speedup_p80"]) == (20.0, 14.0, 32.0)
    assert (plain["seconds"], plain["rounds"], plain["peak_bytes"]) == (0.1, 3, 77)
    assert tuple(row) == stacks.COLUMNS
    assert [sorted(asked[i : i + 2]) for i in (0, 2, 4)] == [["advance", "step"]] * 3
    assert "10000.00 us a run-step, 20.0 x plain" in capsys.readouterr().out


def test_the_order_within_a_round_changes(bench, context, monkeypatch):
    stacks = bench.stacks
    plan = context.plan._replace(rounds=20)
    asked = scripted(bench, monkeypatch, [0.1] * 20, [0.1] * 20)
    rival = stacks.Rival(Loop(), no_faults, "")
    stacks.race(stacks.polynomial_runs(2, plan), rival, context._replace(plan=plan))
    assert {asked[i] for i in range(0, 40, 2)} == {"advance", "step"}


def test_a_slow_stack_has_fewer_rounds(bench, context, monkeypatch):
    stacks = bench.stacks
    plan = context.plan._replace(rounds=20)
    scripted(bench, monkeypatch, [1.5] * 20, [0.1] * 20)
    rival = stacks.Rival(Loop(), no_faults, "")
    timed = stacks.race(stacks.polynomial_runs(2, plan), rival, context._replace(plan=plan))
    assert len(timed.stack) == len(timed.plain) == stacks.SLOW_ROUNDS
    assert timed.start_seconds == 0.0


def test_nothing_begins_after_the_deadline(bench, context, capsys):
    stacks, plan = bench.stacks, context.plan._replace(fields=SHORT)
    late = context._replace(deadline=-1.0, plan=plan)
    rows = [*stacks.polynomial_rows(late), *stacks.overhead_rows(late)]
    assert {row["status"] for row in rows if row["provider"] == stacks.STACK} == {stacks.TIME_OVER}
    assert not any(map(stacks.is_red, rows))
    assert {row["seconds"] for row in rows} == {""}


def test_a_stack_that_does_not_fit_costs_only_itself(bench, context, monkeypatch, capsys):
    stacks = bench.stacks

    class Large(FakeStack):
        def __init__(self, runs, device):
            if len(runs) > 2:
                raise torch.cuda.OutOfMemoryError
            super().__init__(runs, device)

    scripted(bench, monkeypatch, [0.2] * 9, [0.1] * 9)
    monkeypatch.setattr(stacks, "Stack", Large)
    runs = stacks.polynomial_runs(3, context.plan)
    rival = stacks.Rival(Loop(), no_faults, "")
    chosen = [(stacks.STACK, runs), (stacks.STACK, runs[:2])]
    plain, small, large = stacks.contest("vae", "case", chosen, rival, context)
    assert [row["status"] for row in (plain, small, large)] == ["ok", "ok", "out of memory"]
    assert (small["members"], large["seconds"]) == (2, "")


# whole runs


def test_overhead_is_what_bare_epochs_do_not_explain(bench):
    timeline = bench.stacks.Timeline()
    timeline.first_epoch, timeline.trained, timeline.end = 100.0, 109.5, 110.0
    timeline.epochs, timeline.checkpoints = [33.0] + [1.0] * 9, [0.3]
    # the first epoch also captures: one bare epoch stands for it
    row = bench.stacks.shares([timeline], [0.9, 1.0, 1.1])
    assert (row["epochs"], row["rounds"], row["bare_epoch_seconds"]) == (10, 1, 1.0)
    assert row["overhead"] == pytest.approx(1 - 10 / 11, abs=1e-5)
    assert row["overhead_p20"] < row["overhead"] < row["overhead_p80"]
    assert (row["run_seconds"], row["epochs_seconds"]) == (11.0, 10.0)
    assert (row["checkpoint_seconds"], row["end_seconds"]) == (0.3, 0.5)
    # of several runs the median one
    fast, slow = copy(timeline), copy(timeline)
    fast.end, slow.end, slow.trained = 109.0, 129.0, 119.0
    several = bench.stacks.shares([slow, fast, timeline], [1.0])
    assert several["rounds"] == 3
    assert (several["overhead"], several["end_seconds"]) == (row["overhead"], row["end_seconds"])
    assert several["overhead_p20"] < row["overhead"] < several["overhead_p80"]
    assert bench.stacks.shares([fast], [1.0])["overhead"] == 0.0


def test_short_runs_are_repeated(bench, context, monkeypatch):
    stacks, now = bench.stacks, [0.0]

    def stored_run(runs, context):
        now[0] += 7.0
        return runs

    plan = context.plan._replace(repeats=9, repeats_seconds=20.0, fields=SHORT)
    context = context._replace(plan=plan)
    monkeypatch.setattr(stacks, "Stack", FakeStack)
    monkeypatch.setattr(stacks, "bare_epochs", lambda stack, context: [1.0])
    monkeypatch.setattr(stacks, "stored_run", stored_run)
    monkeypatch.setattr(stacks, "shares", lambda timelines, bare: {"rounds": len(timelines)})
    monkeypatch.setattr(stacks.time, "perf_counter", lambda: now[0])
    runs = stacks.polynomial_runs(2, plan)
    assert stacks.whole_run(runs, context)["rounds"] == 3
    seldom = context._replace(plan=plan._replace(repeats=2))
    assert stacks.whole_run(runs, seldom)["rounds"] == 2


def test_the_timeline_hears_a_whole_run(bench, context):
    stacks = bench.stacks
    runs = [replace(run, epochs=3, **SHORT) for run in stacks.polynomial_runs(2, context.plan)]
    timeline = stacks.Timeline()
    folder = context.folder / "runs"
    begin = stacks.time.perf_counter()
    stacks.execute(runs, stacks.Store(folder), listener=timeline)
    assert len(timeline.epochs) == 3
    assert len(timeline.checkpoints) == 1
    assert begin < timeline.first_epoch < timeline.trained < stacks.time.perf_counter()


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome(), "red gate: 3 runs did not finish"), (Outcome(stopped_by="budget"), None)],
)
def test_runs_that_do_not_finish_give_no_number(bench, context, monkeypatch, outcome, status):
    stacks = bench.stacks
    budgets = []

    def execute(runs, store, *, device, budget, listener):
        budgets.append(budget)
        return outcome

    monkeypatch.setattr(stacks, "execute", execute)
    context = context._replace(deadline=stacks.time.perf_counter() + 50)
    plan = context.plan._replace(fields={"latents": 2, "batch": 2} | SHORT)
    runs = stacks.polynomial_runs(3, plan)
    monkeypatch.setattr(stacks, "whole_cases", lambda plan: {"one": runs, "another": runs})
    rows = stacks.overhead_rows(context._replace(plan=plan))
    assert [row["status"] for row in rows] == [status or stacks.TIME_OVER] * 2
    assert [row["case"] for row in rows] == ["one", "another"]
    assert {row["overhead"] for row in rows} == {""}
    assert 0 < budgets[0] <= 50
    assert list(context.folder.iterdir()) == []


# targets


def test_the_targets_are_those_of_the_lab(bench):
    found = {(t.section, t.case, t.members, t.column): t.limit for t in bench.stacks.TARGETS}
    polynomial = "polynomial 128x256, p = 2"
    assert found == {
        ("vae", "VAE 8x4", 160, "seconds"): 17.0,
        ("polynomial", polynomial, 256, "speedup"): 50.0,
        ("overhead", "VAE 8x4", 10, "overhead"): 3.0,
        ("overhead", polynomial, 64, "overhead"): 3.0,
        ("overhead", "polynomial-curves", 105, "overhead"): 3.0,
    }
    full = bench.stacks.FULL
    assert {1, 160, 320} <= {*full.vae}
    assert {*full.polynomial} == {64, 256, 1024}
    # as long as the paper's, and Figure 1 as the command trains it
    assert {name: x[1] for name, x in full.whole.items()} == {"vae": 160, "polynomial": 40}
    assert bench.stacks.figure_runs(full) == recipes.get("polynomial-curves").runs()
    # those with a target come first
    assert (full.vae[0], full.polynomial[0]) == (160, 256)


def row_for(bench, target, value, status="ok"):
    row = dict.fromkeys(bench.stacks.COLUMNS, "") | {
        "section": target.section,
        "case": target.case,
        "provider": bench.stacks.STACK,
        "members": str(target.members),
        "status": status,
    }
    return row | {target.column + suffix: str(value) for suffix in ("", "_p20", "_p80")}


def test_targets_are_met_or_missed(bench):
    for target in bench.stacks.TARGETS:

        def judged(value, target=target):
            return bench.table.judged(target, [row_for(bench, target, value)])

        check_verdicts(target, judged)
        other = row_for(bench, target, target.limit * target.unit) | {"members": "7"}
        red = row_for(bench, target, "", "red gate: it is wrong")
        assert bench.table.judged(target, [other, red]) == ("red gate: it is wrong", "**missed**")
        assert bench.table.judged(target, [row_for(bench, target, "")]) == ("", "not measured")
        assert bench.table.judged(target, [other]) == ("", "not measured")


# runs and what they write


def test_a_rehearsal_measures_everything_and_leaves_the_stored_results_alone(bench, quick, results):
    stacks = bench.stacks
    assert quick.code == 0
    assert quick.untouched
    assert [path.name for path in quick.folder.iterdir() if path.suffix == ".csv"] == ["stacks.csv"]
    assert not [path for path in quick.folder.iterdir() if path.is_dir() and path.name != "assets"]
    found = [(row["section"], row["provider"], int(row["members"])) for row in results.rows]
    assert found == [
        ("polynomial", stacks.PLAIN, 1),
        *(("polynomial", stacks.STACK, n) for n in (2, 3)),
        ("overhead", stacks.STACK, 2),
        ("overhead", stacks.STACK, 3),
        ("overhead", stacks.STACK, 6),
        ("vae", stacks.PLAIN, 1),
        *(("vae", stacks.STACK, n) for n in (1, 2)),
        ("vae", stacks.FIVE, 5),
    ]
    for row in results.rows:
        check_is_complete(row)
        name = "overhead" if row["section"] == "overhead" else "seconds"
        low, middle, high = (float(row[name + suffix]) for suffix in ("_p20", "", "_p80"))
        assert low <= middle <= high
        if row["section"] == "vae":
            floor = float(row["floor_bytes"]) / float(row["copy_bandwidth"])
            times = float(row["seconds"]) / floor
            assert float(row["times_floor"]) == pytest.approx(times, rel=0.01)
            assert row["images"] == "random"
        if name == "overhead":
            parts = ("bare_epoch_seconds", "epochs_seconds", "checkpoint_seconds", "end_seconds")
            assert all(0 < float(row[part]) < float(row["run_seconds"]) for part in parts)


@pytest.mark.gpu
# of torch's own compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_rehearsal_on_a_gpu(bench, tmp_path):
    arguments = ["--quick", "--synthetic", "--output", str(tmp_path)]
    assert bench.stacks.main(arguments) == 0
    rows = bench.table.PAGE.read(tmp_path).rows
    assert {row["gpu"] for row in rows} == {torch.cuda.get_device_name()}
    for row in rows:
        if row["section"] != "overhead":
            assert int(row["peak_bytes"]) > 0


def test_a_section_replaces_only_its_own_rows(bench, tmp_path):
    stacks = bench.stacks
    stacks.write_section(tmp_path, "vae", [{"section": "vae", "x": "old"}])
    stacks.write_section(tmp_path, "polynomial", [{"section": "polynomial", "x": "old"}])
    stacks.write_section(tmp_path, "vae", [{"section": "vae", "x": "new"}] * 2)
    found = [(row["section"], row["x"]) for row in bench.table.PAGE.read(tmp_path).rows]
    assert found == [("polynomial", "old"), ("vae", "new"), ("vae", "new")]


def test_a_section_that_breaks_off_costs_only_itself(bench, tmp_path, monkeypatch, capsys):
    stacks = bench.stacks

    def breaks(context):
        raise ZeroDivisionError

    def red(context):
        return [stacks.empty_row("polynomial", "case", stacks.STACK, 2, "failed: it is broken")]

    monkeypatch.setitem(stacks.SECTIONS, "overhead", breaks)
    monkeypatch.setitem(stacks.SECTIONS, "polynomial", red)
    arguments = ["--device", "cpu", "--quick", "--synthetic", "--only", "overhead", "polynomial"]
    assert stacks.main([*arguments, "--output", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "overhead broke off" in out
    assert "polynomial, stack, 2 members: failed: it is broken" in out
    assert [row["section"] for row in bench.table.PAGE.read(tmp_path).rows] == ["polynomial"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu", "--quick", "--only", "tiny"], "invalid choice"),
        (["--device", "cpu", "--synthetic"], "it only rehearses, with --quick"),
        (["--device", "cpu", "--quick", "--data", "nowhere"], "or measure with --synthetic"),
        (["--quick", "--synthetic", "--output", str(BENCHMARKS)], "a rehearsal"),
        (["--synthetic", "--data", "x"], "not allowed with"),
        (["--synthetic"], "torch finds none"),
    ],
)
def test_wrong_arguments(bench, capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("DISCRETEGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        bench.stacks.main(arguments)
    assert message in capsys.readouterr().err


def test_help_and_the_recorded_command(bench, capsys, monkeypatch):
    stacks = bench.stacks
    with pytest.raises(SystemExit, match="0"):
        stacks.main(["--help"])
    assert "red gate" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(stacks, "load_mnist", lambda place: stacks.Images([0] * 70000, [0] * 70000))
    full = stacks.parse(["--data", "/some/place", "--commit", "abc"])
    assert full.command == "python benchmarks/stacks.py --data DIR"
    assert (full.output, full.images_are) == (BENCHMARKS, "mnist")
    assert [len(x) for x in full.images] == [60000, 10000]
    part = stacks.parse(["--quick", "--synthetic", "--only", "vae", "polynomial"])
    assert part.command == "python benchmarks/stacks.py --synthetic --quick --only polynomial vae"
    assert part.output != BENCHMARKS
    assert part.images.train.shape == (200, 784)
    none = stacks.parse(["--only", "polynomial"])
    assert (none.command, none.images) == ("python benchmarks/stacks.py --only polynomial", None)


# the page


def test_the_page_is_current(bench):
    assert bench.table.main(["--check"]) == 0, "run python benchmarks/stacks_table.py"


def test_a_page_of_nothing_says_so(bench, tmp_path):
    assert bench.table.main(["--preview", str(tmp_path)]) == 0
    text = (tmp_path / "stack-benchmarks.md").read_text(encoding="utf-8")
    assert text.count("Not measured yet.") == 6
    assert text.count("| not measured |") == len(bench.stacks.TARGETS)
    assert [path.name for path in tmp_path.iterdir()] == ["stack-benchmarks.md"]


def test_a_page_shows_what_there_is(bench, results):
    for section in bench.stacks.SECTIONS:
        some = bench.table.Results(results.of(section), "")
        text = bench.table.page(some)
        assert "Not measured yet." in text
        for row in some.rows:
            assert f"| {row['members']} |" in text
        red = [row | {"status": "out of memory"} for row in some.rows]
        assert "| out of memory |" in bench.table.page(bench.table.Results(red, ""))


def test_the_page_and_its_picture_follow_from_the_results(bench, quick, results, capsys):
    text = written_page(bench.table, quick.folder, bench.table.PICTURE, capsys)
    assert "Not measured yet." not in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 100
    assert results.rows[0]["command"] in text
    assert f"(assets/{bench.table.PICTURE})" in text


def faster(results):
    """The same results with nothing to complain about."""
    rows = [dict(row) for row in results.rows]
    for row in rows:
        row |= {"seconds": "1.0", "speedup": "2.0", "overhead": "0.01", "peak_bytes": "100"}
    return rows


def test_losses_are_shown(bench, results):
    stacks, table = bench.stacks, bench.table
    assert table.losses(table.Results(faster(results), "")) == []
    rows = faster(results)
    chosen = {(row["section"], row["provider"], row["members"]): row for row in rows}
    chosen["vae", stacks.STACK, "1"]["speedup"] = "0.5"
    chosen["polynomial", stacks.STACK, "3"]["peak_bytes"] = "600"
    chosen["overhead", stacks.STACK, "2"] |= {"overhead": "0.042", "run_seconds": "20"}
    five = chosen["vae", stacks.FIVE, "5"]
    rows.append(dict(five) | {"provider": stacks.STACK})
    five["seconds"] = "1.5"
    assert table.losses(table.Results(rows, "")) == [
        "VAE 8x4: a stack with 1 member is slower than the plain loop (0.50x).",
        "VAE 8x4: 5 members with five estimators take 1.50 times as long as with ReinMax alone.",
        "polynomial 32x64, p = 2: a stack with 3 members takes 2.00 times the memory of as many "
        "plain runs.",
        "VAE 8x4: 4.20 % of the 20 s of a whole run of 2 members is not training.",
    ]


def test_a_start_is_made_up_for(bench):
    plain = {"status": "ok", "seconds": "0.003"}
    stack = {"members": "10", "seconds": "0.001", "start_seconds": "4.0"}
    assert bench.table.made_up(stack, plain) == "200 steps"
    assert bench.table.made_up(stack | {"seconds": "0.003"}, plain) == "never"
    assert bench.table.made_up(plain, plain) == ""


def test_stacks_that_fit_into_the_cache_are_named(bench, results):
    rows = [row | {"l2_bytes": str(9 * 2**20)} for row in results.of("vae")]
    text = bench.table.floor_text(rows).replace("\n", " ")
    assert "The parameters of 2 members fit into the cache of the GPU (9 MiB)" in text
    assert "With P = 1,083,696 and W = 679,936 these are 41.7 MB" in text
    assert bench.table.cache_note(results.of("vae")) == ""
