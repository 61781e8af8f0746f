"""Dumps of machines as people have them: damaged links, several hosts, other tools, and what stands around them."""

import json

import pytest
from support.dumps import NET, SWITCHED, matrix, nccl

from hybrid_des.errors import UsageError
from hybrid_des.interchange.topology.block import UNKNOWN
from hybrid_des.interchange.topology.reading import read_topology
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import scenario_from

WORK = {"schedule": {"microbatches": 1}, "workload": {"forward": "1 ms", "backward": "2 ms"}}


def fabric(block, **values):
    """The links of a cluster, with what its dump does not say."""
    cluster = json.loads(json.dumps(block.mapping).replace(UNKNOWN, "10 GB/s"))
    return fabric_of(scenario_from({"cluster": {**cluster, "gpu": "h100", "infiniband": {}, **values}, **WORK}))


def route(links, *ends):
    return list(links.route(*ends).links)


def broken(text, row, cell="NODE"):
    """A matrix of which one GPU has other links than the rest, in its row and its column."""
    lines = [line.split("\t") for line in text.split("\n")]
    for line in lines[1:]:
        for place in range(1, len(lines)):
            if line[0].startswith("GPU") and place < len(line) and line[place].startswith("NV"):
                line[place] = cell if row in (int(line[0][3:]), place - 1) else line[place]
    return "\n".join(map("\t".join, lines))


def test_a_complete_mesh_has_as_many_nodes_as_one_likes():
    block = read_topology(matrix(4, "NV4", "PXB"), "topo.txt")
    assert block.mapping["topology"] == "direct"
    assert fabric(block, nodes=2).gpus == 8
    assert "topology: nodes and 100 GB/s" in block.comments["topology"]


def test_bridged_pairs_meet_at_the_host():
    lines = matrix(4, "SYS").split("\n")
    for row in range(4):
        cells = lines[row + 1].split("\t")
        cells[1 + (row ^ 1)] = "NV12"
        lines[row + 1] = "\t".join(cells)
    block = read_topology("\n".join(lines), "topo.txt")
    assert "PCIe" in block.asked["links"]
    links = fabric(block)
    assert route(links, 0, 1) == ["gpu0/to/gpu1"]
    assert route(links, 1, 2) == ["gpu1/to/host", "host/to/gpu2"]


def test_a_gpu_without_nvlinks_is_named_in_a_matrix():
    block = read_topology(broken(matrix(4, "NV12"), 2), "topo.txt")
    assert "GPU2: none of 12 NVLinks to switches are up" in block.notes
    links = fabric(block)
    assert route(links, 0, 3) == ["gpu0/to/nvswitch", "nvswitch/to/gpu3"]
    assert route(links, 0, 2) == ["gpu0/to/host", "host/to/gpu2"]
    assert links.links["gpu0/to/nvswitch"].bandwidth == 300 * 10**9


def test_a_gpu_with_fewer_nvlinks_is_named():
    block = read_topology(broken(matrix(4, "NV12"), 1, "NV10"), "topo.txt")
    assert "GPU1: 10 of 12 NVLinks to switches are up" in block.notes
    assert fabric(block).links["gpu1/to/nvswitch"].bandwidth == 250 * 10**9


def test_a_gpu_without_nvlinks_is_named_in_xml():
    lacking = nccl(4, SWITCHED).replace(f'dev="2" sm="90">{SWITCHED}', 'dev="2" sm="90">')
    block = read_topology(lacking, "topo.xml")
    assert "GPU 2: none of 18 NVLinks to switches are up" in block.notes
    links = fabric(block)
    assert links.links["gpu3/to/nvswitch"].bandwidth == 450 * 10**9
    assert route(links, 2, 1) == ["gpu2/to/host", "host/to/gpu1"]


def two_hosts(links=SWITCHED):
    """Two trays whose PCIe addresses are the same."""
    tray = nccl(2, links, NET).removeprefix('<system version="1">').removesuffix("</system>")
    trays = (tray.replace("<cpu", f'<cpu host_hash="0x{host}"').replace("mlx", f"h{host}_") for host in (1, 2))
    return f"<system>{''.join(trays)}</system>"


def test_hosts_of_one_nvlink_domain_are_one_node():
    block = read_topology(two_hosts(), "topo.xml")
    assert (block.values["nodes"], block.values["gpus_per_node"]) == (1, 4)
    assert "2 hosts" in block.comments["nodes"]
    assert block.values["infiniband.nics_per_node"] == 4
    assert [note for note in block.notes if note.startswith("GPU")] == [
        "GPU 0 (g1): h1_1", "GPU 1 (g0): h1_0", "GPU 2 (g1): h2_1", "GPU 3 (g0): h2_0",
    ]  # fmt: skip


