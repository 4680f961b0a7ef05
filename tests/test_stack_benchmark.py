"""The benchmark of stacks: it refuses wrong numbers, and compares with the right things.

Stored results come from ``python benchmarks/stacks.py`` on a machine with a GPU; here the same code
runs in miniature on the CPU, where stacks have no graphs.
"""

import math
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from benchmark_cases import (
    CPU,
    check_complete,
    check_page,
    contest,
    machine,
    plain,
    rehearse,
    stacks,
    timing,
    whole_runs,
)
from discretegrad_lab import Noise, Outcome
from discretegrad_lab.tasks.vae.model import VaeModel
from oracles import one_thread

# what sums of some hundred thousand float32 numbers in different orders may differ by
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
DEVICE = torch.device("cpu")

seeded_on_one_thread = pytest.fixture(autouse=True)(one_thread)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    arguments = ["--synthetic", "--limit", "600"]
    return rehearse(stacks.BENCHMARK, arguments, tmp_path_factory.mktemp("quick"))


@pytest.fixture
def results(quick):
    return stacks.PAGE.read(quick.folder)


@pytest.fixture
def setup(tmp_path):
    return setup_of(tmp_path, fields={"latents": 32, "batch": 64, "steps_per_epoch": 2})


def setup_of(folder, **changes):
    data = stacks.Data(stacks.QUICK._replace(**changes))
    return CPU._replace(folder=folder, data=data)


# what it compares with


def test_the_plain_vae_is_one_member_of_the_stack(monkeypatch):
    run = replace(stacks.vae_runs(1, stacks.QUICK)[0], batch=20)
    images = torch.randint(256, (20, 784), dtype=torch.uint8)
    loop = stacks.PlainVae(run, images, DEVICE)
    model = VaeModel([run], DEVICE, images=stacks.Images(images, images))
    model.begin_epoch(0)
    parameters = [*loop.encoder.parameters(), *loop.decoder.parameters()]
    for ours, other in zip(model.parameters.values(), parameters, strict=True):
        assert torch.equal(ours[0], other)

    # both draw the category where the cumulative probability passes 0.3
    def drawn(logits):
        index = (logits.softmax(-1).cumsum(-1) <= 0.3).sum(-1)
        return one_hot(index, logits.shape[-1]).to(logits.dtype)

    def uniform(noise, *shape, members):
        return torch.full((1, *shape), 0.3)

    monkeypatch.setattr(Noise, "uniform", uniform)
    monkeypatch.setattr(plain, "drawn", drawn)
    ours, other = model.losses()["train"], loop.loss(images.float() / 255)
    torch.testing.assert_close(ours[0], other, **CLOSE)
    pairs = (
        torch.autograd.grad(loss.sum(), list(leaves))
        for loss, leaves in ((ours, model.parameters.values()), (other, parameters))
    )
    for gradient, expected in zip(*pairs, strict=True):
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(gradient[0], expected, **CLOSE)


def test_the_plain_polynomial_knows_its_expected_loss():
    (run,) = stacks.polynomial_runs(1, stacks.QUICK)
    stack, loop = stacks.stack_of_task([run], DEVICE, None), stacks.PlainPolynomial(run, DEVICE)
    with torch.no_grad():
        logits = torch.randn(run.latents, 2)
        stack.model.parameters["logits"][0] = logits
        loop.theta.copy_(logits)
    before = loop.expected()
    assert before == pytest.approx(stack.model.evaluate(1)["expected_loss"].item())
    for _ in range(30):
        loop.step()
    assert loop.expected() < before


def test_the_floor_counts_what_a_step_must_move():
    (run,) = stacks.vae_runs(1, stacks.FULL)
    loop = stacks.PlainVae(run, torch.zeros(100, 784, dtype=torch.uint8), DEVICE)
    layers = [x for x in (*loop.encoder, *loop.decoder) if isinstance(x, nn.Linear)]
    floor = activations = 0
    for number, layer in enumerate(layers):
        # update: p, m, v in and out; forward: parameter in
        floor += sum(parameter.nbytes for parameter in layer.parameters()) * (3 + 3 + 1)
        inputs, outputs = (4 * run.batch * n for n in (layer.in_features, layer.out_features))
        activations += 2 * inputs + 3 * outputs
        if number:
            floor += layer.weight.nbytes
            activations += outputs
    assert stacks.traffic(run) == (1_083_696, floor, activations)
    assert floor == 33_063_232


