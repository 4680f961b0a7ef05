"""The quicker interpreter of the tests computes what Triton's own does, to the last bit."""

import pytest
import torch

import quick_interpreter
from discretegrad import Subset, reinmax
from discretegrad.kernels import dispatch
from kernel_cases import CASES, allowed_some, each, normal, seeded, temperatures

triton = pytest.importorskip("triton")
if not dispatch._INTERPRETED:
    pytest.skip("runs in Triton's interpreter, where there is no GPU", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import InterpreterError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
WALKS = [case for case in CASES if case.method in ("reinmax", "gumbel_softmax", "gumbel_rao")]


def test_all_of_it_is_in_use():
    """A Triton that has other parts makes the tests slow, and says so here."""
    assert len(quick_interpreter._changed) == 6
    for (owner, name), (before, now) in quick_interpreter._changed.items():
        assert getattr(owner, name) is now is not before


def assert_same_with_tritons_own(function, logits):
    results = []
    with quick_interpreter.as_it_came():
        results.append(function(logits))
    results.append(function(logits))
    for theirs, ours in zip(*results, strict=True):
        assert torch.equal(theirs, ours)


@each(WALKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_samples_and_gradients(case, dtype):
    def run(logits):
        leaf = logits.clone().requires_grad_()
        mask, tau = allowed_some(3, 9), temperatures(3, 1)
        z = case.sample(leaf, tau, mask=mask, generator=seeded(1))
        return z.detach(), torch.autograd.grad(z, leaf, normal(3, 9, seed=11, dtype=dtype))[0]

    assert_same_with_tritons_own(run, normal(3, 9, dtype=dtype))


def test_same_subsets():
    def run(logits):
        leaf = logits.clone().requires_grad_()
        z = reinmax(leaf, family=Subset(3), backend="triton", generator=seeded(1))
        return z.detach(), torch.autograd.grad(z, leaf, normal(2, 7, seed=11))[0]

    assert_same_with_tritons_own(run, normal(2, 7))


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _twice_kernel(out, WRONG: tl.constexpr, SIZE: tl.constexpr):
    tl.static_assert(not WRONG)
    number = tl.arange(0, SIZE)
    tl.store(out + number, _twice(number))


def test_the_language_is_as_before_after_a_launch():
    """Also after one that fails."""
    for wrong in (False, True, False):
        out = torch.zeros(4, dtype=torch.int32)
        if wrong:
            with pytest.raises(InterpreterError):
                _twice_kernel[(1,)](out, wrong, 4)
        else:
            _twice_kernel[(1,)](out, wrong, 4)
            assert out.tolist() == [0, 2, 4, 6]
        assert tl.core.is_builtin(tl.arange)


@pytest.mark.parametrize(
    ("shape", "error"), [([3], ValueError), ([1.0], TypeError), ([2**30], ValueError)]
)
def test_wrong_shapes_are_refused(shape, error):
    tl.block_type(tl.float32, [1])
    with pytest.raises(error):
        tl.block_type(tl.float32, shape)
