"""Every collective takes the time and bytes that theory gives it on idle, equal links: whole picoseconds and `==`."""

from fractions import Fraction

import pytest

from hybrid_des import collectives
from hybrid_des.cluster.fabric import ClusterSpec, Fabric, LinkSpec, NodeSpec, PortSpec, Route
from hybrid_des.cluster.topologies.leaf_spine import LeafSpine, leaf_spine
from hybrid_des.cluster.topologies.nodes import nodes
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.benchmark import measure, run_collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs.registration import find as codec
from hybrid_des.collectives.double_binary_tree import family
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.errors import Refusal, UsageError

BYTE_A_PICOSECOND = Fraction(10**12)
A = 1000  # latency, ps
ELEMENTS = 720720 * 4  # divisible by 1 … 16, and by what comes of halving it
S = 4 * ELEMENTS  # bytes, and picoseconds on a link
GIB = 2**30


def ports(n, bandwidth=BYTE_A_PICOSECOND, latency=A):
    """Ranks behind a switch: a port out and a port in each."""
    links = {f"{way}{i}": LinkSpec(f"{way}{i}", bandwidth) for i in range(n) for way in ("out", "in")}
    return Fabric(links, lambda a, b: Route((f"out{a}", f"in{b}"), (latency, 0)), n, tuple(range(n)))


def physical_ring(n, bandwidth=BYTE_A_PICOSECOND, latency=A):
    """A cable from each rank to the next and nothing else."""
    links = {f"cable{i}": LinkSpec(f"cable{i}", bandwidth) for i in range(n)}

    def route(sender, receiver):
        assert receiver == (sender + 1) % n
        return Route((f"cable{sender}",), (latency,))

    return Fabric(links, route, n, tuple(range(n)))


def cluster(k, g, nvlink=BYTE_A_PICOSECOND, infiniband=BYTE_A_PICOSECOND / 4, in_switch=False):
    """k nodes of g GPUs with a NIC each."""
    node = NodeSpec(g, PortSpec(nvlink, A), PortSpec(infiniband, 5 * A), g, in_switch)
    return nodes(ClusterSpec((node,) * k))


def alone(name, fabric, ranks, elements=ELEMENTS, **more):
    sizes = codec("fp32").build()
    return measure(fabric, name, [range(ranks)], lambda group, place: Buffer(elements, sizes), **more)


def per_rank(outcome, n):
    return Fraction(outcome.bytes, n * S)


