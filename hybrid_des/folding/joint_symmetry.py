"""Folds of several jobs that share links, under images that all of them have in common.

    job a   on nodes 0, 2 │ 1, 3      an image that exchanges the nodes of both halves exchanges leaf 0 and leaf 1,
    job b   on node  4    │ 5         for a as for b; a message of a may have several images on one leaf's uplink

Each job is folded by images of its own, and every image of one job goes with an image of each other job that maps the
links that they share alike. Links that are images of each other are simulated once, and a message counts there as
often as it has images on one of them (`cluster.sharing.weighted_fair`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.connections import Connection
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.link import Hop
from hybrid_des.cluster.purposes import Purpose
from hybrid_des.cluster.sharing.registration import Flow, Put, Schedules, Sharing
from hybrid_des.cluster.sharing.weighted_fair import WeightedFair, WeightedFlow
from hybrid_des.cluster.transport import Links
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.folded_transport import FoldedTransport
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import Element, Fold
from hybrid_des.units import grouped_by

MOST = 100_000  # images of shared links that are compared

Images = Mapping[str, str]  # of links, by an element


class Orbit(NamedTuple):
    """The images of a link, itself included.

    Attributes:
        first: of them, which is simulated.
        size: their number.
        element: one that maps the first to the link.
    """

    first: str
    size: int
    element: Element


class FoldedLinks:
    """A fold of a job, and which of the links that the job uses are images of each other.

    Args:
        fabric: the job's view of the wiring.
        fold: which ranks are simulated.
        connections: between which ranks it sends.

    Attributes:
        fabric, fold: as given.
        pairs: these ranks.
        links: the links on their routes.

    Raises:
        FoldRefusal: images of a route are no routes over images of its links.
    """

    def __init__(self, fabric: Fabric, fold: Fold, connections: Iterable[Connection]) -> None:
        self.fabric, self.fold = fabric, fold
        self.pairs = {(one.sender, one.receiver) for one in connections}
        self.links = {link for pair in self.pairs for link in fabric.route(*pair).links}
        self._generators = {element: self._images(element) for element in fold.generators}

    def _images(self, element: Element) -> Images:
        images: dict[str, str] = {}
        fabric, links = self.fabric, self.fabric.links
        for sender, receiver in sorted(self.pairs):
            here = fabric.route(sender, receiver)
            there = fabric.route(self.fold.move(sender, element), self.fold.move(receiver, element))
            if here.latencies != there.latencies:
                raise FoldRefusal(
                    f"the route from rank {sender} to {receiver} and its counterpart have different latencies"
                )
            for link, image in zip(here.links, there.links, strict=True):
                if images.setdefault(link, image) != image or links[link].bandwidth != links[image].bandwidth:
                    raise FoldRefusal(f"link {link} has several counterparts, or one of another bandwidth")
        if {*images} != {*images.values()}:
            raise FoldRefusal("counterparts of links are unused or not distinct")
        return images

    @cached_property
    def orbits(self) -> dict[str, Orbit]:
        """The images of each link."""
        orbits: dict[str, Orbit] = {}
        for link in sorted(self.links):
            if link not in orbits:
                reached = {link: self.fold.identity}
                orbit = [link]
                for other in orbit:  # grows
                    for element, images in self._generators.items():
                        if (image := images[other]) not in reached:
                            reached[image] = self.fold.combined(reached[other], element)
                            orbit.append(image)
                orbits |= {other: Orbit(link, len(orbit), element) for other, element in reached.items()}
        return orbits

    def of_shared(self, shared: Collection[str]) -> list[tuple[Element, Images]]:
        """All elements, with what each does to the links that others use too.

        Raises:
            FoldRefusal: there are too many, or the image of such a link is used by this job alone.
        """
        fold, mine = self.fold, sorted(self.links.intersection(shared))
        if fold.order * (len(mine) + 1) > MOST:
            raise FoldRefusal("there are too many counterparts of shared links to compare")
        known: dict[Element, Images] = {fold.identity: {link: link for link in mine}}
        reached = [fold.identity]
        for element in reached:  # grows
            for generator, images in self._generators.items():
                further = fold.combined(element, generator)
                if further not in known:
                    known[further] = {link: images[known[element][link]] for link in mine}
                    reached.append(further)
        if any(image not in shared for images in known.values() for image in images.values()):
            raise FoldRefusal("the counterpart of a shared link is used by one job only")
        return [*known.items()]

    def weights(self, sender: int, receiver: int) -> dict[str, int]:
        """The simulated links of a route, and how many images of its messages each of them carries.

        Raises:
            FoldRefusal: the route was not compared with its images.
        """
        if (sender, receiver) not in self.pairs:
            raise FoldRefusal(f"messages from rank {sender} to {receiver} were not expected")
        links = dict.fromkeys(self.fabric.route(sender, receiver).links)
        of_orbits = Counter(self.orbits[link][:2] for link in links)
        return {link: times * self.fold.order // images for (link, images), times in of_orbits.items()}


def compatible(jobs: Sequence[FoldedLinks]) -> bool:
    """Whether every image of each job goes with one of each other job that maps alike the links that both use."""
    uses = Counter(link for job in jobs for link in job.links)
    shared = {link for link, users in uses.items() if users > 1}
    common: list[tuple[tuple[Element, ...], Images]] = [((), {})]
    try:
        for job in jobs:
            common = _joined(common, job.of_shared(shared))
    except FoldRefusal:
        return False
    together = [set(elements) for elements in zip(*(elements for elements, _ in common), strict=True)]
    return all(len(elements) == job.fold.order for elements, job in zip(together, jobs, strict=True))


def _joined(
    common: Sequence[tuple[tuple[Element, ...], Images]], further: Sequence[tuple[Element, Images]]
) -> list[tuple[tuple[Element, ...], Images]]:
    """Images that some jobs have in common, each with every image of a further job that agrees with it.

    Raises:
        FoldRefusal: there are too many.
    """
    links = sorted(common[0][1].keys() & further[0][1].keys())
    by_images = grouped_by(further, lambda both: tuple(both[1][link] for link in links))
    joined: list[tuple[tuple[Element, ...], Images]] = []
    for elements, images in common:
        agreeing = by_images.get(tuple(images[link] for link in links), ())
        joined += [((*elements, element), {**images, **more}) for element, more in agreeing]
        if len(joined) * (len(images) + 1) > MOST:
            raise FoldRefusal("there are too many symmetries of all jobs to compare")
    return joined


class JointLinks(Links):
    """The links of a folded run of several jobs, of which each stands for its images."""

    def __init__(self, fabric: Fabric, sharing: str) -> None:
        super().__init__(Environment(), fabric, sharing)

    def _model(self, name: str, schedules: Schedules) -> Sharing:
        self._weighted = WeightedFair(self.env, urgent=name == "priority-fair")
        return self._weighted

    @property
    def ends(self) -> int:
        """How many instants ended, which is an event of all images together."""
        return self._weighted.ends


class JointTransport(FoldedTransport):
    """Flows and mailboxes of one of several jobs that are folded together."""

    def __init__(
        self,
        links: JointLinks,
        trace: Recorder,
        images: FoldedLinks,
        groups: Iterable[ProcessGroup],
        receipts: bool = False,
        priority: Callable[[Purpose], int] | None = None,
    ) -> None:
        super().__init__(links, trace, images.fold, receipts, groups, fabric=images.fabric, priority=priority)
        self._images = images

    def _flow(self, channel: Channel, put: Put) -> Flow:
        weights = self._images.weights(channel.sender, channel.receiver)
        flow = super()._flow(channel, put)
        assert isinstance(flow, WeightedFlow)
        flow.weigh(weights)
        return flow

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        route = self._fabric.route(channel.sender, channel.receiver)
        latencies = route.latencies if channel.pace is None else channel.pace.latencies(route)
        orbits = self._images.orbits
        return tuple(
            Hop(self.links[orbits[name].first], latency, self._trace.channel(channel.on(name, hop, latency)))
            for hop, (name, latency) in enumerate(zip(route.links, latencies, strict=True))
        )
