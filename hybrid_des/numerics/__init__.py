"""The simulated GPUs really train: layers, data sets, optimizers, and the serial training to compare with.

Nothing here knows of simulated time. `Training` belongs to a run and hands out one `Worker` a GPU; the GPU
gives each op to its worker at the op's end, and the arrays ride along on the messages.
"""
