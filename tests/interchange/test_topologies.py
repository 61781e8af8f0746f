"""Dumps of topologies: what they say becomes a cluster, what they do not is asked for."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dumps import NET, RING, SWITCHED, matrix, nccl
from support.paths import SHARED
from support.tables import from_table

from hybrid_des.errors import UsageError
from hybrid_des.interchange.topology.block import UNKNOWN
from hybrid_des.interchange.topology.reading import read_topology
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import scenario_from

DUMPS = SHARED / "traces" / "topology"
WORK = {"schedule": {"microbatches": 1}, "workload": {"forward": "1 ms", "backward": "2 ms"}}


def fabric(block, **values):
    """The links of a cluster, with what its dump does not say."""
    return fabric_of(scenario_from({"cluster": {**block.mapping, **values}, **WORK}))


def test_switches_have_the_sum_of_links():
    block = read_topology(nccl(4, SWITCHED, NET), "topo.xml")
    assert block.asked == {}
    assert block.mapping == {
        "gpu": "h100", "nodes": 1, "gpus_per_node": 4, "nvlink": {"bandwidth": "450 GB/s"},
        "infiniband": {"bandwidth": "400 Gb/s", "nics_per_node": 4},
    }  # fmt: skip
    assert "GPU 2 (g2): mlx2" in block.notes
    assert fabric(block).gpus == 4


def test_a_mesh_is_wired_link_by_link():
    block = read_topology(nccl(4, RING), "topo.xml")
    ends = [wire["between"] for wire in block.mapping["links"]]
    assert ends == [["gpu0", "gpu1"], ["gpu0", "gpu3"], ["gpu1", "gpu2"], ["gpu2", "gpu3"]]
    assert {wire["bandwidth"] for wire in block.mapping["links"]} == {"50 GB/s"}
    assert block.asked.keys() == {"infiniband.bandwidth", "infiniband.nics_per_node"}
    assert len(fabric(block, infiniband={}).links) == 8


def test_groups_of_gpus_meet_at_the_host():
    pairs = '<nvlink target="g{pair}" count="4" tclass="0x030200"/>'
    port = 'link_speed="16.0 GT/s" link_width="16"'
    gpus = ((n, f'<gpu dev="{n}" sm="80">{pairs.format(pair=n ^ 1)}</gpu>') for n in range(4))
    text = "".join(f'<pci busid="g{n}" {port}>{gpu}</pci>' for n, gpu in gpus)
    wires = read_topology(f"<system><cpu>{text}</cpu></system>", "topo.xml").mapping["links"]
    assert [wire["between"] for wire in wires[:2]] == [["gpu0", "gpu1"], ["gpu2", "gpu3"]]
    assert wires[2] == {"between": ["gpu0", "host"], "bandwidth": "31.51 GB/s", "latency": "1.5 us"}


def test_adapters_of_storage_are_left_out():
    storage = '<pci busid="far"><nic><net name="storage" speed="100000"/></nic></pci>'
    text = nccl(2, SWITCHED, NET).replace("</cpu>", f"{storage}</cpu>")
    block = read_topology(text, "topo.xml")
    assert block.mapping["infiniband"]["nics_per_node"] == 2
    assert any("storage" in note for note in block.notes)


def test_a_port_that_manages_a_node_is_left_out():
    port = '<pci busid="eth"><nic><net name="eth0" speed="1000" port="0"/></nic></pci>'
    block = read_topology(nccl(2, SWITCHED).replace("</cpu>", f"{port}</cpu>"), "topo.xml")
    assert block.asked.keys() == {"infiniband.bandwidth", "infiniband.nics_per_node"}
    assert "left out, too slow for a network of GPUs: eth0 (1000 Mb/s)" in block.notes


def test_all_adapters_of_a_switch_are_near_its_gpus():
    """Its ports are bridges of one kind below each other; one adapter shares a port with the GPU."""
    port = 'class="0x060400" vendor="0x1000" device="0xc010"'
    near, far = (f'<pci busid="n{n}"><nic><net name="mlx{n}" speed="200000"/></nic></pci>' for n in range(2))
    gpu = '<pci busid="g"><gpu dev="0" sm="80"/></pci>'
    ports = f'<pci busid="p0" {port}>{near}{gpu}</pci><pci busid="p1" {port}>{far}</pci>'
    text = f'<system><cpu><pci busid="s" {port}>{ports}</pci></cpu></system>'
    assert "GPU 0 (g): mlx0, mlx1" in read_topology(text, "topo.xml").notes
    apart = read_topology(text.replace('"p0" class="0x060400" vendor="0x1000"', '"p0" vendor="0x10b5"'), "topo.xml")
    assert "GPU 0 (g): mlx0" in apart.notes


def test_devices_alone_are_paired_by_their_switches():
    """A file that a cloud ships, with neither <gpu> nor <net>."""
    devices = '<pci busid="{n}:gpu" class="0x030200"/><pci busid="{n}:nic" class="0x020700"/>'
    switches = "".join(f'<pci busid="s{n}" class="0x060400">{devices.format(n=n)}</pci>' for n in range(2))
    block = read_topology(f"<system><cpu>{switches}</cpu></system>", "ndv5.xml")
    assert block.notes[1:] == ["GPU 0 (0:gpu): adapter 0 (0:nic)", "GPU 1 (1:gpu): adapter 1 (1:nic)"]
    assert block.mapping["infiniband"]["nics_per_node"] == 2


def test_a_matrix_tells_switches_from_direct_links():
    switched = read_topology(matrix(8, "NV12", "PXB SYS"), "topo.txt")
    assert switched.mapping["nvlink"] == {"bandwidth": "300 GB/s"}
    assert switched.mapping["infiniband"] == {"bandwidth": UNKNOWN, "nics_per_node": 1}
    assert switched.asked.keys() == {"gpu", "infiniband.bandwidth"}
    assert "left out, below no PCIe switch of a GPU: mlx5_1" in switched.notes
    meshed = read_topology(matrix(4, "NV4"), "topo.txt")
    assert (meshed.mapping["topology"], meshed.mapping["nvlink"]) == ("direct", {"bandwidth": "300 GB/s"})
    assert read_topology(matrix(2, "SYS"), "topo.txt").mapping["nvlink"] == {"bandwidth": UNKNOWN}


TREE = "SwitchName=top Switches=leaf[1-3]\nSwitchName=leaf1 Nodes=n[01-04]\nswitchname=leaf2 nodes=n[05-08]\n"


def test_slurm_gives_leaves_and_asks_for_bandwidths():
    block = read_topology(TREE + "SwitchName=leaf3 Nodes=n[09-10]  # half\n", "topology.conf")
    assert (block.values["nodes"], block.values["topology"], block.values["leaf_size"]) == (10, "leaf-spine", 4)
    assert block.asked.keys() == {
        "gpu", "gpus_per_node", "oversubscription", "infiniband.bandwidth", "infiniband.nics_per_node",
    }  # fmt: skip
    stated = {"gpu": "h100", "gpus_per_node": 8, "oversubscription": 2, "infiniband": {}}
    assert fabric(block, **stated).gpus == 80


def test_slurm_in_yaml_is_the_same():
    text = """\
