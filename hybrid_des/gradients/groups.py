"""Replica groups: the ranks that hold each part of a stage, their buckets, and their collectives.

A stage has up to two parts: its parameters without experts, held by all ranks along data and context, and its experts,
divided among successive ranks along them, so that only every n-th holds the same ones. With sharded optimizers, a
ring reduce-scatter takes the place of the all-reduce, and an all-gather of 16-bit parameters follows the optimizer
(Rajbhandari et al., arXiv 1910.02054).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.folding.rehearsal import Rehearsal
from hybrid_des.gradients.buckets import Bucket, buckets_of, padded
from hybrid_des.gradients.communicator import Communicator
from hybrid_des.layout import SHORT, Layout
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.purpose import PARAMETERS, REDUCTION
from hybrid_des.network.transport import Transport
from hybrid_des.numerics.training import Worker
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario import Gradients
from hybrid_des.scenario.sizes import too_many

Arrays = tuple[Any, Any]  # a gradient and what a lossy codec left of the last one, or None


@dataclass(frozen=True)
class ReplicaGroup:
    """All ranks that hold the same part of a stage, across replicas, context ranks and copies of the model.

    Attributes:
        part: 1 for experts, else 0.
        ranks: global ranks, in ascending order.
        chunks: the chunk that holds the stage on each rank.
        buckets: the buckets of the part's gradients.
    """

    stage: int
    part: int
    ranks: Sequence[int]
    chunks: Sequence[int]
    buckets: Sequence[Bucket]


def replica_groups(
    plan: Plan,
    layout: Layout,
    parts: Sequence[tuple[int, int]],
    gradients: Gradients,
    *,
    keep_empty: bool = False,
) -> list[ReplicaGroup]:
    """Find the replica groups of each part of each stage, where several ranks hold it.

    Args:
        plan: the stages and their ranks.
        layout: the ranks of each replica.
        parts: per stage, the parameters of a tensor rank outside experts and in experts.
        gradients: how gradients are split into buckets.
        keep_empty: whether to include stages without parameters (their arrays may still be reduced).
    """
    codec = codecs.find(gradients.codec).build()
    found = []
    for stage, places in enumerate(zip(*plan.paths, strict=True)):  # one place per copy of the model
        for part, parameters in enumerate(parts_of_stage(*parts[stage], layout.expert)):
            if not (parameters or (keep_empty and not part)):
                continue
            holders = [held for held in _holders(layout, places, layout.expert if part else 1) if len(held[0]) > 1]
            if holders:
                buckets = buckets_of(parameters, codec, gradients.bucket, gradients.bucket_rule, stage)
                if gradients.pad:
                    buckets = padded(buckets, len(holders[0][0]))
                found += [ReplicaGroup(stage, part, ranks, chunks, buckets) for ranks, chunks in holders]
    return found


def parts_of_stage(regular: int, experts: int, expert: int) -> tuple[int, int]:
    """Numbers of parameters of the parts; experts that every rank holds are reduced with the others."""
    return (regular, experts) if expert > 1 else (regular + experts, 0)


def _holders(
    layout: Layout, places: Sequence[tuple[int, int]], apart: int
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """For every tensor rank, ranks that hold the same, with their chunks: every `apart`-th along data and context."""
    copies = [(layout.strides["pipeline"] * rank, chunk) for rank, chunk in places]
    for holders in layout.holders:
        for first in range(apart):
            held = [(holders[first::apart].shifted(start), chunk) for start, chunk in copies]
            if len(held) == 1:
                ranks, chunk = held[0]
                yield tuple(ranks) if len(ranks) < SHORT else ranks, (chunk,) * len(ranks)
            else:
                pairs = sorted((rank, chunk) for ranks, chunk in held for rank in ranks)
                yield tuple(rank for rank, _ in pairs), tuple(chunk for _, chunk in pairs)


class Reductions:
    """The gradient reductions of one run, and the gathers of sharded parameters.

    Attributes:
        algorithm: name of the all-reduce; for `auto` the fastest one.
        buckets: stage → part → its buckets, for stages whose gradients are reduced.
        processes: every replica group with the ranks, and servers, that take part in its collective.
    """

    def __init__(
        self,
        gradients: Gradients,
        groups: Sequence[ReplicaGroup],
        fabric: Fabric,
        layout: Layout,
        sharing: str,
        *,
        sharded: bool = False,
        folded: bool = True,
    ) -> None:
        """Choose the algorithm and its servers.

        Args:
            gradients: the algorithm, its options and the codec.
            groups: the replica groups of all stages.
            fabric: the wiring.
            layout: the ranks; they run on the first GPUs of the fabric, and the others may host servers.
            sharing: how links are shared.
            sharded: whether gradients are scattered, and parameters gathered.
            folded: whether some ranks may stand for others when algorithms are tried out.
        """
        self._gradients = gradients
        self._options = gradients.options
        self._codec = codecs.find(gradients.codec).build()
        self._spare = range(layout.ranks, fabric.gpus)
        self._sharded = sharded
        whole = {(group.stage, group.part): group.buckets for group in groups}
        self.buckets: dict[int, dict[int, Sequence[Bucket]]] = {}
        for (stage, part), buckets in whole.items():
            self.buckets.setdefault(stage, {})[part] = buckets
        self.algorithm = gradients.algorithm
        if self.algorithm == collectives.AUTO:
            sizes = [max(bucket.elements for bucket in group.buckets) for group in groups]
            ranks = [group.ranks for group in groups]
            tried = Rehearsal(fabric, layout, ranks, sizes, self._codec, self._options, sharing, folded, too_many)
            self.algorithm = tried.quickest(halves=sharded)[0] if groups else "ring"
        halves = collectives.halves_of(self.algorithm) if sharded else None
        kind, self._gather = halves or (self.algorithm, "")
        self.processes: list[tuple[ProcessGroup, ReplicaGroup]] = []
        for group in groups:
            site = collectives.Site(fabric, group.ranks, self._spare)
            processes = collectives.process_group(
                kind, site, self._options, stage=group.stage, part=group.part, chunks=group.chunks
            )
            self.processes.append((processes, group))

    def of(
        self, transport: Transport, ranks: Collection[int], workers: Mapping[int, Worker]
    ) -> dict[int, dict[tuple[str, int, int], Communicator]]:
        """Rank → (purpose, stage, part) → its communicator; workers hold the real gradients, if there are any."""
        found: dict[int, dict[tuple[str, int, int], Communicator]] = {rank: {} for rank in ranks}
        for processes, group in self.processes:
            for place, rank in enumerate(processes.ranks[: processes.size]):
                if rank in found:
                    arrays = None if group.part or rank not in workers else partial(self._arrays, workers[rank], group)
                    found[rank][REDUCTION.name, group.stage, group.part] = Communicator(
                        transport.env,
                        Group(transport, processes, place),
                        collectives.configured(processes.kind, self._options),
                        partial(self._buffers, group, arrays),
                        (rank, group.stage),
                    )
                    if self._sharded:
                        gatherer = self._gatherer(transport, processes, group, place)
                        found[rank][PARAMETERS.name, group.stage, group.part] = gatherer
        return found

    def servers(
        self, transport: Transport, lengths: Mapping[int, int]
    ) -> Iterator[tuple[ReplicaGroup, int, Communicator]]:
        """The servers of each group: their GPU and communicator; `lengths` are those of real gradients of stages."""
        for processes, group in self.processes:
            real = lengths.get(group.stage) is not None and not group.part
            arrays = partial(_zeros, lengths[group.stage]) if real else None
            for place in range(processes.size, len(processes.ranks)):
                yield (
                    group,
                    processes.ranks[place],
                    Communicator(
                        transport.env,
                        Group(transport, processes, place),
                        collectives.configured(processes.kind, self._options),
                        partial(self._buffers, group, arrays),
                    ),
                )

    def _arrays(self, worker: Worker, group: ReplicaGroup) -> Arrays:
        """A stage's gradient, which is reduced in place, and the error that a lossy codec left."""
        residual = worker.residual(group.stage) if self._gradients.error_feedback else None
        return worker.gradient(group.stage), residual

    def _buffers(self, group: ReplicaGroup, arrays: Callable[[], Arrays] | None) -> list[Buffer]:
        """One buffer per bucket, of parts of the arrays or only of sizes."""
        sizes = [bucket.elements for bucket in group.buckets]
        gradient, residual = arrays() if arrays else (None, None)
        return Buffer(sum(sizes), self._codec, gradient, residual).sections(sizes)

    @property
    def options(self) -> collectives.Given:
        """The options of the collectives."""
        return self._options

    def buffers_of(self, group: ReplicaGroup) -> list[Buffer]:
        """A member's buffers, of sizes only."""
        return [Buffer(bucket.elements, self._codec) for bucket in group.buckets]

    def _gatherer(self, transport: Transport, processes: ProcessGroup, group: ReplicaGroup, place: int) -> Communicator:
        codec, gathering = codecs.find("bf16").build(), replace(processes, kind=PARAMETERS.name, purpose=PARAMETERS)
        return Communicator(
            transport.env,
            Group(transport, gathering, place),
            collectives.configured(self._gather, self._options),
            [Buffer(bucket.elements, codec) for bucket in group.buckets].copy,
            (processes.ranks[place], group.stage),
        )


def _zeros(length: int) -> Arrays:
    return np.zeros(length), None
