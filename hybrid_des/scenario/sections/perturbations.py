"""What disturbs a run: the sections `slow`, `jitter` and `background` (slow components, random durations, traffic)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from hybrid_des.cluster import topologies
from hybrid_des.cluster.fabric import Fabric, LinkSpec
from hybrid_des.engine.timetable import Interval
from hybrid_des.errors import HybridDesError, unknown
from hybrid_des.options import (
    MOST,
    Bytes,
    Reads,
    ReadsAs,
    Section,
    Text,
    Time,
    choice,
    describe,
    positive,
    read_positive,
    whole,
)
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.cluster import BEHIND_JOBS, Cluster, Priority
from hybrid_des.scenario.sections.plugins import Plugins, PluginSection
from hybrid_des.scenario.sections.values import DistributionName
from hybrid_des.units import to_picoseconds
from hybrid_des.workload import distributions

WHERE = ("gpu", "node", "stage", "link", "nic")
COMPUTING = ("gpu", "node", "stage")
Number = Annotated[int, whole(0, MOST)]


def _speed(value: object) -> Fraction:
    try:
        return read_positive(value, "number")
    except ValueError:
        raise ValueError(
            f"expected a speed relative to the usual, more than 0, such as 0.5, found {describe(value)}; "
            "for a link that carries nothing for a while: flap"
        ) from None


Speed = Annotated[Fraction, Reads(_speed, {"type": "number", "exclusiveMinimum": 0})]


class Slow(Section):
    """A GPU, node, stage, link or NIC that differs from the others of its kind, permanently or for an interval."""

    gpu: Number | None = None
    """Number of a GPU, counted across nodes."""
    node: Number | None = None
    """Number of a node: all of its GPUs."""
    stage: Number | None = None
    """Number of a stage: its forwards and backwards, on all ranks that hold it."""
    link: Text | None = None
    """Name of a link, such as node0/nic0/out; `hybrid-des topology` lists them."""
    nic: Text | None = None
    """Name of a NIC, such as node0/nic0: both of its links."""
    factor: Speed | None = None
    """Relative speed, or share of the bandwidth: at 0.5, everything takes twice as long."""
    latency: Time = Fraction(0)
    """Latency that a link or NIC has in addition."""
    flap: Time | None = None
    """Instead of `factor`: a link or NIC carries nothing for this long."""
    from_: Time = Field(Fraction(0), alias="from")
    """Start of the interval, in simulated time."""
    until: Time | None = None
    """End of the interval. Default: permanent."""

    @property
    def target(self) -> tuple[str, int | str]:
        """The slow component: its kind, and its number or name."""
        return next((kind, value) for kind in WHERE if (value := getattr(self, kind)) is not None)

    @property
    def spell(self) -> Interval:
        """Its factor and interval in picoseconds."""
        start = to_picoseconds(self.from_)
        if self.flap is not None:
            return Interval(start, start + to_picoseconds(self.flap), Fraction(0))
        until = None if self.until is None else to_picoseconds(self.until)
        return Interval(start, until, Fraction(1) if self.factor is None else self.factor)

    @property
    def permanent(self) -> bool:
        """Whether it applies from the beginning to the end."""
        return self.until is None and self.from_ == 0 and self.flap is None

    @property
    def links(self) -> tuple[str, ...]:
        """The names of its links; none for a GPU, node or stage."""
        if self.nic is not None:
            return f"{self.nic}/out", f"{self.nic}/in"
        return () if self.link is None else (self.link,)


class SystemNoise(Section):
    """Operating-system noise: one detour per period, at a random phase on each rank."""

    period: Time
    """Time from one detour to the next."""
    detour: Time
    """Time for which the rank computes nothing."""


class Jitter(PluginSection):
    """Random durations of ops."""

    plugins: ClassVar[Plugins] = Plugins("distribution", distributions.names, distributions.find)
    distribution: DistributionName | None = None
    """Distribution of the factor by which durations are multiplied."""
    level: Annotated[Literal["op", "rank-step", "rank"], choice("op", "rank-step", "rank")] = "op"
    """What shares a factor: each op has its own, all ops of a rank in a step have one, or all ops of a rank do."""
    noise: SystemNoise | None = None
    """Noise of the operating system."""


_SLOW = TypeAdapter(tuple[Slow, ...], config=ConfigDict(defer_build=True))
_JITTER = TypeAdapter(tuple[Jitter, ...], config=ConfigDict(defer_build=True))


def _all_slow(value: object) -> tuple[Slow, ...]:
    if value in (None, "none"):
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list such as [{{gpu: 3, factor: 0.5}}], found {describe(value)}")
    return _SLOW.validate_python(value)


def _all_jitter(value: object) -> tuple[Jitter, ...]:
    if value in (None, "none"):
        return ()
    return _JITTER.validate_python(value) if isinstance(value, list | tuple) else (Jitter.model_validate(value),)


AllSlow = Annotated[tuple[Slow, ...], ReadsAs(_all_slow, Literal["none"] | tuple[Slow, ...])]
AllJitter = Annotated[tuple[Jitter, ...], ReadsAs(_all_jitter, Literal["none"] | Jitter | tuple[Jitter, ...])]


def misfits_of_slow(slow: Sequence[Slow], cluster: Cluster, stages: int) -> Iterator[Problem]:
    """Problems of the items by themselves, and of the components they name.

    Args:
        slow: the items.
        cluster: the GPUs, nodes and links.
        stages: an upper limit on the number of stages.
    """
    nodes = sum(kind.count for kind in cluster.kinds)
    sizes = {
        "gpu": (cluster.gpus, "the cluster has GPUs", "cluster"),
        "node": (nodes, "the cluster has nodes", "cluster"),
        "stage": (stages, "the pipeline has stages", "parallel"),
    }
    links = cache(lambda: _links_of(cluster))
    for number, entry in enumerate(slow):
        wrong = list(_mistakes(entry))
        for message, *key in wrong:
            yield misfit(message, ".".join(["slow", str(number), *key]))
        if wrong:
            continue
        kind, value = entry.target
        count, what, section = sizes.get(kind, (MOST, "", "cluster"))
        if isinstance(value, str):
            message = _link_misfit(entry, links())
        else:
            message = f"there is no {kind} {value}; {what} 0 … {count - 1}" if value >= count else ""
        if message:
            yield misfit(message, f"slow.{number}.{kind}", section)


def _mistakes(slow: Slow) -> Iterator[tuple[str, ...]]:
    """Problems of an item by itself: a message, and the key if it is about a single one."""
    given = [kind for kind in WHERE if getattr(slow, kind) is not None]
    if len(given) != 1:
        listed = " and ".join(given) or "none"
        yield (f"expected one of {', '.join(WHERE)}, found {listed}",)
        return
    computing = given[0] in COMPUTING
    if computing and slow.latency:
        yield f"is read for a link or nic, not for a {given[0]}", "latency"
    if computing and slow.flap is not None:
        yield f"is read for a link or nic, not for a {given[0]}", "flap"
    if slow.factor is None and slow.flap is None and not slow.latency:
        yield (f"expected a factor such as 0.5{'' if computing else ', a latency or a flap'}",)
    if slow.flap == 0:
        yield "must be more than 0", "flap"
    for key in ("factor", "until", "latency"):
        if slow.flap is not None and getattr(slow, key):
            yield "cannot be combined with `flap`, which sets the bandwidth to 0", key
    if slow.until is not None and slow.until <= slow.from_:
        yield f"the interval ends at {float(slow.until):g} s, but begins at {float(slow.from_):g} s", "until"


def _links_of(cluster: Cluster) -> Mapping[str, LinkSpec]:
    """The links of a cluster by name; none if it cannot be wired, which is reported separately."""
    if cluster.lacking or cluster.gpus > MOST:
        return {}
    try:
        fabric: Fabric = topologies.find(cluster.topology).build(cluster.spec, *cluster.arguments)
    except HybridDesError:
        return {}
    return fabric.links


def _link_misfit(slow: Slow, known: Mapping[str, LinkSpec]) -> str:
    """The problem if the cluster lacks a link or NIC, or its bandwidth is infinite; empty if there is none."""
    kind, name = slow.target
    if not known:
        return ""
    names = [link for link in slow.links if link in known]
    if not names:
        nics = {link.rpartition("/")[0] for link in known if re.fullmatch(r"node\d+/nic\d+/(in|out)", link)}
        others = nics if kind == "nic" else set(known)
        message = unknown(str(name), others)
        few = ", ".join(list(known)[:3]) if kind == "link" else "none; this topology has none"
        near = "did you mean" in message or (kind == "nic" and others)
        return message if near else f"{message.partition(';')[0]}; expected such as {few}"
    if not slow.latency and all(known[name].bandwidth is None for name in names):
        return "has an infinite bandwidth, which cannot be changed"
    return ""


def misfits_of_jitter(jitter: Sequence[Jitter], ranks: int) -> Iterator[Problem]:
    """Items without a distribution or its options, and noise that is given twice or never pauses."""
    if sum(one.noise is not None for one in jitter) > 1:
        yield misfit("found more than one `noise`; expected one at most", "jitter")
    for number, entry in enumerate(jitter):
        path = f"jitter.{number}" if len(jitter) > 1 else "jitter"  # that of a single mapping has no number
        yield from entry.misfits_of_options(path, ranks)
        if entry.distribution is None and entry.noise is None:
            yield misfit(f"is required, one of {', '.join(distributions.names())}", f"{path}.distribution")
        noise = entry.noise
        if noise is not None and not 0 < to_picoseconds(noise.detour) < to_picoseconds(noise.period):
            yield misfit("must be more than 0 and less than the period", f"{path}.noise.detour")


_END = re.compile(r"(node|gpu)(0|[1-9]\d{0,7})")


def _end(value: object) -> str:
    if not isinstance(value, str) or not _END.fullmatch(value):
        raise ValueError(f"expected a node or GPU such as node3 or gpu12, found {describe(value)}")
    return value


End = Annotated[str, Reads(_end, {"type": "string", "pattern": f"^{_END.pattern}$"})]
FlowRate = Annotated[Fraction, positive("bandwidth")]  # bytes per second


class Background(Section):
    """A flow of bytes beside the training, such as storage traffic or another user's."""

    from_: End = Field(alias="from")
    """Its sender: a node, whose GPUs send equal shares, or a GPU, such as node3 or gpu12."""
    to: End
    """Its receiver; GPU i of a node sends to GPU i of the other."""
    rate: FlowRate
    """Bytes per second on offer: message n is due at start + n · size / rate; a flow that was delayed catches up."""
    message: Bytes = 2**20
    """Size of its messages."""
    start: Time = Fraction(0)
    """When it begins, in simulated time."""
    until: Time | None = None
    """When it ends. Default: with the last job."""
    priority: Priority | None = None
    """With `sharing: priority` or `priority-fair`: as that of a job. Default: less urgent than all jobs."""

    @property
    def level(self) -> int:
        """Its priority among those of jobs."""
        return BEHIND_JOBS if self.priority is None else self.priority

    def pairs(self, cluster: Cluster) -> Iterator[tuple[int, int, int]]:
        """The senders and receivers, as GPUs, and the number of these pairs."""
        senders, receivers = _gpus(self.from_, cluster), _gpus(self.to, cluster)
        count = max(len(senders), len(receivers))
        for number in range(count):
            yield senders[number % len(senders)], receivers[number % len(receivers)], count


