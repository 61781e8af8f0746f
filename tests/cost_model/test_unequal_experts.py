"""Documents of unequal length on ranks that share experts: laws of what they compute, send and wait for."""

from fractions import Fraction
from itertools import product

import pytest

from hybrid_des import load
from hybrid_des.cluster.purposes import OF_LAYERS, PURPOSES
from hybrid_des.collectives.token_exchange import TokenExchange
from hybrid_des.cost_model.documents import PackedSteps, packed_steps
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.shortcuts.run import run

MIXTURE = {
    "kind": "transformer", "layers": 2, "hidden": 2048, "heads": 16, "ffn": 4096, "vocab": 512, "sequence": 4096,
    "experts": {"count": 16, "active": 2, "ffn": 1024},
}  # fmt: skip
SLOWEST, WITHOUT = [3000, 400, 1000, 200], [4000, 4000, 2000, 4000]
MODES = ("messages", "replay")
TWO_NODES = {"gpus_per_node": 2, "nodes": 2}
HOW = TokenExchange(experts=16, active=2)
PER_NODE = ("per-node-dispatch", "per-node-combine")


@pytest.fixture
def scenario(write):
    """A mixture of experts on four ranks of which all share them, with documents in micro-batches of 4,096 tokens."""

    def with_documents(lengths, **sections):
        file = write("".join(f"{length}\n" for length in lengths), "lengths.csv")
        data = {"lengths": {"kind": "file", "file": str(file), "order": "given"}, "packing": "greedy", "tokens": 4096}
        parallel = {"data": 4, "expert": 4, **sections.pop("parallel", {})}
        cluster = {"gpu": "h100", "gpus_per_node": 4, **sections.pop("cluster", {})}
        common = {"model": MIXTURE, "schedule": {"kind": "1f1b"}, "batch": len(lengths), "data": data}
        common["cuda_graphs"] = "full"  # the host launches nothing, so that tokens decide
        return load({**common, "parallel": parallel, "cluster": cluster, **sections})

    return with_documents


LAYOUTS = [
    {},
    {"experts": {"dispatcher": "all-to-all"}},
    {"cluster": TWO_NODES},
    {"cluster": {"gpus_per_node": 8}, "parallel": {"pipeline": 2}},
    {"cluster": {"gpus_per_node": 8}, "parallel": {"tensor": 2}},
    {"experts": {"streams": True, "delay_weight": True}},
]


@pytest.mark.parametrize("number", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in range(1, len(LAYOUTS)))])
def test_lanes_with_equal_documents_equal_samples_to_the_picosecond(scenario, monkeypatch, number):
    """The costs of every lane by themselves, and exchanges where members wait, as where documents differ."""
    for traffic in MODES:
        given = scenario([1024] * 16, tensor_traffic=traffic, **LAYOUTS[number])
        samples = run(given)
        monkeypatch.setattr(PackedSteps, "varies", True)
        documents = run(given)
        monkeypatch.undo()
        assert documents.costs.lanes is not None
        assert documents.traffic.met == (frozenset() if traffic == "messages" else {"expert"})
        assert documents.duration == samples.duration


def loads_by_microbatch(given):
    packed = packed_steps(given)
    for microbatch in range(packed.microbatches):
        yield packed.sharing, [packed.load(0, microbatch, lane) for lane in range(packed.lanes)]


PARALLEL = [
    {},
    {"expert": 2},
    {"data": 2, "context": 2, "context_method": "per-document"},
    {"data": 2, "tensor": 2, "sequence": True, "expert_tensor": 1},
]


