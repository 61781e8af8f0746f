"""The buffer that a collective works on: a number of elements, and an array when the simulated GPUs really train."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from hybrid_des.collectives.codecs import Codec
from hybrid_des.network.message import Parcel
from hybrid_des.units import split_evenly

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Buffer:
    """One rank's gradients of one stage or bucket.

    Args:
        elements: how many numbers it holds.
        codec: how they look on the wire.
        array: the numbers, flat; the collective sums them up in place. None: sizes only. Its length may differ from
            `elements`: a workload may say how large the gradients of a model are that a smaller one stands for.
        residual: of the same length, for error feedback: what the codec lost is kept here, and sent the next time.
    """

    def __init__(
        self, elements: int, codec: Codec, array: NDArray[Any] | None = None, residual: NDArray[Any] | None = None
    ) -> None:
        self.elements = elements
        self.codec = codec
        self.array = array
        self.residual = residual

    @property
    def bytes(self) -> int:
        """What it is on the wire as one message."""
        return parcel_of(self.elements, self.codec).size

    def split(self, pieces: int) -> Pieces:
        """Cut the buffer into pieces that differ by at most one element, to be encoded and sent one by one."""
        layout = layout_of(self.elements, pieces, self.codec)
        return Pieces(layout) if self.array is None else ArrayPieces(layout, self.array, self.residual)

    def parts(self, count: int) -> list[Buffer]:
        """Cut the buffer as `split` does, into buffers of their own."""
        arrays, residuals = (
            [None] * count if array is None else cut(array, count) for array in (self.array, self.residual)
        )
        sizes = split_evenly(self.elements, count)
        return [Buffer(size, self.codec, *pair) for size, *pair in zip(sizes, arrays, residuals, strict=True)]

    def sections(self, sizes: Sequence[int]) -> list[Buffer]:
        """Cut the buffer into buffers of these sizes, which add up to its own."""
        ends = list(accumulate(sizes))
        arrays, residuals = (
            [None] * len(ends) if array is None else _between(array, [_scaled(end, array, self) for end in ends])
            for array in (self.array, self.residual)
        )
        return [Buffer(size, self.codec, *pair) for size, *pair in zip(sizes, arrays, residuals, strict=True)]


class Layout:
    """How many bytes the pieces of a buffer are on the wire; all ranks share it, and equal pieces share a parcel."""

    def __init__(self, elements: int, pieces: int, codec: Codec) -> None:
        self.codec = codec
        self.sizes = split_evenly(elements, pieces)
        by_size = {size: parcel_of(size, codec) for size in set(self.sizes)}
        self.parcels = [by_size[size] for size in self.sizes]
        self._packs: dict[tuple[int, int], Parcel] = {}

    def span(self, start: int, stop: int) -> Parcel:
        """Several pieces encoded as one."""
        return parcel_of(self._before[stop] - self._before[start], self.codec)

    def pack(self, start: int, stop: int) -> Parcel:
        """Several pieces, each encoded by itself, in one message."""
        key = (start, stop)
        if key not in self._packs:
            parts = self.parcels[start:stop]
            self._packs[key] = Parcel(sum(part.size for part in parts), sum(part.scales for part in parts))
        return self._packs[key]

    @cached_property
    def _before(self) -> list[int]:
        return [0, *accumulate(self.sizes)]


class Pieces:
    """The pieces of a buffer without numbers: only how many bytes each is on the wire."""

    __slots__ = ("_layout", "_parcels")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._parcels = layout.parcels

    def encode(self, piece: int) -> Parcel:
        """A piece as it is now, ready to send."""
        return self._parcels[piece]

    def add(self, piece: int, parcel: Parcel) -> None:
        """Add what came to a piece."""

    def finish(self, piece: int) -> Parcel:
        """Encode a piece whose sum is complete, once and for all, and keep what everybody will decode."""
        return self._parcels[piece]

    def agree(self, piece: int) -> Parcel:
        """Finish a piece that other ranks hold and finish too: nothing of this rank's own is mixed in."""
        return self._parcels[piece]

    def put(self, piece: int, parcel: Parcel) -> None:
        """Replace a piece by what came, as its owner finished it."""

    def encode_span(self, start: int, stop: int) -> Parcel:
        """Pieces `start` up to `stop` as they are now, as one message."""
        return self._layout.span(start, stop)

    def add_span(self, start: int, stop: int, parcel: Parcel) -> None:
        """Add what came to these pieces."""

    def pack(self, start: int, stop: int) -> Parcel:
        """Finished pieces, each as its owner encoded it, as one message."""
        return self._layout.pack(start, stop)

    def unpack(self, start: int, stop: int, parcel: Parcel) -> None:
        """Replace pieces by what came in one message."""


