"""Every schedule against the reference tables, its own law, and the order in which others run it."""

import json
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracle
from support.campaigns import TIMES, thinned
from support.experiments import KINDS
from support.plans import UNIT, options_of, plan_of, rows, timing_of
from support.sizes import chunks_of, exists, grid, sizes
from support.tables import from_table

from hybrid_des.errors import Refusal
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import PlanRequest
from hybrid_des.pipeline.schedules import UniformSizes
from hybrid_des.pipeline.schedules.interleaved import round_length

VARIANTS = sorted({row["variant"] for row in rows("schedules.csv")} - {"zb_h1_auto", "zb_v_sail"})  # others' heuristics


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_table(variant):
    for row in (row for row in rows("schedules.csv") if row["variant"] == variant):
        costs = tuple(round(float(row[key]) * UNIT) for key in "FBW")
        delay = round(float(row["T_C"]) * UNIT)
        p, m, chunks = int(row["p"]), int(row["m"]), int(row["chunks"])
        plan = plan_of(row["kind"], p, m, chunks, costs, delay, **options_of(row["options"]))
        timing = timing_of(plan, costs, delay)
        where = f"p={p} m={m} costs={costs} delay={delay}"
        peak, freed_early = (float(max(oracle.peaks(plan, [share] * p))) for share in (1, 0))
        if row["compare"] == "span":
            assert timing.span <= float(row["span"]) * UNIT * (1 + 1e-9), where
        elif row["compare"].startswith("within"):
            percent = float(row["compare"].split()[1])
            assert timing.time <= float(row["pipeline_time"]) * UNIT * (1 + percent / 100), where
            assert peak <= float(row["peak_if_freed_after_W"]), where
        else:
            assert timing.time == pytest.approx(float(row["pipeline_time"]) * UNIT, rel=1e-9), where
            assert timing.span == pytest.approx(float(row["span"]) * UNIT, rel=1e-9), where
            assert float(timing.bubble) == pytest.approx(float(row["bubble_ratio"]), abs=1e-9), where
            assert peak == float(row["peak_if_freed_after_W"]), where
            assert freed_early == float(row["peak_if_freed_after_B"]), where


@pytest.mark.parametrize("name", thinned(KINDS, slow=["1F1B vpp=2", "Hanayo wave=1", "Hanayo wave=2", "ZBH1"]))
def test_notebook_experiments(name):
    """By the oracle; tests/studies/sweep and tests/system simulate them."""
    mine = [row for row in rows("schedule_experiments.csv") if row["schedule"] == name]
    assert len(mine) > 20
    for row in mine:
        p, m, chunks = int(row["D"]), int(row["MBS"]), int(row["chunks"])
        costs = tuple(ranks_of(row[key], p) for key in ("T_F", "T_B", "T_W"))
        delay = round(float(row["T_C"]) * UNIT)
        timing = timing_of(plan_of(KINDS[name], p, m, chunks, costs, delay), costs, delay)
        wanted = float(row["total_time"]) * UNIT
        if KINDS[name] == "hanayo":
            assert timing.time <= wanted * (1 + 1e-9), row
        else:
            assert timing.time == pytest.approx(wanted, rel=1e-9), row


def ranks_of(text: str, p: int) -> list[int]:
    value = json.loads(text)
    values = value if isinstance(value, list) else [value] * p
    return [round(Fraction(repr(float(v))) * UNIT) for v in values]


costs_of_op = st.integers(0, 50)
weight_shares = st.fractions(0, 1, max_denominator=100)