@pytest.mark.parametrize("parallel", PARALLEL)
def test_experts_compute_the_tokens_of_all_ranks_that_share_them(scenario, parallel):
    for sharing, loads in loads_by_microbatch(scenario([*SLOWEST, *WITHOUT], parallel=parallel)):
        sent = [held.tokens // held.ranks for held in loads]
        for lane, held in enumerate(loads):
            of_group = tuple(sent[member] for member in sharing[lane])
            assert held.routed == (of_group if len({*of_group}) > 1 else ())
        computed = [Fraction(sum(one.routed), len(one.routed)) if one.routed else own
                    for one, own in zip(loads, sent, strict=True)]  # fmt: skip
        assert sum(computed) == sum(sent)


@pytest.mark.parametrize(("traffic", "dispatcher"), [*product(MODES, ("per-node", "all-to-all"))])
def test_bytes_to_experts_are_those_of_as_many_tokens(scenario, traffic, dispatcher):
    more = {"tensor_traffic": traffic, "experts": {"dispatcher": dispatcher}, "cluster": TWO_NODES}
    unequal, equal = run(scenario(SLOWEST, **more)), run(scenario([1150] * 4, **more))
    rounding = 16 * 4 * 4 * MIXTURE["layers"]  # elements of messages are whole
    assert abs(unequal.bytes_expert - equal.bytes_expert) <= rounding


def test_a_group_waits_for_its_slowest_member_at_each_exchange(scenario):
    """Against the recursion by hand: all ranks compute a piece, the last one begins the exchange for all."""
    result = run(scenario(SLOWEST, tensor_traffic="replay"))
    costs, ops = [result.costs.lanes.cost(0, lane, 0, 0) for lane in range(4)], result.timeline.ops
    at, pieces = [0] * 4, 0
    for layers in zip(*(cost.layers for cost in costs), strict=True):
        exchanges = layers[0].collectives[0]
        each = [Fraction(layer.time("F") - layer.waits("F"), len(exchanges) + 1) for layer in layers]
        for one in (*exchanges, None):
            at, pieces = [now + took for now, took in zip(at, each, strict=True)], pieces + 1
            if one is not None:
                at = [max(at) + one.launch + one.alone] * 4
    forwards = ops["index"] == 0
    took = dict(zip(ops["rank"][forwards].tolist(), (ops["end"] - ops["start"])[forwards].tolist(), strict=True))
    assert all(abs(took[rank] - at[rank]) <= pieces for rank in range(4))
    assert len({cost.forward for cost in costs}) == 4
    assert took[0] == costs[0].forward  # nobody lets the slowest wait


@pytest.mark.parametrize("traffic", MODES)
def test_no_exchange_ends_before_its_last_member_has_begun(scenario, traffic):
    result = run(scenario([*SLOWEST, *WITHOUT], tensor_traffic=traffic))
    rows = result.timeline.exchanges
    mine = rows["purpose"] == PURPOSES.index(OF_LAYERS["expert"])
    begins, ends = ([rows[name][mine & (rows["rank"] == rank)] for rank in range(4)] for name in ("start", "end"))
    assert len({len(each) for each in begins}) == 1
    waited = 0
    for begin, end in zip(zip(*begins, strict=True), zip(*ends, strict=True), strict=True):
        assert min(end) >= max(begin)
        waited += len({*begin}) > 1
        assert traffic == "messages" or len({*end}) == 1
    assert waited


@pytest.mark.parametrize("traffic", MODES)
def test_more_tokens_on_one_rank_lengthen_the_step_of_all(scenario, traffic):
    longest = (200, 1000, 2000, 3000, 4000)
    steps = [run(scenario([length, 400, 1000, 200], tensor_traffic=traffic)) for length in longest]
    took = [result.duration for result in steps]
    assert took == sorted(set(took))
    others = [lanes.cost(0, 3, 0, 0).layers[1].inner[0] for lanes in (result.costs.lanes for result in steps)]
    assert others == sorted(set(others))  # a rank whose documents are the same computes what the other sends


@pytest.mark.parametrize("dispatcher", ["per-node", "all-to-all"])
def test_a_rank_without_documents_serves_those_of_others(scenario, dispatcher):
    parallel = {"data": 2, "context": 2, "context_method": "per-document"}
    result = run(scenario(WITHOUT, parallel=parallel, experts={"dispatcher": dispatcher}))
    lanes = result.costs.lanes
    cost = next(lanes.cost(0, lane, 0, 0) for lane in range(4) if not lanes.packed.load(0, 0, lane).tokens)
    assert [layer.forward > 0 for layer in cost.layers] == [False, True, True, False]
    assert {one.size for layer in cost.layers for one in layer.collectives[0]} == {0}
    busy = next(lanes.cost(0, lane, 0, 0) for lane in range(4) if lanes.packed.load(0, 0, lane).tokens)
    assert cost.layers[1].inner == busy.layers[1].inner


@pytest.mark.parametrize("held", [(2**22, 2**18, 0, 3 * 2**20), (8, 56, 0, 1000)])
def test_experts_return_as_much_as_they_were_sent(scenario, held):
    """Both ways of an exchange, of all members, once per node and once per expert; bytes by hand of the latter."""
    given = scenario(SLOWEST, cluster=TWO_NODES)
    times = times_of(given, fabric_of(given))
    there, back = (times.of_unequal(held, name, 0, range(4), HOW, back=False) for name in PER_NODE)
    assert abs(there.bytes - back.bytes) <= 2 * there.messages
    there, back = (times.of_unequal(held, "nccl-all-to-all", 0, range(4), None, back=way) for way in (False, True))
    assert there.bytes == back.bytes
    assert there.bytes == sum(held) * 3 // 4  # each keeps a quarter


@pytest.mark.parametrize("name", [*PER_NODE, "nccl-all-to-all", "all-to-all"])
def test_equal_sizes_take_as_long_as_equal_buffers(scenario, name):
    given = scenario(SLOWEST, cluster=TWO_NODES)
    times, size, how = times_of(given, fabric_of(given)), 3 * 2**20 + 2, HOW if name in PER_NODE else None
    for back in (False, True):
        assert times.of_unequal((size,) * 4, name, size, range(4), how, back=back) == times(name, size, range(4), how)
