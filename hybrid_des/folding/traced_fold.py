"""The network of a folded run whose causes are recorded, with what maps each of them to its images.

The fold is exact if no two messages reach a link in the same moment, for which the run can be watched, or if a folded
run with lineage has shown it. What the images of a cause are follows from the element of the fold that maps a simulated
link to a message's own (`Causes.legs`) and from the ranks that meet (`Causes.groups`).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.link import Hop
from hybrid_des.cluster.mailbox import Rendezvous, ReplayedGroup
from hybrid_des.cluster.traced_transport import TracedTransport
from hybrid_des.engine.bookings import Arrival
from hybrid_des.folding.folded_transport import FoldedRendezvous, FoldedTransport
from hybrid_des.folding.joint_symmetry import JointTransport
from hybrid_des.folding.symmetry import Element

Kind = TypeVar("Kind")


class KnownMeeting(ReplayedGroup):
    """A meeting whose events say which group it is of.

    Attributes:
        group: its place among the groups of the trace.
    """

    group: int

    def join(self, duration: int, value: Any = None) -> Arrival:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        over = super().join(duration, value)
        over.__dict__["group"] = self.group
        return over


class KnownRendezvous(KnownMeeting, FoldedRendezvous):
    """A rendezvous whose events say which group it is of."""


class TracedFoldedTransport(TracedTransport, FoldedTransport):
    """Flows and mailboxes of the simulated ranks, all of them traced."""

    kinds: ClassVar = {**TracedTransport.kinds, ReplayedGroup: KnownMeeting, Rendezvous: KnownRendezvous}

    def meeting(self, kind: type[Kind], size: int, members: Sequence[int]) -> Kind:
        """A new meeting of a group of ranks, of which so many are simulated."""
        made: Any = super().meeting(kind, size, members)
        groups = self.env.trace.groups
        made.group = len(groups)
        groups.append(members)
        return made  # type: ignore[no-any-return]

    def begin(self, rank: int, members: Sequence[int] = ()) -> None:
        """Attribute the processes started next to a rank, or to a switch that serves some of a group's members."""
        if self._endpoints.is_switch(rank):
            self.env.trace.serve(self._endpoints.on_node(rank, members))

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        self.env.trace.legs += self._legs(channel)
        return super()._hops(channel)

    def _legs(self, channel: Channel) -> list[tuple[str, Element]]:
        """The simulated links of a channel, and the elements that map them to its own."""
        return [(leg.link, leg.element) for leg in self._courses.of(channel.sender, channel.receiver)]


class TracedJointTransport(TracedFoldedTransport, JointTransport):
    """The same of one of several jobs that are folded together."""

    def _legs(self, channel: Channel) -> list[tuple[str, Element]]:
        orbits = self._images.orbits
        links = self._fabric.route(channel.sender, channel.receiver).links
        return [(orbits[link].first, orbits[link].element) for link in links]
