"""The topology command: links, routes, pictures, and mistakes in wirings."""

import pytest
from support.scenarios import SPINE, scenario

from hybrid_des import load
from hybrid_des.cli.main import main
from hybrid_des.network import topologies
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.plots.fabric_map import draw_fabric


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[gpu0, left]", "[gpu0]", ":7: cluster.links[0].between: expected a list of points such as [gpu0, switch0]"),
        ("[gpu0, left]", "[gpu0, 5]", ":7: cluster.links[0].between: expected a point such as gpu0, found 5"),
        ("[gpu0, left]", "[gpu0, gpu0]", ':7: cluster.links[0].between: "gpu0" is given twice in a row'),
        ("[gpu0, left]", "[a, b, c]", ":7: cluster.links[0].between: expected two points such as"),
        ("[gpu0, left], bandwidth: 10 GB/s", "[gpu0, left], bandwidth: 0", ":7: cluster.links[0].bandwidth: a bandw"),
        ("[gpu1, left]", "[gpu0, left]", ":8: cluster.links[1]: duplicate link from gpu0 to left"),
        ("[gpu1, left]", "[gpu4, left]", ':8: cluster.links[1]: there is no "gpu4"; the cluster has 4 GPUs'),
        ("[left, right]", "[left, light]", ":6: cluster.links: no path from gpu0 to gpu2; the cluster has 4 GPUs"),
        ("latency: 1 us", "one_way: true", ":6: cluster.links: no path from gpu2 to gpu0; the cluster has 4 GPUs"),
        ("  links:", "  routes: [[gpu0, gpu1]]\n  links:", ":6: cluster.routes[0]: there is no link from gpu0 to gpu1"),
        ("  links:", "  routes: [[gpu0, left]]\n  links:", ":6: cluster.routes[0]: a route connects two GPUs"),
        ("  topology: links\n", "", ":5: cluster.links: is not read by nodes; read by links"),
    ],
)
def test_a_broken_wiring_is_told_with_its_line(write, capsys, old, new, said):
    assert old in SPINE
    file = write(SPINE.replace(old, new, 1))
    assert main(["topology", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"{file}{said}")
    assert output.err.count("\n") == 1


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


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (["0", "4"], "--route 0 4: there is no rank 4; the cluster has 4 GPUs"),
        (["-1", "0"], "there is no rank -1"),
        (["1", "1"], "--route 1 1: a rank does not send messages to itself; give two ranks"),
        (["a", "1"], 'argument --route: expected a whole number, found "a"'),
    ],
)
def test_a_route_that_there_is_not_is_one_line(write, capsys, ends, said):
    assert main(["topology", str(write(SPINE)), "--route", *ends]) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


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
