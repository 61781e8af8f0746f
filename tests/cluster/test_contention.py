"""Traffic that meets: pipeline messages and gradient reductions on one NIC, in figures worked out by hand."""

import pytest
from support import scenarios

from hybrid_des.analysis.metrics import summary
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run

MB, MS = 10**6, 10**9  # picoseconds


def scenario(p, d, **sections):
    """One micro-batch that takes no time to compute."""
    idle = {"workload": {"forward": 0, "backward": 0}}
    return scenarios.scenario("gpipe", p, 1, d, **scenarios.merged(idle, sections))


def nics(bandwidth, gpus=1, each=1, nodes=4, **more):
    """Nodes whose NICs have no latency, and NVLink that takes no time."""
    network = {"bandwidth": bandwidth, "latency": 0, "nics_per_node": each}
    free = {"bandwidth": "inf", "latency": 0}
    return {"nodes": nodes, "gpus_per_node": gpus, "infiniband": network, "nvlink": free, **more}


def messages(result, kind=None, hop=None):
    """Rows of messages as (sender, receiver, asked, start, end), in milliseconds, in the order of their heads."""
    table, channels = result.timeline.messages, result.timeline.channels
    rows = []
    for number, *times in zip(*(table[name].tolist() for name in ("channel", "asked", "start", "end")), strict=True):
        channel = channels[number]
        if kind in (None, channel.kind) and hop in (None, channel.hop):
            rows.append((channel.sender, channel.receiver, *(time / MS for time in times)))
    return rows


@pytest.mark.parametrize(("gpus", "each", "milliseconds"), [(1, 1, 100), (2, 2, 100), (2, 1, 200), (8, 2, 400)])
def test_gpus_that_share_a_nic_wait_for_each_other(gpus, each, milliseconds):
    """Two stages on two nodes, a replica for each GPU of a node: everybody's activation leaves at once."""
    one = scenario(2, gpus, workload={"activation": "1 GB"}, cluster=nics("10 GB/s", gpus, each, nodes=2))
    ends = [end for *_, end in messages(run(one), "activation", hop=1)]
    turns = gpus // each  # served one after another, each in 100 ms
    assert ends == [100 * turn for turn in range(1, turns + 1) for _ in range(each)]
    assert max(ends) == milliseconds


@pytest.mark.parametrize(("replicas", "milliseconds"), [(4, 100), (8, 200)])
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_the_spine_of_the_contract_in_a_simulation(replicas, milliseconds, sharing):
    """NICs of 10 GB/s, 1 GB each at once, through one 40 GB/s way up to the spine."""
    options = {"topology": "leaf-spine", "oversubscription": replicas / 4, "sharing": sharing}
    one = scenario(
        2, replicas, workload={"activation": "1 GB"}, cluster=nics("10 GB/s", replicas, replicas, nodes=2, **options)
    )
    ends = [end for *_, end in messages(run(one), "activation", hop=3)]
    assert max(ends) == milliseconds
    if replicas == 4 or sharing == "fair":
        assert set(ends) == {milliseconds}


@pytest.mark.parametrize(("factor", "milliseconds"), [(1, 120), (2, 240), (4, 480)])
def test_oversubscription_stretches_a_ring_across_leaves(factor, milliseconds):
    """Four replicas on four leaves, two GPUs with a NIC each a leaf: both stages' rings cross the spine at once."""
    cluster = nics("10 GB/s", 2, 2, topology="leaf-spine", oversubscription=factor)
    order = ("tensor", "pipeline", "data")
    one = scenario(2, 4, parallel={"order": order}, cluster=cluster, workload={"parameters": 200 * MB})
    # 2·3 steps of 200 MB; with factor 1 a way up carries both GPUs' pieces at their own speed
    assert run(one).duration == milliseconds * MS


def test_rails_carry_a_ring_of_like_gpus_at_full_speed():
    cluster = nics("10 GB/s", 2, 2, topology="rails", cross_rail="spine", oversubscription=4)
    order = ("tensor", "pipeline", "data")
    one = scenario(2, 4, parallel={"order": order}, cluster=cluster, workload={"parameters": 200 * MB})
    assert run(one).duration == 120 * MS


@pytest.mark.parametrize("topology", ["ring", "nodes", "mesh"])
@pytest.mark.parametrize(("ranks", "milliseconds"), [(8, 70.014), (64, 78.876)])
def test_a_ring_takes_the_same_time_on_any_wiring(topology, ranks, milliseconds):
    """1 GiB a rank, 25 GiB/s, 1 µs: ASTRA-sim's analytical backend gives these on a physical ring (and 140 behind a
    switch that stores and forwards)."""
    link = {"bandwidth": "25 GiB/s", "latency": "1 us"}
    cluster = {"topology": topology, "gpus_per_node": ranks, "nvlink": link}
    one = scenario(1, ranks, cluster=cluster, workload={"parameters": 2**28})
    assert run(one).duration == milliseconds * MS


