"""Bad input is met with an error that says what was expected, what came and what to do."""

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

import discretegrad
from cases import CASES, SAMPLERS, assert_discrete, each, normal, seeded
from discretegrad import (
    BackendUnavailable,
    bernoulli,
    exact_expectation,
    exact_gradient,
    set_checks,
)
from discretegrad.kernels import dispatch

HARD = [case for case in CASES if case.hard]
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def default_checks():
    """Every test starts with the default mode and leaves what it found."""
    before = set_checks("auto")
    yield
    set_checks(before)


@dataclass(frozen=True)
class Target:
    """A public function, with arguments that are right."""

    family: str
    name: str
    deterministic: bool

    def __str__(self):
        return f"{self.family}-{self.function.__name__}"

    @property
    def function(self):
        row = SAMPLERS[self.name]
        return (row.functions_at if self.deterministic else row.functions)[self.family]

    def call(self, **changes: Any) -> Tensor:
        """Call it on two rows of three categories, with some arguments changed."""
        arguments: dict[str, Any] = {"logits": torch.zeros(2, 3)}
        if self.deterministic:
            if self.family == "categorical":
                arguments["index"] = torch.zeros(2, dtype=torch.int64)
            else:
                arguments["value"] = torch.zeros(2, 3)
            if SAMPLERS[self.name].noise:
                arguments["noise"] = self.noise()
        return self.function(**{**arguments, **changes})

    def noise(self) -> Tensor:
        several = "num_draws" in SAMPLERS[self.name].options
        return torch.full((4, 2, 3) if several else (2, 3), 0.5)


TARGETS = [
    Target(family, name, deterministic)
    for name, row in SAMPLERS.items()
    for family in row.families
    for deterministic in (False, True)
]
DRAWING = [target for target in TARGETS if not target.deterministic]
CATEGORICAL = [target for target in TARGETS if target.family == "categorical"]


def each_target(targets):
    return pytest.mark.parametrize("target", targets, ids=str)


@dataclass(frozen=True)
class Bad:
    """Arguments, the error they must give, and what its message must contain."""

    what: str
    changes: dict[str, Any]
    error: type[Exception]
    parts: tuple[str, ...]

    def __str__(self):
        return self.what

    def assert_refused_by(self, target: Target) -> None:
        with pytest.raises(self.error) as caught:
            target.call(**self.changes)
        assert type(caught.value) is self.error
        message = str(caught.value)
        assert message.startswith(target.name)
        for part in self.parts:
            assert part in message


def each_bad(bad):
    return pytest.mark.parametrize("bad", bad, ids=str)


def test_the_arguments_that_are_changed_are_right():
    for target in TARGETS:
        assert target.call().shape == (2, 3)


def row_of(value, dtype=torch.float32):
    """Good logits in the first row and one bad entry in the second."""
    return torch.tensor([[0.0, 0.0, 0.0], [0.0, value, 0.0]], dtype=dtype)


LOGITS_TYPES = [
    Bad("a list", {"logits": [0.0, 1.0]}, TypeError, ("torch.Tensor", "got list", "as_tensor")),
    Bad("None", {"logits": None}, TypeError, ("torch.Tensor", "got NoneType", "as_tensor")),
    Bad("an array", {"logits": np.zeros(3)}, TypeError, ("torch.Tensor", "ndarray", "as_tensor")),
    *[
        Bad(
            f"{dtype} logits",
            {"logits": torch.zeros(2, 3).to(dtype)},
            TypeError,
            ("expected", "logits", f"got dtype {dtype}", ".float()"),
        )
        # torch has no arithmetic for 8-bit floats, so the samplers cannot take them either
        for dtype in (torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn)
    ],
]

