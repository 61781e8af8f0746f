"""Files that a user names: whatever else it is than a file is refused in one line, and nothing waits."""

import os

import pytest
from support.tables import from_table

from hybrid_des.cluster.time_table import read_table
from hybrid_des.errors import HybridDesError
from hybrid_des.files import LARGEST, open_file, read_text
from hybrid_des.scenario.loading import load
from hybrid_des.studies.sweep.axes import read_rows
from hybrid_des.workload.models.kinds.layer_table import read_layers

SMALL = "schedule: {kind: gpipe, microbatches: 2}\nworkload: {forward: 1 s, backward: 2 s}\n"
READERS = {"a scenario": load, "a table": read_table, "layers": read_layers, "rows": lambda path: read_rows(path, "a")}


@pytest.fixture
def pipe(tmp_path):
    """A named pipe without a writer."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("place", "said"), [("pipe", "named pipe"), (".", "directory"), ("/dev/zero", "device")])
def test_what_is_no_file_is_refused(read, place, said, pipe):
    with pytest.raises((HybridDesError, ValueError)) as error:
        read(pipe.parent / place)
    assert said in str(error.value).lower()
    assert "\n" not in str(error.value)


@from_table
def test_a_named_pipe_in_a_scenario_is_refused(refused, write, pipe, more):
    small = write("parallel: {data: 2}\n" + SMALL, "small.yaml")
    text = more.replace("PIPE", str(pipe)) + ("" if more.startswith("base") else f"\nbase: {small}\n")
    assert "named pipe" in refused(write(text))


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["schedules", "--verify"],
        ["topology"],
        ["costs"],
        ["validate"],
        ["measure", "--from"],
        ["explain"],
        ["import"],
    ],
)
def test_a_command_refuses_a_named_pipe(refused, pipe, command):
    assert "a named pipe, not a file" in refused(*command, pipe)


def test_a_pipe_of_the_shell_is_read(run):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        file.write(SMALL)
    code, out, err = run(f"/dev/fd/{reader}", "--json")
    os.close(reader)
    assert (code, err) == (0, [])
    assert '"step_time_s": 6.0' in out


def test_a_text_is_read_to_its_limit_only(write):
    assert read_text(write("é\n")) == "é\n"
    with pytest.raises(HybridDesError, match="larger than 16 MiB; expected a poem"):
        read_text(write(b"a" * (LARGEST + 1)), "a poem")
    with pytest.raises(HybridDesError, match="not a text file"):
        read_text(write(b"\xff"))
    with pytest.raises(FileNotFoundError):
        open_file("nowhere")
