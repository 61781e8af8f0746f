"""Optimizers: in-place updates of a flat array of weights from the mean gradient."""

from hybrid_des.numerics.layers import Array


class Sgd:
    """w −= η·g."""

    def __init__(self, learning_rate: float) -> None:
        self._rate = learning_rate

    def update(self, weights: Array, gradient: Array) -> None:
        """Take one step down the gradient."""
        weights -= weights.dtype.type(self._rate) * gradient


class Adam:
    """Adam with β = 0.9, 0.999 and ε = 10⁻⁸, with bias correction (arXiv 1412.6980, algorithm 1)."""

    def __init__(self, learning_rate: float) -> None:
        self._rate = learning_rate
        self._steps = 0
        self._mean: Array | float = 0.0
        self._square: Array | float = 0.0

    def update(self, weights: Array, gradient: Array) -> None:
        """Take one step along the running mean over the root of the running square."""
        self._steps += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * (gradient * gradient)
        rate = self._rate * (1 - 0.999**self._steps) ** 0.5 / (1 - 0.9**self._steps)
        weights -= rate * self._mean / (self._square**0.5 + 1e-8)


Optimizer = Sgd | Adam
OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}
