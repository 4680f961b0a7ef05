"""A small search for tests: few images of noise, few channels, and a table that is made up."""

import torch

from discretegrad_lab.stack.trainer import Stack
from discretegrad_lab.tasks.nas.benchmark import COLUMNS, Benchmark, Entry
from discretegrad_lab.tasks.nas.cells import CELLS, from_number
from discretegrad_lab.tasks.nas.config import Search
from discretegrad_lab.tasks.nas.images import Halves, Labelled
from discretegrad_lab.tasks.nas.model import SearchModel

SMALL = {"epochs": 3, "channels": 2, "cells": 1, "batch": 8, "images": 20, "learning_rate": 0.05}


def halves(count=20, side=8):
    """Noise with labels."""
    generator = torch.Generator().manual_seed(0)

    def half():
        pixels = torch.randint(256, (count, 3, side, side), generator=generator)
        return Labelled(pixels.to(torch.uint8), torch.randint(10, (count,), generator=generator))

    return Halves(half(), half())


def made_up():
    """A table in which the accuracy of a cell follows from its number."""
    entries = {}
    for number in range(CELLS):
        cell = from_number(number)
        accuracies = {name: 50 + 40 * number / CELLS + n for n, name in enumerate(COLUMNS)}
        entries[cell] = Entry(number, cell, 3, accuracies)
    return Benchmark(entries)


TABLE = made_up()


def small_model(runs, device="cpu", data=None):
    """The model of a search on those."""
    return SearchModel(runs, torch.device(device), images=halves(), benchmark=TABLE)


def run(estimator="reinmax", seed=0, **changes):
    """A search of nine steps."""
    return Search(estimator=estimator, seed=seed, **SMALL | changes)


def joined_parts(shape, device="cpu"):
    """Outputs of joined convolutions with gradients of such a shape, as ``every.sums`` takes them:
    of one edge and of three, whose convolutions are of two kinds each."""
    generator = torch.Generator().manual_seed(0)
    images, channels, *side = shape

    def image(width):
        x = torch.randn(images, width, *side, generator=generator).to(device)
        return x.contiguous(memory_format=torch.channels_last)

    alone, joined = image(2 * channels), image(6 * channels)
    places = [(alone, 0), (joined, 0), (joined, 2)]
    return [(y, position, image(channels)) for y, position in places]


def check_inner_products(counts, device="cpu"):
    """Those of pairs of so many numbers each, and of tensors without a second one."""
    from discretegrad_lab.tasks.nas.kernels import dots

    generator = torch.Generator().manual_seed(0)
    firsts, seconds = (
        [torch.randn(count, generator=generator).to(device) for count in counts] for _ in range(2)
    )
    pairs = [*zip(firsts, seconds, strict=True), *((x, None) for x in firsts)]
    expected = [(x.double() * (1 if y is None else y.double())).sum() for x, y in pairs]
    torch.testing.assert_close(dots(pairs), torch.stack(expected).float(), rtol=1e-4, atol=1e-3)


def stack(**changes):
    """That of one search."""
    return Stack(small_model, [run(**changes)])
