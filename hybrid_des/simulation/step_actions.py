"""What ranks do in a step, told without simulating it: so that steps are known to be the same, but for who does what.

    rank 3   compute 5 ms · start [send 7 MB to 4 · receive from 2] · join
    rank 4   compute 5 ms · start [send 7 MB to 5 · receive from 3] · join      the same, with ranks named one higher

The routine of a collective is run alone, and all that it waits for happens at once: what it does next follows from its
program, whatever the time. What is not told so, as by a routine that reads the size of a message it receives, is not
known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from hybrid_des.cluster.channel import Channel, Pace
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rate import rate_of
from hybrid_des.cluster.transport import Transport
from hybrid_des.simulation.communicators import Communicators
from hybrid_des.simulation.gpu import Gpu
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.planning.program import (
    BARRIER,
    Block,
    Call,
    Collective,
    Instruction,
    Program,
    Receive,
    Send,
    Start,
)

Actions = tuple[Any, ...]  # in order; those of a process are one action of the process that starts it


class Way(NamedTuple):
    """A flow: its ends, and what tells it from others between them."""

    sender: int
    receiver: int
    name: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A message, whatever it is: the n-th that a routine receives from a flow, by the number of its way."""

    way: int
    number: int


class Told(NamedTuple):
    """What a rank does in a collective.

    Attributes:
        actions: in which a flow is the number of its way.
        ways: in the order in which they are first used.
        lost: shares of its speed that computation beside it loses.
    """

    actions: Actions
    ways: tuple[Way, ...]
    lost: tuple[Any, ...] = ()


class UntoldError(Exception):
    """What ranks do in a step is not known."""


class ToldSteps:
    """What the ranks of a run do in its steps.

    Args:
        parts: the process groups, and the wiring.
        gpus: the ranks, all of the run.
    """

    def __init__(self, parts: Parts, gpus: Sequence[Gpu]) -> None:
        self._fabric, self._layout = parts.fabric, parts.times.layout
        self._notes = _Notes(parts.fabric)
        self._made = Communicators(cast(Transport, self._notes), parts)
        self._communicators: Mapping[int, Mapping[Any, Any]] = self._made.of([gpu.rank for gpu in gpus])
        self._of_calls = dict[tuple[int, Any, Any], Told]()
        self._of_blocks = dict[tuple[int, Block], Actions]()

    def same(self, these: Mapping[int, Program], others: Mapping[int, Program], renamed: Mapping[int, int]) -> bool:
        """Whether programs by rank are the same as others if ranks are renamed, on links that are alike, too.

        Raises:
            UntoldError: it is not known.
        """
        renaming = _Renaming(self._fabric, renamed)
        return all(
            these[rank].streams.keys() == others[renamed[rank]].streams.keys()
            and all(
                renaming.same(self._of(rank, calls), self._of(renamed[rank], others[renamed[rank]].streams[name]))
                for name, calls in these[rank].streams.items()
            )
            for rank in these
        )

    def _of(self, rank: int, calls: Sequence[Call]) -> Actions:
        return tuple((call.number, call.ops, self._of_block(rank, call.block)) for call in calls)

    def _of_block(self, rank: int, block: Block) -> Actions:
        if (rank, block) not in self._of_blocks:
            self._of_blocks[rank, block] = tuple(self._of_instruction(rank, one) for one in block.instructions)
        return self._of_blocks[rank, block]

    def _of_instruction(self, rank: int, instruction: Instruction) -> Any:
        if isinstance(instruction, Collective | Start) and instruction.group != BARRIER:
            told = self._of_call(rank, instruction.group, instruction.call)
            return told, instruction.slot if isinstance(instruction, Start) else (instruction.row, instruction.cause)
        if isinstance(instruction, Receive | Send):
            return self._of_message(rank, instruction)
        return instruction

    def _of_message(self, rank: int, instruction: Receive | Send) -> Actions:
        peer, what = self._layout.line(rank, "pipeline")[instruction.peer], (instruction.purpose,)
        if isinstance(instruction, Send):
            return Send, Way(rank, peer, what), instruction.op, instruction.tag, instruction.message.size
        return Receive, Way(peer, rank, what), instruction.op, instruction.tag, instruction.place

    def _of_call(self, rank: int, group: Any, call: Any) -> Told:
        key = rank, group, call
        if key not in self._of_calls:
            try:
                told = self._notes.told(self._communicators[rank][group].run(0, call))
            except Exception as error:  # of code that finds something else than it expects
                raise UntoldError from error
            if computation := self._made.computation.get(rank):
                told = told._replace(lost=tuple(period.lost for period in computation.periods))
                computation.periods.clear()
            self._of_calls[key] = told
        return self._of_calls[key]


