"""Every schedule against the reference tables, its own law, and the order in which others run it."""

import csv
import json
from fractions import Fraction
from pathlib import Path

import oracle
import pytest

from hybrid_des import schedules
from hybrid_des.ops import Plan, PlanRequest

GOLDEN = Path(__file__).parent / "golden"
UNIT = 10**9  # the tables' unit is taken as a millisecond


def plan_of(kind: str, p: int, m: int, chunks: int = 1, costs=(1, 1, 1), delay: int = 0, **options) -> Plan:
    """The kind's plan with the registered defaults; costs F, B (input part), W: a number or one a rank."""
    entry = schedules.find(kind)
    forward, backward, weight = (tuple(c) if isinstance(c, list) else (c,) * p for c in costs)
    options.setdefault("backward_order", entry.facts["backward_order"])
    request = PlanRequest(p, m, entry.facts["chunks"] or chunks, forward, backward, weight, delay, **options)
    plan = entry.build(request)
    plan.check()
    return plan


def timing_of(plan: Plan, costs=(1, 1, 1), delay: int = 0) -> oracle.Timing:
    p = plan.pipeline
    forward, backward, weight = (c if isinstance(c, list) else [c] * p for c in costs)
    whole = [b + w for b, w in zip(backward, weight, strict=True)]
    return oracle.solve(plan, oracle.shares(plan, forward, whole, weight), delay)


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(file))


def options_of(text: str) -> dict[str, object]:
    if not text:
        return {}
    key, value = text.split(": ")
    return {key: False if value == "false" else value}


VARIANTS = sorted({row["variant"] for row in rows("schedules.csv")} - {"zb_h1_auto", "zb_v_sail"})  # others' heuristics


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_table(variant):
    for row in rows("schedules.csv"):
        if row["variant"] != variant:
            continue
        costs = tuple(round(float(row[key]) * UNIT) for key in "FBW")
        delay = round(float(row["T_C"]) * UNIT)
        p, m, chunks = int(row["p"]), int(row["m"]), int(row["chunks"])
        plan = plan_of(row["kind"], p, m, chunks, costs, delay, **options_of(row["options"]))
        timing = timing_of(plan, costs, delay)
        where = f"p={p} m={m} costs={costs} delay={delay}"
        peak = float(max(oracle.peaks(plan)))
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
            assert float(max(oracle.peaks(plan, "B"))) == float(row["peak_if_freed_after_B"]), where


NAMES = {
    "Gpipe": "gpipe",
    "1F1B": "1f1b",
    "1F1B vpp=2": "interleaved-1f1b",
    "Interleaved 1F1B": "interleaved-1f1b",
    "Hanayo": "hanayo",
    "Hanayo wave=1": "hanayo",
    "Hanayo wave=2": "hanayo",
    "ZBH1": "zb-h1",
}


@pytest.mark.parametrize("name", NAMES)
def test_notebook_experiments(name):
    for row in rows("schedule_experiments.csv"):
        if row["schedule"] != name:
            continue
        p, m, chunks = int(row["D"]), int(row["MBS"]), int(row["chunks"])
        costs = tuple(ranks_of(row[key], p) for key in ("T_F", "T_B", "T_W"))
        delay = round(float(row["T_C"]) * UNIT)
        timing = timing_of(plan_of(NAMES[name], p, m, chunks, costs, delay), costs, delay)
        wanted = float(row["total_time"]) * UNIT
        if NAMES[name] == "hanayo":
            assert timing.time <= wanted * (1 + 1e-9), row
        else:
            assert timing.time == pytest.approx(wanted, rel=1e-9), row


def ranks_of(text: str, p: int) -> list[int]:
    value = json.loads(text)
    values = value if isinstance(value, list) else [value] * p
    return [round(Fraction(repr(float(v))) * UNIT) for v in values]
