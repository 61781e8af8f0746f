"""Every combination of all-reduce, codec, type, group size, error feedback and buckets leaves equal replicas."""

from itertools import product

import pytest
from support.scenarios import scenario

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.network.times import TimeTable
from hybrid_des.simulation.run import run

TABLE = TimeTable(((1000, 10**6), (10**6, 10**9)))
SMALL = {"layers": 2, "width": 16, "batch": 1}


@pytest.mark.parametrize("codec", codecs.names())
@pytest.mark.parametrize("algorithm", collectives.algorithms())
def test_replicas_are_bit_identical_after_two_steps(algorithm, codec):
    differences = {}
    for replicas, dtype, feedback, bucket in product((2, 3, 6), ("fp32", "fp64"), (False, True), ("none", "1 kB")):
        gradients = {"algorithm": algorithm, "codec": codec, "error_feedback": feedback, "bucket": bucket}
        gradients |= {"table": TABLE} if algorithm == "measured" else {}
        cluster = {"gpus_per_node": replicas + 1, "nvlink": {"in_switch": True}}
        numerics = {**SMALL, "dtype": dtype}
        one = scenario(
            "gpipe", 1, 1, replicas, cluster=cluster, gradients=gradients, numerics=numerics, steps=2, record="none"
        )
        differences[replicas, dtype, feedback, bucket] = run(one).numerics["replica_difference"]
    assert set(differences.values()) == {0}, differences
