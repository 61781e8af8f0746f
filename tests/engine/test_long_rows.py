"""Rows of a long run are in a file, and come back as they were."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from hybrid_des.engine import long_rows
from hybrid_des.engine.long_rows import LongRows
from hybrid_des.errors import SimulationError

COLUMNS = ("number", "start")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for name, size in (("KEPT", 50), ("BLOCK", 16), ("EVERY", 4)):
        monkeypatch.setattr(long_rows, name, size)


def filled(count, spread, seed=0, folder=None):
    """Rows whose starts rise, more or less, and what they hold."""
    random = Random(seed)
    rows = LongRows(COLUMNS, "start", folder)
    starts = [i // 3 + random.randrange(spread) for i in range(count)]
    for row in enumerate(starts):
        rows.add(row)
        if random.random() < 0.1:
            rows.spill()
    return rows, starts


@pytest.mark.parametrize("count", [0, 1, 49, 1000])
def test_rows_come_back_as_they_were_added(count):
    rows, starts = filled(count, 10)
    assert len(rows) == count
    assert rows.in_file == (count > 50)
    assert {name: column.tolist() for name, column in rows.table().items()} == {
        "number": list(range(count)),
        "start": starts,
    }


@pytest.mark.parametrize("count", [0, 1, 49, 1000])
def test_rows_read_where_they_are_looked_at_are_the_same(count):
    rows, _ = filled(count, 10)
    mapped, table = rows.mapped(), rows.table()
    del rows  # and with them the file
    assert {name: column.tolist() for name, column in mapped.items()} == {
        name: column.tolist() for name, column in table.items()
    }


@pytest.mark.parametrize("count", [0, 49, 1000])
def test_rows_let_go_are_read_again(count):
    rows, starts = filled(count, 10)
    mapped = rows.mapped()
    assert mapped["start"].tolist() == starts
    rows.let_go()
    assert mapped["start"].tolist() == rows.mapped()["start"].tolist() == starts


@pytest.mark.parametrize("spread", [1, 10, 1000], ids=["sorted", "nearly", "not at all"])
def test_rows_are_read_in_order_and_ties_as_added(spread):
    rows, starts = filled(1000, spread)
    pieces = [(piece["start"].tolist(), piece["number"].tolist(), end) for piece, end in rows.in_order()]
    assert [number for _, numbers, _ in pieces for number in numbers] == sorted(range(1000), key=lambda i: starts[i])
    assert all(piece[-1] < end for piece, _, end in pieces if end is not None)
    assert all(later[0] >= end for (_, _, end), (later, _, _) in pairwise(pieces))
    assert max(len(piece) for piece, _, _ in pieces) < 200
    assert sorted(number for piece in rows.pieces() for number in piece["number"].tolist()) == list(range(1000))


def test_rows_that_all_start_at_once_are_one_piece():
    rows = LongRows(COLUMNS, "start")
    for number in range(200):
        rows.add((number, 7))
        rows.spill()
    ((piece, end),) = rows.in_order()
    assert (piece["number"] == np.arange(200)).all()
    assert end is None


def test_few_rows_make_no_file(tmp_path):
    rows, _ = filled(40, 10, folder=tmp_path / "missing")
    rows.spill()
    assert not rows.in_file


def test_the_file_has_no_name(tmp_path):
    rows, _ = filled(1000, 10, folder=tmp_path)
    assert rows.in_file
    assert not list(tmp_path.iterdir())


def test_a_folder_without_room_is_named_in_one_line(tmp_path):
    with pytest.raises(SimulationError, match=r"missing: .* message rows cannot be stored there: No such file"):
        filled(1000, 10, folder=tmp_path / "missing")
