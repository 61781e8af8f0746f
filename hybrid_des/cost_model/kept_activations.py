"""Bytes of activations that a layer keeps for its backward, and the share that weight gradients need.

Inputs of products in few bits are kept as they were converted where the framework's save_for_backward has these
(TransformerEngine, pytorch/module/linear.py: rows, or columns alone, but never both); elsewhere, and what other
operations need, in 16 bits. Two cases differ (Megatron-LM, set_save_original_input in its modules):

    attention output   its input is the result of the core, which the core keeps in 16 bits; with delayed scaling the
                       converted one is kept besides
    recomputation      a product whose input is computed again, or is that of what is computed again, keeps that in 16
                       bits: norms, the experts' activation, an MLP as a whole
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import cast

import numpy as np

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.elementwise import is_array, rounded_up
from hybrid_des.cost_model.operation_times import ELEMENT, OPERANDS
from hybrid_des.scenario.sections.cluster import WIDE
from hybrid_des.workload.models.amounts import Kept
from hybrid_des.workload.models.layer import OPS, Layer, Module
from hybrid_des.workload.models.operations import Attention, Gemm, SelectiveAttention

# products whose operands stay in 16 bits: those of DeepSeek-V4 are in no Transformer Engine module, or outside of its
# contexts of few bits (Megatron-LM, deepseek_v4_hybrid_attention.py, csa.py)
UNCONVERTED = ("logits", "groups of results", "compressed keys", "indexer compressed keys")
PLAIN = ("router", "shared gate", *UNCONVERTED)  # products that keep their inputs in 16 bits or more
DELAYED = "fp8"


def kept_bytes(layer: Layer, basis: CostBasis, modules: Sequence[Module], *, scores: bool) -> int:
    """Bytes that a rank keeps of a layer without modules that are computed again; `scores`: with score matrices."""
    t = basis.parallel.tensor
    eager = basis.operators.blocks == "eager"
    if basis.parallel.expert > 1:  # what an exchange brought is kept: torchtitan saves all-to-alls
        modules = [one._replace(kept=replace(one.kept, received=0)) if one.name == OPS else one for one in modules]
    kept, routed = _kept_per_token(
        layer, tuple(modules), t, basis.parallel.of_expert, eager=eager, precision=basis.kept_precision
    )
    inner = kept.tensor + _merged(layer, basis) + (_scores(layer, kept.scores, basis) if scores else 0)
    inner += basis.element * copied_keys(layer, t)
    of_others = (basis.routed - basis.tokens) * routed  # more, or less, than if all ranks had as many tokens
    return rounded_up(basis.tokens * (kept.sequence / basis.regular + inner / t + routed + kept.copied) + of_others)


def _merged(layer: Layer, basis: CostBasis) -> int:
    """Bytes per token of attention's result in a second layout, kept by autograd: merged blocks lie head by head."""
    cores = (one for one in layer.operations if isinstance(one, Attention) and basis.context > 1 and layer.gradient)
    return sum(basis.element * one.heads * one.value_size for one in cores)


@lru_cache(maxsize=256)
def _kept_per_token(
    layer: Layer, modules: tuple[Module, ...], tensor: int, of_expert: int, *, eager: bool, precision: str
) -> tuple[Kept, float]:
    """What is kept without modules that are computed again, and the part that experts receive, divided over ranks."""
    kept = layer.kept + _converted(layer, modules, precision) + (layer.eager if eager else Kept())
    for module in modules:
        kept -= module.kept
        kept += module.sums if module.summed and tensor > 1 else Kept()
        kept += module.eager if eager else Kept()
    return kept, float((kept.received * Fraction(of_expert, tensor) + Fraction(kept.expert, tensor)) * layer.balance)


def _converted(layer: Layer, modules: Sequence[Module], precision: str) -> Kept:
    """What is kept more, or less, because inputs of products are kept in a precision of few bits."""
    if precision not in OPERANDS or not layer.in_few_bits:
        return Kept()
    bytes_of, more = Fraction(OPERANDS[precision]), Kept()
    unconverted = {name for one in modules for name in one.unconverted}
    for gemm in (one for one in layer.operations if isinstance(one, Gemm) and one.trained and not one.inner):
        beside = bytes_of  # of an input that something else keeps in 16 bits
        if gemm.name in PLAIN:
            beside = Fraction(ELEMENT if gemm.name == "router" else 0)
        elif gemm.name == "attention output" and precision != DELAYED:
            beside = Fraction(0)
        if gemm.name in unconverted or gemm.shares or (gemm.keeps and gemm.name in PLAIN):
            continue
        more += gemm.input_kept(bytes_of - ELEMENT if gemm.keeps else beside)
    return more


def copied_keys(layer: Layer, tensor: int) -> int:
    """Elements per token, on all tensor ranks, of copies of keys and values: each rank has a head of them, or more."""
    cores = [one for one in layer.operations if isinstance(one, Attention) and not isinstance(one, SelectiveAttention)]
    return sum(core.key_values(tensor) - core.key_values(1) for core in cores)


def _scores(layer: Layer, size: int, basis: CostBasis) -> float:
    """Bytes of score matrices per token, of which the layer's samples would have `size`."""
    core = next((one for one in layer.operations if isinstance(one, Attention)), None)
    return size * float(basis.reach(core)) / basis.context if core and size else 0.0


def weight_share(layer: Layer, basis: CostBasis, kept: int) -> Fraction:
    """The share that weight gradients need: inputs and output gradients of products (Qi et al., arXiv 2401.10241)."""
    needed = _needed_per_token(layer, basis.parallel.tensor, basis.regular, basis.kept_precision)
    tokens = basis.tokens
    if is_array(tokens) and is_array(kept):
        each = zip(tokens.tolist(), kept.tolist(), strict=True)
        return cast(Fraction, np.array([_share(needed, *one) for one in each], dtype=object))
    return _share(needed, tokens, kept)


def _share(needed: Fraction, tokens: int, kept: int) -> Fraction:
    over, under = needed.numerator * tokens, needed.denominator * kept
    return Fraction(min(over, under), under) if kept else Fraction(0)


@lru_cache(maxsize=256)
def _needed_per_token(layer: Layer, inner: int, regular: int, precision: str) -> Fraction:
    needed, width = Fraction(0), 4 if precision in WIDE else ELEMENT
    for gemm in (one for one in layer.operations if isinstance(one, Gemm) and one.trained):
        of_input, of_output = {"columns": (regular, inner), "rows": (inner, regular), "groups": (inner, inner)}.get(
            gemm.split, (regular, regular)
        )
        few = layer.in_few_bits and gemm.name not in PLAIN
        element = Fraction(OPERANDS.get(precision, width) if few else width)
        needed += element * gemm.rows * gemm.count * (Fraction(gemm.k, of_input) + Fraction(gemm.n, of_output))
    return needed
