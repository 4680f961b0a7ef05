"""The Ray engine: a local cluster of two workers, and what happens when one of them dies."""

import logging
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from discretegrad_lab import tasks
from discretegrad_lab.runs import cluster, connection, jobs, worker
from discretegrad_lab.runs.desk import Desk
from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.listener import Listener, Outcome
from discretegrad_lab.runs.options import StackOptions
from discretegrad_lab.runs.store import DamagedRun, Store, StoreError
from discretegrad_lab.tasks import base
from discretegrad_lab.tasks.data import DataError
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.vae.config import Vae

HERE = str(Path(__file__).parent)
RUN = Polynomial(estimator="reinmax", latents=4, batch=4, steps_per_epoch=10, epochs=8)
# nobody waits for its end
LONG = replace(RUN, epochs=20_000)
ALONE, PAIRS = StackOptions(1), StackOptions(2)


def seeds(run, count):
    return [replace(run, seed=seed) for seed in range(count)]


class Notes(Listener):
    """Keeps what it is told, and calls a function with every event."""

    def __init__(self, react=lambda name, arguments: None):
        self.events, self.react = [], react

    def named(self, name):
        return [arguments for found, arguments in self.events if found == name]

    @property
    def stacks(self):
        """In the order of their starts."""
        return list(dict.fromkeys(stack for stack, *_ in self.named("stack_started")))

    @property
    def present(self):
        return self.named("stack_started")[-1][0]

    def note(self, name, *arguments):
        self.events.append((name, arguments))
        self.react(name, arguments)


for name in vars(Listener):
    if not name.startswith("_"):
        setattr(Notes, name, partialmethod(Notes.note, name))


@pytest.fixture(scope="module")
def ray():
    """A cluster with two workers, which ``cluster.execute`` finds since this process has it."""
    ray = pytest.importorskip("ray")
    # sockets have short names
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with connection.connected(ray, None, num_cpus=2, _temp_dir=place):
            assert signal.getsignal(signal.SIGTERM) == handler
            yield ray
        assert not ray.is_initialized()
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def processes(caplog):
    """The processes that have begun a stack so far, or the one of this number, in this order."""
    caplog.set_level(logging.INFO, logger=cluster.__name__)

    def found(number=None):
        starts = [record.args for record in caplog.records if record.name == cluster.__name__]
        return [process for process, _, stack, *_ in starts if number in (None, stack)]

    return found


def train_here(runs, root, **options):
    """What the local engine makes of it."""
    threads = torch.get_num_threads()
    # as Ray does for a task with one core
    torch.set_num_threads(1)
    try:
        assert execute(runs, Store(root), **options).finished == tuple(runs)
    finally:
        torch.set_num_threads(threads)


def lasting(seconds, root):
    """A run that takes about so long, on a machine as busy as it is now."""
    train_here([RUN], root)
    epoch = Store(root).status(RUN).seconds / RUN.epochs
    return replace(RUN, epochs=RUN.epochs + int(seconds / epoch))


def assert_equal(runs, root, other):
    """All that is stored of them is the same, bit for bit."""
    for run in runs:
        ours, theirs = Store(root).load(run), Store(other).load(run)
        assert ours.status.state == theirs.status.state == "finished"
        assert ours.metrics == theirs.metrics
        assert ours.state.keys() == theirs.state.keys()
        for name, tensor in theirs.state.items():
            assert torch.equal(ours.state[name], tensor), (run, name)


def assert_in_order(notes):
    """Every event belongs to the stack that was announced last, and no epoch is left out."""
    present, epochs = None, {}
    for name, arguments in notes.events:
        if name == "stack_started":
            present = arguments[0]
            assert arguments[1] == epochs.setdefault(present, arguments[1])
        elif name == "epoch_done":
            epochs[present] += 1
            assert arguments[0] == epochs[present]
            assert all(len(values) == len(present) for values in arguments[1].values())
        elif name == "stack_finished":
            assert arguments == (present, epochs[present])


