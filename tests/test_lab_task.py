"""What a task may have: several groups and losses, schedules, clipping, buckets, an accuracy."""

import importlib.util
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch.optim import lr_scheduler

import lab_toy
from discretegrad_lab import Measures, Sampler, Schedule, Stack, Store, tasks
from discretegrad_lab import execute as train
from discretegrad_lab.report import results
from discretegrad_lab.stack.optimisers import Optimiser
from discretegrad_lab.tasks import base, evidence
from discretegrad_lab.tasks.base import Metric, Task
from lab_toy import SIZES, TOY, Toy, ToyModel

RUNS = [
    Toy(estimator="reinmax", seed=1, learning_rate=0.1),
    Toy(estimator="reinmax", seed=2, learning_rate=0.05, optimiser="radam", clip_norm=0.1),
    Toy(estimator="st", seed=3, learning_rate=0.1, schedule="cosine", schedule_factor=0.1),
    Toy(estimator="st", seed=4, learning_rate=0.1, schedule="linear", clip_norm=0.3),
    Toy(estimator="stgs", seed=5, learning_rate=0.2, schedule="exponential", schedule_factor=0.01),
    Toy(estimator="gr-mck", seed=6, learning_rate=0.1, schedule="step", schedule_factor=0.5),
]
UPDATES = RUNS[0].epochs * RUNS[0].steps_per_epoch


def plain_schedule(optimiser, run):
    """The one of torch."""
    factor = run.schedule_factor
    return {
        "constant": lambda: lr_scheduler.ConstantLR(optimiser, 1.0),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(
            optimiser, UPDATES, run.learning_rate * factor
        ),
        "linear": lambda: lr_scheduler.LinearLR(optimiser, 1.0, factor, UPDATES),
        "exponential": lambda: lr_scheduler.ExponentialLR(optimiser, factor ** (1 / UPDATES)),
        "step": lambda: lr_scheduler.StepLR(
            optimiser, run.schedule_every * run.steps_per_epoch, factor
        ),
    }[run.schedule]()


def trained_by_torch(run):
    """A member alone, by torch's own optimisers, schedules and clipping."""
    model = ToyModel([run], torch.device("cpu"))
    kind = {"adam": torch.optim.Adam, "radam": torch.optim.RAdam}[run.optimiser]
    optimiser = kind([model.weight], run.learning_rate)
    schedule = plain_schedule(optimiser, run)
    guesses = torch.optim.Adam([model.guess], 0.05)
    for epoch in range(run.epochs):
        model.begin_epoch(epoch)
        for step in range(run.steps_per_epoch):
            model.prepare(step)
            losses = model.losses()
            optimiser.zero_grad()
            guesses.zero_grad()
            losses["mistakes"].sum().backward()
            losses["surprise"].sum().backward()
            if run.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([model.weight], run.clip_norm)
            optimiser.step()
            guesses.step()
            schedule.step()
    return model


def test_members_are_updated_as_torch_would():
    stack = Stack(ToyModel, RUNS)
    rows = [stack.advance() for _ in range(stack.epochs)]
    assert set(rows[0]) == {"mistakes", "surprise", "accuracy"}
    for member, run in enumerate(stack.runs):
        alone = trained_by_torch(run)
        state = stack.state(member)
        close = {"rtol": 1e-5, "atol": 1e-6, "msg": run.schedule}
        for name, x in (("", alone.weight), ("guess/", alone.guess)):
            found = state[f"{name}parameters/{'guess' if name else 'weight'}"]
            torch.testing.assert_close(found, x[0].detach(), **close)
        assert rows[-1]["accuracy"][member] == pytest.approx(alone.evaluate(4)["accuracy"].item())
        # so that what is compared matters
        changed = [
            trained_by_torch(replace(run, **other)).weight
            for other in ({"schedule": "constant"}, {"clip_norm": None})
        ]
        differs = [not torch.allclose(x[0], alone.weight[0]) for x in changed]
        assert differs == [run.schedule != "constant", run.clip_norm is not None]


def test_a_stack_with_all_of_it_goes_on_where_it_was():
    whole, half, again = (Stack(ToyModel, RUNS) for _ in range(3))
    rows = [whole.advance() for _ in range(4)]
    for _ in range(2):
        half.advance()
    for member, state in enumerate(half.states()):
        again.load_state(member, state)
    again.epoch = 2
    assert [again.advance(), again.advance()] == rows[2:]
    assert whole.state(0)["buffers/seen"] == 4 * sum(SIZES)
    for member in range(len(RUNS)):
        for name, x in whole.state(member).items():
            assert torch.equal(again.state(member)[name], x), name
    other = dict(half.state(0))
    other["guess/parameters/other"] = other.pop("guess/parameters/guess")
    before = again.state(1)
    with pytest.raises(ValueError, match=r"differs in guess/parameters/guess, .*/other; load"):
        again.load_state(1, other)
    assert all(torch.equal(x, before[name]) for name, x in again.state(1).items())


