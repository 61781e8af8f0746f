"""Top-k sparsification: only the largest elements travel, with their places; one in sixteen here.

The rest is lost unless `gradients.error_feedback` keeps it for the next step (arXiv 1712.01887, 1809.07599).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hybrid_des.collectives.codecs import Codec, Payload, codec, narrow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hybrid_des.collectives.codecs import Array

ONE_IN = 16
BYTES_KEPT = 8  # an fp32 value and its place as an unsigned 32-bit number


@codec("top-k", summary="1 element in 16 as fp32 with its place: half a byte an element", source="arXiv 1712.01887")
class TopK(Codec):
    """Keeps ⌈n/16⌉ elements of a piece, the largest by magnitude (the first of equal ones), and zeros for the rest.

    Empty: no bytes. What is kept is rounded to fp32; NaN, infinity or a value past 3.4·10³⁸ is refused.
    """

    bytes_per_element = Fraction(BYTES_KEPT, ONE_IN)

    def payload_bytes(self, elements: int) -> int:
        """Whole kept elements."""
        return -(-elements // ONE_IN) * BYTES_KEPT

    def encode(self, values: Array) -> Payload:
        """Pick the largest."""
        import numpy

        magnitudes = numpy.abs(narrow(values, "float32"))
        kept = numpy.sort(numpy.argsort(-magnitudes, kind="stable")[: -(-values.size // ONE_IN)])
        return Payload((kept.astype(numpy.uint32), values[kept].astype(numpy.float32)), None, values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Put the kept elements in their places among zeros."""
        import numpy

        places, kept = payload.data
        values = numpy.zeros(payload.elements)
        values[places] = kept
        return values
