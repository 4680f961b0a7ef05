"""What tests of the lab share."""

import torch

from discretegrad_lab.data import Images
from discretegrad_lab.tasks.vae import VaeTask


def use_small_images(monkeypatch, train, test):
    """Have the VAE take so many images of noise instead of MNIST."""
    generator = torch.Generator().manual_seed(0)
    images = Images(
        *(
            torch.randint(256, (count, 784), generator=generator, dtype=torch.uint8)
            for count in (train, test)
        )
    )
    whole = VaeTask.__init__

    def small(self, runs, device, data=None):
        whole(self, runs, device, images=images)

    monkeypatch.setattr(VaeTask, "__init__", small)
