"""The one definition of what GPUs do in a step: laws of its parts, and that everything that shows it agrees."""

import re
from fractions import Fraction

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.scenarios import merged, scenario
from support.scenarios import values as small
from support.verdicts import of_model

from hybrid_des import explain, render_explanation, simulate
from hybrid_des.analysis.inside_ops import AXES, collectives_of, inside_ops
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.reasons import reasons_of
from hybrid_des.analysis.step_breakdown import COMMUNICATION, SHARES, step_breakdown
from hybrid_des.report.content import content_of
from hybrid_des.report.page.drawn import tables_of
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.units import format_share

SPARSE = {"base": "mixtral-8x7b", "layers": 4}
FREE = {"bandwidth": "inf", "latency": 0}


RUNS = {
    "one GPU": small("1f1b", 1, 2),
    "pipeline": small("1f1b", 4, 8, 2, workload={"activation": "10 MB", "parameters": 10**8}),
    "blocking sends": small("1f1b", 4, 8, workload={"activation": "10 MB"}, schedule={"p2p": "blocking"}),
    "pauses of the host": small("1f1b", 2, 4, workload={"overhead": {"forward": "100 us", "between": "50 us"}}),
    "slow GPU": small("1f1b", 2, 4, 2, slow=[{"gpu": 0, "factor": 0.5}], workload={"parameters": 10**8}),
    "tensor": of_model(parallel={"tensor": 4, "sequence": True, "pipeline": 2}, recompute="full"),
    "tensor by messages": of_model(parallel={"tensor": 2, "pipeline": 2}, tensor_traffic="messages"),
    "split backwards": of_model(parallel={"tensor": 2, "pipeline": 2}, schedule={"kind": "zb-h1"}),
    "fused pairs": of_model(parallel={"tensor": 2, "pipeline": 2}, schedule={"kind": "dualpipe"}),
    "context": of_model(parallel={"context": 4, "data": 2}),
    "experts": of_model(SPARSE, parallel={"data": 4, "expert": 4}),
    "experts on streams": of_model(SPARSE, parallel={"data": 4, "expert": 4}, experts={"streams": True}),
    "layers gathered": of_model(parallel={"tensor": 2, "data": 2}, sharding="zero-3"),
    "jitter": of_model(
        parallel={"tensor": 2, "pipeline": 2},
        jitter=[{"distribution": "lognormal", "sigma": 0.5, "level": "op"}],
    ),
    "launches": of_model(parallel={"tensor": 2}, efficiency={"launch": "50 us"}),
}


def shares(values):
    return step_breakdown(run(scenario_from(values))).shares


