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

Before release 2.29 all of these began later and were a few per cent slower. No statement of NVIDIA's on that was found,
but two GPUs, H100 and H200, show the same.

The numbers come from NVIDIA's tables of nccl-tests (aiconfigurator-core 0.12 on PyPI; 16 bits, 2, 4 and 8 GPUs of a
node) by one rule, `scenarios/validation/nccl_fit.py`: the least error over all rows from 1 KiB up, above all beyond
10 % from 1 MiB up (6 % of all-reduces), every table alike. Rows, their mean error, and that of a curve (one collective
over one number of GPUs) by what is fitted to the others, or of a size where there is one curve:

                 rings                sends and receives    switch
    Ampere        180  4.1 %  4.7 %    60  4.2 %  6.6 %
    Hopper        912  3.4 %  3.8 %   354  6.1 %  6.5 %     36  2.0 %  3.1 %
    Blackwell    1512  3.5 %  3.7 %   520  3.9 %  4.2 %     48  1.8 %  2.5 %

With the tables of one GPU left out, its own have 3.9 (H100), 3.8 (H200), 3.5 (B200), 4.2 (B300), 4.9 (GB200) and 2.9 %
(GB300) around rings, and 7.2, 6.7, 5.0, 4.2, 3.6 and 3.7 % of sends and receives.

LL128 of Blackwell is carried by rows of before 2.29: its tuner does not take it since. A100's table is of before 2.29,
so that its sends by Simple of less than 512 KiB per peer are not observed, nor whether it is faster since. Not fitted:
what rings reach; H20 as H100, V100 as A100; XGMI too, but for its rate, by one reported range (310 to 330 GB/s over
eight MI300X).
"""

from fractions import Fraction
from typing import NamedTuple

MICROSECOND = 10**6  # picoseconds
SLOTS = 2**23  # bytes in flight on all channels of a ring: 16 slots of half a MiB (buffers of 4 MiB in NCCL_STEPS)

LL, SIMPLE = 0, 2
LL_CHUNK = 2**12  # bytes
ByProtocol = tuple[float, float, float]  # LL, LL128, Simple


class Sends(NamedTuple):
    """Sends and receives, on channels of which each peer has its own.

    Attributes:
        peer: share of the nominal bandwidth of a GPU's NVLinks that all channels together reach.
        channel: GB/s of a channel that sends and receives at once, with Simple; what does only one is twice as fast.
        before: share of that, and of `lines`, before release 2.29.
        start: microseconds from the call to the first message, with Simple.
        each: more of them per peer.
        apart: how far members are out of step, as a share of the time in which a channel copies the first chunk.
        early: `start` with LL.
        lines: `channel` with LL.
    """

    peer: Fraction
    channel: Fraction
    before: Fraction
    start: float
    each: float
    apart: float
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
        before: share of rings' rates before release 2.29.
        later: how much later rings, sends and receives began.
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
    before: Fraction = Fraction(1)
    later: float = 0

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


SENDS_OF_AMPERE = Sends(Fraction("0.676"), Fraction("10.4"), Fraction(1), 18.5, 0.364, 0.17, 10.4, Fraction("2.57"))
SENDS_OF_HOPPER = Sends(
    Fraction("0.71"), Fraction("18.2"), Fraction("0.951"), 9.5, 0.306, 0.0808, 5.78, Fraction("4.65")
)
SENDS_OF_BLACKWELL = Sends(
    Fraction("0.9"), Fraction("21.4"), Fraction("0.914"), 12.8, 0.323, 0.567, 9.0, Fraction("6.04")
)
ON_AMPERE = Timing(
    Fraction("0.77"), (Fraction("0.381"), Fraction("0.33")), (8.93, 10.2, 23.6), (0.685, 1.74, 4.53),
    (0.805, 1.74, 6.24), (7.78, 9.06), (1.45, 4.29, 0.272), (1.16, 3.37, 0.457), 0.335, 17.9, SENDS_OF_AMPERE,
)  # fmt: skip
ON_XGMI = ON_AMPERE._replace(rate=Fraction("0.74"))
ON_HOPPER = Timing(
    Fraction("0.858"), (Fraction("0.443"), Fraction("0.344")), (4.73, 11.6, 11.6), (0.775, 1.23, 1.8),
    (0.837, 1.23, 3.91), (6.36, 7.63), (0.969, 1.32, 0.478), (0.682, 1.03, 0.453), 0.33, 14.6, SENDS_OF_HOPPER,
    Fraction("0.663"), 21.3, 3.24, Fraction("0.96"), 1.02,
)  # fmt: skip
ON_BLACKWELL = Timing(
    Fraction("0.81"), (Fraction("0.372"), Fraction("0.305")), (7.68, 1.3, 1.42), (1.1, 2.63, 3.99),
    (1.03, 2.63, 4.29), (12.2, 13.5), (0.903, 3.51, 0.687), (0.903, 2.6, 0.64), 2.59, 37.4, SENDS_OF_BLACKWELL,
    Fraction("0.515"), 29.3, 7.2, Fraction("0.965"), 0.29,
)  # fmt: skip
