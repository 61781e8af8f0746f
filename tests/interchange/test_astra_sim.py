"""ASTRA-sim on our traces: its figures follow from its rules, and are ours where its rules are ours.

The figures are those of its analytical, congestion-unaware network with `roofline-enabled: 0`, `endpoint-delay: 0` and
`preferred-dataset-splits: 1`, in milliseconds.
"""

import pytest
from support.astra_sim import AstraSim
from support.paths import ROOT

from hybrid_des import load, simulate
from hybrid_des.measured.imports.exporting import traces_of

PORTS = {"gpus_per_node": 8, "nvlink": {"bandwidth": "1 GiB/s", "latency": "1 us"}}
EGRESS = {  # one link from each GPU, and as much as arrives
    "gpus_per_node": 8, "topology": "links",
    "links": [
        *({"between": [f"gpu{i}", "hub"], "bandwidth": "1 GiB/s", "latency": "1 us", "one_way": True}
          for i in range(8)),
        *({"between": ["hub", f"gpu{i}"], "bandwidth": "inf", "latency": 0, "one_way": True} for i in range(8)),
    ],
}  # fmt: skip
GRADIENTS = {"parameters": 2**23}  # 16 MiB in 16 bits


def job(kind="1f1b", data=1, cluster=PORTS, workload=None, chunks=1, **gradients):
    """Four stages: 8 micro-batches, F 1 ms, B 2 ms, 1 MiB, 1 GiB/s, 1 µs."""
    return {
        "cluster": cluster, "parallel": {"pipeline": 4, "data": data},
        "schedule": {"kind": kind, "microbatches": 8, **({"chunks": chunks} if chunks > 1 else {})},
        "workload": {"forward": "1 ms", "backward": "2 ms", "activation": "1 MiB", **(workload or {})},
        "sharding": gradients.pop("sharding", "none"),
        "gradients": {"algorithm": "ring", "codec": "bf16", **gradients},
    }  # fmt: skip


def milliseconds(values):
    """Of a step here, and by the rules of ASTRA-sim."""
    scenario = load(values)
    return simulate(scenario).summary["step_time_s"] * 1e3, AstraSim(traces_of(scenario), 10**6, 2**30).step() / 1e9


def ring():
    """Four replicas, two micro-batches, 16 MiB."""
    values = job(data=4, workload={**GRADIENTS, "activation": 0})
    return {**values, "parallel": {"data": 4}, "schedule": {"microbatches": 2}}


@pytest.mark.parametrize(
    ("values", "theirs"),
    [(job(), 48.640992), (ring(), 29.44353), (job(data=2, workload=GRADIENTS, sharding="zero-1"), 64.268044)],
    ids=["pipeline", "ring", "zero-1"],
)
def test_steps_without_competing_messages_are_those_of_astra_sim(values, theirs):
    assert milliseconds(values) == (pytest.approx(theirs, abs=1e-4), pytest.approx(theirs, abs=1e-4))


def test_a_slot_for_sends_and_collectives_explains_astra_sim():
    """Buckets beside an interleaved pipeline: where ours share both ports of a GPU, theirs go one after the other."""
    values = job("interleaved-1f1b", 2, workload=GRADIENTS, chunks=2, bucket="4 MiB", overlap=True)
    assert milliseconds(values) == (pytest.approx(60.395, abs=1e-3), pytest.approx(58.527, abs=1e-3))


@pytest.mark.parametrize(("kind", "chunks"), [("interleaved-1f1b", 2), ("zb-v", 1)])
def test_one_egress_link_gives_pipelines_of_astra_sim(kind, chunks):
    ours, theirs = milliseconds(job(kind, chunks=chunks, cluster=EGRESS))
    assert ours == pytest.approx(theirs, rel=3e-4)


def test_the_reference_names_the_settings_of_these_figures():
    """With `replay-only: 1`, which it named once, ASTRA-sim drops communication: 24.000 ms instead of 48.641."""
    reference = (ROOT / "scenarios/REFERENCE.md").read_text(encoding="utf-8")
    for setting in ("roofline-enabled: 0", "endpoint-delay: 0", "preferred-dataset-splits: 1"):
        assert f"`{setting}`" in reference
    assert "replay-only: 1" not in reference
