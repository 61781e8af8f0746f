"""Random scenarios whose rings of gradients may be followed apart, and random rings on a star beside other messages."""

from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.engine.recorder import Recorder
from hybrid_des.layout import Layout
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.simulation.folding.folded_transport import folded_transport
from hybrid_des.simulation.folding.rings_apart import RingsApart
from hybrid_des.simulation.folding.symmetry import Fold, FoldedAxis
from hybrid_des.simulation.planning.planner import parts_of
from hybrid_des.simulation.speeds import DurationOverride
from support.fabrics import build, node, star
from support.foldings import scenario_values, tied_values

RANKS = 8


def apart_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario, mostly with padded rings of one channel, some of which others pass."""
    values = (tied_values if rng.random() < 0.3 else scenario_values)(rng)
    gradients, work, layout = values["gradients"], values["workload"], values["parallel"]
    if rng.random() < 0.9:
        for key in ("pieces", "servers", "partner"):
            gradients.pop(key, None)
        gradients["algorithm"] = "ring"
    if gradients["algorithm"] == "ring":
        gradients |= {"channels": 1, "pad": rng.random() < 0.8}
    gradients["overlap"] = gradients["overlap"] or rng.random() < 0.5
    if rng.random() < 0.4:
        values["schedule"] |= {"kind": "interleaved-1f1b", "chunks": 2, "microbatches": 2 * layout["pipeline"]}
    work["parameters"] = rng.choice((work["parameters"], 10**5, 10**6))
    work["activation"] = rng.choice((work["activation"], 100, 10**4, 10**5))
    values["cluster"]["sharing"] = "fifo"
    if rng.random() < 0.3:
        layout["data"] = rng.choice((16, 32))
        values["cluster"]["nodes"] = -(-layout["pipeline"] * layout["data"] // values["cluster"]["gpus_per_node"])
    return values


def apart_variant(rng: Random) -> Variant:
    """A random scenario of these, maybe with other durations or without queueing."""
    scenario = scenario_from(apart_values(rng)).model_copy(update={"record": "compute"})
    variant = Variant.planned(scenario, parts_of(scenario))
    if rng.random() < 0.5:
        factor, kinds = Fraction(rng.choice((1, 9, 11, 15)), 10), rng.choice(("F", "B", "FB"))
        override = DurationOverride(lambda _, call, took: round(took * factor) if call.kind in kinds else took, id)
        variant = variant.with_retime(DurationOverride(override.duration, lambda _: 0))
    return variant.without_queueing() if rng.random() < 0.1 else variant


class StarCase(NamedTuple):
    """Rings of all GPUs of a star, one after the other on each, and messages of others.

    Attributes:
        keep: how many members are simulated.
        buckets: the elements of each ring.
        begins: when each simulated member begins the first ring.
        pauses: of each simulated member, picoseconds between two rings.
        others: when messages of others are sent, the simulated rank, how many ranks further, and their bytes.
    """

    keep: int
    buckets: list[int]
    begins: list[int]
    pauses: list[int]
    others: list[tuple[int, int, int, int]]


def star_case(rng: Random) -> StarCase:
    """Random rings, of which some begin at one time or meet messages of others."""
    keep = rng.choice((1, 2, 4, 8))
    apart = rng.choice((1, 10**5, 10**8))
    begins = [rng.randrange(apart) for _ in range(keep)]
    pauses = [rng.choice((0, 0, 12_345)) for _ in range(keep)]
    buckets = [RANKS * rng.choice((1, 10, 250)) for _ in range(rng.choice((1, 2)))]
    others = [
        (rng.choice((rng.randrange(10**7), 10**6 * rng.randrange(10))), rng.randrange(keep), rng.randrange(1, RANKS),
         rng.choice((1, 1000, 10**5)))
        for _ in range(rng.choice((0, 3, 12)))
    ]  # fmt: skip
    return StarCase(keep, buckets, begins, pauses, others)


class Reductions(NamedTuple):
    """Groups whose rings are reduced."""

    processes: Any


class Bucket(NamedTuple):
    """A part of the gradients."""

    elements: int


class Buckets(NamedTuple):
    """The parts of a group's gradients."""

    buckets: list[Bucket]


def on_a_star(case: StarCase, *, apart: bool) -> tuple[list[Any], list[int]]:
    """When members end and when messages of others arrive; and until when links are busy.

    Args:
        case: what happens.
        apart: whether rings are followed apart.
    """
    fold = Fold(Layout({"data": RANKS}, ["data"]), [FoldedAxis("data", case.keep)] if case.keep < RANKS else [])
    whole = ProcessGroup("ring", 0, range(RANKS), [0] * RANKS)
    transport: Any = folded_transport(build("links", node(RANKS), links=star(RANKS)), "fifo", Recorder(), fold, [whole])
    env, seen, ring = transport.env, list[Any](), collectives.configured("ring", {"channels": 1})
    if apart:
        reductions: Any = Reductions([(whole, Buckets([*map(Bucket, case.buckets)]))])
        ring = RingsApart(transport, reductions).of(whole, whole, range(case.keep), ring)

    def member(rank: int) -> Iterator[Any]:
        group = Group(transport, whole, rank)
        yield env.timeout(case.begins[rank])
        for number, elements in enumerate(case.buckets):
            yield from ring(group, Buffer(elements, codecs.find("fp32").build()))
            seen.append(("ends", number, rank, env.now))
            yield env.timeout(case.pauses[rank])

    def other(number: int, at: int, rank: int, further: int, size: int) -> Iterator[Any]:
        channel = Channel(rank, (rank + further) % RANKS, REDUCTION, "ring", 1 + number, 0)
        flow, mailbox = transport.flow(channel)
        yield env.timeout(at)
        flow.send(Message(size))
        yield mailbox.receive()
        seen.append(("arrives", number, rank, env.now))

    for rank in range(case.keep):
        transport.begin(rank)
        env.process(member(rank))
    for number, (at, rank, *what) in enumerate(case.others):
        transport.begin(rank)
        env.process(other(number, at, rank, *what))
    env.run()
    return sorted(seen), sorted(link.free for link in transport.links.values())
