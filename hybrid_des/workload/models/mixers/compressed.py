"""Attention to a window and to compressed keys, which are the values too (DeepSeek-V4).

    h ─► q ─► norm ─► queries ─► norm ┐
    h ─► key ─► norm                  ┼─► core ─► groups of heads ─► rank r each ─► output
    h ─► keys of R tokens ────────────┘

With a heads of size d, one key for all of them, vectors of length q for queries, G groups with results of length r, and
S = 2 where keys overlap, else 1:

    parameters   h·q + q + q·a·d + h·d + d + a·d·r + G·r·h + a (sinks)
                 compressed keys: 2·h·S·d + R·S·d + d; with an indexer 4·h·d_i + 2·R·d_i + d_i + q·n·d_i + h·n besides
    core         K = window + s / (2R) keys, or with an indexer at most `top` of the compressed: 2·K·a·2d FLOP
    kept         h, q, q, a·d twice, the key and compressed keys, results of heads and groups

transformers, models/deepseek_v4; NVIDIA/Megatron-LM, `csa_*`. Tensor ranks divide heads and groups; the key and
compressed keys are on all of them. Context ranks gather keys, d·(1 + 1/R) elements per token, and the indexer's. The
compressed keys' pooling is one pass. The second norm of queries, of each head, has no weights. The products of groups
and compressed keys stay in 16 bits (Megatron-LM, deepseek_v4_hybrid_attention.py and csa.py).
"""

from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Module, Part, linear, norm, weights
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.mixers.selection import flash_core, indexer_of
from hybrid_des.workload.models.operations import Elementwise, Gemm
from hybrid_des.workload.models.sections import Compressed


@mixer("compressed", summary="attention to a window and compressed keys", sizes="compressed")
def compressed(block: Block) -> Part:
    """Queries, keys, compressed keys, the core, and the output of groups."""
    assert block.compressed is not None
    sizes, h, a = block.compressed, block.hidden, block.heads
    d, q, groups, rank = sizes.size, sizes.query, sizes.out_groups, sizes.out_rank
    queries, ratio = Kept(tensor=ELEMENT * a * d), sizes.ratio or 0
    selects = sizes.indexer
    gathered = d + (d + (selects.size if selects else 0)) // ratio if ratio else d
    each = Gemm("groups of results", rank, a * d // groups, "groups", count=groups, keeps=False)
    part = Part(kept=Kept(sequence=ELEMENT * h)) + linear("queries down", h, q, "sequence") + norm("query norm", q, q)
    part += Part(kept=Kept(sequence=ELEMENT * q)) + linear("queries up", q, a * d, "columns")
    part += Part((Elementwise("head norm", 2 * ELEMENT * a * d, 3 * ELEMENT * a * d, "tensor"),), kept=queries)
    part += linear("keys down", h, d, "sequence", keeps=False) + norm("key norm", d, d)
    again = Module("mla_up_proj", ("query norm", "queries up", "head norm"), queries + queries)
    part += Part(kept=queries + Kept(sequence=ELEMENT * d), modules=(again,))
    if ratio:
        part += _compressor(h, d, sizes, "")
    if ratio and selects:
        part += _compressor(h, selects.size, sizes, "indexer ") + indexer_of(block, selects, q, ratio)
    part += flash_core(block, 1, (d, d), gathered=gathered, window=sizes.window, indexer=selects, ratio=ratio)
    part += weights(Parameters(tensor=a), Parameters(tensor=a * d * rank))
    part += Part((each,), kept=Kept(tensor=ELEMENT * groups * rank))
    return part + linear("attention output", groups * rank, h, "rows")


def _compressor(h: int, size: int, sizes: Compressed, prefix: str) -> Part:
    """Keys of several tokens: a key and weights of each token, pooled with a softmax over tokens, and a norm."""
    ratio, series = sizes.ratio or 1, 2 if sizes.overlap else 1
    width = series * size
    moved = ELEMENT * 2 * width + ELEMENT * size // ratio
    pooled = Elementwise(f"{prefix}pooling", moved, 2 * moved, "none")
    return (
        linear(f"{prefix}compressed keys", h, 2 * width, "none", keeps=False)
        + Part((pooled,), kept=Kept(copied=ELEMENT * size // ratio))
        + weights(Parameters(replicated=ratio * width), Parameters(replicated=size))
    )
