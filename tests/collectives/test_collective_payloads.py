"""Every collective gives the right numbers, and all ranks the same bits, whatever the codec loses on the way."""

from itertools import pairwise, product

import numpy as np
import pytest
from support.campaigns import thinned

from hybrid_des import collectives
from hybrid_des.cluster.fabric import ClusterSpec, NodeSpec, PortSpec
from hybrid_des.cluster.time_table import TimeTable
from hybrid_des.cluster.topologies.nodes import nodes
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs.registration import find as codec
from hybrid_des.units import split_evenly

LENGTH = 1003
TABLE = TimeTable(((1000, 10**6), (10**6, 10**9)))
OPTIONS = (
    {},
    {"pieces": 1},
    {"pieces": 7},
    {"servers": 1},
    {"servers": 2, "servers_on": "hosts"},
    {"partner": "farthest"},
)
CASES = [
    (name, options)
    for name in collectives.all_reduces({"table": TABLE})
    for options in (({"table": TABLE},) if name == "measured" else OPTIONS)
    if set(options) <= set(collectives.find(name).keys)
]


def cluster(ranks, per_node):
    node = NodeSpec(per_node, PortSpec(10**9, 1000), PortSpec(10**9, 5000), per_node, in_switch=True)
    return nodes(ClusterSpec((node,) * -(-(ranks + 3) // per_node)))


def reduce(names, ranks, codec_name, options, seed=0, residuals=None, per_node=None, sharing="fifo"):
    """What every rank holds after one collective, or several in turn, and what it began with."""
    per_node = per_node or ranks + 3
    random = np.random.default_rng(seed)
    before = random.normal(size=(ranks, LENGTH))
    arrays = [*before.copy(), *np.zeros((4, LENGTH))]
    chosen = codec(codec_name).build()
    fabric = cluster(ranks, per_node)

    def buffer(group, place):
        residual = residuals[place] if residuals is not None and place < ranks else None
        return Buffer(LENGTH, chosen, arrays[place], residual)

    for name in [names] if isinstance(names, str) else names:
        measure(fabric, name, [range(ranks)], buffer, options=options, spare=range(ranks, fabric.gpus), sharing=sharing)
    return np.array(arrays[:ranks]), before


def assert_sums(after, before, atol=1e-12):
    """Every rank has the sum, in the same bits."""
    np.testing.assert_allclose(after[0], before.sum(axis=0), rtol=1e-12, atol=atol)
    assert (after == after[0]).all()


def assert_close(after, before, codec_name):
    """Every rank has the same bits, as far from the sum as a codec may be."""
    assert (after == after[0]).all()
    error = np.linalg.norm(after[0] - before.sum(axis=0)) / np.linalg.norm(before.sum(axis=0))
    assert error < {"fp64": 1e-14, "fp32": 1e-6, "fp16": 2e-3, "bf16": 2e-2, "int8": 5e-2}.get(codec_name, 1)


SIZES = [
    (*case, ranks) for case in CASES for ranks in (range(2, 18) if case[0] == "halving-doubling" else (2, 3, 4, 5, 8))
]


@pytest.mark.parametrize(("name", "options", "ranks"), SIZES)
def test_sums_are_right(name, options, ranks):
    assert_sums(*reduce(name, ranks, "fp64", options))


@pytest.mark.parametrize("codec_name", codecs.names())
@pytest.mark.parametrize(("name", "options"), CASES)
def test_replicas_end_with_the_same_bits_under_every_codec(name, options, codec_name):
    for ranks in (4, 6):
        assert_close(*reduce(name, ranks, codec_name, options), codec_name)


@pytest.mark.parametrize("name", collectives.all_reduces({"table": TABLE}))
def test_error_feedback_keeps_replicas_alike_and_recovers_the_loss(name):
    ranks = 4
    residuals = np.zeros((ranks, LENGTH))
    total, wanted = np.zeros(LENGTH), np.zeros(LENGTH)
    errors = []
    for _ in range(30):
        after, before = reduce(name, ranks, "int8", {"table": TABLE}, residuals=residuals)
        assert all((row == after[0]).all() for row in after)
        total, wanted = total + after[0], wanted + before.sum(axis=0)
        errors.append(np.linalg.norm(total - wanted) / np.linalg.norm(wanted))
    assert errors[-1] < errors[0]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_sums_do_not_depend_on_how_links_are_shared(name, options):
    in_order, shared = (reduce(name, 4, "int8", options, sharing=sharing)[0] for sharing in ("fifo", "fair"))
    assert (in_order == shared).all()


def test_hierarchical_sums_across_nodes():
    assert_sums(*reduce("hierarchical", 6, "int8", {"pieces": 3}, per_node=3), atol=0.5)
    assert_sums(*reduce("hierarchical", 6, "fp64", {"pieces": 3}, per_node=3))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_reduce_scatter_and_all_gather_are_halves_of_a_ring(ranks):
    ends = np.cumsum([0, *split_evenly(LENGTH, ranks)])
    pieces = [slice(start, end) for start, end in pairwise(ends)]
    after, before = reduce("ring-reduce-scatter", ranks, "fp64", {})
    for rank in range(ranks):
        mine = pieces[(rank + 1) % ranks]
        np.testing.assert_allclose(after[rank, mine], before.sum(axis=0)[mine], rtol=1e-12, atol=1e-12)
    after, before = reduce("ring-all-gather", ranks, "fp64", {})
    for rank in range(ranks):
        piece = pieces[(rank + 1) % ranks]
        assert (after[:, piece] == before[rank, piece]).all()


HALVED = [(name, options) for name, options in CASES if collectives.phases_of(name)]


@pytest.mark.parametrize(("name", "options"), HALVED)
@pytest.mark.parametrize("ranks", thinned(range(2, 18), slow=[*range(9, 16), 17]))
def test_what_halves_leave_scattered_they_gather(name, options, ranks):
    for per_node in {ranks + 3, 1, ranks // 2 if ranks % 2 == 0 else 1}:
        assert_sums(*reduce(collectives.phases_of(name), ranks, "fp64", options, per_node=per_node))


def test_rings_halving_and_hierarchies_have_halves():
    found = [name for name in collectives.all_reduces({"table": TABLE}) if collectives.phases_of(name)]
    assert found == collectives.all_reduces(halves=True) == ["halving-doubling", "hierarchical", "nccl", "ring"]
    for name in found:
        does = [collectives.find(half).facts["does"] for half in collectives.phases_of(name)]
        assert does == ["reduce-scatter", "all-gather"]


@pytest.mark.parametrize(("name", "options"), HALVED)
def test_halves_end_with_the_same_bits_under_every_codec(name, options):
    for ranks, codec_name in product((4, 6), codecs.names()):
        assert_close(*reduce(collectives.phases_of(name), ranks, codec_name, options, per_node=2), codec_name)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_all_to_all_swaps_pieces(ranks):
    length = LENGTH // ranks * ranks
    random = np.random.default_rng(0)
    before = random.normal(size=(ranks, length))
    after = before.copy()
    exact = codec("fp64").build()
    measure(
        cluster(ranks, ranks), "all-to-all", [range(ranks)], lambda group, place: Buffer(length, exact, after[place])
    )
    blocks = before.reshape(ranks, ranks, -1)
    assert (after.reshape(ranks, ranks, -1) == blocks.transpose(1, 0, 2)).all()


@pytest.mark.parametrize("name", collectives.all_reduces({"table": TABLE}))
def test_a_small_trained_model_sends_the_workloads_bytes(name):
    sizes, chosen = codec("fp32").build(), {"table": TABLE}

    def alone(array):
        return measure(
            cluster(3, 6),
            name,
            [range(3)],
            lambda group, place: Buffer(6000, sizes, array(5)),
            spare=[4],
            options=chosen,
        )

    assert alone(np.ones) == alone(lambda length: None)
