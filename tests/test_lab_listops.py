"""The stacked Tree-LSTM of ListOps against a plain one that composes everything anew."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

import oracles
from discretegrad_lab import tasks
from discretegrad_lab.stack.lines import LINES, Line
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.stack.optimisers import Optimiser
from discretegrad_lab.stack.plateau import Plateau
from discretegrad_lab.tasks.evidence import Results, Row
from discretegrad_lab.tasks.listops import recipes
from discretegrad_lab.tasks.listops.batches import chunks, order
from discretegrad_lab.tasks.listops.cells import Composer, leaf_lstm
from discretegrad_lab.tasks.listops.config import Parsing
from discretegrad_lab.tasks.listops.data import (
    VOCABULARY,
    WIDTHS,
    decode,
    encode,
    generate_listops,
)
from discretegrad_lab.tasks.listops.expressions import gold_spans
from discretegrad_lab.tasks.listops.model import ParsingModel
from discretegrad_lab.tasks.listops.parse import parse
from discretegrad_lab.tasks.listops.scored import ScoredParsing, make_model, memory, scored
from discretegrad_lab.tasks.listops.trees import f1, merged_spans
from lab_cases import make_stack, stacks_of
from listops_reference import TreeLstm
from test_lab_capture import faults

SAMPLERS = [key for key, one in LINES.items() if one.kind == "sampler"]
CPU = torch.device("cpu")
WORDS, SIZE, DRAWS = 4, 3, 5
SMALL = {
    "data": "generated", "examples": 48, "longest": 13, "batch": 8, "embedding": 6, "hidden": 5,
    "epochs": 3,
}  # fmt: skip

one_thread = pytest.fixture(autouse=True, scope="module")(oracles.one_thread)


# the parse


def models(members, seed):
    """Plain models in float64 whose scores matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = [TreeLstm(WORDS, SIZE).double() for _ in range(members)]
        for model in plain:
            nn.init.normal_(model.query, std=2.0)
    return plain


def stacked(plain):
    """Their parameters with a member axis, as leaves."""
    names = [name for name, _ in plain[0].named_parameters()]
    tables = [dict(model.named_parameters()) for model in plain]
    return {
        name: torch.stack([table[name].detach() for table in tables]).requires_grad_()
        for name in names
    }


def stacked_parse(p, x, lengths, choose):
    bias = (p["leaf.bias_ih"] + p["leaf.bias_hh"])[:, None, None]
    projected = torch.einsum("mble,mge->mblg", x, p["leaf.weight_ih"]) + bias
    composer = Composer(p["composition.linear.weight"], p["composition.linear.bias"], p["query"])
    return parse(leaf_lstm(projected, p["leaf.weight_hh"]), lengths, composer, choose)


class Chooser:
    """Samples of a line at draws and with noise that are the same for one member and for all."""

    def __init__(self, line, tau, members, batch, longest, seed):
        generator = torch.Generator().manual_seed(seed)
        shape = (longest, DRAWS, members, batch, longest)
        self.noise = -torch.rand(shape, generator=generator, dtype=torch.float64).log()
        self.uniform = torch.rand(longest, members, batch, 1, generator=generator)
        self.line, self.tau = line, tau

    def __call__(self, member=slice(None)):
        steps = itertools.count()

        def choose(scores):
            step, width = next(steps), scores.shape[-1]
            cumulative = scores.detach().softmax(-1).cumsum(-1)
            index = (cumulative[..., :-1] <= self.uniform[step, member]).sum(-1)
            arguments = {"given": index, "tau": self.tau}
            if self.line.takes("noise"):
                noise = self.noise[step, :, member, ..., :width]
                arguments["noise"] = noise if self.line.takes("num_draws") else noise[0]
            if self.line.takes("num_draws"):
                arguments["num_draws"] = DRAWS
            return self.line.function(scores, **arguments | dict(self.line.options))

        return choose


