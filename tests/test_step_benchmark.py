"""The benchmark of a step: it refuses wrong gradients and measures every row of the registry."""

from dataclasses import replace

import pytest
import torch

import discretegrad
from benchmark_cases import check_complete, rehearse, seeded_on_one_thread, steps
from discretegrad import ESTIMATORS

FAMILY = ("reinforce", "leave_one_out", "disarm", "arms", "disarm_tree")
LEARNED = ("muprop", "double_cv", "rodeo", "rebar", "relax")

seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


@pytest.fixture(scope="module")
def problem():
    return steps.Problem(steps.QUICK)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return rehearse(steps.BENCHMARK, [], tmp_path_factory.mktemp("quick"))


@pytest.fixture
def rows(quick):
    return steps.PAGE.read(quick.folder).rows


def provider(problem, name, vectorize=False):
    return next(x for x in steps.make_providers(problem, vectorize) if x.name == name)


# what is measured


@pytest.mark.parametrize(
    ("name", "num_samples", "slopes"),
    [
        *(("straight_through", 6, 6), ("double_cv", 6, 6), ("rodeo", 6, 6), ("muprop", 5, 1)),
        *(("rebar", 3, 3), ("relax", 2, 4), *((name, 6, 0) for name in FAMILY)),
    ],
)
def test_all_get_six_evaluations_of_f(name, num_samples, slopes):
    assert steps.plan(ESTIMATORS[name]) == (num_samples, 6, slopes)


def test_a_number_of_evaluations_that_does_not_fit_is_an_error(monkeypatch):
    monkeypatch.setattr(steps, "EVALUATIONS", 5)
    with pytest.raises(ValueError, match="rebar cannot use exactly 5"):
        steps.plan(ESTIMATORS["rebar"])


@pytest.mark.parametrize("vectorize", [False, True])
def test_every_row_of_the_registry_is_measured_or_impossible(problem, vectorize):
    providers = {each.key: each for each in steps.make_providers(problem, vectorize)}
    assert {each.vectorize for each in providers.values()} == {vectorize}
    assert set(ESTIMATORS) - {each.estimator for each in providers.values()} == {"exact"}
    variants = {(each.estimator, each.variant) for each in providers.values()}
    assert ("reinforce", "running baseline") in variants
    for name, row in ESTIMATORS.items():
        assert (row.module is not None and name != "reinforce") == (name in LEARNED)
        assert (name in LEARNED) == ({(name, "frozen"), (name, "learning")} <= variants)
    for each in providers.values():
        assert bool(each.learned) == (each.variant == "learning"), each.name
        reference = providers[steps.key(each.reference, vectorize)]
        assert (reference.plan, reference.reference) == (each.plan, reference.name)
        if each.estimator in FAMILY:
            assert each.reference == "f alone"


def test_exact_is_indeed_impossible():
    full = steps.Problem(steps.FULL)
    with pytest.raises(ValueError, match=r"2 \*\* 200"):
        discretegrad.expectation(full.logits["bernoulli"], full.f, "exact", family="bernoulli")


# the gate


def test_the_gate_is_green(problem):
    assert {work.provider: work.gate() for work in steps.works_of(problem) if work.gate()} == {}


def changed_step(problem, name, change):
    """A provider whose step does something besides."""
    good = provider(problem, name)
    return replace(good, step=lambda: change(good.step(), problem, good))


def scale(which, factor):
    def change(losses, problem, good):
        which(problem, good).grad.mul_(factor)
        return losses

    return change


def logits_of(problem, good):
    return problem.logits[good.family]


def first_weight(problem, good):
    return next(problem.decoder.parameters())


def evaluate_once_more(losses, problem, good):
    problem.f(problem.samples[0])
    return losses


def touch_the_other_logits(losses, problem, good):
    other = "categorical" if good.family == "bernoulli" else "bernoulli"
    problem.logits[other].sum().backward()
    return losses


