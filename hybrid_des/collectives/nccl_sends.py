"""NCCL's sends and receives: how long after a call they begin, and how fast they are.

    time = entry + own shard / own + sent / peer        on the NVLinks of one node

A member's kernel sends to its peers at the pace that NCCL's sends reach in all, and copies what it keeps. The first
bytes take longer, in proportion to what a member sends up to a limit, with Simple more than with LL. Simple further
takes time to fill the channels, in proportion up to a limit; LL is slower for every byte. LL carries up to 16 KiB per
peer or, before release 2.29, 512 KiB (`collectives.tuning`). Over PCIe and between nodes sends begin and take hops as
rings do, with LL up to 16 KiB per peer, at the bandwidth that
topo.h and search.cc count on. Between nodes one adapter carries what a member sends, 48 to 49 of 50 GB/s, while it
sends to others on its node (NVIDIA/nccl-tests, issue 267, its authors' answers); no table of such times was at hand.

The figures are `timing.Sends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hybrid_des.cluster.channel import Pace
from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.nccl_lanes import OF_CHOICE, VARIANTS
from hybrid_des.collectives.timing import MICROSECOND
from hybrid_des.collectives.tuning import USUAL, Choice, Wiring

LANE = OF_CHOICE * len(VARIANTS)  # after those of other collectives


def entry(wiring: Wiring, sent: int, largest: int) -> int:
    """Picoseconds from a call to its first message, for bytes that a member sends in all, and at most to one peer."""
    if not wiring.on_nvlinks:
        return wiring.start(_choice(wiring, largest))
    sends = wiring.generation.timing.sends
    begun = round(sends.start * MICROSECOND)
    if largest <= wiring.small:
        return begun + sends.late._replace(most=sends.early).of(sent) + round(sent * 1000 / sends.lines)
    return begun + sends.late.of(sent) + sends.fill.of(sent)


def copied(wiring: Wiring, kept: int) -> int:
    """Picoseconds of the copy of the bytes that a member keeps."""
    return kept * 1000 // wiring.generation.timing.sends.own


def lane_of(group: Group, largest: int) -> Group:
    """The flows of sends, of so many bytes at most to one peer, at their pace."""
    choice = _choice(group.tuned, largest)
    return group.paced(*_paces(group.tuned, choice), LANE + (choice.protocol == "LL"))


def in_turn(lane: Group, outgoing: Sequence[tuple[int, Message]], *, at_once: bool = False) -> Routine:
    """Send each peer its message, one after the other or to all at once."""
    for peer, message in outgoing:
        lane.to(peer).send(message)
        if not at_once:
            yield lane.pause(lane.pacing(peer, message.size))


def _choice(wiring: Wiring, largest: int) -> Choice:
    return Choice("ring", "LL" if largest <= wiring.small else "Simple")


@lru_cache
def _paces(wiring: Wiring, choice: Choice) -> tuple[Pace, Pace]:
    """Of sends within a node, and between nodes."""
    inside, between = wiring.paces(choice)
    between = between._replace(bandwidth=wiring.beyond)
    if wiring.inside != "node" or wiring.within is None:
        return inside._replace(bandwidth=wiring.within), between
    share = wiring.generation.timing.sends.peer / wiring.generation.nvlink
    rate = wiring.within * share if wiring.pair is None else wiring.pair
    return Pace(rate, 0, round(USUAL["node"] * MICROSECOND)), between
