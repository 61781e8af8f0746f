"""A traced run is folded like any other: what follows from its causes is that of all ranks."""

from functools import cache
from gc import collect
from weakref import ref

import numpy as np
import pytest
from support.campaigns import thinned
from support.cause_chains import both_ways
from support.folded_causes import both_of, differences
from support.paths import SCENARIOS

from hybrid_des import collectives
from hybrid_des.analysis.counterfactual.first_order import first_order
from hybrid_des.analysis.counterfactual.proposals import even
from hybrid_des.analysis.counterfactual.what_if import Variant, builder_of, variant_of
from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.paths import critical_path
from hybrid_des.analysis.critical_path.rows import Names, activities
from hybrid_des.analysis.critical_path.traced import Traced, events_of_all, traced_run
from hybrid_des.analysis.explanation import explain
from hybrid_des.folding.symmetry import Fold, FoldedAxis, folds_along
from hybrid_des.layout import Layout
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.explained import render_explanation
from hybrid_des.scenario.loading import load

FEW = [  # with these, every all-reduce, and both models of sharing
    *[("folding", seed) for seed in (1, 2, 3, 6, 10, 20, 23, 34, 114)],
    ("paired", 50),  # two rings end at once
    ("spanning", 19),
    ("small", 25),
    ("model", 24),
    *[("switches", seed) for seed in (1002, 1014, 1041, 5025)],  # NVLS; of 1002, two members of a node are simulated
]
SHIPPED = ("h100_2x8", "vit-l_8", "prototype_12gpu")
MANY = [(kind, seed) for kind in ("folding", "paired", "spanning", "small", "model") for seed in range(100)]
MANY += [*(("switches", seed) for seed in range(1000, 1080)), *(("switched layers", seed) for seed in range(10))]
PARTS = 8  # of the many, which processes share


@cache
def traced(kind, seed):
    """A random scenario traced folded and whole."""
    return both_of(kind, seed)


@pytest.mark.slow
def test_the_scenarios_are_of_every_collective_and_sharing():
    runs = [both[0].run for case in FEW if (both := traced(*case))]
    assert len(runs) == len(FEW)
    assert {run.scenario.cluster.sharing for run in runs} == {"fifo", "fair"}
    assert {run.algorithm for run in runs} == {*collectives.all_reduce_names()} - {"measured"}  # other tests have it


@pytest.mark.parametrize(("kind", "seed"), thinned(FEW, slow=[("model", 24)]))
def test_causes_of_representatives_are_those_of_all(kind, seed):
    folded, whole = traced(kind, seed)
    assert [*differences(folded, whole)] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_causes_of_many_representatives_are_those_of_all(part):
    compared = [(case, [*differences(*both)]) for case in MANY[part::PARTS] if (both := both_of(*case))]
    assert len(compared) >= 10
    assert [case for case in compared if case[1]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100_8x", *SHIPPED])
def test_an_explanation_by_representatives_is_that_of_all_ranks(name):
    scenario = load(SCENARIOS / f"{name}.yaml")
    folded, whole = explain(scenario), explain(scenario.model_copy(update={"fold": "off"}))
    assert folded.run.fold.order > 1 and whole.run.fold is None
    assert folded.to_mapping() == whole.to_mapping()
    assert render_explanation(folded, 100) == render_explanation(whole, 100)
    tables, others = folded.tables(), whole.tables()
    for table in ("activities", "idle"):
        kept = [name for name in tables[table] if name not in ("activity", "released_by")]  # row numbers
        rows = [sorted(frame[table][kept].fillna(-1).to_numpy().tolist()) for frame in (tables, others)]
        assert rows[0] == rows[1]


def test_chains_of_images_are_those_walked_edge_by_edge():
    idle = IdleTime(graph_of(traced_run(load(SCENARIOS / "h100_2x8.yaml"), fold_from=2)))
    last = idle._images.order - 1
    assert last > 0
    found, walked = both_ways(idle, last, every=5)
    assert found == walked
    assert found != both_ways(idle, 0, every=5)[0]


@pytest.mark.slow
def test_a_graph_is_freed_after_its_chains_were_walked():
    graph = graph_of(traced_run(load(SCENARIOS / "a100_8x.yaml"), fold_from=2))
    assert critical_path(graph) and list(IdleTime(graph).pieces())
    kept = ref(graph)
    del graph
    collect()
    assert kept() is None


def test_events_of_all_ranks_follow_from_those_of_representatives():
    for case in (("folding", 1), ("folding", 6), ("folding", 20), ("switches", 1002), ("switches", 1041)):
        folded, whole = traced(*case)
        assert events_of_all(folded.run) == whole.run.events


def test_released_by_names_images():
    """What released an op ends when it starts, on whichever rank."""
    folded = Traced(traced_run(load(SCENARIOS / "h100_2x8.yaml"), fold_from=2))
    assert folded.run.fold is not None
    rows = activities(folded.slack)
    released = rows[(rows["lane"] == "compute") & (rows["released_by"] >= 0)]
    before = rows.loc[released["released_by"]]
    assert (before["end_ps"].to_numpy() <= released["start_ps"].to_numpy()).all()
    of_messages = before["lane"].to_numpy() == "message"
    assert (before["peer"].to_numpy()[of_messages] == released["rank"].to_numpy()[of_messages]).all()


def test_elements_that_keep_a_group_share_its_meeting():
    layout = load({"cluster": {"nodes": 1}, "parallel": {"data": 8}, "workload": {"forward": 1, "backward": 1}})
    fold = folds_along(layout.parallel.layout, "data", 2)[0]
    fabric = fabric_of(layout)
    images = Images(fold, fabric)
    assert images.order == 4
    assert images.keeping(range(8)).tolist() == [0, 0, 0, 0]
    assert images.keeping([0, 1]).tolist() == [0, 1, 2, 3]
    assert images.keeping([0, 1, 4, 5]).tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="others stand for"):
        images.keeping([0, 2, 3])
    assert images.keeping([0, 1, 4, 5], last=True).tolist() == [2, 3, 2, 3]
    assert Images(Fold(layout.parallel.layout, ()), fabric).keeping([3, 5]).tolist() == [0]


