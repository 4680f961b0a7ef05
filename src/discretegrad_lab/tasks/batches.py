"""Batches of images for a stack: each member sees them in an order of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..stack.compilation import compiled, worth_compiling
from ..stack.noise import Noise
from .pixels import take

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
        self.images = images.to(device)
        self._noise = Noise(seeds, device)
        fuse = worth_compiling(device, len(seeds) * batch * images.shape[1])
        self._take = compiled(take) if fuse else take
        # both stay where they are, so that a graph can read them
        shape = (len(seeds), self.steps_per_epoch, batch)
        self.order = torch.zeros(shape, dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)

    def begin(self, epoch: int) -> None:
        """Put the images in each member's own new order."""
        self._noise.begin(epoch, _ORDER)
        # stable: images with equal numbers are in one order on every device
        order = self._noise.uniform(len(self.images)).argsort(dim=1, stable=True)
        self.order.copy_(order[:, : self.order[0].numel()].view_as(self.order))
        self.step.zero_()

    def next(self) -> Tensor:
        """(members, batch, pixels), in [0, 1]."""
        return self.pixels(self.next_index())

    def next_index(self) -> Tensor:
        """Which images come next, (members, batch)."""
        index = self.order.index_select(1, self.step).squeeze(1)
        self.step.add_(1).remainder_(self.steps_per_epoch)
        return index

    def pixels(self, index: Tensor) -> Tensor:
        """Some images, (members, batch, pixels) in [0, 1]."""
        return self._take(self.images, index.flatten()).view(*index.shape, -1)
