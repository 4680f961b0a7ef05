"""The identity of every stored run, frozen: a run that has another one is trained again."""

import csv
import hashlib
from pathlib import Path

import pytest

from discretegrad_lab.stack.noise import Noise, mixed
from discretegrad_lab.tasks import recipe

RESULTS = Path(__file__).parents[1] / "results"

# how many runs a recipe has, and a digest of their sorted identities
FROZEN = {
    "codebook-mnist": (20, "eb116600b926af34"),
    "codebook-scales": (38, "14a1d905d4014ffa"),
    "experts-fashion": (300, "5ea32c99eb991c34"),
    "experts-mnist": (300, "b590cce133eabf6b"),
    "experts-rates": (80, "e0544bcb552e3b06"),
    "listops": (35, "478e564a3ab0810f"),
    "listops-quick": (6, "b70eb9e56efadd8f"),
    "polynomial-curves": (105, "559a5107040da0ad"),
    "polynomial-grids": (945, "deaefeaaa1bdc889"),
    "polynomial-headline": (21, "9311edf3e08f0aa4"),
    "polynomial-settings": (2430, "0083dba11e339abf"),
    "polynomial-temperatures": (720, "a32668869c1ec1cf"),
    "vae-10x30": (90, "bdeee6c7b045b3de"),
    "vae-10x30-samples": (60, "22551835c39fe782"),
    "vae-16x12": (90, "095e8a6edd59ca9c"),
    "vae-4x24": (90, "ad626db7e81ee7b5"),
    "vae-64x8": (90, "6687ea402ffb2420"),
    "vae-8x16": (90, "746b78032d02b8f0"),
    "vae-8x16-precision": (80, "41e530bef3c34b58"),
    "vae-8x4": (90, "52aae84fa0d229ef"),
    "vae-8x4-beginning-temperatures": (500, "804c942850679ab7"),
    "vae-8x4-beginning-weights": (400, "3e1ed83772f007bc"),
    "vae-8x4-collapse": (500, "294d51d6c866b26a"),
    "vae-8x4-exact": (110, "c95d5edf6f5c3f31"),
    "vae-8x4-gradients": (90, "3aa82f1403cbe9cb"),
    "vae-8x4-gradients-by-temperature": (30, "49dde403201b97db"),
    "vae-8x4-samples": (80, "58425861cf14a564"),
    "vae-baselines": (180, "f9477a575c853613"),
    "vae-search-4x24": (864, "61f376c0543ee68f"),
    "vae-search-8x16": (864, "4bfd2daa036831b7"),
    "vae-search-8x4": (864, "ecd446f42dbf4a9d"),
    "vae-temperatures": (360, "977140153092b4f1"),
}


def digest(identities):
    return hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()[:16]


def stored(name):
    with (RESULTS / name / "runs.csv").open() as file:
        return [row["identity"] for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", FROZEN)
def test_stored_runs_keep_their_identities(name):
    identities = [run.identity for run in recipe(name).runs()]
    assert identities == stored(name)
    assert (len(identities), digest(identities)) == FROZEN[name]


def test_every_stored_recipe_is_frozen():
    assert set(FROZEN) == {path.parent.name for path in RESULTS.glob("*/runs.csv")}


def test_random_streams_of_stored_runs():
    """The seeds of an epoch's streams, and the first numbers that torch's CPU generator makes."""
    assert mixed(0) == 8147104208329303767
    assert mixed(3, 7, 2) == 8135063238855650191
    noise = Noise([0, 5], "cpu")
    noise.begin(3, 1)
    assert noise.uniform(2).tolist() == [
        [0.33619624376296997, 0.024491429328918457],
        [0.009055495262145996, 0.4291287660598755],
    ]
    assert noise.seeds().tolist() == [7585714915947931257, 2034266527641049237]
