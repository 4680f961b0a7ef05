"""Freeze what PyPI reinmax 0.1.0 computes: ``python tests/golden/make.py`` writes the JSON.

The package draws by itself; the draw is read from its one-hot output. Only the gradient through
the sample is recorded, not the one through the probabilities that it also returns.
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from reinmax import reinmax

PACKAGE_VERSION = "0.1.0"
PATH = Path(__file__).with_name("reinmax_0_1_0.json")
SHAPES = ((1,), (2,), (3, 4), (2, 3, 5), (1, 70))
TAUS = (0.5, 1.0, 1.1, 1.3, 1.5, 2.0)


def cases() -> list[dict]:
    """One case per shape and temperature, with logits from narrow to peaked."""
    torch.manual_seed(20240)
    frozen = []
    for shape in SHAPES:
        for scale, tau in enumerate(TAUS, start=1):
            logits = (scale * torch.randn(shape, dtype=torch.float64)).requires_grad_()
            g = torch.randn(shape, dtype=torch.float64)
            sample, _ = reinmax(logits, tau)
            gradient = torch.autograd.grad((sample * g).sum(), logits)[0]
            frozen.append(
                {
                    "tau": tau,
                    "logits": logits.tolist(),
                    "grad_at_sample": g.tolist(),
                    "index": sample.argmax(-1).tolist(),
                    "grad_at_logits": gradient.tolist(),
                }
            )
    return frozen


def main() -> None:
    """Write the file."""
    if version("reinmax") != PACKAGE_VERSION:
        raise SystemExit(f"needs reinmax {PACKAGE_VERSION}, got {version('reinmax')}")
    lines = ",\n".join(json.dumps(case) for case in cases())
    head = f'"package": "reinmax", "version": "{PACKAGE_VERSION}"'
    PATH.write_text(f'{{{head}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
