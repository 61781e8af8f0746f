"""Chakra execution traces: written and read back, those of other projects, and broken ones."""

import json
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from google.protobuf.proto import parse_length_prefixed
from hypothesis import given
from hypothesis import strategies as st
from support import scenarios
from support.campaigns import thinned
from support.paths import SCENARIOS, SHARED
from support.tables import from_table

from hybrid_des import costs, load, simulate, verify
from hybrid_des.errors import Refusal, ScenarioError, UsageError
from hybrid_des.interchange.profiles import chakra
from hybrid_des.interchange.profiles.chakra import LONGEST, read_chakra, write_chakra
from hybrid_des.interchange.profiles.graph import COLLECTIVE, COMPUTATION, RECEIVE, SEND, Node, RankTrace
from hybrid_des.measured.imports.exporting import write_traces
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.measured.imports.traced import of_machine
from hybrid_des.report.files.staging import write_files
from hybrid_des.scenario.loading import scenario_from

TRACES = SHARED / "traces" / "chakra"
theirs = pytest.mark.skipif(not TRACES.exists(), reason="the traces are not part of the project")
LINKS = {"gpus_per_node": 8, "nvlink": {"bandwidth": "50 GB/s", "latency": "0.5 us"}}
MACHINE = scenario_from({"cluster": LINKS, "schedule": {"kind": "gpipe"}, "workload": {"forward": 0, "backward": 0}})

ZERO = ["parallel.pipeline=1", "parallel.data=8"]
WRITTEN = {  # pipelines, data parallel, ZeRO, a model, sends that block
    "pipeline": ("a100_8x", []),
    "split backwards": ("a100_8x", ["schedule.kind=zb-h1"]),
    "chunks": ("a100_8x", ["schedule.kind=interleaved-1f1b", "schedule.chunks=2"]),
    "pairs": ("a100_8x", ["schedule.kind=dualpipe-v"]),
    "blocking": ("a100_8x", ["schedule.p2p=blocking"]),
    "two nodes": ("h100_2x8", ["schedule.microbatches=8"]),
    "contention": ("contention_slower", []),
    "buckets": ("a100_8x", ["gradients.overlap=true", "gradients.bucket=100MB", "gradients.bucket_rule=ddp"]),
    "zero-1": ("h100_2x8", ["schedule.microbatches=8", "sharding=zero-1"]),
    "zero-2": ("a100_8x", [*ZERO, "sharding=zero-2"]),
    "zero-3": ("a100_8x", [*ZERO, "sharding=zero-3"]),
    "model": ("resnet50_4stages", []),
}


@pytest.mark.parametrize(
    ("name", "changes"),
    thinned(WRITTEN.values(), slow=[WRITTEN[name] for name in ("zero-1", "zero-2", "buckets", "pairs", "contention")]),
    ids=[*WRITTEN],
)
def test_traces_written_and_read_back_take_as_long(name, changes, tmp_path):
    scenario = load(SCENARIOS / f"{name}.yaml", [*changes, "steps=1"])
    write_traces(scenario, tmp_path / "traces")
    found = import_profile(tmp_path / "traces", machine=scenario)
    write_files(tmp_path / "out", found.contents())
    expected = simulate(scenario).run.duration
    assert simulate(load(tmp_path / "out" / "scenario.yaml")).run.duration == expected
    assert found.figures["simulated_step_time_s"] == expected / 10**12


def test_collectives_of_a_trace_are_not_written_again(tmp_path):
    job = {"parallel": {"data": 4}, "cluster": LINKS}
    write_traces(load({**job, "workload": {"forward": 1, "backward": 2, "parameters": 1e6}}), tmp_path / "traces")
    with pytest.raises(Refusal, match="are not written again"):
        write_traces(load({**job, "workload": {"trace": str(tmp_path / "traces")}}), tmp_path / "again")


