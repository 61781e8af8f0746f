"""IEEE 754 binary32: four bytes per element."""

from fractions import Fraction

from hybrid_des.collectives.codecs import Rounded, codec


@codec("fp32", summary="4 bytes per element, 24 significant bits", source="IEEE 754 binary32")
class Fp32(Rounded):
    """Relative error at most 6·10⁻⁸ per element above 1.2·10⁻³⁸, absolute 7·10⁻⁴⁶ below.

    Elements past 3.4·10³⁸ are rejected, as are NaN and infinity.
    """

    bytes_per_element = Fraction(4)
    dtype = "float32"
