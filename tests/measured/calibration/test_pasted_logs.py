"""Output of nccl-tests, rccl-tests and NCCL Inspector as people have it: CSV, devices, several runs, jobs."""

import json

import pytest
from support.nccl_logs import NAMES, STARTING, TIMES, log, parsed, rank_list, rows

from hybrid_des.cluster.time_table import MeasuredGroup, read_collective_table
from hybrid_des.errors import UsageError
from hybrid_des.measured.calibration.runs import parse_runs, read_runs

EXPECTED = [(size, round(time * 10**6)) for size, time in TIMES.items()]
SINGLE = "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong"
MPI = "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong"
OLDER = "numCycle,collective,ranks,rankspernode,gpusperrank,size,type,redop,inplace,time,algbw,busbw,#wrong"


def csv(head, shape, ranks=8):
    """What -Z csv writes: both places of each size."""
    lines = [head]
    for size, time in TIMES.items():
        for place in (0, 1):
            rate = size / time / 1000
            busbw = rate * 2 * (ranks - 1) / ranks
            lines.append(f"0,AllReduce,{shape},{size},float,sum,{place},{time / (1 + place)},{rate:.4f},{busbw:.4f},0")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("head", "shape", "nodes"),
    [(SINGLE, "8", 1), (MPI, "2,8,4,1", 2), (MPI, "2,2,1,4", 2), (OLDER, "8,8,1", 1), (MPI.lower(), "1,8,8,1", 1)],
)
def test_csv_of_rccl_tests_is_read(head, shape, nodes):
    found = parsed("$ cat out.csv\n" + csv(head, shape), "n.csv")
    assert (found.test, found.ranks, found.nodes, found.times) == ("all_reduce", 8, nodes, EXPECTED)


def test_wrong_csv_is_one_line():
    with pytest.raises(UsageError, match=r"n\.csv:2: 1048576 B: #wrong is 3: results are wrong"):
        parsed(csv(SINGLE, "8").replace(",0\n", ",3\n"), "n.csv")


def test_a_damaged_cycle_is_none():
    assert parsed(csv(SINGLE, "8").replace("0,AllReduce", "E,AllReduce"), "n.csv").times == EXPECTED


def test_json_of_rccl_tests_with_mpi_has_processes_and_nodes():
    rows_of = [
        {"numCycle": 0, "name": "AllReduce", "nodes": 2, "ranks": 4, "ranksPerNode": 2, "gpusPerRank": 2, "size": size,
         "type": "float", "redop": "sum", "inPlace": 0, "time": time, "algBw": size / time / 1000,
         "busBw": size / time / 1000 * 1.75, "wrong": "N/A"}
        for size, time in TIMES.items()
    ]  # fmt: skip
    found = parsed(json.dumps(rows_of), "n.json")
    assert (found.ranks, found.nodes, found.times) == (8, 2, EXPECTED)


def reported(processes, per_process, wrong=0.0):
    """What -J writes: of each process the first GPU only."""
    ranks = processes * per_process
    devices = [
        {"rank": process * per_process, "group": 0, "pid": 1, "hostname": f"node{process}", "device": 0,
         "device_hex": "0000:07:00", "device_info": "NVIDIA H100 80GB HBM3"}
        for process in range(processes)
    ]  # fmt: skip
    results = [
        {"size": size, "type": "float", "redop": "sum", "root": "-1", "experiment_name": "AllReduce",
         "out_of_place": {"time": time, "alg_bw": size / time / 1000,
                          "bus_bw": size / time / 1000 * 2 * (ranks - 1) / ranks, "nwrong": wrong}}
        for size, time in TIMES.items()
    ]  # fmt: skip
    config = {"nthreads": 1, "ngpus": per_process, "devices": devices}
    return {"version": 2, "args": ["all_reduce_perf"], "nccl_version": 22903, "config": config, "results": results}