- topology: flat
  flat: true
- topology: main
  cluster_default: true
  tree:
    switches:
      - {switch: top, children: 'leaf[1-2]'}
      - {switch: leaf1, nodes: 'n[1-4]'}
      - {switch: leaf2, nodes: 'n[5-8]'}
- {topology: other, block: {block_sizes: [2], blocks: [{block: b1, nodes: 'n[1-2]'}]}}
"""
    block = read_topology(text, "topology.yaml")
    assert (block.values["nodes"], block.values["leaf_size"]) == (8, 4)


def fabric_dump(leaves, nodes, adapters, rails):
    """ibnetdiscover's output: adapters of a node below one leaf each, or all below the same; two uplinks per leaf."""
    text, below = "", {leaf: [] for leaf in range(leaves)}
    for node in range(nodes):
        for adapter in range(adapters):
            leaf = adapter % leaves if rails else node * leaves // nodes
            key = f"H-{node}-{adapter}"
            below[leaf].append(f'[{len(below[leaf]) + 1}]\t"{key}"[1](ab)\t\t# "node{node} mlx5_{adapter}" lid 1 4xNDR')
            text += f'Ca\t1 "{key}"\t\t# "node{node} mlx5_{adapter}"\n'
            text += f'[1](ab) \t"S-{leaf}"[1]\t\t# lid 5 lmc 0 "leaf" lid 1 4xNDR\n\n'
    for leaf, lines in below.items():
        up = "".join(f'[{60 + n}]\t"S-top"[{leaf}]\t\t# "spine" lid 9 4xNDR\n' for n in range(2))
        text += f'Switch\t64 "S-{leaf}"\t\t# "leaf{leaf}" base port 0 lid 1 lmc 0\n' + "\n".join(lines) + f"\n{up}\n"
    return (
        text + 'Ca 1 "H-agg" # "Mellanox Technologies Aggregation Node"\n[1](a) "S-0"[9] # lid 3 "leaf0" lid 1 4xNDR\n'
    )


