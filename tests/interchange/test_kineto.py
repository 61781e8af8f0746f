"""Imported traces of PyTorch's profiler: others', our own, synthetic and broken ones."""

import json
import tarfile

import pandas as pd
import pytest
from support.campaigns import thinned
from support.paths import SCENARIOS, SHARED
from support.profiles import Kineto

from hybrid_des import load, simulate
from hybrid_des.cluster.time_table import read_table
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles import kineto_ranks
from hybrid_des.interchange.profiles.kineto_ranks import KinetoRanks
from hybrid_des.interchange.profiles.kineto_reader import read_kineto
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.measured.replay.replaying import replay
from hybrid_des.planning.planner import parts_of
from hybrid_des.report.files.kineto import write_kineto
from hybrid_des.report.files.staging import write_files
from hybrid_des.scenario.loading import scenario_from

RESNET = SHARED / "traces" / "hta" / "nccl_data.json.gz"
DLRM = SHARED / "traces" / "param_dlrm_8ranks" / "dlrm_kineto.tar.gz"
theirs = pytest.mark.skipif(not RESNET.exists(), reason="the traces are not part of the project")
LINKS = {"gpus_per_node": 8, "nvlink": {"bandwidth": "1 GB/s", "latency": 0}}
MACHINE = scenario_from({"cluster": LINKS, "schedule": {"kind": "gpipe"}, "workload": {"forward": 0, "backward": 0}})
BUCKETS = [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]


@theirs
def test_the_buckets_of_a_resnet_are_those_of_its_trace():
    trace = read_kineto(RESNET, 0)
    sizes = [one.size for one in trace.communications if one.does == "all-reduce"]
    assert sizes == 3 * BUCKETS
    assert (trace.rank, trace.world, trace.linked, sorted(trace.steps)) == (0, 2, 100.0, [4, 5, 6])
    ddp = {
        "cluster": {"gpus_per_node": 2}, "model": "resnet-50", "parallel": {"data": 2},
        "gradients": {"bucket_rule": "ddp", "overlap": True},
    }  # fmt: skip
    parts = parts_of(scenario_from(ddp))
    assert [4 * bucket.elements for bucket in parts.reductions.buckets[0][0]] == BUCKETS


@theirs
def test_a_step_of_a_resnet_is_met():
    found = import_profile(RESNET)
    assert found.figures["step"] == 5
    assert found.simulated[0] == pytest.approx(found.measured[0], rel=1e-9)
    assert found.figures["worst_error_percent"] == pytest.approx(2.287, abs=1e-3)  # step 6 takes 2.3 % longer
    assert found.figures["linked_percent"] == 100
    assert any("transfers of 21 collectives" in one for one in found.unknown)
    assert any("inferred" in one for one in found.unknown)


@pytest.mark.slow
@theirs
def test_transfers_of_eight_ranks_are_told_from_waits(tmp_path):
    with tarfile.open(DLRM) as packed:
        packed.extractall(tmp_path, filter="data")
    job = KinetoRanks.read(sorted(tmp_path.rglob("*.json")))
    transfers = sorted(round(1e6 * one) for one in job.table().drop_duplicates(["kind", "number"]).transfer_s)
    assert transfers == [8, 8, 8, 11, 11, 23, 69, 87]
    ends = [max(m.end for m in members) - min(m.end for m in members) for members in job.matched.values()]
    assert (min(ends), max(ends)) == (1000, 7000)
    durations = [m.end - m.start for members in job.matched.values() for m in members]
    assert (min(durations), max(durations)) == (7000, 7_635_000)
    assert import_profile(next(tmp_path.rglob("*.json")).parent).figures["worst_error_percent"] < 0.1


def two_ranks(folder, shift=0.0, **nccl):
    """Rank 1 computes longer, so rank 0 waits: 10 µs of transfer begin at 60."""
    for rank, took in ((0, 30), (1, 50)):
        trace = Kineto(rank, 2)
        trace.note("ProfilerStep#3", 0, 100)
        trace.note("forward", 5, 20)
        trace.kernel("gemm", 10, took, launched=8)
        trace.reduce(10 + took, 60 - took, 1000, launched=9, **nccl)
        trace.kernel("adam", 70, 5, launched=30)
        folder.mkdir(exist_ok=True)
        trace.write(folder / f"rank{rank}.json.gz", shift * rank)
    return folder


