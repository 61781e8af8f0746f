"""Steps whose experts are wanted, or placed, differently: each takes what it takes alone; copies are messages."""

from functools import partial

import pytest
from support.campaigns import thinned
from support.unequal_experts import MIXTURE, scenario_with

from hybrid_des import simulate
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.expert_loads import ExpertLoads
from hybrid_des.errors import Refusal
from hybrid_des.planning.expert_copies import ExpertCopies
from hybrid_des.shortcuts.run import run
from hybrid_des.workload.expert_loads import WORKLOADS

MODEL = {**MIXTURE, "layers": 2, "experts": {"count": 16, "active": 2, "ffn": 512}}
EXPERT = 3 * 512 * 512  # parameters
GRADIENT, WEIGHT, STATE = 4, 2, 12  # bytes per parameter: 32 bits; 16 bits; 32-bit weights and two moments
FIRST, LAST = [6, 6, *[1] * 14], [*[1] * 14, 6, 6]  # hot experts of one rank
REDUNDANT = {"placement": "redundant", "copies": 8}


scenario = partial(scenario_with, model=MODEL)


def alone(name, step, **sections):
    loads = [float(load) for load in WORKLOADS[name](16, 2, step)]
    return run(scenario({"loads": loads}, **sections))


@pytest.mark.parametrize("traffic", ["replay", "messages"])
@pytest.mark.parametrize("name", thinned(["W6", "W7"], slow=["W7"]))
def test_each_step_takes_what_it_takes_alone(name, traffic):
    every = run(scenario({"workload": name}, tensor_traffic=traffic, steps=5))
    each = [alone(name, step, tensor_traffic=traffic) for step in range(5)]
    assert every.duration == sum(step.duration for step in each)
    assert every.bytes_expert == sum(step.bytes_expert for step in each)
    assert every.peak_memory == [max(of_rank) for of_rank in zip(*(step.peak_memory for step in each), strict=True)]
    assert len({step.duration for step in each}) == {"W6": 1, "W7": 2}[name]  # W6 only moves what is hot


def test_each_step_of_a_pipeline_takes_what_it_takes_alone():
    sections = {"parallel": {"pipeline": 2, "data": 4, "expert": 4}, "sharding": "zero-1"}
    every = run(scenario({"workload": "W7"}, steps=4, **sections))
    assert every.duration == sum(alone("W7", step, **sections).duration for step in range(4))


def test_the_summary_of_varied_steps_is_their_mean():
    every = simulate(scenario({"workload": "W7"}, steps=4)).summary
    each = [simulate(scenario({"loads": [float(load) for load in WORKLOADS["W7"](16, 2, step)]})).summary
            for step in range(4)]  # fmt: skip
    for key in ("step_time_s", "expert_imbalance_s"):
        assert every[key] == pytest.approx(sum(facts[key] for facts in each) / 4, rel=1e-9)
    assert every["experts"]["step"] == 3
    assert every["experts"]["layers"] == each[3]["experts"]["layers"]


def test_ranks_are_busy_or_idle_in_varied_steps():
    summary = simulate(scenario({"workload": "W7"}, steps=4)).summary
    assert summary["busy_s"] + sum(summary["idle_s"].values()) == pytest.approx(summary["step_time_s"])
    assert summary["idle_s"]["gradient_reduction"] > 0


def placed_at(experts, steps):
    loads = ExpertLoads(CostBasis.of(scenario(experts, steps=steps)))
    return [loads.placed(1, step) for step in range(steps)]


def test_plans_follow_the_loads_seen_before():
    table = [[FIRST], [FIRST], [LAST], [LAST]]
    by_first, by_last = (placed_at({"loads": loads, "placement": "balanced"}, 1)[0] for loads in (FIRST, LAST))
    assert placed_at({"loads": table, "placement": "balanced", "replan": 2}, 4) == [(), (), by_first, by_first]
    seen = placed_at({"loads": [[FIRST], [LAST], [LAST], [LAST]], "placement": "balanced", "replan": 1}, 3)
    assert seen[:2] == [(), by_first]
    assert by_first != by_last


