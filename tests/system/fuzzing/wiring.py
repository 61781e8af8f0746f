"""Routes and bandwidths of every topology, written from its description without the package."""

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from system.fuzzing.facts import SECOND, number, picoseconds

Way = list[tuple[str, int]]  # links by name, each with the latency behind it in picoseconds
FREE = None


class Wiring:
    """The links of a cluster whose nodes are alike."""

    def __init__(self, cluster: Mapping[str, Any]) -> None:
        self.cluster = cluster
        self.topology = cluster["topology"]
        self.width = cluster["gpus_per_node"]
        nodes = cluster["nodes"]
        self.nodes = nodes if isinstance(nodes, int) else len(nodes)
        self.nics = cluster.get("infiniband", {}).get("nics_per_node", 1)

    def latency(self, link: str) -> int:
        return picoseconds(self.cluster[link]["latency"])

    def bandwidth(self, link: str) -> Fraction | None:
        """Bytes per second of a link by its name; None if free."""
        kind = link.rpartition("/")[2]
        if self.topology == "links":
            ends = {*link.split("/to/")}
            wire = next(wire for wire in self.cluster["links"] if {*wire["between"]} == ends)
            return self._rate(wire)
        if "/to/" in link:
            ends = [int(end.removeprefix("gpu")) // self.width for end in link.split("/to/")]
            return self._rate(self.cluster["nvlink" if ends[0] == ends[1] else "infiniband"])
        if kind.startswith("to-gpu"):
            whole = self._rate(self.cluster["nvlink"])
            return whole and whole / (self.width - 1)
        if kind.startswith("nvlink-"):
            return self._rate(self.cluster["nvlink"])
        if kind.startswith("pcie-") or "/switch" in link:
            return self._rate(self.cluster["pcie"])
        if kind in ("in", "out"):
            return self._rate(self.cluster["infiniband"])
        return self._uplink(link)

    def _rate(self, figures: Mapping[str, Any]) -> Fraction | None:
        return FREE if figures["bandwidth"] == "inf" else number(figures["bandwidth"])

    def _uplink(self, link: str) -> Fraction | None:
        """Of a leaf or a rail: the sum of the NICs below it, divided by the oversubscription."""
        each = self._rate(self.cluster["infiniband"])
        if each is FREE:
            return FREE
        below = self.nodes
        if link.startswith("leaf"):
            size = self.cluster["leaf_size"]
            first = int(link.split("/")[0].removeprefix("leaf")) * size
            below = min(size, self.nodes - first) * self.nics
        return each * below / number(self.cluster.get("oversubscription", 1))

    def rings(self, members: list[int], channels: str | int) -> list[list[int]]:
        """The rings of a group: each visits all members of a node before the next node, ring i from the i-th on."""
        nodes: dict[int, list[int]] = {}
        for rank in members:
            nodes.setdefault(rank // self.width, []).append(rank)
        groups = list(nodes.values())
        count = self._adapters(groups) if channels == "auto" else int(channels)
        if count == 1:
            return [members]
        turned = [
            [group[i * len(group) // count :] + group[: i * len(group) // count] for group in groups]
            for i in range(count)
        ]
        return [[rank for group in ring for rank in group] for ring in turned]

    def _adapters(self, groups: list[list[int]]) -> int:
        """How many rings cross to the next node over different narrowest links."""
        most = min(map(len, groups))
        if len(groups) == 1:
            return 1
        counts = []
        for here, there in zip(groups, groups[1:] + groups[:1], strict=True):
            ends = ((here[i * len(here) // most - 1], there[i * len(there) // most]) for i in range(most))
            ways = [[link for link, _ in self.route(*pair)] for pair in ends]
            counts.append(len({min(way, key=self._width_of) for way in ways}))
        return min(counts)

    def _width_of(self, link: str) -> Fraction | float:
        bandwidth = self.bandwidth(link)
        return float("inf") if bandwidth is FREE else bandwidth

    def time(self, link: str, size: int) -> int:
        """Picoseconds for which a message occupies a link."""
        bandwidth = self.bandwidth(link)
        return 0 if bandwidth is FREE else round(size * SECOND / bandwidth)

    def route(self, sender: int, receiver: int) -> Way:
        """The way between two GPUs."""
        ways = {"ring": self._around, "mesh": self._direct, "links": self._searched, "pcie": self._tree}
        return ways.get(self.topology, self._switched)(sender, receiver)

    def _direct(self, sender: int, receiver: int) -> Way:
        same = sender // self.width == receiver // self.width
        return [(f"gpu{sender}/to/gpu{receiver}", self.latency("nvlink" if same else "infiniband"))]

    def _around(self, sender: int, receiver: int) -> Way:
        n = self.nodes * self.width
        up = (receiver - sender) % n
        step, hops = (1, up) if up <= n - up else (-1, n - up)
        path = [(sender + step * i) % n for i in range(hops + 1)]
        return [self._direct(a, b)[0] for a, b in pairwise(path)]

    def _searched(self, sender: int, receiver: int) -> Way:
        """Breadth first over the wires in the order in which they are listed."""
        out: dict[str, list[tuple[str, int]]] = {}
        for wire in self.cluster["links"]:
            a, b = wire["between"]
            for one, other in ((a, b), (b, a)):
                out.setdefault(one, []).append((other, picoseconds(wire["latency"])))
        paths: dict[str, Way] = {f"gpu{sender}": []}
        for point in (queue := [f"gpu{sender}"]):
            for other, latency in out.get(point, ()):
                if other not in paths:
                    paths[other] = [*paths[point], (f"{point}/to/{other}", latency)]
                    queue.append(other)
        return paths[f"gpu{receiver}"]

    def _nic(self, gpu: int) -> int:
        return gpu % self.width * self.nics // self.width

    def _switched(self, sender: int, receiver: int) -> Way:
        node, other = sender // self.width, receiver // self.width
        if node == other:
            inside = self.latency("nvlink")
            if self.topology == "direct":
                return [(f"node{node}/gpu{sender % self.width}/to-gpu{receiver % self.width}", inside)]
            return [(f"node{node}/gpu{sender % self.width}/nvlink-out", inside),
                    (f"node{node}/gpu{receiver % self.width}/nvlink-in", 0)]  # fmt: skip
        rails, before = self._nic(sender) != self._nic(receiver) and self.topology == "rails", []
        between: list[str] = []
        if rails and self.cluster.get("cross_rail", "nvlink") == "nvlink":
            relay = self._relay(node, receiver)
            before, sender = self._switched(sender, relay), relay
        elif rails:
            between = [f"rail{self._nic(sender)}/up", f"rail{self._nic(receiver)}/down"]
        elif self.topology == "leaf-spine":
            leaf, to = node // self.cluster["leaf_size"], other // self.cluster["leaf_size"]
            between = [] if leaf == to else [f"leaf{leaf}/up", f"leaf{to}/down"]
        names = [f"node{node}/nic{self._nic(sender)}/out", *between, f"node{other}/nic{self._nic(receiver)}/in"]
        return [*before, (names[0], self.latency("infiniband")), *((name, 0) for name in names[1:])]

    def _relay(self, node: int, receiver: int) -> int:
        """The GPU of a node on the receiver's rail: the one with its index, which nodes that are alike always have."""
        return node * self.width + receiver % self.width

    def _tree(self, sender: int, receiver: int) -> Way:
        """Up and down the PCIe switches of a node, and between nodes through a NIC on one of them."""
        wide = self.cluster["gpus_per_switch"]
        count = -(-self.width // wide)

        def across(node: int, one: int, other: int) -> list[str]:
            return [] if one == other else [f"node{node}/switch{one}/up", f"node{node}/switch{other}/down"]

        def of_nic(nic: int) -> int:
            return nic * count // self.nics

        (node, a), (other, b) = divmod(sender, self.width), divmod(receiver, self.width)
        out, into = f"node{node}/gpu{a}/pcie-out", f"node{other}/gpu{b}/pcie-in"
        if node == other:
            names = [out, *across(node, a // wide, b // wide), into]
            return [(names[0], self.latency("pcie")), *((name, 0) for name in names[1:])]
        nic, to_nic = self._nic(sender), self._nic(receiver)
        there = [out, *across(node, a // wide, of_nic(nic)), f"node{node}/nic{nic}/out"]
        back = [f"node{other}/nic{to_nic}/in", *across(other, of_nic(to_nic), b // wide), into]
        far = self.latency("infiniband")
        return [*((name, 0) for name in there[:-1]), (there[-1], far), *((name, 0) for name in back)]
