"""Groups of replicas that seldom exchange, on links that they share: all groups are simulated together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import spaces
from support.scenarios import merged, scenario, values

from hybrid_des import simulate
from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.explanation import explain
from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.terminal import render
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.goodput.goodput import goodput
from hybrid_des.studies.plan_search.best_plan import search
from hybrid_des.studies.spread.seeds import spread

MS = 10**9
ALONE = {"parallel": {"order": ["tensor", "pipeline", "data"]}}  # every replica on a node of its own


def of_adapters(nodes=2, replicas=8, every=100, **sections):
    """Replicas of two stages on nodes with one adapter each, through which an activation takes 1 ms."""
    base = {
        "cluster": {"gpu": "h100", "nodes": nodes, "gpus_per_node": 2 * replicas // nodes,
                    "infiniband": {"bandwidth": "10 GB/s", "latency": 0, "nics_per_node": 1}},
        "workload": {"activation": "10 MB", "parameters": 1000}, "gradients": {"every": every},
    }  # fmt: skip
    return values("1f1b", 2, 4, replicas, **merged(base, sections))


def test_groups_wait_for_each_other_at_an_adapter():
    """32 activations of 1 ms leave the first node after the first forward op; two ops and a gradient follow the last.

    By hand: 1 + 32 + 1 + 2 + 1 + 2 ms.
    """
    shared = load(of_adapters())
    assert run(shared).duration == traced_run(shared).duration == 39 * MS
    facts = summary(run(shared))
    assert facts["step_time_s"] == 0.039 and facts["ranks"] == facts["outer"]["ranks"] == 16


def test_groups_on_adapters_of_their_own_are_one_group():
    apart = load(of_adapters(nodes=8, **ALONE))
    facts = summary(run(apart))
    assert (facts["ranks"], facts["outer"]["ranks"]) == (2, 16)
    assert run(apart).duration == run(apart, fabric=fabric_of(apart)).duration


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_groups_wait_for_each_other_below_a_spine(sharing):
    """Two leaves of four nodes, of which each stage of four replicas fills one; uplinks are four times too narrow."""
    spine = {"topology": "leaf-spine", "leaf_size": 4, "oversubscription": 4, "sharing": sharing}
    narrow, free = (
        load(of_adapters(nodes=8, replicas=4, cluster={**spine, "gpus_per_node": 1, "oversubscription": much}))
        for much in (4, 1)
    )
    assert run(narrow).duration == run(narrow, fabric=fabric_of(narrow)).duration
    assert run(narrow).duration > run(free).duration


def test_the_report_says_whose_step_it_is():
    assert "8, each with its own weights; the step above is that of all, simulated together" in render(
        simulate(of_adapters()), width=200
    )
    one = render(simulate(of_adapters(nodes=8, **ALONE)), width=200)
    assert "8, each with its own weights; the step above is that of one" in one


def test_proposals_are_runs_like_the_one_that_is_explained():
    found = explain(of_adapters())
    assert found.run.duration == 39 * MS and found.proposals
    for one in found.proposals:
        if "buy" not in one.change and "=" in one.change and not one.change.startswith("links"):
            assert one.duration == run(load(of_adapters(), [one.change])).duration
    assert all("gradients.overlap" not in one.change for one in found.proposals)


@pytest.mark.parametrize("sections", [{}, {"nodes": 8, **ALONE}])
def test_a_changed_run_without_a_change_takes_as_long(sections):
    same = load(of_adapters(**sections))
    assert Variant(same).duration == Variant.of(run(same)).duration == run(same).duration


def test_optimizers_are_divided_over_the_replicas_of_a_group():
    """`zero-1` shards what replicas that learn together have in common, whether one group is simulated or all."""
    sites = {"sites": [{"nodes": [0]}, {"nodes": [1]}], "wan": {"bandwidth": "1 GB/s", "latency": 0}}
    values = spaces.of_model(8, sharding="zero-1", gradients={"every": 10})
    one = load({**values, "cluster": {**values["cluster"], **sites}})
    group, every = run(one), run(one, fabric=fabric_of(one))
    assert (len(group.ranks), len(every.ranks)) == (4, 8)
    assert traced_run(one).duration == every.duration == group.duration
    assert every.peak_memory == 2 * group.peak_memory


def test_experts_are_divided_within_groups_of_replicas():
    values = spaces.of_model(8, model=spaces.WITH_EXPERTS, parallel={"data": 8, "expert": 4})
    assert load({**values, "gradients": {"every": 10, "outer": {"groups": 2}}}).outer_groups == 2
    with pytest.raises(ScenarioError) as refused:
        load({**values, "gradients": {"every": 10}})
    assert "parallel.expert: 8 ranks along data and context cannot be grouped by 4, within each of 8" in str(
        refused.value
    )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(2, 2), (2, 4), (4, 2), (2, 8), (1, 4)]), st.sampled_from([1, 2, 4]),
    st.sampled_from(["fifo", "fair"]), st.sampled_from(["tensor, data, pipeline", "tensor, pipeline, data"]),
    st.sampled_from(["nodes", "leaf-spine"]), st.sampled_from([None, 2]),
)  # fmt: skip
def test_seldom_exchanges_shorten_no_step_without_gradients(sizes, nodes, sharing, order, topology, groups):
    """What replicas send in a step stays the same if there is nothing to reduce, and so does what they wait for."""
    (p, d), nodes = sizes, min(nodes, sizes[0] * sizes[1])
    cluster = {
        "nodes": nodes, "gpus_per_node": p * d // nodes, "topology": topology, "sharing": sharing,
        "infiniband": {"bandwidth": "10 GB/s", "latency": "3 us", "nics_per_node": 1},
    }  # fmt: skip
    if topology == "leaf-spine":
        cluster |= {"oversubscription": 2, "leaf_size": 1}
    work = {"activation": "10 MB", "parameters": 0}
    parallel = {"order": order.split(", ")}
    made = {"cluster": cluster, "workload": work, "parallel": parallel}
    often = scenario("1f1b", p, 3, d, **made)
    seldom = scenario("1f1b", p, 3, d, **made, gradients={"every": 100, "outer": {"groups": groups}})
    assert run(seldom).duration == run(often).duration


def test_a_search_compares_steps_of_all_groups():
    axes = [{"parallel.order": [["tensor", "data", "pipeline"], ["tensor", "pipeline", "data"]]}]
    found = search({**of_adapters(nodes=8), "sharding": "none", "search": {"axes": axes, "top": 2}})
    assert len(found.ranked) == 2
    for one in found.ranked:
        mine = run(found.scenario(one))
        assert one.row["ranks"] == 16
        assert one.row["step_time_s"] == summary(mine)["step_time_s"]
        assert one.row["outer"]["mean_step_s"] == summary(mine)["outer"]["mean_step_s"]


def test_weeks_and_seeds_take_the_steps_of_all_groups():
    faults = {"horizon": "1 d", "classes": [{"what": "node", "mtbf": "900 h"}], "detect": "60 s",
              "restart": {"time": "5 min"}, "checkpoint": {"every": "30 min", "cost": "2 s"}}  # fmt: skip
    shared = of_adapters()
    weeks = goodput(load({**shared, "faults": faults}))
    assert weeks.summary["healthy_step_s"] == pytest.approx(run(load(shared)).outer.step / 10**12, rel=1e-9)
    assert weeks.summary["healthy_step_s"] > 0.039
    jitter = {"distribution": "uniform", "spread": 0.001}
    assert spread(load({**shared, "jitter": jitter}), 2).step_time_s.min() > 0.038
