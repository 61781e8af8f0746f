"""Profiler traces as different versions, libraries and jobs write them: each keeps its measured step."""

import json

import pytest
from support.profiles import Kineto

from hybrid_des import load, simulate
from hybrid_des.cluster.gpus import part
from hybrid_des.interchange.profiles.kineto_reader import LARGEST, NAMED, read_kineto
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.report.files.staging import write_files
from hybrid_des.scenario.loading import scenario_from

EPOCH = 1_740_461_679_470_000  # whole µs, as before PyTorch 2.2
LINKS = {"gpus_per_node": 8, "nvlink": {"bandwidth": "1 GB/s", "latency": 0}}
MACHINE = scenario_from({"cluster": LINKS, "schedule": {"kind": "gpipe"}, "workload": {"forward": 0, "backward": 0}})


def exact(found):
    """The measured step, met."""
    assert found.simulated == [pytest.approx(found.measured[0], rel=1e-9)]
    return found.measured[0]


def experts(world, **about):
    """A layer of experts: tokens travel for 200 µs beside products of 90, of which two overlap by rounding."""
    trace = Kineto(0, world)
    trace.about.update(about)
    trace.kernel("void deep_ep::internode::notify_dispatch<false, 8>(int const*)", EPOCH, 10, 20)
    trace.kernel("void deep_ep::internode::dispatch<false, 8, false>(int4*)", EPOCH + 10, 200, 20)
    trace.kernel("gemm", EPOCH + 20, 41)
    trace.kernel("gemm", EPOCH + 60, 50)
    trace.kernel("experts", EPOCH + 210, 100)
    trace.kernel("void deep_ep::internode::combine<false, 8, __nv_bfloat16>(int4*)", EPOCH + 310, 90, 20)
    trace.kernel("gemm", EPOCH + 390, 60)
    return trace


@pytest.mark.parametrize("world", [None, 1, 2048])
def test_messages_of_experts_keep_their_time(world, tmp_path):
    found = import_profile(experts(world).write(tmp_path / "train.json"))
    assert exact(found) == pytest.approx(450e-6)
    assert found.figures["communication_s"] == pytest.approx(300e-6)
    assert found.figures["exposed_communication_s"] == pytest.approx(200e-6)  # 20 + 100 + 80
    assert any("the ranks of 3 collectives" in one for one in found.unknown)
    assert any("no ProfilerStep" in one for one in found.unknown)


def two_of(world, folder):
    """Ranks 0 and 1 of one group, each in another group too, rank 0 with a message to a rank without a trace."""
    folder.mkdir()
    for rank, took in ((0, 30), (1, 50)):
        trace = Kineto(rank, world)
        trace.kernel("gemm", 0, took)
        trace.collective("allreduce", took, 60, [0, 1], Seq=7)
        trace.kernel("gemm", 61, 9)
        trace.collective("_reduce_scatter_base", 71, 100 + rank, [rank, rank + 8], stream=21)
        if rank == 0:
            trace.collective("send", 103, 123, [0, 64], stream=22, **{"Dst Rank": 64, "Group size": 2})
        trace.write(folder / f"rank{rank}.json")
    return folder


def test_two_ranks_of_many_keep_what_others_did(tmp_path):
    found = import_profile(two_of(128, tmp_path / "t"))
    assert exact(found) == pytest.approx(123e-6)
    table = found.files["collectives.csv"].set_index(["kind", "rank"])
    assert table.transfer_s["all-reduce"].tolist() == pytest.approx([10e-6, 10e-6])
    assert table.wait_s["all-reduce"].tolist() == pytest.approx([20e-6, 0])
    assert table.transfer_s["reduce-scatter"].isna().all()  # one group by name, two by their ranks
    said = " ".join(found.unknown)
    assert "126 of 128 ranks" in said
    assert "transfers of 2 collectives of which one rank alone has a trace" in said
    assert "the other ends of 1 pipeline messages" in said


def test_an_import_names_the_rank_that_others_wait_for(run, ran, tmp_path):
    out, _ = ran("import", two_of(2, tmp_path / "t"))
    assert "measured 123 µs, simulated 123 µs" in out
    assert "rank 1: it came last to 1 of 1 collectives, by 20 µs, 16.3 % of the step" in out
    code, out, _ = run("import", tmp_path / "t" / "rank0.json", "--json")
    assert (code, json.loads(out)["by_rank"][0]["collectives"]) == (0, 0)
    code, _, err = run("import", tmp_path / "t", "--schedule", "1f1b")
    assert (code, len(err)) == (2, 1)


