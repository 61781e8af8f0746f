"""Measured times of operators on one GPU: a table that `hybrid-des measure` writes.

    operator,m,n,k,length,heads,kv_heads,head_size,causal,bytes,parameters,seconds,backward_s
    gemm,4096,6144,4096,,,,,,,,0.000312,
    attention,,,,8192,32,8,128,1,,,0.000913,0.002482
    norms and residuals,,,,,,,,,369098752,,0.000171,0.000233
    optimizer,,,,,,,,,,1000000,0.0000052,

A product and an attention of a measured shape take the measured time; others follow the law of `efficiency`. Times of
operators by bytes (those of the forward) and of the optimizer by parameters are linear between measured sizes, and in
proportion to the nearest one beyond them. A row `residual` has, instead of seconds, the time of a whole block over that
of its operators one by one, whose caches are warm; all but the optimizer take so many times as long.
"""

import csv
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.files import read_text
from hybrid_des.units import collected

GEMM, ATTENTION, OPTIMIZER, RESIDUAL = "gemm", "attention", "optimizer", "residual"
SHAPES = {GEMM: ("m", "n", "k"), ATTENTION: ("length", "heads", "kv_heads", "head_size", "causal")}
NEEDED = ("operator", "seconds")
LARGEST_S = 10**6


class OperatorTime(NamedTuple):
    """Seconds of the forward and of the backward of an operator of some shape or size."""

    shape: tuple[int, ...]
    forward: float
    backward: float


@dataclass(frozen=True)
class OperatorTable:
    """Times of operators.

    Attributes:
        rows: each operator's name with a shape, or a size, and its times.
        source: the file.
        residual: what all times but the optimizer's are multiplied with.
    """

    rows: tuple[tuple[str, OperatorTime], ...] = field(hash=False)
    source: str = ""
    residual: float = 1.0

    @cached_property
    def _shapes(self) -> Mapping[tuple[str, tuple[int, ...]], OperatorTime]:
        return {(name, time.shape): time for name, time in self.rows if name in SHAPES}

    @cached_property
    def _sizes(self) -> Mapping[str, list[OperatorTime]]:
        sizes = collected(row for row in self.rows if row[0] not in SHAPES)
        return {name: sorted(times) for name, times in sizes.items()}

    def product(self, m: float, n: float, k: float) -> float | None:
        """Seconds of a product (m × k) · (k × n); None if none of this shape was measured."""
        known = self._shapes.get((GEMM, (int(m), int(n), int(k)))) if m == int(m) else None
        return None if known is None else self.residual * known.forward

    def attention(self, *shape: int) -> tuple[float, float] | None:
        """Seconds of forward and backward of a sample: its length, heads, those of keys, their size, whether causal."""
        known = self._shapes.get((ATTENTION, shape))
        return None if known is None else (self.residual * known.forward, self.residual * known.backward)

    def sized(self, name: str, size: float) -> tuple[float, float] | None:
        """Seconds of forward and backward of an operator by bytes, or of the optimizer by parameters."""
        times = self._sizes.get(name)
        if times is None:
            return None
        more = 1.0 if name == OPTIMIZER else self.residual
        sizes = [time.shape[0] for time in times]
        above = bisect_left(sizes, size)
        if 0 < above < len(sizes):
            low, high = times[above - 1 : above + 1]
            share = (size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
            return (
                more * (low.forward + share * (high.forward - low.forward)),
                more * (low.backward + share * (high.backward - low.backward)),
            )
        nearest = times[min(above, len(times) - 1)]
        scale = more * size / nearest.shape[0]
        return scale * nearest.forward, scale * nearest.backward


NONE_MEASURED = OperatorTable(())


def read_operator_table(path: str | Path) -> OperatorTable:
    """Read such a table.

    Raises:
        UsageError: the file cannot be read, lacks a column, or a row has no sound values.
    """
    lines = read_text(path).splitlines()
    columns = [name.strip() for name in lines[0].split(",")] if lines else []
    if not {*NEEDED} <= {*columns}:
        raise UsageError(f"{path}: not a table of operators; expected the columns {', '.join(NEEDED)} and sizes")
    rows = tuple(_rows(path, lines))
    if len({(name, time.shape) for name, time in rows}) < len(rows):
        raise UsageError(f"{path}: an operator has two times for one size")
    return OperatorTable(rows, str(path), _residual(path, lines))


def _residual(path: str | Path, lines: list[str]) -> float:
    """The factor in the row of that name; 1 if there is none."""
    for row in csv.DictReader(lines):
        if row["operator"] == RESIDUAL:
            factor = _number(row["seconds"])
            if not 0 < factor < LARGEST_S:
                raise UsageError(f"{path}: {RESIDUAL}: expected a factor above 0, found {row['seconds']}")
            return factor
    return 1.0


def _number(text: str | None) -> float:
    """A number; not a number where there is none."""
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def _rows(path: str | Path, lines: list[str]) -> Iterator[tuple[str, OperatorTime]]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        name = row["operator"] or ""
        columns = SHAPES.get(name) or (("parameters",) if name == OPTIMIZER else ("bytes",))
        if name not in SHAPES and not row.get(columns[0]):
            continue  # such as a launch, which has no size
        try:
            shape = tuple(int(float(row[column] or "")) for column in columns)
            forward, backward = float(row["seconds"] or ""), float(row.get("backward_s") or 0)
        except (ValueError, KeyError, TypeError, OverflowError):
            raise UsageError(
                f"{path}: row {number}: {name or 'no name'}: expected {', '.join(columns)} and seconds"
            ) from None
        if min(shape) < (0 if name == ATTENTION else 1) or not 0 < forward < LARGEST_S or not 0 <= backward < LARGEST_S:
            raise UsageError(f"{path}: row {number}: {name}: expected sizes of at least 1 and times above 0")
        yield name, OperatorTime(shape, forward, backward)
