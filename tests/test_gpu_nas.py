"""Architecture search on a CUDA device, and several processes that share one."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import avg_pool2d, cross_entropy, one_hot

import nas_cases
from discretegrad_lab.runs import processes
from discretegrad_lab.stack.trainer import Stack
from discretegrad_lab.tasks.nas import every, pooling, slopes
from discretegrad_lab.tasks.nas.network import Samples, Supernet
from kernel_cases import without_waiting
from lab_tiny import TINY

pytestmark = [
    pytest.mark.gpu,
    # of torch's own compiler
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

STAGES = [(64, 16, 32, 32), (40, 32, 16, 16), (64, 64, 8, 8)]
"""Shapes of nodes, one of them of the last batch of an epoch."""


@pytest.mark.parametrize("full", [False, True], ids=["gdas", "full"])
def test_gradients_are_those_of_a_cpu(full, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    cell = (3, 2, 1, 4, 3, 0)
    network = Supernet(4, 2)
    generator = torch.Generator().manual_seed(3)
    weights = network.start(generator).double().unsqueeze(0)
    x, labels = torch.randn(8, 3, 16, 16, generator=generator).double(), torch.arange(8)
    found = {}
    for device in ("cpu", "cuda"):
        z = one_hot(torch.tensor(cell), 5).double().to(device).requires_grad_()
        flat = weights.to(device).requires_grad_()
        parts = network.weights(flat, cell)
        samples = Samples(z, network.joined(flat.detach()) if full else None)
        logits = network(x.to(device), parts, cell, samples)
        loss = cross_entropy(logits, labels.to(device))
        found[device] = [g.cpu() for g in torch.autograd.grad(loss, (z, flat))]
    for ours, theirs in zip(found["cuda"], found["cpu"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("full", [False, True], ids=["gdas", "full"])
def test_kernels_give_the_gradients_of_the_torch_path(full, monkeypatch):
    """With the real channels and images, at the same point; of few cells, since many magnify what
    float32 rounds: in 15 by a factor of 10,000 and more."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    cell = (3, 2, 1, 4, 3, 0)
    network = Supernet(16, 1)
    generator = torch.Generator().manual_seed(3)
    weights = network.start(generator).unsqueeze(0).cuda()
    x = torch.randn(64, 3, 32, 32, generator=generator).cuda()
    labels = torch.randint(10, (64,), generator=generator).cuda()
    found = []
    for kernels in (True, False):
        if not kernels:
            for module in (every, pooling, slopes):
                monkeypatch.setattr(module, "has_kernels", lambda x: False)
        z = one_hot(torch.tensor(cell), 5).float().cuda().requires_grad_()
        samples = Samples(z, network.joined(weights) if full else None)
        logits = network(x, network.weights(weights, cell), cell, samples)
        found += torch.autograd.grad(cross_entropy(logits, labels), z)
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("shape", [*STAGES, (5, 3, 9, 7)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_averages_of_neighbours(shape, dtype):
    """By a kernel, and in float64 by torch: both as on a CPU."""
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    x.requires_grad_()
    exact = avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    on_gpu = x.detach().cuda().to(memory_format=torch.channels_last).requires_grad_()
    found = pooling.averages(on_gpu)
    assert (type(found.grad_fn).__name__ == "_AveragesBackward") == (dtype == torch.float32)
    torch.testing.assert_close(found.cpu(), exact)
    (slopes,) = torch.autograd.grad(found, on_gpu, g.cuda())
    torch.testing.assert_close(slopes.cpu(), *torch.autograd.grad(exact, x, g))


# of three channels, of which rows are no multiple of 16 bytes
@pytest.mark.parametrize("shape", [*STAGES, (5, 3, 9, 7)], ids=str)
def test_sums_of_joined_convolutions(shape, monkeypatch):
    parts = nas_cases.joined_parts(shape, "cuda")
    found = every.sums(parts)
    monkeypatch.setattr(every, "has_kernels", lambda x: False)
    torch.testing.assert_close(found, every.sums(parts), rtol=1e-5, atol=1e-2)


def test_inner_products_of_many_pairs():
    nas_cases.check_inner_products((1, 1025, 64 * 16 * 32 * 32), "cuda")


@pytest.mark.parametrize("gradient", ["gdas", "full"])
def test_a_step_waits_for_the_gpu_only_where_cells_are_drawn(gradient):
    model = nas_cases.small_model([nas_cases.run(gradient=gradient)], "cuda")
    model.begin_epoch(0)
    for step in range(2):
        model.prepare(step)
        # the first step loads kernels
        with without_waiting() if step else nullcontext():
            for name, leaf in zip(model.loss_names, (model.weights, model.alpha), strict=True):
                torch.autograd.grad(model.loss(name).sum(), leaf)


@pytest.mark.parametrize(("estimator", "gradient"), [("reinmax", "full"), ("stgs", "gdas")])
def test_a_search_trains_and_goes_on(estimator, gradient):
    def make():
        run = nas_cases.run(estimator, tau_end=0.5, gradient=gradient)
        return Stack(nas_cases.small_model, [run], "cuda")

    whole, first, second = make(), make(), make()
    for _ in range(3):
        metrics = whole.advance()
    first.advance()
    second.load_state(0, first.state(0))
    second.epoch = 1
    second.advance()
    again = second.advance()
    assert metrics["loss"][0] == pytest.approx(again["loss"][0], rel=0.05)
    for name, x in whole.state(0).items():
        # sums on a GPU round differently each time
        torch.testing.assert_close(second.state(0)[name], x, rtol=0.02, atol=0.02, msg=name)


def test_two_processes_share_the_gpu(tmp_path):
    outcome = processes.execute(TINY.runs(), tmp_path / "runs", processes=2, device="cuda")
    assert outcome.complete
    assert len(outcome.finished) == len(TINY.runs())
