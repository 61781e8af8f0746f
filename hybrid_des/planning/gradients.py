"""Replica groups: the ranks that hold each part of a stage, their buckets, and their collectives.

A stage has up to two parts: its parameters without experts, held by all ranks along data and context, and its experts,
divided among successive ranks along them, so that only every n-th holds the same ones. With sharded optimizers, a
ring reduce-scatter takes the place of the all-reduce, and an all-gather of 16-bit parameters follows the optimizer
(Rajbhandari et al., arXiv 1910.02054).

Buckets are how a stage's gradients are split for reduction, and are ready at times of their own. A rank accumulates
gradients over its micro-batches in place, so buckets are filled only by the op that computes the weight gradients of
the stage's last micro-batch (W if the backward is split).

    stage      equal buckets of at most `bucket`; all are ready when that op ends
    ddp        PyTorch's DistributedDataParallel: whole tensors in reverse order; one that reaches the cap closes its
               bucket, of 1 MiB for the first (`first_bucket`; newer versions: by default only), then 25 MiB by default
               (docs.pytorch.org/docs/stable/notes/ddp; compute_bucket_assignment_by_size in
               torch/csrc/distributed/c10d/reducer.cpp). Each is ready as soon as the hook of its last gradient has
               run, during that op. Where tensors are unknown, buckets are cut to the caps, evenly
    megatron   also ready during that op, but only the first chunk of the first pipeline rank is split: the other
               stages finish earlier, off the critical path, and keep one bucket each; the default is 40 million
               gradients per bucket, or one million per replica if that is more (Megatron without overlap keeps one
               bucket per stage; here the given size is used)
               (NVIDIA/Megatron-LM, megatron/core/distributed/distributed_data_parallel.py)

Gradients are assumed to become ready at a constant rate. Without `overlap`, all buckets are sent after the pipeline.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from math import lcm
from typing import NamedTuple

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.cost_model.collective_times import CollectiveTimes, Concurrent
from hybrid_des.errors import Refusal
from hybrid_des.layout import SHORT, Layout
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario.sections.training import Gradients
from hybrid_des.units import grouped_by, split_evenly

FIRST = 2**20  # bytes: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES


MOST = 2**20  # buckets per stage


DONE = Fraction(1)


class Bucket(NamedTuple):
    """Gradients that are reduced together: their number, and the fraction of the op after which they are ready."""

    elements: int
    leaves: Fraction


def buckets_of(
    parameters: int,
    codec: Codec,
    size: int | None,
    rule: str,
    stage: int,
    tensors: Sequence[int] = (),
    *,
    first: int | None = FIRST,
) -> tuple[Bucket, ...]:
    """Split a stage's gradients into buckets of at most `size` bytes on the wire (None: one bucket).

    With `ddp` and tensors, in the order of the forward, buckets consist of whole ones, and the last may exceed `size`.
    `first` is the cap of its first bucket (None: that of the others).

    Raises:
        Refusal: there would be too many buckets.
    """
    if size is None or (rule == "megatron" and stage > 0):
        return (Bucket(parameters, DONE),)
    if rule == "stage":
        return tuple(Bucket(elements, DONE) for elements in _even(parameters, codec, size))
    sizes, cap = _even(parameters, codec, size), min(first or size, size)
    if rule == "ddp" and tensors:
        sizes = _whole(tensors, codec, size, cap)
    elif rule == "ddp":
        most = _most(parameters, codec, cap)
        sizes = [most, *_even(parameters - most, codec, size)] if most < parameters else [parameters]
    ends = accumulate(sizes)
    return tuple(
        Bucket(n, Fraction(end, parameters) if parameters else DONE) for n, end in zip(sizes, ends, strict=True)
    )


def padded(buckets: Sequence[Bucket], multiple: int) -> tuple[Bucket, ...]:
    """Buckets padded to a multiple of the group's size, on each channel, so that all members hold equal shares.

    As in Megatron's distributed optimizer, whose multiple is the least of the group's size and 128, and 2¹⁶ if asked
    (NVIDIA/Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py).
    """
    return tuple(bucket._replace(elements=-(-bucket.elements // multiple) * multiple) for bucket in buckets)


def _even(elements: int, codec: Codec, size: int) -> Sequence[int]:
    count = max(1, -(-codec.payload_bytes(elements) // size))
    if count > MOST:
        raise Refusal(f"gradients.bucket: {size} bytes split a stage into {count} buckets; at most {MOST}")
    return split_evenly(elements, count)


def _whole(tensors: Sequence[int], codec: Codec, size: int, cap: int) -> list[int]:
    """The elements of buckets of whole tensors, the last ones first; each is closed by the tensor that fills it."""
    sizes, held = list[int](), 0
    for elements in reversed(tensors):
        held += elements
        if codec.payload_bytes(held) >= cap:
            sizes.append(held)
            held, cap = 0, size
    return [*sizes, held] if held or not sizes else sizes


def _most(elements: int, codec: Codec, size: int) -> int:
    """The largest number of at most `elements` elements that fits into `size` bytes; at least one."""
    fitting = int(size / codec.bytes_per_element)
    while fitting > 1 and codec.payload_bytes(fitting) > size:
        fitting -= 1
    return max(1, min(elements, fitting))


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
    tensors: Sequence[Sequence[tuple[int, int]]] = (),
) -> list[ReplicaGroup]:
    """Find the replica groups of each part of each stage, where several ranks hold it.

    Args:
        plan: the stages and their ranks.
        layout: the ranks of each replica.
        parts: per stage, the parameters of a tensor rank outside experts and in experts.
        gradients: how gradients are split into buckets.
        keep_empty: whether to include stages without parameters (their arrays may still be reduced).
        tensors: per stage, the parameters of each tensor, outside and in experts; none if they are unknown.
    """
    codec = codecs.find(gradients.codec).build()
    groups, known = [], dict[tuple[bool, int, int], Sequence[int]]()
    for stage, places in enumerate(zip(*plan.paths, strict=True)):  # one place per copy of the model
        for part, parameters in enumerate(parts_of_stage(*parts[stage], layout)):
            if not (parameters or (keep_empty and not part)):
                continue
            holders = [held for held in _holders(layout, places, known, experts=bool(part)) if len(held[0]) > 1]
            if holders:
                each = [parts_of_stage(*one, layout)[part] for one in tensors[stage]] if tensors else []
                rule = gradients.bucket_rule, stage, each
                buckets = buckets_of(parameters, codec, gradients.bucket, *rule, first=gradients.first_bucket)
                if gradients.pad:  # also before the algorithm is chosen
                    buckets = padded(buckets, len(holders[0][0]))
                groups += [ReplicaGroup(stage, part, ranks, chunks, buckets) for ranks, chunks in holders]
    return groups


def in_groups(groups: Sequence[ReplicaGroup], layout: Layout, count: int) -> list[ReplicaGroup]:
    """Replica groups divided among `count` groups of consecutive replicas; those of one rank have nothing to reduce."""
    if count == 1:
        return list(groups)
    replica, each = layout.along("data"), layout.sizes["data"] // count
    split = []
    for group in groups:
        held = zip(group.ranks, group.chunks, strict=True)
        for members in grouped_by(held, lambda holder: int(replica[holder[0]]) // each).values():
            if len(members) > 1:
                ranks, chunks = zip(*members, strict=True)
                split.append(replace(group, ranks=ranks, chunks=chunks))
    return split


def across(groups: Sequence[ReplicaGroup], sizes: Sequence[int | None]) -> list[ReplicaGroup]:
    """Where groups of neighbours divide what they hold: the ranks with the same share, one of each such group.

    `sizes` are those of groups that divide parameters outside experts, and in experts; None: all that hold them.
    """
    split = []
    for group in groups:
        size = sizes[group.part] or len(group.ranks)
        if size < len(group.ranks):
            shares = [bucket._replace(elements=-(-bucket.elements // size)) for bucket in group.buckets]
            split += [
                replace(group, ranks=group.ranks[first::size], chunks=group.chunks[first::size], buckets=shares)
                for first in range(size)
            ]
    return split


def parts_of_stage(regular: int, experts: int, layout: Layout) -> tuple[int, int]:
    """Numbers of parameters of the parts; experts that every rank holds are reduced with the others."""
    return (regular, experts) if layout.apart else (regular + experts, 0)


def _holders(
    layout: Layout,
    places: Sequence[tuple[int, int]],
    known: dict[tuple[bool, int, int], Sequence[int]],
    *,
    experts: bool,
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The sets of ranks that hold the same, with their chunks: of experts, or of everything else.

    The same ranks of several stages are one object, since comparing them takes long: it is kept in `known`.
    """
    copies = [(layout.strides["pipeline"] * rank, chunk) for rank, chunk in places]
    for number, holders in enumerate(layout.expert_holders if experts else layout.holders):
        if len(copies) == 1:
            ((start, chunk),) = copies
            same = experts, number, start
            if same not in known:
                ranks = holders.shifted(start)
                known[same] = tuple(ranks) if len(ranks) < SHORT else ranks
            yield known[same], (chunk,) * len(holders)
        else:
            pairs = sorted((rank, chunk) for start, chunk in copies for rank in holders.shifted(start))
            yield tuple(rank for rank, _ in pairs), tuple(chunk for _, chunk in pairs)


