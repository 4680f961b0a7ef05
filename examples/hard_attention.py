"""Hard attention: read exactly one of many places, and learn which.

Soft attention mixes all values. Here one place is drawn from the softmax of the scores, so the
reader sees a single value, and the scores learn from ReinMax's gradient. The task: sixteen places
hold a key and a value each, a question holds a distorted key, and the answer is the value behind
it. Nobody says which place is right: all that comes back is how wrong the answer was. Without a
gradient for the draw nothing of that reaches the scores, and they stay as they were.

    python examples/hard_attention.py
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss, one_hot

import discretegrad

PLACES, WIDTH, KEYS = 16, 8, 40
STEPS, BATCH = 300, 128


def drawn_without_gradient(scores: torch.Tensor) -> torch.Tensor:
    """What is left if nothing is done about the draw."""
    return discretegrad.reinmax(scores.detach())


class Questions:
    """Keys that are known in two versions: as places show them, and as questions do."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.shown = torch.randn(KEYS, WIDTH, generator=generator)
        distortion = torch.randn(WIDTH, WIDTH, generator=generator)
        self.asked = (self.shown @ distortion).tanh()

    def batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values of all places, the question, and the place that holds the answer."""
        keys = torch.rand(BATCH, KEYS).argsort(-1)[:, :PLACES]
        right = torch.randint(PLACES, (BATCH,))
        values = torch.randn(BATCH, PLACES, WIDTH)
        asked = self.asked[keys.gather(1, right.unsqueeze(1)).squeeze(1)]
        return self.shown[keys], values, asked, right


class Reader(nn.Module):
    """Scores of the places for a question."""

    def __init__(self) -> None:
        super().__init__()
        self.question = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, keys: torch.Tensor, question: torch.Tensor) -> torch.Tensor:
        """One score per place."""
        return (keys @ self.question(question).unsqueeze(-1)).squeeze(-1)


def train(sample) -> float:
    """The share of questions for which the likeliest place is the right one."""
    torch.manual_seed(0)
    questions, reader = Questions(), Reader()
    optimiser = torch.optim.Adam(reader.parameters(), lr=5e-3)
    for _ in range(STEPS):
        keys, values, question, right = questions.batch()
        place = sample(reader(keys, question))
        answer = (place.unsqueeze(1) @ values).squeeze(1)
        wanted = (one_hot(right, PLACES).to(values.dtype).unsqueeze(1) @ values).squeeze(1)
        loss = mse_loss(answer, wanted)
        if loss.requires_grad:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    hits = []
    for _ in range(5):
        keys, _, question, right = questions.batch()
        hits.append((reader(keys, question).argmax(-1) == right).float().mean().item())
    return sum(hits) / len(hits)


def main() -> None:
    """Train with and without a gradient for the draw."""
    torch.set_num_threads(1)
    print(f"share of questions that look at the right one of {PLACES} places")
    shares = {}
    for name, sample in (
        ("no gradient", drawn_without_gradient),
        ("straight-through", discretegrad.straight_through),
        ("ReinMax", discretegrad.reinmax),
    ):
        shares[name] = train(sample)
        print(f"  {name:16} {shares[name]:.3f}")
    good = shares["ReinMax"] > 0.8 and shares["no gradient"] < 0.2
    print("claim: ReinMax learns where to look:", "holds" if good else "fails")


if __name__ == "__main__":
    main()
