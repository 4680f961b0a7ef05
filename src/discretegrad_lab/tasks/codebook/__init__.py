"""A vector-quantised autoencoder, whose codes are drawn or the nearest ones."""

from .recipes import RECIPES, TASK

__all__ = ["RECIPES", "TASK"]
