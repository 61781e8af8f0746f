"""Dumps of machines: NCCL's XML, and the matrix of nvidia-smi topo -m."""


def nccl(gpus, links="", nets=""):
    """A machine of one PCIe switch per GPU."""
    port = 'device="0x2330" link_speed="16.0 GT/s" link_width="16"'
    ports = "".join(
        f'<pci busid="s{n}"><pci busid="g{n}" {port}><gpu dev="{n}" sm="90">'
        f"{links.format(n=n, next=(n + 1) % gpus)}</gpu></pci>{nets.format(n=n)}</pci>"
        for n in reversed(range(gpus))
    )
    return f'<system version="1"><cpu numaid="0">{ports}</cpu></system>'


SWITCHED = '<nvlink target="x" count="9" tclass="0x068000"/><nvlink target="y" count="9" tclass="0x068000"/>'
RING = '<nvlink target="g{next}" count="2" tclass="0x030200"/>'
NET = '<pci busid="n{n}"><nic><net name="mlx{n}" speed="400000"/></nic></pci>'


def matrix(gpus, cell, nics=""):
    """The text of nvidia-smi topo -m with tabs."""
    names = [f"GPU{n}" for n in range(gpus)]
    adapters = [f"NIC{n}" for n in range(len(nics.split()))]
    lines = ["\t" + "\t".join([*names, *adapters, "CPU Affinity"])]
    for row in names:
        cells = [" X " if row == column else cell for column in names]
        lines.append("\t".join([row, *cells, *nics.split(), "0-15"]))
    legend = [f"  NIC{n}: mlx5_{n}" for n in range(len(adapters))]
    return "\n".join([*lines, "", "Legend:", "  X = Self", "NIC Legend:", *legend])
