"""Architecture search on NATS-Bench: GDAS with other estimators of its gradient."""

from .recipes import RECIPES, TASK

__all__ = ["RECIPES", "TASK"]
