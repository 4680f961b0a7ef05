"""What the tests of the kernels share: their cases, the torch path as reference, the tolerances."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from scipy import stats
from torch import Tensor

import discretegrad
import philox_reference as philox
from discretegrad._types import Method


class Tolerance(NamedTuple):
    """How large an error may be: the sum of three parts."""

    own: float
    """Of the number itself."""
    scale: float
    """Of the scale of its row, see ``Case.scale``: a sum over a row rounds all its numbers."""
    absolute: float


# kernels compute in float32 and round once: the reference is float64 on the same rounded input.
# Triton's interpreter cuts off what bfloat16 cannot hold, which is up to a whole unit
TOLERANCES = {
    torch.float32: Tolerance(4e-6, 1e-6, 1e-36),
    torch.bfloat16: Tolerance((2**-8 if torch.cuda.is_available() else 2**-7) + 4e-6, 1e-6, 1e-36),
    torch.float16: Tolerance(2**-11 + 4e-6, 1e-6, 2**-25),
}
DTYPES = list(TOLERANCES)


@dataclass(frozen=True)
class Case:
    """A sampler as the kernels know it."""

    family: str
    method: str
    """Its key in the kernels' table of formulas."""
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self):
        return f"{self.family}-{self.method}"

    @property
    def categorical(self) -> bool:
        return self.family == "categorical"

    @property
    def noisy(self) -> bool:
        return self.name.startswith("gumbel")

    def sample(self, logits, tau=1.0, backend="triton", **arguments) -> Tensor:
        arguments = {"family": self.family, "backend": backend, **self.options, **arguments}
        return self.function(logits, tau, **arguments)

    def sample_at(self, logits, draw, tau=1.0, **arguments) -> Tensor:
        return self.sample(logits, tau, given=draw, **arguments)

    def sample_index(self, logits, tau=1.0, backend="triton", **arguments):
        arguments = {"backend": backend, **self.options, **arguments}
        return discretegrad.sample_index(logits, self.name, tau, **arguments)

    def drawn(self, sample: Tensor, dim: int = -1) -> Tensor:
        """The draw behind a sample, in the form that the torch path takes."""
        sample = sample.detach()
        return sample.argmax(dim) if self.categorical else sample

    def expected(self, logits, g, draw, tau=1.0, dim=-1, mask=None, seed=None) -> Tensor:
        """The gradient of the torch path in float64, with the noise that the seed gives."""
        leaf = logits.detach().double().requires_grad_()
        tau = tau.double() if isinstance(tau, Tensor) else tau
        options = {name: value for name, value in self.options.items() if name != "num_draws"}
        options |= {"noise": self.noise(leaf, dim, seed, draw)} if self.noisy else {}
        options |= {"dim": dim} if self.categorical else {}
        options |= {"given": draw, "mask": mask, "backend": "torch"}
        z = self.function(leaf, tau, family=self.family, **options)
        return torch.autograd.grad(z, leaf, g.double())[0]

    def scale(self, g, draw, expected, dim=-1) -> Tensor:
        """What a gradient cancels from: the largest ``g``, relative to the draw, or result."""
        g = g.double()
        if not self.categorical:
            return g.abs()
        if self.method != "mean_released":  # which alone is not relative to the draw
            g = g - g.gather(dim, draw.unsqueeze(dim))
        return torch.maximum(g.abs(), expected.abs()).amax(dim, keepdim=True)

    def noise(self, logits: Tensor, dim: int, seed: Tensor, draw: Tensor) -> Tensor:
        """What the kernels make of a seed, in the form that the torch path takes."""
        draws = self.options.get("num_draws")
        if not self.categorical:
            n = logits.numel()
            if draws is None:
                word = philox.neighbour_words(seed, n, philox.NOISE)
                return philox.logistic(word).reshape(logits.shape)
            return philox.logistic(philox.element_words(seed, n, draws)).reshape(
                draws, *logits.shape
            )
        last = logits.movedim(dim, -1)
        rows, n = logits.numel() // last.shape[-1], last.shape[-1]
        axis = dim % logits.ndim
        if draws is None:
            noise = philox.exponential(philox.row_words(seed, rows, n))
            return noise.reshape(last.shape).movedim(-1, axis)
        if n == 2:
            # only the ratio of the two counts, which one logistic draw gives
            noise = torch.ones(draws, rows, 2, dtype=torch.float64, device=logits.device)
            ratio = philox.logistic(philox.element_words(seed, rows, draws)).exp()
            other = (1 - draw.reshape(1, rows, 1)).expand(draws, rows, 1)
            noise.scatter_(-1, other, ratio.unsqueeze(-1))
        else:
            noise = philox.exponential(philox.row_draws_words(seed, rows, n, draws))
        return noise.reshape(draws, *last.shape).movedim(-1, axis + 1)

    @property
    def function(self):
        return getattr(discretegrad, self.name)

    @property
    def kernel(self) -> Method:
        """What the kernels are told."""
        return discretegrad.ESTIMATORS[self.name].rule(**self.options).kernel