# with a cluster


def test_it_ends_as_the_local_engine_does(ray, tmp_path, processes):
    runs = [replace(run, estimator=e) for e in ("reinmax", "st") for run in seeds(RUN, 4)]
    train_here(runs, tmp_path / "here", stacks=PAIRS)
    notes = Notes()
    outcome = cluster.execute(runs, tmp_path / "there", stacks=PAIRS, listener=notes)
    assert outcome == Outcome(finished=tuple(runs))
    assert_equal(runs, tmp_path / "there", tmp_path / "here")
    assert notes.events[0] == ("planned", ((), dict.fromkeys(runs, RUN.epochs)))
    assert_in_order(notes)
    ended = notes.named("stack_finished")
    assert Counter(run for stack, _ in ended for run in stack) == Counter(runs)
    assert {(len(stack), epoch) for stack, epoch in ended} == {(2, RUN.epochs)}
    assert len(processes()) == 4
    assert len(set(processes())) == 2

    # nothing is left to do
    notes = Notes()
    outcome = cluster.execute(runs, tmp_path / "there", listener=notes)
    assert outcome == Outcome(already=tuple(runs))
    assert notes.events == [("planned", (tuple(runs), {}))]
    # neither locks nor what workers look for
    assert list((tmp_path / "there" / ".locks").iterdir()) == []


def test_estimators_and_tasks_of_users_reach_the_workers(ray, tmp_path, monkeypatch):
    page = (Path(HERE).parent / "docs" / "extending-the-lab.md").read_text()
    blocks = re.findall(r'```py title="(.*?)"\n(.*?)```', page, re.DOTALL)
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tasks, "_extra", {})
    monkeypatch.setattr(base, "TASKS", dict(base.TASKS))
    for name in ("my_sweep.py", "my_task.py"):
        (recipe,) = tasks.load_recipes(tmp_path / name)
        runs = recipe.runs(seeds=[0])
        train_here(runs, tmp_path / "here")
        assert cluster.execute(runs, tmp_path / "there") == Outcome(finished=tuple(runs))
        assert_equal(runs, tmp_path / "there", tmp_path / "here")


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_lost_worker_costs_nothing_that_was_saved(ray, tmp_path, processes, number):
    """A killed one, and one that is asked to go, which is what happens if its node is drained."""
    runs = [*seeds(RUN, 2), *seeds(lasting(2.5, tmp_path / "pilot"), 4)]
    train_here(runs, tmp_path / "here", stacks=PAIRS)
    saved = []

    def kill(name, arguments):
        """The worker that has the third stack, so that it has finished one before."""
        if name == "checkpointed" and notes.stacks[2:] == [notes.present]:
            saved.append(arguments[0])
            # the second one begins when the first one is on the disk
            if len(saved) == 2:
                os.kill(processes()[-1], number)

    notes = Notes(kill)
    outcome = cluster.execute(
        runs, tmp_path / "there", stacks=StackOptions(2, checkpoint_every=0.1), listener=notes
    )
    assert outcome == Outcome(finished=tuple(runs))
    assert_equal(runs, tmp_path / "there", tmp_path / "here")
    assert len(processes()) == 4
    # it went on from a checkpoint, and no other run was begun again
    store = Store(tmp_path / "there")
    starts = {run: [one["from_epoch"] for one in store.environment(run)] for run in runs}
    lost = notes.stacks[2]
    assert all(starts[run] == [0] for run in runs if run not in lost)
    assert all(starts[run][0] == 0 and starts[run][1] >= saved[0] for run in lost)
    # a member whose last commit was cut off catches up first, which is a start more
    assert all(len(starts[run]) in (2, 3) for run in lost)


