"""Training what is not trained yet: with kills, signals, budgets, full disks, two processes."""

import errno
import itertools
import json
import math
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import oracles
from discretegrad_lab.runs import checkpoints, disk, environment, files, plan
from discretegrad_lab.runs import execute as module
from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.listener import Listener
from discretegrad_lab.runs.options import StackOptions
from discretegrad_lab.runs.plan import estimate
from discretegrad_lab.runs.store import NewerStore, Saved, Status, Store, StoreError
from discretegrad_lab.stack.trainer import EpochAbandoned
from discretegrad_lab.tasks.polynomial.config import Polynomial
from lab_cases import make_stack, tree

EPOCHS = 8
DIVERGES = 9.0
"""The temperature at which a member of a FakeStack diverges, in its third epoch."""


class FakeStack:
    """Trains nothing much, but every bit depends on the seed and on all epochs before."""

    steps_per_epoch = 10

    def __init__(self, runs, device, data, *, log=None, sleep=0.0, each=None):
        self.runs = tuple(sorted(runs, key=lambda run: run.seed, reverse=True))
        self.epoch, self.epochs = 0, runs[0].epochs
        self.log, self.sleep, self.each = log, sleep, each
        self.x = torch.stack([self.noise(run, 0) for run in self.runs])
        self.diverged = torch.full((len(runs),), -1)

    @staticmethod
    def noise(run, epoch):
        generator = torch.Generator().manual_seed(run.seed * 1000 + epoch)
        return torch.randn(50, dtype=torch.float64, generator=generator)

    def step(self):
        time.sleep(self.sleep / self.steps_per_epoch)

    def advance(self, stop=None):
        if self.each is not None:
            self.each(self)
        for _ in range(self.steps_per_epoch):
            if stop is not None and stop():
                raise EpochAbandoned
            self.step()
        self.epoch += 1
        for number, run in enumerate(self.runs):
            self.x[number] = (2 * self.x[number] + self.noise(run, self.epoch)).sin()
            if run.tau == DIVERGES and self.epoch == 3:
                self.diverged[number] = 25
        if self.log is not None:
            lines = [f"{os.getpid()} {run.identity} {self.epoch}\n" for run in self.runs]
            with open(self.log, "a") as file:
                file.write("".join(lines))
        # row by row, since the order of a sum depends on how many rows there are
        losses = torch.stack([x.mean() for x in self.x])
        return {
            "loss": torch.where(self.diverged < 0, losses, torch.nan).tolist(),
            "largest": self.x.amax(1).tolist(),
        }

    def state(self, member):
        return {"x": self.x[member].clone(), "diverged": self.diverged[member].clone()}

    def states(self):
        return [self.state(member) for member in range(len(self.runs))]

    def load_state(self, member, state):
        self.x[member] = state["x"]
        self.diverged[member] = state["diverged"]


def fake(**options):
    return lambda runs, device, data: FakeStack(runs, device, data, **options)


def runs_of(count, **fields):
    fields = {"estimator": "st", "epochs": EPOCHS, **fields}
    return [Polynomial(seed=seed, **fields) for seed in range(count)]


def train(runs, store, **options):
    stacks = {"make_stack": fake(), "bytes_per_member": lambda run: 1}
    stacks |= {name: options.pop(name) for name in StackOptions._fields if name in options}
    return execute(runs, store, stacks=StackOptions(**stacks), **options)


class Record(Listener):
    """Keeps every event; does something the first time that an epoch is over."""

    def __init__(self, **after):
        self.events = []
        self.after = {int(epoch.removeprefix("epoch")): call for epoch, call in after.items()}

    def planned(self, done, to_do):
        self.events.append(("planned", len(done), len(to_do)))

    def run_damaged(self, run, reason):
        self.events.append(("damaged", run))

    def run_elsewhere(self, run):
        self.events.append(("elsewhere", run))

    def stack_started(self, runs, epoch, epochs, steps_per_epoch):
        assert (epochs, steps_per_epoch) == (runs[0].epochs, 10)
        self.events.append(("started", len(runs), epoch))
        self.runs = runs

    def epoch_done(self, epoch, metrics, seconds):
        assert seconds > 0
        assert [len(values) for values in metrics.values()] == [len(self.runs)] * 2
        self.events.append(("epoch", epoch))
        self.after.pop(epoch, lambda: None)()

    def checkpointed(self, epoch, seconds):
        assert seconds >= 0
        self.events.append(("checkpoint", epoch))

    def stack_finished(self, runs, epoch):
        self.events.append(("finished", len(runs), epoch))

    def only(self, *kinds):
        return [event for event in self.events if event[0] in kinds]


def interrupt():
    signal.raise_signal(signal.SIGINT)


