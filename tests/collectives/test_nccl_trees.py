"""NCCL's trees over two nodes, whose channels pass more within a node than adapters do; and choices that are forced.

Measured: two p4d of AWS, eight A100s and four adapters of 100 Gb/s each, 57.2 GB/s (NVIDIA/nccl, issue 527: with three
and four of them, rings, 31.8 and 29.6); five nodes of eight H100s and four adapters, trees 150 and rings 190 GB/s
(NVIDIA/nccl, issue 1368).
"""

import json
from fractions import Fraction

import pytest

from hybrid_des.cluster.rings import orders
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.nccl_switches import pieces_at_switches
from hybrid_des.collectives.nccl_trees import most_parts, parts_of
from hybrid_des.collectives.registration import CallSize, most_messages
from hybrid_des.collectives.tuning import PROTOCOLS, Choice, wiring_of
from hybrid_des.errors import Refusal
from hybrid_des.planning.wiring import fabric_of

FP32 = codecs.find("fp32").build()
GIB, SHARE = 2**30, Fraction(92, 100)  # of LL128
CLUSTERS = {
    "p4d": {"gpu": "a100-40gb", "infiniband": {"bandwidth": "100 Gb/s", "nics_per_node": 4}},
    "v100": {"gpu": "v100-16gb", "gpus_per_node": 4, "infiniband": {"bandwidth": "100 Gb/s", "nics_per_node": 2}},
    "hdr": {"gpu": "a100-40gb"},
    "h100": {"gpu": "h100", "infiniband": {"nics_per_node": 4}},
    "dgx": {"gpu": "h100"},
}


def machine(of, nodes, **more):
    return fabric_of({
        "cluster": {**CLUSTERS[of], "nodes": nodes, **more}, "parallel": {"data": 2},
        "schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": 0, "backward": 0},
    })  # fmt: skip


def known(fabric):
    ranks = range(fabric.gpus)
    return wiring_of(fabric, ranks, len(orders(fabric, ranks, tuned=True)))


