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


def stack(**changes):
    """That of one search."""
    return Stack(small_model, [run(**changes)])