def results(store, runs):
    """Everything that must not depend on how often training was interrupted."""
    found = {}
    for run in runs:
        saved = store.load(run)
        assert saved.status.done
        assert [row["epoch"] for row in saved.metrics] == list(range(1, run.epochs + 1))
        state = {name: x.numpy().tobytes() for name, x in saved.state.items()}
        found[run] = (saved.status.state, saved.status.diverged_step, repr(saved.metrics), state)
    return found


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A busy disk takes long to make things last, which is the subject of test_lab_store.py."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def no_listener_fails(caplog):
    """What a listener raises, an assertion of this file among it, is only a warning."""
    yield
    warned = [x.message for x in caplog.get_records("call") if x.name.endswith("runs.listener")]
    assert warned == []


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@pytest.fixture
def ends_well(store, tmp_path):
    """Runs are trained to their end, and that is the one of training without any interruption."""

    def ends_well(runs):
        whole = Store(tmp_path / "uninterrupted")
        for place in (Store(store.root), whole):
            assert train(runs, place).complete
        assert results(store, runs) == results(whole, runs)

    return ends_well


# without interruption


def test_runs_are_trained_and_stored(store):
    runs = [*runs_of(3), *runs_of(2, latents=64)]
    record = Record()
    outcome = train([*runs, runs[0]], store, listener=record)
    assert outcome.finished == tuple(runs)
    assert outcome.complete
    assert record.only("planned", "started", "finished") == [
        ("planned", 0, 5),
        ("started", 3, 0),
        ("finished", 3, EPOCHS),
        ("started", 2, 0),
        ("finished", 2, EPOCHS),
    ]
    assert record.only("epoch") == 2 * [("epoch", epoch) for epoch in range(1, EPOCHS + 1)]
    # cheap checkpoints are seldom all the same
    assert record.only("checkpoint") == 2 * [("checkpoint", EPOCHS)]
    saved = store.load(runs[0])
    (here,) = saved.environment
    assert (here["members"], here["from_epoch"], here["precision"]) == (3, 0, "float32")
    assert saved.status.seconds > 0
    # the stack has its own order of members
    stack = FakeStack(runs[:3], None, None)
    first = stack.advance()
    number = stack.runs.index(runs[0])
    assert saved.metrics[0] == {"epoch": 1, **{name: x[number] for name, x in first.items()}}


def test_nothing_is_trained_twice(store):
    runs = runs_of(3)
    train(runs[:2], store)
    before = tree(store.root)
    record = Record()
    outcome = train(runs, store, listener=record)
    assert (outcome.already, outcome.finished) == (tuple(runs[:2]), (runs[2],))
    assert record.only("planned", "started") == [("planned", 2, 1), ("started", 1, 0)]
    assert before.items() <= tree(store.root).items()
    # a store that is done can be on a disk that cannot be written
    after = tree(store.root)
    assert train(runs, store, make_stack=None).already == tuple(runs)
    assert tree(store.root) == after


def test_a_diverged_run_is_done(store):
    runs = [*runs_of(2), replace(runs_of(1)[0], tau=DIVERGES)]
    outcome = train(runs, store)
    assert (outcome.diverged, outcome.finished) == ((runs[2],), tuple(runs[:2]))
    assert outcome.complete
    assert store.status(runs[2]).state == "diverged"
    assert store.load(runs[2]).status.diverged_step == 25
    assert math.isnan(store.metrics(runs[2])[-1]["loss"])
    assert train(runs, store).already == tuple(runs)


# killed


def child(root, log, seeds, sleep, largest, start=None, begun=None, at_most=None):
    """What another process does; beyond ``at_most`` epochs it only waits to be killed."""
    torch.set_num_threads(1)
    if start is not None:
        start.wait()

    def each(stack):
        if begun is not None:
            begun.value += 1
            while begun.value > at_most:
                time.sleep(1)

    outcome = train(
        runs_of(seeds),
        Store(root),
        make_stack=fake(log=log, sleep=sleep, each=each),
        checkpoint_every=0,
        largest_stack=largest,
    )
    raise SystemExit(1 if outcome.stopped or outcome.damaged else 0)