@pytest.mark.parametrize("capture", ["buckets", "none"])
def test_steps_of_one_shape_share_a_graph(capture, monkeypatch):
    """With graphs that run the step they were captured from."""
    captured = []

    def fake(self):
        batch = self.model.batch
        for _ in range(3):
            self._train()
        captured.append(len(batch))

        def replay():
            self.model.batch = batch
            self._train()

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr(ToyModel, "capture", capture)
    # no numbers of a generator, which is no counter
    runs = [Toy(estimator="st", seed=seed, learning_rate=0.1) for seed in (1, 2)]
    monkeypatch.setattr(Sampler, "__call__", lambda self, logits: logits.softmax(-1))
    monkeypatch.setattr(Stack, "_captured", fake)
    eager, graphs = (Stack(ToyModel, runs, graph=graph) for graph in (False, True))
    assert [eager.advance() for _ in range(3)] == [graphs.advance() for _ in range(3)]
    assert captured == (sorted(set(SIZES), key=SIZES.index) if capture == "buckets" else [])
    for name, x in eager.state(1).items():
        assert torch.equal(graphs.state(1)[name], x), name


def test_a_loss_that_is_not_finite_stops_a_member():
    stack = Stack(ToyModel, RUNS)
    losses = stack.model.losses

    def broken():
        found = losses()
        return {**found, "surprise": found["surprise"] / torch.tensor([1.0, 0.0, 1, 1, 1, 1])}

    stack.model.losses = broken
    before = stack.state(1)
    row = stack.advance()
    assert stack.diverged.tolist() == [-1, 1, -1, -1, -1, -1]
    assert all(values[1] != values[1] for values in row.values())
    for name in ("parameters/weight", "guess/parameters/guess"):
        assert torch.equal(stack.state(1)[name], before[name])


def test_a_group_of_an_unknown_loss_is_refused(monkeypatch):
    monkeypatch.setattr(ToyModel, "loss_names", ("mistakes",))
    with pytest.raises(ValueError, match="expected a loss of mistakes for the parameters guess"):
        Stack(ToyModel, RUNS)


def test_it_is_stored_and_read_like_any_other(tmp_path):
    store = Store(tmp_path)
    outcome = train(RUNS, store)
    assert outcome.finished == tuple(RUNS)
    assert set(store.runs()) == set(RUNS)
    assert store.metrics(RUNS[0])[-1].keys() == {"epoch", "mistakes", "surprise", "accuracy"}
    assert TOY.metric("accuracy").direction == "up"


def test_a_task_has_a_name_of_its_own(monkeypatch):
    monkeypatch.setattr(base, "TASKS", dict(base.TASKS))
    # a file that is loaded again has its own name again
    spec = importlib.util.spec_from_file_location("tests.lab_toy", lab_toy.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    other = type("Other", (Toy,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match="expected a new name for a task, got 'toy'"):
        Task(config=other, model=ToyModel, metrics=(), memory=lambda run: 1)


# schedules and clipping by themselves


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.schedule} {run.clip_norm}")
def test_factors_are_those_of_torch(run):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], run.learning_rate)
    schedule = plain_schedule(optimiser, run)
    rates = []
    for _ in range(UPDATES):
        rates.append(schedule.get_last_lr()[0] / run.learning_rate)
        optimiser.step()
        schedule.step()
    assert run.rate_schedule.factors(UPDATES) == pytest.approx(rates, rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "sine"}, "expected a schedule of constant, cosine, .* got 'sine'"),
        ({"kind": "cosine", "factor": -0.1}, "that is not negative, got -0.1"),
        ({"kind": "exponential", "factor": 0.0}, "that is positive, got 0.0"),
        ({"kind": "step", "factor": 0.0}, "that is positive, got 0.0"),
        ({"kind": "step", "factor": 0.5, "every": 0}, "positive number of updates, got 0"),
    ],
)
def test_wrong_schedules(fields, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedule": "exponential"}, "factor .* positive, got 0.0; set schedule_factor"),
        ({"schedule": "step"}, "factor .* positive, got 0.0; set schedule_factor"),
        ({"schedule": "cosine", "schedule_factor": -1.0}, "not negative, got -1.0; set"),
        ({"schedule": "linear", "schedule_factor": "half"}, "not negative, got 'half'; set"),
    ],
)
def test_a_run_refuses_a_schedule_that_it_could_not_follow(fields, message):
    with pytest.raises(ValueError, match=message):
        Toy(estimator="st", **fields)


