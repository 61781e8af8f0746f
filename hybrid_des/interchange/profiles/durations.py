"""External durations of individual ops: a CSV or Parquet table of a measured or simulated run.

    replica,stage,step,kind,microbatch,seconds
    0,0,16,F,0,0.545921

| column     | also called                         | values                                                            |
|------------|-------------------------------------|-------------------------------------------------------------------|
| step       |                                     | any number; steps are taken in ascending order                    |
| rank       |                                     | global rank; of several of a stage, the slowest gives the time    |
| replica    | dp_rank                             | from 0; 0 if missing                                              |
| stage      | pipeline_rank                       | pipeline rank, from 0                                             |
| chunk      | mc                                  | of the pipeline rank, from 0; 0 if missing                        |
| kind       | optype                              | F, B, I, W, forward-compute, backward-compute; others are ignored |
| microbatch | micro_batch, mb_id                  | from 0                                                            |
| seconds    | duration, or end_s − start_s        | at least 0                                                        |
| start_s    | start_ts                            | used by `hybrid-des import` only                                  |

The other names are those of the straggler study (Lin et al., OSDI 2025) and of this program's own `timeline.csv`.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import UsageError, installing
from hybrid_des.files import open_file
from hybrid_des.layout import Layout
from hybrid_des.pipeline.plan import Op, Plan
from hybrid_des.scenario.overhead import NO_OVERHEAD, Overhead
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.int64]

NAMES = {
    "step": ("step",),
    "rank": ("rank",),
    "replica": ("replica", "dp_rank"),
    "stage": ("pipeline_rank", "stage"),
    "chunk": ("chunk", "mc"),
    "kind": ("kind", "optype"),
    "microbatch": ("microbatch", "micro_batch", "micro-batch", "mb_id"),
    "seconds": ("seconds", "duration"),
    "start_s": ("start_s", "start_ts"),
    "end_s": ("end_s",),
}
KINDS = {kind: kind for kind in "FBIW"} | {"forward-compute": "F", "backward-compute": "B"}
WORDS = {"F": "forward", "B": "backward", "I": "input part of the backward", "W": "weight part of the backward"}
NUMBERS = ("step", "rank", "replica", "stage", "chunk", "microbatch")
MISSING = -1
FACTOR = 2  # times the median of its kind, above which an op is unusual
LARGEST_S = 10**6
NEEDED = ("step", "stage", "kind", "microbatch", "seconds")
HEAD = 4096  # bytes that tell JSON from a table
GZIP = 31  # zlib's window size for gzip
_CELLS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")  # pandas' error


class Sizes(NamedTuple):
    """Sizes that a table must fit: replicas, pipeline ranks, chunks per rank, micro-batches."""

    replica: int
    stage: int
    chunk: int
    microbatch: int


OP = ("kind", "step", *Sizes._fields)  # the columns that name an op


@dataclass(frozen=True)
class Durations:
    """Durations of ops.

    Attributes:
        source: their origin, for messages.
        steps: the table's step numbers, ascending.
        times: by kind (F, B, I, W): picoseconds by step, replica, pipeline rank, chunk and micro-batch; `MISSING`
            where the table has none.
    """

    source: str
    steps: tuple[int, ...]
    times: Mapping[str, Times]

    @cached_property
    def complete(self) -> dict[str, Times]:
        """The same with every backward as a whole and in parts: those of the table, or halves where it has none."""
        missing = np.full_like(self.times["F"], MISSING)
        whole, inputs, weights = (self.times.get(kind, missing) for kind in "BIW")
        split = (inputs != MISSING) & (weights != MISSING)
        whole = np.where(split, inputs + weights, whole)
        weights = np.where(split, weights, np.where(whole == MISSING, MISSING, whole // 2))
        inputs = np.where(whole == MISSING, MISSING, whole - weights)
        return {"F": self.times["F"], "B": whole, "I": inputs, "W": weights}

    def mean(self, kind: str, rank: int) -> Fraction:
        """Mean seconds of a kind of op on a pipeline rank, over all places; 0 if there is none."""
        times = self.complete[kind][:, :, rank]
        known = times[times != MISSING].tolist()
        return Fraction(sum(known), len(known) * PICOSECONDS_PER_SECOND) if known else Fraction(0)

    @property
    def split(self) -> bool:
        """Whether backwards were recorded in parts."""
        return "I" in self.times

    def usual(self, kind: str, rank: int, chunk: int, usual: Usual) -> Fraction:
        """Usual picoseconds of a kind of op of a chunk without the host's, over all of them; 0 if there is none."""
        times = self.complete[kind][:, :, rank, chunk]
        known = times[times != MISSING]
        if not len(known):
            return Fraction(0)
        host = Fraction(usual.overhead.held(kind, split=self.split))
        return max(Fraction(0), usual.time(known) - host)

    def covers(self, plan: Plan, replicas: int, steps: int) -> bool:
        """Whether these are the durations of a plan: of the same ranks and chunks, and of every op."""
        known = self.times["F"].shape
        if known[2:4] != (plan.pipeline, max(plan.visits)) or known[1] < replicas or known[0] < steps:
            return False
        if any(op.microbatch >= known[4] for _, op in plan.ops()):
            return False
        try:
            self.check(plan, replicas, steps)
        except UsageError:
            return False
        return True

    def predicted(self, plan: Plan, replicas: int, steps: int, usual: Usual) -> Durations:
        """Durations of a plan, the same in all steps, replicas and micro-batches: the usual ones of those recorded.

        Of as many chunks they are those of each chunk, else `Shares` of them; each op has the host's time besides.
        """
        shape = steps, replicas, plan.pipeline, max(plan.visits), plan.microbatches
        times = {kind: np.full(shape, MISSING, dtype=np.int64) for kind in "FBIW"}
        alike = self.times["F"].shape[2:4] == (plan.pipeline, max(plan.visits))
        shares = {kind: Shares.of(self, kind, usual) for kind in "FBW"}
        for (rank, chunk), stage in plan.stage_of.items():
            forward, whole, weight = (
                round(self.usual(kind, rank, chunk, usual) if alike else shares[kind].of_stage(plan, rank, stage))
                for kind in "FBW"
            )
            durations = {"F": forward, "B": whole, "I": max(0, whole - weight), "W": weight}
            for kind, picoseconds in durations.items():
                lasting = picoseconds + usual.overhead.held(kind, split=False)
                for microbatch in range(plan.microbatches) if kind in "IW" else ():
                    if (stage, microbatch) in plan.split:
                        times[kind][:, :, rank, chunk, microbatch] = lasting
                if kind in "FB":
                    times[kind][:, :, rank, chunk] = lasting
        return Durations(f"{usual.how}s of {self.source}", tuple(range(steps)), times)

    def of(self, replica: int, rank: int) -> Callable[[Op, int], int]:
        """Picoseconds of (op, number of the step) of a pipeline rank of a replica."""
        kinds = {kind: times[:, replica, rank].tolist() for kind, times in self.complete.items()}

        def time(op: Op, step: int) -> int:
            return int(kinds[op.kind][step][op.chunk][op.microbatch])

        return time

    def check(self, plan: Plan, replicas: int, steps: int) -> None:
        """Check that every op of a plan has a duration in every replica and in the first steps.

        Raises:
            UsageError: the table has fewer steps, or an op is missing.
        """
        if steps > len(self.steps):
            raise UsageError(f"{self.source}: {len(self.steps)} steps; the scenario has {steps}")
        kinds = self.complete
        for rank, op in plan.ops():
            needed = "F" if op.kind == "F" else "B"
            chunks = kinds[needed].shape[3]
            if op.chunk >= chunks:
                raise UsageError(f"{self.source}: {chunks} chunks per rank; the schedule has more")
            times = kinds[needed][:steps, :replicas, rank, op.chunk, op.microbatch]
            if (times == MISSING).any():
                step, replica = (int(place[0]) for place in np.nonzero(times == MISSING))
                where = f"replica {replica}, pipeline rank {rank}, chunk {op.chunk}, step {self.steps[step]}"
                raise UsageError(f"{self.source}: no {WORDS[needed]} of micro-batch {op.microbatch} on {where}")