@pytest.fixture(scope="module")
def processes():
    """Starts processes quickly: they are copies of one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "torch", "discretegrad_lab.runs.execute"])

    def start(*arguments):
        process = context.Process(
            target=runpy.run_path, args=(__file__, {"ARGUMENTS": arguments}, "child")
        )
        process.start()
        return process

    start.context = context
    return start


def test_killed_again_and_again(store, tmp_path, ends_well, processes):
    runs, log = runs_of(6), tmp_path / "log"
    chance = random.Random(0)
    for kill in range(12):
        epochs = chance.randint(0, 2)
        begun = processes.context.Value("i", 0)
        process = processes(store.root, log, 6, 0.005, 4, None, begun, epochs)
        # some time after the last epoch has begun, or after it, while it is being saved
        enough = epochs + kill % 2
        while begun.value < enough:
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.join()
    assert not all(store.status(run).done for run in runs)
    assert train(runs, Store(store.root), make_stack=fake(log=log), largest_stack=4).complete
    ends_well(runs)
    # a checkpoint after every epoch, of one stack at a time: little is lost
    epochs = len(log.read_text().splitlines())
    assert 6 * EPOCHS <= epochs <= 6 * EPOCHS + 4 * 12
    assert max(len(store.load(run).environment) for run in runs) > 1


def test_two_processes_share_the_work(store, tmp_path, ends_well, processes):
    runs, log = runs_of(12), tmp_path / "log"
    # neither begins before the other is there
    start = processes.context.Barrier(2)
    both = [processes(store.root, log, 12, 0.01, 2, start) for _ in range(2)]
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    ends_well(runs)
    lines = [line.split() for line in log.read_text().splitlines()]
    epochs = [(identity, epoch) for _, identity, epoch in lines]
    assert len(epochs) == len(set(epochs)) == 12 * EPOCHS
    assert {int(pid) for pid, _, _ in lines} == {process.pid for process in both}


def test_what_another_process_has_is_left_to_it(store, ends_well):
    runs = runs_of(3)
    other = Store(store.root)
    assert other.claim(runs[1])
    record = Record()
    outcome = train(runs, store, listener=record)
    assert outcome.elsewhere == (runs[1],)
    assert outcome.finished == (runs[0], runs[2])
    assert not outcome.complete
    assert record.only("elsewhere") == [("elsewhere", runs[1])]
    other.release(runs[1])
    ends_well(runs)


def train_alone(store, run, epochs):
    """What a process does with a run that it has claimed."""
    stack, metrics = FakeStack([run], None, None), []
    for epoch in range(1, epochs + 1):
        row = {name: values[0] for name, values in stack.advance().items()}
        metrics.append({"epoch": epoch, **row})
    status = Status("finished" if epochs == EPOCHS else "started", epochs, 1.0)
    store.save(run, Saved(status, metrics, [{}], stack.state(0)))


def test_what_another_process_has_advanced_is_planned_again(store, ends_well):
    runs = [*runs_of(1), *runs_of(2, latents=64)]

    def begin_elsewhere():
        other = Store(store.root)
        assert other.claim(runs[1])
        train_alone(other, runs[1], 3)
        other.release(runs[1])

    record = Record(epoch5=begin_elsewhere)
    assert train(runs, store, listener=record).finished == tuple(runs)
    assert record.only("started") == [("started", 1, 0), ("started", 1, 0), ("started", 2, 3)]
    ends_well(runs)


@pytest.mark.parametrize("released", [True, False])
def test_what_another_process_finishes_meanwhile_is_done(store, ends_well, released):
    """Also while it can still not be claimed."""
    runs = runs_of(2)
    other = Store(store.root)
    assert other.claim(runs[1])

    def finish():
        train_alone(other, runs[1], EPOCHS)
        if released:
            other.release(runs[1])

    outcome = train(runs, store, listener=Record(epoch5=finish))
    assert (outcome.finished, outcome.already) == ((runs[0],), (runs[1],))
    assert outcome.complete
    ends_well(runs)


# stopped


def test_signals_stop_cleanly(store, ends_well):
    runs = [*runs_of(3), *runs_of(2, latents=64)]
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    record = Record(epoch3=interrupt)
    outcome = train(runs, store, listener=record)
    assert outcome.stopped == tuple(runs)
    assert (outcome.stopped_by, outcome.complete) == ("SIGINT", False)
    assert [store.status(run).epoch for run in runs] == [3, 3, 3, 0, 0]
    record = Record(epoch6=lambda: signal.raise_signal(signal.SIGTERM))
    outcome = train(runs, store, listener=record)
    assert outcome.stopped_by == "SIGTERM"
    assert record.only("started") == [("started", 3, 3)]
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    ends_well(runs)
    starts = [entry["from_epoch"] for entry in store.load(runs[0]).environment]
    assert starts == [0, 3, 6]


def test_a_terminal_that_is_closed_saves_and_one_that_is_not_there_is_not_missed(store, ends_well):
    def hang_up():
        # the shell does it, and the kernel once more
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)

    runs, before = runs_of(2), signal.getsignal(signal.SIGHUP)
    outcome = train(runs, store, listener=Record(epoch3=hang_up))
    assert (outcome.stopped_by, store.status(runs[0]).epoch) == ("SIGHUP", 3)
    assert signal.getsignal(signal.SIGHUP) == before
    # what nohup does
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(runs, store, listener=Record(epoch5=hang_up)).complete
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    ends_well(runs)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("bad data"), SystemExit(1)])
@pytest.mark.parametrize("event", ["planned", "stack_started", "epoch_done", "stack_finished"])
def test_training_goes_on_without_a_listener_that_fails(store, ends_well, caplog, event, error):
    calls = []

    def fail(*_):
        calls.append(event)
        raise error

    listener = Listener()
    setattr(listener, event, fail)
    runs = [*runs_of(2), *runs_of(1, latents=64)]
    assert train(runs, store, listener=listener).finished == tuple(runs)
    assert calls == [event]
    (warning,) = [x.message for x in caplog.records]
    assert warning == f"training goes on without Listener, got {type(error).__name__}: {error}"
    caplog.clear()
    ends_well(runs)


@pytest.mark.parametrize(("state", "failing", "saved"), [(0.0, 6, 6), (0.005, 5, 4)])
def test_an_error_saves_what_is_trained_first(store, ends_well, monkeypatch, state, failing, saved):
    """Also where the stack is somewhere within an epoch, and an old checkpoint is not enough."""
    runs = runs_of(3)

    def fail(stack):
        if stack.epoch == failing:
            stack.x.fill_(math.nan)
            raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        # a copy that takes long is made less often
        stack = Clock(patch).stack(epoch=2.0, state=state, each=fail)
        with pytest.raises(RuntimeError, match="a bug"):
            train(runs, store, make_stack=stack)
    assert [store.status(run).epoch for run in runs] == [saved] * 3
    assert [store.status(run).seconds for run in runs] == pytest.approx([2.0 * saved] * 3)
    ends_well(runs)


def test_copies_for_the_case_of_an_error_cost_little(store, monkeypatch):
    copies = []
    with monkeypatch.context() as patch:
        clock = Clock(patch)
        stack = clock.stack(epoch=1.0, state=0.05)
        states = stack.states
        stack.states = lambda self: copies.append(self.epoch) or states(self)
        train(runs_of(2, epochs=100), store, make_stack=stack, checkpoint_every=1000.0)
        assert clock.now - 1000.0 <= 100.0 * 1.006 + 0.1 + 0.05
    assert len(copies) > 3


def test_the_first_signal_is_announced_and_a_second_one_stops_at_once(store, ends_well):
    runs, said, record = runs_of(2), [], Record()
    handler = signal.getsignal(signal.SIGINT)

    def announce(name):
        said.append((name, record.events[-1]))
        # the terminal is gone
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def within(stack):
        if stack.epoch == 2:
            interrupt()

    options = {"listener": record, "announce": announce}
    assert train(runs, store, make_stack=fake(each=within), **options).stopped_by == "SIGINT"
    assert said == [("SIGINT", ("epoch", 2))]
    assert store.status(runs[0]).epoch == 3

    def twice(stack):
        signal.raise_signal(signal.SIGTERM)
        interrupt()

    said.clear()
    with pytest.raises(KeyboardInterrupt):
        train(runs, store, make_stack=fake(each=twice), **options)
    assert [name for name, _ in said] == ["SIGTERM"]
    assert signal.getsignal(signal.SIGINT) == handler
    # and gives everything free
    ends_well(runs)


def test_other_threads_do_without_signals(store):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(train(runs_of(2), store)))
    thread.start()
    thread.join()
    assert outcomes[0].complete


class Clock:
    """A time that passes only when something takes time."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        times = SimpleNamespace(perf_counter=lambda: self.now, thread_time=lambda: 0.0)
        monkeypatch.setattr(module, "time", times)
        monkeypatch.setattr(checkpoints, "time", times)
        start = checkpoints.Writer.start

        def start_and_settle(writer, *arguments):
            start(writer, *arguments)
            writer.settle()

        monkeypatch.setattr(checkpoints.Writer, "start", start_and_settle)

    def stack(self, epoch=10.0, state=0.0, building=0.0, **options):
        clock = self

        class Timed(FakeStack):
            def __init__(self, *arguments):
                clock.now += building
                super().__init__(*arguments, **options)

            def step(self):
                seconds = epoch(self.epoch) if callable(epoch) else epoch
                clock.now += seconds / self.steps_per_epoch

            def state(self, member):
                clock.now += state
                return super().state(member)

        return Timed


