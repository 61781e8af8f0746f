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
    """All ranks that hold the same part of a stage, across replicas, context ranks and copies of the model.

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
) -> list[ReplicaGroup]:
    """Find the replica groups of each stage: one for every tensor rank, where several ranks hold its part.

    Args:
        plan: the stages and their ranks.
        layout: the ranks of each replica.
        parameters: per stage and tensor rank.
        gradients: how gradients are split into buckets.
        keep_empty: whether to include stages without parameters (their arrays may still be reduced).
    """
    codec = codecs.find(gradients.codec).build()
    found = []
    for stage, places in enumerate(zip(*plan.paths, strict=True)):  # one place per copy of the model
        if not (parameters[stage] or keep_empty):
            continue
        buckets = None
        for part in layout.group(0, "tensor"):
            starts = ((part + layout.rank(pipeline=rank), chunk) for rank, chunk in places)
            held = sorted((rank, chunk) for start, chunk in starts for rank in layout.group(start, "context", "data"))
            if len(held) > 1:
                buckets = buckets or buckets_of(
                    parameters[stage], codec, gradients.bucket, gradients.bucket_rule, stage
                )
                ranks, chunks = zip(*held, strict=True)
                found.append(ReplicaGroup(stage, ranks, chunks, buckets))
    return found


class Reductions:
    """The gradient reductions of one run.

    Attributes:
        algorithm: name of the all-reduce; for `auto` the fastest one.
        buckets: stage → its buckets, for stages whose gradients are reduced.
    """

    def __init__(
        self, gradients: Gradients, groups: Sequence[ReplicaGroup], fabric: Fabric, ranks: int, sharing: str
    ) -> None:
        """Choose the algorithm and its servers.

        Args:
            gradients: the algorithm, its options and the codec.
            groups: the replica groups of all stages.
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
        self.buckets = {group.stage: group.buckets for group in groups}
        self.algorithm = gradients.algorithm
        if self.algorithm == collectives.AUTO:
            self.algorithm = self._quickest(groups)
        self._processes = [self._process_group(group) for group in groups]
        self._held: dict[int, list[tuple[ProcessGroup, int]]] = {}
        for processes in self._processes:
            for place, rank in enumerate(processes.ranks):
                self._held.setdefault(rank, []).append((processes, place))

    def of(self, transport: Transport, rank: int) -> list[Reducer]:
        """The reducers of a rank, one per stage it holds."""
        return [self._reducer(transport, processes, place) for processes, place in self._held.get(rank, ())]

    def servers(self, transport: Transport, steps: int, lengths: Mapping[int, int]) -> list[Server]:
        """Start the servers; `lengths` are those of the stages' arrays, if there are any."""
        return [
            Server(
                transport.env,
                processes.ranks[place],
                self._reducer(transport, processes, place),
                steps,
                lengths.get(processes.stage),
            )
            for processes in self._processes
            for place in range(processes.size, len(processes.ranks))
        ]

    def _reducer(self, transport: Transport, processes: ProcessGroup, place: int) -> Reducer:
        return Reducer(
            processes.stage,
            Group(transport, processes, place),
            [bucket.elements for bucket in self.buckets[processes.stage]],
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
