"""The buffer of a collective: a number of elements, and an array if the simulated GPUs really train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Annotated, Any

from numpy.typing import NDArray

from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.options import Options, Reads, WrittenNone, describe, whole
from hybrid_des.units import split_evenly

MOST_CHANNELS = 64
SMALLEST_SEGMENT = 2**16  # bytes; NCCL's steps are 512 KiB, but here more segments cost only simulated events
MOST_SEGMENTS = 128
Landing = Callable[[int, Message], None]  # takes the number of a piece, and the message with which to replace it


def _channels(value: Any) -> int | None:
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"expected auto or a number of rings, found {describe(value)}")
    return None if value in (None, "auto") else whole(1, MOST_CHANNELS).read(value)


class Channels(Options):
    """Number of rings that run at once."""

    channels: Annotated[
        int | None,
        Reads(_channels, {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MOST_CHANNELS}]}),
        WrittenNone("auto"),
    ] = None
    """Rings that run at once, each with an equal share of every bucket. Default auto: one per adapter that the group
    can use on each of its nodes, as in NCCL; 1: a single ring in the order of ranks."""


class Pipelining(Options):
    """Granularity of pipelining."""

    pieces: Annotated[int, whole(1, 4096)] | None = None
    """Number of segments per bucket. Default from its size."""

    def segments(self, size: int, most: int = MOST_SEGMENTS) -> int:
        """Number of segments: by default one if bound by latency, and enough to fill the pipeline for large buffers."""
        return self.pieces or max(1, min(most, size // SMALLEST_SEGMENT))

    def most_segments(self, most: int = MOST_SEGMENTS) -> int:
        """Number of segments of the largest buffer."""
        return self.pieces or most


@dataclass(eq=False)
class Buffer:
    """One rank's gradients of one stage or bucket.

    Attributes:
        elements: number of elements.
        codec: their encoding on the wire.
        array: the elements, flat, reduced in place; None: sizes only. Its length may differ from `elements`, since a
            small trained model may stand for the larger one of the workload.
        residual: array of the same length for error feedback: errors of the codec, to be sent the next time.
    """

    elements: int
    codec: Codec
    array: NDArray[Any] | None = None
    residual: NDArray[Any] | None = None

    @property
    def bytes(self) -> int:
        """Bytes on the wire as one message."""
        return message_of(self.elements, self.codec).size

    def sizes(self, members: int) -> tuple[int, ...]:
        """The elements of the buffer of each of so many members."""
        return (self.elements,) * members

    def shards(self, members: int, me: int) -> Pieces:
        """What a member sends to each of so many members in an all-to-all."""
        return self.split(members)

    def split(self, pieces: int) -> Pieces:
        """Split the buffer into pieces that differ by at most one element and are encoded one by one."""
        like = pieces_of(self.elements, pieces, self.codec)
        return like if self.array is None else ArrayPieces(like, self.array, self.residual)

    def parts(self, count: int) -> list[Buffer]:
        """Split the buffer as `split` does, into separate buffers."""
        return self._divided(split_evenly(self.elements, count), lambda array: cut(array, count))

    def sections(self, sizes: Sequence[int]) -> list[Buffer]:
        """Split the buffer into buffers of these sizes, which sum to its own."""

        def views(array: NDArray[Any]) -> list[NDArray[Any]]:  # of proportional sizes, since its length may differ
            ends = accumulate(sizes)
            return _between(array, [end * array.size // self.elements if self.elements else array.size for end in ends])

        return self._divided(sizes, views)

    def _divided(self, sizes: Sequence[int], views: Callable[[NDArray[Any]], list[NDArray[Any]]]) -> list[Buffer]:
        arrays, residuals = (
            [None] * len(sizes) if array is None else views(array) for array in (self.array, self.residual)
        )
        return [Buffer(size, self.codec, *pair) for size, *pair in zip(sizes, arrays, residuals, strict=True)]


@dataclass(eq=False)
class UnequalBuffer(Buffer):
    """A member's buffer in an all-to-all of ranks whose buffers differ in size; there is no array.

    Attributes:
        held: elements of the buffer of each member, in their order.
        back: whether members return what they were sent: to each a part of its own buffer, not of theirs.
    """

    held: tuple[int, ...] = ()
    back: bool = False

    def sizes(self, members: int) -> tuple[int, ...]:
        """The elements of the buffer of each member."""
        return self.held

    def shards(self, members: int, me: int) -> Pieces:
        """What a member sends to each of so many members."""
        if not self.back:
            return self.split(members)
        return Pieces([split_evenly(elements, members)[me] for elements in self.held], self.codec)


def shares_of(elements: int, members: int, channels: int) -> list[int]:
    """The elements of a buffer that each channel carries: whole shards of all members; the first also has the rest.

    So members with equal shards of a buffer have equal shards on every channel.
    """
    first, *others = (members * shard for shard in split_evenly(elements // members, channels))
    return [first + elements % members, *others]


class Pieces:
    """The pieces of a buffer without an array: only their sizes on the wire. All ranks of a group share one.

    Attributes:
        codec: their encoding on the wire.
        elements: of each piece.
        has_data: whether there is an array: without one there is nothing to add, and long loops need not call `add`.
    """

    has_data = False

    def __init__(self, elements: Sequence[int], codec: Codec) -> None:
        self.codec, self.elements = codec, elements
        by_size = {size: message_of(size, codec) for size in set(self.elements)}
        self._messages = [by_size[size] for size in self.elements]
        self._packs: dict[tuple[int, int], Message] = {}

    def encode(self, piece: int) -> Message:
        """Encode the current content of a piece."""
        return self._messages[piece]

    def add(self, piece: int, message: Message) -> None:
        """Add a received message to a piece."""

    def finish(self, piece: int) -> Message:
        """Encode a fully reduced piece for all ranks, and replace it with what they will decode."""
        return self._messages[piece]

    def agree(self, piece: int) -> Message:
        """Finish a piece that other ranks hold and finish too, without this rank's residual."""
        return self._messages[piece]

    def put(self, piece: int, message: Message) -> None:
        """Replace a piece with a received one, as finished by its owner."""

    @property
    def landing(self) -> Landing | None:
        """`put`, if there is an array."""
        return self.put if self.has_data else None

    def encode_span(self, start: int, stop: int) -> Message:
        """Encode the current content of pieces `start` up to `stop` as one message."""
        return message_of(self._before[stop] - self._before[start], self.codec)

    def add_span(self, start: int, stop: int, message: Message) -> None:
        """Add a received message to these pieces."""

    def pack(self, start: int, stop: int) -> Message:
        """Finished pieces, each as encoded by its owner, as one message."""
        key = (start, stop)
        if key not in self._packs:
            parts = self._messages[start:stop]
            self._packs[key] = Message(sum(part.size for part in parts), sum(part.scales for part in parts))
        return self._packs[key]

    def unpack(self, start: int, stop: int, message: Message) -> None:
        """Replace pieces with those received in one message."""

    @cached_property
    def _before(self) -> list[int]:
        return [0, *accumulate(self.elements)]


