"""The lanes of an NCCL channel: flows of its members at the pace of an algorithm and a protocol."""

from collections.abc import Callable
from typing import Any

from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.double_binary_tree import Family
from hybrid_des.collectives.group import Group
from hybrid_des.collectives.tuning import HALVES, PROTOCOLS, Choice, Wiring

LINES = {"LL": 2**11, "LL128": 2**12}  # bytes that pass on together


OF_CHOICE = 8  # lanes


VARIANTS = [
    *(Choice(algorithm, protocol) for algorithm in ("ring", "tree") for protocol in PROTOCOLS),
    Choice("nvls", "Simple"), Choice("nvls-tree", "Simple"),
]  # fmt: skip


Lanes = Callable[[int], Group]  # number → the group, with flows of its own at the pace of a choice


DOES = tuple(HALVES)
COUNT = OF_CHOICE * len(VARIANTS) * len(DOES)


def lanes_of(group: Group, wiring: Wiring, choice: Choice, does: str = "all-reduce") -> Lanes:
    """The lanes of a choice over a group, paced as its channels are."""
    paces, first = wiring.paces(choice, does), OF_CHOICE * (VARIANTS.index(choice) * len(DOES) + DOES.index(does))
    return lambda number: group.paced(*paces, first + number)


def paced(up: Group, relatives: Family, number: int, before: Message | None) -> Any:
    """Leaves send as fast as their channel carries; others are as slow as what they receive."""
    if before is None or relatives.children or relatives.parent is None:
        return None
    return up.pause(up.pacing(relatives.parent, before.size))
