"""Tables of measured times: what they say between their entries, where they come from, and how far off they are."""

import copy
import csv
import json
import pickle
import re
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import scenarios
from support.nccl_logs import parsed
from support.paths import GOLDEN, SHARED
from support.tables import from_table

from hybrid_des.cluster.fabric import ClusterSpec, NodeSpec, PortSpec
from hybrid_des.cluster.time_table import TableBandwidth, TimeTable, read_table, write_table
from hybrid_des.cluster.topologies.nodes import nodes
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs.registration import find as codec
from hybrid_des.errors import Refusal, ScenarioError, UsageError
from hybrid_des.interface.cli.main import main
from hybrid_des.measured.calibration.fit import fit_of_every_second, fit_of_one_line
from hybrid_des.measured.calibration.nccl_tests import Measurement, NcclTests, link_table
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run

PUBLISHED = SHARED / "golden" / "nccl_all_reduce.csv"
MICROSECOND = 10**6
TABLE = TimeTable(((1000, 5 * MICROSECOND), (3000, 9 * MICROSECOND), (10000, 30 * MICROSECOND)))

# nccl-tests 2.13 on 8 GPUs as it prints, its ranks shortened, between the lines of a launcher; and an old version
PASTED, OLD = ((GOLDEN / name).read_text(encoding="utf-8") for name in ("nccl_tests.txt", "nccl_tests_old.txt"))


def test_a_table_is_linear_between_and_beyond_its_entries():
    assert [TABLE.time(size) for size in (1000, 2000, 3000, 6500)] == [5_000_000, 7_000_000, 9_000_000, 19_500_000]
    assert TABLE.latency == 3 * MICROSECOND
    assert TABLE.time(20000) == 60 * MICROSECOND
    assert TABLE.rate == Fraction(7000 * 10**12, 21 * MICROSECOND)
    assert TimeTable(((1000, 500),)).time(3000) == 1500


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9)), min_size=2, unique_by=lambda entry: entry[0]))
def test_a_table_goes_through_its_entries_and_never_below_zero(entries):
    table = TimeTable(tuple(sorted(entries)))
    assert all(table.time(size) == time for size, time in entries)
    assert all(table.time(size) >= 0 <= table.occupancy(size) for size in (0, 1, 10**7))


