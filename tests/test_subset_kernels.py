"""The kernels for subsets in Triton's interpreter, against the torch path on the same draws.

Real sizes, and what only a GPU can show, are in test_gpu_subset.py.
"""

import math

import pytest
import torch

import discretegrad
from discretegrad import BackendUnavailable, Subset, reinmax
from discretegrad.families import counting
from discretegrad.kernels import dispatch
from discretegrad.testing import assert_discrete, normal, seeded
from kernel_cases import allowed_some, temperatures
from subset_cases import OPTIONS, assert_near, check_steps, draws_of, gradients_of

triton = pytest.importorskip("triton")
if not dispatch._INTERPRETED:
    pytest.skip("runs in Triton's interpreter, where there is no GPU", allow_module_level=True)

from triton.runtime import interpreter  # noqa: E402

from discretegrad.kernels import subset, subset_steps  # noqa: E402
from discretegrad.kernels.subset_family import KernelSubset  # noqa: E402

# NumPy tells of infinities that a GPU makes silently
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("poison"),
]

SCORES = [row for row in discretegrad.ESTIMATORS.values() if row.kind == "score" and row.any_family]
each_sampler = pytest.mark.parametrize("name", OPTIONS)


def numbers(*shape, seed=0, spread=2.0):
    return spread * normal(*shape, seed=seed, dtype=torch.float32)


@pytest.fixture
def sizes(monkeypatch):
    """A function that sets how rows are cut, for the time of a test."""
    plans = (subset._balance_plan, subset._moments_plan, subset._draw_plan)

    def forget():
        for plan in plans:
            plan.cache_clear()

    with monkeypatch.context() as patch:

        def change(**values):
            for name, value in values.items():
                patch.setattr(subset, name, value)
            forget()

        yield change
    forget()


@pytest.fixture
def launches(monkeypatch):
    """The kernels that were launched, in order, and with how many programs."""
    seen = []
    plain = interpreter.GridExecutor.__call__

    def record(self, *arguments, **options):
        seen.append((self.fn.__name__, self.grid[0]))
        return plain(self, *arguments, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", record)
    return seen


@pytest.mark.parametrize(
    ("n", "k"),
    [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (5, 2), (6, 3), (7, 7), (8, 4), (9, 8), (17, 2)],
)
def test_steps_are_those_of_torch(n, k):
    # ties, and g with a constant that nothing may feel
    logits = torch.cat([numbers(1, n), numbers(1, n).round()])
    check_steps(logits, k, numbers(2, n, seed=1) + 100)
    ours, theirs = draws_of(logits, k, 3)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("n", "k"), [(70, 9), (33, 16), (65, 60)])
def test_levels_of_several_tiles(n, k, sizes):
    sizes(ITEMS=1)
    logits = numbers(1, n)
    assert subset.tree(n, k).widest > 2 * 32 * subset._warps(n)
    check_steps(logits, k, numbers(1, n, seed=1))
    ours, theirs = draws_of(logits, k, 2)
    assert torch.equal(ours, theirs)


HIGHEST = torch.finfo(torch.float32).max
HARD = {
    "flat": lambda n: torch.zeros(n),
    "plus or minus 80": lambda n: 160.0 * (torch.arange(n) % 3 > 0) - 80,
    "from -80 to 80": lambda n: 160 * torch.rand(n, generator=seeded(1)) - 80,
    "excluded": lambda n: numbers(n).masked_fill(torch.arange(n) % 3 == 2, -math.inf),
    "as large as can be": lambda n: HIGHEST * (2.0 * (torch.arange(n) % 3 > 0) - 1),
}


@pytest.mark.parametrize("logits", HARD.values(), ids=HARD)
@pytest.mark.parametrize("k", [1, 10, 30])
def test_hard_logits(logits, k, sizes):
    sizes(PER_THREAD=8, TERMS=2)
    logits = logits(45)[None]
    check_steps(logits, k, numbers(1, 45, seed=1) + 100)
    ours, theirs = draws_of(logits, k, 1)
    assert torch.equal(ours, theirs)


def test_nothing_cancels_where_a_subset_is_nearly_certain():
    """One of the first two is swapped with one of the last two, by chances of about e^-2x."""
    logits, likeliest = torch.tensor([[18.0, 18.0, -18.0, -18.0]]), torch.tensor([[1.0, 1, 0, 0]])
    chance = 2 * math.exp(-36.0) * torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    point = subset_steps.balanced(logits, 2)
    parts, product = subset_steps.inclusion_and_covariance(point, 2, likeliest + 7)
    for ours in (product, counting.residual(likeliest > 0, parts)):
        torch.testing.assert_close(ours, chance, rtol=1e-5, atol=0)


