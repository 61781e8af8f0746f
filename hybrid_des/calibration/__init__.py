"""Measured times of one collective from nccl-tests output, checked against the rest of the output.

Bandwidths check times and ranks: algbw is size / time, and busbw / algbw is 2(n−1)/n for an all-reduce and (n−1)/n for
an all-gather or reduce-scatter on n ranks (doc/PERFORMANCE.md of NVIDIA/nccl-tests).
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, NoReturn

from hybrid_des.errors import UsageError
from hybrid_des.network.rate import MESSAGE, MICROSECOND, TimeTable, shown
from hybrid_des.reading import read_text

# Rows of nccl-tests and rccl-tests output, each with its line number.
#
#     # Collective test starting: all_reduce_perf
#     # nThread 1 nGpus 8 minBytes 8388608 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#     #  Rank  0 Group  0 Pid   3713 on   node0001 device  0 [0x07] NVIDIA A100-SXM4-40GB
#     #                                                          out-of-place                     in-place
#     #       size       count    type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#          8388608     2097152   float     sum      -1    167.5   50.09   87.66      0    165.9   50.55   88.47      0
#
# The line of column names says what a row holds. Versions and options differ: older ones have no first line, no
# `redop` or `root`, `error` or `res` for `#wrong`, four columns per iteration (-I 1), a timestamp (-S 1), one group of
# columns (-O of rccl-tests), algorithms (-A). Without that line, the columns follow from their number. Launchers add
# prefixes to lines. Source: `src/common.cu` and `src/util.cu` of NVIDIA/nccl-tests and ROCm/rccl-tests.


_TYPE = r"u?int(?:8|32|64)?|char|half|b?float(?:16|32|64)?|double|f8e[45]m[23]|fp8_e[45]m[23]"
_ROW = re.compile(rf"(?:^|[\s:>|\])])(\d+)\s+(\d+)\s+({_TYPE})(\s.*)?$")
_NAMES = re.compile(r"\b(?:size|bytes)\s+(?:count|N)\s+type\b.*")
_RANK = re.compile(r"#\s+(?:Rank|Device)\s+(\d{1,9})\b(?:\s+Group\s+(\d{1,9}))?")
_SETTINGS = re.compile(r"#\s+nThreads?:?\s+(\d{1,6})\s+nGpus:?\s+(\d{1,6})\s")
_START = re.compile(r"Collective test starting:\s+(\w{1,40})")
_PROGRAM = re.compile(
    r"\b(all_reduce(?:_bias)?|all_gather|reduce_scatter|sendrecv|broadcast|reduce|gather|scatter|alltoallv?|hypercube)"
    r"_(?:perf|test)(?:_mpi)?\b"
)
_PLACE = re.compile(r"#\s+(out-of-place|in-place)\b")
_CYCLE = re.compile(r"#\s+Testing\s+\d+\s+cycle")
_COLORS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]"  # CSI, OSC, other escapes
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NUMBER = re.compile(r"\d{1,15}(?:\.(\d{1,9}))?(?:e([+-]\d{1,2}))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")

_GROUP = ["time", "algbw", "busbw", "#wrong"]
_PER_ITERATION = ["i_min", "i_max", "i_p99", "i_cv%"]
_STARTING = "collective starting"
_WRONG = {"#wrong", "error", "res"}


class Printed(NamedTuple):
    """A number as printed, and the interval that was rounded to it."""

    text: str
    value: Fraction
    low: Fraction
    high: Fraction


class Row(NamedTuple):
    """One printed size: bytes; time in the unit of the log; bandwidths in GB/s.

    `kind` is data type, operation and root; `cycle` counts repetitions of all sizes (-N, rccl-tests -s).
    """

    line: int
    size: int
    kind: str
    cycle: int
    time: Printed
    algbw: Printed
    busbw: Printed


@dataclass
class NcclLog:
    """Contents of the log of one run; `name` is the file, for error messages.

    Attributes:
        rows: printed sizes above 0 bytes.
        empty: number of rows of 0 bytes.
        tests: names such as all_reduce, with the line that first names them; only that of the first line of the output
            in versions that print it.
        lines: line numbers of what a run prints only once.
        ranks: group of each listed rank.
        elided: whether the list of ranks was shortened visibly.
        per_process: GPUs per process.
        columns: names of the columns, and the line that gave them.
        guessed: whether the names were inferred from the number of columns.
        places: out-of-place, in-place or both.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    empty: int = 0
    tests: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    ranks: dict[int, str] = field(default_factory=dict)
    elided: bool = False
    per_process: int = 1
    columns: tuple[list[str], int] | None = None
    guessed: bool = False
    places: list[str] = field(default_factory=list)
    _cycle: int = 0

    def refuse(self, line: int, problem: str) -> NoReturn:
        """Raise a one-line error that names a line."""
        raise UsageError(f"{self.name}:{line}: {problem}")

    def add(self, number: int, line: str) -> None:
        """Read one line; lines of other programs are skipped."""
        if match := _ROW.search(line):
            self._row(number, [match[1], match[2], match[3], *(match[4] or "").split()])
        elif match := _NAMES.search(line):
            self._once("line of column names", number)
            self._names(number, match[0].split())
        elif match := _RANK.search(line):
            self._once(f"rank {int(match[1])}", number)
            self.ranks[int(match[1])] = match[2] or ""
            self.elided |= line.rstrip().endswith("...")
        elif match := _SETTINGS.search(line):
            self._once("line of settings (nThread)", number)
            self.per_process = max(1, int(match[1]) * int(match[2]))
        elif match := _PLACE.search(line):
            self.places = re.findall(r"out-of-place|in-place", line)
        elif _CYCLE.search(line):
            self._cycle += 1
        elif self.ranks and not self.columns and line.strip(" #") in ("...", "…"):
            self.elided = True
        else:
            self._program(number, line)

    def _once(self, what: str, number: int) -> None:
        first = self.lines.setdefault(what, number)
        if first != number or self.rows:
            before = f"the first is line {first}" if first != number else f"below the rows of line {self.rows[0].line}"
            self.refuse(number, f"another {what}, {before}; expected the output of one run")

    def _program(self, number: int, line: str) -> None:
        if match := _START.search(line):
            self._once(_STARTING, number)
            self.tests = {re.sub(r"_(perf|test)(_mpi)?$", "", match[1]): number}
        elif _STARTING not in self.lines:
            for test in _PROGRAM.findall(line):
                self.tests.setdefault(test, number)

    def _names(self, number: int, names: list[str]) -> None:
        if "cputime" in names:
            self.refuse(number, "column cputime is the time of the launch on the CPU (-C 1), expected column time")
        for name in _GROUP[:3]:
            if name not in names:
                self.refuse(number, f"no column {name}; expected time, algbw and busbw")
        if "timestamp" in names:  # two words in the rows
            names[names.index("timestamp") :] = ["date", "clock"]
        self.columns = names, number

    def _row(self, number: int, words: list[str]) -> None:
        if self.columns is None:
            self.guessed = True
            self.columns = self._guess(number, words), number
        names, line = self.columns
        if len(words) != len(names):
            self.refuse(number, f"a row of {len(words)} columns, expected {len(names)} as in line {line}")
        if len(words[0]) > 15:
            self.refuse(number, f"a size of {len(words[0])} digits, expected at most 15")
        if int(words[0]) == 0:
            self.empty += 1
            return
        row = dict(zip(reversed(names), reversed(words), strict=True))  # the first of each name
        for name, word in zip(names, words, strict=True):
            if name in _WRONG and word != "N/A" and ((wrong := _printed(word)) is None or wrong.value >= 1):
                self.refuse(number, f"column {name} holds {shown(word)}: results are wrong, expected 0 or N/A")
        numbers = [self._printed(number, name, row[name]) for name in _GROUP[:3]]
        kind = " ".join(row[name] for name in ("type", "redop", "op", "root") if name in row)
        self.rows.append(Row(number, int(words[0]), kind, self._cycle, *numbers))

    def _guess(self, number: int, words: list[str]) -> list[str]:
        """Name the columns of a row in a log without names."""
        names = ["size", "count", "type"]
        if len(words) > 3 and words[3].isalpha():
            names.append("redop")
        tail = ["date", "clock"] if len(words) > 1 and _DATE.fullmatch(words[-2]) else []
        count = len(words) - len(names) - len(tail)
        if count % 4 == 1:
            names.append("root")
        groups = {4: _GROUP, 8: 2 * _GROUP, 16: 2 * (_GROUP + _PER_ITERATION)}.get(count - count % 4)
        if groups is None or count % 4 > 1:
            self.refuse(number, f"a row of {len(words)} columns without a line of column names; expected that line")
        return names + groups + tail

    def _printed(self, line: int, name: str, word: str) -> Printed:
        number = _printed(word)
        if number is None or (name == "time" and number.value == 0):
            self.refuse(line, f"column {name} holds {shown(word)}, expected a number{' above 0' * (name == 'time')}")
        return number


