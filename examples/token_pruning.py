"""Token pruning: one bit per token says whether later layers see it, learned with the task.

A sequence has twenty tokens, of which a few carry a mark; the answer is the sum of their values.
``family="bernoulli"`` draws a bit for each token, the tokens whose bit is 0 are left out, and a
price for each token that is kept makes the model drop what it does not need. At evaluation the
likelier bit is taken, and dropped tokens need not be computed at all.

    python examples/token_pruning.py
"""

import torch
from torch import nn

import discretegrad

TOKENS, WIDTH = 20, 8
STEPS, BATCH, PRICE = 400, 128, 0.02


class Sequences:
    """Tokens with a mark and a value, seen through a random rotation."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator)).Q

    def batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, which of them are marked, and the sum of the values of those."""
        content = torch.randn(BATCH, TOKENS, WIDTH)
        marked = torch.rand(BATCH, TOKENS) < 0.2
        content[..., 0] = 2 * marked.float() - 1
        answer = (content[..., 1] * marked).sum(-1)
        return content @ self.rotation, marked, answer


class Pruned(nn.Module):
    """A gate that looks at each token by itself, and a model that sees what passed it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
        self.token = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The answer and the bits."""
        logits = self.gate(tokens).squeeze(-1)
        if self.training:
            bits = discretegrad.reinmax(logits, family="bernoulli")
        else:
            bits = (logits > 0).to(logits.dtype)
        return (bits * self.token(tokens).squeeze(-1)).sum(-1), bits


def main() -> None:
    """Train, and look at what is kept."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sequences, model = Sequences(), Pruned()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS + 1):
        tokens, _, answer = sequences.batch()
        guess, bits = model(tokens)
        error = (guess - answer).square().mean()
        optimiser.zero_grad()
        (error + PRICE * bits.sum(-1).mean()).backward()
        optimiser.step()
        if step % (STEPS // 4) == 0:
            print(f"  step {step:3}: error {error.item():.3f}, kept {bits.mean().item():.0%}")
    model.eval()
    tokens, marked, answer = sequences.batch()
    guess, bits = model(tokens)
    error, kept = (guess - answer).square().mean().item(), bits.mean().item()
    agreement = (bits.bool() == marked).float().mean().item()
    print(f"evaluation: error {error:.3f} of a variance of {answer.var().item():.2f}")
    print(f"kept {kept:.0%} of the tokens; {marked.float().mean().item():.0%} are marked")
    print(f"bit and mark agree for {agreement:.1%} of the tokens")
    small = error < 0.05 * answer.var().item()
    print("claim: the answer is right to 5 % of its variance:", "holds" if small else "fails")
    print("claim: seven of ten tokens are dropped:", "holds" if kept < 0.3 else "fails")


if __name__ == "__main__":
    main()
