"""Top-k sparsification: only the largest elements (one in sixteen) are sent, with their positions.

The rest is lost unless `gradients.error_feedback` keeps it for the next step (arXiv 1712.01887, 1809.07599).
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.codecs.registration import Array, Codec, Payload, codec, narrow

ONE_IN = 16


BYTES_KEPT = 8  # an fp32 value and its position as an unsigned 32-bit integer


@codec("top-k", summary="1 element in 16 as fp32 with its position: half a byte per element", source="arXiv 1712.01887")
class TopK(Codec):
    """Keeps ⌈n/16⌉ elements of a piece, the largest by magnitude (the first of equal ones), and zeros for the rest.

    Empty: no bytes. Kept elements are rounded to fp32; NaN, infinity or a value past 3.4·10³⁸ is rejected.
    """

    bytes_per_element = Fraction(BYTES_KEPT, ONE_IN)

    def payload_bytes(self, elements: int) -> int:
        """Bytes of a whole number of kept elements."""
        return -(-elements // ONE_IN) * BYTES_KEPT

    def encode(self, values: Array) -> Payload:
        """Select the largest elements."""
        magnitudes = np.abs(narrow(values, "float32"))
        kept = np.sort(np.argsort(-magnitudes, kind="stable")[: -(-values.size // ONE_IN)])
        return Payload((kept.astype(np.uint32), values[kept].astype(np.float32)), None, values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Put the kept elements at their positions among zeros."""
        positions, kept = payload.data
        values = np.zeros(payload.elements)
        values[positions] = kept
        return values
