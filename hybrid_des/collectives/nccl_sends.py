"""NCCL's sends and receives: how long after a call they begin, and how fast they are.

    32 channels, of which each peer has an equal power of two; less than 64 KiB is a channel's own
    channel      ├─ start ─┼─ sends a chunk ─┼─ sends a chunk, receives one ─┼─ … ─┼─ receives the last ─┤
                             twice as fast,                                          twice as fast,
                             or as links allow                                       or out of step

A channel sends chunks of 512 KiB into a buffer of its peer, whose channel copies them out while it sends the next
(NVIDIA/nccl: src/enqueue.cc, addP2pToPlan and scheduleP2pTasksToPlan; src/device/sendrecv.h; src/include/device.h,
NCCL_P2P_NVL_CHUNKSIZE). So on the NVLinks of one node up to a chunk per channel takes longer for every byte than what
follows, and channels are the limit where there are few: 16 between two GPUs, 24 among four, 28 among eight. Half of a
channel's warps send and half receive (sendrecv.h). So, by inference (no trace of one was at hand): members that begin
together send alone, then receive alone; one that begins up to a chunk late does both at once, at half the speed, while
the other waits for it; and since a call ends when a member's own sends and receives do, back-to-back calls keep members
as far out of step as they are. How far that is, no table says; as a share of the first chunk it is fitted.

LL passes lines on as they come. It carries up to 16 KiB per peer or, before release 2.29, 512 KiB, on channels of 8 KiB
each.
What a member keeps is copied by channels of its own, faster than others send. A single send, as of ring attention, is
taken to have the channels that it has between two GPUs; NCCL gives it fewer in larger groups, of which no times were at
hand. Parts beyond 16 MiB, which take more channels, are not modelled.

Over PCIe and between nodes sends begin and take hops as rings do, with LL up to 16 KiB per peer, at the bandwidth that
topo.h and search.cc count on. Between nodes one adapter carries what a member sends, 48 to 49 of 50 GB/s, while it
sends to others on its node (NVIDIA/nccl-tests, issue 267, its authors' answers); no table of such times was at hand.

The figures are `timing.Sends`.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from hybrid_des.cluster.channel import Pace
from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.nccl_lanes import COUNT
from hybrid_des.collectives.timing import MICROSECOND
from hybrid_des.collectives.tuning import SMALL, SMALL_BEFORE, USUAL, Choice, Selection, Wiring

CHANNELS = 32
CHUNK = 2**19  # bytes
LEAST, LEAST_OF_LL = 2**16, 2**13  # bytes of a channel; those of LL before 2.29


class Call(NamedTuple):
    """Sends of a member that begin together.

    Attributes:
        largest: the most bytes to a peer.
        peers: how many it sends to.
        share: members among whom the channels are shared.
    """

    largest: int
    peers: int
    share: int

    def by_ll(self, wiring: Wiring) -> bool:
        """Whether lines carry them, not chunks."""
        return self.largest <= (SMALL_BEFORE if wiring.older else SMALL)

    def channels(self, wiring: Wiring) -> int:
        """Channels per peer."""
        most = 1 << (max(1, CHANNELS // self.share).bit_length() - 1)
        least = LEAST_OF_LL if wiring.older and self.by_ll(wiring) else LEAST
        return max(1, min(most, -(-self.largest // least)))

    def together(self, wiring: Wiring) -> int:
        """Channels to all peers."""
        return min(CHANNELS, self.channels(wiring) * self.peers)

    def takes(self, wiring: Wiring) -> Selection:
        """What carries them."""
        return Selection("send-receive", "LL" if self.by_ll(wiring) else "Simple", self.together(wiring))


@lru_cache(maxsize=1024)
def entry(wiring: Wiring, call: Call) -> int:
    """Picoseconds from a call to its first message, and of what is received last."""
    if not wiring.on_nvlinks:
        return wiring.start(_choice(wiring, call))
    sends = wiring.generation.timing.sends
    if call.by_ll(wiring):
        return round((sends.early + wiring.later + sends.each * call.peers) * MICROSECOND)
    part = Fraction(call.largest, call.channels(wiring))
    first = min(part, Fraction(CHUNK)) * _longer(wiring, call.together(wiring))
    return round((sends.start + wiring.later + sends.each * call.peers) * MICROSECOND) + round(first)


def lane_of(group: Group, call: Call) -> Group:
    """The flows of sends, at their pace."""
    return group.paced(*_lane(group.tuned, call))


@lru_cache(maxsize=1024)
def _lane(wiring: Wiring, call: Call) -> tuple[Pace, Pace, int]:
    """The paces of sends within a node and between nodes, and the number of their flows."""
    by_ll, channels = call.by_ll(wiring), call.together(wiring)
    return *_paces(wiring, _choice(wiring, call), channels), COUNT + 2 * channels + by_ll


def in_turn(lane: Group, outgoing: Sequence[tuple[int, Message]], *, at_once: bool = False) -> Routine:
    """Send each peer its message, one after the other or to all at once."""
    for peer, message in outgoing:
        lane.to(peer).send(message)
        if not at_once:
            yield lane.pause(lane.pacing(peer, message.size))


def _choice(wiring: Wiring, call: Call) -> Choice:
    return Choice("ring", "LL" if call.by_ll(wiring) else "Simple")


def _channel(wiring: Wiring, protocol: str = "Simple") -> Fraction:
    """Bytes per second of a channel that sends and receives."""
    sends = wiring.generation.timing.sends
    carried = sends.lines if protocol == "LL" else sends.channel
    return carried * (sends.before if wiring.older else 1) * 10**9


def _link(wiring: Wiring) -> Fraction | None:
    """Bytes per second that all channels together reach."""
    generation = wiring.generation
    return None if wiring.within is None else wiring.within * generation.timing.sends.peer / generation.nvlink


def _longer(wiring: Wiring, channels: int) -> Fraction:
    """Picoseconds per byte by which the first chunk takes longer than its share of what all channels send."""
    alone, link = Fraction(10**12) / (2 * _channel(wiring)), _link(wiring)
    apart = Fraction(wiring.generation.timing.sends.apart) * alone
    if link is None or wiring.pair is not None:
        return alone + apart
    linked = Fraction(10**12 * channels) / link
    return max(alone, linked) + alone + apart - max(2 * alone, linked)


@lru_cache
def _paces(wiring: Wiring, choice: Choice, channels: int) -> tuple[Pace, Pace]:
    """Of sends within a node, and between nodes."""
    inside, between = wiring.paces(choice)
    between = between._replace(bandwidth=wiring.beyond)
    link = _link(wiring)
    if wiring.inside != "node" or link is None:
        return inside._replace(bandwidth=wiring.within), between
    if wiring.pair is not None:
        link = wiring.pair
    elif wiring.nodes == 1:
        link = min(link, channels * _channel(wiring, choice.protocol))
    return Pace(link, 0, round(USUAL["node"] * MICROSECOND)), between
