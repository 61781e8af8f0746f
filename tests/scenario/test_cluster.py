"""Clusters in scenario files: nodes that differ, options of topologies, wirings link by link, and mistakes in them."""

import pytest
from support import scenarios
from support.scenarios import SPINE
from support.tables import from_table

from hybrid_des import simulate
from hybrid_des.analysis.costs import costs
from hybrid_des.cluster import gpus as catalogue
from hybrid_des.errors import Refusal, ScenarioError
from hybrid_des.interface.cli.main import main
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run

GB = 10**9
WORK = {"schedule": {"microbatches": 1}, "workload": {"forward": "1 ms", "backward": "2 ms"}}


def scenario(**cluster):
    """One rank on a cluster of default size, unless told."""
    return scenarios.scenario(cluster={"gpus_per_node": 8, **cluster})


def test_nodes_may_be_a_list_of_kinds():
    mixed = scenario(
        infiniband={"latency": "7 us"},
        gpus_per_node=2,
        nodes=[
            {"count": 2},
            {"gpu": "h100", "infiniband": {"nics_per_node": 1}},
            {"gpus_per_node": 4, "nvlink": {"bandwidth": "10 GB/s"}, "speed": 0.5},
        ],
    )
    cluster = mixed.cluster
    assert cluster.gpus == 10
    kinds = cluster.nodes_of(range(10))
    assert [kind.gpu.name for kind in kinds] == ["a100-80gb"] * 4 + ["h100"] * 2 + ["a100-80gb"] * 4
    first, second, third = cluster.kinds
    assert (first.nvlink, first.infiniband) == (cluster.nvlink, cluster.infiniband)
    assert second.nvlink.bandwidth == catalogue.part("h100").nvlink.bandwidth
    assert second.infiniband.latency == catalogue.part("h100").infiniband.latency
    assert (second.infiniband.nics_per_node, first.infiniband.nics_per_node) == (1, 8)
    assert (third.nvlink.bandwidth, third.nvlink.latency) == (10 * GB, cluster.nvlink.latency)
    fabric = fabric_of(mixed)
    assert fabric.node_of == (0, 0, 1, 1, 2, 2, 3, 3, 3, 3)
    assert fabric.route(0, 4).latency == 7 * 10**6
    assert fabric.links["node3/gpu1/nvlink-out"].bandwidth == 10 * GB


def test_a_list_of_one_kind_equals_a_number():
    number, listed = scenario(nodes=3, gpus_per_node=2), scenario(nodes=[{"count": 3}], gpus_per_node=2)
    assert fabric_of(number).links == fabric_of(listed).links
    assert number.cluster.kinds == listed.cluster.kinds


def test_nodes_may_have_measured_links_of_their_own(write, tmp_path):
    write("bytes,time_us\n1000,10\n1000000,100\n2000000,190\n", "t.csv")
    head = "schedule: {kind: 1f1b, microbatches: 1}\nworkload: {forward: 1, backward: 1}\n"
    own = "cluster: {nodes: [{count: 2}, {nvlink: {table: t.csv}}]}\n"
    first, second = load(write(head + own)).cluster.kinds
    assert (first.nvlink.table, second.nvlink.bandwidth) == (None, None)
    assert second.nvlink.table.time(10**6) == 100 * 10**6
    shared = "cluster: {nvlink: {table: t.csv}, nodes: [{}, {nvlink: {latency: 7}}]}\n"
    first, second = load(write(head + shared)).cluster.kinds
    assert first.nvlink.table is not None
    assert (second.nvlink.table, second.nvlink.latency, second.nvlink.bandwidth) == (None, 7, 300 * GB)


def test_a_topology_gets_its_options():
    assert (
        fabric_of(scenario(nodes=2, topology="leaf-spine", oversubscription="2.5")).links["leaf0/up"].bandwidth
        == 80 * GB
    )
    default = fabric_of(scenario(topology="pcie"))
    assert default.links["node0/gpu0/pcie-out"].bandwidth == catalogue.part("a100-80gb").pcie.bandwidth
    given = scenario(gpu="h100", topology="pcie", gpus_per_switch=8, pcie={"bandwidth": "12 GB/s"})
    assert (given.cluster.options.pcie.bandwidth, given.cluster.options.pcie.latency) == (
        12 * GB,
        catalogue.part("h100").pcie.latency,
    )
    assert not any("switch" in name for name in fabric_of(given).links)
    assert "rail0/up" in fabric_of(scenario(nodes=2, topology="rails", cross_rail="spine")).links


def test_a_wiring_link_by_link(write):
    fabric = fabric_of(load(write(SPINE)))
    assert fabric.route(0, 3).links == ("gpu0/to/left", "left/to/right", "right/to/gpu3")
    assert fabric.route(0, 3).latency == 10**6
    assert fabric.links["right/to/gpu3"].bandwidth is None
    detour = "  routes:\n    - [gpu0, left, gpu1, left, right, gpu2]\n"
    assert len(fabric_of(load(write(SPINE + detour))).route(0, 2).links) == 5


@from_table
def test_what_is_written_out_is_read_back_as_the_same(cluster):
    one = scenario(**cluster)
    assert scenario_from(to_mapping(one)) == one


