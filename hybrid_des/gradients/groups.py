"""Which GPUs add up which gradients: the groups of a scenario, their buckets, and the algorithm that they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import quickest
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.gradients.buckets import Bucket, buckets_of
from hybrid_des.gradients.reducer import Reducer, Server
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.transport import Transport
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario import Scenario
from hybrid_des.workload.costs import Costs


@dataclass(frozen=True)
class ReplicaGroup:
    """All who hold a stage, in every replica and copy of the model, and add up its gradients.

    Attributes:
        ranks: global ranks, in order.
        chunks: which of each one's chunks the stage is.
        buckets: the parts in which they do it.
    """

    stage: int
    ranks: Sequence[int]
    chunks: Sequence[int]
    buckets: Sequence[Bucket]


class Gradients:
    """The reductions of one run.

    Attributes:
        algorithm: the collective's name; for `auto` the quickest one's.
        buckets: of each stage that has gradients to add up.
    """

    def __init__(self, scenario: Scenario, plan: Plan, costs: Costs, fabric: Fabric) -> None:
        self._settings = scenario.gradients
        self._fabric = fabric
        self._sharing = scenario.cluster.sharing
        self._options = scenario.gradients.options
        self._codec = codecs.find(scenario.gradients.codec).build()
        self._spare = range(scenario.parallel.ranks, fabric.gpus)
        self._holders = self._find_holders(scenario, plan, costs)
        self.buckets = {stage: holders.buckets for stage, holders in self._holders.items()}
        self.algorithm = scenario.gradients.algorithm
        if self.algorithm == collectives.AUTO:
            self.algorithm = self._quickest()
        self._servers = {stage: self._servers_of(holders) for stage, holders in self._holders.items()}

    def of(self, transport: Transport, rank: int, stages: Sequence[int]) -> list[Reducer]:
        """What a GPU that holds these stages reduces: deepest first, as the backward pass completes them."""
        return [
            self._reducer(transport, rank, stage) for stage in sorted(stages, reverse=True) if stage in self._holders
        ]

    def servers(self, network: Transport, steps: int, lengths: Mapping[int, int]) -> list[Server]:
        """Those who serve the groups; `lengths` are those of the stages' arrays, where there are any."""
        return [
            Server(network.env, place, self._reducer(network, place, stage), steps, lengths.get(stage))
            for stage, places in self._servers.items()
            for place in places
        ]

    def _reducer(self, transport: Transport, rank: int, stage: int) -> Reducer:
        holders, servers = self._holders[stage], self._servers[stage]
        ranks, chunks = [*holders.ranks, *servers], [*holders.chunks, *(-1 for _ in servers)]
        processes = ProcessGroup(self.algorithm, stage, ranks, chunks, len(servers))
        return Reducer(
            stage,
            Group(transport, processes, processes.ranks.index(rank)),
            [bucket.elements for bucket in holders.buckets],
            self._codec,
            collectives.configured(self.algorithm, self._options),
            self._settings.error_feedback,
        )

    def _servers_of(self, holders: ReplicaGroup) -> Sequence[int]:
        site = collectives.Site(self._fabric, holders.ranks, self._spare)
        return collectives.servers_of(self.algorithm, site, self._options)

    def _find_holders(self, scenario: Scenario, plan: Plan, costs: Costs) -> dict[int, ReplicaGroup]:
        found = {}
        for stage in range(plan.stages):
            places = sorted(
                (scenario.parallel.layout.rank(data=replica, pipeline=rank), chunk)
                for replica in range(scenario.parallel.data)
                for rank, chunk in plan.holders(stage)
            )
            if len(places) > 1 and (costs.parameters[stage] or scenario.numerics):
                ranks, chunks = zip(*places, strict=True)
                gradients = scenario.gradients
                buckets = buckets_of(
                    costs.parameters[stage], self._codec, gradients.bucket, gradients.bucket_rule, stage
                )
                found[stage] = ReplicaGroup(stage, ranks, chunks, buckets)
        return found

    def _quickest(self) -> str:
        """Simulate every all-reduce once, on the largest bucket of each group, all groups at once."""
        holders = list(self._holders.values())
        if not holders:
            return "ring"
        largest = [max(bucket.elements for bucket in one.buckets) for one in holders]
        name, _ = quickest(
            self._fabric,
            [one.ranks for one in holders],
            lambda group, place: Buffer(largest[group], self._codec),
            options=self._options,
            spare=self._spare,
            sharing=self._sharing,
        )
        return name
