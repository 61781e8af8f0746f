"""Several jobs on one fabric: alone where they share no link, and in each other's way where they do."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from support import jobs, recounted_links, scenarios
from support.campaigns import TIMES, thinned

from hybrid_des.cluster.fabric import placed
from hybrid_des.errors import UsageError
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.jobs import links_of
from hybrid_des.simulation.run import JobRequest, run_jobs


@pytest.mark.parametrize("number", thinned(range(12 * TIMES), slow=[7, 9, 10]))
def test_jobs_on_nodes_of_their_own_run_as_if_alone(number):
    pair = jobs.on_own_nodes(Random(number))
    assert not jobs.shared_links(jobs.fabric_of_jobs(pair), *(one.cluster.placement for one in pair))
    alone, together = [run(one) for one in pair], jobs.together(pair)
    assert [jobs.differences(*both) for both in zip(alone, together, strict=True)] == [[], []]
    assert jobs.bytes_per_link(*together) == jobs.bytes_per_link(*alone)


@pytest.mark.parametrize("number", thinned(range(6 * TIMES), slow=[4]))
def test_jobs_that_share_links_send_the_same_bytes(number):
    pair = jobs.on_shared_nodes(Random(number))
    alone, together = [run(one) for one in pair], jobs.together(pair)
    assert jobs.bytes_per_link(*together) == jobs.bytes_per_link(*alone)
    sharing = pair[0].cluster.sharing
    if "fair" not in sharing:
        for each in jobs.services(*together).values():
            assert all(end <= start for (_, end), (start, _) in pairwise(each))
    assert recounted_links.wrong(together, jobs.fabric_of_jobs(pair).links, sharing) == []


def pair_on_one_adapter(sharing="fifo"):
    """Two equal jobs of two replicas, on GPUs 0 and 2 and on 1 and 3 of two nodes with one adapter each."""
    one = scenarios.scenario(
        p=1, m=1, d=2,
        cluster={"nodes": 2, "gpus_per_node": 2, "sharing": sharing,
                 "infiniband": {"nics_per_node": 1, "bandwidth": "1 GB/s", "latency": 0}},
        workload={"forward": "1 s", "backward": "2 s", "parameters": 500_000_000},
        gradients={"algorithm": "ring", "codec": "fp32"},
    )  # fmt: skip
    return one.placed([0, 2]), one.placed([1, 3])


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_two_equal_jobs_take_twice_as_long_on_one_adapter(sharing):
    pair = pair_on_one_adapter(sharing)
    alone, (first, second) = run(pair[0]), jobs.together(pair)
    reduced = alone.duration - 3 * 10**12
    assert reduced == 2 * 10**12
    assert max(first.duration, second.duration) == 3 * 10**12 + 2 * reduced
    assert jobs.shared_links(jobs.fabric_of_jobs(pair), [0, 2], [1, 3]) == {
        "node0/nic0/out", "node0/nic0/in", "node1/nic0/out", "node1/nic0/in",
    }  # fmt: skip


def test_a_rank_has_the_speed_and_slowness_of_its_gpu():
    nodes = [{"count": 1}, {"count": 1, "speed": 0.5}, {"count": 1}]
    slow = [{"gpu": 5, "factor": 0.25}]
    whole = scenarios.scenario(p=1, m=1, d=2, cluster={"nodes": nodes, "gpus_per_node": 2}, slow=slow)
    for gpus, ms in (([0, 1], [3, 3]), ([3, 0], [6, 3]), ([4, 5], [3, 12]), ([5, 2], [12, 6])):
        job = whole.placed(gpus)
        ops = run(job).timeline.ops
        busy = np.bincount(ops["rank"], (ops["end"] - ops["start"]) / 10**9).tolist()
        assert busy == ms
        assert [job.cluster.node_of(rank) for rank in (0, 1)] == [gpu // 2 for gpu in gpus]


def test_a_view_of_a_fabric_has_its_gpus_routes():
    fabric = fabric_of(scenarios.scenario(p=4, d=2, cluster={"nodes": 4, "gpus_per_node": 2}))
    view = placed(fabric, [6, 7, 2, 3])
    assert (view.gpus, list(view.node_of), view.point(2)) == (4, [3, 3, 1, 1], "gpu2")
    assert view.route(0, 3) == fabric.route(6, 3)
    assert (view.blocks.size, view.blocks.of("node3/nic0/in"), view.blocks.of("node1/nic0/in")) == (2, 0, 1)
    assert view.blocks.of("node0/nic0/in") is None
    assert placed(fabric, [7, 6, 2, 3]).blocks is None
    assert placed(fabric, [6, 7, 2]).blocks is None


def test_impossible_placements_are_refused():
    one = scenarios.scenario(p=2, cluster={"nodes": 2, "gpus_per_node": 2})
    with pytest.raises(UsageError, match="2 ranks need one GPU each, found 1"):
        one.placed([1])
    with pytest.raises(UsageError, match="expected different GPUs out of 0 … 3"):
        one.placed([1, 1])
    with pytest.raises(UsageError, match="expected different GPUs out of 0 … 3"):
        one.placed([1, 4])
    with pytest.raises(UsageError, match="GPU 1 is given to two jobs"):
        run_jobs([JobRequest(one.placed([0, 1])), JobRequest(one.placed([1, 2]))], links_of(one, fabric_of(one)))
