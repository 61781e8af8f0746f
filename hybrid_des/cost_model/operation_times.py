"""Times of operations on one GPU, from the rates that it achieves: matrix products, attention, what memory bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from math import ceil
from typing import NamedTuple

from hybrid_des.cluster.operator_table import NONE_MEASURED, OPTIMIZER, OperatorTable
from hybrid_des.cost_model.elementwise import is_array, larger, rounded_up, where
from hybrid_des.workload.models.operations import Attention
from hybrid_des.workload.optimizers import ADAM

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))


REUSE = 127  # τ


DEPTH = 145  # k₀


SPLIT = 0.75


IDEAL = (1 / 256 + 1 / 128) / 2  # x₀


ATTENTION_BACKWARD = (2.5, 0.78)  # times the FLOP, and share of the forward's rate
HEAD = 128  # size of the heads that `efficiency.attention` is stated for


ELEMENT = 2  # bytes


# seconds that a product of TransformerEngine takes for each expert besides, on one of four streams
# (general_grouped_gemm): 45 products on a B200 (github.com/MooreThreads/SimuMax,
# configs/system/b200_bf16_ceperm.json) are met within 13.5 % mean; with each of them left out 4.4 to 4.6 us and 14.0 %.
# Eleven on an A100 (a100_pcie.json), of 20 and 40 experts, are met within 7.2 %, and within 5.6 without any call: they
# hardly depend on it, and with them alone, those on the B200 would be 25 % off. So it rests on that machine
PER_EXPERT = 4.5e-6


UPDATE = 16  # bytes moved per updated parameter, besides the optimizer's state, which is read and written


EIGHT_BITS = Fraction(1, 2) + Fraction(4, 2 * 128)  # of 16: an 8-bit element, and a 4-byte scale per 128 (DeepEP)


# bytes per element of an operand in few bits, with its scales: none with one per tensor, 4 bytes per 128 elements in
# blocks (DeepSeek-AI, arXiv 2412.19437, section 3.3), a byte per 32 elements in mxfp8 (OCP Microscaling Formats 1.0), a
# byte per 16 in nvfp4 (NVIDIA, arXiv 2509.25149)
OPERANDS = {"fp8": 1.0, "fp8-current": 1.0, "fp8-blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
# passes over a 16-bit operand before its conversion: its largest element is the scale of the whole tensor
# (NVIDIA/TransformerEngine, Float8CurrentScaling); other scales are known before, or found during the conversion
PASSES = {"fp8-current": 1}


class Times(NamedTuple):
    """Seconds of the forward, of the gradient of the input, and of the gradient of the weights."""

    forward: float = 0.0
    input: float = 0.0
    weight: float = 0.0


class ProductUse(NamedTuple):
    """How a product with weights is computed.

    Attributes:
        quantised: whether in few bits, where the GPU's precision has them.
        converts: whether it converts its input, which the product before may have done.
        anew: whether the backward converts the input again, and forward and backward the weights (pytorch/ao,
            torchao/float8/float8_linear.py, which saves both in 16 bits).
        trained: whether its weights have a gradient.
    """

    quantised: bool = False
    converts: bool = True
    anew: bool = False
    trained: bool = True


@dataclass(frozen=True)
class Device:
    """Rates that one GPU achieves.

    Attributes:
        flops: FLOP/s of products of ideal shape, in the precision of most products.
        flops16: the same in 16 bits, or in 32, for products that are not quantised.
        attention: FLOP/s of flash attention over very many keys, with heads of 128.
        half: keys over which it reaches half of them.
        head: size of heads with which it reaches half of what it would with very large ones.
        memory: bytes per second of its memory.
        multiprocessors: number of them.
        element: bytes of an element that is not quantised.
        operand: bytes per element of the operands of products in few bits; None: all are in 16 bits.
        passes: times that an operand is read before its conversion.
        accumulating: bytes per weight of the product that also adds a micro-batch's gradients to earlier ones.
        adding: bytes moved per weight by an addition after the product.
        grouped, latent: shares of the rate that products of experts, and latent attention, reach.
        per_expert: seconds that the product of each expert takes besides.
        each: seconds that each of several products takes besides.
        measured: times of operators of some shapes and sizes, which take these.
        scans: FLOP/s of cores of linear mixers, bytes/s of passes over residual streams, by the key of `efficiency`.
    """

    flops: float
    flops16: float
    attention: float
    memory: float
    multiprocessors: int
    element: int = ELEMENT
    operand: float | None = None
    passes: int = 0
    accumulating: float = ELEMENT
    adding: float = 0.0
    grouped: float = 1.0
    latent: float = 1.0
    per_expert: float = 0.0
    each: float = 0.0
    measured: OperatorTable = NONE_MEASURED
    half: float = 0.0
    head: float = 0.0
    scans: Mapping[str | Fraction, float] = field(default_factory=dict)

    def product(
        self, m: float, n: float, k: float, count: float = 1, *, quantised: bool = False, result: float | None = None
    ) -> float:
        """Seconds of `count` products (m × k) · (k × n), with `result` bytes moved per element of the result."""
        result = self.element if result is None else result
        stacked = is_array(m) or is_array(k)
        known = self.measured.product(m, n, k) if count == 1 and not (quantised or stacked) else None
        if known is not None:
            return known
        flops, operand = (self.flops, self.operand or 1) if quantised else (self.flops16, self.element)
        moved = (operand * (m * k + k * n) + result * m * n) * count
        share = (shapes if stacked else shape)(m, n, k, count, self.multiprocessors)
        return larger(2 * m * n * k * count / (flops * share), moved / self.memory) + self.each * count

    def layer_product(self, m: float, n: float, k: float, count: float = 1, use: ProductUse | None = None) -> Times:
        """A product with weights (k × n), and its two gradients; frozen weights have none.

        In few bits, its input and the gradient of its output are converted, once each; weights once per step. Only the
        gradient of weights reads both transposed (NVIDIA/TransformerEngine,
        transformer_engine/pytorch/ops/basic/basic_linear.py).
        """
        use = use or ProductUse()
        quantised = use.quantised and self.operand is not None
        forward, inward = (self.product(m, *sides, count, quantised=quantised) for sides in ((n, k), (k, n)))
        weights = self.product(k, n, m, count, quantised=quantised, result=self.accumulating)
        if quantised:
            layouts = 2 if use.trained else 1
            moved = (1 + self.passes) * ELEMENT + layouts * (self.operand or 1)  # read, then written
            forward += moved * m * k * count / self.memory if use.converts else 0.0
            inward += moved * m * n * count / self.memory
            if use.anew:
                of_weights = ((1 + self.passes) * ELEMENT + (self.operand or 1)) * n * k
                forward += of_weights * count / self.memory
                inward += (of_weights + (ELEMENT * m * k if use.converts else 0)) * count / self.memory
        added = weights + self.adding * n * k * count / self.memory
        return Times(forward, inward, added if use.trained else 0.0 * added)

    @cached_property
    def of_experts(self) -> Device:
        """The same GPU with the products of experts."""
        flops, flops16 = self.flops * self.grouped, self.flops16 * self.grouped
        return replace(self, flops=flops, flops16=flops16, each=self.per_expert)

    def moving(self, forward: float, backward: float, rate: str = "") -> Times:
        """A memory-bound operation that moves these bytes, at the rate of its own kernel if it has one."""
        memory = self.scans[rate] if rate else self.memory
        return Times(forward / memory, backward / memory)

    def scored(self, flop: float) -> Times:
        """Scores of an indexer with so many FLOP: as products of ideal shape, 4-bit ones too (DeepSeek-V4)."""
        return Times(flop / self.flops, 2 * flop / self.flops)

    def passed(self, name: str, size: float) -> Times | None:
        """A memory-bound operation of this name whose forward moves `size` bytes; None if none was measured."""
        known = self.measured.sized(name, size)
        return None if known is None else Times(*known)

    def core(self, attention: Attention, tensor: int) -> Times | None:
        """The attention of one sample over the heads of a tensor rank; None if none of its shape was measured."""
        heads, shared = attention.heads // tensor, max(1, attention.kv_heads // tensor)
        shape = attention.sequence, heads, shared, attention.key_size, int(attention.causal)
        known = self.measured.attention(*shape) if attention.key_size == attention.value_size else None
        return None if known is None else Times(*known)

    def update(self, parameters: float, state: float) -> float:
        """Seconds of the optimizer step of so many parameters, with `state` bytes of the optimizer's for each.

        A table has measured Adam with its usual state, and tells nothing of others.
        """
        known = self.measured.sized(OPTIMIZER, parameters) if parameters and state == ADAM.bytes else None
        return parameters * (UPDATE + 2 * state) / self.memory if known is None else known[0]

    def flash(self, flop: float, keys: float, head: float) -> Times:
        """Flash attention with `flop` FLOP in the forward, over so many keys, with heads of this size.

        Starting and ending a tile of queries takes as long as `half` keys, and what a score costs beside its products
        as long as `head` elements: both laws meet kernels measured on A100 to GB300 within 3 % (see gpus.yaml).
        """
        more, slower = ATTENTION_BACKWARD
        reached = self.attention * keys / (keys + self.half) * (head / (head + self.head)) * (1 + self.head / HEAD)
        forward = flop / reached
        return Times(forward, forward * more / slower)


def shapes(m: float, n: float, k: float, count: float, multiprocessors: int) -> float:
    """The share of the ideal rate that products achieve, of several shapes."""
    useful = [_useful(m, n, count, tile, multiprocessors) * reuse for tile, reuse in REUSED]
    return reduce(larger, useful) * k / (k + DEPTH)


@lru_cache(maxsize=1 << 14)
def shape(m: float, n: float, k: float, count: float, multiprocessors: int) -> float:
    """The share of the ideal rate that products of this shape achieve."""
    return shapes(m, n, k, count, multiprocessors)


def _useful(m: float, n: float, count: float, tile: tuple[int, int], multiprocessors: int) -> float:
    rows, columns = tile
    tiles = rounded_up(m / rows) * ceil(n / columns) * count
    full = tiles / (rounded_up(tiles / multiprocessors) * multiprocessors)
    return m * n * count / (tiles * rows * columns) * where(tiles < multiprocessors, larger(full, SPLIT), full)


REUSED = [(tile, (1 + REUSE * IDEAL) / (1 + REUSE * (1 / tile[0] + 1 / tile[1]) / 2)) for tile in TILES]
