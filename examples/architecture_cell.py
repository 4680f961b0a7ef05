"""An architecture cell: which operation stands on which edge, searched while the weights learn.

A node of a cell adds up six edges, and each edge carries one of five operations: 15,625
architectures. In every step each example draws its own one, a one-hot on each edge, and the same
loss trains the weights of the edges and, through ReinMax's gradient, the logits of the choices. The
squared error is a quadratic function of the choices of a node, for which that gradient is exact in
expectation. The data come from a cell of the same kind, so that what was found can be compared with
what is there.

    python examples/architecture_cell.py
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import discretegrad

WIDTH, STEPS, BATCH = 6, 400, 128

OPERATIONS = {
    "zero": torch.zeros_like,
    "identity": lambda x: x,
    "square": torch.square,
    "sine": lambda x: (3 * x).sin(),
    "absolute": torch.abs,
}
SECRET = ("sine", "square", "absolute", "identity", "zero", "sine")
EDGES = len(SECRET)


def cell(x: torch.Tensor, scale: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
    """The node: (batch, width).

    Args:
        x: (batch, edges, width), what the edges start from.
        scale: (edges, width), the weights.
        choices: (batch, edges, operations), one-hot.
    """
    inputs = x * scale
    outputs = torch.stack([operation(inputs) for operation in OPERATIONS.values()])
    return torch.einsum("beo,obew->bw", choices, outputs)


def chosen(numbers: list[int]) -> torch.Tensor:
    """The same operations for the whole batch, as one-hots."""
    return torch.eye(len(OPERATIONS))[numbers].expand(BATCH, -1, -1)


class Truth:
    """The cell that makes the data."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.scale = 0.5 + torch.rand(EDGES, WIDTH, generator=generator)
        names = list(OPERATIONS)
        self.choices = chosen([names.index(name) for name in SECRET])

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and outputs."""
        x = torch.randn(BATCH, EDGES, WIDTH)
        return x, cell(x, self.scale, self.choices)


def main() -> None:
    """Search, and compare."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    truth = Truth()
    logits = nn.Parameter(torch.zeros(EDGES, len(OPERATIONS)))
    scale = nn.Parameter(torch.ones(EDGES, WIDTH))
    optimiser = torch.optim.Adam(
        [{"params": [scale], "lr": 0.02}, {"params": [logits], "lr": 0.05}]
    )
    for step in range(STEPS + 1):
        x, target = truth.batch()
        choices = discretegrad.reinmax(logits.expand(BATCH, -1, -1))
        loss = mse_loss(cell(x, scale, choices), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % (STEPS // 4) == 0:
            sure = logits.softmax(-1).amax(-1).mean().item()
            print(f"  step {step:3}: loss {loss.item():6.3f}, mean largest probability {sure:.2f}")
    best = logits.argmax(-1).tolist()
    x, target = truth.batch()
    error = mse_loss(cell(x, scale, chosen(best)), target).item()
    found = tuple(list(OPERATIONS)[number] for number in best)
    print("found: ", ", ".join(found))
    print("secret:", ", ".join(SECRET))
    print(f"error {error:.4f} of a variance of {target.var().item():.2f}")
    small = error < 0.05 * target.var().item()
    print("claim: it explains 95 % of the variance:", "holds" if small else "fails")


if __name__ == "__main__":
    main()