@pytest.mark.parametrize("budget", [5.0, 12.0, 35.0, 61.0, 85.0])
def test_the_budget_is_kept(store, ends_well, monkeypatch, budget):
    runs = runs_of(3)
    with monkeypatch.context() as patch:
        clock = Clock(patch)
        outcome = train(runs, store, make_stack=clock.stack(), budget=budget)
        used = clock.now - 1000.0
    assert used <= budget
    assert used + 10.0 * 1.2 + 1 > budget or outcome.complete
    assert outcome.complete == (budget > 80)
    assert outcome.stopped_by == (None if outcome.complete else "budget")
    # nobody knows how long the first epoch takes
    assert outcome.abandoned == (budget < 10)
    assert store.status(runs[0]).epoch == used // 10
    ends_well(runs)


@pytest.mark.parametrize("every", [0, 1000.0], ids=["saved", "not saved"])
def test_what_is_not_saved_is_not_given_up(store, ends_well, monkeypatch, every):
    runs = runs_of(2)
    with monkeypatch.context() as patch:
        clock = Clock(patch)
        # the second epoch takes longer than the first one lets expect
        stack = clock.stack(epoch=lambda epoch: 40.0 if epoch else 10.0)
        outcome = train(runs, store, make_stack=stack, budget=30.0, checkpoint_every=every)
        used = clock.now - 1000.0
    assert outcome.stopped_by == "budget"
    assert (outcome.abandoned, used) == ((True, 30.0) if every == 0 else (False, 50.0))
    assert store.status(runs[0]).epoch == (1 if every == 0 else 2)
    ends_well(runs)


def test_after_a_signal_an_epoch_is_finished_beyond_the_budget(store, monkeypatch):
    runs = runs_of(2)
    stack = Clock(monkeypatch).stack(each=lambda stack: interrupt())
    outcome = train(runs, store, make_stack=stack, budget=5.0)
    assert (outcome.stopped_by, outcome.abandoned) == ("SIGINT", False)
    assert store.status(runs[0]).epoch == 1