@pytest.mark.parametrize("wiring", [ports, physical_ring])
@pytest.mark.parametrize("n", range(2, 17))
def test_a_ring_takes_the_same_time_on_switch_and_cables(n, wiring):
    for name, rounds in (("ring", 2), ("ring-reduce-scatter", 1), ("ring-all-gather", 1)):
        outcome = alone(name, wiring(n), n)
        assert outcome.duration == rounds * (n - 1) * (A + S // n)
        assert per_rank(outcome, n) == Fraction(rounds * (n - 1), n)


@pytest.mark.parametrize("n", range(2, 17))
def test_all_to_all_fills_the_senders_ports(n):
    outcome = alone("all-to-all", ports(n), n)
    assert outcome.duration == A + (n - 1) * S // n
    assert per_rank(outcome, n) == Fraction(n - 1, n)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_recursive_algorithms_on_powers_of_two(n):
    rounds = n.bit_length() - 1
    for partner in ("nearest", "farthest"):
        halving = alone("halving-doubling", ports(n), n, options={"partner": partner})
        assert halving.duration == 2 * rounds * A + 2 * (n - 1) * S // n
        assert per_rank(halving, n) == Fraction(2 * (n - 1), n)
    doubling = alone("recursive-doubling", ports(n), n)
    assert doubling.duration == rounds * (A + S)
    assert per_rank(doubling, n) == rounds


@pytest.mark.parametrize("n", range(2, 17))
@pytest.mark.parametrize("partner", ["nearest", "farthest"])
def test_halves_of_halving_doubling_take_half_of_it(n, partner):
    scattered, gathered = (
        alone(name, ports(n), n, options={"partner": partner})
        for name in ("halving-reduce-scatter", "doubling-all-gather")
    )
    core = 1 << n.bit_length() - 1
    if n == core:
        rounds = n.bit_length() - 1
        assert scattered.duration == gathered.duration == rounds * A + (n - 1) * S // n
        assert per_rank(scattered, n) == per_rank(gathered, n) == Fraction(n - 1, n)
        return
    # between the core, 2^k ranks send all but their own shards; whole buffers and shards pass to guests and from them
    guests = n - core
    assert scattered.bytes == gathered.bytes == core * S - S + guests * (S + S // n)
    least = A * (core.bit_length() + 1) + S // n + (n - 2) * S // n
    assert least <= gathered.duration and least + S <= scattered.duration + S // 2


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 12, 13, 15])
def test_recursive_algorithms_elsewhere_take_two_whole_messages_more(n):
    core = 1 << n.bit_length() - 1
    for name, options, late in [
        ("halving-doubling", {"partner": "nearest"}, S // 2),  # who has no guest is ahead, and takes turns at ports
        ("halving-doubling", {"partner": "farthest"}, 0),
        ("recursive-doubling", {}, 0),
    ]:
        at_core, outcome = (alone(name, ports(size), size, options=options) for size in (core, n))
        early = at_core.duration + 2 * (A + S) - outcome.duration
        assert -late <= early <= core.bit_length() * A  # who has no guest sends its first messages before the others do
        assert outcome.bytes == at_core.bytes + 2 * (n - core) * S


@pytest.mark.parametrize(("partner", "buffers", "milliseconds"), [("nearest", 4, 10.7), ("farthest", 6.25, 16.8)])
def test_the_first_partner_decides_what_crosses_the_spine(partner, buffers, milliseconds):
    """8 nodes under leaves of 2, 4:1, 64 MiB at 25 GB/s; an exchange beyond a leaf takes four times its own."""
    node = NodeSpec(1, PortSpec(BYTE_A_PICOSECOND, 0), PortSpec(Fraction(25 * 10**9), 0), 1)
    fabric = leaf_spine(ClusterSpec((node,) * 8), LeafSpine(leaf_size=2, oversubscription=4))
    size = 64 * 2**20
    outcome = alone("halving-doubling", fabric, 8, size // 4, sharing="fair", options={"partner": partner})
    assert outcome.duration == pytest.approx(buffers * size * 40, rel=1e-6)  # 40 ps a byte
    assert outcome.duration / 10**9 == pytest.approx(milliseconds, abs=0.05)


@pytest.mark.parametrize("n", [*range(2, 17), 31, 64])
def test_both_trees_span_all_ranks_and_share_the_work(n):
    depth = 0
    work = [0] * n
    for tree in (0, 1):
        kin = [family(rank, n, tree) for rank in range(n)]
        assert [parent for parent, _ in kin].count(None) == 1
        for rank, (parent, children) in enumerate(kin):
            assert all(kin[child][0] == rank for child in children)
            assert parent is None or rank in kin[parent][1]
            work[rank] += len(children) + (parent is not None)
            steps = 0
            while parent is not None:
                parent, steps = kin[parent][0], steps + 1
            depth = max(depth, steps)
    assert max(work) <= 4  # three as an inner rank, one as a leaf
    assert depth <= n.bit_length()
    if n & (n - 1) == 0:
        inner = [{rank for rank in range(n) if family(rank, n, tree)[1]} for tree in (0, 1)]
        assert not inner[0] & inner[1]
        assert len(inner[0] | inner[1]) == n
        assert depth == n.bit_length() - 1


@pytest.mark.parametrize("n", [8, 12, 16, 32, 64])
def test_double_binary_tree_is_near_its_bandwidth_and_latency_bounds(n):
    fabric = ports(n, Fraction(25 * GIB), 10**6)
    large = alone("double-binary-tree", fabric, n, GIB // 4)
    whole = 2 * 10**12 // 25  # 2S/B of 1 GiB at 25 GiB/s, ps
    assert 2 * (n - 1) / n * 0.5 * whole < large.duration < 1.1 * whole
    assert large.bytes == 2 * (n - 1) * GIB  # every piece goes up and down every edge once
    small = alone("double-binary-tree", fabric, n, 2)
    assert small.duration == pytest.approx(2 * (n - 1).bit_length() * 10**6, rel=0.01)


@pytest.mark.parametrize(("k", "g"), [(2, 2), (2, 3), (3, 4), (4, 2), (1, 5), (5, 1)])
def test_hierarchical_is_the_sum_of_its_phases_in_one_part(k, g):
    outcome = alone("hierarchical", cluster(k, g), k * g, options={"pieces": 1})
    in_node = (g - 1) * (A + S // g)
    between = 2 * (k - 1) * (5 * A + 4 * S // (g * k))
    assert outcome.duration == 2 * in_node + between
    assert per_rank(outcome, k * g) == Fraction(2 * (g - 1), g) + Fraction(2 * (k - 1), g * k)


@pytest.mark.parametrize(("k", "g"), [(2, 2), (2, 3), (3, 4), (4, 2), (1, 5), (5, 1)])
@pytest.mark.parametrize("name", ["hierarchical-reduce-scatter", "hierarchical-all-gather"])
def test_halves_of_hierarchical_are_the_sum_of_two_phases(k, g, name):
    outcome = alone(name, cluster(k, g), k * g, options={"pieces": 1})
    assert outcome.duration == (g - 1) * (A + S // g) + (k - 1) * (5 * A + 4 * S // (g * k))
    assert per_rank(outcome, k * g) == Fraction(k * g - 1, k * g)
    assert alone(name, cluster(k, g), k * g).duration <= outcome.duration or 1 in (k, g)


@pytest.mark.parametrize(("k", "g"), [(2, 4), (4, 4), (3, 2)])
def test_pieces_of_hierarchical_overlap_its_phases(k, g):
    outcome = alone("hierarchical", cluster(k, g), k * g)
    in_node = (g - 1) * (A + S // g)
    between = 2 * (k - 1) * (5 * A + 4 * S // (g * k))
    assert max(in_node, between) < outcome.duration < 2 * in_node + between
    whole = alone("hierarchical", cluster(k, g), k * g, options={"pieces": 1})
    assert outcome.duration < 0.8 * whole.duration
    assert outcome.bytes == whole.bytes


def test_hierarchical_wants_as_many_members_on_every_node():
    fabric = cluster(2, 4)
    with pytest.raises(Refusal, match="not 4 on node 0, 1 on node 1"):
        alone("hierarchical", fabric, 5)


@pytest.mark.parametrize(("n", "servers"), [(n, k) for n in (2, 3, 4, 6, 8, 16) for k in (1, 2, 3, 4) if k <= n])
def test_dedicated_servers_take_two_latencies_and_the_busier_port_twice(n, servers):
    fabric = ports(n + servers)
    options = {"servers": servers, "servers_on": "hosts"}
    outcome = alone("parameter-server", fabric, n, options=options, spare=range(n, n + servers))
    assert outcome.duration == 2 * (A + S * n // servers)
    assert per_rank(outcome, n) == 2  # S up from and S down to every rank


@pytest.mark.parametrize("n", range(2, 17))
def test_servers_on_all_ranks_move_a_rings_bytes(n):
    outcome = alone("parameter-server", ports(n), n)
    assert per_rank(outcome, n) == Fraction(2 * (n - 1), n)
    assert outcome.duration == 2 * (A + (n - 1) * S // n)


def test_one_server_is_slower_by_its_number_of_clients():
    n = 8
    outcome = alone("parameter-server", ports(n), n, options={"servers": 1})
    assert outcome.duration == 2 * (A + (n - 1) * S)


def test_servers_need_places_and_say_so():
    with pytest.raises(Refusal, match="needs 3 GPU places that no rank uses; the cluster has 1"):
        alone("parameter-server", ports(5), 4, options={"servers": 3, "servers_on": "hosts"}, spare=[4])
    with pytest.raises(Refusal, match="5 servers on the ranks of a group of 4; at most 4"):
        alone("parameter-server", ports(4), 4, options={"servers": 5})


@pytest.mark.parametrize("n", range(2, 9))
@pytest.mark.parametrize("pieces", [1, 4])
def test_in_network_reduction_takes_every_byte_from_gpus_once(n, pieces):
    outcome = alone("in-switch", cluster(1, n, in_switch=True), n, options={"pieces": pieces})
    assert outcome.duration == A + S + S // pieces
    assert outcome.bytes == n * S
    assert outcome.messages == n * pieces


def test_in_switch_needs_one_node_whose_switch_adds_up():
    with pytest.raises(Refusal, match="not on nodes 0, 1"):
        alone("in-switch", cluster(2, 4, in_switch=True), 8)
    with pytest.raises(Refusal, match="node 0 has no in-network reduction"):
        alone("in-switch", cluster(1, 4), 4)


@pytest.mark.slow
def test_a_ring_on_a_gibibyte_takes_what_another_simulator_says():
    # ASTRA-sim analytical on a physical ring of 25 GiB/s and 1 µs
    for n, milliseconds in ((8, 70.014), (64, 78.876), (256, 80.198)):
        for wiring in (physical_ring, ports):
            outcome = alone("ring", wiring(n, Fraction(25 * GIB), 10**6), n, GIB // 4)
            assert outcome.duration / 10**9 == pytest.approx(milliseconds, rel=1e-3)


def test_shared_nics_make_groups_wait_for_each_other():
    """Two rings between the same two nodes, over one NIC each or one for both: the time doubles."""
    sizes = codec("fp32").build()
    took = []
    for nics in (2, 1):
        node = NodeSpec(2, PortSpec(None, 0), PortSpec(BYTE_A_PICOSECOND, 0), nics)
        fabric = nodes(ClusterSpec((node, node)))
        took.append(measure(fabric, "ring", [(0, 2), (1, 3)], lambda group, place: Buffer(ELEMENTS, sizes)).duration)
    assert took == [S, 2 * S]


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert collectives.bus_factor("all-reduce", 8) == Fraction(14, 8)
    assert {collectives.bus_factor(does, 4) for does in ("reduce-scatter", "all-gather", "all-to-all")} == {
        Fraction(3, 4)
    }


def test_every_message_has_a_row():
    trace = Recorder(Rows(MESSAGE_COLUMNS))
    outcome = alone("hierarchical", cluster(2, 2), 4, trace=trace)
    sent = [row for row in trace.messages.table()["channel"] if trace.channels[row].hop == 0]
    assert len(sent) == outcome.messages


def test_an_unknown_collective_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match='did you mean "double-binary-tree"'):
        collectives.find("double-tree")


def test_an_idle_network_is_like_a_new_one():
    fabric, views, fp32 = cluster(2, 2), {}, codec("fp32").build()
    network = Transport(Links(Environment(), fabric, "fifo"), Recorder())
    for ranks in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 2)):  # of which members of one name have other peers
        group = collectives.process_group("ring", collectives.Site(fabric, ranks, ()))
        members, ring = [(group, place) for place in range(len(ranks))], collectives.configured("ring")
        took = run_collective(network, ring, members, lambda *_: Buffer(ELEMENTS, fp32), views=views)
        assert took == measure(fabric, "ring", [ranks], lambda *_: Buffer(ELEMENTS, fp32))
