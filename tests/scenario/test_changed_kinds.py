"""Selecting another plug-in: options that only the old one reads are left out, and a sentence says so."""

import pytest
from support.scenarios import values

from hybrid_des import load
from hybrid_des.errors import ScenarioError
from hybrid_des.interface.cli.main import main
from hybrid_des.scenario.loading import document_of
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.runner import dropped, sweep_rows

CHUNKED = values("interleaved-1f1b", 4, 8, schedule={"chunks": 2})
LIMITED = values("zb-auto", 4, 8, schedule={"max_activations": 8})
LEAVES = values("1f1b", 4, 8, cluster={"topology": "leaf-spine", "nodes": 4, "gpus_per_node": 1, "leaf_size": 2})


@pytest.mark.parametrize(
    ("before", "change", "gone"),
    [
        (CHUNKED, "schedule.kind=1f1b", "chunks"),
        (CHUNKED, "schedule.kind=zb-h1", "chunks"),
        (LIMITED, "schedule.kind=1f1b", "max_activations"),
        (LEAVES, "cluster.topology=nodes", "leaf_size"),
    ],
)
def test_options_of_the_old_kind_are_left_out(before, change, gone):
    section = change.partition(".")[0]
    document = document_of(before, [change])
    assert document.value[section] == {
        key: value for key, value in before[section].items() if key != gone
    } | {change.split(".")[1].split("=")[0]: change.partition("=")[2]}  # fmt: skip
    (notice,) = document.notices.values()
    assert f"{section}.{gone} of" in notice
    assert load(before, [change])


def test_chunks_that_both_kinds_have_stay():
    assert load(CHUNKED, ["schedule.kind=zb-v"]).schedule.chunks == 2
    more = values("interleaved-1f1b", 4, 8, schedule={"chunks": 4})
    assert load(more, ["schedule.kind=zb-v", "schedule.chunks=2"]).schedule.chunks == 2
    assert not document_of(CHUNKED, ["schedule.kind=interleaved-1f1b"]).notices


def test_a_kind_replaces_the_order_in_a_file():
    ordered = values("1f1b", 4, 8)
    ordered["schedule"] = {"file": "order.csv", "microbatches": 8, "fused_time": 1}
    document = document_of(ordered, ["schedule.kind=gpipe"])
    assert document.value["schedule"] == {"kind": "gpipe", "microbatches": 8}


@pytest.mark.parametrize("first", [True, False])
def test_options_given_by_hand_are_refused_still(first):
    changes = ["schedule.chunks=2", "schedule.kind=1f1b"]
    with pytest.raises(ScenarioError, match="1f1b has 1 per rank, not 2"):
        load(values("interleaved-1f1b", 4, 8), changes if first else changes[::-1])


def test_a_sweep_over_kinds_says_what_it_leaves_out():
    swept = load_sweep(CHUNKED | {"sweep": [{"schedule.kind": ["1f1b", "interleaved-1f1b", "gpipe"]}]})
    assert [row.get("error") for row in sweep_rows(swept)] == [None] * 3
    assert [notice.partition(" of ")[0] for notice in dropped(swept)] == ["sweep: schedule.chunks"] * 2
    both = load_sweep(CHUNKED | {"sweep": [{"schedule.kind": ["1f1b"]}, {"schedule.chunks": [1, 2]}]})
    assert dropped(both) == []
    assert [bool(row.get("error")) for row in sweep_rows(both)] == [False, True]


def test_commands_say_what_a_change_leaves_out(tmp_path, capsys):
    file = tmp_path / "a.yaml"
    file.write_text(
        "schedule: {kind: interleaved-1f1b, microbatches: 8, chunks: 2}\nparallel: {pipeline: 4}\n"
        "workload: {forward: 1 ms, backward: 2 ms}\ncluster: {gpus_per_node: 4}\n"
    )
    said = "schedule.chunks of interleaved-1f1b is left out: 1f1b does not read it"
    assert main([str(file), "--set", "schedule.kind=1f1b"]) == 0
    assert f"note: --set schedule.kind=1f1b: {said}" in capsys.readouterr().err
    assert main(["explain", str(file), "--what-if", "schedule.kind=1f1b"]) == 0
    assert said in capsys.readouterr().err
