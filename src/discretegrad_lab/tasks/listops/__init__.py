"""The Tree-LSTM of the paper, which learns to parse expressions of ListOps."""

from .recipes import RECIPES, TASK

__all__ = ["RECIPES", "TASK"]