ADVICE = "Use tau=1.0 unless you have tuned it"
TAU = [
    *[
        Bad(f"tau {tau}", {"tau": tau}, ValueError, ("tau in (0, inf)", f"got {tau}", ADVICE))
        for tau in (0, 0.0, -1, -0.5, NAN, INF, -INF)
    ],
    *[
        Bad(
            f"tau of type {type(tau).__name__}",
            {"tau": tau},
            TypeError,
            ("a number or a tensor", f"got {type(tau).__name__}", ADVICE),
        )
        for tau in (True, "1", None, [1.0], 1j)
    ],
    *[
        Bad(
            f"tau of {dtype}",
            {"tau": torch.ones((), dtype=dtype)},
            TypeError,
            ("real tau", f"got dtype {dtype}", ADVICE),
        )
        for dtype in (torch.bool, torch.complex64)
    ],
    *[
        Bad(
            f"tau of shape {shape}",
            {"tau": torch.ones(shape)},
            ValueError,
            ("broadcasts against logits", "(2, 3)", f"got tau of shape {shape}", "unsqueeze(-1)"),
        )
        # the last would broadcast the logits too
        for shape in ((5,), (0,), (3, 1), (2, 4), (4, 2, 1))
    ],
    Bad(
        "tau that requires grad",
        {"tau": torch.ones((), requires_grad=True)},
        ValueError,
        ("constant", "requires grad", "tau.detach()"),
    ),
]
# to be read these need the values of a tensor
TAU_VALUES = [
    Bad(
        f"tensor with tau {tau}",
        {"tau": torch.tensor([[1.0], [tau]])},
        ValueError,
        ("every tau in (0, inf)", f"got {tau}", ADVICE),
    )
    for tau in (0.0, -1.0, NAN, INF, -INF)
]

MASK = [
    *[
        Bad(
            f"mask of {came}",
            {"mask": mask},
            TypeError,
            ("boolean tensor (True where", f"got {came}", "mask.bool()"),
        )
        for came, mask in (
            ("torch.float32", torch.ones(3)),
            ("torch.int64", torch.ones(3, dtype=torch.int64)),
            ("torch.uint8", torch.ones(3, dtype=torch.uint8)),
            ("list", [True, True, False]),
            ("bool", True),
        )
    ],
    *[
        Bad(
            f"mask of shape {shape}",
            {"mask": torch.ones(shape, dtype=torch.bool)},
            ValueError,
            ("broadcasts to the logits' shape (2, 3)", f"got shape {shape}"),
        )
        for shape in ((4,), (3, 1), (0,), (5, 2, 3))
    ],
]

BACKEND = [
    Bad(
        f"backend {backend}",
        {"backend": backend},
        ValueError,
        ("one of ('auto', 'torch', 'triton')", f"got {backend!r}"),
    )
    for backend in ("cuda", None, "TORCH", 1)
]

DIM = [
    *[
        Bad(
            f"dim {dim}",
            {"dim": dim},
            ValueError,
            ("dim in [-2, 1]", "shape (2, 3)", f"got {dim}"),
        )
        for dim in (2, -3, 100)
    ],
    *[
        Bad(
            f"dim of type {type(dim).__name__}",
            {"dim": dim},
            TypeError,
            ("dim to be an int", f"got {type(dim).__name__}"),
        )
        for dim in (1.0, "0", None, True, (0,))
    ],
]

CATEGORIES = [
    Bad(
        "scalar logits",
        {"logits": torch.tensor(0.0)},
        ValueError,
        ("category axis", "got a scalar", "use discretegrad.bernoulli."),
    ),
    *[
        Bad(
            f"no category in {shape}",
            {"logits": torch.zeros(shape)},
            ValueError,
            ("at least one category", "got zero along dim -1", f"shape {shape}"),
        )
        for shape in ((2, 0), (0,), (0, 0))
    ],
    Bad(
        "tau for each category",
        {"tau": torch.ones(3)},
        ValueError,
        ("size 1 along dim -1 (one temperature per row)", "got tau of shape (3,)", "unsqueeze(-1)"),
    ),
    Bad(
        "tau along dim 0",
        {"tau": torch.ones(2, 1), "dim": 0},
        ValueError,
        ("size 1 along dim 0", "got tau of shape (2, 1)"),
    ),
]

GENERATOR = [
    Bad(
        f"generator of type {type(generator).__name__}",
        {"generator": generator},
        TypeError,
        ("torch.Generator", f"got {type(generator).__name__}", "torch.Generator('cpu')"),
    )
    for generator in (0, "cpu", np.random.default_rng(0))
]


