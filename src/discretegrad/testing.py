"""What every sampler promises, as rules that your own sampler can be held to.

``check_sampler(row)`` holds one to all of them; ``RULES`` has them one by one, for a test runner.
The library's own samplers are held to the same rules.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ._row import Estimator
from ._types import Call
from .exact import exact_gradient
from .families import Family, FamilyLike, Subset
from .registry import get

# stands for all families that a row does not name
_ANY_FAMILY = Subset(2)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# on both sides of the sizes where the draw of a category changes its method
_SIZES = (2, 7, 63, 64, 65, 300)
# for one formula computed along two paths: sums in another order, or another closed form
_TOLERANCES = {torch.float64: (1e-11, 1e-12), torch.float32: (1e-5, 1e-6)}


@dataclass(frozen=True)
class Case:
    """A sampler with its options, on one kind of variable."""

    row: Estimator
    family: FamilyLike
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = [f"{name}={value}" for name, value in self.options.items()]
        return "-".join([str(self.family), self.row.name, *options])

    @property
    def categorical(self) -> bool:
        """Whether its variables are categories, whose draws are given as an index."""
        return self.family == "categorical"

    @property
    def along_axis(self) -> bool:
        """Whether its variables lie along an axis of the logits, as those of all but bits do."""
        return self.family != "bernoulli"

    @property
    def hard(self) -> bool:
        """Whether the sample is discrete: it is, unless ``hard=False`` asks for the relaxed one."""
        return bool(self.options.get("hard", True))

    def sample(self, logits: Tensor, tau: float | Tensor = 1.0, **arguments: Any) -> Tensor:
        """Call the sampler."""
        return self.row.function(logits, tau, family=self.family, **self.options, **arguments)

    def draw(self, logits: Tensor, dim: int = -1, seed: int = 1) -> dict[str, Tensor]:
        """The arguments ``given`` and, where the sampler takes it, ``noise``, for these logits."""
        fixed, generator = logits.detach().double(), seeded(seed)
        if isinstance(self.family, Family):
            variables = self.family.prepare(Call("draw", fixed, dim=dim))
            drawn = self.family.draw(Call("draw", fixed, generator=generator), variables)
            return {"given": self.family.restore(drawn, dim).double()}
        if not self.categorical:
            return {"given": fixed.sigmoid().bernoulli(generator=generator), **self._noise(logits)}
        probs = fixed.movedim(dim, -1).softmax(-1)
        index = probs.flatten(0, -2).multinomial(1, generator=generator)
        return {"given": index.reshape(probs.shape[:-1]), **self._noise(logits)}

    def _noise(self, logits: Tensor) -> dict[str, Tensor]:
        if "noise" not in self.row.takes:
            return {}
        options = {**self.row.options, **self.options}
        draws = (options["num_draws"],) if "num_draws" in options else ()
        uniform = torch.rand(*draws, *logits.shape, generator=seeded(2), dtype=torch.float64)
        uniform = uniform.clamp(1e-6, 1 - 1e-6)
        return {"noise": (-uniform.log() if self.categorical else uniform.logit()).to(logits.dtype)}


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Seeded normal numbers, the same for every dtype up to rounding."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def weights_like(x: Tensor) -> Tensor:
    """The gradient that a rule sends into a sample: seeded, and different everywhere."""
    return normal(*x.shape, seed=11, dtype=x.dtype)


def gradient(sample: Tensor, logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """What the logits get for the loss ``(sample * weights).sum()``."""
    weights = weights_like(sample) if weights is None else weights
    return torch.autograd.grad((sample * weights).sum(), logits)[0]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal up to rounding."""
    rtol, atol = _TOLERANCES[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_discrete(sample: Tensor, family: FamilyLike, dim: int = -1) -> None:
    """Ones and zeros to the last bit (no -0.0), and as many ones per row as there must be."""
    assert ((sample == 0) | (sample == 1)).all(), "the sample has entries other than 0 and 1"
    assert not sample.signbit().any(), "the sample has a -0.0"
    if family == "categorical":
        assert ((sample == 1).sum(dim) == 1).all(), "a row of the sample is not one-hot"
    if isinstance(family, Subset):
        assert ((sample == 1).sum(dim) == family.k).all(), f"a row has not {family.k} ones"


def _is_discrete(case: Case) -> None:
    for dtype in _DTYPES:
        for size in _SIZES:
            logits = normal(50, size, dtype=dtype)
            sample = case.sample(logits, generator=seeded(1))
            assert sample.dtype == dtype
            assert sample.shape == logits.shape
            if case.hard:
                assert_discrete(sample, case.family)


def _draws_what_the_library_draws(case: Case) -> None:
    for shape in ((200, 2), (200, 7), (50, 300), (2, 6, 9)):
        logits, mask = normal(*shape), normal(*shape, seed=4) < 1
        # one category is enough, and _ANY_FAMILY needs two items
        mask[..., : 2 if isinstance(case.family, Family) else 1] = True
        arguments = {"mask": mask, "generator": seeded(1)}
        sample = case.sample(logits, 0.7, **arguments)
        arguments["generator"] = seeded(1)
        reference = "straight_through" if isinstance(case.family, Family) else "gumbel_softmax"
        expected = get(reference).function(logits, family=case.family, **arguments)
        if case.categorical:
            assert torch.equal(sample.argmax(-1), expected.argmax(-1))
        else:
            assert torch.equal(sample > 0.5, expected > 0.5)


def _takes_a_given_draw(case: Case) -> None:
    logits = normal(30, 5).requires_grad_()
    arguments = case.draw(logits)
    before = [x.clone() for x in (logits, *arguments.values())]
    sample = case.sample(logits, 0.7, **arguments)
    gradient(sample, logits)
    for x, y in zip(before, (logits, *arguments.values()), strict=True):
        assert torch.equal(x, y), "what was given has changed"
    drawn = sample.argmax(-1) if case.categorical else (sample > 0.5).double()
    assert torch.equal(drawn, arguments["given"])
    if case.hard:
        assert_discrete(sample, case.family)
    kinds = [torch.int32] if case.categorical else [torch.bool, torch.int64, torch.float16]
    for kind in kinds:
        same = {**arguments, "given": arguments["given"].to(kind)}
        assert torch.equal(case.sample(logits, 0.7, **same), sample)


def _is_its_formula_at_the_draw(case: Case) -> None:
    if case.row.takes:
        return
    for shape in ((30, 5), (4, 200)):
        for tau in (1.0, 0.7):
            logits = normal(*shape).requires_grad_()
            sample = case.sample(logits, tau, generator=seeded(1))
            given = sample.detach().argmax(-1) if case.categorical else sample.detach()
            expected = case.sample(logits, tau, given=given)
            assert torch.equal(sample, expected)
            assert torch.equal(gradient(sample, logits), gradient(expected, logits))


def _masks(case: Case) -> None:
    rows = torch.arange(60)[:, None]
    for n in (7, 100):
        one = torch.arange(n) % 3 != 1
        for mask in (one, (rows + torch.arange(n)) % 3 != 1, one[None, None]):
            # the excluded ones would be drawn nearly always, were they not excluded
            logits = (normal(2, 60, n) + 9 * ~mask).requires_grad_()
            sample = case.sample(logits, 0.7, mask=mask, generator=seeded(1))
            grad, excluded = gradient(sample, logits), ~mask.expand_as(logits)
            assert (sample[excluded] == 0).all(), "what is excluded was drawn"
            assert (grad[excluded] == 0).all(), "what is excluded got a gradient"
            assert (grad[~excluded] != 0).any()
            infinite = logits.detach().masked_fill(~mask, -math.inf).requires_grad_()
            other = case.sample(infinite, 0.7, generator=seeded(1))
            assert torch.equal(sample, other), "a mask is not the same as -inf"
            assert torch.equal(grad, gradient(other, infinite))
            arguments = case.draw(infinite)
            given = gradient(case.sample(logits, 0.7, mask=mask, **arguments), logits)
            other = case.sample(infinite, 0.7, **arguments)
            assert torch.equal(given, gradient(other, infinite))


def _any_axis_may_hold_the_categories(case: Case) -> None:
    if not case.along_axis:
        return
    logits = normal(3, 4, 5).requires_grad_()
    weights = weights_like(logits)
    for dim in range(-3, 3):
        last = logits.detach().movedim(dim, -1).contiguous().requires_grad_()
        tau_last = normal(*last.shape[:-1], 1, seed=5).exp()
        given = case.draw(logits, dim=dim)
        given_last = dict(given)
        if not case.categorical:
            given_last["given"] = given["given"].movedim(dim, -1)
        if "noise" in given:
            noise = given["noise"]
            given_last["noise"] = noise.movedim(dim if dim < 0 else dim + noise.ndim - 3, -1)
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"generator": seeded(1)}, {"generator": seeded(1)}),
            (given, given_last),
        ]
        for ours, theirs in pairs:
            sample = case.sample(logits, tau_last.movedim(-1, dim), dim=dim, **ours)
            expected = case.sample(last, tau_last, **theirs)
            assert_close(sample, expected.movedim(-1, dim))
            grad = gradient(expected, last, weights.movedim(dim, -1))
            assert_close(gradient(sample, logits, weights), grad.movedim(-1, dim))


