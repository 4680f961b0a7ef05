"""The GPU benchmark: it refuses wrong numbers, and compares with the right things.

Stored results come from ``python benchmarks/kernels.py`` on a machine with a GPU; here the same
code runs in miniature on the CPU, where samplers take the torch path.
"""

import gzip
import itertools

import pytest
import torch

from benchmark_cases import (
    CPU,
    check_complete,
    check_page,
    efficiency,
    kernels,
    lookups,
    pages,
    plain,
    rehearse,
)
from oracles import one_thread

seeded_on_one_thread = pytest.fixture(autouse=True)(one_thread)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A file like MNIST's, of 120 made-up images."""
    path = tmp_path_factory.mktemp("mnist") / "train-images-idx3-ubyte.gz"
    pixels = torch.randint(256, (120, 784), dtype=torch.uint8)
    head = bytes([0, 0, 8, 3, 0, 0, 0, 120, 0, 0, 0, 28, 0, 0, 0, 28])
    path.write_bytes(gzip.compress(head + pixels.numpy().tobytes()))
    return path


@pytest.fixture(scope="module")
def quick(mnist, tmp_path_factory):
    arguments = ["--mnist", str(mnist)]
    return rehearse(kernels.BENCHMARK, arguments, tmp_path_factory.mktemp("quick"))


@pytest.fixture
def results(quick):
    return kernels.PAGE.read(quick.folder)


# the gate of lookups


def lookup_leaves(section):
    torch.manual_seed(0)
    table, logits, hidden = torch.randn(20, 6), torch.randn(40, 20), torch.randn(40, 6)
    leaves = [logits, table] if section == "index" else [hidden, torch.randn(20, 6), table]
    return [leaf.requires_grad_() for leaf in leaves], torch.randn(40, 6)


@pytest.mark.parametrize("section", ["index", "vocabulary"])
def test_the_gate_of_lookups(section):
    leaves, cotangent = lookup_leaves(section)
    for lookup in lookups.LOOKUPS[section]:
        assert lookups.lookup_faults(lookup, leaves, cotangent) == [], lookup.name
    good = next(x for x in lookups.LOOKUPS[section] if x.name == kernels.STRAIGHTFORWARD)
    for place in range(len(leaves)):

        def apply(*given, place=place):
            given = [leaf * 1 for leaf in given]
            given[place].register_hook(lambda gradient: 1.01 * gradient)
            return good.apply(*given)

        (fault,) = lookups.lookup_faults(good._replace(apply=apply), leaves, cotangent)
        assert "off the float64 formula" in fault
    shifted = good._replace(apply=lambda *given: good.apply(*given) + 1e-3)
    assert "no row of the table" in lookups.lookup_faults(shifted, leaves, cotangent)[0]


# what it compares with


@pytest.mark.parametrize(
    ("plain_form", "ours"),
    [
        (plain.straight_through, kernels.calls.sampler("straight_through", tau=0.7)),
        (plain.reinmax, kernels.calls.sampler("reinmax", tau=0.7)),
        (plain.gapped, kernels.calls.sampler("gapped", tau=0.7)),
        (plain.gumbel_rao, kernels.calls.sampler("gumbel_rao", tau=0.7, num_draws=20)),
        (plain.bernoulli_gumbel_rao, kernels.calls.bit_sampler("gumbel_rao", tau=0.7, num_draws=9)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_plain_forms_estimate_the_same(plain_form, ours):
    torch.manual_seed(0)
    row, slope = torch.tensor([0.3, -1.0, 0.8, 0.0]), torch.tensor([1.0, -2.0, 0.5, 3.0])
    draws = {k: v for k, v in ours.keywords.items() if k == "num_draws"}
    means, errors = [], []
    for function in (lambda logits: plain_form(logits, tau=0.7, **draws), ours):
        logits = row.expand(4000, -1).clone().requires_grad_()
        sample = function(logits)
        assert torch.equal(sample, sample.round())
        (gradient,) = torch.autograd.grad(sample, logits, slope + sample.detach())
        means.append(gradient.mean(0))
        errors.append(gradient.var(0) / 4000)
    assert ((means[0] - means[1]).abs() < 5 * sum(errors).sqrt() + 1e-6).all()


def test_images_are_read_or_refused(mnist, tmp_path):
    images = efficiency.read_images(mnist, 100)
    assert images.shape == (100, 784)
    assert 0.9 < images.max() <= 1
    other = tmp_path / "train-labels-idx1-ubyte.gz"
    other.write_bytes(gzip.compress(b"\0\0\x08\x01" + bytes(10**5)))
    for path, count in ((mnist, 121), (other, 100)):
        with pytest.raises(ValueError, match="not MNIST's"):
            efficiency.read_images(path, count)


def test_only_what_the_host_does_not_matter_for_is_timed_on_the_stream():
    gpu = CPU._replace(device=torch.device("cuda"))._replace
    clocks = {}
    with pytest.MonkeyPatch.context() as patch:
        # the cases of a GPU, made on a CPU
        patch.setattr(kernels.Setup, "random", lambda setup, *shape, **rest: torch.zeros(shape))
        for section in kernels.SIZES:
            for case in kernels.sampler_cases(section, gpu()):
                assert case.counts_launches == (section == "small" and case.copies == 0)
                clocks[section, case.about["mode"]] = (case.clock, case.copies)
    assert clocks == {
        ("large", "eager"): ("stream", 0),
        ("large", "graph"): ("stream", 1),
        ("small", "eager"): ("wall", 0),
        ("small", "graph"): ("stream", 1),
        ("small", "graph of 20"): ("wall", 20),
    }


# runs and the page


def test_a_rehearsal_measures_everything_and_leaves_the_stored_results_alone(quick, results):
    assert (quick.code, quick.untouched) == (0, True)
    others = [row for row in results.rows if "source" not in row]
    check_complete(others, kernels.FILE)
    assert all(int(row["peak_extra_bytes"]) > 0 for row in others)
    of_paper = results.of(section="efficiency")
    check_complete(of_paper, efficiency.FILE)
    forms = {(row["case"], row["provider"], row["mode"]) for row in of_paper}
    names = [method.name for method in efficiency.METHODS]
    modes = ("published", "plain", "ours")
    assert forms == set(itertools.product(("QP", "MNIST-VAE"), names, modes))
    assert len(results.rows) == len(others) + len(of_paper)


def test_a_page_shows_what_there_is(results):
    text = check_page(kernels.PAGE, results, pages.label)
    assert all(f"| {method.name} |" in text for method in efficiency.METHODS)
