"""A reward without a gradient: which items to pack, learned from the reward alone.

The reward is ordinary Python that nothing can be differentiated through: the value of the packed
items, or nothing if they are too heavy. ``leave_one_out`` needs its values only. A batch of samples
gives each of them a baseline, the mean reward of the others, and the gradient is unbiased.

    python examples/reward.py
"""

import itertools

import torch

import discretegrad

VALUES = [9, 14, 6, 11, 7, 12, 4, 10, 8, 5]
WEIGHTS = [6, 10, 5, 7, 4, 9, 3, 8, 6, 2]
LIMIT = 30
STEPS, SAMPLES = 400, 64


def reward(chosen: list[float]) -> float:
    """The value of a choice of items, 0 if it is too heavy."""
    weight = sum(w for w, x in zip(WEIGHTS, chosen, strict=True) if x)
    value = sum(v for v, x in zip(VALUES, chosen, strict=True) if x)
    return float(value) if weight <= LIMIT else 0.0


def loss(bits: torch.Tensor) -> torch.Tensor:
    """What is minimised: one number for a sample of all bits."""
    return torch.tensor(-reward(bits.tolist()))


def main() -> None:
    """Learn the probabilities of the items, and compare with the best choice of all."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logits = torch.zeros(len(VALUES), requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.05)
    for step in range(STEPS + 1):
        mean = discretegrad.leave_one_out(logits, loss, num_samples=SAMPLES, family="bernoulli")
        if step % (STEPS // 4) == 0:
            print(f"  step {step:3}: mean reward {-mean.item():5.2f}")
        optimiser.zero_grad()
        mean.backward()
        optimiser.step()
    learned = (logits > 0).tolist()
    best = max(itertools.product([0, 1], repeat=len(VALUES)), key=reward)
    print(f"learned: items {places(learned)}, reward {reward(learned):g}")
    print(f"best of {2 ** len(VALUES)}: items {places(best)}, reward {reward(best):g}")
    close = reward(learned) >= 0.9 * reward(best)
    print("claim: what is learned is within 10 % of the best:", "holds" if close else "fails")


def places(chosen) -> list[int]:
    """The numbers of the chosen items."""
    return [number for number, x in enumerate(chosen) if x]


if __name__ == "__main__":
    main()
