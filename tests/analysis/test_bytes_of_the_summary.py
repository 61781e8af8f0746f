"""Every byte that crosses a first link is in a total of the summary, whatever it is for."""

import pytest
from support.scenarios import values

from hybrid_des import load, simulate
from hybrid_des.interchange.profiles.chakra import write_chakra
from hybrid_des.interchange.profiles.graph import COLLECTIVE, COMPUTATION, Node, RankTrace
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.report.files.staging import write_files
from hybrid_des.scenario.loading import scenario_from

EXPERTS = {"count": 8, "active": 2, "ffn": 256}
WIDTHS = {"layers": 2, "hidden": 512, "heads": 4, "ffn": 512, "vocab": 1000, "sequence": 1024}
COPIES = {"loads": [9, 1, 1, 1, 5, 1, 1, 1], "placement": "redundant", "copies": 4}
STATIC = {"placement": "static", "copies": None}
TRAVELLING = 3  # of the four copies: two of the most wanted expert are on one rank
MESSAGES = {"record": "all", "fold": "off", "tensor_traffic": "messages"}
OF_GRADIENTS, OF_WEIGHTS = 4, 2  # bytes of a parameter


def model(d, p=1, **sections):
    """A small model with experts, on one node."""
    network = {"kind": "transformer", **WIDTHS, "experts": EXPERTS}
    return scenario_from(values("1f1b", p, 1, d, workload=None, model=network, **MESSAGES, **sections))


def sent(result):
    """Bytes of all messages, each on the first of its links."""
    timeline = result.run.timeline
    rows = timeline.messages
    return int(rows["bytes"][timeline.of_channel["hop"][rows["channel"]] == 0].sum())


def counted(summary):
    """Bytes of all totals per step; what switches forward, nobody sends."""
    return sum(size for key, size in summary.items() if key.startswith("bytes_") and key != "bytes_switched")


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("sharding", ["none", "zero-1"])
@pytest.mark.parametrize("sizes", [{"d": 8}, {"d": 4, "p": 2}])
def test_copies_of_experts_are_counted_however_they_are_sharded(sizes, sharding, steps):
    result = simulate(model(**sizes, steps=steps, sharding=sharding, parallel={"expert": 4}, experts=COPIES))
    assert counted(result.summary) * steps == sent(result)
    groups, matrices = sizes["d"] // 4, 2 * WIDTHS["layers"]  # per expert
    copied = groups * TRAVELLING * matrices * WIDTHS["hidden"] * EXPERTS["ffn"] * (OF_GRADIENTS + OF_WEIGHTS)
    static = model(**sizes, sharding=sharding, parallel={"expert": 4}, experts={**COPIES, **STATIC})
    gathered = simulate(static).summary.get("bytes_parameters", 0)
    assert (gathered > 0) == (sharding == "zero-1")
    assert result.summary["bytes_parameters"] == gathered + copied
    assert result.summary["communication_s"]["parameters"]["exposed"] == result.summary["idle_s"]["parameter_gather"]


def test_bytes_of_all_axes_are_counted():
    parallel = {"tensor": 2, "context": 2, "expert": 2}
    result = simulate(model(2, 2, parallel=parallel, cluster={"gpus_per_node": 16}))
    assert counted(result.summary) == sent(result)


@pytest.mark.parametrize(
    ("does", "counter"),
    [
        ("all-reduce", "bytes_gradients"),
        ("reduce-scatter", "bytes_gradients"),
        ("all-gather", "bytes_parameters"),
        ("all-to-all", "bytes_expert"),
    ],
)
def test_bytes_of_traced_collectives_are_counted(does, counter, tmp_path):
    nodes = [
        Node(0, "forward", COMPUTATION, 10**9, stream="compute"),
        Node(1, "exchange", COLLECTIVE, needs=[0], size=8 * 10**6, does=does),
    ]
    for rank in range(4):
        (tmp_path / f"chakra.{rank}.et").write_bytes(write_chakra(RankTrace("", nodes)))
    machine = scenario_from(values("gpipe", 1, 1, 4))
    write_files(tmp_path / "out", import_profile(tmp_path, machine=machine).contents())
    result = simulate(load(tmp_path / "out" / "scenario.yaml", ["fold=off", "record=all"]))
    assert result.summary[counter] == counted(result.summary) == sent(result) > 0
