"""The two cells of a Tree-LSTM for stacks, with gradients that are written out.

States are (..., 2 hidden): the hidden state h, then the cell state c. Torch would compute a
gradient of the weights at every position of a sentence and add it to the others; here there is one
product of matrices for all positions.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import kernels


class Composer(NamedTuple):
    """The parameters that compose two nodes and score the result, each with a member axis."""

    weight: Tensor
    """(members, 5 hidden, 2 hidden)."""
    bias: Tensor
    """(members, 5 hidden)."""
    query: Tensor
    """(members, hidden)."""

    @property
    def scaled_query(self) -> Tensor:
        """What a hidden state is multiplied with to get its score."""
        return self.query / math.sqrt(self.query.shape[-1])


class Block(NamedTuple):
    """What the gradients of a few compositions need, (members, batch, pairs, ...) each."""

    hidden: Tensor
    """The hidden states of the left and the right node, (..., 2 hidden)."""
    left: Tensor
    """The cell state of the left node, (..., hidden)."""
    right: Tensor
    """That of the right node."""
    gates: Tensor
    """After their activations, (..., 5, hidden): input, left, right, update, output."""
    cell: Tensor
    """The cell state of the composition, (..., hidden)."""


def opened(composer: Composer) -> Composer:
    """The parameters as ``compose`` takes them: both forget gates start open."""
    bias = composer.bias.unflatten(1, (5, -1)).clone()
    bias[:, 1:3] += 1
    return composer._replace(bias=bias.flatten(1))


def compose(composer: Composer, left: Tensor, right: Tensor, out: Tensor) -> Block:
    """Write the states of parents, (members, batch, pairs, 2 hidden), from those of children.

    Args:
        composer: As ``opened`` made it.
        left: The states of the left children, of the shape of ``out``.
        right: Those of the right ones.
        out: Where to write them.
    """
    members, batch, pairs, width = out.shape
    size = width // 2
    hidden = torch.cat([left[..., :size], right[..., :size]], -1)
    before = torch.baddbmm(
        composer.bias.unsqueeze(1), hidden.view(members, -1, width), composer.weight.mT
    ).view(members, batch, pairs, 5, size)
    gates = before.sigmoid()
    torch.tanh(before[..., 3, :], out=gates[..., 3, :])
    i, forget_left, forget_right, update, o = gates.unbind(-2)
    left, right = left[..., size:], right[..., size:]
    cell = torch.addcmul(i * update, forget_left, left).addcmul_(forget_right, right)
    torch.mul(o, cell.tanh(), out=out[..., :size])
    out[..., size:] = cell
    return Block(hidden, left, right, gates, cell)


def slopes(block: Block) -> Tensor:
    """How gates and children's cells follow from a composition's gradient, (..., 8, hidden).

    See ``pull_back``, which uses them; they are all that it needs.
    """
    inner = block.cell.tanh()
    i, forget_left, forget_right, update, o = block.gates.unbind(-2)
    return torch.stack(
        [
            update * i * (1 - i),
            block.left * forget_left * (1 - forget_left),
            block.right * forget_right * (1 - forget_right),
            i * (1 - update * update),
            inner * o * (1 - o),
            o * (1 - inner * inner),
            forget_left,
            forget_right,
        ],
        -2,
    )


def pull_back(slope: Tensor, hidden: Tensor, cell: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Gradients at the gates before their activations, and at the children's cell states.

    Args:
        slope: From ``slopes``.
        hidden: The gradient at the hidden state of the composition, (..., hidden).
        cell: That at its cell state; zero by default.
    """
    whole = slope[..., 5, :] * hidden
    if cell is not None:
        whole = whole + cell
    whole = whole.unsqueeze(-2)
    gates = torch.cat([slope[..., :4, :] * whole, (slope[..., 4, :] * hidden).unsqueeze(-2)], -2)
    return gates, slope[..., 6:, :] * whole


class _LeafLstm(torch.autograd.Function):
    apply: Callable[..., Tensor]  # torch leaves it without a type

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor) -> Tensor:
        members, batch, length, width = projected.shape
        size = width // 4
        hidden = cell = projected.new_zeros(members, batch, size)
        states, gates, befores = [], [], []
        for place in range(length):
            before = projected[:, :, place] + torch.bmm(hidden, weight.mT)
            open_ = before.sigmoid()
            update = before[..., 2 * size : 3 * size].tanh()
            open_[..., 2 * size : 3 * size] = update
            befores.append(torch.cat([hidden, cell], -1))
            cell = open_[..., size : 2 * size] * cell + open_[..., :size] * update
            hidden = open_[..., 3 * size :] * cell.tanh()
            states.append(torch.cat([hidden, cell], -1))
            gates.append(open_)
        out = torch.stack(states, 2)
        ctx.save_for_backward(weight, torch.stack(gates, 2), torch.stack(befores, 2), out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        weight, gates, befores, states = ctx.saved_tensors
        members, _, length, width = gates.shape
        size = width // 4
        # all that does not wait for the gradient of the next place, for all places at once
        i, f, u, o = gates.unflatten(-1, (4, size)).unbind(-2)
        inner = states[..., size:].tanh()
        from_cell = torch.stack(
            [u * i * (1 - i), befores[..., size:] * f * (1 - f), i * (1 - u * u)], -2
        )
        from_hidden, through = inner * o * (1 - o), o * (1 - inner * inner)
        g_gates = torch.empty_like(gates)
        g_hidden = g_cell = gates.new_zeros(())
        for place in reversed(range(length)):
            whole_hidden = g[:, :, place, :size] + g_hidden
            whole_cell = g[:, :, place, size:] + g_cell + whole_hidden * through[:, :, place]
            part = g_gates[:, :, place]
            torch.mul(
                from_cell[:, :, place],
                whole_cell.unsqueeze(-2),
                out=part[..., : 3 * size].unflatten(-1, (3, size)),
            )
            torch.mul(from_hidden[:, :, place], whole_hidden, out=part[..., 3 * size :])
            g_hidden = torch.bmm(part, weight)
            g_cell = whole_cell * f[:, :, place]
        flat = g_gates.view(members, -1, width)
        g_weight = torch.bmm(flat.mT, befores[..., :size].reshape(members, -1, size))
        return g_gates, g_weight


def leaf_lstm(projected: Tensor, weight: Tensor) -> Tensor:
    """The states of ``torch.nn.LSTMCell`` from left to right, (members, batch, length, 2 hidden).

    Args:
        projected: What the words give to the gates, with both biases, (members, batch, length,
            4 hidden): input, forget, update, output.
        weight: From the hidden state to the gates, (members, 4 hidden, hidden).
    """
    if kernels.serve(projected, projected.shape[2], weight.shape[-1]):
        from . import fused

        return fused.leaf_lstm(projected, weight)
    return _LeafLstm.apply(projected, weight)
