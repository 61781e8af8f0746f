"""NCCL's all-to-all: its pace by hand on small numbers, and measured times."""

import numpy as np
import pytest

from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.simulation.planning.wiring import fabric_of

FP32, FP64 = (codecs.find(name).build() for name in ("fp32", "fp64"))
US = 10**6


def machine(gpu, nodes=1, **more):
    return fabric_of({"cluster": {"gpu": gpu, "nodes": nodes, **more}, "parallel": {"data": 2},
                      "schedule": {"kind": "gpipe", "microbatches": 1},
                      "workload": {"forward": 0, "backward": 0}})  # fmt: skip


def took(fabric, ranks, size, name="nccl-all-to-all"):
    return measure(fabric, name, [ranks], lambda group, place: Buffer(size // 4, FP32)).duration


def test_sends_on_a100s_take_their_pace():
    """Shards of 8.51 MB: 12 µs to start, 15.6 to fill, 10 for the own shard at 851 GB/s, 7 sends at 198 GB/s."""
    shard = 8_510_000
    assert took(machine("a100-40gb"), range(8), 8 * shard) == pytest.approx(
        37.6 * US + 7 * shard * 1e6 / 198_000, abs=9
    )


def test_small_sends_go_by_ll():
    """Two H100s, shards of 8000 bytes: 6.66 µs, 905 ns for the first, 42 on lines, 4 for the own, then the send."""
    sent = 8000 * 1000 / (450 * 0.752)
    expected = 6.66 * US + 8000 * 1000 / 8.84 + 8000 * 1000 / 189 + 8000 * 1000 // 1800 + sent
    assert took(machine("h100"), range(2), 16000) == pytest.approx(expected, abs=3)


@pytest.mark.parametrize(("nccl", "most"), [("2.28.9", 2**19), ("2.29.2", 2**14)])
def test_sends_leave_ll_where_the_release_does(nccl, most):
    """From there on up to 5.41 instead of 1.86 µs pass for the first bytes, and the channels fill."""
    fabric, sent = machine("h100", nccl=nccl), 4 * (most // 4 + 1)
    small, large = took(fabric, range(2), 2 * most), took(fabric, range(2), 2 * sent)
    first = [min(size * 1000 / 8.84, late * US) for size, late in ((most, 1.86), (sent, 5.41))]
    jump = first[1] - first[0] + sent * 1000 / 928 - most * 1000 / 189
    assert large - small == pytest.approx(jump, abs=20)


def test_between_nodes_sends_leave_ll_at_the_same_size():
    sizes = (16 * 2**14, 16 * 2**15)
    older, newer = ([took(machine("h100", 2, nccl=nccl), range(16), size) for size in sizes]
                    for nccl in ("2.28.9", "2.29.2"))  # fmt: skip
    assert older == newer


def test_slower_nvlinks_slow_the_sends_in_proportion():
    usual, halved = (took(machine("a100-40gb", nvlink={"bandwidth": f"{rate} GB/s", "latency": "1.5 us"}), range(8),
                          8 * 8_000_000) for rate in (300, 250))  # fmt: skip
    assert halved - usual == pytest.approx(7 * 8_000_000 * 1e6 / 198_000 / 5, abs=9)


def test_members_on_other_nodes_are_sent_to_by_adapters():
    """Eight shards of 8 MB at 48 of 50 GB/s, after 8.4 + 16 µs to start and the copy of the own, and a hop of 14."""
    shard = 8_000_000
    sent = 8 * (shard * 1000 // 48)
    expected = 24.4 * US + shard * 1000 // 1800 + sent + 14 * US
    assert took(machine("h100", 2), range(16), 16 * shard) == pytest.approx(expected, abs=20)


def test_half_of_the_adapters_take_twice_as_long():
    usual, halved = (took(machine("h100", 2, infiniband={"nics_per_node": count}), range(16), 2**30)
                     for count in (8, 4))  # fmt: skip
    assert halved / usual == pytest.approx(2, rel=0.01)


def test_direct_links_carry_all_shards_at_once():
    """Seven links of 64 GB/s at 0.74 of it: shards of 8 MB after 12 µs, 15.6 to fill, 9.4 for the own."""
    shard = 8_000_000
    expected = 27.6 * US + shard * 1000 // 851 + shard * 100_000 // 6400 / 0.74
    assert took(machine("mi300x"), range(8), 8 * shard) == pytest.approx(expected, rel=1e-3)


# µs of NVIDIA's tables (aiconfigurator-core 0.12, PyPI), by the release whose rules they show; H200 set nothing
OF_NVIDIA = {
    ("a100-80gb", 2, "2.28.9"): {2**21: 28.6, 2**28: 844.5},
    ("a100-80gb", 8, "2.28.9"): {2**22: 64.3, 2**24: 114.3, 2**28: 1197.9},
    ("h100", 2, "2.29.2"): {2**21: 15.5, 2**24: 53.0, 2**28: 494.7},
    ("h100", 8, "2.29.2"): {2**14: 7.2, 2**21: 18.6, 2**24: 75.7, 2**28: 763.9},
    ("h200", 8, "2.28.9"): {2**21: 26.2, 2**22: 40.7},
    ("h200", 8, "2.29.2"): {2**22: 26.6, 2**24: 73.4, 2**28: 770.8},
    ("b200", 4, "2.29.2"): {2**14: 10.8, 2**21: 19.6, 2**23: 31.4, 2**28: 427.1},
    ("b200", 4, "2.28.9"): {2**21: 22.6, 2**22: 25.0},
    ("b200", 8, "2.28.9"): {2**18: 13.1, 2**21: 22.8, 2**22: 37.0},
    ("b200", 8, "2.29.2"): {2**18: 17.5, 2**22: 26.5, 2**24: 50.1, 2**28: 437.7},
}


@pytest.mark.parametrize(("gpu", "count", "nccl"), OF_NVIDIA)
def test_measured_all_to_alls_on_one_node_are_met(gpu, count, nccl):
    for size, us in OF_NVIDIA[gpu, count, nccl].items():
        allowed = 0.25 if size < 2**20 else 0.1
        assert took(machine(gpu, nccl=nccl), range(count), size) / US == pytest.approx(us, rel=allowed), size


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_shards_end_where_they_belong(ranks):
    before = np.random.default_rng(0).normal(size=(ranks, 4 * ranks))
    after = before.copy()
    measure(
        machine("h100"), "nccl-all-to-all", [range(ranks)], lambda group, place: Buffer(4 * ranks, FP64, after[place])
    )
    assert (after.reshape(ranks, ranks, 4) == before.reshape(ranks, ranks, 4).transpose(1, 0, 2)).all()
