"""NCCL's rings of one channel, followed apart: everything else happens as it does with their messages."""

import numpy as np
import pytest
from support.two_stages import planned

from hybrid_des.simulation.folding import rings_apart
from hybrid_des.simulation.run import run

ONE_GPU_PER_NODE = {"nodes": 16, "gpus_per_node": 1, "infiniband": {"nics_per_node": 1}}
NCCL = {"cluster": ONE_GPU_PER_NODE, "gradients": {"algorithm": "nccl", "pad": True}}
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
    return (done.duration, done.peak_memory, done.ranks, rows), done.events


@pytest.mark.parametrize(("changes", "collectives"), [
    ([], 2),
    ([LARGE], 2),
    ([{"sharding": "zero-1"}], 4),
    ([CHUNKS], 4),  # messages between stages pass reductions
    ([CHUNKS, GATHERS, LARGE], 8),  # and gathers
    ([{"gradients": {"bucket": 31_990_000}}, LARGE], 4),  # the last bucket is so small that it has another protocol
    ([{"steps": 3, "barrier": False}], 6),
    ([{"workload": {"parameters": 80}}], 0),  # trees
    ([{"cluster": {"sharing": "fair"}}], 0),
])  # fmt: skip
def test_everything_happens_as_with_messages(begun, changes, collectives):
    variant = planned(NCCL, *changes)
    (found, events), (expected, with_messages) = outcome(variant, whole=False), outcome(variant, whole=True)
    assert found == expected
    assert len(begun) == collectives
    assert events < with_messages or not collectives
    assert all(pace is not None for pace in begun)
