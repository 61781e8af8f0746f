"""What linear mixers share: input products, a convolution, the core at its own rate, a gated norm, and the output."""

from collections.abc import Iterable

from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.layer import Part, linear, weights
from hybrid_des.workload.models.operations import Elementwise, Operation, Scan


def scanned(
    h: int, inputs: Part, core: Scan, output: str, *, mixed: int = 0, kept: int, own: Iterable[Parameters]
) -> Part:
    """The part of a block that a linear mixer is.

    Args:
        h: hidden size.
        inputs: products of the hidden vector.
        core: what mixes tokens; the gated norm and the output take its results.
        output: the name of the output product.
        mixed: elements per token that the convolution reads; 0: there is none.
        kept: bytes per token besides the hidden vector.
        own: tensors of the convolution, the core and the norm.
    """
    passes: list[Operation] = [
        core,
        Elementwise("gated norm", 3 * ELEMENT * core.back, 5 * ELEMENT * core.back, "tensor"),
    ]
    if mixed:
        passes.insert(0, Elementwise("convolution", 2 * ELEMENT * mixed, 5 * ELEMENT * mixed, "tensor"))
    inside = Part(tuple(passes), kept=Kept(sequence=ELEMENT * h, tensor=kept))
    return inputs + inside + weights(*own) + linear(output, core.back, h, "rows")
