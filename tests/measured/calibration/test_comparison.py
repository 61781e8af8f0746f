"""`collective --compare`, and tables that go on by NCCL's laws: on which machine, and how times compare."""

import json

import pytest
from support.nccl_logs import NAMES, log, parsed, rank_list, rows

from hybrid_des.analysis.collective_bench import collective
from hybrid_des.cluster.time_table import read_collective_table, read_table
from hybrid_des.errors import UsageError
from hybrid_des.measured.calibration.comparison import Compared, verdict_of
from hybrid_des.measured.calibration.extrapolation import extrapolated
from hybrid_des.measured.calibration.predicted import Given, Predicted

H100 = "#  Rank {0:2} Group  0 Pid   3713 on   node{1} device {0:2} [0000:07:00] NVIDIA H100 80GB HBM3\n"
SIZES = [2**power for power in (20, 24, 28, 30)]
HEAD = "# Collective test starting: {}_perf\n"


def h100(times, nodes=1, ranks=8, test="all_reduce"):
    """The output of a run on H100s."""
    hosts = "".join(H100.format(rank, rank * nodes // ranks) for rank in range(ranks))
    of = {"test": {"alltoall": "all_gather"}.get(test, test), "ranks": ranks}
    return HEAD.format(test) + hosts + NAMES + rows(times, **of)


def law(nodes=1, name="nccl", **cluster):
    """Microseconds by size, as the command `collective` has them."""
    scenario = {
        "cluster": {"gpu": "h100", "nodes": nodes, "gpus_per_node": 8 // nodes, **cluster}, "parallel": {"data": 8},
        "schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": 0, "backward": 0},
    }  # fmt: skip
    found = collective(name, scenario, sizes=SIZES)
    return dict(zip(found.bytes, found.time_us, strict=True))


def verdict(text, *options, run, write):
    code, out, err = run("collective", "--compare", write(text, "n.txt"), *options)
    assert code == 0, err
    return out.splitlines()[-1]


def test_a_network_as_predicted_is_healthy(write, run):
    line = verdict(h100(law()), run=run, write=write)
    assert line.startswith("# Verdict: healthy: ") and "(100 %), 100 % to 100 % from 1 MiB up" in line


def test_a_slow_network_is_named_with_its_sizes(write, run):
    slow = {size: time * (3 if size >= 2**24 else 1) for size, time in law().items()}
    line = verdict(h100(slow), run=run, write=write)
    assert line.startswith("# Verdict: slow: ")
    assert "(33 %); slower at 3 of 4 sizes from 1 MiB up (16 MiB to 1 GiB)" in line


def test_sizes_that_part_are_marked_in_their_rows(write, run):
    times = law() | {2**24: law()[2**24] * 2}
    out = run("collective", "--compare", write(h100(times), "n.txt"))[1].splitlines()
    assert [line.rstrip().split("  ")[-1].strip() for line in out if line[:1] == " "] == [
        "100 %",
        "slower",
        "100 %",
        "100 %",
    ]
    assert (
        out[-1].startswith("# Verdict: healthy for large buffers: ")
        and "slower at 1 of 4 sizes from 1 MiB up (16 MiB)" in out[-1]
    )


def test_adapters_that_are_missing_are_found(write, run):
    nics = {"infiniband": {"nics_per_node": 2}}
    line = verdict(h100(law(2, **nics), nodes=2), run=run, write=write)
    assert "; about what 2 of 4 NICs per node would give (" in line
    worst = {size: time * 50 for size, time in law(2).items()}
    assert "; less than a single NIC per node would give (" in verdict(h100(worst, nodes=2), run=run, write=write)


def test_what_is_faster_than_its_machine_is_asked_about(write, run):
    fast = {size: time / 2 for size, time in law().items()}
    line = verdict(h100(fast), run=run, write=write)
    assert line.startswith("# Verdict: faster than predicted at 4 of 4 sizes from 1 MiB up (1 MiB to 1 GiB): ")


def test_small_sizes_alone_give_no_verdict():
    run = parsed(log(), "n.txt")
    predicted = Predicted(run, Given(gpu="h100"))
    for size, word in ((2**19, "unknown"), (2**20, "slow")):
        assert verdict_of(run, Given(), predicted, [Compared(size, 100, 10, 1.0, 10.0)]).word == word


@pytest.mark.parametrize(("test", "name"), [("all_gather", "nccl-all-gather"), ("alltoall", "nccl-all-to-all")])
def test_other_collectives_are_compared_too(test, name, write, run):
    assert "healthy" in verdict(h100(law(name=name), test=test), run=run, write=write)


def test_a_send_and_receive_is_one_call_of_a_ring():
    text = HEAD.format("sendrecv") + "".join(H100.format(rank, 0) for rank in range(8)) + NAMES
    found = parsed(text + rows({2**20: 50.0}, test="broadcast"), "n.txt")
    shard = collective("nccl-send-receive", {
        "cluster": {"gpu": "h100", "nodes": 1}, "parallel": {"data": 8},
        "schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": 0, "backward": 0},
    }, sizes=[2**23])  # fmt: skip
    assert Predicted(found, Given()).time(2**20) == pytest.approx(shard.time_us[0] * 10**6 / 7, abs=1)


def test_figures_of_a_comparison_are_plain_values(write, run):
    (found,) = json.loads(run("collective", "--compare", write(h100(law()), "n.txt"), "--json")[1])
    assert (found["operation"], found["ranks"], found["nodes"], found["verdict"]) == ("all_reduce", 8, 1, "healthy")
    assert [row["bytes"] for row in found["sizes"]] == SIZES
    assert found["sizes"][0].keys() == {
        "bytes", "measured_us", "predicted_us", "measured_bus_bandwidth_gb_per_s", "predicted_bus_bandwidth_gb_per_s",
        "share", "parts",
    }  # fmt: skip


def test_each_run_of_a_log_is_compared(write, run):
    both = h100(law()) + h100(law(name="nccl-all-gather"), test="all_gather")
    file = write(both, "n.txt")
    out = run("collective", "--compare", file)[1].splitlines()
    assert [line.split(":")[1] for line in out if line.startswith("# Verdict")] == [" healthy", " healthy"]
    assert len(json.loads(run("collective", "--compare", file, "--run", 2, "--json")[1])) == 1


@pytest.mark.parametrize(("release", "machine"), [("", "2.29.2"), ("NCCL version 2.21.5+cuda12.4\n", "2.21.5")])
def test_the_machine_is_that_of_the_log(release, machine):
    found = Predicted(parsed(release + h100(law(2), nodes=2), "n.txt"), Given())
    assert found.machine == f"2 x 4 h100, 4 adapters of 50 GB/s a node, NCCL {machine}"
    assert found.assumed == []


def test_algorithms_that_a_log_forces_are_simulated(write, run):
    """Each command line counts for the run below it."""
    text, line = h100({2**30: 9000.0}, nodes=2), "$ mpirun -x NCCL_ALGO={} -np 8 ./all_reduce_perf\n"
    file = write(text + line.format("Ring") + text + line.format("Tree -x NCCL_PROTO=LL128") + text, "n.txt")
    results = json.loads(run("collective", "--compare", file, "--json")[1])
    forced = [one["machine"].partition(", NCCL 2.29.2")[2] for one in results]
    assert forced == ["", ", NCCL_ALGO=ring", ", NCCL_ALGO=tree, NCCL_PROTO=LL128"]
    times = [one["sizes"][0]["predicted_us"] for one in results]
    ring = law(2, nccl_algorithm="ring")[2**30]
    assert times[1] == pytest.approx(ring) and len({*times}) == 3
    debug = "node:1:1 [0] NCCL INFO NCCL_ALGO set by environment to RING\n"
    assert "NCCL_ALGO=ring" in run("collective", "--compare", write(debug + text, "n.txt"))[1]
    file = write(line.format("Mine") + text, "n.txt")
    assert 'nccl_algorithm: unknown "Mine"' in run("collective", "--compare", file)[2][0]
    assert any("in a straight line" in line and "Mine" in line for line in run("measure", "--from", file)[2])


def test_a_log_without_hosts_needs_its_gpu(write, run):
    file = write(log(ranks=()), "n.txt")
    said = "the GPU is not named; say where it ran: --gpu NAME or --scenario FILE"
    assert run("collective", "--compare", file) == (2, "", [f"{file}:2: {said}"])
    code, out, err = run("collective", "--compare", file, "--gpu", "h100", "--gpus-per-node", 4)
    assert code == 0 and "predicted for 2 x 4 h100, 4 adapters" in out
    assert not any("hosts" in line for line in err)
    assert "taken for nodes of 8 GPUs" in " ".join(run("collective", "--compare", file, "--gpu", "h100")[2])


def test_hosts_of_one_nvlink_domain_are_one_node():
    text = h100({2**20: 50.0}, nodes=2).replace("H100 80GB HBM3", "GB200")
    found = Predicted(parsed(text, "n.txt"), Given())
    assert found.machine.startswith("1 x 8 gb200, ")
    assert found.assumed == ["hosts share an NVLink domain of up to 72 GPUs (--gpus-per-node N says else)"]


MACHINE = "\n".join([
    "cluster: {gpu: h100, nodes: 2, infiniband: {bandwidth: 25 GB/s}}", "parallel: {data: 16}",
    "schedule: {kind: gpipe, microbatches: 1}", "workload: {forward: 0, backward: 0}", "",
])  # fmt: skip


def test_a_scenario_says_where_a_log_was_measured(write, run):
    scenario, text = write(MACHINE, "m.yaml"), h100({2**30: 9000.0}, nodes=2, ranks=16)
    assert (
        "8 adapters of 25 GB/s a node"
        in run("collective", "--compare", write(text, "n.txt"), "--scenario", scenario)[1]
    )
    file = write(h100({2**30: 9000.0}, nodes=2), "n.txt")
    said = "8 ranks ran on 2 nodes, in the scenario they are on 1; --set cluster.gpus_per_node=4"
    assert said in run("collective", "--compare", file, "--scenario", scenario)[2][0]
    assert run("collective", "--compare", file, "--scenario", scenario, "--set", "cluster.gpus_per_node=4")[0] == 0
    large = write(h100({2**30: 9000.0}, nodes=4, ranks=32), "n.txt")
    assert (
        "32 ranks, but the cluster has 16 GPUs" in run("collective", "--compare", large, "--scenario", scenario)[2][0]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--compare", "LOG", "ring"), "NAME does not go with --compare"),
        (("--compare", "LOG", "--max", "1 MiB"), "--max does not go with --compare"),
        (("--compare", "LOG", "--out", "x"), "--out does not go with --compare"),
        (("--compare", "LOG", "--scenario", "m.yaml", "--gpu", "h100"), "--gpu: given by the scenario"),
        (("ring", "--gpu", "h100"), "--gpu needs --compare LOG"),
        ((), "expected the NAME of a collective, such as ring, or --compare LOG"),
        (("--compare", "LOG", "--gpu", "h1000"), "unknown"),
        (("--compare", "LOG", "--gpus-per-node", "0"), "expected at least 1"),
    ],
)
def test_options_that_do_not_fit_a_log_are_refused(options, said, write, run):
    file = str(write(log(), "n.txt"))
    code, _, err = run("collective", *(file if option == "LOG" else option for option in options))
    assert code == 2 and said in err[0]


