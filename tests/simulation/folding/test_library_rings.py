"""NCCL's rings of one channel, followed apart: everything else happens as it does with their messages."""

import numpy as np
import pytest
from support.runs import totals
from support.two_stages import TWO_STAGES, planned

from hybrid_des import collectives
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group
from hybrid_des.engine.recorder import Recorder
from hybrid_des.simulation.folding import rings_apart
from hybrid_des.simulation.folding.folded_transport import folded_transport
from hybrid_des.simulation.folding.symmetry import Fold
from hybrid_des.simulation.run import run

ONE_GPU_PER_NODE = {"nodes": 16, "gpus_per_node": 1, "infiniband": {"nics_per_node": 1}}
NCCL = {"cluster": {**ONE_GPU_PER_NODE, "nccl_algorithm": "Ring"}, "gradients": {"algorithm": "nccl", "pad": True}}
CHUNKS = {"schedule": {"kind": "interleaved-1f1b", "microbatches": 4, "chunks": 2}}
GATHERS = {"sharding": "zero-1", "overlap": {"parameters": True}}
LARGE = {"workload": {"parameters": 8_000_000}}
TABLES = "steps", "ops", "waits", "exchanges"


@pytest.fixture
def begun(monkeypatch):
    """The paces of members that have begun a ring which is followed apart."""
    paces, begin = [], rings_apart.Followed.begin

    def noted(followed, number, *given):
        paces.append(followed._members[number].flow.pace)
        begin(followed, number, *given)

    monkeypatch.setattr(rings_apart, "FEWEST", 2)
    monkeypatch.setattr(rings_apart.Followed, "begin", noted)
    return paces


def outcome(variant, *, whole):
    done = run(variant.scenario, parts=variant.parts, fold_from=2, whole=whole)
    tables = [getattr(done.timeline, name) for name in TABLES]
    rows = [sorted(zip(*(np.asarray(one[name]).tolist() for name in sorted(one)), strict=True)) for one in tables]
    return (done.duration, done.peak_memory, done.ranks, totals(done), rows), done.events


@pytest.mark.parametrize(("changes", "collectives"), [
    ([], 2),
    ([LARGE], 2),
    ([{"sharding": "zero-1"}], 4),
    ([CHUNKS], 4),  # messages between stages pass reductions
    ([CHUNKS, GATHERS, LARGE], 8),  # and gathers
    ([{"gradients": {"bucket": 4_000_000}}, LARGE], 16),
    ([{"workload": {"activation": 10_000_000}}], 2),  # links are still busy when rings begin
    ([{"steps": 3, "barrier": False}], 6),
    ([{"workload": {"parameters": 80}, "cluster": {"nccl_algorithm": "Tree"}}], 0),
    ([{"cluster": {"sharing": "fair"}}], 0),
])  # fmt: skip
def test_everything_happens_as_with_messages(begun, changes, collectives):
    variant = planned(NCCL, *changes)
    (found, events), (expected, with_messages) = outcome(variant, whole=False), outcome(variant, whole=True)
    assert found == expected
    assert len(begun) == collectives
    assert events < with_messages or not collectives
    assert all(pace is not None for pace in begun)


def test_what_gathers_on_one_node_waits_as_gathers_do(begun):
    """Over the NVLinks of an H100's node, where NCCL's halves wait otherwise."""
    node = {"gpu": "h100", "nodes": 2, "gpus_per_node": 8}
    variant = planned(LARGE, {"gradients": NCCL["gradients"], "sharding": "zero-1"}, of={**TWO_STAGES, "cluster": node})
    assert outcome(variant, whole=False)[0] == outcome(variant, whole=True)[0]
    assert len(begun) == 4


def ends_of(parts, sharing, sizes, *, apart):
    """When each member of a group ends collectives of several sizes, one after the other, the first on busy links."""
    (processes, _), *_ = parts.reductions.processes
    nothing_folded = Fold(parts.times.layout, [])
    transport, ends = folded_transport(parts.fabric, sharing, Recorder(), nothing_folded, [processes]), []
    algorithm, places = collectives.configured(processes.kind, parts.reductions.options), range(processes.size)
    taken = rings_apart.RingsApart(transport, parts.reductions).of(processes, processes, places, algorithm)

    def part(place):
        group = Group(transport, processes, place)
        yield transport.env.timeout(50_000_000)
        for elements in sizes:
            yield from (taken if apart else algorithm)(group, Buffer(elements, codecs.find("fp32").build()))
            ends.append((place, transport.env.now))

    receiver, _, sender, *_ = processes.ranks
    transport.flow(Channel(sender, receiver, REDUCTION, "other", 1, 0))[0].send(Message(100_000_000))
    for place in places:
        transport.begin(processes.ranks[place])
        transport.env.process(part(place))
    transport.env.run()
    return sorted(ends)


@pytest.mark.parametrize(("sharing", "sizes", "rings", "allowed"), [
    ("fifo", (8_000_000, 8000, 8_000_000), 3, "Ring"),
    ("uncontended", (8_000_000, 80, 8_000_000), 2, "Ring,Tree"),  # a tree between rings
])  # fmt: skip
def test_collectives_of_other_sizes_go_at_other_paces(begun, sharing, sizes, rings, allowed):
    parts = planned({**NCCL, "cluster": {**ONE_GPU_PER_NODE, "nccl_algorithm": allowed}}).parts
    assert ends_of(parts, sharing, sizes, apart=True) == ends_of(parts, sharing, sizes, apart=False)
    assert len(begun) == 8 * rings
    assert len({pace[10**6] for pace in begun}) == rings - 1
