"""Traces of simulated runs, read back on the machine of the run: the same step, whatever reduces the gradients."""

import pytest
from support.campaigns import thinned
from support.paths import SCENARIOS

from hybrid_des import collectives, load, simulate
from hybrid_des.errors import Refusal
from hybrid_des.measured.imports.exporting import write_traces
from hybrid_des.measured.imports.importing import import_profile

MACHINES = {  # switches that reduce and others, several nodes, one GPU on each: GPU, nodes, GPUs per node, pipeline
    "a100": ("a100-40gb", 1, 4, 1), "h100": ("h100", 1, 4, 1), "gb200": ("gb200", 1, 4, 1),
    "two nodes": ("h100", 2, 4, 2), "adapters": ("a100-40gb", 4, 1, 1),
}  # fmt: skip
SWITCHED = ("h100", "gb200", "two nodes")  # where `in-switch` can run
CASES = [
    (algorithm, machine, sharding)
    for algorithm in collectives.algorithms()
    for machine in MACHINES
    for sharding in ("none", "zero-1")
    if (algorithm != "in-switch" or machine in SWITCHED)
    and (sharding == "none" or algorithm == collectives.AUTO or collectives.phases_of(algorithm))
]


@pytest.mark.parametrize(
    ("algorithm", "machine", "sharding"),
    thinned(CASES, slow=[one for one in CASES if one[1] in ("h100", "gb200", "adapters")]),
)
def test_every_reduction_is_the_same_from_a_trace(algorithm, machine, sharding, tmp_path):
    """Through switches and parameter servers, too, which serve a group and have no trace."""
    gpu, nodes, per_node, pipeline = MACHINES[machine]
    table = tmp_path / "table.csv"
    table.write_text("bytes,time_us\n1000,50\n10000000,900\n")
    scenario = load({
        "cluster": {"gpu": gpu, "nodes": nodes, "gpus_per_node": per_node},
        "parallel": {"pipeline": pipeline, "data": 4},
        "schedule": {"kind": "gpipe", "microbatches": 2},
        "workload": {"forward": "1 ms", "backward": "2 ms", "parameters": "4e6"},
        "gradients": {"algorithm": algorithm, "bucket": "5 MB", "overlap": True,
                      **({"table": str(table)} if algorithm == "measured" else {})},
        "sharding": sharding,
    })  # fmt: skip
    write_traces(scenario, tmp_path / "traces")
    found = import_profile(tmp_path / "traces", machine=scenario)
    assert found.simulated == [simulate(scenario).run.duration / 10**12]


@pytest.mark.parametrize(("kind", "options"), [("ring", {"channels": 2}), ("parameter-server", {"servers": 1})])
def test_options_of_reductions_are_those_of_the_machine(kind, options, tmp_path):
    scenario = load(SCENARIOS / "a100_8x.yaml", [f"gradients={ {'algorithm': kind, **options} }", "steps=1"])
    write_traces(scenario, tmp_path)
    assert import_profile(tmp_path, machine=scenario).simulated == [simulate(scenario).run.duration / 10**12]


SMALLER = {"gpt3-175b_1024": [  # of 1,024 GPUs; all others are run as they are
    "cluster.nodes=4", "parallel.tensor=2", "parallel.data=2", "schedule.microbatches=8", "tensor_traffic=replay",
]}  # fmt: skip
REFUSED = ("slowed down by collectives", "a trace holds one step")  # what traces cannot say


SHIPPED = sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


@pytest.mark.parametrize("name", thinned(SHIPPED, slow=["contention_faster", "gpt3-175b_1024", "llama3.1-405b_16k"]))
def test_shipped_scenarios_come_back_with_equal_steps(name, tmp_path):
    scenario = load(SCENARIOS / f"{name}.yaml", ["steps=1", *SMALLER.get(name, ())])
    try:
        write_traces(scenario, tmp_path)
    except Refusal as refused:
        assert any(reason in str(refused) for reason in REFUSED)
        return
    assert import_profile(tmp_path, machine=scenario).simulated == [simulate(scenario).run.duration / 10**12]
