"""Every notebook runs, and shows what was committed."""

import json
import re
import subprocess
import sys

import pytest
from support import paths

pytestmark = pytest.mark.slow

SMALL = 700_000  # bytes of a notebook with its pictures
NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("*.ipynb"))


@pytest.fixture(scope="module")
def runs():
    """Notebooks are read by what takes half a second to import, which other tests are spared."""
    from support import notebook_runs

    return notebook_runs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_was_committed(path, runs):
    command = [sys.executable, runs.__file__, "--show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == runs.texts(runs.nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_clean(path, runs):
    notebook = runs.nbformat.read(path, as_version=4)
    runs.nbformat.validate(notebook)
    assert path.stat().st_size < SMALL
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_public_names_only(path, runs):
    cells = [cell.source for cell in runs.nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    imports = re.findall(r"^\s*(?:from|import) (hybrid_des[\w.]*)", "\n".join(cells), flags=re.MULTILINE)
    assert set(imports) == {"hybrid_des"}
