"""The Gumbel Tree-LSTM as the released programs compute it, for one member, in plain PyTorch.

After every merge all neighbours are composed anew, and the sample mixes the states.
"""

import math

import torch
from torch import nn


class Composition(nn.Module):
    """Composes all pairs of neighbours."""

    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(2 * size, 5 * size)

    def forward(self, left, right):
        (hl, cl), (hr, cr) = left, right
        i, fl, fr, u, o = self.linear(torch.cat([hl, hr], -1)).chunk(5, -1)
        c = cl * (fl + 1).sigmoid() + cr * (fr + 1).sigmoid() + u.tanh() * i.sigmoid()
        return o.sigmoid() * c.tanh(), c


class TreeLstm(nn.Module):
    """Leaf LSTM, merges, and the hidden state of the root."""

    def __init__(self, words, size):
        super().__init__()
        self.size = size
        self.leaf = nn.LSTMCell(words, size)
        self.composition = Composition(size)
        self.query = nn.Parameter(torch.empty(size).normal_(0, 0.01))

    def leaves(self, x):
        h = c = x.new_zeros(len(x), self.size)
        hs, cs = [], []
        for word in x.unbind(1):
            h, c = self.leaf(word, (h, c))
            hs.append(h)
            cs.append(c)
        return torch.stack(hs, 1), torch.stack(cs, 1)

    def forward(self, x, lengths, choose):
        state = self.leaves(x)
        longest = x.shape[1]
        is_word = torch.arange(longest, device=x.device) < lengths.unsqueeze(1)
        for step in range(longest - 1):
            left = [s[:, :-1] for s in state]
            right = [s[:, 1:] for s in state]
            new = self.composition(left, right)
            if step < longest - 2:
                scores = (self.query * new[0]).sum(-1) / math.sqrt(self.size)
                mask = is_word[:, step + 1 :].clone()
                mask[:, 0] |= ~mask.any(1)
                z = choose(scores.masked_fill(~mask, -math.inf)).unsqueeze(-1)
                upto = z.cumsum(1)
                new = [
                    z * n + (1 - upto) * a + (upto - z) * b
                    for n, a, b in zip(new, left, right, strict=True)
                ]
            going_on = is_word[:, step + 1].view(-1, 1, 1)
            state = [torch.where(going_on, n, a) for n, a in zip(new, left, strict=True)]
        return state[0].squeeze(1)
