"""Bad input is met with an error that says what was expected, what came and what to do."""

import importlib.util
import inspect
import itertools
import math
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

import discretegrad
from cases import HARD, SAMPLERS, SUBSETS, any_tau, each, each_family
from discretegrad import (
    ESTIMATORS,
    BackendUnavailable,
    Subset,
    exact_expectation,
    exact_gradient,
    set_checks,
)
from discretegrad.kernels import dispatch
from discretegrad.testing import Case, assert_discrete, normal, seeded

NAN, INF = math.nan, math.inf
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.fixture(autouse=True)
def default_checks():
    """Every test starts with the default mode and leaves what it found."""
    before = set_checks("auto")
    yield
    set_checks(before)


@dataclass(frozen=True)
class Target:
    """A way to call a sampler, with arguments that are right."""

    family: str
    name: str
    given: bool

    def __str__(self):
        return f"{self.family}-{self.name}" + "-given" * self.given

    @property
    def categorical(self):
        return self.family == "categorical"

    @property
    def takes(self):
        """What may come beside a draw."""
        return SAMPLERS[self.name].takes if self.given else ()

    def call(self, **changes: Any) -> Tensor:
        """Call it on two rows of three categories, with some arguments changed."""
        arguments = {"family": self.family, **self.arguments(torch.zeros(2, 3)), **changes}
        return SAMPLERS[self.name].function(**arguments)

    def arguments(self, logits: Tensor) -> dict[str, Tensor]:
        """Logits with a draw and noise for them."""
        if not self.given:
            return {"logits": logits}
        given = torch.zeros_like(logits[..., 0] if self.categorical else logits)
        arguments = {"logits": logits, "given": given.long()}
        if self.takes:
            draws = (4,) if "seed" in self.takes else ()
            arguments["noise"] = logits.new_full((*draws, *logits.shape), 0.5)
        return arguments

    def refuses(self, changes, error, *parts):
        assert_refused(partial(self.call, **changes), error, f"{self.name}: expected", *parts)


def assert_refused(call, error, start, *parts):
    """The error has this type, and its message begins and has parts as they are written here."""
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith(start)
    for part in parts:
        assert part in message


TARGETS = [
    Target(family, name, given)
    for name, row in SAMPLERS.items()
    for family in row.families
    for given in (False, True)
]
DRAWING = [target for target in TARGETS if not target.given]
GIVEN = [target for target in TARGETS if target.given]


def each_target(targets):
    return pytest.mark.parametrize("target", targets, ids=str)


TWO = torch.zeros(2, 3)


def row_of(value):
    """Good logits in the first row and one bad entry in the second."""
    return torch.tensor([[0.0, 0.0, 0.0], [0.0, value, 0.0]])


def name_of_type(x):
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__


# each row: the arguments that are wrong, the error, and what its message must contain


def wrong(argument, values, error, *parts, shown=str):
    """A row for each of the values; {} in a part stands for how the message shows the value."""
    return [({argument: x}, error, *(part.format(shown(x)) for part in parts)) for x in values]


def wrong_types(argument, values, *parts):
    return wrong(argument, values, TypeError, *parts, shown=name_of_type)


def wrong_shapes(argument, shapes, *parts, make=torch.ones):
    return [({argument: make(x)}, ValueError, *(p.format(x) for p in parts)) for x in shapes]


def ones(shape):
    return torch.ones(shape).bool()


def zeros(shape):
    return torch.zeros(shape).long()


