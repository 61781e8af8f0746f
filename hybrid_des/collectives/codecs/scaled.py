"""Small numbers with one scale per piece, of four bytes."""

from abc import abstractmethod
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.codecs.registration import Array, Codec, Payload, codec, narrow


class Scaled(Codec):
    """A codec that divides a piece by a scale, so that its largest element becomes `largest`, and rounds to levels."""

    bytes_per_scale = 4
    largest: ClassVar[int]

    def encode(self, values: Array) -> Payload:
        """Find the scale of the whole piece, and round each element to a level."""
        if not values.size:
            return Payload((self._levels(values),), None, 0)
        scale = np.float32(np.abs(narrow(values, "float32")).max() / np.float32(self.largest))
        if scale < np.finfo(np.float32).tiny:
            scale, scaled = np.float32(0), np.zeros(values.size)
        else:
            scaled = values / np.float64(scale)
        return Payload((self._levels(scaled),), np.array([scale], np.float32), values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Multiply the levels by their scale."""
        values = self._values(payload.data[0])[: payload.elements]
        return values if payload.scales is None else values * float(payload.scales[0])

    @abstractmethod
    def _levels(self, scaled: Array) -> NDArray[Any]:
        """The levels of the elements of a scaled piece, as bytes."""

    @abstractmethod
    def _values(self, levels: NDArray[Any]) -> NDArray[np.float64]:
        """The values of levels, and of what fills the last byte."""


# Symmetric 8-bit integers: one byte per element and four per piece.
#
#     scale = max |x| / 127,   byte = round(x / scale),   x ≈ byte · scale
@codec("int8", summary="1 byte per element and a scale of 4 bytes per piece", source="arXiv 1511.04561")
class Int8(Scaled):
    """Error at most half a scale per element, that is max |x| / 254; zero stays zero.

    Empty: no bytes, no scale. Constant, ±c alike: c to fp32 rounding. All zero, or all below 1.5·10⁻³⁶ (whose scale
    fp32 cannot hold): scale 0, decoded as zeros. NaN, infinity or a value past 3.4·10³⁸: rejected.
    """

    bytes_per_element = Fraction(1)
    largest = 127

    def _levels(self, scaled: Array) -> NDArray[Any]:
        return np.clip(np.rint(scaled), -127, 127).astype(np.int8)  # ties to even

    def _values(self, levels: NDArray[Any]) -> NDArray[np.float64]:
        return levels.astype("float64")


# Floating-point numbers of 4 bits, one of sign and three of exponent (E3M0).
#
#     level   0  1  2  3  4   5   6   7
#     value   0  1  2  4  8  16  32  64   · scale          scale = max |x| / 64
#
# Outer gradients of Streaming DiLoCo are sent in E3M0 (arXiv 2501.18512, section 2.4); the format without a mantissa is
# that of Agrawal et al., eXmY (arXiv 2405.13938), whose lowest exponent is zero.
LEVELS = np.array([0, 1, 2, 4, 8, 16, 32, 64], dtype=np.float64)


BORDERS = (LEVELS[1:] + LEVELS[:-1]) / 2  # between one level and the next


SIGN = 8


@codec("fp4", summary="half a byte per element (E3M0) and a scale of 4 bytes per piece", source="arXiv 2501.18512")
class Fp4(Scaled):
    """Rounds to the nearest level, halfway down: relative error at most 1/3 above max |x| / 64.

    Elements up to max |x| / 128 become zero. Empty: no bytes, no scale. All zero, or all below 7.5·10⁻³⁷ (whose scale
    fp32 cannot hold): scale 0, decoded as zeros. NaN, infinity or a value past 3.4·10³⁸: rejected.
    """

    bytes_per_element = Fraction(1, 2)
    largest = 64

    def _levels(self, scaled: Array) -> NDArray[Any]:
        codes = np.zeros(scaled.size + scaled.size % 2, np.uint8)
        codes[: scaled.size] = np.searchsorted(BORDERS, np.abs(scaled)) + SIGN * np.signbit(scaled)
        return codes[::2] << 4 | codes[1::2]

    def _values(self, levels: NDArray[Any]) -> NDArray[np.float64]:
        codes = np.stack([levels >> 4, levels & 0xF], axis=1).ravel()
        values: NDArray[np.float64] = LEVELS[codes % SIGN] * np.where(codes < SIGN, 1.0, -1.0)
        return values
