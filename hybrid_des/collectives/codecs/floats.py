"""Floating-point formats as they are: 64, 32 and 16 bits (IEEE 754) and bfloat16."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.codecs.registration import Array, Codec, Payload, Rounded, codec, narrow, require


@codec("fp64", summary="8 bytes per element, exact", source="IEEE 754 binary64")
class Fp64(Rounded):
    """Doubles, unchanged; NaN and infinity are rejected, as by every codec."""

    bytes_per_element = Fraction(8)
    dtype = "float64"


# IEEE 754 binary32: four bytes per element.
@codec("fp32", summary="4 bytes per element, 24 significant bits", source="IEEE 754 binary32")
class Fp32(Rounded):
    """Relative error at most 6·10⁻⁸ per element above 1.2·10⁻³⁸, absolute 7·10⁻⁴⁶ below.

    Elements past 3.4·10³⁸ are rejected, as are NaN and infinity.
    """

    bytes_per_element = Fraction(4)
    dtype = "float32"


# IEEE 754 binary16: two bytes per element.
@codec("fp16", summary="2 bytes per element, 11 significant bits, up to 65504", source="IEEE 754 binary16")
class Fp16(Rounded):
    """Relative error at most 5·10⁻⁴ per element above 6·10⁻⁵, absolute 3·10⁻⁸ below.

    Elements that round past 65504 are rejected, as are NaN and infinity; those below 3·10⁻⁸ become zero.
    """

    bytes_per_element = Fraction(2)
    dtype = "float16"


# bfloat16: the upper half of a binary32, two bytes per element with fp32's range.
#
# fp32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
# bf16   s eeeeeeee mmmmmmm
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
