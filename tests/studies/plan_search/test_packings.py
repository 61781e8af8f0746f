"""Searches over packings of documents: no plan is excluded that would be the best."""

import pytest
from support.spaces import TINY, of_model

from hybrid_des import search, simulate

PACKINGS = ["none", "greedy", "balanced", "dynamic-context"]
LENGTHS = {"kind": "lognormal", "mean": 200, "sigma": 1.3}


def scenario(packing, pipeline=1):
    data = {"lengths": LENGTHS, "packing": packing}
    parallel = {"data": 4 // pipeline, "pipeline": pipeline}
    return of_model(4, model=TINY | {"sequence": 2048}, parallel=parallel, batch=16, data=data)


@pytest.mark.parametrize("pipeline", [1, 2])
def test_the_best_packing_is_found(pipeline):
    axes = [{"data.packing": PACKINGS}, {"schedule.microbatch_size": [1]}, {"schedule.kind": ["1f1b"]},
            {"recompute": ["none"]}, {"sharding": ["none"]}, {"gradients.bucket": ["none"]},
            {"parallel.tensor": [1]}, {"parallel.context": [1]}, {"parallel.pipeline": [pipeline]}]  # fmt: skip
    times = {name: simulate(scenario(name, pipeline)).summary["step_time_s"] for name in PACKINGS}
    found = search({**scenario("none", pipeline), "search": {"axes": axes, "top": 1}})
    assert found.best.case["data.packing"] == min(times, key=times.__getitem__)
