"""Lightning attention (Qin et al., arXiv 2401.04658; MiniMax-01, arXiv 2501.08313): linear attention, block by block.

    h ─► q, k, v, gate ─► attention within blocks and with the state before them ─► norm(·) × gate ─► output

With n heads of size d, w = nd and blocks of B tokens: 4hw + w + wh parameters, n·(2Bd + 4d²) FLOP, five vectors of w
kept. No public table has the rate of its kernel: `efficiency.lightning` is required.
"""

from fractions import Fraction

from hybrid_des.workload.models.amounts import ELEMENT, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Part, linear
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.mixers.scanned import scanned
from hybrid_des.workload.models.operations import Scan


@mixer("lightning", summary="lightning attention", sizes="lightning")
def lightning(block: Block) -> Part:
    """The joined input product, the attention, the gated norm, and the output."""
    assert block.lightning is not None
    sizes, h = block.lightning, block.hidden
    n, d = sizes.heads, sizes.size
    width = n * d
    flop = Fraction(n * (2 * sizes.chunk * d + 4 * d**2))
    sent = {"there": 4 * width, "shared": 0, "back": width}
    core = Scan("lightning attention", "lightning", flop, n, n, **sent, state=width * d)
    inputs, own = linear("queries, keys, values, gate", h, 4 * width, "columns"), [Parameters(tensor=width)]
    return scanned(h, inputs, core, "lightning out", kept=5 * ELEMENT * width, own=own)
