"""User-defined wirings, link by link: shortest paths, and the refusals of these and other topologies."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.campaigns import TIMES
from support.fabrics import build, node, star, wires
from support.messages import GB, MS, carry

from hybrid_des.cluster.topologies.links import Wire
from hybrid_des.errors import Refusal


@pytest.mark.parametrize(
    ("name", "nodes", "options", "message"),
    [
        ("mesh", [node(8)] * 256, {}, "a mesh of 2048 GPUs would need 4192256 links; at most 512 GPUs"),
        ("rails", [node(4, 4), node(4, 2)], {}, "the same number of NICs in every node, not 2 and 4"),
        ("rails", [node(2, 4)], {}, "2 GPUs leave some of the 4 rails empty"),
        ("rails", [node()], {"oversubscription": 2}, "cross_rail: spine"),
        ("links", [node(2)], {}, "no path from gpu0 to gpu1; the cluster has 2 GPUs, gpu0 … gpu1"),
        ("links", [node(3)], {"links": star(2)}, "from gpu0 to gpu2"),
        ("links", [node(2)], {"links": star(3)}, 'there is no "gpu2"; the cluster has 2 GPUs'),
        ("links", [node(2)], {"links": wires("gpu0-gpu1", "gpu00-a")}, 'there is no "gpu00"'),
        ("links", [node(2)], {"links": star(2) + star(1)}, "duplicate link from gpu0 to hub"),
        ("links", [node(2)], {"links": star(2) + wires("hub-gpu0", one_way=True)}, "duplicate link from hub to gpu0"),
        ("links", [node(3)], {"links": wires("gpu0-gpu1", "gpu2-a")}, "no path from gpu0 to gpu2"),
        ("links", [node(3)], {"links": wires("gpu0-gpu1") + wires("gpu2-gpu0", one_way=True)}, "from gpu0 to gpu2"),
        ("links", [node(3)], {"links": wires("gpu0-gpu1") + wires("gpu0-gpu2", one_way=True)}, "from gpu2 to gpu0"),
        ("links", [node(2)], {"links": star(2), "routes": (("gpu0", "b", "gpu1"),)}, "no link from gpu0 to b"),
        ("links", [node(2)], {"links": star(2), "routes": (("gpu0", "hub"),)}, '"hub" is not one'),
        ("links", [node(2)], {"links": star(2), "routes": (("gpu0", "hub", "gpu7"),)}, '"gpu7" is not one'),
        ("links", [node(2)], {"links": star(2), "routes": (("gpu1", "hub", "gpu1"),)}, "from gpu1 to itself"),
        ("links", [node(2)], {"links": star(2), "routes": (("gpu0", "hub", "gpu1"),) * 2}, "duplicate route from gpu0"),
    ],
)
def test_what_cannot_be_wired_is_said_in_one_line(name, nodes, options, message):
    with pytest.raises(Refusal) as error:
        build(name, *nodes, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_of_links_is_walked_along_the_shortest_path():
    pairs = ("gpu0-a", "a-b", "b-gpu1", "a-c", "c-gpu1", "gpu0-x", "x-y", "y-z", "z-gpu1")
    fabric = build("links", node(2), links=wires(*pairs, latency=3))
    assert fabric.route(0, 1).links == ("gpu0/to/a", "a/to/b", "b/to/gpu1")  # b stands before c
    assert fabric.route(0, 1).latency == 9
    given = build("links", node(2), links=wires(*pairs), routes=(("gpu0", "x", "y", "z", "gpu1"),))
    assert given.route(0, 1).links == ("gpu0/to/x", "x/to/y", "y/to/z", "z/to/gpu1")
    assert given.route(1, 0).links == ("gpu1/to/b", "b/to/a", "a/to/gpu0")


@st.composite
def one_way_links(draw):
    """GPUs, and pairs of points: a cycle through all GPUs and some switches, and any other pairs."""
    gpus = [f"gpu{gpu}" for gpu in range(draw(st.integers(2, 4)))]
    cycle = draw(st.permutations([*gpus, *draw(st.sets(st.sampled_from("abc")))]))
    others = st.sampled_from(list(permutations([*gpus, *"abc"], 2)))
    pairs = [*zip(cycle, [*cycle[1:], cycle[0]], strict=True), *draw(st.lists(others, max_size=12))]
    return gpus, list(dict.fromkeys(draw(st.permutations(pairs))))


def over(gpus, pairs):
    """The fabric of one-way links whose latencies count them."""
    ways = tuple(Wire(between=pair, bandwidth=GB, latency="1 ps", one_way=True) for pair in pairs)
    return build("links", node(len(gpus)), links=ways)


@settings(max_examples=30 * TIMES)
@given(one_way_links())
def test_routes_over_any_list_of_links_are_shortest(case):
    gpus, pairs = case
    points = [*gpus, *"abc"]
    far = len(points) + 1
    distance = {(a, b): 0 if a == b else 1 if (a, b) in pairs else far for a in points for b in points}
    for via in points:
        for a in points:
            for b in points:
                distance[a, b] = min(distance[a, b], distance[a, via] + distance[via, b])
    fabric = over(gpus, pairs)
    for a, b in permutations(range(len(gpus)), 2):
        assert len(fabric.route(a, b).links) == fabric.route(a, b).latency == distance[f"gpu{a}", f"gpu{b}"] < far


@settings(max_examples=30 * TIMES)
@given(one_way_links(), st.integers(0, 1), st.data())
def test_a_gpu_without_a_way_in_or_out_is_refused(case, end, data):
    gpus, pairs = case
    alone = data.draw(st.sampled_from(gpus))
    with pytest.raises(Refusal, match="no path from gpu"):
        over(gpus, [pair for pair in pairs if pair[end] != alone])


@pytest.mark.parametrize(("senders", "milliseconds"), [(1, 100), (4, 100), (8, 200), (6, 150)])
def test_the_spine_of_the_contract(senders, milliseconds):
    """NICs of 10 GB/s that send 1 GB each at once through one 40 GB/s spine."""
    n = 2 * senders
    nics = wires(*(f"gpu{gpu}-{'left' if gpu < senders else 'right'}" for gpu in range(n)), bandwidth=10 * GB)
    fabric = build("links", node(n), links=nics + wires("left-right", bandwidth=40 * GB))
    arrived, _ = carry(fabric, [(0, gpu, gpu + senders, GB) for gpu in range(senders)])
    assert max(arrived) == milliseconds * MS
    if senders <= 4:
        assert arrived == [milliseconds * MS] * senders