@pytest.mark.parametrize("name", ["straight_through", "disarm_tree", "relax (learning)"])
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda losses, *_: losses.sum(), "one finite number per image"),
        (lambda losses, *_: losses * torch.nan, "one finite number per image"),
        (evaluate_once_more, "it evaluated f at"),
        (scale(logits_of, torch.nan), "not finite, or zero"),
        (scale(logits_of, 0.0), "not finite, or zero"),
        (scale(first_weight, 1.1), "not that of f alone"),
        (touch_the_other_logits, "should not know"),
    ],
    ids=["summed", "nan", "evaluations", "nan gradient", "no gradient", "decoder", "others"],
)
def test_the_gate_finds(problem, name, change, fault):
    wrong = changed_step(problem, name, change)
    assert any(fault in message for message in steps.gate(wrong, problem))


def test_the_gate_finds_steps_that_should_be_the_same(problem):
    good, wrong = provider(problem, "arms"), changed_step(problem, "arms", scale(logits_of, 1.1))
    assert steps.same(good, good, problem, "it") == []
    assert steps.same(good, wrong, problem, "it") == ["it gives other gradients"]
    learning = provider(problem, "rebar (learning)")
    for change, fault in (
        ({"modules": []}, "what it learns got no finite gradient"),
        ({"step": good.step}, "it evaluated f at 6 samples of 6 points"),
        ({}, None),
    ):
        twins = {"learning": provider(problem, "rebar (frozen)")}
        faults = steps.all_faults(replace(learning, **change), twins, problem)
        assert faults == ([fault] if fault else [])
    twins = {"vectorize=True": wrong}
    assert steps.all_faults(good, twins, problem) == ["vectorize=True gives other gradients"]


def test_a_step_starts_without_gradients(problem):
    """Otherwise it would time the sum with those of the step before."""
    good = provider(problem, "rebar (learning)")
    tensors = [problem.logits["bernoulli"], *problem.decoder.parameters(), *good.learned]
    good.step()
    steps.work_of(good, problem, list).before()
    assert all(tensor.grad is None for tensor in tensors)


# runs and the page


def test_a_rehearsal_measures_everything_and_leaves_the_stored_results_alone(quick, rows, problem):
    assert (quick.code, quick.untouched) == (0, True)
    check_complete(rows, steps.FILE)
    expected = {x.key for v in (False, True) for x in steps.make_providers(problem, v)}
    keys = [steps.key(row["provider"], row["vectorize"] == "yes") for row in rows]
    assert (set(keys), len(keys)) == (expected, len(expected))
    for row in rows:
        assert float(row["peak_mib"]) > 0
        if row["provider"] == steps.BASELINE:
            assert (float(row["time_ratio"]), float(row["memory_ratio"])) == (1, 1)
        if row["vectorize"] == "no":
            assert float(row["loop_ratio"]) == 1
        if row["provider"] == "f alone":
            assert float(row["overhead"]) == 0


# added after the latest measurement on that device
NOT_MEASURED_YET: dict[str, set[str]] = {"cpu": set(), "cuda": {"blend"}}


def test_the_stored_results_cover_everything_at_full_size(rows):
    everything = sorted((row["provider"], row["vectorize"]) for row in rows)
    stored = steps.PAGE.read()
    for device in ("cpu", "cuda"):
        chosen = stored.of(device=device, latents=200)
        missing = NOT_MEASURED_YET[device]
        wanted = [row for row in everything if row[0] not in missing]
        assert sorted((row["provider"], row["vectorize"]) for row in chosen) == wanted


def test_the_page_shows_every_row_of_the_registry(quick):
    blocks = steps.blocks(steps.PAGE.read(quick.folder))
    for name in set(ESTIMATORS) - {"exact"}:
        assert f"`{name}`" in blocks["cpu loop"]
        assert f"`{name}`" in blocks["cpu vectorized"]
    assert blocks["gpu loop"] == "Not measured yet."
    assert len(steps.targets("cpu")) == len(FAMILY) + 1  # reinforce also with a running baseline
    assert {target.limit * target.unit for target in steps.targets("cpu")} == {0.25}
