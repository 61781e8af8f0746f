"""Loads by layer and step: tables, files, drawn ones; capacities; and that equal ones change nothing."""

from functools import partial

import pytest
from support.paths import SCENARIOS
from support.unequal_experts import MIXTURE, scenario_with

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.expert_loads import ExpertLoads, expert_layers
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.planning.planner import parts_of

scenario = partial(scenario_with, tensor_traffic="replay")
EQUAL = [
    {"loads": [7] * 16},
    {"loads": [[1] * 16, [2] * 16]},
    {"workload": "W0"},
    {"power_law": 0},
    {"placement": "balanced", "workload": "W0"},
    {"placement": "static"},
    {"capacity_factor": 1, "workload": "W0"},
]
HOT = [3, 3, *[1] * 14]


def costs(experts, **sections):
    return parts_of(scenario(experts, **sections)).costs


@pytest.mark.parametrize("experts", EQUAL)
def test_equal_loads_cost_what_no_loads_cost(experts):
    assert costs(experts) == costs({})


SHIPPED = ["mixtral-8x7b_64.yaml", "deepseek-v3_256.yaml", "scale/deepseek-v3_1024.yaml", "search/mixtral_64.yaml"]


@pytest.mark.parametrize("file", SHIPPED)
def test_equal_loads_are_the_layers_of_shipped_scenarios(file):
    plain = load(SCENARIOS / file)
    for more in ("experts.workload=W0", "experts.power_law=0", "experts.placement=balanced"):
        assert expert_layers(CostBasis.of(load(SCENARIOS / file, [more]))) == list(plain.model.network.layers)


def test_rows_are_those_of_layers():
    table = costs({"loads": [[1] * 16, HOT]}).stages[0, 0].layers
    equal, hot = costs({}).stages[0, 0].layers, costs({"loads": HOT}).stages[0, 0].layers
    assert table == (*equal[:3], hot[3], equal[4])  # the first block has no experts


def of_steps(experts, **sections):
    loads = ExpertLoads(CostBasis.of(scenario(experts, **sections)))
    return [[routing.loads for routing in loads.at(step).values()] for step in range(4)]


def test_rows_are_those_of_steps_and_begin_again():
    hot, equal = tuple(16 * one / 20 for one in HOT), ()
    found = of_steps({"loads": [[HOT], [[1] * 16, HOT], [[1] * 16]]}, steps=4)
    assert found == [[pytest.approx(hot)] * 2, [equal, pytest.approx(hot)], [equal, equal], [pytest.approx(hot)] * 2]