# the gate


def test_the_gates():
    runs = stacks.vae_runs(5, stacks.QUICK, stacks.FIVE_TAUS)
    assert sorted(run.estimator for run in runs) == sorted(stacks.FIVE_TAUS)
    gate = partial(stacks.vae_faults, 200.0, SimpleNamespace(runs=runs))
    assert gate({"train": [210.0, 400.0, 400.0, 400.0, 400.0]}) == []
    wrong = ["its loss is 240, that of the plain loop 200"]
    assert gate({"train": [240.0, 200.0, 200.0, 200.0, 200.0]}) == wrong
    assert gate({"train": [200.0, math.nan, 200.0, 200.0, 200.0]}) == ["a loss is not finite"]
    gate = partial(stacks.polynomial_faults, 0.25, 0.01, None)
    assert gate({"expected_loss": [0.235, 0.245]}) == []
    wrong = ["the fall of its loss is 0, that of the plain loop 0.01"]
    assert gate({"expected_loss": [0.25, 0.25]}) == wrong
    assert gate({"expected_loss": [math.nan, 0.24]}) != []


def test_a_speedup_is_never_reported_on_a_red_gate(tmp_path, monkeypatch):
    honest = stacks.polynomial_runs

    def impatient(members, plan):
        # the plain loop has one run
        rate = 1e-3 if members == 1 else 5e-3
        return [replace(run, learning_rate=rate) for run in honest(members, plan)]

    monkeypatch.setattr(stacks, "polynomial_runs", impatient)
    *rows, loop = stacks.polynomial_rows(setup_of(tmp_path))
    assert len(rows) == 2
    for row in rows:
        assert row["status"].startswith("red gate: the fall of its loss is")
        assert not {"seconds", "speedup"} & set(row)
        assert machine.is_red(row)
    assert (loop["status"], "seconds" in loop) == ("not measured", False)
    assert not machine.is_red(loop)


# the measurement


class FakeStack:
    """Trains nothing."""

    steps_per_epoch = 10

    def __init__(self, runs, device, data):
        if len(runs) > 4:
            raise torch.cuda.OutOfMemoryError
        self.runs = runs

    def advance(self):
        return {}


def step():
    pass


def test_a_stack_and_the_plain_loop_take_turns(tmp_path, monkeypatch):
    times = {"advance": iter([0.2, 0.4, 0.8]), "step": iter([0.1, 0.1, 0.8])}
    turns = []

    def block_seconds(call, calls, setup, clock, before):
        turns.append((call.__name__, calls))
        return next(times[call.__name__])

    monkeypatch.setattr(stacks, "stack_of_task", FakeStack)
    monkeypatch.setattr(timing, "block_seconds", block_seconds)
    setup = setup_of(tmp_path, steps=50)
    loop = SimpleNamespace(step=step)
    rival = contest.Rival(stacks.plain_entry(loop, setup.data.plan), lambda stack, metrics: [], 77)
    runs = stacks.polynomial_runs(5, stacks.QUICK)
    chosen = [(stacks.STACK, runs), (stacks.STACK, runs[:4])]
    make, pace = partial(stacks.stack_of, setup), timing.Pace(3, 0.0, 1)
    large, row, loop = contest.contest({"section": "vae"}, chosen, make, rival, pace, setup)
    # a stack that does not fit costs only itself
    assert (large["status"], large["members"]) == ("out of memory", 5)
    # 40 run-steps in an epoch: 5, 10 and 20 ms; 20, 10 and 40 times as fast
    assert (row["rounds"], row["steps_per_epoch"], row["members"]) == (3, 10, 4)
    assert (row["seconds"], row["seconds_p20"], row["seconds_p80"]) == (0.01, 0.007, 0.016)
    assert (row["speedup"], row["speedup_p20"], row["speedup_p80"]) == (20.0, 14.0, 32.0)
    assert row["start_seconds"] == 0.0
    assert (loop["seconds"], loop["rounds"], loop["peak_bytes"]) == (0.1, 3, 77)
    assert [sorted(turns[i : i + 2]) for i in (0, 2, 4)] == [[("advance", 1), ("step", 50)]] * 3