def test_a_program_takes_several_rows_and_draws(sizes, launches):
    """Its memory is used again, and a tree serves several draws."""
    logits, g = numbers(3, 11), numbers(3, 11, seed=1)
    shape = subset.tree(11, 4)
    results = []
    for scratch, programs in ((2**27, 1024), (4 * (shape.size + 2 * shape.widest), 1), (1, 6)):
        sizes(SCRATCH=scratch, PROGRAMS=programs)
        ours, theirs = draws_of(logits, 4, 5)
        assert torch.equal(ours, theirs)
        point = counting.balanced(logits, 4)
        results.append((ours, subset_steps.inclusion_and_covariance(point, 4, g)[1]))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
    assert launches == [
        ("_draw_kernel", 15),
        ("_moments_kernel", 3),
        ("_draw_kernel", 3),
        ("_moments_kernel", 2),
        ("_draw_kernel", 1),
        ("_moments_kernel", 1),
    ]


TAUS = {"tau=1": 1.0, "tau=0.6": 0.6, "tau by row": temperatures(2, 1)}


@each_sampler
@pytest.mark.parametrize("tau", TAUS.values(), ids=TAUS)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_samplers(name, tau, masked):
    logits, g = numbers(2, 9), numbers(2, 9, seed=1)
    mask = allowed_some(2, 9) if masked else None
    ours, theirs = gradients_of(name, logits, g, Subset(3), tau, mask=mask)
    assert torch.equal(ours[0], theirs[0])
    assert_discrete(ours[0], Subset(3))
    assert_near(ours[1], theirs[1].double(), 2e-6)
    if masked:
        assert not ours[0][~mask].any()
        assert not ours[1][~mask].any()


@each_sampler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_axis_strides_and_dtype(name, dtype):
    logits = numbers(6, 2, 1).to(dtype).transpose(0, 1)
    g = numbers(1, 6, 1, seed=1).to(dtype).expand(2, 6, 1)
    ours, theirs = gradients_of(name, logits, g, Subset(4), dim=1)
    assert torch.equal(ours[0], theirs[0])
    assert ours[1].dtype == dtype
    allowed = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert_near(ours[1].movedim(1, -1), theirs[1].movedim(1, -1).double(), allowed)


@each_sampler
def test_given_subsets(name):
    logits, g = numbers(2, 7), numbers(2, 7, seed=1)
    given = Subset(3).likeliest(-logits).long()
    ours, theirs = gradients_of(name, logits, g, Subset(3), given=given)
    assert torch.equal(ours[0], given.float())
    assert_near(ours[1], theirs[1].double(), 2e-6)


@pytest.mark.parametrize("row", SCORES, ids=lambda row: row.name)
def test_score_functions(row):
    results = []
    for family in (KernelSubset(3), Subset(3)):
        logits = numbers(2, 6).requires_grad_()
        options = {} if row.name == "exact" else {"num_samples": 3, "generator": seeded(1)}
        loss = row.function(
            logits, lambda z: (z * torch.arange(6.0)).sum(-1).square(), family=family, **options
        )
        results.append((loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert_near(results[0][1], results[1][1].double(), 2e-6)


def test_score_functions_take_kernels_where_they_run(monkeypatch):
    logits, family = numbers(2, 6), Subset(2)
    assert dispatch.fastest("reinforce", logits, family) is family  # on a CPU
    monkeypatch.setattr(dispatch, "choose_backend", lambda *arguments: "triton")
    assert dispatch.fastest("reinforce", logits, family) == KernelSubset(2)
    assert dispatch.fastest("reinforce", logits, discretegrad.families.FAMILIES["bernoulli"]).name


def test_few_launches(launches):
    """Beside them, forward draws uniform numbers and casts; each is one launch of torch."""
    logits = numbers(2, 6).requires_grad_()
    counts = {}
    for name, options in OPTIONS.items():
        launches.clear()
        z = getattr(discretegrad, name)(logits, family=Subset(2), backend="triton", **options)
        assert [kernel for kernel, _ in launches] == ["_balance_kernel", "_draw_kernel"]
        z.sum().backward()
        assert {kernel for kernel, _ in launches[2:]} == {"_moments_kernel"}
        counts[name] = len(launches) - 2
    assert counts == {"straight_through": 1, "reinmax": 1, "blend": 2}


BAD = {
    "NaN": [0.0, math.nan, 1.0, -1.0, 2.0, 0.5],
    "all NaN": [math.nan] * 6,
    "too few": [0.0, 1.0, *[-math.inf] * 4],
    "none": [-math.inf] * 6,
    "one +inf": [math.inf, 0.0, 1.0, -1.0, 2.0, 0.5],
    "many +inf": [math.inf] * 4 + [0.0] * 2,
    "both": [math.inf, math.nan, -math.inf, 0.0, 0.0, 0.0],
    "negative NaN": torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, -math.nan]).tolist(),
}


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
def test_bad_rows_stay_alone_and_are_as_on_the_torch_path(row, k, unchecked):
    good, g = numbers(2, 6), numbers(3, 6, seed=1)
    logits = torch.stack([good[0], torch.tensor(row), good[1]])
    ours, theirs = gradients_of("reinmax", logits, g, Subset(k))
    assert_discrete(ours[0], Subset(k))
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-6, equal_nan=True)
    assert ours[1][[0, 2]].isfinite().all()


