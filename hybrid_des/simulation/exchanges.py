"""Collectives of layers: a rank's part in those inside ops, by messages, and in those that are replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.network.purpose import OF_LAYERS
from hybrid_des.network.rings import Ring
from hybrid_des.planning.pace import Slowing
from hybrid_des.simulation.varying import SteadyPace, VaryingPace
from hybrid_des.units import split_evenly
from hybrid_des.workload.replay import CODEC, elements_of

if TYPE_CHECKING:
    from hybrid_des.engine.clock import Environment
    from hybrid_des.engine.timetable import Amount
    from hybrid_des.network.meeting import Meeting
    from hybrid_des.network.transport import Transport
    from hybrid_des.planning.tensor_traffic import TensorTraffic
    from hybrid_des.workload.traffic import Collective

At = tuple[int, int, int, str]  # rank, chunk, stage, axis


class Exchanger:
    """A rank's part in the collectives of one stage along one axis."""

    def __init__(self, transport: Transport, ranks: Sequence[int], rings: Sequence[Ring], at: At) -> None:
        """Join the group.

        Args:
            transport: carries the messages.
            ranks: the members.
            rings: the channels of the group.
            at: this rank, its chunk, and the stage and axis.
        """
        rank, chunk, stage, axis = at
        self._env = transport.env
        self._codec = codecs.find(CODEC).build()
        chunks = [chunk] * len(ranks)

        def group(members: Sequence[int], part: int) -> Group:
            whole = ProcessGroup(axis, stage, members, chunks, part=part, purpose=OF_LAYERS[axis])
            return Group(transport, whole, members.index(rank))

        self._whole = group(ranks, 0)
        self._rings = [group(ring, number) for number, ring in enumerate(rings, start=1)]

    def run(self, step: int, exchange: Collective) -> Routine:
        """Take part in one collective."""
        groups = [self._whole] if exchange.algorithm == "all-to-all" else self._rings
        algorithm = collectives.configured(exchange.algorithm)
        if exchange.launch:
            yield self._env.timeout(exchange.launch)
        routines = []
        for group, elements in zip(groups, split_evenly(elements_of(exchange.size), len(groups)), strict=True):
            group.begin(step)
            routines.append(algorithm(group, Buffer(elements, self._codec)))
        if len(routines) == 1:
            yield from routines[0]
        else:
            yield self._env.all_of([self._env.process(routine) for routine in routines])


class ReplayedLayers:
    """A rank's part in the replayed collectives of layers: a meeting with the other members per part, if it has any."""

    def __init__(self, env: Environment, meetings: Sequence[Meeting | None]) -> None:
        self._env, self._meetings = env, meetings

    def run(self, step: int, durations: Sequence[int]) -> Routine:
        """Take part in one collective per part, one after the other."""
        for meeting, duration in zip(self._meetings, durations, strict=True):
            if meeting and duration:
                yield meeting.join(duration)

    def beside(self, work: Amount, slowing: Slowing, pace: SteadyPace | VaryingPace) -> Routine:
        """Compute meanwhile; work lost to communication is known only afterwards, and then made up for."""
        env, meetings = self._env, [meeting for meeting in self._meetings if meeting]
        while work > 0:
            begin = env.now
            until = max((meeting.until for meeting in meetings), default=begin)
            beside = int(pace.done(begin, until)) if until > begin else 0
            duration = pace.end(begin, slowing.duration(work, beside)) - begin
            if not duration:  # what is left is less than half a picosecond
                break
            yield env.timeout(duration)
            busy = sum(pace.done(*period) for meeting in meetings for period in meeting.periods(begin))
            work -= pace.done(begin, env.now) - slowing.lost(int(busy))


class Exchangers:
    """Makes the exchangers of ranks."""

    def __init__(self, transport: Transport, traffic: TensorTraffic) -> None:
        """Find each rank's groups, along axes whose collectives are messages."""
        self._transport = transport
        self._of: dict[int, dict[str, tuple[Sequence[int], Sequence[Ring]]]] = {}
        for axis, groups in traffic.messages.items():
            for ranks, rings in zip(groups, traffic.rings[axis], strict=True):
                for rank in ranks:
                    self._of.setdefault(rank, {})[axis] = ranks, rings

    def of(self, rank: int, chunks: Mapping[int, int]) -> Mapping[tuple[str, int, int], Exchanger]:
        """(Axis, stage, 0) → a rank's exchanger; `chunks` maps the stages it holds to their chunks."""
        return {
            (axis, stage, 0): Exchanger(self._transport, *group, (rank, chunk, stage, axis))
            for axis, group in self._of.get(rank, {}).items()
            for stage, chunk in chunks.items()
        }
