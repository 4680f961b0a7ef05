"""The categorical VAE of the paper."""

from .gradient_recipes import GRADIENT_RECIPES
from .recipes import RECIPES as COLUMNS
from .recipes import TASK
from .search_recipes import SEARCH_RECIPES

RECIPES = (*COLUMNS, *GRADIENT_RECIPES, *SEARCH_RECIPES)

__all__ = ["RECIPES", "TASK"]