def test_a_stack_that_no_worker_survives_is_given_up(ray, tmp_path, processes, monkeypatch):
    monkeypatch.setattr(cluster, "_RETRIES", 1)
    harmless, deadly = RUN, LONG
    killed = set()

    def kill(name, arguments):
        if name == "epoch_done" and notes.present == (deadly,):
            process = processes(2)[-1]
            # reports of the dead may still come
            if process not in killed:
                killed.add(process)
                os.kill(process, signal.SIGKILL)

    notes = Notes(kill)
    with pytest.raises(connection.ClusterError, match=r"got: The worker died unexpectedly.*; see"):
        cluster.execute([harmless, deadly], tmp_path, listener=notes)
    assert len(killed) == len(processes(2)) == 2
    # the other stack went on
    assert len(processes(1)) == 1
    assert Store(tmp_path).status(harmless).state == "finished"


def test_it_stops_in_time(ray, tmp_path):
    runs = seeds(LONG, 3)
    outcome = cluster.execute(runs, tmp_path, stacks=ALONE, budget=2.0)
    assert outcome == Outcome(stopped=tuple(runs), stopped_by="budget")
    store = Store(tmp_path)
    assert all(store.claim(run) for run in runs)


def test_an_error_of_a_worker_is_raised_here(ray, tmp_path):
    vae = Vae(estimator="st", categories=2, latents=2)
    with pytest.raises(DataError, match=r"mnist.*\(on the node .+\)") as caught:
        cluster.execute([*seeds(LONG, 2), vae], tmp_path, data=tmp_path / "none")
    assert "Traceback" in caught.value.__notes__[0]
    # the others did not go on
    store = Store(tmp_path)
    assert not any(store.status(run).done for run in seeds(LONG, 2))
    assert all(store.claim(run) for run in seeds(LONG, 2))


def test_a_damaged_run_is_left_alone(ray, tmp_path):
    good, bad = seeds(RUN, 2)
    train_here([bad], tmp_path)
    (Store(tmp_path).directory(bad) / "status.json").write_text("{")
    notes = Notes()
    outcome = cluster.execute([bad, good], tmp_path, listener=notes)
    assert outcome.finished == (good,)
    assert list(outcome.damaged) == [bad]
    assert [run for run, _ in notes.named("run_damaged")] == [bad]
    assert notes.named("planned") == [((), {good: RUN.epochs})]


def assert_stopped(epochs, root):
    """The two that were trained are saved as far as they were told, the third has never begun."""
    saved = {run.seed: Store(root).status(run).epoch for run in seeds(LONG, 3)}
    assert saved == {**dict.fromkeys(range(3), 0), **epochs}
    assert len(epochs) == 2
    assert max(saved.values()) < LONG.epochs


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(ray, tmp_path, number):
    runs, epochs = seeds(LONG, 3), {}

    def stop(name, arguments):
        if name == "epoch_done":
            epochs[notes.present[0].seed] = arguments[0]
            if len(epochs) == 2 and not sent:
                sent.append(number)
                signal.raise_signal(number)

    notes, sent = Notes(stop), []
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    outcome = cluster.execute(runs, tmp_path, stacks=ALONE, listener=notes)
    assert outcome == Outcome(stopped=tuple(runs), stopped_by=number.name)
    assert_stopped(epochs, tmp_path)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


DRIVER = """
import sys
from discretegrad_lab.runs import cluster
from discretegrad_lab.runs.listener import Listener
from test_lab_cluster import ALONE, LONG, seeds

class Says(Listener):
    def stack_started(self, runs, *_):
        self.run, = runs

    def epoch_done(self, epoch, metrics, seconds):
        # in one piece: several members say it at once
        print(f"{self.run.seed} {epoch}\\n", end="", flush=True)

runs = seeds(LONG, 3)
outcome = cluster.execute(runs, sys.argv[1], address=sys.argv[2], stacks=ALONE, listener=Says())
print(outcome.stopped == tuple(runs), outcome.stopped_by)
"""


