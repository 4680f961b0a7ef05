"""Stacks: the random numbers of members, the polynomial task, training, going on, divergence."""

import itertools
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from scipy import stats

import discretegrad
import philox_reference as philox
from discretegrad_lab.runs.execute import execute
from discretegrad_lab.runs.store import Store
from discretegrad_lab.stack.config import in_order
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.stack.sampler import Sampler
from discretegrad_lab.stack.trainer import EpochAbandoned
from discretegrad_lab.tasks import load_run
from discretegrad_lab.tasks.polynomial.config import Polynomial, best_loss
from discretegrad_lab.tasks.polynomial.model import _NETWORK_PARTS, PolynomialModel, _alone
from discretegrad_lab.tasks.vae.config import Vae
from lab_cases import make_stack, use_small_images

LEVEL = 1e-6
SCORES = ("reinforce", "rodeo")
CPU = torch.device("cpu")


def run(estimator="reinmax", **fields):
    """A short one on a small problem."""
    small = {"latents": 6, "batch": 8, "steps_per_epoch": 5, "epochs": 4, "draws": 3}
    return Polynomial(estimator=estimator, **(small | fields))


# --- configurations


def test_the_identity_is_the_hash_of_everything():
    base = run()
    assert base.identity == run().identity
    others = [
        run("st"), run(tau=1.1), run(seed=1), run(learning_rate=2e-3), run(optimiser="radam"),
        run(power=1.5), run(latents=7), run(batch=9), run(epochs=5), run(target="spread"),
        run(draws=4), run(tf32=True), run(steps_per_epoch=6),
    ]  # fmt: skip
    assert len({one.identity for one in [base, *others]}) == len(others) + 1
    for one in others:
        same = one.stack_key == base.stack_key
        changed = {f for f, x in one.document().items() if x != base.document()[f]}
        assert same == (changed <= set(Polynomial.member_fields)), changed


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"estimator": "rienmax"}, "expected an estimator of reinmax, st"),
        ({"optimiser": "sgd"}, "expected adam or radam as optimiser, got 'sgd'"),
        ({"tau": 0.0}, "expected a positive number .float. as tau, got 0.0"),
        ({"tau": float("nan")}, "as tau, got nan"),
        ({"seed": -1}, "expected a seed from 0 to"),
        ({"epochs": 0}, "expected a positive whole number as epochs, got 0"),
        ({"batch": 2.5}, "expected a positive whole number as batch, got 2.5"),
        ({"target": "c"}, "expected constant or spread as target, got 'c'"),
        ({"estimator": "rodeo", "batch": 7}, "expected an even batch for rodeo"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        run(**fields)


def test_documents_are_read_or_refused():
    for one in (run(), Vae(estimator="st", categories=10, latents=30)):
        assert load_run(one.document()) == one
    document = run().document()
    with pytest.raises(ValueError, match="expected a configuration of version 2, got version 9"):
        load_run(document | {"version": 9})
    with pytest.raises(ValueError, match=r"expected a task of polynomial, vae.* got 'chess'"):
        load_run(document | {"task": "chess"})
    with pytest.raises(ValueError, match="expected a configuration of the task polynomial"):
        load_run(document | {"colour": "red"})


# --- random numbers


@pytest.mark.parametrize(("step", "purpose"), [(9, 2), (0, 1), (1, 0)])
def test_the_kernel_fills_with_the_words_of_philox(step, purpose):
    seeds = torch.tensor([5, 2**62 + 3, 7])
    numbers = torch.full((3, 2050), -1.0)
    uniform = pytest.importorskip("discretegrad.kernels.uniform")
    uniform.fill(numbers, seeds, torch.tensor([step]), purpose)
    for row, seed in zip(numbers, seeds, strict=True):
        element = torch.arange(2050)
        word = philox.words(seed, element // 4, step, purpose)[element % 4, element]
        assert torch.equal(row, ((word >> 8).double() / 2**24).float())


@pytest.mark.parametrize(("n", "rows"), [(1, 3), (2, 700), (3, 5), (10, 130), (64, 9), (300, 2)])
@pytest.mark.parametrize("repeats", [1, 3])
def test_the_kernel_chooses_the_categories_of_its_numbers(n, rows, repeats):
    logits = 2 * torch.randn(2, rows, n, generator=torch.Generator().manual_seed(n))
    logits[:, 0, : n // 2] = -torch.inf
    seeds, step = torch.tensor([5, 2**62 + 3]), torch.tensor([9])
    index, numbers = torch.full((2, repeats * rows), -1), torch.empty(2, repeats * rows)
    uniform = pytest.importorskip("discretegrad.kernels.uniform")
    uniform.choose(index, logits, seeds, step, 2)
    uniform.fill(numbers, seeds, step, 2)
    ends = logits.double().softmax(-1).cumsum(-1).repeat(1, repeats, 1)
    lower, upper = (
        torch.nn.functional.pad(ends, (1, 0)).gather(-1, index[..., None] + side).squeeze(-1)
        for side in (0, 1)
    )
    # up to the rounding of a sum in float32
    assert (lower - 1e-6 <= numbers).all()
    assert (numbers < upper + 1e-6).all()
    assert (logits.repeat(1, repeats, 1).gather(-1, index[..., None]) > -torch.inf).all()


def test_numbers_of_a_member_do_not_depend_on_others():
    alone, together, seen = Noise([7], CPU), Noise([3, 7, 9], CPU), []
    for epoch, stream in ((4, 0), (5, 0), (4, 1), (4, 0)):
        for noise in (alone, together):
            noise.begin(epoch, stream)
        for _ in range(3):
            seen.append(alone.uniform(5, 2))
            assert torch.equal(seen[-1][0], together.uniform(5, 2)[1])
            some = together.exponential(5, members=slice(1, 2))
            assert torch.equal(alone.exponential(5)[0], some[0])
    # an epoch and a stream have their own
    assert len(torch.stack(seen).unique(dim=0)) == 9
    assert torch.equal(seen[0], seen[9])


def test_seeds_of_members():
    alone, together = Noise([7], CPU), Noise(range(1000), CPU)
    found = []
    for epoch in range(2):
        for noise in (alone, together):
            noise.begin(epoch)
        for _ in range(2):
            found.append(together.seeds())
            assert alone.seeds()[0] == found[-1][7]
    seeds = torch.stack(found)
    assert seeds.dtype == torch.int64
    assert len(seeds.unique()) == seeds.numel()
    # every bit but that of the sign is a fair coin
    ones = (seeds.flatten().unsqueeze(-1) >> torch.arange(64) & 1).sum(0).tolist()
    assert ones.pop() == 0
    assert min(stats.binomtest(count, seeds.numel()).pvalue for count in ones) > LEVEL / 63


def test_noise_is_distributed_as_it_says():
    noise = Noise([1, 2], CPU)
    noise.begin(0)
    assert stats.kstest(noise.uniform(50_000).flatten(), "uniform").pvalue > LEVEL
    assert stats.kstest(noise.exponential(50_000).flatten(), "expon").pvalue > LEVEL


# --- samples


def sampler_of(*runs):
    noise = Noise([one.seed for one in runs], CPU)
    noise.begin(0)
    return Sampler(in_order(runs), noise)


PLAIN = {
    "reinmax": discretegrad.reinmax,
    "st": discretegrad.straight_through,
    "gst-1.0": partial(discretegrad.gapped, gap=1.0),
    "gst-p": partial(discretegrad.gapped, gap="p"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_members_have_the_gradient_of_their_estimator_and_temperature(name):
    taus = (0.7, 1.3)
    runs = [run(name, tau=tau, seed=seed) for seed, tau in enumerate(taus)] + [run("stgs", seed=5)]
    runs = in_order(runs)
    sampler = sampler_of(*runs)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 10, 4, generator=generator, requires_grad=True)
    g = torch.randn(3, 10, 4, generator=generator)
    samples = sampler(logits)
    (actual,) = torch.autograd.grad(samples, logits, g)
    for member, one in enumerate(runs):
        if one.estimator == name:
            leaf = logits[member].detach().requires_grad_()
            plain = PLAIN[name](leaf, one.tau, given=samples[member].argmax(-1))
            torch.testing.assert_close(
                actual[member], torch.autograd.grad(plain, leaf, g[member])[0]
            )


# --- the polynomial problem


@pytest.mark.parametrize("target", ["constant", "spread"])
@pytest.mark.parametrize("power", [1.5, 2.0, 3.0])
def test_the_table_of_distances_is_the_formula(power, target):
    task = PolynomialModel([run(power=power, target=target)], CPU)
    c = torch.full((6,), 0.45) if target == "constant" else (torch.arange(6) + 0.5) / 6
    x = (torch.rand(50, 6, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    results = []
    for function in (
        lambda x: task._distance(x[None], slice(None))[0],
        lambda x: (x - c).abs().pow(power),
    ):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        results.append((y.detach(), torch.autograd.grad(y.square().sum(), leaf)[0]))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_the_expected_loss_by_enumeration():
    one = run(latents=4, power=1.5, target="spread")
    task = PolynomialModel([one], CPU)
    logits = task.logits.detach()[0] + torch.randn(4, 2)
    probs = logits.double().softmax(-1)
    total = 0.0
    for bits in itertools.product((0, 1), repeat=4):
        probability = torch.stack([probs[i, 1 - bit] for i, bit in enumerate(bits)]).prod()
        distance = sum(abs(bit - (i + 0.5) / 4) ** 1.5 for i, bit in enumerate(bits)) / 4
        total += probability.item() * distance
    assert task._expected(logits[None], slice(None)).item() == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("name", LINES)
def test_every_estimator_finds_the_optimum_of_an_easy_problem(name):
    """Half of the way to the best loss or more, from a spread target that no bias can hide."""
    one = run(name, target="spread", epochs=1, steps_per_epoch=150, learning_rate=0.05, batch=64)
    stack = make_stack([one])
    start = stack.model.evaluate(0)["expected_loss"].item()
    end = stack.advance()["expected_loss"][0]
    best = best_loss(one.document())
    assert end - best < 0.5 * (start - best)


# --- training


def trained(runs, epochs=2):
    stack = make_stack(runs)
    metrics = [stack.advance() for _ in range(epochs)]
    return stack, metrics


def of_member(stack, metrics, one):
    member = stack.runs.index(one)
    return stack.state(member), [{k: v[member] for k, v in row.items()} for row in metrics]


@pytest.mark.parametrize("name", LINES)
def test_a_member_alone_and_in_a_stack(name):
    one = run(name, seed=3, tau=0.9, power=1.5, target="spread")
    others = [run(other, seed=seed, tau=1.2) for other in LINES for seed in (3, 4)]
    others += [run(other, seed=3, power=3.0) for other in LINES]
    together = of_member(*trained([*others, one]), one)
    alone = of_member(*trained([one]), one)
    torch.testing.assert_close(together[0], alone[0], rtol=1e-5, atol=1e-7)
    for row, same in zip(alone[1], together[1], strict=True):
        assert row == pytest.approx(same, rel=1e-5)


def test_score_functions_are_those_of_the_library():
    runs = in_order([run(name, seed=s, power=1.0 + s) for name in SCORES for s in (1, 2)])
    task = PolynomialModel(runs, CPU)
    task.begin_epoch(0)
    control = task._controls
    with torch.no_grad():
        control.alpha.copy_(torch.tensor([0.3, -0.4]))
        control.beta.copy_(torch.tensor([-0.2, 0.5]))
    logits = task.logits
    losses = task.losses()["loss"]
    learned = task.groups["control"]
    actual = torch.autograd.grad(losses.sum(), [logits, *learned.parameters.values()])
    task.begin_epoch(0)
    index = task._noise.categories(logits, repeats=8)
    for member, one in enumerate(runs):
        leaf = logits[member].detach().requires_grad_()

        def f(x, power=one.power):
            return (x - 0.45).abs().pow(power).mean(-1)

        if one.estimator == "reinforce":
            loss = discretegrad.reinforce(
                leaf.expand(8, 6, 2), lambda z: f(z[..., 0]), given=index[member][None]
            )
            (expected,) = torch.autograd.grad(loss.mean(), leaf)
        else:
            number = learned.members.index(member)
            estimator = _alone(one.seed)
            with torch.no_grad():
                estimator.alpha.copy_(control.alpha[number])
                estimator.beta.copy_(control.beta[number])
            bits = (leaf[:, 0] - leaf[:, 1]).expand(4, 6)
            samples = (index[member] == 0).view(2, 4, 6)
            loss = estimator(bits, f, given=samples)
            expected, *of_network = torch.autograd.grad(
                loss.mean(), [leaf, *estimator.parameters()]
            )
            names = [name for name, _ in estimator.named_parameters()]
            wanted = dict(zip(names, of_network, strict=True))
            order = ["alpha", "beta", *(f"network.{part}" for part in _NETWORK_PARTS)]
            for name, x in zip(order, actual[1:], strict=True):
                torch.testing.assert_close(x[number], wanted[name], msg=name)
        torch.testing.assert_close(losses[member], loss.mean())
        torch.testing.assert_close(actual[0][member], expected)


def test_a_stack_goes_on_where_it_was():
    runs = [run(name, seed=s, power=2.0 + s) for name in LINES for s in (0, 1)]
    whole, metrics = trained(runs, 4)
    half, _ = trained(runs, 2)
    again = make_stack(runs)
    for member in range(len(runs)):
        again.load_state(member, half.state(member))
    again.epoch = 2
    later = [again.advance() for _ in range(2)]
    assert later == metrics[2:]
    for member in range(len(runs)):
        for key, x in whole.state(member).items():
            assert torch.equal(again.state(member)[key], x), key


@pytest.mark.parametrize("task", ["polynomial", "vae"])
def test_states_are_copies_of_all_that_members_have(task, monkeypatch):
    kinds = [(0, "adam"), (1, "radam")]
    if task == "vae":
        use_small_images(monkeypatch, 60, 10)
        runs = [
            Vae(estimator="st", categories=4, latents=3, batch=20, epochs=4, seed=s, optimiser=o)
            for s, o in kinds
        ]
    else:
        runs = [run(name, seed=s, optimiser=o) for name in LINES for s, o in kinds]
        # the networks of RODEO then belong to an odd member and the next
        runs.append(run(seed=2))
    stack, _ = trained(runs)
    stack.diverged[1] = 3
    together, alone = stack.states(), [stack.state(member) for member in range(len(runs))]
    # also as they are stored
    stored = [safetensors.torch.load(safetensors.torch.save(state)) for state in together]
    names = {f"parameters/{name}" for name in stack.model.parameters}
    stack.advance()
    for member, state in enumerate(together):
        assert state["diverged"] == stack.diverged[member]
        assert names < set(state)
        assert all(x.is_contiguous() for x in state.values())
        torch.testing.assert_close(alone[member], state, rtol=0, atol=0)
        torch.testing.assert_close(stored[member], state, rtol=0, atol=0)
        first = next(iter(names))
        assert torch.equal(state[first], stack.state(member)[first]) == (member == 1)


def global_settings():
    checks = discretegrad.set_checks("auto")
    discretegrad.set_checks(checks)
    numbers = torch.get_rng_state().tolist()
    return checks, numbers, torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32


def test_an_epoch_can_be_given_up_before_any_step():
    """And training, whether given up or not, leaves global settings alone."""
    settings = global_settings()
    # temperatures that the library warns of where it checks them; a warning would be an error
    runs = [run(name, tf32=True, tau=0.1) for name in LINES]
    stack, asked = make_stack(runs), []

    def stop():
        asked.append(stack._step.item())
        return len(asked) > 8

    first = stack.advance(stop)
    assert asked == [0, 1, 2, 3, 4]
    assert global_settings() == settings
    assert first == make_stack(runs).advance()
    with pytest.raises(EpochAbandoned):
        stack.advance(stop)
    assert asked[5:] == [5, 6, 7, 8]
    assert stack.epoch == 1
    assert global_settings() == settings


def test_an_epoch_can_be_given_up_between_graphs(monkeypatch):
    """They are only queued, so it asks once the graph before the last one is done."""
    done = []

    class Event:
        def record(self, stream):
            self.number = done.count("replay")

        def synchronize(self):
            done.append(f"wait for {self.number}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    stack = make_stack([run(steps_per_epoch=80)], graph=True)
    stack._graphs[None] = SimpleNamespace(replay=lambda: done.append("replay"))
    stack.advance()
    assert done == 4 * ["replay"]
    done.clear()

    def stop():
        done.append("ask")
        return done.count("ask") > 3

    with pytest.raises(EpochAbandoned):
        stack.advance(stop)
    assert done == [
        *("ask", "replay", "ask", "replay", "wait for 1"),
        *("ask", "replay", "wait for 2", "ask"),
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_diverged_member_is_frozen_and_alone(number, monkeypatch):
    runs = [run(seed=seed) for seed in range(3)]
    clean, rows = trained(runs)
    stack = make_stack(runs)
    losses, calls = stack.model.losses, itertools.count(1)

    def broken():
        values = losses()["loss"]
        return {"loss": values * torch.tensor([1.0, number, 1.0]) if next(calls) >= 3 else values}

    monkeypatch.setattr(stack.model, "losses", broken)
    metrics = [stack.advance() for _ in range(2)]
    assert stack.diverged.tolist() == [-1, 3, -1]
    # it has made two updates
    assert stack.state(1)["optimiser/steps"] == 2
    assert stack.state(1)["parameters/logits"].isfinite().all()
    for member in (0, 2):
        torch.testing.assert_close(stack.state(member), clean.state(member), rtol=0, atol=0)
    for row, same in zip(metrics, rows, strict=True):
        for name, values in row.items():
            assert values[0] == same[name][0]
            assert values[1] != values[1]


def test_a_member_that_its_last_update_destroys_has_diverged(tmp_path):
    """No step comes after it whose loss would tell."""
    rates = {0: 1e-3, 1: 1e38, 2: 1e-3}
    runs = [
        run(seed=seed, learning_rate=rate, steps_per_epoch=1, epochs=1)
        for seed, rate in rates.items()
    ]
    stack = make_stack(runs)
    metrics = stack.advance()
    lost = [one.seed == 1 for one in stack.runs]
    assert stack.diverged.tolist() == [1 if one else -1 for one in lost]
    for values in metrics.values():
        assert [math.isnan(value) for value in values] == lost
    outcome = execute(runs, Store(tmp_path))
    assert [one.seed for one in outcome.diverged] == [1]
    assert [one.seed for one in outcome.finished] == [0, 2]


@pytest.mark.parametrize("name", LINES)
def test_a_member_whose_parameters_are_not_finite_has_diverged(name):
    """Even where a draw from them has a finite loss; the others go on as if it were not there."""
    runs = [run(name, seed=seed) for seed in range(3)]
    clean, _ = trained(runs)
    stack = make_stack(runs)
    member = stack.runs.index(runs[1])
    with torch.no_grad():
        stack.model.logits[member] = torch.nan
    before = stack.state(member)
    metrics = [stack.advance() for _ in range(2)]
    assert stack.diverged[member] == 1
    # what its estimator has learned is frozen too
    for key, x in stack.state(member).items():
        if key != "diverged":
            torch.testing.assert_close(x, before[key], rtol=0, atol=0, equal_nan=True, msg=key)
    assert all(math.isnan(row["loss"][member]) for row in metrics)
    for other in set(range(3)) - {member}:
        assert stack.diverged[other] == -1
        for key, x in clean.state(other).items():
            assert torch.equal(stack.state(other)[key], x), key


def test_runs_that_do_not_fit_are_refused():
    for runs, message in (
        ([run(), run(batch=9)], "differ only in what members may differ in"),
        ([run(), replace(run(), tau=1.0)], "expected different runs, got one of them twice"),
    ):
        with pytest.raises(ValueError, match=message):
            make_stack(runs)
    with pytest.raises(ValueError, match="expected estimators that make a sample, got rodeo"):
        sampler_of(run(), run("rodeo"))
