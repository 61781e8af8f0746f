"""Gradients around one ring per adapter (`gradients.channels`): laws, counts, folds, bounds and what is said."""

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from support import scenarios
from support.campaigns import TIMES
from support.foldings import both_of, differences, scenario_values

from hybrid_des import collectives, simulate
from hybrid_des.analysis.explanation import explain
from hybrid_des.cluster.rings import channels
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.planning.planner import parts_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario import sizes
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.plan_search.bound import least_step
from hybrid_des.studies.verification import verify

US = 10**6  # picoseconds
FP32 = codecs.find("fp32").build()
A100S = {"gpu": "a100-80gb", "infiniband": {"bandwidth": "200 Gb/s", "nics_per_node": 8}}
RINGS = ("ring", "ring-reduce-scatter", "ring-all-gather")
ALPHA, SENDS = 5, 4  # µs: latency of an adapter, and time of a shard on it


def fabric(nodes, gpus, nics=8, **cluster):
    port = {"bandwidth": "25 GB/s", "latency": f"{ALPHA} us", "nics_per_node": nics}
    sections = {"nodes": nodes, "gpus_per_node": gpus, "infiniband": port, **cluster}
    return fabric_of(scenarios.scenario("1f1b", 1, 1, nodes * gpus, cluster=sections))


def timed(wiring, name, elements, **options):
    ranks = range(wiring.gpus)
    return measure(wiring, name, [ranks], lambda group, place: Buffer(elements, FP32), options=options)


@pytest.mark.parametrize(("nodes", "gpus", "nics"), [(2, 8, 8), (4, 2, 2), (3, 4, 2), (2, 8, 1), (8, 1, 1)])
@pytest.mark.parametrize("name", RINGS)
def test_c_channels_take_the_time_of_c_adapters(name, nodes, gpus, nics):
    """2(n−1)(latency + S/(c·n·bandwidth)), where a hop within a node takes as long as one between nodes."""
    nvlink = {"bandwidth": "inf", "latency": f"{ALPHA + SENDS} us"}
    wiring, members, bandwidth = fabric(nodes, gpus, nics, nvlink=nvlink), nodes * gpus, 25 * 10**9
    elements = nics * members * SENDS * 25_000 // 4
    phases = 2 if name == "ring" else 1
    size = Fraction(4 * elements * 10**12, nics * members * bandwidth)
    found = timed(wiring, name, elements)
    assert found.duration == phases * (members - 1) * (ALPHA * US + size)
    assert found.messages == phases * (members - 1) * members * nics
    assert found.bytes == phases * (members - 1) * 4 * elements


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("topology", ["nodes", "leaf-spine", "rails"])
def test_channels_are_no_slower_than_their_adapters(topology, sharing):
    """Quicker hops within a node shorten the way around, but every shard passes its adapter: S/(c·bandwidth)."""
    nvlink = {"bandwidth": "300 GB/s", "latency": f"{ALPHA} us"}
    wiring = fabric(2, 8, topology=topology, sharing=sharing, nvlink=nvlink)
    elements = 8 * 16 * SENDS * 25_000 // 4
    passes = 2 * 15 * SENDS * US
    assert passes < timed(wiring, "ring", elements).duration <= passes + 2 * 15 * 3 * ALPHA * US


def test_one_channel_is_the_ring_in_the_order_of_ranks():
    port = {"bandwidth": "25 GB/s", "latency": f"{ALPHA} us"}
    wiring = fabric(4, 4, nvlink=port)
    found = timed(wiring, "ring", 16 * 25_000, channels=1)
    assert found.duration == 2 * 15 * (4 + ALPHA) * US
    assert found.messages == 2 * 15 * 16


@pytest.mark.parametrize(("wiring", "count"), [
    (fabric(2, 8, 8), 8),
    (fabric(2, 8, 4), 4),
    (fabric(2, 8, 1), 1),
    (fabric(1, 8, 8), 1),
    (fabric(2, 4, 4, topology="rails"), 4),
    (fabric(2, 4, 4, topology="rails", cross_rail="spine"), 4),
    (fabric(2, 8, 4, topology="pcie"), 4),
    (fabric(3, 4, 4, topology="ring"), 1),
    (fabric(2, 4, 4, topology="mesh"), 4),
    (fabric(2, 4, 4, topology="leaf-spine", oversubscription=2), 4),
])  # fmt: skip
def test_a_group_has_one_channel_per_adapter(wiring, count):
    found = channels(wiring, range(wiring.gpus))
    assert len(found) == count
    assert all(sorted(ring) == list(range(wiring.gpus)) for ring in found)
    leaving = {wiring.route(ring[-1], ring[0]).links for ring in found}
    assert len(leaving) == count


