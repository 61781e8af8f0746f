"""Collectives of execution traces: what each of them moves, and between which ranks of the scenario's layout.

Some take their recorded times, in proportion on another number of ranks. A ring of n ranks sends 2(n − 1)/n of a buffer
around in an all-reduce, (n − 1)/n in an all-gather, a reduce-scatter or an all-to-all (Patarasuk and Yuan, Journal of
Parallel and Distributed Computing 69, 2009; `busbw` of nccl-tests). With the same bytes and links, times are in these
ratios. Latencies, and links between more nodes, are not in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.purposes import EXPERT, PARAMETERS
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.cost_model.collective_times import SIXTEEN_BITS, CollectiveTimes, Concurrent
from hybrid_des.interchange.profiles.graph import COLLECTIVE, EVERYBODY, EXCHANGE, Node, RankTrace, purpose_of, repeated
from hybrid_des.planning.program import Group
from hybrid_des.scenario.definition import Scenario

AROUND = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")  # what moves (n − 1)/n of a buffer


def scale_of(does: str, recorded: int | None, ranks: int) -> Fraction:
    """Time of a collective on so many ranks, over that on the recorded number; 1 if that is not known."""
    if does not in AROUND or recorded is None or recorded < 2 or ranks < 2:
        return Fraction(1)
    return Fraction(ranks - 1, ranks) / Fraction(recorded - 1, recorded)


def recorded_time(node: Node, traces: int, scenario: Scenario) -> int:
    """Picoseconds of a collective that takes its recorded time, in a scenario of so many traces; 0: it is simulated."""
    workload = scenario.workload
    assert workload is not None
    kept = workload.transfers == "recorded" or bool(node.place.get("given"))
    if not node.duration or (node.size and not kept):
        return 0
    recorded = traces if traces > 1 else workload.recorded_ranks
    scale = scale_of(node.does, recorded, scenario.parallel.ranks) if node.group == EVERYBODY else 1
    return round(node.duration * scale)


GIVEN = "given"  # the key of groups of traces
RINGS = "ring-reduce-scatter", "ring-all-gather"
GATHERED, SCATTERED = ("broadcast", "gather", EXCHANGE), ("reduce", "scatter")  # a broadcast moves what a gather moves
GATHERS = ("all-gather", "gather", EXCHANGE)  # each member's input is a part of what moves


class GivenCollective(NamedTuple):
    """One collective of a trace: the buffer of a member; or how long its members meet."""

    elements: int
    codec: str
    duration: int | None = None


@dataclass(frozen=True)
class GivenGroup:
    """A process group of a trace that does one kind of thing.

    Attributes:
        key, processes: in programs, and its members.
        calls: its collectives, distinct ones.
        algorithm, options: what carries them; none if they are replayed.
    """

    key: Group
    processes: ProcessGroup
    calls: Sequence[GivenCollective]
    algorithm: str
    options: Any

    @property
    def replayed(self) -> bool:
        """Whether members only meet, and the recorded time passes."""
        return not self.algorithm

    def buffer(self, call: GivenCollective) -> Buffer:
        """A member's buffer, of sizes only."""
        return Buffer(call.elements, codecs.find(call.codec).build())


class GroupKey(NamedTuple):
    """What tells the communicators of traces apart."""

    group: str
    does: str
    replayed: bool


