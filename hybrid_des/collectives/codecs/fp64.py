"""IEEE 754 binary64: eight bytes per element, lossless."""

from fractions import Fraction

from hybrid_des.collectives.codecs import Rounded, codec


@codec("fp64", summary="8 bytes per element, exact", source="IEEE 754 binary64")
class Fp64(Rounded):
    """Doubles, unchanged; NaN and infinity are rejected, as by every codec."""

    bytes_per_element = Fraction(8)
    dtype = "float64"
