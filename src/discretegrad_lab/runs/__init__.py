"""Train runs that are not trained yet, and keep what became of them."""