def test_hosts_without_a_common_switch_are_refused():
    with pytest.raises(UsageError, match="2 hosts without links to switches"):
        read_topology(two_hosts(""), "topo.xml")


def test_links_that_lead_out_of_the_dump_are_mentioned():
    links = SWITCHED + '<nvlink target="gone" count="1" tclass="0x030200"/>'
    assert "left out, to devices that are not in the dump: 4 links of all GPUs together" in (
        read_topology(nccl(4, links), "topo.xml").notes
    )


def test_ranks_that_share_a_gpu_count_it_once():
    text = nccl(2, SWITCHED, NET).replace("</gpu>", f'</gpu><gpu dev="0" sm="90">{SWITCHED}</gpu>')
    block = read_topology(text, "topo.xml")
    assert block.values["gpus_per_node"] == 2
    assert "4 ranks on 2 GPUs: each GPU is counted once" in block.notes


@pytest.mark.parametrize(
    ("names", "count"), [(["eth0", "eth0"], 1), (["mlx0", "mlx1", "mlx0+mlx1"], 2), (["mlx0+mlx1", "eth0"], 2)]
)
def test_adapters_are_counted_once(names, count):
    nets = "".join(f'<nic><net name="{name}" speed="100000" port="1"/></nic>' for name in names)
    block = read_topology(nccl(2, SWITCHED).replace("</cpu>", f"{nets}</cpu>"), "topo.xml")
    assert block.values["infiniband.nics_per_node"] == count


@pytest.mark.parametrize(("gpu", "bandwidth"), [("h100", 450), ("b200", 900)])
def test_eighteen_nvlinks_follow_the_gpu(gpu, bandwidth):
    block = read_topology(matrix(4, "NV18"), "topo.txt")
    assert any("NV18 is 450 GB/s" in note for note in block.notes)
    assert fabric(block, gpu=gpu).links["node0/gpu0/nvlink-out"].bandwidth == bandwidth * 10**9


@pytest.mark.parametrize(
    "beside",
    [
        "GPU 0: NVIDIA B200 (UUID: GPU-1)\n",
        "|   0  NVIDIA B200            On  |   0000:1B |\n",
        "0, NVIDIA B200, 3 MiB\n",
    ],
)
def test_a_gpu_named_beside_the_matrix_is_taken(beside):
    block = read_topology(beside + matrix(4, "NV18"), "topo.txt")
    assert block.mapping["gpu"] == "b200"
    assert block.mapping["nvlink"] == {"bandwidth": "900 GB/s"}


def test_links_of_a_gpu_beyond_the_catalogue_are_asked_for():
    beside = "GPU 0: NVIDIA RTX A6000 (UUID: GPU-1)\n"
    assert "RTX A6000" in read_topology(beside + matrix(4, "NV4"), "topo.txt").asked["nvlink.bandwidth"]


def test_a_pair_of_four_links_may_be_of_slower_ones():
    comment = read_topology(matrix(2, "NV4"), "topo.txt").comments["nvlink.bandwidth"]
    assert comment == "4 links of each GPU × 25 GB/s; 56.25 GB/s for A40, RTX A6000, RTX 3090"


def test_gpus_of_six_links_behind_a_switch_are_no_mesh():
    """Four V100 of a DGX-2: each pair shows all six links of a GPU."""
    block = read_topology("GPU 0: Tesla V100-SXM3-32GB (UUID: GPU-1)\n" + matrix(4, "NV6"), "topo.txt")
    assert block.mapping["nvlink"] == {"bandwidth": "150 GB/s"}
    assert "topology" not in block.mapping


@pytest.mark.parametrize(
    ("legend", "said"),
    [
        ("  PIX  = one bridge\n  NV#  = NVLinks\n", "no NVLink: the bandwidth"),
        ("$ nvidia-smi topo -m\n", "no NVLink: the bandwidth"),
        ("$ nvidia-smi topo -mp\n", "topo -mp hides NVLinks"),
        ("  PIX  = one bridge\n", "topo -mp hides NVLinks"),
        ("", "if this is of nvidia-smi topo -mp, which hides them"),
    ],
)
def test_a_matrix_that_hides_nvlinks_says_so(legend, said):
    text = matrix(4, "NODE", "PIX").replace("  X = Self\n", legend)
    assert said in read_topology(text, "topo.txt").asked["nvlink.bandwidth"]


