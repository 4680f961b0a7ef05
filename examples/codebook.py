"""A codebook: choose one of many vectors, without a one-hot of the size of the codebook.

``sample_index`` draws the index of an entry together with a handle; ``select`` looks the entry up,
and its backward gives the encoder ReinMax's gradient and the codebook the gradient of a lookup.
``discretegrad.reinmax(logits) @ codebook`` computes the same with a product of matrices. A penalty
keeps all entries in use: without it a codebook of any size ends with a few.

    python examples/codebook.py
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import discretegrad

ENTRIES, FEATURES = 64, 8
STEPS, BATCH = 600, 256


def made_up_data(count: int) -> torch.Tensor:
    """Points around as many centres as the codebook has entries."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(ENTRIES, FEATURES, generator=generator)
    points = centres[torch.randint(ENTRIES, (count,), generator=generator)]
    return points + 0.1 * torch.randn(points.shape, generator=generator)


class Quantiser(nn.Module):
    """Points to logits over a codebook, and to the entry that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, ENTRIES))
        self.codebook = nn.Parameter(0.1 * torch.randn(ENTRIES, FEATURES))

    def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The entries, their indices, and a penalty that is 0 if all are used equally often."""
        logits = self.encoder(points)
        index, handle = discretegrad.sample_index(logits, "reinmax")
        usage = logits.softmax(-1).mean(0)
        penalty = (usage * (ENTRIES * usage).log()).sum()
        return discretegrad.select(handle, self.codebook), index, penalty


def largest_difference(points: torch.Tensor) -> float:
    """Between the gradients of the lookup and of the product with a one-hot, for the same draw."""
    logits = torch.randn(len(points), ENTRIES, requires_grad=True)
    codebook = torch.randn(ENTRIES, FEATURES, requires_grad=True)
    index, handle = discretegrad.sample_index(logits, "reinmax")
    gradients = []
    for entries in (
        discretegrad.select(handle, codebook),
        discretegrad.reinmax(logits, given=index) @ codebook,
    ):
        gradients.append(torch.autograd.grad(mse_loss(entries, points), (logits, codebook)))
    return max((x - y).abs().max().item() for x, y in zip(*gradients, strict=True))


def main() -> None:
    """Train, and compare the lookup with the product."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = made_up_data(4096)
    model = Quantiser()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(STEPS + 1):
        points = data[torch.randint(len(data), (BATCH,))]
        entries, index, penalty = model(points)
        loss = mse_loss(entries, points)
        optimiser.zero_grad()
        (loss + 0.2 * penalty).backward()
        optimiser.step()
        if step % (STEPS // 4) == 0:
            used = index.unique().numel()
            print(f"  step {step:4}: loss {loss.item():.3f}, {used} of {ENTRIES} entries drawn")
    print(f"the data have variance {data.var():.3f}")
    print("claim: a fifth of the variance is left at most:", verdict(loss < data.var() / 5))
    difference = largest_difference(data[:BATCH])
    print(f"largest difference to the product with a one-hot: {difference:.1e}")
    print("claim: the lookup has the gradients of the product:", verdict(difference < 1e-6))


def verdict(claim: bool) -> str:
    """What the tests look for."""
    return "holds" if claim else "fails"


if __name__ == "__main__":
    main()
