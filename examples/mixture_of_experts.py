"""A mixture of experts: a router sends every token to one expert, and learns which.

Tokens come from eight groups, each with a linear map of its own, and there are eight linear
experts. Nobody says which group a token is from. ``sparse_mixer`` and the usual top-1 gate run one
expert per token and multiply its output by its probability; ``leave_one_out`` runs one for each of
two samples; ReinMax and top-1 straight-through run all experts. Sixteen models of each kind are
trained side by side, and the likeliest expert answers in the end.

All options are the defaults. What to see: in these few steps ``sparse_mixer`` gets at least as far
as the gate, and further than the others; without its threshold, which leaves out experts far behind
the best, it is the worst. With more steps the order may be another: change ``STEPS``.

    python examples/mixture_of_experts.py
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import discretegrad

EXPERTS, WIDTH = 8, 8
MODELS, BATCH, STEPS = 16, 64, 300


class Tokens:
    """Groups of tokens around random centres, each with a random linear map to its answers."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.centres = torch.randn(EXPERTS, WIDTH, generator=generator)
        self.maps = torch.randn(EXPERTS, WIDTH, WIDTH, generator=generator) / WIDTH**0.5

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Tokens and answers (models, size, width)."""
        group = torch.randint(EXPERTS, (MODELS, size))
        tokens = self.centres[group] + torch.randn(MODELS, size, WIDTH) / 2
        return tokens, (tokens.unsqueeze(-2) @ self.maps[group]).squeeze(-2)


class Mixture(nn.Module):
    """A linear router and linear experts, for all models at once."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(MODELS, WIDTH, EXPERTS) / WIDTH)
        self.experts = nn.Parameter(torch.randn(MODELS, EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)

    def run(self, tokens: Tensor, index: Tensor) -> Tensor:
        """The outputs of the experts of that index, one per token; no other expert runs."""
        chosen = self.experts[torch.arange(MODELS).unsqueeze(-1), index]
        return (tokens.unsqueeze(-2) @ chosen).squeeze(-2)

    def run_all(self, tokens: Tensor) -> Tensor:
        """The outputs of all experts, (models, size, experts, width)."""
        return torch.einsum("mti,meio->mteo", tokens, self.experts)


def error(output: Tensor, answer: Tensor) -> Tensor:
    """One loss per token."""
    return (output - answer).square().mean(-1)


def gated(model: Mixture, tokens: Tensor, answer: Tensor, **options) -> Tensor:
    """One expert per token, times its weight."""
    logits = tokens @ model.router
    weights, index = discretegrad.sparse_mixer(logits, **options)
    return error(weights * model.run(tokens, index.squeeze(-1)), answer)


def leave_one_out(model: Mixture, tokens: Tensor, answer: Tensor, training: bool) -> Tensor:
    """One expert per token and sample; the router learns from losses alone."""

    def loss(z: Tensor) -> Tensor:
        return error(model.run(tokens, z.argmax(-1)), answer)

    logits = tokens @ model.router
    if not training:
        return loss(logits)
    return discretegrad.leave_one_out(logits, loss, num_samples=2)


def dense(model: Mixture, tokens: Tensor, answer: Tensor, training: bool, sample) -> Tensor:
    """All experts run, and a one-hot sample chooses."""
    logits = tokens @ model.router
    z = sample(logits) if training else one_hot(logits.argmax(-1), EXPERTS).to(logits)
    return error((z.unsqueeze(-1) * model.run_all(tokens)).sum(-2), answer)


def top_1(logits: Tensor) -> Tensor:
    """The best expert as a one-hot with the gradient of the softmax."""
    return discretegrad.straight_through(logits, given=logits.argmax(-1))


ROUTERS = {
    "sparse_mixer, version 1": lambda *x: gated(*x[:3], training=x[3], version=1),
    "sparse_mixer, version 2": lambda *x: gated(*x[:3], training=x[3]),
    "the same, no threshold": lambda *x: gated(*x[:3], training=x[3], jitter_eps=math.inf),
    "top-1 gate": lambda *x: gated(*x[:3], training=False, jitter_eps=math.inf),
    "leave_one_out, 2 samples": leave_one_out,
    "ReinMax, all run": lambda *x: dense(*x, discretegrad.reinmax),
    "top-1 ST, all run": lambda *x: dense(*x, top_1),
}


def train(router) -> Tensor:
    """The share of the answers' variance that is left, for every model."""
    torch.manual_seed(0)
    tokens, model = Tokens(), Mixture()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimiser.zero_grad()
        router(model, *tokens.batch(BATCH), True).mean(-1).sum().backward()
        optimiser.step()
    with torch.no_grad():
        x, answer = tokens.batch(1000)
        return router(model, x, answer, False).mean(-1) / answer.var()


def one_map() -> float:
    """What the best linear map for all tokens leaves."""
    tokens, answer = (x.flatten(0, 1) for x in Tokens().batch(1000))
    best = torch.linalg.lstsq(tokens, answer).solution
    return float((tokens @ best - answer).square().mean() / answer.var())


def main() -> None:
    """Train with every router."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    single = one_map()
    print(f"share of the variance that is left after {STEPS} steps, mean of {MODELS} models")
    print(f"  {'one linear map for all':25} {single:.3f}")
    left = {}
    for name, router in ROUTERS.items():
        shares = train(router)
        left[name] = float(shares.mean())
        print(f"  {name:25} {left[name]:.3f} ± {shares.std() / MODELS**0.5:.3f}")
    good = max(left.values()) < single
    print("claim: every router divides the tokens among experts:", "holds" if good else "fails")
    good = left["the same, no threshold"] > 1.3 * left["sparse_mixer, version 2"]
    print("claim: sparse_mixer needs its threshold:", "holds" if good else "fails")


if __name__ == "__main__":
    main()
