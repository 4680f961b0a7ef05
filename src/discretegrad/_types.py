"""Names for the types that appear in signatures."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from torch import Tensor

Backend: TypeAlias = Literal["auto", "torch", "triton"]
Family: TypeAlias = Literal["categorical", "bernoulli"]
Temperature: TypeAlias = float | Tensor
Objective: TypeAlias = Callable[[Tensor], Tensor]