@pytest.mark.parametrize("kind", thinned(schedules.names(), slow=["zb-auto"]))
@settings(max_examples=10 * TIMES)
@given(data=st.data())
def test_a_plan_is_valid_and_keeps_its_peak(kind, data):
    entry = schedules.find(kind)
    facts = entry.facts
    p, m, chunks = data.draw(sizes(kind))
    costs = tuple(data.draw(st.lists(costs_of_op, min_size=p, max_size=p)) for _ in "FBW")
    delay = data.draw(costs_of_op)
    options = {}
    if "backward_order" in entry.keys:
        options["backward_order"] = data.draw(st.sampled_from(["fifo", "lifo"]))
    if "fused" in entry.keys:
        options["fused"] = data.draw(st.booleans())
        options["fused_time"] = data.draw(st.fractions(0, 2))
    if "max_activations" in entry.keys:
        options["max_activations"] = data.draw(st.fractions(1, 3 * p, max_denominator=2))
    shares = tuple(data.draw(st.lists(weight_shares, min_size=p, max_size=p)))
    plan = plan_of(kind, p, m, chunks, costs, delay, weight_share=shares, **options)
    assert (plan.pipeline, plan.microbatches, plan.stages) == (p, m, p * chunks)
    spelt = [[[(op.kind, op.chunk) for op in action] for action in program] for program in plan.programs]
    assert [[[*forms[number]] for number in numbers] for numbers, forms in plan.forms] == spelt
    timing = timing_of(plan, costs, delay)
    for starts, ends in zip(timing.start, timing.end, strict=True):
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    request = PlanRequest(p, m, chunks, *costs, delay, shares)
    for rank, peak in enumerate(oracle.peaks(plan, shares)):
        assert peak <= facts["peak"](request, rank, *entry.arguments(options))


@pytest.mark.parametrize("kind", schedules.names())
def test_a_schedule_exists_exactly_for_its_sizes(kind):
    for size in grid(kind, p=4, m=9, chunks=4):
        request = PlanRequest(*size)
        if exists(kind, size):
            schedules.make_plan(kind, request)
        else:
            with pytest.raises(Refusal, match=f"^{kind} "):
                schedules.make_plan(kind, request)


@pytest.mark.parametrize("kind", thinned(schedules.names(), slow=["zb-auto"]))
@settings(max_examples=6 * TIMES)
@given(data=st.data())
def test_the_unit_of_time_does_not_matter(kind, data):
    size = data.draw(sizes(kind))
    slow, quick = (plan_of(kind, *size, (3 * k, 4 * k, 2 * k), k) for k in (10, 1))
    assert slow == quick


@pytest.mark.parametrize("kind", [kind for kind in schedules.names() if exists(kind, (1, 2, chunks_of(kind)))])
def test_one_rank_never_waits(kind):
    for m in (2, 3, 8, 32):
        assert timing_of(plan_of(kind, 1, m, chunks_of(kind)), (6, 8, 4)).time == 18 * m


class Law(NamedTuple):
    """What a schedule takes when sends are free; B is the input part of the backward."""

    kind: str
    time: Callable[..., float]  # of p, m, v, F, B, W
    m: Callable[[int, int], int] = lambda p, k: k  # the micro-batches it holds for, k = 1, 2, …
    chunks: tuple[int, ...] = (1,)
    costs: Callable[..., tuple[int, int, int]] = lambda F, B, W: (F, B, W)  # drawn costs → those it holds for
    measure: str = "time"
    p: Callable[[int], int] = lambda p: p  # drawn pipeline, 2 … 8 → one it holds for


def even(p):
    return p - p % 2


def together(p, m, v, F, B, W):
    return (m + p - 1) * (F + B + W)


def in_chunks(p, m, v, F, B, W):
    return m * (F + B + W) + Fraction(p - 1, v) * (F + B + W)


