"""``gumbel_rao_seeded``: noise that belongs to a seed, whatever else is in the batch."""

import math

import pytest
import torch
from scipy import stats

import discretegrad
from discretegrad._noise import _scramble, row_seeds, seeded_exponential
from discretegrad.kernels import dispatch

LEVEL = 1e-6
KERNELS = "triton" if dispatch._INTERPRETED else None
BACKENDS = ["torch", pytest.param("triton", marks=pytest.mark.skipif(not KERNELS, reason="no GPU"))]
# NumPy tells of infinities that a GPU makes silently
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


def problem(*shape, seed_axes=1):
    generator = torch.Generator().manual_seed(0)
    logits, g = (torch.randn(*shape, generator=generator) for _ in range(2))
    index = logits.softmax(-1).flatten(0, -2).multinomial(1, generator=generator)
    seed = torch.randint(2**63 - 1, shape[:seed_axes], generator=generator)
    return logits, g, index.view(shape[:-1]), seed


def gradient(logits, g, index, seed, tau=0.7, **options):
    leaf = logits.clone().requires_grad_()
    z = discretegrad.gumbel_rao_seeded(leaf, index, seed, tau, num_draws=6, **options)
    assert torch.equal(z, torch.nn.functional.one_hot(index, logits.shape[-1]).to(logits))
    return torch.autograd.grad(z, leaf, g)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("categories", [2, 3, 10, 40])
def test_what_a_seed_gives_does_not_depend_on_the_batch(backend, categories, monkeypatch):
    if backend == "triton":
        from discretegrad.kernels import gumbel_rao

        # so that 40 categories are too many to stay on chip
        monkeypatch.setattr(gumbel_rao, "LONGEST", 16)
        monkeypatch.setattr(gumbel_rao, "LONG_BLOCK", 16)
    logits, g, index, seed = problem(3, 5, 2, categories)
    tau = torch.tensor([0.5, 1.0, 1.7]).view(3, 1, 1, 1)
    together = gradient(logits, g, index, seed, tau, backend=backend)
    for member in range(3):
        alone = gradient(
            logits[member],
            g[member],
            index[member],
            seed[member],
            tau[member],
            backend=backend,
        )
        torch.testing.assert_close(together[member], alone, rtol=1e-5, atol=1e-7)
    other = gradient(logits, g, index, seed.roll(1), tau, backend=backend)
    assert (other != together).any(-1).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed_axes", [0, 1, 2])
def test_a_seed_for_any_of_the_first_axes(backend, seed_axes):
    logits, g, index, seed = problem(2, 3, 4, seed_axes=seed_axes)
    found = gradient(logits, g, index, seed, backend=backend)
    assert found.sum(-1).abs().max() < 1e-6
    # rows with the same logits, gradient and category have noise of their own
    same = gradient(
        logits[:1, :1].expand_as(logits),
        g[:1, :1].expand_as(g),
        index[:1, :1].expand_as(index),
        seed,
        backend=backend,
    )
    assert len(same.flatten(0, 1).unique(dim=0)) == 6


def test_it_is_the_form_for_given_noise():
    logits, g, index, seed = problem(3, 5, 4)
    seeds = row_seeds(seed, index.unsqueeze(-1))
    noise = seeded_exponential(seeds, 0, 6, logits)
    leaf = logits.clone().requires_grad_()
    z = discretegrad.gumbel_rao_at(leaf, index, noise, 0.7)
    torch.testing.assert_close(gradient(logits, g, index, seed), torch.autograd.grad(z, leaf, g)[0])


def test_noise_of_many_rows_and_seeds():
    seed = torch.arange(200)
    rows = row_seeds(seed, torch.zeros(200, 300, 1))
    assert rows.min() >= 0
    assert len(rows.unique()) == rows.numel()
    noise = seeded_exponential(rows, 0, 1, torch.zeros(200, 300, 2))[0]
    assert stats.kstest(noise.flatten(), "expon").pvalue > LEVEL
    for one, other in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        correlation = torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1]
        assert correlation.abs() * math.sqrt(one.numel()) < stats.norm.isf(LEVEL / 2)


def test_seeds_do_not_share_their_noise():
    """Not even those that a mix of their halves cannot tell apart."""
    generator = torch.Generator().manual_seed(0)
    low = torch.randint(2**32, (100_000,), generator=generator)
    high = torch.arange(100_000) * 21_001
    random = (high << 32) | low
    # the same word comes out of the first round
    alike = (high << 32) | (_scramble(high) ^ 123)
    for seed in (random, alike):
        assert len(row_seeds(seed, torch.zeros(100_000, 2)).unique()) == 200_000


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_else_is_read(backend):
    logits, g, index, seed = problem(3, 4)
    before = torch.get_rng_state()
    first = gradient(logits, g, index, seed, backend=backend)
    assert torch.equal(first, gradient(logits, g, index, seed, backend=backend))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_seeds(backend):
    logits, _, index, _ = problem(3, 5, 4)

    def call(seed):
        discretegrad.gumbel_rao_seeded(logits, index, seed, backend=backend)

    with pytest.raises(TypeError, match="gumbel_rao_seeded: expected seed to be an int64 tensor"):
        call(7)
    with pytest.raises(TypeError, match=r"int64 tensor, got torch\.float32"):
        call(torch.zeros(3))
    for shape in ((5,), (3, 5, 4), (3, 5, 1)):
        with pytest.raises(ValueError, match=r"first axes of \(3, 5\) on cpu, got shape"):
            call(torch.zeros(shape, dtype=torch.int64))


def test_no_rows():
    leaf = torch.zeros(0, 3, requires_grad=True)
    index = torch.zeros(0, dtype=torch.int64)
    discretegrad.gumbel_rao_seeded(leaf, index, index).sum().backward()
    assert leaf.grad.shape == (0, 3)