@each_target(TARGETS)
@each_bad([*LOGITS_TYPES, *TAU, *TAU_VALUES, *MASK, *BACKEND])
def test_refused_by_every_function(target, bad):
    bad.assert_refused_by(target)


@each_target(CATEGORICAL)
@each_bad([*DIM, *CATEGORIES])
def test_refused_by_every_categorical_function(target, bad):
    bad.assert_refused_by(target)


@each_target(DRAWING)
@each_bad(GENERATOR)
def test_refused_by_every_sampler(target, bad):
    bad.assert_refused_by(target)


@each_target(TARGETS)
def test_tau_that_float32_cannot_hold(target):
    """It would become 0 or inf, and the gradient NaN; in float64 there is room for it."""
    for number in (1e-50, 1e50):
        for tau in (number, torch.tensor(number, dtype=torch.float64)):
            bad = Bad("", {"tau": tau}, ValueError, ("tau", f"got {number}", ADVICE))
            bad.assert_refused_by(target)
            logits = torch.zeros(2, 3, dtype=torch.float64)
            assert target.call(logits=logits, tau=tau).isfinite().all()


@each_target(TARGETS)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("categories", [3, 100])
def test_nan_logits(target, dtype, categories):
    logits = torch.zeros(2, categories, dtype=dtype)
    logits[1, 2] = NAN
    changes: dict[str, Any] = {"logits": logits}
    if target.deterministic and target.family == "bernoulli":
        changes["value"] = torch.zeros(2, categories)
    if target.deterministic and SAMPLERS[target.name].noise:
        changes["noise"] = target.noise()[..., :1].repeat_interleave(categories, -1)
    where = ("in row 1",) if target.family == "categorical" else ()
    parts = ("logits without NaN", "got NaN", *where, "set_detect_anomaly")
    Bad("NaN", changes, ValueError, parts).assert_refused_by(target)


UNDRAWABLE = [
    Bad(
        "+inf logits",
        {"logits": row_of(INF)},
        ValueError,
        ("finite or -inf", "got +inf in row 1", "mask out the others"),
    ),
    Bad(
        "all -inf",
        {"logits": torch.tensor([[0.0, 0.0, 0.0], [-INF, -INF, -INF]])},
        ValueError,
        ("at least one allowed category", "in row 1", "Drop such rows"),
    ),
    Bad(
        "fully masked row",
        {"mask": torch.tensor([[True], [False]])},
        ValueError,
        ("at least one allowed category", "in row 1", "the mask", "Drop such rows"),
    ),
    Bad(
        "mask and -inf together",
        {"logits": row_of(-INF), "mask": torch.tensor([False, True, False])},
        ValueError,
        ("at least one allowed category", "in row 1", "the mask and -inf logits"),
    ),
]


@each_target(CATEGORICAL)
@each_bad(UNDRAWABLE)
def test_row_that_no_category_can_be_drawn_from(target, bad):
    bad.assert_refused_by(target)


@each_target([target for target in CATEGORICAL if not target.deterministic])
@pytest.mark.parametrize("categories", [3, 64, 65, 5000])
def test_row_of_nothing_among_many_categories(target, categories):
    logits = torch.zeros(4, categories)
    mask = torch.ones(4, categories, dtype=torch.bool)
    mask[2] = False
    with pytest.raises(ValueError, match=r"at least one allowed category in every row.* in row 2"):
        target.call(logits=logits, mask=mask)
    with pytest.raises(ValueError, match="in the only row"):
        target.call(logits=logits[0], mask=mask[2])


@each_target(TARGETS)
def test_excluded_logits_may_be_anything(target):
    """Padding is often NaN; where the mask excludes it nothing is wrong."""
    mask = torch.tensor([True, False, True])
    assert target.call(logits=row_of(NAN), mask=mask).isfinite().all()


