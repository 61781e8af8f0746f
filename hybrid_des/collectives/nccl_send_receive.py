"""Blocks passed on around a ring by NCCL's sends and receives, one call per step, as ring attention does.

    step k: every rank sends the block that it received last to the next one, and receives the one before it

Each of the n − 1 steps is a call of its own, that begins when the block of the last one is there (NVIDIA's
TransformerEngine, flash_attn_p2p_communicate; Liu et al., arXiv 2310.01889).
"""

from hybrid_des.collectives.buffer import Buffer, Channels, message_of
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.nccl import tuned
from hybrid_des.collectives.nccl_sends import Call, entry, lane_of
from hybrid_des.collectives.registration import collective, to_all
from hybrid_des.collectives.tuning import Selection, Wiring


def _call(shard: int, codec: Codec) -> Call:
    """The send of a member, of so many elements."""
    return Call(message_of(shard, codec).size, peers=1, share=2)


def takes(wiring: Wiring, buffer: Buffer) -> Selection:
    """What carries a block."""
    return _call(max(buffer.split(wiring.ranks).elements), buffer.codec).takes(wiring)


@collective(
    "nccl-send-receive", summary="as NCCL: every rank's shard is passed on around a ring, call by call",
    does="all-gather", options=Channels, tuned=tuned, takes=takes, messages=to_all,
)  # fmt: skip
def nccl_send_receive(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Distribute shard i+1 of rank i to all ranks."""
    n, shard = group.size, group.me
    shards = buffer.split(n)
    call = _call(max(shards.elements), buffer.codec)
    lane = lane_of(group, call)
    right, left = lane.to((shard + 1) % n), lane.from_((shard - 1) % n)
    message = shards.finish((shard + 1) % n)
    for _ in range(n - 1):
        yield group.pause(entry(group.tuned, call))
        right.send(message)
        yield group.pause(lane.pacing((group.me + 1) % n, message.size))  # a call ends when both are done
        message = yield left.receive()
        shards.put(shard, message)
        shard = (shard - 1) % n
