"""Standard output that is closed, full, cut off, or poor in characters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "hybrid_des"]


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error():
    shell = f"set -o pipefail; '{COMMAND[0]}' -m hybrid_des docs --schema | head -c 10 >/dev/null"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "schedules"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_closed_stdout_discards_the_output():
    shell = f"'{COMMAND[0]}' -m hybrid_des schedules >&-"
    assert subprocess.run(["bash", "-c", shell], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_characters_a_terminal_cannot_encode_are_replaced():
    poor = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "schedules"], capture_output=True, env=poor, check=False)
    assert done.returncode == 0
    assert b"(m+p?1)" in done.stdout
