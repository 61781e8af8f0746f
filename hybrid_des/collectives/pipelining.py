"""Number of segments of pipelined collectives."""

from __future__ import annotations

from typing import Annotated

from hybrid_des.options import Options, whole

SMALLEST = 2**16  # bytes; NCCL's steps are 512 KiB, but here more segments cost only simulated events
MOST = 128


class Pipelining(Options):
    """Granularity of pipelining."""

    pieces: Annotated[int, whole(1, 4096)] | None = None
    """Number of segments per bucket. Default from its size."""


def segments_of(size: int) -> int:
    """Default number of segments: one for latency-bound buffers, enough to fill the pipeline for large ones."""
    return max(1, min(MOST, size // SMALLEST))
