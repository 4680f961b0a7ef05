"""The categorical VAE of the paper."""

from .gradient_recipes import GRADIENT_RECIPES
from .large_recipes import LARGE_RECIPES
from .recipes import RECIPES as COLUMNS
from .recipes import TASK
from .sample_recipes import SAMPLE_RECIPES
from .search_recipes import SEARCH_RECIPES

RECIPES = (*COLUMNS, *LARGE_RECIPES, *GRADIENT_RECIPES, *SAMPLE_RECIPES, *SEARCH_RECIPES)

__all__ = ["RECIPES", "TASK"]