@pytest.mark.parametrize("key", SAMPLERS)
@pytest.mark.parametrize(("seed", "longest"), [(0, 2), (1, 3), (2, 9), (3, 12)])
def test_the_incremental_parse_is_the_plain_one(key, seed, longest):
    members, batch = 2, 6
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (members, batch), generator=generator)
    # one as long as there is room for, one that is a single word
    lengths[:, 0], lengths[:, 1] = longest, 1
    shape = (members, batch, longest, WORDS)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    plain = models(members, seed)
    choosers = Chooser(LINES[key], 0.7, members, batch, longest, seed)
    roots = torch.stack([model(x[m], lengths[m], choosers(m)) for m, model in enumerate(plain)])
    weights = torch.randn(roots.shape, generator=generator, dtype=torch.float64)
    own = [parameter for model in plain for parameter in model.parameters()]
    expected = torch.autograd.grad((roots * weights).sum(), [x, *own], allow_unused=True)
    p = stacked(plain)
    parsed = stacked_parse(p, x, lengths, choosers())
    torch.testing.assert_close(parsed.root, roots, rtol=1e-12, atol=1e-13)
    for_x, *gradients = torch.autograd.grad((parsed.root * weights).sum(), [x, *p.values()])
    torch.testing.assert_close(for_x, expected[0], rtol=1e-9, atol=1e-12)
    for place, (name, gradient) in enumerate(zip(p, gradients, strict=True)):
        parts = expected[1 + place :: len(p)]
        # two words have no choice, and so no scores
        whole = torch.stack([torch.zeros_like(gradient[0]) if g is None else g for g in parts])
        assert name == "query" or whole.abs().max() > 0
        torch.testing.assert_close(gradient, whole, rtol=1e-9, atol=1e-12, msg=name)


def test_a_parse_makes_every_merge_and_says_which():
    lengths = torch.tensor([[5, 1, 3]])
    x = torch.randn(1, 3, 5, WORDS, dtype=torch.float64)
    merges = iter([[3, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]])

    def choose(scores):
        index = torch.tensor(next(merges)).unsqueeze(-1)
        assert scores.gather(-1, index.unsqueeze(0)).isfinite().all()
        return torch.zeros_like(scores).scatter(-1, index.unsqueeze(0), 1.0)

    with torch.no_grad():
        parsed = stacked_parse(stacked(models(1, 0)), x, lengths, choose)
    expected = [[3, 0, 1, 0], [-1, -1, -1, -1], [1, 0, -1, -1]]
    assert parsed.merges[0].tolist() == expected


def matrix_work(longest):
    """Multiplications of forward and backward for one sentence."""
    p = stacked(models(1, 0))
    x = torch.randn(1, 1, longest, WORDS, dtype=torch.float64)
    choosers = Chooser(LINES["reinmax"], 1.0, 1, 1, longest, 0)
    with FlopCounterMode(display=False) as counter:
        root = stacked_parse(p, x, torch.full((1, 1), longest), choosers()).root
        torch.autograd.grad(root.sum(), list(p.values()))
    return counter.get_total_flops()


def test_the_matrix_work_grows_with_the_length_and_not_with_its_square():
    short, middle, long = map(matrix_work, (4, 6, 8))
    assert long - middle == middle - short > 0


def test_a_second_backward_pass_is_refused():
    x = torch.randn(1, 2, 4, WORDS, dtype=torch.float64)
    choosers = Chooser(LINES["st"], 1.0, 1, 2, 4, 0)
    root = stacked_parse(stacked(models(1, 0)), x, torch.full((1, 2), 4), choosers()).root
    root.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="parse again"):
        root.sum().backward()


# score functions


