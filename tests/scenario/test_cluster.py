"""Clusters in scenario files: nodes that differ, options of topologies, wirings link by link, and mistakes in them."""

import pytest
from support import scenarios
from support.scenarios import SPINE

from hybrid_des import hardware as catalogue
from hybrid_des.cli.main import main
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario import load, scenario_from, to_mapping
from hybrid_des.simulation.run import run

GB = 10**9


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


@pytest.mark.parametrize(
    "cluster",
    [
        {"nodes": [{"speed": "0.5"}, {"count": 2, "nvlink": {"bandwidth": "inf"}}]},
        {"topology": "pcie"},
        {"topology": "leaf-spine", "nodes": 4, "oversubscription": 4, "leaf_size": 2},
        {
            "topology": "links",
            "gpus_per_node": 2,
            "links": [{"between": ["gpu0", "gpu1"], "bandwidth": "inf"}],
            "routes": [["gpu0", "gpu1"]],
        },
    ],
)
def test_what_is_written_out_is_read_back_as_the_same(cluster):
    one = scenario(**cluster)
    assert scenario_from(to_mapping(one)) == one


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"nodes": []}, "cluster.nodes: an empty list; expected a number, or a list of kinds of nodes"),
        ({"nodes": "two"}, 'cluster.nodes: expected a whole number, found "two"'),
        ({"nodes": [3]}, "cluster.nodes[0]: expected a mapping, found 3"),
        ({"nodes": [{}, {"gpus": 4}]}, 'cluster.nodes[1].gpus: unknown "gpus"; did you mean "gpu"?'),
        ({"nodes": [{"count": 0}]}, "cluster.nodes[0].count: must be at least 1, not 0"),
        ({"nodes": [{"speed": 0}]}, "cluster.nodes[0].speed: must be more than 0"),
        ({"nodes": [{"gpu": "h10"}]}, 'cluster.nodes[0].gpu: unknown "h10"; did you mean "h100"?'),
        (
            {"nodes": [{"nvlink": {"bandwidth": 0}}]},
            "cluster.nodes[0].nvlink.bandwidth: a bandwidth of 0 delivers nothing",
        ),
        ({"nodes": [{"infiniband": {"nics": 2}}]}, 'infiniband.nics: unknown "nics"; did you mean "nics_per_node"?'),
        ({"oversubscription": 2}, "cluster.oversubscription: is not read by nodes; read by leaf-spine, rails"),
        ({"topology": "pcie", "leaf_size": 2}, "cluster.leaf_size: is not read by pcie; read by leaf-spine"),
        ({"pcie": {"bandwidth": 1}}, None),
        ({"topology": "leaf-spine", "oversubscription": 0}, "cluster.oversubscription: must be more than 0"),
        ({"topology": "leaf-spine", "leaf_size": 0}, "cluster.leaf_size: must be at least 1, not 0"),
        ({"topology": "rails", "cross_rail": "spin"}, 'cluster.cross_rail: unknown "spin"; did you mean "spine"?'),
        ({"topology": "rails", "oversubscription": 2}, "cluster.oversubscription: applies to the spine, which exists"),
        (
            {"topology": "rails", "gpus_per_node": 4},
            "cluster.topology: rails need at least one GPU per NIC of a node; 4 GPUs",
        ),
        ({"topology": "mesh", "nodes": 256}, "cluster.topology: a mesh of 2048 GPUs would need 4192256 links"),
        ({"topology": "links", "links": 5}, "cluster.links: expected a list, found 5"),
        ({"topology": "links", "links": [{"between": ["gpu0", "a"]}]}, "cluster.links[0].bandwidth: is required"),
        ({"topology": "links"}, "cluster.links: no path from gpu0 to gpu1; the cluster has 8 GPUs"),
    ],
)
def test_one_mistake_is_one_line(cluster, said):
    if said is None:
        cluster = {**cluster, "pcie": {"bandwidth": 1, "latency": 0}}
        said = "cluster.pcie: is not read by nodes; read by pcie"
    with pytest.raises(ScenarioError) as error:
        scenario(**cluster)
    assert len(error.value.problems) == 1
    assert said in error.value.problems[0]


def test_a_slow_node_holds_the_pipeline_up():
    nodes = [{}, {"speed": 0.5}]
    cluster = {"nodes": nodes, "gpus_per_node": 1, "infiniband": scenarios.FREE}
    slow = scenarios.scenario("gpipe", 2, 4, cluster=cluster, workload={"optimizer": "1 ms"})
    # rank 1 takes 2 and 4 ms: F 1…9, B 9…25, each B's gradient back to rank 0 for 2 more, then the optimizer
    result = run(slow)
    assert result.duration == (1 + 4 * 2 + 4 * 4 + 2 + 1) * 10**9


@pytest.mark.parametrize(
    ("bandwidth", "route", "said"),
    [
        (0, "None", 'link "wire" has a bandwidth of 0; expected more than 0, or None if free'),
        (None, "Route(('wire',), (-5,))", "has latencies (-5,); expected whole picoseconds of at least 0"),
        (None, "Route(('wire',), (1.5,))", "has latencies (1.5,); expected whole picoseconds of at least 0"),
        (None, "{}[sender, receiver]", "the route from gpu0 to gpu1 is missing"),
        (None, "None", "the route from gpu0 to gpu1 is missing"),
        (None, "Route(('wire', 'wyre'), (0, 0))", 'from gpu0 to gpu1 uses a link "wyre", which does not exist'),
        (None, "Route(('wire',), ())", "has 1 links and 0 latencies; expected one latency per link"),
        (None, "Route((), ())", "has 0 links and 0 latencies; expected one latency per link, and at least one link"),
    ],
)
def test_a_wrong_user_defined_topology_is_told_in_one_line(write, capsys, scratch, bandwidth, route, said):
    mine = write(
        f"""
from hybrid_des.network.fabric import Fabric, LinkSpec, Route
from hybrid_des.network.topologies import topology


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
