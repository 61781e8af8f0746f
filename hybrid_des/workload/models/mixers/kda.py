"""Kimi delta attention (Kimi Team, arXiv 2510.26692): the gated delta rule with a decay of its own for every channel.

    h ─► q, k, v, decay, beta, gate ─► convolution of q, k, v ─► delta rule ─► norm(·) × gate ─► output

With n heads of size d and w = nd channels, the decay and the gate are products h → d → w, whose first factors every
tensor rank has whole; a full gate is one product h → w:

    parameters   3hw + 3w·width + (hd + dw) of the decay + hn + (hd + dw, or hw) of the gate + n + w + d + wh
    kept         h and nine vectors of w
"""

from hybrid_des.workload.models.amounts import ELEMENT, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Part, linear
from hybrid_des.workload.models.mixers.delta import flop_of
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.mixers.scanned import scanned
from hybrid_des.workload.models.operations import Scan


@mixer("kda", summary="Kimi delta attention", sizes="kda")
def kda(block: Block) -> Part:
    """The input products, the convolution, the delta rule, the gated norm, and the output."""
    assert block.kda is not None
    sizes, h = block.kda, block.hidden
    n, d = sizes.heads, sizes.size
    width = n * d
    gate = linear("gate", h, width, "columns", keeps=False) if sizes.full_gate else _low_rank("gate", h, d, width)
    sent = {"there": 5 * width + n, "shared": 0, "back": width}
    rule = Scan("delta rule", "kda", n * flop_of(d, d), n, n, **sent, state=width * d)
    own = (Parameters(tensor=3 * width * sizes.conv), Parameters(tensor=n + width), Parameters(replicated=d))
    inputs = linear("queries, keys, values, beta", h, 3 * width + n, "columns") + _low_rank("decay", h, d, width) + gate
    return scanned(h, inputs, rule, "kda out", mixed=3 * width, kept=9 * ELEMENT * width, own=own)


def _low_rank(name: str, h: int, rank: int, width: int) -> Part:
    down = linear(f"{name} down", h, rank, "sequence", keeps=False)
    return down + linear(f"{name} up", rank, width, "columns", keeps=False)
