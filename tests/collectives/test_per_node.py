"""Exchanges with experts, once per node: bytes, times, and the measured table of DeepEP."""

import csv
from collections import Counter
from fractions import Fraction

import pytest
from support.paths import SHARED

from hybrid_des.cluster.fabric import ClusterSpec, NodeSpec, PortSpec
from hybrid_des.cluster.topologies.nodes import nodes
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer, UnequalBuffer
from hybrid_des.collectives.codecs.registration import find as codec
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.errors import Refusal
from hybrid_des.workload.models.routing import Routing

BYTE_A_PICOSECOND = Fraction(10**12)
BOTH = ("per-node-dispatch", "per-node-combine")


def cluster(count, gpus, nvlink=BYTE_A_PICOSECOND, infiniband=BYTE_A_PICOSECOND, latency=0):
    node = NodeSpec(gpus, PortSpec(nvlink, latency), PortSpec(infiniband, latency), gpus)
    return nodes(ClusterSpec((node,) * count))


def exchange(name, fabric, elements, trace=None, **options):
    sizes = codec("bf16").build()
    return measure(
        fabric, name, [range(fabric.gpus)], lambda group, place: Buffer(elements, sizes), options=options, trace=trace
    )


def bytes_on(trace):
    """Link → bytes."""
    rows, found = trace.messages.table(), Counter()
    for channel, size in zip(rows["channel"].tolist(), rows["bytes"].tolist(), strict=True):
        found[trace.channels[channel].link] += size
    return found


UNIFORM = {"experts": 16, "active": 2}
GROUPED = {"experts": 16, "active": 3, "groups": 4, "top_groups": 2}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("options", [UNIFORM, GROUPED])
@pytest.mark.parametrize(("count", "gpus"), [(2, 2), (4, 2), (2, 4), (4, 4)])
def test_adapters_carry_the_exact_expectation(name, options, count, gpus):
    """Each rank sends its tokens once to every other node that holds an expert of theirs."""
    routing = Routing(options["experts"], options["active"], options.get("groups", 1), options.get("top_groups", 1))
    of_node, of_rank = routing.hit(routing.held(0, count)), routing.hit(routing.held(0, count * gpus))
    elements = of_node.denominator * of_rank.denominator * 2**12
    trace = Recorder(Rows(MESSAGE_COLUMNS))
    exchange(name, cluster(count, gpus), elements, trace, **options)
    for link, size in bytes_on(trace).items():
        if "nic" in link:
            assert size == (count - 1) * of_node * 2 * elements
        else:
            assert size == count * (gpus - 1) * of_rank * 2 * elements


@pytest.mark.parametrize("name", BOTH)
def test_within_a_node_a_rank_gets_a_token_once(name):
    of_rank = Routing(16, 2).hit(tuple(range(4)))
    elements = of_rank.denominator * 1024
    outcome = exchange(name, cluster(1, 4), elements, **UNIFORM)
    assert outcome.bytes == 4 * 3 * of_rank * 2 * elements
    assert outcome.duration == 3 * of_rank * 2 * elements


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("slow", ["network", "nvlink"])
def test_an_exchange_takes_as_long_as_its_longer_phase(name, slow):
    """The shorter phase adds no more than its part of a segment: there are eight."""
    of_node, of_rank = Routing(16, 2).hit(tuple(range(8))), Routing(16, 2).hit(tuple(range(2)))
    elements = of_node.denominator * of_rank.denominator * 2**15
    network, nvlink = of_node * 2 * elements, 2 * 3 * of_rank * 2 * elements  # bytes, and picoseconds
    rates = {"infiniband": BYTE_A_PICOSECOND / (1 if slow == "nvlink" else 10)}
    longer, shorter = (nvlink, network) if slow == "nvlink" else (10 * network, nvlink)
    found = exchange(name, cluster(2, 4, **rates), elements, **UNIFORM).duration
    assert longer <= found <= longer + shorter / 4


def test_fewer_channels_take_in_tokens_on_fewer_adapters():
    trace = Recorder(Rows(MESSAGE_COLUMNS))
    exchange("per-node-dispatch", cluster(2, 4), 2**14, trace, channels=1, **UNIFORM)
    taken = {link for link in bytes_on(trace) if link.endswith("/in") and "nic" in link}
    assert taken == {"node0/nic0/in", "node1/nic0/in"}


def test_experts_must_divide():
    with pytest.raises(Refusal, match="16 experts cannot be divided over 6 ranks"):
        exchange("per-node-dispatch", cluster(2, 3), 1024, **UNIFORM)


# Rows on adapters of 400 Gb/s and current software: the test of DeepEP sends 4,096 tokens of 7,168 elements, dispatched
# in 8 bits, to 8 of 256 experts in at most four groups, one per node; its bandwidth counts a token once for each node
# that it visits, its own included (deepseek-ai/DeepEP, tests/test_internode.py).
NVLINK = {"H800": 200, "MI300X CX7": 448}
TOKENS = 4096 * 7168


def rows():
    table = SHARED / "validation" / "deepep.csv"
    if not table.exists():
        pytest.skip("its rows are not part of this repository")
    with table.open(encoding="utf-8", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["ep"] in ("32", "64") and row["hardware"] in NVLINK]
    return [row for row in found if "2025-02" not in row["note"]]


@pytest.mark.slow
def test_exchanges_take_the_times_that_deepep_measured():
    errors = []
    for row in rows():
        count = int(row["ep"]) // 8
        bandwidths = {"nvlink": Fraction(82, 100) * NVLINK[row["hardware"]] * 10**9, "infiniband": Fraction(45 * 10**9)}
        fabric = cluster(count, 8, latency=2 * 10**6, **bandwidths)
        routing = {"experts": 256, "active": 8, "groups": count, "top_groups": min(count, 4)}
        visited = count * Routing(256, 8, count, min(count, 4)).hit(tuple(range(256 // count)))
        for way, name, size in (("dispatch", BOTH[0], 1), ("combine", BOTH[1], 2)):
            outcome = exchange(name, fabric, TOKENS * size // 2, **routing)
            reached = visited * TOKENS * size * 1000 / outcome.duration  # GB/s
            errors.append(float(reached) / float(row[f"{way}_GBps"]) - 1)
    assert len(errors) == 8
    assert max(map(abs, errors)) < 0.05


@pytest.mark.parametrize("names", [BOTH, ("all-to-all", "all-to-all"), ("nccl-all-to-all", "nccl-all-to-all")])
@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (2, 4)])
def test_what_a_link_carries_to_experts_its_opposite_carries_back(names, shape):
    """Of members with different numbers of tokens, one with none."""
    fabric, sizes = cluster(*shape), codec("bf16").build()
    held = tuple(2**12 * (5 * place % 4) for place in range(fabric.gpus))
    carried = []
    for back, name in enumerate(names):
        trace = Recorder(Rows(MESSAGE_COLUMNS))
        buffers = [UnequalBuffer(elements, sizes, held=held, back=bool(back)) for elements in held]
        measure(
            fabric, name, [range(fabric.gpus)], lambda _, place, of=buffers: of[place], options=UNIFORM, trace=trace
        )
        carried.append(bytes_on(trace))
    there, back = ({link: size for link, size in one.items() if size} for one in carried)
    assert there == {link[:-2] + "out" if link.endswith("in") else link[:-3] + "in": back[link] for link in back}
    assert len(set(there.values())) > 2
