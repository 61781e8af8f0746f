"""Recorded times of collectives on other numbers of ranks than recorded."""

from fractions import Fraction

import pytest
from support.profiles import Kineto

from hybrid_des import load, simulate
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.planning.given_collectives import scale_of
from hybrid_des.report.terminal import render


def test_times_are_in_the_ratio_of_a_rings_bytes():
    assert scale_of("all-reduce", 2, 16) == Fraction(15, 8)
    assert scale_of("all-gather", 4, 2) == Fraction(2, 3)
    assert scale_of("broadcast", 2, 16) == scale_of("all-reduce", None, 16) == scale_of("all-reduce", 1, 16) == 1


def test_replicas_added_to_a_profile_cost_communication(tmp_path):
    """10 ms of work and an all-reduce of 8 ms on two ranks: on sixteen it takes 15 ms."""
    trace = Kineto(0, 2)
    trace.note("ProfilerStep#1", 0, 30_000)
    trace.kernel("gemm", 0, 10_000)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10_000, 8_000, **{
        "Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 2,
        "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    })  # fmt: skip
    import_profile(trace.write(tmp_path / "rank0.json")).write(tmp_path / "out")
    file = tmp_path / "out" / "scenario.yaml"
    assert simulate(load(file)).summary["step_time_s"] == pytest.approx(0.018)
    more = simulate(load(file, ["parallel.data=16", "cluster.gpus_per_node=16"]))
    assert more.summary["step_time_s"] == pytest.approx(0.025)
    assert "recorded on 2 ranks are scaled to 16" in render(more, width=400)
