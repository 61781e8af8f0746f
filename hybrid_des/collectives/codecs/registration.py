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
from hybrid_des.options import describe_type
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


def _untrue(codec: Codec) -> str:
    """How what a codec encodes differs from what it says; empty if it does not."""
    values = np.linspace(-1.0, 1.0, 32)
    payload = codec.encode(values)
    if not isinstance(payload, Payload):
        return f"encodes to {describe_type(payload)}; expected a Payload(data, scales, elements)"
    sizes, said = (payload.payload_bytes, payload.scale_bytes), (codec.payload_bytes(32), codec.scale_bytes(32))
    if sizes != said:
        return (
            f"encodes 32 elements in {sizes[0]} bytes and {sizes[1]} of scales; its sizes say {said[0]} and {said[1]}"
        )
    decoded = codec.decode(payload)
    if not isinstance(decoded, np.ndarray) or decoded.shape != values.shape:
        return f"decodes 32 elements to {describe_type(decoded)}; expected an array of 32 elements"
    if decoded.dtype.kind not in "iuf" or not np.isfinite(decoded).all():
        return f"decodes finite elements to {decoded.dtype} {decoded[0]}; expected finite numbers"
    return ""


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
