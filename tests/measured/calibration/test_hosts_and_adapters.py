"""Where a benchmark ran: its ranks and nodes by the list of hosts, the adapters of a node, and what lies beyond."""

import json

import pytest
from support.nccl_logs import NAMES, log, parsed

from hybrid_des.analysis.collective_bench import collective
from hybrid_des.cluster.time_table import OF_NODE, TimeTable, read_table, write_table
from hybrid_des.collectives.measured import measured_time
from hybrid_des.errors import Refusal
from hybrid_des.measured.calibration.nccl_tests import Measurement, NcclTests, link_table

LISTED = "#  Rank {0:2} Group  0 Pid   3713 on   node{1} device {0:2} [0000:07:00] NVIDIA A100\n"
SCENARIO = {
    "cluster": {"gpu": "a100-40gb", "nodes": 2, "gpus_per_node": 2}, "parallel": {"data": 4},
    "schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": 0, "backward": 0},
}  # fmt: skip


def log_on(nodes, ranks=8):
    """The output of a run on so many nodes."""
    hosts = "".join(LISTED.format(rank, rank * nodes // ranks) for rank in range(ranks))
    return log(ranks=()).replace(NAMES, hosts + NAMES)


def test_hosts_of_the_list_are_counted(write, run):
    assert [parsed(log_on(nodes), "n.txt").nodes for nodes in (1, 2, 8)] == [1, 2, 8]
    assert parsed(log(ranks=()), "n.txt").nodes is None
    file = write(log_on(2), "n.txt")
    _, out, err = run("measure", "--from", file)
    assert "# nodes: 2" in out
    assert any(line.startswith("8 ranks on 2 nodes; ") for line in err)
    assert json.loads(run("measure", "--from", file, "--json")[1])["nodes"] == 2


def test_hosts_of_one_name_are_not_taken_for_one():
    text = log_on(2).replace("on   node1", "on   node0")
    assert parsed(text, "n.txt").nodes == 1
    for rank in range(4, 8):
        text = text.replace(f"device {rank:2}", f"device {rank - 4:2}")
    assert parsed(text, "n.txt").nodes is None


@pytest.mark.parametrize(("nodes", "adapters"), [(1, None), (2, OF_NODE), (8, None), (None, OF_NODE)])
def test_several_ranks_of_a_node_share_its_adapters(nodes, adapters, write, run):
    text = log(ranks=()) if nodes is None else log_on(nodes)
    assert link_table(parsed(text, "n.txt")).adapters == adapters
    file = write(text, "n.txt")
    said = "times are those of all NICs of a node together, of which infiniband.table gives each its share"
    assert any(said in line for line in run("measure", "--from", file, "--link")[2]) == (adapters is not None)
    assert not any(said in line for line in run("measure", "--from", file, "--link", "--nics-per-node", "4")[2])
    assert json.loads(run("measure", "--from", file, "--link", "--json")[1])["adapters"] == adapters


@pytest.mark.parametrize("given", [None, 2])
def test_a_ring_over_two_adapters_takes_the_measured_time(write, given):
    """Two nodes of two GPUs and two adapters; a table of the node, taken for one adapter's, gave half of the time."""
    times = [Measurement(2**power, round(40e6 + 2**power * 33)) for power in range(20, 31, 2)]
    file = write(write_table(link_table(NcclTests("all_reduce", 4, times), given), "mine"), "link.csv")
    network = {"infiniband": {"table": str(file), "nics_per_node": 2}}
    found = collective("nccl", SCENARIO | {"cluster": SCENARIO["cluster"] | network}, sizes=[2**30], ranks=4)
    assert found.time_us[0] == pytest.approx(times[-1].time / 10**6, rel=0.001)


def test_adapters_need_a_link(write, run):
    file = write(log(), "n.txt")
    assert run("measure", "--from", file, "--nics-per-node", "2")[0] == 2
    assert run("measure", "--from", file, "--link", "--nics-per-node", "0")[0] == 2


def test_a_table_of_all_adapters_is_read_back(write):
    table = TimeTable(((8, 5), (16, 7)), operation="message", nodes=2, adapters=OF_NODE)
    assert read_table(write(write_table(table, "mine"), "t.csv")) == table
    assert table.divided(2).entries == ((4, 5), (8, 7))


def test_a_table_of_other_nodes_is_refused():
    table = TimeTable(((8, 5), (16, 7)), 8, "all_reduce", nodes=2)
    assert measured_time(table, 8, 2, 12) == 6
    with pytest.raises(Refusal, match="is for 2 nodes, this group is on 1"):
        measured_time(table, 8, 1, 12)


def test_sizes_beyond_the_measured_ones_are_said_to_be_extrapolated(write, run):
    large = {2**29: 2600.0, 2**30: 4600.0, 2**31: 8600.0}
    file = write(log(times=large, ranks=()), "n.txt")
    _, out, err = run("measure", "--from", file)
    assert "sizes below 536.9 MB (600 µs at zero) and above 2.147 GB are extrapolated" in " ".join(err)
    table = write(out, "t.csv")
    _, _, err = run("collective", "measured", "--table", table, "--ranks", 8, "--gpus-per-node", 8, "--max", "1 GiB")
    assert any("t.csv was measured from 536.9 MB to 2.147 GB; 10 of 11 sizes are extrapolated" in line for line in err)


REDUCED = "\n".join(
    ["cluster: {gpu: h100}", "parallel: {data: 8}", "schedule: {kind: gpipe, microbatches: 1}",
     "workload: {forward: 0, backward: 0, parameters: 1e6}", ""]
)  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "key", "within"), [("all_reduce", "gradients.table", 2e8), ("message", "cluster.nvlink.table", 15e8)]
)
def test_a_report_names_sizes_beyond_the_table(write, ran, operation, key, within):
    """A ring of eight sends eighths."""
    entries = ((2**29, 26 * 10**8), (2**30, 46 * 10**8))
    table = write(write_table(TimeTable(entries, operation=operation), "mine"), "t.csv")
    scenario = write(REDUCED, "a.yaml")
    said = "t.csv was measured from 536.9 MB to 1.074 GB; the only size in use is extrapolated"
    assert said in " ".join(ran(scenario, "--set", f"{key}={table}")[0].split())
    assert "extrapolated" not in ran(scenario, "--set", f"{key}={table}", "--set", f"workload.parameters={within}")[0]