@pytest.fixture(scope="module")
def found():
    return {name: simulate(scenario_from(values)) for name, values in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_parts_sum_to_the_step_of_the_mean_gpu(found, name):
    breakdown = found[name].breakdown
    assert tuple(breakdown.parts) == SHARES
    assert sum(breakdown.parts.values()) == breakdown.whole
    assert all(part >= 0 for part in breakdown.parts.values())
    assert breakdown.efficiency + sum(breakdown.shares[one] for one in SHARES[2:]) == 1


@pytest.mark.parametrize("name", RUNS)
def test_report_rows_are_the_parts(found, name):
    result = found[name]
    rows = {row.label: row.fraction for row in content_of(result).shares}
    share = result.summary["step_shares"]
    assert sum(rows.values()) == pytest.approx(1)
    assert rows["computing"] == pytest.approx(share["computing"])
    bubble = sum(part for label, part in rows.items() if label.startswith("bubble"))
    assert bubble == pytest.approx(share["bubble"], abs=1e-12)
    for axis in AXES:
        assert rows.get(f"{axis} collectives", 0) <= share[axis] + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pipeline", "tensor", "tensor by messages", "experts", "slow GPU"])
def test_explain_has_the_shares_of_the_summary(found, name):
    result, explained = found[name], explain(scenario_from(RUNS[name]))
    assert explained.to_mapping()["step_shares"] == pytest.approx(result.summary["step_shares"])
    assert explained.shares["compute"] == pytest.approx(result.summary["efficiency"])
    assert sum(explained.shares.values()) == pytest.approx(1)


def test_exposed_communication_is_one_figure(found):
    summary = found["tensor"].summary
    (line,) = re.findall(r"exposed communication +([\d.]+) %", found["tensor"].report())
    exposed = sum(summary["step_shares"][axis] for axis in COMMUNICATION)
    assert float(line) == pytest.approx(100 * exposed, abs=0.05)
    told = summary["communication_s"]["tensor"]["exposed"]
    assert told == pytest.approx(summary["step_shares"]["tensor"] * summary["step_time_s"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor", "tensor by messages", "context", "experts"])
def test_no_communication_counts_as_efficient(found, name):
    """What the report calls exposed is no computation of `summary`, `explain` or `repr`."""
    result, explained = found[name], explain(scenario_from(RUNS[name]))
    told = re.findall(r"^(bubble|exposed communication) +([\d.]+) %", result.report(), flags=re.MULTILINE)
    shares, efficiency = {name: float(share) / 100 for name, share in told}, result.summary["efficiency"]
    assert shares["exposed communication"] > 0.005
    assert efficiency + sum(shares.values()) <= 1.001
    assert explained.to_mapping()["shares"]["compute"] == pytest.approx(efficiency)
    assert f"{format_share(efficiency, 0)} computing" in repr(explained)
    assert "exposed communication" in repr(explained)


@pytest.mark.parametrize("name", ["pipeline", "blocking sends", "slow GPU", "tensor"])
def test_the_bubble_is_the_sum_of_its_parts(found, name):
    result = found[name]
    (whole,) = re.findall(r"^bubble +([\d.]+) %", result.report(), flags=re.MULTILINE)
    parts = re.findall(r"^  bubble: .* ([\d.]+) %", result.report(), flags=re.MULTILINE)
    assert float(whole) == pytest.approx(sum(map(float, parts)), abs=0.21)  # each is rounded
    title = result.gantt(Figure().add_subplot()).get_title(loc="left")
    assert f"bubble {whole} %" in title and f"bubble {whole} %" in repr(result)


def test_efficiency_leaves_out_exposed_communication(found):
    summary = found["tensor"].summary
    assert summary["busy_ratio"] - summary["efficiency"] == pytest.approx(
        summary["step_shares"]["tensor"] + found["tensor"].breakdown.inside["host"] / found["tensor"].breakdown.whole
    )
    assert summary["speedup"] == pytest.approx(summary["efficiency"] * 8)
    assert found["one GPU"].breakdown.efficiency == 1


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_one_gpu_is_efficient(recompute):
    """It only computes, whatever it computes again, if no launch outlasts its op."""
    alone = of_model(parallel={}, recompute=recompute, efficiency={"launch": 0, "layer_overhead": 0})
    found = simulate(scenario_from(merged(alone, {"cluster": {"gpus_per_node": 1}})))
    assert found.breakdown.efficiency == 1 == found.summary["efficiency"] == found.summary["speedup"]
    assert (found.breakdown.shares["recomputing"] > 0) == (recompute == "full")


def test_exposed_communication_lowers_efficiency():
    """Of tensor ranks by what computation hides, of replicas by the speed of their links."""
    hidden = [of_model(parallel={"tensor": 4, "data": 2}, overlap={"tensor": share}) for share in (1, 0.5, 0)]
    slower = [
        of_model(parallel={"data": 8}, cluster={"nvlink": {"bandwidth": f"{bandwidth} GB/s"}})
        for bandwidth in (900, 90, 9)
    ]
    for one_by_one in (hidden, slower):
        efficiencies = [step_breakdown(run(scenario_from(values))).efficiency for values in one_by_one]
        assert 1 > efficiencies[0] > efficiencies[1] > efficiencies[2] > 0


def test_each_part_is_zero_without_its_cause():
    base = of_model(parallel={"tensor": 2, "pipeline": 2}, recompute="full")
    with_all = shares(base)
    assert min(with_all[name] for name in ("recomputing", "tensor", "pipeline", "bubble")) > 0
    links = {"layer_collectives": "textbook", "efficiency": {"collective_overhead": 0}, "cluster": {"nvlink": FREE}}
    free = shares(merged(base, links))
    assert free["tensor"] == free["pipeline"] == 0
    assert shares(merged(base, {"parallel": {"pipeline": 1}}))["bubble"] == 0
    assert shares(merged(base, {"recompute": "none"}))["recomputing"] == 0
    assert with_all["slower"] == with_all["expert"] == with_all["context"] == 0


def test_recomputation_takes_its_share_of_the_flop(found):
    summary, part = found["tensor"].summary, found["tensor"].breakdown.shares
    share = part["recomputing"] / (part["computing"] + part["recomputing"])
    assert float(share) == pytest.approx(1 - summary["mfu"] / summary["hfu"])


def test_launches_that_outlast_computation_are_the_hosts():
    slow = of_model(parallel={"tensor": 2}, efficiency={"launch": "100 us"})
    quick = step_breakdown(run(scenario_from(merged(slow, {"efficiency": {"launch": 0, "layer_overhead": 0}}))))
    late = step_breakdown(run(scenario_from(slow)))
    assert quick.parts["host"] == 0 < late.parts["host"]
    for same in ("computing", "tensor"):
        assert late.parts[same] == quick.parts[same]
    assert late.whole - quick.whole == pytest.approx(int(late.parts["host"]), abs=1000)


def test_pauses_between_ops_are_the_hosts():
    """Rank 1 pauses seven times between eight ops."""
    breakdown = step_breakdown(run(scenario("1f1b", 1, 4, workload={"overhead": {"between": "1 ms"}})))
    assert breakdown.parts["host"] == 7 * 10**9
    assert breakdown.parts["pipeline"] == breakdown.parts["bubble"] == 0


def test_a_slow_replica_holds_others_up():
    """Two micro-batches of 3 ms, 6 ms on one of two replicas."""
    values = small("1f1b", 1, 2, 2, slow=[{"gpu": 1, "factor": 0.5}], workload={"parameters": 1000})
    breakdown = step_breakdown(run(scenario_from(values)))
    assert breakdown.parts["slower"] == 6 * 10**9
    assert breakdown.parts["bubble"] == 0
    verdict = explain(scenario_from(values)).run
    assert step_breakdown(verdict).parts["slower"] == 6 * 10**9


def test_collectives_by_messages_take_what_replayed_ones_take():
    base = of_model(parallel={"tensor": 2, "pipeline": 2})
    replayed, sent = (shares(merged(base, {"tensor_traffic": how})) for how in ("replay", "messages"))
    assert float(sent["tensor"]) == pytest.approx(float(replayed["tensor"]), rel=0.01)  # latencies of single messages


@pytest.mark.slow
def test_the_verdict_names_tensor_collectives_that_cost_most():
    """Full recomputation of Llama 2 70B with TP8: a quarter of the step is exposed communication of tensor ranks."""
    case = {
        "cluster": {"gpu": "h100", "nodes": 16}, "model": "llama2-70b", "batch": 128, "recompute": "full",
        "parallel": {"tensor": 8, "sequence": True, "pipeline": 8, "data": 2},
        "schedule": {"kind": "1f1b", "microbatch_size": 1}, "sharding": "zero-1",
    }  # fmt: skip
    explained = explain(case)
    text = " ".join(render_explanation(explained).split())
    share = explained.breakdown.shares["tensor"]
    assert share > Fraction(1, 5)
    assert f"Main loss {float(share) * 100:.0f} % of the step goes to tensor-parallel communication: every" in text
    assert "compute-bound" not in text and "wait for bytes" not in text


def test_a_verdict_without_a_large_loss_blames_nothing():
    text = render_explanation(explain(scenario("1f1b", 1, 4)))
    assert "Main loss  100 % of the step is computing.\n" in text


def test_collectives_inside_ops_are_drawn_in_lanes(found):
    result = found["tensor"]
    exposed = collectives_of(inside_ops(result.run))
    assert "≈ collectives inside ops" in result.report()
    axes = result.gantt(Figure().add_subplot())
    assert "collectives inside ops" in [text.get_text() for text in axes.get_legend().get_texts()]
    tables = tables_of(result.run.timeline, reasons_of(result.run.timeline), RunAnalysis(result.run).inside)
    numbers = [number for number, kind in enumerate(tables.kinds) if kind["name"] == "tensor collectives"]
    drawn = np.isin(tables.bars["kind"], numbers)
    lanes = len({lane["rank"] for lane in tables.lanes if lane["group"] == "rank"})
    took = (tables.bars["end"] - tables.bars["start"])[drawn].sum()
    assert took * len(np.unique(result.run.timeline.ops["rank"])) == exposed.sum() * lanes


def test_a_chart_without_such_collectives_has_no_letter_for_them(scenarios):
    assert "≈" not in simulate(load(scenarios / "a100_8x.yaml")).report()