class Usual(NamedTuple):
    """How long ops usually take: what stands for all of a kind, and the part of it that is the host's.

    Attributes:
        how: median, or mean without ops of more than `FACTOR` times the median.
        overhead: host time, which recorded ops hold.
    """

    how: str
    overhead: Overhead = NO_OVERHEAD

    @classmethod
    def of(cls, timing: str, overhead: Overhead) -> Usual:
        """As `workload.timing` says; `auto` takes means, since those of a step's ops add up to the step."""
        return cls("median" if timing == "median" else "mean", overhead)

    def time(self, times: Times) -> Fraction:
        """The usual one of some picoseconds."""
        middle = float(np.median(times))
        return Fraction(middle if self.how == "median" else float(times[times <= FACTOR * middle].mean()))


class Shares(NamedTuple):
    """Usual picoseconds of a kind of op on each recorded pipeline rank, to be divided over other stages.

    What the first and the last rank take longer than those between them, for the embedding and the output layer, stays
    with the first and the last stage (as `workload.ends`).

    Attributes:
        body: of each rank, without that.
        first, last: that of the first and of the last rank.
    """

    body: tuple[Fraction, ...]
    first: Fraction
    last: Fraction

    @classmethod
    def of(cls, durations: Durations, kind: str, usual: Usual) -> Shares:
        """Those of recorded durations, without the host's."""
        ranks, chunks = durations.times["F"].shape[2:4]
        none = Fraction(0)
        whole = [
            sum((durations.usual(kind, rank, chunk, usual) for chunk in range(chunks)), none) for rank in range(ranks)
        ]
        between = whole[1:-1]
        middle = sum(between, none) / len(between) if between else max(whole)
        first, last = (max([none, whole[rank] - middle]) for rank in (0, -1))
        return cls((whole[0] - first, *whole[1:-1], whole[-1] - last) if ranks > 1 else tuple(whole), first, last)

    def of_stage(self, plan: Plan, rank: int, stage: int) -> Fraction:
        """The share of a stage of a plan: of the recorded rank it is on, or of those at its depth."""
        count = len(plan.paths[0])
        if plan.pipeline == len(self.body):
            share = self.body[rank] / plan.visits[rank]
        else:
            share = self.between(Fraction(stage, count), Fraction(stage + 1, count))
        return share + self.first * (stage == 0) + self.last * (stage == count - 1)

    def of_rank(self, rank: int, ranks: int) -> Fraction:
        """The share of one of so many pipeline ranks."""
        share = self.between(Fraction(rank, ranks), Fraction(rank + 1, ranks))
        return share + self.first * (rank == 0) + self.last * (rank == ranks - 1)

    def between(self, first: Fraction, last: Fraction) -> Fraction:
        """The part between two fractions of the model's depth, without the ends."""
        count = len(self.body)
        share = Fraction(0)
        for at, whole in enumerate(self.body):
            share += whole * max(Fraction(0), min(last * count, Fraction(at + 1)) - max(first * count, Fraction(at)))
        return share


