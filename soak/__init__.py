"""A standing attack on the library and the lab: random cases until the time is over.

    make soak SECONDS=3600
    python -m soak --seconds 60 --only sampler score
    python -m soak --case sampler-1234
    python -m soak --check sampler case=categorical-reinmax gap=80

The proofs are those of the tests; what is new here is only what they are tried on.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# the proofs live in tests/, the provenance of results in benchmarks/
for _folder in ("benchmarks", "tests", "src"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))

# one thread, since several workers share the cores; read when torch is imported
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import torch  # noqa: E402

if not torch.cuda.is_available():
    # read when Triton and the library are imported: kernels then run without a GPU
    os.environ.setdefault("TRITON_INTERPRET", "1")
