"""Meetings of the simulated ranks of a folded run in which orders are traced."""

from __future__ import annotations

from typing import Any

from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.lineage import LineageArrival, LineageEnvironment
from hybrid_des.simulation.folding.separate_meetings import SeparateMeeting, SeparateRendezvous


class LineageMeeting(SeparateMeeting):
    """A meeting of the simulated members of a group, each of which is woken by an event that descends from its own."""

    _env: LineageEnvironment

    def _waiting(self) -> Arrival:
        arrival = LineageArrival.of(self._env)
        arrival.lineage = self._env.born  # until it is booked
        return arrival

    def _wake(self, arrival: Any, at: int, value: Any) -> None:
        env, (chain, root) = self._env, arrival.lineage
        with env.births((None if chain is None else hash((env.now, chain)), root)):
            arrival.happen(at, value)


class LineageRendezvous(LineageMeeting, SeparateRendezvous):
    """A rendezvous of the simulated members of a group."""