@pytest.mark.parametrize("budget", range(75, 200, 11))
def test_the_budget_counts_checkpoints_and_slow_epochs(store, monkeypatch, budget):
    clock = Clock(monkeypatch)
    # the first epoch compiles, every third one evaluates; a checkpoint takes 6 s
    seconds = lambda epoch: 60.0 if epoch == 0 else 12.0 if epoch % 3 == 0 else 2.0  # noqa: E731
    stack = clock.stack(epoch=seconds, state=1.5)
    outcome = train(runs_of(4, epochs=50), store, make_stack=stack, budget=budget)
    assert outcome.stopped_by == "budget"
    # who knows nothing but the first epoch expects another one like it
    least = 67.5 if budget < 146 else budget - 24.0
    assert least <= clock.now - 1000.0 <= budget


def test_a_spent_budget_starts_nothing(store, monkeypatch):
    clock = Clock(monkeypatch)
    runs = [*runs_of(1), *runs_of(1, latents=64)]
    stack = clock.stack(building=6.0)
    record = Record()
    # the second stack could be built, but not in time
    outcome = train(runs, store, make_stack=stack, budget=91.0, listener=record)
    assert (outcome.finished, outcome.stopped) == ((runs[0],), (runs[1],))
    assert outcome.stopped_by == "budget"
    assert record.only("started") == [("started", 1, 0)]


# checkpoints


def test_checkpoints_cost_little(store, monkeypatch):
    clock = Clock(monkeypatch)
    runs = runs_of(5, epochs=3000)
    record = Record()
    stack = clock.stack(epoch=1.0, state=0.5)
    assert train(runs, store, make_stack=stack, listener=record).complete
    cost = clock.now - 1000.0 - 3000.0
    # besides the first one, the last one, and the look at the size of a state
    assert 0 < cost - 2.5 - 2.5 - 0.5 < 0.02 * 3000.0
    epochs = [epoch for _, epoch in record.only("checkpoint")]
    # as often as that allows
    assert 20 <= len(epochs) <= 25
    assert max(b - a for a, b in itertools.pairwise(epochs)) < 150


@pytest.mark.parametrize(
    ("seconds", "every", "epochs"),
    [(7.0, None, (1, 6, 11, 16, 20)), (2.0, None, (2, 17, 20)), (2.0, 10.0, (5, 10, 15, 20))],
)
def test_the_first_checkpoint_comes_soon_and_others_as_seldom_as_one_likes(
    store, monkeypatch, seconds, every, epochs
):
    record = Record()
    stack = Clock(monkeypatch).stack(epoch=seconds)
    options = {"make_stack": stack, "listener": record, "checkpoint_every": every}
    train(runs_of(2, epochs=20), store, **options)
    assert record.only("checkpoint") == [("checkpoint", epoch) for epoch in epochs]


def test_a_checkpoint_after_every_epoch(store):
    # not twice when it stops
    record = Record(epoch2=interrupt)
    train(runs_of(2, latents=64), store, listener=record, checkpoint_every=0)
    assert record.only("checkpoint") == [("checkpoint", 1), ("checkpoint", 2)]


def test_training_goes_on_while_checkpoints_are_written(store, monkeypatch):
    """A slow disk holds up neither the next epoch nor the next stack."""
    reached = threading.Event()
    save = Store.save
    waited = []

    def slow(self, run, saved):
        if saved.status.epoch == EPOCHS and run.latents == 128:
            waited.append(reached.wait(30))
        save(self, run, saved)

    monkeypatch.setattr(Store, "save", slow)
    runs = [*runs_of(2), *runs_of(2, latents=64)]
    seen = []

    def second_stack(stack):
        if stack.runs[0].latents == 64 and stack.epoch == 3:
            seen.append(store.status(runs[0]).state)
            reached.set()

    assert train(runs, store, make_stack=fake(each=second_stack)).complete
    assert waited == [True, True]
    assert seen == ["new"]
    assert [store.status(run).state for run in runs] == 4 * ["finished"]


def test_a_checkpoint_is_of_its_epoch(store, monkeypatch):
    """However long it takes to write."""
    done = [threading.Event() for _ in range(EPOCHS + 2)]
    done[-1].set()
    save = Store.save
    saved = []

    def slow(self, run, contents):
        assert done[contents.status.epoch + 1].wait(30)
        saved.append((contents.status.epoch, len(contents.metrics), contents.state["x"].clone()))
        save(self, run, contents)

    monkeypatch.setattr(Store, "save", slow)
    (run,) = runs_of(1)
    record = Record(**{f"epoch{e}": done[e].set for e in range(1, EPOCHS + 1)})
    assert train([run], store, listener=record, checkpoint_every=0).complete
    stack = FakeStack([run], None, None)
    for number, (epoch, rows, x) in enumerate(saved, 1):
        stack.advance()
        assert (epoch, rows) == (number, number)
        assert torch.equal(x, stack.x[0])
    assert len(saved) == EPOCHS


# stacks


