"""Messages of higher priority first: at message boundaries, and preempting where links are shared."""

from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from support import jobs
from support.campaigns import TIMES, thinned
from support.messages import GB, MS, carry, chain
from support.scenarios import scenario

from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.errors import ScenarioError
from hybrid_des.scenario.loading import load
from hybrid_des.scenario.sections.cluster import Priorities
from hybrid_des.shortcuts.run import run

LINK = chain([Fraction(10 * GB)], [0])  # 100 MB take 10 ms
MB = 10**6


def milliseconds(times):
    return [time / MS for time in times]


@pytest.mark.parametrize(
    ("sharing", "ends"),
    [
        ("fifo", [10, 20, 30, 35]),
        ("priority", [10, 25, 35, 15]),  # the first one is not interrupted
        ("fair", [35, 35, 35, 21]),  # the urgent 50 MB have a quarter of the link
        ("priority-fair", [35, 35, 35, 6]),
    ],
)
def test_an_urgent_message_passes_those_that_wait(sharing, ends):
    """Three messages of 100 MB, and an urgent one of 50 MB 1 ms later."""
    sends = [(0, 0, 1, 100 * MB), (0, 0, 1, 100 * MB), (0, 0, 1, 100 * MB), (MS, 0, 1, 50 * MB)]
    arrived, _ = carry(LINK, sends, sharing, urgent={3})
    assert milliseconds(arrived) == ends


def test_those_that_arrive_together_are_chosen_by_priority():
    sends = [(0, 0, 1, 10 * MB), (0, 0, 1, 10 * MB), (0, 0, 1, 10 * MB)]
    assert milliseconds(carry(LINK, sends, "priority", urgent={2})[0]) == [2, 3, 1]
    assert milliseconds(carry(LINK, sends, "priority")[0]) == [1, 2, 3]
    assert milliseconds(carry(LINK, [*sends, (0, "0", 1, 10 * MB)], "priority", urgent={1})[0]) == [2, 1, 3, 4]


def test_a_preempted_message_goes_on_where_it_was():
    sends = [(0, 0, 1, 100 * MB), (3 * MS, 0, 1, 50 * MB), (20 * MS, 0, 1, 10 * MB)]
    assert milliseconds(carry(LINK, sends, "priority-fair", urgent={1})[0]) == [15, 8, 21]


def random_sends(rng, count=40):
    """Messages at times that are all different, so that no two reach a link together."""
    times = rng.sample(range(300 * MS), count)
    return [(at, 0, 1, rng.randrange(1, 30 * MB)) for at in sorted(times)]


@pytest.mark.parametrize("number", range(10 * TIMES))
def test_without_ties_one_priority_is_the_order_of_arrival(number):
    """The queue itself, not `fifo` in its place."""
    rng = Random(number)
    hops = rng.randint(1, 3)
    fabric = chain([Fraction(10 * GB)] * hops, [rng.randrange(MS) for _ in range(hops)])
    sends = random_sends(rng)
    plain, queued = carry(fabric, sends, "fifo"), carry(fabric, sends, "priority")
    assert plain[0] == queued[0]
    assert sorted(plain[1]) == sorted(queued[1])


@pytest.mark.parametrize("number", range(10 * TIMES))
def test_no_message_starts_while_a_more_urgent_one_waits(number):
    rng = Random(number)
    sends = random_sends(rng)
    urgent = {message for message in range(len(sends)) if rng.random() < 0.3}
    arrived, rows = carry(LINK, sends, "priority", urgent=urgent)
    assert len(rows) == len(sends) == len(arrived)
    rows.sort(key=lambda row: row[3])
    assert all(end <= start for (*_, end), (*_, start, _) in pairwise(rows))
    for _, message, _, start, _ in rows:
        behind = [other for _, other, asked, begins, _ in rows if asked < start < begins]
        assert message in urgent or not urgent & set(behind)


@pytest.mark.parametrize(("sharing", "plain"), [("priority", "fifo"), ("priority-fair", "fair")])
@pytest.mark.parametrize(
    "priorities", thinned([{}, {"pipeline": 3}, {"pipeline": 1, "gradients": 1}], slow=[{"pipeline": 3}])
)
def test_equal_priorities_are_none_to_the_picosecond(sharing, plain, priorities):
    """Also in the number of events: what is not used costs nothing."""
    pair = [
        run(scenario(
            p=4, m=4, d=4, cluster={"nodes": 4, "gpus_per_node": 4, "infiniband": {"nics_per_node": 1}, **cluster},
            workload={"parameters": 10**9, "activation": "100 MB"}, gradients={"overlap": True, "bucket": "50 MB"},
        ))
        for cluster in ({"sharing": sharing, "priorities": priorities}, {"sharing": plain})
    ]  # fmt: skip
    assert jobs.differences(*pair) == []
    assert pair[0].events == pair[1].events


@pytest.mark.parametrize("number", thinned(range(8 * TIMES), slow=[7]))
def test_priorities_change_the_order_and_nothing_else(number):
    rng = Random(number)
    cluster = {**jobs.cluster_values(rng), "sharing": "fifo", "priorities": {}}
    one = jobs.drawn(rng, cluster)
    sharing = rng.choice(("priority", "priority-fair"))
    levels = {"pipeline": rng.randrange(3), "gradients": rng.randrange(3)}
    urgent = one.cluster.model_copy(update={"sharing": sharing, "priorities": Priorities(**levels)})
    usual, ordered = run(one), run(one.model_copy(update={"cluster": urgent}))
    assert jobs.bytes_per_link(usual) == jobs.bytes_per_link(ordered)
    assert usual.messages == ordered.messages
    if sharing == "priority":
        assert all(end <= start for each in jobs.services(ordered).values() for (_, end), (start, _) in pairwise(each))


def test_priorities_need_a_model_that_reads_them():
    with pytest.raises(ScenarioError, match=r"cluster\.priorities: needs sharing: priority or priority-fair"):
        scenario(cluster={"priorities": {"pipeline": 2}})


def test_pipeline_messages_first_shorten_a_contended_step(scenarios):
    urgent = ["cluster.sharing=priority", "cluster.priorities={pipeline: 2, gradients: 1}"]
    file = scenarios / "contention_slower.yaml"
    ends = {"fifo": run(load(file)), "urgent": run(load(file, urgent))}
    assert ends["urgent"].duration < 0.93 * ends["fifo"].duration
    assert waited_by_pipeline(ends["urgent"]) < waited_by_pipeline(ends["fifo"]) / 2


def waited_by_pipeline(one):
    """Picoseconds that pipeline messages waited for links."""
    rows = one.timeline.messages
    of_pipeline = np.array([channel.purpose is not REDUCTION for channel in one.timeline.channels])
    return int((rows["start"] - rows["asked"])[of_pipeline[rows["channel"]]].sum())


@pytest.mark.parametrize("sharing", ["priority", "priority-fair"])
def test_the_causes_of_a_run_explain_every_time(scenarios, sharing):
    changes = [f"cluster.sharing={sharing}", "cluster.priorities={pipeline: 2, gradients: 1}"]
    graph = graph_of(traced_run(load(scenarios / "contention_slower.yaml", changes)))
    assert np.array_equal(graph.recomputed(), graph.time)
