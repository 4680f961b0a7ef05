"""What tests of the kernels of RODEO's network share: inputs, and both ways to the same results."""

import torch

from discretegrad_lab.stack import stein


def few_bits(*shape, step, seed):
    """Numbers of so few bits that what comes before the activation is exact.

    Otherwise a point beside the edge of a hidden unit may lie on one side in float32 and on the
    other in float64.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-20, 21, shape, generator=generator) * step


def inputs(members, points, hidden, device="cpu"):
    """The gradient at the outputs, the points and the layers."""
    x = few_bits(members, points, 2, step=1 / 8, seed=0)
    # some lie on the edges of hidden units without a bias
    x[:, ::5] = 0
    bias = few_bits(members, hidden, step=1 / 16, seed=2)
    bias[:, ::3] = 0
    generator = torch.Generator().manual_seed(3)
    sizes = ((points, 2), (2, hidden), (2,))
    g, outer, outer_bias = (torch.randn(members, *x, generator=generator) for x in sizes)
    layers = [few_bits(members, hidden, 2, step=1 / 16, seed=1), bias, outer, outer_bias]
    return g.to(device), x.to(device), [layer.to(device) for layer in layers]


def by_kernels(g, x, layers):
    """Outputs and gradients."""
    from discretegrad_lab.stack import stein_kernels

    outputs = stein_kernels.forward(x, layers, stein.SLOPE)
    return [outputs, *stein.slopes_by_kernels(g, x, *layers[:-1])]


def assert_members_are_alone(g, x, layers):
    """What kernels give for a member does not depend on the others, to the last bit."""
    from discretegrad_lab.stack import stein_kernels

    def written(own):
        parts = [layer[own] for layer in layers]
        outputs = stein_kernels.forward(x[own], parts, stein.SLOPE)
        return outputs, stein_kernels.partial_slopes(g[own], x[own], parts[:-1], stein.SLOPE)

    together = written(slice(None))
    for member in range(len(x)):
        own = slice(member, member + 1)
        for alone, whole in zip(written(own), together, strict=True):
            assert torch.equal(alone, whole[own])


def by_torch(g, x, layers):
    """The same in double precision."""
    g, x, *layers = (one.double() for one in (g, x, *layers))
    return [stein.stein(x, *layers), *stein.stein_slopes(g, x, *layers[:-1])]


def assert_near(found, expected):
    """Up to the rounding of the largest number."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 3e-6 * expected.abs().max()
