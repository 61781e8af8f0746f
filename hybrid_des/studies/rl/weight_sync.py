"""How long new weights take from the trainer's ranks to the engines' GPUs, as messages on the links of the cluster.

| mechanism | |
|---|---|
| `gather` | the ranks that hold a copy all-gather it; rank 0 broadcasts it to all engine GPUs; then these load it |
| `buckets` | the same bucket by bucket: while one is broadcast, the next is gathered and the one before is loaded |
| `shards` | each rank sends the engine ranks what they need of its shard, and they load it |

Weights travel in 16 bits. The ranks that hold a copy are those of one replica; with zero-3 all that divide it. A
collective takes the time of its messages alone on the links, as in `layer_collectives: replay`. The broadcast is a
chain over the engine GPUs in order, in pieces (NCCL's ring, NVIDIA/nccl, src/device/broadcast.h); each GPU gets all
weights, as engines of vLLM and SGLang do, whose workers cut out their slices. In `shards`, the messages of all ranks
are on the links at the same time; copies of the trainer serve the engines' GPUs in turn, and its own GPUs themselves.

A tensor is divided by rows: of n ranks, the i-th has the i-th of n equal parts, on both sides. Pipeline ranks hold
equal parts of the parameters outside of experts, and equal numbers of experts. `load` is the time that an engine takes
per tensor, matrices of experts counted one by one; no such time is published, and it is what most measured syncs
consist of (docs/background/accuracy.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.mailbox import Mailbox, Message
from hybrid_des.cluster.purposes import PARAMETERS
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import UsageError, unknown
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.rl.engine_all_reduce import collective_ps
from hybrid_des.units import grouped_by, split_evenly, to_picoseconds
from hybrid_des.workload.models.amounts import ELEMENT
from hybrid_des.workload.models.layer import Layer
from hybrid_des.workload.models.operations import Gemm

MECHANISMS = ("gather", "buckets", "shards")
BUCKET = 512 * 2**20  # bytes: `--update-weight-buffer-size` in scripts of THUDM/slime with FSDP
PIECE = 2**20  # bytes of a broadcast
MOST_PIECES = 1024  # of one broadcast; with more, larger models would take longer to simulate, not to send
MOST_ROUNDS = 16  # messages from each rank to each


class Holders(NamedTuple):
    """Who has a part of the weights: its bytes, and of each copy the GPUs that divide it, in order."""

    bytes: int
    copies: Sequence[Sequence[int]]


class Weights(NamedTuple):
    """The weights of a trainer.

    Attributes:
        bytes: of one copy.
        tensors: number of tensors.
        parts: those outside of experts and those of experts, of each pipeline rank.
    """

    bytes: int
    tensors: int
    parts: Sequence[Holders]


def sync_ps(scenario: Scenario, engine_gpus: Sequence[int], tensor: int, mechanism: str, load: Fraction) -> int:
    """Picoseconds from the end of a training step until all engines have its weights.

    Args:
        scenario: the trainer, on the cluster of both; its model is known.
        engine_gpus: the GPUs of the engines, replica by replica.
        tensor: GPUs of a replica, which divide each tensor.
        mechanism: one of `MECHANISMS`.
        load: seconds per tensor.

    Raises:
        UsageError: the mechanism is unknown, or the GPUs are no replicas of this size.
    """
    if mechanism not in MECHANISMS:
        raise UsageError(f"rl.sync.mechanism: {unknown(mechanism, MECHANISMS)}")
    if not engine_gpus or len(engine_gpus) % tensor:
        message = f"{len(engine_gpus)} GPUs are not replicas of {tensor}"
        raise UsageError(f"rl.rollout.tensor: {message}; expected a multiple of it")
    weights = weights_of(scenario)
    fabric = fabric_of(scenario.placed(range(scenario.cluster.gpus)))
    sharing = scenario.cluster.service
    loaded = to_picoseconds(load * weights.tensors)
    if mechanism == "shards":
        return _shards(fabric, sharing, weights, engine_gpus, tensor) + loaded
    count = 1 if mechanism == "gather" else max(1, -(-weights.bytes // BUCKET))
    holders = sorted({gpu for part in weights.parts for gpu in part.copies[0]})
    first = scenario.cluster.placement[0]
    stages = [
        (_gather(fabric, sharing, holders, size), _broadcast(fabric, sharing, [first, *engine_gpus], size))
        for size in (weights.bytes // count, -(-weights.bytes // count))
    ]
    several = weights.bytes % count  # buckets with a byte more
    each = [stages[number < several] for number in range(count)]
    return in_line([(*stage, loaded // count) for stage in each])


def in_line(buckets: Sequence[Sequence[int]]) -> int:
    """When the last bucket leaves the last stage; each stage has one bucket at a time, in order.

    Args:
        buckets: per bucket, picoseconds in each stage.
    """
    ends = [0] * len(buckets[0])
    for times in buckets:
        before = 0
        for stage, time in enumerate(times):
            before = ends[stage] = max(before, ends[stage]) + time
    return ends[-1]


def weights_of(scenario: Scenario) -> Weights:
    """The weights of a scenario's model, and the GPUs that hold them."""
    assert scenario.model is not None  # a scenario with `rl` has one
    layers = [layer for layer in scenario.model.network.layers if not layer.predicts]
    experts = ELEMENT * sum(layer.held.expert for layer in layers)
    others = ELEMENT * sum(layer.held.tensor + layer.held.replicated for layer in layers)
    parallel, placement, parts = scenario.parallel, scenario.cluster.placement, []
    layout = parallel.layout
    on = grouped_by(range(layout.ranks), lambda rank: layout.coordinate(rank, "pipeline"))
    sizes = zip(split_evenly(others, parallel.pipeline), split_evenly(experts, parallel.pipeline), strict=True)
    for stage, both in enumerate(sizes):
        ranks = sorted(on[stage], key=lambda rank: [layout.coordinate(rank, axis) for axis in ACROSS])
        gpus = [placement[rank] for rank in ranks]
        parts += [
            Holders(size, [gpus[at : at + copy] for at in range(0, len(gpus), copy)])
            for size, copy in zip(both, _sharing(scenario, len(gpus)), strict=True)
            if size
        ]
    return Weights(experts + others, sum(map(_tensors, layers)), parts)


