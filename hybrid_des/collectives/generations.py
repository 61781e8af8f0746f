"""Generations of GPUs as NCCL's tuner knows them: bandwidths that it counts on, caps, and speeds that it tries.

Figures: NVIDIA/nccl, src/graph/topo.h, src/graph/tuning.cc, src/tuning/nvls.cc and src/graph/search.cc.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from hybrid_des.collectives.searched import OF_ADAPTERS, OF_BLACKWELLS_ADAPTERS, OF_HOPPERS_ADAPTERS
from hybrid_des.collectives.timing import ON_AMPERE, ON_BLACKWELL, ON_HOPPER, ON_XGMI, Timing


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
