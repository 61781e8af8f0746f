"""Two stages of eight replicas on four nodes, whose gradients go around rings."""

from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from
from support.scenarios import merged

TWO_STAGES = {
    "cluster": {
        "nodes": 4,
        "gpus_per_node": 4,
        "nvlink": {"bandwidth": "4 GB/s", "latency": "300 ns"},
        "infiniband": {"bandwidth": "1 GB/s", "latency": "1 us", "nics_per_node": 4},
    },
    "parallel": {"pipeline": 2, "data": 8, "order": ["tensor", "data", "pipeline"]},
    "schedule": {"kind": "1f1b", "microbatches": 2},
    "workload": {"forward": "1 us", "backward": "50 us", "activation": 1000, "parameters": 8000},
    "gradients": {"overlap": True, "channels": 1},
}


def planned(*changes, of=TWO_STAGES):
    """Two stages with changes."""
    for change in changes:
        of = merged(of, change)
    scenario = scenario_from(of).model_copy(update={"record": "compute"})
    return Variant.planned(scenario, parts_of(scenario))
