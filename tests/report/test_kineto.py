"""The traces for Holistic Trace Analysis hold what the timeline says, in the form that it reads."""

import gzip
import json
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from support.results import RESULTS, result_of, simulated
from support.scenarios import MINIMAL

from hybrid_des.errors import UsageError
from hybrid_des.report.files.kineto import COMPUTE, KERNELS, REDUCTION, SENDS, write_kineto


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


def test_every_kernel_has_its_launch_before_it(tmp_path):
    found = traces(simulated(), tmp_path)
    assert len(found) == 8
    for trace in found.values():
        events = trace["traceEvents"]
        launches = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
        kernels = {event["args"]["correlation"]: event for event in events if event.get("cat") == "kernel"}
        assert launches.keys() == kernels.keys() != set()
        ends = sorted((event["ts"], event["ts"] + event["dur"]) for event in launches.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


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
    code, _, err = run(write(MINIMAL), "--hta", tmp_path / "hta")
    assert (code, err) == (0, [f"wrote 1 files to {tmp_path / 'hta'}"])
    assert (tmp_path / "hta" / "rank-0.json.gz").exists()
    sweep = write(MINIMAL + "sweep: [{seed: [1, 2]}]\n", "b.yaml")
    assert run(sweep, "--hta", tmp_path / "b") == (2, "", [f"{sweep}: --hta needs a file without a sweep"])