def test_the_score_function_has_the_gradient_of_the_expected_loss():
    """Over all parses of four words, and all pairs of them that may be drawn."""
    (plain,) = models(1, 3)
    x = torch.randn(1, 4, WORDS, dtype=torch.float64)
    lengths = torch.tensor([4])
    target = torch.randn(SIZE, dtype=torch.float64)
    p = stacked([plain])

    def outcome(merges, run):
        steps, log_prob = iter(merges), []

        def choose(scores):
            index = torch.tensor(next(steps))
            log_prob.append(scores.log_softmax(-1)[..., index].squeeze())
            return torch.zeros_like(scores).index_fill(-1, index, 1.0)

        root = run(choose)
        return (root.squeeze() - target).square().sum(), torch.stack(log_prob).sum()

    parses = list(itertools.product(range(3), range(2)))
    expected = 0
    for merges in parses:
        loss, log_prob = outcome(merges, lambda choose: plain(x, lengths, choose))
        expected = expected + log_prob.exp() * loss
    right = torch.autograd.grad(expected, list(plain.parameters()))
    mean = [torch.zeros_like(g) for g in right]
    for pair in itertools.product(parses, repeat=2):
        run = lambda choose: stacked_parse(p, x[None], lengths[None], choose).root  # noqa: E731
        losses, log_probs = zip(*(outcome(merges, run) for merges in pair), strict=True)
        losses, log_probs = torch.stack(losses), torch.stack(log_probs)
        value = scored(losses[None, None], log_probs[None, None])
        torch.testing.assert_close(value.squeeze(), losses.mean())
        gradients = torch.autograd.grad(value.squeeze(), list(p.values()))
        chance = log_probs.sum().exp().detach()
        for total, gradient in zip(mean, gradients, strict=True):
            total += chance * gradient.squeeze(0)
    for total, gradient in zip(mean, right, strict=True):
        torch.testing.assert_close(total, gradient, rtol=1e-9, atol=1e-12)


# the model


def run(estimator="reinmax", **fields):
    return Parsing(estimator=estimator, **SMALL | fields)


class Whole(nn.Module):
    """The model of one member with its classifier, from a stack's parameters, in float64."""

    def __init__(self, parameters, member):
        super().__init__()
        p = {name: x[member].detach().double() for name, x in parameters.items()}
        words, size = p["embedding"].shape[1], len(p["query"])
        self.embedding = nn.Embedding.from_pretrained(p["embedding"], freeze=False)
        self.tree = TreeLstm(words, size).double()
        self.hidden, self.values = nn.Linear(size, size), nn.Linear(size, len(p["values.bias"]))
        self.double()
        self.places = {
            "embedding": self.embedding.weight,
            "query": self.tree.query,
            **{f"leaf.{name}": x for name, x in self.tree.leaf.named_parameters()},
            **{f"composition.{n}": x for n, x in self.tree.composition.linear.named_parameters()},
            **{f"classifier.{name}": x for name, x in self.hidden.named_parameters()},
            **{f"values.{name}": x for name, x in self.values.named_parameters()},
        }
        assert set(self.places) == set(p)
        with torch.no_grad():
            for name, x in self.places.items():
                x.copy_(p[name])

    def forward(self, tokens, lengths, choose):
        root = self.tree(self.embedding(tokens), lengths, choose)
        return self.values(self.hidden(root).relu())


def at_work(kind, runs):
    """A model before a step, in float64, with parameters so large that every part matters."""
    model = kind(runs, CPU)
    for name, x in model.network.parameters.items():
        grown = x.detach().double() * (30 if name in ("embedding", "query", "values.weight") else 1)
        model.network.parameters[name] = grown.requires_grad_()
    model.begin_epoch(0)
    model.prepare(0)
    return model


def test_a_step_is_that_of_the_plain_model(monkeypatch):
    model = at_work(ParsingModel, [run(seed=seed, dropout=0.0, tau=1.1) for seed in (3, 4)])
    draws = []
    whole = model._sampler.at
    monkeypatch.setattr(model._sampler, "at", lambda s, i: draws.append(i) or whole(s, i))
    losses = model.losses()["train_loss"]
    names = list(model.network.parameters)
    gradients = torch.autograd.grad(losses.sum(), list(model.network.parameters.values()))
    batch = model._batch
    for member in range(2):
        plain, steps = Whole(model.network.parameters, member), iter(draws)
        logits = plain(
            batch.tokens[member],
            batch.lengths[member],
            lambda s, steps=steps, m=member: LINES["reinmax"].function(
                s, 1.1, given=next(steps)[m]
            ),
        )
        loss = cross_entropy(logits, batch.labels[member])
        torch.testing.assert_close(losses[member], loss)
        own = torch.autograd.grad(loss, [plain.places[name] for name in names])
        for name, gradient, expected in zip(names, gradients, own, strict=True):
            torch.testing.assert_close(gradient[member], expected, msg=name)


