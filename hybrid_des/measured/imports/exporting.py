"""Programs of a scenario as Chakra execution traces: one training step, a file per rank.

Every piece of computation is a node, cut where a bucket is filled inside an op. A message is a send and a receive, a
collective one node on each member. What ranks wait for becomes a dependency. Read back (`workload.trace`), the traces
give the same step on the same machine; ASTRA-sim runs them with its own network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_des import collectives
from hybrid_des.cluster.purposes import PARAMETERS
from hybrid_des.errors import Refusal
from hybrid_des.interchange.profiles.chakra import write_chakra
from hybrid_des.interchange.profiles.graph import COLLECTIVE, COMPUTATION, RECEIVE, SEND, Node, RankTrace, nodes_of
from hybrid_des.layout import Layout
from hybrid_des.planning.fsdp import LAYERS
from hybrid_des.planning.given_collectives import GIVEN
from hybrid_des.planning.gradients import ReplicaGroup
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.program import (
    BARRIER,
    Begin,
    Block,
    Call,
    Collective,
    Compute,
    Confirm,
    End,
    Instruction,
    Join,
    Receive,
    Record,
    Send,
    Start,
    Wait,
)
from hybrid_des.report.files.staging import Written, write_whole
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.speeds import Programs

GROUPS = "comm_groups.json"  # ASTRA-sim's --comm-group-configuration
INSIDE = "collectives of layers inside ops are messages; --set tensor_traffic=replay makes them durations"
TRACED = "collectives of `workload.trace` are not written again; they are in its files"
SLOWED = "computation slowed down by collectives has no duration of its own; --set efficiency.slowed=0"
COPIED = "what copies of experts send, and steps that differ, are not written; expected experts.placement: static"
VARIES = "durations vary from step to step or during a step (slow, jitter, workload.durations)"


def write_traces(scenario: Scenario, folder: str | Path) -> Written:
    """Write the traces of all ranks into a folder, created if missing: `chakra.N.et`, and their process groups.

    Raises:
        Refusal: the scenario has something that traces cannot say.
        UsageError: the folder cannot be written.
    """
    traces = traces_of(scenario)
    old = [path.name for path in Path(folder).glob("chakra.*.et")]
    groups = {name: list(ranks) for trace in traces for name, ranks in trace.groups.items()}

    def fill(staging: Path) -> None:
        for rank, trace in enumerate(traces):
            (staging / f"chakra.{rank}.et").write_bytes(write_chakra(trace))
        text = json.dumps(dict(sorted(groups.items(), key=lambda entry: int(entry[0]))))
        (staging / GROUPS).write_text(text + "\n", encoding="utf-8")

    return write_whole(folder, fill, replaces=old)


def traces_of(scenario: Scenario) -> list[RankTrace]:
    """The traces of all ranks of a scenario.

    Raises:
        Refusal: it has something that traces cannot say.
    """
    parts = parts_of(scenario)
    if parts.slowdown is not None and parts.lowering.concurrent:
        raise Refusal(SLOWED)
    if parts.copied or parts.further:
        raise Refusal(f"{scenario.name}: {COPIED}, and one step of `experts.loads`")
    programs = Programs(scenario, parts)
    layout = scenario.parallel.layout
    nodes = scenario.cluster.nodes_of(range(layout.ranks))
    groups = _Groups(parts, layout)
    traces = []
    for rank, node in enumerate(nodes):
        program, pace = programs.of(rank, layout.coordinate(rank, "pipeline"), node.speed)
        if pace is not None:
            raise Refusal(f"{scenario.name}: a trace holds one step: {VARIES}")
        traces.append(_Exported(rank, groups).trace(program.streams, scenario.name))
    sent = {(rank, one.peer, one.tag): one.size for rank, one in nodes_of(traces, SEND)}
    for rank, received in nodes_of(traces, RECEIVE):
        received.size = sent[received.peer, rank, received.tag]
    return traces


class _Groups:
    """The process groups of a run, by number."""

    def __init__(self, parts: Parts, layout: Layout) -> None:
        self.parts, self.layout = parts, layout
        self._numbers: dict[tuple[int, ...], str] = {}
        self._of: dict[tuple[int, int, int], ReplicaGroup] = {
            (rank, group.stage, group.part): group for _, group in parts.reductions.processes for rank in group.ranks
        }

    def number(self, ranks: tuple[int, ...]) -> str:
        """The name of a group: numbers, which ASTRA-sim expects, from 1."""
        return self._numbers.setdefault(ranks, str(len(self._numbers) + 1))

    def reduced(self, rank: int, collective: Collective) -> Iterator[tuple[str, tuple[int, ...], dict[str, Any]]]:
        """What a collective of gradients or parameters does, its ranks, and the facts of its node."""
        purpose, stage, part = collective.group
        group, reductions = self._of[rank, stage, part], self.parts.reductions
        gathers = purpose == PARAMETERS.name
        kind = next(processes.kind for processes, other in reductions.processes if other is group)
        does = "all-gather" if gathers else str(collectives.find(kind).facts["does"])
        elements = group.buckets[collective.call].elements
        width = 2 if gathers else reductions.codec.bytes_per_element
        parts = len(group.ranks) if does == "all-gather" else 1
        size = -(-round(elements * width) // parts)
        yield does, tuple(group.ranks), {"size": size, "place": {"elements": elements}}

    def of_layers(self, rank: int, collective: Collective) -> Iterator[tuple[str, tuple[int, ...], dict[str, Any]]]:
        """The same of collectives of sharded layers, whose durations are known."""
        does = "all-gather" if collective.row is not None and collective.row.table == "gathers" else "reduce-scatter"
        for duration, of_part in zip(collective.call, self.parts.meeting or (), strict=True):
            ranks = next((tuple(ranks) for ranks in of_part if rank in ranks), ())
            if duration and ranks:
                yield does, ranks, {"duration": duration, "place": {"given": True}}


Need = int | tuple[str, int]  # a node, or the n-th record of an event


@dataclass
class _Stream:
    """Where a stream is.

    Attributes:
        call: the call that is read.
        op: the facts of its op, between its begin and its end.
        last: nodes that end before the next one starts.
        pending: events that are recorded so many picoseconds from now.
    """

    name: str
    call: Call = field(default_factory=lambda: Call(Block((), ())))
    op: dict[str, Any] | None = None
    last: list[Need] = field(default_factory=list)
    pending: list[tuple[int, str]] = field(default_factory=list)


class _Exported:
    """The nodes of one rank, as they are made; a wait is the n-th record of an event until all streams are done."""

    def __init__(self, rank: int, groups: _Groups) -> None:
        self._rank, self._groups = rank, groups
        self._line = groups.layout.line(rank, "pipeline")
        self._nodes: list[tuple[Node, list[Need]]] = []
        self._records: dict[str, list[list[Need]]] = {}
        self._waits: dict[str, int] = {}
        self._sent: dict[tuple[str, int], int] = {}
        self._members: dict[str, tuple[int, ...]] = {}

    def trace(self, streams: Mapping[str, tuple[Call, ...]], name: str) -> RankTrace:
        """The trace of the program."""
        for stream, calls in streams.items():
            at = _Stream(stream)
            for call in calls:
                at.call = call
                for instruction in call.block.instructions:
                    if (read := READ.get(instruction.__class__)) is not None:
                        read(self, at, instruction)
            if at.pending:
                raise Refusal(f"{name}: a bucket is filled in the middle of an op that a trace cannot cut")
        for node, needs in self._nodes:
            node.needs = tuple(sorted(self._resolved(needs)))
        return RankTrace(f"rank {self._rank} of {name}", [node for node, _ in self._nodes], self._members)

    def _resolved(self, needs: list[Need]) -> set[int]:
        resolved: set[int] = set()
        for need in needs:
            if isinstance(need, int):
                resolved.add(need)
            else:
                event, turn = need
                records = self._records.get(event, [])
                if turn < len(records):  # else of the step before
                    resolved |= self._resolved(records[turn])
        return resolved

    def _add(self, node: Node, last: list[Need]) -> int:
        node.id = len(self._nodes)
        self._nodes.append((node, [*last]))
        return node.id

    def _begin(self, at: _Stream, begin: Begin) -> None:
        at.op = {"op": max(at.call.number, -1) + 1}
        if at.call.ops:
            kind, microbatch, chunk = at.call.ops[0]
            if len(at.call.ops) == 1:
                stage = at.call.block.stages[0]
                at.op |= {"op_kind": kind, "microbatch": microbatch, "chunk": chunk, "stage": stage}
        self._begun = len(self._nodes)

    def _end(self, at: _Stream, end: End) -> None:
        if len(self._nodes) == self._begun:
            self._compute(at, Compute(0))
        at.op = None

    def _compute(self, at: _Stream, compute: Compute) -> None:
        """Nodes of computation, cut where events are recorded."""
        name = at.call.name or at.call.block.label or "optimizer"
        done = 0
        for after, event in sorted(at.pending):
            if after > compute.duration:
                break
            self._piece(after - done, name, at)
            done = after
            self._record(at, Record(event))
        at.pending = [(after - compute.duration, event) for after, event in at.pending if after > compute.duration]
        self._piece(compute.duration - done, name, at)

    def _piece(self, duration: int, name: str, at: _Stream) -> None:
        if not duration and self._nodes and at.last and at.op is None:
            return
        node = Node(0, name, COMPUTATION, duration, stream=at.name, place=at.op or {})
        at.last = [self._add(node, at.last)]

    def _message(self, at: _Stream, instruction: Receive | Send, kind: str) -> Node:
        tag = instruction.tag + at.call.ops[instruction.op].microbatch
        facts = {"purpose": instruction.purpose.name}
        return Node(0, f"{kind} {at.call.name}", kind, peer=self._line[instruction.peer], tag=tag, place=facts)

    def _receive(self, at: _Stream, receive: Receive) -> None:
        at.last = [*at.last, self._add(self._message(at, receive, RECEIVE), [])]

    def _send(self, at: _Stream, send: Send) -> None:
        node = self._message(at, send, SEND)
        node.size = send.message.size
        self._sent[send.purpose.name, node.tag] = self._add(node, at.last)

    def _confirm(self, at: _Stream, confirm: Confirm) -> None:
        at.last = [*at.last, self._sent[confirm.purpose.name, confirm.tag + at.call.ops[confirm.op].microbatch]]

    def _record(self, at: _Stream, record: Record) -> None:
        if record.after:
            at.pending.append((record.after, record.event))
        else:
            self._records.setdefault(record.event, []).append([*at.last])

    def _wait(self, at: _Stream, wait: Wait) -> None:
        turn = self._waits.get(wait.event, 0)
        self._waits[wait.event] = turn + 1
        at.last = [*at.last, (wait.event, turn)]

    def _collective(self, at: _Stream, collective: Collective) -> None:
        if collective.group == BARRIER:
            return
        if collective.group[0] == GIVEN:
            raise Refusal(TRACED)
        made = self._groups.of_layers if collective.group == LAYERS else self._groups.reduced
        for does, ranks, facts in made(self._rank, collective):
            group = self._groups.number(ranks)
            self._members[group] = ranks
            name = f"{does} of stage {collective.row.stage}" if collective.row is not None else does
            node = Node(0, name, COLLECTIVE, stream=at.name, does=does, group=group, **facts)
            at.last = [self._add(node, at.last)]

    def _inside(self, at: _Stream, instruction: Instruction) -> None:
        raise Refusal(INSIDE)


READ: Mapping[type[Instruction], Callable[[_Exported, _Stream, Any], None]] = {
    Begin: _Exported._begin, End: _Exported._end, Compute: _Exported._compute, Receive: _Exported._receive,
    Send: _Exported._send, Confirm: _Exported._confirm, Record: _Exported._record, Wait: _Exported._wait,
    Collective: _Exported._collective, Start: _Exported._inside, Join: _Exported._inside,
}  # fmt: skip
