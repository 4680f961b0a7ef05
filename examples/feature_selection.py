"""Choose 4 of 40 features: train a network together with the distribution of the subset it sees.

The subset is one variable, ``Subset(4)``: every sample has exactly four ones, and its gradient is
that of an estimator of your choice. Straight-through on subsets is known as SIMPLE; the page
docs/subsets.md says why it is the first choice here, and not ReinMax. A score function, which needs
no gradient of the network with respect to its input, is shown beside it.

    python examples/feature_selection.py
"""

import torch
from torch import Tensor, nn

import discretegrad
from discretegrad import Subset

FEATURES, RELEVANT = 40, (3, 11, 19, 32)
STEPS, BATCH = 400, 128
CHOICE = Subset(len(RELEVANT))


def made_up_data(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Four features matter; two of them only through their product."""
    x = torch.randn(count, FEATURES, generator=generator)
    a, b, c, d = x[:, RELEVANT].unbind(-1)
    return x, 2 * a - b + 1.5 * c * d + c


class Selector(nn.Module):
    """A network that sees the chosen features only, and the logits of the choice."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(FEATURES))
        self.network = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))

    def error(self, x: Tensor, y: Tensor, chosen: Tensor) -> Tensor:
        """The squared error of each example, with a subset for each example."""
        return (self.network(x * chosen).squeeze(-1) - y).square()


def train(estimator: str, num_samples: int, seed: int) -> tuple[list[float], set[int]]:
    """The inclusion probabilities of the relevant features, and what is chosen in the end."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Selector()
    optimiser = torch.optim.Adam(
        [
            {"params": model.network.parameters(), "lr": 3e-3},
            {"params": [model.logits], "lr": 3e-2},
        ]
    )
    for _ in range(STEPS):
        x, y = made_up_data(BATCH, generator)
        loss = discretegrad.expectation(
            model.logits.expand(BATCH, FEATURES),
            lambda z, x=x, y=y: model.error(x, y, z),
            estimator,
            num_samples=num_samples,
            family=CHOICE,
            generator=generator,
        ).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    logits = model.logits.detach()
    # without a sample: the probability of each feature, and the likeliest subset
    inclusion = CHOICE.relaxed(logits)
    likeliest = CHOICE.likeliest(logits).nonzero().flatten().tolist()
    print(f"  {estimator}: loss {loss.item():.2f}, likeliest subset {likeliest}")
    return inclusion[list(RELEVANT)].tolist(), set(likeliest)


def main() -> None:
    """Train with both kinds of estimator."""
    torch.set_num_threads(1)
    print(f"relevant features {list(RELEVANT)} of {FEATURES}; at first each is seen with", end=" ")
    print(f"probability {CHOICE.relaxed(torch.zeros(FEATURES))[0]:.2f}")
    inclusion, first = train("straight_through", 1, seed=0)
    print("  their probabilities in the end:", ", ".join(f"{x:.2f}" for x in inclusion))
    _, second = train("leave_one_out", 4, seed=0)
    print("claim: straight-through finds the four:", verdict(first == set(RELEVANT)))
    print("claim: each is then nearly certain:", verdict(min(inclusion) > 0.9))
    print("claim: leave-one-out finds them too:", verdict(second == set(RELEVANT)))


def verdict(claim: bool) -> str:
    """What the tests look for."""
    return "holds" if claim else "fails"


if __name__ == "__main__":
    main()
