"""Groups of replicas that seldom exchange: inner steps, and the exchange between the groups every H of them.

    step 1 ─ step 2 ─ … ─ step H ─ step H+1 ─ …            every group with weights of its own
                              └── exchange ──┤              over all replicas; due `overlap` steps later
                                             wait

Where groups share no link within a step, one inner step of one group is simulated, the slowest if they differ; else one
of all groups together (`groups_apart`). The exchange, an all-reduce of the groups' changes over all replicas, is
simulated by messages on the whole wiring, fragment by fragment. Then H inner steps are run with it: an exchange begins
when its step ends and the one before is over, and the step by which it is due waits for it. Where they overlap and use
the same links, steps and exchange are simulated together (`overlapped`), if an exchange is due before the next begins
and the steps are not too many events.

After Douillard et al., DiLoCo (arXiv 2311.08105), Streaming DiLoCo (arXiv 2501.18512); costs as in appendix A of
arXiv 2503.09799.

An exchange may be under way beside inner steps, on the links that both use. All ranks of all groups take the steps that
it overlaps, while it is under way on the same links; what is left of it after them has the links to itself. Steps and
exchanges repeat exactly if an exchange is due before the next begins.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.connections import between_all
from hybrid_des.cluster.connections import links_of as links_on
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rate import rate_of
from hybrid_des.cluster.transport import Transport
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import NOTHING, Outcome, begun
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Routine
from hybrid_des.cost_model.collective_times import CollectiveTimes, Concurrent
from hybrid_des.engine.clock import Environment, Process
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import DeadlockError
from hybrid_des.folding.refusals import TooManyMessagesError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.gradients import replica_groups
from hybrid_des.planning.links_used import connections_used
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.program_table import Column
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.scenario.composition import OMITTED, put
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.groups import ranks_of_group
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.scenario.sections.outer import Outer
from hybrid_des.simulation.jobs import links_of, network_of, started
from hybrid_des.units import PICOSECONDS_PER_SECOND, split_evenly


class Overlapped(NamedTuple):
    """Inner steps and an exchange that begin at the same time: their durations in picoseconds."""

    steps: Sequence[int]
    exchange: int


def overlapped(scenario: Scenario, whole: Parts, algorithm: str, asked: Concurrent, steps: int) -> Overlapped:
    """Simulate inner steps of all groups with one exchange.

    Args:
        scenario: the scenario, with all groups and without numerics.
        whole: its parts.
        algorithm: the all-reduce of the exchange.
        asked: its groups and sizes.
        steps: number of steps.

    Raises:
        DeadlockError: the steps or the exchange deadlock.
    """
    quiet = scenario.model_copy(update={"steps": steps, "record": "compute"})
    links = links_of(quiet, whole.fabric)
    job, ended = started(quiet, whole, network_of(quiet, whole, links)), list[int]()

    def over(_: Any) -> None:
        ended.append(links.env.now)

    network = Transport(links, Recorder(), whole.fabric)
    groups = [
        whole.times.process_group(algorithm, ranks, asked.options, stage=number)
        for number, ranks in enumerate(asked.groups)
    ]
    members = [(group, place) for group in groups for place in range(len(group.ranks))]
    processes = begun(network, collectives.configured(algorithm, asked.options), members, asked.buffer)
    for process in processes:
        process.callbacks.append(over)
    links.env.run()
    if any(one.is_alive for one in (*processes, *(each for gpu in job.gpus for each in gpu.processes))):
        raise DeadlockError("deadlock: inner steps and a synchronisation of groups of replicas wait for each other")
    return Overlapped(durations_of(job.recorder.steps.table(), steps), max(ended, default=0))


def durations_of(rows: Mapping[str, Column], steps: int) -> list[int]:
    """Picoseconds of each step, from the rows of steps of all ranks."""
    ends = [int(rows["end"][rows["step"] == step].max()) for step in range(steps)]
    return [end - before for before, end in zip([0, *ends], ends, strict=False)]


MOST_EVENTS = 2_000_000  # of the steps that are simulated with an exchange


PERIODS = 3  # simulated; the last one counts, which the first exchanges do not distort


@dataclass(frozen=True)
class OuterPeriod:
    """What exchanges cost: H inner steps and their exchanges, over and over.

    Attributes:
        groups, ranks: number of groups, and of GPUs in all of them.
        every: inner steps from one exchange to the next.
        outer: the options of the exchange.
        steps: durations of inner steps, repeated in this order, in picoseconds.
        exchanges: for each fragment, how long it takes alone and what is sent.
        least: picoseconds that all fragments take at least over the links between sites; 0 if they cross none.
        overlapped: for each fragment, the exchange with the steps that it overlaps; empty if these were not simulated.
        assumed: whether they share links nevertheless, and are assumed not to disturb each other.
    """

    groups: int
    ranks: int
    every: int
    outer: Outer
    steps: Sequence[int]
    exchanges: Sequence[Outcome]
    least: int = 0
    overlapped: Sequence[Overlapped] = ()
    assumed: bool = False

    @cached_property
    def duration(self) -> int:
        """Picoseconds of a period: H inner steps, and the time for which they wait for exchanges."""
        ends = self._ends()
        return ends[-1] - ends[-1 - self.every]

    @property
    def computing(self) -> int:
        """Picoseconds of its inner steps."""
        steps = list(islice(cycle(self.steps), PERIODS * self.every))
        return sum(steps[-self.every :])

    @property
    def step(self) -> float:
        """Picoseconds per inner step, with its part of the exchanges."""
        return self.duration / self.every

    def _ends(self) -> list[int]:
        """When each inner step is over, and what it waits for has arrived."""
        env, ends = Environment(), list[int]()
        env.process(self._train(env, ends))
        env.run()
        return ends

    def _train(self, env: Environment, ends: list[int]) -> Routine:
        due = deque[tuple[int, Process]]()
        slowed: Iterator[int] = iter(())
        for number, time in enumerate(islice(cycle(self.steps), PERIODS * self.every), start=1):
            yield env.timeout(next(slowed, time))
            for fragment, exchange in enumerate(self.exchanges):
                if number % self.every == (fragment + 1) * self.every // len(self.exchanges) % self.every:
                    before, transfer = due[-1][1] if due else None, exchange.duration
                    if self.overlapped:
                        slowed, transfer = iter(self.overlapped[fragment].steps), self.overlapped[fragment].exchange
                    due.append((number + self.outer.overlap, env.process(_exchange(env, transfer, before))))
            while due and due[0][0] <= number:
                _, exchanging = due.popleft()
                if exchanging.is_alive:
                    yield exchanging
            ends.append(env.now)

    def _alone(self, steps: int) -> int:
        return sum(islice(cycle(self.steps), steps))

    def facts(self) -> dict[str, Any]:
        """The figures by public key: seconds, bytes."""
        total = sum(one.duration for one in self.exchanges)
        return {
            "groups": self.groups,
            "ranks": self.ranks,
            "every": self.every,
            "algorithm": self.outer.algorithm,
            "codec": self.outer.codec,
            "fragments": len(self.exchanges),
            "overlap_steps": self.outer.overlap,
            "exchange_s": total / PICOSECONDS_PER_SECOND,
            "exchange_bound_s": self.least / PICOSECONDS_PER_SECOND,
            "slowed_s": sum(sum(one.steps) - self._alone(len(one.steps)) for one in self.overlapped)
            / PICOSECONDS_PER_SECOND,
            "contention": "assumed none" if self.assumed else "simulated" if self.overlapped else "none",
            "exposed_s": (self.duration - self.computing) / PICOSECONDS_PER_SECOND,
            "period_s": self.duration / PICOSECONDS_PER_SECOND,
            "mean_step_s": self.step / PICOSECONDS_PER_SECOND,
            "utilisation": self.computing / self.duration if self.duration else 1.0,
            "bytes_exchange": sum(one.bytes + one.scales for one in self.exchanges),
            "messages_exchange": sum(one.messages for one in self.exchanges),
        }


def _exchange(env: Environment, duration: int, before: Process | None) -> Routine:
    """Exchange a fragment after the one before."""
    if before is not None and before.is_alive:
        yield before
    yield env.timeout(duration)


def inner_of(scenario: Scenario, group: int = 0) -> Scenario:
    """One group of replicas as a scenario by itself, on its GPUs of its site."""
    values = to_mapping(scenario.model_copy(update={"numerics": None, "faults": None}))
    each = scenario.parallel.data // scenario.outer_groups
    put(values, ("parallel", "data"), each, scenario.name)
    for keys in (("batch",), ("gradients", "every"), ("gradients", "outer"), ("cluster", "sites"), ("cluster", "wan")):
        put(values, keys, OMITTED, scenario.name)
    placement = scenario.cluster.placement
    gpus = [placement[rank] for rank in ranks_of_group(scenario.parallel, scenario.outer_groups, group)]
    inner = scenario_from(values, scenario.name).part(group * each)
    first = gpus == [*range(len(gpus))]  # further GPUs may host servers, and the wiring keeps its blocks
    return inner if first and group == 0 else inner.placed(gpus)


def alike(scenario: Scenario) -> bool:
    """Whether all groups take the same time: the nodes are of one kind, and none is slow or varies."""
    return len(scenario.cluster.kinds) == 1 and not scenario.slow and not scenario.jitter and not scenario.background


def groups_apart(scenario: Scenario) -> list[tuple[Scenario, Parts]]:
    """The groups to simulate one by one, with their parts: the first for all that are alike; none if they share links.

    Messages of one group may wait for those of another where both have a link on their routes that is not infinitely
    fast, and background traffic that one delays may delay another. Servers may be on GPUs of other groups.

    Raises:
        Refusal: the schedule, the topology or the all-reduce does not support a group.
    """
    count, user = scenario.outer_groups, dict[str, int]()
    if scenario.background:
        return []
    made = [inner_of(scenario, group) for group in range(1 if alike(scenario) else count)]
    groups, fabric = [(inner, parts_of(inner)) for inner in made], fabric_of(scenario)
    sends = [{(flow.sender, flow.receiver) for flow in connections_used(*group)} for group in groups]
    for group in range(count):
        ranks = ranks_of_group(scenario.parallel, count, group)
        for ends in sends[min(group, len(sends) - 1)]:
            if max(ends) >= len(ranks):
                return []
            for link in fabric.route(*(ranks[end] for end in ends)).links:
                if user.setdefault(link, group) != group and fabric.links[link].bandwidth is not None:
                    return []
    return groups


class InnerSteps(NamedTuple):
    """Inner steps that have been simulated.

    Attributes:
        plan: their schedule.
        parts: per stage, the parameters of a tensor rank outside experts and in experts.
        steps: their durations in picoseconds.
        links: what their messages used.
        events: of one step of all groups.
    """

    plan: Plan
    parts: Sequence[tuple[int, int]]
    steps: Sequence[int]
    links: Collection[str]
    events: int


def period_of(scenario: Scenario, fabric: Fabric, inner: InnerSteps) -> OuterPeriod:
    """The period of a scenario on this wiring, with all groups, whose inner steps have been simulated.

    Raises:
        Refusal: the all-reduce does not support the replicas, or is too large to simulate.
    """
    outer = scenario.gradients.outer or Outer()
    gradients = scenario.gradients.model_copy(update={"codec": outer.codec, "bucket": None, "bucket_rule": "stage"})
    groups = replica_groups(inner.plan, scenario.parallel.layout, inner.parts, gradients)
    times, codec = times_of(scenario, fabric), codecs.find(outer.codec).build()
    sizes = [split_evenly(sum(bucket.elements for bucket in group.buckets), outer.fragments) for group in groups]
    fragments = zip(*sizes, strict=True) if sizes else [()] * outer.fragments  # without parameters, nothing is sent
    asked = [Concurrent([group.ranks for group in groups], elements, codec) for elements in fragments]
    outer, outcome = _exchanges(times, outer, asked)
    least = sum(_least(scenario, one) for one in asked)
    period = OuterPeriod(
        scenario.outer_groups, scenario.parallel.ranks, gradients.every, outer, inner.steps, outcome, least
    )
    flows = chain.from_iterable(between_all(outer.algorithm, ranks) for ranks in asked[0].groups)
    if not outer.overlap or not links_on(times.fabric, flows) & {*inner.links}:
        return period
    if (done := _all_overlapped(scenario, inner, period, asked, times.fabric)) is None:
        return replace(period, assumed=True)
    return replace(period, overlapped=done)


def _exchanges(times: CollectiveTimes, outer: Outer, asked: Sequence[Concurrent]) -> tuple[Outer, list[Outcome]]:
    """The options with the all-reduce that is taken, and the exchange of each fragment by it.

    `auto` is the fastest for the first fragment, which no other exceeds, or a ring if some are too large to try.
    """
    name, done = outer.algorithm, dict[tuple[int, ...], Outcome]()
    if name == collectives.AUTO:
        name = "ring"
        if any(asked[0].elements):
            with suppress(TooManyMessagesError):
                name, done[tuple(asked[0].elements)] = times.fastest(asked[0])
    for sizes in asked:  # evenly split fragments have at most two sizes
        if (key := tuple(sizes.elements)) not in done:
            done[key] = times.of(name, sizes) if any(key) else NOTHING
    return outer.model_copy(update={"algorithm": name}), [done[tuple(one.elements)] for one in asked]


def _least(scenario: Scenario, asked: Concurrent) -> int:
    """Picoseconds that groups at several sites take at least for their all-reduces over the links between these.

    Each site's sums must reach the others, and those of the others this site: a buffer of every group over all links
    from a site, and one over those to it.
    """
    cluster = scenario.cluster
    sites = {cluster.site_of[cluster.node_of(rank)] for group in asked.groups[:1] for rank in group}
    if len(sites) < 2 or cluster.wan is None:
        return 0
    size = sum(Buffer(elements, asked.codec).bytes for elements in asked.elements)
    port = cluster.wan.port
    return rate_of(port.bandwidth)[size // (len(sites) - 1)] + port.latency if size else 0


def _all_overlapped(
    scenario: Scenario, inner: InnerSteps, period: OuterPeriod, asked: Sequence[Concurrent], fabric: Fabric
) -> list[Overlapped] | None:
    """The exchange of each fragment with the steps that it overlaps; None if these cannot be simulated together."""
    every, fragments, overlap = period.every, len(asked), period.outer.overlap
    between = min((part + 1) * every // fragments - part * every // fragments for part in range(fragments))
    likely = [min(-(-one.duration // max(min(inner.steps), 1)) + 1, overlap) for one in period.exchanges]
    if scenario.numerics or overlap > between or inner.events * max(likely) > MOST_EVENTS:
        return None
    whole, made = parts_of(scenario, fabric=fabric), dict[tuple[int, ...], Overlapped]()
    for sizes, count in zip(asked, likely, strict=True):  # evenly split fragments have at most two sizes
        key, steps = tuple(sizes.elements), count
        while key not in made:
            tried = overlapped(scenario, whole, period.outer.algorithm, sizes, steps)
            if tried.exchange <= sum(tried.steps) or steps == overlap:
                made[key] = tried
            steps = min(2 * steps, overlap)
    return [made[tuple(one.elements)] for one in asked]
