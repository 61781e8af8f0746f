"""Rows of a run that may be long: up to 262,144 in memory; beyond that, all but the latest in a file.

The file has no name and disappears with the process, however that ends. It holds blocks, which are sorted when rows
are read in order, so that there are never more than a few blocks in memory.
"""

import mmap
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.engine.recorder import NO_ROWS, Rows
from hybrid_des.errors import SimulationError

KEPT = 2**18  # rows that stay in memory


BLOCK = 2**14  # rows of a block, at least


EVERY = 2**8  # rows from one sample of a sorted block to the next


WIDTH = 8  # bytes of a number


Column = NDArray[np.int64]


class LongRows(Rows):
    """A table of whole numbers that moves its rows to a file once there are many.

    Args:
        columns: names of the columns.
        order: the column by which they can be read in order.
        folder: where the file is made; default: the system's folder for temporary files.
    """

    def __init__(self, columns: tuple[str, ...], order: str, folder: Path | None = None) -> None:
        super().__init__(columns)
        self._order = columns.index(order)
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        self._sizes: list[int] = []  # rows of each block
        self._samples: list[Column] = []  # of each block, once it is sorted: every 256th number in the column of order

    @property
    def in_file(self) -> bool:
        """Whether rows have been moved to the file."""
        return self._file is not None

    def spill(self) -> None:
        """Move rows in memory to the file, if there are many; to be called periodically.

        Raises:
            SimulationError: the file cannot be written.
        """
        if len(self) - self.moved >= (BLOCK if self.in_file else KEPT):
            self._move()

    def table(self) -> dict[str, Column]:
        """The columns, in the order in which the rows were added, unless they have been read `in_order`."""
        if not self.in_file:
            return super().table()
        self._move()
        return self._named(self._read(0, sum(self._sizes)))

    def mapped(self) -> dict[str, Column]:
        """The same as `table`, read from the file where it is looked at; not to be mixed with reading `in_order`."""
        if not self.in_file:
            return super().table()
        if self.numbers or self._map is None:
            self._move()
            assert self._file is not None
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        shape = sum(self._sizes), len(self.columns)
        return self._named(np.ndarray(shape, np.int64, self._map))

    def let_go(self) -> None:
        """Free the memory of what was read of `mapped` columns, in which nothing may have been written."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def pieces(self) -> Iterator[dict[str, Column]]:
        """All rows, block by block."""
        self._move()
        for block, size in enumerate(self._sizes):
            yield self._named(self._read(self._first(block), size))

    def in_order(self) -> Iterator[tuple[dict[str, Column], int | None]]:
        """All rows by the column of order, in pieces, each with a bound that its rows are below and later ones not.

        Rows with equal numbers are in the order in which they were added; the last piece has no bound.
        """
        self._move()
        self._sort()
        samples = np.sort(np.concatenate(self._samples)) if self._samples else np.empty(0, dtype=np.int64)
        done, sizes = np.zeros(len(self._sizes), dtype=np.int64), np.array(self._sizes)
        for end in [*np.unique(samples[:: BLOCK // EVERY])[1:].tolist(), None]:
            rows = [self._next(block, done, end) for block in np.flatnonzero(done < sizes).tolist()]
            yield self._named(self._sorted(np.concatenate([NO_ROWS.reshape(0, len(self.columns)), *rows]))), end

    def _next(self, block: int, done: Column, end: int | None) -> Column:
        """The rows of a sorted block that are below a number and have not been read yet."""
        samples, first = self._samples[block], int(done[block])
        later = len(samples) if end is None else int(np.searchsorted(samples, end))
        rows = self._read(self._first(block) + first, max(0, min(later * EVERY, self._sizes[block]) - first))
        if end is not None:
            rows = rows[rows[:, self._order] < end]
        done[block] += len(rows)
        return rows

    def _move(self) -> None:
        """Move rows in memory to the end of the file."""
        if not self.numbers:
            return
        rows = np.frombuffer(self.numbers, dtype=np.int64).reshape(-1, len(self.columns))
        sizes = [len(part) for part in np.array_split(rows, max(len(rows) // BLOCK, 1))]
        del rows
        self._write(self.moved, self.numbers)
        self._sizes += sizes
        self.moved += sum(sizes)
        del self.numbers[:]

    def _sort(self) -> None:
        """Sort every block in place."""
        for block in range(len(self._samples), len(self._sizes)):
            rows = self._sorted(self._read(self._first(block), self._sizes[block]))
            self._write(self._first(block), rows)
            self._samples.append(rows[::EVERY, self._order].copy())

    def _sorted(self, rows: Column) -> Column:
        return rows[np.argsort(rows[:, self._order], kind="stable")]

    def _first(self, block: int) -> int:
        return sum(self._sizes[:block])

    def _read(self, first: int, count: int) -> Column:
        """Read `count` rows of the file, starting at row `first`."""
        rows = np.empty((count, len(self.columns)), dtype=np.int64)
        assert self._file is not None
        self._file.seek(first * len(self.columns) * WIDTH)
        self._file.readinto(rows.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]
        return rows

    def _write(self, row: int, numbers: Any) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (it ends with the rows)
                weakref.finalize(self, self._file.close)
            self._file.seek(row * len(self.columns) * WIDTH)
            self._file.write(numbers)
            self._file.flush()
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise SimulationError(
                f"{folder}: {len(self):,} message rows cannot be stored there: {error.strerror or error}; "
                "--out or TMPDIR name another folder, record: compute keeps none"
            ) from None

    def _named(self, rows: Column) -> dict[str, Column]:
        return dict(zip(self.columns, rows.T, strict=True))
