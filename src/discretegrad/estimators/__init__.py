"""Categorical samplers, one file each; the public names are in :mod:`discretegrad`."""