def drawn_parse(plain, tokens, label, indices):
    """The cost of an expression, which has no padding, by a parse, and its log-probability."""
    log_prob = torch.zeros((), dtype=torch.float64)

    def choose(scores):
        nonlocal log_prob
        index = next(indices)
        log_prob = log_prob + scores.log_softmax(-1)[0, index]
        return torch.zeros_like(scores).index_fill(-1, index, 1.0)

    logits = plain(tokens.unsqueeze(0), torch.tensor([len(tokens)]), choose)
    return cross_entropy(logits, label.view(1)), log_prob


@pytest.mark.parametrize("line", recipes.SCORES, ids=lambda line: line.label)
def test_a_step_of_a_score_function_is_that_of_the_plain_model(line, monkeypatch):
    runs = [run(line, seed=seed, dropout=0.0) for seed in (3, 4)]
    model, count = at_work(ScoredParsing, runs), runs[0].samples
    draws, whole = [], model._draw
    monkeypatch.setattr(model, "_draw", lambda s: draws.append(whole(s)) or draws[-1])
    losses = model.losses()["train_loss"]
    names = list(model.network.parameters)
    gradients = torch.autograd.grad(losses.sum(), list(model.network.parameters.values()))
    tokens, lengths, labels = model._batch
    for member, own_lengths in enumerate(lengths.tolist()):
        assert len(set(own_lengths)) > 1
        plain = Whole(model.network.parameters, member)
        loss = surrogate = 0
        for place, length in enumerate(own_lengths):
            words, label = tokens[member, place, :length], labels[member, place]
            parses = [
                drawn_parse(plain, words, label, (index[member, n] for index in draws))
                for n in range(count * place, count * (place + 1))
            ]
            for cost, log_prob in parses:
                others = sum(x.detach() for x, _ in parses) - cost.detach()
                advantage = cost.detach() - others / (count - 1)
                loss = loss + cost / (count * len(own_lengths))
                surrogate = surrogate + advantage * log_prob / (count * len(own_lengths))
        torch.testing.assert_close(losses[member], loss)
        own = torch.autograd.grad(loss + surrogate, [plain.places[name] for name in names])
        for name, gradient, expected in zip(names, gradients, own, strict=True):
            torch.testing.assert_close(gradient[member], expected, msg=name)


KINDS = {
    "samplers": [run(key, tau=0.9, seed=seed, draws=3) for key in SAMPLERS for seed in (0, 1)],
    "score": [run(recipes.SCORES[1], seed=seed) for seed in (0, 1)],
}
each_kind = pytest.mark.parametrize("runs", KINDS.values(), ids=KINDS)


@each_kind
def test_a_member_is_the_same_alone_and_goes_on_from_its_state(runs):
    together = make_stack(runs)
    first = together.advance()
    states = together.states()
    second = together.advance()
    place = len(runs) // 2
    alone = make_stack([together.runs[place]])
    for metrics in (first, second):
        own = alone.advance()
        assert own.keys() == metrics.keys()
        for name, values in metrics.items():
            assert own[name][0] == pytest.approx(values[place], rel=1e-4, nan_ok=True), name
    again = make_stack(runs)
    for member, state in enumerate(states):
        again.load_state(member, state)
    again.epoch = 1
    for name, values in again.advance().items():
        assert values == pytest.approx(second[name], rel=0, abs=0, nan_ok=True), name


@each_kind
def test_no_draw_leaves_the_expression(runs, monkeypatch):
    """Not even if rounding makes the random numbers pass all pairs that there are."""

    def last(noise, logits, members=slice(None), repeats=None):
        return torch.full(logits.shape[:-1], logits.shape[-1] - 1)

    monkeypatch.setattr(Noise, "categories", last)
    stack = make_stack(runs)
    assert all(map(math.isfinite, stack.advance()["train_loss"]))
    assert (stack.diverged < 0).all()