class ArrayPieces(Pieces):
    """The pieces of a buffer with an array, as views into it."""

    has_data = True

    def __init__(self, like: Pieces, array: NDArray[Any], residual: NDArray[Any] | None) -> None:
        self._like = like
        self.codec, self.elements = like.codec, like.elements
        self._array = array
        self._residual = residual
        self._views = cut(array, len(self.elements))
        self._ends = [0, *accumulate(view.size for view in self._views)]
        self._finished: dict[int, Message] = {}

    def encode(self, piece: int) -> Message:
        """Encode the current content of a piece."""
        return self._encode(self._like.encode(piece), piece, piece + 1)

    def add(self, piece: int, message: Message) -> None:
        """Add a received message to a piece."""
        self._views[piece] += self._decoded(message.data)

    def finish(self, piece: int) -> Message:
        """Encode a fully reduced piece for all ranks, and replace it with what they will decode."""
        message = self.encode(piece)
        self.put(piece, message)
        return message

    def agree(self, piece: int) -> Message:
        """Finish a piece that other ranks hold and finish too, without this rank's residual."""
        like = self._like.agree(piece)
        message = Message(like.size, like.scales, self.codec.encode(self._views[piece]))
        self.put(piece, message)
        return message

    def put(self, piece: int, message: Message) -> None:
        """Replace a piece with a received one, as finished by its owner."""
        self._views[piece][:] = self._decoded(message.data)
        self._finished[piece] = message

    def encode_span(self, start: int, stop: int) -> Message:
        """Encode the current content of pieces `start` up to `stop` as one message."""
        return self._encode(self._like.encode_span(start, stop), start, stop)

    def add_span(self, start: int, stop: int, message: Message) -> None:
        """Add a received message to these pieces."""
        self._array[self._ends[start] : self._ends[stop]] += self._decoded(message.data)

    def pack(self, start: int, stop: int) -> Message:
        """Finished pieces, each as encoded by its owner, as one message."""
        like = self._like.pack(start, stop)
        return Message(like.size, like.scales, [self._finished[piece] for piece in range(start, stop)])

    def unpack(self, start: int, stop: int, message: Message) -> None:
        """Replace pieces with those received in one message."""
        for piece, part in zip(range(start, stop), message.data, strict=True):
            self.put(piece, part)

    def _decoded(self, payload: Any) -> NDArray[Any]:
        """The elements of a payload, rounded to the array's type: partners must add the same two terms."""
        return self.codec.decode(payload).astype(self._array.dtype, copy=False)

    def _encode(self, like: Message, start: int, stop: int) -> Message:
        """Encode adjacent pieces as one, including their residual; the new error is kept."""
        span = slice(self._ends[start], self._ends[stop])
        if self._residual is None:
            return Message(like.size, like.scales, self.codec.encode(self._array[span]))
        wanted = self._array[span] + self._residual[span]
        payload = self.codec.encode(wanted)
        self._residual[span] = wanted - self._decoded(payload)
        return Message(like.size, like.scales, payload)


def cut(array: NDArray[Any], pieces: int) -> list[NDArray[Any]]:
    """Views of a flat array, split into pieces that differ by at most one element."""
    return _between(array, list(accumulate(split_evenly(array.size, pieces))))


def _between(array: NDArray[Any], ends: Sequence[int]) -> list[NDArray[Any]]:
    """Consecutive views of a flat array, with these ends."""
    return [array[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@lru_cache(maxsize=512)  # each has up to a message per rank
def pieces_of(elements: int, pieces: int, codec: Codec) -> Pieces:
    """The pieces of a buffer without an array, shared by all ranks of a group."""
    return Pieces(split_evenly(elements, pieces), codec)


@lru_cache(maxsize=4096)
def message_of(elements: int, codec: Codec) -> Message:
    """A message of `elements` elements without content."""
    scales = codec.scale_bytes(elements)
    return Message(codec.payload_bytes(elements) + scales, scales)
