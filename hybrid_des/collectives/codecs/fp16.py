"""IEEE 754 binary16: two bytes per element."""

from fractions import Fraction

from hybrid_des.collectives.codecs import Rounded, codec


@codec("fp16", summary="2 bytes per element, 11 significant bits, up to 65504", source="IEEE 754 binary16")
class Fp16(Rounded):
    """Relative error at most 5·10⁻⁴ per element above 6·10⁻⁵, absolute 3·10⁻⁸ below.

    Elements that round past 65504 are rejected, as are NaN and infinity; those below 3·10⁻⁸ become zero.
    """

    bytes_per_element = Fraction(2)
    dtype = "float16"
