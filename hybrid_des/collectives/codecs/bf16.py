"""bfloat16: the upper half of a binary32, two bytes per element with fp32's range.

fp32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
bf16   s eeeeeeee mmmmmmm
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.codecs import Array, Codec, Payload, codec, narrow, require


@codec("bf16", summary="2 bytes per element, 8 significant bits, fp32's range", source="arXiv 1905.12322")
class Bf16(Codec):
    """Relative error at most 4·10⁻³ per element above 1.2·10⁻³⁸; rounded to fp32 first, then to bf16, ties to even.

    Elements that round past 3.39·10³⁸ are rejected, as are NaN and infinity.
    """

    bytes_per_element = Fraction(2)

    def encode(self, values: Array) -> Payload:
        """Round away the lower 16 bits."""
        bits = narrow(values, "float32").view(np.uint32)
        to_even = (bits >> 16) & 1
        upper = ((bits + (0x7FFF + to_even)) >> 16).astype(np.uint16)
        require((upper & 0x7FFF) != 0x7F80, values, "bfloat16")
        return Payload((upper,), None, values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Append zeros to the 16 bits sent."""
        bits = payload.data[0].astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64)