class ArrayPieces(Pieces):
    """The pieces of a buffer with numbers, as views into it."""

    __slots__ = ("_array", "_codec", "_ends", "_finished", "_residual", "_views")

    def __init__(self, layout: Layout, array: NDArray[Any], residual: NDArray[Any] | None) -> None:
        super().__init__(layout)
        self._codec = layout.codec
        self._array = array
        self._residual = residual
        self._views = cut(array, len(layout.sizes))
        self._ends = [0, *accumulate(view.size for view in self._views)]
        self._finished: dict[int, Parcel] = {}

    def encode(self, piece: int) -> Parcel:
        """A piece as it is now, ready to send."""
        return self._encode(self._parcels[piece], piece, piece + 1)

    def add(self, piece: int, parcel: Parcel) -> None:
        """Add what came to a piece."""
        self._views[piece] += self._codec.decode(parcel.data)

    def finish(self, piece: int) -> Parcel:
        """Encode a piece whose sum is complete, once and for all, and keep what everybody will decode."""
        parcel = self.encode(piece)
        self.put(piece, parcel)
        return parcel

    def agree(self, piece: int) -> Parcel:
        """Finish a piece that other ranks hold and finish too: nothing of this rank's own is mixed in."""
        like = self._parcels[piece]
        parcel = Parcel(like.size, like.scales, self._codec.encode(self._views[piece]))
        self.put(piece, parcel)
        return parcel

    def put(self, piece: int, parcel: Parcel) -> None:
        """Replace a piece by what came, as its owner finished it."""
        self._views[piece][:] = self._codec.decode(parcel.data)
        self._finished[piece] = parcel

    def encode_span(self, start: int, stop: int) -> Parcel:
        """Pieces `start` up to `stop` as they are now, as one message."""
        return self._encode(self._layout.span(start, stop), start, stop)

    def add_span(self, start: int, stop: int, parcel: Parcel) -> None:
        """Add what came to these pieces."""
        self._array[self._ends[start] : self._ends[stop]] += self._codec.decode(parcel.data)

    def pack(self, start: int, stop: int) -> Parcel:
        """Finished pieces, each as its owner encoded it, as one message."""
        like = self._layout.pack(start, stop)
        return Parcel(like.size, like.scales, [self._finished[piece] for piece in range(start, stop)])

    def unpack(self, start: int, stop: int, parcel: Parcel) -> None:
        """Replace pieces by what came in one message."""
        for piece, part in zip(range(start, stop), parcel.data, strict=True):
            self.put(piece, part)

    def _encode(self, like: Parcel, start: int, stop: int) -> Parcel:
        """Encode neighbouring pieces as one, with what was lost of them before; what is lost now is kept."""
        span = slice(self._ends[start], self._ends[stop])
        if self._residual is None:
            return Parcel(like.size, like.scales, self._codec.encode(self._array[span]))
        wanted = self._array[span] + self._residual[span]
        payload = self._codec.encode(wanted)
        self._residual[span] = wanted - self._codec.decode(payload)
        return Parcel(like.size, like.scales, payload)


def _scaled(place: int, array: NDArray[Any], buffer: Buffer) -> int:
    """Where in an array of another length a place in the buffer is."""
    return place * array.size // buffer.elements if buffer.elements else array.size


def cut(array: NDArray[Any], pieces: int) -> list[NDArray[Any]]:
    """Views of a flat array, in pieces that differ by at most one element."""
    return _between(array, list(accumulate(split_evenly(array.size, pieces))))


def _between(array: NDArray[Any], ends: Sequence[int]) -> list[NDArray[Any]]:
    """Views of a flat array, from its beginning to the first end, from there to the next, and so on."""
    return [array[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@lru_cache(maxsize=4096)
def layout_of(elements: int, pieces: int, codec: Codec) -> Layout:
    """The layout of a buffer; every rank of a group asks for the same one."""
    return Layout(elements, pieces, codec)


@lru_cache(maxsize=4096)
def parcel_of(elements: int, codec: Codec) -> Parcel:
    """A parcel of so many elements without numbers."""
    scales = codec.scale_bytes(elements)
    return Parcel(codec.payload_bytes(elements) + scales, scales)
