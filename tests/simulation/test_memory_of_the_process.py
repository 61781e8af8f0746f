"""What simulations leave behind in a process: nothing that grows with their number."""

import gc
from pathlib import Path

import pytest
from support.neighbours import BERT, CLUSTER, GPT

from hybrid_des import load, simulate
from hybrid_des.analysis.explanation import explain
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.transport import Transport
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import Parts
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.jobs.result import simulate_jobs

STATISTICS = Path("/proc/self/statm")  # its second figure: resident pages, see proc(5)
PAGE = 4096
HELD = (Fabric, Parts, Plan, Scenario, Transport)


def of_model(number, **sections):
    """A small scenario; none of these numbers gives the same one."""
    return load({
        "model": {"base": "gpt3-1.3b", "layers": 4 + 4 * (number % 3)},
        "parallel": {"pipeline": 2, "data": 2, "tensor": 2},
        "batch": 8 * (1 + number % 4),
        "schedule": {"kind": ("1f1b", "zb-h1")[number % 2]},
        "efficiency": {"gemm": 0.5, "attention": 0.5, "memory": 0.5},
        "gradients": {"algorithm": "ring", "overlap": True},
        "cluster": {"nodes": 1, "gpus_per_node": 8, "nvlink": {"bandwidth": f"{100 + number} GB/s"}},
        **sections,
    })  # fmt: skip


def kept():
    """The names of the large objects that are alive."""
    gc.collect()
    return sorted(type(one).__name__ for one in gc.get_objects() if isinstance(one, HELD))


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        lambda: simulate(of_model(0)).summary,
        lambda: simulate(of_model(1, cluster={"nodes": 2, "gpus_per_node": 4}, sharding="zero-1")).report(),
        lambda: explain(load({**GPT, "cluster": CLUSTER})),
        lambda: simulate_jobs({
            "cluster": CLUSTER,
            "jobs": {"gpt": {**GPT, "ranks": [0, 4, 8, 12]}, "bert": {**BERT, "ranks": [1, 5, 9, 13]}},
        }).report(),
    ],
    ids=["model", "sharded", "explained", "jobs"],
)  # fmt: skip
def test_nothing_of_a_run_outlives_its_result(use):
    before = kept()
    use()
    assert kept() == before


@pytest.mark.slow
@pytest.mark.skipif(not STATISTICS.exists(), reason="needs /proc")
def test_many_simulations_fit_into_the_memory_of_thirty():
    sizes = {}
    for number in range(300):
        simulate(of_model(number))
        if number in (29, 299):
            gc.collect()
            sizes[number] = int(STATISTICS.read_text().split()[1]) * PAGE
    assert sizes[299] - sizes[29] < 50e6
