"""NCCL's all-to-all: its pace by hand on small numbers, and measured times."""

import numpy as np
import pytest

from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.nccl_sends import Call
from hybrid_des.collectives.tuning import wiring_of
from hybrid_des.planning.wiring import fabric_of

FP32, FP64 = (codecs.find(name).build() for name in ("fp32", "fp64"))
US = 10**6


def machine(gpu, nodes=1, **more):
    return fabric_of({"cluster": {"gpu": gpu, "nodes": nodes, **more}, "parallel": {"data": 2},
                      "schedule": {"kind": "gpipe", "microbatches": 1},
                      "workload": {"forward": 0, "backward": 0}})  # fmt: skip


def took(fabric, ranks, size, name="nccl-all-to-all"):
    return measure(fabric, name, [ranks], lambda group, place: Buffer(size // 4, FP32)).duration


def test_sends_on_a100s_take_their_pace():
    """Shards of 8.4 MB on four channels each: 18.5 µs and 0.364 per peer to start, and sends at 0.676 of NVLinks.

    The last chunk of 512 KiB is received at 20.8 GB/s, and members are out of step by 0.17 of that.
    """
    shard = 8_400_000
    begun = (18.5 + 7 * 0.364) * US + 1.17 * 2**19 * 1000 / 20.8
    assert took(machine("a100-40gb"), range(8), 8 * shard) == pytest.approx(begun + 7 * shard * 1e6 / 202_800, abs=20)


def test_few_channels_are_the_limit_between_two():
    """Two B200s: 16 of the 32 channels, at 21.4 GB/s each; of two chunks, half of one more and 0.567 of that."""
    size = 2 * 16 * 2**20
    begun = (12.8 + 0.323) * US + 1.567 * 2**19 * 1000 / 42.8
    sent = 2**19 * (1000 / 42.8 + 1000 / 21.4)
    assert took(machine("b200"), range(2), size) == pytest.approx(begun + sent, abs=20)


def test_small_parts_are_a_channel_of_their_own():
    """From 64 to 512 KiB to one peer, channels of 64 KiB carry more side by side, in the same time."""
    fabric = machine("h100")
    same = [took(fabric, range(2), 2 * 2**power) for power in (16, 17, 18, 19)]
    assert same == pytest.approx([same[0]] * 4, abs=20)
    assert took(fabric, range(2), 2 * 2**15) < same[0] < took(fabric, range(2), 2 * 2**20)


@pytest.mark.parametrize(("ranks", "channels"), [(2, 16), (3, 8), (4, 8), (5, 4), (8, 4), (9, 2), (16, 2), (40, 1)])
def test_peers_share_channels_in_powers_of_two(ranks, channels):
    wiring = wiring_of(machine("gb200", gpus_per_node=64), range(ranks), 1)
    call = Call(2**24, ranks - 1, ranks)
    assert (call.channels(wiring), call.together(wiring)) == (channels, min(32, channels * (ranks - 1)))


def test_small_sends_go_by_ll():
    """Two H100s, shards of 8,000 bytes on one channel: 5.78 µs and 0.306 for the peer, then 4.65 GB/s."""
    assert took(machine("h100"), range(2), 16000) == pytest.approx(6.086 * US + 8000 * 1000 / 4.65, abs=3)


@pytest.mark.parametrize(("nccl", "most"), [("2.28.9", 2**19), ("2.29.2", 2**14)])
def test_sends_leave_ll_where_the_release_does(nccl, most):
    fabric = machine("h100", nccl=nccl)
    calls = [Call(size, 1, 2) for size in (most, most + 1)]
    wiring = wiring_of(fabric, range(2), 1)
    assert [call.by_ll(wiring) for call in calls] == [True, False]
    small, large = took(fabric, range(2), 2 * most), took(fabric, range(2), 2 * (most + 4))
    assert abs(large - small) > US / 10


def test_channels_were_slower_before_a_release():
    """256 MiB over two H100s: 16 channels of 18.2 GB/s, before 2.29 of 0.951 of that and 1.02 µs later; equal links."""
    before, since = (took(machine("h100", nccl=nccl), range(2), 2**28) for nccl in ("2.28.9", "2.29.2"))
    sent = (2**27 / 16 - 2**19 * (2 - 1.0808) / 2) * 1000 / 18.2
    assert before - since == pytest.approx(1.02 * US + sent * (1 / 0.951 - 1), rel=1e-3)


def test_between_nodes_sends_leave_ll_at_the_same_size():
    sizes = (16 * 2**14, 16 * 2**15)
    older, newer = ([took(machine("h100", 2, nccl=nccl), range(16), size) for size in sizes]
                    for nccl in ("2.28.9", "2.29.2"))  # fmt: skip
    assert older == newer


def test_slower_nvlinks_slow_the_sends_in_proportion():
    usual, halved = (took(machine("a100-40gb", nvlink={"bandwidth": f"{rate} GB/s", "latency": "1.5 us"}), range(8),
                          8 * 8_000_000) for rate in (300, 250))  # fmt: skip
    assert halved - usual == pytest.approx(7 * 8_000_000 * 1e6 / 202_800 / 5, abs=9)


def test_members_on_other_nodes_are_sent_to_by_adapters():
    """Eight shards of 8 MB at 48 of 50 GB/s, after 8.4 + 16 µs to start, and a hop of 14."""
    shard = 8_000_000
    expected = 24.4 * US + 8 * (shard * 1000 // 48) + 14 * US
    assert took(machine("h100", 2), range(16), 16 * shard) == pytest.approx(expected, abs=20)


def test_half_of_the_adapters_take_twice_as_long():
    usual, halved = (took(machine("h100", 2, infiniband={"nics_per_node": count}), range(16), 2**30)
                     for count in (8, 4))  # fmt: skip
    assert halved / usual == pytest.approx(2, rel=0.01)


def test_direct_links_carry_all_shards_at_once():
    """Seven links of 64 GB/s at 0.74 of it: shards of 8 MB, after what A100s take to begin and to receive a chunk."""
    shard = 8_000_000
    begun = (18.5 + 7 * 0.364) * US + 1.17 * 2**19 * 1000 / 20.8
    expected = begun + shard * 100_000 // 6400 / 0.74
    assert took(machine("mi300x"), range(8), 8 * shard) == pytest.approx(expected, rel=1e-3)


# µs of NVIDIA's tables (aiconfigurator-core 0.12, PyPI), by the release whose rules they show
OF_NVIDIA = {
    ("a100-80gb", 2, "2.28.9"): {2**21: 28.6, 2**28: 844.5},
    ("a100-80gb", 8, "2.28.9"): {2**22: 64.3, 2**24: 114.3, 2**28: 1197.9},
    ("h100", 2, "2.29.2"): {2**21: 15.5, 2**24: 53.0, 2**28: 494.7},
    ("h100", 8, "2.29.2"): {2**14: 7.2, 2**21: 18.6, 2**24: 75.7, 2**28: 763.9},
    ("h100", 8, "2.28.9"): {2**21: 23.9, 2**22: 39.5},
    ("h200", 8, "2.28.9"): {2**21: 26.2, 2**22: 40.7, 2**24: 71.4},
    ("h200", 8, "2.29.2"): {2**22: 26.6, 2**24: 73.4, 2**28: 770.8},
    ("b200", 4, "2.29.2"): {2**14: 10.8, 2**21: 19.6, 2**23: 31.4, 2**28: 427.1},
    ("b200", 4, "2.28.9"): {2**21: 22.6, 2**22: 25.0},
    ("b200", 8, "2.28.9"): {2**18: 13.1, 2**21: 22.8, 2**22: 37.0},
    ("b200", 8, "2.29.2"): {2**18: 17.5, 2**22: 26.5, 2**24: 50.1, 2**25: 88.8, 2**28: 437.7},
    ("b200", 2, "2.29.2"): {2**23: 27.9, 2**24: 49.0, 2**25: 63.7, 2**28: 420.8},
    ("b200", 2, "2.28.9"): {2**23: 33.8, 2**24: 52.0, 2**25: 68.9, 2**28: 449.7},
    ("b300", 2, "2.29.2"): {2**23: 27.6, 2**24: 38.0, 2**28: 409.8},
    ("gb300", 2, "2.29.2"): {2**23: 26.7, 2**24: 46.3, 2**25: 60.4, 2**28: 401.8},
}


# docs/background/accuracy_details.md names them, with those like them, among what is beyond a tenth
NOT_MET = {
    ("b200", 8, "2.29.2", 2**25): 0.14,
    ("b300", 2, "2.29.2", 2**24): 0.18,  # no figure is within a tenth of it and of 46.3 to 50 on other Blackwells
    ("gb300", 2, "2.29.2", 2**25): 0.15,
}


@pytest.mark.parametrize(("gpu", "count", "nccl"), OF_NVIDIA)
def test_measured_all_to_alls_on_one_node_are_met(gpu, count, nccl):
    for size, us in OF_NVIDIA[gpu, count, nccl].items():
        allowed = NOT_MET.get((gpu, count, nccl, size), 0.25 if size < 2**20 else 0.1)
        assert took(machine(gpu, nccl=nccl), range(count), size) / US == pytest.approx(us, rel=allowed), size


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_shards_end_where_they_belong(ranks):
    before = np.random.default_rng(0).normal(size=(ranks, 4 * ranks))
    after = before.copy()
    measure(
        machine("h100"), "nccl-all-to-all", [range(ranks)], lambda group, place: Buffer(4 * ranks, FP64, after[place])
    )
    assert (after.reshape(ranks, ranks, 4) == before.reshape(ranks, ranks, 4).transpose(1, 0, 2)).all()
