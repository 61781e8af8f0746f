"""The commands explain and compare, on scenarios worked by hand (golden/explain)."""

import re
from itertools import pairwise

import pytest
import yaml
from support.paths import GOLDEN, SCENARIOS
from support.scenarios import shared_nics

from hybrid_des import load, simulate
from hybrid_des.analysis.explanation import explain
from hybrid_des.report.explained import render_explanation

ORACLES = GOLDEN / "explain"


FIGURES = yaml.safe_load((GOLDEN / "explained.yaml").read_text(encoding="utf-8"))
STEPS, WHAT_IFS, FIRST_ORDER = (FIGURES[of] for of in ("steps", "what_ifs", "first_order"))


@pytest.fixture
def by_hand(explained):
    """What `explain` says of a scenario worked by hand, with its what-ifs: explained once for all tests."""

    def by_hand(name):
        asked = (word for change in WHAT_IFS.get(name, ()) for word in ("--what-if", change))
        return explained(ORACLES / f"{name}.yaml", *asked)

    return by_hand


@pytest.mark.parametrize("name", STEPS)
def test_the_path_adds_up_to_the_step(by_hand, name):
    found = by_hand(name)
    step, paths = STEPS[name]
    assert found["step_time_s"] == step
    assert sum(found["critical_path_s"].values()) == pytest.approx(step, rel=1e-15)
    assert paths in (None, found["critical_paths"])
    assert found["critical_paths"] >= 1
    assert all(a["end_s"] == b["start_s"] for a, b in pairwise(found["path"]))