def test_a_broadcast_is_not_simulated(write, run):
    text = HEAD.format("broadcast") + rank_list(range(8)) + NAMES + rows(test="broadcast")
    assert "broadcast is not simulated; all_reduce, " in run("collective", "--compare", write(text, "n.txt"))[2][0]


def test_a_table_goes_on_by_the_laws_of_its_machine():
    known = law()
    table = extrapolated(parsed(h100({size: known[size] for size in SIZES[1:]}), "n.txt"), Given())
    times = dict(table.whole.times)
    assert table.whole.extent == (2**24, 2**30)
    assert times[2**20] == pytest.approx(known[2**20] * 10**6, rel=0.002)  # logs have four digits
    double = extrapolated(parsed(h100({2**28: known[2**28] * 2}), "n.txt"), Given())
    times = dict(double.whole.times)
    for size in SIZES:
        assert times[size] == pytest.approx(2 * known[size] * 10**6, rel=0.002)


def test_a_table_says_which_sizes_follow_from_a_law(write, run):
    _, out, err = run("measure", "--from", write(h100({2**29: 2600.0, 2**30: 4600.0}), "n.txt"))
    assert "# measured: 536870912 to 1073741824 bytes" in out.splitlines()
    assert "# other sizes by NCCL's timing model for 1 x 8 h100, NCCL 2.29.2" in out.splitlines()
    assert any("extrapolated by NCCL's timing model for 1 x 8 h100" in line for line in err)
    file = write(out, "t.csv")
    table = read_table(file)
    assert (table.bounds, table.covers(2**28), table.covers(2**29)) == ((2**29, 2**30), False, True)
    assert table.time(2**10) < 50 * 10**6  # 600 µs in a straight line
    said = run("collective", "measured", "--table", file, "--ranks", 8, "--gpus-per-node", 8, "--max", "1 GiB")[2]
    assert any("t.csv was measured from 536.9 MB to 1.074 GB; 10 of 11 sizes are extrapolated" in line for line in said)


