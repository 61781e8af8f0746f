"""Every piece of a critical path has its parts: with experts, copies and collectives of layers as messages, too."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scenarios import scenario

from hybrid_des.analysis.critical_path.paths import time_by_part
from hybrid_des.analysis.critical_path.traced import Traced, traced_run
from hybrid_des.analysis.idle import LATENCY
from hybrid_des.units import PICOSECONDS_PER_SECOND

WIDTHS = {"hidden": 512, "heads": 4, "ffn": 1024, "vocab": 1000, "sequence": 512}
EXPERTS = {"count": 4, "active": 2, "ffn": 256}
UNEVEN = {"loads": [9, 1, 5, 1], "placement": "redundant", "copies": 4}
LAUNCH = 280 * PICOSECONDS_PER_SECOND // 10**6  # `efficiency.exchange_overhead` of REFERENCE.md


def on_nodes(ranks, per_node):
    """The sizes of a cluster that holds these ranks."""
    each = min(ranks, per_node)
    return {"nodes": ranks // each, "gpus_per_node": each}


def chosen(draw, *, tensor, pipeline, data, context, expert, per_node, experts, **sections):
    """A small model on all axes; experts where replicas share them."""
    model = {"kind": "transformer", "layers": 4, **WIDTHS}
    parallel = {"tensor": tensor, "context": context, "expert": min(expert, data)}
    more = {"experts": EXPERTS} if expert > 1 else {}
    return scenario(
        draw["kind"],
        pipeline,
        draw["microbatches"],
        data,
        workload=None,
        model={**model, **more},
        parallel=parallel,
        cluster={"gpu": "h100", "sharing": draw["sharing"], **on_nodes(tensor * pipeline * data * context, per_node)},
        **({"experts": experts} if more and min(expert, data) > 1 and experts else {}),
        **sections,
    )


@pytest.mark.slow
@settings(max_examples=30)
@given(
    sizes=st.fixed_dictionaries(
        {
            "tensor": st.sampled_from([1, 2]),
            "pipeline": st.sampled_from([1, 2]),
            "data": st.sampled_from([1, 2]),
            "context": st.sampled_from([1, 2]),
            "expert": st.sampled_from([1, 2]),
            "per_node": st.sampled_from([1, 2, 8]),
        }
    ),
    draw=st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b"]),
            "microbatches": st.sampled_from([1, 2, 4]),
            "sharing": st.sampled_from(["fifo", "fair", "priority"]),
        }
    ),
    sections=st.fixed_dictionaries(
        {
            "tensor_traffic": st.sampled_from(["messages", "messages", "replay"]),
            "experts": st.sampled_from([None, UNEVEN]),
            "gradients": st.fixed_dictionaries(
                {"overlap": st.booleans(), "bucket_rule": st.sampled_from(["stage", "ddp"])}
            ),
        }
    ),
    steps=st.sampled_from([1, 2]),
)
def test_parts_of_paths_and_of_idle_time_sum_exactly(sizes, draw, sections, steps):
    traced = Traced(traced_run(chosen(draw, **sizes, **sections, steps=steps)))
    graph, path, idle = traced.slack.graph, traced.path, traced.idle_time
    assert sum(time_by_part(path).values()) == graph.duration
    assert (path[0].start, path[-1].end) == (0, graph.duration)
    assert all(before.end == after.start for before, after in pairwise(path))
    assert all(min(piece[3:]) >= 0 and sum(piece[3:]) == piece.end - piece.start for piece in path)
    assert sum(idle.reasons.values()) == sum(idle.causes.values())
    assert sum(piece.end - piece.start for piece in idle.pieces()) == sum(idle.causes.values())


def test_launching_an_exchange_with_experts_is_latency():
    found = [time_by_part(Traced(traced_run(exchanging(overhead))).path)[LATENCY] for overhead in ("280 us", 0)]
    layers, microbatches, there_and_back = 4, 2, 4
    assert found[0] - found[1] == layers * microbatches * there_and_back * LAUNCH


def exchanging(overhead):
    """Two ranks, each with half of the experts, whose exchanges are messages."""
    draw = {"kind": "gpipe", "microbatches": 2, "sharing": "fifo"}
    sizes = {"tensor": 1, "pipeline": 1, "data": 2, "context": 1, "expert": 2, "per_node": 1}
    sections = {"tensor_traffic": "messages", "gradients": {"overlap": False}, "experts": {"dispatcher": "per-node"}}
    return chosen(draw, **sizes, **sections, efficiency={"exchange_overhead": overhead})