def test_what_needs_a_schedule_says_so(tmp_path):
    write_traces(load({"cluster": LINKS, "workload": {"forward": 1, "backward": 2}, "schedule": {}}), tmp_path)
    traced = {"parallel": {"data": 4}, "cluster": LINKS, "workload": {"trace": str(tmp_path)}}
    with pytest.raises(UsageError, match="no costs of stages; expected a schedule"):
        costs(traced)
    with pytest.raises(UsageError, match="verification trains in the order of a schedule"):
        verify(traced)


def four_stages():
    """The pipeline of TRACES.md: F 1 ms, B 2 ms, 1 MiB, 1 GiB/s, 1 µs."""
    links = {"nvlink": {"bandwidth": "1 GiB/s", "latency": "1 us"}}
    return scenarios.scenario("1f1b", 4, 8, cluster=links, workload={"activation": "1 MiB"})


def test_a_written_pipeline_has_the_nodes_of_astra_sim(tmp_path):
    write_traces(four_stages(), tmp_path)
    assert simulate(four_stages()).summary["step_time_s"] == pytest.approx(0.048641, abs=5e-7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"chakra.{i}.et" for i in range(4)),
        "comm_groups.json",
    ]
    first, second, *_ = read_chakra([*tmp_path.glob("*.et")])
    kinds = [node.kind for node in first.nodes]
    assert [kinds.count(kind) for kind in (COMPUTATION, SEND, RECEIVE)] == [16, 8, 8]
    assert {node.size for node in first.nodes if node.kind in (SEND, RECEIVE)} == {2**20}  # matched by size, too
    ends = [(node.peer, node.tag) for node in second.nodes if node.kind == RECEIVE and node.peer == 0]
    assert ends == [(1 - 1, node.tag) for node in first.nodes if node.kind == SEND]


def test_attributes_have_the_types_of_published_traces(tmp_path):
    """Chakra's feeder reads fields by type: `int64_val` is 9, `int32_val` 7; another one would count as 0."""
    write_traces(four_stages(), tmp_path)
    types = {}
    with (tmp_path / "chakra.1.et").open("rb") as file:
        parse_length_prefixed(chakra.messages()["GlobalMetadata"], file)
        while node := parse_length_prefixed(chakra.messages()["Node"], file):
            for attribute in node.attr:
                types.setdefault(attribute.name.decode(), set()).add(attribute.ListFields()[1][0].number)
    expected = {"comm_size": {9}, "comm_src": {7}, "comm_dst": {7}, "comm_tag": {7}, "is_cpu_op": {27}}
    assert {name: types[name] for name in expected} == expected


@pytest.mark.parametrize("key", ["tensor_traffic", "efficiency.slowed"])
def test_what_traces_cannot_say_is_refused(tmp_path, key):
    change = {"tensor_traffic": "tensor_traffic=messages", "efficiency.slowed": "gradients.overlap=true"}[key]
    scenario = load(SCENARIOS / "llama3.1-8b_8.yaml", [change])
    with pytest.raises(Refusal, match=key):
        write_traces(scenario, tmp_path)


@theirs
@pytest.mark.parametrize(
    ("name", "microseconds"),
    [
        ("custom_ring_allreduce_8npus_1MB", 92.70016),  # 14 · (0.5 + 2.62144) + 7 · 7
        ("all_reduce_4npus_1MB", 34.45728),  # 6 · (0.5 + 5.24288)
        ("all_gather_4npus_1MB", 64.41456),  # 3 · (0.5 + 20.97152)
    ],
)
def test_public_examples_take_the_time_of_their_formulas(name, microseconds):
    found = import_profile(TRACES / name, machine=MACHINE)
    assert found.simulated == [pytest.approx(microseconds * 1e-6, rel=1e-9)]


