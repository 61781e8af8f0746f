"""Moves of plans with groups that shard, and with Muon: none is refused, and groups within nodes are among them."""

import pytest

from hybrid_des import advise, load
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import document_of
from hybrid_des.simulation.memory_remedies import remedies
from hybrid_des.studies.advice.words import TOLD
from hybrid_des.studies.neighbours.moves import moves_from
from hybrid_des.studies.neighbours.position import Position
from hybrid_des.studies.plan_search.space import plans_in
from hybrid_des.studies.plan_search.terms import settings_of
from hybrid_des.studies.sweep.runner import with_case

SMALL = {
    "cluster": {"gpu": "h100", "nodes": 4, "gpus_per_node": 4},
    "model": {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "sequence": 2048,
              "written": "megatron"},
    "parallel": {"data": 16}, "batch": 64, "name": "small",
}  # fmt: skip
HSDP = {**SMALL, "sharding": "zero-3", "shards": {"ranks": 4, "outside": "zero-1"}}
PIPELINED = {
    **SMALL, "parallel": {"data": 8, "pipeline": 2}, "schedule": {"kind": "1f1b"}, "sharding": "zero-3",
    "shards": {"ranks": 4, "reshard": True},
}  # fmt: skip
MUON = {**SMALL, "sharding": "zero-1", "optimizer": {"kind": "muon"}}
WHOLE = {**SMALL, "optimizer": {"kind": "muon", "muon": {"layout": "duplicated"}}, "parallel": {"data": 8, "tensor": 2}}
EXPERTS = {
    **HSDP, "parallel": {"data": 16, "expert": 4}, "shards": {"ranks": 8},
    "model": {**SMALL["model"], "experts": {"count": 8, "active": 2, "ffn": 1024}},
}  # fmt: skip


def position(values):
    return Position(load(values), document_of(values, ()), {})


@pytest.mark.parametrize("values", [HSDP, PIPELINED, MUON, WHOLE, EXPERTS])
def test_no_move_is_refused_for_its_shards_or_its_optimizer(values):
    at, refused = position(values), []
    moves = [*moves_from(at)]
    for move in moves:
        try:
            load(with_case(at.document, move.settings, "move").value)
        except ScenarioError as error:
            if "shards" in str(error) or "muon" in str(error):
                refused.append((move.settings, str(error)))
    assert refused == []
    assert {move.sort for move in moves} >= {"layout", "sharding", "recompute"}


def test_groups_within_nodes_are_tried_where_sharding_spans_nodes():
    whole = {**HSDP, "shards": {}}
    moves = [move.settings for move in moves_from(position(whole)) if move.sort == "shards"]
    assert moves == [{"shards.ranks": 4}]
    again = [move.settings for move in moves_from(position(HSDP)) if move.sort == "shards"]
    assert again == [{"shards.ranks": None, "shards.outside": None}]
    one_node = {**whole, "cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": 16}}
    assert not [move for move in moves_from(position(one_node)) if move.sort == "shards"]
    assert not [move for move in moves_from(position(SMALL)) if move.sort == "shards"]


def test_groups_are_told_in_words():
    before, after = load({**HSDP, "shards": {}}), load(HSDP)
    assert "sharded in groups of 4" in [text for told in TOLD for text in told(before, after)]
    assert "sharded over all replicas" in [text for told in TOLD for text in told(after, before)]


@pytest.mark.parametrize("values", [HSDP, MUON, WHOLE])
def test_remedies_for_memory_are_valid_scenarios(values):
    scenario = load(values)
    parts = parts_of(scenario)
    found = [*remedies(scenario, parts.plan, parts.fabric)]
    assert found
    for remedy in found:
        changed = load(with_case(document_of(values, ()), remedy.changes, "remedy").value)
        for section in ("sharding", "shards", "optimizer", "recompute", "parallel"):
            assert getattr(remedy.scenario, section) == getattr(changed, section)
    if values is HSDP:
        assert {"shards.ranks": 16} in [remedy.changes for remedy in found]


def axes(values, *names):
    """The plans of a search over these axes."""
    return plans_in(settings_of(document_of({**values, "search": {"axes": [*names]}}, ())))


def test_an_axis_of_groups_has_the_divisors_of_a_node():
    plans = axes({**HSDP, "shards": {}}, "shards.ranks")
    assert {plan["shards.ranks"] for plan in plans} == {None, 2, 4}
    assert {plan["shards.ranks"] for plan in axes(SMALL, "shards.ranks") if plan["sharding"] == "none"} == {None}


def test_reshard_and_optimizers_vary_by_name_only():
    assert {plan["shards.reshard"] for plan in axes({**HSDP, "shards": {}}, "shards.reshard")} == {None, False}
    assert {plan["optimizer.kind"] for plan in axes(HSDP, "optimizer.kind")} >= {"adam", "muon", "sgd", "adam-8bit"}
    assert not [plan for plan in axes(HSDP, "recompute") if "optimizer.kind" in plan or "shards.ranks" in plan]


@pytest.mark.slow
@pytest.mark.parametrize("values", [HSDP, MUON], ids=["groups", "muon"])
def test_advice_runs_and_lists_valid_scenarios(values):
    scenario, document = load(values), document_of(values, ())
    lines = advise(scenario).lines
    assert lines
    for line in lines:
        load(with_case(document, line.settings, "line").value)


@pytest.mark.parametrize("values", [HSDP, PIPELINED, MUON], ids=["groups", "pipeline", "muon"])
def test_a_search_without_axes_has_no_refused_shards(values):
    settings = settings_of(document_of(values, ()))
    refused = [*filter(None, (_why_refused(settings.document, plan) for plan in plans_in(settings)))]
    assert [why for why in refused if "shards" in why or "muon" in why] == []


def _why_refused(document, plan):
    try:
        load(with_case(document, plan, "plan").value)
    except ScenarioError as error:
        return str(error)
    return ""