def _leading_axes_are_a_batch(case: Case) -> None:
    for axes in range(6):
        shape = (2, 3, 1, 2, 2)[:axes]
        flat = normal(math.prod(shape), 4).requires_grad_()
        logits = flat.detach().reshape(*shape, 4).requires_grad_()
        weights = weights_like(flat)
        expected = case.sample(flat, 0.7, generator=seeded(1))
        sample = case.sample(logits, 0.7, generator=seeded(1))
        assert_close(sample, expected.reshape(logits.shape))
        grad = gradient(sample, logits, weights.reshape(logits.shape))
        assert_close(grad, gradient(expected, flat, weights).reshape(logits.shape))


def _temperature_per_row(case: Case) -> None:
    logits = normal(3, 2, 5).requires_grad_()
    arguments, weights = case.draw(logits), weights_like(logits)
    # 1 is among them because some formulas have a short form there
    taus = torch.tensor([0.7, 1.0, 1.6]).repeat(2)
    for shape in ((3, 2, 1), (3, 1, 1), (), (1,)):
        tau = taus[: math.prod(shape)].reshape(shape)
        sample = case.sample(logits, tau, **arguments)
        grad = gradient(sample, logits)
        for where in ((member, row) for member in range(3) for row in range(2)):
            single = logits.detach()[where].requires_grad_()
            own = {"given": arguments["given"][where]}
            if "noise" in arguments:
                own["noise"] = arguments["noise"][(..., *where, slice(None))]
            expected = case.sample(single, tau.expand(3, 2, 1)[where].item(), **own)
            assert_close(sample[where], expected)
            assert_close(grad[where], gradient(expected, single, weights[where]))


