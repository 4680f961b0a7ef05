"""A training step does nothing that a CUDA graph cannot capture: seen without a GPU.

A graph replays kernels. A step that waits for a value of the device, or brings Python's numbers to
it, cannot be captured, or every replay has the numbers of the first one.
"""

import traceback
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import discretegrad
import discretegrad_lab
from discretegrad_lab.stack import trainer
from discretegrad_lab.stack.lines import LINES
from discretegrad_lab.stack.noise import Noise
from discretegrad_lab.tasks.polynomial.config import Polynomial
from discretegrad_lab.tasks.polynomial.model import PolynomialModel
from discretegrad_lab.tasks.vae.config import Vae
from discretegrad_lab.tasks.vae.model import VaeModel
from lab_cases import make_stack, use_small_images

SAMPLERS = [name for name, one in LINES.items() if one.kind == "sampler"]
PACKAGES = [str(Path(package.__file__).parent) for package in (discretegrad, discretegrad_lab)]

READS = {"_local_scalar_dense", "equal", "is_nonzero"}
SHAPES = {"nonzero", "masked_select", "argwhere", "_unique2", "unique_dim", "bincount"}
FROM_PYTHON = {"lift", "lift_fresh", "lift_fresh_copy"}


class Watch(TorchDispatchMode):
    """Notes operations that cannot be captured, with the line of ours that they come from."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.faults = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.count += 1
        if reason := fault(operation.overloadpacket.__name__, (args, kwargs), result):
            self.faults.append(f"{operation}, {reason}: {line()}")
        return result


def fault(name, arguments, result):
    """Why an operation cannot be captured, or None."""
    if name in READS:
        return "which reads a value"
    if name in SHAPES:
        return "whose result has a shape that depends on values"
    if name in FROM_PYTHON:
        return "which makes a tensor of Python's numbers"
    if name.startswith("index") and any(x.dtype == torch.bool for x in tensors(arguments[0][1:])):
        return "which has to count what a mask selects"
    if len({x.device for x in tensors((arguments, result))}) > 1:
        return "which is on several devices"
    return None


def tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def line():
    frames = [f for f in traceback.extract_stack() if f.filename.startswith(tuple(PACKAGES))]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-4:]))


def polynomials():
    small = {"latents": 6, "batch": 8, "steps_per_epoch": 5, "epochs": 4, "draws": 3}
    return [
        Polynomial(estimator=name, tau=0.8 + 0.3 * seed, seed=seed, **small)
        for name in LINES
        for seed in (0, 1)
    ]


def vaes():
    small = {"categories": 4, "latents": 3, "batch": 20, "epochs": 4, "draws": 3}
    kinds = ("adam", "radam")
    return [
        Vae(estimator=name, tau=0.8 + 0.3 * seed, seed=seed, optimiser=kinds[seed], **small)
        for name in SAMPLERS
        for seed in (0, 1)
    ]


TASKS = pytest.mark.parametrize(
    ("make", "task"), [(polynomials, PolynomialModel), (vaes, VaeModel)], ids=["polynomial", "vae"]
)


@pytest.fixture(autouse=True)
def images(monkeypatch):
    """A small data set instead of MNIST."""
    use_small_images(monkeypatch, 40, 20)


@pytest.fixture
def plant(monkeypatch):
    """Adds a mistake to every step of a task."""

    def planted(task, mistake):
        whole = task.losses

        def losses(self):
            losses = whole(self)
            return {name: x + mistake(x) for name, x in losses.items()}

        monkeypatch.setattr(task, "losses", losses)

    return planted


def faults(stack):
    """Of a step; not the first one, which imports and makes what the others only use."""
    with trainer._settings(tf32=False, one_thread=True):
        stack._train()
        with Watch() as watch:
            stack._train()
    assert watch.count > 50
    return watch.faults


# on a CPU: the random numbers come from generators and the samples from the library's torch path,
# where a GPU has kernels; all else is what a GPU does


@TASKS
def test_a_step_can_be_captured(make, task):
    stack = make_stack(make())
    stack.model.begin_epoch(0)
    assert faults(stack) == []


MISTAKES = {
    "a value read": (lambda x: 0 * x[0].item(), "reads a value"),
    "a branch": (lambda x: 0.0 if x[0] > 0 else 1.0, "reads a value"),
    "a list of places": (lambda x: len((x > 0).nonzero()), "depends on values"),
    "a mask": (lambda x: x[x > 0].sum(), "what a mask selects"),
    "a number": (lambda x: torch.tensor(1.0, device=x.device), "Python's numbers"),
}


@TASKS
@pytest.mark.parametrize(("mistake", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_found(make, task, mistake, reason, plant):
    plant(task, mistake)
    stack = make_stack(make()[:1])
    stack.model.begin_epoch(0)
    found = faults(stack)
    assert any(reason in one and "trainer.py" in one for one in found), found


# on a device without values: what Python does for a GPU, with kernels that do nothing


@pytest.fixture
def without_values(monkeypatch):
    samplers, *launching = (
        pytest.importorskip(f"discretegrad.kernels.{name}")
        for name in ("samplers", "categorical", "gumbel_rao", "quick")
    )
    meta = torch.device("meta")
    make_noise = Noise.__init__

    def noise(self, seeds, device):
        # there are no generators for this device
        make_noise(self, seeds, "cpu")
        self.device, self._keys, self._step = meta, self._keys.to(meta), self._step.to(meta)

    def uniform(self, *shape, members=slice(None), purpose=0):
        return torch.empty(len(self._keys[members]), *shape, device=meta)

    monkeypatch.setattr(Noise, "__init__", noise)
    monkeypatch.setattr(Noise, "uniform", uniform)
    monkeypatch.setattr(samplers, "check_generator", lambda *_: None)
    for module in launching:
        monkeypatch.setattr(module, "launch", launched)
    launched.kernels = set()
    # so that the library takes the path of a GPU, as it does during a capture
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def launched(plan, operands, numbers=()):
    """In place of a kernel."""
    assert {x.device.type for x in operands} == {"meta"}
    kernel = plan.kernel.fn
    launched.kernels.add(f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}")


@TASKS
def test_a_step_reads_no_value_of_a_gpu(make, task, without_values):
    assert faults(make_stack(make(), "meta", graph=False)) == []
    assert launched.kernels == {
        "categorical_draw._draw_kernel",
        "categorical_gradient._gradient_kernel",
        f"gumbel_rao_kernels.{'_pair_kernel' if make is polynomials else '_gradient_kernel'}",
    }


@TASKS
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_numbers_of_the_host_are_found(make, task, device, without_values, plant):
    plant(task, lambda x: torch.ones((), device="cpu").to(device))
    assert any("several devices" in one for one in faults(make_stack(make(), "meta", graph=False)))