# torch has no arithmetic for 8-bit floats, so the samplers cannot take them either
NO_LOGITS = (torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn)
ADVICE = "Use tau=1.0 unless you have tuned it"
NESTED = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)], layout=torch.jagged)
# for every sampler and family
STATIC = [
    *wrong_types("logits", ([0.0], None, np.zeros(3)), "torch.Tensor", "got {}", "as_tensor"),
    *wrong_types("logits", [TWO.to(x) for x in NO_LOGITS], "got dtype {}", ".float()"),
    *[
        ({name: x.to_sparse()}, TypeError, f"{name} to be a dense tensor", "sparse_coo", "to_dense")
        for name, x in (("logits", TWO), ("tau", TWO[:, :1]), ("mask", ones((2, 3))))
    ],
    ({"logits": NESTED}, TypeError, "logits to be a dense tensor", "a nested one", "to_padded_te"),
    *wrong("tau", (0, -0.5, NAN, INF, -INF), ValueError, "tau in (0, inf)", "got {}", ADVICE),
    *wrong_types("tau", (True, "1", None, [1.0], 1j), "a number or a tensor", "got {}", ADVICE),
    *wrong_types("tau", (ones(()), torch.ones(()) * 1j), "real tau", "dtype {}", ADVICE),
    # the last would broadcast the logits too
    *wrong_shapes("tau", ((0,), (3, 1), (4, 2, 1)), "(2, 3)", "tau of shape {}", "unsqueeze(-1)"),
    ({"tau": torch.ones((), requires_grad=True)}, ValueError, "requires grad", "tau.detach()"),
    *[
        ({"tau": torch.tensor([[1.0], [tau]])}, ValueError, "every tau in (0, inf)", f"got {tau}")
        for tau in (0.0, -1.0, NAN, INF, -INF)
    ],
    *wrong_types("mask", (TWO, TWO.byte(), [True], True), "(True where", "got {}", "mask.bool()"),
    *wrong_shapes("mask", ((4,), (3, 1), (0,), (5, 2, 3)), "(2, 3)", "got shape {}", make=ones),
    *wrong("backend", ("cuda", None, 1), ValueError, "('auto', 'torch', 'tr", "got {}", shown=repr),
    *wrong("family", ("gaussian", None), ValueError, "one of 'categorical'", "got {}", shown=repr),
    *wrong("hard", ("yes", 1, None), TypeError, "True or False", "got {}", shown=repr),
]
OF_FAMILY = {
    "categorical": [
        *wrong("dim", (2, -3), ValueError, "dim in [-2, 1]", "shape (2, 3)", "got {}"),
        *wrong_types("dim", (1.0, "0", None, True, (0,)), "dim to be an int", "got {}"),
        ({"logits": torch.tensor(0.0)}, ValueError, "got a scalar", "pass torch.stack([torch.zero"),
        *wrong_shapes("logits", ((2, 0), (0,), (0, 0)), "got zero along dim -1", "shape {}"),
        ({"tau": torch.ones(3)}, ValueError, "1 along dim -1 (one temperature per row)", "(3,)"),
        ({"tau": torch.ones(2, 1), "dim": 0}, ValueError, "size 1 along dim 0", "shape (2, 1)"),
    ],
    "bernoulli": wrong("dim", (0, 1), ValueError, "no dim for family='bernoulli'", "got dim={}"),
}
OPTIONS = {
    "gumbel_rao": [
        *wrong("num_draws", (0, -3), ValueError, "of at least 1", "got {}"),
        *wrong_types("num_draws", (True, 2.0, "3", None), "num_draws to be an int", "got {}"),
    ],
    "gapped": [
        *wrong("gap", (-1.0, -1, NAN, INF), ValueError, "gap of at least 0", "got {}"),
        *wrong(
            "gap",
            ("q", True, None, torch.ones(3)),
            TypeError,
            'a number or "p"',
            "got {}",
            shown=repr,
        ),
    ],
    "mean_baseline": [
        *wrong("order", (0, 3, "2", None, True), ValueError, "order 1 or 2", "got {}", shown=repr),
        ({"order": 1, "as_released": True}, ValueError, "2 with as_released=True", "got 1"),
        ({"as_released": 1}, TypeError, "True or False", "got 1"),
    ],
}


