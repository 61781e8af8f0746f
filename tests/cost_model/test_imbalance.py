"""Experts that are wanted unequally: the busiest rank takes longer, and the report says how much."""

from functools import partial

import pytest
from support.unequal_experts import scenario_with

from hybrid_des import simulate
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of

scenario = partial(scenario_with, tensor_traffic="replay")


def layers(experts, **sections):
    return parts_of(scenario(experts, **sections)).costs.stages[0, 0].layers


def test_equal_loads_cost_nothing():
    for loads in ([1] * 16, [7] * 16):
        (_, dense, *sparse, _), (_, same, *equal, _) = layers({"loads": loads}), layers({})
        assert dense == same
        assert [one.imbalance for one in sparse] == [0, 0]
        assert [(one.forward, one.backward, one.kept) for one in sparse] == [
            (one.forward, one.backward, one.kept) for one in equal
        ]


def test_the_busiest_rank_sets_the_time_of_experts():
    """Two experts on each rank: those of rank 0 are wanted three times as much as the mean of the others."""
    _, _, unequal, _, _ = layers({"loads": [3, 3, *[1] * 14], "kernel": "fused"})
    _, _, equal, _, _ = layers({"kernel": "fused"})
    busiest = 3 / ((6 + 14) / 16)
    assert unequal.inner[0] == pytest.approx(busiest * equal.inner[0], rel=0.2)  # larger products are faster
    assert unequal.imbalance == unequal.forward + unequal.backward - equal.forward - equal.backward > 0


def test_a_node_that_is_wanted_more_receives_more():
    def exchanged(loads):
        _, _, layer, _, _ = layers({"loads": loads})
        return [one.alone for way in layer.collectives for one in way]

    one_node = exchanged([3] * 8 + [1] * 8)
    assert all(more > less for more, less in zip(one_node, exchanged([1] * 16), strict=True))


def test_loads_are_drawn_for_each_layer_from_the_seed():
    first, again, other = (layers({"concentration": 5}, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first[2].imbalance != first[3].imbalance


def test_a_flatter_distribution_costs_less():
    costs = [sum(one.imbalance for one in layers({"concentration": alpha})) for alpha in (2, 20, 2000)]
    assert costs[0] > costs[1] > costs[2] > 0


def test_the_report_says_what_imbalance_costs():
    loads = {"loads": [3, 3, *[1] * 14]}
    found, equal = (simulate(scenario(experts)).summary for experts in (loads, {}))
    assert found["expert_imbalance_s"] == pytest.approx(found["step_time_s"] - equal["step_time_s"], rel=0.01)
    assert "expert_imbalance_s" not in equal


@pytest.mark.parametrize(
    ("experts", "sections", "message"),
    [
        ({"loads": [1, 2]}, {}, "experts.loads: 2 numbers; expected 16"),
        (
            {"loads": [1] * 16, "concentration": 3},
            {},
            "experts.loads: given with concentration; give only one",
        ),
        ({"concentration": 3}, {"model": "llama3-8b", "parallel": {"data": 8}}, "this model has no experts"),
    ],
)
def test_loads_that_do_not_fit_are_told(experts, sections, message):
    with pytest.raises(ScenarioError) as caught:
        scenario(experts, **sections)
    assert message in str(caught.value)
