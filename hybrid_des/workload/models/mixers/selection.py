"""Attention to selected keys: an indexer's scores of all of them, and the core over those with the highest.

    queries' vector ─► n queries of size d ┐
    h ─► a key ─► norm, h ─► n weights     ┴─► scores ─► the `top` keys of each query

DeepSeek-AI, "DeepSeek-V3.2", section 2.1; NVIDIA/Megatron-LM, `--experimental-attention-variant dsa`. The indexer has
q·n·d + h·d + 2d + h·n parameters, 2·n·d FLOP per token and key before it, in few bits where other products are, and
keeps its queries, its key, and 4 bytes per selected key. Every tensor rank computes it for all heads, from the whole
input and queries' vectors, which it gathers. The loss that trains it is over selected keys (sparse loss in
Megatron-Bridge's recipes of DeepSeek-V4 and GLM-5.2): the backward multiplies the core's queries and keys once more,
2·K·a·d FLOP per token. The passes that find the highest scores are not counted.

Over selected keys, latent attention has the absorbed form: a key of kv + rope elements and a value of kv, the same for
all heads, 2·a·(2·kv + rope) FLOP per key. Kernels over selected keys take the rate of heads of 128, larger ones too,
and not `efficiency.latent`. So forwards of whole attention modules in 8 bits (ai-dynamo/aiconfigurator, 148 rows of
2,048 to 65,536 tokens on H200, B200, GB200, GB300; queries are normed and rotated in one pass there) are off by a
median of +17 % (DeepSeek-V3.2), -9 (GLM-5), -3 to +11 (V4 Flash and Pro, compressed and selected), -2 (V4 Flash,
compressed), and by -24 and -18 % of second kernels for V4 Flash; single rows by -42 to +46 %. With the rate of their
own head size, V4's selected keys were off by -7 to -39 %.
"""

from hybrid_des.workload.models.amounts import ELEMENT, Kept
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Part, linear, norm_weights
from hybrid_des.workload.models.mixers.attention import scored_by
from hybrid_des.workload.models.operations import Scores, SelectiveAttention
from hybrid_des.workload.models.sections import Indexer

INDEX = 4  # bytes


def indexer_of(block: Block, sizes: Indexer, query: int, ratio: int = 1) -> Part:
    """An indexer of every `ratio`-th key, whose queries come from vectors of length `query`; empty if it is reused.

    The product for its keys is the compressor's where keys are compressed.
    """
    if sizes.reused:
        return Part()
    h, width = block.hidden, sizes.heads * sizes.size
    part = linear("indexer queries", query, width, "none", keeps=False)
    if ratio == 1:
        part += linear("indexer key", h, sizes.size, "none", keeps=False) + norm_weights(sizes.size, 2 * sizes.size)
    part += linear("indexer weights", h, sizes.heads, "none", keeps=False)
    kept = Kept(copied=ELEMENT * (width + sizes.size) + INDEX * min(sizes.top, block.sequence // ratio))
    scores = Scores("indexer scores", sizes.heads, sizes.size, block.sequence, ratio)
    return part + Part((scores,), kept=kept, gathered=ELEMENT * (h + query))


def flash_core(
    block: Block,
    shared: int,
    sizes: tuple[int, int],
    *,
    gathered: int,
    window: int | None = None,
    indexer: Indexer | None = None,
    ratio: int = 0,
    absorbed: tuple[int, int] | None = None,
) -> Part:
    """The core of heads with keys and values of these sizes, over `shared` heads of them; see `SelectiveAttention`."""
    core = SelectiveAttention(
        "attention", block.heads, shared, *sizes, block.sequence, causal=True, flash=True, window=window,
        top=indexer.top if indexer else None, ratio=ratio, absorbed=absorbed, gathered=gathered,
        teaches=indexer is not None and not indexer.reused,
    )  # fmt: skip
    return scored_by(core, block.heads * sizes[1])
