"""Simulated time: SimPy's event loop, whose clock here counts whole picoseconds."""

from __future__ import annotations

import simpy


class Environment(simpy.Environment):
    """SimPy's environment; all times that it is given, and so all that it gives, are whole picoseconds."""

    _now: int

    @property
    def now(self) -> int:
        """The current simulated time in picoseconds."""
        return self._now
