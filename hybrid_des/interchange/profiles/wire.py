"""The wire format of protocol buffers, as far as Chakra traces need it: messages one after the other, each with a size.

Source: protobuf.dev, "Encoding". Only varints and sized fields occur in nodes; fixed numbers are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
MOST_BITS = 64
SHORT = [bytes([value]) for value in range(128)]  # numbers of one byte


class WireError(ValueError):
    """Bytes that are no such message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    found = shift = 0
    while True:
        if at >= len(data) or shift >= MOST_BITS + 7:
            raise WireError(f"a number is cut at byte {at}")
        byte = data[at]
        found |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return found, at
        shift += 7


def sized(data: bytes) -> Iterator[bytes]:
    """The messages of a file, each preceded by its size."""
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        if at + size > len(data):
            raise WireError(f"a message of {size} bytes is cut after {len(data) - at}")
        yield data[at : at + size]
        at += size


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the value of every field of a message: a number, or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if kind == SIZED:
            size, at = varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"a field of type {kind} at byte {at}")
        if at + size > len(data):
            raise WireError(f"a field of {size} bytes is cut after {len(data) - at}")
        yield key >> 3, data[at : at + size]
        at += size


def numbers(value: int | bytes) -> Iterator[int]:
    """The numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        one, at = varint(value, at)
        yield one


def signed(value: int) -> int:
    """A number that was written as a 64-bit one with a sign."""
    return value - (1 << 64) if value >> 63 else value


def write_varint(value: int) -> bytes:
    """A number of at most 64 bits."""
    if 0 <= value < 128:
        return SHORT[value]
    value &= (1 << MOST_BITS) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def write_field(number: int, value: int | bytes) -> bytes:
    """A field with a number, or with bytes."""
    if isinstance(value, int):
        return write_varint(number << 3 | VARINT) + write_varint(value)
    return write_varint(number << 3 | SIZED) + write_varint(len(value)) + value


def write_sized(message: bytes) -> bytes:
    """A message of a file."""
    return write_varint(len(message)) + message
