"""One communicator, one answer: what layers and traces do takes as long as the command `collective` says."""

from fractions import Fraction
from functools import partial

import pytest
from support.paths import SCENARIOS

from hybrid_des import collectives, load
from hybrid_des.analysis.collective_bench import Bench
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.long_rings import of_library
from hybrid_des.interchange.profiles.chakra import write_chakra
from hybrid_des.interchange.profiles.graph import COLLECTIVE, Node, RankTrace
from hybrid_des.planning.planner import parts_of
from hybrid_des.shortcuts.run import run

US, MIB = 10**6, 2**20
WORKLOAD = {"schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": 0, "backward": 0}}
NETWORK = {
    "kind": "transformer",
    "layers": 1,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "vocab": 1024,
    "sequence": 1024,
}
EXPERTS = {**NETWORK, "experts": {"count": 16, "active": 2, "ffn": 1024}}
NCCL = ("nccl", "nccl-all-gather", "nccl-reduce-scatter", "nccl-all-to-all", "nccl-send-receive")
OURS = ("per-node-dispatch", "per-node-combine")
OTHERS = ("a100-80gb", "b200", "gb200", "mi300x")
TEXTBOOK = ("ring", "ring-all-gather", "ring-reduce-scatter", "all-to-all", "halving-doubling")


def bench(name, gpu="h100", nodes=1, ranks=8, *, modelled=False, per_node=8, **gradients):
    """The picoseconds of a collective over the first ranks of nodes of eight."""
    cluster = {"gpu": gpu, "nodes": nodes, "gpus_per_node": per_node}
    costs = {"model": NETWORK} if modelled else WORKLOAD
    given = {"cluster": cluster, "parallel": {"data": ranks}, "gradients": {"codec": "bf16", **gradients}, **costs}
    return partial(_timed, Bench.of(load(given), name, 1, ranks), name)


