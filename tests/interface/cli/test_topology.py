"""The topology command: links, routes, pictures, and mistakes in wirings."""

import json

import pytest
from support.scenarios import SPINE, scenario

from hybrid_des import load
from hybrid_des.cluster import topologies
from hybrid_des.interface.cli.main import main
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.plots.fabric_map import draw_fabric


def test_the_command_prints_and_draws_links_and_routes(write, capsys, tmp_path):
    file = write(SPINE, "spine.yaml")
    assert main(["topology", str(file), "--route", "0", "3", "--out", str(tmp_path / "new" / "folder")]) == 0
    assert (
        capsys.readouterr().out
        == """\
spine: links: user-defined wiring, link by link, with shortest-path routing
4 GPUs, 1 node, 10 links

link           count  bandwidth each
gpu*/to/left   2      10 GB/s
left/to/gpu*   2      10 GB/s
left/to/right  1      40 GB/s
right/to/left  1      40 GB/s
gpu*/to/right  1      10 GB/s
right/to/gpu*  1      10 GB/s
gpu*/to/right  1      inf
right/to/gpu*  1      inf

rank 0 to rank 3: latency 1 µs, 10 GB/s
  link           bandwidth
  gpu0/to/left   10 GB/s
  left/to/right  40 GB/s
  right/to/gpu3  inf

rank 3 to rank 0: latency 1 µs, 10 GB/s
  link           bandwidth
  gpu3/to/right  inf
  right/to/left  40 GB/s
  left/to/gpu0   10 GB/s
"""
    )
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["topology.png", "topology.svg"]


def test_the_command_lists_every_topology(capsys):
    assert main(["topology"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "description", "options"]
    assert [line.split()[0] for line in lines] == topologies.names()
    assert any(line.endswith("oversubscription, leaf_size") for line in lines)
    assert main(["topology", "--route", "0", "1"]) == 2
    assert "--route, --out and --set need a SCENARIO" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in topologies.names() if name != "links"])
def test_every_topology_can_be_drawn(name):
    for nodes, size in ((1, 8), (3, 4), (64, 8)):
        if name != "mesh" or nodes < 64:
            nics = {"nics_per_node": size}
            cluster = {"nodes": nodes, "gpus_per_node": size, "infiniband": nics, "topology": name}
            fabric = fabric_of(scenario(cluster=cluster))
            figure = draw_fabric(fabric, (0, fabric.gpus - 1))
            ax = figure.axes[0]
            texts = {text.get_text() for text in (*ax.texts, *ax.get_xticklabels())}
            assert {"0", "1", str(fabric.gpus - 1)} <= texts


def test_parallel_links_are_counted(scenarios):
    """Four adapters under each PCIe switch: one line, which says so."""
    ax = draw_fabric(fabric_of(load(scenarios / "h100_2x8.yaml", ["cluster.topology=pcie"]))).axes[0]
    assert [text.get_text() for text in ax.texts].count("4 ×") == 4


@pytest.mark.parametrize(
    ("name", "override", "links"), [("h100_2x8", "cluster.topology=mesh", 240), ("dgx1_cube_mesh", "steps=1", 32)]
)
def test_gpus_linked_to_each_other_are_a_matrix(scenarios, name, override, links):
    fabric = fabric_of(load(scenarios / f"{name}.yaml", [override]))
    ax = draw_fabric(fabric, (0, fabric.gpus - 1)).axes[0]
    cells = [patch for patch in ax.patches if patch.get_fill()]
    drawn = {(round(cell.get_y() + 0.46), round(cell.get_x() + 0.46)) for cell in cells}
    ends = {(int(link.source[3:]), int(link.target[3:])) for link in fabric.links.values()}
    assert drawn == ends
    assert len(cells) == links
    route = [(round(p.get_y() + 0.48), round(p.get_x() + 0.48)) for p in ax.patches if not p.get_fill()]
    assert route[0][0] == 0
    assert route[-1][1] == fabric.gpus - 1
    assert len(route) == len(fabric.route(0, fabric.gpus - 1).links)


def test_a_dump_becomes_a_cluster(run, ran, write):
    file = write("SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=leaf2 Nodes=n[5-8]\n", "topology.conf")
    out, err = ran("topology", "--from", file)
    assert "  nodes: 8\n" in out
    assert "unknown: cluster.infiniband.bandwidth: of each adapter" in err
    assert json.loads(run("topology", "--from", file, "--json")[1])["cluster"]["leaf_size"] == 4


def test_a_dump_stands_alone(refused, scenarios):
    assert "--from takes no FILE, --set, --route or --out" in refused(
        "topology", scenarios / "a100_8x.yaml", "--from", "x"
    )
