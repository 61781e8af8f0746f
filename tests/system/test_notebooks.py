"""Every notebook runs, and shows what was committed."""

from __future__ import annotations

import json
import subprocess
import sys

import nbformat
import pytest
from support import notebook_runs

SMALL = 600_000  # bytes of a notebook with its pictures


@pytest.mark.parametrize("path", notebook_runs.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_was_committed(path):
    command = [sys.executable, notebook_runs.__file__, "--show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == notebook_runs.texts(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", notebook_runs.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < SMALL
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
