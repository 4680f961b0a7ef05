"""A study of gradients: choose an estimator for a small VAE by ``diagnose``, and test the choice.

The model is the paper's VAE of 4 variables with 8 categories, with one hidden layer instead of two:
784-256-32 and 32-256-784. The loss of an image is its negative ELBO,

    E[reconstruction] + KL,    KL = sum q log q + 4 log 8 with the uniform prior,

where the reconstruction is the cross entropy of the grey pixels. Only the expected reconstruction
needs an estimator. There are 8 ** 4 = 4096 joint outcomes, so its true gradient is known.

The model is trained with one estimator. At six stops on the way all estimators are diagnosed at the
logits of ten training images, one of each digit. The one with the smallest error for 1000
evaluations of f is chosen, see ``decide``, and is then trained from the start beside alternatives.

    python -m discretegrad_lab.tasks.vae.study --data DIR --store   # about seven minutes
    python -m discretegrad_lab.tasks.vae.study --render             # the page from what is stored
"""
