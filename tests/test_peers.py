"""The library inside other people's packages: torchrl, Pyro, transformers. `make test-peers`.

The packages are the extra ``peers``. Where one is not installed its tests are skipped.
"""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Independent

import discretegrad
from discretegrad import distributions
from discretegrad.testing import assert_discrete, normal

# what the packages warn of when they are imported is their own affair
pytestmark = [
    pytest.mark.usefixtures("global_seed"),
    pytest.mark.filterwarnings("default"),
]


def peer(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


# --- torchrl and tensordict


def observations():
    tensordict = peer("tensordict")
    return tensordict.TensorDict({"observation": normal(5, 4, dtype=torch.float32)}, [5])


def linear(out_features):
    module = peer("tensordict.nn").TensorDictModule
    return module(nn.Linear(4, out_features), in_keys=["observation"], out_keys=["logits"])


def test_torchrl_actor():
    torchrl, nets = peer("torchrl.modules"), peer("tensordict.nn")
    actor = torchrl.ProbabilisticActor(
        linear(3),
        in_keys=["logits"],
        out_keys=["action"],
        spec=peer("torchrl.data").OneHot(3),
        distribution_class=distributions.OneHotCategorical,
        distribution_kwargs={"estimator": "reinmax", "unimix": 0.01},
        return_log_prob=True,
        default_interaction_type=nets.InteractionType.RANDOM,
    )
    weight = actor.module[0].module.weight
    step = actor(observations())
    assert_discrete(step["action"], "categorical")
    assert step["action_log_prob"].shape == (5,)
    # the action itself carries a gradient, which torchrl's own one-hot does not
    (gradient,) = torch.autograd.grad((step["action"] * torch.arange(3.0)).sum(), weight)
    assert gradient.abs().max() > 0
    for kind in ("deterministic", "mode"):
        with nets.set_interaction_type(kind):
            likeliest = actor(observations())
        index = likeliest["logits"].argmax(-1)
        assert likeliest["action"].argmax(-1).equal(index)
        assert_discrete(likeliest["action"], "categorical")


def test_tensordict_module_with_bits():
    nets = peer("tensordict.nn")

    def bits(logits, **options):
        return Independent(distributions.Bernoulli(logits=logits, **options), 1)

    net = linear(6)
    sampler = nets.ProbabilisticTensorDictModule(
        in_keys=["logits"],
        out_keys=["code"],
        distribution_class=bits,
        distribution_kwargs={"estimator": "straight_through"},
        return_log_prob=True,
        default_interaction_type=nets.InteractionType.RANDOM,
    )
    step = nets.ProbabilisticTensorDictSequential(net, sampler)(observations())
    assert_discrete(step["code"], "bernoulli")
    assert step["code_log_prob"].shape == (5,)
    assert torch.autograd.grad(step["code"].sum(), net.module.weight)[0].abs().max() > 0


# --- Pyro


@pytest.mark.parametrize("elbo", ["Trace_ELBO", "TraceGraph_ELBO", "TraceMeanField_ELBO"])
def test_pyro_guide_with_a_discrete_site(elbo):
    pyro = peer("pyro")
    from pyro.distributions.torch_distribution import TorchDistributionMixin

    class OneHotCategorical(distributions.OneHotCategorical, TorchDistributionMixin):
        """With what Pyro calls."""

    means, data = torch.tensor([-2.0, 0.0, 3.0]), torch.tensor([-1.9, -1.1, 0.1, 1.6, 3.3])
    batch = len(data)

    def model():
        with pyro.plate("data", batch):
            prior = OneHotCategorical(logits=torch.zeros(3))
            z = pyro.sample("z", prior)
            pyro.sample("x", pyro.distributions.Normal(z @ means, 1.0), obs=data)

    def guide():
        logits = pyro.param("logits", torch.zeros(batch, 3))
        with pyro.plate("data", batch):
            pyro.sample("z", OneHotCategorical(logits=logits, estimator="reinmax"))

    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    optimiser = pyro.optim.ExponentialLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "gamma": 0.99}
    )
    loss = getattr(pyro.infer, elbo)(
        num_particles=16, vectorize_particles=True, max_plate_nesting=1
    )
    svi = pyro.infer.SVI(model, guide, optimiser, loss)
    for _ in range(400):
        svi.step()
        optimiser.step()
    # the log-joint is quadratic in z, so ReinMax has no bias and finds the posterior
    posterior = (-0.5 * (data[:, None] - means).square()).softmax(-1)
    found = pyro.param("logits").detach().softmax(-1)
    pyro.clear_param_store()
    torch.testing.assert_close(found, posterior, rtol=0, atol=0.03)