INDEX = [
    *[
        Bad(
            f"index of {came}",
            {"index": index},
            TypeError,
            ("int64 tensor of categories", f"got {came}", "index.long()"),
        )
        for came, index in (
            ("torch.float32", torch.zeros(2)),
            ("torch.bool", torch.zeros(2, dtype=torch.bool)),
            ("torch.uint8", torch.zeros(2, dtype=torch.uint8)),
            ("list", [0, 0]),
            ("int", 0),
        )
    ],
    *[
        Bad(
            f"index of shape {shape}",
            {"index": torch.zeros(shape, dtype=torch.int64)},
            ValueError,
            ("index of shape (2,)", "without the category axis", f"got {shape}"),
        )
        for shape in ((), (3,), (2, 1), (2, 3))
    ],
    Bad(
        "index too large",
        {"index": torch.tensor([0, 3])},
        ValueError,
        ("index in [0, 2]", "from 0 to 3"),
    ),
    Bad(
        "index negative",
        {"index": torch.tensor([-1, 2])},
        ValueError,
        ("index in [0, 2]", "from -1 to 2"),
    ),
    Bad(
        "index of a masked category",
        {"index": torch.tensor([0, 1]), "mask": torch.tensor([True, False, True])},
        ValueError,
        ("allowed categories", "the mask or a -inf logit excludes"),
    ),
    Bad(
        "index of a -inf category",
        {"index": torch.tensor([0, 1]), "logits": row_of(-INF)},
        ValueError,
        ("allowed categories", "the mask or a -inf logit excludes"),
    ),
]


@each_target([target for target in CATEGORICAL if target.deterministic])
@each_bad(INDEX)
def test_index(target, bad):
    bad.assert_refused_by(target)


@each_target([target for target in CATEGORICAL if target.deterministic])
def test_index_goes_with_dim(target):
    with pytest.raises(ValueError, match=r"index of shape \(3,\)"):
        target.call(dim=0)


VALUE = [
    *[
        Bad(f"value of {came}", {"value": value}, TypeError, ("0/1 tensor", f"got {came}"))
        for came, value in (
            ("list", [0, 1]),
            ("int", 1),
            ("torch.complex64", torch.zeros(2, 3, dtype=torch.complex64)),
        )
    ],
    *[
        Bad(
            f"value of shape {shape}",
            {"value": torch.zeros(shape)},
            ValueError,
            ("logits' shape (2, 3)", f"got {shape}"),
        )
        for shape in ((), (3,), (2, 1), (1, 2, 3))
    ],
    *[
        Bad(f"value {value}", {"value": row_of(value)}, ValueError, ("to be 0 or 1", "got"))
        for value in (2.0, 0.5, -1.0, NAN)
    ],
    Bad(
        "1 where masked",
        {"value": row_of(1.0), "mask": torch.tensor([True, False, True])},
        ValueError,
        ("possible values", "a 1 where the logit is -inf (or masked)"),
    ),
    Bad(
        "1 where -inf",
        {"value": row_of(1.0), "logits": row_of(-INF)},
        ValueError,
        ("possible values", "a 1 where the logit is -inf (or masked)"),
    ),
    Bad(
        "0 where +inf",
        {"logits": row_of(INF)},
        ValueError,
        ("possible values", "a 0 where it is +inf"),
    ),
]


@each_target([t for t in TARGETS if t.family == "bernoulli" and t.deterministic])
@each_bad(VALUE)
def test_value(target, bad):
    bad.assert_refused_by(target)


@each_target([t for t in TARGETS if SAMPLERS[t.name].noise and t.deterministic])
def test_noise(target):
    good = target.noise()
    kind, entries, remedy = (
        ("exponential", (0.0, -1.0, NAN, INF), "exponential_()")
        if target.family == "categorical"
        else ("logistic", (NAN, INF, -INF), "logit(eps=1e-7)")
    )
    shape = "(num_draws, 2, 3)" if good.ndim == 3 else "(2, 3)"
    wrong_shapes = [good[..., :2], good[None], good.flatten(), good.new_ones(())]
    if good.ndim == 3:
        # one axis too few, and no draws at all
        wrong_shapes += [good[0], good[:0]]
    refused = [
        Bad("", {"noise": noise}, TypeError, ("floating-point tensor", f"got {came}"))
        for came, noise in (("torch.int64", good.long()), ("list", good.tolist()))
    ]
    refused += [
        Bad("", {"noise": x}, ValueError, (f"{kind} noise of shape {shape}", f"{tuple(x.shape)}"))
        for x in wrong_shapes
    ]
    for entry in entries:
        noise = good.clone()
        noise[..., 1, 1] = entry
        parts = ("expected", "finite", f"{kind} noise", "got", remedy)
        refused.append(Bad("", {"noise": noise}, ValueError, parts))
    for bad in refused:
        bad.assert_refused_by(target)


