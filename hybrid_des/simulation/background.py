"""Background traffic: flows of bytes that belong to no job, as long as any job runs.

A flow sends messages of one size, each no earlier than its rate allows and no earlier than the one before has
arrived: what it cannot send it does not catch up.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import BACKGROUND
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Process
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.perturbations import Background
from hybrid_des.units import to_picoseconds


class Traffic:
    """The background traffic of a simulation.

    Args:
        flows: what to send.
        cluster: the machine; its GPUs are those of the fabric, which is no job's view.
        links: those of the simulation.
        fabric: all of the wiring.

    Attributes:
        recorder: the rows of its messages; a sender or receiver is a GPU.
    """

    def __init__(self, flows: Sequence[Background], cluster: Cluster, links: Links, fabric: Fabric) -> None:
        self.recorder = Recorder(Rows(MESSAGE_COLUMNS))
        self._transport = Transport(links, self.recorder, fabric)
        self._flows = [(flow, *ends) for flow in flows for ends in flow.pairs(cluster)]

    def carried(self) -> dict[str, int]:
        """Bytes sent over each link."""
        return self._transport.carried()

    def begin(self, running: Callable[[], bool]) -> None:
        """Start all flows; they end when no job is running."""
        env = self._transport.env
        for number, (flow, sender, receiver, pairs) in enumerate(self._flows):
            channel = Channel(sender, receiver, BACKGROUND, BACKGROUND.name, number)
            Process(env, self._send(flow, channel, flow.rate / pairs, running))  # which no trace follows

    def _send(self, flow: Background, channel: Channel, rate: Fraction, running: Callable[[], bool]) -> Routine:
        env = self._transport.env
        messages, mailbox = self._transport.flow(channel)
        message, every = Message(flow.message), to_picoseconds(flow.message / rate)
        until = None if flow.until is None else to_picoseconds(flow.until)
        yield env.timeout(to_picoseconds(flow.start))
        while running() and (until is None or env.now < until):
            earliest = env.now + every
            messages.send(message)
            yield mailbox.receive()
            if env.now < earliest:
                yield env.timeout(earliest - env.now)
