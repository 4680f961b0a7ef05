"""What tests of the lab share."""

import torch

from discretegrad_lab import tasks
from discretegrad_lab.stack import trainer
from discretegrad_lab.tasks.data import Images
from discretegrad_lab.tasks.vae.model import VaeModel


def make_stack(runs, device="cpu", data=None, **options):
    """The stack of runs of one task."""
    return trainer.Stack(tasks.task(runs[0].task).model, runs, device, data, **options)


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