def test_a_table_of_a_link_goes_on_by_law_too(write, run):
    text = h100({2**29: 2600.0, 2**30: 4600.0})
    _, out, _ = run("measure", "--from", write(text, "n.txt"), "--link")
    table = read_table(write(out, "t.csv"))
    assert table.bounds == (2**26, 2**27)
    assert table.time(2**7) * 14 < 50 * 10**6


def test_figures_of_a_table_say_where_it_was_measured(write, run):
    found = json.loads(run("measure", "--from", write(h100({2**30: 4600.0}), "n.txt"), "--json")[1])
    assert (found["measured_bytes"], found["extrapolated_by"]) == ([2**30, 2**30], "1 x 8 h100, NCCL 2.29.2")
    found = json.loads(run("measure", "--from", write(log(ranks=()), "n.txt"), "--json")[1])
    assert (found["extrapolated_by"], len(found["table"])) == (None, 3)


def test_what_is_given_of_a_machine_must_fit(write, run):
    file = write(log(ranks=()), "n.txt")
    assert run("measure", "--from", file, "--gpu", "h1000")[0] == 2
    assert (
        "# other sizes by NCCL's timing model for 2 x 4 h100"
        in run("measure", "--from", file, "--gpu", "h100", "--gpus-per-node", 4)[1]
    )
    with pytest.raises(UsageError, match="not as many on each"):
        extrapolated(parsed(log(ranks=()), "n.txt"), Given(gpu="h100", per_node=3))