class _Renaming:
    """Ranks, flows and links by other names, one to one: those of flows and links follow from what is compared."""

    def __init__(self, fabric: Fabric, ranks: Mapping[int, int]) -> None:
        self._fabric, self._ranks = fabric, ranks
        self._named, self._back = dict[Any, Any](), dict[Any, Any]()

    def same(self, this: Any, other: Any) -> bool:
        """Whether actions are the others by other names."""
        if this.__class__ is not other.__class__:
            return False
        if this.__class__ is Way:
            return self._named.get(this) == other or self._same_way(this, other)
        if this.__class__ is Told:
            alike = this.actions == other.actions and this.lost == other.lost and len(this.ways) == len(other.ways)
            return alike and all(map(self.same, this.ways, other.ways))
        if this.__class__ is tuple:
            return len(this) == len(other) and all(map(self.same, this, other))
        return bool(this == other)

    def _same_way(self, this: Way, other: Way) -> bool:
        ends = self._ranks.get(this.sender), self._ranks.get(this.receiver)
        if ends != other[:2] or not self._name(this, other):
            return False
        route, there = (self._fabric.route(*way[:2]) for way in (this, other))
        return route.latencies == there.latencies and all(map(self._same_link, route.links, there.links))

    def _same_link(self, this: str, other: str) -> bool:
        links = self._fabric.links
        return links[this].bandwidth == links[other].bandwidth and self._name(this, other)

    def _name(self, this: Any, other: Any) -> bool:
        """Call something by another name; whether both have no different ones."""
        return bool(self._named.setdefault(this, other) == other and self._back.setdefault(other, this) == this)


class _Event:
    """What happens at once; `number` says which of the events of a routine it is."""

    callbacks = None

    def __init__(self, number: int, value: Any = None) -> None:
        self.number, self.value = number, value


class _Flow:
    """A flow, and the mailbox at its end."""

    def __init__(self, notes: _Notes, way: Way, pace: Pace | None) -> None:
        self._notes, self._way, self._pace, self.received, self.label = notes, way, pace, 0, 0
        self.pace = None if pace is None or pace.bandwidth is None else rate_of(pace.bandwidth)

    def send(self, message: Any, tag: int | None = None) -> None:
        what = (message.size, message.scales) if isinstance(message, Message) else message
        self._notes.note("send", self._notes.number(self._way), self._pace, what)

    def receive(self) -> _Event:
        self.received += 1
        way = self._notes.number(self._way)
        return self._notes.happens(Received(way, self.received), "receive", way)


class _Pause(_Event):
    """An event whose time is told when it is known."""

    def __init__(self, notes: _Notes) -> None:
        super().__init__(0)
        self._notes = notes

    def happen(self, at: int, value: Any) -> None:
        self.number = self._notes.happens(None, "pause", at).number


class _Notes:
    """What routines do, in place of their environment and transport."""

    now = 0

    def __init__(self, fabric: Fabric) -> None:
        self._fabric, self._flows = fabric, dict[Way, _Flow]()
        self.env, self._noted, self._events = self, list[Any](), 0
        self._ways = dict[Way, int]()

    def told(self, routine: Any) -> Told:
        """What a routine does."""
        self._noted, self._events, self._ways = [], 0, {}
        for flow in self._flows.values():
            flow.received = 0
        self.process(routine)
        return Told(tuple(self._noted), tuple(self._ways))

    def number(self, way: Way) -> int:
        return self._ways.setdefault(way, len(self._ways))

    def note(self, *action: Any) -> None:
        self._noted.append(action)

    def happens(self, value: Any, *action: Any) -> _Event:
        self._events += 1
        self.note(*action)
        return _Event(self._events, value)

    def process(self, routine: Any) -> _Event:
        outer, self._noted, value = self._noted, [], None
        while True:
            try:
                event = routine.send(value)
            except StopIteration:
                break
            self.note("wait", event.number)
            value = event.value
        noted, self._noted = tuple(self._noted), outer
        return self.happens(None, "process", noted)

    def timeout(self, delay: int, value: Any = None) -> _Event:
        return self.happens(None, "pause", delay)

    def all_of(self, events: Sequence[_Event]) -> _Event:
        return self.happens(None, "all", *(event.number for event in events))

    def arrival(self) -> _Pause:
        return _Pause(self)

    def node_of(self, rank: int) -> int:
        return self._fabric.node_of[rank]

    def simulates(self, rank: int) -> bool:
        return True

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[_Flow, _Flow]:
        way = Way(channel.sender, channel.receiver, (channel.kind, channel.stage, lane, part))
        flow = self._flows.setdefault(way, _Flow(self, way, channel.pace))
        return flow, flow
