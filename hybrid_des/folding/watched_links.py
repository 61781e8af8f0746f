"""Links of a folded run that notice whether messages reach them in the same picosecond.

Where none do, nothing depends on the order of events, so no lineage has to be kept (`engine.lineage`), which is
cheaper. The first two that do end the run, which is then made with lineage.
"""

from typing import Any, ClassVar

from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop, Link
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.sharing.fifo import Fifo, FifoFlow
from hybrid_des.cluster.sharing.registration import Put, Schedules, Sharing
from hybrid_des.cluster.transport import Links
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import LAST_TIME, Rows
from hybrid_des.folding.refusals import FoldRefusal, TieError

FOREIGN, HELD = -1, -2  # instead of the number of an event


class WatchedLink(Link):
    """A link that knows when the last message reached it.

    Attributes:
        shared: whether it has several flows, at finite bandwidth; otherwise no message waits for another flow's.
        when: when a message last reached it; until when a ring holds it.
        event: the number of the event by which it did; `FOREIGN` if the link belongs to another image than the sender,
            `HELD` by a ring.
    """

    __slots__ = ("_flows", "event", "shared", "when")

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate) -> None:
        super().__init__(env, spec, rate)
        self.shared = False
        self._flows, self.when, self.event = 0, -1, FOREIGN

    def join(self) -> None:
        """Add a flow."""
        self._flows += 1
        self.shared = self._flows > 1 and self.spec.bandwidth is not None

    def take(self, last: int) -> None:
        """Let a ring have it until then: whether its messages are before others that reach it is not known."""
        self.when, self.event = last, HELD

    def tie(self) -> None:
        """Notice that messages reach it in the same moment, or while a ring holds it.

        Raises:
            TieError: messages do.
            FoldRefusal: a ring holds it.
        """
        if self.event == HELD:
            raise FoldRefusal(f"a message reaches link {self.spec.name} while a ring holds it")
        raise TieError


class WatchedFlow(FifoFlow):
    """A flow over such links.

    One event sends its messages in the order of the program, which is the same in every image: they make no tie, if the
    link is the sender's own.

    Attributes:
        foreign: whether its first link belongs to another image than the sender.
        images: by which elements its links stand for their images.
    """

    __slots__ = ("foreign", "images")

    images: tuple[Any, ...]

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(env, hops, put, rows)
        self.on_head = WatchedFlow.arrive
        self.foreign = False
        for hop in hops:
            hop.link.join()  # type: ignore[attr-defined]

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately.

        Raises:
            TieError: another one reaches the link now.
            FoldRefusal: a ring holds it.
        """
        link: Any = self.link
        env = self.env
        event = FOREIGN if self.foreign else env.events
        if link.when >= env.now and link.shared and (link.event != event or event == FOREIGN):
            link.tie()
        link.when, link.event = env.now, event
        FifoFlow.send(self, message, tag)

    def take_first(self) -> None:
        """Let a ring have the first link, as of now.

        Raises:
            TieError: a message of another event reaches the link now.
            FoldRefusal: a ring holds it.
        """
        link: Any = self.link
        event = FOREIGN if self.foreign else self.env.events
        if link.when >= self.env.now and link.shared and (link.event != event or event == FOREIGN):
            link.tie()
        if link.bandwidth is not None:
            link.take(LAST_TIME)

    @staticmethod
    def arrive(head: Any) -> None:
        """Serve a head at a further link, and send it on or hand the message over.

        Raises:
            TieError: another one reaches the link now.
            FoldRefusal: a ring holds it.
        """
        link, env = head[4][0], head[1].env
        if link.when >= env.now and link.shared:
            link.tie()
        link.when, link.event = env.now, env.events
        FifoFlow.arrive(head)


class WatchedFifo(Fifo):
    """Links that serve one message at a time and notice which messages reach them in the same moment."""

    kind: ClassVar = WatchedLink

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> WatchedFlow:
        """Open a flow over these hops, whose messages are recorded in these rows; priorities are not read."""
        return WatchedFlow(self._env, hops, put, rows)


class WatchedLinks(Links):
    """The links of a folded run that ends with a tie."""

    def _model(self, name: str, schedules: Schedules) -> Sharing:
        return WatchedFifo(self.env) if name == "fifo" else super()._model(name, schedules)
