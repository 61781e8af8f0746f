"""The events of a JSON trace, decoded one by one, so that memory stays small.

Python's decoder takes what profilers write beyond strict JSON: whole numbers of any size, such as the unsigned 64-bit
`Comms Id` of PyTorch since April 2026 (yajl stops at 2⁶³), and `NaN`. It is as fast.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, Protocol

from hybrid_des.interchange.profiles.foreign import UTF8

CHUNK = 1 << 20  # bytes read at a time, at least
LARGEST = 1 << 28  # characters of a value
LONGEST_TOKEN = 16  # characters: an error further from the end of what was read is none of a cut value
SHOWN = 20  # characters of what could not be decoded
BLANKS = " \t\r\n"
UNTERMINATED = "Unterminated"  # a string, which may go on for long


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, at most so many; none at the end."""
        ...


def events_of(file: Readable) -> Iterator[Any]:
    """The values of `traceEvents`, or of a file that is a list.

    Raises:
        ValueError: the file is no JSON of that kind, is cut, or is not UTF-8; the message says which.
    """
    text = _Text(file)
    if text.next_is("["):
        yield from text.items()
    else:
        text.expect("{")
        while not text.next_is("}"):
            key = text.value()
            text.expect(":")
            if key == "traceEvents" and text.next_is("["):
                yield from text.items()
            else:
                text.value()
            if not text.take(","):
                break
        text.expect("}")
    if rest := text.peek():
        raise ValueError(f"{rest!r} after its end")


class _Text:
    """A file that is decoded piece by piece."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._json = json.JSONDecoder(strict=False)
        self._buffer, self._at, self._read = "", 0, 0

    def items(self) -> Iterator[Any]:
        """The values of a list."""
        self.expect("[")
        while not self.next_is("]"):
            yield self.value()
            if not self.take(","):
                break
        self.expect("]")

    def value(self) -> Any:
        """The next value."""
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                whole = not error.msg.startswith(UNTERMINATED) and error.pos < len(self._buffer) - LONGEST_TOKEN
                if whole or len(self._buffer) - self._at > LARGEST:
                    shown = " ".join(self._buffer[error.pos : error.pos + SHOWN].split())
                    raise ValueError(f"{error.msg} at {shown!r}") from None
                if not self._more():
                    raise ValueError("it is cut") from None
                continue
            if end == len(self._buffer) and self._more():
                continue  # a number may go on
            self._at = end
            return value

    def peek(self) -> str:
        """The next character that is not blank; none at the end."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in BLANKS:
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def next_is(self, character: str) -> bool:
        """Whether this is the next character."""
        return self.peek() == character

    def take(self, character: str) -> bool:
        """Go past this character, if it is the next one."""
        taken = self.next_is(character)
        self._at += taken
        return taken

    def expect(self, character: str) -> None:
        """Go past this character, which must be the next one."""
        if not self.take(character):
            raise ValueError(f"expected {character!r}, found {self.peek()!r}" if self.peek() else "it is cut")

    def _more(self) -> bool:
        """Read on; whether there was more."""
        kept = self._buffer[self._at :]
        data = self._file.read(max(CHUNK, len(kept)))
        try:
            self._buffer, self._at = kept + self._decode(data, not data), 0
        except UnicodeDecodeError as error:
            at = self._read + len(data) - len(error.object) + error.start
            raise ValueError(f"byte {at} (0x{error.object[error.start]:02x}) is not UTF-8; {UTF8}") from None
        self._read += len(data)
        return bool(data)