@each_target(TARGETS)
def test_refused(target):
    assert target.call().shape == (2, 3)
    assert target.call(hard=True).shape == (2, 3)
    alone = [] if target.given else SAMPLERS[target.name].takes
    bad = [*STATIC, *OF_FAMILY[target.family], *OPTIONS.get(target.name, [])]
    bad += [({name: TWO}, ValueError, "given= beside noise= or seed=") for name in alone]
    generator = seeded(0)
    before, globally = generator.get_state(), torch.get_rng_state()
    for changes, error, *parts in bad:
        for own in ({"generator": generator}, {}):
            target.refuses({**own, **changes}, error, *parts)
        # a call that is refused draws nothing
        assert torch.equal(generator.get_state(), before), changes
        assert torch.equal(torch.get_rng_state(), globally), changes
    if target.name == "gumbel_softmax":
        assert target.call(hard=False).shape == (2, 3)
    else:
        remedy = "gumbel_softmax(logits, tau, hard=False)"
        target.refuses({"hard": False}, ValueError, "hard=True, got False", remedy)


@each_target(DRAWING)
def test_generator(target):
    kinds = (0, "cpu", np.random.default_rng(0))
    # logits of the meta device, which hold no data, stand for those of an accelerator
    elsewhere = {"logits": TWO.to("meta"), "generator": seeded(0)}
    for bad in [
        *wrong_types("generator", kinds, "torch.Generator", "got {}", "torch.Generator('cpu')"),
        (elsewhere, ValueError, "logits' device meta", "got one on cpu", "torch.Generator('meta')"),
    ]:
        target.refuses(*bad)


@each(HARD)
def test_generator_beside_a_draw_that_is_given(case):
    """It may be needed for noise, or not; it is looked at in any case."""
    logits, message = TWO.clone(), rf"^{case.row.name}: expected generator to be a torch.Generator"
    with pytest.raises(TypeError, match=message):
        case.sample(logits, given=case.draw(logits)["given"], generator="abc")


@any_tau
@each_target(TARGETS)
def test_tau_that_float32_cannot_hold(target):
    """It would become 0 or inf, and the gradient NaN; in float64 there is room for it."""
    for number in (1e-50, 1e50):
        for tau in (number, torch.tensor(number, dtype=torch.float64)):
            target.refuses({"tau": tau}, ValueError, "tau", f"got {number}", ADVICE)
            wide = target.arguments(torch.zeros(2, 3, dtype=torch.float64))
            assert target.call(**wide, tau=tau).isfinite().all()


@each_target(TARGETS)
def test_nan_logits(target):
    where = ("in row 1",) if target.categorical else ()
    for dtype, categories in itertools.product(DTYPES, (3, 100)):
        logits = torch.zeros(2, categories, dtype=dtype)
        logits[1, 2] = NAN
        parts = ("logits without NaN", "got NaN", *where, "set_detect_anomaly")
        target.refuses(target.arguments(logits), ValueError, *parts)
    # padding is often NaN; where the mask excludes it nothing is wrong
    assert target.call(logits=row_of(NAN), mask=SECOND).isfinite().all()


SECOND = torch.tensor([True, False, True])
AT_LEAST_ONE = "at least one allowed category"
UNDRAWABLE = [
    ({"logits": row_of(INF)}, "finite or -inf", "got +inf in row 1", "mask out the others"),
    ({"logits": torch.tensor([[0.0] * 3, [-INF] * 3])}, AT_LEAST_ONE, "in row 1", "Drop such rows"),
    ({"mask": torch.tensor([[True], [False]])}, AT_LEAST_ONE, "in row 1", "mask", "Drop such rows"),
    ({"logits": row_of(-INF), "mask": ~SECOND}, AT_LEAST_ONE, "in row 1", "mask and -inf logits"),
]


@each_target([target for target in TARGETS if target.categorical])
def test_row_that_no_category_can_be_drawn_from(target):
    for changes, *parts in UNDRAWABLE:
        target.refuses(changes, ValueError, *parts)
    if target.given:
        return
    for categories in (3, 64, 65, 5000):
        logits, mask = torch.zeros(4, categories), torch.ones(4, categories).bool()
        mask[2] = False
        target.refuses({"logits": logits, "mask": mask}, ValueError, AT_LEAST_ONE, "in row 2")
        target.refuses({"logits": logits[0], "mask": mask[2]}, ValueError, "in the only row")


