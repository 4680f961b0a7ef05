"""The categorical VAE of the paper."""

from .gradient_recipes import GRADIENT_RECIPES
from .recipes import RECIPES as COLUMNS
from .recipes import TASK

RECIPES = (*COLUMNS, *GRADIENT_RECIPES)

__all__ = ["RECIPES", "TASK"]
