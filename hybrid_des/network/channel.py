"""The properties that the recorded messages of one flow on one link share."""

from __future__ import annotations

from typing import NamedTuple

from hybrid_des.network.purpose import Purpose


class Channel(NamedTuple):
    """One link on the route of one flow.

    Attributes:
        sender, receiver: global ranks; servers are numbered after the ranks.
        purpose: the purpose of its messages.
        kind: their name in the timeline: that of the purpose, or of the collective.
        stage, chunk: those of the gradients that are reduced; −1 for pipeline messages, whose tags give the stage.
        link, hop: the link's name and its place on the route.
        latency: picoseconds after the link.
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

    def on(self, link: str, hop: int, latency: int) -> Channel:
        """The same flow on one of its links."""
        return Channel(*self[:6], link, hop, latency)
