"""A gated short convolution, as in LFM2 (Liquid AI, arXiv 2511.23404).

    h ─► B, C, x ─► C × convolution(B × x) ─► output

4h² + h·width parameters; the convolution has 2h·width FLOP, which are not counted beside its passes over memory; four
vectors of h are kept. Context ranks would need the `width` − 1 tokens before theirs: a message that is left out.
"""

from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Part, linear, weights
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.operations import Elementwise


@mixer("conv", summary="gated short convolution", sizes="conv")
def conv(block: Block) -> Part:
    """The joined input product, the convolution between its gates, and the output."""
    assert block.conv is not None
    h = block.hidden
    passes = Elementwise("gated convolution", 4 * ELEMENT * h, 8 * ELEMENT * h, "tensor")
    return (
        linear("conv in", h, 3 * h, "columns")
        + Part((passes,), kept=Kept(sequence=ELEMENT * h, tensor=3 * ELEMENT * h))
        + weights(Parameters(tensor=h * block.conv.width))
        + linear("conv out", h, h, "rows")
    )