def test_a_fabric_has_its_leaves_and_speeds():
    block = read_topology(fabric_dump(2, 8, 1, rails=False), "fabric.txt")
    assert block.asked.keys() == {"gpu", "gpus_per_node"}
    found = {key: block.values[key] for key in ("nodes", "topology", "leaf_size", "oversubscription")}
    assert found == {"nodes": 8, "topology": "leaf-spine", "leaf_size": 4, "oversubscription": 2.0}
    assert block.mapping["infiniband"] == {"bandwidth": "400 Gb/s", "nics_per_node": 1}
    assert fabric(block, gpu="h100", gpus_per_node=8).gpus == 64


def test_adapters_below_different_leaves_are_rails():
    block = read_topology(fabric_dump(4, 3, 4, rails=True), "fabric.txt")
    assert (block.values["topology"], block.values["nodes"]) == ("rails", 3)
    assert block.mapping["infiniband"]["nics_per_node"] == 4


@from_table
def test_a_wrong_dump_is_answered_in_one_line(text, said):
    with pytest.raises(UsageError) as caught:
        read_topology(text, "dump")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_a_cut_dump_never_gives_a_traceback(data):
    whole = data.draw(
        st.sampled_from([nccl(4, SWITCHED, NET), matrix(4, "NV4", "PXB"), TREE, fabric_dump(2, 4, 2, rails=True)])
    )
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        assert read_topology(cut, "dump").text
    except UsageError as error:
        assert "\n" not in str(error)


YAML = "- topology: main\n  tree:\n    switches:\n      - {switch: leaf1, nodes: 'n[1-4]'}\n"
WHOLE = [nccl(4, SWITCHED, NET), matrix(4, "NV4", "PXB"), TREE, YAML, fabric_dump(2, 4, 2, rails=True)]
MEAN = st.sampled_from(["", "0", "-1", "x", "9" * 30, "[", "]", "1-99999999", "\u00b3", "NVx"])


@given(st.sampled_from(WHOLE), st.dictionaries(st.integers(0, 2**12), MEAN, min_size=1, max_size=6))
def test_a_mutated_dump_never_gives_a_traceback(whole, changed):
    words = re.split(r"(\W+)", whole)
    for place, word in changed.items():
        words[place % len(words)] = word
    try:
        assert read_topology("".join(words), "dump").text
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.skipif(not DUMPS.is_dir(), reason="dumps of other people")
def test_real_dumps_become_clusters():
    read = {file.stem: read_topology(file.read_text(), file.name) for file in sorted(DUMPS.glob("*.xml"))}
    a100 = read["dgx_a100_nccl_topo"].mapping
    assert (a100["gpu"], a100["gpus_per_node"], a100["nvlink"]["bandwidth"]) == ("a100-40gb", 8, "300 GB/s")
    assert a100["infiniband"] == {"bandwidth": "200 Gb/s", "nics_per_node": 8}
    assert "GPU 1 (0000:0f:00.0): mlx5_0, mlx5_1" in read["dgx_a100_nccl_topo"].notes
    assert "GPU 3 (0008:00:00.0): adapter 3 (0104:00:00.0)" in read["azure_ndv5_pcie"].notes
    assert "infiniband.bandwidth" in read["rccl_topo_8p_90a"].asked
    mesh = read["rccl_topo_8p_940"].mapping
    assert (mesh["topology"], mesh["nvlink"]) == ("direct", {"bandwidth": "448 GB/s"})  # 7 links of 64 GB/s
    assert {"gpu", "nvlink.bandwidth", "infiniband.bandwidth"} <= read["azure_ndv5_pcie"].asked.keys()
    for block in read.values():
        stated = {"gpu": "h100", **({} if "links" in block.mapping else {"nvlink": {}}), "infiniband": {}}
        assert fabric(block, **stated).links