def test_a_message_takes_the_time_of_its_links_table():
    port = PortSpec(TableBandwidth(TABLE), TABLE.latency)
    fabric = nodes(ClusterSpec((NodeSpec(2, port, port, 2),)))
    fp32 = codec("fp32").build()
    for size in (400, 1000, 2000, 6500, 50000):
        one = measure(fabric, "ring-all-gather", [range(2)], lambda g, p, size=size: Buffer(size // 2, fp32))
        assert one.duration == TABLE.time(size)


def test_a_measured_bandwidth_counts_as_that_of_large_messages():
    bandwidth = TableBandwidth(TABLE)
    assert bandwidth / 2 == TABLE.rate / 2
    assert min(bandwidth, Fraction(1)) == 1
    other = TableBandwidth(TimeTable((*TABLE.entries[1:],)))
    assert other != bandwidth and float(other) == float(bandwidth)
    assert pickle.loads(pickle.dumps(bandwidth)) == copy.deepcopy(bandwidth) == bandwidth


def test_a_table_is_read_back_as_it_was_written(write):
    table = TimeTable(((1, 1), (7, 10**6 + 1), (2**40, 10**13)), 8, "all_reduce")
    assert read_table(write(write_table(table, "mine"), "t.csv")) == table


@pytest.mark.parametrize(("text", "said"), [
    ("", "not a table of times; expected the columns bytes,time_us"),
    ("size,time\n1,2\n", "not a table of times"),
    ("bytes,time_us\n", "a table without entries"),
    ("bytes,time_us\n1,2,3\n", "entry 1 has 3 values, not 2"),
    ("bytes,time_us\n1,x\n", 'entry 1: "x" is not a quantity'),
    ("bytes,time_us\n1.5,1\n", "entry 1: expected a whole number of bytes"),
    ("bytes,time_us\n0,1\n", "entry 1: expected a whole number of bytes"),
    ("bytes,time_us\n5,1\n5,2\n", "sizes must increase, but 5 follows 5"),
    ("1" * 200_000, "not a table of times: field larger than field limit"),
    ("bytes,time_us\n1,\x1b[2J\n", 'entry 1: "\ufffd[2J" is not a quantity'),
    ("bytes,time_us\n1," + "x" * 100_000, 'entry 1: "' + "x" * 39 + '…" is not a quantity'),
    (b"\xff\xfe\x00", "not a text file"),
])  # fmt: skip
def test_a_file_of_something_else_is_no_table(write, text, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        read_table(write(text, "t.csv"))


def test_pasted_output_of_nccl_tests_is_read(write):
    measured = parsed(PASTED, "nccl.txt")
    assert (measured.test, measured.ranks) == ("all_reduce", 8)
    assert "the list of ranks is incomplete (2 listed); 8 ranks, as busbw / algbw says" in measured.notes
    assert measured.times == [(8388608, 167_500_000), (33554432, 398_200_000), (134217728, 1191_000_000)]
    old = parsed(OLD, "old.txt")
    assert (old.test, old.ranks) == ("all_reduce", 16)
    assert old.times == [(1048576, 96_390_000), (2097152, 125_000_000)]


def test_calibrate_prints_a_table_and_how_well_it_fits(write, capsys, tmp_path):
    assert main(["measure", "--from", str(write(PASTED, "nccl.txt"))]) == 0
    out, err = capsys.readouterr()
    facts = "# all_reduce in nccl.txt\n# operation: all_reduce\n# ranks: 8\n# measured: 8388608 to 134217728 bytes\n"
    assert out.startswith(facts)
    assert "\n8388608,167.5\n33554432,398.2\n134217728,1191\n" in out
    assert "a table of every second size: " in err
    assert re.search(r"one latency and one bandwidth: \d\.\d % mean and \d\.\d % worst error on 3 sizes", err)
    assert main(["measure", "--from", str(write(PASTED, "nccl.txt")), "--out", str(tmp_path / "t.csv")]) == 0
    assert (tmp_path / "t.csv").read_text() == out


@pytest.mark.parametrize(("text", "said"), [
    ("hello\n", "no nccl-tests results"),
    (b"\x80\x81", "not a text file"),
    (None, "No such file or directory"),
])  # fmt: skip
def test_calibrating_on_something_else_is_one_line(write, capsys, tmp_path, text, said):
    file = tmp_path / "none.txt" if text is None else write(text, "n.txt")
    assert main(["measure", "--from", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_with_a_links_table_a_ring_takes_the_measured_time():
    times = [Measurement(size, round(40e6 + size * 8)) for size in (2**10, 2**16, 2**20, 2**26, 2**30)]
    table = link_table(NcclTests("all_reduce", 8, times))
    port = PortSpec(TableBandwidth(table), table.latency)
    fabric = nodes(ClusterSpec((NodeSpec(8, port, port, 8),)))
    fp32 = codec("fp32").build()
    for size, time in times:
        ring = measure(fabric, "ring", [range(8)], lambda g, p, size=size: Buffer(size // 4, fp32))
        assert abs(ring.duration - time) <= 14  # each of 14 steps is rounded to a picosecond
    with pytest.raises(UsageError, match="not broadcast on 8 ranks"):
        link_table(NcclTests("broadcast", 8, times))
    with pytest.raises(UsageError, match="all_reduce on unknown ranks"):
        link_table(NcclTests("all_reduce", None, times))


def values(cluster=(), **gradients):
    """Two stages and four replicas whose reduction alone takes time."""
    free = {
        "cluster": {"gpus_per_node": 4, "nodes": 2, "nvlink": scenarios.FREE, "infiniband": scenarios.FREE},
        "workload": {"forward": 0, "backward": 0, "parameters": 1500},
        "gradients": gradients,
    }
    return scenarios.values("1f1b", 2, 2, 4, **{**free, "cluster": {**free["cluster"], **dict(cluster)}})


def test_a_scenario_takes_a_table_in_place_of_the_algorithm(write):
    write(write_table(TABLE, "mine"), "times.csv")
    file = write(json.dumps(values(table="times.csv")), "s.yaml")
    result = run(load(file))
    assert (result.duration, result.algorithm, result.messages) == (TABLE.time(6000), "measured", 4 * 2 * 2)
    assert scenario_from(to_mapping(load(file))) == load(file)


def test_a_scenario_takes_tables_in_place_of_links_figures(write):
    file = str(write(write_table(TABLE, "mine"), "times.csv"))
    chosen = scenario_from(values({"nvlink": {"table": file}}))
    assert run(chosen).duration == 6 * TABLE.time(1500)
    assert scenario_from(to_mapping(chosen)) == chosen


def test_nodes_that_differ_may_have_tables_of_their_own(write):
    write(write_table(TABLE, "mine"), "times.csv")
    nodes_of_two_kinds = [{"nvlink": {"table": "times.csv"}}, {}]
    file = write(json.dumps(values({"nodes": nodes_of_two_kinds})), "s.yaml")
    kinds = load(file).cluster.kinds
    assert kinds[0].nvlink.table == TABLE
    assert kinds[1].nvlink.table is None


def test_a_table_for_other_ranks_is_refused(write):
    file = str(write(write_table(TimeTable(TABLE.entries, 8), "mine"), "times.csv"))
    with pytest.raises(Refusal, match=r"times.csv is for 8 ranks, this group has 4"):
        run(scenario_from(values(table=file)))


@from_table
def test_a_problem_with_a_table_is_told_with_its_place(write, cluster, gradients, said):
    files = {"GOOD": str(write(write_table(TABLE, "mine"), "good.csv")),
             "FLAT": str(write("bytes,time_us\n1000,5\n2000,5\n", "flat.csv")),
             "LINK": str(write(write_table(TimeTable(TABLE.entries, operation="message"), "mine"), "link.csv")),
             "WHOLE": str(write(write_table(TimeTable(TABLE.entries, 4, "all_reduce"), "x"), "whole.csv"))}  # fmt: skip

    def filled(section):
        return {key: filled(of) if isinstance(of, dict) else files.get(of, of) for key, of in section.items()}

    with pytest.raises(ScenarioError) as error:
        scenario_from(values(filled(cluster), **filled(gradients)))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="published nccl-tests tables are not part of the project")
def test_published_machines_are_met_between_calibrated_sizes():
    """One table a machine from the 1st, 3rd, 5th … size; the sizes between, simulated, above 1 MiB."""
    machines = defaultdict(list)
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            times = machines[row["gpu"], int(row["nodes"]), int(row["ranks"])]
            times.append(Measurement(int(row["bytes"]), round(float(row["time_us"]) * MICROSECOND)))
    assert len(machines) == 3
    fp32 = codec("fp32").build()
    for (_, count, ranks), times in machines.items():
        port = PortSpec(None, 0)
        fabric = nodes(ClusterSpec((NodeSpec(ranks // count, port, port, ranks // count),) * count))
        table = TimeTable(tuple(tuple(one) for one in times[::2]), ranks)
        errors = []
        for size, time in times[1::2]:
            if size > 2**20:

                def buffer(group, place, size=size):
                    return Buffer(size // 4, fp32)

                outcome = measure(fabric, "measured", [range(ranks)], buffer, options={"table": table})
                errors.append(abs(outcome.duration / time - 1))
        assert sum(errors) / len(errors) < 0.05
        assert max(errors) < 0.15
        fit = fit_of_every_second(times)
        assert (fit.mean, fit.worst, fit.sizes) == pytest.approx((sum(errors) / len(errors), max(errors), len(errors)))
        assert fit.mean < max(0.05, fit_of_one_line(times).mean)
