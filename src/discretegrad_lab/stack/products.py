"""Gradients of weights as two factors, which the optimiser multiplies.

The gradient of a layer's weight is a product of two matrices: the gradients at the layer's outputs
and its inputs, a row each for every example. Both are much smaller than the weight of a wide layer
and a small batch. Where a step is all memory traffic, an optimiser that multiplies them itself
saves writing the gradient and reading it again.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from discretegrad.kernels.dispatch import runs_on


class Product(NamedTuple):
    """The gradient ``outputs.mT @ inputs`` of a weight, (members, outputs, inputs)."""

    outputs: Tensor
    """Gradients at the outputs of the layer, (members, examples, outputs)."""
    inputs: Tensor
    """Of the layer, (members, examples, inputs)."""

    def multiplied(self) -> Tensor:
        """The gradient itself."""
        return torch.bmm(self.outputs.mT, self.inputs)

    def has_kernels(self) -> bool:
        """Whether there is a kernel that multiplies and updates at once."""
        return self.outputs.dtype == torch.float32 and runs_on(self.outputs.device)


def whole(gradient: Tensor | Product) -> Tensor:
    """A gradient written down."""
    return gradient.multiplied() if isinstance(gradient, Product) else gradient


def stand_ins(weight: Tensor, examples: int) -> Product:
    """Leaves that take no memory: what autograd gives as their gradients are the factors."""
    members, outputs, inputs = weight.shape
    nothing = weight.new_zeros(())
    return Product(
        nothing.expand(members, examples, outputs).requires_grad_(),
        nothing.expand(members, examples, inputs).requires_grad_(),
    )
