"""Another gradient for a model that calls torch's Gumbel-softmax, without touching the model.

Inside ``with discretegrad.replace_gumbel_softmax("reinmax")`` every call of
``torch.nn.functional.gumbel_softmax(..., hard=True)`` of this thread gets ReinMax's sample and
gradient. Here the model is a quantiser in the manner of wav2vec2, small enough to enumerate all its
codes, so that the bias of each gradient can be seen.

    python examples/replace_gumbel_softmax.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import discretegrad

GROUPS, CODES, FEATURES = 3, 4, 8
DRAWS, STEPS = 20_000, 200


class Quantiser(nn.Module):
    """Somebody else's module: one vector of each group's codebook, drawn with Gumbel noise."""

    def __init__(self) -> None:
        super().__init__()
        self.to_logits = nn.Linear(FEATURES, GROUPS * CODES)
        self.codebook = nn.Parameter(torch.randn(GROUPS, CODES, FEATURES))
        self.decoder = nn.Sequential(nn.Tanh(), nn.Linear(FEATURES, FEATURES))
        self.temperature = 1.0

    def logits(self, x: Tensor) -> Tensor:
        """The scores of the codes."""
        return self.to_logits(x).unflatten(-1, (GROUPS, CODES))

    def loss_of(self, one_hot: Tensor, x: Tensor) -> Tensor:
        """How far what is decoded from the codes lies from x."""
        vectors = torch.einsum("...gc,gcf->...f", one_hot, self.codebook)
        return (self.decoder(vectors) - x).square().mean(-1)

    def forward(self, x: Tensor) -> Tensor:
        """The loss for codes that are drawn."""
        one_hot = F.gumbel_softmax(self.logits(x), tau=self.temperature, hard=True)
        return self.loss_of(one_hot, x)


def mean_gradient(model: Quantiser, x: Tensor) -> Tensor:
    """The gradient for the scores' bias, averaged over many draws of the same x."""
    loss = model(x.expand(DRAWS, FEATURES)).mean()
    return torch.autograd.grad(loss, model.to_logits.bias)[0]


def true_gradient(model: Quantiser, x: Tensor) -> Tensor:
    """The same by enumeration of all codes."""
    exact = discretegrad.exact_expectation(model.logits(x), lambda z: model.loss_of(z, x))
    return torch.autograd.grad(exact, model.to_logits.bias)[0]


def trained(serve: bool) -> float:
    """The loss at the end of training, with torch's gradient or with ReinMax's."""
    torch.manual_seed(1)
    model, data = Quantiser(), torch.randn(64, FEATURES)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    with discretegrad.replace_gumbel_softmax("reinmax") if serve else torch.enable_grad():
        for _ in range(STEPS):
            optimiser.zero_grad()
            model(data).mean().backward()
            optimiser.step()
        return model(data.repeat(20, 1)).mean().item()


def main() -> None:
    """Compare both gradients with the true one, then train with both."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, x = Quantiser(), torch.randn(FEATURES)
    true = true_gradient(model, x)
    errors = {"torch's Gumbel-softmax": (mean_gradient(model, x) - true).norm() / true.norm()}
    with discretegrad.replace_gumbel_softmax("reinmax"):
        errors["ReinMax in its place"] = (mean_gradient(model, x) - true).norm() / true.norm()
    print(f"error of the mean of {DRAWS} gradients, relative to the true gradient:")
    for name, error in errors.items():
        print(f"  {name:24} {error.item():.3f}")
    torchs, ours = errors.values()
    print("claim: ReinMax is closer to the true one:", verdict(bool(ours < 0.75 * torchs)))
    again = (mean_gradient(model, x) - true).norm() / true.norm()
    restored = abs(again - torchs) < torchs / 4
    print("claim: outside, the model is what it was:", verdict(bool(restored)))
    print(f"trained for {STEPS} steps with torch's: loss {trained(False):.3f}")
    served = trained(True)
    print(f"trained for {STEPS} steps with ReinMax: loss {served:.3f}")
    print("claim: the unmodified model learns with ReinMax:", verdict(served < 0.7))


def verdict(claim: bool) -> str:
    """What the tests look for."""
    return "holds" if claim else "fails"


if __name__ == "__main__":
    main()
