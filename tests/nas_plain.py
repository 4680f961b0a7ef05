"""The supernet of NATS-Bench once more, by its protocol alone: modules of torch.nn as the released
code nests them, with biases that have no effect. It takes nothing from the lab, not even names."""

import torch
from torch import nn


def norm(width, weights):
    return nn.BatchNorm2d(width, affine=weights, track_running_stats=weights)


class Convolution(nn.Module):
    """ReLU, convolution, norm. As in the released code there is a bias where the norm has no
    weights; the norm subtracts it again."""

    def __init__(self, inputs, outputs, kernel, stride=1, *, weights):
        super().__init__()
        self.convolution = nn.Conv2d(
            inputs, outputs, kernel, stride, padding=kernel // 2, bias=not weights
        )
        self.norm = norm(outputs, weights)

    def forward(self, x):
        return self.norm(self.convolution(x.relu()))


class Zeros(nn.Module):
    def forward(self, x):
        return 0 * x


class Cell(nn.Module):
    """Four nodes; edge 1<-0, then 2<-0 and 2<-1, then 3<-0, 3<-1 and 3<-2."""

    def __init__(self, width):
        super().__init__()
        self.edges = nn.ModuleList(
            nn.ModuleList(
                [
                    Zeros(),
                    nn.Identity(),
                    Convolution(width, width, 1, weights=False),
                    Convolution(width, width, 3, weights=False),
                    nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
                ]
            )
            for _ in range(6)
        )

    def forward(self, x, z, form):
        node_1 = self.mix(0, x, z, form)
        node_2 = self.mix(1, x, z, form) + self.mix(2, node_1, z, form)
        ends = (self.mix(3 + n, node, z, form) for n, node in enumerate((x, node_1, node_2)))
        return sum(ends)

    def mix(self, edge, x, z, form):
        """All operations of an edge by their samples, or as GDAS does it: the drawn one by its
        sample, plus the samples of the others as numbers."""
        chosen = z[edge].argmax()
        return sum(
            weight * operation(x) if form == "full" or number == chosen else weight
            for number, (weight, operation) in enumerate(
                zip(z[edge], self.edges[edge], strict=True)
            )
        )


class Residual(nn.Module):
    """Twice the channels at half the height and width."""

    def __init__(self, inputs):
        super().__init__()
        self.long = nn.Sequential(
            Convolution(inputs, 2 * inputs, 3, stride=2, weights=True),
            Convolution(2 * inputs, 2 * inputs, 3, weights=True),
        )
        self.short = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, 2 * inputs, 1, bias=False))

    def forward(self, x):
        return self.long(x) + self.short(x)


class PlainSupernet(nn.Module):
    def __init__(self, channels, cells):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1, bias=False), norm(channels, weights=True)
        )

        def stage(width):
            return [Cell(width) for _ in range(cells)]

        self.body = nn.ModuleList(
            [
                *stage(channels),
                Residual(channels),
                *stage(2 * channels),
                Residual(2 * channels),
                *stage(4 * channels),
            ]
        )
        self.last_norm = norm(4 * channels, weights=False)
        self.classifier = nn.Linear(4 * channels, 10)

    def forward(self, x, z, form):
        x = self.stem(x)
        for layer in self.body:
            x = layer(x, z, form) if isinstance(layer, Cell) else layer(x)
        return self.classifier(self.last_norm(x).relu().mean((2, 3)))

    def effective(self):
        """Parameters that have an effect, in the order of the layers: all but biases of cells."""
        cancelled = {
            id(layer.convolution.bias) for layer in self.modules() if isinstance(layer, Convolution)
        }
        return [x for x in self.parameters() if id(x) not in cancelled]

    @torch.no_grad()
    def load(self, weights):
        """Take over such parameters by their places; shapes must be the same."""
        for own, other in zip(self.effective(), weights, strict=True):
            assert own.shape == other.shape
            own.copy_(other)
        return self
