"""discretegrad.nn.VectorQuantize: its gradient, its losses, its codebook, and its peer."""

import copy
import math

import pytest
import torch

import discretegrad
from discretegrad.linear_select import blocks as in_blocks
from discretegrad.nn import VectorQuantize, distances
from kernel_cases import CATEGORICAL, each, seeded
from kernel_cases import normal as normal_in
from ranks import on_two_ranks
from watched_memory import Memory

DIM, CODES = 3, 5
TERMS = {"codebook_diversity_loss_weight": 0.3, "entropy_loss_weight": -0.2}
# so small that the nearest code is drawn
CERTAIN = 1e-6
pytestmark = pytest.mark.usefixtures("global_seed")


def normal(*shape, seed):
    return normal_in(*shape, seed=seed, dtype=torch.float64)


def layer(**arguments):
    """In float64, with codes that are apart."""
    quantize = VectorQuantize(DIM, CODES, **arguments).double()
    with torch.no_grad():
        quantize.codebook.copy_(normal(CODES, DIM, seed=1))
        quantize.embed_avg.copy_(quantize.codebook)
    return quantize


def vectors(*shape, seed=2):
    return normal(*shape, DIM, seed=seed).requires_grad_()


def plain_logits(x, codebook, scale):
    return -(x.unsqueeze(-2) - codebook).square().sum(-1) / scale


# the gradient of the draw


def linear(code):
    return code @ normal(DIM, seed=3)


def quadratic(code):
    matrix = normal(DIM, DIM, seed=4)
    return ((code @ matrix) * code).sum(-1) + linear(code)


@pytest.mark.parametrize(
    ("estimator", "f"),
    [("reinmax", quadratic), ("straight_through", linear)],
    ids=["reinmax, quadratic", "straight-through, linear"],
)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_mean_gradient_over_all_codes_is_exact(estimator, f, scale):
    """Draws until each code has been drawn; a gradient depends on nothing but the code."""
    quantize = layer(estimator=estimator, sample_codebook_temp=scale, learnable_codebook=True)
    x = vectors(1)
    leaves = (x, quantize.codebook)
    probs = plain_logits(x, quantize.codebook, scale).softmax(-1)
    wanted = torch.autograd.grad((probs * f(quantize.codebook)).sum(), leaves)
    drawn = {}
    for seed in range(1000):
        code, index, _ = quantize(x, generator=seeded(seed))
        if index.item() not in drawn:
            drawn[index.item()] = torch.autograd.grad(f(code).sum(), leaves)
        if len(drawn) == CODES:
            break
    means = [sum(p * drawn[k][which] for k, p in enumerate(probs[0].detach())) for which in (0, 1)]
    for mean, exact in zip(means, wanted, strict=True):
        torch.testing.assert_close(mean, exact, rtol=1e-10, atol=1e-10)


