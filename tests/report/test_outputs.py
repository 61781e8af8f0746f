"""Files: written whole or not at all, and the same bytes each time."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from support import handmade
from support.plans import plan_of
from support.results import result_of

from hybrid_des.analysis.table import COLUMNS, EXACT, ops_of
from hybrid_des.errors import UsageError
from hybrid_des.report.files import registration as outputs
from hybrid_des.report.files.run_files import timeline_parquet
from hybrid_des.report.files.staging import reserved, write_files
from hybrid_des.result import Result


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """What was written of a run, once."""
    return result_of().write(tmp_path_factory.mktemp("run") / "deep" / "out")


@pytest.fixture
def folder(first, tmp_path):
    """A folder with the files of a run, to be changed."""
    return shutil.copytree(first.paths[0].parent, tmp_path / "out")


def test_all_files_are_there_and_nothing_else(first):
    folder = first.paths[0].parent
    assert sorted(folder.iterdir()) == sorted(first.paths)
    assert {path.name for path in first.paths} >= {
        "summary.json", "timeline.csv", "timeline.parquet", "trace.json.gz", "gantt.png", "gantt.svg"
    }  # fmt: skip
    assert sorted(folder.parents[1].rglob("*")) == sorted([folder.parent, folder, *first.paths])


def test_the_same_run_replaces_files_by_the_same_bytes(first, tmp_path):
    (tmp_path / "summary.json").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    result_of().write(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert json.loads((tmp_path / "summary.json").read_text())["name"] == "handmade"
    for path in first.paths:
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_without_recorded_rows_no_file_pretends_to_have_them(tmp_path):
    result_of(record="none").write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"summary.json", "order.csv"}
    assert (tmp_path / "summary.json").exists()


def test_a_second_run_removes_files_that_it_does_not_write(folder):
    (folder / "notes.csv").write_text("mine")
    (folder / "gantt.pdf").write_text("mine")
    written = result_of(record="none").write(folder)
    assert {path.name for path in written.paths} == {"order.csv", "summary.json"}
    assert {path.name for path in folder.iterdir()} == {"order.csv", "summary.json", "notes.csv", "gantt.pdf"}


def test_a_file_named_like_a_picture_without_ending_stays(tmp_path):
    (tmp_path / "fabric").write_text("the user's own")
    drawn = write_files(tmp_path, {"fabric": Figure(), "gone.html": None})
    assert sorted(path.name for path in drawn.paths) == ["fabric.png", "fabric.svg"]
    assert (tmp_path / "fabric").read_text() == "the user's own"


def test_a_folder_of_a_files_name_is_not_removed(tmp_path):
    (tmp_path / "gantt.png").mkdir()
    result_of(record="none").write(tmp_path)
    assert (tmp_path / "gantt.png").is_dir()


def test_every_format_registers_all_its_files(first):
    registered = {file for name in outputs.names() for file in outputs.find(name).facts["files"]}
    assert {path.name for path in first.paths} == registered


@pytest.mark.parametrize("moment", ["while files are made", "while they are moved"])
def test_an_interrupted_second_run_leaves_the_first_ones_files(folder, monkeypatch, scratch, moment):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(before) > 5

    def fail(*_):
        raise KeyboardInterrupt

    if moment == "while files are made":
        outputs.output("written last", rows=False)(fail)
    else:
        replace = Path.replace
        monkeypatch.setattr(Path, "replace", lambda self, to: fail() if self.name == "order.csv" else replace(self, to))
    with pytest.raises(KeyboardInterrupt):
        result_of(record="none").write(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError("disk full")])
def test_an_interruption_leaves_nothing_behind(tmp_path, scratch, error):
    rows = isinstance(error, OSError)  # behind all files; else behind those that need no rows

    @outputs.output("written last", rows=rows)
    def fail(*_):
        raise error

    assert outputs.names()[-1] == "written last"
    with pytest.raises(UsageError if isinstance(error, OSError) else error):
        result_of(record="all" if rows else "none").write(tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_runs_side_by_side_keep_each_others_folders(tmp_path):
    """Each creates the parents, and removes those that it created when it fails."""

    def one(number):
        name = f"{number % 3}"
        try:
            with reserved(tmp_path / "p" / "q" / name) as staging:
                (staging / "a").touch()
                if number % 2:
                    raise KeyboardInterrupt
                (staging / "a").replace(tmp_path / "p" / "q" / name / f"{number}")
        except KeyboardInterrupt:
            return None
        return f"{name}/{number}"

    with ThreadPoolExecutor(8) as pool:
        made = set(filter(None, pool.map(one, range(400))))
    files = {f"{path.parent.name}/{path.name}" for path in (tmp_path / "p" / "q").rglob("*") if path.is_file()}
    assert files == made
    assert len(made) == 200


def test_workshops_of_killed_runs_are_removed(tmp_path):
    (tmp_path / ".part-old").mkdir()
    (tmp_path / ".part-old" / "gantt.png").touch()
    with reserved(tmp_path) as living:
        assert [path.name for path in tmp_path.iterdir()] == [living.name]
        result_of(record="none").write(tmp_path)
        assert (living / "lock").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"order.csv", "summary.json"}


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below"):
        with pytest.raises(UsageError, match="cannot be written") as caught:
            result_of().write(tmp_path / place)
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_of_a_files_name_keeps_all_files_out(tmp_path):
    (tmp_path / "timeline.csv").mkdir()
    with pytest.raises(UsageError, match=r"timeline.csv is a directory"):
        result_of().write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.csv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_stays_as_it_was(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        result_of().write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_parquet_holds_what_the_csv_holds(first):
    pytest.importorskip("pyarrow")
    result, folder = result_of(), first.paths[0].parent
    exact = pd.read_parquet(folder / "timeline.parquet")
    pd.testing.assert_frame_equal(exact[[*COLUMNS]], result.timeline)
    assert tuple(exact.columns) == (*COLUMNS, *EXACT)
    text = pd.read_csv(folder / "timeline.csv")
    assert text["end_s"].tolist() == result.timeline["end_s"].tolist()


def test_parquet_keeps_every_picosecond_of_a_long_run(tmp_path):
    pytest.importorskip("pyarrow")
    result = Result(
        handmade.run(plan_of("1f1b", 2, 4), handmade.uniform(997 * 10**12 + 1, 1993 * 10**12 + 2), delay=12345)
    )
    timeline_parquet(result, tmp_path)
    exact = ops_of(pd.read_parquet(tmp_path / "timeline.parquet"))
    rows = result.run.timeline.op_rows()
    order = np.lexsort((rows["rank"], rows["start"]))
    assert rows["end"].max() > 4500 * 10**12
    for name in ("asked", "start", "end"):
        assert exact[name].tolist() == rows[name][order].tolist()
    rounded = ops_of(result.timeline)
    assert rounded["end"].tolist() != exact["end"].tolist()