@pytest.mark.parametrize(("processes", "per_process"), [(1, 8), (2, 4), (8, 1)])
def test_devices_in_json_say_ranks_hosts_and_gpu(processes, per_process):
    found = parsed(json.dumps(reported(processes, per_process)), "n.json")
    assert (found.ranks, found.nodes, found.notes) == (8, processes, ())
    assert (found.device, found.release) == ("NVIDIA H100 80GB HBM3", "2.29.3")


def test_the_environment_in_json_says_what_is_forced():
    text = json.dumps(reported(1, 8) | {"env": ["HOME=/root", "NCCL_ALGO=^NVLS,NVLSTree", "NCCL_DEBUG=INFO"]})
    assert parsed(text, "n.json").forced == {"ALGO": "^NVLS,NVLSTree"}


def test_unchecked_results_in_json_are_taken():
    """-c 0 writes null; in-place all-to-alls are never checked."""
    assert parsed(json.dumps(reported(1, 8, wrong=None)), "n.json").times == EXPECTED


def test_times_of_the_launch_in_json_are_refused():
    document = reported(1, 8)
    for each in document["results"]:
        each["out_of_place"]["cpu_time"] = each["out_of_place"].pop("time")
    with pytest.raises(UsageError, match=r"cpu_time is the time of the launch on the CPU"):
        parsed(json.dumps(document), "n.json")


@pytest.mark.parametrize(("line", "release"), [
    ("NCCL version 2.21.5+cuda12.4\n", "2.21.5"),
    ("# nccl-tests version 2.17.0 nccl-headers=22806 nccl-library=22907\n", "2.29.7"),
    ("# nccl-tests version 2.1 nccl-headers=2708 nccl-library=2708\n", "2.7.8"),
    ("", None),
])  # fmt: skip
def test_a_log_names_gpu_and_release(line, release):
    text = line + "# Collective test starting: all_reduce_perf\n" + rank_list(range(8)) + NAMES + rows()
    found = parsed(text, "n.txt")
    assert (found.device, found.release) == ("NVIDIA A100-SXM4-80GB".replace("80", "40"), release)


def test_lists_that_markdown_took_the_marks_from_are_read():
    text = log().replace("#", " ")
    found = parsed(text, "n.txt", "all_reduce")
    assert (found.ranks, found.nodes, found.times) == (8, 1, EXPECTED)


def test_processes_that_each_ran_alone_are_told():
    both = (STARTING.format("all_reduce_perf") + rank_list([0])) * 2
    with pytest.raises(UsageError, match="built without MPI=1, each process runs alone"):
        parsed(both + NAMES + rows(), "n.txt")


SWEEP = log() + "\n======== all_gather_perf\n" + log("all_gather").replace("nGpus 8", "nGpus 4")


def test_runs_below_each_other_are_each_read():
    found = parse_runs(SWEEP, "n.txt")
    assert [(run.test, run.ranks, run.times) for run in found] == [
        ("all_reduce", 8, EXPECTED), ("all_gather", 8, EXPECTED)
    ]  # fmt: skip
    assert [run.test for run in parse_runs(SWEEP, "n.txt", "all_gather")] == ["all_gather"]
    assert [run.test for run in parse_runs(log() + log(), "n.txt")] == ["all_reduce", "all_reduce"]


def test_words_below_a_table_are_no_run():
    text = log() + "$ ./build/all_gather_perf\nSegmentation fault\n"
    assert [(run.test, run.times) for run in parse_runs(text, "n.txt")] == [("all_reduce", EXPECTED)]


def test_several_runs_are_one_table_by_group(write, run):
    file = write(SWEEP, "n.txt")
    code, out, _ = run("measure", "--from", file)
    assert code == 0
    table = read_collective_table(write(out, "t.csv"))
    assert [group for group, _ in table.groups] == [
        MeasuredGroup("all-reduce", 8, 1), MeasuredGroup("all-gather", 8, 1)
    ]  # fmt: skip
    assert table.time("all-gather", 8, 1, 2**20) == 50_000_000
    assert run("measure", "--from", file, "--link")[2] == [
        f"{file}: 2 runs: 1 all_reduce on 8 ranks on 1 node, 2 all_gather on 8 ranks on 1 node; "
        "say which: --run N or --collective NAME"
    ]
    assert (
        "# one message of a ring, from all_gather in n.txt" in run("measure", "--from", file, "--link", "--run", 2)[1]
    )
    assert "# operation: all_reduce" in run("measure", "--from", file, "--run", 1)[1]