def test_one_collective_of_absent_ranks_holds_their_wait(tmp_path):
    for rank in (0, 1):
        trace = Kineto(rank, 4)
        trace.collective("allreduce", 10 * rank, 50, [0, 1, 2, 3])
        trace.write(tmp_path / f"rank{rank}.json")
    found = import_profile(tmp_path, machine=MACHINE)
    exact(found)  # not a message among two
    assert found.files["collectives.csv"].transfer_s.isna().all()
    assert any("they hold the wait for ranks without a trace" in one for one in found.unknown)


@pytest.mark.parametrize("named", [{}, {"Src Rank": 0, "Dst Rank": 1}], ids=["group of two", "named"])
def test_both_ends_of_a_message_are_matched(named, tmp_path):
    ends = ("send", "Dst Rank"), ("recv", "Src Rank")
    for rank, (does, key) in enumerate(ends):
        trace = Kineto(rank, 2)
        trace.kernel("gemm", 0, 80 if rank == 0 else 20)
        begin = 80 if rank == 0 else 20
        other = {key: named[key]} if named else {}
        trace.collective(does, begin, 100, [0, 1], 5000, stream=22, **other)
        if rank:
            trace.kernel("gemm", 100, 40)
        trace.write(tmp_path / f"rank{rank}.json")
    found = import_profile(tmp_path)
    assert exact(found) == pytest.approx(140e-6)
    assert found.files["collectives.csv"].wait_s.tolist() == pytest.approx([0, 60e-6])
    write_files(tmp_path / "out", found.contents())
    assert simulate(load(tmp_path / "out" / "scenario.yaml")).summary["step_time_s"] == pytest.approx(140e-6)
    linked = import_profile(tmp_path, machine=MACHINE)  # 10,000 B at 1 GB/s instead of 20 µs
    assert linked.simulated == [pytest.approx(130e-6)]


def test_a_group_of_one_rank_is_simulated_with_its_size(tmp_path):
    """16,000 B around a ring of four at 1 GB/s: 24 µs; among all eight ranks they would take 28."""
    trace = Kineto(3, 8)
    trace.kernel("gemm", 0, 10)
    trace.collective("allreduce", 10, 60, [1, 3, 5, 7], 8000, dtype="BFloat16")
    found = import_profile(trace.write(tmp_path / "rank3.json"), machine=MACHINE)
    assert found.simulated == [pytest.approx(34e-6)]