def read_log(text: str, name: str) -> NcclLog:
    """Read a log line by line.

    Raises:
        UsageError: it is the output of several runs, or a row cannot be read or has wrong results.
    """
    log = NcclLog(name)
    for number, line in enumerate(text.split("\n"), 1):
        if line:
            log.add(number, _CONTROL.sub(" ", _COLORS.sub("", line)))
    return log


def _printed(word: str) -> Printed | None:
    match = _NUMBER.fullmatch(word)
    if match is None:
        return None
    value = Fraction(word)
    half = Fraction(10) ** (int(match[2] or 0) - len(match[1] or "")) / 2
    return Printed(word, value, max(Fraction(0), value - half), value + half)


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "sendrecv")  # those with a ring, for `link_table`
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
    """

    test: str
    ranks: int | None
    times: list[Measurement]
    source: str = "nccl-tests"
    notes: tuple[str, ...] = ()


def read_nccl_tests(path: str | Path, collective: str | None = None) -> NcclTests:
    """Read pasted output of an nccl-tests or rccl-tests program; see `parse_nccl_tests`."""
    return parse_nccl_tests(read_text(path), str(path), collective)


def parse_nccl_tests(text: str, name: str, collective: str | None = None) -> NcclTests:
    """Read the output of one run; `collective` names its collective if the output does not.

    Raises:
        UsageError: there are no results, results of several runs, or results that contradict each other.
    """
    log = read_log(text, name)
    if not log.rows:
        raise UsageError(f"{name}: no nccl-tests results; expected output such as that of all_reduce_perf")
    _check_order(log)
    notes = _notes(log)
    test = _test(log, collective)
    unit = _unit(log, notes)
    ranks = _ranks(log, test, notes)
    found: dict[int, list[Fraction]] = {}
    for row in log.rows:
        found.setdefault(row.size, []).append(row.time.value)
    times = [Measurement(size, round(sum(of) / len(of) * unit)) for size, of in sorted(found.items())]
    source = f"{name}:{log.tests[test]}" if test in log.tests else name
    return NcclTests(test, ranks, times, source, tuple(notes))


def all_reduce_table(measured: NcclTests) -> TimeTable:
    """The measured times of whole all-reduces.

    Raises:
        UsageError: another collective was measured.
    """
    if measured.test != "all_reduce":
        raise UsageError(
            f"{measured.source}: times of {measured.test}, expected all_reduce; --link makes a link's table"
        )
    return TimeTable(tuple((one.size, one.time) for one in measured.times), measured.ranks, "all_reduce")


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
    return TimeTable(tuple(sorted(by_size.items())), operation=MESSAGE)


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
        place = "in-place" if log.places == ["in-place"] else "in-place or out-of-place (not named)"
        notes.append(f"one group of columns; times are {place}")
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


def _test(log: NcclLog, collective: str | None) -> str:
    """The collective that the log names, or else the given one."""
    named = " and ".join(f"{test} in line {line}" for test, line in log.tests.items())
    if collective and log.tests and collective not in log.tests:
        raise UsageError(f"{log.name}: names {named}, expected {collective} (--collective)")
    if not collective and len(log.tests) != 1:
        says = f"names {named}" if named else "does not name its collective"
        choices = f"{', '.join(COLLECTIVES[:-1])} or {COLLECTIVES[-1]}"
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


def _ranks_by_bandwidth(log: NcclLog, test: str) -> tuple[float, float]:
    """The least and the largest number of ranks that explains busbw / algbw in every row."""
    least, most = 1.0, math.inf
    factor = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.get(test)
    rows = [row for row in log.rows if row.algbw.low > 0]
    if factor is None or (factor == 1 and all(row.algbw.value == row.busbw.value for row in rows)):
        return least, most  # before NCCL 2.5 both bandwidths of a gather or scatter are the same
    for row in rows:
        low, high = row.busbw.low / row.algbw.high / factor, row.busbw.high / row.algbw.low / factor
        least = max(least, math.ceil(1 / (1 - low))) if low < 1 else math.inf
        most = min(most, math.floor(1 / (1 - high))) if high < 1 else most
        if least > most or low >= 1:
            found = f"{row.busbw.text} / {row.algbw.text}"
            log.refuse(row.line, f"busbw / algbw is {found}, expected that of {test} on one number of ranks")
    return least, most


# Quality of fit: how well a table, or one latency and one bandwidth, predicts measured times.


LARGE = 2**20  # errors count above this size; smaller messages are latency-bound and vary from run to run


class Fit(NamedTuple):
    """Relative errors of predictions, and the number of sizes."""

    mean: float
    worst: float
    sizes: int


def fit_of_every_second(times: Sequence[Measurement]) -> Fit:
    """Error of a table of the 1st, 3rd, 5th … size at the sizes in between, above 1 MiB."""
    table = TimeTable(tuple((one.size, one.time) for one in times[::2]))
    return _fit((table.time(one.size), one.time) for one in times[1::2] if one.size > LARGE)


def fit_of_one_line(times: Sequence[Measurement]) -> Fit:
    """Error of one latency and one bandwidth, a least-squares fit of relative errors above 1 MiB."""
    large = [one for one in times if one.size > LARGE]
    # minimise Σ (a/t + b·s/t − 1)²
    u, v = [1 / one.time for one in large], [one.size / one.time for one in large]
    uu, uv, vv = sum(x * x for x in u), sum(x * y for x, y in zip(u, v, strict=True)), sum(y * y for y in v)
    determinant = uu * vv - uv * uv
    if len(large) < 3 or determinant <= 0:
        return Fit(0.0, 0.0, 0)
    a = (sum(u) * vv - sum(v) * uv) / determinant
    b = (sum(v) * uu - sum(u) * uv) / determinant
    return _fit((a + b * one.size, one.time) for one in large)


def _fit(pairs: Iterable[tuple[float, int]]) -> Fit:
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return Fit(sum(errors) / len(errors), max(errors), len(errors)) if errors else Fit(0.0, 0.0, 0)
