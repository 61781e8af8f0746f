"""Floating-point numbers of 4 bits, one of sign and three of exponent (E3M0), with one scale per piece.

level   0  1  2  3  4   5   6   7
value   0  1  2  4  8  16  32  64   · scale          scale = max |x| / 64

Outer gradients of Streaming DiLoCo are sent in E3M0 (arXiv 2501.18512, section 2.4); the format without a mantissa is
that of Agrawal et al., eXmY (arXiv 2405.13938), whose lowest exponent is zero.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.codecs import Array, Codec, Payload, codec, narrow

LEVELS = np.array([0, 1, 2, 4, 8, 16, 32, 64], dtype=np.float64)
BORDERS = (LEVELS[1:] + LEVELS[:-1]) / 2  # between one level and the next
SIGN = 8


@codec("fp4", summary="half a byte per element (E3M0) and a scale of 4 bytes per piece", source="arXiv 2501.18512")
class Fp4(Codec):
    """Rounds to the nearest level, halfway down: relative error at most 1/3 above max |x| / 64.

    Elements up to max |x| / 128 become zero. Empty: no bytes, no scale. All zero, or all below 7.5·10⁻³⁷ (whose scale
    fp32 cannot hold): scale 0, decoded as zeros. NaN, infinity or a value past 3.4·10³⁸: rejected.
    """

    bytes_per_element = Fraction(1, 2)
    bytes_per_scale = 4

    def encode(self, values: Array) -> Payload:
        """Find the scale of the whole piece, round to levels, and pack two of them into a byte."""
        if not values.size:
            return Payload((np.empty(0, np.uint8),), None, 0)
        scale = np.float32(np.abs(narrow(values, "float32")).max() / np.float32(LEVELS[-1]))
        codes = np.zeros(values.size + values.size % 2, np.uint8)
        if scale < np.finfo(np.float32).tiny:
            scale = np.float32(0)
        else:
            levels = np.searchsorted(BORDERS, np.abs(values) / np.float64(scale))
            codes[: values.size] = levels + SIGN * np.signbit(values)
        return Payload((codes[::2] << 4 | codes[1::2],), np.array([scale], np.float32), values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Unpack the levels and multiply them by their scale."""
        packed = payload.data[0]
        codes = np.stack([packed >> 4, packed & 0xF], axis=1).ravel()[: payload.elements]
        values: NDArray[np.float64] = LEVELS[codes % SIGN] * np.where(codes < SIGN, 1.0, -1.0)
        return values if payload.scales is None else values * float(payload.scales[0])
