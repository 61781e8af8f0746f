"""Comparisons of layouts, of which either may be folded: the rows of all ranks, and a page of both."""

from itertools import pairwise

import pytest
from support.campaigns import thinned
from support.scenarios import merged

from hybrid_des import compare, load, simulate
from hybrid_des.report.compared import draw_comparison, render_comparison
from hybrid_des.report.page.compared_page import comparison_page
from hybrid_des.scenario import sizes

NETWORK = {"kind": "transformer", "layers": 4, "hidden": 512, "heads": 4, "ffn": 1024, "vocab": 1000, "sequence": 512}
RANKS = 8
BASE = {
    "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 4},
    "model": NETWORK,
    "schedule": {"kind": "1f1b", "microbatches": 2},
    "parallel": {"data": RANKS},
}
LAYOUTS = {
    "replicas": {},
    "tensor and pipeline": {
        "parallel": {"tensor": 2, "pipeline": 2, "data": 2},
        "sharding": "zero-1",
        "overlap": {"parameters": True},
        "schedule": {"p2p": "blocking"},
    },
    "layers sharded": {"sharding": "zero-3"},
    "shared links": {"parallel": {"pipeline": 2, "data": 4}, "cluster": {"sharing": "fair"}},
    "experts": {"parallel": {"expert": 4}, "model": {"experts": {"count": 4, "active": 2, "ffn": 256}}},
    "a slow GPU": {"parallel": {"context": 2, "data": 4}, "slow": [{"gpu": 1, "factor": 0.5}]},
    "messages of layers": {"parallel": {"tensor": 4, "data": 2}, "tensor_traffic": "messages"},
}
PAIRS = [*pairwise(LAYOUTS), ("messages of layers", "replicas")]
QUICK = [("tensor and pipeline", "layers sharded"), ("experts", "a slow GPU")]


@pytest.fixture(autouse=True)
def _folded(monkeypatch):
    """Runs of few messages are folded as those of many are."""
    monkeypatch.setattr(sizes, "MESSAGES_FOLDED", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), thinned(PAIRS, [pair for pair in PAIRS if pair not in QUICK]))
def test_layouts_are_compared_with_a_page_of_both(first, second):
    both = compare(*(load(merged(BASE, LAYOUTS[name])) for name in (first, second)))
    for side, name in ((both.a, first), (both.b, second)):
        alone = simulate(load(merged(BASE, {**LAYOUTS[name], "record": "all"}))).summary
        assert set(side.rows["rank"][side.rows["lane"] == "compute"]) == set(range(RANKS))
        assert side.summary["step_time_s"] == alone["step_time_s"]
        assert side.summary["peak_memory_bytes"] == alone["peak_memory_bytes"]
    page = comparison_page(both)
    assert page is not None
    assert all(line in page for line in ("A: scenario", "B: scenario"))
    assert render_comparison(both) and draw_comparison(both).axes