def copies_of(experts, steps=1, **sections):
    copies = ExpertCopies(ExpertLoads(CostBasis.of(scenario(experts, steps=steps, **sections))))
    return [copies.at(step, range(4)) for step in range(steps)]


def test_copies_send_gradients_home_and_get_weights():
    """In each of two layers: all sizes by hand."""
    experts = {"loads": FIRST, **REDUNDANT}
    gradients, weights = copies_of(experts)[0]
    copies = sum(len(set(held)) for held in placed_at(experts, 1)[0]) - 16  # on other ranks than their home
    assert copies > 4
    assert sum(size for *_, size in gradients) == 2 * copies * EXPERT * GRADIENT
    assert sum(size for *_, size in weights) == 2 * copies * EXPERT * WEIGHT
    assert {(to, of) for of, to, _ in gradients} == {(of, to) for of, to, _ in weights}


def test_experts_that_move_take_their_state():
    table = {"loads": [[FIRST], [LAST], [LAST]], "placement": "balanced", "replan": 1}
    in_order, after = [(2 * rank, 2 * rank + 1) for rank in range(8)], placed_at(table, 3)[1]
    moved = sum(len(set(new) - set(old)) for old, new in zip(in_order, after, strict=True))
    sent = copies_of(table, 3)
    assert moved >= 2
    assert [step.gradients for step in sent] == [(), (), ()]
    assert sum(size for *_, size in sent[0].weights) == 2 * moved * EXPERT * (WEIGHT + STATE)
    assert sent[2].weights == ()  # no step follows


def test_divided_state_travels_in_parts():
    """Two groups of four hold each expert: with zero-1, either has half of the state of each."""
    table = {"loads": [[FIRST], [FIRST]], "placement": "balanced", "replan": 1}
    parallel = {"data": 8, "expert": 4}
    first = [copies_of(table, 2, parallel=parallel, sharding=sharding)[0] for sharding in ("none", "zero-1")]
    sums = [sum(size for *_, size in step.weights) for step in first]
    assert sums[0] * (WEIGHT + STATE // 2) == sums[1] * (WEIGHT + STATE) > 0


@pytest.mark.parametrize(
    "parallel", [{"data": 8, "expert": 8}, {"pipeline": 2, "data": 4, "expert": 4}, {"data": 8, "expert": 4}]
)
def test_copies_are_messages_of_every_step(parallel):
    experts = {"loads": FIRST, **REDUNDANT}
    with_copies = run(scenario(experts, parallel=parallel, steps=2))
    groups = 2 if parallel == {"data": 8, "expert": 4} else 1
    sent = copies_of(experts, parallel=parallel)[0]
    assert with_copies.bytes_parameters == 2 * groups * sum(size for sizes in sent for *_, size in sizes) > 0
    summary = simulate(scenario(experts, parallel=parallel, steps=2)).summary
    copies = summary["experts"]["copies"]
    assert sum(copies.values()) == with_copies.bytes_parameters / 2


def test_varied_steps_refuse_documents_of_unequal_length():
    data = {"lengths": {"kind": "uniform", "min": 64, "max": 512}}
    with pytest.raises(Refusal, match="are not simulated with documents of unequal length"):
        run(scenario({"workload": "W7"}, parallel={"data": 8}, steps=4, data=data))
    assert run(scenario({"workload": "W1"}, parallel={"data": 8}, data=data)).duration > 0


def test_copies_refuse_weights_divided_by_layer():
    with pytest.raises(Refusal, match="need sharding none or zero-1, not zero-3, outside pipelines"):
        run(scenario({"loads": FIRST, **REDUNDANT}, sharding="zero-3"))


def test_steps_repeat_the_table_from_its_first():
    twice = run(scenario({"loads": [[FIRST], [[1] * 16]]}, steps=4))
    once = run(scenario({"loads": [[FIRST], [[1] * 16]]}, steps=2))
    assert twice.duration == 2 * once.duration
