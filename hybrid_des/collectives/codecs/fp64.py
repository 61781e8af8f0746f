"""IEEE 754 binary64: eight bytes an element, nothing is lost."""

from __future__ import annotations

from fractions import Fraction

from hybrid_des.collectives.codecs import Rounded, codec


@codec("fp64", summary="8 bytes an element, exact", source="IEEE 754 binary64")
class Fp64(Rounded):
    """Doubles as they are; NaN and infinity are refused, as by every codec."""

    bytes_per_element = Fraction(8)
    dtype = "float64"