@pytest.mark.slow
def test_the_path_beside_background_traffic_adds_up_to_the_step():
    beside = explain(load(SCENARIOS / "jobs/beside_background.yaml", ["cluster.sharing=fifo"]))
    found = beside.to_mapping()
    assert found["critical_path_s"]["another job's message"] > 0
    assert sum(found["critical_path_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-12)
    assert "behind other jobs" in render_explanation(beside, 200, details=True)


@pytest.mark.parametrize("name", WHAT_IFS)
def test_what_ifs_are_as_worked_by_hand(by_hand, name):
    rows = {row["change"]: row for row in by_hand(name)["what_if"]}
    assert {change: rows[change]["step_time_s"] for change in WHAT_IFS[name]} == WHAT_IFS[name]
    for change, first in FIRST_ORDER.get(name, {}).items():
        assert rows[change]["first_order_s"] == first, change


def test_floats_drags_and_idle_of_two_ranks(by_hand):
    found = by_hand("e1")
    assert [piece["activity"] for piece in found["path"]] == ["F0@0", "F0@1", "B0@1", "F1@1", "B1@1", "B1@0"]
    assert [piece["drag_s"] for piece in found["path"]] == [1, 1, 2, 1, 1, 2]
    assert {row["activity"]: row["total_float_s"] for row in found["nearly_critical"]} == {"B0@0": 1, "F1@0": 2}
    first, second = sorted(found["idle"]["ranks"], key=lambda row: row["rank"])
    assert first["idle_s"] == second["idle_s"] == 3
    assert first["during"] == {"rank 1 computing": 3}


def test_floats_of_messages_and_the_parts_of_a_path(by_hand):
    found = by_hand("e2")
    assert found["critical_path_s"] == {"compute": 9, "transfer": 1, "latency": 0.5, "queueing": 0}
    floats = {row["activity"]: row["total_float_s"] for row in found["nearly_critical"]}
    assert floats == {"F1@0": 2, "a1": 2, "B0@0": 1, "g0": 1}
    worst = found["idle"]["ranks"][0]
    assert worst["during"] == {"rank 1 computing": 3, "link": 1, "latency": 0.5}


def test_classes_of_tied_paths_have_a_least_and_a_most(by_hand):
    spans = {(row["class"], row["name"]): (row["least_s"], row["most_s"]) for row in by_hand("e3")["classes"]}
    assert spans["rank and kind", "1 F"] == (1, 2)
    assert spans["rank and kind", "1 B"] == (2, 4)
    assert spans["rank and kind", "0 B"] == (3, 6)


def test_idle_time_behind_another_replica_is_queueing():
    idle = simulate(load(ORACLES / "e4.yaml")).explain()["idle"]
    first = idle[(idle["rank"] == 3) & (idle["end_s"] <= 3)].sort_values("start_s")
    assert list(first["reason"]) == ["warm-up", "queueing", "transfer"]
    assert list(first["end_s"] - first["start_s"]) == [1, 1, 1]
    assert set(first["during"]) == {"F0@0", "a0"}


def test_an_op_with_float_may_lengthen_the_step(by_hand):
    near = {row["activity"]: row["total_float_s"] for row in by_hand("e7")["nearly_critical"]}
    assert near["F0@1"] == pytest.approx(10.894737, abs=1e-6)


def test_the_straggler_is_named_by_table_and_verdict(by_hand):
    found = by_hand("e8")
    slow = found["stragglers"]
    assert slow["ideal_step_time_s"] == 37.125
    assert slow["slowdown"] == pytest.approx(1.171717, abs=1e-6)
    assert slow["at_the_mean"][0]["name"] == "rank 2"
    assert "Rank 2" in found["verdict"]
    assert max(found["idle"]["ranks"][0]["during"], key=found["idle"]["ranks"][0]["during"].get) == "rank 1 computing"


@pytest.mark.slow
def test_a_slow_node_is_waited_for_not_the_network(explained):
    nodes = "cluster.nodes=[{count: 1}, {count: 1, speed: %s}]"
    few = (SCENARIOS / "h100_2x8.yaml", "--set", "schedule.microbatches=16")
    slow, usual = (explained(*few, "--set", nodes % speed) for speed in (0.8, 1))
    idle = slow["idle"]["by_reason_s"]
    waited = idle["waiting for a slower replica"] + idle["transfer"] + idle["queueing"] + idle["latency"]
    wires = usual["idle"]["by_reason_s"]
    assert waited - wires["transfer"] - wires["queueing"] - wires["latency"] == pytest.approx(
        idle["waiting for a slower replica"], rel=0.01
    )
    assert "Node 1" in slow["verdict"]
    assert slow["collectives"][0]["transfer_s"] == pytest.approx(usual["collectives"][0]["transfer_s"], rel=0.01)
    assert {row["last_starter"] // 8 for row in slow["collectives"]} == {1}


def test_a_tiny_share_is_not_written_in_powers_of_ten():
    text = render_explanation(explain(shared_nics(1, 1, 3)), details=True)  # ends of the ring differ by picoseconds
    assert " ps (less than 0.01 %) longer without delaying the step" in " ".join(text.split())
    assert not re.search(r"\de-\d", text)


@pytest.mark.slow
def test_the_cost_of_the_network_is_said_in_words(run):
    _, out, _ = run("explain", SCENARIOS / "contention_slower.yaml", "--details")
    assert "costs 167.8 ms, 44.4 % of the step" in out


@pytest.mark.slow  # the quick tests of the text count its lines, and that of the narrow terminal runs the command
@pytest.mark.parametrize("name", ["a100_8x", "contention_slower", "slow_gpu_h100_2x8"])
def test_an_explanation_fits_on_a_screen(ran, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out, _ = ran("explain", SCENARIOS / f"{name}.yaml")
    assert 4 <= len(out.splitlines()) <= 15
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.slow
def test_a_step_that_depends_on_ties_says_so(run, explained):
    _, out, _ = run("explain", SCENARIOS / "contention_slower.yaml", "--details")
    assert "Arrival order  step 375.9 ms to 403.8 ms in 8 other orders of messages" in out
    assert explained(SCENARIOS / "a100_8x.yaml")["ties"] is None


def test_a_run_nearly_as_long_as_the_clock_is_explained(explained):
    found = explained(SCENARIOS / "a100_8x.yaml", "--set", "slow=[{node: 0, factor: 1.735e-7}]")
    assert 8e6 < found["step_time_s"] < 2**63 / 1e12
    assert found["ladder"][-1]["step_time_s"] == pytest.approx(8 / 11 * found["step_time_s"], rel=1e-5)


@pytest.mark.slow
def test_a_table_of_two_steps_is_explained(explained):
    table = SCENARIOS / "durations" / "a100_8x_slow_gpu.csv"
    workload = f"workload={{durations: {table}}}"
    found = explained(SCENARIOS / "a100_8x.yaml", "--set", workload, "--set", "steps=2")
    assert found["step_time_s"] > 1
