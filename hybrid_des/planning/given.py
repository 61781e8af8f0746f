"""Programs from execution traces: the nodes of every rank, lowered to streams of instructions.

Computation of the first stream is shown as ops. A message is received by the first op that needs it, and sent after the
op that it needs; a node that needs one of another stream waits for an event. Work of a stream stays in its order.

`GivenPrograms` are any programs that came from elsewhere, such as a profile or an execution trace, one per pipeline
rank or per rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.cluster.gpus import factors, work_of
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import ACTIVATION, PARAMETERS, Purpose, purpose_named
from hybrid_des.engine.recorder import BEFORE
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.chakra import read_chakra
from hybrid_des.interchange.profiles.graph import (
    COLLECTIVE,
    COMPUTATION,
    RECEIVE,
    SEND,
    Node,
    RankTrace,
    Tags,
    nodes_of,
    purpose_of,
)
from hybrid_des.interchange.profiles.recognition import CHAKRA, WHAT, recognized
from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.given_collectives import GivenCollectives, GroupKey
from hybrid_des.planning.program import (
    ASIDE,
    COMPUTE,
    GRADIENT,
    Begin,
    Call,
    Cause,
    Collective,
    Compute,
    ComputeSpeed,
    Confirm,
    End,
    Group,
    Instruction,
    Program,
    Receive,
    Record,
    Row,
    Send,
    Wait,
    block_of,
    call_of,
    program_of,
    waiting_for,
)
from hybrid_des.planning.program_table import table_of
from hybrid_des.scenario.definition import Scenario


@dataclass(frozen=True)
class GivenPrograms:
    """Programs that came from elsewhere; `Lowering` answers the same.

    Attributes:
        programs: one per pipeline rank; or one per rank.
        pipeline: number of pipeline ranks.
    """

    programs: Sequence[Program]
    pipeline: int

    @property
    def each(self) -> bool:
        """Whether every rank has a program of its own."""
        return len(self.programs) > self.pipeline

    @property
    def blocking(self) -> bool:
        """Whether some wait until their messages have arrived."""
        return any(call.block.every(Confirm) for program in self.programs for call in program.calls)

    @property
    def microbatches(self) -> int:
        """Number of micro-batches per replica and training step."""
        return table_of(self.programs).microbatches

    @property
    def pairs(self) -> Collection[tuple[int, int]]:
        """The pipeline ranks that send to each other."""
        calls = ((place, call) for place, program in enumerate(self.programs) for call in program.calls)
        return {(place, send.peer) for place, call in calls for send in call.block.every(Send)}

    def chunks(self, rank: int) -> Mapping[int, int]:
        """Stage → its chunk, for the stages that a pipeline rank holds."""
        calls = self.programs[rank].rows
        return {stage: op.chunk for call in calls for stage, op in zip(call.block.stages, call.ops, strict=True)}

    def nominal_durations(self, rank: int, lane: int = 0) -> Callable[[Op, int], int]:
        """The picoseconds of each op of a pipeline rank in a step at speed 1."""
        durations = {op: call.duration for call in self.programs[rank].rows for op in call.ops}
        return lambda op, step: durations[op]

    def lower(self, rank: int, pace: ComputeSpeed, lane: int = 0) -> Program:
        """The program of a pipeline rank at a pace."""
        return self.programs[rank].lasting(lambda call, duration: pace.duration(duration))

    def serve(self, group: Group, rank: int, lane: int = 0) -> Program:
        """The program of an endpoint that serves a process group, with the collectives of a member's program."""
        blocks = (call.block for call in self.programs[rank].calls)
        serves = [replace(one, row=None, cause=None) for block in blocks for one in block.every(Collective)
                  if one.group == group]  # fmt: skip
        return Program({GRADIENT: (call_of(*serves, stages=(0,)),)})


