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
    cells: Tensor
    """Their cell states, (..., 2, hidden)."""
    gates: Tensor
    """After their activations, (..., 5, hidden): input, left, right, update, output."""
    cell: Tensor
    """The cell state of the composition, (..., hidden)."""


def compose(composer: Composer, left: Tensor, right: Tensor) -> tuple[Tensor, Block]:
    """The states of parents, (members, batch, pairs, 2 hidden), from those of their children."""
    members, batch, pairs, width = left.shape
    size = width // 2
    hidden = torch.cat([left[..., :size], right[..., :size]], -1)
    flat = torch.bmm(hidden.view(members, -1, width), composer.weight.mT)
    flat = flat + composer.bias.unsqueeze(1)
    gates = flat.view(members, batch, pairs, 5, size)
    # both forget gates start open
    gates[..., 1:3, :] += 1
    update = gates[..., 3, :].tanh()
    gates = gates.sigmoid()
    gates[..., 3, :] = update
    cells = torch.stack([left[..., size:], right[..., size:]], -2)
    cell = (gates[..., 1:3, :] * cells).sum(-2) + gates[..., 0, :] * update
    state = torch.cat([gates[..., 4, :] * cell.tanh(), cell], -1)
    return state, Block(hidden, cells, gates, cell)


def slopes(block: Block) -> Tensor:
    """How gates and children's cells follow from a composition's gradient, (..., 8, hidden).

    See ``pull_back``, which uses them; they are all that it needs.
    """
    inner, outer = block.cell.tanh(), block.gates[..., 4, :]
    open_, update = block.gates, block.gates[..., 3, :]
    closing = open_ * (1 - open_)
    return torch.stack(
        [
            update * closing[..., 0, :],
            block.cells[..., 0, :] * closing[..., 1, :],
            block.cells[..., 1, :] * closing[..., 2, :],
            open_[..., 0, :] * (1 - update * update),
            inner * closing[..., 4, :],
            outer * (1 - inner * inner),
            open_[..., 1, :],
            open_[..., 2, :],
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
    return _LeafLstm.apply(projected, weight)
