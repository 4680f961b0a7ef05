"""Calls of torch's gumbel_softmax served by another sampler: whose, when, and by what."""

import contextlib
import threading
from functools import partial

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import gumbel_softmax as imported_by_name
from torch.utils.checkpoint import CheckpointError, checkpoint

import discretegrad
from discretegrad import replace_gumbel_softmax
from discretegrad.testing import assert_discrete, normal, seeded

WEIGHTS = torch.tensor([1.0, 2.0, 4.0])
pytestmark = pytest.mark.usefixtures("global_seed")


def model(logits, call=functional.gumbel_softmax, hard=True):
    """What somebody else's model does."""
    return call(logits, tau=0.5, hard=hard)


def gradient(logits, f=model, **arguments):
    """With a fixed seed, so that calls can be compared."""
    torch.manual_seed(5)
    return torch.autograd.grad((f(logits, **arguments) * WEIGHTS).sum(), logits)[0]


def expected(logits, name="reinmax", tau=1.0, **options):
    return gradient(logits, discretegrad.get(name).function, tau=tau, **options)


@pytest.fixture
def logits():
    return normal(50, 3, dtype=torch.float32).requires_grad_()


@pytest.mark.parametrize("call", [functional.gumbel_softmax, imported_by_name])
@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("reinmax", {}),
        ("straight_through", {"tau": 1.3}),
        ("gapped", {"gap": "p"}),
        ("gumbel_rao", {"num_draws": 3, "tau": "model"}),
    ],
)
def test_a_call_is_served(logits, call, estimator, options):
    with replace_gumbel_softmax(estimator, **options):
        sample, served = model(logits, call), gradient(logits, call=call)
    assert_discrete(sample, "categorical")
    tau = {"tau": 0.5} if options.get("tau") == "model" else {}
    assert served.equal(expected(logits, estimator, **{**options, **tau}))
    assert not gradient(logits, call=call).equal(served)


def test_the_arguments_of_torch_are_understood(logits):
    expected = discretegrad.reinmax(logits, dim=0, generator=seeded(1))
    with replace_gumbel_softmax("reinmax", generator=seeded(1)):
        before = torch.random.get_rng_state()
        sample = functional.gumbel_softmax(logits, 0.5, True, 1e-10, 0)
        assert torch.random.get_rng_state().equal(before)
    assert sample.equal(expected)
    assert_discrete(sample, "categorical", dim=0)


def test_relaxed_samples_are_left_to_torch_unless_asked_for(logits):
    torchs = gradient(logits, hard=False)
    with replace_gumbel_softmax("reinmax"):
        assert gradient(logits, hard=False).equal(torchs)
    with replace_gumbel_softmax("reinmax", hard=True):
        assert gradient(logits, hard=False).equal(expected(logits))


def test_the_inner_one_serves_and_an_exception_restores(logits):
    torchs = gradient(logits)
    outer = replace_gumbel_softmax("reinmax", hard=True)
    with outer:
        with replace_gumbel_softmax("straight_through"):
            assert gradient(logits).equal(expected(logits, "straight_through"))
            # what the inner one leaves alone goes to the outer one
            assert gradient(logits, hard=False).equal(expected(logits))
        assert gradient(logits).equal(expected(logits))
        with pytest.raises(ValueError, match="NaN"), replace_gumbel_softmax("straight_through"):
            model(logits * float("nan"))
        assert gradient(logits).equal(expected(logits))
    assert gradient(logits).equal(torchs)
    with outer:
        assert gradient(logits).equal(expected(logits))


def test_only_the_thread_that_entered_is_served(logits):
    names = ("reinmax", "straight_through", None)
    together, samples = threading.Barrier(len(names), timeout=60), {}

    def work(name):
        serving = name and replace_gumbel_softmax(name, generator=seeded(1))
        with serving or contextlib.nullcontext():
            together.wait()
            samples[name] = model(logits)
            together.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names[:2]:
        served = gradient(logits, lambda _, name=name: samples[name])
        assert served.equal(expected(logits, name, generator=seeded(1)))
    nobodys = gradient(logits, lambda _: samples[None])
    # of ReinMax and straight-through each row is the same for the same draw; torch's has noise
    assert len(nobodys.unique(dim=0)) == len(logits)


def test_checkpointing_takes_one_for_forward_and_one_for_recomputing(logits):
    def context():
        return replace_gumbel_softmax("reinmax"), replace_gumbel_softmax("reinmax")

    served = gradient(logits, partial(checkpoint, model, use_reentrant=False, context_fn=context))
    assert served.equal(expected(logits))


def test_what_the_page_says_about_checkpointing_without_it(logits):
    """If this fails, torch has changed, and the page should."""
    with replace_gumbel_softmax("reinmax"), pytest.raises(CheckpointError):
        gradient(logits, partial(checkpoint, model, use_reentrant=False))
    torch.manual_seed(5)
    with replace_gumbel_softmax("reinmax"):
        (checkpoint(model, logits, use_reentrant=True) * WEIGHTS).sum().backward()
    assert not torch.allclose(logits.grad, expected(logits))


def test_compiled(logits, compiler):
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torchs = gradient(logits)
    # one compiled model, in and out: torch compiles it again for each
    for _ in range(2):
        for name in ("reinmax", "straight_through"):
            with replace_gumbel_softmax(name):
                served = gradient(logits, compiled)
            torch.testing.assert_close(served, expected(logits, name))
        torch.testing.assert_close(gradient(logits, compiled), torchs)


def test_entered_in_what_is_compiled(logits, compiler):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def whole(logits):
        with replace_gumbel_softmax("reinmax"):
            return model(logits)

    torch.testing.assert_close(gradient(logits, whole), expected(logits))


@pytest.mark.parametrize(
    ("estimator", "options", "error", "message"),
    [
        ("rebar", {}, ValueError, "Only samplers"),
        ("magic", {}, ValueError, "expected estimator to be one of"),
        (3, {}, TypeError, "the name of a sampler"),
        ("reinmax", {"gap": 1.0}, TypeError, "expected no options, got"),
        ("gapped", {"gap": -1.0}, ValueError, "gap of at least 0"),
        ("reinmax", {"hard": False}, ValueError, "expected hard to be None or True, got False"),
        ("reinmax", {"tau": "mine"}, TypeError, "a number or \"model\", got 'mine'"),
        ("reinmax", {"tau": None}, TypeError, 'a number or "model", got None'),
        ("reinmax", {"tau": -1}, ValueError, "expected tau in"),
    ],
)
def test_bad_input(estimator, options, error, message):
    with pytest.raises(error, match=message):
        replace_gumbel_softmax(estimator, **options)
