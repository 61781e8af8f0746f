"""Real training on the simulated GPUs: layers, data sets, optimizers, and serial training as the reference.

Nothing here depends on simulated time. A run's `Training` gives each GPU a `Worker`, which computes the GPU's ops;
messages carry arrays as payloads.
"""