def test_a_slow_node_holds_the_pipeline_up():
    nodes = [{}, {"speed": 0.5}]
    cluster = {"nodes": nodes, "gpus_per_node": 1, "infiniband": scenarios.FREE}
    slow = scenarios.scenario("gpipe", 2, 4, cluster=cluster, workload={"optimizer": "1 ms"})
    # rank 1 takes 2 and 4 ms: F 1…9, B 9…25, each B's gradient back to rank 0 for 2 more, then the optimizer
    result = run(slow)
    assert result.duration == (1 + 4 * 2 + 4 * 4 + 2 + 1) * 10**9


@from_table
def test_a_wrong_user_defined_topology_is_told_in_one_line(write, capsys, scratch, bandwidth, route, said):
    mine = write(
        f"""
from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies import topology


@topology("mine", summary="forgetful")
def mine(cluster):
    links = {{"wire": LinkSpec("wire", {bandwidth})}}
    return Fabric(links, lambda sender, receiver: {route}, cluster.gpus, cluster.node_of)
""",
        "mine.py",
    )
    text = "cluster: {topology: mine}\nparallel: {pipeline: 2}\n"
    text += "schedule: {kind: 1f1b, microbatches: 1}\nworkload: {forward: 1, backward: 1}\n"
    assert main([str(write(text)), "--import", str(mine), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("fabric", "said"),
    [
        ("links, route, 3, [0, 0, 0]", "topology mine: it has 3 GPUs; expected 2, those of the cluster"),
        ("links, route, 2, [0]", "node_of: expected the number of the node of each GPU, found a list"),
        ("links, route, 2, ['a', 'b']", "node_of: expected the number of the node of each GPU, found a list"),
        ("links, None, 2, [0, 0]", "route: expected a function from two GPUs to a Route, found nothing"),
        ("links, lambda gpu: 3, 2, [0, 0]", "its route: too many positional arguments; it is called with 2, two GPUs"),
        ("{'wyre': links['wire']}, route, 2, [0, 0]", 'link "wyre" is called "wire"; expected its own name'),
    ],
)
def test_a_topology_of_another_form_is_told_in_one_line(write, refused, scratch, fabric, said):
    mine = write(
        f"""
from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies import topology


@topology("mine", summary="")
def mine(cluster):
    links, route = {{"wire": LinkSpec("wire", 10**9)}}, lambda sender, receiver: Route(("wire",), (0,))
    return Fabric({fabric})
""",
        "mine.py",
    )
    text = "cluster: {topology: mine, gpus_per_node: 2}\nparallel: {pipeline: 2}\n"
    text += "schedule: {kind: 1f1b, microbatches: 1}\nworkload: {forward: 1, backward: 1}\n"
    assert said in refused(write(text), "--import", mine)


def test_gpus_of_an_nvlink_domain_share_a_node():
    cluster = scenario_from({**WORK, "cluster": {"gpu": "gb200"}}).cluster
    assert (cluster.gpus_per_node, cluster.infiniband.nics_per_node) == (72, 72)
    part = scenario_from({**WORK, "cluster": {"gpu": "gb200", "gpus_per_node": 64}}).cluster
    assert (part.gpus, part.infiniband.nics_per_node) == (64, 64)


def test_gpus_without_a_switch_are_linked_directly():
    cluster = {"gpu": "mi300x"}
    assert scenario_from({**WORK, "cluster": cluster}).cluster.topology == "direct"
    assert scenario_from({**WORK, "cluster": cluster | {"oversubscription": 2, "topology": "leaf-spine"}}).cluster
    fabric = fabric_of(scenario_from({**WORK, "cluster": cluster}))
    assert fabric.links["node0/gpu0/to-gpu7"].bandwidth == 64 * 10**9


@pytest.mark.parametrize(("gpu", "precision"), [("a100-80gb", "fp8"), ("h100", "mxfp8"), ("h100", "nvfp4")])
def test_a_gpu_without_products_in_few_bits_is_refused(gpu, precision):
    values = {"cluster": {"gpu": gpu}, "model": "llama3-8b", "precision": precision}
    with pytest.raises(ScenarioError, match=r"has no .* GEMMs; expected another precision or cluster\.gpu"):
        scenario_from(values)


def test_stages_may_be_a_layout_of_megatron():
    values = {"model": {"base": "llama3-8b", "layers": 8}, "parallel": {"pipeline": 4}, "cluster": {"gpu": "h100"}}
    values |= {"schedule": {"kind": "1f1b", "microbatches": 4}}
    parallel = {"pipeline": 4, "stages": "Et|(t*3|)*2tL"}
    assert scenario_from(values | {"parallel": parallel}).parallel.stages == (1, 3, 3, 1)
    away = values | {"parallel": {"pipeline": 4, "stages": "Et|t*3|t*4m|L"}}
    assert scenario_from(away).parallel.stages == (1, 3, "ttttm", "L")
    with pytest.raises(Refusal, match=r"parallel\.stages: 1 m in the stages, but the model has 0"):
        simulate(away)


def test_fewer_bits_are_faster():
    values = {"cluster": {"gpu": "gb300"}, "model": "llama3-8b"}
    steps = [float(costs(values | {"precision": one}).forward_s.sum()) for one in ("bf16", "fp8", "mxfp8", "nvfp4")]
    assert steps[0] > steps[2] > steps[1] > steps[3]
