"""Files of a folded run show the replicas that were simulated, and for how many each stands."""

from hybrid_des.analysis.reasons import reasons_of
from hybrid_des.report.files.kineto import write_kineto
from hybrid_des.report.page.drawn import tables_of
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load

EIGHT_NODES = ["cluster.nodes=8", "parallel.data=8", "gradients.pad=true", "fold=2"]


def folded(scenarios):
    result = simulate(load(scenarios / "h100_2x8.yaml", EIGHT_NODES))
    assert result.run.fold.order == 4
    return result


def test_a_page_draws_each_simulated_rank_with_its_number(scenarios):
    timeline = folded(scenarios).run.timeline
    lanes = [lane for lane in tables_of(timeline, reasons_of(timeline)).lanes if lane["group"] == "rank"]
    assert {lane["rank"] for lane in lanes} <= set(range(16))
    assert sum(lane["alike"] for lane in lanes) == 64


def test_a_folded_run_writes_all_files(scenarios, tmp_path):
    result = folded(scenarios)
    names = {path.name for path in result.write(tmp_path / "out").paths}
    assert names >= {"report.html", "trace.json.gz", "timeline.csv", "timeline.parquet", "gantt.png"}
    traces = write_kineto(result, tmp_path / "hta").paths
    assert {path.name for path in traces} == {f"rank-{rank}.json.gz" for rank in range(16)}
