"""A draw from the softmax of a linear layer, looked up in a table."""

from .front import linear_select as linear_select