@theirs
@pytest.mark.parametrize("name", thinned(["feeder_tests_trace", "json_trace"], slow=["feeder_tests_trace"]))
def test_traces_of_pytorch_run_in_both_forms(name, tmp_path):
    with tarfile.open(TRACES / f"{name}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    (file,) = (path for path in tmp_path.rglob("chakra.0.*"))
    found = import_profile(file)
    assert found.simulated == [pytest.approx(0.297, abs=5e-4)]
    assert found.linked == 100.0


def test_two_traces_of_a_rank_are_refused(tmp_path):
    write_traces(four_stages(), tmp_path)
    (tmp_path / "chakra.3.et").rename(tmp_path / "other.2.et")
    with pytest.raises(UsageError, match=r"other\.2\.et: a second trace of rank 2, beside chakra\.2\.et"):
        import_profile(tmp_path)


def test_programs_of_equal_ranks_are_folded(tmp_path):
    """One trace stands for all replicas, however many there are; a ring of r takes 2(r − 1)(latency + S/rB)."""
    nodes = [
        Node(0, "forward", COMPUTATION, 10**9, stream="compute"),
        Node(1, "gradients", COLLECTIVE, needs=[0], size=8 * 10**6, does="all-reduce"),
        Node(2, "optimizer", COMPUTATION, 10**9, needs=[1], stream="compute"),
    ]
    for rank in range(4):
        (tmp_path / f"chakra.{rank}.et").write_bytes(write_chakra(RankTrace("", nodes)))
    found = import_profile(tmp_path, machine=MACHINE)
    assert (found.values["parallel"], found.facts["distinct_traces"]) == ({"data": 4}, 1)
    write_files(tmp_path / "out", found.contents())
    for ranks, fold in ((4, "off"), (4, "1"), (8, "2"), (8, "off")):
        changes = [f"parallel.data={ranks}", f"fold={fold}"]
        result = simulate(load(tmp_path / "out" / "scenario.yaml", changes))
        ring = 2 * (ranks - 1) * (5 * 10**5 + 8 * 10**6 * 20 // ranks)  # 50 GB/s are 20 ps a byte
        assert result.run.duration == 2 * 10**9 + ring
        assert result.summary["ranks_simulated"] == (ranks if fold == "off" else int(fold))


def test_a_traced_run_is_explained_and_drawn(run, ran, tmp_path):
    write_traces(four_stages(), tmp_path / "traces")
    machine = tmp_path / "machine.yaml"
    machine.write_text("cluster: {gpus_per_node: 4, nvlink: {bandwidth: 1 GiB/s, latency: 1 us}}\n"
                       "schedule: {kind: gpipe}\nworkload: {forward: 0, backward: 0}\n")  # fmt: skip
    code, _, err = run("import", tmp_path / "traces", "--machine", machine, "--out", tmp_path / "out")
    assert (code, err) == (0, [f"wrote 8 files to {tmp_path / 'out'}"])
    code, out, err = run("explain", tmp_path / "out" / "scenario.yaml")
    assert (code, err) == (0, [])
    assert "Step       A step takes 48.64 ms" in out
    _, out, _ = run("explain", tmp_path / "out" / "scenario.yaml", "--details")
    assert "forward 0 on rank 0" in out and "→ activations 0 →" in " ".join(out.split())
    assert "schedule." not in out
    out, err = ran(tmp_path / "out" / "scenario.yaml", "--out", tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()


def broken(nodes, folder):
    (folder / "chakra.0.et").write_bytes(write_chakra(RankTrace("", nodes)))
    with pytest.raises(UsageError) as refused:
        import_profile(folder)
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def compute(number, *needs):
    return Node(number, f"op {number}", COMPUTATION, 1, needs=needs, stream="compute")


def test_cycles_and_missing_nodes_are_named(tmp_path):
    said = broken([compute(0), compute(1, 3), compute(2, 1), compute(3, 2)], tmp_path)
    assert said.endswith("nodes need each other in a cycle: 1 → 3 → 2 → 1")
    said = broken([compute(0), compute(1, 0, 7, 9)], tmp_path)
    assert said.endswith("node 1 needs node 7, 9, which the trace does not have")
    assert broken([compute(5), compute(5)], tmp_path).endswith("two nodes have the id 5")


def test_messages_without_another_end_are_named(tmp_path):
    said = broken([Node(0, "send", SEND, peer=0, size=1, tag=3), compute(1)], tmp_path)
    assert said.endswith("a message from rank 0 to rank 0 with tag 3 is sent, but not received")


def test_cut_traces_are_refused_in_one_line(tmp_path):
    whole = write_chakra(RankTrace("", [compute(0), compute(1, 0)]))
    for end in (1, 9, 20, len(whole) - 1):
        (tmp_path / "chakra.0.et").write_bytes(whole[:end])
        with pytest.raises(UsageError, match=r"not a whole Chakra trace|no computation"):
            import_profile(tmp_path)


names = st.text(max_size=12)
facts = st.dictionaries(st.sampled_from(["op", "microbatch", "chunk", "stage", "elements"]), st.integers(0, 2**40))


@given(name=names, duration=st.integers(0, LONGEST), size=st.integers(0, 2**50), place=facts, peer=st.integers(0, 99))
def test_nodes_survive_being_written(name, duration, size, place, peer):
    nodes = [
        Node(3, name, COMPUTATION, duration, stream="compute", place=place),
        Node(1, name, SEND, duration, (3,), "", size, peer, 7, place=place),
        Node(2, name, COLLECTIVE, duration, (1, 3), "s", size, does="reduce-scatter", group="4", place=place),
    ]
    content = write_chakra(RankTrace("", nodes, {"4": (0, 5)}))
    with TemporaryDirectory() as folder:
        (Path(folder) / "chakra.0.et").write_bytes(content)
        (trace,) = read_chakra([Path(folder) / "chakra.0.et"])
    assert list(trace.nodes) == nodes
    assert trace.groups == {"4": (0, 5)}


def test_other_files_are_told_from_traces(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"workload_graph": [{"Id": 1}]}))
    with pytest.raises(UsageError, match="not a whole Chakra trace: lacks 'nodetype'"):
        import_profile(tmp_path / "a.json")
    machine = of_machine(load(SCENARIOS / "resnet50_4stages.yaml"))
    assert machine["cluster"]["gpus_per_node"] > 0


def traced(**sections):
    return {"cluster": LINKS, "workload": {"trace": "t"}, **sections}


@from_table
def test_values_that_a_trace_replaces_are_refused(sections, said):
    with pytest.raises(ScenarioError) as refused:
        scenario_from(traced(**sections))
    assert len(refused.value.problems) == 1
    assert said in refused.value.problems[0]


@pytest.mark.parametrize(
    ("name", "on_the_wire"), [("op", b"\x72\4\n\2\1\2"), ("stage", b"\xea\1\5first"), ("gap", b"\x1a\0")]
)
def test_attributes_of_other_meaning_are_left_alone(name, on_the_wire, tmp_path):
    attribute = chakra.messages()["Attribute"](name=name.encode())
    attribute.MergeFromString(on_the_wire)  # lists (field 14), a text (29), something else (3)
    node = chakra.messages()["Node"](id=1, name=b"gemm", type=4, duration_micros=5, attr=[attribute])
    metadata = b"\7\n\0050.0.4"
    (tmp_path / "a.et").write_bytes(metadata + bytes([node.ByteSize()]) + node.SerializeToString())
    assert import_profile(tmp_path / "a.et").simulated == [5e-6]


def by_name(folder, nodes):
    """Traces of four ranks as ASTRA-sim has them, with the nodes of each: collectives name their group alone."""
    folder.mkdir(exist_ok=True)
    for rank in range(4):
        group = str(1 + rank // 2)
        written = write_chakra(RankTrace("", nodes(rank, group), {group: (0, 0)}))
        (folder / f"w.{rank}.et").write_bytes(written.replace(b"involved_ranks", b"something_else"))
    return folder


def reduction(group, number=0, needs=()):
    return Node(number, "reduce", COLLECTIVE, needs=needs, size=10**6, does="all-reduce", group=group)


def reduced_in_pairs(rank, group):
    """The first pair reduces and sends, the second receives and reduces: among all four they would wait forever."""
    if rank < 2:
        return [reduction(group), Node(1, "send", SEND, needs=(0,), size=10**6, peer=rank + 2, tag=1)]
    return [Node(0, "receive", RECEIVE, size=10**6, peer=rank - 2, tag=1), reduction(group, 1, (0,))]


PAIRS = {"1": [0, 1], "2": [2, 3]}


@pytest.mark.parametrize("name", ["comm_group.json", "workload.json"])
def test_members_of_groups_are_read_beside_traces(name, tmp_path):
    """Two pairs move 2 · 1/2 MB per rank around a ring of two: 4 MB; among all four it would be 6."""
    folder = by_name(tmp_path / "t", lambda rank, group: [reduction(group)])
    (folder / name).write_text(json.dumps(PAIRS))
    (folder / "notes.md").write_text("is_cpu_op is an attribute\n")
    found = import_profile(folder, machine=MACHINE)
    assert not [one for one in found.unknown if "process groups" in one]
    assert found.simulated == [pytest.approx(2 * (0.5e6 / 50e9 + 0.5e-6))]
    found.write(tmp_path / "out")
    assert simulate(load(tmp_path / "out" / "scenario.yaml")).summary["bytes_gradients"] == 4 * 10**6


def test_groups_that_wait_for_each_other_have_a_step(tmp_path):
    folder = by_name(tmp_path / "t", reduced_in_pairs)
    with pytest.raises(UsageError, match=r"ranks wait for each other: the ranks of process groups 1, 2: .*comm_group"):
        import_profile(folder)
    (folder / "groups.json").write_text("\ufeff" + json.dumps(PAIRS), encoding="utf-8")
    assert import_profile(folder).simulated == [0]


def test_unlisted_groups_and_untimed_nodes_are_said(tmp_path):
    def nodes(rank, group):
        return [Node(0, "gemm", COMPUTATION), Node(1, "r", COLLECTIVE, size=8, does="all-reduce", group=group)]

    folder = by_name(tmp_path / "t", nodes)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes().replace(b"duration_picos", b"num_ops_______"))
    said = import_profile(folder).unknown
    assert any(one.startswith("the ranks of process groups 1, 2: their collectives are taken as") for one in said)
    assert "durations of 4 of 4 computations: they take no time (num_ops is not read)" in said


@pytest.mark.parametrize("content", ['{"1": [0, "a"]}', '{"1": [0, 1'])
def test_broken_lists_of_groups_are_refused(content, tmp_path):
    folder = by_name(tmp_path / "t", reduced_in_pairs)
    (folder / "comm_group.json").write_text(content)
    with pytest.raises(UsageError, match=r"comm_group\.json: "):
        import_profile(folder)
    (folder / "comm_group.json").write_text(json.dumps(PAIRS))
    (folder / "workload.json").write_text('{"1": [0, 2]}')
    with pytest.raises(UsageError, match=r'workload\.json: group "1" has other ranks than in another file'):
        import_profile(folder)


def test_traces_of_some_ranks_keep_their_groups(tmp_path):
    folder = by_name(tmp_path / "t", reduced_in_pairs)
    (folder / "comm_group.json").write_text(json.dumps({"1": [0, 1], "2": [2, 3]}))
    for rank in (0, 2):
        (folder / f"w.{rank}.et").unlink()
    found = import_profile(folder)  # rank 1 sends to rank 3: the only two with a trace
    assert "some ranks of process groups 1, 2: their collectives are those of the ranks with a trace" in found.unknown
    (folder / "comm_group.json").write_text(json.dumps({"1": [0, 1], "2": [2, 4]}))
    with pytest.raises(UsageError, match=r'w\.3\.et: node 1: rank 3 is not in group "2": 2, 4'):
        import_profile(folder)
