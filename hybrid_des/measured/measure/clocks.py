"""When something began and ended: on the host, or on a stream of the GPU by CUDA events.

A mark is taken where it stands in the program. That of the host is the time now. That of a GPU is an event, which
occurs when the stream has done what was launched before, so that a wait for a message which the stream makes is over;
it is read when everything is done.

Events tell milliseconds between each other in 32 bits, which are exact to 0.1 µs within a second. So a new base is
taken at every step, and times are summed from base to base.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Clock:
    """The clock of the host, which all of its processes share; ops run while they are called."""

    def rebase(self) -> None:
        """Call this from time to time, such as at every step; times of the host are exact without."""

    def mark(self) -> Any:
        """Take a mark: the time now."""
        return perf_counter()

    def reach(self, mark: Any) -> None:
        """Wait until a mark has occurred, and for nothing else; that of the host is past."""

    def synchronize(self) -> None:
        """Wait until all that was launched is done; marks can be read then."""

    def seconds(self, mark: Any) -> float:
        """The time of a mark on the clock of this host, in seconds since any zero."""
        return float(mark)


class StreamClock(Clock):
    """Events on the current stream of a GPU, set against the clock of the host once."""

    def __init__(self) -> None:
        import torch

        torch.cuda.synchronize()
        self._bases = [self._recorded()]
        torch.cuda.synchronize()
        self._zeros = [perf_counter()]  # of each base that is known

    def _recorded(self) -> torch.cuda.Event:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def rebase(self) -> None:
        """Take a new base, without waiting for it."""
        self._bases.append(self._recorded())

    def mark(self) -> tuple[int, torch.cuda.Event]:
        """An event on the current stream, and the number of its base."""
        return len(self._bases) - 1, self._recorded()

    def reach(self, mark: tuple[int, torch.cuda.Event]) -> None:
        """Wait for the event."""
        mark[1].synchronize()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        import torch

        torch.cuda.synchronize()

    def seconds(self, mark: tuple[int, torch.cuda.Event]) -> float:
        """The time of an event that has occurred."""
        number, event = mark
        while len(self._zeros) <= number:
            before, base = self._bases[len(self._zeros) - 1 : len(self._zeros) + 1]
            self._zeros.append(self._zeros[-1] + before.elapsed_time(base) / 1000)
        return float(self._zeros[number] + self._bases[number].elapsed_time(event) / 1000)


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return StreamClock() if device.type == "cuda" else Clock()
