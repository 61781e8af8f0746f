"""Collectives inside the ops of a layer, one by one and summed per axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.collectives.token_exchange import TokenExchange

_NAMES = {  # what layers do → the collective of NCCL, and that of textbooks
    "all-reduce": ("nccl", "ring"),
    "reduce-scatter": ("nccl-reduce-scatter", "ring-reduce-scatter"),
    "all-gather": ("nccl-all-gather", "ring-all-gather"),
    "all-to-all": ("nccl-all-to-all", "all-to-all"),
    "pass-on": ("nccl-send-receive", "ring-all-gather"),
    "dispatch": ("per-node-dispatch", "per-node-dispatch"),
    "combine": ("per-node-combine", "per-node-combine"),
}
ALGORITHMS: Mapping[str, Mapping[str, str]] = {  # by `layer_collectives`
    of: {does: names[number] for does, names in _NAMES.items()} for number, of in enumerate(("nccl", "textbook"))
}


class Traffic(NamedTuple):
    """Collectives along one axis in the ops of one micro-batch, which include the time that they wait for them.

    Attributes:
        axis: tensor, context or expert.
        forward, backward: picoseconds by which the forward and the backward are longer.
        hidden: picoseconds hidden by computation, in both.
        size: bytes of a member's buffers.
        slowed_forward, slowed_backward: of `forward` and `backward`, picoseconds by which computation beside them takes
            longer.
    """

    axis: str
    forward: int
    backward: int
    hidden: int
    size: int
    slowed_forward: int = 0
    slowed_backward: int = 0

    @property
    def slowed(self) -> int:
        """Picoseconds by which computation beside them takes longer, in both."""
        return self.slowed_forward + self.slowed_backward

    @property
    def exposed(self) -> int:
        """Picoseconds that ops wait."""
        return self.forward + self.backward - self.slowed

    def exposed_in(self, kind: str) -> int:
        """Picoseconds that an op of a kind (F, B, I or W) waits; a weight gradient for none."""
        if kind == "W":
            return 0
        return self.forward - self.slowed_forward if kind == "F" else self.backward - self.slowed_backward


class LayerCollective(NamedTuple):
    """A collective in the ops of one micro-batch on one layer.

    Attributes:
        axis: tensor, context or expert.
        algorithm: as registered.
        size: bytes of a member's buffer.
        repeats: number of times, one after the other.
        launch: picoseconds to start it.
        alone: picoseconds that its messages take, alone on the wiring.
        overlapped: picoseconds of the op's computation that may go on at the same time.
        messages, sent: number of messages, and bytes, that a group sends.
        even: whether its members complete it at the same time.
        how: of an exchange with experts once per node: how tokens are routed.
        lost: share of its speed that computation beside it loses.
        weights: of `overlapped`, picoseconds of weight gradients, which a split backward computes later.
        held: bytes of the buffer of each member, in their order; none: all have as many.
        back: whether members return what they were sent, so that each sends parts of the others' buffers.
    """

    axis: str
    algorithm: str
    size: int
    repeats: int
    launch: int
    alone: int
    overlapped: int
    messages: int
    sent: int
    even: bool
    how: TokenExchange | None = None
    lost: Fraction = Fraction(0)
    weights: int = 0
    held: tuple[int, ...] = ()
    back: bool = False

    @property
    def exposed(self) -> int:
        """Picoseconds that an op waits for it, each time."""
        return max(0, self.launch + self.alone - self.overlapped)

    @property
    def waits(self) -> int:
        """Picoseconds by which it makes an op longer, each time: waiting, or computing beside it more slowly."""
        return max(self.exposed, self.taken)

    @property
    def taken(self) -> int:
        """Picoseconds of computation that is lost beside all of it."""
        return round(self.alone * self.lost)

    @property
    def hidden(self) -> int:
        """Picoseconds hidden by computation, each time."""
        return self.launch + self.alone - self.exposed


Both = tuple[tuple[LayerCollective, ...], tuple[LayerCollective, ...]]  # of forwards, of backwards


def traffic_of(forward: Sequence[LayerCollective], backward: Sequence[LayerCollective]) -> tuple[Traffic, ...]:
    """The collectives of a layer along each axis."""
    traffic = []
    for axis in dict.fromkeys(one.axis for one in (*forward, *backward)):
        ways = [[one for one in way if one.axis == axis] for way in (forward, backward)]
        waits = [sum(one.repeats * one.waits for one in way) for way in ways]
        hidden = sum(one.repeats * one.hidden for way in ways for one in way)
        size = sum(one.repeats * one.size for way in ways for one in way)
        slowed = [sum(one.repeats * (one.waits - one.exposed) for one in way) for way in ways]
        traffic.append(Traffic(axis, waits[0], waits[1], hidden, size, slowed[0], slowed[1]))
    return tuple(traffic)
