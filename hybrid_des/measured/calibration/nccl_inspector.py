"""Times of collectives from the JSON lines of NCCL Inspector, a profiler plug-in that logs every collective of a job.

    {"header": {"id": "0x7f8c", "rank": 2, "n_ranks": 8, "nnodes": 1}, "metadata": {"hostname": "node1", …},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
     "coll_algobw_gbs": 277.21, "coll_busbw_gbs": 485.12}}

There is a file per process. A kernel runs from when its own rank begins, so that it holds the wait for those that
begin later: of the ranks of one collective, the shortest time is that of the transfer. The message is that of a member,
which for an all-gather or reduce-scatter is one of n shards; which it is, the algorithm bandwidth tells.
Source: ext-profiler/inspector of NVIDIA/nccl (README.md, inspector.cc), plugins/profiler/inspector of ROCm/rccl.
"""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

from hybrid_des.cluster.time_table import MICROSECOND
from hybrid_des.measured.calibration.nccl_json import documents
from hybrid_des.measured.calibration.nccl_log import collective_of
from hybrid_des.measured.calibration.nccl_tests import Measurement, NcclTests
from hybrid_des.units import collected

MOST_BYTES = 10**15


class _Group(NamedTuple):
    """Collectives of one kind over groups of one shape."""

    test: str
    ranks: int
    nodes: int


Call = tuple[str, int, int]  # communicator, number in it, bytes
Calls = dict[Call, dict[int, int]]  # microseconds by rank


def read_inspector(text: str, name: str) -> list[NcclTests]:
    """The times of each collective and shape of group in the lines of one or several processes; empty if none is one.

    Those of most calls come first.
    """
    groups: dict[_Group, Calls] = {}
    sends = 0
    for _, record in documents(text):
        if isinstance(record, dict) and isinstance(record.get("header"), dict):
            sends += "p2p_perf" in record
            for group, call, rank, time in _timed(record):
                groups.setdefault(group, {}).setdefault(call, {})[rank] = time
    notes = (f"{sends} sends and receives are not read",) if sends else ()
    ordered = sorted(groups.items(), key=lambda entry: -len(entry[1]))
    return [_tests(group, calls, name, notes) for group, calls in ordered]


def _timed(record: Mapping[str, Any]) -> Iterator[tuple[_Group, Call, int, int]]:
    """The group, call, rank and microseconds of a record, if it is a sound one of a collective that took time."""
    head, perf = record["header"], record.get("coll_perf")
    if not isinstance(perf, dict):
        return
    size, time, rate = (perf.get(f"coll_{key}") for key in ("msg_size_bytes", "exec_time_us", "algobw_gbs"))
    counts = head.get("rank"), head.get("n_ranks"), head.get("nnodes"), perf.get("coll_sn"), size, time
    if not all(isinstance(one, int) and 0 <= one <= MOST_BYTES for one in counts) or not isinstance(rate, int | float):
        return
    rank, ranks, nodes, number = head["rank"], head["n_ranks"], head["nnodes"], perf["coll_sn"]
    if size and time and ranks > 1 and 0 < nodes <= ranks and (test := collective_of(str(perf.get("coll", "")))):
        moved = rate * time * 1000  # GB/s times microseconds
        whole = min((size, size * ranks), key=lambda bytes_: abs(bytes_ - moved))
        yield _Group(test, ranks, nodes), (str(head.get("id")), number, whole), rank, time


def _tests(group: _Group, calls: Calls, name: str, notes: tuple[str, ...]) -> NcclTests:
    """The median over calls of a size, of the shortest time of a rank."""
    by_size = collected((size, min(of_rank.values())) for (_, _, size), of_rank in calls.items())
    times = [Measurement(size, round(median(by_size[size]) * MICROSECOND)) for size in sorted(by_size)]
    seen = min(map(len, calls.values()))
    said = f"medians of {len(calls)} calls" if len(calls) > 1 else "one call"
    if seen < group.ranks:
        said += f"; not all are logged by all ranks (as few as {seen} of {group.ranks}): those hold the wait for others"
    return NcclTests(group.test, group.ranks, times, name, (said, *notes), group.nodes)
