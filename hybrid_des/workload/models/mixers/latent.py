"""Multi-head latent attention (DeepSeek-AI, arXiv 2405.04434, section 2.1): down-projections are not divided.

h ─► q ─► norm ─► queries         with `query` 0: h ─► queries
h ─► kv, rope ─► norm ─► keys and values ─► core ─► output

With an `indexer` (DeepSeek-V3.2), queries attend to the keys that it selects; see `selection`.
"""

from __future__ import annotations

from hybrid_des.workload.models.amounts import ELEMENT, Kept
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Module, Part, linear, norm, offload
from hybrid_des.workload.models.mixers.attention import core, gating
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.mixers.selection import flash_core, indexer_of
from hybrid_des.workload.models.operations import Cache


@mixer("latent", summary="multi-head latent attention", sizes="latent")
def latent(block: Block) -> Part:
    """Down-projections, norms, up-projections, the core, and the output."""
    assert block.latent is not None
    sizes, h, a = block.latent, block.hidden, block.heads
    q, kv, key = sizes.query, sizes.key_value, sizes.nope + sizes.rope
    part = Part(kept=Kept(sequence=ELEMENT * h))
    first = "queries down" if q else "queries"
    part += offload("qkv_linear", first, "keys and values down", sequence=h)
    if q:
        part += linear("queries down", h, q, "sequence") + norm("query norm", q, q)
        part += Part(kept=Kept(sequence=ELEMENT * q))
    part += linear("queries up" if q else "queries", q or h, a * key, "columns")
    part += linear("keys and values down", h, kv + sizes.rope, "sequence", keeps=False) + norm(
        "key and value norm", kv, kv
    )
    part += linear("keys and values up", kv, a * (sizes.nope + sizes.value), "columns")
    inputs = Kept(tensor=ELEMENT * a * (2 * key + sizes.value))
    part += Part(kept=Kept(sequence=ELEMENT * (kv + sizes.rope)) + inputs)
    if q:
        projected = ("query norm", "queries up", "key and value norm", "keys and values up")
        part += Part(modules=(Module("mla_up_proj", projected, inputs),))
    width = a * sizes.value
    gate = {"element": width, "head": a}.get(block.gate or "", 0)
    if gate:
        part += (
            linear("gate", h, gate, "columns", keeps=False)
            + Part(kept=Kept(tensor=ELEMENT * gate))
            + gating(width, gate)
        )
    if block.indexer is None:
        scored = core(block, a, key, sizes.value, Cache(1, kv + sizes.rope, 0))
    else:
        # all heads share kv + rope elements of a key; both forms are chosen by the length of a sample
        own, shared = 0 if block.indexer.reused else block.indexer.size, kv + sizes.rope
        scored = indexer_of(block, block.indexer, q) + flash_core(
            block, a, (key, sizes.value), indexer=block.indexer, absorbed=(shared, kv), gathered=shared + own
        )
    return part + scored + linear("attention output", width, h, "rows", keeps=False)
