"""Background traffic: flows of bytes that belong to no job, as long as any job runs.

A flow sends messages of one size, each no earlier than its rate allows, counted from the start, and no earlier than
the one before has arrived: a flow that was held up catches up, as a sender does whose data wait.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from functools import partial
from itertools import count

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import BACKGROUND, Purpose
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Process
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.errors import Refusal
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import WITHOUT_PRIORITIES, Cluster, urgency_of
from hybrid_des.scenario.sections.perturbations import Background
from hybrid_des.units import format_bytes, to_picoseconds


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
        self._transports = {
            level: Transport(links, self.recorder, fabric, priority=partial(_urgency, level))
            for level in {flow.level for flow in flows}
        }
        self._env, self._fabric = links.env, fabric
        self._flows = [(flow, *ends) for flow in flows for ends in flow.pairs(cluster)]

    def carried(self) -> dict[str, int]:
        """Bytes sent over each link."""
        return dict(sum((Counter(one.carried()) for one in self._transports.values()), Counter()))

    def offered(self, above: int) -> dict[str, Fraction]:
        """Bytes per second that flows of a higher priority offer each link for as long as the jobs run."""
        rates = dict[str, Fraction]()
        for flow, sender, receiver, pairs in self._flows:
            if flow.level <= above or flow.until is not None:
                continue
            route = self._fabric.route(sender, receiver).links
            widths = (self._fabric.links[link].bandwidth for link in route)
            rate = min([flow.rate / pairs, *(width for width in widths if width is not None)])  # what arrives there
            for link in route:
                rates[link] = rates.get(link, Fraction(0)) + rate
        return rates

    def bandwidth(self, link: str) -> Fraction | None:
        """That of a link; None is infinite."""
        return self._fabric.links[link].bandwidth

    def begin(self, running: Callable[[], bool]) -> None:
        """Start all flows; they end when no job is running."""
        for number, (flow, sender, receiver, pairs) in enumerate(self._flows):
            channel = Channel(sender, receiver, BACKGROUND, BACKGROUND.name, number)
            Process(self._env, self._send(flow, channel, flow.rate / pairs, running))  # which no trace follows

    def _send(self, flow: Background, channel: Channel, rate: Fraction, running: Callable[[], bool]) -> Routine:
        env = self._env
        messages, mailbox = self._transports[flow.level].flow(channel)
        message = Message(flow.message)
        until = None if flow.until is None else to_picoseconds(flow.until)
        yield env.timeout(to_picoseconds(flow.start))
        for number in count(1):
            if not running() or (until is not None and env.now >= until):
                return
            messages.send(message)
            yield mailbox.receive()
            due = to_picoseconds(flow.start + number * flow.message / rate)
            if env.now < due:
                yield env.timeout(due - env.now)


def _urgency(level: int, _: Purpose) -> int:
    return urgency_of(level)


def refuse_starved(scenario: Scenario, used: Collection[str], traffic: Traffic) -> None:
    """Refuse a job that would wait without end for more urgent traffic, which takes all of a link.

    Raises:
        Refusal: a link that the job uses is offered its whole bandwidth, or more.
    """
    if scenario.cluster.sharing not in WITHOUT_PRIORITIES:
        return
    for link, rate in sorted(traffic.offered(scenario.cluster.urgency).items()):
        width = traffic.bandwidth(link)
        if link in used and width is not None and rate >= width:
            raise Refusal(
                f"{scenario.name}: background of a higher priority offers {link} {format_bytes(float(rate))}/s of its "
                f"{format_bytes(float(width))}/s: this job gets nothing; expected a lower rate or priority, or `until`"
            )
