"""The benchmark of searches: it compares with a plain loop, and refuses wrong numbers."""

import pytest
import torch

from benchmark_cases import CPU, check_verdicts, machine, pages, rehearse, search
from oracles import one_thread

DEVICE = torch.device("cpu")

seeded_on_one_thread = pytest.fixture(autouse=True)(one_thread)


def test_the_plain_loop_has_the_network_of_the_lab():
    (run,) = search.runs_of(1, "gdas", search.QUICK)
    loop = search.PlainSearch(run, DEVICE)
    network = search.Supernet(run.channels, run.cells)
    names = {name: tuple(x.shape) for name, x in loop.named_weights().items()}
    assert names == {name: place.shape for name, place in network.places.items()}
    trained = loop.weights.param_groups[0]["params"]
    assert {*map(id, trained)} == {id(x) for x in loop.named_weights().values()}
    search.checked(run, DEVICE)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    "wrong", ["head.offset", "reduction1.second.scale", "stage2.cell0.3<-1.nor_conv_3x3.kernel"]
)
def test_another_network_is_refused(wrong, monkeypatch):
    (run,) = search.runs_of(1, "gdas", search.QUICK)
    loop = search.PlainSearch(run, DEVICE)
    right = loop.named_weights()
    monkeypatch.setattr(loop, "named_weights", lambda: right | {wrong: 1.1 * right[wrong] + 0.1})
    with pytest.raises(machine.RedGate, match="loss is off by"):
        search.check(loop, run)


def test_only_epochs_count_in_which_all_processes_train():
    clock = search.Clock()
    # ends of epochs: of the one from 1 to 6, of the other from 3.5 to 7
    clock.epochs = {
        "a": [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 5.0), (5.0, 6.0)],
        "b": [(0.5, 3.5), (3.5, 4.75), (4.75, 6.0), (6.0, 7.0)],
    }
    assert clock.together() == [1.0, 1.0, 1.25, 1.25]
    clock.epochs["b"] = [(6.0, 7.0), (7.0, 8.0)]
    assert clock.together() == []


def test_a_rehearsal_measures_everything_and_its_page_shows_it(tmp_path):
    quick = rehearse(search.BENCHMARK, [], tmp_path)
    assert (quick.code, quick.untouched) == (0, True)
    results = search.PAGE.read(tmp_path)
    assert list(results.rows[0]) == list(search.FILE.columns)
    measured = [(row["provider"], row["processes"], row["gradient"]) for row in results.rows]
    assert measured == [
        *(("lab", "2", "gdas"), ("lab", "2", "full"), ("plain loop", "1", "gdas")),
        *(("all", "1", "gdas"), ("all", "1", "full")),
    ]
    *lab, loop, _, _ = results.rows
    for row in lab:
        # two processes of a busy machine may not meet
        assert row["status"] in ("ok", search.NEVER)
        assert row["status"] != "ok" or float(row["speedup"]) > 0
    assert loop["status"] == "ok"
    profile = results.of(section="profile")
    assert {row["status"] for row in profile} == {"needs a GPU"}
    text = search.PAGE.text(results)
    assert "| needs a GPU |" in text
    assert results.rows[0]["command"] in text
    assert "Not measured yet." in search.PAGE.text(pages.Results([]))


def test_a_speedup_is_never_reported_on_a_red_gate(monkeypatch):
    monkeypatch.setattr(search, "TOLERANCE", -1.0)
    *rows, loop = search.step_rows(CPU)
    assert len(rows) == 2
    for row in rows:
        assert row["status"].startswith("red gate: loss is off by")
        assert machine.is_red(row)
        assert "speedup" not in row
    assert loop["status"] == "not measured"


def test_the_plain_loop_is_measured_where_processes_never_met(monkeypatch):
    monkeypatch.setattr(search.Clock, "together", lambda clock: [])
    monkeypatch.setattr(search, "execute", lambda *args, **options: None)
    *rows, loop = search.step_rows(CPU)
    assert {row["status"] for row in rows} == {search.NEVER}
    assert loop["status"] == "ok"


def test_the_target():
    (target,) = search.TARGETS
    check_verdicts(target)


def test_the_time_of_a_search():
    assert search.minutes({"seconds": "0.004", "processes": "12"}) == "31 min"