def _sharing(scenario: Scenario, ranks: int) -> tuple[int, int]:
    """Of the ranks of a stage, those that divide a copy of the parameters outside of experts, and of experts."""
    parallel, shards = scenario.parallel, scenario.shards
    experts = parallel.expert * parallel.of_expert
    if scenario.sharding != "zero-3":
        return parallel.tensor, experts
    if shards.ranks is None:
        return ranks, ranks
    return parallel.tensor * shards.ranks, experts * (shards.of_experts(parallel) or 1)


ACROSS = ("data", "context", "tensor")  # the last varies fastest, as along the ranks that share experts


def _tensors(layer: Layer) -> int:
    """Tensors of a layer, matrices of experts one by one."""
    experts = max((one.count for one in layer.operations if isinstance(one, Gemm) and one.expert), default=0)
    return sum(experts if tensor.expert else 1 for tensor in layer.tensors)


def _gather(fabric: Fabric, sharing: str, gpus: Sequence[int], size: int) -> int:
    """Picoseconds of the all-gather of so many bytes among GPUs that hold equal parts."""
    if len(gpus) == 1 or not size:
        return 0
    return collective_ps(fabric, "ring-all-gather", gpus, size, sharing)


def _broadcast(fabric: Fabric, sharing: str, gpus: Sequence[int], size: int) -> int:
    """Picoseconds until the last GPU of a chain has so many bytes that the first one sends, in pieces."""
    chain = list(dict.fromkeys(gpus))
    if len(chain) == 1 or not size:
        return 0
    network = Transport(Links(Environment(), fabric, sharing), Recorder())
    pieces = [Message(piece) for piece in split_evenly(size, max(1, min(MOST_PIECES, size // PIECE)))]
    flows = [network.flow(Channel(*pair, PARAMETERS, "weight sync")) for pair in pairwise(chain)]
    onward: list[Flow | None] = [flow for flow, _ in flows[1:]]
    for piece in pieces:
        flows[0][0].send(piece)
    for (_, mailbox), flow in zip(flows, [*onward, None], strict=True):
        network.env.process(_passing(mailbox, flow, len(pieces)))
    network.env.run()
    return network.env.now


def _passing(mailbox: Mailbox, onward: Flow | None, pieces: int) -> Routine:
    """Receive pieces, and send each of them on, if there is someone to send it to."""
    for _ in range(pieces):
        message = yield mailbox.receive()
        if onward is not None:
            onward.send(message)


def _shards(fabric: Fabric, sharing: str, weights: Weights, engine_gpus: Sequence[int], tensor: int) -> int:
    """Picoseconds until every engine rank has its parts, sent by the GPUs that hold them."""
    sent = messages_between(weights.parts, engine_gpus, tensor)
    if not sent:
        return 0
    network = Transport(Links(Environment(), fabric, sharing), Recorder())
    order = sorted(sent, key=lambda pair: (pair[1] - pair[0]) % fabric.gpus)  # no two at once from or to the same GPU
    rounds = {pair: split_evenly(sent[pair], min(MOST_ROUNDS, sent[pair])) for pair in order}
    for number in range(MOST_ROUNDS):
        for pair in order:
            if number < len(rounds[pair]):
                flow, _ = network.flow(Channel(*pair, PARAMETERS, "weight sync"))
                flow.send(Message(rounds[pair][number]))
    for pair in order:
        _, mailbox = network.flow(Channel(*pair, PARAMETERS, "weight sync"))
        network.env.process(_passing(mailbox, None, len(rounds[pair])))
    network.env.run()
    return network.env.now


def messages_between(parts: Sequence[Holders], engine_gpus: Sequence[int], tensor: int) -> Counter[tuple[int, int]]:
    """Bytes from each GPU of the trainer to each of the engines; what a GPU sends to itself stays there.

    Args:
        parts: the parts of the weights.
        engine_gpus: the GPUs of the engines, replica by replica.
        tensor: GPUs of a replica.
    """
    sent = Counter[tuple[int, int]]()
    for part in parts:
        own = {gpu: copy for copy in part.copies for gpu in copy}
        for number, gpu in enumerate(engine_gpus):
            rank, holders = number % tensor, own.get(gpu, part.copies[number % len(part.copies)])
            begin, end = part.bytes * rank // tensor, part.bytes * (rank + 1) // tensor
            for index, holder in enumerate(holders):
                low, high = part.bytes * index // len(holders), part.bytes * (index + 1) // len(holders)
                common = min(end, high) - max(begin, low)
                if common > 0 and holder != gpu:
                    sent[holder, gpu] += common
    return sent