# whole runs


def test_overhead_is_what_bare_epochs_do_not_explain():
    timeline = whole_runs.Timeline()
    timeline.first_epoch, timeline.trained, timeline.end = 100.0, 109.5, 110.0
    timeline.epochs, timeline.checkpoints = [33.0] + [1.0] * 9, [0.3]
    # the first epoch also captures: one bare epoch stands for it
    row = whole_runs.shares([timeline], [0.9, 1.0, 1.1])
    assert (row["epochs"], row["rounds"], row["bare_epoch_seconds"]) == (10, 1, 1.0)
    assert row["overhead"] == pytest.approx(1 - 10 / 11, abs=1e-5)
    assert row["overhead_p20"] < row["overhead"] < row["overhead_p80"]
    assert (row["run_seconds"], row["epochs_seconds"]) == (11.0, 10.0)
    assert (row["checkpoint_seconds"], row["end_seconds"]) == (0.3, 0.5)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(), "red gate: 3 runs did not finish"),
        (Outcome(stopped_by="budget"), machine.TIME_OVER),
    ],
)
def test_runs_that_do_not_finish_give_no_number(setup, monkeypatch, outcome, status):
    budgets = []

    def execute(runs, store, *, device, budget, listener):
        budgets.append(budget)
        return outcome

    monkeypatch.setattr(whole_runs, "execute", execute)
    runs = stacks.polynomial_runs(3, setup.data.plan)
    monkeypatch.setattr(stacks, "whole_cases", lambda plan: {"one": runs, "another": runs})
    setup = setup._replace(deadline=time.perf_counter() + 50)
    rows = list(stacks.overhead_rows(setup))
    assert [(row["case"], row["status"]) for row in rows] == [("one", status), ("another", status)]
    assert not any("overhead" in row for row in rows)
    assert 0 < budgets[0] <= 50
    assert list(setup.folder.iterdir()) == []


# targets, runs and the page


def test_a_rehearsal_measures_everything_and_leaves_the_stored_results_alone(quick, results):
    assert (quick.code, quick.untouched) == (0, True)
    assert [path.name for path in quick.folder.iterdir()] == ["stacks.csv"]
    check_complete(results.rows, stacks.FILE)
    measured = [(row["section"], row["provider"], int(row["members"])) for row in results.rows]
    assert measured == [
        *(("polynomial", stacks.STACK, n) for n in (3, 2)),
        ("polynomial", stacks.PLAIN, 1),
        *(("overhead", stacks.STACK, n) for n in (2, 3, 6)),
        ("vae", stacks.STACK, 2),
        ("vae", stacks.FIVE, 5),
        ("vae", stacks.STACK, 1),
        ("vae", stacks.PLAIN, 1),
        *(
            ("bernoulli", x, n)
            for _ in stacks.BERNOULLI
            for x, n in ((stacks.STACK, 2), (stacks.PLAIN, 1))
        ),
    ]
    for row in (*results.of(section="vae"), *results.of(section="bernoulli")):
        floor = float(row["floor_bytes"]) / float(row["copy_bandwidth"])
        assert float(row["times_floor"]) == pytest.approx(float(row["seconds"]) / floor, rel=0.01)
        assert row["images"] == "random"
    for row in results.of(section="overhead"):
        parts = ("bare_epoch_seconds", "epochs_seconds", "checkpoint_seconds", "end_seconds")
        assert all(0 < float(row[part]) < float(row["run_seconds"]) for part in parts)


def test_a_page_shows_what_there_is(results):
    text = check_page(stacks.PAGE, results, lambda row: f"| {row['members']} |")
    (curves,) = (x.curves for x in stacks.pictures(results)["stack_scaling.png"])
    assert [len(curve.x) for curve in curves] == [2, 1, 2]
    assert "With P = 1,083,696 and W = 679,936 these are 33.1 MB" in text.replace("\n", " ")