def _gpus(end: str, cluster: Cluster) -> Sequence[int]:
    match = _END.fullmatch(end)
    assert match is not None
    number, spec = int(match[2]), cluster.spec
    if match[1] == "gpu":
        return [number]
    first = spec.first_gpu(number)
    return range(first, first + spec.nodes[number].gpus)


def misfits_of_background(flows: Sequence[Background], cluster: Cluster) -> Iterator[Problem]:
    """Ends that the cluster does not have, and flows from a place to itself."""
    for number, flow in enumerate(flows):
        at = f"background.{number}"
        wrong = False
        for key, end in (("from", flow.from_), ("to", flow.to)):
            kind, count = ("GPU", cluster.gpus) if end.startswith("gpu") else ("node", len(cluster.spec.nodes))
            if int(end[3 if kind == "GPU" else 4 :]) >= count:
                wrong = True
                yield misfit(f"there is no {end}; the cluster has {count} {kind}s", f"{at}.{key}", "cluster")
        if not wrong and any(sender == receiver for sender, receiver, _ in flow.pairs(cluster)):
            yield misfit(f"{flow.from_} would send to itself", f"{at}.to", f"{at}.from")
        if flow.message == 0:
            yield misfit("a flow needs messages of at least one byte", f"{at}.message")
        if flow.until is not None and flow.until <= flow.start:
            yield misfit("ends before it starts", f"{at}.until", f"{at}.start")
