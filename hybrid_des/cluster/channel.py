"""The properties that the recorded messages of one flow on one link share."""

from __future__ import annotations

from typing import NamedTuple

from hybrid_des.cluster.fabric import Bandwidth, Route
from hybrid_des.cluster.purposes import Purpose


class Pace(NamedTuple):
    """How fast a library's channel moves messages over a route, whatever its links could do.

    Attributes:
        bandwidth: bytes per second; None: as the links allow.
        latency: picoseconds from one end to the other, by the library's protocol.
        usual: latency of the route that `latency` includes; a longer one adds to it.
    """

    bandwidth: Bandwidth
    latency: int
    usual: int = 0

    def latencies(self, route: Route) -> tuple[int, ...]:
        """The latencies after the links of a route, all of them after the first."""
        return (self.latency + max(0, route.latency - self.usual), *(0 for _ in route.links[1:]))


class Channel(NamedTuple):
    """One link on the route of one flow.

    Attributes:
        sender, receiver: global ranks; servers are numbered after the ranks.
        purpose: the purpose of its messages.
        kind: their name in the timeline: that of the purpose, or of the collective.
        stage, chunk: those of the gradients that are reduced; −1 for pipeline messages, whose tags give the stage.
        link, hop: the link's name and its place on the route.
        latency: picoseconds after the link.
        pace: that of the flow, if it is not only that of its links.
    """

    sender: int
    receiver: int
    purpose: Purpose
    kind: str
    stage: int = -1
    chunk: int = -1
    link: str = ""
    hop: int = 0
    latency: int = 0
    pace: Pace | None = None

    def on(self, link: str, hop: int, latency: int) -> Channel:
        """The same flow on one of its links."""
        return Channel(*self[:6], link, hop, latency, self.pace)
