"""Speaker and listener: two networks agree on a language of discrete symbols.

The speaker sees an object with two properties and sends two symbols. The listener sees the symbols
only, and says what the object was. The symbols are categorical draws, and the listener's loss
reaches the speaker through their gradient. What a symbol means is nowhere given: they agree on it.

    python examples/speaker_listener.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import discretegrad

VALUES, PROPERTIES = 6, 2
SYMBOLS, LENGTH = 10, 2
STEPS, BATCH, PENALTY = 600, 128, 0.5


def objects() -> torch.Tensor:
    """All of them: (36, 2)."""
    values = torch.arange(VALUES)
    return torch.cartesian_prod(values, values)


class Speaker(nn.Module):
    """An object to the logits of a message."""

    def __init__(self) -> None:
        super().__init__()
        size = PROPERTIES * VALUES
        self.network = nn.Sequential(
            nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, LENGTH * SYMBOLS)
        )

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """Logits of each symbol of the message."""
        inputs = one_hot(seen, VALUES).flatten(1).float()
        return self.network(inputs).unflatten(-1, (LENGTH, SYMBOLS))


class Listener(nn.Module):
    """A message to the logits of each property."""

    def __init__(self) -> None:
        super().__init__()
        size = PROPERTIES * VALUES
        self.network = nn.Sequential(
            nn.Linear(LENGTH * SYMBOLS, 64), nn.ReLU(), nn.Linear(64, size)
        )

    def forward(self, message: torch.Tensor) -> torch.Tensor:
        """Logits of the values of each property."""
        return self.network(message.flatten(1)).unflatten(-1, (PROPERTIES, VALUES))


def main() -> None:
    """Let them talk, and print what they say."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    speaker, listener = Speaker(), Listener()
    optimiser = torch.optim.Adam([*speaker.parameters(), *listener.parameters()], lr=5e-3)
    everything = objects()
    for step in range(STEPS + 1):
        seen = everything[torch.randint(len(everything), (BATCH,))]
        logits = speaker(seen)
        guess = listener(discretegrad.reinmax(logits))
        loss = cross_entropy(guess.flatten(0, 1), seen.flatten())
        # least if all symbols are used equally often
        usage = logits.softmax(-1).mean(0)
        penalty = (usage * usage.log()).sum(-1).mean()
        optimiser.zero_grad()
        (loss + PENALTY * penalty).backward()
        optimiser.step()
        if step % (STEPS // 4) == 0:
            right = (guess.argmax(-1) == seen).all(-1).float().mean().item()
            print(f"  step {step:3}: {right:.0%} understood")
    symbols = speaker(everything).argmax(-1)
    understood = listener(one_hot(symbols, SYMBOLS).float()).argmax(-1)
    share = (understood == everything).all(-1).float().mean().item()
    words = ["".join("abcdefghij"[x] for x in message) for message in symbols.tolist()]
    print("the language, one row for each value of the first property:")
    for first in range(VALUES):
        print("   ", " ".join(words[first * VALUES : (first + 1) * VALUES]))
    print(f"{len(set(words))} different messages; {share:.0%} of {len(words)} objects understood")
    print("claim: four of five objects are understood:", "holds" if share >= 0.8 else "fails")


if __name__ == "__main__":
    main()
