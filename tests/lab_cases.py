"""What tests of the lab share."""

import itertools

import torch

from discretegrad_lab import tasks
from discretegrad_lab.report.results import configuration
from discretegrad_lab.stack import trainer
from discretegrad_lab.stack.config import in_order
from discretegrad_lab.tasks.bernoulli_vae import recipes as bits
from discretegrad_lab.tasks.chosen import NotChosen
from discretegrad_lab.tasks.data import Images
from discretegrad_lab.tasks.evidence import DROPPED, Results, Row
from discretegrad_lab.tasks.vae.model import VaeModel


def make_stack(runs, device="cpu", data=None, **options):
    """The stack of runs of one task."""
    return trainer.Stack(tasks.task(runs[0].task).model, runs, device, data, **options)


def stacks_of(runs):
    """The runs that are trained together, stack by stack."""
    by_key = {}
    for run in in_order(runs):
        by_key.setdefault(run.stack_key, []).append(run)
    return list(by_key.values())


def tree(directory):
    """Everything below a directory: files with their content, and folders."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def recipes_with_runs():
    """All recipes but those that wait for what a search finds."""
    return {name: recipe for name, recipe in tasks.recipes().items() if _has_runs(recipe)}


def _has_runs(recipe):
    try:
        return bool(recipe.runs(seeds=[0]))
    except NotChosen:
        return False


def use_table(monkeypatch, choice, path):
    """Have recipes read what searches chose in another table than the committed one."""
    monkeypatch.setitem(vars(choice), "path", path)


def use_temperatures(monkeypatch, path, tau=1.0):
    """Have the recipes of the Bernoulli VAE train as if their searches had chosen a temperature."""
    use_table(monkeypatch, bits.CHOICE, path)
    lines = {}
    for data, evaluations in itertools.product(bits.DATA, bits.SCORES):
        for key in tasks.recipe(f"bernoulli-vae-search-k{evaluations}").keys():
            place = (data, str(evaluations), key)
            lines[place] = [",".join((*place, str(tau), "100", "2", "valid", "commit 0a1b2c"))]
    bits.CHOICE.write(lines)


def searched(recipe, metrics):
    """Results of a recipe, by what each of its runs has at the end.

    A run without that was dropped if the recipe is a search, and otherwise it is missing.
    """
    less = ("missing", 0) if recipe.halving is None else (DROPPED, recipe.halving.rungs[0].epoch)
    rows = []
    for run in recipe.runs():
        ends = metrics(run)
        state, epochs = ("finished", run.epochs) if ends else less
        rows.append(Row(run.identity, configuration(run), state, epochs, ends, commit="0a1b2c"))
    return Results(recipe.name, tuple(rows))


def use_small_images(monkeypatch, train, test):
    """Have the VAE take so many images of noise instead of MNIST."""
    generator = torch.Generator().manual_seed(0)
    images = Images(
        *(
            torch.randint(256, (count, 784), generator=generator, dtype=torch.uint8)
            for count in (train, test)
        )
    )
    whole = VaeModel.__init__

    def small(self, runs, device, data=None):
        whole(self, runs, device, images=images)

    monkeypatch.setattr(VaeModel, "__init__", small)
