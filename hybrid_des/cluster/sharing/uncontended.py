"""Uncontended: every message has its links to itself, however many others are on them.

No network does this. Runs under it show what queueing costs; scenarios cannot choose it.
"""

from __future__ import annotations

from hybrid_des.cluster.link import Link
from hybrid_des.cluster.sharing.fifo import Fifo
from hybrid_des.cluster.sharing.registration import sharing


class FreeLink(Link):
    """A link that is always free."""

    __slots__ = ()

    @property
    def free(self) -> int:
        """Time 0: the link is never busy."""
        return 0

    @free.setter
    def free(self, time: int) -> None:
        pass


@sharing("uncontended")
class Uncontended(Fifo):
    """Links serve all messages concurrently, each at the full rate."""

    kind = FreeLink
