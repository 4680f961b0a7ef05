r"""Polynomial programming: minimise $E[\frac1L \sum_i |X_i - c_i|^p]$ over the logits of X."""

from .recipes import RECIPES, TASK, temperature

__all__ = ["RECIPES", "TASK", "temperature"]
