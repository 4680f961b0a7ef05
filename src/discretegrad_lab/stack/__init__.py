"""Many runs as one tensor program: layers, random numbers, optimisers, the training loop."""
