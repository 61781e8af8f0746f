"""Searches over packings of documents: no plan is excluded that would be the best."""

import pytest
from support.spaces import TINY, of_model

from hybrid_des import search, simulate
from hybrid_des.errors import ScenarioError
from hybrid_des.scenario.loading import document_of
from hybrid_des.studies.plan_search.space import plans_in
from hybrid_des.studies.plan_search.terms import settings_of
from hybrid_des.workload.packing import registration

PACKINGS = ["none", "greedy", "balanced", "dynamic-context"]
LENGTHS = {"kind": "lognormal", "mean": 200, "sigma": 1.3}


def scenario(packing, pipeline=1):
    data = {"lengths": LENGTHS, "packing": packing}
    parallel = {"data": 4 // pipeline, "pipeline": pipeline}
    return of_model(4, model=TINY | {"sequence": 2048}, parallel=parallel, batch=16, data=data)


ONE_PLAN = [
    {"schedule.microbatch_size": [1]},
    {"schedule.kind": ["1f1b"]},
    {"recompute": ["none"]},
    {"sharding": ["none"]},
    {"gradients.bucket": ["none"]},
    {"parallel.tensor": [1]},
    {"parallel.context": [1]},
]


@pytest.mark.parametrize("pipeline", [1, 2])
def test_the_best_packing_is_found(pipeline):
    axes = [{"data.packing": PACKINGS}, *ONE_PLAN, {"parallel.pipeline": [pipeline]}]
    times = {name: simulate(scenario(name, pipeline)).summary["step_time_s"] for name in PACKINGS}
    found = search({**scenario("none", pipeline), "search": {"axes": axes, "top": 1}})
    assert found.best.case["data.packing"] == min(times, key=times.__getitem__)


def plans(axes, **changes):
    return plans_in(settings_of(document_of({**scenario("greedy"), **changes, "search": {"axes": axes}})))


def test_a_named_axis_is_every_registered_packing():
    named = plans(["data.packing", *ONE_PLAN, {"parallel.pipeline": [1]}])
    assert sorted(plan["data.packing"] for plan in named) == sorted(registration.names())
    assert {plan["data.packing"] for plan in plans(ONE_PLAN)} == {"greedy"}


def test_packings_of_other_options_and_limits_are_compared():
    """What only the file's packing reads is left out for the others; one that cannot be has its reason."""
    axes = ["data.packing", *ONE_PLAN, {"parallel.pipeline": [1]}]
    data = {"lengths": LENGTHS, "packing": "greedy", "tokens": 2048}
    found = search({**scenario("greedy"), "data": data, "search": {"axes": axes}})
    assert found.counts["simulated"] + found.counts["the same"] == len(registration.names())
    of_three = of_model(3, model=TINY | {"sequence": 2048}, parallel={"data": 3}, batch=15, data=data)
    found = search({**of_three, "search": {"axes": axes}})
    assert found.counts["impossible"] == 1  # dynamic-context needs a power of two of ranks


def test_packings_without_documents_are_one_line():
    with pytest.raises(ScenarioError, match=r"search\.axes\[0\]: data\.packing: the scenario has no documents"):
        plans(["data.packing"], data=None)
