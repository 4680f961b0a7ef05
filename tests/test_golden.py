"""ReinMax against the frozen outputs of PyPI reinmax 0.1.0, made by ``golden/make.py``."""

import json
from pathlib import Path

import pytest
import torch

import discretegrad

SAME = 1e-12
GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("reinmax_0_1_0.json").read_text())


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{tuple(tensor(case['logits']).shape)}-tau={case['tau']}")
        for case in GOLDEN["cases"]
    ],
)
def test_same_sample_and_gradient_as_pypi_reinmax(case):
    logits = tensor(case["logits"]).requires_grad_()
    index = torch.tensor(case["index"])
    sample = discretegrad.reinmax(logits, case["tau"], given=index)
    assert torch.equal(sample.argmax(-1), index)
    (sample * tensor(case["grad_at_sample"])).sum().backward()
    assert (logits.grad - tensor(case["grad_at_logits"])).abs().max() < SAME


def test_the_frozen_file_covers_what_it_should():
    """An emptied or shortened file must not pass: shapes, temperatures and draws are there."""
    assert (GOLDEN["package"], GOLDEN["version"]) == ("reinmax", "0.1.0")
    shapes = {tuple(tensor(case["logits"]).shape) for case in GOLDEN["cases"]}
    assert {len(shape) for shape in shapes} == {1, 2, 3}
    assert {shape[-1] for shape in shapes} >= {1, 2, 70}
    assert {case["tau"] for case in GOLDEN["cases"]} >= {0.5, 1.0, 1.3, 2.0}
    drawn = torch.cat([torch.tensor(case["index"]).flatten() for case in GOLDEN["cases"]])
    assert len(drawn.unique()) >= 5
