"""Messages sent by hand over a fabric, without GPUs: when does each one arrive?"""

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import ACTIVATION, REDUCTION
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows

GB = 10**9
MS = 10**9  # picoseconds


def chain(bandwidths, latencies) -> Fabric:
    """Two GPUs with links in series between them."""
    links = {str(i): LinkSpec(str(i), bandwidth) for i, bandwidth in enumerate(bandwidths)}
    route = Route(tuple(links), tuple(latencies))
    return Fabric(links, lambda sender, receiver: route, 2, (0, 0))


def carry(fabric: Fabric, sends, sharing="fifo", schedules=None, urgent=()):
    """Send messages (time, sender, receiver, bytes), each a flow of its own, asked for in the order given.

    Messages whose numbers are in `urgent` are activations, of priority 1; all others are gradients, of priority 0.
    In place of a sender may stand a link: then a process transmits the bytes over that link alone.
    Gives when each one has arrived, and the rows of links that flows occupied: (link, message, asked, start, end).
    """
    env, trace = Environment(), Recorder(Rows(MESSAGE_COLUMNS))
    priority = {ACTIVATION: 1, REDUCTION: 0}.__getitem__
    network = Transport(Links(env, fabric, sharing, schedules or {}), trace, priority=priority)
    arrived: dict[int, int] = {}

    def send(number, at, sender, receiver, size):
        purpose = ACTIVATION if number in urgent else REDUCTION
        flow, mailbox = network.flow(Channel(sender, receiver, purpose, f"message {number}", 0, 0))
        yield env.timeout(at)
        flow.send(Message(size))
        yield mailbox.receive()
        arrived[number] = env.now

    def transmit(number, at, link, size):
        yield env.timeout(at)
        yield network.links[link].transmit(size)
        arrived[number] = env.now

    for number, (at, sender, receiver, size) in enumerate(sends):
        alone = isinstance(sender, str)
        env.process(transmit(number, at, sender, size) if alone else send(number, at, sender, receiver, size))
    env.run()
    columns = trace.messages.table()
    channels = [trace.channels[number] for number in columns["channel"]]
    rows = [
        (channel.link, int(channel.kind.removeprefix("message ")), int(asked), int(start), int(end))
        for channel, asked, start, end in zip(channels, columns["asked"], columns["start"], columns["end"], strict=True)
    ]
    return [arrived[number] for number in range(len(sends))], rows
