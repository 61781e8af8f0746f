"""All-to-all as NCCL's sends and receives, in the rounds of `collectives.all_to_all`.

Over several nodes a member sends to those of its own and to others at the same time, each in turn; where every pair of
members on a node has links of its own, to all of these at once.
"""

from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.all_to_all import rounds
from hybrid_des.collectives.buffer import Buffer, Channels, message_of
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.nccl import tuned
from hybrid_des.collectives.nccl_sends import Call, entry, in_turn, lane_of
from hybrid_des.collectives.registration import collective, to_all
from hybrid_des.collectives.tuning import Selection, Wiring


def _call(buffer: Buffer, members: int) -> Call:
    """The sends of every member; all have the channels of the largest, as both ends of each know its size."""
    largest = -(-max(buffer.sizes(members)) // members)
    return Call(message_of(largest, buffer.codec).size, members - 1, members)


def takes(wiring: Wiring, buffer: Buffer) -> Selection:
    """What carries an all-to-all."""
    return _call(buffer, wiring.ranks).takes(wiring)


@collective(
    "nccl-all-to-all", summary="as NCCL: every rank sends a different shard to every other rank", does="all-to-all",
    options=Channels, tuned=tuned, takes=takes, messages=to_all, direct=True,
)  # fmt: skip
def nccl_all_to_all(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Replace shard j of `buffer` with shard `me` of rank j."""
    wiring: Wiring = group.tuned
    nodes, me = group.nodes, group.me
    shards, call = buffer.shards(group.size, me), _call(buffer, group.size)
    receivers, senders = rounds(nodes)[me]
    lane = lane_of(group, call)
    here: list[tuple[int, Message]] = []
    there: list[tuple[int, Message]] = []
    for peer in receivers:
        (here if nodes[peer] == nodes[me] else there).append((peer, shards.encode(peer)))
    yield group.pause(entry(wiring, call))
    yield group.together(in_turn(lane, here, at_once=wiring.pair is not None), in_turn(lane, there))
    for peer in senders:
        shards.put(peer, (yield lane.from_(peer).receive()))
