"""Tables of measured collectives by group: times between sizes, and of groups that were not measured."""

import pytest

from hybrid_des import load, simulate
from hybrid_des.cluster.time_table import read_collective_table
from hybrid_des.errors import HybridDesError, ScenarioError, UsageError
from hybrid_des.planning.planner import parts_of

START, HOP, RATE = 50.0, 7.0, 0.002  # microseconds to start, per hop and per byte
SIZES = (4096, 65536, 2**20, 2**24)


def time_of(ranks, size):
    return START + HOP * (ranks - 1) + RATE * size * (ranks - 1) / ranks


@pytest.fixture
def table(tmp_path):
    def rows(collective, ranks, nodes=1, factor=1):
        return [f"{size},{factor * time_of(ranks, size):.6f},{collective},{ranks},{nodes}" for size in SIZES]

    lines = [*rows("all-reduce", 2), *rows("all-reduce", 4), *rows("all-gather", 2), *rows("all-reduce", 16, 2, 3)]
    path = tmp_path / "collectives.csv"
    path.write_text("\n".join(["bytes,time_us,collective,ranks,nodes", *lines]) + "\n")
    return path


def test_measured_groups_are_interpolated_by_size(table):
    times = read_collective_table(table)
    assert times.time("all-reduce", 4, 1, 4096) == round(1e6 * time_of(4, 4096))
    middle = (time_of(4, 4096) + time_of(4, 65536)) / 2
    assert times.time("all-reduce", 4, 1, (4096 + 65536) // 2) == pytest.approx(1e6 * middle, abs=1)


def test_other_groups_take_a_law_with_the_tables_constants(table):
    times = read_collective_table(table)
    for ranks in (3, 8):
        for size in (4096, 10**7):
            assert times.time("all-reduce", ranks, 1, size) == pytest.approx(1e6 * time_of(ranks, size), rel=1e-6)
    assert times.time("all-reduce", 16, 2, 4096) == pytest.approx(3e6 * time_of(16, 4096), rel=1e-6)
    assert times.time("all-gather", 4, 2, 4096) is None
    assert times.time("all-to-all", 2, 1, 4096) is None


def test_constants_are_never_below_zero(tmp_path):
    path = tmp_path / "collectives.csv"
    path.write_text("bytes,time_us,collective,ranks,nodes\n1000,1,all-reduce,2,1\n2000,4,all-reduce,2,1\n")
    assert read_collective_table(path).time("all-reduce", 3, 1, 1) >= 0


def test_replicas_reduce_in_measured_time(table, tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "cluster: {gpus_per_node: 8}\nworkload: {forward: 0, backward: 0, parameters: 1024}\n"
        "gradients: {table: collectives.csv, algorithm: measured}\n"
    )
    for replicas in (2, 4, 8):
        step = simulate(load(path, [f"parallel.data={replicas}"])).summary["step_time_s"]
        assert step == pytest.approx(1e-6 * time_of(replicas, 4096), rel=1e-6)
    with pytest.raises(HybridDesError, match=r"no all-reduce of groups that span nodes"):
        table.write_text("\n".join(table.read_text().splitlines()[:9]) + "\n")
        simulate(load(path, ["parallel.data=16", "cluster.nodes=2"]))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("4096,10,all-reduce,two,1", "row 2: "),
        ("4096,10,all-reduce,2.5,1", "row 2: expected whole ranks"),
        ("4096,-1,all-reduce,2,1", "row 2: "),
        ("4096,,all-reduce,2,1", "row 2: "),
        ("4096,10,all-reduce,2,1\n4096,11,all-reduce,2,1", "all-reduce of 2 ranks: 4096 bytes twice"),
        ("", "a table without entries"),
    ],
)
def test_broken_tables_are_refused(tmp_path, row, said):
    path = tmp_path / "collectives.csv"
    path.write_text(f"bytes,time_us,collective,ranks,nodes\n{row}\n")
    with pytest.raises(UsageError, match=said):
        read_collective_table(path)


def test_a_folder_with_a_machine_is_a_base(tmp_path, table):
    (tmp_path / "machine.yaml").write_text(
        "cluster: {gpus_per_node: 2, nvlink: {latency: 3 ms}}\ngradients: {table: collectives.csv}\n"
    )
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "scenario.yaml"
    path.write_text("base: ..\nworkload: {forward: 1, backward: 2}\nparallel: {data: 2}\n")
    scenario = load(path)
    assert scenario.cluster.kinds[0].nvlink.latency == pytest.approx(0.003)
    assert scenario.gradients.options.table.time("all-reduce", 2, 1, 4096) == round(1e6 * time_of(2, 4096))


def test_layers_wait_for_collectives_as_long_as_measured(table, tmp_path):
    sizes = {"layers": 1, "hidden": 64, "heads": 8, "ffn": 256, "vocab": 1000, "sequence": 128}
    values = {
        "model": sizes, "cluster": {"gpus_per_node": 8}, "schedule": {"microbatches": 1},
        "efficiency": {"collectives": str(table)},
    }  # fmt: skip
    for ranks in (2, 4, 8):
        (stage,) = parts_of(load({**values, "parallel": {"tensor": ranks}})).costs.stages.values()
        (traffic,) = stage.traffic
        each = time_of(ranks, 2 * 64 * 128)
        assert traffic.forward / 1e6 == pytest.approx(3 * each, rel=1e-6)  # after embedding, attention and MLP
        assert traffic.backward / 1e6 == pytest.approx(3 * each, rel=1e-6)


def test_a_table_of_one_group_is_no_table_of_layers(tmp_path):
    (tmp_path / "t.csv").write_text("bytes,time_us\n1024,10\n")
    with pytest.raises(ScenarioError, match=r"efficiency\.collectives: .* not a table of collectives by group"):
        load({"model": "llama3.1-8b", "efficiency": {"collectives": str(tmp_path / "t.csv")}})