def test_a_slower_link_of_a_folded_replica_counts():
    """Only the first replica is simulated where all links of a kind are alike."""
    scenario = load(SCENARIOS / "h100_2x8.yaml")
    base = Variant(scenario, None, fabric_of(scenario))
    ends = []
    for node in ("node0", "node1"):
        change = variant_of(f"link.{node}/gpu1/nvlink-out.bandwidth=0.01x", base, builder_of(scenario))
        ends.append(change.simulated().duration)
    assert ends[0] == ends[1] > base.simulated().duration


def test_a_change_of_one_rank_needs_all_ranks():
    """No rank stands for one that alone is slower."""
    scenario = load(SCENARIOS / "a100_8x.yaml")
    for rank in (0, 1):
        change = variant_of(f"rank.{rank}.time=2x", Variant(scenario), builder_of(scenario))
        base = Traced(traced_run(scenario, fold_from=2))
        fold = change.simulated().fold
        assert (base.run.fold.order, fold) == (2, None)
        assert base.fitting(fold) is base.whole
        assert first_order(base.fitting(fold), change) == first_order(Traced(traced_run(scenario)), change)


def test_proposed_buckets_are_padded_where_only_that_folds():
    values = {
        "cluster": {"nodes": 2, "gpus_per_node": 8},
        "parallel": {"data": 16},
        "workload": {"forward": "10 ms", "backward": "20 ms", "parameters": 16 * 10**7},
        "gradients": {"codec": "bf16", "algorithm": "ring"},
    }
    scenario = load(values)
    base = traced_run(scenario, fold_from=2)
    change = variant_of("gradients.bucket=25 MB", Variant.of(base), builder_of(scenario))
    padded = even(change, base)
    assert padded.scenario.gradients.pad
    assert change.folded < base.fold.order == padded.folded
    assert not even(
        variant_of("gradients.overlap=true", Variant.of(base), builder_of(scenario)), base
    ).scenario.gradients.pad
    exact, near = change.simulated().duration, padded.simulated().duration
    assert abs(near - exact) <= 2e-7 * exact  # at most 127 of 12.5 million gradients more, in a tenth of the step


def test_ranks_in_tables_are_plain_integers():
    """JSON holds no others."""
    traced = Traced(traced_run(load(SCENARIOS / "h100_2x8.yaml"), fold_from=2))
    names = Names(traced.run.timeline, traced.slack.graph)
    images = traced.slack.graph.images
    assert images.order > 1
    last = (images.order - 1) * traced.slack.graph.activities
    assert all(type(names.rank(activity)) is int for activity in (0, last))
    fold = Fold(Layout({"data": 4}, ["data"]), [FoldedAxis("data", np.int64(1))])
    assert type(Images(fold, traced.run.fabric).rank(1, 2)) is int
