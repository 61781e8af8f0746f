"""Symmetric 8-bit integers with one scale a piece: one byte an element and four more.

scale = max |x| / 127,   byte = round(x / scale),   x ≈ byte · scale
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hybrid_des.collectives.codecs import Codec, Payload, codec, narrow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hybrid_des.collectives.codecs import Array


@codec("int8", summary="1 byte an element and a scale of 4 bytes a piece", source="arXiv 1511.04561")
class Int8(Codec):
    """Error at most half a scale an element, that is max |x| / 254; zero stays zero.

    Empty: no bytes, no scale. Constant, ±c alike: c to fp32 rounding. All zero, or all below 1.5·10⁻³⁶ (whose scale
    fp32 cannot hold): scale 0, comes back as zeros. NaN, infinity or a value past 3.4·10³⁸: refused.
    """

    bytes_per_element = Fraction(1)
    bytes_per_scale = 4

    def encode(self, values: Array) -> Payload:
        """Find the scale of the whole piece and round each element to a multiple of it, ties to even."""
        import numpy

        if not values.size:
            return Payload((numpy.empty(0, numpy.int8),), None, 0)
        scale = numpy.float32(numpy.abs(narrow(values, "float32")).max() / numpy.float32(127))
        if scale < numpy.finfo(numpy.float32).tiny:
            scale = numpy.float32(0)
            levels = numpy.zeros(values.size)
        else:
            levels = numpy.clip(numpy.rint(values / numpy.float64(scale)), -127, 127)
        return Payload((levels.astype(numpy.int8),), numpy.array([scale], numpy.float32), values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Multiply the bytes by their scale."""
        levels = payload.data[0].astype("float64")
        return levels if payload.scales is None else levels * float(payload.scales[0])
