"""Plans of a search and cases of a sweep that nobody can tell apart: ties, by how far differences were off."""

from dataclasses import replace
from functools import cache

import pytest

from hybrid_des import explain, search
from hybrid_des.analysis import difference as differences
from hybrid_des.analysis.pair_table import Pair
from hybrid_des.report.explained import next_change
from hybrid_des.scenario.loading import load
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.results import render
from hybrid_des.studies.sweep.runner import sweep_rows

ONE = {"model": "gpt2", "cluster": {"gpu": "h100"}, "batch": 32, "parallel": {"data": 4}, "schedule": {"kind": "1f1b"}}
AXES = [{"gradients.bucket": ["64 MB", "48 MB"]}, {"recompute": ["none", "full"]}]
SHARES = pytest.mark.parametrize(("share", "tied"), [(0.03, 1), (1e-6, 0)], ids=["open", "certain"])


@cache
def searched():
    """The plans of a search; which of them are ties depends on what is known of differences when it is asked."""
    return search({**ONE, "search": {"axes": AXES}}, jobs=1)


@pytest.fixture
def off_by(monkeypatch):
    """Say how far predicted ratios were off."""

    def off_by(share):
        pairs = tuple(Pair("one", "schedule", 1 + share, 1.0, "2026-11-28", "abc1234") for _ in range(9))
        monkeypatch.setattr(differences, "known_pairs", lambda: pairs)

    return off_by


@SHARES
def test_cases_of_a_sweep_within_two_percent_are_ties(off_by, share, tied):
    off_by(share)
    cases = load_sweep({**ONE, "sweep": AXES})
    rows = sweep_rows(cases, jobs=1)
    steps = sorted(row["step_time_s"] for row in rows)
    assert steps[0] < steps[1] < 1.02 * steps[0] < steps[2]  # two are close, two are not
    assert render(rows, cases).count("not certain that it is faster than 1 other case: up to ") == tied


def test_ties_are_found_where_rows_leave_keys_out(off_by, tmp_path):
    off_by(0.03)
    (tmp_path / "cases.csv").write_text("model.layers,gradients.bucket\n12,64 MB\n,48 MB\n")
    sizes = {"layers": 12, "hidden": 768, "ffn": 3072, "heads": 12, "sequence": 1024, "vocab": 50257}
    cases = load_sweep({**ONE, "model": sizes, "sweep": {"file": str(tmp_path / "cases.csv")}})
    assert "1 other case" in render(sweep_rows(cases, jobs=1), cases)


@SHARES
def test_plans_of_a_search_within_two_percent_are_ties(off_by, share, tied):
    off_by(share)
    found = replace(searched())  # whose ties nobody has asked for yet
    assert len(found.ranked) >= 2
    assert len(found.ties) == tied


def test_advice_says_how_sure_a_gain_is(off_by):
    off_by(0.03)
    piped = {**ONE, "parallel": {"pipeline": 4}, "batch": 8, "efficiency": {"launch": 0}}
    found = explain(load(piped))
    proposal = next(one for one in found.to_mapping()["proposals"] if one["change"].startswith("schedule.kind="))
    low, high = proposal["difference"]["interval"]
    assert low < -proposal["gain"] < high
    assert ", likely -" in next_change(found.losses, found.advice)