EXCLUDED = ({"mask": SECOND}, {"logits": row_of(-INF)})
OF_GIVEN = {
    "categorical": [
        *wrong_types("given", (TWO[:, 0], ones(2), [0, 0], 0), "int64 tensor", "got {}", ".long()"),
        *wrong_shapes("given", ((), (3,), (2, 1)), "without the c", "got {}", make=zeros),
        ({"dim": 0}, ValueError, "given of shape (3,)"),
        (
            {"given": TWO.long()},
            ValueError,
            "given of shape (2,)",
            "one-hot sample with .argmax(dim)",
        ),
        ({"given": torch.tensor([0, 3])}, ValueError, "in [0, 2]", "from 0 to 3"),
        ({"given": torch.tensor([-1, 2])}, ValueError, "in [0, 2]", "from -1 to 2"),
        *[
            ({"given": torch.tensor([0, 1]), **x}, ValueError, "allowed", "mask or a -inf logit ex")
            for x in EXCLUDED
        ],
    ],
    "bernoulli": [
        *wrong_types("given", ([0, 1], 1, TWO * 1j), "0/1 tensor", "got {}"),
        *wrong_shapes("given", ((), (3,), (2, 1), (1, 2, 3)), "(the logits' shape)", "got {}"),
        *[({"given": row_of(x)}, ValueError, "to be 0 or 1", "got") for x in (2.0, 0.5, -1.0, NAN)],
        *[
            ({"given": row_of(1.0), **x}, ValueError, "possible", "a 1 where the logit is -inf (or")
            for x in EXCLUDED
        ],
        ({"logits": row_of(INF)}, ValueError, "possible", "a 0 where it is +inf"),
    ],
}


@each_target(GIVEN)
def test_given(target):
    for bad in OF_GIVEN[target.family]:
        target.refuses(*bad)


@each_target([target for target in GIVEN if target.takes])
def test_noise(target):
    good = target.arguments(torch.zeros(2, 3))["noise"]
    kind, entries, remedy = (
        ("exponential", (0.0, -1.0, NAN, INF), "exponential_()")
        if target.categorical
        else ("logistic", (NAN, INF, -INF), "logit(eps=1e-7)")
    )
    shape = "(num_draws, 2, 3)" if good.ndim == 3 else "(2, 3)"
    # the last two have an axis too few, and no draws at all
    shapes = (good[..., :2], good[None], good.flatten(), good[0], good[:0])
    for bad in [
        *wrong_types("noise", (good.long(), good.tolist()), "floating-point tensor", "got {}"),
        *wrong_shapes("noise", [x.shape for x in shapes], f"{kind} noise of shape {shape}", "got"),
        *[
            ({"noise": good.index_fill(-2, torch.tensor(1), x)}, ValueError, "finite", kind, remedy)
            for x in entries
        ],
        ({"given": None}, ValueError, "given= beside noise= or seed=", "got none", "leave them"),
    ]:
        target.refuses(*bad)


@each_target([target for target in GIVEN if "seed" in target.takes])
def test_seed(target):
    seed = torch.zeros(2).long()
    target.refuses({"seed": seed}, ValueError, "noise or seed, got both")
    assert target.call(noise=None, seed=seed).shape == (2, 3)
    bad_seeds = [
        *wrong_types("seed", (7, torch.zeros(2)), "an int64 tensor", "got {}", "torch.randint"),
        *wrong_shapes("seed", ((5,), (2, 3, 4), (3, 1)), "first axes", "got shape {}", make=zeros),
        ({"seed": torch.tensor([3, -1])}, ValueError, "seeds of at least 0", "got a negative one"),
        ({"seed": seed, "given": None}, ValueError, "given= beside noise= or seed=", "got none"),
    ]
    for changes, error, *parts in bad_seeds:
        target.refuses({"noise": None, **changes}, error, *parts)


