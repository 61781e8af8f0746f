"""Ranks that share experts are places along the replicas, and fold with them where their exchanges look alike."""

import pytest
from support.foldings import differences, run_of

from hybrid_des.scenario import sizes


@pytest.fixture(autouse=True)
def _fold_however_small(monkeypatch):
    monkeypatch.setattr(sizes, "FOLDED_FROM", 2)


@pytest.mark.parametrize(
    ("algorithm", "exchange", "replicas"),
    [
        ("ring", "replay", 8),  # it passes from node to node: a turn within the nodes is no turn of the ring
        ("halving-doubling", "messages", 8),  # partners in pairs, tokens around: no image suits both
        ("halving-doubling", "replay", 1),
        ("recursive-doubling", "replay", 1),
    ],
)
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_expert_ranks_fold_where_all_do_the_same(algorithm, exchange, replicas, sharing):
    model = {"layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024, "sequence": 256}
    values = {
        "cluster": {"gpu": "h100", "nodes": 4, "sharing": sharing},
        "model": model | {"experts": {"count": 8, "active": 2, "ffn": 128}},
        "parallel": {"pipeline": 2, "data": 16, "expert": 8},
        "schedule": {"kind": "1f1b", "microbatches": 2},
        "gradients": {"algorithm": algorithm, "pad": True, "codec": "bf16", "overlap": True},
        "tensor_traffic": exchange,
    }
    run = run_of(values, "auto")
    assert run.summary["ranks_simulated"] == 2 * replicas
    assert not differences(run, run_of(values, "off"))
