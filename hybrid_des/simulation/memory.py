"""A ledger of bytes: what one GPU holds, and the most it ever held."""

from __future__ import annotations

from hybrid_des.engine.recorder import Rows


class MemoryLedger:
    """What one GPU holds while a simulation runs.

    Attributes:
        bytes, activations: held now; activations in flight are counted in chunks.
        peak_bytes, peak_activations: the most so far.
    """

    __slots__ = ("_rank", "_record", "activations", "bytes", "peak_activations", "peak_bytes")

    def __init__(self, rank: int, resident: int, rows: Rows) -> None:
        self._rank = rank
        self._record = rows.add
        self.bytes = self.peak_bytes = resident
        self.activations = self.peak_activations = 0
        self._record((rank, 0, resident, 0))

    def hold(self, now: int, size: int, chunks: int) -> None:
        """Keep the activations of so many chunks from now on."""
        self.bytes += size
        self.activations += chunks
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        self.peak_activations = max(self.peak_activations, self.activations)
        self._record((self._rank, now, self.bytes, self.activations))

    def free(self, now: int, size: int, chunks: int) -> None:
        """Let activations go."""
        self.bytes -= size
        self.activations -= chunks
        self._record((self._rank, now, self.bytes, self.activations))
