"""Collectives under way slow the computation beside them: exactly by the time that they take from it."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_des.analysis.metrics import summary
from hybrid_des.planning.program import Slowdown
from hybrid_des.report.terminal import render
from hybrid_des.result import simulate
from hybrid_des.scenario import load
from hybrid_des.simulation.communicators import share_lost
from hybrid_des.simulation.gpu import NANOSECOND
from hybrid_des.simulation.run import run
from hybrid_des.simulation.speeds import Beside

QUARTER = Fraction(1, 4)
OVERLAPPED = {"model": "gpt2", "batch": 16, "cluster": {"gpu": "a100-80gb"}, "parallel": {"data": 8},
              "gradients": {"overlap": True, "bucket": "20 MB", "bucket_rule": "megatron"}}  # fmt: skip


def slowed(share, **more):
    return run(load({**OVERLAPPED, **more, "efficiency": {"slowed": share}}))


def busy(result):
    ops = result.timeline.ops
    return int((ops["end"] - ops["start"]).sum())


def test_what_is_lost_is_the_share_of_the_time_beside():
    beside = Beside()
    beside.begin(100, QUARTER)
    beside.begin(200, Fraction(1, 2))  # of two at once, the larger share counts
    beside.end(300, QUARTER)
    beside.end(400, Fraction(1, 2))
    assert beside.lost(0, 500) == 100 * QUARTER + 200 * Fraction(1, 2)
    assert beside.lost(500, 900) == 0


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=8), st.integers(1, 400))
def test_pieces_of_a_period_lose_what_the_whole_loses(gaps, cut):
    whole, pieces = Beside(), Beside()
    now = 0
    for one in (whole, pieces):
        now = 0
        for idle, during in gaps:
            one.begin(now + idle, QUARTER)
            one.end(now + idle + during, QUARTER)
            now += idle + during
    end = now + cut
    expected = sum(during for _, during in gaps) * QUARTER
    assert whole.lost(0, end) == expected
    middle = min(cut, end)
    assert pieces.lost(0, middle) + pieces.lost(middle, end) == expected


def test_the_slowdown_is_what_ops_take_longer():
    without, found = slowed(0), slowed(0.25)
    assert without.slowed is None or without.slowed == 0
    assert found.slowed > 0
    assert busy(found) - busy(without) == found.slowed
    assert found.duration >= without.duration
    most = summary(found)["gradient_communication_s"]["hidden"] * 10**12 * len(found.ranks)
    assert found.slowed <= most * 0.25 / 0.75 + NANOSECOND


def test_nothing_beside_computation_slows_nothing():
    apart = {"gradients": {"overlap": False}}
    assert slowed(0.5, **apart).duration == slowed(0, **apart).duration
    pipeline = {"parallel": {"pipeline": 4}, "schedule": {"kind": "1f1b", "microbatches": 8}, "batch": 8}
    assert slowed(0.5, **pipeline).duration == slowed(0, **pipeline).duration  # copy engines carry its messages


def test_times_that_are_given_are_not_slowed():
    workload = {"forward": "1 ms", "backward": "2 ms", "parameters": 1e7}
    gradients = {"overlap": True, "bucket": "1 MB", "bucket_rule": "ddp"}
    scenario = load({"workload": workload, "gradients": gradients, "parallel": {"data": 4},
                     "schedule": {"kind": "gpipe", "microbatches": 2}})  # fmt: skip
    assert run(scenario).slowed is None
    assert "slowed_s" not in summary(run(scenario))


@pytest.mark.parametrize(("beyond", "moving", "share"), [(False, 0, "1/4"), (True, 0, "3/20"), (True, 1, "19/100")])
def test_the_share_depends_on_transport_and_kind_of_work(beyond, moving, share):
    assert share_lost(Slowdown.of(QUARTER, None, None), beyond=beyond, moving=Fraction(moving)) == Fraction(share)


def test_the_report_tells_what_it_cost():
    result = simulate(load(OVERLAPPED))
    text = render(result)
    assert "slowed compute" in text
    assert "slowed down by communication" not in text
