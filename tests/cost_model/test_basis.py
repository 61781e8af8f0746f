"""Sections as keys: what costs depend on is frozen, hashable, and the same where plans share their costs."""

import pytest
from support import spaces
from support.paths import SCENARIOS
from support.scenarios import scenario, values

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.options import Options
from hybrid_des.scenario.loading import load, scenario_from


def basis(mapping, **changes):
    sections = {key: {**mapping.get(key, {}), **change} for key, change in changes.items()}
    return CostBasis.of(scenario_from({**mapping, **sections}))


@pytest.mark.parametrize("change", [{"schedule": {"kind": "gpipe"}}, {"gradients": {"overlap": True}}])
def test_orders_and_buckets_of_a_model_share_costs(change):
    assert hash(basis(spaces.of_model(8), **change)) == hash(basis(spaces.of_model(8)))
    assert basis(spaces.of_model(8), **change) == basis(spaces.of_model(8))


@pytest.mark.parametrize("change", [{"gradients": {"codec": "fp16"}}, {"cluster": {"nvlink": {"latency": 0}}}])
def test_what_costs_read_tells_plans_apart(change):
    assert basis(spaces.of_model(8), **change) != basis(spaces.of_model(8))


def test_durations_of_every_op_depend_on_the_whole_schedule():
    assert basis(values(m=4)) != basis(values(m=8))


@pytest.mark.parametrize("name", ["a100_8x", "dgx1_cube_mesh", "jitter_64", "mixtral-8x7b_64", "slow_gpu_h100_2x8"])
def test_a_shipped_scenario_can_be_a_key(name):
    known = {load(SCENARIOS / f"{name}.yaml"): name}
    assert known[load(SCENARIOS / f"{name}.yaml")] == name


def test_options_that_hold_a_list_can_be_a_key():
    class Listed(Options):
        numbers: list[int]

    assert {Listed(numbers=[1]): 1} == {Listed(numbers=[1]): 1}
    assert scenario().gradients in {scenario().gradients}