def test_after_its_last_update_a_schedule_stays():
    p, places = torch.zeros(1, 1), []
    optimiser = Optimiser({"p": p}, ["adam"], [1.0], schedules=[[1.0, 0.5]])
    for _ in range(4):
        optimiser.step({"p": torch.ones(1, 1)}, torch.tensor([True]))
        places.append(p.item())
    assert places == pytest.approx([-1.0, -1.5, -2.0, -2.5], rel=1e-5)


def test_runs_without_schedule_and_clipping_keep_their_identity():
    plain = Toy(estimator="st")
    assert not {"schedule", "clip_norm", "line"} & set(plain.document())
    others = [replace(plain, schedule="cosine"), replace(plain, clip_norm=1.0)]
    assert len({run.identity for run in (plain, *others)}) == 3
    # they can be members of one stack all the same
    assert len({run.stack_key for run in (plain, *others)}) == 1
    with pytest.raises(ValueError, match="as clip_norm, got 0"):
        replace(plain, clip_norm=0.0)
    with pytest.raises(ValueError, match="expected constant or cosine or linear"):
        replace(plain, schedule="cosinus")


COLUMNS = (
    "identity", "task", "line", "version", "state", "epoch", "diverged_step", "seconds", "commit",
    "source", "device", "torch", "final_size", "first_recorded_size", "at_rung_size",
)  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_field_has_no_name_of_a_column_of_results(name):
    own = {"__module__": Toy.__module__, "__annotations__": {name: str}, name: "toy"}
    config = dataclass(frozen=True, kw_only=True)(type("Own", (Toy,), own))
    with pytest.raises(ValueError, match=rf"names .* of toy .*, got {name}; call them otherwise"):
        replace(TOY, config=config)
    assert tasks.task("toy") is TOY


@pytest.mark.parametrize("name", ["identity", "device", "final_size"])
def test_a_measure_has_no_name_of_a_column_of_results(name):
    measures = Measures((Metric(name, "size"),), lambda model: {}, lambda run: 1)
    with pytest.raises(ValueError, match=rf"names .* of toy .*, got {name}; call them otherwise"):
        replace(TOY, measures=measures)


def test_columns_of_results_are_those_that_fields_cannot_be_called(tmp_path):
    rest = {name: "x" for name in ("commit", "source", "device", "torch")}
    config = {"task": "toy", "estimator": "st"}
    metrics = {"metrics": {"a": 1.0}, "first": {"a": 1.0}, "reached": {"a": 1.0}}
    row = evidence.Row("0" * 16, config, "finished", 4, **metrics, **rest)
    row = replace(row, measured=evidence.Measured({"size": 1.0}, **rest))
    results.write(evidence.Results("toy", (row,)), tmp_path)
    for file, free in (("runs.csv", {"estimator"}), ("measures.csv", {"size"})):
        columns = (tmp_path / file).read_text().splitlines()[0].split(",")
        taken = evidence.FIELDS_TAKEN if file == "runs.csv" else evidence.MEASURES_TAKEN
        assert {name for name in columns if not evidence.is_taken(name, taken)} == free


LOSS, ACCURACY = Metric("loss", "loss"), Metric("right", "accuracy", direction="up")
BEST = Metric("loss", "loss", optimum=lambda config: config["best"])


@pytest.mark.parametrize(
    ("metric", "first", "last", "failed"),
    [
        (LOSS, 2.0, 2.1, True),
        (LOSS, 2.0, 1.9, False),
        (LOSS, -2.0, -1.9, True),
        (ACCURACY, 0.5, 0.4, True),
        (ACCURACY, 0.5, 0.6, False),
        # a perfect one need not get better, and only an optimum tells that it is not
        (ACCURACY, 1.0, 1.0, False),
        (BEST, 2.0, 2.0, True),
        (BEST, 1.0, 1.0, False),
        (BEST, 1.004, 1.004, False),
        # rounded in a file
        (LOSS, 2.0, 2.000001, False),
        (LOSS, float("nan"), 2.0, False),
        (BEST, 2.0, float("inf"), False),
    ],
)
def test_runs_that_are_no_better_at_the_end_failed_to_train(metric, first, last, failed):
    assert metric.failed(first, last, {"best": 1.0}) is failed