LAWS = [
    Law("gpipe", together),
    Law("1f1b", together),
    Law("eager-1f1b", together),
    Law("interleaved-1f1b", in_chunks, m=lambda p, k: k * p, chunks=(1, 2, 3, 4)),
    Law("looped-bfs", in_chunks, m=lambda p, k: p + k, chunks=(1, 2, 3, 4)),
    Law(
        "hanayo",
        lambda p, m, v, F, B, W: 3 * F * m + 2 * F * (2 * (p - 1) + (m // p - 1) * (p - Fraction(3, 2))) / v,
        m=lambda p, k: k * p,
        chunks=(2, 4, 6),
        costs=lambda F, B, W: (F, F, F),
    ),
    Law("zb-h1", lambda p, m, v, F, B, W: m * (F + B + W) + (p - 1) * (F + B - min(F, B, W)), m=lambda p, k: p + k - 1),
    Law(
        "zb-h2",
        lambda p, m, v, F, B, W: m * (F + B + W) + (p - 1) * (F + B - 2 * W),
        m=lambda p, k: 2 * p + k - 1,
        costs=lambda F, B, W: (F, B, min(F, B, W)),
        measure="span",
    ),
    Law(
        "zb-v",
        lambda p, m, v, F, B, W: 3 * m * F,
        m=lambda p, k: 2 * p + k - 1,
        chunks=(2,),
        costs=lambda F, B, W: (F, F, F),
        measure="span",
    ),
    Law(
        "dualpipe",
        lambda p, m, v, F, B, W: m * (F + B + W) + (p // 2 - 1) * (F + 2 * B - W),
        m=lambda p, k: 2 * (p + k - 1),
        costs=lambda F, B, W: (F, F, min(F, W)),
        p=even,
    ),
    Law(
        "dualpipe-v",
        lambda p, m, v, F, B, W: m * (F + B + W) + Fraction(p - 1, 2) * (F + 2 * B - W),
        m=lambda p, k: 2 * p + k - 1,
        chunks=(2,),
        costs=lambda F, B, W: (F, F, min(F, W)),
    ),
    Law(
        "chimera",
        lambda p, m, v, F, B, W: (Fraction(3 * m, 2) + p - 2) * 2 * F,
        m=lambda p, k: p,
        costs=lambda F, B, W: (F, F, F),
        p=even,
    ),
    Law(
        "v-min",
        lambda p, m, v, F, B, W: 3 * m * F + (2 * p - Fraction(7 if p % 3 == 0 else 5, 2)) * F,
        m=lambda p, k: p + k,
        chunks=(2,),
        costs=lambda F, B, W: (F, F, F),
        p=lambda p: max(3, p),
    ),
    Law(
        "v-half",
        lambda p, m, v, F, B, W: 3 * m * F + Fraction(3 * p - 7, 2) * F,
        m=lambda p, k: p + k - 1,
        chunks=(2,),
        costs=lambda F, B, W: (F, F, F),
        p=lambda p: max(4, even(p)),
    ),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
@settings(max_examples=10 * TIMES)
@given(
    data=st.data(), p=st.integers(2, 8), k=st.integers(1, 16), costs=st.tuples(costs_of_op, costs_of_op, costs_of_op)
)
def test_time_law(law, data, p, k, costs):
    chunks = data.draw(st.sampled_from(law.chunks))
    p = law.p(p)
    m = law.m(p, k)
    costs = tuple(24 * cost for cost in law.costs(*costs))  # whole numbers however a rank's time is cut
    timing = timing_of(plan_of(law.kind, p, m, chunks, costs), costs)
    assert getattr(timing, law.measure) == law.time(p, m, chunks, *costs)


@pytest.mark.parametrize("kind", [law.kind for law in LAWS])
def test_a_formula_is_the_time_wherever_it_holds(kind):
    facts, held = schedules.find(kind).facts, 0
    for p, m, v in (size for size in grid(kind, p=6, m=13, chunks=4) if exists(kind, size) and size[0] > 1):
        for costs in ((24, 24, 24), (24, 24, 0), (48, 24, 24), (24, 48, 24)):
            formula = facts["formula"](UniformSizes(p, m, v, *map(Fraction, costs)))
            if formula is not None:
                timing = timing_of(plan_of(kind, p, m, v, costs), costs)
                assert (timing.span if facts["span"] else timing.time) == formula, (p, m, v, costs)
                held += 1
    assert held > 2


@from_table
def test_refusals_say_what_would_do(kind, chunks, p, m, said):
    with pytest.raises(Refusal, match=said):
        plan_of(kind, p, m, chunks)


def test_interleaved_rounds_are_pytorchs_where_it_has_any_else_megatrons():
    assert [round_length(4, m) for m in (3, 4, 6, 8, 10, 12)] == [3, 4, 6, 4, 5, 4]
    assert [round_length(4, m) for m in (9, 11)] == [5, 6]  # last rounds of 4 and 5


def test_a_fused_pair_takes_its_share_of_its_parts():
    """Two ranks that overlap fully: each of the pairs costs half."""
    whole, half = (plan_of("dualpipe", 2, 8, fused_time=Fraction(1, n)) for n in (1, 2))
    pairs = sum(len(step) == 2 for step in whole.programs[0])
    times = [timing_of(plan, (2, 2, 2)).time for plan in (whole, half)]
    assert times == [48, 48 - pairs * 3]
