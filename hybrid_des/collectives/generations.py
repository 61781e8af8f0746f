"""Generations of GPUs as NCCL's tuner knows them: bandwidths that it counts on, caps, and speeds that it tries.

Figures: NVIDIA/nccl, src/graph/topo.h, src/graph/tuning.cc, src/tuning/nvls.cc and src/graph/search.cc.

Beside them is what NCCL's search finds for groups over several nodes: how many channels, and how fast they are in
trees.

    1   a channel per adapter, at its speed; one of 25 GB/s or more becomes two of half of it (ncclTopoDupChannels)
    2   over two nodes, channels of trees become faster within nodes, speed by speed of a table, until they have twice
        what their adapters do, or NVLinks carry no more (ncclTopoCompute, "increase bwIntra for trees")

A tree between two nodes sends a buffer through each node's adapters once, where a ring sends it nearly twice, so that
its channels could be twice as fast if the node could. The tuner counts on the speed within nodes up to two nodes, and
on that of adapters beyond (NVIDIA/nccl, src/graph/search.cc and src/graph/tuning.cc, releases 2.18 to 2.29).
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.collectives.timing import ON_AMPERE, ON_BLACKWELL, ON_HOPPER, ON_XGMI, Timing

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


class Generation(NamedTuple):
    """A generation of GPUs, by the columns of the tuner: on one node, on two, on more; GB/s per channel or in all.

    Attributes:
        nvlink: share of the nominal bandwidth of NVLinks that topo.h counts on, such as 20.6 of 25 GB/s per link.
        ll: caps of LL, in all.
        ring128, tree128, tree: caps of a channel with LL128 around rings and on trees, and on any tree.
        nvls: share of NVLinks that in-switch reduction reaches.
        nvls_tree: caps of a channel of trees of switches.
        plateau: factor of the latency of large rings over several nodes.
        speeds: of a channel on one node that the search tries, the fastest first (search.cc); () if it takes what links
            allow.
        adapters: those that it tries over several nodes.
        switch_channels: of in-switch reduction on one node (nvls.cc).
        ring_channels: on one node, on which the cap of LL128 counts.
    """

    nvlink: Fraction
    ll: tuple[float, float, float]
    ring128: float
    tree128: tuple[float, float, float]
    tree: tuple[float, float, float]
    timing: Timing
    nvls: Fraction = Fraction(0)
    nvls_tree: tuple[float, float, float] = (0, 0, 0)
    plateau: float = 1.4
    speeds: tuple[int, ...] = ()
    adapters: tuple[float, ...] = OF_ADAPTERS
    switch_channels: int = 16
    ring_channels: int = 16


SPEEDS = (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)
VOLTA = Generation(
    Fraction(20, 25), (39.0, 39.0, 20.4), 20.0, (20.0, 20.0, 20.0), (26.5, 18.5, 10.0), ON_AMPERE, plateau=1.9,
    speeds=SPEEDS,
)  # fmt: skip
AMPERE = Generation(
    Fraction(20, 25), (87.7, 22.5, 19.0), 20.0, (20.0, 20.0, 20.0), (24.0, 23.6, 17.8), ON_AMPERE, speeds=SPEEDS
)  # fmt: skip
XGMI = AMPERE._replace(nvlink=ON_XGMI.rate, timing=ON_XGMI, speeds=())  # RCCL's own tables are not used
HOPPER = Generation(
    Fraction(206, 250), (141.0, 45.0, 35.0), 36.7, (36.7, 36.7, 29.0), (38.7, 41.4, 36.0), ON_HOPPER,
    Fraction(85, 100), (0, 57.7, 45.5), speeds=(60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3), adapters=OF_HOPPERS_ADAPTERS,
)  # fmt: skip
BLACKWELL = Generation(
    Fraction(401, 500), (282.0, 90.0, 70.0), 40.0, (55.6, 31.67, 20.0), (70.0, 42.8, 24.0), ON_BLACKWELL,
    Fraction(74, 100), (0, 96.0, 80.0), speeds=(90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
    adapters=OF_BLACKWELLS_ADAPTERS, switch_channels=24, ring_channels=8,
)  # fmt: skip
# With 16 channels, eight of 90 GB/s each taken twice, LL128 would carry all-gathers of 16 MiB over eight GPUs and
# all-reduces of 8 MiB over four. In NVIDIA's tables of 2.29.2 Simple does (B200, B300, GB200, GB300); the cap of
# 40 GB/s gives that if it counts on at most 14. That it counts on the eight which the search finds is inferred.
BLACKWELL_BEFORE = BLACKWELL._replace(
    ring128=2 * 36.7, tree128=(2 * 36.7, 2 * 36.7, 2 * 29.0), tree=(2 * 38.7, 2 * 41.4, 2 * 36.0), ring_channels=16
)