def test_a_table_of_groups_may_begin_with_comments(write):
    text = "# mine\n\nbytes,time_us,collective,ranks,nodes\n# here\n8,5,all-gather,4,1\n16,x,all-gather,4,1\n"
    with pytest.raises(UsageError, match="row 6: "):
        read_collective_table(write(text, "t.csv"))
    assert read_collective_table(write(text.replace("x", "9"), "t.csv")).time("all-gather", 4, 1, 12) == 7 * 10**6


def test_runs_without_a_machine_are_left_out_aloud(write, run):
    both = h100(law()) + HEAD.format("broadcast") + NAMES + rows(test="broadcast")
    code, out, err = run("collective", "--compare", write(both, "n.txt"))
    assert code == 0 and out.count("# Verdict") == 1
    assert any(line.startswith("left out: ") and "broadcast is not simulated" in line for line in err)
    twice = (HEAD.format("broadcast") + NAMES + rows(test="broadcast")) * 2
    assert run("collective", "--compare", write(twice, "n.txt"))[0] == 2


def test_ranks_that_a_log_does_not_say_are_given(write, run):
    text = HEAD.format("sendrecv") + NAMES + rows(test="broadcast")
    file = write(text, "n.txt")
    said = "the number of ranks is not known (--ranks N says it)"
    assert said in run("collective", "--compare", file, "--gpu", "h100")[2][0]
    assert "# sendrecv, 8 ranks; " in run("collective", "--compare", file, "--gpu", "h100", "--ranks", 8)[1]
    assert "the number of ranks is not known; say --ranks N" in run("measure", "--from", file)[2][0]
    assert "1048576,50,send-receive,8,1" in run("measure", "--from", file, "--ranks", 8)[1]
    file = write(h100(law()), "n.txt")
    assert "8 ranks ran, not 4 (--ranks)" in run("collective", "--compare", file, "--ranks", 4)[2][0]
