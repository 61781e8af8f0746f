"""Links that are served in order, in a folded run: two messages that meet must meet in the same order in all images.

A link stands for all of its images. Each message comes from a sender with a frame of its own, so roots are moved from
frame to frame: from the sender to the first link, from link to link, and to the receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.engine.clock import MOMENT, USUAL
from hybrid_des.engine.lineage import Lineage, LineageEnvironment
from hybrid_des.folding import FoldRefusal
from hybrid_des.network.link import Link
from hybrid_des.network.sharing.fifo import FifoFlow, Head

if TYPE_CHECKING:
    from hybrid_des.folding.orbits import Element, Fold
    from hybrid_des.network.fabric import LinkSpec
    from hybrid_des.network.message import Message
    from hybrid_des.network.rate import Rate
    from hybrid_des.network.sharing import Put


class LineageLink(Link):
    """A link that remembers the messages that reached it at this moment, if it has more than one flow.

    Attributes:
        shared: whether it has, at finite bandwidth.
        last: when a message last reached it, and the number and lineage of the event by which it did.
    """

    __slots__ = ("_came", "_first", "_flows", "_when", "env", "last", "shared")

    env: LineageEnvironment

    def __init__(self, env: LineageEnvironment, spec: LinkSpec, rate: Rate) -> None:
        super().__init__(env, spec, rate)
        self.shared = False
        self.last: tuple[int, int, Lineage] = (-1, -1, (None, 0))
        self._flows = self._first = 0
        self._came: list[tuple[int, int, Element | None, Lineage]] = []

    def join(self, sender: int) -> None:
        """Add a flow of messages from a rank."""
        self._flows += 1
        if self._flows == 2 and self.spec.bandwidth is not None:  # otherwise no message waits
            self.shared = True
            self._when, number, lineage = self.last
            self._came = [(self._first, number, None, lineage)]
        elif self._flows == 1:
            self._first = sender

    def meet(self, sender: int, frame: Element) -> None:
        """Record that a message reaches the link, by the event being processed.

        Raises:
            FoldRefusal: another one reaches it now, and which of them is first depends on the image.
        """
        env = self.env
        if self._when != env.now:
            self._when = env.now
            self._came = [(sender, env.events, frame, env.lineage)]
            return
        number, lineage = env.events, env.lineage
        for other, event, there, before in self._came:
            same = event == number and there == frame
            if not same and not env.decided(before, lineage):
                ranks = " and ".join(map(str, sorted((sender, other))))
                what = f"messages of ranks {ranks} reach link {self.spec.name} at the same time"
                raise FoldRefusal(f"{what}, and which comes first differs between replicas")
        if self._came[-1][1:3] != (number, frame):
            self._came.append((sender, number, frame, lineage))


class LineageHead(Head):
    """The head of a message with its lineage."""

    __slots__ = ("lineage",)

    lineage: Lineage


class LineageFlow(FifoFlow):
    """A flow over such links that, like the receiver, belong to the sender's own image."""

    __slots__ = ("_sender",)

    env: LineageEnvironment

    def __init__(self, sender: int, base: FifoFlow) -> None:
        super().__init__(base.env, base.hops, base.put, base.rows)
        self._sender = sender
        self.on_head = (self.env.follow, LineageFlow.arrive)
        for hop in base.hops:
            hop.link.join(sender)  # type: ignore[attr-defined]

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        link: Any = self.link
        if link.shared:
            link.meet(self._sender, ())
        else:
            env = self.env
            link.last = (env.now, env.events, env.lineage)
        FifoFlow.send(self, message, tag)

    @staticmethod
    def arrive(head: Head) -> None:
        """Serve a head at a further link, and send it on or hand the message over."""
        flow: Any = head.flow
        link: Any = flow.hops[head.hop].link
        if link.shared:
            link.meet(flow._sender, ())
        else:
            env = flow.env
            link.last = (env.now, env.events, env.lineage)
        FifoFlow.arrive(head)

    def _forward(self, hop: int, at: int, slowest: int, message: Message, tag: int) -> None:
        head = LineageHead()
        head.callbacks, head.flow = self.on_head, self
        head.message, head.tag = message, tag
        head.hop, head.slowest = hop, slowest
        head.lineage = self.env.born
        self.env.agenda[at << MOMENT | USUAL].append(head)


class TurnedFlow(LineageFlow):
    """A flow to an image other than the sender's own."""

    __slots__ = ("_course", "_fold", "_moved", "_steps")

    def __init__(self, fold: Fold, sender: int, course: Sequence[Element], base: FifoFlow) -> None:
        """Trace a flow.

        Args:
            fold: the group of images.
            sender: the rank that sends.
            course: for each link and, last, the receiver, the element that maps its picture to it.
            base: the untraced flow.
        """
        super().__init__(sender, base)
        self.put = self._landing(base.put)
        self._fold = fold
        self._course = course
        turns = zip([fold.identity, *course], course, strict=False)
        self._steps = [fold.combined(before, fold.inverse(after)) for before, after in turns]
        self._moved: list[dict[int, int]] = [{} for _ in self._steps]

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        env = self.env
        before = env.lineage, env.born
        self._enter(0)
        link: Any = self.link
        if link.shared:
            link.meet(self._sender, self._course[0])
        else:
            link.last = (env.now, env.events, env.lineage)
        FifoFlow.send(self, message, tag)
        env.lineage, env.born = before

    def _forward(self, hop: int, at: int, slowest: int, message: Message, tag: int) -> None:
        env = self.env
        before = env.lineage, env.born
        self._enter(hop)
        super()._forward(hop, at, slowest, message, tag)
        env.lineage, env.born = before

    def _landing(self, put: Put) -> Put:
        """Hand a message over in the receiver's frame."""

        def landed(message: Message, tag: int, at: int) -> None:
            env = self.env
            before = env.lineage, env.born
            self._enter(len(self._steps) - 1)
            put(message, tag, at)
            env.lineage, env.born = before

        return landed

    def _enter(self, hop: int) -> None:
        """Switch to the frame of a link or, after the last, of the receiver."""
        step = self._steps[hop]
        if step == self._fold.identity:
            return
        env, moved = self.env, self._moved[hop]
        (here, root), (born, parent) = env.lineage, env.born
        for one in (root, parent):
            if one not in moved:
                moved[one] = self._fold.move_root(one, step)
        env.lineage, env.born = (here, moved[root]), (born, moved[parent])


def with_lineage(fold: Fold, sender: int, course: Sequence[Element], base: FifoFlow) -> LineageFlow:
    """Trace a flow; see `TurnedFlow`."""
    same = all(element == fold.identity for element in course)
    return LineageFlow(sender, base) if same else TurnedFlow(fold, sender, course, base)
