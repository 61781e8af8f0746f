"""A benchmark beside its prediction, size by size, with a verdict: is the network as fast as NCCL's laws say?

Sizes from 1 MiB up are judged: below, the time to start counts, which hosts differ in. A size is as predicted within
20 % of the bandwidth: medians of tables measured on one node are within 10 % of the prediction, and repeats of one
table differ by 20 to 25 % (docs/background/accuracy_details.md).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from hybrid_des.cluster.time_table import MICROSECOND
from hybrid_des.measured.calibration.fit import LARGE
from hybrid_des.measured.calibration.nccl_tests import NcclTests
from hybrid_des.measured.calibration.predicted import Given, Predicted
from hybrid_des.units import format_binary_bytes, format_share

WITHIN = 0.2
HEALTHY, SLOW, PARTLY, FAST, UNKNOWN = "healthy", "slow", "slow in part", "faster", "unknown"
LATE = "latency or another choice of NCCL's, as the links reach their bandwidth"


class Compared(NamedTuple):
    """One size: bytes, picoseconds and bus bandwidths in GB/s, as measured and as predicted."""

    size: int
    measured: int
    predicted: int
    measured_bus: float
    predicted_bus: float

    @property
    def share(self) -> float:
        """The measured bandwidth over the predicted one."""
        return self.predicted / self.measured

    @property
    def parts(self) -> str:
        """How the measured bandwidth parts from the predicted one: slower, faster, or not at all."""
        return "slower" if self.share < 1 - WITHIN else "faster" if self.share > 1 / (1 - WITHIN) else ""

    def as_data(self) -> dict[str, Any]:
        """The size as plain values."""
        return {
            "bytes": self.size,
            "measured_us": self.measured / MICROSECOND, "predicted_us": self.predicted / MICROSECOND,
            "measured_bus_bandwidth_gb_per_s": self.measured_bus,
            "predicted_bus_bandwidth_gb_per_s": self.predicted_bus, "share": self.share, "parts": self.parts,
        }  # fmt: skip


class Verdict(NamedTuple):
    """In one word of this module, and in one line."""

    word: str
    line: str


def compared(run: NcclTests, predicted: Predicted) -> Iterator[Compared]:
    """The measured sizes beside their prediction, each simulated when it is asked for."""
    for size, time in run.times:
        law = predicted.time(size)
        yield Compared(size, time, law, predicted.bus_bandwidth(size, time), predicted.bus_bandwidth(size, law))


def verdict_of(run: NcclTests, given: Given, predicted: Predicted, sizes: Sequence[Compared]) -> Verdict:
    """Whether the sizes from 1 MiB up are as predicted, where they are not, and which adapters would be as slow."""
    judged = [one for one in sizes if one.size >= LARGE]
    if not judged:
        return Verdict(UNKNOWN, "no verdict: no size from 1 MiB up was measured, and smaller ones say more of hosts")
    slow, fast = ([one for one in judged if one.parts == way] for way in ("slower", "faster"))
    last = judged[-1]
    at = format_binary_bytes(last.size)
    expected = f"{last.predicted_bus:.4g} are predicted ({format_share(last.share, 0)})"
    ends = f"{last.measured_bus:.4g} GB/s at {at} where {expected}"
    if last in slow:
        fewer = _as_with_fewer_adapters(run, given, predicted, last)
        return Verdict(SLOW, f"slow: {ends}; slower {_where(slow, judged)}{fewer}")
    if slow:
        worst = min(slow, key=lambda size: size.share)
        least = f"least {format_share(worst.share, 0)} at {format_binary_bytes(worst.size)}"
        return Verdict(PARTLY, f"healthy for large buffers: {ends}; slower {_where(slow, judged)}, {least}: {LATE}")
    if fast:
        question = "is this the machine that was measured?"
        return Verdict(FAST, f"faster than predicted {_where(fast, judged)}: {ends}; {question}")
    shares = [one.share for one in judged]
    reach = (
        f", {format_share(min(shares), 0)} to {format_share(max(shares), 0)} from 1 MiB up" if len(shares) > 1 else ""
    )
    return Verdict(HEALTHY, f"healthy: {ends}{reach}")


def _where(some: Sequence[Compared], judged: Sequence[Compared]) -> str:
    """At how many of the judged sizes, and which: ranges of neighbours."""
    places = enumerate(map(judged.index, some))
    ranges = [[place for _, place in each] for _, each in groupby(places, lambda pair: pair[1] - pair[0])]
    ends = [[format_binary_bytes(judged[place].size) for place in {each[0]: 0, each[-1]: 0}] for each in ranges]
    return f"at {len(some)} of {len(judged)} sizes from 1 MiB up ({', '.join(map(' to '.join, ends))})"


def _as_with_fewer_adapters(run: NcclTests, given: Given, predicted: Predicted, last: Compared) -> str:
    """Which number of adapters per node would make the largest size as slow, after other words; nothing on one node."""
    if predicted.nodes == 1 or predicted.adapters == 1:
        return ""
    buses: dict[int, float] = {}
    count = predicted.adapters // 2
    while count:
        fewer = given._replace(overrides=(*given.overrides, f"cluster.infiniband.nics_per_node={count}"))
        buses[count] = predicted.bus_bandwidth(last.size, Predicted(run, fewer).time(last.size))
        count //= 2
    if last.measured_bus < buses[1] * (1 - WITHIN):
        return f"; less than a single NIC per node would give ({buses[1]:.4g})"
    count = min(buses, key=lambda each: abs(buses[each] - last.measured_bus))
    if not 1 - WITHIN <= last.measured_bus / buses[count] <= 1 / (1 - WITHIN):
        return ""
    return f"; about what {count} of {predicted.adapters} NICs per node would give ({buses[count]:.4g})"