def test_the_code_on_the_page_runs():
    peer("torchrl")
    pyro = peer("pyro")
    page = Path(__file__).resolve().parents[1] / "docs" / "distributions.md"
    # what is marked `{.python}` is left out where the packages may be missing
    blocks = re.findall(
        r"^``` ?\{?\.?python\}?\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) >= 5
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    step = namespace["actor"](observations())
    assert_discrete(step["action"], "categorical")
    trace = pyro.poutine.trace(namespace["guide"]).get_trace(torch.zeros(5))
    assert trace.nodes["z"]["value"].requires_grad


# --- transformers


@pytest.fixture
def phimoe(monkeypatch):
    """The router of Phi-3.5-MoE, and the numbers by which it drew its multipliers."""
    router = peer("transformers.models.phimoe.modeling_phimoe").sparsemixer
    noise, rand_like = [], torch.rand_like

    def recorded(x):
        noise.append(rand_like(x))
        return noise[-1]

    monkeypatch.setattr(torch, "rand_like", recorded)
    return router, noise


@pytest.mark.parametrize("jitter_eps", [0.01, 0.1, 1.0])
def test_router_is_that_of_phimoe_draw_for_draw(phimoe, jitter_eps):
    router, noise = phimoe
    logits = normal(5000, 16, dtype=torch.float32).requires_grad_()
    g = normal(5000, 2, seed=1, dtype=torch.float32)
    theirs, experts = router(logits, jitter_eps, training=True)
    (expected,) = torch.autograd.grad((theirs * g).sum(), logits)
    weights, same = discretegrad.sparse_mixer(
        logits, 2, jitter_eps=jitter_eps, given=experts, noise=torch.cat(noise, -1)
    )
    assert same.equal(experts)
    torch.testing.assert_close(torch.autograd.grad((weights * g).sum(), logits)[0], expected)
    # theirs is 0.3333 of the probability where ours is a third
    torch.testing.assert_close(weights, theirs, rtol=2e-4, atol=0)
    ratio = (theirs / weights).detach()
    reduced = (ratio - 0.9999).abs() < 2e-6
    assert ((ratio - 1).abs() < 2e-6).logical_or(reduced).all()
    assert reduced.any()


def test_router_in_evaluation_is_that_of_phimoe(phimoe):
    router, _ = phimoe
    logits = normal(5000, 16, dtype=torch.float32).requires_grad_()
    g = normal(5000, 2, seed=1, dtype=torch.float32)
    results = (
        router(logits, 0.1, training=False),
        discretegrad.sparse_mixer(logits, 2, training=False),
    )
    (theirs, experts), (weights, same) = results
    assert same.equal(experts)
    torch.testing.assert_close(weights, theirs)
    gradients = [torch.autograd.grad((x * g).sum(), logits)[0] for x in (weights, theirs)]
    torch.testing.assert_close(*gradients)


def test_what_is_said_about_phimoe(phimoe):
    """What the page on routers warns of; if this fails, they have corrected it."""
    router, _ = phimoe
    assert router(torch.zeros(3, 4), 0.1, training=True, top_k=1)[0].shape == (3, 2)


@pytest.fixture
def wav2vec2():
    """A wav2vec2 of a few thousand random weights, its input, and a function from it to a loss."""
    transformers = peer("transformers")
    config = transformers.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(16, 16),
        conv_stride=(5, 4),
        conv_kernel=(10, 8),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        codevector_dim=8,
        proj_codevector_dim=8,
        num_codevectors_per_group=6,
        num_negatives=3,
        hidden_dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        feat_quantizer_dropout=0.0,
        layerdrop=0.0,
    )
    model = transformers.Wav2Vec2ForPreTraining(config).train()
    sound = torch.randn(2, 400)
    length = int(model._get_feat_extract_output_lengths(400))
    masked = torch.rand(2, length) < 0.5
    others = torch.randint(length, (2, length, 3)) + length * torch.arange(2)[:, None, None]

    def gradient(call):
        model.zero_grad()
        torch.manual_seed(3)
        call(sound, mask_time_indices=masked, sampled_negative_indices=others).loss.backward()
        return model.quantizer.weight_proj.weight.grad.clone()

    return model, gradient


def test_wav2vec2_is_served(wav2vec2, monkeypatch):
    model, gradient = wav2vec2
    plain = gradient(model)
    by_hand = {}
    for name in ("reinmax", "straight_through"):
        with discretegrad.replace_gumbel_softmax(name):
            served = gradient(model)
        function = discretegrad.get(name).function
        with monkeypatch.context() as patch:
            # as if the model had been written with it
            patch.setattr(nn.functional, "gumbel_softmax", lambda x, tau, hard, f=function: f(x))
            by_hand[name] = gradient(model)
        assert served.equal(by_hand[name])
    assert not by_hand["reinmax"].equal(by_hand["straight_through"])
    assert gradient(model).equal(plain)


@pytest.mark.parametrize("whole", [False, True], ids=["the quantiser", "the whole model"])
def test_wav2vec2_is_served_compiled(wav2vec2, compiler, monkeypatch, whole):
    model, gradient = wav2vec2
    with discretegrad.replace_gumbel_softmax("reinmax"):
        eager = gradient(model)
        if whole:
            # the model writes through a boolean mask, which torch else breaks the graph for
            monkeypatch.setattr(torch._dynamo.config, "capture_dynamic_output_shape_ops", True)
            compiled = gradient(torch.compile(model, backend="aot_eager"))
        else:
            model.quantizer.compile(backend="aot_eager", fullgraph=True)
            compiled = gradient(model)
    torch.testing.assert_close(compiled, eager)
