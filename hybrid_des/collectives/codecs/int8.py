"""Symmetric 8-bit integers with one scale per piece: one byte per element and four per piece.

scale = max |x| / 127,   byte = round(x / scale),   x ≈ byte · scale
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.codecs import Array, Codec, Payload, codec, narrow


@codec("int8", summary="1 byte per element and a scale of 4 bytes per piece", source="arXiv 1511.04561")
class Int8(Codec):
    """Error at most half a scale per element, that is max |x| / 254; zero stays zero.

    Empty: no bytes, no scale. Constant, ±c alike: c to fp32 rounding. All zero, or all below 1.5·10⁻³⁶ (whose scale
    fp32 cannot hold): scale 0, decoded as zeros. NaN, infinity or a value past 3.4·10³⁸: rejected.
    """

    bytes_per_element = Fraction(1)
    bytes_per_scale = 4

    def encode(self, values: Array) -> Payload:
        """Find the scale of the whole piece and round each element to a multiple of it, ties to even."""
        if not values.size:
            return Payload((np.empty(0, np.int8),), None, 0)
        scale = np.float32(np.abs(narrow(values, "float32")).max() / np.float32(127))
        if scale < np.finfo(np.float32).tiny:
            scale = np.float32(0)
            levels = np.zeros(values.size)
        else:
            levels = np.clip(np.rint(values / np.float64(scale)), -127, 127)
        return Payload((levels.astype(np.int8),), np.array([scale], np.float32), values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Multiply the bytes by their scale."""
        levels = payload.data[0].astype("float64")
        return levels if payload.scales is None else levels * float(payload.scales[0])
