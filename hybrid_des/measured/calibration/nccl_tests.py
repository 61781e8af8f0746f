"""Measured times of one collective from nccl-tests output, checked against the rest of the output.

Bandwidths check times and ranks: algbw is size / time, and busbw / algbw is 2(n−1)/n for an all-reduce and (n−1)/n for
an all-gather or reduce-scatter on n ranks (doc/PERFORMANCE.md of NVIDIA/nccl-tests).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from hybrid_des.cluster.time_table import MESSAGE, MICROSECOND, OF_NODE, TimeTable
from hybrid_des.errors import UsageError
from hybrid_des.measured.calibration.nccl_log import NcclLog, Row
from hybrid_des.units import collected

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "sendrecv")  # those with a ring, for `link_table`
NAMES = (*COLLECTIVES, "alltoall")  # those that are simulated


_SLACK = Fraction(1, 100)  # of size / algbw, beyond rounding


class Measurement(NamedTuple):
    """One measured size: bytes and picoseconds."""

    size: int
    time: int


class NcclTests(NamedTuple):
    """Printed results of one run of nccl-tests.

    Attributes:
        test: name such as all_reduce.
        ranks: number of ranks, if known.
        times: mean time of each size, in ascending order of size.
        source: file, and line if there is one, that names the test.
        notes: what was assumed, one line each.
        nodes: number of hosts of the ranks, if all ranks are listed with theirs.
        device: the name of the GPUs, if they are listed and all the same.
        release: of NCCL, if the log says it.
        forced: what NCCL_ALGO and NCCL_PROTO were set to, if the log says it, by ALGO and PROTO.
        extent: the first and last size that was measured, if `times` has others too.
    """

    test: str
    ranks: int | None
    times: list[Measurement]
    source: str = "nccl-tests"
    notes: tuple[str, ...] = ()
    nodes: int | None = None
    device: str | None = None
    release: str | None = None
    forced: Mapping[str, str] = MappingProxyType({})
    extent: tuple[int, int] | None = None

    @property
    def one_adapter(self) -> bool:
        """Whether one link carried the messages of a ring: within a node, or between nodes of one rank."""
        return self.nodes in (1, self.ranks)

    @property
    def where(self) -> str:
        """The ranks and nodes, if known, before other words."""
        nodes = f" on {self.nodes} node{'s' * (self.nodes > 1)}" if self.nodes else ""
        return f"{self.ranks} ranks{nodes}; " if self.ranks else ""


def tests_of(log: NcclLog, collective: str | None = None) -> NcclTests:
    """The results of the log of one run; `collective` names its collective if the log does not.

    Raises:
        UsageError: there are no results, or results that contradict each other.
    """
    if not log.rows:
        raise UsageError(f"{log.name}: no nccl-tests results; expected output such as that of all_reduce_perf")
    _check_order(log)
    notes = _notes(log)
    test = _test(log, collective, notes)
    unit = _unit(log, notes)
    ranks = _ranks(log, test, notes)
    times_of = collected((row.size, row.time.value) for row in log.rows)
    times = [Measurement(size, round(sum(of) / len(of) * unit)) for size, of in sorted(times_of.items())]
    source = f"{log.name}:{log.tests[test]}" if test in log.tests else log.name
    device = next(iter(log.devices)) if len(log.devices) == 1 else None
    return NcclTests(
        test, ranks, times, source, tuple(notes), _nodes(log, ranks), device or None, log.release, log.forced
    )


def all_reduce_table(measured: NcclTests) -> TimeTable:
    """The measured times of whole all-reduces.

    Raises:
        UsageError: another collective was measured.
    """
    if measured.test != "all_reduce":
        link = "; --link makes a link's table" if measured.test in COLLECTIVES else ""
        raise UsageError(f"{measured.source}: times of {measured.test}, expected all_reduce{link}")
    entries = tuple((one.size, one.time) for one in measured.times)
    return TimeTable(entries, measured.ranks, "all_reduce", nodes=measured.nodes, measured=measured.extent)


def link_table(measured: NcclTests, adapters: int | None = None) -> TimeTable:
    """The times of single ring messages for which a simulated ring takes the measured times.

    Between nodes, NCCL runs a ring over each adapter of a node, so that all of them carry the message of one ring.

    Args:
        measured: the results.
        adapters: of a node, over which messages went; default: one, if `one_adapter`, or else as many as the
            scenario that takes the table has per node.

    Raises:
        UsageError: the number of ring steps of the test is unknown.
    """
    ranks = measured.ranks or 0
    steps, parts = {
        "all_reduce": (2 * (ranks - 1), ranks),
        "reduce_scatter": (ranks - 1, ranks),
        "all_gather": (ranks - 1, ranks),
        "sendrecv": (1, 1),
    }.get(measured.test, (0, 0))
    if steps < 1:
        raise UsageError(
            f"{measured.source}: --link needs a run of {', '.join(COLLECTIVES[:-1])} or {COLLECTIVES[-1]} "
            f"on at least 2 ranks, not {measured.test} on {measured.ranks or 'unknown'} ranks"
        )
    large = [one for one in measured.times if one.size >= parts]  # a message has at least one byte
    if not large:
        raise UsageError(f"{measured.source}: --link needs sizes of at least {parts} bytes, one for each rank")
    by_size = {round(Fraction(size, parts)): round(Fraction(time, steps)) for size, time in large}
    extent = measured.extent and (max(1, measured.extent[0] // parts), measured.extent[1] // parts)
    table = TimeTable(tuple(sorted(by_size.items())), operation=MESSAGE, measured=extent)
    if adapters is not None:
        return table.divided(adapters)
    return table if measured.one_adapter else replace(table, adapters=OF_NODE)


def _check_order(log: NcclLog) -> None:
    """Refuse the rows of a second run: another kind, or sizes that start again."""
    for before, row in pairwise(log.rows):
        if row.kind != before.kind:
            log.refuse(row.line, f"{row.kind} after {before.kind}; expected the rows of one type, operation and root")
        if row.size < before.size and row.cycle == before.cycle:
            log.refuse(row.line, f"{row.size} B after {before.size} B; expected the ascending sizes of one run")


def _notes(log: NcclLog) -> list[str]:
    """Say how the columns were read and which rows were left out or averaged."""
    notes = []
    names = log.columns[0] if log.columns else []
    if log.guessed:
        notes.append(f"no line of column names; columns read as {' '.join(names)}")
    if names.count("time") == 1 and log.places != ["out-of-place"]:
        where = "in-place" if log.places == ["in-place"] else "in-place or out-of-place (not named)"
        notes.append(f"one group of columns; times are {where}")
    if log.empty:
        notes.append(f"{log.empty} rows of 0 bytes left out")
    by_size = sorted(log.rows, key=lambda row: (row.size, row.line))
    if again := [row for before, row in pairwise(by_size) if row.size == before.size]:
        such = f"{again[0].size} B in line {again[0].line}"
        notes.append(f"{len(again)} rows repeat a size, such as {such}; the mean time is taken")
    if coarse := [row for row in log.rows if "e" in row.time.text]:
        few = f"{coarse[0].time.text} in line {coarse[0].line}"
        notes.append(f"{len(coarse)} times are printed with two digits, such as {few}; taken as printed")
    return notes


def _test(log: NcclLog, collective: str | None, notes: list[str]) -> str:
    """The collective that the log names, or else the given one, or an all-reduce, whose busbw alone exceeds algbw."""
    named = " and ".join(f"{test} in line {line}" for test, line in log.tests.items())
    if collective and log.tests and collective not in log.tests:
        raise UsageError(f"{log.name}: names {named}, expected {collective} (--collective)")
    if not collective and not log.tests and any(row.busbw.low > row.algbw.high for row in log.rows):
        notes.append("the collective is not named; all_reduce, since busbw exceeds algbw")
        return "all_reduce"
    if not collective and len(log.tests) != 1:
        says = f"names {named}" if named else "does not name its collective"
        choices = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
        raise UsageError(f"{log.name}: {says}; say which it is: --collective {choices}")
    return collective or next(iter(log.tests))


def _unit(log: NcclLog, notes: list[str]) -> int:
    """Picoseconds per unit of time, inferred from size / algbw; milliseconds before NCCL 2.5."""
    microseconds = [row for row in log.rows if not _fits(row, 1)]
    milliseconds = [row for row in log.rows if not _fits(row, 1000)]
    if microseconds and not milliseconds:
        notes.append("times are milliseconds, as size / algbw says (nccl-tests before NCCL 2.5)")
        return 1000 * MICROSECOND
    if microseconds:
        row = min(microseconds, milliseconds, key=len)[0]
        about = float(row.size / (row.algbw.value or row.algbw.high) / 1000)
        wrong = f"column time holds {row.time.text} for {row.size} B at {row.algbw.text} GB/s (algbw)"
        log.refuse(row.line, f"{wrong}, expected about {about:.4g} us")
    if not milliseconds:
        notes.append("bandwidths are too small to tell the unit of time; taken as microseconds")
    return MICROSECOND


def _fits(row: Row, microseconds: int) -> bool:
    """Whether time times algbw is the size; n−1 of n parts of it in a gather or scatter before NCCL 2.5."""
    least = row.size / Fraction(2) if row.algbw.value == row.busbw.value else Fraction(row.size)
    scale = 1000 * microseconds  # a microsecond at 1 GB/s is 1000 bytes
    low, high = row.time.low * row.algbw.low * scale, row.time.high * row.algbw.high * scale
    return low <= row.size * (1 + _SLACK) and high >= least * (1 - _SLACK)


def _ranks(log: NcclLog, test: str, notes: list[str]) -> int | None:
    """The length of a complete list of ranks that agrees with the bandwidths, or else the only number that agrees."""
    low, high = _ranks_by_bandwidth(log, test)
    listed = len(log.ranks)
    group = list(log.ranks.values()).count(log.ranks[0]) if 0 in log.ranks else 0
    whole = set(log.ranks) == set(range(listed)) and listed % log.per_process == 0 and not log.elided
    if group > high:
        log.refuse(log.lines["rank 0"], f"{group} ranks are listed, but busbw / algbw is that of {test} on {high}")
    if group and whole and low <= group:
        return group
    what = f"the list of ranks is incomplete ({listed} listed)" if listed else "no list of ranks"
    if low == high:
        notes.append(f"{what}; {low} ranks, as busbw / algbw says")
        return int(low)
    notes.append(f"{what}; the number of ranks is unknown")
    return None


def _nodes(log: NcclLog, ranks: int | None) -> int | None:
    """The number of hosts of the ranks, if the list is that of all ranks and their names tell them apart."""
    first = [rank for rank, group in log.ranks.items() if group == log.ranks.get(0)]
    if len(first) != ranks or not {*first} <= {*log.hosts}:
        return None
    if len({log.hosts[rank] for rank in first}) < len(first):  # a device twice: hosts of one name, such as localhost
        return None
    return len({log.hosts[rank][0] for rank in first})


def _ranks_by_bandwidth(log: NcclLog, test: str) -> tuple[float, float]:
    """The least and the largest number of ranks that explains busbw / algbw in every row."""
    least, most = 1.0, math.inf
    factor = {
        "all_reduce": 2,
        **dict.fromkeys(("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"), 1),
    }.get(test)
    rows = [row for row in log.rows if row.algbw.low > 0]
    if factor is None or (factor == 1 and all(row.algbw.value == row.busbw.value for row in rows)):
        return least, most  # before NCCL 2.5 both bandwidths of a gather or scatter are the same
    for row in rows:
        low, high = row.busbw.low / row.algbw.high / factor, row.busbw.high / row.algbw.low / factor
        least = max(least, math.ceil(1 / (1 - low))) if low < 1 else math.inf
        most = min(most, math.floor(1 / (1 - high))) if high < 1 else most
        if least > most or low >= 1:
            ratio = f"{row.busbw.text} / {row.algbw.text}"
            log.refuse(row.line, f"busbw / algbw is {ratio}, expected that of {test} on one number of ranks")
    return least, most
