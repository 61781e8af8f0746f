"""The traces for Holistic Trace Analysis hold what the timeline says, in the form that it reads."""

import gzip
import json
import re
from collections import Counter
from itertools import pairwise
from operator import itemgetter

import numpy as np
import pytest
from support.results import RESULTS, result_of, simulated
from support.scenarios import MINIMAL

from hybrid_des import load, simulate
from hybrid_des.errors import UsageError
from hybrid_des.report.files.kineto import COMPUTE, GATHER, KERNELS, REDUCTION, SENDS, STREAMS, write_kineto


@pytest.fixture(params=RESULTS)
def result(request):
    return RESULTS[request.param]()


def traces(result, folder):
    paths = write_kineto(result, folder).paths
    return {
        int(path.name.split("-")[1].split(".")[0]): json.loads(gzip.decompress(path.read_bytes())) for path in paths
    }


def whole(seconds):
    return np.floor(np.rint(seconds * 1e12) / 1e6 + 0.5).astype(int).tolist()


def test_every_rank_has_a_file_that_names_it(tmp_path):
    found = traces(result_of(), tmp_path)
    assert sorted(found) == list(range(6))
    for rank, trace in found.items():
        assert trace["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 6}
        assert trace["schemaVersion"] == 1
        text = gzip.decompress((tmp_path / f"rank-{rank}.json.gz").read_bytes()).decode()
        first = next(line for line in text.splitlines() if re.search(r'"rank":\s+(\d+)', line))
        assert f'"rank": {rank},' in first


def test_kernels_of_ops_are_the_compute_lane(result, tmp_path):
    rows = result.timeline
    found = traces(result, tmp_path)
    assert len(found) == rows["rank"].nunique()
    for rank, trace in found.items():
        mine = rows[(rows["lane"] == "compute") & (rows["rank"] == rank)]
        names = [KERNELS.get(kind, kind) for kind in mine["kind"]]
        expected = Counter(zip(names, whole(mine["start_s"]), whole(mine["end_s"]), strict=True))
        kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        assert expected == Counter(
            (event["name"], event["ts"], event["ts"] + event["dur"]) for event in kernels if event["tid"] == COMPUTE
        )


def kernels(trace, stream):
    return [event for event in trace["traceEvents"] if event.get("cat") == "kernel" and event["tid"] == stream]


def test_communication_is_named_as_nccl_names_it(tmp_path):
    result = simulated()
    found = Counter()
    for trace in traces(result, tmp_path).values():
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and event["tid"] != COMPUTE:
                assert re.match(r"nccl.*Kernel", event["name"])
                found[event["tid"], event["name"], event["args"]["Collective name"]] += 1
    rows = result.timeline
    sends = int(((rows["hop"] == 0) & rows["kind"].isin(["activation", "gradient"])).sum())
    reductions = len(result.run.timeline.reductions["rank"])
    assert found == {
        (SENDS, "ncclDevKernel_SendRecv", "send"): sends,
        (REDUCTION, "ncclDevKernel_AllReduce_Sum", "allreduce"): reductions,
    }


SHARDED = {  # number of bytes of an element of "dtype"
    "buckets": ["sharding=zero-1", "gradients.bucket=400MB"],
    "buckets of a library": ["sharding=zero-1", "gradients.algorithm=nccl"],
    "layers": ["sharding=zero-2"],
    "layers gathered each time": ["sharding=zero-3", "gradients.codec=bf16"],
    "whole": ["gradients.bucket=400MB", "gradients.codec=int8"],
}
WIDTH = {"Float": 4, "BFloat16": 2, "Byte": 1}


def sent(kernel):
    """Bytes that a rank sends in a ring that does what a kernel is named after."""
    args = kernel["args"]
    before, after, size = args["In msg nelems"], args["Out msg nelems"], args["Group size"]
    assert args["Process Group Ranks"] == str(list(range(size)))
    shapes = {"AllReduce_Sum": (1, 1), "ReduceScatter_Sum": (size, 1), "AllGather": (1, size)}
    name = kernel["name"].removeprefix("ncclDevKernel_")
    assert before * shapes[name][1] == after * shapes[name][0]
    return (2 if name == "AllReduce_Sum" else 1) * max(before, after) * WIDTH[args["dtype"]] * (size - 1) // size


@pytest.mark.parametrize("changes", SHARDED.values(), ids=[*SHARDED])
def test_sizes_of_collectives_add_up_to_the_bytes_sent(changes, tmp_path):
    job = {"cluster": {"gpus_per_node": 4, "nvlink": {"bandwidth": "100 GB/s", "latency": "1 us"}},
           "parallel": {"data": 4}, "workload": {"forward": "1 ms", "backward": "2 ms", "parameters": 400_000_000},
           "schedule": {"microbatches": 2}}  # fmt: skip
    result = simulate(load(job, changes))
    gradients = parameters = 0
    for trace in traces(result, tmp_path).values():
        gradients += sum(map(sent, kernels(trace, REDUCTION)))
        parameters += sum(map(sent, kernels(trace, GATHER)))
        scattered = any("sharding" in change for change in changes)
        assert {kernel["name"].split("_")[1] for kernel in kernels(trace, REDUCTION)} == {
            "ReduceScatter" if scattered else "AllReduce"
        }
        assert bool(kernels(trace, GATHER)) == scattered
    assert gradients == result.summary["bytes_gradients"]
    assert parameters == result.summary.get("bytes_parameters", 0)


def test_messages_say_what_they_move_and_where(tmp_path):
    result = simulated()
    rows = result.timeline.query("hop == 0 and kind in ('activation', 'gradient')")
    expected = Counter(zip(rows["rank"], rows["peer"].astype(int), rows["bytes"], strict=True))
    found = Counter()
    for rank, trace in traces(result, tmp_path).items():
        for kernel in kernels(trace, SENDS):
            args = kernel["args"]
            assert args["In msg nelems"] == args["Out msg nelems"]
            assert (args["dtype"], args["In split size"], args["Out split size"]) == ("Byte", "[]", "[]")
            assert args["Process Group Ranks"] == str([rank, args["Dst Rank"]])
            found[rank, args["Dst Rank"], args["In msg nelems"]] += 1
    assert found == expected


def by_number(events, category, key="correlation"):
    return {event["args"][key]: event for event in events if event.get("cat") == category}


def test_every_kernel_has_its_launch_before_it(tmp_path):
    found = traces(simulated(), tmp_path)
    assert len(found) == 8
    for trace in found.values():
        events = trace["traceEvents"]
        launched, ran = by_number(events, "cuda_runtime"), by_number(events, "kernel")
        assert launched.keys() == ran.keys() != set()
        ends = sorted((event["ts"], event["ts"] + event["dur"]) for event in launched.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        late = [number for number in ran if launched[number]["ts"] > ran[number]["ts"]]
        assert late == []


def test_a_launch_waits_for_the_kernel_before_on_its_stream(tmp_path):
    """HTA calls what passes between a launch on an idle stream and its kernel the overhead of the launch."""
    for trace in traces(simulated(), tmp_path).values():
        launched = by_number(trace["traceEvents"], "cuda_runtime")
        for stream in (COMPUTE, REDUCTION, SENDS):
            of_stream = sorted(kernels(trace, stream), key=lambda event: event["ts"])
            for before, kernel in pairwise([None, *of_stream]):
                launch = launched[kernel["args"]["correlation"]]["ts"]
                idle_from = kernel["ts"] if before is None else before["ts"] + before["dur"]
                assert idle_from - len(STREAMS) <= launch <= kernel["ts"]


def test_arrows_lead_from_launches_in_operators_to_kernels(tmp_path):
    """TraceLens looks for the arrow's id among the correlations of its process and thread."""
    for trace in traces(simulated(), tmp_path).values():
        events = trace["traceEvents"]
        launched, ran = by_number(events, "cuda_runtime"), by_number(events, "kernel")
        operators = by_number(events, "cpu_op", "External id")
        arrows = {phase: {one["id"]: one for one in events if one["ph"] == phase} for phase in "sf"}
        assert arrows["s"].keys() == arrows["f"].keys() == ran.keys() == operators.keys()
        place = itemgetter("pid", "tid", "ts")
        for ends, there in ((arrows["s"], launched), (arrows["f"], ran)):
            assert all(place(ends[number]) == place(event) for number, event in there.items())
        for number, operator in operators.items():
            assert (*place(operator), operator["dur"]) == (*place(launched[number]), launched[number]["dur"])
            assert events.index(operator) < events.index(launched[number])
        assert {event["pid"] for event in launched.values()}.isdisjoint({event["pid"] for event in ran.values()})


def test_every_step_is_marked(tmp_path):
    result = result_of(steps=3, forward=5 * 10**6, backward=7 * 10**6, delay=10**6, reduction=0, optimizer=0)
    found = traces(result, tmp_path)
    assert len(found) == 6
    for trace in found.values():
        steps = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
        assert [event["name"] for event in steps] == [f"ProfilerStep#{step}" for step in range(3)]
        assert steps[-1]["ts"] + steps[-1]["dur"] <= result.run.timeline.duration // 10**6


def test_files_of_ranks_that_are_gone_are_removed(tmp_path):
    (tmp_path / "rank-7.json.gz").write_text("old")
    (tmp_path / "rank-7.txt").write_text("mine")
    write_kineto(result_of(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*(f"rank-{rank}.json.gz" for rank in range(6)), "rank-7.txt"}


def test_without_rows_there_is_no_trace(tmp_path):
    with pytest.raises(UsageError, match="needs recorded rows"):
        write_kineto(result_of(record="none"), tmp_path)


def test_the_command_line_writes_traces(run, write, tmp_path):
    code, _, err = run("export", write(MINIMAL), "--for", "hta", "--out", tmp_path / "hta")
    assert (code, err) == (0, [f"wrote 1 files to {tmp_path / 'hta'}"])
    assert (tmp_path / "hta" / "rank-0.json.gz").exists()
