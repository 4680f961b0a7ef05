"""Batches of images for a stack: each member sees them in an order of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..stack.noise import Noise

# the stream of random numbers of the order, besides that of training
_ORDER = 1


class Batches:
    """Training images on a device, in batches.

    Args:
        images: (images, pixels), from 0 to 255.
        seeds: One for each member.
        batch: Images in a batch; those that do not fill one are left out of an epoch.
        device: Where everything is.
    """

    def __init__(
        self, images: Tensor, seeds: Sequence[int], batch: int, device: torch.device
    ) -> None:
        if len(images) < batch:
            raise ValueError(
                f"expected a batch of at most the {len(images)} training images, got {batch}"
            )
        self.steps_per_epoch = len(images) // batch
        self._images = images.to(device)
        self._noise = Noise(seeds, device)
        # both stay where they are, so that a graph can read them
        shape = (len(seeds), self.steps_per_epoch, batch)
        self._order = torch.zeros(shape, dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)

    def begin(self, epoch: int) -> None:
        """Put the images in each member's own new order."""
        self._noise.begin(epoch, _ORDER)
        # stable: images with equal numbers are in one order on every device
        order = self._noise.uniform(len(self._images)).argsort(dim=1, stable=True)
        self._order.copy_(order[:, : self._order[0].numel()].view_as(self._order))
        self.step.zero_()

    def next(self) -> Tensor:
        """(members, batch, pixels), in [0, 1]."""
        index = self._order.index_select(1, self.step)
        self.step.add_(1).remainder_(self.steps_per_epoch)
        members, _, batch = index.shape
        pixels = self._images.index_select(0, index.flatten())
        return grey(pixels).view(members, batch, -1)


def grey(images: Tensor) -> Tensor:
    """Pixels from 0 to 255 as numbers in [0, 1]."""
    return images.float() / 255