def _padded(groups: Sequence[tuple[ProcessGroup, ReplicaGroup]]) -> list[tuple[ProcessGroup, ReplicaGroup]]:
    """The same with buckets whose parts on all channels are equal."""
    several: dict[tuple[int, int], int] = {}
    for processes, group in groups:
        of_stage = group.stage, group.part
        several[of_stage] = lcm(several.get(of_stage, 1), len(processes.channels) or 1)
    filled: dict[tuple[int, int, int], Sequence[Bucket]] = {}  # the groups of a stage share their buckets
    made = []
    for processes, group in groups:
        multiple = processes.size * several[group.stage, group.part]
        alike = group.stage, group.part, multiple
        if alike not in filled:
            filled[alike] = padded(group.buckets, multiple)
        made.append((processes, replace(group, buckets=filled[alike])))
    return made


class Reductions:
    """The gradient reductions of one run, and the gathers of sharded parameters.

    Attributes:
        algorithm: name of the all-reduce; for `auto` the fastest one.
        gather: name of the all-gather of sharded parameters; empty if they are not sharded.
        buckets: stage → part → its buckets, for stages whose gradients are reduced.
        processes: every replica group with the ranks, and servers, that take part in its collective.
        choices: what a library takes for their buckets, such as "ring, Simple", with the number of these.
        codec, options, error_feedback: of the collectives.
    """

    def __init__(
        self, gradients: Gradients, groups: Sequence[ReplicaGroup], times: CollectiveTimes, *, sharded: bool = False
    ) -> None:
        """Choose the algorithm and its servers.

        Args:
            gradients: the algorithm, its options and the codec.
            groups: the replica groups of all stages.
            times: how long collectives take on the wiring.
            sharded: whether gradients are scattered, and parameters gathered.
        """
        self.codec = codecs.find(gradients.codec).build()
        self.options, self.error_feedback = gradients.options, gradients.error_feedback
        self.algorithm = gradients.algorithm
        if self.algorithm == collectives.AUTO:
            sizes = [max(bucket.elements for bucket in group.buckets) for group in groups]
            asked = Concurrent([group.ranks for group in groups], sizes, self.codec, self.options)
            self.algorithm = times.fastest(asked, halves=sharded)[0] if groups else "ring"
        halves = collectives.phases_of(self.algorithm) if sharded else None
        kind, self.gather = halves or (self.algorithm, "")
        of_group = partial(times.process_group, kind, options=self.options)
        made = [
            (of_group(group.ranks, stage=group.stage, part=group.part, chunks=group.chunks), group) for group in groups
        ]
        self.processes = _padded(made) if gradients.pad else made
        self.buckets: dict[int, dict[int, Sequence[Bucket]]] = {}
        for _, group in self.processes:
            self.buckets.setdefault(group.stage, {})[group.part] = group.buckets
        self.choices = self._choices(kind)

    def _choices(self, kind: str) -> Counter[str]:
        facts, choices = collectives.find(kind).facts, Counter[str]()
        made = self.processes if facts["tuned"] else ()
        # most groups share what is known of their wiring; it may be of any type, so it is told apart by identity
        for alike in grouped_by(made, lambda pair: (id(pair[0].tuned), pair[1].stage, pair[1].part)).values():
            processes, group = alike[0]
            times = Counter(bucket.elements for bucket in group.buckets)
            for buffer in self.buffers_of(group):
                choice = processes.tuned.choice(facts["does"], buffer.bytes)
                choices[str(choice)] += len(alike) * times[buffer.elements]
        return choices

    def buffers_of(self, group: ReplicaGroup) -> list[Buffer]:
        """A member's buffers, of sizes only: one for each size, of which a stage with many buckets has few."""
        return [Buffer(size, self.codec) for size in dict.fromkeys(bucket.elements for bucket in group.buckets)]
