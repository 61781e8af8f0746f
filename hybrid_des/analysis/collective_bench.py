"""How long collectives take alone on the first ranks of a cluster, by the size of the buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.cost_model.collective_times import CollectiveTimes, Concurrent
from hybrid_des.errors import Refusal, UsageError, one_line
from hybrid_des.layout import Layout
from hybrid_des.options import plain
from hybrid_des.planning.wiring import wired
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, document_of, scenario_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.sizes import (
    MOST_MESSAGES,
    MOST_PAIRS,
    PAIRS,
    most_channels,
)
from hybrid_des.units import parse_quantity

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"


MOST_BYTES = 10**13


SIZES = tuple(2**power for power in range(10, 31, 2))  # 1 KiB … 1 GiB


PORT = {"bandwidth": "25 GB/s", "latency": "1 us"}


class BenchRow(NamedTuple):
    """One line of the table: bytes, elements, picoseconds; algorithm and bus bandwidth in GB/s; the collective.

    Attributes:
        channels: rings that are simulated; of sends, channels to all peers.
        taken: algorithm and protocol, if a library chooses them.
    """

    size: int
    elements: int
    time: int
    algorithm: float
    bus: float
    name: str
    channels: int = 1
    taken: tuple[str, str] | None = None

    def columns(self) -> dict[str, Any]:
        """The row by the names of its columns, as in `collective.csv`."""
        known = {"bytes": self.size, "time_us": self.time / 10**6, "algorithm_bandwidth_gb_per_s": self.algorithm,
                 "bus_bandwidth_gb_per_s": self.bus, "algorithm": self.name, "channels": self.channels}  # fmt: skip
        if self.taken is None:
            return known
        return known | dict(zip(("nccl_algorithm", "nccl_protocol"), self.taken, strict=True))


class Bench(NamedTuple):
    """The setup of a benchmark: the first ranks of a scenario's cluster."""

    scenario: Scenario
    times: CollectiveTimes
    ranks: int

    @classmethod
    def of(cls, scenario: Scenario, name: str, sizes: int, ranks: int | None = None) -> Bench:
        """The setup for one collective, or all, and a number of sizes.

        Args:
            scenario: its cluster, and the options of its `gradients`.
            name: a collective, `auto` or `all`.
            sizes: the number of buffer sizes.
            ranks: the size of the group; default: all of the scenario.

        Raises:
            UsageError: the group is too small, larger than the cluster, or more than can be simulated.
        """
        ranks, gpus = scenario.parallel.ranks if ranks is None else ranks, scenario.cluster.gpus
        if ranks < 2:
            raise UsageError(f"--ranks {ranks}: a collective needs at least 2")
        if ranks > gpus:
            raise UsageError(f"--ranks {ranks}: the cluster of {one_line(scenario.name)} has {gpus} GPUs")
        tried, options = collectives.AUTO if name == ALL else name, scenario.gradients.options
        call = collectives.CallSize(ranks, most_channels(scenario))
        messages = sizes * collectives.most_messages(tried, call, options)
        pairs = collectives.most_pairs(tried, call, options)
        for count, most, what in ((pairs, MOST_PAIRS, PAIRS), (messages, MOST_MESSAGES, f"messages for {sizes} sizes")):
            if count > most:
                many = f"{count:.3g} {what} are more than can be simulated (at most {most:.3g})"
                raise UsageError(f"--ranks {ranks}: {many}")
        layout, folded = Layout({"data": ranks}, ("data",)), scenario.fold != "off"
        tuned = tried != collectives.AUTO and collectives.find(tried).facts["tuned"]
        fabric = wired(scenario.cluster, scenario.shares_of_links(library=bool(tuned)), scenario.slow)
        return cls(scenario, CollectiveTimes(fabric, layout, scenario.cluster.alone, folded=folded), ranks)

    def row(self, name: str, size: int) -> BenchRow:
        """Measure one collective, or the fastest all-reduce for `auto`, with a buffer of so many bytes."""
        gradients = self.scenario.gradients
        codec = codecs.find(gradients.codec).build()
        elements = max(1, int(size / codec.bytes_per_element))
        asked = Concurrent([range(self.ranks)], [elements], codec, gradients.options)
        ran, outcome = self.times.fastest(asked) if name == collectives.AUTO else (name, self.times.of(name, asked))
        rate = size * 1000 / outcome.duration if outcome.duration else 0.0
        facts = collectives.find(ran).facts
        factor = collectives.bus_factor(facts["does"], self.ranks)
        group = self.times.process_group(ran, range(self.ranks), gradients.options)
        channels, taken = max(1, len(group.channels)), None
        if facts["takes"]:
            *taken, channels = facts["takes"](group.tuned, Buffer(elements, codec))
        taken = None if taken is None else (taken[0], taken[1])
        return BenchRow(size, elements, outcome.duration, rate, rate * float(factor), ran, channels, taken)

    def limit(self) -> float | None:
        """Bandwidth of the slowest link between neighbours of the group, in GB/s; None if all are infinite."""
        fabric = self.times.fabric
        routes = (fabric.route(rank, (rank + 1) % self.ranks) for rank in range(self.ranks))
        known = [fabric.links[link].bandwidth for route in routes for link in route.links]
        return min((float(one) / 1e9 for one in known if one is not None), default=None)


