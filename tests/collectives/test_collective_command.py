"""The command `collective`: its table, its settings, and what it cannot do."""

import csv
import json

import pytest

from hybrid_des import collectives
from hybrid_des.cluster.time_table import read_table

GIB = 2**30


def rows(text):
    """(bytes, µs, algorithm bandwidth, bus bandwidth) of the lines that are no comments."""
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return [(int(line[0]), *(float(cell) for cell in line[3:6])) for line in lines]


def test_the_command_prints_and_writes_the_table_of_nccl_tests(ran, tmp_path):
    ports_and_sizes = ["--bandwidth", "25 GiB/s", "--latency", "1 us", "--min", "1 KiB", "--max", "1 GiB"]
    out, _ = ran("collective", "ring", "--ranks", "8", *ports_and_sizes, "--out", tmp_path)
    table = rows(out)
    assert [size for size, *_ in table] == [2**k for k in range(10, 31, 2)]
    rate = GIB / 70.014e6  # GB/s
    assert table[-1] == (GIB, 70014.0, pytest.approx(rate, abs=0.01), pytest.approx(rate * 1.75, abs=0.01))
    assert read_table(tmp_path / "collective.csv").time(GIB) == 70_014_000_000
    assert {file.name for file in tmp_path.iterdir()} == {"collective.csv", "collective.png", "collective.svg"}


def test_the_command_says_what_auto_took_on_a_scenarios_cluster(run, scenarios):
    more = ["--scenario", scenarios / "h100_2x8.yaml", "--ranks", "8", "--min", "1 MB", "--max", "1 MB"]
    (code, given, _), (code_of_auto, said, _) = (run("collective", name, *more) for name in ("in-switch", "auto"))
    assert (code, code_of_auto) == (0, 0)
    ((_, time, *_),) = rows(given)
    assert rows(said)[0][1] <= time
    assert said.splitlines()[-2].split()[-1] in collectives.all_reduces()


def test_the_command_reaches_every_collective(run, write):
    table = write("bytes,time_us\n1024,10\n4096,20\n", "t.csv")
    for name in collectives.names():
        more = ["--table", table] if name == "measured" else []
        code, out, _ = run("collective", name, "--ranks", "4", "--gpus-per-node", "4", "--max", "4 KiB", *more)
        assert (code, len(rows(out))) == (0, 2)


def test_the_command_takes_settings_without_a_scenario(ran):
    """Six ranks in nodes of four: what is set is in the head, and the last node is half empty."""
    command = ["collective", "ring", "--ranks", "6", "--gpus-per-node", "4", "--max", "1 KiB"]
    out, _ = ran(*command, "--set", "cluster.sharing=fair", "--set", "gradients.codec=fp16")
    head, *_, line, _ = out.splitlines()
    assert head == "# ring: 6 ranks, 4 per node, 25 GB/s, 1 us, fair"
    assert line.split()[1:3] == ["512", "fp16"]


def test_options_of_a_scenarios_own_reduction_are_left_aside(run, scenarios, write):
    file = write(f"base: {scenarios / 'h100_2x8.yaml'}\ngradients: {{algorithm: hierarchical, pieces: 4}}\n")
    for more in ([], ["--codec", "fp16"], ["--set", "gradients.codec=fp16"]):
        code, out, _ = run("collective", "ring", "--scenario", file, "--min", "1 MB", "--max", "1 MB", *more)
        assert (code, "fp16" in out) == (0, bool(more))


@pytest.mark.slow
def test_all_algorithms_are_tried_on_the_same_ranks(run, ran, tmp_path):
    more = ["--ranks", "4", "--gpus-per-node", "2", "--min", "1 MiB", "--max", "4 MiB", "--out", tmp_path]
    out, err = ran("collective", "all", *more)
    heads = [line.split(":")[0].removeprefix("# ") for line in out.splitlines() if "per node" in line]
    assert heads == [name for name in collectives.all_reduces() if name != "in-switch"]
    assert err == ["left out: in-switch: needs a group within one node, not on nodes 0, 1"]
    table = list(csv.DictReader((tmp_path / "collective.csv").read_text().splitlines()[1:]))
    assert [row["algorithm"] for row in table] == [name for name in heads for _ in range(2)]
    data = json.loads(run("collective", "all", *more[:-2], "--json")[1])
    assert [(row["algorithm"], str(row["bytes"])) for row in data] == [
        (row["algorithm"], row["bytes"]) for row in table
    ]
    assert [row["bus_bandwidth_gb_per_s"] for row in data] == [float(row["bus_bandwidth_gb_per_s"]) for row in table]


@pytest.mark.slow
def test_the_table_keeps_bandwidths_and_what_auto_chose(run, tmp_path):
    run("collective", "auto", "--ranks", "4", "--max", "16 KiB", "--out", tmp_path)
    rows = list(csv.DictReader((tmp_path / "collective.csv").read_text().splitlines()[1:]))
    assert {row["algorithm"] for row in rows} <= set(collectives.all_reduces())
    for row in rows:
        rate = int(row["bytes"]) / float(row["time_us"]) / 1000
        assert float(row["algorithm_bandwidth_gb_per_s"]) == pytest.approx(rate)
        assert float(row["bus_bandwidth_gb_per_s"]) == pytest.approx(1.5 * rate)
    assert read_table(tmp_path / "collective.csv").entries[0][0] == 1024