@each_kind
def test_a_step_can_be_captured(runs):
    stack = make_stack(runs)
    stack.model.begin_epoch(0)
    for step in (0, stack.steps_per_epoch - 1):
        assert stack.model.prepare(step) in WIDTHS
        assert faults(stack) == []


def test_steps_of_a_width_lie_where_a_graph_reads_them():
    model = ParsingModel([run()], CPU)
    model.begin_epoch(0)
    places = {}
    for step in range(model.steps_per_epoch):
        width = model.prepare(step)
        place = places.setdefault(width, model._batch.tokens.data_ptr())
        assert model._batch.tokens.data_ptr() == place
        assert model._batch.lengths.max() <= width == model._batch.tokens.shape[-1]
    assert len(places) > 1


def test_every_epoch_has_other_batches_of_the_same_widths_for_all_members():
    lengths = generate_listops(0, (100, 5, 5), longest=40).train.lengths
    widths, chosen = order(lengths, 8, [1, 2], 5)
    assert chosen.shape == (2, 12, 8)
    for own in chosen:
        assert len(own.unique()) == 96
        for width, batch in zip(widths, own, strict=True):
            below = max([0, *(w for w in WIDTHS if w < width)])
            assert below < lengths[batch].max() <= width
    assert not torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen, order(lengths, 8, [1, 2], 6)[1])
    assert torch.equal(chosen[1:], order(lengths, 8, [2], 5)[1])


def test_batches_as_released_have_one_width_and_any_lengths():
    fields = {"examples": 96, "longest": 40, "bucketed": False}
    runs = [run(seed=seed, **fields) for seed in (1, 2)]
    model = ParsingModel(runs, CPU)
    similar = [dataclasses.replace(own, bucketed=True) for own in runs]
    losses, others = (make_stack(x).advance()["train_loss"] for x in (runs, similar))
    assert losses != others
    model.begin_epoch(0)
    shortest = []
    for step in range(model.steps_per_epoch):
        assert model.prepare(step) == 41
        shortest.append(int(model._batch.lengths.min()))
    assert len(model._batches) == 1
    # with similar lengths, the batches of the widest kind would have no short one
    assert max(shortest) <= 13
    assert memory(runs[0]) < memory(similar[0])
    assert runs[0].stack_key != similar[0].stack_key
    # what is as it was has the identity that it had
    assert runs[0].document()["bucketed"] is False
    assert "bucketed" not in similar[0].document()


def test_a_pass_sees_every_expression_once():
    lengths = torch.tensor([3, 50, 7, 7, 12, 1, 99])
    parts = chunks(lengths, 60)
    assert sorted(torch.cat([index for _, index in parts]).tolist()) == list(range(7))
    for width, index in parts:
        assert width == lengths[index].max()
        assert len(index) == 1 or width * len(index) <= 60


def test_a_test_takes_the_greatest_scores_and_no_dropout():
    expressions = generate_listops(1, (48, 12, 20), longest=13)
    model = ParsingModel([run(seed=seed) for seed in (0, 1)], CPU, expressions=expressions)
    measured = model.evaluate(1)
    merges, values = model.parses(expressions.test)
    right = (values == expressions.test.labels).double().mean(1) * 100
    torch.testing.assert_close(measured["test_accuracy"], right)
    torch.testing.assert_close(measured["full_accuracy"], right)
    for member in range(2):
        plain = Whole(model.network.parameters, member)

        def greatest(scores):
            return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)

        for number in range(20):
            tokens, length, _ = (x[number : number + 1] for x in expressions.test)
            logits = plain(tokens[:, : int(length)], length, greatest)
            assert logits.argmax(-1) == values[member, number]
            own = [x for x in merges[member, number].tolist() if x >= 0]
            assert len(merged_spans(own)) == len(decode(tokens[0])) - 1
    assert measured["tree_f1"].isnan().all()
    expressions = [decode(row) for row in expressions.valid.tokens]
    merges = model.parses(model._valid)[0].tolist()
    for value, parses in zip(model.evaluate(SMALL["epochs"])["tree_f1"], merges, strict=True):
        pairs = [(x, y) for x, y in zip(expressions, parses, strict=True) if len(x) > 1]
        shares = [f1(merged_spans(y[: len(x) - 1]), gold_spans(x)) for x, y in pairs]
        assert value.item() == pytest.approx(100 * sum(shares) / len(shares))


