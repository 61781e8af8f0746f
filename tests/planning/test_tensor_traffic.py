"""Collectives of layers, replayed or as messages: the same to the picosecond where that is claimed."""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.campaigns import TIMES

from hybrid_des import load
from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import ScenarioError
from hybrid_des.shortcuts.run import run

DENSE = {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 256, "sequence": 32}
MIXTURE = {**DENSE, "experts": {"count": 4, "active": 2, "ffn": 64}}
NVLINK, INFINIBAND = {"bandwidth": "100 GB/s"}, {"bandwidth": "10 GB/s"}
AXES = ("tensor", "context", "expert")


def scenario(mode, model=DENSE, **sections):
    cluster = {"nvlink": NVLINK, "infiniband": INFINIBAND, **sections.pop("cluster", {})}
    schedule = {"kind": "1f1b", "microbatches": 4, **sections.pop("schedule", {})}
    return load({"model": model, "tensor_traffic": mode, "cluster": cluster, "schedule": schedule, **sections})


def both(**sections):
    return [run(scenario(mode, **sections)) for mode in ("replay", "messages")]


@st.composite
def layouts(draw, topologies=("nodes", "leaf-spine", "rails")):
    """Sections of scenarios with at most 32 ranks, one of which has something to exchange."""
    tensor, context, data, pipeline = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 2), (1, 2), (1, 2)))
    expert = draw(st.sampled_from([1, 2] if context * data > 1 else [1]))
    assume(tensor * context * expert > 1)
    gpus = draw(st.sampled_from([1, 2, 4, 8]))
    kind = draw(st.sampled_from(["1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-auto"]))
    return {
        "model": MIXTURE if expert > 1 else DENSE,
        "cluster": {
            "nodes": -(-tensor * context * data * pipeline // gpus),
            "gpus_per_node": gpus,
            "topology": draw(st.sampled_from(topologies)),
            "sharing": draw(st.sampled_from(["fifo", "fair"])),
            "infiniband": {**INFINIBAND, "nics_per_node": draw(st.sampled_from([1, gpus]))},
        },
        "parallel": {
            "tensor": tensor, "context": context, "data": data, "pipeline": pipeline, "expert": expert,
            "sequence": draw(st.booleans()),
            "context_method": draw(st.sampled_from(["ring", "all-to-all", "all-gather"])),
        },
        "schedule": {"kind": kind, "chunks": 2 if kind == "interleaved-1f1b" else 1},
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "sharding": draw(st.sampled_from(["none", "zero-1"])),
        "gradients": {"overlap": draw(st.booleans())},
        "overlap": {
            "tensor": draw(st.sampled_from([0, 0.9])), "experts": draw(st.sampled_from([0, 0.5])),
            "weight_gradients": draw(st.booleans()),
        },
        "steps": draw(st.sampled_from([1, 2])),
    }  # fmt: skip


SLOWED = {  # computation that outlasts its collectives, of which they take a fraction of a picosecond
    "model": {**DENSE, "layers": 1},
    "cluster": {"nodes": 4, "gpus_per_node": 1},
    "parallel": {"tensor": 2, "context": 2, "context_method": "ring"},
    "overlap": {"tensor": 0.9, "weight_gradients": True},
    "steps": 1,
}


@pytest.mark.slow
@settings(max_examples=20 * TIMES)
@given(sections=layouts())
@example(sections=SLOWED)
def test_replay_is_exact_where_it_says_so(sections):
    """Elsewhere messages take longer by no more than the bound."""
    replayed, sent = both(**sections)
    for axis in AXES:
        assert getattr(replayed, f"bytes_{axis}") == getattr(sent, f"bytes_{axis}")
    if not replayed.traffic.disturbed:
        assert replayed.tensor_delay == 0
        assert replayed.duration == sent.duration
    assert sent.duration <= replayed.duration + replayed.tensor_delay * sections["steps"]


# what fills a node, what shares it with replicas, and with stages: is replay exact?
CASES = {
    "a node of its own": ({"tensor": 4, "pipeline": 2}, {"nodes": 2, "gpus_per_node": 4}, {}, True),
    "with replicas": ({"tensor": 2, "data": 2, "pipeline": 2}, {"nodes": 2, "gpus_per_node": 4}, {}, True),
    "with gradients in the way": (
        {"tensor": 2, "data": 2, "pipeline": 2}, {"nodes": 2, "gpus_per_node": 4},
        {"gradients": {"overlap": True}}, False,
    ),
    "with the next stage": ({"tensor": 2, "pipeline": 2}, {"gpus_per_node": 4}, {}, False),
    "two groups on one adapter": (
        {"tensor": 2, "data": 2}, {"nodes": 2, "gpus_per_node": 2, "infiniband": {**INFINIBAND, "nics_per_node": 1}},
        {}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_look_at_routes_tells_what_is_exact(name):
    parallel, cluster, more, exact = CASES[name]
    replayed, sent = both(parallel=parallel, cluster=cluster, **more)
    assert (not replayed.traffic.disturbed) == exact
    assert (replayed.tensor_delay == 0) == exact
    if exact:
        assert replayed.duration == sent.duration
    chosen = run(scenario("auto", parallel=parallel, cluster=cluster, **more))
    assert set(chosen.traffic.messages) == (set() if exact else {"tensor"})
    assert chosen.duration == (replayed if exact else sent).duration


def test_messages_wait_for_a_straggler_and_replay_does_not():
    parallel, kinds = {"tensor": 2}, [{"count": 1}, {"count": 1, "speed": 0.5}]
    cluster = {"nodes": kinds, "gpus_per_node": 1}
    replayed, sent = both(parallel=parallel, cluster=cluster)
    assert replayed.traffic.disturbed == {"tensor"}
    ops = sent.timeline.ops
    ends = [ops["end"][ops["rank"] == rank].tolist() for rank in (0, 1)]
    assert ends[0][0] > 0.9 * ends[1][0]
    fast, slow = (replayed.timeline.ops["end"][replayed.timeline.ops["rank"] == rank].tolist()[0] for rank in (0, 1))
    assert fast < slow


@pytest.mark.parametrize(("ends", "replayed"), [(("gpu4", "gpu5"), False), (("node0", "node1"), True)])
def test_what_background_traffic_may_delay_is_not_replayed(ends, replayed):
    flow = {"from": ends[0], "to": ends[1], "rate": "50 GB/s", "message": "10 kB"}
    sections = {
        "cluster": {"nodes": 2, "gpus_per_node": 4}, "parallel": {"tensor": 4, "data": 2}, "background": [flow],
        "model": {**DENSE, "hidden": 1024}, "layer_collectives": "textbook", "efficiency": {"launch": 0},
    }  # fmt: skip
    found, (alone, messages) = run(scenario("auto", **sections)), both(**sections)
    assert bool(found.traffic.replayed) == replayed
    assert found.duration == messages.duration
    assert (alone.duration < messages.duration <= alone.duration + alone.tensor_delay) != replayed


def test_a_slower_node_computes_slower_but_sends_as_fast():
    slow, fast = (
        run(scenario("replay", parallel={"tensor": 2}, cluster={"nodes": [{"speed": speed}], "gpus_per_node": 2}))
        for speed in (0.5, 1)
    )
    (stage,) = fast.costs.stages.values()
    waits = 4 * (stage.waits("F") + stage.waits("B"))
    computes = 4 * (stage.forward + stage.backward) - waits
    assert waits > 0
    optimizer = fast.costs.optimizer[0]
    assert fast.duration == computes + waits + optimizer
    assert slow.duration == 2 * computes + waits + 2 * optimizer


def test_hidden_collectives_travel_beside_computation():
    model = {**DENSE, "hidden": 512, "ffn": 2048, "sequence": 512}
    parallel, cluster = {"tensor": 2}, {"gpus_per_node": 2}
    found = [
        summary(run(scenario(mode, model, parallel=parallel, cluster=cluster, overlap={"tensor": 0.5})))
        for mode in ("replay", "messages")
    ]
    assert found[0]["step_time_s"] == found[1]["step_time_s"]
    for kind in ("exposed", "hidden"):
        times = [one["communication_s"]["tensor"][kind] for one in found]
        assert times[0] == pytest.approx(times[1], rel=1e-9)
        assert times[0] > 0
    assert found[0]["bytes_tensor"] == found[1]["bytes_tensor"]
    assert [one["tensor_traffic"] for one in found] == [{"tensor": "replay"}, {"tensor": "messages"}]


def test_bytes_of_tensor_ranks_are_those_of_the_formula():
    """Two all-reduces of 2mh bytes per block and pass, the embedding's and those before the logits: 2(n−1)S in all."""
    result = run(scenario("messages", parallel={"tensor": 2}, cluster={"gpus_per_node": 2}))
    size = 2 * 32 * 64
    reductions = 4 * 2 * 2 + 1 + 1
    assert result.bytes_tensor == 4 * reductions * 2 * (2 - 1) * size


def test_the_timeline_names_collectives_of_layers_by_their_axis():
    result = run(scenario("messages", parallel={"tensor": 2, "pipeline": 2}, cluster={"gpus_per_node": 4}))
    kinds = {channel.kind for channel in result.timeline.channels}
    assert kinds == {"activation", "gradient", "tensor"}
    stages = {channel.stage for channel in result.timeline.channels if channel.kind == "tensor"}
    assert stages == {0, 1}


def test_sharding_layer_by_layer_replays_collectives():
    sections = {"parallel": {"tensor": 2, "data": 2}, "sharding": "zero-3", "cluster": {"gpus_per_node": 4}}
    chosen = run(scenario("auto", **sections))
    assert not chosen.traffic.messages
    assert chosen.traffic.disturbed == {"tensor"}
    with pytest.raises(ScenarioError, match="zero-3 replays the collectives of layers; expected auto or replay"):
        scenario("messages", **sections)


def test_what_perturbs_computation_perturbs_it_beside_messages_too():
    model = {**DENSE, "hidden": 512, "ffn": 2048, "sequence": 512}
    sections = {"parallel": {"tensor": 2}, "cluster": {"gpus_per_node": 2}, "overlap": {"tensor": 0.5}}
    slow = [{"node": 0, "factor": 0.5, "from": 0, "until": "1000 s"}]
    usual, halved = (run(scenario("messages", model, slow=which, **sections)) for which in ([], slow))
    rows = [one.timeline.exchanges for one in (usual, halved)]
    besides = [row["free"] - row["start"] for row in rows]
    assert besides[0].sum() > 0
    assert (besides[1] == 2 * besides[0]).all()
    assert not run(scenario("auto", model, slow=slow, **sections)).traffic.messages


def test_many_messages_are_replayed_after_all(monkeypatch):
    from hybrid_des.planning import layer_traffic

    sections = {"parallel": {"tensor": 2, "pipeline": 2}, "cluster": {"gpus_per_node": 4}}
    assert set(run(scenario("auto", **sections)).traffic.messages) == {"tensor"}
    monkeypatch.setattr(layer_traffic, "MOST_EVENTS", 10)
    found = summary(run(scenario("auto", **sections)))
    assert found["tensor_traffic"] == {"tensor": "replay"}
    assert found["tensor_traffic_delay_s"] > 0