_SAMPLERS = {
    "straight_through": ("straight_through", {}),
    "reinmax": ("reinmax", {}),
    "blend": ("blend", {"weight": 0.3}),
    "gapped": ("gapped", {"gap": 0.7}),
    "gapped_p": ("gapped", {"gap": "p"}),
    "gumbel_softmax": ("gumbel_softmax", {}),
    "mean_first": ("mean_baseline", {"order": 1}),
    "mean_second": ("mean_baseline", {"order": 2}),
    "mean_released": ("mean_baseline", {"as_released": True}),
    # not a multiple of the four that share a call of the generator
    "gumbel_rao": ("gumbel_rao", {"num_draws": 6}),
}
CASES = [
    Case(family, method, name, options)
    for family in ("categorical", "bernoulli")
    for method, (name, options) in _SAMPLERS.items()
]
CATEGORICAL = [case for case in CASES if case.categorical]
BERNOULLI = [case for case in CASES if not case.categorical]
NOISE_FREE = [case for case in CASES if not case.noisy]
BLENDS = [case for case in CASES if case.method == "blend"]
BY_METHOD = {(case.family, case.method): case for case in CASES}
REINMAX = BY_METHOD["categorical", "reinmax"]


def each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Run a test for each of these cases."""
    return pytest.mark.parametrize("case", cases, ids=str)


def each_dtype() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def seeded(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def words_of_all_sizes(count: int) -> Tensor:
    """Words of 32 bits, int64: random ones, and such whose numbers lie close to 0 and to 1."""
    powers = 2 ** torch.arange(32)
    near = torch.cat([powers, powers - 1, powers + powers // 3])
    ends = torch.cat([near, 2**32 - 1 - near])
    random = torch.randint(2**32, (count - len(ends),), generator=seeded(9))
    return torch.cat([ends, random])


def seed_of(seed: int, device: str = "cpu") -> Tensor:
    """The seed that a sampler draws from ``seeded(seed, device)`` for its kernels."""
    return torch.randint(2**63 - 1, (1,), device=device, generator=seeded(seed, device))


def normal(*shape: int, seed: int = 0, dtype=torch.float32, device: str = "cpu") -> Tensor:
    """Seeded normal numbers."""
    return torch.randn(shape, generator=seeded(seed, device), device=device).to(dtype)


def allowed_some(*shape: int, dim: int = -1, seed: int = 5, device: str = "cpu") -> Tensor:
    """A seeded mask that allows most categories and at least one in each row."""
    mask = torch.rand(shape, generator=seeded(seed, device), device=device) < 0.7
    mask.select(dim, shape[dim] // 2).fill_(True)
    return mask


def temperatures(*shape: int, seed: int = 6, device: str = "cpu") -> Tensor:
    """Seeded temperatures from 0.4 to 1.6."""
    return 0.4 + 1.2 * torch.rand(shape, generator=seeded(seed, device), device=device)


def assert_gradient(actual: Tensor, expected: Tensor, scale: Tensor) -> None:
    """Within the table of tolerances."""
    assert actual.shape == expected.shape
    assert actual.isfinite().all()
    tolerance = TOLERANCES[actual.dtype]
    allowed = tolerance.own * expected.abs() + tolerance.scale * scale + tolerance.absolute
    worst = ((actual.double() - expected).abs() / allowed).max().item()
    assert worst <= 1, f"the error is {worst:.3g} times what is allowed"


def assert_one_hot(sample: Tensor, dim: int = -1) -> None:
    """Zeros and a single one in each row, to the last bit."""
    assert ((sample == 0) | (sample == 1)).all()
    assert not sample.signbit().any()
    assert ((sample == 1).sum(dim) == 1).all()


def assert_discrete(case: Case, sample: Tensor, dim: int = -1) -> None:
    if case.categorical:
        assert_one_hot(sample, dim)
    else:
        assert ((sample == 0) | (sample == 1)).all()
        assert not sample.signbit().any()


def check_case(
    case: Case, logits: Tensor, g: Tensor, tau=1.0, dim=-1, mask=None, seed=1, given=False
) -> None:
    """Draw, and compare the gradient with the torch path; then perhaps with that draw given."""
    device = logits.device.type
    axis = {"dim": dim} if case.categorical else {}
    leaf = logits.detach().requires_grad_()
    z = case.sample(leaf, tau, mask=mask, generator=seeded(seed, device), **axis)
    assert z.shape == logits.shape
    assert z.dtype == logits.dtype
    assert_discrete(case, z, dim)
    if mask is not None:
        assert not z.detach()[~mask.expand(z.shape)].any()
    draw = case.drawn(z, dim)
    gradient = torch.autograd.grad(z, leaf, g)[0]
    assert gradient.dtype == logits.dtype
    expected = case.expected(logits, g, draw, tau, dim, mask, seed_of(seed, device))
    scale = case.scale(g, draw, expected, dim)
    if case.categorical and case.method == "mean_released":
        # it alone divides p.g by a probability, and so what p.g cancels from: with an even g, none
        # of it does
        even = g.abs().amax(dim, keepdim=True).expand_as(g)
        divided = case.expected(logits, even, draw, tau, dim, mask).abs()
        scale = torch.maximum(scale, divided.amax(dim, keepdim=True))
    assert_gradient(gradient, expected, scale)
    if mask is not None:
        assert not gradient[~mask.expand(z.shape)].any()
    if case.noisy or not given:
        return
    at = case.sample_at(leaf, draw, tau, mask=mask, **axis)
    assert torch.equal(at, z)
    assert_gradient(torch.autograd.grad(at, leaf, g)[0], expected, scale)


def check_ends(case: Case, logits: Tensor, g: Tensor) -> None:
    """A blend of weight 0 or 1: calls that differ in the weight alone share nothing of it."""
    device, leaf = logits.device.type, logits.detach().requires_grad_()
    # a kernel that has run before starts in another way, so each weight comes again
    for weight, method in ((0.0, "straight_through"), (1.0, "reinmax")) * 3:
        z = case.sample(leaf, 0.7, weight=weight, generator=seeded(1, device))
        draw = case.drawn(z)
        expected = BY_METHOD[case.family, method].expected(logits, g, draw, 0.7)
        scale = case.scale(g, draw, expected)
        assert_gradient(torch.autograd.grad(z, leaf, g)[0], expected, scale)


GUARD = 64
"""Elements before and after an allocation that nobody may write."""


def poison_of(dtype: torch.dtype) -> float | int | bool:
    """What no right result contains."""
    if dtype.is_floating_point:
        return float("nan")
    return dtype != torch.bool and 0x7AAA_AAAA


@contextmanager
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New memory holds poison, also around it; afterwards what lies around is found unchanged."""
    plain = {"empty": torch.empty, "empty_like": torch.empty_like, "zeros_like": torch.zeros_like}
    around: list[Tensor] = []

    def guarded(shape, dtype, device, value) -> Tensor:
        shape = torch.Size(shape)
        memory = plain["empty"](shape.numel() + 2 * GUARD, dtype=dtype, device=device)
        memory.fill_(poison_of(dtype))
        around.extend([memory[:GUARD], memory[-GUARD:]])
        inside = memory[GUARD:-GUARD].view(shape)
        return inside if value is None else inside.fill_(value)

    def empty(*shape, dtype=None, device=None, **options):
        if options:  # torch itself calls
            return plain["empty"](*shape, dtype=dtype, device=device, **options)
        if len(shape) == 1 and not isinstance(shape[0], int):
            (shape,) = shape
        return guarded(shape, dtype or torch.get_default_dtype(), device, None)

    def like(value):
        def make(x, dtype=None, device=None, memory_format=torch.contiguous_format):
            assert memory_format == torch.contiguous_format or x.is_contiguous()
            return guarded(x.shape, dtype or x.dtype, device or x.device, value)

        return make

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch, "empty_like", like(None))
        patch.setattr(torch, "zeros_like", like(0))
        yield
    for guard in around:
        poison = poison_of(guard.dtype)
        assert (guard.isnan() if poison != poison else guard == poison).all()