def test_long_expressions_are_in_the_full_test_set_alone(monkeypatch):
    expressions = generate_listops(1, (48, 12, 20), longest=13)
    # of 1, 99 and 100 tokens
    test = encode([("7",), *(("[", "max", *"1" * count, "]") for count in (96, 97))])
    model = ParsingModel([run()], CPU, expressions=expressions._replace(long_test=test))
    whole = model._pass

    def all_but_the_last(part, examples):
        right, losses = whole(part, examples)
        return (torch.tensor([[True, True, False]]) if part == "test" else right), losses

    monkeypatch.setattr(model, "_pass", all_but_the_last)
    measured = model.evaluate(1)
    for checkpoint in ("", "best_"):
        assert measured[f"{checkpoint}test_accuracy"].tolist() == [100]
        assert measured[f"{checkpoint}full_accuracy"].tolist() == [pytest.approx(200 / 3)]


def test_the_best_validation_is_kept(monkeypatch):
    model = ParsingModel([run(seed=seed) for seed in (0, 1)], CPU)
    counts = iter([[1, 4], [3, 2], [2, 4]])

    def fixed(part, examples):
        total = len(examples.labels)
        now = next(counts) if part == "valid" else fixed.last
        fixed.last = now
        right = torch.arange(total) < torch.tensor(now).unsqueeze(1)
        return right, torch.zeros(2, total)

    monkeypatch.setattr(model, "_pass", fixed)
    valid, test = len(model._valid.labels), len(model._test.labels)
    model.begin_epoch(0)
    model.prepare(model.steps_per_epoch // 2)
    for best in ([3, 4], [3, 4]):
        measured = model.evaluate(1)
        expected = 100 * torch.tensor(best, dtype=torch.float64)
        torch.testing.assert_close(measured["best_valid_accuracy"], expected / valid)
        torch.testing.assert_close(measured["best_test_accuracy"], expected / test)
    torch.testing.assert_close(measured["test_accuracy"][0].item(), 200 / test)
    # five validations without a new best one halve the rate
    counts = itertools.repeat([1, 1])
    for expected in (*[1.0] * 3, 0.5):
        assert model.groups["model"].rate_factors.tolist() == [1.0, expected]
        model.evaluate(1)
    assert model.groups["model"].rate_factors.tolist() == [0.5, 0.5]


def test_dropout_keeps_the_mean_and_is_the_same_for_parses_of_an_expression():
    model = ScoredParsing([run(recipes.SCORES[0], dropout=0.25)], CPU)
    model.begin_epoch(0)
    dropped = model._drop(torch.ones(1, 20_000))
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    # 4 standard errors of 20,000 draws: fails by accident once in 15,000 seeds
    assert abs(dropped.mean() - 1) < 4 * math.sqrt(1 / 3 / 20_000)
    pairs = model._drop_alike(torch.ones(1, 6, 50)).unflatten(1, (3, 2))
    assert torch.equal(pairs[:, :, 0], pairs[:, :, 1])
    assert len(pairs[0, :, 0].unique(dim=0)) == 3


def test_parameters_start_as_in_the_released_programs():
    model = ParsingModel([run(hidden=40, embedding=30, seed=seed) for seed in (0, 1)], CPU)
    p = {name: x.detach() for name, x in model.network.parameters.items()}
    assert p["embedding"].shape == (2, len(VOCABULARY), 30)
    assert p["values.weight"].shape == (2, 11, 40)
    for name, deviation in (
        ("embedding", 0.01), ("query", 0.01), ("leaf.weight_ih", math.sqrt(2 / 30)),
        ("classifier.weight", math.sqrt(2 / 40)), ("values.weight", 0.002 / math.sqrt(3)),
    ):  # fmt: skip
        x = p[name]
        assert not torch.equal(x[0], x[1])
        assert x.std().item() == pytest.approx(deviation, rel=4 / math.sqrt(2 * x.numel()) + 0.02)
    for name, columns in (("leaf.weight_hh", 40), ("composition.weight", 80)):
        product = p[name].mT @ p[name]
        torch.testing.assert_close(product, torch.eye(columns).expand(2, -1, -1))
    forget = p["leaf.bias_ih"].unflatten(1, (4, 40))
    assert forget[:, 1].eq(1).all()
    assert p["leaf.bias_ih"].sum() == 2 * 40
    for name in ("leaf.bias_hh", "composition.bias", "classifier.bias", "values.bias"):
        assert not p[name].any()
    assert set(p) == set(model.parameters)


def test_a_plateau_lowers_rates_as_torch_does():
    values = torch.tensor([[10.0, 5.0], [10.0005, 6.0], *[[9.0, 6.0]] * 9, *[[11.0, 6.0]] * 5])
    plateau = Plateau([4, 2], 0.5)
    rates, ours = [0.1, 0.3], {"x": torch.ones(2, 3)}
    optimiser = Optimiser(ours, ["adam", "radam"], rates, rate_factors=plateau.rate_factors)
    alone = [nn.Parameter(torch.ones(3)) for _ in rates]
    theirs = [
        kind([x], lr=rate)
        for kind, x, rate in zip((torch.optim.Adam, torch.optim.RAdam), alone, rates, strict=True)
    ]
    schedulers = [
        torch.optim.lr_scheduler.ReduceLROnPlateau(own, "max", 0.5, patience)
        for own, patience in zip(theirs, (4, 2), strict=True)
    ]
    for row in values:
        optimiser.step({"x": torch.full((2, 3), 0.3)}, torch.ones(2, dtype=torch.bool))
        plateau.step(row)
        for own, x, scheduler, value in zip(theirs, alone, schedulers, row, strict=True):
            x.grad = torch.full((3,), 0.3)
            own.step()
            scheduler.step(value)
        now = [own.param_groups[0]["lr"] for own in theirs]
        assert (plateau.rate_factors * torch.tensor(rates, dtype=torch.float64)).tolist() == now
        torch.testing.assert_close(ours["x"], torch.stack([x.detach() for x in alone]))
    assert plateau.rate_factors.tolist() == [0.25, 0.0625]


def test_a_stack_trains_at_the_rates_of_the_plateau():
    stack = make_stack([run(seed=seed) for seed in (0, 1)])
    before = {name: x.detach().clone() for name, x in stack.model.parameters.items()}
    stack.model.groups["model"].rate_factors[1] = 0
    stack.advance()
    for name, x in stack.model.parameters.items():
        assert not torch.equal(x[0], before[name][0])
        assert torch.equal(x[1], before[name][1])


def test_a_state_holds_the_plateau_and_the_best():
    stack = make_stack([run()])
    stack.advance()
    names = {name for name in stack.state(0) if name.startswith("buffers/")}
    assert {"buffers/plateau/rate_factors", "buffers/best_test_accuracy"} <= names


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "glue"}, "expected listops or generated as data, got 'glue'"),
        ({"examples": None}, "number of examples of at least a batch"),
        ({"examples": 7}, "at least a batch"),
        ({"data": "listops"}, "None for the files"),
        ({"data": "listops", "examples": None}, "99 as longest"),
        ({"dropout": 1.0}, "below 1 as dropout, got 1.0"),
        ({"patience": 0}, "whole number as patience"),
        ({"bucketed": 1}, "True or False as bucketed, got 1"),
        ({"estimator": "exact"}, "makes a sample, or leave_one_out, got 'exact'"),
        ({"estimator": Line("Tree", "disarm_tree")}, "got 'tree'"),
        ({"estimator": Line("RLOO-1", "leave_one_out", num_samples=1)}, "at least 2"),
    ],
)
def test_bad_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        run(**fields)