@each_target(TARGETS)
def test_unavailable_backend_lists_every_reason(target, monkeypatch):
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)
    reasons = dispatch.unsupported(torch.zeros(2, 3))
    assert any("'cpu'" in reason for reason in reasons)
    lacking = {"noise that is given" if target.takes else "": {}}
    if target.name == "gumbel_softmax":
        lacking["hard=False"] = {"hard": False}
    if "seed" in target.takes:
        seed = {"noise": None, "seed": zeros(2)}
        lacking["seeds without a draw"] = {**seed, "given": None}
        if target.categorical:
            first = {"dim": 0, "given": zeros(3)}
            lacking["seeds with a category axis that is not the last"] = {**seed, **first}
        else:
            lacking["seeds for each member but for categories"] = seed
    for reason, changes in lacking.items():
        with pytest.raises(BackendUnavailable) as caught:
            target.call(backend="triton", **changes)
        for part in ('backend "triton" cannot run here', reason, *reasons, 'Use backend="auto"'):
            assert part in str(caught.value)
    assert issubclass(BackendUnavailable, ValueError)


# --- when values are looked at


@each([*HARD, *SUBSETS, *[Case(case.row, Subset(3)) for case in SUBSETS]])
@pytest.mark.parametrize("bad", [NAN, INF, "nothing"])
def test_without_checks_a_bad_row_is_still_a_row(case, bad):
    set_checks("never")
    for categories in (3, 6, 64, 65, 5000):
        logits = normal(6, categories, dtype=torch.float32)
        if bad == "nothing":
            logits[2] = -INF
        else:
            logits[2, 1] = bad
            logits[4] = bad
        logits.requires_grad_()
        sample = case.sample(logits, 0.7, generator=seeded(1))
        assert_discrete(sample, case.family)
        grad = torch.autograd.grad((sample * torch.arange(categories)).sum(), logits)[0]
        assert grad[[0, 1, 3, 5]].isfinite().all()


@each_target(TARGETS)
def test_modes_of_checks(target):
    for mode in ("auto", "always"):
        set_checks(mode)
        target.refuses({"logits": row_of(NAN)}, ValueError, "without NaN")
    set_checks("never")
    target.call(logits=row_of(NAN))
    target.call(tau=torch.tensor([[1.0], [-1.0]]))
    if target.takes:
        target.call(noise=torch.full_like(target.arguments(torch.zeros(2, 3))["noise"], NAN))
    if "seed" in target.takes:
        target.call(noise=None, seed=torch.tensor([1, -1]))
    # types and shapes cost nothing to check
    target.refuses({"logits": torch.zeros(2, 3).long()}, TypeError, "floating-point")
    target.refuses({"tau": -1.0}, ValueError, "got -1")


@each_target(TARGETS)
def test_no_value_is_read_on_another_device_unless_asked_to(target):
    """Arguments without data: whatever reads a value of theirs fails."""
    arguments = target.arguments(torch.zeros(2, 200, device="meta"))
    arguments["tau"] = torch.ones(2, 1, device="meta")
    arguments["mask"] = torch.ones(2, 200, device="meta").bool()
    for mode in ("auto", "never"):
        set_checks(mode)
        sample = target.call(**arguments)
        assert sample.shape == (2, 200)
        assert sample.device.type == "meta"
    set_checks("always")
    with pytest.raises(RuntimeError, match="meta"):
        target.call(**arguments)


@each_target(TARGETS)
def test_values_are_not_read_inside_transforms(target):
    """Where nobody can look, NaN passes: the documented limit of the checks."""
    set_checks("always")
    logits = row_of(NAN).expand(4, 2, 3)
    call = vmap(lambda x: target.call(logits=x), randomness="different")
    assert call(logits).shape == (4, 2, 3)


def test_set_checks(monkeypatch):
    refused = r"one of \('auto', 'always', 'never'\), got {}"
    for mode in ("sometimes", "", None, True):
        with pytest.raises(ValueError, match=refused.format(repr(mode))):
            set_checks(mode)
    assert set_checks("never") == "auto"
    assert set_checks("auto") == "never"
    # the environment sets the mode at import
    spec = importlib.util.find_spec("discretegrad._checks")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setenv("DISCRETEGRAD_CHECKS", "never")
    spec.loader.exec_module(module)
    assert module.set_checks("auto") == "never"
    monkeypatch.setenv("DISCRETEGRAD_CHECKS", "sometimes")
    with pytest.raises(ValueError, match="DISCRETEGRAD_CHECKS.*" + refused.format("'sometimes'")):
        spec.loader.exec_module(module)
    monkeypatch.setenv("DISCRETEGRAD_CHECKS", "")
    spec.loader.exec_module(module)
    assert module.set_checks("auto") == "auto"


