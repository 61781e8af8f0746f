"""NCCL's choices, and what they take by the latencies and paces of `collectives.tuning`: whole picoseconds and `==`."""

import csv
from fractions import Fraction

import numpy as np
import pytest
from support.paths import SHARED

from hybrid_des import collectives, simulate
from hybrid_des.cluster.rings import orders
from hybrid_des.collectives import codecs, nccl_lanes
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.tuning import Choice, Wiring, wiring_of
from hybrid_des.cost_model.cheapest_times import CheapestTimes
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.terminal import render
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run

FP32, FP64 = (codecs.find(name).build() for name in ("fp32", "fp64"))
MIB, US = 2**20, 10**6
ROWS = SHARED / "golden" / "nccl_all_reduce.csv"


def machine(gpu="a100-40gb", nodes=1, sharing="fifo", **more):
    cluster = {"gpu": gpu, "nodes": nodes, "sharing": sharing, **more}
    return fabric_of({"cluster": cluster, "parallel": {"data": 2}, "schedule": {"kind": "gpipe", "microbatches": 1},
                      "workload": {"forward": 0, "backward": 0}})  # fmt: skip


def wiring(fabric, ranks):
    return wiring_of(fabric, ranks, len(orders(fabric, ranks)))


def took(fabric, ranks, size, sharing="fifo"):
    """Picoseconds of an all-reduce of `size` bytes."""
    return measure(fabric, "nccl", [ranks], lambda group, place: Buffer(size // 4, FP32), sharing=sharing).duration


@pytest.mark.parametrize(("gpu", "nodes", "size", "expected"), [
    ("a100-40gb", 1, 2**30, ("ring", "Simple")), ("a100-40gb", 2, 2**30, ("ring", "Simple")),
    ("a100-40gb", 2, 64 * MIB, ("ring", "LL128")), ("a100-40gb", 2, 1024, ("tree", "LL")),
    ("a100-40gb", 8, 4 * MIB, ("tree", "LL128")), ("h100", 1, 2**30, ("nvls", "Simple")),
    ("h100", 2, 2**30, ("nvls-tree", "Simple")), ("h100", 1, 1024, ("ring", "LL")),
], ids=str)  # fmt: skip
def test_the_tuner_chooses_as_nccl_does(gpu, nodes, size, expected):
    fabric = machine(gpu, nodes)
    assert wiring(fabric, range(8 * nodes)).choice("all-reduce", size) == expected


def test_a_member_per_node_has_neither_switches_nor_nvlinks():
    known = wiring(machine("h100", 4), range(0, 32, 8))
    assert (known.in_switch, known.inside, known.rate) == (None, "net", 48 * 10**9)
    assert known.choice("all-reduce", 2**30) == ("ring", "Simple")


@pytest.mark.parametrize("sharing", ["fifo", "fair", "priority", "priority-fair"])
def test_a_ring_on_a_node_takes_its_latencies_and_pace(sharing):
    """0.77 of NVLinks; 23.6 µs to start, hops of 4.53 and 6.24, 0.272 of a shard and 8 MiB copied last: timing.py."""
    size = 8 * 231 * 2**20
    steps = 7 * (4_530_000 + 6_240_000) + 14 * (size // 8 * 1000 // 231)
    copied = round((0.272 * size / 8 + 2**23) * 1000 / 231)
    assert took(machine(sharing=sharing), range(8), size, sharing) == 23_600_000 + steps + copied


def test_gathers_have_hops_and_lines_of_their_own():
    """8 MB over two H100s by LL, whose shares are 0.443 and 0.344: 0.969 shards are copied last, and 0.682."""
    shard, known = 4_000_000, wiring(machine("h100"), range(2))
    for does, share, hop, last in (("reduce-scatter", 0.443, 775_000, 0.969), ("all-gather", 0.344, 837_000, 0.682)):
        choice, bandwidth = Choice("ring", "LL"), 450e9 * share
        here, _ = known.paces(choice, does)
        assert here.latency == hop
        assert float(here.bandwidth) * known.channels == pytest.approx(bandwidth)
        late, copied = known.waits(does, choice, 2 * shard)
        assert (late, copied) == (0, pytest.approx(last * shard * 1e12 / bandwidth, abs=1))


def test_the_tuner_counts_on_channels_that_the_search_finds():
    """Six of 60 GB/s on an H100, not the 371 that its links carry: two of them gather 2 MiB by LL, as measured."""
    two = wiring(machine("h100"), range(2))
    assert two.choice("all-gather", 2**21) == two.choice("reduce-scatter", 2**21) == ("ring", "LL")
    assert two.choice("all-gather", 2**22) == ("ring", "Simple")


@pytest.mark.parametrize(("nccl", "protocol"), [("2.27.5", "LL128"), ("2.28.9", "LL128"), ("2.29.2", "Simple")])
def test_blackwell_leaves_ll128_where_the_release_does(nccl, protocol):
    """Its cap per channel was 73.4 GB/s, and is 40."""
    fabric = machine("b200", nccl=nccl)
    eight, four = (wiring(fabric, range(count)) for count in (8, 4))
    for does in ("all-gather", "reduce-scatter"):
        assert [eight.choice(does, 2**power).protocol for power in (23, 24, 25, 26)] == [
            "LL", protocol, protocol, "Simple"
        ]  # fmt: skip
    assert [four.choice("all-reduce", 2**power).protocol for power in (22, 23, 24, 25)] == [
        "LL", protocol, protocol, "Simple"
    ]  # fmt: skip
    assert wiring(machine("h100", nccl=nccl), range(8)).choice("all-gather", 2**24) == ("ring", "LL128")


def test_rings_of_several_domains_count_on_all_their_channels():
    """Two domains of 16 GB200s have 16; with the eight of one node, LL128 would end at 64 MiB."""
    known = wiring(machine("gb200", 2, gpus_per_node=16), range(32))
    assert (known.channels, known.choice("all-gather", 2**29)) == (16, ("ring", "LL128"))


@pytest.mark.parametrize("gpu", ["h100", "b200", "gb200"])
def test_two_gpus_never_reduce_in_the_switch(gpu):
    """Their NVLinks carry two channels of it, of which the search counts on one: a ring is faster."""
    known = wiring(machine(gpu), range(2))
    assert {known.choice("all-reduce", 2**power).algorithm for power in range(8, 36)} == {"ring"}
    assert wiring(machine("h100"), range(8)).choice("all-reduce", 2**21) == ("nvls", "Simple")


# µs of the out-of-place rows of nccl-tests with NCCL 2.29.2, fp16, in NVIDIA's tables (aiconfigurator-core 0.12, PyPI)
OF_NVIDIA = {
    ("h100", 2): {2**16: 7.3, 2**19: 10.7, 2**24: 82.2, 2**28: 881.3},
    ("h100", 4): {2**16: 11.3, 2**19: 14.5, 2**24: 99.0, 2**28: 1181.0},
    ("h100", 8): {2**16: 18.7, 2**19: 20.1, 2**24: 121.9, 2**28: 1092.1},
    ("b200", 2): {2**16: 11.4, 2**20: 14.2, 2**24: 53.4, 2**28: 521.3},
    ("b200", 4): {2**16: 16.8, 2**23: 84.9, 2**24: 95.8, 2**28: 659.1},
    ("b200", 8): {2**16: 29.0, 2**21: 32.1, 2**24: 99.1, 2**28: 715.4},
}


@pytest.mark.parametrize(("gpu", "count"), OF_NVIDIA)
def test_measured_all_reduces_on_one_node_are_met(gpu, count):
    fabric = machine(gpu)
    for size, us in OF_NVIDIA[gpu, count].items():
        allowed = 0.25 if size < MIB else 0.1
        assert took(fabric, range(count), size) / US == pytest.approx(us, rel=allowed)


@pytest.mark.parametrize(("gpu", "does", "count", "size", "before", "since"), [
    ("b200", "all-reduce", 4, 2**23, 48.6, 84.9), ("b200", "all-reduce", 4, 2**24, 77.8, 95.8),
    ("b200", "all-gather", 8, 2**24, 53.2, 103.9), ("b200", "all-gather", 8, 2**25, 79.7, 113.8),
    ("b200", "reduce-scatter", 8, 2**23, 45.6, 43.6), ("b200", "reduce-scatter", 8, 2**24, 55.4, 97.0),
    ("h100", "all-gather", 4, 2**21, 22.3, 19.1), ("h200", "reduce-scatter", 4, 2**20, 14.5, 11.7),
])  # fmt: skip
def test_measured_times_of_both_releases_are_met(gpu, does, count, size, before, since):
    """From the same tables: "2.28.9" of B200s, "2.23" of H100s and H200s, and 2.29.2."""
    name = {"all-reduce": "nccl"}.get(does, f"nccl-{does}")
    for nccl, us in (("2.28.9", before), ("2.29.2", since)):
        run = measure(machine(gpu, nccl=nccl), name, [range(count)], lambda *_: Buffer(size // 4, FP32))
        assert run.duration / US == pytest.approx(us, rel=0.1), nccl


def test_rings_of_before_begin_later_and_are_slower():
    """By 1.02 µs and 4 % on Hopper: timing.py; on A100, whose tables are all of before, by nothing."""
    for gpu, later, share in (("h100", 1.02, 0.96), ("a100-80gb", 0, 1)):
        before, since = (wiring(machine(gpu, nccl=nccl), range(8)) for nccl in ("2.28.9", "2.29.2"))
        choice = since.choice("all-gather", 2**20)
        assert before.start(choice) - since.start(choice) == pytest.approx(later * US)
        rates = [known.paces(choice, "all-gather")[0].bandwidth for known in (before, since)]
        assert rates[0] / rates[1] == pytest.approx(share)


@pytest.mark.parametrize(("does", "count", "size", "us", "allowed"), [
    ("all-gather", 2, 2**28, 548.5, 0.1), ("reduce-scatter", 8, 2**28, 721.7, 0.1),
    ("reduce-scatter", 8, 2**21, 17.9, 0.16),  # not met: docs/background/accuracy_details.md
])  # fmt: skip
def test_measured_halves_on_one_node_are_met(does, count, size, us, allowed):
    """On H100s, from the same tables."""
    found = measure(machine("h100"), f"nccl-{does}", [range(count)], lambda group, place: Buffer(size // 4, FP32))
    assert found.duration / US == pytest.approx(us, rel=allowed)


def test_longer_wires_and_slower_links_count():
    size = 2**30
    usual = took(machine(), range(8), size)
    longer = took(machine(nvlink={"bandwidth": "300 GB/s", "latency": "2.5 us"}), range(8), size)
    assert longer == usual + 14 * US
    assert took(machine(nvlink={"bandwidth": "100 GB/s", "latency": "1.5 us"}), range(8), size) > 2 * usual


def test_channels_share_a_port_without_waiting_for_each_other():
    """Eight channels of 24 GB/s are less than a port of 300: they take as long as one with an eighth of the bytes."""
    fabric = machine(nodes=2)
    whole = took(fabric, range(16), 2**30)
    one = measure(fabric, "nccl", [range(16)], lambda group, place: Buffer(2**25, FP32), options={"channels": 1})
    assert whole == one.duration


@pytest.mark.parametrize("choice", nccl_lanes.VARIANTS, ids=str)
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (2, 2), (3, 2)])
def test_every_choice_sums_exactly(monkeypatch, choice, nodes, gpus):
    if (choice.algorithm == "nvls") != (nodes == 1) and choice.algorithm.startswith("nvls"):
        pytest.skip("of one node, or of several")
    monkeypatch.setattr(Wiring, "choice", lambda *_: choice)
    fabric, members = machine("h100", nodes, gpus_per_node=gpus), nodes * gpus
    given = [np.arange(96.0) * (rank + 1) for rank in range(members)]
    arrays = [array.copy() for array in given] + [np.zeros(96) for _ in range(nodes)]
    found = measure(
        fabric, "nccl", [range(members)], lambda group, place: Buffer(96, FP64, arrays[place]), options={"pieces": 4}
    )
    assert all((array == sum(given)).all() for array in arrays[:members])
    assert found.even or choice.algorithm != "ring"


def test_a_switch_takes_every_byte_once_and_every_sum_once(monkeypatch):
    """S out per GPU, and its own eighth once more: 9/8 · 8 S in all."""
    found = measure(machine("h100"), "nccl", [range(8)], lambda group, place: Buffer(2**26, FP32))
    assert found.bytes == 9 * 2**28
    rate = Fraction(450 * 206 * 85 * 15, 250 * 100 * 16)  # GB/s: topo.h, nvls.cc
    least = Fraction(2**28 * 9, 8) / rate * 1000
    assert 1 < (found.duration - 41 * US) / least < 1.05


@pytest.mark.parametrize(("gpu", "nodes"), [("a100-40gb", 1), ("a100-40gb", 4), ("h100", 2)])
@pytest.mark.parametrize("size", [2**12, 2**20, 2**24, 2**28])
def test_the_bound_of_a_search_stays_a_bound(gpu, nodes, size):
    fabric = machine(gpu, nodes)
    ranks = range(0, 8 * nodes, 2)
    group = collectives.process_group("nccl", collectives.Site(fabric, ranks, ()))
    least = CheapestTimes(fabric, "fifo").collective(group, size // 4, FP32)
    assert 0 < least <= took(fabric, ranks, size)


def test_nccl_is_the_default_with_a_model_alone():
    model = {"model": "gpt2", "schedule": {"kind": "1f1b"}, "parallel": {"data": 2}}
    assert load(model).gradients.algorithm == "nccl"
    assert load({**model, "sharding": "zero-1", "gradients": {"channels": 2}}).gradients.algorithm == "nccl"
    assert load({**model, "sharding": "zero-3"}).gradients.algorithm == "nccl"
    assert load({**model, "gradients": {"algorithm": "auto"}}).gradients.algorithm == "auto"
    without = {"schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": 0, "backward": 0}}
    assert load(without).gradients.algorithm == "ring"


def test_the_report_says_what_nccl_takes():
    chosen = load({"model": "gpt2", "cluster": {"gpu": "a100-80gb", "nodes": 2}, "batch": 16, "parallel": {"data": 16}})
    result = simulate(chosen)
    assert result.run.choices == {"ring, Simple": 1}
    assert "nccl all-reduce on 8 channels: ring, Simple" in render(result)


@pytest.mark.parametrize("n", [6, 8])
def test_the_summary_counts_what_gpus_send_to_switches(n):
    """Around a ring 2 (n − 1) S, to a switch (n + 1) S, of which as much comes back."""
    values = {"model": "gpt2", "cluster": {"gpu": "h100"}, "batch": n, "parallel": {"data": n}}
    switched, around = (simulate(load({**values, "gradients": {"algorithm": name}})) for name in ("nccl", "ring"))
    size = around.summary["bytes_gradients"] / (2 * (n - 1))
    assert set(switched.run.choices) == {"nvls, Simple"}
    assert switched.summary["bytes_gradients"] == switched.summary["bytes_switched"]
    assert switched.summary["bytes_gradients"] == pytest.approx((n + 1) * size, rel=1e-6)
    assert "bytes_switched" not in around.summary
    assert "by switches" in render(switched) and "by switches" not in render(around)


def test_folded_replicas_take_the_time_of_all():
    values = {"model": "gpt2", "cluster": {"gpu": "a100-80gb", "nodes": 4}, "batch": 32,
              "parallel": {"data": 16, "tensor": 2}, "gradients": {"pad": True}}  # fmt: skip
    folded, whole = (run(load({**values, "fold": fold})) for fold in (4, "off"))
    assert folded.fold is not None
    assert (folded.duration, folded.messages) == (whole.duration, whole.messages)


def measured(gpu, nodes):
    if not ROWS.exists():
        pytest.skip(f"{ROWS} is not part of the project")
    with ROWS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"].startswith(gpu) and row["nodes"] == nodes]
    return [(int(row["bytes"]), float(row["time_us"])) for row in rows if int(row["bytes"]) >= 1024]


@pytest.mark.parametrize(("gpu", "nodes", "mean", "worst"), [("A100", 2, 5, 8), ("A100", 1, 6, 12), ("H100", 1, 6, 12)])
def test_measured_all_reduces_from_64_mib_up_are_met(gpu, nodes, mean, worst):
    fabric, rows = machine({"A100": "a100-40gb", "H100": "h100"}[gpu], nodes), measured(gpu, str(nodes))
    errors = [abs(took(fabric, range(8 * nodes), size) / us / US - 1) * 100 for size, us in rows if size >= 64 * MIB]
    assert np.mean(errors) <= mean and max(errors) <= worst


def test_measured_small_all_reduces_between_nodes_are_met():
    fabric, rows = machine(nodes=2), measured("A100", "2")
    errors = [abs(took(fabric, range(16), size) / us / US - 1) * 100 for size, us in rows if size < 64 * MIB]
    assert np.mean(errors) <= 12


def test_more_chunks_of_a_tree_may_take_less_time():
    """As the reference says: two chunks of 3 KB on each tree, and three of 2 KB."""
    fabric = machine("a100-80gb", 4, gpus_per_node=6, infiniband={"nics_per_node": 3})
    larger, smaller = (took(fabric, range(24), size) for size in (38_236, 36_304))
    assert (round(smaller / US), round(larger / US)) == (65, 61)


@pytest.mark.parametrize(
    ("gpus", "nics", "ranks", "sizes", "us"),
    [(8, 8, range(8), (2**26 - 4, 2**26), (344, 316)), (5, 5, range(20), (3_903_664, 4_489_214), (156, 123))],
)
def test_larger_chunks_or_another_choice_may_take_less_time(gpus, nics, ranks, sizes, us):
    """As the reference says."""
    fabric = machine("h100", 4, gpus_per_node=gpus, infiniband={"nics_per_node": nics})
    assert tuple(round(took(fabric, ranks, size) / US) for size in sizes) == us