# recipes


@pytest.mark.parametrize("recipe", recipes.RECIPES, ids=lambda recipe: recipe.name)
def test_three_steps_of_every_recipe(recipe):
    few = {**SMALL, "examples": 24, "epochs": 1, "draws": 3}
    runs = [dataclasses.replace(own, **few) for own in recipe.runs(seeds=[0, 1])]
    for members in stacks_of(runs):
        stack = make_stack(members)
        assert stack.steps_per_epoch == 3
        metrics = stack.advance()
        assert set(recipe.metrics) <= set(metrics)
        for name, values in metrics.items():
            # two expressions to validate with may both be digits, which have no trees
            assert name == "tree_f1" or all(map(math.isfinite, values)), name
        assert (stack.diverged < 0).all()


def test_the_recipe_has_the_settings_of_the_paper():
    runs = tasks.recipe("listops").runs(seeds=[0])
    by_key = {own.estimator: own for own in runs}
    assert {(key, own.learning_rate, own.tau) for key, own in by_key.items()} == {
        ("stgs", 5e-4, 0.1), ("gr-mck", 5e-4, 0.3), ("gst-1.0", 1e-3, 0.1), ("st", 1e-3, 1.4),
        ("reinmax", 7e-4, 1.1), ("rloo-2", 7e-4, 1.0), ("rloo-4", 7e-4, 1.0),
    }  # fmt: skip
    for own in runs:
        assert (own.optimiser, own.epochs, own.batch, own.clip_norm) == ("radam", 20, 16, 5.0)
        assert (own.embedding, own.hidden, own.dropout, own.patience) == (300, 300, 0.5, 4)
        assert own.steps_per_epoch == 77_202 // 16
    assert len({own.stack_key for own in runs}) == 3
    assert memory(by_key["reinmax"]) < memory(by_key["rloo-2"]) < memory(by_key["rloo-4"])
    assert {type(make_model([dataclasses.replace(own, **SMALL)], CPU)) for own in runs} == {
        ParsingModel, ScoredParsing,
    }  # fmt: skip


