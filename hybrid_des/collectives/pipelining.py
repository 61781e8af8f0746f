"""Into how many pieces a buffer is cut so that the phases of a collective overlap."""

from __future__ import annotations

from typing import Annotated

from hybrid_des.options import Options, whole

SMALLEST = 2**16  # bytes; NCCL's steps are 512 KiB, but here a further piece costs nothing but simulated events
MOST = 128


class Pipelining(Options):
    """How finely a collective is pipelined."""

    pieces: Annotated[int, whole(1, 4096)] | None = None
    """How many pieces a bucket passes in. Default from its size."""


def pieces_of(size: int) -> int:
    """One piece for small buffers, whose time is all latency, and enough for large ones to fill the pipeline."""
    return max(1, min(MOST, size // SMALLEST))
