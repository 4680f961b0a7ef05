"""The benchmark of ListOps: it compares with the released algorithm, and refuses wrong numbers."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmark_cases import (
    CPU,
    check_verdicts,
    listops,
    machine,
    pages,
    plain,
    plain_tree,
    rehearse,
)
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.tasks.listops.model import ParsingModel
from oracles import one_thread

DEVICE = torch.device("cpu")
TINY = listops.QUICK._replace(members=(2,), steps=4, plain_steps=2, longest=13)

seeded_on_one_thread = pytest.fixture(autouse=True)(one_thread)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(listops, "QUICK", TINY)
    return TINY


def names(model):
    """The parameters of the plain model under the names of the stack."""
    words = {"embedding.weight": "embedding"}
    return {words.get(name, name): x for name, x in model.named_parameters()}


def test_the_plain_loop_is_one_member_of_the_stack(tiny, monkeypatch):
    (run,) = listops.runs_of(1, tiny._replace(fields={**tiny.fields, "dropout": 0.0}))
    expressions = listops.expressions_of(tiny)
    loop = listops.PlainLoop(run, expressions.train, DEVICE)
    model = ParsingModel([run], DEVICE, expressions=expressions)
    weights = names(loop.model)
    assert {name: x.shape for name, x in weights.items()} == {
        name: x.shape[1:] for name, x in model.parameters.items()
    }
    with torch.no_grad():
        for name, x in model.parameters.items():
            if name in ("embedding", "query", "values.weight"):
                x *= 30
            weights[name].copy_(x[0])
    draws = []

    def remember(scores, index):
        draws.append(index)
        return LINES["reinmax"].function(scores, run.tau, given=index)

    def recall(scores, tau):
        index = draws.pop(0)[0]
        z = torch.zeros_like(scores).scatter_(-1, index.unsqueeze(-1), 1.0)
        monkeypatch.setattr(plain, "drawn", lambda theta: z)
        return reinmax(scores, tau)

    reinmax = plain.reinmax
    monkeypatch.setattr(plain, "reinmax", recall)
    monkeypatch.setattr(model._sampler, "at", remember)
    model.begin_epoch(0)
    model.prepare(0)
    ours = model.losses()["train_loss"]
    tokens, lengths, labels = (x[0] for x in model._batch)
    theirs = cross_entropy(loop.model(tokens, lengths), labels)
    torch.testing.assert_close(ours[0], theirs)
    gradients = torch.autograd.grad(ours.sum(), list(model.parameters.values()))
    expected = torch.autograd.grad(theirs, [weights[name] for name in model.parameters])
    for name, gradient, right in zip(model.parameters, gradients, expected, strict=True):
        torch.testing.assert_close(gradient[0], right, rtol=1e-3, atol=1e-6, msg=name)


def test_a_round_of_the_plain_loop_has_all_lengths(tiny):
    (run,) = listops.runs_of(1, listops.QUICK)
    loop = listops.PlainLoop(run, listops.expressions_of(listops.QUICK).train, DEVICE)
    widths = sorted(batch[0].shape[1] for batch in loop.batches)
    chosen = [loop.batches[n][0].shape[1] for n in loop.sample(2)]
    assert chosen == [widths[1], widths[3]]


def test_a_part_of_a_data_set_is_as_long_as_the_whole():
    whole = listops.generate_listops(0, (3000, 20, 20), longest=99)
    train, valid, test, long_test = listops.expressions_of(listops.QUICK, whole)
    (run,) = listops.runs_of(1, listops.QUICK)
    assert [len(x.labels) for x in (train, valid, test, long_test)] == [run.train_examples, 2, 2, 2]
    means = [x.lengths.double().mean().item() for x in (train, whole.train)]
    # 48 of 3000, whose lengths have a deviation of about 20
    assert abs(means[0] - means[1]) < 12


def test_the_floor_is_that_of_the_paper_s_network():
    (run,) = listops.runs_of(1, listops.FULL)
    work = listops.work_of(run, [20, 20])
    loop = plain_tree.PlainTree(run)
    parameters = sum(x.numel() for x in loop.parameters())
    composition, leaf = loop.composition.weight.numel(), loop.leaf.weight_hh.numel()
    assert work.width == 20
    assert work.weight_bytes == 4 * (2 * (20 * leaf + 19 * composition) + 10 * parameters)
    assert work.state_bytes == 4 * 16 * 6 * 600 * 190
    per_place = 3 * 20 * 2 * leaf + (3 * 55 + 19) * composition
    assert work.multiplications == 2 * 16 * (per_place + 3 * 300 * 311)


def test_a_rehearsal_measures_everything_and_its_page_shows_it(tiny, tmp_path):
    quick = rehearse(listops.BENCHMARK, [], tmp_path)
    assert (quick.code, quick.untouched) == (0, True)
    results = listops.PAGE.read(tmp_path)
    assert list(results.rows[0]) == list(listops.FILE.columns)
    measured = [(row["provider"], row["members"], row["status"]) for row in results.rows]
    assert measured == [
        (listops.FIVE, "2", "ok"), (listops.SCORED, "1", "ok"), (listops.PLAIN, "1", "ok"),
        *[("all", "2", "needs a GPU")] * 2,
    ]  # fmt: skip
    text = listops.PAGE.text(results)
    assert "| needs a GPU |" in text
    assert results.rows[0]["command"] in text
    assert "Not measured yet." in listops.PAGE.text(pages.Results([]))


def test_a_speedup_is_never_reported_on_a_red_gate(tiny, monkeypatch):
    monkeypatch.setattr(listops, "TOLERANCE", -1.0)
    *rows, loop = listops.step_rows(CPU)
    assert len(rows) == 2
    for row in rows:
        assert row["status"].startswith("red gate: its loss is")
        assert machine.is_red(row)
        assert "speedup" not in row
    assert loop["status"] == "not measured"


def test_the_target():
    (target,) = listops.TARGETS
    check_verdicts(target)