def _low_precision_is_computed_in_float32(case: Case) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for tau in (0.6, 1.0, torch.tensor(1.4)):
            for n in (5, 90):
                logits = (3 * normal(20, n, dtype=dtype)).requires_grad_()
                wide, weights = logits.detach().float().requires_grad_(), weights_like(logits)
                sample = case.sample(logits, tau, generator=seeded(1))
                expected = case.sample(wide, tau, generator=seeded(1))
                eps = torch.finfo(dtype).eps
                torch.testing.assert_close(sample, expected.to(dtype), rtol=eps, atol=0)
                rounded = gradient(expected, wide, weights.float()).to(dtype)
                grad = gradient(sample, logits, weights)
                torch.testing.assert_close(grad, rounded, rtol=eps, atol=0)


def _generators(case: Case) -> None:
    for shape in ((30, 5), (4, 200)):
        logits, generator = normal(*shape).requires_grad_(), seeded(1)
        state, globally = generator.get_state(), torch.get_rng_state()
        first = case.sample(logits, generator=generator)
        second = case.sample(logits, generator=generator)
        generator.set_state(state)
        again = case.sample(logits, generator=generator)
        assert torch.equal(first, again)
        assert torch.equal(gradient(first, logits), gradient(again, logits))
        assert not torch.equal(first, second)
        gradient(case.sample(logits, **case.draw(logits)), logits)
        assert torch.equal(torch.get_rng_state(), globally), "the global generator was used"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            sample = case.sample(logits)
            after = torch.get_rng_state()
            gradient(sample, logits)
            assert torch.equal(torch.get_rng_state(), after), "backward draws from the generator"
        assert torch.equal(sample, first), "the global generator gives other samples"


def _graph(case: Case) -> None:
    logits = normal(4, 5)
    assert not case.sample(logits, 0.7).requires_grad
    with torch.no_grad():
        assert not case.sample(logits.requires_grad_(), 0.7).requires_grad
    sample = case.sample(logits, 0.7)
    assert sample.requires_grad
    weights = weights_like(logits)
    before = weights.clone()
    torch.autograd.grad(sample, logits, weights)
    assert torch.equal(weights, before), "the incoming gradient has changed"
    for shape in ((0, 4), (3, 0, 4), (0, 3, 100)):
        empty = normal(*shape).requires_grad_()
        assert gradient(case.sample(empty, generator=seeded(1)), empty).shape == shape