def behind_a_switch(ranks: int, per_node: int = 1, port: Mapping[str, str] = PORT, spare: int = 0) -> dict[str, Any]:
    """A scenario of one replica per rank, in nodes with one port per GPU on a non-blocking network.

    Args:
        ranks: the number of ranks.
        per_node: of these per node.
        port: `bandwidth` and `latency` of every port.
        spare: places for servers beside the ranks.
    """
    share = max(1, per_node)  # less is reported with the rest of the scenario
    return {
        "name": f"{ranks} ranks, {per_node} per node, {port['bandwidth']}, {port['latency']}",
        "cluster": {
            "nodes": max(1, -(-ranks // share) + -(-spare // share)),
            "gpus_per_node": per_node,
            "nvlink": {**port, "in_switch": per_node > 1},
            "infiniband": {**port, "nics_per_node": per_node},
        },
        "parallel": {"data": ranks},
        "schedule": {"kind": "gpipe", "microbatches": 1},
        "workload": {"forward": 0, "backward": 0},
        "gradients": {},
    }


def collective(
    name: str,
    scenario: Source | None = None,
    overrides: Overrides = (),
    *,
    sizes: Sequence[int | str] = SIZES,
    ranks: int | None = None,
) -> pd.DataFrame:
    """Simulate a collective alone on idle links, for several sizes of the buffer.

    Args:
        name: a collective, such as `ring`; `auto` for the fastest all-reduce of each size; `all` for every all-reduce
            that the group and the wiring allow.
        scenario: the cluster on whose first ranks it runs: a scenario, the path of its file, or a mapping; its
            `gradients` do not count. Default: ranks on a non-blocking network, each with a port of 25 GB/s and 1 µs.
        overrides: changes to it, such as ["cluster.infiniband.bandwidth=50 GB/s"] or {"gradients.codec": "fp16"}.
        sizes: of the buffer, in bytes or as "1 MiB".
        ranks: the size of the group; default: all of the scenario, or 8.

    Returns:
        One row per collective and size: `bytes`, `time_us`, `algorithm_bandwidth_gb_per_s`, `bus_bandwidth_gb_per_s`
        (nccl-tests, doc/PERFORMANCE.md), `algorithm`.

    Raises:
        ScenarioError: the scenario or an override is wrong.
        Refusal: the collective does not support the group or the wiring.
        UsageError: a size is wrong, or the group cannot be simulated.

    Example:
        >>> from hybrid_des import collective
        >>> table = collective("ring", ranks=8, sizes=["1 MiB", "1 GiB"])
        >>> table[["bytes", "time_us"]].round(1)
                bytes  time_us
        0     1048576     87.4
        1  1073741824  75175.9
        >>> collective("auto", "scenarios/h100_2x8.yaml", sizes=["64 KiB"]).algorithm[0]
        'recursive-doubling'
    """
    import pandas as pd

    if name not in (collectives.AUTO, ALL):
        collectives.find(name)
    many, ranks = [_bytes(size) for size in plain(sizes)], plain(ranks)
    document = document_of(behind_a_switch(8 if ranks is None else ranks) if scenario is None else scenario)
    algorithm = collectives.AUTO if name == ALL else name
    document.value["gradients"] = {"algorithm": algorithm} if algorithm in collectives.algorithms() else {}
    bench = Bench.of(scenario_of(document_of(document.value, overrides)), name, len(many), ranks)
    rows: list[BenchRow] = []
    for kind in collectives.all_reduces(bench.scenario.gradients.options) if name == ALL else [name]:
        try:
            rows += [bench.row(kind, size) for size in many]
        except Refusal:
            if name != ALL:
                raise
    return pd.DataFrame([row.columns() for row in rows])


def _bytes(size: int | str) -> int:
    try:
        count = int(parse_quantity(size, "size"))
    except ValueError as error:
        raise UsageError(f"sizes: {error}") from None
    if not 1 <= count <= MOST_BYTES:
        raise UsageError(f"sizes: {size}: expected from one byte to {MOST_BYTES:.0e}")
    return count