def rocm(kind="XGMI", weight=15, gpus=3):
    """The text of rocm-smi --showtopo."""

    def table(title, cell):
        head = "       " + "".join(f"GPU{n:<10}" for n in range(gpus))
        rows = [
            f"GPU{one}   " + "".join(f"{cell if one != other else 0!s:<13}" for other in range(gpus))
            for one in range(gpus)
        ]
        return f"{'=' * 20} {title} between two GPUs {'=' * 20}\n{head}\n" + "\n".join(rows) + "\n\n"

    return table("Weight", weight) + table("Hops", 1) + table("Link Type", kind)


def test_rocm_smi_is_no_matrix_of_nvidia_smi():
    block = read_topology(rocm(), "topo.txt")
    assert "AMD" in block.source
    assert (block.values["gpus_per_node"], block.values["topology"]) == (3, "direct")
    assert "64 GB/s (MI300X" in block.asked["nvlink.bandwidth"]
    named = read_topology(f"GPU[0] : Card Series:  AMD Instinct MI300X OAM\n{rocm()}", "topo.txt")
    assert (named.values["gpu"], named.values["nvlink.bandwidth"]) == ("mi300x", "128 GB/s")


def test_gpus_that_xgmi_reaches_over_others_are_not_linked():
    block = read_topology(rocm(weight=30), "topo.txt")
    assert "no XGMI" in block.asked["nvlink.bandwidth"]
    assert "no XGMI" in read_topology(rocm("PCIE", 40), "topo.txt").asked["nvlink.bandwidth"]


def test_amd_smi_has_the_same_tables():
    names = ["0000:05:00.0", "0000:26:00.0"]
    rows = [f"{one} {' '.join('SELF' if one == other else 'XGMI' for other in names)}" for one in names]
    text = "\n".join(["LINK TYPE TABLE:", f"             {' '.join(names)}", *rows, "", "NUMA BW TABLE:"])
    assert read_topology(text, "topo.txt").values["topology"] == "direct"


CORE = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\n"


def test_a_core_switch_of_scontrol_is_no_leaf():
    top = "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]\n"
    block = read_topology(f"$ scontrol show topology\n{CORE}{top}", "topo.txt")
    assert (block.values["nodes"], block.values["leaf_size"]) == (8, 4)
    with pytest.raises(UsageError, match="leaf3 is below top but not listed"):
        read_topology(CORE + top.replace("1-2]", "1-3]"), "topo.txt")


def test_a_switch_above_others_in_yaml_is_no_leaf():
    switches = ["{switch: top, nodes: 'n[1-8]', children: 'leaf[1-2]'}", "{switch: leaf1, nodes: 'n[1-4]'}",
                "{switch: leaf2, nodes: 'n[5-8]'}"]  # fmt: skip
    text = "- topology: main\n  tree:\n    switches:\n" + "".join(f"      - {one}\n" for one in switches)
    assert read_topology(text, "topology.yaml").values["leaf_size"] == 4


DUMPS = {"xml": nccl(2, SWITCHED).replace("<pci", "\n<pci"), "matrix": matrix(4, "NV12", "PXB"), "rocm": rocm(),
         "slurm": CORE}  # fmt: skip


@pytest.mark.parametrize("kind", DUMPS)
@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "0: ", "node1: ", "> "])
def test_tags_before_each_line_are_cut(kind, tag):
    dump = DUMPS[kind]
    text = "".join(f"{tag}{line}\n" for line in dump.split("\n"))
    assert read_topology(text, "dump").mapping == read_topology(dump, "dump").mapping


@pytest.mark.parametrize("kind", DUMPS)
def test_prompts_and_fences_around_a_dump_are_skipped(kind):
    dump = DUMPS[kind]
    text = f"Here it is:\r\n```\r\n$ cat topo\n\x1b[4m{dump}\x1b[0m\n```\nand so on\n"
    assert read_topology(text, "dump").mapping == read_topology(dump, "dump").mapping


@pytest.mark.parametrize("kind", ["xml", "matrix", "rocm"])
def test_a_second_dump_is_mentioned(kind):
    dump = DUMPS[kind]
    block = read_topology(f"{dump}\n\n{dump}\n", "dump")
    assert [note for note in block.notes if "another dump, not read" in note]
    assert block.mapping == read_topology(dump, "dump").mapping
    tagged = "".join(f"{tag}{line}\n" for line in dump.split("\n") for tag in ("0: ", "1: "))
    assert [note for note in read_topology(tagged, "dump").notes if "another dump, not read" in note]


def test_peer_access_is_no_topology():
    access = matrix(2, "OK")
    with pytest.raises(UsageError, match='row GPU0: "OK"; expected relations of topo -m'):
        read_topology(access, "topo.txt")
    block = read_topology(f"{access}\n\n{matrix(4, 'NV12')}", "topo.txt")
    assert block.values["gpus_per_node"] == 4
