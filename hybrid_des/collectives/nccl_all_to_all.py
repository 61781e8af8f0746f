"""All-to-all as NCCL's sends and receives on the NVLinks of one node.

    time = start + fill + late + own shard / own + (n − 1) · shard / peer

A member's kernel sends to its peers in the rounds of `collectives.all_to_all`, at the pace that NCCL's sends reach in
all, and copies the shard that it keeps. Large transfers take longer to fill the channels, in proportion to what
a member sends up to a limit; so do those that are too large for LL and leave it for Simple, up to a lower one.

`peer` to `late` are set by hand, to round figures, from NVIDIA's tables of nccl-tests (aiconfigurator-core 0.12 on
PyPI, fp16, all-to-all over 2, 4 and 8 GPUs of a node, 512 B to 512 MiB): A100 by 63 rows of NCCL 2.27.3; H100 by 246
of 2.23, 2.27.3 and 2.29.2; B200 by 378 of 2.27.3, 2.27.5, 2.28.9 and 2.29.2. From 1 MiB up the formula is off by 5.3,
3.6 and 4.8 % in the mean; by 4.9 and 5.0 % on H200 and GB200, of which no row was used (246 and 252).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from hybrid_des.cluster.channel import Pace
from hybrid_des.collectives.all_to_all import all_to_all, rounds
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.nccl import tuned
from hybrid_des.collectives.nccl_lanes import OF_CHOICE, VARIANTS
from hybrid_des.collectives.registration import collective
from hybrid_des.collectives.tuning import AMPERE, BLACKWELL, HOPPER, MICROSECOND, USUAL, VOLTA, Generation, Wiring

LANE = OF_CHOICE * len(VARIANTS)  # after those of other collectives


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
SENDS: Mapping[Generation, Sends] = {  # Volta's: not measured, as Ampere's
    VOLTA: ON_AMPERE, AMPERE: ON_AMPERE, HOPPER: ON_HOPPER, BLACKWELL: ON_BLACKWELL,
}  # fmt: skip


@collective(
    "nccl-all-to-all", summary="as NCCL: every rank sends a different shard to every other rank", does="all-to-all",
    options=Channels, tuned=tuned,
)  # fmt: skip
def nccl_all_to_all(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Replace shard j of `buffer` with shard `me` of rank j; over several nodes or PCIe as `all-to-all`."""
    wiring: Wiring = group.tuned
    if not wiring.on_nvlinks or wiring.rate is None:
        yield from all_to_all(group, buffer)
        return
    sends = SENDS[wiring.generation]
    shards = buffer.split(group.size)
    receivers, senders = rounds(group.nodes)[group.me]
    outgoing = [shards.encode(peer) for peer in receivers]
    sent = sum(message.size for message in outgoing)
    entry = sends.start * MICROSECOND + sends.fill.of(sent) + sends.late.of(sent)
    yield group.pause(entry + shards.encode(group.me).size * 1000 // sends.own)
    pace = _pace(sends, wiring.rate * wiring.channels / wiring.generation.nvlink)
    lane = group.paced(pace, pace, LANE)
    for peer, message in zip(receivers, outgoing, strict=True):
        lane.to(peer).send(message)
        yield lane.pause(lane.pacing(peer, message.size))
    for peer in senders:
        shards.put(peer, (yield lane.from_(peer).receive()))


@lru_cache
def _pace(sends: Sends, port: Fraction) -> Pace:
    return Pace(sends.peer * port, 0, round(USUAL["node"] * MICROSECOND))