def _bits_are_two_categories(case: Case) -> None:
    if case.along_axis or "categorical" not in case.row.families or case.row.takes:
        return
    other = Case(case.row, "categorical", case.options)
    logits, zeros = (2 * normal(40)).requires_grad_(), torch.zeros(40, dtype=torch.float64)
    pair = torch.stack([logits.detach(), zeros], -1).requires_grad_()
    value, weights = torch.arange(40) % 2, normal(40, seed=9)
    for tau in (1.0, 0.6, 2.5, torch.linspace(0.3, 3, 40, dtype=torch.float64)):
        pair_tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
        sample = case.sample(logits, tau, given=value)
        expected = other.sample(pair, pair_tau, given=1 - value)
        assert_close(sample, expected[..., 0])
        pair_grad = gradient(expected, pair, torch.stack([weights, zeros], -1))[..., 0]
        assert_close(gradient(sample, logits, weights), pair_grad)


def _is_as_exact_as_its_row_says(case: Case) -> None:
    """The expected gradient, enumerated over one variable in float64, for its best functions."""
    if case.row.takes or case.row.exact_for == "nothing" or any(case.options.values()):
        return
    n = 5 if case.along_axis else 1
    linear, curved = normal(n, seed=3), normal(n, n, seed=4)
    if case.row.exact_for == "linear":
        curved = torch.zeros_like(curved)
    logits = normal(n).requires_grad_()

    def f(z: Tensor) -> Tensor:
        return z @ linear + z @ curved @ z

    fixed = logits.detach()
    if isinstance(case.family, Family):
        outcomes = case.family.outcome(fixed, torch.arange(case.family.outcomes(fixed)))
        probs = case.family.log_prob(fixed, outcomes.double()).exp()
    else:
        outcomes = torch.arange(n) if case.categorical else torch.arange(2).unsqueeze(-1)
        probs = fixed.softmax(-1) if case.categorical else torch.cat([-fixed, fixed]).sigmoid()
    mean = sum(
        prob * torch.autograd.grad(f(case.sample(logits, given=given)), logits)[0]
        for prob, given in zip(probs, outcomes, strict=True)
    )
    assert_close(torch.as_tensor(mean), exact_gradient(fixed, f, family=case.family))


RULES: Mapping[str, Callable[[Case], None]] = {
    "samples are discrete": _is_discrete,
    "draws what the library draws": _draws_what_the_library_draws,
    "takes a given draw": _takes_a_given_draw,
    "is its formula at the draw": _is_its_formula_at_the_draw,
    "masks": _masks,
    "any axis may hold the categories": _any_axis_may_hold_the_categories,
    "leading axes are a batch": _leading_axes_are_a_batch,
    "temperature per row": _temperature_per_row,
    "low precision is computed in float32": _low_precision_is_computed_in_float32,
    "generators": _generators,
    "graph": _graph,
    "bits are two categories": _bits_are_two_categories,
    "is as exact as its row says": _is_as_exact_as_its_row_says,
}
"""Every rule by name: a function that raises ``AssertionError`` if a case breaks it."""


def check_sampler(row: Estimator, **options: Any) -> None:
    """Hold a sampler to every rule, on every family that its row names, or on all of them.

    Args:
        row: The row of a sampler, of the library or your own.
        **options: Its options; the defaults of the row where they are left out.

    Raises:
        AssertionError: If it breaks one; the message names the rule and the family.

    Example:
        >>> import discretegrad
        >>> from discretegrad.testing import check_sampler
        >>> check_sampler(discretegrad.get("straight_through"))
    """
    if not isinstance(row, Estimator) or row.kind != "sampler":
        raise TypeError(
            f"check_sampler: expected the row of a sampler, such as discretegrad.get('reinmax'), "
            f"got {row!r}"
        )
    families: tuple[FamilyLike, ...] = row.families
    for family in (*families, _ANY_FAMILY) if row.any_family else families:
        case = Case(row, family, options)
        for name, rule in RULES.items():
            try:
                rule(case)
            except Exception as error:
                raise AssertionError(f"{case} breaks the rule {name!r}: {error}") from error