@pytest.mark.parametrize(
    ("options", "free", "sizes"),
    [
        ({}, 10**9, [10]),
        ({"largest_stack": 4}, 10**9, [4, 3, 3]),
        ({"largest_stack": 100}, 10**9, [10]),
        # half of the free memory may be used
        ({"bytes_per_member": lambda run: 100}, 1400, [5, 5]),
        ({"bytes_per_member": lambda run: 100}, 99, [1] * 10),
        # seeds are in no order here, so the large ones may be anywhere
        ({"bytes_per_member": lambda run: 1000 if run.tau > 1 else 1}, 2000, [5, 1, 1, 1, 1, 1]),
        # claims leave files to open
        ({"claims": 4}, 10**9, [4, 3, 3]),
    ],
)
def test_stacks_fit(store, monkeypatch, options, free, sizes):
    most = options.pop("claims", None) or plan._most_claims()
    monkeypatch.setattr(plan, "_most_claims", lambda: most)
    monkeypatch.setattr(plan, "free_memory", lambda device: free)
    runs = [replace(run, tau=1.0 + run.seed % 2) for run in runs_of(10)]
    record = Record()
    assert train(runs, store, listener=record, **options).complete
    assert [size for _, size, _ in record.only("started")] == sizes


def no_memory_on_a_gpu():
    raise torch.OutOfMemoryError


def no_memory_for_python():
    raise MemoryError


def no_memory_on_a_cpu():
    torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize("refuse", [no_memory_on_a_gpu, no_memory_on_a_cpu, no_memory_for_python])
def test_stacks_shrink_when_memory_ends(store, ends_well, refuse):
    runs = runs_of(8)
    sizes = []

    def greedy(stack):
        if len(stack.runs) > 2 and stack.epoch == 3:
            refuse()
        if stack.epoch == 0:
            sizes.append(len(stack.runs))

    assert train(runs, store, make_stack=fake(each=greedy), checkpoint_every=0).complete
    assert sizes[0] == 8
    ends_well(runs)

    with pytest.raises(torch.OutOfMemoryError):
        train(runs_of(3, latents=64), store, make_stack=fake(each=lambda stack: refuse()))


def test_those_behind_catch_up_and_join(store, ends_well):
    runs = runs_of(6)
    train(runs[:3], store, listener=Record(epoch5=interrupt))
    train(runs[3:4], store, listener=Record(epoch2=interrupt))
    record = Record()
    assert train(runs, store, listener=record).complete
    assert record.only("started", "finished") == [
        ("started", 2, 0),
        ("finished", 2, 2),
        ("started", 3, 2),
        ("finished", 3, 5),
        ("started", 6, 5),
        ("finished", 6, EPOCHS),
    ]
    ends_well(runs)


def test_stacks_do_not_depend_on_the_order_of_the_runs(tmp_path):
    runs = runs_of(7)
    stacks = []
    note = fake(each=lambda stack: stacks.append({*stack.runs}))
    for number, order in enumerate((runs, runs[::-1])):
        train(order, Store(tmp_path / str(number)), largest_stack=3, make_stack=note)
    assert len(stacks) == 2 * 3 * EPOCHS
    assert stacks[: 3 * EPOCHS] == stacks[3 * EPOCHS :]


# damage and refusals


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("stop", [5, EPOCHS], ids=["started", "finished"])
@pytest.mark.parametrize("kind", ["checkpoint", "metrics", "environment", "config", "status"])
def test_a_damaged_run_is_left_alone(store, ends_well, stop, kind):
    runs = runs_of(3)
    train(runs, store, listener=Record(**{f"epoch{stop}": interrupt}))
    (path,) = store.directory(runs[1]).glob(f"{kind}*")
    damage(path)
    before = tree(store.directory(runs[1]))
    record = Record()
    outcome = train(runs, store, listener=record)
    assert list(outcome.damaged) == [runs[1]]
    assert path.name in outcome.damaged[runs[1]]
    assert record.only("damaged") == [("damaged", runs[1])]
    assert outcome.finished + outcome.already == (runs[0], runs[2])
    assert not outcome.complete
    assert tree(store.directory(runs[1])) == before
    ends_well(runs[::2])


@pytest.mark.parametrize("how", [damage, os.unlink], ids=["content", "missing"])
def test_damage_that_comes_later_is_met_too(store, ends_well, how):
    runs = [*runs_of(1), *runs_of(3, latents=64)]
    train(runs[1:], store, listener=Record(epoch2=interrupt))
    (checkpoint,) = store.directory(runs[2]).glob("checkpoint*")
    # after the look at the beginning; if it has its size it is met when it is loaded
    outcome = train(runs, store, listener=Record(epoch1=lambda: how(checkpoint)))
    assert list(outcome.damaged) == [runs[2]]
    others = [run for run in runs if run != runs[2]]
    assert outcome.finished == tuple(others)
    ends_well(others)