def test_waits_and_transfers_follow_from_all_ranks(tmp_path):
    found = import_profile(two_ranks(tmp_path / "t"))
    table = found.files["collectives.csv"]
    assert table.wait_s.tolist() == pytest.approx([20e-6, 0])
    assert table.transfer_s.tolist() == pytest.approx([10e-6, 10e-6])
    assert table.bytes.tolist() == [4000, 4000]
    assert found.measured == found.simulated == [pytest.approx(65e-6)]
    assert found.values["workload"]["transfers"] == "recorded"
    assert not found.clocks["apart"]


def test_a_prediction_follows_other_links(tmp_path):
    """4,000 B around a ring of two at 1 GB/s take 4 µs instead of the recorded 10."""
    found = import_profile(two_ranks(tmp_path / "t"), machine=MACHINE)
    assert found.simulated == [pytest.approx(59e-6)]
    write_files(tmp_path / "out", found.contents())
    slower = load(tmp_path / "out" / "scenario.yaml", ["cluster.nvlink.bandwidth=100 MB/s"])
    assert simulate(slower).summary["step_time_s"] == pytest.approx(95e-6)


def test_of_one_rank_alone_transfers_are_unknown(tmp_path):
    found = import_profile(two_ranks(tmp_path / "t") / "rank0.json.gz")
    assert found.files["collectives.csv"].transfer_s.isna().all()
    assert any("one rank's kernels hold the wait" in one for one in found.unknown)
    assert found.values["parallel"] == {"data": 2}
    assert found.measured == found.simulated == [pytest.approx(65e-6)]


def test_clocks_that_are_apart_are_aligned_and_reported(tmp_path):
    found = import_profile(two_ranks(tmp_path / "t", shift=180e6))
    assert found.clocks["apart"]
    assert found.clocks["offsets_s"] == pytest.approx([0, -180])
    assert any("ends were aligned" in one for one in found.unknown)
    assert found.measured == found.simulated == [pytest.approx(65e-6)]


def test_kernels_belong_to_annotations_of_their_launch(tmp_path):
    trace = Kineto()
    trace.note("ProfilerStep#1", 0, 100)
    trace.note("outer", 10, 60)
    trace.note("inner", 20, 30)
    trace.note("autograd", 42, 44, thread=2)
    trace.kernel("a", 50, 1, launched=25)
    trace.kernel("b", 51, 1, launched=35)
    trace.kernel("c", 52, 1, launched=43, thread=2)
    trace.kernel("d", 53, 1, launched=50, thread=2)  # the innermost of the main thread
    trace.kernel("e", 54, 1, launched=90)
    trace.kernel("late", 150, 1, launched=99)  # the step is that of the launch
    found = read_kineto(trace.write(tmp_path / "a.json"), 0)
    assert found.op == ["inner", "outer", "autograd", "outer", "", ""]
    assert found.step.tolist() == 6 * [1]
    assert found.linked == pytest.approx(400 / 6)