def clocks(folder, apart, **about):
    folder.mkdir()
    for rank in range(4):
        trace = Kineto(rank, 4)
        trace.about.update({key: value[rank] for key, value in about.items()})
        trace.kernel("gemm", 100, 20 + 10 * rank)
        pair = [0, 1] if rank < 2 else [2, 3]
        trace.collective("allreduce", 120 + 10 * rank, 140 + 20 * (rank // 2), pair)
        trace.collective("_allgather_base", 165, 200, [rank % 2, rank % 2 + 2], stream=21)
        trace.write(folder / f"host_{rank}.json", apart[rank])
    return folder


def test_clocks_of_hosts_are_aligned_over_shared_collectives(tmp_path):
    found = import_profile(clocks(tmp_path / "t", [0, 300, -500, 800]))
    assert found.clocks["apart"]
    assert found.clocks["offsets_s"] == pytest.approx([0, -300e-6, 500e-6, -800e-6], abs=1e-8)
    assert exact(found) == pytest.approx(100e-6)
    base = [10**18 + 10**6 * rank for rank in range(4)]  # ns
    found = import_profile(clocks(tmp_path / "b", [0, -1000, -2000, -3000], baseTimeNanoseconds=base))
    assert not found.clocks["apart"]
    assert exact(found) == pytest.approx(100e-6)


KERNELS = {
    "void cutlass::Kernel2<cutlass_80_wmma>": 50,
    "flash_fwd_kernel": 30,
    "triton_poi_fused_0": 20,
    "mystery": 10,
}


def test_another_gpu_scales_kernels_by_what_bounds_them(tmp_path):
    trace = Kineto()
    trace.about["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    at = 0
    for name, took in KERNELS.items():
        trace.kernel(name, at, took)
        at += took + 5
    found = import_profile(trace.write(tmp_path / "a.json"))
    assert found.figures["kernels"] == pytest.approx(
        {"products": 50 / 110, "attention": 30 / 110, "memory": 20 / 110, "unknown": 10 / 110}
    )
    write_files(tmp_path / "out", found.contents())
    before, after = part("a100-80gb"), part("h100")
    one, other = (each.efficiency["bf16"] for each in (before, after))
    peaks, bandwidths = float(before.peak / after.peak), float(before.bandwidth / after.bandwidth)
    expected = (
        50 * peaks * one["gemm"] / other["gemm"]
        + 30 * peaks * one["attention"] / other["attention"]
        + 20 * bandwidths * one["memory"] / other["memory"]
        + 10 + 3 * 5
    )  # fmt: skip
    changed = simulate(load(tmp_path / "out" / "scenario.yaml", ["cluster.gpu=h100"]))
    assert changed.summary["step_time_s"] == pytest.approx(1e-6 * expected, rel=1e-6)
    said = " ".join(changed.report().split())
    assert "kernels were recorded on a100-80gb: products × 0." in said
    assert "those of other names keep their time; how far that is off was not measured for these two" in said
    (tmp_path / "out" / "scenario.yaml").write_text(
        (tmp_path / "out" / "scenario.yaml").read_text().replace("recorded_on: a100-80gb", "recorded_on: h100")
    )
    moved = simulate(load(tmp_path / "out" / "scenario.yaml", ["cluster.gpu=mi300x"]))
    said = " ".join(moved.report().split())
    assert "of five models recorded on both (AMD-AGI/TraceLens) were met within -24 to +49 %" in said


@pytest.mark.parametrize(("apart", "step"), [(30, 130e-6), (180e6, 100e-6)])
def test_ranks_that_share_nothing_keep_their_clocks(apart, step, tmp_path):
    """Unless these have no time in common: then their steps begin together."""
    for rank in (0, 1):
        trace = Kineto(rank, 128)
        trace.kernel("gemm", 0, 60)
        trace.collective("allreduce", 60, 100, [8 * rank, 8 * rank + 1])
        trace.write(tmp_path / f"rank{rank}.json", apart * rank)
    found = import_profile(tmp_path)
    assert exact(found) == pytest.approx(step)
    assert any(one.startswith("a common clock of ranks 0 and 1: they share no") for one in found.unknown)


def named(name, **args):
    """The communication in a trace with one kernel of this name."""
    return lambda trace: trace.kernel(name, 10, 5, 20, **args)


def by_operator(trace):
    """PyTorch 2.1: the operator has the arguments, the kernel its number."""
    args = {"External id": 5, "Collective name": "allreduce", "In msg nelems": 10, "dtype": "Float"}
    trace.events.append({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 9, "dur": 4, "tid": 1,
                         "args": args})  # fmt: skip
    trace.kernel("ncclDevKernel_Generic_2(x)", 10, 5, 20, **{"External id": 5})


def by_annotation(trace):
    """PyTorch 2.0: an annotation with the shapes."""
    trace.note("nccl:_all_gather_base", 9, 12)
    trace.events[-1]["args"] = {"Input Dims": [[5, 2]], "Input type": ["c10::BFloat16"]}
    trace.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 10, 5, 20)


RING = named("ncclAllReduceRingLLKernel_sum_f32(ncclColl)")
RCCL = {"Collective name": "reduce_scatter_tensor_coalesced", "In msg nelems": 10, "dtype": "Half"}


@pytest.mark.parametrize(
    ("write", "does", "size"),
    [
        (RING, "all-reduce", 0),
        (named("ncclDevKernel_Generic_4(x)", **RCCL), "reduce-scatter", 20),
        (named("ncclSymkDevKernel_AllGather_LL(x)"), "all-gather", 0),
        (named("void vllm::cross_device_reduce_1stage<__half, 2>(x)"), "all-reduce", 0),
        (named("ncclDevKernel_SendRecv(x)", **{"Collective name": "all_to_allv"}), "all-to-all", 0),
        (named("void primus_turbo::deep_ep::intranode::dispatch<8>(x)"), "all-to-all", 0),
        (by_operator, "all-reduce", 40),
        (by_annotation, "all-gather", 20),
    ],
    ids=["old", "rccl", "symmetric", "mapped", "exchange", "experts", "operator", "annotation"],
)
def test_communication_is_told_by_names_and_arguments(write, does, size, tmp_path):
    trace = Kineto()
    write(trace)
    (one,) = read_kineto(trace.write(tmp_path / "a.json"), 0).communications
    assert (one.does, one.size) == (does, size)


def test_kernels_that_copy_for_collectives_compute(tmp_path):
    trace = Kineto()
    trace.kernel("void at::native::CatArrayBatchedCopy<x>", 10, 5, **{"Collective name": "allgather"})
    assert not read_kineto(trace.write(tmp_path / "a.json"), 0).communications


def test_traces_of_old_versions_are_read(tmp_path):
    """Before PyTorch 1.12 categories had other names, and a step was an operator."""
    trace = Kineto(0, None)
    trace.note("ProfilerStep#2", 0, 50)
    trace.note("ProfilerStep#3", 50, 90)
    trace.kernel("gemm", 20, 30, launched=10)
    trace.kernel("gemm", 80, 10, launched=60)
    old = {"user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    for event in trace.events:
        event["cat"] = old[event["cat"]]
    found = read_kineto(trace.write(tmp_path / "worker5.1623143089861.pt.trace.json"), 0)
    assert (found.rank, found.step.tolist()) == (5, [2, 3])


def test_without_launches_steps_are_those_of_the_device(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20, 30)
    trace.kernel("gemm", 80, 10)
    trace.events = [event for event in trace.events if event["cat"] == "kernel"]
    for number, begin in ((1, 20), (2, 80)):
        trace.note(f"ProfilerStep#{number}", begin, begin + 30)
        trace.events[-1]["cat"] = "gpu_user_annotation"
    assert read_kineto(trace.write(tmp_path / "a.json"), 0).step.tolist() == [1, 2]


def test_forwards_and_backwards_follow_from_links(tmp_path):
    """A recomputed forward within the backward belongs to it."""
    trace = Kineto()
    for phase, at, thread in (("s", 10, 1), ("s", 20, 1), ("f", 40, 2), ("s", 45, 2), ("f", 50, 2)):
        trace.events.append({"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "ts": at, "tid": thread})
    for at in (39, 49):
        trace.events.append({"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: Mm", "ts": at,
                             "dur": 9, "tid": 2, "args": {}})  # fmt: skip
    for at, thread in ((5, 1), (12, 1), (25, 1), (41, 2), (46, 2), (57, 2), (60, 1)):
        trace.kernel("gemm", 100 + at, 1, launched=at, thread=thread)
    found = read_kineto(trace.write(tmp_path / "a.json"), 0)
    assert found.op == ["", "forward", "forward", "backward", "backward", "backward", ""]


def test_gpus_of_one_process_have_streams_of_their_own(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 0, 50, device=0)
    trace.kernel("gemm", 10, 50, device=1)
    assert exact(import_profile(trace.write(tmp_path / "a.json"))) == pytest.approx(60e-6)


def test_ranks_that_all_claim_one_take_those_of_their_names(tmp_path):
    for rank in (0, 3):
        trace = Kineto(0, 1)
        trace.kernel("gemm", 10, 5)
        trace.write(tmp_path / f"rank{rank}_trace.json")
    assert [row["rank"] for row in import_profile(tmp_path).figures["by_rank"]] == [0, 3]


def test_ranks_in_folders_of_their_own_are_found(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
        trace = Kineto(rank, None)
        trace.kernel("gemm", 10, 5)
        trace.after = {"distributedInfo": {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": 3}]}}
        trace.write(tmp_path / f"rank{rank}" / "trace.json.gz")
    figures = import_profile(tmp_path).figures
    assert (figures["traces"], figures["world_size"]) == (2, 2)
    assert json.dumps(figures)


def test_streams_and_threads_with_names_are_numbered_in_order(tmp_path):
    """Not by their hashes, which differ from process to process: files of an import would differ, too."""
    trace = Kineto()
    for place, stream in enumerate(("default", 7, "comm", "default")):
        trace.kernel("gemm", 10 * place, 5, stream, thread=stream)
    found = read_kineto(trace.write(tmp_path / "a.json"), 0)
    named = NAMED + 1
    assert found.stream.tolist() == [NAMED, 7, named, NAMED]
    assert found.thread.tolist() == [LARGEST, 7, LARGEST + 1, LARGEST]


def test_the_files_of_an_import_are_the_same_each_time(tmp_path):
    """The page said how long the simulation took."""
    trace = Kineto()
    trace.kernel("gemm", 0, 10)
    file = trace.write(tmp_path / "a.json")
    folders = [tmp_path / "first", tmp_path / "again"]
    for folder in folders:
        import_profile(file).write(folder)
    first, again = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert "timelines.html" in first and first == again


@pytest.mark.parametrize("waits", [False, True])
def test_events_of_no_length_need_nothing_that_follows(waits, tmp_path):
    """Where a message of less than a µs is written with whole µs, it begins and ends when what it holds up begins."""
    trace = Kineto()
    trace.kernel("gemm", 0, 10)
    trace.kernel("gemm", 10, 10)
    trace.kernel("send", 10, 0, 20)
    if waits:
        args = {"stream": 7, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 4, "correlation": 2}
        trace.events.append({"ph": "X", "cat": "cuda_sync", "name": "wait", "ts": 10, "dur": 0, "args": args})
    assert exact(import_profile(trace.write(tmp_path / "a.json"))) == pytest.approx(20e-6)