def bus(fabric, size=GIB):
    n = fabric.gpus
    run = measure(fabric, "nccl", [range(n)], lambda *_: Buffer(size // 4, FP32))
    return size * 1000 / run.duration * 2 * (n - 1) / n


@pytest.mark.parametrize(("of", "nodes", "speed"), [
    ("p4d", 2, 24), ("v100", 2, 24),  # twice the 12 GB/s of an adapter
    ("hdr", 2, 30),  # eight of 30 are what topo.h counts on of an A100's NVLinks; 48 would be the next
    ("h100", 2, 90),  # 48 in two channels of 24, each then 45: eight of 45 are less than 371 GB/s, eight of 48 are not
    ("p4d", 3, 12), ("hdr", 4, 24), ("h100", 5, 48),  # on more nodes, that of the adapter
])  # fmt: skip
def test_trees_on_two_nodes_count_on_what_a_node_passes(of, nodes, speed):
    assert known(machine(of, nodes)).trees == speed * 10**9


@pytest.mark.parametrize(("of", "algorithm"), [("p4d", "tree"), ("v100", "tree"), ("hdr", "ring")])
def test_two_nodes_with_few_adapters_take_trees(of, algorithm):
    assert known(machine(of, 2)).choice("all-reduce", GIB).algorithm == algorithm
    assert known(machine(of, 3)).choice("all-reduce", GIB).algorithm == "ring"


def test_trees_of_two_nodes_exceed_what_rings_can_do():
    """A ring sends nearly 2 S through a node's adapters, a tree of two nodes S: 48 and 24 GB/s."""
    assert 48 < bus(machine("p4d", 2)) < 90
    assert bus(machine("p4d", 3)) < 48
    assert bus(machine("v100", 2)) == pytest.approx(41.6, rel=0.15)  # measured on two nodes of four V100s


def test_trees_on_five_nodes_are_met():
    assert bus(machine("h100", 5, nccl_algorithm="Tree")) == pytest.approx(150, rel=0.1)
    assert bus(machine("h100", 5)) == pytest.approx(190, rel=0.1)


@pytest.mark.parametrize(("of", "nodes", "channels", "chunks"), [
    ("p4d", 2, 4, 256), ("v100", 2, 2, 512),  # 1 GiB on 8 and on 4 channels of NCCL, half of them for each tree
    ("h100", 5, 4, 128),  # 16 channels: four adapters give each twice as many
])  # fmt: skip
def test_chunks_of_trees_are_an_eighth_of_a_buffer(of, nodes, channels, chunks):
    """512 KiB of 4 MiB (src/enqueue.cc, calcCollChunking), whatever the size."""
    wiring, whole = known(machine(of, nodes)), GIB // (2 * channels)
    each = whole // chunks
    assert wiring.channels == channels and each in (2**19, 2**20)
    for size, count in ((whole, chunks), (whole // 16, chunks // 16), (each + 4, 2), (each, 1), (4, 1)):
        assert parts_of(size, "Simple", wiring, 16) == count
    assert parts_of(64 * GIB, "Simple", wiring, 16) == 1024  # no more are simulated
    assert [parts_of(GIB, "LL128", wiring, hops) for hops in (4, 16, 26)] == [64, 256, 256]


def test_every_chunk_goes_up_and_down_both_trees():
    """Eight MiB for each tree of four channels, along 15 hops: 16 chunks of 512 KiB, up and down."""
    fabric, size = machine("p4d", 2, nccl_algorithm="Tree", nccl_protocol="Simple"), 2**26
    run = measure(fabric, "nccl", [range(16)], lambda *_: Buffer(size // 4, FP32))
    assert run.messages == 4 * 2 * 15 * 2 * 16


def test_messages_of_trees_are_counted_by_size():
    assert [most_parts(size, 4) for size in (None, 2**20, GIB, 8 * GIB)] == [1024, 33, 256, 1024]
    estimates = [most_messages("nccl", CallSize(16, 4, size)) for size in (2**20, GIB, None)]
    assert estimates == [2 * 16 * 4 * 2 * parts for parts in (33, 256, 1024)]


@pytest.mark.parametrize(("nodes", "size", "segments"), [
    (2, 2**20, 2), (2, 2**25, 64), (2, GIB, 64), (2, 3 * GIB // 2, 96), (2, 8 * GIB, 128),  # 16 MiB pass together
    (4, 2**29, 64), (4, 3 * GIB // 4, 96), (4, GIB, 128),  # 8 MiB
])  # fmt: skip
def test_large_buffers_pass_switches_as_often_as_in_nccl(nodes, size, segments):
    """Sixteen channels of eight members pass 128 KiB each, on four nodes 64 (src/enqueue.cc, calcCollChunking)."""
    assert pieces_at_switches(known(machine("dgx", nodes)), Buffer(size // 4, FP32)) == 8 * segments


def test_caps_count_channels_that_are_doubled():
    """Four of 48 GB/s are eight of 24, on which LL128 has 36.7 each; eight of 48 stay (ncclTopoDupChannels)."""
    assert (known(machine("h100", 5)).counted, known(machine("h100", 5, infiniband={})).counted) == (8, 8)
    assert known(machine("p4d", 5)).counted == 4


@pytest.mark.parametrize(("algorithm", "protocol", "expected"), [
    ("Tree", "Simple", ("tree", "Simple")), ("ring", "ll128", ("ring", "LL128")), ("^nvls,NVLSTree", "LL", None),
])  # fmt: skip
def test_algorithm_and_protocol_are_forced_as_by_nccls_variables(algorithm, protocol, expected):
    wiring = known(machine("h100", 2, nccl_algorithm=algorithm, nccl_protocol=protocol))
    for size in (2**10, 2**20, GIB):
        choice = wiring.choice("all-reduce", size)
        assert choice == expected or (expected is None and choice.protocol == "LL")
        assert not choice.algorithm.startswith("nvls")
        gathered = wiring.choice("all-gather", size)  # only rings gather; protocols are those allowed
        assert gathered == ("ring", choice.protocol)


def test_what_a_group_cannot_run_is_refused():
    wiring = known(machine("p4d", 2, nccl_algorithm="NVLS"))
    with pytest.raises(Refusal, match=r"cluster.nccl_algorithm: nvls: .* ring or tree"):
        wiring.choice("all-reduce", GIB)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("nccl_algorithm", "trees", "tree"), ("nccl_protocol", "ll64", "LL"), ("nccl_algorithm", "", "expected"),
    ("nccl_algorithm", "allgather:ring", "one list for all collectives"),
])  # fmt: skip
def test_unknown_algorithms_name_those_there_are(run, write, key, value, message):
    file = write(
        f"cluster: {{{key}: '{value}'}}\nparallel: {{data: 8}}\nschedule: {{kind: gpipe, microbatches: 1}}\n"
        "workload: {forward: 0, backward: 0}\n"
    )
    code, _, err = run(file)
    assert code == 2 and f"cluster.{key}" in err[0] and message in err[0]


def test_the_command_prints_algorithm_protocol_and_channels(run, write):
    file = write(
        "cluster: {gpu: a100-40gb, nodes: 2, infiniband: {bandwidth: 100 Gb/s, nics_per_node: 4}}\n"
        "parallel: {data: 16}\nschedule: {kind: gpipe, microbatches: 1}\nworkload: {forward: 0, backward: 0}\n"
    )
    more = ["--scenario", file, "--min", "1 GiB", "--max", "1 GiB"]
    out = run("collective", "nccl", *more)[1]
    row = next(line for line in out.splitlines() if not line.startswith("#"))
    assert row.split()[-3:] == ["tree", "Simple", "4"]
    (found,) = json.loads(run("collective", "nccl-all-gather", *more, "--json")[1])
    assert [found[key] for key in ("nccl_algorithm", "nccl_protocol", "channels")] == ["ring", "Simple", 4]
    (textbook,) = json.loads(run("collective", "ring", *more, "--json")[1])
    assert "nccl_algorithm" not in textbook and textbook["channels"] == 4


def test_paces_of_trees_are_shares_of_what_they_count_on():
    """Four lanes, up and down in both trees, have 0.92 of it together; LL is as fast as adapters, LL128 up to a cap."""
    for of, protocol, speed in (
        ("p4d", "Simple", 24), ("p4d", "LL", Fraction(12, 2)), ("p4d", "LL128", 20), ("hdr", "LL128", 24 * SHARE),
    ):  # fmt: skip
        pace, _ = known(machine(of, 2)).paces(Choice("tree", protocol))
        assert pace.bandwidth == Fraction(92, 400) * speed * 10**9


def test_hops_are_those_of_trees_where_members_share_no_node():
    """With one member per node they are fully exposed (tuning.cc, interLat): 5, 8.5 and 14 µs; else 2.7, 4 and 14."""
    fabric = machine("h100", 8)
    for ranks, expected in ((range(0, 64, 8), (5.0, 8.5, 14.0)), (range(0, 64, 4), (2.7, 4.0, 14.0))):
        wiring = wiring_of(fabric, ranks, 1)
        assert tuple(wiring.hop(Choice("ring", protocol), "net") for protocol in PROTOCOLS) == expected
