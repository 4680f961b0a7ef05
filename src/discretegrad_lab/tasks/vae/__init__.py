"""The categorical VAE of the paper."""

from .recipes import RECIPES, TASK

__all__ = ["RECIPES", "TASK"]
