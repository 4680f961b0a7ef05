"""A world model in the manner of Dreamer: a recurrent state with a categorical latent.

The world: a runner on a ring of twelve places goes left or right, and sometimes slips and stays.
The model sees pictures of the place. From its memory and a picture it draws a latent of four
categorical variables, must restore the picture from it, and must have expected it (the prior is
made from memory and action alone). Then it dreams: it rolls on without pictures. One percent of
uniform distribution is mixed into the categories, as Dreamer does, so that none becomes impossible.

    python examples/world_model.py
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import discretegrad

PLACES, PIXELS, SLIP = 12, 16, 0.1
VARIABLES, CATEGORIES, MEMORY = 4, 6, 48
LENGTH, BATCH, STEPS = 7, 64, 250
PICTURES = torch.randn(PLACES, PIXELS, generator=torch.Generator().manual_seed(0))


def episodes() -> tuple[torch.Tensor, torch.Tensor]:
    """Places (time, batch), and the actions before them, -1 or 1."""
    actions = 2 * torch.randint(2, (LENGTH, BATCH)) - 1
    moves = actions * (torch.rand(LENGTH, BATCH) > SLIP)
    start = torch.randint(PLACES, (BATCH,))
    return (start + moves.cumsum(0)) % PLACES, actions.float().unsqueeze(-1)


def mixed(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of 99 % of the softmax and 1 % of the uniform distribution."""
    return (0.99 * logits.softmax(-1) + 0.01 / CATEGORIES).log()


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL of log-probabilities, summed over the variables, averaged over the batch."""
    return (p.exp() * (p - q)).sum((-2, -1)).mean()


class WorldModel(nn.Module):
    """Memory, prior, posterior and decoder."""

    def __init__(self) -> None:
        super().__init__()
        latent = VARIABLES * CATEGORIES
        self.memory = nn.GRUCell(latent + 1, MEMORY)
        self.prior = nn.Sequential(nn.Linear(MEMORY, 64), nn.ReLU(), nn.Linear(64, latent))
        self.posterior = nn.Sequential(
            nn.Linear(MEMORY + PIXELS, 64), nn.ReLU(), nn.Linear(64, latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(MEMORY + latent, 64), nn.ReLU(), nn.Linear(64, PIXELS)
        )

    def forward(self, pictures: torch.Tensor, actions: torch.Tensor, seen: int):
        """Restored pictures and the mean divergence; after ``seen`` steps it sees none."""
        memory = pictures.new_zeros(pictures.shape[1], MEMORY)
        z = pictures.new_zeros(pictures.shape[1], VARIABLES * CATEGORIES)
        restored, total = [], 0.0
        for time, action in enumerate(actions):
            memory = self.memory(torch.cat([z, action], -1), memory)
            shape = (VARIABLES, CATEGORIES)
            logs = expected = mixed(self.prior(memory).unflatten(-1, shape))
            if time < seen:
                both = torch.cat([memory, pictures[time]], -1)
                logs = mixed(self.posterior(both).unflatten(-1, shape))
                # the prior learns to expect, and the posterior a little to be expected
                total = total + 0.5 * divergence(logs.detach(), expected)
                total = total + 0.02 * divergence(logs, expected.detach())
            z = discretegrad.reinmax(logs).flatten(-2)
            restored.append(self.decoder(torch.cat([memory, z], -1)))
        return torch.stack(restored), total / seen


def main() -> None:
    """Train, then dream."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = WorldModel()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(STEPS + 1):
        places, actions = episodes()
        pictures = PICTURES[places]
        restored, surprise = model(pictures, actions, seen=LENGTH)
        loss = mse_loss(restored, pictures)
        optimiser.zero_grad()
        (loss + 0.1 * surprise).backward()
        optimiser.step()
        if step % (STEPS // 5) == 0:
            print(f"  step {step:3}: loss {loss.item():.3f}, surprise {surprise.item():.2f}")
    places, actions = episodes()
    with torch.no_grad():
        dreamt, _ = model(PICTURES[places], actions, seen=3)
    nearest = torch.cdist(dreamt, PICTURES).argmin(-1)
    away = (nearest - places).abs()
    away = torch.minimum(away, PLACES - away)
    print("after three pictures it dreams; distance of the dreamt place from the true one:")
    print("   ", " ".join(f"{x:.2f}" for x in away.float().mean(1).tolist()))
    print(f"    a guess has {PLACES / 4:.2f}, slips alone make up to {SLIP * (LENGTH - 3):.2f}")
    good = away[3:].float().mean().item() < 1
    print("claim: the dream is within one place:", "holds" if good else "fails")


if __name__ == "__main__":
    main()