@dataclass
class GivenCollectives:
    """The collectives of the traces of a scenario.

    Attributes:
        scenario: its machine, and how collectives run.
        traces: of every rank, or one for all.
    """

    scenario: Scenario
    traces: Sequence[RankTrace]

    @cached_property
    def calls(self) -> Mapping[GroupKey, Mapping[GivenCollective, None]]:
        """The distinct calls of each communicator, in the order of the traces."""
        calls: dict[GroupKey, dict[GivenCollective, None]] = {}
        for trace in self.traces:
            for node in trace.nodes:
                if node.kind == COLLECTIVE and node.does != "barrier":
                    key, call = self.call_of(node)
                    calls.setdefault(key, {}).setdefault(call)
        return calls

    @property
    def keys(self) -> dict[GroupKey, Group]:
        """The key of each communicator in programs."""
        return {key: (GIVEN, 0, place) for place, key in enumerate(self.calls)}

    def call_of(self, node: Node) -> tuple[GroupKey, GivenCollective]:
        """The communicator and the call of a collective.

        Raises:
            UsageError: neither its size nor its time is known.
        """
        if took := recorded_time(node, len(self.traces), self.scenario):
            return GroupKey(node.group, node.does, True), GivenCollective(0, "", took)
        codec = SIXTEEN_BITS if purpose_of(node.does) in (PARAMETERS, EXPERT) else self.scenario.gradients.codec
        elements = node.place.get("elements")
        if elements is None:
            parts = max(map(len, self._members(node.group))) if node.does in GATHERS else 1
            elements = -(-node.size * parts // int(codecs.find(codec).build().bytes_per_element))
        return GroupKey(node.group, node.does, False), GivenCollective(int(elements), codec)

    def several(self, group: str) -> bool:
        """Whether a group has several members in this layout."""
        return any(len(ranks) > 1 for ranks in self._members(group))

    def groups(self, times: CollectiveTimes) -> list[GivenGroup]:
        """The process groups, each with the members it has in the scenario's layout."""
        algorithms = self._algorithms(times)
        groups = []
        for part, (key, calls) in enumerate(self.calls.items()):
            name, options = "" if key.replayed else algorithms[key.does], self.scenario.gradients.options
            for ranks in self._groups_of(key):
                if key.replayed:
                    processes = ProcessGroup(key.does, 0, ranks, (-1,) * len(ranks), part=part)
                else:
                    processes = times.process_group(name, ranks, options, stage=0, part=part)
                processes = replace(processes, purpose=purpose_of(key.does))
                groups.append(GivenGroup((GIVEN, 0, part), processes, tuple(calls), name, options))
        return groups

    def _algorithms(self, times: CollectiveTimes) -> Mapping[str, str]:
        """What carries each kind of collective, by `gradients.algorithm`: NCCL's are all NCCL's."""
        gradients, name = self.scenario.gradients, self.scenario.gradients.algorithm
        if name == collectives.AUTO:
            halves = all(key.replayed or key.does != "all-reduce" for key in self.calls)
            largest = {
                tuple(ranks): max(call.elements for call in calls)
                for key, calls in self.calls.items()
                for ranks in self._groups_of(key)
                if not key.replayed and key.does == ("reduce-scatter" if halves else "all-reduce")
            }
            codec = codecs.find(gradients.codec).build()
            asked = Concurrent([*largest], [*largest.values()], codec, gradients.options)
            name = times.fastest(asked, halves=halves)[0] if largest else "ring"
        scatter, gather = collectives.phases_of(name) or RINGS
        of_library = bool(collectives.find(name).facts["tuned"])
        others = (gather, scatter) if of_library else RINGS[::-1]
        return {
            **dict.fromkeys(GATHERED, others[0]),
            **dict.fromkeys(SCATTERED, others[1]),
            "all-reduce": name,
            "reduce-scatter": scatter,
            "all-gather": gather,
            "all-to-all": "nccl-all-to-all" if of_library else "all-to-all",
        }

    def _groups_of(self, key: GroupKey) -> Sequence[Sequence[int]]:
        """The ranks of each group of a communicator that has several members."""
        return [ranks for ranks in self._members(key.group) if len(ranks) > 1]

    @cached_property
    def _members(self) -> Callable[[str], Sequence[Sequence[int]]]:
        """The ranks of a group, found once."""
        return cache(self._ranks_of)

    def _ranks_of(self, group: str) -> Sequence[Sequence[int]]:
        """The ranks of a group; of a single trace, it and its likes among all ranks."""
        layout = self.scenario.parallel.layout
        named = next((trace.groups[group] for trace in self.traces if group in trace.groups), ())
        if group == EVERYBODY or not named:
            return [range(layout.ranks)]
        if len(self.traces) > 1:
            return [tuple(rank for rank in named if rank < layout.ranks)]
        return repeated(named, layout.ranks)