# the noise of gumbel_softmax comes from other seeds; the gradients of mean_released do not sum to
# zero over the codes, so that it matters what the logits of all codes have in common
@each([case for case in CATEGORICAL if case.method not in ("gumbel_softmax", "mean_released")])
def test_each_sampler_gives_what_it_gives_for_all_distances(case):
    arguments = {"estimator": case.name, "tau": 0.7, **case.options}
    quantize = layer(sample_codebook_temp=3.0, learnable_codebook=True, **arguments)
    x, g = vectors(4, 6), normal(4, 6, DIM, seed=5)
    leaves = (x, quantize.codebook)
    code, index, _ = quantize(x, generator=seeded(6))
    actual = torch.autograd.grad(code, leaves, g)
    logits = plain_logits(x, quantize.codebook, 3.0).flatten(0, 1)
    drawn, handle = case.sample_index(logits, 0.7, backend="torch", generator=seeded(6))
    assert torch.equal(index, drawn.view(4, 6))
    selected = discretegrad.select(handle, quantize.codebook).view(4, 6, DIM)
    assert torch.equal(code, selected)
    for found, wanted in zip(actual, torch.autograd.grad(selected, leaves, g), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_backward_belongs_to_the_codebook_of_its_forward():
    x, results = vectors(50), []
    for frozen in (True, False):
        quantize = layer(threshold_ema_dead_code=2)
        before = quantize.codebook.clone()
        code, _, loss = quantize(x, freeze_codebook=frozen, generator=seeded(1))
        assert torch.equal(quantize.codebook, before) == frozen
        results.append(torch.autograd.grad(quadratic(code).sum() + loss, x)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("scale", [1e-30, 1e45])
def test_no_temperature_changes_which_code_is_nearest(scale):
    x = vectors(50).float()
    quantize = layer(sample_codebook_temp=scale).float().eval()
    assert torch.equal(quantize(x)[1], torch.cdist(x, quantize.codebook).argmin(-1))


# its losses


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("learnable", [False, True])
def test_terms_of_the_loss(padded, learnable, monkeypatch):
    monkeypatch.setattr(distances, "_BLOCK_NUMBERS", 4 * CODES)
    quantize = layer(learnable_codebook=learnable, commitment_weight=0.7, **TERMS)
    x = vectors(2, 7)
    mask = normal(2, 7, seed=8) > -0.5 if padded else torch.ones(2, 7, dtype=torch.bool)
    codebook = quantize.codebook.detach().clone().requires_grad_()
    _, index, loss, terms = quantize(x, mask, return_loss_breakdown=True)
    rows, drawn = x[mask], index[mask]
    p = plain_logits(rows, codebook, 1.0).softmax(-1)
    commitment = (rows - codebook[drawn]).square().mean()
    diversity = (p.mean(0) * p.mean(0).log()).sum()
    entropy = -(p * p.log()).sum(-1).mean()
    torch.testing.assert_close(terms, type(terms)(commitment, diversity, entropy))
    plain = 0.7 * commitment + 0.3 * diversity - 0.2 * entropy
    torch.testing.assert_close(loss, plain)
    leaves, others = ((x, quantize.codebook), (x, codebook)) if learnable else ((x,), (x,))
    for found, wanted in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad(plain, others), strict=True
    ):
        torch.testing.assert_close(found, wanted)


def test_a_code_that_nobody_uses_gives_no_nan():
    quantize = VectorQuantize(DIM, CODES, learnable_codebook=True, **TERMS)
    with torch.no_grad():
        quantize.codebook[0] = 1e6
    x = vectors(4).detach().float().requires_grad_()
    quantize(x)[2].backward()
    assert x.grad.isfinite().all()
    assert quantize.codebook.grad.isfinite().all()


@pytest.mark.parametrize("training", [False, True])
def test_all_distances_are_never_in_memory(training, monkeypatch):
    for module in (distances, in_blocks):
        monkeypatch.setattr(module, "_BLOCK_NUMBERS", 2000)
    quantize = VectorQuantize(DIM, 100, learnable_codebook=True, **TERMS).train(training)
    x = vectors(200).detach().float().requires_grad_()
    kept_for_backward = []

    def keep(tensor):
        kept_for_backward.append(tensor.numel())
        return tensor

    with Memory() as memory:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            code, _, loss = quantize(x)
        (code.square().sum() + loss).backward()
    assert 2000 <= memory.most_numbers < 4000 < 200 * 100
    assert sum(kept_for_backward) < 20_000 / 2


# its codebook


@pytest.mark.parametrize("rows", [3, 4, 50])
@pytest.mark.parametrize("learnable", [False, True])
def test_dead_codes_restart_at_vectors_of_the_batch(rows, learnable):
    quantize = layer(
        threshold_ema_dead_code=0.9, learnable_codebook=learnable, sample_codebook_temp=CERTAIN
    )
    with torch.no_grad():
        # far away, so that only the first one is drawn
        quantize.codebook[1:] += 1000
        quantize.embed_avg[1:] += 1000
    x, mask = vectors(rows + 1), torch.arange(rows + 1) > 0
    before = quantize.codebook.detach().clone()
    indices = quantize(x, mask)[1]
    assert (indices[1:] == 0).all()
    restarted = quantize.codebook.detach()[1:]
    moved = (restarted - before[1:]).abs().amax(1) > 500
    # three vectors are enough for three of the four
    assert moved.sum() == min(rows, CODES - 1)
    matches = (restarted[moved].unsqueeze(1) == x.detach()).all(-1).nonzero()[:, 1]
    assert len(matches.unique()) == moved.sum()
    assert 0 not in matches, "padding"
    assert torch.equal(
        quantize.cluster_size[1:][moved], torch.full_like(x[0, 0], 0.9).expand(len(matches))
    )


def test_padding_changes_nothing():
    x, mask = vectors(2, 5), torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    results = []
    for value in (math.nan, 7.0):
        filled = torch.where(mask.unsqueeze(-1), x, value)
        quantize = layer(threshold_ema_dead_code=1, **TERMS)
        code, index, loss = quantize(filled, mask, generator=seeded(1))
        (gradient,) = torch.autograd.grad(code.sum() + loss, x)
        results.append((code, index, loss, gradient, quantize.codebook))
        assert (index == -1).equal(~mask)
        assert not code[~mask].any()
        assert not gradient[~mask].any()
    assert all(map(torch.equal, *results))
    projected = VectorQuantize(DIM, CODES, codebook_dim=2)
    code, _, loss = projected(torch.where(mask.unsqueeze(-1), x, math.nan).float(), mask)
    (code.sum() + loss).backward()
    assert all(p.grad.isfinite().all() for p in projected.parameters())
    quantize = layer(return_zeros_for_masked_padding=False, **TERMS)
    assert torch.equal(quantize(x, mask)[0][~mask], x[~mask])
    quantize.decay, before = 0.0, quantize.codebook.clone()
    nothing, _, loss = quantize(x, torch.zeros_like(mask))
    torch.testing.assert_close(quantize.codebook, before)
    assert loss.item() == 0
    assert torch.equal(nothing, x)
    code, index, _ = layer().eval()(x, mask)
    assert torch.equal(layer().get_output_from_indices(index), code)
    assert torch.equal(layer().get_codes_from_indices(index), code)
    with pytest.raises(TypeError, match=r"indices of dtype torch.int64, got torch.float32"):
        layer().get_codes_from_indices(index.float())
    for read in (layer().get_codes_from_indices, layer().get_output_from_indices):
        for wrong in (CODES, -2):
            with pytest.raises(ValueError, match=rf"indices in \[0, 4\].* got .*{wrong}"):
                read(torch.tensor([0, wrong]))
        assert read(index[:0]).shape == (0, 5, DIM)


def test_a_batch_that_is_not_finite_leaves_the_codebook():
    quantize, x = layer(), vectors(6).detach()
    x[2] = math.nan
    before = discretegrad.set_checks("never")
    try:
        quantize(x)
    finally:
        discretegrad.set_checks(before)
    assert quantize.codebook.isfinite().all()
    with pytest.raises(ValueError, match=r"VectorQuantize: .* NaN or inf in vector 2"):
        quantize(x)


def test_a_codebook_in_float16_bears_a_large_batch():
    quantize = VectorQuantize(DIM, CODES).half()
    x = vectors(70_000).detach().half()  # more than the largest float16
    for _ in range(2):
        quantize(x, generator=seeded(0))
    assert quantize.codebook.isfinite().all()
    counts = quantize.cluster_size.clone()
    # more vectors for one code than it can count: better an old codebook than one of NaN
    quantize.decay = 0.0
    quantize(x.expand(DIM, -1, -1).mul(0), sample_codebook_temp=1e-4)
    assert torch.equal(quantize.cluster_size, counts)
    assert quantize.codebook.isfinite().all()


@pytest.mark.parametrize("shape", [(), (4,), (2, 4), (2, 3, 4), (0,)], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_shapes(shape, training):
    quantize = VectorQuantize(DIM, CODES, codebook_dim=2, threshold_ema_dead_code=1, **TERMS)
    quantize.train(training)
    x = vectors(*shape).float()
    code, index, loss = quantize(x)
    assert (code.shape, index.shape, code.dtype) == (x.shape, shape, torch.float32)
    assert loss.isfinite()
    if x.ndim > 1:
        first = copy.deepcopy(quantize)
        first.channel_last = False
        turned, again, _ = first.eval()(x.movedim(-1, 1))
        assert torch.equal(turned.movedim(1, -1), quantize.eval()(x)[0])
        assert torch.equal(first.get_output_from_indices(again), turned)


# what torch does to modules


def test_compiled_call_is_the_eager_one(compiler):
    x, results = vectors(2, 8), []
    for compiled in (False, True):
        quantize = layer(threshold_ema_dead_code=1, **TERMS)
        call = quantize
        if compiled:
            call = torch.compile(quantize, fullgraph=True, backend="aot_eager")
        torch.manual_seed(1)
        code, index, loss = call(x)
        (gradient,) = torch.autograd.grad(quadratic(code).sum() + loss, x)
        results.append((code, index, loss, gradient, quantize.codebook))
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(traced, eager)


def test_compiled_layer_takes_a_schedule_of_temperatures(compiler):
    quantize = torch.compile(layer(), fullgraph=True, backend="aot_eager")
    for temperature in (1.0, 0.9, 0.8):
        code, index, _ = quantize(vectors(8), sample_codebook_temp=temperature)
        assert code.shape == (*index.shape, DIM)


def test_autocast_computes_the_codes_in_float32():
    quantize = VectorQuantize(DIM, 300, **TERMS).eval()
    low = vectors(100).detach().bfloat16()
    nearest = torch.cdist(low.float(), quantize.codebook).argmin(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        code, index, _ = quantize(low)
        trained, _, loss = quantize.train()(low.requires_grad_())
    assert code.dtype == trained.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    (trained.sum() + loss).backward()
    assert low.grad.dtype == torch.bfloat16
    assert torch.equal(index, nearest)


def test_state_and_copies_go_on_as_the_original():
    quantize, x = layer(threshold_ema_dead_code=1), vectors(30)
    quantize(x)
    twin, fresh = copy.deepcopy(quantize), layer(threshold_ema_dead_code=1)
    fresh.load_state_dict(quantize.state_dict())
    results = [other(x, generator=seeded(3)) for other in (quantize, twin, fresh)]
    for other, result in zip((twin, fresh), results[1:], strict=True):
        assert all(map(torch.equal, result, results[0]))
        assert torch.equal(other.codebook, quantize.codebook)
    for estimator in ("reinmax", discretegrad.reinmax, discretegrad.get("reinmax")):
        assert "estimator='reinmax'" in repr(layer(estimator=estimator))


def train_a_rank(rank):
    """One process of the test below."""
    torch.manual_seed(rank)
    quantize = layer(threshold_ema_dead_code=1.5, sample_codebook_temp=CERTAIN)
    quantize(vectors(10, seed=rank))
    return quantize.state_dict()


@pytest.mark.slow
def test_processes_share_one_codebook(tmp_path):
    first, second = on_two_ranks(train_a_rank, tmp_path)
    assert all(torch.equal(first[name], second[name]) for name in first)
    alone = layer(threshold_ema_dead_code=0, sample_codebook_temp=CERTAIN)
    alone(torch.cat([vectors(10, seed=rank) for rank in (0, 1)]))
    dead = alone.cluster_size < 1.5
    assert dead.any()
    assert not dead.all()
    torch.testing.assert_close(first["codebook"][~dead], alone.codebook[~dead])


# its peer


@pytest.fixture
def peer():
    package = pytest.importorskip("vector_quantize_pytorch", reason="needs the extra [peers]")
    return package.VectorQuantize


def pair(peer, dim=16, size=32, peer_only=None, **arguments):
    """Ours and theirs with the same codebook and the same linear layers."""
    theirs = peer(dim, size, rotation_trick=False, **arguments, **(peer_only or {}))
    ours = VectorQuantize(dim, size, sample_codebook_temp=CERTAIN, **arguments)
    with torch.no_grad():
        codes = torch.randn(theirs.codebook.shape)
        for codebook in (theirs._codebook.embed, ours.codebook):
            codebook.copy_(codes)
        for average in (theirs._codebook.embed_avg, ours.embed_avg):
            average.copy_(codes)
    for name in ("project_in", "project_out"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    return ours, theirs


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((4, 16), {}),
        ((2, 9, 16), {}),
        ((2, 9, 16), {"codebook_dim": 8}),
        ((2, 16, 9), {"channel_last": False}),
        ((2, 16, 5, 6), {"accept_image_fmap": True}),
        ((2, 9, 16), {"return_zeros_for_masked_padding": False}),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_evaluation_is_that_of_vector_quantize_pytorch(peer, shape, arguments, masked):
    if masked and (len(shape) != 3 or arguments.get("channel_last") is False):
        pytest.skip("theirs has masks for (batch, length, dim) only")
    ours, theirs = pair(peer, **arguments)
    x = torch.randn(shape)
    mask = torch.rand(shape[:2]) > 0.3 if masked else None
    results = [quantize.eval()(x, mask=mask) for quantize in (ours, theirs)]
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)
        assert mine.dtype == other.dtype


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("learnable", [False, True])
def test_certain_training_is_that_of_vector_quantize_pytorch(peer, masked, learnable):
    """Codes, losses, their gradients and the moving averages, step by step."""
    codebook = {"learnable_codebook": True, "ema_update": False} if learnable else {}
    ours, theirs = pair(peer, commitment_weight=0.25, decay=0.7, **codebook)
    for _ in range(3):
        x = torch.randn(2, 9, 16)
        mask = torch.rand(2, 9) > 0.3 if masked else None
        gradients = []
        for quantize in (ours, theirs):
            inputs = x.clone().requires_grad_()
            codes, index, loss = quantize(inputs, mask=mask)
            leaves = [inputs, *quantize.parameters()]
            gradients.append((codes.detach(), index, loss, *torch.autograd.grad(loss, leaves)))
        for mine, other in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, other.reshape(mine.shape))
        torch.testing.assert_close(ours.codebook, theirs.codebook)
        torch.testing.assert_close(ours.cluster_size, theirs._codebook.cluster_size[0])


# what is refused

X = torch.zeros(2, 3, DIM)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": 0}, ValueError, "expected dim of at least 1"),
        ({"codebook_size": 2.0}, TypeError, "expected codebook_size to be an int"),
        ({"heads": 2}, TypeError, "got 'heads'. Not every argument of vector-quantize-pytorch"),
        ({"gap": 1.0}, TypeError, r"options of reinmax \(it has none\), got 'gap'"),
        ({"estimator": "gapped", "gap": -1.0}, ValueError, "finite gap of at least 0"),
        ({"estimator": "reinforce"}, ValueError, "VectorQuantize: expected estimator to be one of"),
        ({"tau": 0.0}, ValueError, "expected tau in"),
        ({"tau": torch.ones(())}, TypeError, "expected tau to be a number, got a tensor"),
        ({"sample_codebook_temp": 0}, ValueError, "sample_codebook_temp to be a positive number"),
        ({"decay": 1.5}, ValueError, "expected decay to be a number between 0 and 1, got 1.5"),
        ({"commitment_weight": -1}, ValueError, "commitment_weight to be a finite.*least 0"),
        ({"entropy_loss_weight": math.nan}, ValueError, "entropy_loss_weight to be a finite"),
        ({"eps": 0.0}, ValueError, "expected eps to be a positive number"),
        ({"eps": "small"}, TypeError, "expected eps to be a number, got str"),
        ({"channel_last": 1}, TypeError, "expected channel_last to be True or False"),
        ({"learnable_codebook": True, "ema_update": True}, ValueError, "Leave one of them out"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        VectorQuantize(**{"dim": DIM, "codebook_size": CODES, **arguments})


@pytest.mark.parametrize(
    ("made", "called", "error", "message"),
    [
        ({}, {"x": [0.0]}, TypeError, "expected x to be a floating-point tensor, got list"),
        ({}, {"x": X.long()}, TypeError, "got torch.int64"),
        ({}, {"x": X[..., :2]}, ValueError, r"of shape \(..., 3\), got \(2, 3, 2\)"),
        ({"channel_last": False}, {"x": torch.zeros(3)}, ValueError, r"\(batch, 3, ...\)"),
        ({"accept_image_fmap": True}, {"x": X}, ValueError, r"\(batch, 3, height, width\)"),
        ({}, {"mask": X}, TypeError, "expected mask to be a boolean tensor"),
        ({}, {"mask": torch.ones(2, dtype=torch.bool)}, ValueError, r"the indices, \(2, 3\)"),
        ({}, {"generator": 1}, TypeError, "expected generator to be a torch.Generator"),
        ({}, {"freeze_codebook": 1}, TypeError, "expected freeze_codebook to be True or False"),
        ({}, {"sample_codebook_temp": -1.0}, ValueError, "a positive number, got -1.0"),
        ({}, {"topk": 2}, TypeError, "topk"),
    ],
)
def test_bad_calls(made, called, error, message):
    quantize = VectorQuantize(DIM, CODES, **made)
    with pytest.raises(error, match=message):
        quantize(**{"x": X, **called})
