"""Profiles without a pipeline's schedule, imported as execution traces that run as programs.

What ranks do stays as recorded: computation takes its recorded time, a stream its order. Collectives whose sizes are
known are messages on the links of a machine, if one is given (`--machine`); else they take the recorded time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.errors import DeadlockError, UsageError
from hybrid_des.interchange.profiles import graph
from hybrid_des.interchange.profiles.chakra import ranks_of, read_chakra, write_chakra
from hybrid_des.interchange.profiles.durations import FACTOR
from hybrid_des.interchange.profiles.kineto_ranks import KinetoRanks
from hybrid_des.interchange.profiles.recognition import WHAT, Profile
from hybrid_des.measured.imports.calibrating import gpu_of
from hybrid_des.measured.imports.imported import TRACES, Imported, Unusual
from hybrid_des.measured.imports.pipelined import with_recorded
from hybrid_des.measured.replay.stragglers import Stragglers
from hybrid_des.planning.given import GivenTraces
from hybrid_des.planning.planner import parts_of_traces
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by

BUCKETS = ("bucket", "bucket_rule", "overlap", "pad")  # of gradients: traces have their own
OF_MACHINE = ("cluster", "gradients", "efficiency")
HOST = "the host: a kernel that was launched late starts as late whatever comes before it"  # unknown
LONGEST_NAME = 60  # characters of a kernel in a report


@dataclass(frozen=True)
class TraceProfile:
    """Execution traces, with what else their profile says.

    Attributes:
        traces: one per rank, or one that stands for all.
        ranks: number of ranks, if it is known.
        measured: seconds of each measured step, by its number; one of them is that of the traces, the fact `step`.
        named: the rank of each trace; None: as they come.
        linked: percentage of the device's work whose op is known.
        machine: a scenario whose cluster carries the messages; None: links take no time.
        gpu: the GPU, if the catalogue has it: on another one, durations are scaled.
        unknown, clocks, facts, tables: see `Imported`; tables are further files, but for empty ones.
        schedule: name of the schedule that the ops follow, if they are those of a pipeline.
        stragglers: who was slow, if the ops are those of a pipeline.
        further: sections of the scenario, besides; with `parallel`, every rank has its trace.
    """

    profile: Profile
    traces: Sequence[graph.RankTrace]
    ranks: int
    measured: Mapping[int, float] = field(default_factory=dict)
    named: Sequence[int] | None = None
    linked: float = 100.0
    machine: Scenario | None = None
    gpu: str | None = None
    unknown: Sequence[str] = ()
    clocks: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    stragglers: Stragglers | None = None
    further: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def distinct(self) -> Sequence[graph.RankTrace]:
        """The traces; one of them if all are the same, and ranks exchange nothing but collectives of all."""
        return self.traces[:1] if not self.further and alike(self.traces) else self.traces

    @cached_property
    def values(self) -> dict[str, Any]:
        """The scenario as in a file."""
        count = len(self.distinct)
        parallel = {"data": self.ranks} if count == 1 else {"pipeline": count}
        free = {"gpus_per_node": self.ranks, "nvlink": {"bandwidth": "inf", "latency": 0}}
        sections: dict[str, Any] = {
            "name": self.profile.name,
            "description": f"Imported from {WHAT[self.profile.format]}: {self.profile.files[0].name}",
            "cluster": free,
            "parallel": parallel,
            "workload": {"trace": TRACES, **({"transfers": "recorded"} if self.machine is None else {})},
        }
        sections = sections if self.machine is None else {**sections, **of_machine(self.machine)}
        recorded: dict[str, Any] = {} if self.gpu is None else {"recorded_on": self.gpu}
        if count == 1 and self.ranks > 1 and self.machine is None:
            recorded["recorded_ranks"] = self.ranks
        if self.gpu is not None:
            sections["cluster"] = {**sections["cluster"], "gpu": self.gpu}
        workload = {**sections["workload"], **recorded, **self.further.get("workload", {})}
        return {**sections, **self.further, "workload": workload}

    @cached_property
    def _simulated(self) -> tuple[Run, GivenTraces]:
        scenario = scenario_from(self.values)
        traces = GivenTraces(scenario, self.distinct)
        try:
            return run(scenario, parts=parts_of_traces(scenario, traces)), traces
        except DeadlockError:
            if self._unlisted is None:
                raise
            raise UsageError(f"{self.traces[0].source}: ranks wait for each other: {self._unlisted}") from None

    def imported(self) -> Imported:
        """What the import found, and the files to write."""
        simulated, _ = self._simulated
        written = {f"chakra.{rank}.et": write_chakra(trace) for rank, trace in enumerate(self.distinct)}
        return Imported(
            profile=self.profile,
            values=self.values,
            files={**written, **{name: table for name, table in self.tables.items() if len(table)}},
            measured=[*self.measured.values()] or None,
            simulated=[simulated.duration / PICOSECONDS_PER_SECOND] * max(1, len(self.measured)),
            reproduced=[*self.measured].index(self.facts["step"]) if self.measured else None,
            linked=self.linked,
            schedule=self.schedule,
            unusual=self.unusual,
            unknown=[*self.unknown, *self._lacking],
            clocks=self.clocks,
            facts={
                "ranks": self.ranks,
                "traces": len(self.traces),
                "distinct_traces": len(self.distinct),
                **self.facts,
            },
            shown=self._shown,
            stragglers=self.stragglers,
        )

    @property
    def _unlisted(self) -> str | None:
        """A sentence on process groups whose ranks are not known; None if there are none."""
        taken = "their collectives are taken as those of all ranks; expected a comm_group.json beside the traces"
        names = _listed(name for trace in self.traces for name in trace.unlisted)
        return f"the ranks of process groups {names}: {taken}" if names else None

    @property
    def unusual(self) -> list[Unusual]:
        """Computation that took longer than twice the median of its name on its rank, the longest first."""
        unusual = []
        for rank, trace in enumerate(self.distinct):
            alike = grouped_by(_computation(trace), _kind)
            usual = {kind: median(node.duration for node in nodes) for kind, nodes in alike.items()}
            unusual += [
                _unusual(node, self.named[rank] if self.named else rank, self.facts.get("step", 0), usual[_kind(node)])
                for node in _computation(trace)
                if node.duration > FACTOR * usual[_kind(node)] > 0
            ]
        return sorted(unusual, key=lambda event: -event.seconds)

    @property
    def _lacking(self) -> Iterator[str]:
        """What these traces do not say."""
        nodes = [node for trace in self.traces for node in trace.nodes]
        moving = [node for node in nodes if node.kind in (graph.COLLECTIVE, graph.SEND)]
        if self.machine is None and moving:
            yield "links: collectives take the recorded time, messages none; --machine SCENARIO gives a cluster"
        if lacking := sum(not node.size for node in moving):
            yield f"sizes of {lacking} of {len(moving)} messages and collectives"
        if self.machine is None and any(not node.duration for node in moving if node.kind == graph.COLLECTIVE):
            yield "times of collectives: those without one take no time"
        if self._unlisted is not None:
            yield self._unlisted
        if names := _listed(name for trace in self.traces for name in trace.absent):
            yield f"some ranks of process groups {names}: their collectives are those of the ranks with a trace"
        if untimed := sum(trace.untimed for trace in self.traces):
            computed = sum(node.kind == graph.COMPUTATION for node in nodes)
            yield f"durations of {untimed} of {computed} computations: they take no time (num_ops is not read)"
        if len(self.traces) == 1:
            yield "the other ranks: this one stands for all; --set parallel.data says how many there are"

    def _shown(self) -> tuple[RunAnalysis, RunAnalysis]:
        """The recorded and the simulated run; the simulated one twice if nothing is recorded."""
        simulated, traces = self._simulated
        if not any(start >= 0 for rows in traces.recorded for start, _ in rows):
            return RunAnalysis(simulated), RunAnalysis(simulated)
        return RunAnalysis(_as_recorded(simulated, traces)), RunAnalysis(simulated)


def _listed(names: Iterable[str]) -> str:
    """Some of these names, in order."""
    known = sorted({*names})
    return ", ".join(known[: graph.MOST_NAMED]) + (" …" if len(known) > graph.MOST_NAMED else "")


def _computation(trace: graph.RankTrace) -> Sequence[graph.Node]:
    work = (node for node in trace.nodes if node.kind == graph.COMPUTATION and node.stream == graph.COMPUTE)
    return [node for node in work if not node.place.get(graph.GAP) and "purpose" not in node.place]


def _kind(node: graph.Node) -> Any:
    """What computation is compared with: the same kernel, the same kind of op in the same place, or the same name."""
    facts = node.place
    if "microbatch" in facts:
        return facts.get("op_kind"), facts.get("stage"), facts.get("chunk")
    return facts.get("kernel", node.name)


def _unusual(node: graph.Node, rank: int, step: int, usual: float) -> Unusual:
    name = node.name if len(node.name) <= LONGEST_NAME else f"{node.name[: LONGEST_NAME - 1]}…"
    seconds = node.duration / PICOSECONDS_PER_SECOND
    return Unusual(name, rank, step, seconds, usual / PICOSECONDS_PER_SECOND, {"node": node.id})


def alike(traces: Sequence[graph.RankTrace]) -> bool:
    """Whether ranks do the same: equal nodes, and only collectives of all ranks."""
    everybody = tuple(range(len(traces)))
    first = traces[0]
    for trace in traces:
        if any(tuple(sorted(ranks)) != everybody for ranks in trace.groups.values()):
            return False
        if len(trace.nodes) != len(first.nodes):
            return False
        if any(node.kind in (graph.SEND, graph.RECEIVE) for node in trace.nodes):
            return False
        if trace is not first and any(_facts(a) != _facts(b) for a, b in zip(trace.nodes, first.nodes, strict=True)):
            return False
    return True


def _facts(node: graph.Node) -> tuple[Any, ...]:
    return node.kind, node.duration, tuple(node.needs), node.stream, node.size, node.does, node.group, node.place


def of_machine(machine: Scenario) -> dict[str, Any]:
    """The cluster of a scenario, with the shares of bandwidth that its links reach, and how gradients are reduced."""
    values = to_mapping(machine)
    sections = {key: dict(section) for key in OF_MACHINE if isinstance(section := values.get(key), dict)}
    sections["gradients"] = {key: value for key, value in sections.get("gradients", {}).items() if key not in BUCKETS}
    return {key: section for key, section in sections.items() if section}


def _as_recorded(simulated: Run, traces: GivenTraces) -> Run:
    """A simulated run with the recorded starts and ends of its ops in place of its own."""
    ops = simulated.timeline.ops
    each = len(traces.recorded) == simulated.scenario.parallel.ranks  # every rank has a trace of its own
    ranks = (ops["rank"] if each else simulated.timeline.pipeline_rank[ops["rank"]]).tolist()
    zero = min(start for rows in traces.recorded for start, _ in rows if start >= 0)
    start, end = ops["start"].copy(), ops["end"].copy()
    for row, (rank, index) in enumerate(zip(ranks, ops["index"].tolist(), strict=True)):
        known = traces.recorded[rank][index] if index != OPTIMIZER else (-1, -1)
        if known[0] >= 0:
            start[row], end[row] = known[0] - zero, known[1] - zero
    return with_recorded(simulated, np.asarray(start), np.asarray(end))


def chakra_profile(profile: Profile, machine: Scenario | None) -> TraceProfile:
    """Chakra traces, one file per rank.

    Raises:
        UsageError: a file is cut or is no such trace, or its nodes miss others or form a cycle.
    """
    traces = read_chakra(profile.files)
    groups = {ranks for trace in traces for ranks in trace.groups.values()}
    ranks = len(next(iter(groups))) if len(traces) == len(groups) == 1 else len(traces)
    nodes = [node for trace in traces for node in trace.nodes]
    device = [node for node in nodes if node.kind != graph.COMPUTATION or node.stream == graph.COMPUTE]
    hosted = any(node.stream.startswith("host") for node in nodes)
    linked = sum(bool(node.needs) for node in device) / max(len(device), 1) if hosted else 1.0
    named = ranks_of(profile.files)
    return TraceProfile(profile, traces, ranks, named=named, linked=100 * linked, machine=machine)


def kineto_profile(profile: Profile, job: KinetoRanks, machine: Scenario | None) -> TraceProfile:
    """Traces of PyTorch's profiler, one per rank."""
    traces = job.rank_traces()
    return TraceProfile(
        profile,
        traces,
        len(traces) if len(traces) > 1 else job.world,
        measured=job.lengths,
        named=[one.rank for one in job.traces],
        linked=sum(one.linked * len(one.start) for one in job.traces) / sum(len(one.start) for one in job.traces),
        machine=machine,
        gpu=gpu_of(job.traces[0], None),
        unknown=[*_of_other_ranks(job), *_not_recorded(job), *_apart_in_time(job), HOST],
        clocks=job.clocks,
        facts={"step": job.chosen, "steps": job.steps, "world_size": job.world,
               "measured_steps_s": [job.lengths.get(step) for step in job.steps], **job.communication,
               "kernels": job.kernels, "by_rank": job.by_rank},
        tables={"durations.csv": job.durations(), "collectives.csv": job.table()},
    )  # fmt: skip