def _timed(made, name, size):
    return made.row(name, size).time


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("gpu", ["h100", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
@pytest.mark.parametrize("name", [*NCCL, *OURS])
def test_a_library_takes_as_long_with_workload_and_model(name, gpu, nodes):
    plain, modelled = (bench(name, gpu, nodes, 8 * nodes, modelled=one) for one in (False, True))
    assert all(plain(size) == modelled(size) for size in (4096, MIB, 64 * MIB))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", TEXTBOOK)
def test_a_textbook_has_shares_with_a_model_only(name, nodes):
    """0.858 of NVLinks, 0.96 of adapters; latencies are the same."""
    plain, modelled = (bench(name, "h100", nodes, 8 * nodes, modelled=one) for one in (False, True))
    large, small = (modelled(size) / plain(size) for size in (1024 * MIB, 1024))
    assert (1 / 0.859 if nodes == 1 else 1 / 0.961) <= large <= 1 / 0.858
    assert 1 <= small < 1.01


@pytest.mark.parametrize("modelled", [False, True])
@pytest.mark.parametrize(("per_node", "link"), [(8, (450, 858, 1.5)), (1, (50, 960, 5))])
def test_one_textbook_ring_follows_its_law(per_node, link, modelled):
    """2(n − 1)(a + S/(n·B)), B: GB/s, with a model at its share."""
    (rate, share, latency), size = link, 64 * MIB
    found = bench("ring", "h100", 8 // per_node, modelled=modelled, per_node=per_node, channels=1)(size)
    hop = Fraction(size // 8 * 10**6, rate * (share if modelled else 1000))
    assert found == 14 * (int(latency * US) + round(hop))


LAYERS = {
    "tensor": {"parallel": {"tensor": 8}},
    "sequence": {"parallel": {"tensor": 8, "sequence": True}},
    "ring": {"parallel": {"context": 8}},
    "gathered": {"parallel": {"context": 8, "context_method": "all-gather"}},
    "exchanged": {"parallel": {"context": 8, "context_method": "all-to-all"}},
    "experts": {"parallel": {"data": 8, "expert": 8}, "model": EXPERTS, "experts": {"dispatcher": "all-to-all"}},
}  # fmt: skip


def layered(axis, per_node, **more):
    given = {"model": NETWORK, "cluster": {"gpu": "h100", "nodes": 8 // per_node, "gpus_per_node": per_node},
             "schedule": {"kind": "1f1b", "microbatches": 2}, **LAYERS[axis], **more}  # fmt: skip
    return load(given)


def collectives_of(scenario):
    (stage,) = parts_of(scenario).costs.stages.values()
    return {one for layer in stage.layers for way in layer.collectives for one in way}


@pytest.mark.parametrize("per_node", [8, 4])
@pytest.mark.parametrize("axis", LAYERS)
def test_layers_take_what_the_command_says(axis, per_node):
    found = collectives_of(layered(axis, per_node))
    assert found
    for one in found:
        assert one.algorithm.startswith("nccl")
        assert one.launch == 0
        timed = bench(one.algorithm, nodes=8 // per_node, per_node=per_node)
        assert timed(one.size) == one.alone


@pytest.mark.parametrize("per_node", [8, 4])
@pytest.mark.parametrize("axis", LAYERS)
def test_layers_by_messages_take_as_long_as_replayed(axis, per_node):
    """A little less where members end at different times, so that some begin the next op earlier."""
    replayed, sent = (run(layered(axis, per_node, tensor_traffic=mode)) for mode in ("replay", "messages"))
    evenly = all(one.even for one in collectives_of(layered(axis, per_node)))
    assert (sent.duration == replayed.duration) if evenly else (0.97 < sent.duration / replayed.duration < 1)
    for purpose in ("tensor", "context", "expert"):
        assert getattr(sent, f"bytes_{purpose}") == getattr(replayed, f"bytes_{purpose}")


def test_switches_add_for_layers_whose_messages_are_sent():
    """16 MiB over eight H100s: NCCL's tuner takes the switch."""
    replayed, sent = (
        run(layered("tensor", 8, tensor_traffic=mode, schedule={"microbatch_size": 8}))
        for mode in ("replay", "messages")
    )
    assert sent.duration == replayed.duration
    assert sent.bytes_switched > 0


@pytest.mark.parametrize("per_node", [8, 4])
@pytest.mark.parametrize("axis", LAYERS)
def test_textbook_collectives_of_layers_are_as_before(axis, per_node):
    found = collectives_of(layered(axis, per_node, layer_collectives="textbook"))
    assert not any(one.algorithm.startswith("nccl") for one in found)
    assert all(one.launch > 0 for one in found)
    for one in found:
        timed = bench(one.algorithm, nodes=8 // per_node, per_node=per_node, modelled=True)
        assert timed(one.size) == pytest.approx(one.alone, rel=1e-3)  # shares of channels are rounded elsewhere


def test_two_ranks_reduce_as_measured():
    """67 MB over two H100s: 255 µs by NVIDIA's table (NCCL 2.29.2), where plain rings said 199."""
    (alone,) = {
        one.alone
        for one in collectives_of(layered("tensor", 8, parallel={"tensor": 2}, schedule={"microbatch_size": 32}))
        if one.size == 64 * MIB
    }
    assert alone / US == pytest.approx(254.6, rel=0.1)


@pytest.mark.parametrize("per_node", [8, 4])
@pytest.mark.parametrize("sharding", ["zero-1", "zero-2", "zero-3"])
def test_sharded_parameters_are_gathered_as_the_command_says(sharding, per_node):
    scenario = layered("sequence", per_node, parallel={"data": 8}, sharding=sharding)
    parts = parts_of(scenario)
    if sharding == "zero-1":
        gathered = parts.reductions.gather
    else:
        gathered = parts.programs.fsdp._halves[1]
        elements = 8 * 4096
        (outcome,) = parts.programs.fsdp._outcomes(0, gathered, (elements, 0), "bf16")[:1]
        timed = bench("nccl-all-gather", nodes=8 // per_node, per_node=per_node)
        assert timed(2 * elements) == outcome.duration
    assert gathered == "nccl-all-gather"


DONE = {"all-reduce": "nccl", "all-gather": "nccl-all-gather", "reduce-scatter": "nccl-reduce-scatter",
        "all-to-all": "nccl-all-to-all", "broadcast": "nccl-all-gather"}  # fmt: skip


@pytest.mark.parametrize("per_node", [8, 4])
@pytest.mark.parametrize("does", DONE)
def test_traces_take_what_the_command_says(does, per_node, tmp_path):
    size = 8 * MIB
    part = size // 8 if does == "all-gather" else size
    node = Node(0, "one", COLLECTIVE, size=part, does=does)
    (tmp_path / "chakra.0.et").write_bytes(write_chakra(RankTrace("", [node])))
    scenario = load({
        "cluster": {"gpu": "h100", "nodes": 8 // per_node, "gpus_per_node": per_node}, "parallel": {"data": 8},
        "workload": {"trace": str(tmp_path)}, "gradients": {"algorithm": "nccl", "codec": "bf16"},
    })  # fmt: skip
    timed = bench(DONE[does], nodes=8 // per_node, per_node=per_node)
    assert run(scenario).duration == timed(size)


@pytest.mark.parametrize("name", ["nccl-all-gather", "nccl-reduce-scatter"])
@pytest.mark.parametrize(("nodes", "gpus"), [(4, 4), (6, 2), (9, 1)])
def test_folded_rings_of_nccl_take_as_long_as_whole_ones(name, nodes, gpus):
    scenario = load({"cluster": {"gpu": "h100", "nodes": nodes, "gpus_per_node": gpus},
                     "parallel": {"data": nodes * gpus}, **WORKLOAD})  # fmt: skip
    times: CollectiveTimes = parts_of(scenario).times
    buffer = Buffer(1000 * nodes * gpus * gpus, codecs.find("bf16").build())
    rings = of_library([times.process_group(name, range(nodes * gpus), None)], buffer)
    whole = times.around(name, [range(nodes * gpus)], buffer.elements)
    few = (3 if nodes == 9 else 2) * gpus
    assert rings.outcome(times.fabric, "fifo", few) == rings.outcome(times.fabric, "fifo", nodes * gpus) == whole


@pytest.mark.parametrize("name", ["nccl", "ring", "in-switch"])
def test_ranks_that_reduce_several_stages_are_looked_up_once(name, monkeypatch):
    parts, honest, looked = parts_of(SCENARIOS / "h100_2x8.yaml"), collectives.process_group, []

    def counted(*given, **more):
        looked.append(given)
        return honest(*given, **more)

    monkeypatch.setattr(collectives, "process_group", counted)
    times, ranks = CollectiveTimes(parts.fabric, parts.times.layout), (0, 2, 4, 6)
    for stage in range(3):
        whole = times.process_group(name, ranks, Channels(), stage=stage, chunks=(stage,) * 4, part=1)
        site = collectives.Site(parts.fabric, ranks, range(16, 16))
        assert whole == honest(name, site, Channels(), stage=stage, chunks=(stage,) * 4, part=1)
    assert len(looked) == 1
