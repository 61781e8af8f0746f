"""Parser of nccl-tests output."""

import re
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.network.times import MICROSECOND, TimeTable, read_text


class Measurement(NamedTuple):
    """One measured size: bytes and picoseconds."""

    size: int
    time: int


# the time and the columns after it, counted from the right: 9 numbers with the root column, 8 before version 2.0.11
_NUMBER = r"(?:-?\d+(?:\.\d+)?(?:e[+-]\d+)?|N/A)"
_ROW = re.compile(rf"(?:^|\s)(\d{{1,15}})\s+\d+\s+[a-z]\w*(?:\s+[a-z]\w*)?((?:\s+{_NUMBER})+)\s*$")
_TIME = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,9})\s")
_TEST = re.compile(r"\b(\w+)_perf\b")


class NcclTests(NamedTuple):
    """Printed results of one run of nccl-tests.

    Attributes:
        test: name such as all_reduce, if the text contains it.
        ranks: number of ranks, if the text lists them.
        times: mean out-of-place time of each size, in ascending order of size.
    """

    test: str | None
    ranks: int | None
    times: list[Measurement]


def read_nccl_tests(path: str | Path) -> NcclTests:
    """Read pasted output of an nccl-tests program; other lines are skipped.

    Raises:
        UsageError: the file contains no nccl-tests results.
    """
    text = read_text(path)
    found: dict[int, list[Fraction]] = {}
    for line in text.splitlines():
        row = _ROW.search(line)
        numbers = row[2].split() if row else []
        if row is None or len(numbers) not in (8, 9) or not _TIME.fullmatch(numbers[-8]):
            continue
        size, time = int(row[1]), Fraction(numbers[-8])
        if size > 0 and time > 0:
            found.setdefault(size, []).append(time)
    if not found:
        raise UsageError(f"{path}: no nccl-tests results; expected output such as that of all_reduce_perf")
    times = [Measurement(size, round(sum(of) / len(of) * MICROSECOND)) for size, of in sorted(found.items())]
    ranks = {int(rank) for rank in _RANK.findall(text)}
    test = _TEST.search(text)
    return NcclTests(test[1] if test else None, len(ranks) or None, times)


def link_table(measured: NcclTests) -> TimeTable:
    """The times of single ring messages for which a simulated ring takes the measured times.

    Raises:
        UsageError: the number of ring steps of the test is unknown.
    """
    ranks = measured.ranks or 0
    steps, parts = {
        "all_reduce": (2 * (ranks - 1), ranks),
        "reduce_scatter": (ranks - 1, ranks),
        "all_gather": (ranks - 1, ranks),
        "sendrecv": (1, 1),
    }.get(measured.test or "", (0, 0))
    if steps < 1:
        raise UsageError(
            f"--link needs a run of all_reduce, reduce_scatter, all_gather or sendrecv with its list of ranks, "
            f"not {measured.test or 'an unnamed test'} on {measured.ranks or 'unknown'} ranks"
        )
    by_size = {round(Fraction(size, parts)): round(Fraction(time, steps)) for size, time in measured.times}
    return TimeTable(tuple(sorted(by_size.items())))
