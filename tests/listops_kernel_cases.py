"""What tests of the kernels of ListOps share: parses by both paths, with the same draws."""

import itertools

import torch
from torch.nn.functional import pad

import discretegrad
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.tasks.listops.cells import Composer, leaf_lstm
from discretegrad_lab.tasks.listops.network import marked
from discretegrad_lab.tasks.listops.parse import Way, parse

# of the largest number of a tensor: float32 against float64 through a few dozen cells
CLOSE = 5e-6


def assert_near(found, expected, limit=CLOSE, name=""):
    """Up to so much of the largest number."""
    assert found.isfinite().all(), name
    error = (found.double() - expected.double()).abs().max()
    assert error <= limit * expected.abs().max(), f"{name}: {error} of {expected.abs().max()}"


def inputs(members, batch, longest, hidden, device="cpu"):
    """What the words give, weights that matter, and lengths of all kinds."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(shape, generator=generator)).to(device)

    tensors = {
        "projected": normal(members, batch, longest, 4 * hidden),
        "leaf": normal(members, 4 * hidden, hidden, scale=0.8 / hidden**0.5),
        "weight": normal(members, 5 * hidden, 2 * hidden, scale=0.8 / hidden**0.5),
        "bias": normal(members, 5 * hidden, scale=0.3),
        "query": normal(members, hidden, scale=4.0),
    }
    lengths = torch.randint(1, longest + 1, (members, batch), generator=generator)
    for place, length in enumerate((longest, 1, 2)):
        if place < batch:
            lengths[:, place] = length
    return tensors, lengths.to(device), normal(members, batch, hidden)


def parsed(tensors, lengths, way):
    """The parse, the states of words, and the tensors as leaves of its graph."""
    own = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    leaves = leaf_lstm(own["projected"], own["leaf"])
    composer = Composer(own["weight"], own["bias"], own["query"])
    return parse(leaves, lengths, composer, way), leaves, own


def noise_of(seeds, epoch=0, device="cpu"):
    noise = Noise(seeds, device)
    noise.begin(epoch)
    return noise


def later(steps, *shape):
    """The gradient of an estimator without noise."""

    def gradient(step, logits, index, g):
        own = logits.detach().requires_grad_()
        with torch.enable_grad():
            sample = discretegrad.reinmax(own, 0.8, given=index)
        return torch.autograd.grad(sample, own, g)[0]

    return gradient


class Replayed(torch.autograd.Function):
    """A choice that is given, with a gradient that is given."""

    @staticmethod
    def forward(ctx, scores, index, step, gradient):
        ctx.save_for_backward(scores, index)
        ctx.step, ctx.gradient = step, gradient
        return marked(index, scores.shape[-1], scores.dtype)

    @staticmethod
    def backward(ctx, g):
        scores, index = ctx.saved_tensors
        return ctx.gradient(ctx.step, scores, index, g.contiguous()), None, None, None


def replay(merges, gradient):
    """A choice of each step as a parse of the kernels made it; it keeps the scores it is shown."""
    steps, shown = itertools.count(), []

    def choose(scores):
        step = next(steps)
        shown.append(scores.detach())
        return Replayed.apply(scores, merges[..., step].clamp(min=0), step, gradient)

    return choose, shown


def gradients_of(root, at_root, own):
    value = (root * at_root.to(root.dtype)).sum()
    return torch.autograd.grad(value, list(own.values()), allow_unused=True)


def by_kernels(shape, device="cpu"):
    """A parse with its gradients, and the arguments of ``check_parse``."""
    tensors, lengths, at_root = inputs(*shape, device)
    noise = noise_of(range(shape[0]), device=device)
    ours, leaves, own = parsed(tensors, lengths, Way(None, noise, later))
    # each merge had a step of the random numbers
    assert noise.counter.item() == shape[2] - 1
    return ours, leaves, dict(zip(own, gradients_of(ours.root, at_root, own), strict=True))


def check_parse(shape, device="cpu", limit=CLOSE):
    """A parse by kernels and all its gradients are those of the torch path in float64."""
    ours, leaves, gradients = by_kernels(shape, device)
    tensors, lengths, at_root = inputs(*shape, device)
    tensors = {name: x.double() for name, x in tensors.items()}
    choose, shown = replay(ours.merges, later(0))
    expected, words, own = parsed(tensors, lengths, choose)
    assert_near(leaves, words, limit, "leaves")
    assert_near(ours.root, expected.root, limit, "root")
    assert torch.equal(ours.merges, expected.merges)
    for step, scores in enumerate(shown):
        found = ours.scores[step].detach()
        scores = pad(scores, (0, found.shape[-1] - scores.shape[-1]), value=-torch.inf)
        # where there is nothing to do, some pair is shown
        assert torch.equal(found.isfinite(), scores.isfinite())
        is_real = (lengths - 1 - step >= 1).unsqueeze(-1) & found.isfinite()
        if is_real.any():
            assert_near(found[is_real], scores[is_real], limit, f"scores {step}")
    for name, right in zip(own, gradients_of(expected.root, at_root, own), strict=True):
        assert (gradients[name] is None) == (right is None), name
        if right is not None:
            assert_near(gradients[name], right, limit, name)
