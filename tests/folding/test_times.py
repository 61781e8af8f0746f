"""Collectives that are tried out alone: a few members of a few groups take as long as all of them."""

from random import Random

import pytest
from support.campaigns import thinned
from support.foldings import run_of, scenario_values
from support.layered_foldings import model_values
from support.scenarios import merged

from hybrid_des import collectives
from hybrid_des.cluster.components import Isomorphic
from hybrid_des.collectives import codecs
from hybrid_des.cost_model import collective_times as times_module
from hybrid_des.cost_model.collective_times import CollectiveTimes, Concurrent
from hybrid_des.errors import HybridDesError, Refusal, ScenarioError
from hybrid_des.folding.refusals import TooManyMessagesError
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from

EACH = {scenario_values: 8, model_values: 2}  # once 1,000 and 300: 8,372 collectives, all alike
SEEDS = [(values, each * first) for values, each in EACH.items() for first in (0, 1)]


def asked_of(values):
    """The times of a scenario's wiring, folded and not, and its gradients; None if it is impossible."""
    values = {key: value for key, value in values.items() if key not in ("sharding", "overlap")}
    try:
        scenario = scenario_from(values)
        parts = parts_of(scenario)
    except HybridDesError:
        return None
    groups = [group for _, group in parts.reductions.processes]
    asked = Concurrent(
        [group.ranks for group in groups],
        [max(bucket.elements for bucket in group.buckets) for group in groups],
        codecs.find(scenario.gradients.codec).build(),
        scenario.gradients.options,
    )
    wiring = parts.fabric, scenario.parallel.layout, scenario.cluster.sharing
    return *(CollectiveTimes(*wiring, folded=folded) for folded in (True, False)), asked


def outcomes(times, asked):
    """By all-reduce, what it takes and sends, or why it cannot be."""
    found = {}
    for name in collectives.all_reduces(asked.options):
        try:
            found[name] = times.of(name, asked)
        except Refusal as refusal:
            found[name] = str(refusal)
    return found


@pytest.mark.parametrize(
    ("values", "first"), thinned(SEEDS, slow=[(scenario_values, 8), (model_values, 0), (model_values, 2)])
)
def test_few_members_take_as_long_as_all(values, first):
    folded = 0
    for seed in range(first, first + EACH[values]):
        found = asked_of(values(Random(seed)))
        if found is None or not found[-1].groups:
            continue
        times, unfolded, asked = found
        every = outcomes(unfolded, asked)
        assert outcomes(times, asked) == every, f"seed {seed}"
        ran = {name: outcome for name, outcome in every.items() if not isinstance(outcome, str)}
        best = min(ran, key=lambda name: (ran[name].duration, name))
        assert times.fastest(asked) == (best, ran[best]), f"seed {seed}"
        folded += sum(one.sets > 1 or bool(one.folds) for one in times.simulated("ring", asked))
    assert folded


SHARED = {
    "cluster": {
        "nodes": 8,
        "gpus_per_node": 4,
        "nvlink": {"bandwidth": "100 GB/s", "latency": "1 us"},
        "infiniband": {"bandwidth": "10 GB/s", "latency": "1 us", "nics_per_node": 1},
    },
    "parallel": {"pipeline": 4, "data": 8, "order": ["tensor", "pipeline", "data"]},
    "schedule": {"kind": "1f1b", "microbatches": 4},
    "workload": {"forward": "1 us", "backward": "1 us", "parameters": 100_000},
}


def test_one_group_of_those_that_share_an_adapter_chooses_wrongly(monkeypatch):
    times, unfolded, asked = asked_of(SHARED)
    assert [len(one.groups) for one in times.simulated("ring", asked)] == [4]
    assert times.fastest(asked)[0] == unfolded.fastest(asked)[0] == "halving-doubling"
    monkeypatch.setattr(times_module, "independent_sets", lambda *_: [Isomorphic([0], 4)])
    times, _, asked = asked_of(SHARED)  # groups are divided once
    assert times.fastest(asked)[0] == "parameter-server"


def test_adapters_for_all_leave_one_rank_to_simulate():
    times, _, asked = asked_of(merged(SHARED, {"cluster": {"infiniband": {"nics_per_node": 4}}}))
    ((groups, sets, folds),) = times.simulated("ring", asked)
    assert (len(groups), sets, folds[0].order) == (1, 4, 8)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_run_takes_what_unfolded_times_choose(sharing):
    values = merged(SHARED, {"gradients": {"algorithm": "auto"}, "cluster": {"sharing": sharing}})
    run, whole = run_of(values, "auto"), run_of(values, "off")
    own = ("wall_s",)
    assert {key: run.summary[key] for key in run.summary if key not in own} == {
        key: whole.summary[key] for key in whole.summary if key not in own
    }


def test_fold_off_simulates_all_members_of_all_groups(monkeypatch):
    seen = []

    def watched(self, name, asked, groups, fold, limit):
        seen.append((len(groups), fold, limit))
        return run(self, name, asked, groups, fold, limit)

    run = CollectiveTimes._run
    monkeypatch.setattr(CollectiveTimes, "_run", watched)
    parts_of(scenario_from(merged(SHARED, {"gradients": {"algorithm": "auto"}, "fold": "off"})))
    assert set(seen) == {(4, None, None)}


def test_folds_that_turn_out_wrong_give_way_to_others(monkeypatch):
    """Rings of four leaves meet on their uplinks, where only all of them together are known to be alike."""
    seen, run = [], CollectiveTimes._run

    def watched(self, name, asked, groups, fold, limit):
        seen.append(fold and fold.order)
        return run(self, name, asked, groups, fold, limit)

    monkeypatch.setattr(CollectiveTimes, "_run", watched)
    cluster = {"topology": "leaf-spine", "leaf_size": 2, "oversubscription": 4}
    times, unfolded, asked = asked_of(merged(SHARED, {"cluster": cluster}))
    assert times.of("ring", asked) == unfolded.of("ring", asked)
    assert seen[0] > seen[-2] and seen[-1] is None
    assert len(seen) > 2


def test_what_cannot_be_tried_out_is_refused():
    values = {"cluster": {"nodes": 512}, "parallel": {"data": 4096}, "schedule": {"kind": "1f1b", "microbatches": 1}}
    work = {"forward": 0, "backward": 0, "parameters": 9973}
    with pytest.raises(
        TooManyMessagesError, match=r"parameter-server: 16777216 pairs of ranks that send to each other are"
    ):
        parts_of(scenario_from({**values, "workload": work, "gradients": {"algorithm": "auto"}}))


def test_large_groups_are_accepted_where_they_may_fold():
    values = {
        "cluster": {"nodes": 2048},
        "parallel": {"pipeline": 16, "data": 1024},
        "gradients": {"algorithm": "auto"},
    }
    values |= {"schedule": {"kind": "1f1b", "microbatches": 1}}
    values |= {"workload": {"forward": 0, "backward": 0, "parameters": 1}}
    assert scenario_from(values).gradients.algorithm == "auto"
    with pytest.raises(ScenarioError, match="gradients: 16777216 pairs of ranks that send to each other are more than"):
        scenario_from({**values, "fold": "off"})