@dataclass
class GivenTraces:
    """The traces of a scenario.

    Attributes:
        scenario: its machine, and how collectives run.
        traces: of every rank, or one for all.
        recorded: rank → start and end of every op in its trace, once the programs are made.
    """

    scenario: Scenario
    traces: Sequence[RankTrace]
    recorded: list[list[tuple[int, int]]] = field(default_factory=list)

    @classmethod
    def of(cls, scenario: Scenario) -> GivenTraces:
        """Read the traces that a scenario names.

        Raises:
            UsageError: they cannot be read, or do not fit its layout.
        """
        assert scenario.workload is not None and scenario.workload.trace is not None
        traces = traces_at(scenario.workload.trace)
        parallel = scenario.parallel
        if len(traces) not in (parallel.pipeline, parallel.ranks) or parallel.ranks > len(traces) > 1:
            expected = f"one for all, or one for each of {parallel.ranks} ranks"
            raise UsageError(f"{scenario.workload.trace}: traces of {len(traces)} ranks; expected {expected}")
        return cls(scenario, traces)

    @cached_property
    def collectives(self) -> GivenCollectives:
        """What the collectives of the traces move, and between which ranks."""
        return GivenCollectives(self.scenario, self.traces)

    @cached_property
    def programs(self) -> list[Program]:
        """The program of every trace.

        Raises:
            UsageError: replicas have different ops, or a message has only one end.
        """
        tags = Tags(self.traces)
        keys = self.collectives.keys
        made = [_Lowered(self, rank, trace, tags, keys) for rank, trace in enumerate(self.traces)]
        self.recorded = [one.recorded for one in made]
        self._check_replicas()
        return [one.program for one in made]

    def _check_replicas(self) -> None:
        """Refuse replicas that do different things: reports show one table of ops for all of them."""
        layout, counts = self.scenario.parallel.layout, list(map(len, self.recorded))
        if layout.ranks > self.scenario.parallel.pipeline and any(nodes_of(self.traces, SEND)):
            raise UsageError(f"{self.traces[0].source}: ranks send messages to each other; expected parallel.data 1")
        for rank, count in enumerate(counts if len(counts) == layout.ranks else ()):
            first = layout.line(rank, "data")[0]
            if count != counts[first]:
                source = self.traces[rank].source
                raise UsageError(f"{source}: {count} ops, rank {first} has {counts[first]}; expected parallel.data 1")

    def duration_of(self, node: Node, rank: int) -> int:
        """Picoseconds of computation on the GPU of a rank."""
        work = None if node.place.get("gap") or not self._factors else work_of(node.name)
        return node.duration if work is None else round(node.duration * self._factors[rank][work])

    @cached_property
    def _factors(self) -> list[Mapping[str, Fraction]]:
        """Rank → what recorded durations are multiplied with on its GPU; empty if they are kept."""
        workload = self.scenario.workload
        recorded = None if workload is None else workload.recorded_on
        gpus = self.scenario.cluster.gpus_of(range(len(self.traces)))
        if recorded is None or all(gpu.name == recorded for gpu in gpus):
            return []
        return [factors(recorded, gpu) for gpu in gpus]

    @cached_property
    def blocking(self) -> bool:
        """Whether some node waits until a message has arrived."""
        sent = [{node.id for node in trace.nodes if node.kind == SEND} for trace in self.traces]
        return any(not ids.isdisjoint(node.needs) for ids, trace in zip(sent, self.traces, strict=True)
                   for node in trace.nodes)  # fmt: skip


def traces_at(target: Path) -> list[RankTrace]:
    """The execution traces in a folder, or in the files that match a pattern.

    Raises:
        UsageError: they are of another kind, or broken.
    """
    profile = recognized(target)
    if profile.format != CHAKRA:
        raise UsageError(f"{target}: {WHAT[profile.format]}; expected {WHAT[CHAKRA]}: hybrid-des import makes one")
    return read_chakra(profile.files)


PLAIN = Op("F", 0)  # what computation without a micro-batch counts as
ASIDE_STREAM = "communication"  # of what the trace has between ops, with ranks that are not known
Slot = list[Instruction]  # what a node does, and the events that it records then


@dataclass(slots=True)
class _Item:
    """What becomes one call: slots before an op begins, inside of it, and after it.

    Attributes:
        row: whether it is an op that is shown.
        number: tells which pieces are one op; None: this one is whole.
        recorded: start and end in the trace, in picoseconds; −1 if they are not known.
        received: number of messages that it receives.
    """

    name: str
    before: list[Slot] = field(default_factory=list)
    body: list[Slot] = field(default_factory=list)
    after: list[Slot] = field(default_factory=list)
    row: bool = False
    op: Op = PLAIN
    stage: int = 0
    number: Any = None
    recorded: tuple[int, int] = (-1, -1)
    received: int = 0

    def relative(self, tag: int) -> int:
        """A tag as blocks have it: for micro-batch 0."""
        return tag - self.op.microbatch

    def call(self, number: int) -> Call:
        """Its call."""
        before, body, after = (itertools.chain.from_iterable(slots) for slots in (self.before, self.body, self.after))
        inside = (Begin(), *body, End()) if self.row else body
        label = self.name if self.row else ""
        return Call(block_of((self.stage,), *before, *inside, *after, label=label), number, (self.op,))


