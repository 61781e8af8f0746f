"""What NCCL's search finds for groups over several nodes: how many channels, and how fast they are in trees.

    1   a channel per adapter, at its speed; one of 25 GB/s or more becomes two of half of it (ncclTopoDupChannels)
    2   over two nodes, channels of trees become faster within nodes, speed by speed of a table, until they have twice
        what their adapters do, or NVLinks carry no more (ncclTopoCompute, "increase bwIntra for trees")

A tree between two nodes sends a buffer through each node's adapters once, where a ring sends it nearly twice, so that
its channels could be twice as fast if the node could. The tuner counts on the speed within nodes up to two nodes, and
on that of adapters beyond (NVIDIA/nccl, src/graph/search.cc and src/graph/tuning.cc, releases 2.18 to 2.29).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

GB = 10**9
LEAST_DOUBLED = 25 * GB  # bytes per second of a channel that becomes two
MANY, FAST = 4, 50 * GB  # since Hopper, more channels than that become twice as many only if they are that fast

# GB/s, the fastest first
OF_ADAPTERS = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)
OF_HOPPERS_ADAPTERS = (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3)
OF_BLACKWELLS_ADAPTERS = (96, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3)


def doubling(rate: Fraction | None, channels: int, *, newer: bool) -> int:
    """How many channels each of those becomes that adapters give.

    Args:
        rate: bytes per second of one; None: as links allow.
        channels: their number.
        newer: whether the GPUs are Hopper's or later.
    """
    if rate is None or rate < LEAST_DOUBLED or (newer and rate < FAST and channels > MANY):
        return 1
    return 2


def within_two_nodes(rate: Fraction, carried: Fraction | None, speeds: Sequence[float]) -> Fraction:
    """Bytes per second of a channel of trees within each of two nodes.

    Args:
        rate: that of its part of an adapter.
        carried: what a node's NVLinks carry of one channel; None: it passes none of them.
        speeds: in GB/s, those that the search tries.
    """
    reached = rate
    for speed in sorted(Fraction(str(speed)) * GB for speed in speeds):
        if reached >= 2 * rate or (carried is not None and speed > carried):
            break
        reached = max(reached, speed)
    return reached