@pytest.mark.parametrize("every", [0, None], ids=["checkpoints", "end"])
def test_damage_below_a_running_stack(store, ends_well, every):
    runs = runs_of(3)
    train(runs, store, listener=Record(epoch2=interrupt))

    def damage_status():
        # not while it is being replaced
        while store.status(runs[1]).epoch < (2 if every is None else 3):
            time.sleep(0.001)
        damage(store.directory(runs[1]) / "status.json")

    record = Record(epoch4=damage_status)
    outcome = train(runs, store, listener=record, checkpoint_every=every)
    assert list(outcome.damaged) == [runs[1]]
    assert record.only("damaged") == [("damaged", runs[1])]
    assert outcome.finished == (runs[0], runs[2])
    ends_well(runs[::2])
    assert Store(store.root).claim(runs[1])


@pytest.mark.parametrize("every", [0, None], ids=["checkpoints", "end"])
def test_a_full_disk(store, ends_well, monkeypatch, every):
    runs = [*runs_of(4), *runs_of(2, latents=64)]
    handler = signal.getsignal(signal.SIGINT)
    calls = iter(range(10**6))

    def fsync(descriptor):
        if next(calls) > 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError, match=r"No space left on device; free some space") as caught:
            train(runs, store, checkpoint_every=every)
    assert "\n" not in str(caught.value)
    assert signal.getsignal(signal.SIGINT) == handler
    assert not [path for path in store.root.rglob("*") if path.suffix in (".tmp", ".new")]
    assert {store.status(run).state for run in runs} <= {"new", "started", "finished"}
    ends_well(runs)


@pytest.mark.parametrize("whose", ["wanted", "another", "of another hash", "of a new task"])
def test_a_newer_store_is_refused(store, whose):
    runs = runs_of(3)
    train(runs[:1], store)
    directory = store.directory(runs[0])
    status = json.loads((directory / "status.json").read_text()) | {"format": disk.FORMAT + 1}
    del status["sha256"]
    (directory / "status.json").write_bytes(files.dump(files.sealed(status)))
    if whose == "of another hash":
        directory.rename(directory.with_name("0123456789abcdef"))
    elif whose == "of a new task":
        directory.parent.rename(store.root / "new")
    before = tree(store.root)
    for call in (train, estimate):
        with pytest.raises(NewerStore, match="install the discretegrad that wrote it"):
            call(runs[::-1] if whose == "wanted" else runs[1:], store)
    assert tree(store.root) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": math.nan}, "positive number of seconds as budget, got nan"),
        ({"largest_stack": 0}, "positive whole number as largest_stack, got 0"),
        ({"checkpoint_every": -1}, "seconds as checkpoint_every, got -1"),
        ({"device": "abacus"}, "a device such as cpu or cuda:0, got 'abacus'"),
        ({"device": "mps"}, "the device cpu or cuda, got mps"),
        ({"device": "cuda:99"}, r"got cuda:99, and torch .* finds .* GPU"),
    ],
)
def test_bad_arguments(store, options, message):
    with pytest.raises(ValueError, match=message):
        train(runs_of(1), store, **options)
    assert not store.root.exists()


# estimates


def test_an_estimate_without_experience(store):
    runs = [*runs_of(5), *runs_of(2, latents=64)]
    found = estimate(runs, store, largest_stack=3, bytes_per_member=lambda run: 10)
    assert [len(stack.runs) for stack in found.stacks] == [3, 2, 2]
    assert (found.members, found.bytes, found.seconds) == (7, 30, None)
    assert found.steps == 3 * EPOCHS * 200
    assert not store.root.exists()
    assert estimate([], store).seconds == 0


def test_an_estimate_with_experience(store, monkeypatch):
    runs = runs_of(8)
    with monkeypatch.context() as patch:
        stack = Clock(patch).stack(epoch=10.0)
        train(runs[:2], store, make_stack=stack)
        train(runs[2:4], store, make_stack=stack, listener=Record(epoch5=interrupt))
        assert store.status(runs[2]).seconds == 50.0
    before = tree(store.root)
    found = estimate(runs, store, bytes_per_member=lambda run: 10)
    assert found.done == tuple(runs[:2])
    assert [(len(stack.runs), stack.epoch) for stack in found.stacks] == [(4, 0), (2, 5)]
    # twice as many members as were seen take twice the time
    assert [stack.seconds for stack in found.stacks] == [2 * 10.0 * EPOCHS, 10.0 * 3]
    assert found.seconds == 190.0
    assert found.steps == 200 * (EPOCHS + 3)
    assert tree(store.root) == before
    # another device says nothing about this one
    monkeypatch.setattr(plan, "device_name", lambda device: "abacus")
    assert estimate(runs, store, bytes_per_member=lambda run: 10).seconds is None


