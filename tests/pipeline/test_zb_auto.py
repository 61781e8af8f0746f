"""The search: within its limit, no worse than the hand-made orders, close to the published figures."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracle
from support.campaigns import TIMES
from support.plans import UNIT, plan_of, rows, timing_of

from hybrid_des.errors import Refusal
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import WEIGHT_SHARE, PlanRequest
from hybrid_des.pipeline.schedules.zb_auto import OpTimes, evaluate

TABLE = {(row["p"], row["m"], row["schedule"]): row for row in rows("zero_bubble_table5.csv")}
KINDS = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved-1f1b",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-1p": "zb-auto",
    "ZB-2p": "zb-auto",
}
FARTHEST = {"1F1B": 0.00005, "1F1B-I": 0.004, "ZB-H1": 0.00005, "ZB-H2": 0.00005, "ZB-1p": 0.00005, "ZB-2p": 0.0005}


MOST_SEARCHED = 32 * TIMES  # micro-batches of zb-auto; rows of 128 take seconds each, and hold too
QUICK = [row for row in TABLE.values() if KINDS[row["schedule"]] != "zb-auto" or int(row["m"]) <= MOST_SEARCHED]


@pytest.mark.parametrize("row", QUICK, ids=lambda row: f"{row['schedule']}-{row['p']}-{row['m']}")
def test_published_bubble_rates(row):
    p, m = int(row["p"]), int(row["m"])
    costs = tuple(round(float(row[key]) * UNIT) for key in ("T_F_ms", "T_B_ms", "T_W_ms"))
    delay = round(float(row["T_comm_ms"]) * UNIT)
    limit = {"ZB-1p": Fraction(p), "ZB-2p": Fraction(2 * p)}.get(row["schedule"])
    plan = plan_of(KINDS[row["schedule"]], p, m, int(row["chunks"]), costs, delay, max_activations=limit)
    if limit:
        assert max(oracle.peaks(plan, [WEIGHT_SHARE] * p)) <= limit
    cost = timing_of(plan, costs, delay).span
    rate = (cost - m * sum(costs)) / cost
    assert rate == pytest.approx(float(row["bubble_rate"]), rel=0, abs=FARTHEST[row["schedule"]] + 1e-9)


times = st.integers(0, 20)


@st.composite
def pipelines(draw):
    p = draw(st.integers(1, 8))
    alike = draw(st.booleans())
    costs = tuple([draw(times)] * p if alike else draw(st.lists(times, min_size=p, max_size=p)) for _ in range(3))
    return p, draw(st.integers(1, 20)), costs, draw(st.integers(0, 10))


@pytest.mark.slow
@settings(max_examples=15 * TIMES)
@given(pipelines())
def test_the_search_is_no_worse_than_handmade_orders(case):
    p, m, costs, delay = case
    searched = {}
    for limit in (p, 2 * p):
        plan = plan_of("zb-auto", p, m, 1, costs, delay, max_activations=Fraction(limit))
        assert max(oracle.peaks(plan, [WEIGHT_SHARE] * p)) <= limit
        searched[limit] = timing_of(plan, costs, delay)
    assert searched[p].time <= timing_of(plan_of("zb-h1", p, m), costs, delay).time
    assert searched[2 * p].span <= timing_of(plan_of("zb-h2", p, m), costs, delay).span


@pytest.mark.parametrize("limit", [8, 12, 16])
def test_each_rank_may_be_a_forward_ahead_of_the_next(limit):
    """Section 3.1 of the paper: one forward fewer may be in flight on every further rank; the ends are lighter here."""
    costs = tuple([2 * time, *[3 * time] * 6, 2 * time] for time in (6, 6, 4))
    plan = plan_of("zb-auto", 8, 24, 1, costs, 1, max_activations=Fraction(limit))
    assert all(most <= limit - rank for rank, most in enumerate(oracle.peaks(plan, [0] * 8)))


def test_slow_sends_are_worth_more_forwards_ahead():
    """F = I = W = the delay: 39 instead of 41 of them."""
    plan = plan_of("zb-auto", 4, 8, 1, (UNIT, UNIT, UNIT), UNIT, max_activations=Fraction(4))
    assert timing_of(plan, (UNIT, UNIT, UNIT), UNIT).time == 39 * UNIT
    assert oracle.peaks(plan, [0] * 4)[1] == 4


@settings(max_examples=20 * TIMES)
@given(pipelines(), st.sampled_from(["zb-h1", "zb-h2", "zb-auto"]))
def test_the_clock_of_the_search_is_the_oracles(case, kind):
    p, m, costs, delay = case
    plan = plan_of(kind, p, m, 1, costs, delay)
    programs = [[op for (op,) in program] for program in plan.programs]
    lengths = {k: tuple(c) for k, c in zip("FIW", costs, strict=True)}
    timing = timing_of(plan, costs, delay)
    assert evaluate(OpTimes(lengths, delay), programs) == (timing.span, timing.time)


def test_without_times_all_ops_are_alike():
    bare = schedules.make_plan("zb-auto", PlanRequest(4, 8))
    assert bare == plan_of("zb-auto", 4, 8, 1, (5, 5, 5))


@pytest.mark.slow
@settings(max_examples=20 * TIMES)
@given(pipelines(), st.data())
def test_the_peak_keeps_the_limit(case, data):
    p, m, costs, delay = case
    limit = data.draw(st.fractions(1, 3 * p, max_denominator=4))
    share = tuple(data.draw(st.lists(st.fractions(0, 1, max_denominator=100), min_size=p, max_size=p)))
    plan = plan_of("zb-auto", p, m, 1, costs, delay, weight_share=share, max_activations=limit)
    assert max(oracle.peaks(plan, share)) <= limit


@pytest.mark.parametrize("share", [Fraction(0), Fraction(1, 2), Fraction(1)])
def test_more_memory_saves_time(share):
    spans = [
        timing_of(
            plan_of("zb-auto", 4, 16, 1, (3, 4, 2), weight_share=(share,) * 4, max_activations=Fraction(limit)),
            (3, 4, 2),
        ).span
        for limit in (1, 2, 4, 7)
    ]
    assert spans == sorted(spans, reverse=True)
    assert len(set(spans)) == 4


def test_less_than_one_micro_batch_is_refused():
    with pytest.raises(Refusal, match="at least 1"):
        plan_of("zb-auto", 4, 8, max_activations=Fraction(1, 2))
