"""Every all-reduce with every codec leaves equal replicas, whatever type, size, error feedback and buckets are."""

from itertools import combinations, product

import pytest
from support.campaigns import thinned
from support.scenarios import scenario

from hybrid_des import collectives
from hybrid_des.cluster.time_table import TimeTable
from hybrid_des.collectives import codecs
from hybrid_des.shortcuts.run import run

TABLE = TimeTable(((1000, 10**6), (10**6, 10**9)))
SMALL = {"layers": 2, "width": 16, "batch": 1}
SIZES = (2, 3, 6)
SETTINGS = list(product(("fp32", "fp64"), (False, True), ("none", "1 kB")))  # type, error feedback, bucket


def cases(turn):
    """A quarter of all sizes and settings, with every pair of values: two opposite settings for each size."""
    for place, replicas in enumerate(SIZES):
        one = (turn + place) % 4
        yield replicas, *SETTINGS[one]
        yield replicas, *SETTINGS[7 - one]


def test_codecs_take_turns_at_all_sizes_and_settings():
    taken = [set(cases(turn)) for turn, _ in enumerate(codecs.names())]
    assert set.union(*taken) == {(replicas, *others) for replicas, others in product(SIZES, SETTINGS)}
    for one in taken:
        for a, b in combinations(range(4), 2):
            assert {(case[a], case[b]) for case in one} == set(product(*({case[i] for case in one} for i in (a, b))))


TURNS = list(enumerate(codecs.names()))


@pytest.mark.parametrize(
    ("turn", "codec"), thinned(TURNS, slow=[one for one in TURNS if one[1] not in ("fp16", "int8", "top-k")])
)
@pytest.mark.parametrize("algorithm", collectives.algorithms())
def test_replicas_are_bit_identical_after_two_steps(algorithm, turn, codec):
    differences = {}
    for replicas, dtype, feedback, bucket in cases(turn):
        gradients = {"algorithm": algorithm, "codec": codec, "error_feedback": feedback, "bucket": bucket}
        gradients |= {"table": TABLE} if algorithm == "measured" else {}
        cluster = {"gpus_per_node": replicas + 1, "nvlink": {"in_switch": True}}
        numerics = {**SMALL, "dtype": dtype}
        one = scenario(
            "gpipe", 1, 1, replicas, cluster=cluster, gradients=gradients, numerics=numerics, steps=2, record="none"
        )
        differences[replicas, dtype, feedback, bucket] = run(one).numerics["replica_difference"]
    assert list(differences.values()) == [0] * 6, differences
