"""How long NCCL's collectives take on the NVLinks of one node, measured, by generations of GPUs.

NCCL's own tables (`collectives.tuning`) only choose.

    ring            start + steps · step + last/rate      last: what is received last is copied while nothing is sent:
                    a share of a shard; with Simple also what fills the buffers
        step        hop + shard/rate; with Simple no less than a least one; LL uses as many channels as have 4 KiB each
                    (NVIDIA/nccl, src/enqueue.cc: threads × NCCL_LL_THREAD_THRESHOLD), so that less is no faster
    switch          see `tuning.Wiring.loops`
    send, receive   see `collectives.nccl_sends`

Steps that reduce and steps that only gather differ, by what compilers make of each (NVIDIA/nccl, issue 1281): in their
hops, and with LL, whose lines threads move one by one, in their rate. An all-reduce has as many of both, and LL's rate
of those that reduce.

The numbers come from NVIDIA's tables of nccl-tests (aiconfigurator-core 0.12 on PyPI; 16 bits, 2, 4 and 8 GPUs of a
node) by one rule, `scenarios/validation/nccl_fit.py`: the least error over all rows from 1 KiB up, above all beyond
10 % from 1 MiB up (6 % of all-reduces), every table alike. Rows, their mean error, and that of a curve (one collective
over one number of GPUs) by what is fitted to the others, or of a size where there is one curve:

            rings               sends and receives    switch
    A100    180  4.1 %  4.7 %    60  4.1 %  6.5 %
    H100    456  4.2 %  4.8 %   177  6.7 %  7.3 %     18  1.7 %  2.9 %
    B200    688  3.6 %  3.7 %   240  4.0 %  4.8 %     32  1.7 %  2.4 %

LL128 of B200 is carried by rows of before 2.29: its tuner does not take it since. A100's table is of before 2.29, so
that its sends by Simple of less than 512 KiB per peer are not observed, nor whether its channels are faster since. Not
fitted: what rings reach; H200 and H20 as H100; B300, GB200 and GB300 as B200, V100 as A100; XGMI too, but for its rate,
by one reported range (310 to 330 GB/s over eight MI300X).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

MICROSECOND = 10**6  # picoseconds
SLOTS = 2**23  # bytes in flight on all channels of a ring: 16 slots of half a MiB (buffers of 4 MiB in NCCL_STEPS)

LL, SIMPLE = 0, 2
LL_CHUNK = 2**12  # bytes
ByProtocol = tuple[float, float, float]  # LL, LL128, Simple


class Ramp(NamedTuple):
    """Time that grows with bytes: at `rate` GB/s, up to `most` microseconds."""

    rate: float
    most: float

    def of(self, size: float) -> int:
        """Picoseconds."""
        return min(round(size * 1000 / self.rate), round(self.most * MICROSECOND))


class Sends(NamedTuple):
    """Sends and receives, on channels of which each peer has its own.

    Attributes:
        peer: share of the nominal bandwidth of a GPU's NVLinks that all channels together reach.
        channel: GB/s of a channel that sends and receives at once, with Simple; what does only one is twice as fast.
        before: share of that before release 2.29.
        start: microseconds from the call to the first message, with Simple.
        each: more of them per peer.
        late: of the chunks after the first, by the bytes of a channel.
        early: `start` with LL.
        lines: `channel` with LL.
    """

    peer: Fraction
    channel: Fraction
    before: Fraction
    start: float
    each: float
    late: Ramp
    early: float
    lines: Fraction


class Timing(NamedTuple):
    """Times in microseconds, and shares; of two, that of steps that reduce and of steps that only gather.

    Attributes:
        rate: share of the nominal bandwidth of NVLinks that rings reach.
        ll: that with LL.
        start: from the call to the first message, by protocol.
        hop, passing: from one member to the next, in steps that reduce and in steps that only gather, by protocol.
        step: a step around a ring with Simple takes no less, however little it moves.
        reduced, gathered: share of a shard that is copied last, after a reduction or only a gather, by protocol.
        drained: share of a shard, up to `SLOTS`, that passes buffers last with Simple.
        lines: channels of LL.
        sends: sends and receives.
        through: share of the nominal bandwidth of NVLinks at which a member's data passes the switch.
        switch: from the call to the first message through the switch.
        loop: by how much every further passage of small chunks through the switch is late.
    """

    rate: Fraction
    ll: tuple[Fraction, Fraction]
    start: ByProtocol
    hop: ByProtocol
    passing: ByProtocol
    step: tuple[float, float]
    reduced: ByProtocol
    gathered: ByProtocol
    drained: float
    lines: float
    sends: Sends
    through: Fraction = Fraction(0)
    switch: float = 0
    loop: float = 0

    def hops(self, protocol: int) -> tuple[float, float]:
        """Microseconds of a hop in steps that reduce, and in steps that only gather."""
        return self.hop[protocol], self.passing[protocol]

    def least(self, protocol: int, shard: float) -> float:
        """Bytes of a step that take as long as a shard."""
        return max(shard, self.lines * min(LL_CHUNK, shard)) if protocol == LL else shard

    def last(self, protocol: int, shard: float, *, gathered: bool) -> float:
        """Bytes, at the pace of a ring, of the copy that comes last; the protocol by its number."""
        last = (self.gathered if gathered else self.reduced)[protocol] * shard
        return last + min(self.drained * shard, SLOTS) if protocol == SIMPLE else last


SENDS_OF_AMPERE = Sends(
    Fraction("0.663"), Fraction("10.2"), Fraction(1), 20.3, 0.358, Ramp(1640, 0.851), 10.4, Fraction("2.57")
)
SENDS_OF_HOPPER = Sends(
    Fraction("0.7"), Fraction("17.8"), Fraction("0.961"), 10.2, 0.195, Ramp(202, 2.01), 6.19, Fraction("4.34")
)
SENDS_OF_BLACKWELL = Sends(
    Fraction("0.644"), Fraction("21.6"), Fraction("0.914"), 14.0, 0.26, Ramp(223, 10.4), 9.14, Fraction("5.3")
)
ON_AMPERE = Timing(
    Fraction("0.77"), (Fraction("0.381"), Fraction("0.33")), (8.93, 10.2, 23.6), (0.685, 1.74, 4.53),
    (0.805, 1.74, 6.24), (7.78, 9.06), (1.45, 4.29, 0.272), (1.16, 3.37, 0.457), 0.335, 17.9, SENDS_OF_AMPERE,
)  # fmt: skip
ON_XGMI = ON_AMPERE._replace(rate=Fraction("0.74"))
ON_HOPPER = Timing(
    Fraction("0.858"), (Fraction("0.452"), Fraction("0.35")), (5.1, 11.4, 11.8), (0.726, 1.41, 1.9),
    (0.772, 1.41, 4.02), (6.35, 7.86), (1.07, 1.31, 0.485), (0.788, 1.06, 0.491), 0.378, 14.5, SENDS_OF_HOPPER,
    Fraction("0.657"), 21.1, 3.11,
)  # fmt: skip
ON_BLACKWELL = Timing(
    Fraction("0.81"), (Fraction("0.382"), Fraction("0.29")), (7.68, 3.14, 1.52), (1.13, 2.6, 4.07),
    (0.989, 2.6, 4.38), (12.2, 13.4), (1.12, 3.56, 0.749), (0.916, 2.57, 0.698), 2.73, 40.0, SENDS_OF_BLACKWELL,
    Fraction("0.515"), 30.0, 7.23,
)  # fmt: skip
