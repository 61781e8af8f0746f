"""Collectives under way slow the computation beside them: exactly by the time that they take from it."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_des.analysis.metrics import summary
from hybrid_des.cost_model.slowdown import Slowdown
from hybrid_des.engine.clock import Environment
from hybrid_des.report.terminal import render
from hybrid_des.result import simulate
from hybrid_des.scenario import sizes
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.computation import NANOSECOND, Computation

QUARTER = Fraction(1, 4)
OVERLAPPED = {"model": "gpt2", "batch": 16, "cluster": {"gpu": "a100-80gb"}, "parallel": {"data": 8},
              "gradients": {"overlap": True, "bucket": "20 MB", "bucket_rule": "megatron"}}  # fmt: skip


def slowed(share, **more):
    return run(load({**OVERLAPPED, **more, "efficiency": {"slowed": share}}))


def busy(result):
    ops = result.timeline.ops
    return int((ops["end"] - ops["start"]).sum())


def computing(duration, *periods, env=None):
    """When computation ends beside collectives: (share, begin, end, whether the end is known at the begin)."""
    env = Environment()
    computation = Computation(env)

    def collective(share, begin, end, known):
        yield env.timeout(begin)
        if known:
            computation.during(share, env.now, end)
        else:
            period = computation.during(share, env.now)
            yield env.timeout(end - begin)
            computation.over(period)

    for period in periods:
        env.process(collective(*period))
    env.process(computation.lasting(duration, None))
    env.run()
    return computation.slowed


MS = 10**9


def test_of_two_collectives_at_once_the_larger_share_counts():
    periods = (QUARTER, 100 * MS, 300 * MS, False), (Fraction(1, 2), 200 * MS, 400 * MS, False)
    assert computing(500 * MS, *periods) == 100 * MS * QUARTER + 200 * MS // 2
    assert computing(100 * MS, *periods) == 0


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.sampled_from([QUARTER, Fraction(1, 3)])), max_size=6)
)
def test_known_ends_and_others_take_the_same(gaps):
    """Each takes its share of the time beside; of the last nanosecond nothing."""
    periods, now = [], 0
    for idle, during, share in gaps:
        periods.append((share, now + idle * MS, now + (idle + during) * MS))
        now = periods[-1][-1]
    taken = [computing(now or MS, *((*one, known) for one in periods)) for known in (False, True)]
    assert abs(taken[0] - taken[1]) <= NANOSECOND
    assert abs(taken[1] - sum((end - begin) * share for share, begin, end in periods)) <= NANOSECOND


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


@pytest.mark.parametrize("sharding", ["none", "zero-1", "zero-3"])
def test_folded_replicas_are_slowed_as_whole_ones(monkeypatch, sharding):
    monkeypatch.setattr(sizes, "FOLDED_FROM", 2)
    gathered = {"overlap": {"parameters": True}, "sharding": sharding} if sharding != "none" else {}
    gradients = {} if sharding == "zero-3" else {**OVERLAPPED["gradients"], "pad": True}
    whole, folded = (slowed(0.25, **gathered, gradients=gradients, fold=fold) for fold in ("off", "auto"))
    assert len(folded.ranks) < len(whole.ranks)
    assert folded.duration == whole.duration
    assert folded.slowed * len(whole.ranks) == whole.slowed * len(folded.ranks) > 0


def test_context_ranks_slow_attention_replayed_or_by_messages():
    """By the share of the time of their ring, the same in both."""
    long = {"base": "gpt2", "sequence": 32_768, "layers": 2}
    given = {"model": long, "parallel": {"context": 4}, "batch": 1, "gradients": {}}
    found = [slowed(share, **given, tensor_traffic=mode) for mode in ("replay", "messages") for share in (0, 0.25)]
    replayed, by_messages = (after.duration - before.duration for before, after in (found[:2], found[2:]))
    assert replayed == found[1].slowed / 4 > 0
    assert by_messages == pytest.approx(replayed, rel=0.01)


def test_times_that_are_given_are_not_slowed():
    workload = {"forward": "1 ms", "backward": "2 ms", "parameters": 1e7}
    gradients = {"overlap": True, "bucket": "1 MB", "bucket_rule": "ddp"}
    scenario = load({"workload": workload, "gradients": gradients, "parallel": {"data": 4},
                     "schedule": {"kind": "gpipe", "microbatches": 2}})  # fmt: skip
    assert run(scenario).slowed is None
    assert "slowed_s" not in summary(run(scenario))


@pytest.mark.parametrize(("beyond", "moving", "share"), [(False, 0, "1/4"), (True, 0, "3/20"), (True, 1, "19/100")])
def test_the_share_depends_on_transport_and_kind_of_work(beyond, moving, share):
    assert Slowdown.of(QUARTER, None, None).lost(beyond=beyond, moving=Fraction(moving)) == Fraction(share)


def test_the_report_tells_what_it_cost():
    result = simulate(load(OVERLAPPED))
    text = render(result)
    assert "slowed compute" in text
    assert "slowed down by communication" not in text
