"""Groups of replicas that seldom exchange: closed forms, published utilisation, sites and their link."""

from fractions import Fraction

import pytest
from support.campaigns import thinned
from support.scenarios import merged, scenario
from support.tables import from_table

from hybrid_des import simulate
from hybrid_des.analysis.critical_path.traced import events_of_all, traced_run
from hybrid_des.analysis.metrics import summary
from hybrid_des.collectives.benchmark import Outcome
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.errors import ScenarioError
from hybrid_des.folding.refusals import TooManyMessagesError
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.terminal import render
from hybrid_des.scenario.loading import load
from hybrid_des.scenario.sections.outer import Outer
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outer import OuterPeriod, inner_of
from hybrid_des.studies.goodput.goodput import goodput

S = 10**12
NODES = {
    "gpus_per_node": 1, "nvlink": {"bandwidth": "inf", "latency": 0},
    "infiniband": {"bandwidth": "8 GB/s", "latency": 0, "nics_per_node": 1},
}  # fmt: skip
TWO = {"sites": [{"nodes": "0-3"}, {"nodes": [4, 5, 6, 7]}], "wan": {"bandwidth": "1 GB/s", "latency": 0}}


def seldom(ranks=8, every=10, cluster=TWO, **sections):
    """A model of 8 MB in 16 bits, one replica per node; exchanges go around a ring."""
    base = {
        "cluster": {**NODES, "nodes": ranks, **cluster},
        "workload": {"forward": "1 ms", "backward": "2 ms", "parameters": 4e6},
        "gradients": {"codec": "bf16", "every": every, "outer": {"codec": "bf16", "algorithm": "ring"}},
    }
    return scenario("gpipe", 1, 1, ranks, **merged(base, sections))