# One GPU and one NIC of 1 MiB/ms a node, two stages, two replicas, one micro-batch. Activations are ⅛ MiB and a stage's
# gradients 2 MiB in two buckets, of which the first leaves in the middle of the backward (`ddp`): a ring of two steps
# of ½ ms. All times in ms.
def shared(overlap, backward):
    return scenario(
        2,
        2,
        cluster=nics(2**20 * 1000),
        workload={"forward": "1 ms", "backward": f"{backward} ms", "activation": "0.125 MiB", "parameters": 2**19},
        gradients={"overlap": overlap, "bucket": "1 MiB", "bucket_rule": "ddp"},
    )


def test_a_ring_ahead_of_a_gradient_costs_more_than_hidden():
    after = run(shared(False, 0.25))
    # rank 2 (stage 1): F 1.125–2.125, B 2.125–2.375, its gradient to rank 0 goes first, then the ring
    assert messages(after, "gradient", hop=0)[0] == (2, 0, 2.375, 2.375, 2.5)
    assert next(row[3:] for row in messages(after, "ring", hop=0) if row[0] == 2) == (2.5, 3.0)
    assert after.duration == 4.75 * MS  # stage 0's B 2.5–2.75, then its 2 MiB

    overlapped = run(shared(True, 0.25))
    # the first bucket leaves at 2.25; its piece holds the gradient up until 2.75, which holds up the next piece
    assert messages(overlapped, "gradient", hop=0)[0] == (2, 0, 2.375, 2.75, 2.875)
    ring = [row[2:] for row in messages(overlapped, "ring", hop=0) if row[0] == 2]
    assert ring[:2] == [(2.25, 2.25, 2.75), (2.75, 2.875, 3.375)]
    # stage 0 begins its B 0.375 later, and is 0.125 of its reduction ahead: it began in the middle of B
    assert overlapped.duration == (4.75 + 0.375 - 0.125) * MS
    assert summary(overlapped)["bytes_gradients"] == summary(after)["bytes_gradients"]


def test_a_ring_that_ends_before_the_gradient_costs_nothing():
    after, overlapped = (run(shared(overlap, 4)) for overlap in (False, True))
    assert after.duration == 12.25 * MS  # F 1.125–2.125, B –6.125, message –6.25, stage 0's B –10.25, reduction
    assert messages(overlapped, "gradient", hop=0)[0] == (2, 0, 6.125, 6.125, 6.25)
    assert overlapped.duration == 11.25 * MS  # one of the two buckets of 1 ms is hidden behind the second half of B


def test_with_separate_links_pipeline_and_ring_do_not_meet():
    """The same two stages, wired link by link, so that pipeline and ring have links of their own."""
    points = [("gpu0", "gpu2"), ("gpu1", "gpu3"), ("gpu0", "gpu1"), ("gpu2", "gpu3")]
    links = [{"between": list(ends), "bandwidth": 2**20 * 1000} for ends in points]
    cluster = {"gpus_per_node": 4, "topology": "links", "links": links}
    sections = {
        "workload": {"forward": "1 ms", "backward": "0.25 ms", "activation": "0.125 MiB", "parameters": 2**19},
        "gradients": {"bucket": "1 MiB", "bucket_rule": "ddp"},
    }
    durations = {}
    for overlap in (False, True):
        sections["gradients"]["overlap"] = overlap
        one = scenario(2, 2, cluster=cluster, **sections)
        durations[overlap] = run(one).duration
    assert durations == {False: 4.75 * MS, True: 4.625 * MS}  # ahead by half a backward, so no rank waits


@pytest.mark.parametrize(
    ("name", "overlap", "milliseconds"),
    [("slower", False, 352), ("slower", True, 377.8), ("faster", False, 352), ("faster", True, 336.0)],
)
def test_overlap_on_shared_nics_may_be_slower_or_faster(scenarios, name, overlap, milliseconds):
    """Three hops of 12 ms lost and half a backward won; hardly anything lost and nearly a whole backward won."""
    one = load(scenarios / f"contention_{name}.yaml", [f"gradients.overlap={str(overlap).lower()}", "record=none"])
    assert run(one).duration / MS == pytest.approx(milliseconds, abs=0.05)
