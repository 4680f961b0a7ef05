"""Run by `make test-wheel` with the Python of an environment that has the wheel and torch only.

It needs neither pytest nor a checkout: what is tested is what a user gets from the wheel.
"""

import importlib
import pkgutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

import discretegrad
from discretegrad.distributions import OneHotCategorical
from discretegrad.testing import check_sampler


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    version = discretegrad.__version__
    inside = Path(sys.prefix) in Path(discretegrad.__file__).parents
    assert inside, f"imported from {discretegrad.__file__}, not from the wheel"
    assert version == metadata.version("discretegrad")
    assert importlib.util.find_spec("pytest") is None, "the environment is not empty"

    # every module that needs no Triton, which is missing on Windows, macOS and CPU-only Linux
    triton = importlib.util.find_spec("triton") is not None
    modules = [x.name for x in pkgutil.walk_packages(discretegrad.__path__, "discretegrad.")]
    modules = [name for name in modules if triton or ".kernels." not in name]
    for name in modules:
        importlib.import_module(name)

    for name in ("reinmax", "straight_through", "gumbel_softmax", "gapped"):
        check_sampler(discretegrad.get(name))
    logits = torch.zeros(4, 3, requires_grad=True)
    q = OneHotCategorical(logits=logits)
    q.log_prob(q.rsample()).sum().backward()
    quantize = discretegrad.nn.VectorQuantize(3, 5)
    for f in (
        lambda x: OneHotCategorical(logits=x).rsample(),
        lambda x: discretegrad.reinmax(x, family=discretegrad.Subset(2)),
        lambda x: discretegrad.sparse_mixer(x, 2)[0],
        lambda x: quantize(x)[0],
    ):
        # the oldest torch can trace less than others
        for call in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
            (gradient,) = torch.autograd.grad(call(logits).square().sum(), logits)
            assert gradient.isfinite().all()
    with discretegrad.replace_gumbel_softmax("reinmax"):
        torch.nn.functional.gumbel_softmax(logits, hard=True).sum().backward()

    command = str(Path(sys.executable).with_name("discretegrad"))
    for line in ((sys.executable, "-m", "discretegrad", "--version"), (command, "--version")):
        assert run(*line).stdout.strip() == version, line
    doctor = run(sys.executable, "-m", "discretegrad", "doctor")
    assert doctor.returncode == 0, doctor
    assert torch.__version__ in doctor.stdout
    # without the extra the lab says how to get it
    helped = run(command, "list")
    assert (helped.returncode, "discretegrad[lab]" in helped.stderr) == (1, True), helped
    print(
        f"the wheel of discretegrad {version} works with torch {torch.__version__}, "
        f"{'with' if triton else 'without'} Triton: {len(modules)} modules imported"
    )


if __name__ == "__main__":
    main()