def _of_other_ranks(job: KinetoRanks) -> Iterator[str]:
    """What only the traces of further ranks would say."""
    if 1 < len(job.traces) < job.world:
        yield f"{job.world - len(job.traces)} of {job.world} ranks: collectives wait for those with a trace only"
    several = len(job.traces) > 1
    mine = [key for key in job.collectives if key.does != graph.EXCHANGE]
    alone = sum(len(job.collectives[key]) == 1 for key in mine)
    part = sum(len(job.collectives[key]) > 1 and not job.complete(key) for key in mine)
    if alone and not several:
        yield f"transfers of {alone} collectives: one rank's kernels hold the wait for the others too"
    elif alone:
        yield f"transfers of {alone} collectives of which one rank alone has a trace: they take the recorded time"
    if part:
        yield f"transfers of {part} collectives: they hold the wait for ranks without a trace"
    if kept := sum(not several and job.group_of(key) is None for key in mine):
        yield f"the ranks of {kept} collectives: they take the recorded time, whatever parallel.data is"
    if sends := sum(key.does == graph.EXCHANGE and len(job.collectives[key]) == 1 for key in job.collectives):
        yield f"the other ends of {sends} pipeline messages: they take the recorded time"


def _not_recorded(job: KinetoRanks) -> Iterator[str]:
    """What the profiler left out, and what is assumed in its place."""
    if any(one.on_host for one in job.traces):
        yield (
            "the device: there are no kernels; outermost operators are taken as computation, gloo's annotations as "
            "communication of the group in distributedInfo, and what neither covers as gaps that stay"
        )
    if not any(one.recorded_waits for one in job.traces):
        yield "edges between streams: the profiler recorded no waits; they are inferred from starts within 60 µs"
    if not all(one.steps for one in job.traces):
        yield "where a step begins: there is no ProfilerStep, so the whole trace is one"
    elif not job.begins:
        yield "how far apart steps are: no two in a row were recorded; the step lasts from its first to its last work"
    if any(one.on_device for one in job.traces):
        yield "when kernels were launched: they belong to the step in which they ran"
    if not any(any(one.op) for one in job.traces):
        yield "which op launched a kernel: there are no annotations, and no links from forwards to backwards"
    if gpu_of(job.traces[0], None) is None and not job.traces[0].on_host:
        device = job.traces[0].device or "not named"
        yield f"the GPU ({device}): the catalogue lacks it, so kernels take as long on another cluster.gpu"


def _apart_in_time(job: KinetoRanks) -> Iterator[str]:
    """Where the clocks of ranks may differ: only a collective that both took part in tells how far."""
    if len(set(job.parts)) > 1 and not any(one.facts for one in job.traces):
        first, other = (job.traces[place].rank for place in sorted(set(job.parts))[:2])
        yield (
            f"a common clock of ranks {first} and {other}: they share no collective; steps are where their clocks say"
            + (", or begin together if those have no time in common" if any(job.corrections) else "")
        )
    if job.clocks.get("apart"):
        yield "a common clock: collectives end at different times on different ranks; ends were aligned"