def test_unequal_nodes_have_the_channels_of_the_smallest():
    assert channels(fabric(2, 8), [0, 1, 2, 3, 8, 9]) == [[0, 1, 2, 3, 8, 9], [2, 3, 0, 1, 9, 8]]


@pytest.mark.parametrize("size", [2**30, 2**33])
def test_two_nodes_of_a100s_reach_their_eight_adapters(size):
    """nccl-tests measured 182 and 189 GB/s on such nodes; one adapter has 25."""
    wiring = fabric_of(scenarios.scenario("1f1b", 1, 1, 16, cluster={**A100S, "nodes": 2, "gpus_per_node": 8}))
    bus = size * Fraction(2 * 15, 16) / Fraction(timed(wiring, "ring", size // 4).duration, 10**12)
    assert 190e9 <= bus <= 200e9


def test_gradients_of_8b_hide_nothing_and_cost_little():
    """On one adapter of eight they took 1.317 s of a step of 4.632 s."""
    sections = {"cluster": {"gpu": "h100", "nodes": 2}, "model": "llama3.1-8b", "parallel": {"data": 16}}
    step = simulate(scenario_from({**sections, "schedule": {"kind": "1f1b", "microbatches": 4}})).summary
    assert step["step_time_s"] <= 3.6
    assert step["channels"] == 8
    assert step["gradient_communication_s"]["exposed"] < 0.3


@pytest.mark.parametrize("sharding", ["none", "zero-1"])
def test_sharded_gradients_use_all_adapters_too(sharding):
    """2(n−1)(latency + S/(c·n·bandwidth)) for an all-reduce, or for its halves, of 16 bits each."""
    infiniband = {"bandwidth": "25 GB/s", "latency": f"{ALPHA} us", "nics_per_node": 8}
    nvlink = {"bandwidth": "inf", "latency": f"{ALPHA + SENDS} us"}
    cluster = {"nodes": 2, "gpus_per_node": 8, "nvlink": nvlink, "infiniband": infiniband}
    parameters = 8 * 16 * SENDS * 25_000 // 2
    values = scenarios.values(
        "1f1b", 1, 1, 16, cluster=cluster, workload={"parameters": parameters}, sharding=sharding,
        gradients={"codec": "bf16"},
    )  # fmt: skip
    eight, one = (scenario_from(scenarios.merged(values, {"gradients": {"channels": n}})) for n in ("auto", 1))
    many, few = run(eight), run(one)
    assert (many.channels, few.channels) == (8, 1)
    assert many.duration == 3000 * US + 2 * 15 * (ALPHA + SENDS) * US
    assert (many.bytes_gradients, many.bytes_parameters) == (few.bytes_gradients, few.bytes_parameters)
    assert many.messages == 8 * few.messages
    assert least_step(eight, parts_of(eight)) <= many.duration < few.duration


def test_sharded_layers_read_the_number_of_channels():
    cluster = {"gpu": "h100", "nodes": 2, "gpus_per_node": 4}
    model = {"layers": 2, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 1024, "sequence": 256}
    base = {"cluster": cluster, "model": model, "parallel": {"data": 8}, "sharding": "zero-3"}
    both = {
        count: simulate(
            scenario_from({**base, "schedule": {"kind": "1f1b", "microbatches": 1}, "gradients": {"channels": count}})
        ).summary
        for count in (1, "auto")
    }
    assert both["auto"]["channels"] == 4
    assert both["auto"]["step_time_s"] < both[1]["step_time_s"]


@pytest.mark.slow
def test_folded_channels_equal_unfolded_ones(monkeypatch):
    monkeypatch.setattr(sizes, "FOLDED_FROM", 2)
    reached = Counter()
    for seed in range(14 * TIMES):
        rng = Random(seed)
        values = scenario_values(rng)
        if values["cluster"]["gpus_per_node"] == 1:
            continue
        of_ring = {"codec", "overlap", "bucket", "bucket_rule", "pad"}
        values["gradients"] = {key: one for key, one in values["gradients"].items() if key in of_ring}
        values["gradients"]["channels"] = rng.choice(("auto", "auto", 2, 3))
        values["cluster"]["infiniband"]["nics_per_node"] = values["cluster"]["gpus_per_node"]
        values["parallel"]["order"] = ["tensor", "data", "pipeline"]
        if (both := both_of(values)) is None:
            continue
        one, whole = both
        if one.run.fold is not None and (one.run.channels or 0) > 1:
            reached[one.run.channels] += 1
            assert not differences(one, whole), f"seed {seed}"
    assert len(reached) > 1


@pytest.mark.parametrize("channels", [1, 2, 3, "auto"])
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_no_channels_undercut_the_bound_of_the_search(channels, sharing):
    cluster = {"nodes": 2, "gpus_per_node": 4, "sharing": sharing, "infiniband": {"nics_per_node": 4}}
    for sharding in ("none", "zero-1"):
        scenario = scenarios.scenario(
            "1f1b", 1, 2, 8, cluster=cluster, workload={"parameters": 1e7}, sharding=sharding,
            gradients={"channels": channels, "bucket": "7 MB"},
        )  # fmt: skip
        least, took = least_step(scenario, parts_of(scenario)), run(scenario).duration
        assert 0.5 * took < least <= took  # and the bound says something


def test_training_over_channels_equals_serial_training():
    cluster = {"nodes": 2, "gpus_per_node": 4, "infiniband": {"nics_per_node": 4}}
    scenario = scenarios.scenario("1f1b", 2, 4, 4, cluster=cluster, numerics={"layers": 4, "width": 8}, steps=2,
                                  parallel={"order": ["tensor", "pipeline", "data"]})  # fmt: skip
    assert run(scenario).channels == 2
    assert verify(scenario)


def test_auto_of_sharded_optimizers_takes_what_has_both_halves():
    result = run(scenarios.scenario("1f1b", 1, 1, 4, sharding="zero-1", gradients={"algorithm": "auto"},
                                    workload={"parameters": 1e6}))  # fmt: skip
    assert collectives.phases_of(result.algorithm)
    assert result.bytes_parameters == 3 * 2 * 10**6


def test_the_report_names_algorithm_and_channels():
    cluster = {**A100S, "nodes": 2, "gpus_per_node": 8}
    text = str(simulate(scenarios.scenario("1f1b", 1, 1, 16, cluster=cluster, workload={"parameters": 1e6})).report())
    assert "ring all-reduce on 8 channels" in text


def test_explain_proposes_more_channels():
    scenario = scenarios.scenario(
        "1f1b", 1, 2, 16, cluster={**A100S, "nodes": 2, "gpus_per_node": 8}, workload={"parameters": 1e8},
        gradients={"channels": 1},
    )  # fmt: skip
    changes = [one.change for one in explain(scenario).proposals]
    assert "gradients.channels=auto" in changes


@pytest.mark.parametrize("pad", [False, True])
def test_every_bucket_has_a_choice_and_each_size_one_buffer(pad):
    gradients = {"algorithm": "nccl", "bucket": "1 MB", "pad": pad}
    sections = {"workload": {"parameters": 3_000_001}, "cluster": {"gpu": "h100"}, "gradients": gradients}
    reductions = parts_of(scenarios.scenario("1f1b", 2, 2, 4, **sections)).reductions
    assert sum(reductions.choices.values()) == sum(len(group.buckets) for _, group in reductions.processes) > 16
    by_hand = Counter(
        str(processes.tuned.choice("all-reduce", Buffer(bucket.elements, reductions.codec).bytes))
        for processes, group in reductions.processes
        for bucket in group.buckets
    )
    assert list(reductions.choices.items()) == list(by_hand.items())
    for processes, group in reductions.processes:
        elements = [buffer.elements for buffer in reductions.buffers_of(group)]
        assert elements == list(dict.fromkeys(bucket.elements for bucket in group.buckets))
        assert not pad or all(size % processes.size == 0 for size in elements)
