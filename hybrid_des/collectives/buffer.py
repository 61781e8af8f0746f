"""The buffer that a collective works on: a number of elements, and an array when the simulated GPUs really train."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from hybrid_des.codecs import Codec
from hybrid_des.parcel import Parcel
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

    def split(self, pieces: int) -> Pieces:
        """Cut the buffer into pieces that differ by at most one element."""
        if self.array is None:
            return Pieces(parcels_of(self.elements, pieces, self.codec))
        return ArrayPieces(parcels_of(self.elements, pieces, self.codec), self.codec, self.array, self.residual)


class Pieces:
    """The pieces of a buffer without numbers: only how many bytes each is on the wire."""

    __slots__ = ("_parcels",)

    def __init__(self, parcels: Sequence[Parcel]) -> None:
        self._parcels = parcels

    def encode(self, piece: int) -> Parcel:
        """A piece as it is now, ready to send."""
        return self._parcels[piece]

    def add(self, piece: int, parcel: Parcel) -> None:
        """Add what came to a piece."""

    def finish(self, piece: int) -> Parcel:
        """Encode a piece whose sum is complete, once and for all, and keep what everybody will decode."""
        return self._parcels[piece]

    def put(self, piece: int, parcel: Parcel) -> None:
        """Replace a piece by what came."""


class ArrayPieces(Pieces):
    """The pieces of a buffer with numbers, as views into it."""

    __slots__ = ("_codec", "_residuals", "_views")

    def __init__(
        self, parcels: Sequence[Parcel], codec: Codec, array: NDArray[Any], residual: NDArray[Any] | None
    ) -> None:
        super().__init__(parcels)
        self._codec = codec
        self._views = cut(array, len(parcels))
        self._residuals = None if residual is None else cut(residual, len(parcels))

    def encode(self, piece: int) -> Parcel:
        """A piece as it is now, ready to send."""
        like, values = self._parcels[piece], self._views[piece]
        if self._residuals is None:
            return Parcel(like.size, like.scales, self._codec.encode(values))
        wanted = values + self._residuals[piece]
        payload = self._codec.encode(wanted)
        self._residuals[piece][:] = wanted - self._codec.decode(payload)
        return Parcel(like.size, like.scales, payload)

    def add(self, piece: int, parcel: Parcel) -> None:
        """Add what came to a piece."""
        self._views[piece] += self._codec.decode(parcel.data)

    def finish(self, piece: int) -> Parcel:
        """Encode a piece whose sum is complete, once and for all, and keep what everybody will decode."""
        parcel = self.encode(piece)
        self.put(piece, parcel)
        return parcel

    def put(self, piece: int, parcel: Parcel) -> None:
        """Replace a piece by what came."""
        self._views[piece][:] = self._codec.decode(parcel.data)


def cut(array: NDArray[Any], pieces: int) -> list[NDArray[Any]]:
    """Views of a flat array, in pieces that differ by at most one element."""
    ends = list(accumulate(split_evenly(array.size, pieces)))
    return [array[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@cache
def parcels_of(elements: int, pieces: int, codec: Codec) -> list[Any]:
    """The parcels of a buffer without numbers; pieces of one size share theirs, and so do all ranks."""
    sizes = split_evenly(elements, pieces)
    by_size = {size: parcel_of(size, codec) for size in set(sizes)}
    return [by_size[size] for size in sizes]


def parcel_of(elements: int, codec: Codec) -> Parcel:
    """A parcel of so many elements without numbers."""
    scales = codec.scale_bytes(elements)
    return Parcel(codec.payload_bytes(elements) + scales, scales)