# --- the exact functions


def agree(z):
    return (z[..., 0, :] * z[..., 1, :]).sum(-1)


def total(z):
    return z.sum()


FOUR_BITS = {"family": "bernoulli", "logits": torch.zeros(4), "f": total}
EXACT = [
    ({"family": "gaussian"}, ValueError, "one of 'categorical', 'bernoulli'", "'gaussian'"),
    *wrong("chunk_size", (0, -1), ValueError, "chunk_size of at least 1", "got {}"),
    *wrong_types("chunk_size", (True, 2.5), "chunk_size to be an int", "got {}"),
    *wrong("vectorize", ("no", 1, None), TypeError, "True or False", "got {}", shown=repr),
    *wrong_types("f", (None, TWO), "f to be a function", "got", "in the order (logits, f)"),
    *wrong("max_outcomes", (0, -1), ValueError, "max_outcomes of at least 1", "got {}"),
    *wrong_types("max_outcomes", (True, 2.5), "max_outcomes to be an int", "got {}"),
    ({"logits": torch.zeros(11, 3), "f": total}, ValueError, "max_outcomes=65536", "got 3 ** 11"),
    ({"max_outcomes": 8}, ValueError, "max_outcomes=8", "got 3 ** 2", "Raise max_outcomes"),
    ({**FOUR_BITS, "max_outcomes": 15}, ValueError, "max_outcomes=15", "got 2 ** 4"),
    ({"f": lambda z: z.sum(0)}, ValueError, "begins (2,)", "got (3,)", "Sum f over"),
    ({"f": lambda z: z}, ValueError, "one loss per batch element", "got (2, 3)"),
    *[
        ({"f": lambda z, x=x: x}, TypeError, "f to return a tensor", f"got {name_of_type(x)}")
        for x in (1.0, None, [0.0])
    ],
    ({"logits": TWO.long()}, TypeError, "floating-point logits", "torch.int64", ".float()"),
    ({"logits": [0.0]}, TypeError, "torch.Tensor", "got list"),
    ({"logits": row_of(NAN)}, ValueError, "without NaN", "in row 1"),
    ({"logits": row_of(INF)}, ValueError, "finite or -inf", "+inf in row 1"),
    ({**FOUR_BITS, "logits": torch.tensor([NAN])}, ValueError, "without NaN"),
    ({"mask": torch.tensor([[False], [True]])}, ValueError, AT_LEAST_ONE, "row 0"),
    ({"mask": torch.ones(3)}, TypeError, "boolean tensor", "got torch.float32", "mask.bool()"),
    ({"logits": torch.tensor(0.0), "f": total}, ValueError, "category axis", "got a scalar"),
    ({"f": lambda z: agree(z).reshape(1)[0].to_sparse()}, TypeError, "f returns to be a dense"),
    ({"logits": torch.zeros(2, 0)}, ValueError, "at least one category", "got zero"),
]


@pytest.mark.parametrize("function", [exact_expectation, exact_gradient])
def test_refused_by_the_exact_functions(function):
    for changes, error, *parts in EXACT:
        call = partial(function, **{"logits": TWO, "f": agree, **changes})
        assert_refused(call, error, function.__name__, *parts)


@each_family
def test_error_of_the_objective_is_its_own(family):
    """An error inside f is not hidden behind one of ours."""

    def broken(z):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        exact_expectation(torch.zeros(2, 3), broken, family=family)


# --- everything that is public, with everything wrong in every argument

