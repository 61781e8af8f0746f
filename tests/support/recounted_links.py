"""The services of links counted again from the rows of several jobs, by code that shares nothing with the package."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

SECOND = 10**12  # picoseconds


class Service(NamedTuple):
    """A message on a link."""

    start: int
    end: int
    asked: int
    size: int
    urgency: int


def services_of(runs: Iterable[Any]) -> Mapping[str, list[Service]]:
    """Link → what it carried for all jobs, in order of time."""
    found = defaultdict(list)
    for run in runs:
        cluster, rows = run.scenario.cluster, run.timeline.messages
        columns = (rows[name].tolist() for name in ("channel", "start", "end", "asked", "bytes"))
        for number, *times in zip(*columns, strict=True):
            channel = run.timeline.channels[number]
            found[channel.link].append(Service(*times, cluster.priority_of(channel.purpose)))
    return {link: sorted(each) for link, each in found.items()}


def wrong(runs: Iterable[Any], links: Mapping[str, Any], sharing: str) -> list[str]:
    """What contradicts the model of sharing, one line each."""
    problems = []
    for link, services in services_of(runs).items():
        bandwidth = links[link].bandwidth
        if bandwidth is None:
            continue
        if "fair" in sharing:
            problems += _beyond(link, services, Fraction(bandwidth))
        else:
            problems += _out_of_turn(link, services, Fraction(bandwidth), sharing)
    return problems


def _out_of_turn(link: str, services: list[Service], bandwidth: Fraction, sharing: str) -> Iterable[str]:
    free = 0
    for one in services:
        if one.end - one.start != round(one.size * SECOND / bandwidth):
            yield f"{link}: {one} takes another time than its bytes"
        if one.start != max(one.asked, free):
            yield f"{link}: {one} does not begin when it is there and the link is free ({free})"
        free = one.end
    if sharing == "fifo":
        yield from (f"{link}: {b} overtakes {a}" for a, b in pairwise(services) if b.asked < a.asked)
        return
    for place, one in enumerate(services):
        behind = (other for other in services[place + 1 :] if other.asked < one.start and other.start > one.start)
        yield from (f"{link}: {one} before {other}" for other in behind if other.urgency > one.urgency)


def _beyond(link: str, services: list[Service], bandwidth: Fraction) -> Iterable[str]:
    """No busy period carries more than the link can, nor does a message pass faster than alone; a picosecond each."""
    for one in services:
        if one.end - one.start < one.size * SECOND / bandwidth - 1:
            yield f"{link}: {one} is faster than alone"
    begin, until, size, count = services[0].start, 0, 0, 0
    for one in [*services, Service(2**63, 2**63, 0, 0, 0)]:
        if one.start > until and count:
            if (until - begin + count) * bandwidth < size * SECOND:
                yield f"{link}: {size} bytes from {begin} to {until}"
            begin, size, count = one.start, 0, 0
        until, size, count = max(until, one.end), size + one.size, count + 1