@pytest.mark.parametrize(("every", "m", "latency"), [(2, 2, 0), (10, 4, 0), (500, 2, 0), (10, 8, 20), (3, 8, 1)])
def test_the_cost_model_of_scaling_laws_for_diloco(every, m, latency):
    """Appendix A of arXiv 2503.09799, of T steps: T (2N/W₀ (1 − M/R) + ε₀) + T/H (2N/W₁ (1 − 1/R) + ε₁).

    ε₁ are the latencies of 2 (R − 1) hops, all of which are between sites if each rank is a site.
    """
    n, w0, w1, r = 8 * 10**6, 8 * 10**9, 10**9, 8
    sites = [{"nodes": [*range(site * r // m, (site + 1) * r // m)]} for site in range(m)]
    cluster = {"sites": sites, "wan": {"bandwidth": "1 GB/s", "latency": f"{latency} ms"}}
    found = run(seldom(every=every, cluster=cluster))
    compute, inner = 3 * S // 1000, 2 * n * Fraction(r - m, r) / w0
    outer = 2 * n * Fraction(r - 1, r) / w1 + 2 * (r - 1) * Fraction(latency, 1000)
    assert found.outer is not None
    assert found.duration == compute + inner * S
    assert found.outer.duration == every * (compute + inner * S) + outer * S


def test_a_run_without_details_simulates_no_exchange(monkeypatch):
    """Proposals ask for the end of inner steps only: an exchange between sites may take most of the time."""
    detailed = run(seldom())
    monkeypatch.delattr(CollectiveTimes, "of")
    assert (quiet := run(seldom(), detailed=False)).outer is None
    assert (quiet.duration, quiet.peak_memory) == (detailed.duration, detailed.peak_memory)


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("algorithm", ["ring", "auto"])
def test_without_parameters_nothing_is_exchanged(algorithm, fragments):
    outer = {"algorithm": algorithm, "fragments": fragments}
    done = run(seldom(workload={"parameters": 0}, gradients={"outer": outer}))
    assert (done.duration, done.outer.duration) == (3 * S // 1000, 10 * 3 * S // 1000)


@pytest.mark.parametrize("sites", thinned([2, 3, 4], slow=[4]))
@pytest.mark.parametrize("each", [1, 2, 3])
def test_the_default_exchange_is_the_quickest_and_meets_its_bound(sites, each):
    """S bytes must leave every site, over all of its links: S / ((k − 1) W₁) and a latency, between k sites."""
    nodes = [{"nodes": [*range(site * each, (site + 1) * each)]} for site in range(sites)]
    cluster = {"sites": nodes, "wan": {"bandwidth": "100 MB/s", "latency": "1 ms"}}

    def exchange(algorithm, fragments=1):
        outer = {"algorithm": algorithm, "fragments": fragments}
        return run(seldom(sites * each, cluster=cluster, gradients={"outer": outer})).outer.facts()

    usual = exchange("auto")
    named = ["ring", "halving-doubling", "recursive-doubling", "parameter-server", "hierarchical"]
    if sites * each not in (2, 4, 8):
        named.remove("recursive-doubling")
    for other in map(exchange, named):
        assert usual["exchange_s"] <= other["exchange_s"]
        assert usual["exchange_bound_s"] == other["exchange_bound_s"] <= other["exchange_s"]
    assert usual["exchange_bound_s"] == pytest.approx(0.08 / (sites - 1) + 0.001, rel=1e-6)
    assert usual["algorithm"] != "auto"
    assert exchange("auto", 2)["exchange_bound_s"] == pytest.approx(0.08 / (sites - 1) + 0.002, rel=1e-6)


def test_exchanges_within_a_site_have_no_bound_of_their_own():
    assert run(seldom(cluster={})).outer.facts()["exchange_bound_s"] == 0


def test_exchanges_too_large_to_try_go_around_a_ring(monkeypatch):
    def refused(*_, **__):
        raise TooManyMessagesError("too many")

    monkeypatch.setattr(CollectiveTimes, "fastest", refused)
    assert run(seldom(gradients={"outer": {"algorithm": "auto"}})).outer.facts()["algorithm"] == "ring"


def test_two_sites_exchange_in_the_time_of_their_link():
    """Llama 3.1 8B, four replicas at each end of 10 Gb/s: 8.03e9 parameters in fp32 take 25.7 s, a ring 7/4 of it."""
    values = {
        "model": "llama3.1-8b", "schedule": {"kind": "1f1b", "microbatches": 8}, "gradients": {"every": 100},
        "cluster": {"gpu": "h100", "nodes": 8, "sites": [{"nodes": "0-3"}, {"nodes": "4-7"}],
                    "wan": {"bandwidth": "10 Gb/s", "latency": 0}},
        "parallel": {"pipeline": 8, "data": 8, "order": ["tensor", "pipeline", "data"]},
    }  # fmt: skip
    result = simulate(values)
    facts = result.summary["outer"]
    assert facts["exchange_bound_s"] == pytest.approx(8.03e9 * 4 / 1.25e9, rel=1e-3)
    assert facts["exchange_bound_s"] < facts["exchange_s"] < 1.01 * facts["exchange_bound_s"]
    text = render(result, width=200)
    assert "at least" in text and f"by {facts['algorithm']}" in text


def test_data_parallelism_in_the_same_cost_model():
    """T (2N/W₁ (1 − 1/R) + ε₁): every step crosses the link between sites."""
    n, w1, r = 8 * 10**6, 10**9, 8
    values = {"cluster": {**NODES, "nodes": r, **TWO}, "gradients": {"codec": "bf16"}}
    work = {"forward": "1 ms", "backward": "2 ms", "parameters": 4e6}
    plain = run(scenario("gpipe", 1, 1, r, workload=work, **values))
    assert plain.duration == 3 * S // 1000 + 2 * n * Fraction(r - 1, r) / w1 * S


@pytest.mark.parametrize(("exchange", "percent"), [(103, 95.7), (382, 85.6), (469, 83.0)])
def test_the_utilisation_of_intellect_1(exchange, percent):
    """38 minutes of inner steps and exchanges as measured (Jaghouar et al., arXiv 2412.01152), here given."""
    period = OuterPeriod(14, 112, 100, Outer(), [38 * 60 * S // 100], [Outcome(exchange * S, 0, 0, 0)])
    assert 100 * period.facts()["utilisation"] == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize(
    ("overlap", "fragments", "exchange", "waits"),
    [(0, 1, 5, 5), (4, 1, 5, 1), (5, 1, 5, 0), (6, 1, 5, 0), (0, 5, 5, 5), (1, 5, 5, 0), (1, 5, 10, 5), (9, 2, 16, 6)],
)
def test_an_exchange_is_waited_for_where_it_is_due(overlap, fragments, exchange, waits):
    """Steps of a second, ten between exchanges; two fragments of 8 s each do not fit beside ten steps."""
    parts = [Outcome(exchange * S // fragments, 0, 0, 0)] * fragments
    period = OuterPeriod(2, 8, 10, Outer(overlap=overlap, fragments=fragments), [S], parts)
    assert period.duration == (10 + waits) * S


STREAMING = {  # hours without a limit, with data parallelism over 1 Gbit/s, with Streaming DiLoCo over 1 Gbit/s
    25: (0.67, 109, 0.88), 100: (2.7, 438, 3.5), 250: (6.75, 1097, 8.75),
}  # fmt: skip


@pytest.mark.parametrize(("compute", "plain", "streaming"), STREAMING.values(), ids=map(str, STREAMING))
def test_hours_over_a_gigabit_as_published_for_streaming_diloco(compute, plain, streaming):
    """Table 1 of arXiv 2501.18512, by tokens in billions: a model of 10⁹ parameters on two replicas.

    Its simulator's inputs are those of the appendix: steps of 0.1 s, H = 100, fragments of 3 of 24 layers and the
    embedding, one every 11 steps, awaited a step later. Gradients are in bf16, outer ones in fp4: 400 times the bits.
    """
    cluster = {**TWO, "sites": [{"nodes": [0]}, {"nodes": [1]}], "wan": {"bandwidth": "1 Gb/s", "latency": 0}}
    work = {"forward": "40 ms", "backward": "60 ms", "parameters": 1e9}
    outer = {"codec": "fp4", "fragments": 9, "overlap": 1}
    seldom_talks = run(seldom(2, 99, cluster, workload=work, gradients={"outer": outer}))
    often = scenario("gpipe", 1, 1, 2, cluster={**NODES, "nodes": 2, **cluster}, workload=work,
                     gradients={"codec": "bf16"})  # fmt: skip
    data_parallel, found = run(often), seldom_talks.outer
    steps = compute * 3600 / 0.1
    assert steps * data_parallel.duration / S / 3600 == pytest.approx(plain, rel=0.015)
    assert steps * found.step / S / 3600 == pytest.approx(streaming, rel=0.015)
    bits = data_parallel.bytes_gradients * 100 / found.facts()["bytes_exchange"]
    assert bits == pytest.approx(400, rel=1e-6)


def stages_across_nodes(overlap, fragments=1, sharing="fair"):
    """Two groups of two stages on two nodes: an exchange of 230 ms on the link between sites, steps of 82 ms alone."""
    sites = {"sites": [{"nodes": "0-1"}, {"nodes": "2-3"}], "wan": TWO["wan"], "sharing": sharing}
    work = {"forward": "10 ms", "backward": "30 ms", "activation": 8e6, "parameters": 57.5e6}
    outer = {"codec": "bf16", "overlap": overlap, "fragments": fragments}
    gradients = {"codec": "bf16", "every": 10, "outer": outer}
    order = {"order": ["tensor", "pipeline", "data"]}
    return scenario("gpipe", 2, 1, 2, cluster={**NODES, "nodes": 4, **sites}, workload=work, parallel=order,
                    gradients=gradients)  # fmt: skip


def test_an_exchange_slows_the_messages_of_the_steps_beside_it():
    """Fairly, both stages' exchanges have half of the link between sites, and messages the rest of an adapter.

    Two messages of 8 MB take 8 MB / 7.5 GB/s instead of 1 ms in the three steps that 230 ms overlap.
    """
    found = run(stages_across_nodes(overlap=3))
    slower = 2 * (Fraction(8, 7500) - Fraction(1, 1000)) * S
    assert found.duration == 82 * S // 1000 and found.outer.exchanges[0].duration == 230 * S // 1000
    assert found.outer.duration == pytest.approx(820 * S // 1000 + 3 * slower, abs=10)
    facts = found.outer.facts()
    assert facts["slowed_s"] == facts["exposed_s"] and facts["contention"] == "simulated"


def test_what_an_exchange_cannot_disturb_is_not_simulated_with_it():
    assert run(stages_across_nodes(overlap=0)).outer.facts()["contention"] == "none"
    assert run(seldom(gradients={"outer": {"overlap": 2}}, cluster={})).outer.facts()["contention"] == "none"
    late = run(stages_across_nodes(overlap=4, fragments=3)).outer
    assert late.facts()["contention"] == "assumed none" and late.duration >= 10 * 82 * S // 1000
    parts = run(stages_across_nodes(overlap=3, fragments=3)).outer
    assert len(parts.overlapped) == 3 and late.duration - 820 * S // 1000 < parts.facts()["slowed_s"] * S


def test_fragments_send_the_same_bytes():
    whole, parts = (run(seldom(gradients={"outer": {"fragments": count}})).outer for count in (1, 4))
    assert whole.facts()["bytes_exchange"] == parts.facts()["bytes_exchange"] == 2 * 7 * 8 * 10**6
    assert parts.facts()["messages_exchange"] == 4 * whole.facts()["messages_exchange"]
    assert len(parts.exchanges) == 4


def test_an_inner_step_is_that_of_a_group_alone():
    one = seldom()
    facts = summary(run(one))
    group = scenario(
        "gpipe", 1, 1, 4, cluster={**NODES, "nodes": 8}, gradients={"codec": "bf16"},
        workload={"forward": "1 ms", "backward": "2 ms", "parameters": 4e6},
    )  # fmt: skip
    assert facts["step_time_s"] == summary(run(group))["step_time_s"]
    assert (facts["ranks"], facts["outer"]["ranks"], facts["outer"]["groups"]) == (4, 8, 2)
    assert [inner_of(one, 1).cluster.node_of(rank) for rank in range(4)] == [4, 5, 6, 7]


@pytest.mark.parametrize("sections", [{"steps": 2}, {"jitter": {"distribution": "lognormal", "sigma": 0.1}}])
def test_all_groups_together_take_the_step_of_the_slowest(sections):
    one = seldom(**sections)
    whole = run(one, fabric=fabric_of(one))
    assert whole.duration == run(one).duration
    assert {channel.link for channel in whole.timeline.channels if "wan" in channel.link} == set()


@pytest.mark.parametrize("cluster", [TWO, {"sites": []}])
def test_one_replica_stands_for_groups_that_learn_apart(cluster):
    """What explains a run simulates all groups, each of which reduces its own gradients."""
    one = seldom(cluster=cluster, gradients={"outer": {"groups": 2}})
    folded, whole = traced_run(one, fold_from=2), run(one, fabric=fabric_of(one))
    assert folded.ranks == [0] and len(whole.ranks) == 8
    assert (folded.duration, folded.messages) == (whole.duration, whole.messages)
    assert events_of_all(folded) == whole.events


def test_without_sites_every_replica_is_a_group():
    facts = summary(run(seldom(cluster={})))
    assert facts["outer"]["groups"] == 8 and facts["bytes_gradients"] == 0


def test_the_slowest_site_decides():
    slow = [{"node": 6, "factor": "0.5"}]
    assert run(seldom(slow=slow)).duration == run(seldom()).duration + 3 * S // 1000


def test_routes_between_sites_share_one_link():
    fabric = fabric_of(seldom(cluster={"wan": {"bandwidth": "1 GB/s", "latency": "7 ms"}, "sites": TWO["sites"]}))
    assert fabric.route(0, 3).links == ("node0/nic0/out", "node3/nic0/in")
    assert fabric.route(1, 5).links == ("node1/nic0/out", "wan/site0-site1", "node5/nic0/in")
    assert fabric.route(5, 1).links[1] == "wan/site1-site0"
    assert fabric.route(1, 5).latency == 7 * 10**9


def test_weeks_are_made_of_steps_with_their_exchanges():
    faults = {"horizon": "2 d", "classes": [{"what": "node", "mtbf": "900 h"}], "detect": "60 s",
              "restart": {"time": "5 min"}, "checkpoint": {"every": "30 min", "cost": "2 s"}}  # fmt: skip
    values = {"cluster": {**NODES, "nodes": 8, **TWO}, "parallel": {"data": 8}, "schedule": {"microbatches": 1},
              "workload": {"forward": "1 s", "backward": "2 s", "parameters": 4e9},
              "gradients": {"codec": "bf16", "every": 10, "outer": {"codec": "bf16"}}, "faults": faults}  # fmt: skip
    weeks = goodput(load(values))
    period = run(load(values)).outer
    assert weeks.summary["healthy_step_s"] == pytest.approx(period.step / S, rel=1e-9)
    assert period.duration > period.computing


@from_table
def test_what_does_not_fit_is_said_in_one_line(changes, message):
    with pytest.raises(ScenarioError) as refused:
        seldom(**{**changes, "cluster": merged(TWO, changes.get("cluster", {}))})
    assert message in str(refused.value) and len(refused.value.problems) == 1
