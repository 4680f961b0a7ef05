"""A latent code: an autoencoder whose bottleneck is a few categorical variables.

The change to a model that uses ``F.gumbel_softmax(logits, hard=True)`` is one line: call
``discretegrad.reinmax(logits)`` in its place. Here both, and straight-through, train the same small
model on made-up data from the same initial weights, and the losses at the end are compared.

    python examples/latent_code.py
"""

import torch
from torch import nn
from torch.nn.functional import gumbel_softmax, mse_loss

import discretegrad

VARIABLES, CATEGORIES, FEATURES = 6, 4, 24
STEPS, BATCH, SEEDS = 800, 128, 2

SAMPLERS = {
    "F.gumbel_softmax": lambda logits: gumbel_softmax(logits, hard=True),
    "straight-through": discretegrad.straight_through,
    "ReinMax": discretegrad.reinmax,
}


def made_up_data(count: int) -> torch.Tensor:
    """Points that a hidden code determines, seen through a random network with a little noise."""
    generator = torch.Generator().manual_seed(0)
    code = torch.randint(CATEGORIES, (count, VARIABLES), generator=generator)
    features = torch.randn(VARIABLES, CATEGORIES, FEATURES, generator=generator)
    points = features[torch.arange(VARIABLES), code].sum(1).tanh()
    return points + 0.05 * torch.randn(points.shape, generator=generator)


class Autoencoder(nn.Module):
    """Points to logits, a sample of the code, and back to points."""

    def __init__(self) -> None:
        super().__init__()
        size = VARIABLES * CATEGORIES
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, size))
        self.decoder = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, FEATURES))

    def forward(self, points: torch.Tensor, sample) -> torch.Tensor:
        """The reconstruction through one sample of the code."""
        logits = self.encoder(points).unflatten(-1, (VARIABLES, CATEGORIES))
        return self.decoder(sample(logits).flatten(-2))


def train(sample, data: torch.Tensor, seed: int) -> float:
    """The mean loss over the last fifth of the steps."""
    torch.manual_seed(seed)
    model = Autoencoder()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        points = data[torch.randint(len(data), (BATCH,))]
        loss = mse_loss(model(points, sample), points)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    last = losses[-STEPS // 5 :]
    return sum(last) / len(last)


def main() -> None:
    """Train with every sampler and compare."""
    torch.set_num_threads(1)
    data = made_up_data(4096)
    print(f"loss after {STEPS} steps, {SEEDS} seeds; the data have variance {data.var():.3f}")
    means = {}
    for name, sample in SAMPLERS.items():
        losses = [train(sample, data, seed) for seed in range(SEEDS)]
        means[name] = sum(losses) / SEEDS
        print(f"  {name:17}", *(f"{loss:.4f}" for loss in losses), f"  mean {means[name]:.4f}")
    lowest = min(means, key=means.get)
    print("claim: ReinMax ends lowest:", "holds" if lowest == "ReinMax" else "fails")


if __name__ == "__main__":
    main()
