"""Codecs: how the elements of gradients are encoded in messages.

    from hybrid_des.collectives.codecs import Codec, Payload, codec

    @codec("mine", summary="…", source="me")
    class Mine(Codec): ...

A simulation without numerics only uses the sizes (`payload_bytes`, `scale_bytes`); with numerics, arrays go through
`encode` and `decode`, whose sizes must agree.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybrid_des.errors import NumericsError, UsageError
from hybrid_des.registry import Registry

Array = NDArray[np.floating[Any]]


class Payload(NamedTuple):
    """One encoded piece of a buffer.

    Attributes:
        data: the arrays sent: element data and, for a sparse codec, the positions of the elements.
        scales: the scale of the piece (one fp32 number, or none).
        elements: number of elements after decoding.
    """

    data: tuple[NDArray[Any], ...]
    scales: NDArray[np.float32] | None
    elements: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of the element data."""
        return sum(array.nbytes for array in self.data)

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales."""
        return 0 if self.scales is None else self.scales.nbytes


class Codec(ABC):
    """An encoding of floating-point numbers.

    Attributes:
        bytes_per_element: payload bytes per element; exact, may be less than one.
        bytes_per_scale: bytes of scale per non-empty piece.
    """

    bytes_per_element: ClassVar[Fraction]
    bytes_per_scale: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        """Codecs have no state, so two of one class are equal."""
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def payload_bytes(self, elements: int) -> int:
        """Payload bytes of a piece of `elements` elements."""
        return -int(-elements * self.bytes_per_element // 1)

    def scale_bytes(self, elements: int) -> int:
        """Scale bytes of a piece of `elements` elements; an empty piece has none."""
        return self.bytes_per_scale if elements else 0

    @abstractmethod
    def encode(self, values: Array) -> Payload:
        """Encode a flat, possibly empty array.

        Raises:
            NumericsError: an element is NaN or infinite, or too large for the codec.
        """

    @abstractmethod
    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Decode a payload; the same payload gives the same bits everywhere."""


_REGISTRY: Registry[type[Codec]] = Registry("codec", "hybrid_des.collectives.codecs")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def codec(name: str, *, summary: str, source: str) -> Callable[[type[Codec]], type[Codec]]:
    """Register a codec under its name in a scenario's `gradients.codec`, with a one-line summary.

    Raises:
        UsageError: from the decorator: the class is not a codec, or lacks something of one.
    """
    register = _REGISTRY(name, summary=summary, source=source)

    def checked(build: type[Codec]) -> type[Codec]:
        if wrong := _lacking(build):
            raise UsageError(f'codec "{name}" {wrong}')
        return register(build)

    return checked


def _lacking(build: Any) -> str:
    """Why a class is not a codec; empty if it is one."""
    if not isinstance(build, type) or not issubclass(build, Codec):
        what = f"class {build.__name__}" if isinstance(build, type) else describe_type(build)
        return f"is a {what}; expected a subclass of hybrid_des.collectives.codecs.Codec"
    if missing := sorted(getattr(build, "__abstractmethods__", ())):
        return f"lacks {' and '.join(f'{one}()' for one in missing)}; a codec has encode(values) and decode(payload)"
    size = getattr(build, "bytes_per_element", None)
    if not isinstance(size, int | Fraction) or isinstance(size, bool) or size <= 0:
        return f"has bytes_per_element {size!r}; expected a positive Fraction, such as Fraction(1, 2)"
    scale = build.bytes_per_scale
    if type(scale) is not int or scale < 0:
        return f"has bytes_per_scale {scale!r}; expected a number of bytes"
    return _untrue(build())


def _untrue(one: Codec) -> str:
    """How what a codec encodes differs from what it says; empty if it does not."""
    values = np.linspace(-1.0, 1.0, 32)
    payload = one.encode(values)
    if not isinstance(payload, Payload):
        return f"encodes to {describe_type(payload)}; expected a Payload(data, scales, elements)"
    sizes, said = (payload.payload_bytes, payload.scale_bytes), (one.payload_bytes(32), one.scale_bytes(32))
    if sizes != said:
        return (
            f"encodes 32 elements in {sizes[0]} bytes and {sizes[1]} of scales; its sizes say {said[0]} and {said[1]}"
        )
    decoded = one.decode(payload)
    if not isinstance(decoded, np.ndarray) or decoded.shape != values.shape:
        return f"decodes 32 elements to {describe_type(decoded)}; expected an array of 32 elements"
    return ""


def describe_type(value: object) -> str:
    """What kind of object was found, for messages."""
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    return "nothing" if value is None else type(value).__name__


def narrow(values: Array, dtype: DTypeLike) -> NDArray[Any]:
    """Round a flat array to another floating-point type.

    Raises:
        NumericsError: an element is NaN or infinite, or becomes so.
    """
    with np.errstate(over="ignore"):
        narrowed = values.astype(dtype)
    require(np.isfinite(narrowed), values, np.dtype(dtype).name)
    return narrowed


def require(finite: NDArray[np.bool_], values: Array, dtype: str) -> None:
    """Check that all `values` are finite once they are rounded to `dtype`.

    Raises:
        NumericsError: some are not; the message names the first one.
    """
    if not finite.all():
        index = int(np.argmin(finite))
        value = float(values[index])
        problem = f"is too large for {dtype}" if np.isfinite(value) else "cannot be sent"
        raise NumericsError(f"element {index} of {values.size} is {value:g}, which {problem}")


class Rounded(Codec):
    """A codec that rounds to one of NumPy's floating-point types, to nearest, ties to even."""

    dtype: ClassVar[str]

    def encode(self, values: Array) -> Payload:
        """Round to the type; elements that are or become NaN or infinite are rejected."""
        return Payload((narrow(values, self.dtype),), None, values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Widen exactly."""
        return payload.data[0].astype("float64")


# IEEE 754 binary64: eight bytes per element, lossless.


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


# Small numbers with one scale per piece, of four bytes.


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


# Top-k sparsification: only the largest elements (one in sixteen) are sent, with their positions.
#
# The rest is lost unless `gradients.error_feedback` keeps it for the next step (arXiv 1712.01887, 1809.07599).


ONE_IN = 16
BYTES_KEPT = 8  # an fp32 value and its position as an unsigned 32-bit integer


@codec("top-k", summary="1 element in 16 as fp32 with its position: half a byte per element", source="arXiv 1712.01887")
class TopK(Codec):
    """Keeps ⌈n/16⌉ elements of a piece, the largest by magnitude (the first of equal ones), and zeros for the rest.

    Empty: no bytes. Kept elements are rounded to fp32; NaN, infinity or a value past 3.4·10³⁸ is rejected.
    """

    bytes_per_element = Fraction(BYTES_KEPT, ONE_IN)

    def payload_bytes(self, elements: int) -> int:
        """Bytes of a whole number of kept elements."""
        return -(-elements // ONE_IN) * BYTES_KEPT

    def encode(self, values: Array) -> Payload:
        """Select the largest elements."""
        magnitudes = np.abs(narrow(values, "float32"))
        kept = np.sort(np.argsort(-magnitudes, kind="stable")[: -(-values.size // ONE_IN)])
        return Payload((kept.astype(np.uint32), values[kept].astype(np.float32)), None, values.size)

    def decode(self, payload: Payload) -> NDArray[np.float64]:
        """Put the kept elements at their positions among zeros."""
        positions, kept = payload.data
        values = np.zeros(payload.elements)
        values[positions] = kept
        return values
