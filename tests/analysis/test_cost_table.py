"""The table of costs: equal to what the simulation uses, and to its own rows."""

import pytest
from support.scenarios import scenario as given

from hybrid_des import costs, load, simulate
from hybrid_des.analysis.costs import TOTAL
from hybrid_des.errors import UsageError
from hybrid_des.report.cost_tables import render_stages

TIMES = ["forward_s", "input_gradient_s", "weight_gradient_s"]


def scenario(model=None, **sections):
    sections.setdefault("schedule", {"kind": "1f1b", "microbatches": 4})
    model = model or {"base": "llama3.1-8b", "layers": 8}
    return load({"model": model, "cluster": {"gpu": "h100"}, "tensor_traffic": "replay", **sections})


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("parallel", [{}, {"tensor": 2, "sequence": True}, {"tensor": 2, "context": 2}])
def test_busy_time_of_a_step_is_that_of_its_stages(parallel, recompute):
    chosen = scenario(parallel={"pipeline": 2, **parallel}, recompute=recompute)
    frame, summary = costs(chosen), simulate(chosen).summary
    exposed = frame.filter(regex="_exposed_s$").sum(axis=1)
    whole = frame[[*TIMES, "recomputed_s", *frame.filter(regex="_slowed_s$")]].sum(axis=1) + exposed
    optimizer = simulate(chosen).timeline.query("kind == 'optimizer'")
    updates = (optimizer.end_s - optimizer.start_s).sum() / summary["ranks"]
    assert 4 * whole.sum() / 2 + updates == pytest.approx(summary["busy_s"], rel=1e-9)
    assert 4 * exposed.sum() / 2 == pytest.approx(
        sum(summary["communication_s"][axis]["exposed"] for axis in ("tensor", "context", "expert")), abs=1e-15
    )
    assert frame.peak_bytes.tolist() == summary["peak_memory_bytes"]


@pytest.mark.parametrize("pipeline", [1, 2])
def test_peaks_hold_gathered_weights_too(pipeline):
    chosen = scenario(parallel={"pipeline": pipeline, "data": 2}, sharding="zero-3")
    assert costs(chosen).peak_bytes.tolist() == simulate(chosen).summary["peak_memory_bytes"]


@pytest.mark.parametrize("kind", ["interleaved-1f1b", "zb-v", "dualpipe"])
def test_a_row_is_a_stage_on_a_rank(kind):
    chunks = {"chunks": 4} if kind == "interleaved-1f1b" else {}
    chosen = scenario(parallel={"pipeline": 2}, schedule={"kind": kind, "microbatches": 8, **chunks})
    frame, plan = costs(chosen), simulate(chosen).plan
    assert dict(zip(zip(frame.pipeline_rank, frame.chunk, strict=True), frame.stage, strict=True)) == plan.stage_of
    assert frame.drop_duplicates("stage").layers.sum() == 10


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_operations_add_up_to_layers_and_layers_to_stages(recompute):
    chosen = scenario(parallel={"tensor": 2, "pipeline": 2}, recompute=recompute, efficiency={"launch": 0})
    operations, stages = costs(chosen, layers=True), costs(chosen)
    last = operations.operation == TOTAL
    totals = operations[last].set_index("layer")
    parts = operations[~last].groupby("layer", sort=False)[TIMES].sum()
    for column in TIMES:
        assert parts[column].to_numpy() == pytest.approx(totals[column].to_numpy(), abs=2e-12)
    for column in ("parameters", "state_bytes", "kept_bytes"):
        assert totals.groupby("stage")[column].sum().tolist() == stages[column].tolist()
    whole = stages[[*TIMES, "recomputed_s", "tensor_exposed_s"]].sum(axis=1)
    assert totals[TIMES].sum(axis=1).groupby(totals.stage).sum().to_numpy() == pytest.approx(whole.to_numpy())


def test_a_workload_shows_what_was_given():
    frame = costs(given(p=2, workload={"weight": "0.5 ms", "parameters": 1e6, "memory": {"activation": "2 GB"}}))
    assert frame.forward_s.tolist() == [0.001, 0.001]
    assert frame.input_gradient_s.tolist() == [0.0015, 0.0015]
    assert frame.weight_gradient_s.tolist() == [0.0005, 0.0005]
    assert frame.state_bytes.tolist() == [16_000_000] * 2
    assert frame.peak_bytes.tolist() == [4_016_000_000, 2_016_000_000]
    with pytest.raises(UsageError, match="a workload gives no layers"):
        costs(given(), layers=True)


@pytest.mark.parametrize(("changes", "rests_on"), [
    ({}, "shares of b200 in mxfp8: gemm: megatron_bridge (5 rows"),
    ({"precision": "bf16"}, "shares of b200 in bf16: gemm not fitted: 0.85 of the kernel rate"),
    ({"efficiency": {"gemm": 0.5}}, None),
])  # fmt: skip
def test_formulas_say_what_shares_rest_on(changes, rests_on):
    chosen = load({"model": "gpt2", "cluster": {"gpu": "b200"}, "precision": "mxfp8", "batch": 8,
                   "parallel": {"data": 8}, "schedule": {"kind": "1f1b"}, **changes})  # fmt: skip
    said = " ".join(render_stages(costs(chosen), chosen).split())
    assert ("shares of" in said) == (rests_on is not None)
    assert (rests_on or "") in said