def test_a_file_is_read_like_a_table(tmp_path):
    head = ",".join(["step", "layer", *(f"e{number}" for number in range(16))])
    rows = [[0, 5, *HOT], [0, 6, *[1] * 16], [3, 5, *[1] * 16], [3, 6, *HOT]]
    file = tmp_path / "loads.csv"
    file.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    table = {"loads": [[HOT, [1] * 16], [[1] * 16, HOT]]}
    assert of_steps({"loads_file": str(file)}, steps=4) == of_steps(table, steps=4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "expected a header and a row"),
        ("a,b\n1\n", "loads.csv:2: 1 cells; expected 2"),
        ("a,b\n1,x\n", "loads.csv:2: expected a number of at least 0, found 'x'"),
        ("a,b\n1,-1\n", "loads.csv:2: expected a number of at least 0"),
        ("a,b\n0,0\n", "loads.csv:2: expected numbers that are not all 0"),
        ("a,b\n1,2\n", "2 columns of experts; the model has 16"),
        ("layer,a\n0,1\n0,1\n", "loads.csv:3: a second row for step 0 and layer 0"),
        ("layer,a\n0,1\n1,1\n2,1\n", "step 0 has 3 rows; expected 1, or one for each of 2 layers"),
    ],
)
def test_files_that_do_not_fit_are_told(tmp_path, text, said):
    file = tmp_path / "loads.csv"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        parts_of(scenario({"loads_file": str(file)}))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("experts", "said"),
    [
        ({"loads": [[1] * 16] * 3}, "3 rows; expected 1, or one for each of the 2 layers with experts"),
        ({"loads": [[1] * 16, [1] * 15]}, "experts.loads: 15 numbers in row 1; expected 16"),
        ({"loads": [[[1] * 16], [[1] * 4]]}, "experts.loads: 4 numbers at step 1; expected 16"),
        ({"loads": [0] * 16}, "expected numbers that are not all 0"),
        ({"loads": "many"}, "expected a list of numbers, or a list of them per layer"),
        ({"loads": [[1, 2], 3]}, "expected nested lists by step, layer and expert"),
        ({"workload": "W8"}, 'unknown "W8"; did you mean "W7"?'),
        ({"workload": "W1", "power_law": 1}, "give only one of the two"),
        ({"redraw": 2}, "is read with `concentration` or `power_law` only"),
        ({"pad": True}, "is read with `capacity_factor` only"),
        ({"pad": True, "capacity_factor": 1}, "travels with dispatcher all-to-all only"),
        ({"placement": "redundant"}, "experts.copies: is required by redundant"),
        ({"placement": "static", "copies": 8}, "experts.copies: is not read by static"),
        ({"placement": "nowhere"}, 'unknown "nowhere"; expected one of balanced, redundant, static'),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_are_told(experts, said):
    with pytest.raises(ScenarioError) as error:
        scenario(experts)
    assert said in str(error.value)


def test_loads_are_drawn_anew_after_some_steps():
    first, second, third, fourth = of_steps({"power_law": 1.2, "redraw": 2}, steps=4)
    assert first == second
    assert third == fourth != first
    assert of_steps({"power_law": 1.2}, steps=4)[3] == first


def test_a_capacity_bounds_the_busiest_rank():
    wanted, bounded = (costs({"loads": HOT, **more}).stages[0, 0].layers[2] for more in ({}, {"capacity_factor": 1.25}))
    assert bounded.inner[0] < wanted.inner[0]
    assert bounded.kept < wanted.kept
    enough = costs({"loads": HOT, "capacity_factor": 2.4}).stages[0, 0].layers[2]
    assert enough == wanted  # 3 / (20 / 16) = 2.4 times the mean


def test_padded_experts_all_have_the_capacity():
    padded = {"loads": HOT, "capacity_factor": 1.5, "pad": True, "dispatcher": "all-to-all"}
    forced = {**MIXTURE, "experts": {**MIXTURE["experts"], "balance": 1.5}}
    one, other = (parts_of(given).costs.stages[0, 0].layers[2] for given in (
        scenario(padded, efficiency={"launch": 0}),
        scenario({"dispatcher": "all-to-all"}, model=forced, efficiency={"launch": 0})))  # fmt: skip
    assert (one.forward, one.backward, one.kept) == (other.forward, other.backward, other.kept)


def test_copies_are_held_in_memory():
    """One more expert on each of eight ranks: 2 · 512 · 512 weights per product, three of them, in two layers."""
    hot = {"loads": HOT}
    plain, copied = costs(hot), costs({**hot, "placement": "redundant", "copies": 8})
    each = 2 * 3 * 512 * 512
    weights = [sum(stage.states.weights for stage in run.stages.values()) for run in (plain, copied)]
    assert weights[1] - weights[0] == 2 * each
    state = [sum(layer.states.resident for layer in one.stages[0, 0].layers) for one in (plain, copied)]
    assert state[1] - state[0] == each * (2 + 4)  # and gradients in 32 bits


def test_redundant_experts_relieve_the_busiest_rank():
    placements = [{}, {"placement": "balanced"}, {"placement": "redundant", "copies": 8}]
    busiest = []
    for more in placements:
        loads = ExpertLoads(CostBasis.of(scenario({"workload": "W1", **more})))
        busiest.append(float(loads.at(0)[2].busiest(8)))
    assert busiest == [3.25, 1.75, pytest.approx(1.0625, abs=0.2)]
    assert busiest[2] < busiest[1]
