"""The search of the released code in plain PyTorch: the network of NATS-Bench, and one search."""

from typing import Any

import torch
from torch import Tensor, nn

import discretegrad
from discretegrad_lab.tasks.nas.cells import EDGES, OPERATIONS


class Operation(nn.Module):
    """ReLU, convolution, batch norm."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, width, kernel, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(width, affine=False, track_running_stats=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        y: Tensor = self.layers(x)
        return y


class Nothing(nn.Module):
    """Zeros."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return x.mul(0.0)


class PlainCell(nn.Module):
    """Five operations on each of six edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edges = nn.ModuleList(
            nn.ModuleList(
                [
                    Nothing(),
                    nn.Identity(),
                    Operation(width, 1),
                    Operation(width, 3),
                    nn.AvgPool2d(3, 1, 1, count_include_pad=False),
                ]
            )
            for _ in EDGES
        )

    def forward(self, x: Tensor, z: Tensor, index: Tensor) -> Tensor:
        """The last node."""
        nodes = [x]
        for node in (1, 2, 3):
            total: Any = 0
            for edge, (end, start) in enumerate(EDGES):
                if end == node:
                    chosen = index[edge].item()
                    operations: Any = self.edges[edge]
                    for number, operation in enumerate(operations):
                        weight = z[edge, number]
                        if number == chosen:
                            total = total + weight * operation(nodes[start])
                        else:
                            total = total + weight
            nodes.append(total)
        return nodes[-1]


class Halve(nn.Module):
    """A residual block that halves the height and the width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Half the height and width."""
        y: Tensor = self.block(x) + self.shortcut(x)
        return y


class PlainSearch:
    """One search."""

    def __init__(self, run: Any, device: torch.device) -> None:
        widths = [run.channels * 2**stage for stage in range(3)]
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0])
        )
        layers: list[nn.Module] = []
        for stage, width in enumerate(widths):
            layers += [Halve(widths[stage - 1], width)] if stage else []
            layers += [PlainCell(width) for _ in range(run.cells)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Sequential(
            nn.BatchNorm2d(widths[-1], affine=False, track_running_stats=False), nn.ReLU()
        )
        self.classifier = nn.Linear(widths[-1], 10)
        modules = nn.ModuleList([self.stem, self.layers, self.head, self.classifier]).to(device)
        self.alpha = nn.Parameter(1e-3 * torch.randn(6, 5, device=device))
        self.weights = torch.optim.SGD(
            modules.parameters(), 0.025, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        self.architecture = torch.optim.Adam(
            [self.alpha], 3e-4, betas=(0.5, 0.999), weight_decay=run.decay
        )
        shape = (run.batch, 3, 32, 32)
        self.images = torch.randn(shape, device=device)
        self.labels = torch.randint(10, (run.batch,), device=device)

    def loss(self, z: Tensor) -> Tensor:
        """Of the cell that a sample stands for."""
        index = z.argmax(-1)
        x = self.stem(self.images)
        for layer in self.layers:
            x = layer(x, z, index) if isinstance(layer, PlainCell) else layer(x)
        logits = self.classifier(self.head(x).mean((2, 3)))
        return nn.functional.cross_entropy(logits, self.labels)

    def step(self) -> None:
        """Both updates; unsampled operations keep gradients of zero."""
        for optimiser in (self.weights, self.architecture):
            self.weights.zero_grad(set_to_none=False)
            self.architecture.zero_grad(set_to_none=False)
            self.loss(discretegrad.reinmax(self.alpha)).backward()
            optimiser.step()

    def named_weights(self) -> dict[str, Tensor]:
        """Under the names that the lab gives them."""
        names = {"stem.kernel": self.stem[0].weight, **_norm("stem", self.stem[1])}
        stage, number = 0, 0
        for layer in self.layers:
            if isinstance(layer, Halve):
                stage, number = stage + 1, 0
                block, name = layer.block, f"reduction{stage}"
                for part, place in (("first", 1), ("second", 4)):
                    names[f"{name}.{part}.kernel"] = block[place].weight
                    names |= _norm(f"{name}.{part}", block[place + 1])
                names[f"{name}.shortcut.kernel"] = layer.shortcut[1].weight
                continue
            for edge, (end, start) in enumerate(EDGES):
                for operation in (2, 3):
                    name = f"stage{stage}.cell{number}.{end}<-{start}.{OPERATIONS[operation]}"
                    names[f"{name}.kernel"] = layer.edges[edge][operation].layers[1].weight
            number += 1
        linear = self.classifier
        return names | {"head.linear": linear.weight, "head.offset": linear.bias}


def _norm(name: str, layer: Any) -> dict[str, Tensor]:
    return {f"{name}.scale": layer.weight, f"{name}.shift": layer.bias}