class _Place(NamedTuple):
    """Where a node is done: its stream, its slot, and its turn among all nodes of the rank."""

    stream: str
    slot: Slot
    turn: int


class _Lowered:
    """The program of one rank, as it is made."""

    def __init__(
        self, traces: GivenTraces, rank: int, trace: RankTrace, tags: Tags, keys: Mapping[GroupKey, Group]
    ) -> None:
        self._traces, self._rank, self._tags, self._keys = traces, rank, tags, keys
        self._of = {node.id: node for node in trace.nodes}
        self._items: dict[str, list[_Item]] = {COMPUTE: []}
        self._at: dict[int, _Place] = {}  # where each node is done; a message has been sent there
        self._arrived: dict[int, _Place] = {}  # where a message that was sent is known to have arrived
        self._known: dict[tuple[str, str], int] = {}  # (stream, other) → the latest turn there that it has waited for
        self._turns: dict[tuple[int, int, int], int] = {}
        self._tag_of = {node.id: self._tag(node) for node in trace.nodes if node.kind in (SEND, RECEIVE)}
        for node in trace.nodes:
            if node.kind != RECEIVE:
                self._add(node)
        self._finish(trace)

    def _tag(self, node: Node) -> int:
        ends = (self._rank, node.peer) if node.kind == SEND else (node.peer, self._rank)
        key = (*ends, node.tag)
        turn = self._turns[key] = self._turns.get(key, -1) + 1
        return self._tags(*ends, node.tag, turn)

    @property
    def program(self) -> Program:
        """The program: the first stream with its ops, and the others."""
        rows = itertools.count()
        calls = {
            name: [item.call(next(rows) if item.row else ASIDE) for item in items]
            for name, items in self._items.items()
        }
        return program_of(calls.pop(COMPUTE), calls, barrier=self._traces.scenario.barrier)

    @property
    def recorded(self) -> list[tuple[int, int]]:
        """Start and end of every op in the trace."""
        return [item.recorded for item in self._items[COMPUTE] if item.row]

    def _add(self, node: Node) -> None:
        """Append a node to its stream."""
        if _communicates(node) and node.stream == COMPUTE:
            self._communicate(node)
        elif node.kind == COMPUTATION:
            self._compute(node)
        elif node.kind == SEND:
            self._send(node)
        elif node.does != "barrier":
            self._collective(node)
        else:
            stream = node.stream or COMPUTE
            slot: Slot = []
            self._append(stream, _Item(node.name, body=[slot]), node)
            self._place(node, stream, slot)

    def _append(self, stream: str, item: _Item, node: Node) -> None:
        """Append what becomes a call, which waits for what the node needs."""
        item.before = self._needs(node, stream, item)
        self._items.setdefault(stream, []).append(item)

    def _communicate(self, node: Node) -> None:
        """Communicate for the recorded time on a stream of its own, for which the ops wait."""
        begun, done, slot = f"{node.id} begins", f"{node.id} ends", list[Instruction]()
        work = [Wait(begun), Compute(self._traces.duration_of(node, self._rank)), Record(done)]
        self._items.setdefault(ASIDE_STREAM, []).append(_Item(node.name, body=[work]))
        slot += [Record(begun), Wait(done, _cause(node))]
        self._append(COMPUTE, _Item(node.name, body=[slot]), node)
        self._place(node, COMPUTE, slot)

    def _compute(self, node: Node) -> None:
        stream, number = node.stream, node.place.get("op")
        slot: Slot = [Compute(self._traces.duration_of(node, self._rank))]
        last = self._items[stream][-1] if self._items.get(stream) else None
        if node.place.get("gap"):  # time that passes, but is no work
            self._append(stream, _Item(node.name, body=[slot]), node)
        elif last is not None and number is not None and last.number == number:
            last.body += [*self._needs(node, stream, last), slot]  # a further piece of an op
            last.recorded = last.recorded[0], _end(node)
        else:
            facts = node.place
            made = _Item("" if "op_kind" in facts and not facts.get("named") else node.name, body=[slot])
            made.row, made.number, made.stage = stream == COMPUTE, number, int(facts.get("stage", 0))
            made.op = Op(facts.get("op_kind", "F"), int(facts.get("microbatch", 0)), int(facts.get("chunk", 0)))
            made.recorded = node.start, _end(node)
            self._append(stream, made, node)
        self._place(node, stream, slot)

    def _send(self, node: Node) -> None:
        """Send after the op that it needs; if it waits for anything else, after an op of no duration."""
        stream = node.stream or COMPUTE
        made = _Item(node.name, body=[[Compute(0)]], row=stream == COMPUTE)
        made.before = self._needs(node, stream, made)
        if made.before or not self._items.get(stream):
            self._items.setdefault(stream, []).append(made)
        last = self._items[stream][-1]
        slot: Slot = [Send(0, node.peer, _purpose(node), last.relative(self._tag_of[node.id]), Message(node.size))]
        last.after.append(slot)
        self._place(node, stream, slot)

    def _collective(self, node: Node) -> None:
        key, call = self._traces.collectives.call_of(node)
        stream = node.stream or f"{node.does} {node.group}".strip()
        table = "gathers" if purpose_of(node.does) == PARAMETERS else "reductions"
        row, cause = Row(table, 0, len(self._items.get(stream, ()))), _cause(node) if stream == COMPUTE else None
        does = (call.duration,) if key.replayed else call
        slot: Slot = (
            [Collective(self._keys[key], does, row, cause)] if self._traces.collectives.several(key.group) else []
        )
        self._append(stream, _Item(node.name, body=[slot]), node)
        self._place(node, stream, slot)

    def _place(self, node: Node, stream: str, slot: Slot) -> None:
        self._at[node.id] = _Place(stream, slot, len(self._at) + len(self._arrived) + 1)

    def _needs(self, node: Node, stream: str, item: _Item) -> list[Slot]:
        """What a node of a stream waits for in an item."""
        slots: list[Slot] = []
        for need in node.needs:
            other = self._of[need]
            if other.kind == RECEIVE and need not in self._at:
                slots += self._receive(other, stream, item)
                continue
            position = self._at[need]
            if other.kind == SEND:
                if need not in self._arrived:
                    slots.append(self._confirm(other, stream, item))
                    continue
                position = self._arrived[need]
            if position.stream != stream and self._known.get((stream, position.stream), 0) < position.turn:
                self._known[stream, position.stream] = position.turn
                event = f"{need} for {node.id}"
                position.slot.append(Record(event))
                slots.append([Wait(event, _cause(other) if stream == COMPUTE else None)])
        return slots

    def _receive(self, node: Node, stream: str, item: _Item) -> list[Slot]:
        needs = self._needs(node, stream, item)
        tag = item.relative(self._tag_of[node.id])
        slot: Slot = [Receive(item.received, 0, node.peer, _purpose(node), tag)]
        item.received += 1
        self._items.setdefault(stream, [])
        self._place(node, stream, slot)
        return [*needs, slot]

    def _confirm(self, node: Node, stream: str, item: _Item) -> Slot:
        """Wait until a message has arrived."""
        slot: Slot = [Confirm(0, _purpose(node), item.relative(self._tag_of[node.id]))]
        self._arrived[node.id] = _Place(stream, slot, len(self._at) + len(self._arrived) + 1)
        return slot

    def _finish(self, trace: RankTrace) -> None:
        """At the end, receive what nothing needs, and confirm what nothing waited for."""
        end = _Item("end", body=[[Compute(0)]], row=True)
        for node in trace.nodes:
            if node.kind == RECEIVE and node.id not in self._at:
                end.before += self._receive(node, COMPUTE, end)
        if self._traces.blocking:
            left = [node for node in trace.nodes if node.kind == SEND and node.id not in self._arrived]
            end.before += [self._confirm(node, COMPUTE, end) for node in left]
        compute = self._items[COMPUTE]
        if end.before:
            compute.append(end)
        if not any(item.row for item in compute):  # reports show at least one op of each rank
            compute.append(_Item("no computation", body=[[Compute(0)]], row=True))


def _cause(node: Node) -> Cause | None:
    """Why another node waits for this one, if that is shown."""
    if node.kind == COLLECTIVE:
        return waiting_for(purpose_of(node.does), BEFORE)
    return waiting_for(_purpose(node), BEFORE) if _communicates(node) else None


def _communicates(node: Node) -> bool:
    """Whether a computation is communication with ranks that are not known."""
    return node.kind == COMPUTATION and "purpose" in node.place


def _purpose(node: Node) -> Purpose:
    return purpose_named(node.place.get("purpose", ACTIVATION.name))


def _end(node: Node) -> int:
    return node.start + node.duration if node.start >= 0 else -1