NUM_DRAWS = [
    *[
        Bad(
            f"num_draws {n}",
            {"num_draws": n},
            ValueError,
            ("num_draws of at least 1", f"got {n}"),
        )
        for n in (0, -3)
    ],
    *[
        Bad(
            f"num_draws of type {type(n).__name__}",
            {"num_draws": n},
            TypeError,
            ("num_draws to be an int", f"got {type(n).__name__}"),
        )
        for n in (True, 2.0, "3", None)
    ],
]
GAP = [
    *[
        Bad(f"gap {gap}", {"gap": gap}, ValueError, ("gap of at least 0", f"got {gap}"))
        for gap in (-1.0, -1, NAN, INF)
    ],
    *[
        Bad(f"gap {gap!r}", {"gap": gap}, TypeError, ('a number or "p"', f"got {gap!r}"))
        for gap in ("q", "P", True, None, torch.ones(3))
    ],
]
ORDER = [
    *[
        Bad(f"order {order!r}", {"order": order}, ValueError, ("1 or 2", f"got {order!r}"))
        for order in (0, 3, -1, "2", None, True)
    ],
    Bad(
        "released form of order 1",
        {"order": 1, "as_released": True},
        ValueError,
        ("order=2 together with as_released=True", "got order=1", "second-order form only"),
    ),
]


@each_target([target for target in DRAWING if target.name == "gumbel_rao"])
@each_bad(NUM_DRAWS)
def test_num_draws(target, bad):
    bad.assert_refused_by(target)


@each_target([target for target in TARGETS if target.name == "gapped"])
@each_bad(GAP)
def test_gap(target, bad):
    bad.assert_refused_by(target)


@each_target([target for target in TARGETS if target.name == "mean_baseline"])
@each_bad(ORDER)
def test_order(target, bad):
    bad.assert_refused_by(target)


@each_target(DRAWING)
def test_generator_of_another_device(target):
    # a machine without an accelerator can make no generator for another device, but logits on
    # another device: those of the meta device, which hold no data
    logits = torch.zeros(2, 3, device="meta")
    parts = ("generator on the logits' device meta", "got one on cpu", "torch.Generator('meta')")
    bad = Bad("", {"logits": logits, "generator": seeded(0)}, ValueError, parts)
    bad.assert_refused_by(target)


@each_target(TARGETS)
def test_unavailable_backend_lists_every_reason(target, monkeypatch):
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)
    reasons = dispatch.unsupported(torch.zeros(2, 3))
    assert any("'cpu'" in reason for reason in reasons)
    parts = ('backend "triton" cannot run here', *reasons, 'Use backend="auto"')
    Bad("", {"backend": "triton"}, BackendUnavailable, parts).assert_refused_by(target)
    assert issubclass(BackendUnavailable, ValueError)


STATIC = [*LOGITS_TYPES, *TAU, *MASK, *BACKEND]
OPTIONS = {"gumbel_rao": NUM_DRAWS, "gapped": GAP, "mean_baseline": ORDER}


@each_target(DRAWING)
def test_refused_call_draws_nothing(target):
    generator = seeded(0)
    before = generator.get_state()
    global_before = torch.get_rng_state()
    refused = STATIC + OPTIONS.get(target.name, [])
    if target.family == "categorical":
        refused = refused + DIM + CATEGORIES
    for bad in refused:
        with pytest.raises(bad.error):
            target.call(**bad.changes, generator=generator)
        with pytest.raises(bad.error):
            target.call(**bad.changes)
        assert torch.equal(generator.get_state(), before), bad
        assert torch.equal(torch.get_rng_state(), global_before), bad


