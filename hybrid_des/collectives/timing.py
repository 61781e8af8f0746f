"""How long NCCL's collectives take on the NVLinks of one node, measured, by generations of GPUs.

NCCL's own tables (`collectives.tuning`) only choose.

    ring            start + steps · step + last/rate      last: what is received last is copied while nothing is sent:
                    a share of a shard; with Simple also what fills the buffers
        step        hop + shard/rate; with Simple no less than a least one; LL uses as many channels as have 4 KiB each
                    (NVIDIA/nccl, src/enqueue.cc: threads × NCCL_LL_THREAD_THRESHOLD), so that less is no faster
    switch          see `tuning.Wiring.loops`
    send, receive   see `collectives.nccl_sends`

The numbers come from NVIDIA's tables of nccl-tests (aiconfigurator-core 0.12 on PyPI; 16 bits, 2, 4 and 8 GPUs of a
node) by one rule, `scenarios/validation/nccl_fit.py`: the least error over all rows from 1 KiB up, above all beyond
10 % from 1 MiB up, each the median of the tables by the newest rules (and by those before 2.29 where another protocol
carried it). Rows, their mean error, and that of a curve (one collective over one number of GPUs) by what is fitted to
the others, or of a row where there is one curve:

            rings               sends and receives    switch
    A100    180  4.3 %  5.0 %   60  4.7 %  5.3 %
    H100    171  3.2 %  4.2 %   75  4.7 %  6.2 %      9  1.6 %  3.3 %
    B200    178  3.1 %  3.5 %   75  4.3 %  5.8 %      8  1.7 %  2.4 %

LL128 of B200 is carried by six rows of before 2.29: its tuner does not take it since. A100's table is of before 2.29,
so that its sends by Simple of less than 512 KiB per peer are not observed (`late`). Not fitted: what rings reach; H200
and H20 as H100; B300, GB200 and GB300 as B200, V100 as A100; XGMI too, but for its rate, by one reported range (310 to
330 GB/s over eight MI300X).
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
    """Time that grows with the bytes that a member sends: at `rate` GB/s, up to `most` microseconds."""

    rate: float
    most: float

    def of(self, sent: int) -> int:
        """Picoseconds."""
        return min(round(sent * 1000 / self.rate), round(self.most * MICROSECOND))


class Sends(NamedTuple):
    """Sends and receives.

    Attributes:
        peer: share of the nominal bandwidth of a GPU's NVLinks.
        own: GB/s of the copy of the shard that a member keeps, as far as it takes longer than the sends.
        start: microseconds from the call to the first message.
        fill: of the channels, with Simple.
        late: of the first bytes, with Simple.
        early: the most of that with LL, in microseconds.
        lines: GB/s at which LL takes longer.
    """

    peer: Fraction
    own: int
    start: float
    fill: Ramp
    late: Ramp
    early: float
    lines: float


class Timing(NamedTuple):
    """Times in microseconds, and shares.

    Attributes:
        rate: share of the nominal bandwidth of NVLinks that rings reach.
        start: from the call to the first message, by protocol.
        hop: from one member to the next.
        step: a step around a ring with Simple takes no less, however little it moves.
        reduced, gathered: share of a shard that is copied last, after a reduction or only a gather, by protocol.
        drained: share of a shard, up to `SLOTS`, that passes buffers last with Simple.
        lines: channels of LL, together as fast as those of Simple.
        sends: sends and receives.
        through: share of the nominal bandwidth of NVLinks at which a member's data passes the switch.
        switch: from the call to the first message through the switch.
        loop: by how much every further passage of small chunks through the switch is late.
    """

    rate: Fraction
    start: ByProtocol
    hop: ByProtocol
    step: float
    reduced: ByProtocol
    gathered: ByProtocol
    drained: float
    lines: float
    sends: Sends
    through: Fraction = Fraction(0)
    switch: float = 0
    loop: float = 0

    def least(self, protocol: int, shard: float) -> float:
        """Bytes of a step that take as long as a shard."""
        return max(shard, self.lines * min(LL_CHUNK, shard)) if protocol == LL else shard

    def last(self, protocol: int, shard: float, *, gathered: bool) -> float:
        """Bytes, at the pace of a ring, of the copy that comes last; the protocol by its number."""
        last = (self.gathered if gathered else self.reduced)[protocol] * shard
        return last + min(self.drained * shard, SLOTS) if protocol == SIMPLE else last


SENDS_OF_AMPERE = Sends(Fraction("0.66"), 851, 12.0, Ramp(104, 15.6), Ramp(12.7, 0), 1.44, 116)
SENDS_OF_HOPPER = Sends(Fraction("0.752"), 1800, 6.66, Ramp(928, 15.5), Ramp(8.84, 5.41), 1.86, 189)
SENDS_OF_BLACKWELL = Sends(Fraction("0.701"), 897, 9.71, Ramp(2370, 16.5), Ramp(11.5, 6.3), 1.68, 213)
ON_AMPERE = Timing(
    Fraction("0.77"), (8.93, 10.6, 22.9), (0.806, 1.66, 5.94), 8.57, (1.43, 4.46, 0.288), (1.6, 3.41, 0.525), 0.193,
    15.2, SENDS_OF_AMPERE,
)  # fmt: skip
ON_XGMI = ON_AMPERE._replace(rate=Fraction("0.74"))
ON_HOPPER = Timing(
    Fraction("0.858"), (5.0, 11.0, 11.8), (0.748, 1.18, 2.96), 6.85, (0.787, 1.67, 0.48), (1.18, 1.35, 0.52), 0.35,
    12.8, SENDS_OF_HOPPER, Fraction("0.657"), 21.1, 3.53,
)  # fmt: skip
ON_BLACKWELL = Timing(
    Fraction("0.81"), (7.25, 6.5, 1.49), (1.19, 2.25, 4.33), 13.3, (1.37, 3.21, 0.717), (1.77, 2.35, 0.66), 1.75, 34.9,
    SENDS_OF_BLACKWELL, Fraction("0.518"), 30.3, 6.83,
)  # fmt: skip
