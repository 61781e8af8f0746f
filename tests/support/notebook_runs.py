"""Run notebooks again: `python tests/notebook_runs.py` does so for all of them and saves what comes out.

`--show NOTEBOOK` prints what a notebook's cells write instead, and saves nothing.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

NOTEBOOKS = sorted(Path(__file__).resolve().parents[2].joinpath("notebooks").glob("*.ipynb"))
os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # starting workers takes longer than the small sweeps that are shown
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def run(path: Path) -> nbformat.NotebookNode:
    """Run every cell in a fresh kernel of this interpreter, in the notebook's folder."""
    notebook = nbformat.read(path, as_version=4)
    kernel = AsyncKernelManager()
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel._kernel_spec = KernelSpec(argv=argv, display_name="this interpreter", language="python")
    client = NotebookClient(notebook, km=kernel, timeout=300, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    return notebook


def texts(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each code cell wrote: printed text in one piece, however it arrived, and a picture as its kind."""
    return [_texts(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def _texts(outputs: list[nbformat.NotebookNode]) -> list[str]:
    found = []
    for printed, several in groupby(outputs, key=lambda output: output.output_type == "stream"):
        written = [_text(output) for output in several]
        found += ["".join(written)] if printed else written
    return found


def _text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    return "image/png" if "image/png" in output.data else output.data["text/plain"]


def save(path: Path) -> None:
    """Run a notebook and keep its outputs, without anything that changes from run to run."""
    notebook = run(path)
    notebook.metadata = METADATA
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--show"]:
        print(json.dumps(texts(run(Path(sys.argv[2])))))
    else:
        for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
            save(path)
            print(path)
