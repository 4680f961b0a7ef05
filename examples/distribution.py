"""A world model's latent state as a distribution: posterior, prior, and the divergence sampled.

``discretegrad.distributions.OneHotCategorical`` is a ``torch.distributions.Distribution`` whose
``rsample`` has the gradient of an estimator. Its ``log_prob`` is linear in the sample, so that the
KL divergence between posterior and prior may be sampled instead of computed, and still trains both:
with the ``log_prob`` of torch the posterior would get no gradient from it.

    python examples/distribution.py
"""

import torch
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategoricalStraightThrough, kl_divergence

from discretegrad.distributions import OneHotCategorical

STATES, VARIABLES, CATEGORIES = 16, 4, 4
STEPS, BATCH = 300, 128


def made_up_data(count: int) -> tuple[Tensor, Tensor]:
    """What was seen before, and what is seen now: noisy pictures of a state that moves on by 1."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(STATES, 12, generator=generator)
    state = torch.randint(STATES, (count,), generator=generator)
    noise = 0.3 * torch.randn(2, count, 12, generator=generator)
    return pictures[state] + noise[0], pictures[(state + 1) % STATES] + noise[1]


class WorldModel(nn.Module):
    """Posterior of the latent state from both pictures, prior from the first alone, decoder."""

    def __init__(self) -> None:
        super().__init__()
        size = VARIABLES * CATEGORIES
        self.posterior = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, size))
        self.prior = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, size))
        self.decoder = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 12))

    def latent(self, logits: Tensor) -> Independent:
        """Four variables of four categories, each with one percent of the uniform distribution."""
        logits = logits.unflatten(-1, (VARIABLES, CATEGORIES))
        return Independent(OneHotCategorical(logits=logits, estimator="reinmax", unimix=0.01), 1)

    def forward(self, before: Tensor, now: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The error of the decoder, and the KL divergence sampled and computed."""
        q = self.latent(self.posterior(torch.cat([before, now], -1)))
        p = self.latent(self.prior(before))
        z = q.rsample()
        error = 5 * (self.decoder(z.flatten(-2)) - now).square().sum(-1)
        return error.mean(), (q.log_prob(z) - p.log_prob(z)).mean(), kl_divergence(q, p).mean()


def mean_gradients(draws: int = 30_000) -> tuple[Tensor, Tensor, Tensor]:
    """Of a sampled divergence here, of one with torch's classes, and of the divergence itself."""
    logits, prior = torch.tensor([1.0, 0.0, -1.0], requires_grad=True), torch.zeros(3)
    gradients = []
    for kind in (OneHotCategorical, OneHotCategoricalStraightThrough):
        q, p = kind(logits=logits, validate_args=False), kind(logits=prior, validate_args=False)
        z = q.rsample((draws,))
        sampled = (q.log_prob(z) - p.log_prob(z)).mean()
        gradients.append(torch.autograd.grad(sampled, logits)[0])
    exact = kl_divergence(OneHotCategorical(logits=logits), OneHotCategorical(logits=prior))
    return gradients[0], gradients[1], torch.autograd.grad(exact, logits)[0]


def main() -> None:
    """Train with the sampled divergence, then look at its gradient alone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before, now = made_up_data(4096)
    model = WorldModel()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = None
    for step in range(STEPS + 1):
        batch = torch.randint(len(now), (BATCH,))
        error, sampled, exact = model(before[batch], now[batch])
        optimiser.zero_grad()
        (error + sampled).backward()
        optimiser.step()
        first = error.item() if first is None else first
        if step % (STEPS // 3) == 0:
            print(
                f"  step {step:4}: error {error.item():6.2f}, KL divergence sampled "
                f"{sampled.item():5.2f}, computed {exact.item():5.2f}"
            )
    # the noise of the second picture is all that cannot be foretold
    print("claim: a quarter of the error is left at most:", verdict(error < first / 4))
    print("claim: the prior foretells the posterior:", verdict(exact < 1))
    ours, torchs, exact_gradient = mean_gradients()
    print("gradient of a KL divergence:", *(f"{x:.3f}" for x in exact_gradient))
    print("  sampled, linear log_prob: ", *(f"{x:.3f}" for x in ours))
    print("  sampled, torch's log_prob:", *(f"{x:.3f}" for x in torchs))
    close = (ours - exact_gradient).abs().max() < 0.02
    print("claim: the sampled divergence has the right gradient:", verdict(bool(close)))
    print("claim: with torch's it has none:", verdict(bool(torchs.abs().max() < 0.02)))


def verdict(claim: bool) -> str:
    """What the tests look for."""
    return "holds" if claim else "fails"


if __name__ == "__main__":
    main()
