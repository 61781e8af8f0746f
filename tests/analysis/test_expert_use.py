"""What unequally wanted experts cost layer by layer, what a balanced placement would give, and the busiest adapters."""

import pytest
from support.unequal_experts import MIXTURE, scenario_with

from hybrid_des import simulate
from hybrid_des.report.experts import expert_lines


def summary(experts, gpus_per_node=4, model=MIXTURE, **sections):
    cluster = {"gpu": "h100", "nodes": 8 // gpus_per_node, "gpus_per_node": gpus_per_node}
    return simulate(scenario_with(experts, cluster=cluster, model=model, **sections)).summary


def test_equally_wanted_experts_have_no_figures():
    assert "experts" not in summary({})
    assert "experts" in summary({"workload": "W0"})


def test_layers_add_up_to_the_whole():
    facts = summary({"loads": [[3, 3, *[1] * 14], [1] * 15 + [5]]})
    layers = facts["experts"]["layers"]
    assert [layer["layer"] for layer in layers] == [2, 3]  # after the embedding and a dense block
    assert sum(layer["imbalance_s"] for layer in layers) == pytest.approx(facts["expert_imbalance_s"], rel=1e-9)
    assert [layer["busiest_ratio"] for layer in layers] == [pytest.approx(6 / 20 * 8), pytest.approx(6 / 20 * 8)]


def test_what_balancing_would_give_is_what_it_gives():
    loads = [3, 3, *[1] * 14]
    then, now = (summary({"loads": loads, **more})["experts"] for more in ({}, {"placement": "balanced"}))
    for of_now, of_then in zip(now["layers"], then["layers"], strict=True):
        assert of_then["balanced_busiest_ratio"] == of_now["busiest_ratio"] == pytest.approx(4 / 20 * 8)
        assert of_then["balanced_imbalance_s"] == of_now["imbalance_s"] < of_then["imbalance_s"]
        assert of_now["balanced_moves"] == 0 < of_then["balanced_moves"]


def test_five_layers_are_shown():
    facts = summary({"workload": "W1"}, model={**MIXTURE, "layers": 8})["experts"]
    assert [layer["layer"] for layer in facts["layers"]] == [2, 3, 4, 5, 6]
    assert facts["layers_with_experts"] == 7


def test_adapters_of_the_busiest_node_take_what_is_wanted_there():
    """One expert per token, half of all on the first of four nodes: two exchanges there, two back, each twice."""
    loads = [7, 7, 7, 7, *[28 / 12] * 12]
    model = {**MIXTURE, "layers": 2, "experts": {**MIXTURE["experts"], "active": 1, "dense_layers": 0}}
    facts = summary({"loads": loads}, 2, model, precision="bf16")["experts"]["adapters"]
    token, ways, microbatches, layers, adapters = 512 * 2, 2, 2, 2, 2
    here, other = (6 * share + 2 * (1 - share) for share in (1 / 2, 1 / 6))  # nodes of two ranks, of eight
    each = 512 * token * ways * microbatches * layers / adapters  # two in use, though there are eight
    assert facts["busiest_node"] == 0
    assert facts["bytes"] == pytest.approx(each * here, rel=1e-6)
    assert facts["mean_bytes"] == pytest.approx(each * (here + 3 * other) / 4, rel=1e-6)


def test_dropped_choices_are_those_beyond_the_capacity():
    assert summary({"loads": [3, 3, *[1] * 14], "capacity_factor": 2})["experts"]["dropped_ratio"] == pytest.approx(
        2 * (3 - 2 * 20 / 16) / 20
    )


def test_a_report_tells_the_first_layers():
    facts = summary({"workload": "W1", "capacity_factor": 2})
    text = [f"{fact.label} {fact.value} {fact.note}" for fact in expert_lines(facts)]
    assert any("layer 2" in line and "× the mean" in line for line in text)
    assert any("find no room" in line for line in text)
    equal = [*expert_lines(summary({"workload": "W0"}))]
    assert [fact.label.strip() for fact in equal] == ["experts' imbalance", "busiest NICs"]
    assert "all ranks serve as many tokens" in equal[0].note
