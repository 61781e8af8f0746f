"""What a look at the routes of few replicas proves is what a look at all proves."""

from itertools import product

import pytest

from hybrid_des.cluster.self_contention import replay_safe_axes, self_contending
from hybrid_des.planning import layer_traffic
from hybrid_des.planning.layer_traffic import flows_of, representative_replicas
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from

ORDERS = (["tensor", "data", "pipeline"], ["tensor", "pipeline", "data"])
CASES = list(product((2, 4, 8), (1, 4), ("nodes", "rails"), ORDERS, (False, True)))[::3]


@pytest.mark.parametrize(("tensor", "adapters", "topology", "order", "overlap"), CASES)
def test_few_replicas_prove_what_all_do(monkeypatch, tensor, adapters, topology, order, overlap):
    scenario = scenario_from(
        {
            "cluster": {"nodes": 4 * tensor, "topology": topology, "infiniband": {"nics_per_node": adapters}},
            "model": {"layers": 2, "hidden": 64, "heads": 8, "ffn": 64, "vocab": 64, "sequence": 64},
            "parallel": {"tensor": tensor, "pipeline": 2, "data": 16, "order": order},
            "schedule": {"kind": "1f1b", "microbatches": 2},
            "gradients": {"overlap": overlap, "algorithm": "ring"},
        }
    )
    monkeypatch.setattr(layer_traffic, "representative_replicas", lambda *_, **__: None)
    parts = parts_of(scenario)
    reduced = [group for _, group in parts.reductions.processes]
    whole = flows_of(scenario, parts.plan, parts.fabric, scenario.parallel.layout, reduced)
    sample = representative_replicas(scenario, parts.plan, parts.fabric, reduced)
    assert len(sample.pipeline) < len(whole.pipeline)
    assert self_contending(parts.fabric, sample) == self_contending(parts.fabric, whole)
    assert replay_safe_axes(parts.fabric, sample) == replay_safe_axes(parts.fabric, whole)


def test_a_shared_spine_is_looked_at_as_a_whole():
    values = {
        "cluster": {"gpu": "h100", "nodes": 16, "topology": "rails", "cross_rail": "spine", "oversubscription": 2},
        "model": {"layers": 2, "hidden": 64, "heads": 8, "ffn": 64, "vocab": 64, "sequence": 64},
        "parallel": {"tensor": 2, "data": 64},
        "schedule": {"kind": "1f1b", "microbatches": 2},
    }
    scenario = scenario_from(values)
    parts = parts_of(scenario)
    reduced = [group for _, group in parts.reductions.processes]
    assert representative_replicas(scenario, parts.plan, parts.fabric, reduced) is None


def test_stages_that_the_same_ranks_reduce_count_once():
    values = {
        "cluster": {"nodes": 2},
        "model": {"layers": 4, "hidden": 64, "heads": 8, "ffn": 64, "vocab": 64, "sequence": 64},
        "parallel": {"tensor": 2, "pipeline": 2, "data": 4},
        "schedule": {"kind": "interleaved-1f1b", "chunks": 2, "microbatches": 2},
        "gradients": {"algorithm": "ring"},
    }
    scenario = scenario_from(values)
    parts = parts_of(scenario)
    reduced = [group for _, group in parts.reductions.processes]
    given = scenario, parts.plan, parts.fabric, scenario.parallel.layout
    assert len({group.stage for group in reduced}) == 4
    of_two = flows_of(*given, [group for group in reduced if group.stage in (2, 3)]).gradients
    assert flows_of(*given, reduced).gradients == of_two
    other = [group for group in reduced if group.stage != 1 or group.ranks[0] != reduced[-1].ranks[0]]
    assert {flow.what for flow in flows_of(*given, other).gradients} == {f"gradients {stage} 0" for stage in (1, 2, 3)}