def read_table(path: Path) -> pd.DataFrame:
    """Read a table of durations; its columns get the names of this module, and `row` is each row's number in the file.

    Raises:
        UsageError: the file cannot be read, a column is missing, or a value is wrong.
    """
    table = _computation(_renamed(_read(path), path), path)
    table = _with_numbers(table, path)
    return _one_per_stage(table.assign(kind=_parts_told_apart(table)), path)


def _renamed(raw: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The columns that this module knows, by its names for them, and the number of each row in the file."""
    column_of = {name: next((one for one in names if one in raw), None) for name, names in NAMES.items()}
    table = raw[[column for column in column_of.values() if column]]
    table = table.rename(columns={column: name for name, column in column_of.items() if column})
    instead = {"seconds": {"start_s", "end_s"}, "stage": {"rank"}}  # columns from which another follows
    for name in NEEDED:
        if name not in table and not (name in instead and instead[name] <= {*table}):
            raise UsageError(f"{path}: no column {name}; found {', '.join(map(str, raw))}")
    table["row"] = table.index + (2 if path.suffix == ".csv" else 1)
    return table


def _computation(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The rows of forwards and backwards, with this module's names for their kinds."""
    if (table.kind == "FB").any():
        raise UsageError(f"{path}: fused pairs (FB) do not give the duration of each op")
    table = table[table.kind.isin(KINDS)].assign(kind=lambda rows: rows.kind.astype(str).map(KINDS))
    if table.empty:
        raise UsageError(f"{path}: no forward or backward; expected kinds such as {', '.join(KINDS)}")
    return table


def _with_numbers(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The rows with every number checked, durations from starts and ends if need be, and replica and chunk 0."""
    for name in NUMBERS:
        if name in table:
            table[name] = _numbers(table, name, path, _are_whole, "a whole number of at least 0").astype("int64")
    for name in ("start_s", "end_s"):
        if name in table:
            table[name] = _numbers(table, name, path, np.isfinite, "a time in seconds")
    if "seconds" not in table:
        table["seconds"] = table.end_s - table.start_s
    table["seconds"] = _numbers(table, "seconds", path, _are_times, f"a time from 0 to {LARGEST_S} s")
    return table.assign(**{name: 0 for name in ("replica", "chunk") if name not in table})


def _one_per_stage(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """One row per op of a stage, with the duration of its slowest rank: tensor and context ranks end an op together."""
    if not {"rank", "stage"} <= {*table}:
        return table
    _refuse_second(table, [*OP, "rank"], str(path))
    if "start_s" in table:
        table = table.assign(start_s=table.groupby(list(OP)).start_s.transform("min"))
    return table.sort_values("seconds", ascending=False, kind="stable").drop_duplicates(OP).sort_index()


def _parts_told_apart(table: pd.DataFrame) -> pd.Series[str]:
    """The kinds, with I for a B that has a matching W, as in `timeline.csv`."""
    keys = ["step", *(name for name in ("rank", "replica", "stage", "chunk", "microbatch") if name in table)]
    apart = table[table.kind == "W"][keys].drop_duplicates().assign(apart=True)
    if apart.empty:
        return table.kind
    split = table[keys].merge(apart, how="left", on=keys).apart.notna().to_numpy()
    return table.kind.mask(split & (table.kind == "B").to_numpy(), "I")


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    if path.suffix in (".yaml", ".yml"):
        expected = "a CSV or Parquet table with the duration of every op"
        raise UsageError(f"{path}: is a YAML file, such as a scenario; expected {expected}")
    try:
        with open_file(path) as file:  # refuses files that would block
            _refuse_json(path, file.read(HEAD) if path.is_file() else b"")  # from a pipe it could not be read again
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a line with more cells than the first
            return pd.read_csv(path, index_col=False)
    except UsageError:
        raise
    except ImportError:
        raise UsageError(f"{path}: needs the parquet extra: {installing('parquet')}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # the parsers raise many kinds
        raise UsageError(f"{path}: not a table: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Why a file is not a table, in words of its own where the parser's are about pandas."""
    text = str(error).partition("\n")[0] or repr(error)
    if isinstance(error, UnicodeDecodeError):
        return "not a text file in UTF-8"
    if "No columns to parse" in text:
        return "it is empty"
    if "Length of header" in text:
        return "a line has more cells than the first"
    cells = _CELLS.search(text)
    return f"line {cells[2]} has {cells[3]} cells, earlier ones {cells[1]}" if cells else text


def _refuse_json(path: Path, head: bytes) -> None:
    """Refuse a profiler's trace, and other JSON, by the first bytes of a file."""
    text = (zlib.decompressobj(GZIP).decompress(head) if head.startswith(b"\x1f\x8b") else head).lstrip()
    if text.startswith((b"{", b"[")):
        traced = any(word in text for word in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"ph"'))
        what = "a PyTorch profiler trace: hybrid-des import reads it" if traced else "JSON, not a table"
        raise UsageError(f"{path}: {what}; expected CSV or Parquet with {', '.join(NEEDED)}")


def _numbers(table: pd.DataFrame, name: str, path: Path, valid: Callable[..., Any], expected: str) -> pd.Series[float]:
    """A column as numbers that are all valid.

    Raises:
        UsageError: one is not.
    """
    import pandas as pd

    try:
        numbers = pd.to_numeric(table[name], errors="coerce").astype("float64")
    except OverflowError:
        raise UsageError(f"{path}: {name}: a number is larger than 1e308") from None
    wrong = table[~valid(numbers)]
    if len(wrong):
        row = wrong.iloc[0]
        raise UsageError(f"{path}: row {row.row}: {name}: expected {expected}, found {row[name]}")
    return numbers


def _are_whole(numbers: pd.Series[float]) -> pd.Series[bool]:
    return (numbers >= 0) & (numbers % 1 == 0) & (numbers <= 2**53)


def _are_times(numbers: pd.Series[float]) -> pd.Series[bool]:
    return (numbers >= 0) & (numbers <= LARGEST_S)


def _refuse_second(table: pd.DataFrame, keys: Sequence[str], source: str) -> None:
    twice = table[table.duplicated(list(keys))]
    if len(twice):
        row = twice.iloc[0]
        raise UsageError(f"{source}: row {row.row}: a second {WORDS[row.kind]} of micro-batch {row.microbatch} there")


def durations_of(table: pd.DataFrame, sizes: Sizes, source: str) -> Durations:
    """The durations in a table of `read_table` with the columns `replica` and `stage`.

    Raises:
        UsageError: a place beyond the sizes, or a second duration of one op.
    """
    for name, most in sizes._asdict().items():
        beyond = table[table[name] >= most]
        if len(beyond):
            row = beyond.iloc[0]
            raise UsageError(f"{source}: row {row.row}: there is no {name} {row[name]}, only 0 … {most - 1}")
    _refuse_second(table, OP, source)
    steps, places = np.unique(table.step.to_numpy(), return_inverse=True)
    kinds = [kind for kind in "FBIW" if (table.kind == kind).any()]
    split = {"I", "W"} & {*kinds}
    for kind in ("F", *(("I", "W") if split else ("B",))):
        if kind not in kinds:
            raise UsageError(f"{source}: no {WORDS[kind]} in it")
    times: dict[str, Any] = {}
    for kind in kinds:
        chosen = (table.kind == kind).to_numpy()
        filled = np.full((len(steps), *sizes), MISSING, dtype=np.int64)
        at = (places[chosen], *(table[name].to_numpy()[chosen] for name in sizes._fields))
        filled[at] = np.rint(table.seconds.to_numpy()[chosen] * PICOSECONDS_PER_SECOND).astype(np.int64)
        times[kind] = filled
    return Durations(source, tuple(steps.tolist()), times)


def sizes_of(table: pd.DataFrame, source: str) -> Sizes:
    """The sizes of a table of `read_table` with the column `stage`: numbers are counted from 0.

    Raises:
        UsageError: they leave most of the table empty; nothing of their size is allocated before.
    """
    sizes = Sizes(*(int(table[name].max()) + 1 for name in Sizes._fields))
    if sizes.replica * sizes.stage * sizes.chunk * sizes.microbatch > len(table):
        counts = (
            f"{sizes.replica} replicas × {sizes.stage} stages × {sizes.chunk} chunks × {sizes.microbatch} micro-batches"
        )
        raise UsageError(f"{source}: {len(table)} rows cannot hold {counts}, counted from 0; are there gaps?")
    return sizes


def read_durations(
    path: Path, layout: Layout, chunks: int | None, microbatches: int, *, own_sizes: bool = False
) -> Durations:
    """Read the durations of the ranks of a layout.

    Args:
        path: the table.
        layout: data and pipeline ranks.
        chunks: per pipeline rank; None for the number in the table.
        microbatches: per replica and step.
        own_sizes: whether the table may be that of another layout.

    Raises:
        UsageError: the table is wrong, or names ranks or micro-batches that do not exist.
    """
    table = read_table(path)
    if own_sizes and "stage" in table:
        return durations_of(table, sizes_of(table, str(path)), str(path))
    if "stage" not in table:
        beyond = table[table["rank"] >= layout.ranks]
        if len(beyond):
            row = beyond.iloc[0]
            raise UsageError(f"{path}: row {row.row}: there is no rank {row['rank']}, only 0 … {layout.ranks - 1}")
        along = {"replica": layout.along("data"), "stage": layout.along("pipeline")}
        table = table.assign(**{name: places[table["rank"]] for name, places in along.items()})
    held = int(table.chunk.max()) + 1 if chunks is None else chunks
    sizes = Sizes(layout.sizes["data"], layout.sizes["pipeline"], held, microbatches)
    return durations_of(table, sizes, str(path))
