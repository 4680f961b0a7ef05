"""Accelerated backends and the choice among them."""
