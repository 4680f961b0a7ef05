"""The function on the page about JAX is ReinMax."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import discretegrad

jax = pytest.importorskip("jax", reason="needs the extra [jax]")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "jax.md"


@pytest.fixture(scope="module")
def on_the_page():
    """The names that the first block of code defines, in float64."""
    (block, *_) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    with jax.enable_x64(True):
        names = {}
        exec(block, names)
        yield names


def test_gradient_is_that_of_the_library(on_the_page):
    rng = np.random.default_rng(0)
    numbers, g = rng.normal(size=(50, 7)), rng.normal(size=(50, 7))
    z, vjp = jax.vjp(on_the_page["reinmax"], jax.random.key(0), jax.numpy.asarray(numbers))
    _, actual = vjp(jax.numpy.asarray(g))
    logits = torch.tensor(numbers, requires_grad=True)
    sample = discretegrad.reinmax(logits, given=torch.tensor(np.asarray(z)).argmax(-1))
    np.testing.assert_array_equal(np.asarray(z), sample.detach().numpy())
    (wanted,) = torch.autograd.grad(sample, logits, torch.tensor(g))
    np.testing.assert_allclose(np.asarray(actual), wanted.numpy(), atol=1e-12)


def test_mean_gradient_of_a_quadratic_is_exact(on_the_page):
    rng = np.random.default_rng(1)
    logits, matrix = rng.normal(size=4), rng.normal(size=(4, 4))
    p = jax.nn.softmax(jax.numpy.asarray(logits))
    # the gradient of the quadratic form at each outcome, and the value there
    samples, values = np.eye(4), matrix.diagonal()
    gradients = [
        on_the_page["backward"]((z, p), (matrix + matrix.T) @ z)[1] for z in jax.numpy.eye(4)
    ]
    mean = sum(weight * gradient for weight, gradient in zip(p, gradients, strict=True))
    exact = sum(float(w) * v * (z - p) for w, v, z in zip(p, values, samples, strict=True))
    np.testing.assert_allclose(np.asarray(mean), np.asarray(exact), atol=1e-12)


def test_transforms_draw_from_the_softmax(on_the_page):
    logits = jax.numpy.log(jax.numpy.asarray([0.7, 0.2, 0.1]))
    keys = jax.random.split(jax.random.key(1), 4000)
    samples = jax.jit(jax.vmap(on_the_page["reinmax"], (0, None)))(keys, logits)
    # within five standard deviations of the most likely category
    assert abs(float(samples.mean(0)[0]) - 0.7) < 5 * (0.7 * 0.3 / 4000) ** 0.5