def results(means, spread=0.3, runs=5):
    """Of runs whose accuracies lie evenly around a mean for each estimator."""
    rows = [
        Row(
            f"{key}-{seed}",
            {"task": "listops", "estimator": key, "seed": seed},
            "finished",
            20,
            dict.fromkeys(("test_accuracy", "valid_accuracy"), mean + spread * (seed - 2)),
        )
        for key, mean in means.items()
        for seed in range(runs)
    ]
    return Results("listops", tuple(rows))


BASELINES = {"stgs": 66.0, "gr-mck": 66.1, "gst-1.0": 66.2, "st": 65.9}


@pytest.mark.parametrize(("gst_p", "holds"), [(60.0, True), (66.2, None), (70.0, False)])
def test_the_claim_about_gst_p(gst_p, holds):
    from discretegrad_lab.report.verdicts import judge

    found = judge(recipes.TASK.claims["gst-p"], results({**BASELINES, "gst-p": gst_p}))
    assert found.holds is holds


@pytest.mark.parametrize(
    ("means", "best", "alike"),
    [
        ({"reinmax": 68.0, **BASELINES}, True, True),
        ({"reinmax": 64.0, **BASELINES}, False, True),
        ({"reinmax": 66.2, **BASELINES}, None, True),
        ({"reinmax": 68.0, **BASELINES, "st": 60.0, "rloo-2": 90.0}, True, False),
        (BASELINES, None, True),
        ({"reinmax": 68.0, "stgs": 60.0}, None, None),
    ],
)
def test_claims(means, best, alike):
    from discretegrad_lab.report.verdicts import judge

    claims = recipes.TASK.claims
    verdicts = {name: judge(claims[name], results(means)) for name in claims}
    assert verdicts["best-test"].holds is verdicts["best-valid"].holds is best
    assert verdicts["alike"].holds is alike
    assert verdicts["gst-p"].holds is None
    assert "nan" not in verdicts["best-test"].evidence
