"""Real training on the simulated GPUs: layers, data sets, optimizers, and serial training to compare with.

Nothing here depends on simulated time. A run's `Training` gives each GPU a `Worker`; the GPU hands an op to its worker
when the op ends, and arrays travel as payloads of messages.
"""