def surrounded(x: Tensor, value: float | bool = float("nan")) -> Tensor:
    """The same numbers as a view of a larger tensor that holds ``value`` everywhere else."""
    around = torch.full([size + 4 for size in x.shape], value, dtype=x.dtype, device=x.device)
    inside = around[tuple(slice(2, -2) for _ in x.shape)]
    return inside.copy_(x)


FAMILY_WISE = 1e-6
LEVEL = FAMILY_WISE / 200
"""What a p-value must exceed. No file has more than 200 of them, so a right library would fail
somewhere with a chance of at most FAMILY_WISE, had the seeds not been fixed."""


def chi_square(counts: Tensor, probs: Tensor) -> float:
    """The p-value of counts per category; those expected fewer than 50 times are taken together."""
    counts, expected = counts.double().cpu().flatten(), probs.double().cpu().flatten()
    expected = expected / expected.sum() * counts.sum()
    assert not counts[expected == 0].any()
    order = expected.argsort()
    counts, expected = counts[order], expected[order]
    pooled = int((expected.cumsum(0) < 50).sum()) + 1
    pooled = max(pooled, int((expected < 50).sum()))
    pieces = [pooled, *[1] * (len(expected) - pooled)]
    counts, expected = ([x.sum().item() for x in t.split(pieces)] for t in (counts, expected))
    assert len(expected) >= 2, "nothing to compare"
    return stats.chisquare(counts, expected).pvalue


def independence(first: Tensor, second: Tensor, probs: Tensor) -> float:
    """The p-value that pairs of draws from ``probs`` are independent."""
    n = len(probs)
    counts = torch.bincount((first * n + second).flatten(), minlength=n * n)
    return chi_square(counts, probs[:, None] * probs)


def warm_up(step: Callable[[], object]) -> None:
    """What a step does for the first time cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)


@contextmanager
def without_waiting() -> Iterator[None]:
    """What makes the CPU wait for the GPU is an error here."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
