"""Ratios of times that must not be exceeded, each with its limit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise

from benchmarks import textbook
from benchmarks.cases import Case, mixed, pipeline, ring
from benchmarks.measure import command_seconds, measure, seconds
from support.live_pages import served, talk
from support.paths import SCENARIOS
from support.plans import plan_of

from hybrid_des import explain, load
from hybrid_des import search as search_plans
from hybrid_des.cluster import topologies
from hybrid_des.cluster.fabric import ClusterSpec, NodeSpec, PortSpec
from hybrid_des.cluster.link_figures import LinkFigures
from hybrid_des.result import simulate

PAGES = (
    ("a100_8x", "a100_8x.yaml", {}, 150),
    ("h100_2x8 on 64 GPUs", "h100_2x8.yaml", {"cluster.nodes": "8", "parallel.data": "8"}, 400),
)


@dataclass(frozen=True)
class Limit:
    """A figure, how it is measured once, and the most that the median of several measurements may be."""

    name: str
    once: Callable[[], float]
    limit: float

    def line(self, repeats: int = 3) -> tuple[str, bool]:
        """A row of the table, and whether the figure keeps its limit."""
        found = statistics.median(self.once() for _ in range(repeats))
        verdict = "ok" if found <= self.limit else "over"
        return f"| {self.name} | {found:.2f} | {self.limit:g} | {verdict} |", found <= self.limit


def limits() -> Iterator[Limit]:
    """All limits."""
    rings = (ring(256, "ring"), 1.8), (ring(256), 2.4), (ring(1024, "ring"), 1.6), (ring(1024), 2.4)
    for case, limit in (*rings, (pipeline(1024), 4.6), (mixed(32), 6.5), (mixed(32, "fair"), 8)):
        yield Limit(f"{case.name}: time / bare loop", lambda case=case: measure(case, 1).ratio, limit)
    for topology in ("ring", "nodes"):
        small, large = ring(64, topology), ring(512, topology)
        yield Limit(f"the same, {large.name} / {small.name}", lambda a=small, b=large: growth_of_ratio(a, b), 1.4)
    yield Limit("ring over 256 GPUs: time / a process per message, `Resource` and `Store`", share_of_textbook, 0.2)
    yield Limit("1F1B, p=64: time of m=1024 / m=128", growth_of_pipeline, 10)
    yield Limit("plan of 1F1B, p=32: time of m=512 / m=128", growth_of_plan, 10)
    yield Limit("search of zb-auto, p=16, m=128: seconds", search, 10)
    for name in topologies.names():
        if name not in ("links", "mesh"):
            yield Limit(f"fabric of 2048 GPUs, {name}: seconds", lambda name=name: wiring(name), 1)
    for name, file, changes, limit in PAGES:
        yield Limit(f"page of {name}: median answer to 30 bandwidths, ms", partial(answers, file, changes), limit)
    for name, limit in (("llama3.1-70b_128", 12), ("mixtral-8x7b_64", 40), ("experts/qwen3_power_law", 20)):
        yield Limit(f"`explain` of {name}: time / `simulate`", partial(explained, name), limit)
    yield Limit("`search` of 13b_64: time / `simulate` of its best plan", searched, 100)
    yield Limit("`python -m hybrid_des --help` / `python -c 'import simpy, yaml'`", start_up, 1)
    yield Limit("prototype_4gpu `--quiet` / `python -c 'import numpy, pydantic, simpy, yaml'`", shortest_run, 3)


def growth_of_ratio(small: Case, large: Case) -> float:
    """How much more a message of the larger case costs."""
    return measure(large, 1).ratio / measure(small, 5).ratio


def share_of_textbook(ranks: int = 256) -> float:
    """The ring beside its textbook form, over the same routes."""
    scenario = ring(ranks).scenario
    return seconds(lambda: simulate(scenario)) / seconds(lambda: textbook.ring(scenario))


def growth_of_pipeline() -> float:
    """Eight times the micro-batches."""
    short, long = (seconds(lambda m=m: simulate(pipeline(m).scenario)) for m in (128, 1024))
    return long / short


def growth_of_plan() -> float:
    """Making and checking a plan of four times the micro-batches."""
    short, long = (seconds(lambda m=m: plan_of("1f1b", 32, m)) for m in (128, 512))
    return long / short


def search() -> float:
    """The largest search of the published table."""
    return seconds(lambda: plan_of("zb-auto", 16, 128, 1, (11, 11, 8), max_activations=Fraction(32)))


def wiring(name: str) -> float:
    """Build a fabric of 2048 GPUs and ask for 2048 routes."""
    port = PortSpec(Fraction(25 * 10**9), 10**6)
    cluster = ClusterSpec((NodeSpec(8, port, port, 8),) * 256)
    entry = topologies.find(name)
    options = entry.arguments({"pcie": LinkFigures(bandwidth=20 * 10**9, latency="2 us")} if name == "pcie" else {})

    def work() -> None:
        fabric = entry.build(cluster, *options)
        for gpu in range(2048):
            fabric.route(gpu, (gpu + 9) % 2048)

    return seconds(work)


def answers(file: str, changes: dict[str, str]) -> float:
    """Milliseconds from a change of InfiniBand's bandwidth, 10 to 400 GB/s, to all that the page draws."""
    bandwidths = [f"{10 * 40 ** (place / 29):.4g} GB/s" for place in range(30)]
    requests = [{"file": file, "changes": {**changes, "cluster.infiniband.bandwidth": one}} for one in bandwidths]
    ends: list[float] = []
    with served(SCENARIOS / file) as address:  # the first answer is not counted: it loads modules
        talk(address, requests[0], *requests, clock=lambda answer: ends.append(time.perf_counter()))
    return 1000 * statistics.median(after - before for before, after in pairwise(ends))


def explained(name: str) -> float:
    """An explanation beside the simulation that it explains."""
    scenario = load(SCENARIOS / f"{name}.yaml")
    return seconds(lambda: explain(scenario)) / seconds(lambda: simulate(scenario))


def searched() -> float:
    """A search with its proof beside one simulation of what it finds."""
    results = []
    took = seconds(lambda: results.append(search_plans(SCENARIOS / "search" / "13b_64.yaml")))
    (result,) = results
    assert result.best is not None
    return took / seconds(lambda: simulate(result.scenario(result.best)))


def shortest_run() -> float:
    """The smallest scenario beside the imports that no program can avoid."""
    run = command_seconds("-m", "hybrid_des", str(SCENARIOS / "prototype_4gpu.yaml"), "--quiet")
    return run / command_seconds("-c", "import numpy, pydantic, simpy, yaml")


def start_up() -> float:
    """`--help` beside the imports that no program can avoid."""
    return command_seconds("-m", "hybrid_des", "--help") / command_seconds("-c", "import simpy, yaml")
