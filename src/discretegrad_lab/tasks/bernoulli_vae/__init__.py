"""The VAE with 200 Bernoulli variables: the paper's Table 6, and the same like for like."""

from .recipes import RECIPES, TASK

__all__ = ["RECIPES", "TASK"]