def test_values_are_checked_as_on_the_torch_path():
    for arguments, message in (
        ({"logits": torch.full((2, 5), math.nan)}, "without NaN"),
        ({"mask": torch.arange(5) == 1}, "at least 2 allowed items"),
        ({"given": torch.ones(2, 5)}, "exactly 2 ones"),
    ):
        with pytest.raises(ValueError, match=message):
            reinmax(
                **{"logits": torch.zeros(2, 5), **arguments}, family=Subset(2), backend="triton"
            )


def test_the_backend_is_what_was_asked_for(launches):
    logits = numbers(2, 5).requires_grad_()
    for backend in ("auto", "torch"):
        reinmax(logits, family=Subset(2), backend=backend).sum().backward()
    assert not launches
    with pytest.raises(BackendUnavailable, match=r"the logits are torch\.float64"):
        reinmax(logits.double(), family=Subset(2), backend="triton")
    with pytest.raises(BackendUnavailable, match=r"torch\.func transforms"):
        torch.vmap(
            lambda x: reinmax(x, family=Subset(2), backend="triton"), randomness="different"
        )(logits)


def test_what_no_kernel_does_is_left_to_torch(launches):
    family, logits = KernelSubset(2), numbers(3, 5)
    leaf, given = logits.clone().requires_grad_(), Subset(2).likeliest(logits)
    moments = [
        family.mean(family.point(logits.double())),
        torch.func.vmap(lambda x: family.mean(family.point(x)))(logits),
        family.mean(counting.balanced(leaf, 2)),
        family.point(logits[:0]),
    ]
    assert not launches
    assert torch.autograd.grad(moments[2].square().sum(), leaf)[0].abs().max() > 0
    z = reinmax(leaf, family=family, given=given)
    g = numbers(2, 3, 5, seed=1)
    together = torch.autograd.grad(z, leaf, g, is_grads_batched=True, retain_graph=True)[0]
    alone = [torch.autograd.grad(z, leaf, single, retain_graph=True)[0] for single in g]
    torch.testing.assert_close(together, torch.stack(alone))


def test_double_backward_is_refused():
    logits = numbers(2, 5).requires_grad_()
    z = reinmax(logits, family=Subset(2), backend="triton")
    first = torch.autograd.grad(z.pow(2).sum(), logits, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiating it again is refused"):
        torch.autograd.grad(first.sum(), logits)


@each_sampler
def test_compiled_sampler_is_the_eager_one(name, compiler):
    def sampler(logits):
        return getattr(discretegrad, name)(logits, 0.7, family=Subset(2), backend="triton")

    compiled = torch.compile(sampler, fullgraph=True, backend="aot_eager")
    logits, g = numbers(2, 5), numbers(2, 5, seed=1)
    results = []
    with torch.random.fork_rng():
        for function in (compiled, sampler):
            torch.manual_seed(1)
            leaf = logits.clone().requires_grad_()
            z = function(leaf)
            results.append((z.detach(), torch.autograd.grad(z, leaf, g)[0]))
    assert all(map(torch.equal, *results))
