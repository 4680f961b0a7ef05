"""The experiments that prove ``discretegrad``: whole sweeps as one tensor program."""
