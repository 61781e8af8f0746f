"""Replica groups: the ranks that hold each stage, their buckets, and their all-reduce."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import quickest
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.gradients.buckets import Bucket, buckets_of
from hybrid_des.gradients.reducer import Reducer, Server
from hybrid_des.layout import Layout
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.transport import Transport
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario import Gradients


@dataclass(frozen=True)
class ReplicaGroup:
    """All ranks that hold a stage, across replicas and copies of the model.

    Attributes:
        ranks: global ranks, in ascending order.
        chunks: the chunk that holds the stage on each rank.
        buckets: the buckets of the stage's gradients.
    """

    stage: int
    ranks: Sequence[int]
    chunks: Sequence[int]
    buckets: Sequence[Bucket]


def replica_groups(
    plan: Plan, layout: Layout, parameters: Sequence[int], gradients: Gradients, keep_empty: bool = False
) -> dict[int, ReplicaGroup]:
    """Find the replica group of each stage held by several ranks.

    Args:
        plan: the stages and their ranks.
        layout: the ranks of each replica.
        parameters: per stage.
        gradients: how gradients are split into buckets.
        keep_empty: whether to include stages without parameters (their arrays may still be reduced).
    """
    codec = codecs.find(gradients.codec).build()
    found = {}
    for stage, places in enumerate(zip(*plan.paths, strict=True)):  # one place per copy of the model
        held = sorted(
            (layout.rank(data=replica, pipeline=rank), chunk)
            for replica in range(layout.sizes["data"])
            for rank, chunk in places
        )
        if len(held) > 1 and (parameters[stage] or keep_empty):
            ranks, chunks = zip(*held, strict=True)
            buckets = buckets_of(parameters[stage], codec, gradients.bucket, gradients.bucket_rule, stage)
            found[stage] = ReplicaGroup(stage, ranks, chunks, buckets)
    return found


class Reductions:
    """The gradient reductions of one run.

    Attributes:
        algorithm: name of the all-reduce; for `auto` the fastest one.
        buckets: stage → its buckets, for stages whose gradients are reduced.
    """

    def __init__(
        self, gradients: Gradients, groups: Mapping[int, ReplicaGroup], fabric: Fabric, ranks: int, sharing: str
    ) -> None:
        """Choose the algorithm and its servers.

        Args:
            gradients: the algorithm, its options and the codec.
            groups: stage → its replica group.
            fabric: the wiring.
            ranks: number of ranks; they run on the first GPUs of the fabric, and the others may serve.
            sharing: how links are shared.
        """
        self._gradients = gradients
        self._fabric = fabric
        self._sharing = sharing
        self._options = gradients.options
        self._codec = codecs.find(gradients.codec).build()
        self._spare = range(ranks, fabric.gpus)
        self.buckets = {stage: group.buckets for stage, group in groups.items()}
        self.algorithm = gradients.algorithm
        if self.algorithm == collectives.AUTO:
            self.algorithm = self._quickest(list(groups.values()))
        self._processes = {stage: self._process_group(group) for stage, group in groups.items()}
        self._places = {
            stage: {rank: place for place, rank in enumerate(group.ranks)} for stage, group in self._processes.items()
        }

    def of(self, transport: Transport, rank: int) -> list[Reducer]:
        """The reducers of a rank, one per stage it holds."""
        held = [stage for stage, places in self._places.items() if rank in places]
        return [self._reducer(transport, rank, stage) for stage in held]

    def servers(self, transport: Transport, steps: int, lengths: Mapping[int, int]) -> list[Server]:
        """Start the servers; `lengths` are those of the stages' arrays, if there are any."""
        return [
            Server(transport.env, place, self._reducer(transport, place, stage), steps, lengths.get(stage))
            for stage, processes in self._processes.items()
            for place in processes.ranks[processes.size :]
        ]

    def _reducer(self, transport: Transport, rank: int, stage: int) -> Reducer:
        return Reducer(
            stage,
            Group(transport, self._processes[stage], self._places[stage][rank]),
            [bucket.elements for bucket in self.buckets[stage]],
            self._codec,
            collectives.configured(self.algorithm, self._options),
            self._gradients.error_feedback,
        )

    def _process_group(self, group: ReplicaGroup) -> ProcessGroup:
        site = collectives.Site(self._fabric, group.ranks, self._spare)
        servers = collectives.servers_of(self.algorithm, site, self._options)
        chunks = [*group.chunks, *(-1 for _ in servers)]
        return ProcessGroup(self.algorithm, group.stage, [*group.ranks, *servers], chunks, len(servers))

    def _quickest(self, groups: Sequence[ReplicaGroup]) -> str:
        """Simulate each all-reduce once, on the largest bucket of each group, all groups concurrently."""
        if not groups:
            return "ring"
        largest = [max(bucket.elements for bucket in group.buckets) for group in groups]
        name, _ = quickest(
            self._fabric,
            [group.ranks for group in groups],
            lambda group, place: Buffer(largest[group], self._codec),
            options=self._options,
            spare=self._spare,
            sharing=self._sharing,
        )
        return name
