"""Run notebooks again: `python tests/support/notebook_runs.py` does so for all of them and saves what comes out.

`--show NOTEBOOK` prints what a notebook's cells write instead, and saves nothing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

NOTEBOOKS = sorted(Path(__file__).resolve().parents[2].joinpath("notebooks").glob("*.ipynb"))
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


class Shell(InteractiveShell):
    """A shell without a window system, as a kernel's."""

    def enable_gui(self, gui: str | None = None) -> None:
        """Pictures are written, not shown."""


def run(path: Path) -> nbformat.NotebookNode:
    """Run every cell in a fresh shell of this process, in the notebook's folder: a kernel takes seconds to start."""
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # so do workers, for sweeps that take less
    os.chdir(path.parent)
    Shell.clear_instance()
    shell = Shell.instance(colors="nocolor")
    notebook = nbformat.read(path, as_version=4)
    for number, cell in enumerate(one for one in notebook.cells if one.cell_type == "code"):
        with capture_output() as written:
            shell.display_trap.hook = sys.displayhook  # of the capture
            done = shell.run_cell(cell.source, store_history=True)
        done.raise_error()
        cell.execution_count = number + 1
        shown = [one for one in written._outputs if "transient" in one or not cell.source.endswith(";")]
        cell.outputs = _outputs(written.stdout, shown, number + 1)
    return notebook


def _outputs(printed: str, shown: list[dict[str, Any]], count: int) -> list[nbformat.NotebookNode]:
    """What a cell printed, then what it showed."""
    stream = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
    return stream + [
        nbformat.v4.new_output("display_data", data=one["data"])
        if "transient" in one
        else nbformat.v4.new_output("execute_result", data=one["data"], execution_count=count)
        for one in shown
    ]


def texts(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each code cell wrote, a picture as its kind."""
    return [[_text(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return output.text
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
        print(json.dumps(texts(run(Path(sys.argv[2]).resolve()))))
    else:
        paths = [Path(name).resolve() for name in sys.argv[1:]] or NOTEBOOKS
        for path in paths:
            if len(paths) == 1:
                save(path)
                print(path)
            else:  # a second shell of a process would show no pictures
                subprocess.run([sys.executable, __file__, path], check=True)