def test_an_estimate_counts_what_each_estimator_took(store, monkeypatch):
    def of(**counts):
        return [run for name, count in counts.items() for run in runs_of(count, estimator=name)]

    def seconds(**counts):
        (stack,) = estimate(of(**counts), Store(store.root), bytes_per_member=lambda run: 1).stacks
        return stack.seconds and stack.seconds / EPOCHS

    def trained(first, epoch, **counts):
        """In one stack, from a seed on that no estimate asks for."""
        with monkeypatch.context() as patch:
            runs = [replace(run, seed=run.seed + first) for run in of(**counts)]
            assert train(runs, store, make_stack=Clock(patch).stack(epoch=epoch)).complete

    trained(1000, 10.0, exact=4)
    assert seconds(exact=2) == 10.0
    assert seconds(exact=8) == 20.0
    # a cheap one says nothing about the others
    assert seconds(exact=2, st=1) is None
    trained(1000, 400.0, st=1, reinmax=1)
    assert seconds(exact=2, st=1) == 410.0
    # what was trained together counts once
    assert seconds(exact=8, st=2, reinmax=4) == 2 * 10.0 + 3 * 400.0


# the real trainer


one_thread = pytest.fixture(oracles.one_thread)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("saved", [0, 2])
def test_the_real_stack_goes_on_exactly(store, tmp_path, monkeypatch, saved):
    """After an epoch that was given up."""
    small = {"epochs": 4, "steps_per_epoch": 5, "latents": 6, "batch": 8, "draws": 10}
    runs = [
        Polynomial(estimator=name, seed=seed, **small)
        for name in ("reinmax", "rodeo", "exact", "gr-mck")
        for seed in range(2)
    ]
    whole = Store(tmp_path / "whole")
    assert execute(runs, whole).complete
    with monkeypatch.context() as patch:
        clock = Clock(patch)

        def slow(*arguments):
            stack = make_stack(*arguments)
            step = stack._train

            def slow_step():
                clock.now += 1.0 if stack.epoch < saved else 100.0
                step()

            stack._train = slow_step
            return stack

        stacks = StackOptions(make_stack=slow, checkpoint_every=0)
        outcome = execute(runs, store, stacks=stacks, budget=150.0)
    assert outcome.abandoned
    assert [store.status(run).epoch for run in runs] == [saved] * len(runs)
    assert execute(runs, store).finished == tuple(runs)
    assert results(store, runs) == results(whole, runs)


# the environment


@pytest.fixture
def fresh(monkeypatch):
    """Nothing is remembered from before."""
    monkeypatch.setattr(environment, "_commit", environment._commit.__wrapped__)


def test_the_environment(fresh):
    found = environment.describe("cpu", tf32=True)
    assert json.loads(json.dumps(found)) == found
    assert (found["torch"], found["precision"]) == (str(torch.__version__), "float32")
    assert str(Path(__file__).parents[1]) not in json.dumps(found)
    commit = environment._git(Path(__file__).parent, "rev-parse", "HEAD")
    assert commit is None or found["commit"] == commit


def test_a_copy_has_a_hash_and_its_commit_is_told_by_a_variable(fresh, monkeypatch, tmp_path):
    # an installation below a repository that does not have its files
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(environment, "_PACKAGES", (tmp_path, tmp_path))
    before = environment.source.__wrapped__()
    (tmp_path / "__init__.py").touch()
    assert environment.source.__wrapped__() != before
    monkeypatch.delenv(environment.COMMIT, raising=False)
    assert environment._commit() == (None, None)
    monkeypatch.setenv(environment.COMMIT, "cafe")
    assert environment._commit() == ("cafe", None)


VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
NONE = 9223372036854771712


@pytest.mark.parametrize(
    ("listed", "version", "limits", "left"),
    [
        ("0::/", VERSION_2, {"": (5000, 2000, 0)}, 3000),
        # the group of a container, which has another name outside
        ("4:memory:/docker/12ab", VERSION_1, {"memory": (5000, 2000, 0)}, 3000),
        ("0::/../../init", VERSION_2, {"": (5000, 2000, 0)}, 3000),
        # a group within one with a limit, and the cache of files can be had
        ("0::/a/b", VERSION_2, {"": ("max", 1, 0), "a": (5000, 2000, 0)}, 3000),
        ("4:memory:/a", VERSION_1, {"memory": (NONE, 1, 0), "memory/a": (900, 800, 300)}, 400),
        ("0::/a", VERSION_2, {"a": (900, 800, 300)}, 400),
        ("0::/a", VERSION_2, {"a": (900, 950, 0)}, 0),
        ("no list", VERSION_1, {"memory": ("no number", 1, 0)}, None),
    ],
)
def test_free_memory_is_what_control_groups_leave(
    monkeypatch, tmp_path, listed, version, limits, left
):
    whole = environment.free_memory("cpu")
    assert whole > 1 << 26
    for name, values in limits.items():
        (tmp_path / name).mkdir(exist_ok=True, parents=True)
        for file, value in zip(version[:2], values, strict=False):
            (tmp_path / name / file).write_text(f"{value}\n")
        text = f"active_file 7\n{version[2]} {values[2]}\n"
        (tmp_path / name / "memory.stat").write_text(text)
    (tmp_path / "listed").write_text(f"1:cpu,cpuacct:/x\n{listed}\n")
    monkeypatch.setattr(environment, "_CONTAINER", tmp_path)
    monkeypatch.setattr(environment, "_GROUPS", tmp_path / "listed")
    found = environment.free_memory("cpu")
    assert found == left if left is not None else found > 1 << 26


if __name__ == "child":
    child(*ARGUMENTS)  # noqa: F821
