"""Plans of many runs: what is trained together, and that the cost of planning is not quadratic."""

import random
import sys
from dataclasses import replace

import pytest

from discretegrad_lab.cli import plan as plan_command
from discretegrad_lab.runs.execute import _Work, execute
from discretegrad_lab.runs.options import StackOptions
from discretegrad_lab.runs.pending import Group, Pending, look
from discretegrad_lab.runs.plan import estimate
from discretegrad_lab.runs.store import Store
from discretegrad_lab.stack.lines import Line
from discretegrad_lab.tasks.polynomial.config import Polynomial

RUN = Polynomial(estimator="reinmax", latents=2, batch=2, steps_per_epoch=1, epochs=1)
# what sorts runs and puts them into stacks, and the generated methods of runs
PLANNING = ("pending.py", "plan.py", "execute.py", "config.py", "<string>")


def seeds(count, run=RUN):
    return [replace(run, seed=seed) for seed in range(count)]


def calls(function):
    """How many functions of the planning a function calls."""
    count = 0

    def note(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.endswith(PLANNING)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("what", ["one key", "a key each", "executed"])
def test_four_times_the_runs_take_four_times_the_work(tmp_path, monkeypatch, what):
    """One by one, which is the most stacks there can be."""

    def train_nothing(work):
        work.pending.pop(*work.held)

    monkeypatch.setattr(_Work, "_train", train_nothing)

    def plan(count):
        runs = seeds(count)
        if what == "a key each":
            runs = [replace(run, epochs=1 + run.seed) for run in runs]
        store = Store(tmp_path / str(count))
        if what == "executed":
            return lambda: execute(runs, store, stacks=StackOptions(1))
        return lambda: estimate(runs, store, largest_stack=1)

    # what is imported and cached once
    plan(2)()
    assert calls(plan(200)) < 5 * calls(plan(50))


def test_groups_are_those_of_a_search_through_all_runs():
    """Whatever is trained, found done or with others, in any order."""
    chance = random.Random(0)
    runs = [
        replace(run, tau=tau, epochs=e) for run in seeds(4) for tau in (0.5, 1.0) for e in (5, 6)
    ]
    pending = Pending()
    for _ in range(700):
        run = chance.choice(runs)
        action = chance.choice(["set", "set", "set", "delete", "aside", "back"])
        if action == "set":
            pending[run] = chance.randrange(3)
        elif action == "back" and chance.random() < 0.3:
            pending.put_back()
        elif action in ("delete", "aside") and run in pending:
            pending.set_aside(run) if action == "aside" else pending.pop(run)
        here = {run: epoch for run, epoch in pending.items() if run not in pending.aside}
        group = pending.group()
        assert bool(group) == bool(here)
        key = next((run.stack_key for run in group), None)
        same = {run: epoch for run, epoch in here.items() if run.stack_key == key}
        first = [run for run, epoch in same.items() if epoch == min(same.values())]
        assert list(group) == sorted(first, key=lambda run: (run.tau, run.identity))
        assert len(group) == len(first)
        for run, epoch in here.items():
            others = (e for x, e in here.items() if x.stack_key == run.stack_key and e > epoch)
            assert pending.joins(run, epoch) == min(others, default=run.epochs)


def test_runs_may_leave_a_group_while_others_go_through_it():
    runs, group = seeds(4), Group()
    for run in runs:
        group.add(run)
    order = list(group)
    seen = []
    for run in group:
        seen.append(run)
        group.discard(run)
        group.discard(order[2])
    assert seen == [order[0], order[1], order[3]]
    assert not group
    assert list(group) == []


def test_runs_share_a_stack_if_all_but_the_fields_of_members_are_equal():
    line = Line("GST-2", "gapped", gap=2.0)
    for change in ({"seed": 1}, {"tau": 0.5}, {"estimator": line}, {"clip_norm": 1.0}):
        assert replace(RUN, **change).stack_key == RUN.stack_key
    for change in ({"epochs": 2}, {"draws": 7}, {"tf32": True}, {"latents": 3}):
        assert replace(RUN, **change).stack_key != RUN.stack_key


@pytest.mark.parametrize("trouble", ["none", "a file in its place"])
def test_a_look_asks_only_for_runs_that_are_stored(tmp_path, monkeypatch, trouble):
    """Unless the folder cannot be listed: then what is wrong is said as it was before."""
    runs, store = seeds(6), Store(tmp_path)
    execute(runs[:2], store)
    if trouble != "none":
        (tmp_path / RUN.task).rename(tmp_path / "away")
        (tmp_path / RUN.task).touch()
    asked, status = [], Store.status
    monkeypatch.setattr(
        Store, "status", lambda self, run, **options: (asked.append(run), status(self, run))[1]
    )
    try:
        looked = look([*runs, *runs], store)
    except OSError:
        assert trouble != "none"
    else:
        assert list(looked.runs) == runs
        assert (list(looked.done), list(looked.pending)) == (runs[:2], runs[2:])
    assert asked == runs[: 2 if trouble == "none" else 1]


def test_long_planning_says_how_far_it_is(capsys, monkeypatch):
    assert list(plan_command.announced([1, 2, 3])) == [1, 2, 3]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(plan_command, "_EVERY", 0.0)
    assert list(plan_command.announced([1, 2])) == [1, 2]
    assert capsys.readouterr().err == "looked at 0 of 2 runs\nlooked at 1 of 2 runs\n"
    # a closed one is no reason to stop
    monkeypatch.setattr(sys, "stderr", None)
    assert list(plan_command.announced([1, 2])) == [1, 2]