@each(HARD)
@pytest.mark.parametrize("categories", [3, 64, 65, 5000])
@pytest.mark.parametrize("bad", [NAN, INF, "nothing"])
def test_without_checks_a_bad_row_is_still_a_row(case, categories, bad):
    set_checks("never")
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
def test_without_checks_no_value_is_refused(target):
    set_checks("never")
    target.call(logits=row_of(NAN))
    target.call(tau=torch.tensor([[1.0], [-1.0]]))
    if target.deterministic and SAMPLERS[target.name].noise:
        target.call(noise=torch.full_like(target.noise(), NAN))
    # types and shapes cost nothing to check
    with pytest.raises(TypeError, match="floating-point"):
        target.call(logits=torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="got -1"):
        target.call(tau=-1.0)


@each_target(TARGETS)
@pytest.mark.parametrize("mode", ["auto", "always"])
def test_with_checks_values_are_refused(target, mode):
    set_checks(mode)
    with pytest.raises(ValueError, match="without NaN"):
        target.call(logits=row_of(NAN))


def on_meta(target):
    """Arguments without data: whatever reads a value of theirs fails."""
    shape = (2, 200)
    changes: dict[str, Any] = {
        "logits": torch.zeros(shape, device="meta"),
        "tau": torch.ones(2, 1, device="meta"),
        "mask": torch.ones(shape, dtype=torch.bool, device="meta"),
    }
    if target.deterministic:
        if target.family == "categorical":
            changes["index"] = torch.zeros(2, dtype=torch.int64, device="meta")
        else:
            changes["value"] = torch.zeros(shape, device="meta")
        if SAMPLERS[target.name].noise:
            several = target.noise().ndim == 3
            changes["noise"] = torch.ones((4, *shape) if several else shape, device="meta")
    return changes


@each_target(TARGETS)
@pytest.mark.parametrize("mode", ["auto", "never"])
def test_no_value_is_read_on_another_device(target, mode):
    set_checks(mode)
    sample = target.call(**on_meta(target))
    assert sample.shape == (2, 200)
    assert sample.device.type == "meta"


@each_target(TARGETS)
def test_values_are_read_everywhere_when_asked_to(target):
    set_checks("always")
    with pytest.raises(RuntimeError, match="meta"):
        target.call(**on_meta(target))


@each_target(TARGETS)
def test_values_are_not_read_inside_transforms(target):
    """Where nobody can look, NaN passes: the documented limit of the checks."""
    set_checks("always")
    logits = row_of(NAN).expand(4, 2, 3)
    call = vmap(lambda x: target.call(logits=x), randomness="different")
    assert call(logits).shape == (4, 2, 3)


@pytest.mark.parametrize("mode", ["sometimes", "", None, True])
def test_unknown_mode_of_checks(mode):
    with pytest.raises(ValueError, match=r"one of \('auto', 'always', 'never'\), got") as error:
        set_checks(mode)
    assert repr(mode) in str(error.value)
    assert set_checks("auto") == "auto"


def test_set_checks_returns_the_mode_before():
    assert set_checks("never") == "auto"
    assert set_checks("always") == "never"
    assert set_checks("auto") == "always"


