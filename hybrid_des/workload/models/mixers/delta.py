"""The gated delta rule (Yang et al., arXiv 2412.06464), as in Qwen3-Next: a state per head that forgets and corrects.

    h ─► q, k, v, z, a, b ─► convolution of q, k, v ─► delta rule ─► norm(·) × z ─► output

With a key heads of size d, b value heads of size v, chunks of C = 64 tokens:

    parameters   h·(2ad + 2bv + 2b) + (2ad + bv)·width of the convolution + 2b + v (norm) + bv·h
    delta rule   6dv + C·(6d + 4v) + 2C²/3 FLOP per value head: products within a chunk, the inverse of its triangular
                 matrix, and products with the state
    kept         h, 2ad + 2bv, per value head d + v of 4 bytes, and a row of C of 2

The kernel is that of flash-linear-attention, chunk_gated_delta_rule. Tensor ranks divide both kinds of heads.
"""

from fractions import Fraction

from hybrid_des.workload.models.amounts import ELEMENT, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Part, linear
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.mixers.scanned import scanned
from hybrid_des.workload.models.operations import Scan

CHUNK = 64  # tokens


def flop_of(key: int, value: int) -> Fraction:
    """Forward FLOP of the delta rule per token and head."""
    return 6 * key * value + CHUNK * (6 * key + 4 * value) + Fraction(2 * CHUNK**2, 3)


@mixer("delta", summary="gated delta rule", sizes="delta")
def delta(block: Block) -> Part:
    """The joined input product, the convolution, the delta rule, the gated norm, and the output."""
    assert block.delta is not None
    sizes, h = block.delta, block.hidden
    heads, groups, size = sizes.value_heads, sizes.key_heads, sizes.value_size
    keys, width = groups * sizes.key_size, heads * size
    mixed, joined = 2 * keys + width, 2 * keys + 2 * width
    flop = heads * flop_of(sizes.key_size, size)
    kept = ELEMENT * joined + heads * (4 * (sizes.key_size + size) + ELEMENT * CHUNK)
    sent = {"there": 2 * width + 2 * heads, "shared": 2 * keys, "back": width}
    rule = Scan("delta rule", "delta", flop, heads, groups, **sent, state=width * sizes.key_size)
    own = (Parameters(tensor=mixed * sizes.conv), Parameters(tensor=2 * heads), Parameters(replicated=size))
    inputs = linear("delta in", h, joined + 2 * heads, "columns")
    return scanned(h, inputs, rule, "delta out", mixed=mixed, kept=kept, own=own)