WRONG = {
    "none": None,
    "word": "yes",
    "zero": 0,
    "negative": -1,
    "fraction": 2.5,
    "nan": NAN,
    "true": True,
    "complex": 1j,
    "list": [1],
    "array": np.ones(3),
    "floats": torch.ones(7),
    "integers": torch.ones(7).long(),
    "complexes": torch.ones(7) * 1j,
    "sparse": torch.ones(2, 3).to_sparse(),
    "nested": NESTED,
    "object": object(),
}
# what is right for an argument all the same; the others, and all that is not listed, are refused
NOTHING, FLAG, COEFFICIENT = {"none"}, {"true"}, {"zero", "negative", "fraction"}
RIGHT = {
    "logits": {"floats"},
    "tau": {"fraction"},
    "dim": {"zero", "negative"},
    **dict.fromkeys(
        ("mask", "generator", "given", "noise", "seed", "num_samples", "bias"), NOTHING
    ),
    **dict.fromkeys(
        ("hard", "vectorize", "tied", "as_released", "return_index", "training", "reduce_best"),
        FLAG,
    ),
    **dict.fromkeys(("alpha", "beta", "offset", "slope", "scale"), COEFFICIENT),
    "gap": {"zero", "fraction"},
    "baseline": NOTHING,
    "decay": {"zero"},
    "Relax.scale": {"none", *COEFFICIENT},
    "blend.weight": {"zero"},
    "replace_gumbel_softmax.hard": {"none", "true"},
    "probs": NOTHING,
    "unimix": {"zero"},
    "jitter_eps": {"zero", "fraction"},
    "validate_args": {"none", "true"},
    "distributions.Bernoulli.logits": {"zero", "negative", "fraction", "floats"},
}
HANDLE = discretegrad.sample_index(torch.zeros(2, 3))[1]
HEAD = {"hidden": torch.zeros(2, 4), "head": torch.zeros(3, 4), "table": torch.zeros(3, 5)}
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{
        row.name: {"logits": torch.zeros(2, 3, requires_grad=True), "family": row.families[0]}
        | ({"f": total} if row.kind == "score" else {})
        for row in ESTIMATORS.values()
    },
    "expectation": {"logits": TWO, "f": total},
    "exact_expectation": {"logits": TWO, "f": total},
    "exact_gradient": {"logits": TWO, "f": total},
    "sample_index": {"logits": TWO},
    "select": {"handle": HANDLE, "weight": torch.zeros(3)},
    "linear_select": HEAD,
    "Reinforce": {},
    "MuProp": {},
    "DoubleCV": {},
    "Rebar": {},
    "Relax": {"control": 3},
    "Rodeo": {},
    "ControlNetwork": {"num_inputs": 3},
    "get": {"name": "reinmax"},
    "citation": {"name": "reinmax"},
    "set_checks": {"mode": "auto"},
    "Subset": {"k": 2},
    "replace_gumbel_softmax": {},
    "sparse_mixer": {"logits": TWO},
    # torch.compile turns torch's own default of validation off
    "distributions.OneHotCategorical": {"logits": TWO, "validate_args": True},
    "distributions.Bernoulli": {"logits": TWO, "validate_args": True},
}
ARGUMENTS["relax"]["control"] = lambda z: z.flatten(1).sum(-1)
ARGUMENTS["rodeo"]["control"] = torch.tanh
# types without arguments of a user, and what has a table of its own (test_diagnostics)
ELSEWHERE = {"BackendUnavailable", "Diagnosis", "DiagnosisRow", "Estimator", "Family", "Handle"}


def test_everything_public_is_in_the_table():
    distributions = {f"distributions.{name}" for name in discretegrad.distributions.__all__}
    public = {*discretegrad.__all__, *distributions}
    assert public == {*ARGUMENTS, *ELSEWHERE, "ESTIMATORS", "diagnose"}


@pytest.mark.filterwarnings("ignore:.*is unusual")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_whatever_is_wrong_gets_an_answer_in_words(name):
    """No argument of anything public takes what it should not, or ends in an error of torch."""
    function, right = attrgetter(name)(discretegrad), ARGUMENTS[name]
    function(**right)
    kinds = inspect.signature(function).parameters.values()
    for argument in (x.name for x in kinds if x.kind is not x.VAR_KEYWORD):
        accepted = RIGHT.get(f"{name}.{argument}", RIGHT.get(argument, set()))
        for kind, value in WRONG.items():
            try:
                function(**{**right, argument: value})
                answer = "taken"
            except (TypeError, ValueError) as error:
                answer = str(error)
            refused = "expected" in answer and "got" in answer
            assert answer == "taken" if kind in accepted else refused, (argument, kind, answer)
