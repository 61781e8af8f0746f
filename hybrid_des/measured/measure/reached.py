"""What a GPU reached in measured operators and collectives: peaks where none is known, and shares of them.

Shares are those for which the law of the simulator takes as long as all measured operators together. A GPU outside the
catalogue has the best product, at the law's share for its shape, and the best pass over memory as its peaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from hybrid_des.cluster.gpus import part
from hybrid_des.cluster.operator_table import ATTENTION, GEMM, OPTIMIZER, RESIDUAL
from hybrid_des.cost_model.costing import OVERHEAD_OF_MEMBERS
from hybrid_des.cost_model.operation_times import shape
from hybrid_des.measured.calibration.fit import line_through
from hybrid_des.measured.measure.collectives import PER_SECOND
from hybrid_des.measured.measure.collectives import TABLE as COLLECTIVES
from hybrid_des.measured.measure.folder import Rows
from hybrid_des.measured.measure.machine import Facts, per_second, seconds, shifts_of
from hybrid_des.measured.measure.operators import BLOCK
from hybrid_des.measured.measure.overlap import slowed

SMALLEST = 3  # sizes of collectives that tell what starting one costs
NOT_PASSES = (GEMM, ATTENTION, OPTIMIZER, RESIDUAL, BLOCK, "launch", "copy to host", "copy from host")
MOST_SLOWED = 0.95


class Rates(NamedTuple):
    """Operations or bytes per second: of all operators together, and of the best one."""

    whole: float
    best: float

    @classmethod
    def of(cls, work: Iterable[tuple[float, float]]) -> Rates | None:
        """From amounts and their seconds; None if there are none."""
        each = list(work)
        if not each:
            return None
        return cls(
            sum(amount for amount, _ in each) / sum(took for _, took in each),
            max(amount / took for amount, took in each),
        )


def reached_in(facts: Facts, operators: Rows, overlaps: Rows, collectives: Rows, table: str) -> dict[str, Any]:
    """Peaks of a GPU that the catalogue lacks, and the section `efficiency`; empty without products and passes."""
    products = Rates.of(_products(facts, operators))
    attention = Rates.of(_attention(operators))
    bound_by_memory = [row for row in operators if row["operator"] not in NOT_PASSES]
    passes = Rates.of((float(row["bytes"]), float(row["seconds"])) for row in bound_by_memory)
    if products is None or passes is None:
        return {}
    peaks: dict[str, Any] = {}
    if facts.catalogue is None:
        peak, bandwidth = max(products.best, attention.best if attention else 0.0), passes.best
        peaks = {"peak": per_second(peak, "FLOP"), "bandwidth": per_second(bandwidth, "B")}
    else:
        known = part(facts.catalogue)
        peak, bandwidth = float(known.peak), float(known.bandwidth)
    efficiency: dict[str, Any] = {
        "gemm": _share(products.whole, peak),
        "attention": _share(attention.whole if attention else products.whole, peak),
        "attention_half": 0,
        "attention_head": 0,
        "memory": _share(passes.whole, bandwidth),
        "network": 1,  # links have measured bandwidths
        "table": table,
    }
    for work, key in (("product", "slowed"), ("memory", "slowed_memory")):
        if (lost := slowed(overlaps, work)) is not None:
            efficiency[key] = round(min(MOST_SLOWED, lost), 4)
    if launches := [float(row["seconds"]) for row in operators if row["operator"] == "launch"]:
        efficiency["launch"] = seconds(launches[0])
    if collectives:
        efficiency |= {"collective_overhead": seconds(start_of(collectives)), "collectives": COLLECTIVES}
    return {**peaks, "efficiency": efficiency}


def _share(rate: float, peak: float) -> float:
    return round(min(1.0, rate / peak), 4)


def _products(facts: Facts, operators: Rows) -> Iterable[tuple[float, float]]:
    """Operations, over the law's share for the shape, and seconds of each product."""
    for row in operators:
        if row["operator"] == GEMM:
            m, n, k = (int(row[side]) for side in ("m", "n", "k"))
            yield 2 * m * n * k / shape(m, n, k, 1, facts.multiprocessors), float(row["seconds"])


def _attention(operators: Rows) -> Iterable[tuple[float, float]]:
    """Operations of the forward, half of them skipped if causal, and seconds of each attention."""
    for row in operators:
        if row["operator"] == ATTENTION:
            length, heads, size = (int(row[key]) for key in ("length", "heads", "head_size"))
            yield 4 * length * length * heads * size / (2 if int(row["causal"]) else 1), float(row["seconds"])


def start_of(collectives: Rows) -> float:
    """Seconds that starting a collective of two members takes, besides the messages of a ring on the measured links."""
    shifts = shifts_of(collectives, inside=True)
    if len(shifts) < 2:
        return 0.0
    latency, bandwidth = line_through(shifts)
    reduced = [row for row in collectives if row["collective"] == "all-reduce" and int(row["nodes"]) == 1]
    sizes = sorted({int(row["bytes"]) for row in reduced})[:SMALLEST]
    starts = []
    for row in reduced:
        members, size = int(row["ranks"]), int(row["bytes"])
        if size in sizes:
            ring = 2 * (members - 1) * (latency + size / members / bandwidth)
            left = float(row["time_us"]) / PER_SECOND - ring
            starts.append(left / (1 + OVERHEAD_OF_MEMBERS * (members - 1)))
    return max(0.0, median(starts)) if starts else 0.0
