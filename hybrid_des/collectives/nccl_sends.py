"""NCCL's sends and receives: how long after a call they begin, and how fast they are.

    time = entry + own shard / own + sent / peer        on the NVLinks of one node

A member's kernel sends to its peers at the pace that NCCL's sends reach in all, and copies what it keeps. Large
transfers take longer to fill the channels, in proportion to what a member sends up to a limit; so do those that are
too large for LL and leave it for Simple, up to a lower one. Over PCIe and between nodes they begin and take hops as
rings do, with LL up to 16 KiB per peer (NVIDIA/nccl, src/enqueue.cc, NCCL_P2P_LL_THRESHOLD), at the bandwidth that
topo.h and search.cc count on. Between nodes one adapter carries what a member sends, 48 to 49 of 50 GB/s, while it
sends to others on its node (NVIDIA/nccl-tests, issue 267, its authors' answers); no table of such times was at hand.

`Sends` are set from NVIDIA's tables of nccl-tests (all-to-all over 2, 4 and 8 GPUs of a node) like `tuning.Timing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from hybrid_des.cluster.channel import Pace
from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.nccl_lanes import OF_CHOICE, VARIANTS
from hybrid_des.collectives.tuning import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    MICROSECOND,
    USUAL,
    VOLTA,
    XGMI,
    Choice,
    Generation,
    Wiring,
)

LANE = OF_CHOICE * len(VARIANTS)  # after those of other collectives
SMALL = 2**14  # bytes to a peer that go by LL


class Ramp(NamedTuple):
    """Time that grows with the bytes that a member sends: at `rate` GB/s, up to `most` microseconds."""

    rate: int
    most: int

    def of(self, sent: int) -> int:
        """Picoseconds."""
        return min(sent * 1000 // self.rate, self.most * MICROSECOND)


class Sends(NamedTuple):
    """Sends and receives of a generation of GPUs.

    Attributes:
        peer: share of the nominal bandwidth of a GPU's NVLinks.
        own: GB/s of the copy of the shard that a member keeps, as far as it takes longer than the sends.
        start: microseconds from the call to the first message.
        fill: of the channels.
        late: what leaving LL for Simple adds.
    """

    peer: Fraction
    own: int
    start: int
    fill: Ramp
    late: Ramp


ON_AMPERE = Sends(Fraction(200, 300), 850, 13, Ramp(120, 17), Ramp(12, 0))
ON_HOPPER = Sends(Fraction(330, 450), 2300, 7, Ramp(1000, 19), Ramp(16, 5))
ON_BLACKWELL = Sends(Fraction(654, 900), 750, 10, Ramp(1600, 18), Ramp(20, 5))
SENDS: Mapping[Generation, Sends] = {  # Volta's and XGMI's: not measured, as Ampere's
    VOLTA: ON_AMPERE, AMPERE: ON_AMPERE, XGMI: ON_AMPERE, HOPPER: ON_HOPPER, BLACKWELL: ON_BLACKWELL,
}  # fmt: skip


def entry(wiring: Wiring, sent: int, largest: int) -> int:
    """Picoseconds from a call to its first message, for bytes that a member sends in all, and at most to one peer."""
    if not wiring.on_nvlinks:
        return wiring.start(_choice(largest))
    sends = SENDS[wiring.generation]
    return sends.start * MICROSECOND + sends.fill.of(sent) + sends.late.of(sent)


def copied(wiring: Wiring, kept: int) -> int:
    """Picoseconds of the copy of the bytes that a member keeps."""
    return kept * 1000 // SENDS[wiring.generation].own


def lane_of(group: Group, largest: int) -> Group:
    """The flows of sends, of so many bytes at most to one peer, at their pace."""
    choice = _choice(largest)
    return group.paced(*_paces(group.tuned, choice), LANE + (choice.protocol == "LL"))


def in_turn(lane: Group, outgoing: Sequence[tuple[int, Message]], *, at_once: bool = False) -> Routine:
    """Send each peer its message, one after the other or to all at once."""
    for peer, message in outgoing:
        lane.to(peer).send(message)
        if not at_once:
            yield lane.pause(lane.pacing(peer, message.size))


def _choice(largest: int) -> Choice:
    return Choice("ring", "LL" if largest <= SMALL else "Simple")


@lru_cache
def _paces(wiring: Wiring, choice: Choice) -> tuple[Pace, Pace]:
    """Of sends within a node, and between nodes."""
    inside, between = wiring.paces(choice)
    between = between._replace(bandwidth=wiring.beyond)
    if wiring.inside != "node" or wiring.within is None:
        return inside._replace(bandwidth=wiring.within), between
    share = SENDS[wiring.generation].peer / wiring.generation.nvlink
    rate = wiring.within * share if wiring.pair is None else wiring.pair
    return Pace(rate, 0, round(USUAL["node"] * MICROSECOND)), between