def run_with_checks(mode, code):
    """Run code in a new process whose environment sets the mode."""
    source = Path(discretegrad.__file__).parents[1]
    environment = {**os.environ, "DISCRETEGRAD_CHECKS": mode, "PYTHONPATH": str(source)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_environment_sets_the_mode():
    code = (
        "import torch, discretegrad\n"
        "print(discretegrad.reinmax(torch.full((3,), torch.nan)).sum().item())\n"
        "print(discretegrad.set_checks('auto'))"
    )
    result = run_with_checks("never", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1.0", "never"]


def test_unknown_mode_in_the_environment():
    result = run_with_checks("sometimes", "import discretegrad")
    assert result.returncode != 0
    assert "one of ('auto', 'always', 'never'), got 'sometimes'" in result.stderr


def agree(z):
    return (z[..., 0, :] * z[..., 1, :]).sum(-1)


def exact_cases():
    logits = torch.zeros(2, 3)
    bits = torch.zeros(4)
    many = torch.zeros(11, 3)
    family = "one of ('categorical', 'bernoulli')"
    yield "family", (logits, agree), {"family": "gaussian"}, ValueError, (family, "'gaussian'")
    for option in ("chunk_size", "max_outcomes"):
        for n in (0, -1):
            parts = (f"{option} of at least 1", f"got {n}")
            yield f"{option} {n}", (logits, agree), {option: n}, ValueError, parts
        for n in (True, 2.5):
            came = type(n).__name__
            parts = (f"{option} to be an int", f"got {came}")
            yield f"{option} {came}", (logits, agree), {option: n}, TypeError, parts
    parts = ("max_outcomes=65536", "got 3 ** 11", "Raise max_outcomes")
    yield "too many outcomes", (many, lambda z: z.sum()), {}, ValueError, parts
    parts = ("max_outcomes=8", "got 3 ** 2", "Raise max_outcomes")
    yield "limit of the caller", (logits, agree), {"max_outcomes": 8}, ValueError, parts
    parts = ("max_outcomes=15", "got 2 ** 4")
    options = {"family": "bernoulli", "max_outcomes": 15}
    yield "too many bits", (bits, lambda b: b.sum()), options, ValueError, parts
    parts = ("one loss per batch element", "begins (2,)", "got (3,)", "Sum f over")
    yield "f of a wrong shape", (logits, lambda z: z.sum(0)), {}, ValueError, parts
    parts = ("one loss per batch element", "got (2, 3)")
    yield "f that returns its sample", (logits, lambda z: z), {}, ValueError, parts
    for value in (1.0, None, [0.0]):
        came = type(value).__name__
        parts = ("f to return a tensor", f"got {came}")
        yield f"f that returns {came}", (logits, lambda z, v=value: v), {}, TypeError, parts
    parts = ("floating-point logits", "torch.int64", ".float()")
    yield "integer logits", (logits.long(), agree), {}, TypeError, parts
    yield "logits in a list", ([0.0], agree), {}, TypeError, ("torch.Tensor", "got list")
    parts = ("without NaN", "in row 1")
    yield "NaN logits", (row_of(NAN), agree), {}, ValueError, parts
    yield "+inf logits", (row_of(INF), agree), {}, ValueError, ("finite or -inf", "+inf in row 1")
    options = {"family": "bernoulli"}
    nan = torch.tensor([NAN])
    yield "NaN bits", (nan, lambda b: b.sum()), options, ValueError, ("without NaN",)
    parts = ("at least one allowed category", "row 0")
    mask = torch.tensor([[False], [True]])
    yield "masked row", (logits, agree), {"mask": mask}, ValueError, parts
    parts = ("boolean tensor", "got torch.float32", "mask.bool()")
    yield "mask", (logits, agree), {"mask": torch.ones(3)}, TypeError, parts
    parts = ("category axis", "got a scalar")
    yield "scalar", (torch.tensor(0.0), lambda z: z), {}, ValueError, parts
    parts = ("at least one category", "got zero")
    yield "no category", (torch.zeros(2, 0), agree), {}, ValueError, parts


EXACT = [pytest.param(*rest, id=what) for what, *rest in exact_cases()]


@pytest.mark.parametrize("function", [exact_expectation, exact_gradient])
@pytest.mark.parametrize(("arguments", "options", "error", "parts"), EXACT)
def test_refused_by_the_exact_functions(function, arguments, options, error, parts):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith(function.__name__)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("function", [exact_expectation, exact_gradient])
def test_exact_functions_go_up_to_the_limit(function):
    logits = torch.zeros(2, 3)
    assert function(logits, agree, max_outcomes=9).isfinite().all()
    bits = torch.zeros(4)
    result = function(bits, lambda b: b.sum(), family="bernoulli", max_outcomes=16)
    assert result.isfinite().all()


@pytest.mark.parametrize("namespace", [discretegrad, bernoulli])
def test_error_of_the_objective_is_its_own(namespace):
    """An error inside f is not hidden behind one of ours."""

    def broken(z):
        raise KeyError("mine")

    family = "categorical" if namespace is discretegrad else "bernoulli"
    with pytest.raises(KeyError, match="mine"):
        exact_expectation(torch.zeros(2, 3), broken, family=family)