def test_two_runs_of_one_group_are_no_table(write, run):
    file = write(log() + log(), "n.txt")
    assert "2 runs: 1 all_reduce on 8 ranks" in run("measure", "--from", file)[2][0]
    assert run("measure", "--from", file, "--run", 3)[0] == 2


def record(rank, number, time, does="AllReduce", size=2**20, ranks=2, whole=1):
    """A line of NCCL Inspector; `whole`: buffers of the size in a whole one."""
    rate = size * whole / time / 1000
    return json.dumps({
        "header": {"id": "0xe62d", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "node1", "pid": 7},
        "coll_perf": {"coll": does, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": time,
                      "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": rate, "coll_busbw_gbs": rate},
    }) + "\n"  # fmt: skip


def test_the_last_rank_to_begin_times_a_collective():
    """Calls of 110, 120 and 140 µs, for the first of which rank 0 waits."""
    lines = [record(0, 1, 900), record(1, 1, 110), record(0, 2, 120), record(1, 2, 125), record(0, 3, 140)]
    (found,) = parse_runs("".join(lines) + record(1, 3, 150), "n.log")
    assert (found.test, found.ranks, found.nodes, found.times) == ("all_reduce", 2, 1, [(2**20, 120_000_000)])
    assert found.notes == ("medians of 3 calls",)


def test_shards_of_a_gather_are_counted_whole():
    """Inspector logs the message of a member, and bandwidths of the whole buffer."""
    text = record(0, 1, 100, "AllGather", whole=2) + record(1, 1, 100, "AllGather", whole=2)
    (found,) = parse_runs(text, "n.log")
    assert (found.test, found.times) == ("all_gather", [(2**21, 100_000_000)])


def test_a_job_is_a_table_of_its_groups(tmp_path, run):
    """A file per process in a folder; groups of two and of four, sends beside them."""
    for rank in (0, 1):
        text = record(rank, 1, 100) + record(rank, 1, 300, "ReduceScatter", ranks=4, whole=4)
        send = {"header": {"id": "0x1", "rank": rank, "n_ranks": 2, "nnodes": 1}, "p2p_perf": {"p2p": "Send"}}
        (tmp_path / f"node1-pid{rank}.log").write_text(text + json.dumps(send) + "\n")
    (tmp_path / "out.csv").touch()
    code, out, err = run("measure", "--from", tmp_path)
    assert code == 0
    assert "1048576,100,all-reduce,2,1" in out and "4194304,300,reduce-scatter,4,1" in out
    assert any("not all are logged by all ranks (as few as 2 of 4): those hold the wait" in line for line in err)
    assert any("2 sends and receives are not read" in line for line in err)
    assert [found.test for found in read_runs(tmp_path, "reduce_scatter")] == ["reduce_scatter"]


def test_a_folder_of_something_else_is_refused(tmp_path, run):
    (tmp_path / "a.txt").write_text("hello\n")
    assert run("measure", "--from", tmp_path)[2] == [
        f"{tmp_path}: no log of NCCL Inspector in this folder; expected JSON lines with coll_perf"
    ]


@pytest.mark.parametrize("damage", [
    {"coll_msg_size_bytes": -1}, {"coll_exec_time_us": 0}, {"coll_exec_time_us": "9"}, {"coll_algobw_gbs": None},
])  # fmt: skip
def test_unsound_records_of_a_job_are_left_out(damage):
    broken = json.loads(record(1, 1, 50))
    broken["coll_perf"] |= damage
    (found,) = parse_runs(record(0, 1, 100) + json.dumps(broken) + "\n{broken\n", "n.log")
    assert found.times == [(2**20, 100_000_000)]