@pytest.mark.slow
def test_a_running_cluster_is_used(ray, tmp_path):
    """From a process of its own, which says nothing by itself and stops when it is asked to."""
    address = ray.get_runtime_context().gcs_address
    driver = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", DRIVER, str(tmp_path), address],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((HERE, f"{HERE}/../src"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    epochs = {}
    try:
        while len(epochs) < 2 and (line := driver.stdout.readline()):
            epochs |= [map(int, line.split())]
        driver.terminate()
        out, err = driver.communicate(timeout=60)
    finally:
        driver.kill()
    *lines, end = out.splitlines()
    assert (end, err, driver.returncode) == ("True SIGTERM", "", 0)
    assert_stopped(epochs | dict(map(int, line.split()) for line in lines), tmp_path)


GONE = """
import os, signal, sys
import ray
from discretegrad_lab.runs import cluster, connection
from test_lab_cluster import ALONE, LONG, Notes

def kill(name, arguments):
    if name == "epoch_done" and not killed:
        processes = ray._private.worker._global_node.all_processes
        killed.append(processes[sys.argv[1]][0].process.pid)
        os.kill(killed[0], signal.SIGKILL)

killed = []
connection._HEAD_AWAY = 2.0
with connection.connected(ray, None, num_cpus=1, _temp_dir=sys.argv[2]):
    try:
        cluster.execute([LONG], sys.argv[2] + "/runs", stacks=ALONE, listener=Notes(kill))
    except connection.ClusterError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "name"), [("raylet", "the raylet of this machine"), ("gcs_server", "the head of")]
)
def test_a_dead_process_of_ray_is_said_in_a_sentence(process, name):
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp", ignore_cleanup_errors=True
    ) as place:
        driver = subprocess.run(
            [sys.executable, "-c", GONE, process, place],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((HERE, f"{HERE}/../src"))},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (driver.returncode, driver.stdout.count("\n")) == (0, 1), driver
        assert f"got: {name}" in driver.stdout
        assert "does not listen at 127.0.0.1:" in driver.stdout
        assert "Traceback" not in driver.stderr


def test_what_ray_raises_is_explained(ray, tmp_path, monkeypatch):
    def die(*_):
        raise ray.exceptions.RayActorError

    monkeypatch.setattr(cluster._Job, "_watch", die)
    with pytest.raises(
        connection.ClusterError, match=r"expected workers that live .*got: The actor"
    ):
        cluster.execute([RUN], tmp_path)


def test_a_cluster_of_its_own_is_reached_from_this_machine_only(ray):
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    assert host == "127.0.0.1"
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    assert os.environ["RAY_AUTH_MODE"] == "token"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # sends nothing, but chooses an interface
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other interface")
        outside = probe.getsockname()[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((outside, int(port)), 5)


# without


def test_a_missing_ray_is_said_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(connection.ClusterError) as caught:
        cluster.execute([RUN], tmp_path / "runs")
    assert str(caught.value) == (
        "expected the package ray for training on a cluster, got none; install it with "
        '`pip install "discretegrad[ray]"`'
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"address": "somewhere"}, "expected auto or HOST:PORT"),
        ({"address": "127.0.0.1:9"}, r"at the address 127.0.0.1:9, got: .*refused; start one with"),
        ({"address": "127.0.0.1:99999"}, "expected a Ray cluster at the address 127.0.0.1:99999"),
        ({"budget": math.nan}, "expected a positive number of seconds as budget"),
    ],
)
def test_wrong_arguments_are_refused_before_a_cluster_is_started(
    monkeypatch, tmp_path, options, words
):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("a cluster was started"))
    with pytest.raises(ValueError, match=words):
        cluster.execute([RUN], tmp_path, **options)


SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("answer", "is_ray"),
    [
        (SETTINGS, True),
        (b"", False),
        (None, False),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (SETTINGS[:5], False),
    ],
    ids=["ray", "silence", "hangs up", "a web server", "half of it"],
)
@pytest.mark.parametrize("named", ["by its address", "by the environment"])
def test_a_listener_that_is_not_ray_is_refused(monkeypatch, answer, is_ray, named):
    monkeypatch.setattr(connection, "_CONNECT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        guests = []

        def serve():
            guest, _ = server.accept()
            guest.recv(99)
            guest.sendall(answer or b"")
            # a connection that is kept is not closed
            guest.close() if answer is None else guests.append(guest)

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("RAY_ADDRESS", address if named == "by the environment" else "abacus:1")
        if named == "by the environment":
            pytest.importorskip("ray")
        refused = nullcontext() if is_ray else pytest.raises(connection.ClusterError)
        with refused as caught:
            name = "auto" if named == "by the environment" else address
            connection.check_address(connection.resolved(name))
        thread.join()
        for guest in guests:
            guest.close()
    if not is_ray:
        assert f"expected a Ray cluster at the address {address}, got: " in str(caught.value)


def test_a_ray_without_tokens_is_refused(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "__version__", "2.51.2")
    with pytest.raises(connection.ClusterError, match=r"expected ray 2.52 or later.*got 2.51.2"):
        cluster.execute([RUN], tmp_path)
    monkeypatch.setattr(ray, "__version__", "3.0.0.dev0")
    assert connection.import_ray(None) is ray


@pytest.mark.parametrize("dead", ["the head of the cluster", "the raylet of this machine"])
def test_a_process_that_is_gone_is_noticed(monkeypatch, dead):
    monkeypatch.setattr(connection, "_HEAD_AWAY", 60.0)
    monkeypatch.setattr(connection, "_NODE_AWAY", 0.0)
    now = 100.0
    monkeypatch.setattr(connection.time, "monotonic", lambda: now)
    head, raylet = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    with head, raylet:
        node = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": raylet.getsockname()[1]}
        context = SimpleNamespace(
            gcs_address=f"127.0.0.1:{head.getsockname()[1]}", get_node_id=lambda: "here"
        )
        lifeline = connection.Lifeline(
            SimpleNamespace(
                get_runtime_context=lambda: context,
                nodes=lambda: [{"NodeID": "there"}, {"NodeID": "here", **node}],
            )
        )
        now += 2
        lifeline.check()
        (head if "head" in dead else raylet).close()
        # too early to look again
        lifeline.check()
        now += 2
        if "head" in dead:
            # it may come back
            lifeline.check()
            now += 60
        assert not lifeline.cut
        with pytest.raises(
            connection.ClusterError, match=rf"got: {dead}.* does not listen at .*; "
        ):
            lifeline.check()
        assert lifeline.cut


def test_a_cluster_that_does_not_start_is_explained(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")

    def init(address, **_):
        raise ConnectionError(f"nothing\n  at {address}.")

    def locked(*_, **__):
        raise ConnectionError("failed") from ray.exceptions.AuthenticationError("no token")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(connection.ClusterError, match=r"on this machine, got: nothing at local; "):
        cluster.execute([RUN], tmp_path)
    with pytest.raises(connection.ClusterError, match=r"address auto, got: nothing at auto; start"):
        cluster.execute([RUN], tmp_path, address="auto")
    monkeypatch.setattr(ray, "init", locked)
    with pytest.raises(connection.ClusterError, match="asks for a token; set RAY_AUTH_MODE=token"):
        cluster.execute([RUN], tmp_path, address="auto")


def test_the_device_is_one_of_the_cluster():
    both, cores = (
        SimpleNamespace(cluster_resources=lambda found=found: found)
        for found in ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0})
    )
    assert connection.resources(both, "auto") == connection.resources(both, "cuda") == ("cuda", 2)
    assert connection.resources(cores, "auto") == connection.resources(both, "cpu") == ("cpu", 8)
    assert connection.resources(both, torch.device("cuda:0")) == ("cuda", 2)
    with pytest.raises(connection.ClusterError, match="expected a cluster with a GPU"):
        connection.resources(cores, "cuda")
    for wrong in ("cuda:1", "meta", "abacus"):
        with pytest.raises(ValueError, match=f"expected the device cpu or cuda.*{wrong}"):
            connection.resources(both, wrong)


@pytest.mark.parametrize(
    ("counts", "workers", "largest", "sizes"),
    [
        ([6], 2, None, [3, 3]),
        ([7], 4, None, [2, 2, 2, 1]),
        ([2], 4, None, [1, 1]),
        ([3, 3], 4, None, [2, 1, 2, 1]),
        ([6], 6, 2, [1, 1, 1, 1, 1, 1]),
        ([], 4, None, []),
    ],
)
def test_all_workers_have_a_stack(tmp_path, counts, workers, largest, sizes):
    runs = [
        run
        for number, count in enumerate(counts)
        for run in seeds(replace(RUN, epochs=9 + number), count)
    ]
    place = worker.Place(tmp_path, "cpu", stacks=StackOptions(largest))
    found = worker.plan(worker.packed(runs), place, workers)
    assert [len(stack.runs) for stack in found.stacks] == sizes
    assert Counter(run for stack in found.stacks for run in stack.runs) == Counter(runs)


def test_nodes_must_share_the_directory(tmp_path):
    with cluster._token(tmp_path / "runs") as token:
        place = worker.Place(tmp_path / "runs", "cpu", token=token)
        worker._check_shared(place)
        with pytest.raises(connection.ClusterError, match="on storage that all nodes share"):
            worker._check_shared(place._replace(token=tmp_path / "other" / token.name))
    assert not token.exists()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="expected to write in"), cluster._token(tmp_path / "file"):
        pass


def test_what_killed_drivers_leave_is_cleared_away(tmp_path):
    with cluster._token(tmp_path) as first:
        (tmp_path / ".locks" / "cluster-killed").touch()
        (tmp_path / ".locks" / "0123456789abcdef.lock").touch()
        with cluster._token(tmp_path) as second:
            # that of a driver that lives is none of them
            assert {first, second} == set((tmp_path / ".locks").glob("cluster-*"))
    assert [path.suffix for path in (tmp_path / ".locks").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "error",
    [
        DamagedRun(Path("runs/17"), "a status", "none"),
        StoreError("expected space, got none"),
        DataError("expected data, got none"),
        torch.OutOfMemoryError("expected memory, got none"),
    ],
)
def test_errors_survive_the_way_back(error):
    found = worker.Failure.of(error, "abacus")
    with pytest.raises(type(error)) as caught:
        worker.value(found)
    assert str(caught.value) == f"{error} (on the node abacus)"
    assert vars(caught.value).items() >= vars(error).items()


@pytest.mark.parametrize(("again", "group"), [(True, "finished"), (False, "already")])
def test_what_a_dead_worker_has_finished_counts(tmp_path, again, group):
    """It was not done before, though the worker after it found it so."""
    first, second = runs = seeds(RUN, 2)
    train_here([first], tmp_path)
    # a result stands for its task
    errors = SimpleNamespace(RayError=ArithmeticError, TaskCancelledError=ArithmeticError)
    ray = SimpleNamespace(get=lambda task: task, exceptions=errors)
    job = cluster._Job(ray, runs, worker.Place(tmp_path, "cpu"), None, None)
    job.stacks = [tuple(runs)]
    job._note(0, Outcome(already=(first,), stopped=(second,), stopped_by="budget"), again=again)
    expected = {group: (first,), "stopped": (second,), "stopped_by": "budget"}
    assert job.outcome() == Outcome(**expected)


def test_failures_of_all_nodes_are_counted_together(tmp_path):
    first, second, third = runs = seeds(RUN, 3)
    errors = SimpleNamespace(RayError=ArithmeticError, TaskCancelledError=ArithmeticError)
    ray = SimpleNamespace(get=lambda task: task, exceptions=errors)
    stacks = StackOptions(max_failures=2)
    job = cluster._Job(ray, runs, worker.Place(tmp_path, "cpu", stacks=stacks), None, None)
    job.stacks = [(run,) for run in runs]
    job._note(0, Outcome(damaged={first: "a reason"}), again=False)
    assert job.stop is None
    job._note(1, Outcome(damaged={second: "a reason"}), again=False)
    assert job.stop == "failures"
    # a worker that is told so is stopped by a signal, which is not why
    job._note(2, Outcome(stopped=(third,), stopped_by="SIGTERM"), again=False)
    assert (job.outcome().stopped_by, job.outcome().stopped) == ("failures", (third,))


def test_a_listener_knows_which_stack_an_event_is_of():
    (a, b), notes = seeds(RUN, 2), Notes()
    forward = jobs.Forward(notes)
    forward(0, "stack_started", ((a,), 0, 8, 10))
    forward(0, "epoch_done", (1, {}, 0.1))
    forward(1, "stack_started", ((b,), 3, 8, 10))
    forward(1, "run_elsewhere", (a,))
    forward(0, "checkpointed", (1, 0.1))
    # whose start was lost
    forward(3, "epoch_done", (4, {}, 0.1))
    forward(1, "epoch_done", (4, {}, 0.1))
    assert notes.events == [
        ("stack_started", ((a,), 0, 8, 10)),
        ("epoch_done", (1, {}, 0.1)),
        ("stack_started", ((b,), 3, 8, 10)),
        ("run_elsewhere", (a,)),
        ("stack_started", ((a,), 1, 8, 10)),
        ("checkpointed", (1, 0.1)),
        ("stack_started", ((b,), 3, 8, 10)),
        ("epoch_done", (4, {}, 0.1)),
    ]
    # one that wants to tell the turn of a stack from its start
    turns = []
    notes.stack_again = lambda *arguments: turns.append(arguments)
    forward = jobs.Forward(notes)
    forward(0, "stack_started", ((a,), 0, 8, 10))
    forward(1, "stack_started", ((b,), 0, 8, 10))
    forward(0, "epoch_done", (1, {}, 0.1))
    assert turns == [((a,), 0, 8, 10)]


def test_the_desk_keeps_order_and_says_stop():
    desk = Desk(5.0)
    assert desk.begin(0, b"here") == (None, 5.0)
    assert desk.report(0, [b"1", b"2"]) is None
    assert desk.take(None, 4.0) == [(0, b"here"), (0, b"1"), (0, b"2")]
    assert desk.begin(1, b"here") == (None, 4.0)
    # a worker had too little time left: so would the next one, but the others go on
    desk.shut("budget")
    assert desk.begin(2, b"here") == ("budget", 4.0)
    assert desk.report(1, []) is None
    desk.take("SIGINT", 3.0)
    assert desk.report(1, []) == "SIGINT"
    assert desk.begin(3, b"here") == ("SIGINT", 3.0)
    assert Desk(0.0).begin(0, b"here") == ("budget", 0.0)


def test_a_second_signal_does_not_keep_a_worker_from_saving(tmp_path):
    """One from its node and the word from the driver come together."""

    class Twice(worker.Reporter):
        def epoch_done(self, *arguments):
            super().epoch_done(*arguments)
            if arguments[0] == 3:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)

    told = iter([None] * 2 + ["SIGINT"] * 9)
    before = [signal.getsignal(number) for number in worker.STOP]
    reporter = Twice(lambda events: next(told), "abacus")
    outcome = execute([LONG], Store(tmp_path), listener=reporter)
    assert (outcome.stopped, outcome.stopped_by) == ((LONG,), "SIGTERM")
    assert 2 <= Store(tmp_path).status(LONG).epoch < 20
    assert [signal.getsignal(number) for number in worker.STOP] == before
