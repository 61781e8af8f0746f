"""Recordings of PyTorch's pipelines, without PyTorch: their table, and what is refused."""

import sys

import pytest

from hybrid_des import record
from hybrid_des.errors import UsageError
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.measured.measure.recording import Recorder, table_of

FIRST, SECOND = (0, 1), (2, 3)  # the ranks of two pipelines
COLUMNS = ["step", "pipeline_rank", "chunk", "kind", "microbatch", "start_s", "end_s"]
ROWS = [  # of one micro-batch over two ranks, by a clock that does not begin at 0
    (FIRST, 0, 0, 0, "F", 0, 100.0, 101.0), (FIRST, 0, 0, 0, "B", 0, 104.0, 106.0),
    (FIRST, 0, 1, 0, "F", 0, 101.0, 102.0), (FIRST, 0, 1, 0, "B", 0, 102.0, 104.0),
]  # fmt: skip


def test_a_table_begins_with_its_first_op():
    table = table_of(ROWS)
    assert table.columns.tolist() == COLUMNS
    assert table[["start_s", "end_s"]].to_numpy().tolist() == [[0, 1], [4, 6], [1, 2], [2, 4]]


def test_pipelines_of_other_ranks_are_other_replicas():
    table = table_of([*((SECOND, *row[1:]) for row in ROWS), *ROWS])
    assert table.columns.tolist() == ["step", "replica", *COLUMNS[1:]]
    assert table.replica.tolist() == [0] * 4 + [1] * 4


def test_a_table_is_imported(tmp_path):
    table_of(ROWS).to_csv(tmp_path / "run.csv", index=False)
    figures = import_profile(tmp_path / "run.csv").figures
    assert (figures["schedule"], figures["measured_step_time_s"]) == ("1f1b", 6)


def test_without_pytorch_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining", None)
    with pytest.raises(UsageError, match=r"needs the measure extra: pip install .*\[measure\]"), record("run.csv"):
        pass


def test_steps_of_two_schedules_are_refused():
    recorder = Recorder("run.csv")
    first, second = object(), object()
    recorder.begin(first)
    recorder.begin(first)
    with pytest.raises(UsageError, match=r"run\.csv: two schedules in one recording"):
        recorder.begin(second)


def test_an_empty_recording_says_why():
    recorder = Recorder("run.csv")
    with pytest.raises(UsageError, match="nothing was recorded: no step"):
        recorder.check([])
    recorder.begin(recorder)
    with pytest.raises(UsageError, match="nothing was recorded: 1 steps, of which the first 1 warm up"):
        recorder.check([])
