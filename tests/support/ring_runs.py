"""Random scenarios whose gradients go around rings, simulated by messages and with rings taken at once."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.purposes import PARAMETERS
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import on_channels
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.collectives.registration import configured
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.simulation import jobs, ring_links, rings_at_once, ways
from hybrid_des.simulation.planning.planner import parts_of
from hybrid_des.simulation.planning.wiring import fabric_of
from hybrid_des.simulation.ring_links import RingEnvironment, RingLinks, RingTransport
from hybrid_des.simulation.rings_at_once import RingsAtOnce
from hybrid_des.simulation.run import Run, run

TABLES = "ops", "reductions", "gathers", "waits", "exchanges", "steps"
RANKS = "memory", "activations", *TABLES  # facts of simulated ranks
LINKS = "free", "sent"
TOTALS = "messages", "bytes"
GATHER = "ring-all-gather"


def ring_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of up to 48 GPUs, all of which are simulated."""
    pipeline, data, width = rng.choice((1, 1, 2, 3, 4)), rng.choice((3, 4, 6, 8, 8, 12)), rng.choice((1, 2, 4, 8))
    values: dict[str, Any] = {
        "cluster": _cluster(rng, -(-pipeline * data // width) + rng.choice((0, 0, 1)), width),
        "parallel": {
            "pipeline": pipeline,
            "data": data,
            "order": rng.choice((["tensor", "data", "pipeline"], ["tensor", "pipeline", "data"])),
        },
        "schedule": {"kind": rng.choice(("1f1b", "1f1b", "gpipe")), "microbatches": rng.choice((1, 2, 4, 7))},
        "workload": {
            "forward": f"{rng.choice((1013, 2011, 7003, 20011))} ns",
            "backward": f"{rng.choice((2003, 4001, 11003, 40009))} ns",
            "activation": rng.choice((0, 1000, 4099, 12347)),
            "parameters": rng.choice((960, 7680, 9973, 24000)),
            "optimizer": f"{rng.choice((0, 1))} us",
        },
        "gradients": {
            "algorithm": "ring",
            "overlap": rng.random() < 0.6,
            "codec": rng.choice(("fp32", "bf16", "int8")),
            "pad": rng.random() < 0.4,
        },
        "steps": rng.choice((1, 1, 2, 3)),
        "barrier": rng.random() < 0.6,
        "fold": rng.choice(("off", "auto", "auto")),
        "record": "compute",
    }  # fmt: skip
    if rng.random() < 0.4:
        _keep_pipelines_apart(rng, values)
    if rng.random() < 0.8:
        values["gradients"]["channels"] = 1
    if rng.random() < 0.4:
        values["gradients"]["bucket"] = rng.choice((4000, 20000))
    if rng.random() < 0.25:
        values["sharding"] = rng.choice(("zero-1", "zero-1", "zero-2", "zero-3"))
        values["overlap"] = {"parameters": rng.random() < 0.5}
        if pipeline == 1:
            values["gradients"].pop("bucket", None)
    return values


def _keep_pipelines_apart(rng: Random, values: dict[str, Any]) -> None:
    """Give every GPU an adapter, and every replica nodes below one leaf, so that only rings tell replicas apart."""
    cluster, pipeline, data = values["cluster"], *(values["parallel"][axis] for axis in ("pipeline", "data"))
    width = rng.choice([width for width in (1, 2, 3, 4) if pipeline % width == 0])
    each = pipeline // width
    cluster |= {"nodes": data * each, "gpus_per_node": width, "topology": "leaf-spine"}
    cluster |= {"leaf_size": each * rng.choice((2, 3, 5)), "oversubscription": rng.choice((1, 2, 4))}
    cluster["infiniband"]["nics_per_node"] = width
    cluster.pop("cross_rail", None)
    values["parallel"]["order"], values["fold"] = ["tensor", "pipeline", "data"], "auto"


def _cluster(rng: Random, nodes: int, width: int) -> dict[str, Any]:
    cluster = {
        "nodes": nodes,
        "gpus_per_node": width,
        "nvlink": {
            "bandwidth": rng.choice(("4 GB/s", "17 GB/s", "inf")),
            "latency": rng.choice(("0 s", "300 ns", "1 us")),
        },
        "infiniband": {
            "bandwidth": rng.choice(("1 GB/s", "1.7 GB/s", "3 GB/s")),
            "latency": rng.choice(("0 s", "2 us", "1.3 us")),
            "nics_per_node": rng.choice([nics for nics in (1, 2, 4, 8) if nics <= width]),
        },
        "topology": rng.choice(("leaf-spine", "leaf-spine", "leaf-spine", "rails", "nodes")),
    }
    if cluster["topology"] == "leaf-spine":
        cluster |= {"leaf_size": rng.choice((1, 2, 3, 5)), "oversubscription": rng.choice((1, 1, 2, 4))}
    elif cluster["topology"] == "rails" and rng.random() < 0.5:
        cluster |= {"cross_rail": "spine", "oversubscription": rng.choice((1, 2))}
    return cluster


def variants(seed: int) -> Iterator[Variant]:
    """A random scenario, and a change of it; none if it is impossible."""
    rng = Random(seed)
    try:
        scenario = scenario_from(ring_values(rng))
        base = Variant.planned(scenario, parts_of(scenario))
    except HybridDesError:
        return
    yield base
    yield rng.choice((
        base.without_queueing, lambda: base.with_all_links(None), lambda: base.with_all_links(Fraction(2)),
        lambda: base.with_all_links(None).with_latency(Fraction(0)), lambda: base.with_latency(Fraction(1, 3)),
    ))()  # fmt: skip


class Outcome(NamedTuple):
    """A run: what must be the same, the rings taken, the class of its network, and the ranks that were simulated."""

    facts: dict[str, Any]
    taken: int
    network: str
    ranks: Sequence[int]


class RingRuns:
    """Simulates variants, of any number of members, by messages or not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._made: list[Any] = []
        self._taken: list[Any] = []
        for name in ("_transport", "ring_transport"):
            patch.setattr(jobs, name, partial(self._noted, self._made, getattr(jobs, name)))
        patch.setattr(ring_links, "FEWEST", 2)
        count = rings_at_once.Ring._count
        patch.setattr(rings_at_once.Ring, "_count", lambda *given: self._noted(self._taken, count, *given))

    @property
    def network(self) -> Any:
        """The network of the last run."""
        return self._made[-1]

    @staticmethod
    def _noted(made: list[Any], call: Any, *given: Any, **more: Any) -> Any:
        made.append(call(*given, **more))
        return made[-1]

    def of(self, variant: Variant, *, messages: bool = False, detailed: bool = False) -> Outcome:
        """The outcome of a run, by messages or with rings taken at once where that is possible."""
        self._made.clear(), self._taken.clear(), ways._DISTURBED.clear()
        done = run(
            variant.scenario, variant.plan, variant.fabric,
            parts=variant.parts, retime=variant.retime, detailed=detailed, whole=messages, fold_from=10**6,
        )  # fmt: skip
        return Outcome(_facts(done, self._made[-1]), len(self._taken), type(self._made[-1]).__name__, done.ranks)

    def check(self, variant: Variant) -> Outcome:
        """Compare a run by messages with one of rings taken at once; the latter's outcome."""
        whole, detailed, short = (
            self.of(variant, messages=messages, detailed=rows)
            for messages, rows in ((True, True), (False, True), (False, False))
        )
        assert detailed[1:] == short[1:]
        for name, fact in short.facts.items():
            assert fact == detailed.facts[name], name
        every = set(short.ranks) == set(whole.ranks)
        for name, mine in detailed.facts.items():
            its = whole.facts[name]
            if name in RANKS:
                its = {key: value for key, value in its.items() if key[0] in short.ranks}
            if name in LINKS and not every:
                its = {key: value for key, value in its.items() if key in mine}
            if name not in LINKS or variant.scenario.steps < 3:  # others may not simulate all steps
                assert mine == its, name
        return short


def _facts(done: Run, transport: Any) -> dict[str, Any]:
    links = getattr(transport, "whole", transport).links
    facts = {
        "duration": done.duration,
        "memory": {(rank,): bytes for rank, bytes in zip(done.ranks, done.peak_memory, strict=True)},
        "activations": {(rank,): chunks for rank, chunks in zip(done.ranks, done.peak_chunks, strict=True)},
        "free": {name: link.free for name, link in links.items() if link.free},
        "sent": {pair: n for pair, n in transport.between()[1].items() if n} if len(links) else {},
        "messages": done.messages,
        "bytes": (done.bytes_gradients, done.bytes_pipeline, done.bytes_scales, done.bytes_parameters),
    }  # fmt: skip
    if done.timeline.ops["rank"].size:
        for name in TABLES:
            table = getattr(done.timeline, name)
            columns = [table[column].tolist() for column in sorted(table, key=lambda column: column != "rank")]
            facts[name] = Counter(zip(*columns, strict=True))
    return facts


class Alone(NamedTuple):
    """Rings by themselves: ranks and begins of each, and the elements that it reduces."""

    rings: Sequence[tuple[Sequence[int], int, int]]
    kind: str
    late: int  # picoseconds by which the last member of the last ring begins later


def alone_case(rng: Random) -> tuple[Fabric, Alone, dict[str, int]]:
    """Random rings of all GPUs of a cluster, whose links are busy at first."""
    cluster = _cluster(rng, rng.choice((6, 7, 8)), rng.choice((1, 2, 4)))
    work = {"forward": "1 us", "backward": "1 us", "parameters": 1}
    of_none = {"parallel": {"pipeline": 1, "data": 2}, "schedule": {"kind": "1f1b", "microbatches": 1}}
    fabric = fabric_of(scenario_from({"cluster": cluster, "workload": work, **of_none}))
    gpus, count, rings = fabric.gpus, rng.choice((1, 2, 3)), []
    for number in range(count):
        apart, blocks = range(number, gpus, count), range(number * gpus // count, (number + 1) * gpus // count)
        ranks = apart if rng.random() < 0.7 else blocks
        rings.append(([*ranks], rng.randrange(9_000_000), rng.choice((1000, 4000, 4003, 64))))
    kind = rng.choice(("ring", "ring", "ring-reduce-scatter", GATHER))
    given = Alone(rings, kind, rng.choice((0, 0, 0, 0, 77)))
    finite = [name for name, link in fabric.links.items() if link.bandwidth is not None]
    return fabric, given, {name: rng.randrange(20_000_000) for name in finite if rng.random() < 0.3}


def alone(fabric: Fabric, given: Alone, busy: Mapping[str, int], *, at_once: bool) -> tuple[list[Any], list[int]]:
    """When the members of rings end, when links are free, what was sent; and how many links rings hold after each end.

    Args:
        fabric: the wiring.
        given: the rings.
        busy: link → when it is free of earlier messages.
        at_once: whether they are taken at once.
    """
    groups = [
        ProcessGroup(PARAMETERS.name if given.kind == GATHER else given.kind, stage, ranks, [-1] * len(ranks))
        for stage, (ranks, _, _) in enumerate(given.rings)
    ]
    env = RingEnvironment(differs=False) if at_once else Environment()
    transport = (RingTransport if at_once else Transport)(
        (RingLinks if at_once else Links)(env, fabric, "fifo"), Recorder()
    )
    for name, free in busy.items():
        transport.links[name].free = free
    reductions = SimpleNamespace(processes=[(replace(whole, kind="ring"), None) for whole in groups])
    rings: Any = RingsAtOnce(transport, SimpleNamespace(reductions=reductions)) if at_once else None
    algorithm, ends, held = configured(given.kind), list[tuple[int, int, int]](), list[int]()

    def part(whole: ProcessGroup, place: int, begin: int, elements: int) -> Iterator[Any]:
        yield env.timeout(begin)
        group, buffer = Group(transport, whole, place), Buffer(elements, codecs.find("int8").build())
        yield from rings._take(whole, group, buffer) if rings else on_channels(group, buffer, algorithm)
        ends.append((whole.stage, place, env.now))
        held.append(sum(bool(getattr(link, "rings", ())) for link in transport.links.values()))

    for whole, (ranks, begin, elements) in zip(groups, given.rings, strict=True):
        for place in range(len(ranks)):
            late = given.late if (whole.stage, place) == (len(groups) - 1, len(ranks) - 1) else 0
            env.process(part(whole, place, begin + late, elements))
    env.run()
    free = {name: link.free for name, link in transport.links.items()}
    sent = {pair: count for pair, count in transport.between()[0].items() if count}
    return [sorted(ends), free, sent, transport.sent()], held