def test_recorded_waits_replace_inferred_edges(tmp_path):
    trace = Kineto()
    trace.note("ProfilerStep#1", 0, 900)
    trace.kernel("a", 10, 10, 7, launched=1)
    trace.kernel("b", 30, 10, 8, launched=5)
    path = trace.write(tmp_path / "a.json")
    found = read_kineto(path, 0)
    assert kineto_ranks.edges_of(found, [0, 1]) == {1: [0]}  # within 60 µs
    trace.events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaEventRecord", "ts": 2, "dur": 1, "tid": 1,
                         "args": {"correlation": 501}})  # fmt: skip
    trace.events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamWaitEvent", "ts": 3, "dur": 1, "tid": 1,
                         "args": {"correlation": 502}})  # fmt: skip
    args = {"stream": 9, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 501, "correlation": 502}
    trace.events.append({"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "ts": 3, "dur": 1, "args": args})
    assert kineto_ranks.edges_of(read_kineto(trace.write(path), 0), [0, 1]) == {}
    args["stream"] = 8
    assert kineto_ranks.edges_of(read_kineto(trace.write(path), 0), [0, 1]) == {1: [0]}


OWN = [
    "a100_8x", "h100_2x8", "contention_slower", "contention_faster", "prototype_4gpu", "prototype_12gpu",
    "resnet50_4stages", "slow_gpu_h100_2x8", "dgx1_cube_mesh", "vit-l_8",
]  # fmt: skip


@pytest.mark.parametrize("name", thinned(OWN, slow=OWN[1:4] + OWN[5:9]))
def test_our_own_results_come_back_with_equal_steps(name, tmp_path):
    """Traces for HTA hold whole µs; the end of a step is in the summary beside a timeline."""
    few = ["schedule.microbatches=8"] if "h100" in name else []
    result = simulate(load(SCENARIOS / f"{name}.yaml", ["steps=1", *few]))
    step = result.summary["step_time_s"]
    result.timeline.to_csv(tmp_path / "timeline.csv", index=False)
    (tmp_path / "summary.json").write_text(f'{{"step_time_s": {step}}}')
    write_kineto(result, tmp_path / "hta")
    for source, within in ((tmp_path / "timeline.csv", 1e-12), (tmp_path / "hta", 1e-6)):
        found = import_profile(source)
        found.write(tmp_path / "out")
        again = simulate(load(tmp_path / "out" / "scenario.yaml")).summary["step_time_s"]
        assert again == pytest.approx(found.simulated[0], abs=1e-12)
        assert found.simulated == [pytest.approx(step, abs=within)]
        assert found.measured == [pytest.approx(step, abs=within)]
        assert found.schedule == result.run.scenario.schedule.kind
        assert found.unknown


def table_of(scenario, folder):
    """The `timeline.csv` of a scenario, and its rows."""
    timeline = simulate(load(scenario)).timeline
    timeline.to_csv(folder / "timeline.csv", index=False)
    return folder / "timeline.csv", timeline


UNEVEN = {  # only the first and the last rank have an optimizer's step
    "parallel": {"pipeline": 3, "data": 2}, "schedule": {"kind": "gpipe", "microbatches": 1},
    "workload": {"forward": "15 ms", "backward": "11 ms", "optimizer": ["1 ms", 0, "5 ms"]},
}  # fmt: skip


def test_ranks_with_and_without_an_optimizer_are_shown(tmp_path):
    path, timeline = table_of(UNEVEN, tmp_path)
    measured, simulated = import_profile(path).shown()
    ops = timeline[timeline.lane == "compute"].sort_values(["rank", "start_s"])
    for findings in (measured, simulated):
        shown = findings.timeline[findings.timeline.lane == "compute"].sort_values(["rank", "start_s"])
        assert shown.start_s.tolist() == pytest.approx(ops.start_s.tolist())


def test_traces_with_fused_pairs_keep_their_step(tmp_path):
    fused = {"parallel": {"pipeline": 2}, "schedule": {"kind": "dualpipe-v", "microbatches": 4},
             "workload": {"forward": "7 ms", "backward": "21 ms"}}  # fmt: skip
    result = simulate(load(fused))
    write_kineto(result, tmp_path / "hta")
    found = import_profile(tmp_path / "hta")
    assert found.simulated == [pytest.approx(result.summary["step_time_s"], abs=1e-6)]


@pytest.mark.parametrize(("end", "lacks"), [("1,5,1,2,compute,optimizer,,", "start_s"), ("1,5,1,2,comp", "kind")])
def test_cut_timelines_are_refused_with_the_row(end, lacks, tmp_path):
    path, timeline = table_of(UNEVEN, tmp_path)
    path.write_text(path.read_text() + end)
    with pytest.raises(UsageError, match=rf"timeline.csv: row {len(timeline) + 2}: {lacks}: expected a value"):
        import_profile(path)


@pytest.mark.parametrize("column", ["microbatch", "chunk", "stage"])
def test_places_of_ops_that_are_no_numbers_are_refused(column, tmp_path):
    path, timeline = table_of(UNEVEN, tmp_path)
    timeline.astype({column: object}).assign(**{column: "{}"}).to_csv(path, index=False)
    with pytest.raises(UsageError, match=rf"timeline.csv: row 2: {column}: expected a .*, found {{}}"):
        import_profile(path)


@pytest.mark.parametrize("kind", thinned(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"], slow=["1f1b", "zb-h1"]))
@pytest.mark.parametrize("backward", thinned(["0", "5 ms"], slow=["5 ms"]))
def test_rows_of_a_timeline_may_be_in_any_order(kind, backward, tmp_path):
    """Ops of no length begin together: an order in which they can run is taken."""
    chunks = {"chunks": 2} if kind == "interleaved-1f1b" else {}
    path, timeline = table_of(
        {"parallel": {"pipeline": 3}, "schedule": {"kind": kind, "microbatches": 6, **chunks},
         "workload": {"forward": ["0", "5 ms", "0"], "backward": backward}}, tmp_path,
    )  # fmt: skip
    expected = import_profile(path)
    assert expected.schedule == kind
    for rows in (timeline[::-1], timeline.sample(frac=1, random_state=1)):
        rows.to_csv(path, index=False)
        found = import_profile(path)
        assert (found.schedule, found.simulated) == (expected.schedule, expected.simulated)


def test_our_own_results_take_another_schedule(tmp_path):
    scenario = load(SCENARIOS / "prototype_4gpu.yaml")
    write_kineto(simulate(scenario), tmp_path / "hta")
    found = import_profile(tmp_path / "hta")
    write_files(tmp_path / "out", found.contents())
    free = ["cluster.nvlink={bandwidth: inf, latency: 0}"]
    other = simulate(load(SCENARIOS / "prototype_4gpu.yaml", [*free, "schedule.kind=gpipe"])).summary["step_time_s"]
    again = simulate(load(tmp_path / "out" / "scenario.yaml", ["schedule.kind=gpipe"])).summary["step_time_s"]
    assert again == pytest.approx(other, rel=1e-6)


def test_replay_takes_our_own_traces(tmp_path):
    write_kineto(simulate(load(SCENARIOS / "prototype_4gpu.yaml")), tmp_path / "hta")
    replayed = replay(tmp_path / "hta")
    assert (replayed.trace.schedule, replayed.trace.assumed) == ("1f1b", False)
    assert replayed.steps.error_percent.abs().max() < 15  # messages take no time


def other_step(folder):
    trace = Kineto(1, 2)
    trace.note("ProfilerStep#9", 0, 100)
    trace.kernel("gemm", 10, 1)
    trace.write(folder / "rank1.json.gz")


def same_rank(folder):
    (folder / "rank1.json.gz").write_bytes((folder / "rank0.json.gz").read_bytes())


def cut(folder):
    path = folder / "rank1.json.gz"
    path.write_bytes(path.read_bytes()[:-60])


def negative(folder):
    trace = Kineto(1, 2)
    trace.kernel("gemm", 10, -5)
    trace.write(folder / "rank1.json.gz")


def no_kernels(folder):
    trace = Kineto(1, 2)
    trace.note("ProfilerStep#3", 0, 100)
    trace.write(folder / "rank1.json.gz")


BROKEN = [
    (other_step, "step 9; rank0.json.gz has step 3: of one run?"),
    (same_rank, "a second trace of rank 0, beside rank0.json.gz"),
    (cut, "rank1.json.gz: not "),
    (negative, "event 1 (gemm): dur: -5 µs; expected at least 0"),
    (no_kernels, "a profiler trace without kernels"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_broken_traces_are_refused_in_one_line(change, said, tmp_path):
    change(two_ranks(tmp_path / "t"))
    with pytest.raises(UsageError) as refused:
        import_profile(tmp_path / "t")
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_missing_ranks_are_reported(tmp_path):
    folder = two_ranks(tmp_path / "t")
    for rank in (0, 1):
        trace = Kineto(rank, 8)
        trace.note("ProfilerStep#3", 0, 100)
        trace.kernel("gemm", 10, 5)
        trace.write(folder / f"rank{rank}.json.gz")
    found = import_profile(folder)
    assert any(one.startswith("6 of 8 ranks") for one in found.unknown)


def test_many_kernels_are_joined_without_losing_time(tmp_path, monkeypatch):
    trace = Kineto()
    trace.note("ProfilerStep#1", 0, 9000)
    for number in range(1000):
        trace.kernel("tick", 10 + 2 * number, 1.5)
    path = trace.write(tmp_path / "a.json")
    whole = import_profile(path)
    monkeypatch.setattr(kineto_ranks, "MOST_NODES", 100)
    joined = import_profile(path)
    assert joined.simulated == whole.simulated == whole.measured
    assert len(joined.files["chakra.0.et"]) < len(whole.files["chakra.0.et"]) / 100
    assert isinstance(joined.files["durations.csv"], pd.DataFrame)
    assert len(joined.files["durations.csv"]) == 1000


def profiled(folder):
    """Two ranks of an A100 with products at half the peak, attention at a quarter, and all-reduces of 1 and 4 MB."""
    folder.mkdir()
    for rank in (0, 1):
        trace = Kineto(rank, 2)
        trace.about["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
        trace.note("ProfilerStep#1", 0, 10_000)
        shapes = {
            "aten::mm": [[1024, 512], [512, 2048]],
            "aten::_scaled_dot_product_flash_attention": 3 * [[2, 8, 1024, 64]],
            "aten::_flash_attention_forward": 3 * [[2, 1024, 8, 64]],  # the same, transposed
        }
        flops = [2 * 1024 * 512 * 2048, *2 * (4 * 2 * 8 * 1024 * 1024 * 64,)]
        for place, name in enumerate(shapes):
            took = flops[place] / 312e12 * 1e6 * (2, 4, 4)[place]
            trace.product(name, shapes[name], 100 * place, took)
        inner = {**trace.events[-3], "ts": trace.events[-3]["ts"] + 0.5, "dur": 0.1}  # its kernel counts once
        trace.events.append(inner)
        for place, size in enumerate((250_000, 1_000_000)):
            begin = 1000 * (place + 1)
            trace.reduce(begin - 50 * rank, 50 * rank + size / 1000, size, **{"Group size": 2})
        trace.write(folder / f"rank{rank}.json")
    return folder


def test_efficiencies_and_tables_follow_from_a_profile(run, ran, tmp_path):
    code, out, err = run("import", profiled(tmp_path / "t"), "--json", "--out", tmp_path / "o")
    found = json.loads(out)
    assert (code, len(err), found["gpu"]) == (0, 1, "a100-80gb")
    assert found["reached"]["gemm"]["share"] == pytest.approx(0.5, rel=2e-3)
    assert found["reached"]["attention"]["share"] == pytest.approx(0.25, rel=2e-3)
    assert found["reached"]["gemm"]["error"] < 0.01
    assert read_table(tmp_path / "o" / "all_reduce.csv").entries == ((10**6, 250 * 10**6), (4 * 10**6, 10**9))
    assert read_table(tmp_path / "o" / "link.csv").entries == ((500_000, 125 * 10**6), (2 * 10**6, 500 * 10**6))
    out, _ = ran("import", tmp_path / "t")
    assert "gemm 50.0 % (half of them 50.0 % … 50.0 %), attention 25.0 %" in out
    assert "all_reduce: medians of 2 transfers on 2 ranks" in out


def test_what_cannot_be_calibrated_is_said(ran, refused, tmp_path):
    out, _ = ran("import", two_ranks(tmp_path / "t") / "rank0.json.gz")
    assert "efficiency  no efficiency: the GPU (not named) is unknown; name it by --gpu" in out
    assert "one rank's kernels hold the wait for the others" in out
    assert 'unknown GPU "h1000"' in refused("import", tmp_path / "t", "--gpu", "h1000")
