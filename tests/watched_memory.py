"""What memory tensors take, seen operation by operation."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Memory(TorchDispatchMode):
    """Follows the tensors that are made within; a view is no new tensor."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        """The most bytes that were there at once."""
        self.largest = 0
        """Bytes of the largest one."""
        self.most_numbers = 0
        """In one of them."""
        self._sizes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = filter(torch.is_tensor, tree_leaves((args, kwargs)))
        old = {x.untyped_storage()._cdata for x in given}
        result = function(*args, **(kwargs or {}))
        for x in filter(torch.is_tensor, tree_leaves(result)):
            storage = x.untyped_storage()
            if storage._cdata not in self._sizes.keys() | old:
                self._sizes[storage._cdata] = storage.nbytes()
                self.largest = max(self.largest, storage.nbytes())
                self.most_numbers = max(self.most_numbers, storage.nbytes() // x.element_size())
                weakref.finalize(storage, self._sizes.pop, storage._cdata)
        self.peak = max(self.peak, sum(self._sizes.values()))
        return result
