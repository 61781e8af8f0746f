"""The ways in which rings of gradients are simulated: as all messages are or, where only times are asked for, faster.

    way                where              rings of                      while they run             what takes them
    ─────────────────  ─────────────────  ────────────────────────────  ─────────────────────────  ─────────────────────
    by messages        anywhere           any                           others may pass            every message
    apart              folded runs        one channel, 512 members,     others may pass            `folding.rings_apart`
                                          padded
    alone              folded runs        any channels, 32 messages     nothing uses their links   `folding.rings_alone`
                                          of a member
    reductions alone   the same, if only those that reduce are undisturbed
    gathers alone      the same, if only those that gather are undisturbed
    followed           where nothing      the textbook's, one channel,  nothing uses their links   `rings_at_once`
                       folds              32 members

All but the first need `fifo` or uncontended links, and keep no rows of messages. A run is simulated in the first way
that is not refused: if folded, apart, then alone (`rings_alone.taken_at_once`); if not, followed
(`rings_at_once.undisturbed`); at last by messages. Times are the same in all of them.
"""

from typing import Any, Literal

from hybrid_des.simulation.communicators import AtOnce
from hybrid_des.simulation.folding.rings_alone import RingsAlone
from hybrid_des.simulation.folding.rings_apart import RingsApart
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.rings_at_once import RingsAtOnce

Rings = Literal["by messages", "apart", "alone", "reductions alone", "gathers alone", "followed"]
WAYS: tuple[Rings, Rings] = "by messages", "followed"


def at_once(rings: Rings, transport: Any, parts: Parts) -> AtOnce | None:
    """What takes the collectives of rings in a way; None for their messages.

    Args:
        rings: the way.
        transport: the network of the run, made for it.
        parts: those of the run.
    """
    if rings == "by messages":
        return None
    if rings == "apart":
        return RingsApart(transport, parts.reductions)
    return RingsAtOnce(transport, parts) if rings == "followed" else RingsAlone(transport, parts.reductions, rings)
