"""A mixture of experts that classifies images, with routers that learn in different ways."""

from .recipes import RECIPES, TASK

__all__ = ["RECIPES", "TASK"]
