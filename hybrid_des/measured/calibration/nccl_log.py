"""Rows of nccl-tests and rccl-tests output, each with its line number.

    # Collective test starting: all_reduce_perf
    # nThread 1 nGpus 8 minBytes 8388608 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
    #  Rank  0 Group  0 Pid   3713 on   node0001 device  0 [0x07] NVIDIA A100-SXM4-40GB
    #                                                          out-of-place                     in-place
    #       size       count    type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
         8388608     2097152   float     sum      -1    167.5   50.09   87.66      0    165.9   50.55   88.47      0

The line of column names says what a row holds. Versions and options differ: older ones have no first line, no
`redop` or `root`, `error` or `res` for `#wrong`, four columns per iteration (-I 1), a timestamp (-S 1), one group of
columns (-O of rccl-tests), algorithms (-A). Without that line, the columns follow from their number. Launchers add
prefixes to lines, and pages that render Markdown take the # away. Source: `src/common.cu` and `src/util.cu` of
NVIDIA/nccl-tests and ROCm/rccl-tests.

A file may hold several such runs, one below the other: after rows, the next begins with the first line that stands
above a table or names another program.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, NoReturn

from hybrid_des.cluster.time_table import shown
from hybrid_des.errors import UsageError

_TYPE = r"u?int(?:8|32|64)?|char|half|b?float(?:16|32|64)?|double|f8e[45]m[23]|fp8_e[45]m[23]"


_ROW = re.compile(rf"(?:^|[\s:>|\])])(\d+)\s+(\d+)\s+({_TYPE})(\s.*)?$")


_NAMES = re.compile(r"\b(?:size|bytes)\s+(?:count|N)\s+type\b.*")


_RANK = re.compile(
    r"(?:#\s+|^\s*(?=\S+\s+\d+\s+(?:Group|Pid|on)\b))(?:Rank|Device)\s+(\d{1,9})\b(?:\s+Group\s+(\d{1,9}))?"
    r"(?:.*?\bon\s+(\S+)\s+(device\s+\d{1,9}\s*(?:\[[^\]]{0,20}\])?)\s*(.{0,99}))?",
    flags=re.IGNORECASE,
)


_SETTINGS = re.compile(r"(?:#\s+|^\s*)nThreads?:?\s+(\d{1,6})\s+nGpus:?\s+(\d{1,6})\s")


_RELEASE = re.compile(r"\bnccl-library=(\d{4,5})\b|\bNCCL version (\d\.\d{1,2}\.\d{1,2})\b")


FORCED = re.compile(r"\bNCCL_(ALGO|PROTO)(?:=| set by environment to )[\"']?(\^?\w+(?:,\w+)*)")


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


_TAG = re.compile(r"\[[\w,.:-]+\](?:<\w+>:?)?")  # of a launcher, before a line and, as it writes in pieces, inside


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


_NUMBER = re.compile(r"\d{1,15}(?:\.(\d{1,9}))?(?:e([+-]\d{1,2}))?")


_DATE = re.compile(r"\d{4}-\d\d-\d\d")


_GROUP = ["time", "algbw", "busbw", "#wrong"]


_PER_ITERATION = ["i_min", "i_max", "i_p99", "i_cv%"]


_STARTING = "collective starting"


_WRONG = {"#wrong", "error", "res"}


class RoundedNumber(NamedTuple):
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
    time: RoundedNumber
    algbw: RoundedNumber
    busbw: RoundedNumber


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
        hosts: host and device of each listed rank whose line has them.
        devices: the names of the GPUs.
        release: of NCCL, such as 2.29.7, if the log says it.
        forced: what NCCL_ALGO and NCCL_PROTO were set to, by ALGO and PROTO.
        forced_next: the same, for the run below this one.
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
    hosts: dict[int, tuple[str, str]] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    release: str | None = None
    forced: dict[str, str] = field(default_factory=dict)
    forced_next: dict[str, str] = field(default_factory=dict)
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
            if match[3]:
                self.hosts[int(match[1])] = match[3], match[4]
                self.devices.add(match[5].strip())
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
            if match := _RELEASE.search(line):
                self.release = match[2] or release_of(int(match[1]))
            (self.forced_next if self.rows else self.forced).update(FORCED.findall(line))
            self._program(number, line)

    def starts_another(self, line: str) -> bool:
        """Whether a line below the rows belongs to the next run of the file."""
        if not self.rows or _ROW.search(line):
            return False
        heads = _START, _NAMES, _RANK, _SETTINGS
        another = bool(self.tests) and not {*_PROGRAM.findall(line)} <= {*self.tests}
        return another or any(head.search(line) for head in heads)

    def _once(self, what: str, number: int) -> None:
        if (first := self.lines.setdefault(what, number)) != number:
            alone = "built without MPI=1, each process runs alone and prints its own"
            self.refuse(number, f"another {what}, the first is line {first}; expected the output of one run ({alone})")

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
            if name in _WRONG and word != "N/A" and ((wrong := printed(word)) is None or wrong.value >= 1):
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

    def _printed(self, line: int, name: str, word: str) -> RoundedNumber:
        number = printed(word)
        if number is None or (name == "time" and number.value == 0):
            self.refuse(line, f"column {name} holds {shown(word)}, expected a number{' above 0' * (name == 'time')}")
        return number


def read_logs(text: str, name: str) -> list[NcclLog]:
    """Read the logs of all runs of a text that have rows, or the only one without.

    Raises:
        UsageError: a run has two heads, or a row cannot be read or has wrong results.
    """
    logs = [NcclLog(name)]
    for number, line in _lines(text):
        if logs[-1].starts_another(line):
            logs.append(NcclLog(name, release=logs[-1].release, forced=logs[-1].forced_next))
        logs[-1].add(number, line)
    return [log for log in logs if log.rows] or logs


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text with their numbers, without colours, control characters and the tags of launchers."""
    for number, line in enumerate(text.split("\n"), 1):
        if line:
            plain = _CONTROL.sub(" ", _COLORS.sub("", line))
            tag = _TAG.match(plain)
            yield number, plain.replace(tag[0], " ") if tag else plain


def release_of(code: int) -> str:
    """A release such as 2.29.7 of a version code, 22907 (NCCL_VERSION of nccl.h: 2708 is 2.7.8)."""
    major = 1000 if code < 10_000 else 10_000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def collective_of(words: str) -> str | None:
    """The collective that the name of a program, or one such as AllReduce, says."""
    if match := _PROGRAM.search(words):
        return match[1]
    name = words.strip().lower().replace("_", "")
    return {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}.get(
        name, name or None
    )


def printed(word: str) -> RoundedNumber | None:
    """A number as a program printed it; None if it is none."""
    match = _NUMBER.fullmatch(word)
    if match is None:
        return None
    value = Fraction(word)
    half = Fraction(10) ** (int(match[2] or 0) - len(match[1] or "")) / 2
    return RoundedNumber(word, value, max(Fraction(0), value - half), value + half)
