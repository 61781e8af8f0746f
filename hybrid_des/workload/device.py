"""Times of operations on one GPU, from the rates that its units achieve.

    product (m × k) · (k × n)     max(2mnk / (FLOP/s · shape(m, n, k)), bytes / memory bandwidth)
    conversion to 8 bits          4 bytes per element / memory bandwidth: of a product's input, of its output's gradient
    flash attention               FLOP / (FLOP/s of attention); the backward 2.5 times the FLOP at 0.78 of the rate
    memory-bound operation        bytes / memory bandwidth

FLOP/s and bandwidth are the GPU's peaks times the efficiencies of the scenario. `shape` is the efficiency of
tiling: for the best of the tiles 256×128 … 64×64, the product of

    useful       the share of the padded tiles, in whole waves over the multiprocessors, that is part of the result;
                 less than one wave is split along k, at 0.75 at best
    reuse        (1 + τ·x₀)/(1 + τ·x), where x is the mean of 1/rows and 1/columns of a tile, x₀ that of 256×128
    depth        k/(k + k₀): filling and draining the pipeline of each tile

τ and k₀ fit 183 GEMMs measured on an A100 within 3.9 % on average (a constant efficiency: 6.7 %). Wave quantisation:
NVIDIA, Matrix Multiplication Background User's Guide. Backward of flash attention: Dao, arXiv 2307.08691.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import NamedTuple

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
REUSE = 127  # τ
DEPTH = 145  # k₀
SPLIT = 0.75
IDEAL = (1 / 256 + 1 / 128) / 2  # x₀
ATTENTION_BACKWARD = (2.5, 0.78)  # times the FLOP, and share of the forward's rate
ELEMENT = 2  # bytes
QUANTISED = 4  # bytes moved per element to convert an operand to 8 bits, in both layouts


class Times(NamedTuple):
    """Seconds of the forward, of the gradient of the input, and of the gradient of the weights."""

    forward: float = 0.0
    input: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True)
class Device:
    """Rates that one GPU achieves.

    Attributes:
        flops: FLOP/s of products of ideal shape, in the precision of most products.
        flops16: the same in 16 bits, for products that are not quantised.
        attention: FLOP/s of flash attention.
        memory: bytes per second of its memory.
        multiprocessors: number of them.
        quantised: whether products are in 8 bits.
        accumulating: bytes per weight of the product that also adds a micro-batch's gradients to earlier ones.
        adding: bytes moved per weight by an addition after the product.
    """

    flops: float
    flops16: float
    attention: float
    memory: float
    multiprocessors: int
    quantised: bool = False
    accumulating: float = ELEMENT
    adding: float = 0.0

    def product(
        self, m: float, n: float, k: float, count: float = 1, *, quantised: bool = False, result: float = ELEMENT
    ) -> float:
        """Seconds of `count` products (m × k) · (k × n), with `result` bytes moved per element of the result."""
        flops, operand = (self.flops, 1) if quantised else (self.flops16, ELEMENT)
        moved = (operand * (m * k + k * n) + result * m * n) * count
        return max(2 * m * n * k * count / (flops * shape(m, n, k, count, self.multiprocessors)), moved / self.memory)

    def layer_product(self, m: float, n: float, k: float, count: float = 1, *, quantised: bool = False) -> Times:
        """A product with weights (k × n), and its two gradients.

        In 8 bits, its input and the gradient of its output are converted, once each; weights once per step.
        """
        quantised = quantised and self.quantised
        forward, inward = (self.product(m, *sides, count, quantised=quantised) for sides in ((n, k), (k, n)))
        weights = self.product(k, n, m, count, quantised=quantised, result=self.accumulating)
        if quantised:
            forward += QUANTISED * m * k * count / self.memory
            inward += QUANTISED * m * n * count / self.memory
        return Times(forward, inward, weights + self.adding * n * k * count / self.memory)

    def moving(self, forward: float, backward: float) -> Times:
        """A memory-bound operation that moves these bytes."""
        return Times(forward / self.memory, backward / self.memory)

    def flash(self, flop: float) -> Times:
        """Flash attention with `flop` FLOP in the forward."""
        more, slower = ATTENTION_BACKWARD
        forward = flop / self.attention
        return Times(forward, forward * more / slower)


@cache
def shape(m: float, n: float, k: float, count: float, multiprocessors: int) -> float:
    """The share of the ideal rate that products of this shape achieve."""
    return max(_useful(m, n, count, tile, multiprocessors) * _reuse(tile) for tile in TILES) * k / (k + DEPTH)


def _useful(m: float, n: float, count: float, tile: tuple[int, int], multiprocessors: int) -> float:
    rows, columns = tile
    tiles = ceil(m / rows) * ceil(n / columns) * count
    full = tiles / (ceil(tiles / multiprocessors) * multiprocessors)
    return m * n * count / (tiles * rows * columns) * (max(full, SPLIT) if tiles < multiprocessors else full)


def _reuse(tile: tuple[int, int]) -> float:
    return (1 + REUSE * IDEAL) / (1 + REUSE * (1 / tile[0] + 1 / tile[1]) / 2)
